//! Shared helpers.
#![allow(dead_code)]

pub(crate) mod crash;
pub(crate) mod format;
pub(crate) mod sealed;
pub(crate) mod store;
pub(crate) mod untrusted;

use conformance::fixture::{ROOT, name};
use memfs::{Faults, MemFs, MemOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vnode::{Cx, Errno, Layer, OpenFlags, Result, SetAttr, SetTime, Time};
use wrapfs::container::{BlockAt, BlockCodec};
use wrapfs::hooks::{Block, Data, Names, Object};

pub(crate) fn memory(faults: &Faults) -> Arc<MemFs> {
    MemFs::with(MemOptions::default(), faults)
}

/// Checks that zeroing a range sets the mtime, as natively, wherever the range lies.
pub(crate) fn zeroing_sets_the_mtime(layer: &dyn Layer) {
    const PUNCH: u32 = 3;
    const ZERO: u32 = 0x10;
    const ZERO_KEEPING_SIZE: u32 = 0x11;
    let (entry, file) = layer.root().create(&ROOT, name("zeroed"), 0o644, OpenFlags::RDWR).unwrap();
    let old = Time { sec: 5, nsec: 0 };
    let set = |change: SetAttr| entry.vnode.setattr(&ROOT, &change, None).unwrap();
    // Data, a hole, data that ends within a block.
    file.write(&ROOT, &[1; 30_000], 0).unwrap();
    file.write(&ROOT, &[1; 1234], 200_000).unwrap();
    for mode in [PUNCH, ZERO_KEEPING_SIZE, ZERO] {
        for start in [0, 40, 4096, 5000, 100_000, 102_400, 200_000, 201_200, 201_234, 204_800, 300_000, 1 << 30] {
            for len in [1, 10, 97, 4096, 12_000, 70_000] {
                set(SetAttr { size: Some(201_234), ..SetAttr::default() });
                set(SetAttr { mtime: Some(SetTime::At(old)), ..SetAttr::default() });
                file.fallocate(&ROOT, mode, start, len).unwrap();
                let attr = entry.vnode.getattr(&ROOT).unwrap();
                assert_ne!(attr.mtime, old, "mode {mode:#x}, {start} + {len}");
            }
        }
    }
}

/// Repeats each byte this many times, so that names become long. Other stored names are hidden.
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

/// A codec in which every byte depends on the preceding bytes of the block, the block's number and
/// length, and the file: cut, moved or mixed data decodes to noise.
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

/// Run-length encoding: each run of a byte becomes its length and the byte.
#[derive(Debug)]
pub(crate) struct Runs;

impl BlockCodec for Runs {
    fn id(&self) -> [u8; 8] {
        *b"runs\0\0\0\0"
    }

    fn block_size(&self) -> u32 {
        4096
    }

    fn max_encoded(&self, plain: usize) -> usize {
        2 * plain
    }

    fn encode(&self, _at: &BlockAt, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        for run in plain.chunk_by(|a, b| a == b).flat_map(|run| run.chunks(255)) {
            out.extend([run.len() as u8, run[0]]);
        }
        Ok(())
    }

    fn decode(&self, _at: &BlockAt, encoded: &[u8], out: &mut [u8]) -> Result<()> {
        let runs = encoded.chunks(2).map(|pair| (pair.first(), pair.get(1)));
        let mut plain = Vec::new();
        for (len, byte) in runs {
            let (Some(len), Some(byte)) = (len, byte) else { return Err(Errno::IO) };
            plain.resize(plain.len() + usize::from(*len), *byte);
        }
        if plain.len() != out.len() {
            return Err(Errno::IO);
        }
        out.copy_from_slice(&plain);
        Ok(())
    }
}

/// Decides which hook calls fail. Clones share the state.
#[derive(Clone, Debug)]
pub(crate) struct FailurePlan(Option<Arc<AtomicU64>>);

impl FailurePlan {
    /// One call in sixteen fails, another one panics.
    pub(crate) fn of(seed: u64) -> Self {
        Self(Some(Arc::new((seed.wrapping_mul(1_000_003)).into())))
    }

    /// No call fails.
    pub(crate) fn calm() -> Self {
        Self(None)
    }

    /// Called at the start of each hook call.
    pub(crate) fn changes(&self) -> Result<()> {
        let Some(calls) = &self.0 else { return Ok(()) };
        match calls.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60 {
            3 => Err(Errno::DQUOT),
            7 => std::panic::panic_any(INJECTED),
            _ => Ok(()),
        }
    }
}

/// A hook that fails or panics at random and otherwise calls the wrapped hook.
#[derive(Debug)]
pub(crate) struct Failing<T>(pub(crate) T, pub(crate) FailurePlan);

impl<T: Data> Data for Failing<T> {
    fn block_size(&self) -> usize {
        self.0.block_size()
    }
    fn encode_data(&self, cx: &Cx<'_>, at: &Block<'_>, plain: &[u8], encoded: &mut [u8]) -> Result<()> {
        self.1.changes()?;
        self.0.encode_data(cx, at, plain, encoded)
    }
    fn decode_data(&self, cx: &Cx<'_>, at: &Block<'_>, encoded: &[u8], plain: &mut [u8]) -> Result<()> {
        self.1.changes()?;
        self.0.decode_data(cx, at, encoded, plain)
    }
}

const INJECTED: &str = "injected panic";

/// Injected panics are expected: do not print their messages.
pub(crate) fn quietly() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.payload().downcast_ref::<&str>() != Some(&INJECTED) {
                usual(info);
            }
        }));
    });
}
