//! Short forms.
#![allow(dead_code)]

use memfs::{Faults, MemFs, MemOptions};
use std::sync::Arc;
use vnode::{Cx, Errno, Name, Result, Vnode};
use wrapfs::hooks::{Block, Data, Names, Object};

/// The superuser.
pub(crate) const ROOT: Cx<'static> = Cx::internal(0, 0);

pub(crate) fn name(bytes: &str) -> Name<'_> {
    Name::new(bytes.as_bytes()).unwrap()
}

pub(crate) fn memory(faults: &Faults) -> Arc<MemFs> {
    MemFs::with(MemOptions::default(), faults)
}

/// The names in a directory, in order.
pub(crate) fn names(dir: &Arc<dyn Vnode>) -> Vec<String> {
    let mut all = Vec::new();
    dir.readdir(&ROOT, 0, &mut |entry| {
        all.push(String::from_utf8(entry.name.as_bytes().to_vec()).unwrap());
        true
    })
    .unwrap();
    all.sort_unstable();
    all
}

/// Writes each byte so many times: names become long. What is not written like that is hidden.
#[derive(Debug)]
pub(crate) struct Stretch(pub(crate) usize);

impl Names for Stretch {
    fn encode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(name.iter().flat_map(|&byte| std::iter::repeat_n(byte, self.0)).collect())
    }

    fn decode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let chunks = name.chunks(self.0);
        chunks.map(|same| same.iter().all(|b| *b == same[0]).then_some(same[0]).ok_or(Errno::INVAL)).collect()
    }
}

/// A codec in which every byte of a block depends on those before it, on the block's number and length, and on the file: whatever is
/// cut, moved or mixed comes out as noise.
#[derive(Debug)]
pub(crate) struct Chain(pub(crate) usize);

impl Chain {
    fn seed(at: &Block<'_>, len: usize) -> u8 {
        let all = at.number.wrapping_mul(31) ^ at.file.id().wrapping_mul(7) ^ (len as u64).wrapping_mul(13);
        all.to_le_bytes().iter().fold(0, |seed, byte| seed ^ byte)
    }
}

impl Data for Chain {
    fn block_size(&self) -> usize {
        self.0
    }

    fn encode_data(&self, _cx: &Cx<'_>, at: &Block<'_>, plain: &[u8], encoded: &mut [u8]) -> Result<()> {
        let mut last = Self::seed(at, plain.len());
        for (out, byte) in encoded.iter_mut().zip(plain) {
            last = byte.wrapping_add(last.rotate_left(3));
            *out = last;
        }
        Ok(())
    }

    fn decode_data(&self, _cx: &Cx<'_>, at: &Block<'_>, encoded: &[u8], plain: &mut [u8]) -> Result<()> {
        let mut last = Self::seed(at, encoded.len());
        for (out, byte) in plain.iter_mut().zip(encoded) {
            *out = byte.wrapping_sub(last.rotate_left(3));
            last = *byte;
        }
        Ok(())
    }
}
