use super::instance::{Instance, must};
use super::offers::with;
use crate::abi::{self, Bytes};
use crate::convert::caller_out;
use std::sync::Arc;
use vnode::{Cx, Errno, Result};
use wrapfs::hooks::{self, Matching, Object};

#[derive(Debug)]
pub(super) struct Names {
    instance: Arc<Instance>,
    encode: abi::NameFn,
    decode: abi::NameFn,
    /// Encodes and decodes.
    targets: Option<(abi::TargetFn, abi::TargetFn)>,
    matching: Matching,
    fold: Option<abi::NameFn>,
}

impl Names {
    pub(super) fn new(instance: &Arc<Instance>, table: abi::Names) -> core::result::Result<Self, String> {
        let targets = match (table.encode_target, table.decode_target) {
            (Some(encode), Some(decode)) => Some((encode, decode)),
            (None, None) => None,
            _ => {
                return Err(
                    "only one of its hooks encode_target and decode_target is set; set both or neither".to_owned()
                );
            }
        };
        let matching = match table.matching {
            // SAFETY: calls the plugin's hook with the plugin's own pointer.
            Some(matching) => match unsafe { matching(instance.me()) } {
                abi::MATCHING_EXACT => Matching::Exact,
                abi::MATCHING_ENCODED => Matching::Encoded,
                abi::MATCHING_FOLDED => Matching::Folded,
                other => return Err(format!("its hook matching returned {other}, which is not a STRATA_MATCHING_*")),
            },
            None => Matching::Exact,
        };
        if matching == Matching::Folded {
            must(table.fold_filename, "fold_filename")?;
        }
        Ok(Self {
            matching,
            fold: table.fold_filename,
            instance: instance.clone(),
            encode: must(table.encode_filename, "encode_filename")?,
            decode: must(table.decode_filename, "decode_filename")?,
            targets,
        })
    }

    fn name(&self, hook: &'static str, f: abi::NameFn, cx: &Cx<'_>, dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let caller = caller_out(cx);
        with(dir, |dir| {
            self.instance.bytes_for(cx, hook, |out, capacity| {
                // SAFETY: calls the plugin's hook; all arguments outlive the call, and the buffer
                // has `capacity` bytes.
                unsafe { f(self.instance.me(), &raw const caller, dir, Bytes::of(name), out, capacity) }
            })
        })
    }

    fn target(&self, hook: &'static str, f: abi::TargetFn, cx: &Cx<'_>, target: &[u8]) -> Result<Vec<u8>> {
        let caller = caller_out(cx);
        self.instance.bytes_for(cx, hook, |out, capacity| {
            // SAFETY: as in `name`.
            unsafe { f(self.instance.me(), &raw const caller, Bytes::of(target), out, capacity) }
        })
    }
}

impl hooks::Names for Names {
    fn encode_filename(&self, cx: &Cx<'_>, dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.name("encode_filename", self.encode, cx, dir, name)
    }

    fn decode_filename(&self, cx: &Cx<'_>, dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.name("decode_filename", self.decode, cx, dir, name)
    }

    fn matching(&self) -> Matching {
        self.matching
    }

    fn fold_filename(&self, cx: &Cx<'_>, dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.name("fold_filename", self.fold.ok_or(Errno::IO)?, cx, dir, name)
    }

    fn target_size(&self, stored: u64) -> Option<u64> {
        self.targets.is_none().then_some(stored)
    }

    fn encode_target(&self, cx: &Cx<'_>, target: &[u8]) -> Result<Vec<u8>> {
        let Some((encode, _)) = self.targets else { return Ok(target.to_vec()) };
        self.target("encode_target", encode, cx, target)
    }

    fn decode_target(&self, cx: &Cx<'_>, target: &[u8]) -> Result<Vec<u8>> {
        let Some((_, decode)) = self.targets else { return Ok(target.to_vec()) };
        self.target("decode_target", decode, cx, target)
    }
}
