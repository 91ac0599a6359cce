//! Shared by the tests: codecs, a lower file in memory, and random changes.
#![allow(dead_code)] // Each test uses a part of it.

pub(crate) mod untrusted;

use container::{BlockAt, BlockCodec, Container};
use memfs::MemFs;
use std::sync::Arc;
use testkit::Rng;
use vnode::{Cx, Errno, Layer, Name, OpenFile, OpenFlags, Result, Vnode, Whence};

pub(crate) const CX: Cx<'static> = Cx::internal(0, 0);

/// A codec that lengthens every block, by prepending the block's identity.
#[derive(Debug)]
pub(crate) struct Growing(pub(crate) u32);

impl BlockCodec for Growing {
    fn id(&self) -> [u8; 8] {
        *b"growing\0"
    }

    fn block_size(&self) -> u32 {
        self.0
    }

    fn max_encoded(&self, plain: usize) -> usize {
        plain + 25
    }

    fn encode(&self, at: &BlockAt, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        out.push(0xa5);
        out.extend(at.file);
        out.extend(at.block.to_le_bytes());
        out.extend(plain);
        Ok(())
    }

    fn decode(&self, at: &BlockAt, encoded: &[u8], out: &mut [u8]) -> Result<()> {
        let (head, plain) = encoded.split_at_checked(25).ok_or(Errno::IO)?;
        if head[0] != 0xa5 || head[1..17] != at.file || head[17..] != at.block.to_le_bytes() || plain.len() != out.len()
        {
            return Err(Errno::IO);
        }
        out.copy_from_slice(plain);
        Ok(())
    }
}

/// A run-length codec that shortens many blocks: pairs of a count and a byte, or the bytes as they
/// are.
#[derive(Debug)]
pub(crate) struct Runs(pub(crate) u32);

impl BlockCodec for Runs {
    fn id(&self) -> [u8; 8] {
        *b"runs\0\0\0\0"
    }

    fn block_size(&self) -> u32 {
        self.0
    }

    fn max_encoded(&self, plain: usize) -> usize {
        plain + 1
    }

    fn encode(&self, _at: &BlockAt, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let mut runs = vec![1];
        let same = plain.chunk_by(|a, b| a == b);
        runs.extend(same.flat_map(|run| run.chunks(255)).flat_map(|run| [run.len() as u8, run[0]]));
        if runs.len() > plain.len() {
            out.push(0);
            out.extend(plain);
        } else {
            out.extend(runs);
        }
        Ok(())
    }

    fn decode(&self, _at: &BlockAt, encoded: &[u8], out: &mut [u8]) -> Result<()> {
        let (kind, rest) = encoded.split_first().ok_or(Errno::IO)?;
        let plain = match kind {
            0 => rest.to_vec(),
            1 => rest.chunks(2).flat_map(|run| vec![run[1]; run[0].into()]).collect(),
            _ => return Err(Errno::IO),
        };
        if plain.len() != out.len() {
            return Err(Errno::IO);
        }
        out.copy_from_slice(&plain);
        Ok(())
    }
}

/// Returns the file `f` of a file system in memory; creates it if necessary.
pub(crate) fn lower(fs: &MemFs) -> (Arc<dyn Vnode>, Arc<dyn OpenFile>) {
    let name = Name::new(b"f").unwrap();
    match fs.root().lookup(&CX, name).unwrap() {
        Some(entry) => {
            let file = entry.vnode.open(&CX, OpenFlags::RDWR).unwrap();
            (entry.vnode, file)
        }
        None => {
            let (entry, file) = fs.root().create(&CX, name, 0o600, OpenFlags::RDWR).unwrap();
            (entry.vnode, file)
        }
    }
}

pub(crate) fn open(codec: &Arc<dyn BlockCodec>, fs: &MemFs) -> Result<Container> {
    let (vnode, file) = lower(fs);
    Container::open(&CX, Arc::clone(codec), vnode, file)
}

/// Returns the entire content of a file.
pub(crate) fn contents(file: &Container) -> Result<Vec<u8>> {
    let mut out = vec![0xee; file.size() as usize + 10];
    let len = file.read(&CX, &mut out, 0)?;
    assert_eq!(len as u64, file.size());
    out.truncate(len);
    Ok(out)
}

