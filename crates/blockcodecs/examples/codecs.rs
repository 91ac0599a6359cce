//! Measures the streaming write and read throughput of files with each codec, on a file system in
//! memory: `cargo run --release -p blockcodecs --example codecs [FILE]`. The data is the
//! content of FILE, or generated text and noise.

#![allow(clippy::disallowed_methods, reason = "it reads the file to store")]
use blockcodecs::{XChaCha, Zstd};
use container::{BlockCodec, Container};
use memfs::{Faults, MemFs, MemOptions};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vnode::{Cx, Layer, Name, OpenFlags};

const CX: Cx<'static> = Cx::internal(0, 0);
const SIZE: usize = 128 << 20;

/// Returns generated words with random numbers between them.
fn generated() -> Vec<u8> {
    let mut seed = 1u64;
    let mut next = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    let mut bytes = Vec::with_capacity(SIZE + 64);
    while bytes.len() < SIZE {
        let word = next() % 2000;
        bytes.extend(format!("w{:x}{} ", word * word, ["ing", "ed", "", "s"][(word % 4) as usize]).into_bytes());
        if word % 8 == 0 {
            bytes.extend(next().to_le_bytes());
        }
    }
    bytes.truncate(SIZE);
    bytes
}

fn rate(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64() / 1e6
}

/// Writes and reads all data in requests of one size; prints MB/s.
fn run(name: &str, codec: Arc<dyn BlockCodec>, data: &[u8], request: usize) -> Result<(), Box<dyn Error>> {
    let fs = MemFs::with(MemOptions { space: 8 << 30, ..MemOptions::default() }, &Faults::new());
    let (entry, lower) = fs.root().create(&CX, Name::new(b"f")?, 0o600, OpenFlags::RDWR)?;
    let file = Container::open(&CX, codec, Arc::clone(&entry.vnode), lower)?;
    let start = Instant::now();
    for (at, part) in data.chunks(request).enumerate() {
        file.write(&CX, part, (at * request) as u64)?;
    }
    let writing = start.elapsed();
    let mut out = vec![0; request];
    let start = Instant::now();
    for at in 0..data.len() / request {
        file.read(&CX, &mut out, (at * request) as u64)?;
    }
    let reading = start.elapsed();
    let stored = entry.vnode.getattr(&CX)?.blocks * 512;
    println!(
        "{name:24} {:7} {:8.0} {:8.0} {:7.1} %",
        request >> 10,
        rate(data.len(), writing),
        rate(data.len(), reading),
        stored as f64 * 100.0 / data.len() as f64
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let data = match std::env::args_os().nth(1) {
        Some(path) => std::fs::read(path)?,
        None => generated(),
    };
    println!("{:24} {:>7} {:>8} {:>8} {:>9}", "codec, block", "KiB", "write", "read", "stored");
    for request in [1 << 20, 128 << 10, 4 << 10] {
        let data = if request > 4096 { &data[..] } else { data.get(..SIZE / 16).unwrap_or(&data) };
        for block in [64 << 10, 128 << 10] {
            for level in [1, 3] {
                run(
                    &format!("zstd level {level}, {} KiB", block >> 10),
                    Arc::new(Zstd::new(level, block)?),
                    data,
                    request,
                )?;
            }
            run(&format!("xchacha, {} KiB", block >> 10), Arc::new(XChaCha::new(&[7; 32], block)), data, request)?;
        }
        run("xchacha, 4 KiB", Arc::new(XChaCha::new(&[7; 32], 4 << 10)), data, request)?;
    }
    Ok(())
}
