//! Hooks of every kind that fail or panic at random: failed operations change nothing, and the
//! others succeed as if no hook had failed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::{Chain, Failing, FailurePlan, Runs, Stretch};
use conformance::fixture::{ROOT, name};
use conformance::random::compare_trees;
use memfs::{Dump, MemFs};
use std::sync::Arc;
use testkit::Rng;
use vnode::{Attr, Cx, Errno, Kind, Layer, OpenFlags, RenameFlags, Result, SetAttr, SetTime, Time, Vnode, XattrFlags};
use wrapfs::container::{BlockAt, BlockCodec};
use wrapfs::hooks::{Attributes, Names, Object, Op, OpSet, Operations, Verdict};
use wrapfs::{Foreign, Template};

impl<T: Names> Names for Failing<T> {
    fn encode_filename(&self, cx: &Cx<'_>, dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.1.changes()?;
        self.0.encode_filename(cx, dir, name)
    }
    fn decode_filename(&self, cx: &Cx<'_>, dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.1.changes()?;
        self.0.decode_filename(cx, dir, name)
    }
    fn encode_target(&self, cx: &Cx<'_>, target: &[u8]) -> Result<Vec<u8>> {
        self.1.changes()?;
        self.0.encode_target(cx, target)
    }
    fn decode_target(&self, cx: &Cx<'_>, target: &[u8]) -> Result<Vec<u8>> {
        self.1.changes()?;
        self.0.decode_target(cx, target)
    }
}

/// The identity.
#[derive(Debug)]
struct Same;

impl Attributes for Failing<Same> {
    fn decode_attr(&self, _cx: &Cx<'_>, _file: &Object<'_>, _attr: &mut Attr) -> Result<()> {
        self.1.changes()
    }
    fn encode_attr(&self, _cx: &Cx<'_>, _file: &Object<'_>, _set: &mut SetAttr) -> Result<()> {
        self.1.changes()
    }
    fn encode_mode(&self, _cx: &Cx<'_>, _dir: &Object<'_>, _kind: Kind, mode: u32) -> Result<u32> {
        self.1.changes().map(|()| mode)
    }
}

impl Operations for Failing<Same> {
    fn interest(&self) -> OpSet {
        OpSet::ALL
    }
    fn before(&self, _cx: &Cx<'_>, _op: &Op<'_>) -> Result<Verdict> {
        self.1.changes().map(|()| Verdict::Proceed)
    }
}

impl<T: BlockCodec> BlockCodec for Failing<T> {
    fn id(&self) -> [u8; 8] {
        self.0.id()
    }
    fn block_size(&self) -> u32 {
        self.0.block_size()
    }
    fn max_encoded(&self, plain: usize) -> usize {
        self.0.max_encoded(plain)
    }
    fn encode(&self, at: &BlockAt, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        self.1.changes()?;
        self.0.encode(at, plain, out)
    }
    fn decode(&self, at: &BlockAt, encoded: &[u8], out: &mut [u8]) -> Result<()> {
        self.1.changes()?;
        self.0.decode(at, encoded, out)
    }
}

/// The hooks in use.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Names,
    Attributes,
    Operations,
    Data,
    Resizing,
    All,
}

const FORMS: [Form; 6] = [Form::Names, Form::Attributes, Form::Operations, Form::Data, Form::Resizing, Form::All];

fn layer(lower: Arc<dyn Layer>, form: Form, plan: &FailurePlan) -> Arc<dyn Layer> {
    let is = |one| form == one || form == Form::All;
    let mut template = Template::over(lower);
    if is(Form::Names) {
        template = template.names(Failing(Stretch(3), plan.clone()));
    }
    if is(Form::Attributes) {
        template = template.attributes(Failing(Same, plan.clone()));
    }
    if is(Form::Operations) {
        template = template.operations(Failing(Same, plan.clone()));
    }
    if form == Form::Data {
        template = template.data(Failing(Chain(1000), plan.clone()));
    }
    if is(Form::Resizing) {
        template = template.resizing(Arc::new(Failing(Runs, plan.clone())), Foreign::Refuse);
    }
    template.build().unwrap()
}

/// Some of these are too long for the layer below when each byte is tripled.
const SHORT: [&str; 5] = ["a", "b", "c", "dir", "other"];

fn names() -> Vec<String> {
    let long = ["x", "y", "z"].map(|byte| byte.repeat(120));
    SHORT.iter().map(|&short| short.to_owned()).chain(long).collect()
}

/// A change of which only the last step has an effect.
#[derive(Clone, Debug)]
enum Change {
    Create(String),
    Mkdir(String),
    Symlink(String),
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, bool),
    Chmod(String, u32),
    Truncate(String, u64),
    Times(String, i64),
    Setxattr(String, u8),
    Write(String, u64, usize, u8),
    Punch(String, u64, u64),
}

