//! A journal with arbitrary bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conformance::fixture::{ROOT, name};
use memfs::MemFs;
use std::sync::Arc;
use wrapfs::Template;
use wrapfs::hooks::{FileFormat, FormatBlock, Journal, Layout, Object};
use wrapfs::vnode::{Cx, Layer, OpenFlags, Result, SetAttr};

const HEADER: [u8; 4] = *b"head";
/// Sizes of a block, plain and stored.
const BLOCK: (u32, u32) = (60, 64);

/// Stores blocks as they are.
#[derive(Debug)]
struct Plain;

impl FileFormat for Plain {
    fn new_header(&self, _cx: &Cx<'_>, _file: &Object<'_>, header: &mut [u8]) -> Result<()> {
        header.copy_from_slice(&HEADER);
        Ok(())
    }

    fn check_header(&self, _cx: &Cx<'_>, _file: &Object<'_>, _header: &[u8]) -> Result<()> {
        Ok(())
    }

    fn encode_block(&self, _cx: &Cx<'_>, _at: &FormatBlock<'_>, plain: &[u8], stored: &mut [u8]) -> Result<()> {
        stored[..4].fill(1);
        stored[4..].copy_from_slice(plain);
        Ok(())
    }

    fn decode_block(&self, _cx: &Cx<'_>, _at: &FormatBlock<'_>, stored: &[u8], plain: &mut [u8]) -> Result<()> {
        plain.copy_from_slice(&stored[4..]);
        Ok(())
    }
}

fn mount(below: &Arc<MemFs>) -> core::result::Result<Arc<dyn Layer>, String> {
    let layout = Layout::new(HEADER.len() as u32, BLOCK.0, BLOCK.1).unwrap();
    Template::over(below.clone()).format(layout, Plain).journal(Journal::new(b"journal")).build()
}

/// Returns a tree with a file of ten blocks, and what a journal begins with.
fn tree() -> (Arc<MemFs>, Vec<u8>) {
    let below = MemFs::new();
    let layer = mount(&below).unwrap();
    let (_, file) = layer.root().create(&ROOT, name("f"), 0o600, OpenFlags::RDWR).unwrap();
    file.write(&ROOT, &[5; 600], 0).unwrap();
    let journal = below.root().lookup(&ROOT, name("journal")).unwrap().unwrap().vnode;
    let mut head = vec![0; 32];
    journal.open(&ROOT, OpenFlags::RDONLY).unwrap().read(&ROOT, &mut head, 0).unwrap();
    (below, head)
}

/// Returns marks that permit to write `data` over the bytes of `file` at `offset`.
fn marks(file: &[u8], data: &[u8], (offset, before): (u64, u64), total: u64) -> Vec<u8> {
    let (mut marks, mut at, end) = (Vec::new(), offset, offset.saturating_add(total));
    while at < end {
        let stops = [end, (at / 512 + 1) * 512, at + u64::from(BLOCK.1) - (at - offset) % u64::from(BLOCK.1)];
        let stop = stops.into_iter().chain((before > at).then_some(before)).min().unwrap();
        let part = |bytes: &[u8], from: u64| {
            let range = (at - from).min(bytes.len() as u64) as usize..(stop - from).min(bytes.len() as u64) as usize;
            crc32c::crc32c(&bytes[range]).to_le_bytes()
        };
        marks.extend(part(file, 0).into_iter().chain(part(data, offset)));
        at = stop;
    }
    marks
}

/// Returns a journal whose first slots hold these bytes, as records about `file` with correct
/// checksums if `corrected`.
fn journal(head: &[u8], records: &[u8], (number, file): (u64, &[u8]), corrected: bool) -> Vec<u8> {
    let mut bytes = head.to_vec();
    bytes.resize(4096, 0);
    let mut slot = records.to_vec();
    if let (true, true) = (corrected, slot.len() >= 128) {
        let data = slot.split_off(128);
        let field = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().unwrap());
        let (total, is_near) = (data.len() as u64 + u64::from(slot[120]) % 100, field(88) < 4096);
        let marks = if is_near { marks(file, &data, (field(88), field(64)), total) } else { Vec::new() };
        slot[..8].copy_from_slice(b"STRAREC2");
        slot[28..32].copy_from_slice(&crc32c::crc32c(&HEADER).to_le_bytes());
        slot[32..64].fill(0);
        slot[32..36].copy_from_slice(&HEADER);
        slot[16..24].copy_from_slice(&number.to_le_bytes());
        slot[24..28].fill(0);
        slot[12..16].copy_from_slice(&(data.len() as u32).to_le_bytes());
        slot[96..100].copy_from_slice(&(total as u32).to_le_bytes());
        slot[100..104].fill(0);
        slot[104..108].copy_from_slice(&512_u32.to_le_bytes());
        slot.extend(marks);
        let sum = crc32c::crc32c(&slot[12..]);
        slot[8..12].copy_from_slice(&sum.to_le_bytes());
        slot.extend(data);
    }
    bytes.extend(slot);
    bytes
}

/// Mounts a tree whose journal contains these bytes. Whatever they are, the file keeps its size or
/// gets one that the record explains.
pub(crate) fn recover(records: &[u8], corrected: bool) {
    let (below, head) = tree();
    let vnode = below.root().lookup(&ROOT, name("f")).unwrap().unwrap().vnode;
    let mut stored = [0; 1000];
    let len = vnode.open(&ROOT, OpenFlags::RDONLY).unwrap().read(&ROOT, &mut stored, 0).unwrap();
    let bytes = journal(&head, records, (vnode.id(), &stored[..len]), corrected);
    let (entry, file) = below.root().create(&ROOT, name("journal"), 0o600, OpenFlags::RDWR).unwrap();
    file.write(&ROOT, &bytes, 0).unwrap();
    drop(file);
    let mounted = mount(&below);
    assert_eq!(below.root().lookup(&ROOT, name("journal")).unwrap().is_none(), mounted.is_ok());
    drop(entry);
    let Ok(mounted) = mounted else { return };
    let found = mounted.root().lookup(&ROOT, name("f")).unwrap().unwrap();
    let field = |at: usize| u64::from_le_bytes(records[at..at + 8].try_into().unwrap());
    if found.attr.size != 600 {
        assert!(corrected && field(64).min(field(72)) <= field(80) && field(80) <= field(64).max(field(72)));
    }
    // The file can be used.
    let file = found.vnode.open(&ROOT, OpenFlags::RDWR).unwrap();
    file.read(&ROOT, &mut [0; 1000], 0).unwrap();
    found.vnode.setattr(&ROOT, &SetAttr { size: Some(70), ..SetAttr::default() }, None).unwrap();
    file.write(&ROOT, &[9; 100], 30).unwrap();
}
