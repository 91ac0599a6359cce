//! Measures the throughput of the `xor` layer and of a null layer: `cargo run --release -p layers
//! --example throughput [DIRECTORY]`.
//!
//! Runs in one thread and without a mount, on a directory of the host (best on tmpfs).
#![allow(clippy::disallowed_methods, reason = "it creates its working directory")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use vnode::{Cx, Layer, Name, OpenFile, OpenFlags};
use wrapfs::{Settings, WrapFs};

const CX: Cx<'static> = Cx::internal(0, 0);
const SIZE: usize = 256 << 20;
const ROUNDS: usize = 5;

fn main() {
    let dir: PathBuf = std::env::args_os().nth(1).map_or("/dev/shm".into(), PathBuf::from);
    let scratch = dir.join(format!("throughput-{}", std::process::id()));
    std::fs::create_dir(&scratch).expect("create the working directory");
    let host =
        || hostfs::HostFs::open(&scratch, hostfs::HostOptions::default()).expect("open the directory as a layer");
    let xor = |block: &str| {
        let mut settings = Settings::new();
        settings.insert("block", block.as_bytes());
        layers::xor::LAYER.over(host(), &settings).unwrap()
    };
    let kinds: [(&str, Arc<dyn Layer>); 4] = [
        ("null", WrapFs::new(host())),
        ("xor, 4 KiB", xor("4096")),
        ("xor, 64 KiB", xor("65536")),
        ("xor, 512 B", xor("512")),
    ];
    println!(
        "{:12} {:>9} {:>12} {:>12} {:>12}   (GB/s, best of {ROUNDS})",
        "layer", "call", "write new", "overwrite", "read"
    );
    for (what, layer) in &kinds {
        for call in [4 << 10, 128 << 10, 1 << 20] {
            let [new, over, read] = measure(&**layer, call);
            println!("{what:12} {call:>9} {new:>12.2} {over:>12.2} {read:>12.2}");
        }
    }
    std::fs::remove_dir_all(&scratch).expect("remove the working directory");
}

fn measure(layer: &dyn Layer, call: usize) -> [f64; 3] {
    let data: Vec<u8> = (0..call).map(|i| (i % 251) as u8).collect();
    let mut out = vec![0; call];
    let mut best = [0.0f64; 3];
    let name = Name::new(b"f").unwrap();
    for _ in 0..ROUNDS {
        let (_, file) = layer.root().create(&CX, name, 0o644, OpenFlags::RDWR).expect("a new file");
        let write = |at| assert_eq!(file.write(&CX, &data, at), Ok(call));
        let speeds = [each(call, write), each(call, write), each(call, |at| read(&*file, &mut out, at))];
        best.iter_mut().zip(speeds).for_each(|(best, speed)| *best = best.max(speed));
        layer.root().unlink(&CX, name).unwrap();
    }
    assert_eq!(out, data);
    best
}

fn read(file: &dyn OpenFile, out: &mut [u8], at: u64) {
    let len = out.len();
    assert_eq!(file.read(&CX, out, at), Ok(len));
}

/// Returns the GB/s of sequential calls over the whole file.
fn each(call: usize, mut act: impl FnMut(u64)) -> f64 {
    let start = Instant::now();
    (0..SIZE / call).for_each(|i| act((i * call) as u64));
    SIZE as f64 / start.elapsed().as_secs_f64() / 1e9
}
