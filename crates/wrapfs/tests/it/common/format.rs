//! A format with checksums, and changes of a file.

use conformance::fixture::{ROOT, name};
use core::fmt;
use memfs::MemFs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use testkit::Rng;
use wrapfs::Template;
use wrapfs::hooks::{FileFormat, FormatBlock, Layout, Object};
use wrapfs::vnode::{Cx, Errno, Layer, OpenFile, OpenFlags, Result, SetAttr, Vnode};

const APPEND: OpenFlags = OpenFlags(OpenFlags::WRONLY.0 | 0o2000);
pub(crate) const PUNCH: u32 = 3;
const ZERO: u32 = 0x10;

/// Stores a checksum of the file's ID, the block's number and its bytes, followed by the reversed
/// bytes.
#[derive(Debug)]
pub(crate) struct Summed;

/// Length of what identifies a file, at the start of its header.
pub(crate) const ID: usize = 18;

static IDS: AtomicU64 = AtomicU64::new(1);

fn sum(at: &FormatBlock<'_>, bytes: &[u8]) -> u64 {
    let id = at.header.get(..ID).unwrap_or(at.header);
    let all = id.iter().chain(&at.number.to_le_bytes()).chain(bytes).copied().collect::<Vec<u8>>();
    all.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

impl FileFormat for Summed {
    fn new_header(&self, _cx: &Cx<'_>, _file: &Object<'_>, header: &mut [u8]) -> Result<()> {
        header[0] = 7;
        header[2..10].copy_from_slice(&IDS.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        Ok(())
    }

    fn check_header(&self, _cx: &Cx<'_>, _file: &Object<'_>, header: &[u8]) -> Result<()> {
        if header[0] == 7 { Ok(()) } else { Err(Errno::IO) }
    }

    fn encode_block(&self, _cx: &Cx<'_>, at: &FormatBlock<'_>, plain: &[u8], stored: &mut [u8]) -> Result<()> {
        stored[..8].copy_from_slice(&sum(at, plain).to_le_bytes());
        let len = stored.len();
        stored[len - plain.len()..].iter_mut().zip(plain.iter().rev()).for_each(|(to, from)| *to = !*from);
        Ok(())
    }

    fn decode_block(&self, _cx: &Cx<'_>, at: &FormatBlock<'_>, stored: &[u8], plain: &mut [u8]) -> Result<()> {
        let bytes = &stored[stored.len() - plain.len()..];
        plain.iter_mut().zip(bytes.iter().rev()).for_each(|(to, from)| *to = !*from);
        if stored[..8] == sum(at, plain).to_le_bytes() { Ok(()) } else { Err(Errno::IO) }
    }
}

pub(crate) fn layout(plain: u32) -> Layout {
    Layout::new(ID as u32, plain, plain + 9).unwrap()
}

pub(crate) fn layer(below: Arc<dyn Layer>, plain: u32) -> Arc<dyn Layer> {
    Template::over(below).format(layout(plain), Summed).build().unwrap()
}

pub(crate) fn open(layer: &Arc<dyn Layer>) -> (Arc<dyn Vnode>, Arc<dyn OpenFile>) {
    match layer.root().lookup(&ROOT, name("f")).unwrap() {
        Some(entry) => {
            let file = entry.vnode.open(&ROOT, OpenFlags::RDWR).unwrap();
            (entry.vnode, file)
        }
        None => {
            let (entry, file) = layer.root().create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
            (entry.vnode, file)
        }
    }
}

pub(crate) fn read_all(vnode: &dyn Vnode, file: &dyn OpenFile) -> Result<Vec<u8>> {
    let size = vnode.getattr(&ROOT)?.size;
    let mut bytes = vec![0xee; size as usize + 100];
    let len = file.read(&ROOT, &mut bytes, 0)?;
    assert_eq!(len as u64, size);
    bytes.truncate(len);
    Ok(bytes)
}

/// A change, and its effect on bytes.
#[derive(Clone)]
pub(crate) enum Change {
    Write(u64, Vec<u8>),
    Append(Vec<u8>),
    Truncate(u64),
    Zero(u32, u64, u64),
    Allocate(u32, u64, u64),
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(offset, data) => write!(f, "Write({offset}, {} bytes)", data.len()),
            Self::Append(data) => write!(f, "Append({} bytes)", data.len()),
            Self::Truncate(size) => write!(f, "Truncate({size})"),
            Self::Zero(mode, offset, len) => write!(f, "Zero({mode}, {offset}, {len})"),
            Self::Allocate(mode, offset, len) => write!(f, "Allocate({mode}, {offset}, {len})"),
        }
    }
}

