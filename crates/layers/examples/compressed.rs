//! Measures the throughput of the `zstd` layer, and the space that its files occupy: `cargo run
//! --release -p layers --example compressed [DIRECTORY]`.
//!
//! Runs in one thread and without a mount, on a directory of the host (best on tmpfs).
#![allow(clippy::disallowed_methods, reason = "it creates its working directory")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::PathBuf;
use std::time::Instant;
use vnode::{Cx, Layer, Name, OpenFile, OpenFlags};
use wrapfs::Settings;

const CX: Cx<'static> = Cx::internal(0, 0);
const SIZE: u64 = 256 << 20;

/// Number of bytes written between two fsyncs.
const SYNC: u64 = 32 << 20;

fn main() {
    let dir: PathBuf = std::env::args_os().nth(1).map_or("/dev/shm".into(), PathBuf::from);
    let scratch = dir.join(format!("compressed-{}", std::process::id()));
    std::fs::create_dir(&scratch).expect("create the working directory");
    let host = hostfs::HostFs::open(&scratch, hostfs::HostOptions::default()).expect("open the directory as a layer");
    println!("{:34} {:>8} {:>10}", "", "MB/s", "stored MiB");
    for block in ["4096", "65536"] {
        let mut settings = Settings::new();
        settings.insert("block", block.as_bytes());
        let layer = layers::zstd::LAYER.over(host.clone(), &settings).unwrap();
        run(&*layer, &*host, block);
    }
    std::fs::remove_dir_all(&scratch).expect("remove the working directory");
}

fn run(layer: &dyn Layer, below: &dyn Layer, block: &str) {
    let name = Name::new(b"f").unwrap();
    let (entry, file) = layer.root().create(&CX, name, 0o644, OpenFlags::RDWR).expect("a new file");
    let stored = || below.root().lookup(&CX, name).unwrap().unwrap().attr.blocks >> 11;
    let report = |what: &str, speed: f64| println!("blocks of {block:>5}: {what:17} {speed:>8.0} {:>10}", stored());
    report("written new", writes(&*file, 128 << 10, false, 1));
    report("overwritten", writes(&*file, 128 << 10, false, 2));
    for call in [4 << 10, 64 << 10] {
        report(&format!("random, {} KiB", call >> 10), writes(&*file, call, true, call as u64));
    }
    drop(file);
    report("closed", 0.0);
    let file = entry.vnode.open(&CX, OpenFlags::RDWR).unwrap();
    let start = Instant::now();
    let zeros = vec![5; 1 << 20];
    (0..SIZE >> 20).for_each(|at| assert_eq!(file.write(&CX, &zeros, at << 20), Ok(1 << 20)));
    drop(file);
    report("constants, closed", SIZE as f64 / start.elapsed().as_secs_f64() / 1e6);
    layer.root().unlink(&CX, name).unwrap();
}

/// Returns the MB/s of sequential calls over the whole file, or of random ones, with fsyncs.
fn writes(file: &dyn OpenFile, call: usize, random: bool, seed: u64) -> f64 {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    // A third of the data is compressible.
    let data: Vec<u8> = (0..call + 65_536).map(|i| if i % 3 == 0 { 7 } else { next() as u8 }).collect();
    let calls = SIZE / call as u64 / if random && call < 8192 { 4 } else { 1 };
    let start = Instant::now();
    for i in 0..calls {
        let at = if random { next() % (SIZE / call as u64) } else { i };
        let from = (next() % 65_536) as usize;
        assert_eq!(file.write(&CX, &data[from..from + call], at * call as u64), Ok(call));
        if i * call as u64 % SYNC < call as u64 {
            file.fsync(&CX, true).unwrap();
        }
    }
    file.fsync(&CX, true).unwrap();
    (calls * call as u64) as f64 / start.elapsed().as_secs_f64() / 1e6
}
