use super::instance::{Instance, must};
use super::offers::with;
use crate::abi;
use crate::convert::caller_out;
use std::sync::Arc;
use vnode::{Cx, Errno, Result};
use wrapfs::hooks::{self, Block, MAX_BLOCK, Object};

#[derive(Debug)]
pub(super) struct Data {
    instance: Arc<Instance>,
    block: usize,
    applies: Option<abi::Applies>,
    encode: abi::BlockFn,
    decode: abi::BlockFn,
}

impl Data {
    pub(super) fn new(instance: &Arc<Instance>, table: abi::Data) -> core::result::Result<Self, String> {
        let block_size = must(table.block_size, "block_size")?;
        // SAFETY: calls the plugin's hook.
        let block = unsafe { block_size(instance.me()) };
        if !(1..=MAX_BLOCK).contains(&block) {
            return Err(format!("its block size is {block} bytes; it must be from 1 to {MAX_BLOCK}"));
        }
        Ok(Self {
            instance: instance.clone(),
            block,
            applies: table.applies,
            encode: must(table.encode_data, "encode_data")?,
            decode: must(table.decode_data, "decode_data")?,
        })
    }

    fn code(
        &self,
        hook: &'static str,
        f: abi::BlockFn,
        cx: &Cx<'_>,
        at: &Block<'_>,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<()> {
        if from.len() != to.len() {
            return Err(Errno::IO);
        }
        let (caller, len, out) = (caller_out(cx), from.len(), to.as_mut_ptr());
        let code = with(at.file, |file| {
            // SAFETY: calls the plugin's hook; the two buffers of `len` bytes outlive the call and
            // do not overlap.
            unsafe { f(self.instance.me(), &raw const caller, file, at.number, from.as_ptr(), out, len) }
        });
        self.instance.done_for(cx, hook, code)
    }
}

impl hooks::Data for Data {
    fn block_size(&self) -> usize {
        self.block
    }

    fn applies(&self, cx: &Cx<'_>, file: &Object<'_>) -> Result<bool> {
        let Some(applies) = self.applies else { return Ok(true) };
        let caller = caller_out(cx);
        // SAFETY: calls the plugin's hook; all arguments outlive the call.
        match with(file, |file| unsafe { applies(self.instance.me(), &raw const caller, file) }) {
            0 => Ok(false),
            1 => Ok(true),
            code => Err(self.instance.errno_for(cx, "applies", code.into())),
        }
    }

    fn encode_data(&self, cx: &Cx<'_>, at: &Block<'_>, plain: &[u8], encoded: &mut [u8]) -> Result<()> {
        self.code("encode_data", self.encode, cx, at, plain, encoded)
    }

    fn decode_data(&self, cx: &Cx<'_>, at: &Block<'_>, encoded: &[u8], plain: &mut [u8]) -> Result<()> {
        self.code("decode_data", self.decode, cx, at, encoded, plain)
    }
}