impl Change {
    fn random(rng: &mut Rng, names: &[String]) -> Self {
        let any = |rng: &mut Rng| names[rng.below(names.len())].clone();
        let (one, two) = (any(rng), any(rng));
        match rng.below(24) {
            0..=3 => Self::Create(one),
            4 => Self::Mkdir(one),
            5 => Self::Symlink(one),
            6 => Self::Link(one, two),
            7 => Self::Unlink(one),
            8 => Self::Rmdir(one),
            9 | 10 => Self::Rename(one, two, rng.one_in(4)),
            11 => Self::Chmod(one, 0o400 | rng.below(0o1000) as u32),
            12 => Self::Truncate(one, rng.below(20_000)),
            13 => Self::Times(one, rng.below(1_000_000)),
            14 => Self::Setxattr(one, rng.below(256) as u8),
            15 => Self::Punch(one, rng.below(12_000), 1 + rng.below(9000)),
            _ => Self::Write(one, rng.below(12_000), 1 + rng.below(9000) as usize, rng.below(256) as u8),
        }
    }

    /// Returns how many bytes were written.
    fn apply(&self, root: &Arc<dyn Vnode>) -> Result<usize> {
        let find = |at: &str| root.lookup(&ROOT, name(at))?.map(|entry| entry.vnode).ok_or(Errno::NOENT);
        let open = |at: &str| match find(at)? {
            file if file.kind() == Kind::Regular => file.open(&ROOT, OpenFlags::RDWR),
            _ => Err(Errno::ISDIR),
        };
        let set = |at: &str, set: SetAttr| find(at)?.setattr(&ROOT, &set, None).map(drop);
        match self {
            Self::Create(at) => root.create(&ROOT, name(at), 0o644, OpenFlags::RDWR).map(drop),
            Self::Mkdir(at) => root.mkdir(&ROOT, name(at), 0o755).map(drop),
            Self::Symlink(at) => root.symlink(&ROOT, name(at), b"somewhere/else").map(drop),
            Self::Link(at, to) => root.link(&ROOT, name(to), &find(at)?).map(drop),
            Self::Unlink(at) => root.unlink(&ROOT, name(at)),
            Self::Rmdir(at) => root.rmdir(&ROOT, name(at)),
            Self::Rename(at, to, exchange) => {
                let flags = RenameFlags { exchange: *exchange, ..RenameFlags::default() };
                root.rename(&ROOT, name(at), root, name(to), flags)
            }
            Self::Chmod(at, mode) => set(at, SetAttr { mode: Some(*mode), ..SetAttr::default() }),
            Self::Truncate(at, _) if find(at)?.kind() != Kind::Regular => Err(Errno::ISDIR),
            Self::Truncate(at, size) => set(at, SetAttr { size: Some(*size), ..SetAttr::default() }),
            Self::Times(at, sec) => {
                let time = SetTime::At(Time { sec: *sec, nsec: 0 });
                set(at, SetAttr { mtime: Some(time), ..SetAttr::default() })
            }
            Self::Setxattr(at, value) => find(at)?.setxattr(&ROOT, b"user.x", &[*value], XattrFlags::default()),
            Self::Write(at, offset, len, byte) => return open(at)?.write(&ROOT, &vec![*byte; *len], *offset),
            Self::Punch(at, offset, len) => open(at)?.fallocate(&ROOT, 3, *offset, *len),
        }
        .map(|()| 0)
    }

    /// The reply includes the object's attributes: the change may be done even if decoding them
    /// fails.
    fn is_told_after_it_was_done(&self) -> bool {
        matches!(self, Self::Chmod(..) | Self::Truncate(..) | Self::Times(..))
    }

    /// The change, if only this many bytes of it were done.
    fn done(self, written: usize) -> Self {
        match self {
            Self::Write(at, offset, _, byte) => Self::Write(at, offset, written, byte),
            other => other,
        }
    }
}

fn same(a: &Dump, b: &Dump) -> bool {
    let plain = |dump: &Dump| dump.clone().without_ids().without_times();
    plain(a).differences(&plain(b)).is_empty()
}

#[test]
fn failed_operations_change_nothing() {
    common::quietly();
    let names = names();
    for form in FORMS {
        let (mut done, mut failed) = (0, 0);
        for seed in 1..=20 {
            let (below, model) = (MemFs::new(), MemFs::new());
            let root = layer(below.clone(), form, &FailurePlan::of(seed)).root();
            let mut rng = Rng::xorshift_star(seed);
            let mut history = Vec::new();
            for _ in 0..120 {
                let change = Change::random(&mut rng, &names);
                let answer = change.apply(&root);
                history.push(format!("{change:?}: {answer:?}"));
                let when = format!("{form:?}, seed {seed}\n{}", history.join("\n"));
                match answer {
                    Ok(written) => {
                        assert_eq!(change.done(written).apply(&model.root()), Ok(written), "{when}");
                        done += 1;
                    }
                    // Errors of the hooks, which nothing else returns here.
                    Err(Errno::IO | Errno::DQUOT) => {
                        failed += 1;
                        let now = Dump::of(&*layer(below.clone(), form, &FailurePlan::calm())).unwrap();
                        if change.is_told_after_it_was_done() && !same(&now, &Dump::of(&*model).unwrap()) {
                            change.apply(&model.root()).unwrap();
                        }
                    }
                    Err(errno) => assert_eq!(change.apply(&model.root()), Err(errno), "{when}"),
                }
                compare_trees(&when, &*layer(below.clone(), form, &FailurePlan::calm()), &*model);
            }
        }
        assert!(done > 300 && failed > 60, "{form:?}: {done} done, {failed} failed");
    }
}
