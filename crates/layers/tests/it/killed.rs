//! A format with a journal on a host directory, whose process is killed again and again.
#![allow(clippy::disallowed_methods, reason = "it starts and kills a process, in a directory of its own")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use testkit::{Rng, TempDir};
use vnode::{Cx, Errno, Layer, Name, OpenFile, OpenFlags, Result, SetAttr, Vnode};
use wrapfs::Template;
use wrapfs::hooks::{FileFormat, FormatBlock, FormatHeader, Journal, Layout, Object, Seal, Sealed};

const DIR: &str = "STRATA_TEST_KILLED_DIR";
const BLOCK: usize = 4096;
const JOURNAL: &str = "journal";
/// Maximum size of the file in blocks.
const BLOCKS: u64 = 200;

/// Stores blocks with a checksum, so that a mixture of two blocks is noticed.
#[derive(Debug)]
struct Words {
    /// Whether files have seals, so that a mixture of blocks of two states is noticed, too.
    seals: bool,
}

/// Length of what identifies a file.
const ID: usize = 18;
/// Number of sums in a seal.
const SUMS: usize = 50;

impl Sealed for Words {
    fn fixed(&self) -> usize {
        ID
    }

    fn segments(&self) -> usize {
        SUMS
    }

    fn shift(&self) -> u32 {
        0
    }

    fn read_seal(&self, _cx: &Cx<'_>, at: &FormatHeader<'_>) -> Result<Seal> {
        let size = u64::from_le_bytes(at.header[ID..ID + 8].try_into().unwrap());
        let sums = at.header[ID + 9..].chunks_exact(16).map(|sum| u128::from_le_bytes(sum.try_into().unwrap()));
        Ok(Seal { size, shift: at.header[ID + 8].into(), sums: sums.take(SUMS).collect() })
    }

    fn write_seal(&self, _cx: &Cx<'_>, at: &FormatHeader<'_>, seal: &Seal, header: &mut [u8]) -> Result<()> {
        header[..ID].copy_from_slice(&at.header[..ID]);
        header[ID..ID + 8].copy_from_slice(&seal.size.to_le_bytes());
        header[ID + 8] = seal.shift as u8;
        header[ID + 9..].chunks_mut(16).zip(&seal.sums).for_each(|(to, sum)| to.copy_from_slice(&sum.to_le_bytes()));
        Ok(())
    }

    fn weigh(&self, _cx: &Cx<'_>, _at: &FormatBlock<'_>, stored: &[u8]) -> Result<u128> {
        Ok(u128::from_le_bytes(stored[..16].try_into().unwrap()))
    }
}

impl FileFormat for Words {
    fn sealed(&self) -> Option<&dyn Sealed> {
        self.seals.then_some(self as &dyn Sealed)
    }

    fn new_header(&self, _cx: &Cx<'_>, _file: &Object<'_>, header: &mut [u8]) -> Result<()> {
        header[..ID].fill(7);
        Ok(())
    }

    fn check_header(&self, _cx: &Cx<'_>, _file: &Object<'_>, header: &[u8]) -> Result<()> {
        if header[..ID].iter().all(|&byte| byte == 7) { Ok(()) } else { Err(Errno::IO) }
    }

    fn encode_block(&self, _cx: &Cx<'_>, at: &FormatBlock<'_>, plain: &[u8], stored: &mut [u8]) -> Result<()> {
        let sum = sum(at.number, plain);
        stored[..32].copy_from_slice(&[sum; 4].map(u64::to_le_bytes).concat());
        stored[32..].copy_from_slice(plain);
        Ok(())
    }

    fn decode_block(&self, _cx: &Cx<'_>, at: &FormatBlock<'_>, stored: &[u8], plain: &mut [u8]) -> Result<()> {
        plain.copy_from_slice(&stored[32..]);
        if stored[..8] == sum(at.number, plain).to_le_bytes() { Ok(()) } else { Err(Errno::IO) }
    }
}

