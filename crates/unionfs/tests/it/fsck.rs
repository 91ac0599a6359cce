//! The offline check: it finds each kind of damage, repairs it without a change of the view, and
//! leaves nothing to repair, whatever interrupts it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::admin::{Admin, Consents, fsck};
use crate::common::config::{Access, Config, configs};
use crate::common::drain::pass;
use crate::common::op::Op;
use crate::common::op_matrix::{Breadth, single_path_ops, two_path_ops};
use crate::common::random_branches::random_config;
use crate::common::report::{Report, is_sampled};
use crate::common::test_union::{Start, TestUnion};
use crate::common::tree::Caller;
use crate::common::view::{View, Walk, view};
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Plan};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use testkit::Rng;
use testkit::seeds;
use unionfs::fsck::{CheckError, Consent, Finding, Inspector, Problem, Severity, check, undo};
use unionfs::{Branch, Delete, Metacopy, Mode, Options, Unionfs};
use vnode::{Cx, Errno, Kind, Layer, Name, OpenFlags, SetAttr, Vnode, XattrFlags};

const CX: Cx<'static> = Cx::internal(0, 0);

/// Returns the view of a mounted copy of the branches.
fn view_of(union: &TestUnion) -> Result<View, String> {
    let union = union.fork();
    let session = union.mount()?;
    view(&*session.layer, Walk::Quick)
}

/// Repairs what is safe. Nothing that can be repaired remains, and the view is the same.
fn repair_leftovers(union: &TestUnion) -> Result<(), String> {
    let before = view_of(union)?;
    let dumps = |union: &TestUnion| union.branches.iter().map(|(_, branch)| branch.dump()).collect::<Vec<_>>();
    let dumped = dumps(union);
    let dry = fsck(union, Consents::None)?;
    dry.expect_no_failures()?;
    if dumps(union) != dumped {
        return Err("a check without repairs changed a branch".to_owned());
    }
    let damage: Vec<_> = dry.found.iter().filter(|finding| finding.severity() == Severity::Damage).collect();
    if !damage.is_empty() {
        return Err(format!("an interrupted operation counts as damage: {damage:?}"));
    }
    let admin = fsck(union, Consents::Safe)?;
    admin.expect_no_failures()?;
    let after = view_of(union)?;
    if before != after {
        return Err(format!("{:?} changed the view\nfrom\n{before:?}to\n{after:?}", admin.found));
    }
    let again = fsck(union, Consents::Safe)?;
    if !again.errors().is_empty() || again.repaired > 0 {
        return Err(format!("found again: {:?}", again.found));
    }
    union.check_read_only_branches()
}

/// Runs an operation with a crash at the k-th change, and repairs. Returns whether that step was
/// reached.
fn after_crash(start: &Start, op: &Op, k: u64) -> Result<bool, String> {
    let union = start.union.fork();
    let mut session = union.mount()?;
    union.faults.arm(Plan { count: Count::Changes, at: k, fault: Fault::Crash });
    let _ = session.run(Caller::USER, op);
    let fired = union.faults.fired();
    drop(session);
    repair_leftovers(&union.recover())?;
    Ok(fired)
}

fn crashes(configs: &[Config], n: u64) {
    let mut report = Report::default();
    let n = testkit::number("STRATA_THIN").unwrap_or(n);
    for (config, delete) in configs.iter().flat_map(|config| [(config, Delete::Whiteout), (config, Delete::All)]) {
        let start = Start::new(config, delete, MemOptions::default());
        let mut ops = single_path_ops(&start.tree, Breadth::Representative);
        ops.extend(two_path_ops(&start.tree, Breadth::Representative));
        ops.retain(|op| {
            !matches!(op, Op::Stat { .. })
                && is_sampled(&format!("fsck {} {delete:?}", config.name), &format!("{op:?}"), n)
        });
        for op in ops {
            for k in 1..200 {
                let what = || format!("{op:?} {delete:?} {}, step {k}", config.name);
                let outcome = after_crash(&start, &op, k);
                let more = *outcome.as_ref().unwrap_or(&false);
                report.record(what, outcome.map(drop));
                if !more {
                    break;
                }
            }
        }
    }
    report.finish("fsck after crashes");
}

#[test]
fn interrupted_operations_are_repaired_without_a_change_of_the_view() {
    crashes(&configs(), 256);
}

#[test]
fn interrupted_operations_on_random_branches_are_repaired() {
    let configs: Vec<_> = seeds(6).map(random_config).collect();
    crashes(&configs, 256);
}

/// Drains a branch, with a crash at the k-th change if `k` is not 0, and repairs. Returns whether
/// that step was reached.
fn after_moves(start: &Start, branch: usize, k: u64) -> Result<bool, String> {
    let union = start.union.fork();
    let session = union.mount()?;
    if k > 0 {
        union.faults.arm(Plan { count: Count::Changes, at: k, fault: Fault::Crash });
    }
    let _ = pass(&session, branch);
    let crashed = union.faults.crashed();
    union.faults.disarm();
    drop(session);
    let union = if crashed { union.recover() } else { union };
    let view = without_dir_times(view_of(&union))?;
    repair_leftovers(&union)?;
    // Numbers and link counts are part of the view.
    if view == without_dir_times(view_of(&start.union))? {
        Ok(crashed)
    } else {
        Err(format!("moving changed the view to\n{view:?}"))
    }
}