/// Reclaims all dead space.
pub(crate) fn reclaim(file: &Container) -> Result<()> {
    while file.reclaim(&CX)? {}
    Ok(())
}

/// A change that can be applied to a file and to bytes in memory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    Write {
        offset: u64,
        data: Vec<u8>,
    },
    Truncate(u64),
    Punch {
        offset: u64,
        len: u64,
    },
    Sync,
    /// Part of a compaction: this many steps.
    Compact(u64),
}

impl Change {
    pub(crate) fn apply(&self, file: &Container) -> Result<()> {
        match self {
            Self::Write { offset, data } => file.write(&CX, data, *offset).map(|n| assert_eq!(n, data.len())),
            Self::Truncate(size) => file.truncate(&CX, *size),
            Self::Punch { offset, len } => file.punch(&CX, *offset, *len),
            Self::Sync => file.sync(&CX, false).and_then(|()| reclaim(file)),
            Self::Compact(steps) => (0..*steps).try_for_each(|_| file.compact(&CX).map(|_| ())),
        }
    }

    pub(crate) fn apply_to(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write { offset, data } => {
                let end = *offset as usize + data.len();
                if !data.is_empty() {
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[*offset as usize..end].copy_from_slice(data);
                }
            }
            Self::Truncate(size) => bytes.resize(*size as usize, 0),
            Self::Punch { offset, len } => {
                let end = ((offset + len) as usize).min(bytes.len());
                if let Some(range) = bytes.get_mut(*offset as usize..end) {
                    range.fill(0);
                }
            }
            Self::Sync | Self::Compact(_) => {}
        }
    }
}

/// Returns an offset, mostly near a block boundary.
pub(crate) fn place(rng: &mut Rng, block: u64, end: u64) -> u64 {
    match rng.below(4) {
        0 => rng.below(end + 1),
        1 => rng.below(end / block + 1) * block,
        _ => (rng.below(end / block + 1) * block + rng.below(5)).saturating_sub(2).min(end),
    }
}

/// Returns noise, a run, zeros, or a run followed by zeros.
pub(crate) fn random_bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    match rng.below(4) {
        0 => (0..len).map(|_| rng.bits() as u8).collect(),
        1 => vec![rng.bits() as u8; len],
        2 => vec![0; len],
        _ => {
            let data = rng.below(len + 1);
            let mut bytes = vec![rng.bits() as u8; data];
            bytes.resize(len, 0);
            bytes
        }
    }
}

/// Returns a random change to a file of at most `most` bytes.
pub(crate) fn random_change(rng: &mut Rng, block: u64, most: u64) -> Change {
    match rng.below(13) {
        12 => Change::Compact(1 + rng.below(5)),
        0 => Change::Truncate(place(rng, block, most)),
        1 => Change::Truncate(0),
        2 | 3 => Change::Punch { offset: place(rng, block, most), len: 1 + place(rng, block, most / 2) },
        4 => Change::Sync,
        _ => {
            let offset = place(rng, block, most - 1);
            let len = 1 + place(rng, block, (most - offset - 1).min(4 * block));
            Change::Write { offset, data: random_bytes(rng, len as usize) }
        }
    }
}
/// Returns the expected result of a seek in these bytes, with block granularity.
pub(crate) fn expected_seek(bytes: &[u8], block: usize, offset: u64, whence: Whence) -> Result<u64> {
    if offset >= bytes.len() as u64 {
        return Err(Errno::NXIO);
    }
    let first = offset as usize / block;
    let found = bytes
        .chunks(block)
        .enumerate()
        .skip(first)
        .find(|(_, chunk)| chunk.iter().any(|&byte| byte != 0) == matches!(whence, Whence::Data));
    match (found, whence) {
        (Some((at, _)), _) => Ok(((at * block) as u64).max(offset)),
        (None, Whence::Hole) => Ok(bytes.len() as u64),
        (None, Whence::Data) => Err(Errno::NXIO),
    }
}