fn sum(number: u64, plain: &[u8]) -> u64 {
    let words = plain.chunks(8).map(|word| word.iter().fold(0, |sum: u64, &byte| sum << 8 | u64::from(byte)));
    let start = number.wrapping_mul(31) ^ plain.len() as u64;
    words.fold(start, |sum, word| (sum.rotate_left(9) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// With seals if the name of the directory says so.
fn mount(dir: &Path) -> Arc<dyn Layer> {
    let seals = dir.file_name().unwrap().to_str().unwrap().starts_with("sealed");
    let host = hostfs::HostFs::open(dir, hostfs::HostOptions::default()).unwrap();
    let header = if seals { 4096 } else { ID as u32 };
    let layout = Layout::new(header, BLOCK as u32, BLOCK as u32 + 32).unwrap();
    Template::over(host).format(layout, Words { seals }).journal(Journal::new(JOURNAL.as_bytes())).build().unwrap()
}

const CX: Cx<'static> = Cx::internal(0, 0);

fn open(layer: &dyn Layer) -> (Arc<dyn Vnode>, Arc<dyn OpenFile>) {
    let name = Name::new(b"f").unwrap();
    match layer.root().lookup(&CX, name).unwrap() {
        Some(entry) => (Arc::clone(&entry.vnode), entry.vnode.open(&CX, OpenFlags::RDWR).unwrap()),
        None => {
            let (entry, file) = layer.root().create(&CX, name, 0o600, OpenFlags::RDWR).unwrap();
            (entry.vnode, file)
        }
    }
}

/// The process that is killed: changes the file until then. Does nothing unless it was started for
/// this.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let layer = mount(&dir);
    let (vnode, file) = open(&*layer);
    let mut rng = Rng::new(std::process::id().into());
    println!("ready");
    loop {
        let (at, len) = (rng.below(BLOCKS * BLOCK as u64), 1 + rng.below(80 * BLOCK as u64));
        if rng.below(4) == 0 {
            vnode.setattr(&CX, &SetAttr { size: Some(at), ..SetAttr::default() }, Some(&*file)).unwrap();
        } else {
            let data = vec![rng.below(256) as u8; len.min(BLOCKS * BLOCK as u64 - at) as usize];
            file.write(&CX, &data, at).unwrap();
        }
    }
}

/// Runs the child for a moment, and kills it. Returns whether it was in the middle of a change.
fn kill_one(dir: &Path, time: Duration) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["killed::child", "--exact", "--nocapture"]).env(DIR, dir).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"ready\n") {
        let mut byte = [0];
        assert_eq!(output.read(&mut byte).unwrap(), 1, "the child ended: {}", seen.escape_ascii());
        seen.push(byte[0]);
    }
    // The kill comes at different steps.
    std::thread::sleep(time);
    child.kill().unwrap();
    child.wait().unwrap();
    let journal = std::fs::read(dir.join(JOURNAL)).unwrap_or_default();
    journal.chunks(4096).any(|page| page.starts_with(b"STRAREC2"))
}

#[test]
fn a_killed_process_leaves_no_torn_blocks() {
    kill_many("plain");
}

#[test]
fn a_killed_process_leaves_no_broken_seals() {
    kill_many("sealed");
}

fn kill_many(kind: &str) {
    let scratch = TempDir::in_memory();
    let dir = scratch.dir(kind);
    let (mut rounds, mut in_change) = (0, 0);
    while rounds < 40 || in_change < 5 {
        in_change += u32::from(kill_one(&dir, Duration::from_micros(2000 + rounds * 317 % 4000)));
        let layer = mount(&dir);
        let (vnode, file) = open(&*layer);
        let size = vnode.getattr(&CX).unwrap().size;
        for number in 0..size.div_ceil(BLOCK as u64) {
            let read = file.read(&CX, &mut [0; BLOCK], number * BLOCK as u64);
            assert!(read.is_ok(), "round {rounds}: block {number} of {size} bytes: {read:?}");
        }
        rounds += 1;
        assert!(rounds < 3000, "{in_change} kills in the middle of a change");
    }
}