/// Whatever has moved, also if that was interrupted, nothing counts as damage.
#[test]
fn moves_leave_nothing_that_a_repair_would_break() {
    let mut report = Report::default();
    for seed in seeds(12) {
        let config = random_config(seed);
        for delete in [Delete::Whiteout, Delete::All] {
            let start = Start::new(&config, delete, MemOptions::default());
            for branch in (0..config.branches.len()).filter(|&at| config.branches[at].0 == Access::Rw) {
                // First without a crash.
                for k in [0].into_iter().chain(1 + seed % 3..).step_by(3) {
                    let what = || format!("{} {delete:?}, draining {branch}, step {k}", config.name);
                    let outcome = after_moves(&start, branch, k);
                    let more = *outcome.as_ref().unwrap_or(&false);
                    report.record(what, outcome.map(drop));
                    if !more && k > 0 {
                        break;
                    }
                }
            }
        }
    }
    report.finish("fsck after moves");
}

/// Branches of which `U` is read-write and `M` and `B` are read-only.
struct Bed {
    faults: Faults,
    layers: [Arc<MemFs>; 3],
}

/// The names of the branches.
#[derive(Clone, Copy)]
enum At {
    U,
    M,
    B,
}

impl Bed {
    /// Builds branches, and uses them in a union: a directory is renamed, a file removed, a file's
    /// mode changed, a file with two names written.
    fn new() -> Self {
        let faults = Faults::new();
        let bed = Self { layers: [(); 3].map(|()| MemFs::with(MemOptions::default(), &faults)), faults };
        for (dir, at) in [("d", At::M), ("d/sub", At::M), ("d", At::B), ("old", At::B), ("old/in", At::B), ("e", At::B)]
        {
            bed.mkdir(at, dir);
        }
        for (file, at) in [
            ("d/f", At::B),
            ("d/f", At::M),
            ("d/sub/g", At::M),
            ("old/in/h", At::B),
            ("gone", At::B),
            ("big", At::B),
            ("h1", At::B),
        ] {
            bed.write(at, file, &[b'x'; 100]);
        }
        bed.link(At::B, "h1", "h2");
        bed.link(At::B, "h1", "h3");
        {
            let union = bed.mount();
            let root = union.root();
            root.rename(&CX, name("old"), &root, name("new"), vnode::RenameFlags::default()).unwrap();
            root.unlink(&CX, name("gone")).unwrap();
            chmod(&root, "big", 0o600);
            let h1 = root.lookup(&CX, name("h1")).unwrap().unwrap().vnode;
            h1.open(&CX, OpenFlags::RDWR).unwrap().write(&CX, b"changed", 0).unwrap();
            root.unlink(&CX, name("h3")).unwrap();
            root.mkdir(&CX, name("own"), 0o755).unwrap();
        }
        bed
    }

    fn fork(&self) -> Self {
        let faults = Faults::new();
        Self { layers: self.layers.each_ref().map(|layer| layer.fork(&faults)), faults }
    }

    fn recover(&self) -> Self {
        let faults = Faults::new();
        Self { layers: self.layers.each_ref().map(|layer| layer.recover(&faults)), faults }
    }

    fn branches(&self) -> Vec<Branch> {
        let modes = [("/U", Mode::ReadWrite), ("/M", Mode::ReadOnly), ("/B", Mode::ReadOnly)];
        let branch = |(layer, (path, mode)): (&Arc<MemFs>, (&str, Mode))| Branch {
            layer: layer.clone() as Arc<dyn Layer>,
            path: path.into(),
            mode,
        };
        self.layers.iter().zip(modes).map(branch).collect()
    }

    fn mount(&self) -> Arc<Unionfs> {
        let options = Options { metacopy: Metacopy::Above(30), ..Options::default() };
        Unionfs::new(self.branches(), options).unwrap()
    }

    fn view(&self) -> Result<View, String> {
        view(&*self.fork().mount(), Walk::Loose)
    }

    fn fsck(&self, consents: Consents) -> Admin {
        let mut admin = Admin::new(consents);
        check(&self.branches(), &mut admin).unwrap();
        admin
    }

    fn layer(&self, at: At) -> &Arc<MemFs> {
        &self.layers[at as usize]
    }