impl Change {
    pub(crate) fn random(random: &mut Rng, plain: u64, most: u64) -> Self {
        let place = |random: &mut Rng| match random.below(3) {
            0 => random.below(most),
            1 => random.below(most / plain) * plain,
            _ => (random.below(most / plain) * plain + random.below(5)).saturating_sub(2),
        };
        let (offset, len) = (place(random), 1 + random.below(4 * plain));
        let data = vec![random.below(256) as u8; len as usize];
        match random.below(9) {
            0 => Self::Truncate(offset),
            1 if random.below(3) == 0 => Self::Truncate(0),
            1 | 2 => Self::Zero(PUNCH, offset, len * 2),
            3 => Self::Zero(ZERO | random.below(2) as u32, offset, len * 2),
            4 => Self::Allocate(random.below(2) as u32, offset, len),
            5 => Self::Append(data),
            _ => Self::Write(offset, data),
        }
    }

    /// Returns how many bytes were written, or that everything was done.
    pub(crate) fn apply(&self, vnode: &dyn Vnode, file: &dyn OpenFile) -> Result<Option<usize>> {
        match self {
            Self::Write(offset, data) => file.write(&ROOT, data, *offset).map(Some),
            Self::Append(data) => vnode.open(&ROOT, APPEND)?.write(&ROOT, data, 0).map(Some),
            Self::Truncate(size) => {
                vnode.setattr(&ROOT, &SetAttr { size: Some(*size), ..SetAttr::default() }, Some(file)).map(|_| None)
            }
            Self::Zero(mode, offset, len) | Self::Allocate(mode, offset, len) => {
                file.fallocate(&ROOT, *mode, *offset, *len).map(|()| None)
            }
        }
    }

    /// `taken`: only this many bytes of a write.
    pub(crate) fn apply_to(&self, bytes: &mut Vec<u8>, taken: Option<usize>) {
        let mut put = |offset: usize, data: &[u8]| {
            let data = &data[..taken.unwrap_or(data.len())];
            bytes.resize(bytes.len().max(offset + data.len()), 0);
            bytes[offset..offset + data.len()].copy_from_slice(data);
        };
        match self {
            Self::Write(offset, data) => put(*offset as usize, data),
            Self::Append(data) => {
                let end = bytes.len();
                bytes.extend(&data[..taken.unwrap_or(data.len())]);
                assert!(bytes.len() >= end);
            }
            Self::Truncate(size) => bytes.resize(*size as usize, 0),
            Self::Zero(mode, offset, len) => {
                let end = (*offset + *len) as usize;
                if mode & 1 == 0 {
                    bytes.resize(bytes.len().max(end), 0);
                }
                let end = end.min(bytes.len());
                bytes.get_mut(*offset as usize..end).unwrap_or_default().fill(0);
            }
            Self::Allocate(mode, offset, len) => {
                if mode & 1 == 0 {
                    bytes.resize(bytes.len().max((*offset + *len) as usize), 0);
                }
            }
        }
    }
}

/// Returns a tree with a file `f`, and its content.
pub(crate) fn prepared(plain: u64) -> (Arc<MemFs>, Vec<u8>) {
    prepared_with(&|below| layer(below, plain as u32), plain)
}

/// As [`prepared`], with another layer.
pub(crate) fn prepared_with(mount: &dyn Fn(Arc<MemFs>) -> Arc<dyn Layer>, plain: u64) -> (Arc<MemFs>, Vec<u8>) {
    let below = MemFs::new();
    let mounted = mount(below.clone());
    let (vnode, file) = open(&mounted);
    let mut bytes = Vec::new();
    let len = (12 * plain + plain / 3) as usize;
    for change in [Change::Write(0, vec![5; len]), Change::Zero(PUNCH, 2 * plain, 3 * plain)] {
        let done = change.apply(&*vnode, &*file).unwrap();
        change.apply_to(&mut bytes, done);
    }
    (below, bytes)
}

/// Returns changes of that file, of every kind.
pub(crate) fn changes(plain: u64) -> Vec<Change> {
    let mut changes = vec![
        Change::Write(0, vec![7; plain as usize]),
        Change::Write(plain / 2, vec![7; 3 * plain as usize]),
        Change::Write(12 * plain + 1, vec![7; 2]),
        Change::Write(20 * plain + 3, vec![7; 9]),
        Change::Append(vec![8; 2 * plain as usize]),
        Change::Truncate(0),
        Change::Truncate(6 * plain),
        Change::Truncate(5 * plain + 7),
        Change::Truncate(12 * plain + plain / 2),
        Change::Truncate(30 * plain + 5),
        Change::Allocate(0, 20 * plain, 50),
    ];
    let mut random = Rng::new(8);
    changes.extend((0..12).map(|_| Change::random(&mut random, plain, 20 * plain)));
    changes
}
