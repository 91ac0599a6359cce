use super::instance::{Instance, must};
use crate::abi::{self, Bytes};
use std::sync::Arc;
use vnode::{Errno, Result};
use wrapfs::Foreign;
use wrapfs::container::{BLOCK_MAX, BLOCK_MIN, BlockAt, BlockCodec, encoded_limit, is_block_size};

#[derive(Debug)]
pub(super) struct Codec {
    instance: Arc<Instance>,
    storage: abi::Storage,
    max_encoded: abi::MaxEncoded,
    encode: abi::EncodeFn,
    decode: abi::DecodeFn,
}

impl Codec {
    pub(super) fn new(instance: &Arc<Instance>, table: abi::Codec) -> core::result::Result<(Self, Foreign), String> {
        let ask = must(table.storage, "storage")?;
        let mut storage = abi::Storage::default();
        // SAFETY: calls the plugin's hook; the buffer outlives the call.
        let code = unsafe { ask(instance.me(), &raw mut storage) };
        instance.done("storage", code).map_err(|errno| format!("its hook storage failed: {errno}"))?;
        let block = storage.block_size;
        if !is_block_size(block) {
            return Err(format!(
                "its block size is {block} bytes; it must be a power of two from {BLOCK_MIN} to {BLOCK_MAX}"
            ));
        }
        let foreign = match storage.foreign {
            abi::FOREIGN_PLAIN => Foreign::Plain,
            abi::FOREIGN_REFUSE => Foreign::Refuse,
            other => return Err(format!("its `foreign` is {other}; it must be 0 or 1")),
        };
        let codec = Self {
            instance: instance.clone(),
            storage,
            max_encoded: must(table.max_encoded, "max_encoded")?,
            encode: must(table.encode, "encode")?,
            decode: must(table.decode, "decode")?,
        };
        let (most, limit) = (codec.max_encoded(block as usize), encoded_limit(block as usize));
        if !(1..=limit).contains(&most) {
            return Err(format!(
                "its hook max_encoded returned {most} for a block of {block} bytes; it must be from 1 to {limit}"
            ));
        }
        Ok((codec, foreign))
    }
}

fn place(at: &BlockAt) -> abi::BlockAt {
    abi::BlockAt { file: at.file, block: at.block }
}

impl BlockCodec for Codec {
    fn id(&self) -> [u8; 8] {
        self.storage.id
    }

    fn block_size(&self) -> u32 {
        self.storage.block_size
    }

    fn max_encoded(&self, plain: usize) -> usize {
        // SAFETY: calls the plugin's hook.
        unsafe { (self.max_encoded)(self.instance.me(), plain) }
    }

    fn encode(&self, at: &BlockAt, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let (at, start) = (place(at), out.len());
        let room = self.max_encoded(plain.len()).min(encoded_limit(plain.len()));
        out.resize(start + room, 0);
        let to = out.get_mut(start..).ok_or(Errno::IO)?.as_mut_ptr();
        // SAFETY: calls the plugin's hook; input and a buffer of `room` bytes outlive the call.
        let len = unsafe { (self.encode)(self.instance.me(), &raw const at, Bytes::of(plain), to, room) };
        let made = match usize::try_from(len) {
            Ok(len) if (1..=room).contains(&len) => Ok(len),
            Ok(len) => {
                Err(self.instance.log_error("encode", format_args!("returned {len} bytes for a buffer of {room}")))
            }
            Err(_) => Err(self.instance.errno("encode", len)),
        };
        out.truncate(start + made.unwrap_or(0));
        made.map(drop)
    }

    fn decode(&self, at: &BlockAt, encoded: &[u8], out: &mut [u8]) -> Result<()> {
        let at = place(at);
        // SAFETY: calls the plugin's hook; input and buffer outlive the call.
        let code = unsafe {
            (self.decode)(self.instance.me(), &raw const at, Bytes::of(encoded), out.as_mut_ptr(), out.len())
        };
        self.instance.done("decode", code)
    }
}