    fn dir<'p>(&self, at: At, path: &'p str) -> (Arc<dyn Vnode>, Name<'p>) {
        let (dir, last) = path.rsplit_once('/').unwrap_or(("", path));
        let mut vnode = self.layer(at).root();
        for part in dir.split('/').filter(|part| !part.is_empty()) {
            vnode = vnode.lookup(&CX, name(part)).unwrap().unwrap().vnode;
        }
        (vnode, name(last))
    }

    fn find(&self, at: At, path: &str) -> Option<vnode::Entry> {
        let (dir, name) = self.dir(at, path);
        dir.lookup(&CX, name).unwrap()
    }

    fn mkdir(&self, at: At, path: &str) {
        let (dir, name) = self.dir(at, path);
        dir.mkdir(&CX, name, 0o755).unwrap();
    }

    fn mark(&self, at: At, path: &str) {
        let (dir, name) = self.dir(at, path);
        dir.mknod(&CX, name, Kind::Regular.mode_bits() | 0o444, 0).unwrap();
    }

    fn write(&self, at: At, path: &str, bytes: &[u8]) {
        let (dir, name) = self.dir(at, path);
        let (_, file) = dir.create(&CX, name, 0o644, OpenFlags::WRONLY).unwrap();
        assert_eq!(file.write(&CX, bytes, 0), Ok(bytes.len()));
    }

    /// Writes a redirect.
    fn redirect(&self, at: At, dir: &str, to: &str, mode: u32) {
        let path = format!("{dir}/.wh..wh.redirect");
        self.write(at, &path, format!("strata-redirect 1\n{to}\n").as_bytes());
        let (dir, _) = self.dir(at, &path);
        chmod(&dir, ".wh..wh.redirect", mode);
    }

    fn link(&self, at: At, from: &str, to: &str) {
        let file = self.find(at, from).unwrap().vnode;
        let (dir, name) = self.dir(at, to);
        dir.link(&CX, name, &file).unwrap();
    }

    fn remove(&self, at: At, path: &str) {
        let (dir, name) = self.dir(at, path);
        dir.unlink(&CX, name).unwrap();
    }

    fn setxattr(&self, at: At, path: &str, value: &[u8]) {
        let file = self.find(at, path).unwrap().vnode;
        file.setxattr(&CX, b"trusted.strata.origin", value, XattrFlags::default()).unwrap();
    }

    /// Reads a file, changes its content and writes it back.
    fn edit(&self, at: At, path: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        let entry = self.find(at, path).unwrap();
        let file = entry.vnode.open(&CX, OpenFlags::RDWR).unwrap();
        let mut bytes = vec![0; entry.attr.size as usize];
        assert_eq!(file.read(&CX, &mut bytes, 0), Ok(bytes.len()));
        edit(&mut bytes);
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        entry.vnode.setattr(&CX, &set, Some(&*file)).unwrap();
        assert_eq!(file.write(&CX, &bytes, 0), Ok(bytes.len()));
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn chmod(dir: &Arc<dyn Vnode>, file: &str, mode: u32) {
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    dir.lookup(&CX, name(file)).unwrap().unwrap().vnode.setattr(&CX, &set, None).unwrap();
}

const IDENT: &str = ".wh..wh.ident";

/// What a repair does to the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// Nothing.
    None,
    /// It brings back what the damage changed.
    Restores,
    /// It can't be repaired.
    NotRepaired,
}

