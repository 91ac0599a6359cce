use super::instance::Instance;
use super::offers::with;
use crate::abi;
use crate::convert::{attr_in, attr_out, caller_out, set_in, set_out};
use std::sync::Arc;
use vnode::{Attr, Cx, Kind, Result, SetAttr};
use wrapfs::hooks::{self, Object};

#[derive(Debug)]
pub(super) struct Attributes {
    instance: Arc<Instance>,
    table: abi::Attributes,
}

impl Attributes {
    pub(super) fn new(instance: &Arc<Instance>, table: abi::Attributes) -> Self {
        Self { instance: instance.clone(), table }
    }
}

impl hooks::Attributes for Attributes {
    fn decode_attr(&self, cx: &Cx<'_>, file: &Object<'_>, attr: &mut Attr) -> Result<()> {
        const HOOK: &str = "decode_attr";
        let Some(decode) = self.table.decode_attr else { return Ok(()) };
        let (caller, mut changed) = (caller_out(cx), attr_out(attr));
        // SAFETY: calls the plugin's hook; all arguments outlive the call.
        let code = with(file, |file| unsafe { decode(self.instance.me(), &raw const caller, file, &raw mut changed) });
        self.instance.done_for(cx, HOOK, code)?;
        *attr = attr_in(&changed).ok_or_else(|| self.instance.log_error(HOOK, format_args!("set an invalid time")))?;
        Ok(())
    }

    fn encode_attr(&self, cx: &Cx<'_>, file: &Object<'_>, set: &mut SetAttr) -> Result<()> {
        const HOOK: &str = "encode_attr";
        let Some(encode) = self.table.encode_attr else { return Ok(()) };
        let (caller, mut changed) = (caller_out(cx), set_out(set));
        // SAFETY: calls the plugin's hook; all arguments outlive the call.
        let code = with(file, |file| unsafe { encode(self.instance.me(), &raw const caller, file, &raw mut changed) });
        self.instance.done_for(cx, HOOK, code)?;
        *set = set_in(&changed)
            .ok_or_else(|| self.instance.log_error(HOOK, format_args!("set an invalid time or size")))?;
        Ok(())
    }

    fn encode_mode(&self, cx: &Cx<'_>, dir: &Object<'_>, kind: Kind, mut mode: u32) -> Result<u32> {
        let Some(encode) = self.table.encode_mode else { return Ok(mode) };
        let (caller, bits) = (caller_out(cx), kind.mode_bits());
        // SAFETY: calls the plugin's hook; all arguments outlive the call.
        let code = with(dir, |dir| unsafe { encode(self.instance.me(), &raw const caller, dir, bits, &raw mut mode) });
        self.instance.done_for(cx, "encode_mode", code)?;
        Ok(mode)
    }
}
