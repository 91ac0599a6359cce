//! Measures the throughput of the `xor` layer, of formats and of a null layer: `cargo run --release
//! -p layers --example throughput [DIRECTORY]`.
//!
//! Runs in one thread and without a mount, on a directory of the host (best on tmpfs).
#![allow(clippy::disallowed_methods, reason = "it creates its working directory")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use chacha20poly1305::aead::{AeadInOut as _, KeyInit as _};
use chacha20poly1305::{Key, Tag, XChaCha20Poly1305, XNonce};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use vnode::{Cx, Errno, Layer, Name, OpenFile, OpenFlags, Result};
use wrapfs::hooks::{FileFormat, FormatBlock, Journal, Layout, Object};
use wrapfs::{Settings, Template, WrapFs};

const CX: Cx<'static> = Cx::internal(0, 0);
const SIZE: usize = 256 << 20;
const ROUNDS: usize = 5;

/// Blocks of 4 KiB, with room for a nonce and a tag.
const LAYOUT: Layout = Layout::new(18, 4096, 4096 + 40).expect("valid sizes");

/// Copies blocks: the cost of the template.
#[derive(Debug)]
struct Copied;

/// Encrypts blocks with XChaCha20-Poly1305: a costly format.
struct Encrypted(XChaCha20Poly1305);

impl std::fmt::Debug for Encrypted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Encrypted")
    }
}

impl FileFormat for Copied {
    fn new_header(&self, _cx: &Cx<'_>, _file: &Object<'_>, header: &mut [u8]) -> Result<()> {
        header.fill(1);
        Ok(())
    }

    fn check_header(&self, _cx: &Cx<'_>, _file: &Object<'_>, _header: &[u8]) -> Result<()> {
        Ok(())
    }

    fn encode_block(&self, _cx: &Cx<'_>, _at: &FormatBlock<'_>, plain: &[u8], stored: &mut [u8]) -> Result<()> {
        let (head, body) = stored.split_at_mut(stored.len() - plain.len());
        head.fill(1);
        body.copy_from_slice(plain);
        Ok(())
    }

    fn decode_block(&self, _cx: &Cx<'_>, _at: &FormatBlock<'_>, stored: &[u8], plain: &mut [u8]) -> Result<()> {
        plain.copy_from_slice(&stored[stored.len() - plain.len()..]);
        Ok(())
    }
}

impl FileFormat for Encrypted {
    fn new_header(&self, cx: &Cx<'_>, file: &Object<'_>, header: &mut [u8]) -> Result<()> {
        Copied.new_header(cx, file, header)
    }

    fn check_header(&self, _cx: &Cx<'_>, _file: &Object<'_>, _header: &[u8]) -> Result<()> {
        Ok(())
    }

    fn encode_block(&self, _cx: &Cx<'_>, at: &FormatBlock<'_>, plain: &[u8], stored: &mut [u8]) -> Result<()> {
        let (nonce, rest) = stored.split_first_chunk_mut::<24>().ok_or(Errno::IO)?;
        let (data, tag) = rest.split_last_chunk_mut::<16>().ok_or(Errno::IO)?;
        // Not random, and so not for use.
        nonce[..8].copy_from_slice(&at.number.to_le_bytes());
        data.copy_from_slice(plain);
        let made = self.0.encrypt_inout_detached(&XNonce::from(*nonce), &[], data.into());
        *tag = made.map_err(|_| Errno::IO)?.into();
        Ok(())
    }

    fn decode_block(&self, _cx: &Cx<'_>, _at: &FormatBlock<'_>, stored: &[u8], plain: &mut [u8]) -> Result<()> {
        let (nonce, rest) = stored.split_first_chunk::<24>().ok_or(Errno::IO)?;
        let (data, tag) = rest.split_last_chunk::<16>().ok_or(Errno::IO)?;
        plain.copy_from_slice(data);
        let (nonce, tag) = (XNonce::from(*nonce), Tag::from(*tag));
        self.0.decrypt_inout_detached(&nonce, &[], plain.into(), &tag).map_err(|_| Errno::IO)
    }
}

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
    let journal = Journal::new(b"journal");
    let encrypted = Encrypted(XChaCha20Poly1305::new(&Key::from([7; 32])));
    let kinds: [(&str, Arc<dyn Layer>); 7] = [
        ("null", WrapFs::new(host())),
        ("xor, 4 KiB", xor("4096")),
        ("xor, 64 KiB", xor("65536")),
        ("xor, 512 B", xor("512")),
        ("format, copied", Template::over(host()).format(LAYOUT, Copied).build().unwrap()),
        ("format, journal", Template::over(host()).format(LAYOUT, Copied).journal(journal).build().unwrap()),
        ("format, encrypted", Template::over(host()).format(LAYOUT, encrypted).build().unwrap()),
    ];
    println!(
        "{:18} {:>9} {:>12} {:>12} {:>12}   (GB/s, best of {ROUNDS})",
        "layer", "call", "write new", "overwrite", "read"
    );
    for (what, layer) in &kinds {
        for call in [4 << 10, 128 << 10, 1 << 20] {
            let [new, over, read] = measure(&**layer, call);
            println!("{what:18} {call:>9} {new:>12.2} {over:>12.2} {read:>12.2}");
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