/// A way to damage the branches, the kind of finding, and the effect of the repair.
type Damage = (&'static str, fn(&Bed), Problem, Effect);

const DAMAGES: &[Damage] = &[
    ("whiteout beside a copy", |b| b.mark(At::U, ".wh.h1"), Problem::WhiteoutBesideFile, Effect::None),
    ("whiteout beside a directory", |b| b.mark(At::U, ".wh.own"), Problem::WhiteoutBesideDirectory, Effect::None),
    (
        "whiteout that ends a merged directory",
        |b| {
            b.mkdir(At::U, "d");
            b.mark(At::U, ".wh.d");
        },
        Problem::WhiteoutBesideDirectory,
        Effect::None,
    ),
    (
        "whiteout beside a renamed directory",
        |b| b.mark(At::U, ".wh.new"),
        Problem::WhiteoutBesideDirectory,
        Effect::None,
    ),
    ("whiteout with data", |b| b.write(At::U, ".wh.nothing", b"precious"), Problem::WhiteoutHidesNothing, Effect::None),
    ("whiteout of nothing", |b| b.mark(At::U, "new/.wh.nothing"), Problem::WhiteoutHidesNothing, Effect::None),
    (
        "long whiteout of nothing",
        |b| b.mark(At::U, ".wh..wh.l.0123456789abcdef0123456789abcdef"),
        Problem::WhiteoutHidesNothing,
        Effect::None,
    ),
    ("opaque directory", |b| b.mark(At::U, "own/.wh..wh..opq"), Problem::OpaqueHidesNothing, Effect::None),
    ("opaque root", |b| b.mark(At::U, ".wh..wh..opq"), Problem::OpaqueInRoot, Effect::None),
    (
        "two opaque marks",
        |b| {
            b.mark(At::U, "own/.wh..wh..opq");
            b.mark(At::U, "own/.wh.__dir_opaque");
        },
        Problem::OpaqueTwice,
        Effect::None,
    ),
    (
        "redirect in an opaque directory",
        |b| b.mark(At::U, "new/.wh..wh..opq"),
        Problem::RedirectBesideOpaque,
        Effect::None,
    ),
    (
        "redirect to itself",
        |b| {
            b.mkdir(At::U, "d");
            b.redirect(At::U, "d", "/d", 0o444);
        },
        Problem::RedirectToItself,
        Effect::None,
    ),
    (
        "interrupted rename",
        |b| {
            b.mkdir(At::U, "d");
            b.redirect(At::U, "d", "/d", 0o444);
            b.mark(At::U, ".wh.d");
        },
        Problem::WhiteoutBesideDirectory,
        Effect::None,
    ),
    ("forged redirect", |b| b.redirect(At::U, "own", "/d", 0o644), Problem::RedirectUntrusted, Effect::None),
    (
        "redirect that is a FIFO",
        |b| {
            let (dir, name) = b.dir(At::U, "own/.wh..wh.redirect");
            dir.mknod(&CX, name, Kind::Fifo.mode_bits() | 0o444, 0).unwrap();
        },
        Problem::RedirectUntrusted,
        Effect::None,
    ),
    (
        "empty redirect",
        |b| {
            b.remove(At::U, "new/.wh..wh.redirect");
            b.mark(At::U, "new/.wh..wh.redirect");
        },
        Problem::RedirectDamaged,
        Effect::None,
    ),
    (
        "redirect to nowhere",
        |b| {
            b.remove(At::U, "new/.wh..wh.redirect");
            b.redirect(At::U, "new", "/nowhere/at/all", 0o444);
        },
        Problem::RedirectNowhere,
        Effect::None,
    ),
    ("lost whiteout of a rename", |b| b.remove(At::U, ".wh.old"), Problem::RedirectShared, Effect::NotRepaired),
    ("lost mark of redirects", |b| b.remove(At::U, ".wh..wh.moved"), Problem::RedirectUnannounced, Effect::Restores),
    (
        "lost mark of metacopies",
        |b| b.remove(At::U, ".wh..wh.metacopies"),
        Problem::MetacopyUnannounced,
        Effect::Restores,
    ),
    ("metacopy beside its file", |b| b.write(At::U, "big", b"new"), Problem::MetacopyBesideFile, Effect::None),
    ("metacopy of a removed file", |b| b.mark(At::U, ".wh.big"), Problem::MetacopyBesideWhiteout, Effect::None),
    ("metacopy without data", |b| b.remove(At::B, "big"), Problem::MetacopyWithoutData, Effect::None),
    (
        "metacopy of another file",
        |b| {
            b.remove(At::B, "big");
            b.write(At::B, "big", b"another");
        },
        Problem::MetacopyOfOtherFile,
        Effect::None,
    ),
    ("forged metacopy", |b| b.mark(At::U, "new/.wh..wh.meta.h"), Problem::MetacopyUntrusted, Effect::None),
    ("damaged metacopy", |b| b.setxattr(At::U, ".wh..wh.meta.big", b"1 2 3"), Problem::MetacopyDamaged, Effect::None),
    (
        "unfinished copy",
        |b| {
            b.mkdir(At::U, ".wh..wh.work");
            chmod(&b.layer(At::U).root(), ".wh..wh.work", 0o700);
            b.mkdir(At::U, ".wh..wh.work/c7");
            b.write(At::U, ".wh..wh.work/c7/x", b"half");
        },
        Problem::WorkLeftovers,
        Effect::None,
    ),
    (
        "foreign work directory",
        |b| {
            b.mkdir(At::U, ".wh..wh.work");
            b.write(At::U, ".wh..wh.work/thesis", b"precious");
        },
        Problem::WorkForeign,
        Effect::NotRepaired,
    ),
    (
        "foreign index",
        |b| b.write(At::U, ".wh..wh.links/thesis", b"precious"),
        Problem::IndexForeign,
        Effect::NotRepaired,
    ),
    (
        "index entry of this branch",
        |b| b.write(At::U, ".wh..wh.links/0001000000000005", b"?"),
        Problem::IndexInvalid,
        Effect::None,
    ),
    (
        "index entry without names",
        |b| b.write(At::U, ".wh..wh.links/0003000000ffffff", b"?"),
        Problem::IndexUnused,
        Effect::None,
    ),
    (
        "cut off log",
        |b| b.edit(At::U, IDENT, |log| log.extend([30, 0, 2, 0, 1, 2, 3])),
        Problem::LogCutOff,
        Effect::None,
    ),
    ("zeros after the log", |b| b.edit(At::U, IDENT, |log| log.extend([0; 5000])), Problem::LogCutOff, Effect::None),
    ("flipped bit in the log", |b| b.edit(At::U, IDENT, |log| log[25] ^= 1), Problem::LogDamaged, Effect::None),
    ("damaged header of the log", |b| b.edit(At::U, IDENT, |log| log[3] ^= 1), Problem::LogDamaged, Effect::None),
    ("log of a later version", |b| b.edit(At::U, IDENT, |log| log[13] = b'3'), Problem::LogLater, Effect::NotRepaired),
    (
        "record of a later version",
        |b| b.edit(At::U, IDENT, |log| log.extend(record(99, b"future"))),
        Problem::LogLater,
        Effect::NotRepaired,
    ),
    (
        "forged path in the log",
        |b| b.edit(At::U, IDENT, |log| log.extend(record(5, &[&[0; 14][..], b"/../etc"].concat()))),
        Problem::LogForged,
        Effect::None,
    ),
    ("log of another user", |b| chmod(&b.layer(At::U).root(), IDENT, 0o666), Problem::LogUntrusted, Effect::None),
    (
        "leftover of a rewritten log",
        |b| b.write(At::U, ".wh..wh.ident.new", b"strata"),
        Problem::LogRewriteLeftover,
        Effect::None,
    ),
    (
        "interrupted removal of a name",
        |b| {
            b.edit(At::U, IDENT, |log| {
                log.extend(record(5, &[&[3, 0][..], &number(b).to_le_bytes(), &[3, 0, 0, 0], b"/h2"].concat()));
            });
        },
        Problem::LinksUnfinished,
        Effect::None,
    ),
    (
        "wrong link count",
        |b| {
            let names = [&number(b).to_le_bytes()[..], &[3, 0, 0, 0], &[3, 0, 0, 0]].concat();
            b.edit(At::U, IDENT, |log| log.extend(record(4, &names)));
        },
        Problem::LinkCountLow,
        Effect::Restores,
    ),
    ("unknown name", |b| b.write(At::U, "own/.wh..wh.future", b"precious"), Problem::UnknownName, Effect::NotRepaired),
];

/// Returns the number of the file with several names, from the name of its index entry.
fn number(bed: &Bed) -> u64 {
    let mut number = 0;
    let index = bed.find(At::U, ".wh..wh.links").unwrap().vnode;
    index
        .readdir(&CX, 0, &mut |entry| {
            number = u64::from_str_radix(std::str::from_utf8(entry.name.as_bytes()).unwrap(), 16).unwrap();
            true
        })
        .unwrap();
    number
}

/// Returns a record of the log.
fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u16).to_le_bytes().to_vec();
    bytes.extend([kind, 0]);
    bytes.extend(payload);
    let mut sum = !0_u32;
    for byte in &bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ 0x82f6_3b78 } else { sum >> 1 };
        }
    }
    bytes.extend((!sum).to_le_bytes());
    bytes
}

