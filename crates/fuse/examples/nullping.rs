//! Measures the latency of an empty request: mounts an in-memory file system and requests the
//! attributes of a file whose attributes are never cached.
//!
//! `nullping [ring|device] [seconds] [threads] [pin]`, as root, in its own mount namespace
//! (`unshare -m`).

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, dead_code, unreachable_pub)]

#[path = "../tests/it/common/memory.rs"]
mod memory;

use fuse::{Flags, MountOptions, Session, Transport};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize| args.get(i).map(String::as_str);
    let transport = match arg(0) {
        Some("ring") => Transport::Ring,
        Some("device") => Transport::Device,
        _ => Transport::Auto,
    };
    let seconds = arg(1).and_then(|s| s.parse().ok()).unwrap_or(2);
    let threads: usize = arg(2).and_then(|s| s.parse().ok()).unwrap_or(1);
    let pinned = arg(3) == Some("pin");
    let place = std::env::temp_dir().join(format!("nullping-{}", std::process::id()));
    std::fs::create_dir(&place).unwrap();
    let fs = Arc::new(memory::Memory::new());
    fs.add_file(b"file", b"");
    let options =
        MountOptions { transport, flags: Flags { noatime: true, ..Flags::default() }, ..MountOptions::new(&place) };
    let session = Session::mount(&options, fs).unwrap();
    println!("agreed: {:?}", session.agreed().unwrap());
    let end = Instant::now() + Duration::from_secs(seconds);
    let clients: Vec<_> = (0..threads)
        .map(|i| {
            let file = place.join("file");
            std::thread::spawn(move || {
                if pinned {
                    let mut set = rustix::thread::CpuSet::new();
                    set.set(i % 2);
                    rustix::thread::sched_setaffinity(None, &set).unwrap();
                }
                let file = std::fs::File::open(file).unwrap();
                let mut count = 0_u64;
                while Instant::now() < end {
                    for _ in 0..100 {
                        file.metadata().unwrap();
                    }
                    count += 100;
                }
                count
            })
        })
        .collect();
    let count: u64 = clients.into_iter().map(|c| c.join().unwrap()).sum();
    let rate = count / seconds;
    println!("{rate} getattr/s, {:.2} us each per thread", 1e6 * threads as f64 / rate as f64);
    println!("{}", resident());
    let large = place.join("large");
    std::fs::write(&large, vec![7; 64 << 20]).unwrap();
    std::fs::OpenOptions::new().write(true).truncate(true).open(&large).unwrap();
    println!("{} right after large transfers", resident());
    std::thread::sleep(Duration::from_millis(1500));
    println!("{} a while later", resident());
    session.stop().unwrap();
    session.wait();
    println!("{}", session.counters().to_json());
    std::fs::remove_dir(&place).unwrap();
}

fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}
