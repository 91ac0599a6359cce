use super::instance::{Instance, must};
use super::offers::with;
use crate::abi::{self, Bytes};
use crate::convert::caller_out;
use std::sync::Arc;
use vnode::{Cx, Errno, Result};
use wrapfs::hooks::{self, Matching, Object};

/// What most names fit into.
const USUAL: usize = 512;

#[derive(Debug)]
pub(super) struct Names {
    instance: Arc<Instance>,
    encode: abi::NameFn,
    decode: abi::NameFn,
    /// To encode and to decode.
    targets: Option<(abi::TargetFn, abi::TargetFn)>,
    matching: Matching,
    fold: Option<abi::NameFn>,
}

impl Names {
    pub(super) fn new(instance: &Arc<Instance>, table: abi::Names) -> core::result::Result<Self, String> {
        let targets = match (table.encode_target, table.decode_target) {
            (Some(encode), Some(decode)) => Some((encode, decode)),
            (None, None) => None,
            _ => return Err("of its hooks encode_target and decode_target one is NULL and the other not".to_owned()),
        };
        let matching = match table.matching {
            // SAFETY: the layer's hook, with the pointer that it asked for.
            Some(matching) => match unsafe { matching(instance.me()) } {
                abi::MATCHING_EXACT => Matching::Exact,
                abi::MATCHING_ENCODED => Matching::Encoded,
                abi::MATCHING_FOLDED => Matching::Folded,
                other => return Err(format!("its hook matching answered {other}, which is no STRATA_MATCHING_*")),
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
            self.bytes(hook, |out, capacity| {
                // SAFETY: the layer's hook, with what lives during the call, and room for `capacity` bytes.
                unsafe { f(self.instance.me(), &raw const caller, dir, Bytes::of(name), out, capacity) }
            })
        })
    }

    fn target(&self, hook: &'static str, f: abi::TargetFn, cx: &Cx<'_>, target: &[u8]) -> Result<Vec<u8>> {
        let caller = caller_out(cx);
        self.bytes(hook, |out, capacity| {
            // SAFETY: as in `name`.
            unsafe { f(self.instance.me(), &raw const caller, Bytes::of(target), out, capacity) }
        })
    }

    /// Calls a hook that answers bytes: a second time if they are many.
    fn bytes(&self, hook: &'static str, call: impl Fn(*mut u8, usize) -> i64) -> Result<Vec<u8>> {
        let mut usual = [0; USUAL];
        let len = self.length(hook, call(usual.as_mut_ptr(), USUAL))?;
        if let Some(bytes) = usual.get(..len) {
            return Ok(bytes.to_vec());
        }
        let mut many = vec![0; len];
        let again = self.length(hook, call(many.as_mut_ptr(), len))?;
        if again > len {
            return Err(self.instance.complain(hook, format_args!("asked for {len} bytes, and then for {again}")));
        }
        many.truncate(again);
        Ok(many)
    }

    fn length(&self, hook: &'static str, answer: i64) -> Result<usize> {
        if answer < 0 {
            return Err(self.instance.errno(hook, answer));
        }
        let len = usize::try_from(answer).ok().filter(|&len| len <= abi::LONGEST);
        len.ok_or_else(|| self.instance.complain(hook, format_args!("answered {answer} bytes")))
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

    fn encode_target(&self, cx: &Cx<'_>, target: &[u8]) -> Result<Vec<u8>> {
        let Some((encode, _)) = self.targets else { return Ok(target.to_vec()) };
        self.target("encode_target", encode, cx, target)
    }

    fn decode_target(&self, cx: &Cx<'_>, target: &[u8]) -> Result<Vec<u8>> {
        let Some((_, decode)) = self.targets else { return Ok(target.to_vec()) };
        self.target("decode_target", decode, cx, target)
    }
}