/// Returns the view without inode numbers, if the damage concerns them.
fn comparable(problem: Problem, view: Result<View, String>) -> Result<View, String> {
    let mut view = view?;
    let renumbered = matches!(problem, Problem::LogDamaged | Problem::LogUntrusted | Problem::LogForged);
    for object in view.0.values_mut().filter(|_| renumbered) {
        object.ino = 0;
        object.nlink = 0;
    }
    Ok(view)
}

fn without_dir_times(view: Result<View, String>) -> Result<View, String> {
    let mut view = view?;
    view.0.values_mut().filter(|object| object.kind == Kind::Directory).for_each(|dir| dir.mtime = None);
    Ok(view)
}

#[test]
fn undamaged_branches_are_clean() {
    let admin = Bed::new().fsck(Consents::All);
    assert_eq!(admin.found, vec![]);
    admin.expect_no_failures().unwrap();
}

#[test]
fn each_kind_of_damage_is_found_and_repaired() {
    let intact = Bed::new();
    let before = intact.view();
    for (what, damage, problem, effect) in DAMAGES {
        let bed = intact.fork();
        damage(&bed);
        let damaged = bed.fork();
        let shown = bed.view();
        let admin = bed.fsck(Consents::All);
        assert!(admin.problems().contains(problem), "{what}: found only {:?}", admin.found);
        admin.expect_no_failures().unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(bed.layer(At::M).dump(), damaged.layer(At::M).dump(), "{what}");
        assert_eq!(bed.layer(At::B).dump(), damaged.layer(At::B).dump(), "{what}");
        let again = bed.fsck(Consents::All);
        match effect {
            Effect::NotRepaired => assert!(again.problems().contains(problem), "{what}: {:?}", again.found),
            Effect::None | Effect::Restores => assert_eq!(again.errors(), Vec::<&Finding>::new(), "{what}"),
        }
        let after = comparable(*problem, bed.view());
        match effect {
            // The damage itself has moved the times of directories.
            Effect::Restores => assert_eq!(without_dir_times(after), without_dir_times(before.clone()), "{what}"),
            _ => assert_eq!(after, comparable(*problem, shown), "{what}: the repair changed the view"),
        }
    }
}

#[test]
fn every_kind_of_finding_is_tested() {
    let tested: BTreeSet<_> = DAMAGES.iter().map(|(_, _, problem, _)| *problem).collect();
    let elsewhere = [Problem::LogForeign, Problem::TooComplex, Problem::SnapshotUnfinished, Problem::SnapshotLeftovers];
    let all: BTreeSet<_> = Problem::ALL.iter().copied().filter(|problem| !elsewhere.contains(problem)).collect();
    assert_eq!(tested, all);
}

/// `fsck -p` leaves damage, and does not change what users see.
#[test]
fn safe_repairs_change_nothing_that_users_see() {
    let intact = Bed::new();
    for (what, damage, problem, _) in DAMAGES {
        let bed = intact.fork();
        damage(&bed);
        let shown = bed.view();
        let admin = bed.fsck(Consents::Safe);
        admin.expect_no_failures().unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(comparable(*problem, bed.view()), comparable(*problem, shown), "{what}");
        let safe = problem.repair().is_some_and(|repair| repair.consent == Consent::Safe);
        assert_eq!(!bed.fsck(Consents::None).problems().contains(problem), safe, "{what}");
    }
}

