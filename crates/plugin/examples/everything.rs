//! A Rust plugin with every kind of hook, loaded by `tests/rust.rs`. Its operations hook reports
//! through extended attributes what it observed. Some names make hooks fail or panic.
#![allow(clippy::panic)]

use std::collections::BTreeMap;
use std::sync::Mutex;
use wrapfs::hooks::{
    Attributes, Block, Data, Hooks, Instead, Ioctls, Matching, Names, Object, Op, OpSet, Operations, Outcome, Reply,
    Verdict,
};
use wrapfs::vnode::{Attr, Cx, Errno, IoctlReply, Result};
use wrapfs::{Build, LayerType, OptionSpec, Settings, Template, Traits};

const LAYER: LayerType = LayerType {
    name: "everything",
    about: "has every kind of hook",
    options: &[
        OptionSpec { name: "fail", value: Some("SENTENCE"), help: "Can't be put on a layer, for that reason." },
        OptionSpec { name: "ro", value: None, help: "Nothing can be changed through it." },
        OptionSpec { name: "panic", value: Some("HOOK"), help: "This function panics when the layer is mounted." },
    ],
    build: Build::Over(&|lower, settings| Template::over(lower).hooks(hooks(settings)?).build()),
    traits: Traits::NONE,
};

plugin::export!(LAYER, hooks);

fn hooks(settings: &Settings) -> core::result::Result<Hooks, String> {
    if let Some(sentence) = settings.text("fail")? {
        return Err(sentence.to_owned());
    }
    let hooks = Hooks::new().names(Same).attributes(Same).data(Same).operations(Seen::default()).ioctls(Same);
    let hooks = match settings.text("panic")? {
        None => hooks,
        Some("matching") => hooks.names(Panics),
        Some("interest") => hooks.operations(Panics),
        Some(_) => panic!("for this test"),
    };
    Ok(if settings.has("ro") { hooks.read_only() } else { hooks })
}

#[derive(Debug)]
struct Same;

impl Names for Same {
    /// Names that begin with "long" get very long encodings.
    fn encode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        assert!(name != b"panic", "for this test");
        Ok(if name.starts_with(b"long") { name.repeat(200) } else { name.to_vec() })
    }

    fn decode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let len = if name.starts_with(b"long") { name.len() / 200 } else { name.len() };
        name.get(..len).map(<[u8]>::to_vec).ok_or(Errno::INVAL)
    }
}

/// Hooks that panic when they are called at mount time.
#[derive(Debug)]
struct Panics;

impl Names for Panics {
    fn encode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(name.to_vec())
    }

    fn decode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(name.to_vec())
    }

    fn matching(&self) -> Matching {
        panic!("for this test")
    }
}

impl Operations for Panics {
    fn interest(&self) -> OpSet {
        panic!("for this test")
    }
}

impl Attributes for Same {
    /// Sets the group to the size of the object's `user.size` attribute, which tests that hooks can
    /// query objects.
    fn decode_attr(&self, cx: &Cx<'_>, file: &Object<'_>, attr: &mut Attr) -> Result<()> {
        if let Ok(len) = file.lower().getxattr(cx, b"user.size", &mut []) {
            attr.gid = u32::try_from(len).map_err(|_| Errno::RANGE)?;
        }
        attr.nlink = file.attr(cx)?.nlink;
        Ok(())
    }
}

impl Data for Same {
    fn block_size(&self) -> usize {
        100
    }

    fn encode_data(&self, _cx: &Cx<'_>, at: &Block<'_>, plain: &[u8], encoded: &mut [u8]) -> Result<()> {
        let key = at.number.to_le_bytes()[0] ^ at.file.id().to_le_bytes()[0];
        encoded.iter_mut().zip(plain).for_each(|(out, byte)| *out = byte ^ key);
        Ok(())
    }

    fn decode_data(&self, cx: &Cx<'_>, at: &Block<'_>, encoded: &[u8], plain: &mut [u8]) -> Result<()> {
        self.encode_data(cx, at, encoded, plain)
    }
}

impl Ioctls for Same {
    fn ioctl(&self, _: &Cx<'_>, _: &Object<'_>, cmd: u32, input: &[u8], out: &mut [u8]) -> Result<Option<IoctlReply>> {
        if cmd != 42 {
            return Ok(None);
        }
        out.get_mut(..input.len()).ok_or(Errno::INVAL)?.copy_from_slice(input);
        Ok(Some(IoctlReply { result: 7, len: input.len() }))
    }
}

/// The last operation of each kind, before and after it ran.
#[derive(Debug, Default)]
struct Seen(Mutex<BTreeMap<String, String>>);

impl Operations for Seen {
    fn interest(&self) -> OpSet {
        OpSet::ALL
    }

    fn before(&self, _cx: &Cx<'_>, op: &Op<'_>) -> Result<Verdict> {
        match op {
            Op::Mkdir { name, .. } if name.as_bytes() == b"refused" => return Err(Errno::PERM),
            Op::Getxattr { name, .. } => {
                if let Some(kind) = name.strip_prefix(b"user.seen.") {
                    let seen = self.0.lock().map_err(|_| Errno::IO)?;
                    let said = seen.get(&String::from_utf8_lossy(kind).into_owned()).ok_or(Errno::NODATA)?;
                    return Ok(Verdict::Reply(Reply::Bytes(said.clone().into_bytes())));
                }
            }
            _ => {}
        }
        self.0.lock().map_err(|_| Errno::IO)?.insert(format!("{:?}", op.kind()), format!("{op:?}"));
        Ok(Verdict::Proceed)
    }

    fn after(&self, _cx: &Cx<'_>, op: &Op<'_>, result: Result<Outcome<'_>>) -> Instead {
        match (op, result) {
            // Some link targets are replaced.
            (Op::Readlink { .. }, Ok(Outcome::Bytes(target @ b"marked"))) => {
                Instead::Of(Ok(Reply::Bytes([target, b"-seen"].concat())))
            }
            (Op::Lookup { name, .. }, Ok(Outcome::Missing)) if name.as_bytes() == b"gone" => {
                Instead::Of(Err(Errno::STALE))
            }
            _ => Instead::Keep,
        }
    }
}