/// A crash at each step of a repair, and an error at each step; then the check runs again.
#[test]
fn an_interrupted_repair_can_be_repeated() {
    let intact = Bed::new();
    for (what, damage, problem, effect) in DAMAGES {
        let damaged = intact.fork();
        damage(&damaged);
        let mut whole = damaged.fork();
        whole.fsck(Consents::All);
        // A crash or an error can come before the times of a directory are restored.
        let comparable = |view| without_dir_times(comparable(*problem, view));
        let want = comparable(whole.view());
        whole = damaged.fork();
        let old = comparable(whole.view());
        for (count, fault) in [
            (Count::Changes, Fault::Crash),
            (Count::All, Fault::Error(Errno::IO)),
            (Count::Changes, Fault::Errors(Errno::NOSPC)),
        ] {
            for k in 1.. {
                assert!(k < 3000, "{what}");
                let bed = damaged.fork();
                bed.faults.arm(Plan { count, at: k, fault });
                let _ = check(&bed.branches(), &mut Admin::new(Consents::All));
                let fired = bed.faults.fired();
                bed.faults.disarm();
                let bed = bed.recover();
                let between = comparable(bed.view());
                assert!(between == old || between == want, "{what}, {fault:?} at {k}: a state between: {between:?}");
                let admin = bed.fsck(Consents::All);
                admin.expect_no_failures().unwrap_or_else(|e| panic!("{what}, {fault:?} {k}: {e}"));
                let again = bed.fsck(Consents::All);
                assert!(*effect == Effect::NotRepaired || again.errors().is_empty(), "{what}: {:?}", again.found);
                assert_eq!(comparable(bed.view()), want, "{what}, {fault:?} at {k}");
                if !fired {
                    break;
                }
            }
        }
    }
}

/// Bytes in the log that are not a log, and logs with random damage: nothing panics, the check
/// ends, and a second one finds nothing that a first one repairs.
#[test]
fn any_log_can_be_checked() {
    let intact = Bed::new();
    for seed in seeds(300) {
        let mut rng = Rng::new(seed);
        let bed = intact.fork();
        bed.edit(At::U, IDENT, |log| match rng.below(4) {
            0 => *log = (0..rng.below(3000)).map(|_| rng.bits() as u8).collect(),
            1 => {
                for _ in 0..1 + rng.below(4) {
                    let at = rng.below(log.len());
                    log[at] ^= 1 << rng.below(8);
                }
            }
            2 => log.truncate(rng.below(log.len())),
            _ => {
                let at = 16 + rng.below(log.len() - 16);
                let noise: Vec<u8> = (0..rng.below(200)).map(|_| rng.bits() as u8).collect();
                log.splice(at..at, noise);
            }
        });
        let admin = bed.fsck(Consents::All);
        admin.expect_no_failures().unwrap_or_else(|e| panic!("{seed}: {e}"));
        let again = bed.fsck(Consents::All);
        let left: Vec<_> = again.errors().into_iter().filter(|finding| finding.repair().is_some()).collect();
        assert_eq!(left, Vec::<&Finding>::new(), "{seed}: after {:?}", admin.found);
        bed.mount();
    }
}

/// Intact records after damaged ones are kept, and the old log is set aside.
#[test]
fn records_after_damage_are_salvaged() {
    let bed = Bed::new();
    let before = bed.view().unwrap();
    let mut old = Vec::new();
    // The first record assigns a tag, which the next mount does again.
    bed.edit(At::U, IDENT, |log| {
        log[16 + 6] ^= 1;
        old = log.clone();
    });
    let admin = bed.fsck(Consents::All);
    assert_eq!(admin.problems(), BTreeSet::from([Problem::LogDamaged]));
    assert_eq!(bed.view().unwrap(), before);
    let list = bed.find(At::U, ".wh..wh.aside0/LIST").unwrap();
    let mut bytes = vec![0; list.attr.size as usize];
    list.vnode.open(&CX, OpenFlags::RDONLY).unwrap().read(&CX, &mut bytes, 0).unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), "1\tlog-damaged\t/.wh..wh.ident\n");
    assert_eq!(bed.find(At::U, ".wh..wh.aside0/1").unwrap().attr.size, old.len() as u64);
}

/// Names with control characters, whiteouts of every kind of object, very deep directories, and
/// redirects into each other.
#[test]
fn hostile_branches_are_checked() {
    let bed = Bed::new();
    let odd = [
        "\n",
        "\x1b[31m",
        "a b",
        "\u{7f}",
        ".wh",
        ".wh.\n",
        ".wh..wh.\n",
        ".wh.",
        ".wh..wh.",
        ".wh..wh.meta.",
        ".wh..wh.l.",
        ".wh..wh.l.XYZ",
    ];
    for (index, text) in odd.iter().enumerate() {
        if index % 2 == 0 { bed.mkdir(At::U, &format!("own/{text}")) } else { bed.mark(At::U, &format!("own/{text}")) }
    }
    let (own, _) = bed.dir(At::U, "own/x");
    for (kind, text) in [(Kind::Fifo, ".wh.fifo"), (Kind::Socket, ".wh..wh..opq"), (Kind::CharDevice, ".wh.char")] {
        own.mknod(&CX, name(text), kind.mode_bits() | 0o666, 0).unwrap();
    }
    own.symlink(&CX, name(".wh.link"), b"/etc/passwd").unwrap();
    bed.mkdir(At::U, "own/.wh.dir");
    bed.write(At::U, "own/.wh.dir/precious", b"data");
    let admin = bed.fsck(Consents::All);
    admin.expect_no_failures().unwrap();
    assert!(
        admin.problems().contains(&Problem::WhiteoutHidesNothing) && admin.problems().contains(&Problem::UnknownName)
    );
    let left = bed.fsck(Consents::All).problems();
    assert_eq!(left, BTreeSet::from([Problem::UnknownName]));
    // What a directory with a whiteout's name held is still there.
    let aside = bed.find(At::U, ".wh..wh.aside0").unwrap().vnode;
    let mut kept = false;
    aside
        .readdir(&CX, 0, &mut |entry| {
            let inner = aside.lookup(&CX, entry.name).unwrap().unwrap().vnode;
            kept |= inner.kind() == Kind::Directory && inner.lookup(&CX, name("precious")).unwrap().is_some();
            true
        })
        .unwrap();
    assert!(kept);
}

/// A directory tree that is deeper than any recursion.
#[test]
fn very_deep_trees_are_checked() {
    let bed = Bed::new();
    let mut deep = bed.layer(At::U).root();
    for _ in 0..20_000 {
        deep.mkdir(&CX, name("b"), 0o755).unwrap();
        deep = deep.mkdir(&CX, name("d"), 0o755).unwrap().vnode;
    }
    deep.mknod(&CX, name(".wh.x"), Kind::Regular.mode_bits(), 0).unwrap();
    let mut admin = Admin::new(Consents::None);
    check(&bed.branches(), &mut admin).unwrap();
    admin.expect_no_failures().unwrap();
    let found: Vec<_> = admin.found.iter().map(|finding| (finding.problem, finding.path.len())).collect();
    assert_eq!(found, [(Problem::WhiteoutHidesNothing, 40_000 + "/.wh.x".len())]);
}

/// Redirects that lead into each other on many branches make lookups expensive; the check reports
/// it and ends.
#[test]
fn redirects_that_are_too_complex_are_reported() {
    let layers: Vec<Arc<MemFs>> = (0..24).map(|_| MemFs::new()).collect();
    for layer in &layers {
        let root = layer.root();
        root.mknod(&CX, name(".wh..wh.moved"), Kind::Regular.mode_bits() | 0o444, 0).unwrap();
        for dir in ["a", "b"] {
            let made = root.mkdir(&CX, name(dir), 0o755).unwrap().vnode;
            let mut inner = made.clone();
            for _ in 0..2 {
                inner = inner.mkdir(&CX, name("a"), 0o755).unwrap().vnode;
                let (_, file) = inner.create(&CX, name(".wh..wh.redirect"), 0o444, OpenFlags::WRONLY).unwrap();
                file.write(&CX, b"strata-redirect 1\n/b/a/a\n", 0).unwrap();
            }
        }
    }
    let branches: Vec<Branch> = layers
        .iter()
        .enumerate()
        .map(|(at, layer)| Branch {
            layer: layer.clone(),
            path: format!("/{at}").into(),
            mode: if at == 0 { Mode::ReadWrite } else { Mode::ReadOnly },
        })
        .collect();
    let mut admin = Admin::new(Consents::All);
    check(&branches, &mut admin).unwrap();
    assert!(admin.problems().contains(&Problem::RedirectShared) || admin.problems().contains(&Problem::TooComplex));
}

/// An index entry is not in the way if a branch further left has a newer one of the same file: the
/// union without that branch needs it, as it does after a snapshot.
#[test]
fn index_entries_that_others_supersede_stay() {
    let bed = Bed::new();
    let entry = format!(".wh..wh.links/{:016x}", number(&bed));
    bed.mkdir(At::M, ".wh..wh.links");
    chmod(&bed.layer(At::M).root(), ".wh..wh.links", 0o700);
    bed.write(At::M, &entry, b"older");
    bed.write(At::M, "hard", b"");
    for modes in [[Mode::ReadWrite, Mode::ReadWrite, Mode::ReadOnly], [Mode::ReadWrite, Mode::ReadOnly, Mode::ReadOnly]]
    {
        let branches = bed.branches().into_iter().zip(modes);
        let branches: Vec<_> = branches.map(|(branch, mode)| Branch { mode, ..branch }).collect();
        let mut admin = Admin::new(Consents::All);
        check(&branches, &mut admin).unwrap();
        assert_eq!(admin.problems(), BTreeSet::new());
        assert!(bed.find(At::M, &entry).is_some());
    }
}

/// Something that is not a file has the name of the log.
#[test]
fn a_foreign_log_is_left() {
    let bed = Bed::new();
    bed.remove(At::U, IDENT);
    bed.mkdir(At::U, IDENT);
    assert!(bed.fsck(Consents::All).problems().contains(&Problem::LogForeign));
    assert!(bed.find(At::U, IDENT).is_some());
}

/// A stopped check ends at once.
#[test]
fn a_check_can_be_stopped() {
    struct Stops(Admin);
    impl Inspector for Stops {
        fn found(&mut self, finding: &Finding) -> bool {
            self.0.found(finding)
        }
        fn repaired(&mut self, finding: &Finding, result: vnode::Result<()>) {
            self.0.repaired(finding, result);
        }
        fn not_checked(&mut self, branch: &Path, path: &[u8], errno: Errno) {
            self.0.not_checked(branch, path, errno);
        }
        fn restarts(&mut self) {}
        fn progress(&mut self, checked: u64, _: u64) -> bool {
            checked < 2
        }
    }
    let stopped = check(&Bed::new().branches(), &mut Stops(Admin::new(Consents::None)));
    assert_eq!(stopped, Err(CheckError::Stopped));
}

/// What `-y` does with a wrong list of branches, where nearly everything seems to hide or lead to
/// nothing, can be undone.
#[test]
fn repairs_with_a_wrong_list_of_branches_can_be_undone() {
    let lists: [&[At]; 5] =
        [&[At::U], &[At::U, At::M], &[At::U, At::B], &[At::U, At::B, At::M], &[At::M, At::U, At::B]];
    let mut steps = 0;
    let damages = DAMAGES.iter().map(|(what, damage, ..)| (*what, *damage));
    let undamaged: (&str, fn(&Bed)) = ("nothing", |_| {});
    for (what, damage) in [undamaged].into_iter().chain(damages) {
        let bed = Bed::new();
        damage(&bed);
        let Ok(before) = bed.view() else { continue };
        let dump = |bed: &Bed| bed.layers.each_ref().map(|layer| layer.dump().without_times());
        for list in lists {
            let fork = bed.fork();
            let branches: Vec<Branch> = list
                .iter()
                .enumerate()
                .map(|(place, at)| {
                    let mode = if place == 0 || matches!(at, At::U) { Mode::ReadWrite } else { Mode::ReadOnly };
                    Branch { mode, ..fork.branches()[*at as usize].clone() }
                })
                .collect();
            let mut admin = Admin::new(Consents::All);
            check(&branches, &mut admin).unwrap();
            let undone = undo(&branches).unwrap();
            steps += undone.len();
            let context = format!("{what}: {} branches, {:?}, {undone:?}", list.len(), admin.problems());
            // A repaired log remains in use.
            let left: Vec<_> =
                undone.iter().filter(|one| one.result.is_err() && !one.kind.starts_with("log-")).collect();
            assert!(left.is_empty(), "{context}");
            assert!(bed.view().unwrap() == before, "{context}");
            let mut view = fork.view().unwrap();
            let log_repaired = undone.iter().any(|one| one.kind.starts_with("log-"));
            if log_repaired || admin.problems().contains(&Problem::LinkCountLow) {
                // Link counts that were too low remain corrected.
                for (path, object) in &mut view.0 {
                    object.nlink = before.0.get(path).map_or(0, |before| before.nlink);
                }
            }
            assert!(view == before, "{context}\nbefore\n{before:?}after\n{view:?}");
            if what == "nothing" {
                for (one, other) in dump(&bed).iter().zip(dump(&fork)) {
                    assert_eq!(other.differences(one), "", "{context}");
                }
            }
            assert!(undo(&branches).unwrap().iter().all(|one| one.result.is_err()), "{context}");
        }
    }
    assert!(steps > 200, "{steps}");
}

/// An undo that is interrupted can be run again, and replaces nothing.
#[test]
fn an_undo_replaces_nothing() {
    let bed = Bed::new();
    let only = [bed.branches()[0].clone()];
    let before = without_dir_times(bed.view());
    let mut admin = Admin::new(Consents::All);
    check(&only, &mut admin).unwrap();
    assert!(without_dir_times(bed.view()) != before && bed.find(At::U, ".wh.gone").is_none());
    bed.write(At::U, ".wh.gone", b"mine");
    for at in 1..100 {
        let fork = bed.fork();
        let branches = [fork.branches()[0].clone()];
        fork.faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
        let _interrupted = undo(&branches);
        let crashed = fork.faults.crashed();
        fork.faults.disarm();
        let fork = if crashed { fork.recover() } else { fork };
        let _again = undo(&[fork.branches()[0].clone()]).unwrap();
        assert_eq!(fork.find(At::U, ".wh.gone").unwrap().attr.size, 4, "{at}");
        fork.remove(At::U, ".wh.gone");
        let last = undo(&[fork.branches()[0].clone()]).unwrap();
        assert!(last.iter().all(|one| one.result.is_ok()), "{at}: {last:?}");
        assert!(without_dir_times(fork.view()) == before, "{at}");
        if !crashed {
            return;
        }
    }
    unreachable!("the undo does not end");
}
