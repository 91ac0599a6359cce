//! Attributes, operations and ioctls: what hooks observe, change, refuse and answer; and
//! misbehaving hooks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use conformance::fixture::{ROOT, name, names};
use memfs::{Faults, MemFs};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use vnode::{
    Attr, Command, CommandAccess, Cx, Errno, IoctlReply, Kind, Layer, OpenFlags, RenameFlags, Result, SetAttr, Vnode,
    XattrFlags,
};
use wrapfs::container::{BlockAt, BlockCodec};
use wrapfs::hooks::{
    Attributes, Block, Commands, Data, FileFormat, FormatBlock, Hooks, Instead, Ioctls, Layout, Names, Object, Op,
    OpKind, OpSet, Operations, Outcome, Reply, Verdict,
};
use wrapfs::{Foreign, Template, WrapFs};

fn attributes(hook: impl Attributes + 'static) -> Arc<dyn Layer> {
    Template::over(MemFs::new()).attributes(hook).build().unwrap()
}

fn operations(hook: impl Operations + 'static) -> Arc<dyn Layer> {
    Template::over(MemFs::new()).operations(hook).build().unwrap()
}

fn make(dir: &Arc<dyn Vnode>, at: &str) -> Result<Attr> {
    dir.mkdir(&ROOT, name(at), 0o755).map(|entry| entry.attr)
}

#[test]
fn without_hooks_it_is_the_null_layer() {
    let layer = Template::over(MemFs::new()).build().unwrap();
    assert!(format!("{layer:?}").starts_with(std::any::type_name::<WrapFs>().rsplit("::").next().unwrap()));
}

#[test]
fn attributes_are_translated_in_both_directions() {
    /// Shows UIDs ten higher, hides set-user-ID, and makes all new objects private.
    #[derive(Debug)]
    struct Shift;
    impl Attributes for Shift {
        fn decode_attr(&self, _cx: &Cx<'_>, _file: &Object<'_>, attr: &mut Attr) -> Result<()> {
            (attr.uid, attr.ino) = (attr.uid + 10, 12_345);
            attr.mode = Kind::Fifo.mode_bits() | (attr.perm() & !0o4000);
            Ok(())
        }
        fn encode_attr(&self, _cx: &Cx<'_>, _file: &Object<'_>, set: &mut SetAttr) -> Result<()> {
            set.uid = set.uid.map(|uid| uid.checked_sub(10).ok_or(Errno::PERM)).transpose()?;
            set.gid = None;
            Ok(())
        }
        fn encode_mode(&self, _cx: &Cx<'_>, _dir: &Object<'_>, kind: Kind, mode: u32) -> Result<u32> {
            Ok(if kind == Kind::Directory { mode & 0o700 } else { mode | 0o170_000 })
        }
    }
    let root = attributes(Shift).root();
    let made = root.mkdir(&ROOT, name("d"), 0o755).unwrap();
    assert_eq!((made.attr.uid, made.attr.perm(), made.attr.kind()), (10, 0o700, Kind::Directory));
    assert_eq!(made.attr.ino, made.vnode.id());
    let fifo = root.mknod(&ROOT, name("p"), Kind::Fifo.mode_bits() | 0o4644, 0).unwrap();
    assert_eq!((fifo.attr.kind(), fifo.attr.perm(), fifo.vnode.kind()), (Kind::Fifo, 0o644, Kind::Fifo));
    let chown = |uid| SetAttr { uid: Some(uid), gid: Some(7), ..SetAttr::default() };
    let now = made.vnode.setattr(&ROOT, &chown(25), None).unwrap();
    assert_eq!((now.uid, now.gid), (25, 0));
    assert_eq!(made.vnode.setattr(&ROOT, &chown(3), None), Err(Errno::PERM));
    // A change from which the hook removed everything is no change.
    let before = made.vnode.getattr(&ROOT).unwrap();
    let set = SetAttr { gid: Some(9), ..SetAttr::default() };
    assert_eq!(made.vnode.setattr(&ROOT, &set, None), Ok(before));
}

#[test]
fn creation_fails_if_the_attributes_cannot_be_decoded() {
    /// Fails for directories.
    #[derive(Debug)]
    struct HidesDirectories;
    impl Attributes for HidesDirectories {
        fn decode_attr(&self, _cx: &Cx<'_>, file: &Object<'_>, _attr: &mut Attr) -> Result<()> {
            match file.kind() {
                Kind::Directory => Err(Errno::ACCESS),
                Kind::Symlink => panic!("for this test"),
                _ => Ok(()),
            }
        }
    }
    let root = attributes(HidesDirectories).root();
    assert_eq!(make(&root, "d"), Err(Errno::ACCESS));
    assert_eq!(root.symlink(&ROOT, name("s"), b"t").map(|_| ()), Err(Errno::IO));
    assert_eq!(names(&root), [""; 0]);
    root.create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(names(&root), ["f"]);
}

/// Records what it observes as text.
#[derive(Debug)]
struct Notes {
    seen: Arc<Mutex<Vec<String>>>,
    interest: OpSet,
}

impl Operations for Notes {
    fn interest(&self) -> OpSet {
        self.interest
    }

    fn before(&self, cx: &Cx<'_>, op: &Op<'_>) -> Result<Verdict> {
        self.seen.lock().unwrap().push(format!("{} {:?}", cx.uid, op.kind()));
        Ok(Verdict::Proceed)
    }

    fn after(&self, _cx: &Cx<'_>, _op: &Op<'_>, result: Result<Outcome<'_>>) -> Instead {
        let what = match result {
            Ok(Outcome::Object(file, attr)) => format!("{:?} of {}", file.kind(), attr.size),
            Ok(Outcome::Attr(attr)) => format!("attributes of {}", attr.size),
            Ok(answer) => format!("{answer:?}"),
            Err(errno) => format!("{:?}", errno.kind()),
        };
        self.seen.lock().unwrap().push(what);
        Instead::Keep
    }
}

#[test]
fn operations_are_observed_before_and_after() {
    let seen = Arc::default();
    let layer = operations(Notes { seen: Arc::clone(&seen), interest: OpSet::ALL });
    let root = layer.root();
    let (entry, file) = root.create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    file.write(&ROOT, b"bytes", 0).unwrap();
    file.read(&ROOT, &mut [0; 3], 1).unwrap();
    assert!(root.lookup(&ROOT, name("g")).unwrap().is_none());
    entry.vnode.setxattr(&ROOT, b"user.x", b"v", XattrFlags::default()).unwrap();
    entry.vnode.getxattr(&ROOT, b"user.x", &mut []).unwrap();
    entry.vnode.getxattr(&ROOT, b"user.x", &mut [0; 9]).unwrap();
    entry.vnode.getattr(&ROOT).unwrap();
    root.rmdir(&ROOT, name("g")).unwrap_err();
    entry.vnode.refused(&ROOT, 4).unwrap();
    assert!(layer.properties().audits_refusals);
    let expected = [
        "0 Create",
        "Regular of 0",
        "0 Write",
        "Count(5)",
        "0 Read",
        "Bytes([121, 116, 101])",
        "0 Lookup",
        "Missing",
        "0 Setxattr",
        "Done",
        "0 Getxattr",
        "Count(1)",
        "0 Getxattr",
        "Bytes([118])",
        "0 Getattr",
        "attributes of 5",
        "0 Rmdir",
        "NotFound",
        "0 Refused",
        "Done",
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[test]
fn only_requested_operations_are_observed() {
    let seen = Arc::default();
    let interest = OpSet::of(&[OpKind::Mkdir]);
    let layer = operations(Notes { seen: Arc::clone(&seen), interest });
    make(&layer.root(), "d").unwrap();
    layer.root().getattr(&ROOT).unwrap();
    assert_eq!(seen.lock().unwrap().len(), 2);
    assert!(!layer.properties().audits_refusals);
}

/// An operation that will be retried on another thread has no result yet.
#[test]
fn a_retried_operation_has_one_result() {
    let seen = Arc::default();
    let faults = memfs::Faults::new();
    let below = common::memory(&faults);
    let layer =
        Template::over(below).operations(Notes { seen: Arc::clone(&seen), interest: OpSet::ALL }).build().unwrap();
    let fault = memfs::Fault::Error(vnode::MAY_BLOCK);
    faults.arm(memfs::Plan { count: memfs::Count::All, at: 1, fault });
    let never = AtomicBool::new(false);
    assert_eq!(layer.root().getattr(&Cx::new(5, 0, 1, 0, false, &never)), Err(vnode::MAY_BLOCK));
    layer.root().getattr(&ROOT).unwrap();
    assert_eq!(*seen.lock().unwrap(), ["5 Getattr", "0 Getattr", "attributes of 0"]);
}

/// Refuses, answers and replaces.
#[derive(Debug)]
struct Interfering;

impl Operations for Interfering {
    fn interest(&self) -> OpSet {
        OpSet::ALL
    }

    fn before(&self, _cx: &Cx<'_>, op: &Op<'_>) -> Result<Verdict> {
        match op {
            Op::Mkdir { name, .. } if name.as_bytes() == b"refused" => Err(Errno::DQUOT),
            Op::Mkdir { name, .. } if name.as_bytes() == b"panics" => panic!("for this test"),
            // A creation cannot be answered by a hook.
            Op::Mkdir { name, .. } if name.as_bytes() == b"wrong" => Ok(Verdict::Reply(Reply::Done)),
            Op::Lookup { name, .. } if name.as_bytes() == b"hidden" => Ok(Verdict::Reply(Reply::Missing)),
            Op::Unlink { .. } | Op::Readdir { .. } => Ok(Verdict::Reply(Reply::Done)),
            Op::Read { .. } => Ok(Verdict::Reply(Reply::Bytes(b"answered".to_vec()))),
            Op::Write { .. } => Ok(Verdict::Reply(Reply::Count(99))),
            Op::Getxattr { .. } => Ok(Verdict::Reply(Reply::Bytes(b"value".to_vec()))),
            _ => Ok(Verdict::Proceed),
        }
    }

    fn after(&self, _cx: &Cx<'_>, op: &Op<'_>, result: Result<Outcome<'_>>) -> Instead {
        match (op, result) {
            (Op::Getattr { .. }, Ok(Outcome::Attr(attr))) => {
                Instead::Of(Ok(Reply::Attr(Attr { size: 77, ino: 1, mode: 0o644, ..*attr })))
            }
            (Op::Lookup { name, .. }, Ok(Outcome::Object(..))) if name.as_bytes() == b"late" => {
                Instead::Of(Err(Errno::ACCESS))
            }
            (Op::Lookup { name, .. }, _) if name.as_bytes() == b"panics" => panic!("for this test"),
            // A change cannot be replaced.
            (Op::Symlink { .. }, _) => Instead::Of(Err(Errno::ACCESS)),
            (Op::Mknod { .. }, _) => panic!("for this test"),
            _ => Instead::Keep,
        }
    }
}

#[test]
fn operations_are_refused_answered_and_replaced() {
    let root = operations(Interfering).root();
    assert_eq!(make(&root, "refused"), Err(Errno::DQUOT));
    assert_eq!(make(&root, "panics"), Err(Errno::IO));
    assert_eq!(make(&root, "wrong"), Err(Errno::IO));
    make(&root, "late").unwrap();
    make(&root, "hidden").unwrap();
    assert!(root.lookup(&ROOT, name("hidden")).unwrap().is_none());
    assert_eq!(root.lookup(&ROOT, name("late")).map(|_| ()), Err(Errno::ACCESS));
    assert_eq!(root.lookup(&ROOT, name("panics")).map(|_| ()), Err(Errno::IO));
    assert_eq!(names(&root), [""; 0]);
    // The type and the number cannot be forged.
    let now = root.getattr(&ROOT).unwrap();
    assert_eq!((now.size, now.ino, now.kind()), (77, root.id(), Kind::Directory));
    assert!(root.symlink(&ROOT, name("s"), b"t").is_ok());
    assert!(root.mknod(&ROOT, name("n"), 0o644, 0).is_ok());
    assert_eq!(root.unlink(&ROOT, name("s")), Ok(()));
    assert!(root.lookup(&ROOT, name("s")).unwrap().is_some());
    let mut out = [0; 5];
    assert_eq!(root.getxattr(&ROOT, b"user.x", &mut []), Ok(5));
    assert_eq!(root.getxattr(&ROOT, b"user.x", &mut [0; 4]), Err(Errno::RANGE));
    assert_eq!((root.getxattr(&ROOT, b"user.x", &mut out), &out), (Ok(5), b"value"));
    let (_, file) = root.create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!((file.read(&ROOT, &mut out, 0), &out), (Ok(5), b"answe"));
    // More bytes than were to be written.
    assert_eq!(file.write(&ROOT, b"bytes", 0), Err(Errno::IO));
}

#[test]
fn layer_specific_ioctls_take_precedence() {
    #[derive(Debug)]
    struct Own;
    impl Ioctls for Own {
        fn ioctl(
            &self,
            cx: &Cx<'_>,
            file: &Object<'_>,
            cmd: u32,
            input: &[u8],
            out: &mut [u8],
        ) -> Result<Option<IoctlReply>> {
            match cmd {
                1 if cx.uid != 0 => Err(Errno::PERM),
                1 => {
                    out[..2].copy_from_slice(&[input[0] + 1, u8::from(file.kind() == Kind::Directory)]);
                    Ok(Some(IoctlReply { result: 3, len: 2 }))
                }
                2 => Ok(Some(IoctlReply { result: 0, len: 100 })),
                _ => Ok(None),
            }
        }
    }
    let root = Template::over(MemFs::new()).ioctls(Own).build().unwrap().root();
    let mut out = [0; 2];
    assert_eq!(root.ioctl(&ROOT, 1, &[5], &mut out), Ok(IoctlReply { result: 3, len: 2 }));
    assert_eq!(out, [6, 1]);
    assert_eq!(root.ioctl(&Cx::internal(1, 1), 1, &[5], &mut out), Err(Errno::PERM));
    // A buffer that is too small, and a reply that exceeds it.
    assert_eq!(root.ioctl(&ROOT, 1, &[5], &mut []), Err(Errno::IO));
    assert_eq!(root.ioctl(&ROOT, 2, &[], &mut out), Err(Errno::IO));
    assert_eq!(root.ioctl(&ROOT, 3, &[], &mut out), Err(Errno::NOTTY));
}

#[test]
fn vnodes_of_another_layer_are_refused() {
    let (a, b) = (operations(Interfering), operations(Interfering));
    let other = b.root().mkdir(&ROOT, name("d"), 0o755).unwrap();
    assert_eq!(a.root().link(&ROOT, name("x"), &other.vnode).map(|_| ()), Err(Errno::XDEV));
}

/// Hooks whose decoding loses the lowest bit of some bytes.
#[derive(Debug)]
struct Lossy;

impl Lossy {
    fn lose(bytes: &[u8]) -> Vec<u8> {
        bytes.iter().map(|&byte| if byte == b'!' { b' ' } else { byte }).collect()
    }
}

impl Data for Lossy {
    fn block_size(&self) -> usize {
        16
    }
    fn encode_data(&self, _cx: &Cx<'_>, _at: &Block<'_>, plain: &[u8], encoded: &mut [u8]) -> Result<()> {
        encoded.copy_from_slice(plain);
        Ok(())
    }
    fn decode_data(&self, _cx: &Cx<'_>, _at: &Block<'_>, encoded: &[u8], plain: &mut [u8]) -> Result<()> {
        plain.copy_from_slice(&Self::lose(encoded));
        Ok(())
    }
}

impl FileFormat for Lossy {
    fn new_header(&self, _cx: &Cx<'_>, _file: &Object<'_>, _header: &mut [u8]) -> Result<()> {
        Ok(())
    }
    fn check_header(&self, _cx: &Cx<'_>, _file: &Object<'_>, _header: &[u8]) -> Result<()> {
        Ok(())
    }
    fn encode_block(&self, _cx: &Cx<'_>, _at: &FormatBlock<'_>, plain: &[u8], stored: &mut [u8]) -> Result<()> {
        stored[..plain.len()].copy_from_slice(plain);
        Ok(())
    }
    fn decode_block(&self, _cx: &Cx<'_>, _at: &FormatBlock<'_>, stored: &[u8], plain: &mut [u8]) -> Result<()> {
        plain.copy_from_slice(&stored[..plain.len()]);
        Ok(())
    }
}

impl BlockCodec for Lossy {
    fn id(&self) -> [u8; 8] {
        *b"lossy\0\0\0"
    }
    fn block_size(&self) -> u32 {
        512
    }
    fn max_encoded(&self, plain: usize) -> usize {
        plain
    }
    fn encode(&self, _at: &BlockAt, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        out.extend_from_slice(plain);
        Ok(())
    }
    fn decode(&self, _at: &BlockAt, encoded: &[u8], out: &mut [u8]) -> Result<()> {
        out.copy_from_slice(&Self::lose(encoded));
        Ok(())
    }
}

impl Names for Lossy {
    fn encode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(name.to_vec())
    }
    fn decode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(name.to_vec())
    }
    fn decode_target(&self, _cx: &Cx<'_>, target: &[u8]) -> Result<Vec<u8>> {
        Ok(Self::lose(target))
    }
}

/// Debug builds store nothing that would not be read back unchanged; release builds do not check.
#[test]
fn hooks_that_are_not_inverse_are_detected() {
    fn expected<T>(done: T) -> Result<T> {
        if cfg!(debug_assertions) { Err(Errno::IO) } else { Ok(done) }
    }
    let resizing = || Template::over(MemFs::new()).resizing(Arc::new(Lossy), Foreign::Refuse).build().unwrap();
    for layer in [Template::over(MemFs::new()).data(Lossy).build().unwrap(), resizing()] {
        let (entry, file) = layer.root().create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
        assert_eq!(file.write(&ROOT, b"good words", 0), Ok(10));
        assert_eq!(file.write(&ROOT, b"bad words!", 0), expected(10));
        if cfg!(debug_assertions) {
            let mut now = [0; 10];
            assert_eq!(file.read(&ROOT, &mut now, 0), Ok(10));
            assert_eq!((&now, entry.vnode.getattr(&ROOT).unwrap().size), (b"good words", 10));
        }
    }
    let root = Template::over(MemFs::new()).names(Lossy).build().unwrap().root();
    assert!(root.symlink(&ROOT, name("l"), b"where").is_ok());
    assert_eq!(root.symlink(&ROOT, name("m"), b"where!").map(|_| ()), expected(()));
}

#[test]
fn only_one_hook_transforms_data() {
    let new = || Template::over(MemFs::new());
    let both = [
        ("data", "resizing", new().data(Lossy).resizing(Arc::new(Lossy), Foreign::Plain)),
        ("data", "resizing", new().hooks(Hooks::new().resizing(Arc::new(Lossy), Foreign::Plain).data(Lossy))),
        ("data", "format", new().format(Layout::new(0, 512, 544).unwrap(), Lossy).data(Lossy)),
        (
            "resizing",
            "format",
            new().resizing(Arc::new(Lossy), Foreign::Plain).format(Layout::new(0, 512, 544).unwrap(), Lossy),
        ),
    ];
    for (one, other, template) in both {
        assert_eq!(
            template.build().map(|_| ()),
            Err(format!("the layer has both {one} and {other}; use only one, or split it into two layers"))
        );
    }
}

type Change = fn(&Arc<dyn Vnode>) -> Result<()>;

/// Every change of a tree with a file `f`, a directory `d` and a symbolic link `l`.
const CHANGES: [(&str, Change); 18] = [
    ("create", |root| root.create(&ROOT, name("x"), 0o644, OpenFlags::RDWR).map(drop)),
    ("tmpfile", |root| root.tmpfile(&ROOT, 0o644, OpenFlags::RDWR).map(drop)),
    ("mknod", |root| root.mknod(&ROOT, name("x"), Kind::Fifo.mode_bits() | 0o644, 0).map(drop)),
    ("mkdir", |root| root.mkdir(&ROOT, name("x"), 0o755).map(drop)),
    ("symlink", |root| root.symlink(&ROOT, name("x"), b"t").map(drop)),
    ("link", |root| root.link(&ROOT, name("x"), &find(root, "f")).map(drop)),
    ("unlink", |root| root.unlink(&ROOT, name("f"))),
    ("rmdir", |root| root.rmdir(&ROOT, name("d"))),
    ("rename", |root| root.rename(&ROOT, name("f"), root, name("x"), RenameFlags::default())),
    ("chmod", |root| find(root, "f").setattr(&ROOT, &SetAttr { mode: Some(0), ..SetAttr::default() }, None).map(drop)),
    ("cut", |root| find(root, "f").setattr(&ROOT, &SetAttr { size: Some(0), ..SetAttr::default() }, None).map(drop)),
    ("open to write", |root| find(root, "f").open(&ROOT, OpenFlags::WRONLY).map(drop)),
    ("open for both", |root| find(root, "f").open(&ROOT, OpenFlags::RDWR).map(drop)),
    ("open to cut", |root| find(root, "f").open(&ROOT, OpenFlags::RDONLY.with_trunc()).map(drop)),
    ("setxattr", |root| find(root, "f").setxattr(&ROOT, b"user.x", b"v", XattrFlags::default())),
    ("removexattr", |root| find(root, "f").removexattr(&ROOT, b"user.x")),
    // FS_IOC_SETFLAGS, and an ioctl number with both directions.
    ("set flags", |root| find(root, "f").ioctl(&ROOT, 0x4008_6602, &[0; 8], &mut []).map(drop)),
    ("any ioctl", |root| find(root, "f").ioctl(&ROOT, 0xc008_6602, &[0; 8], &mut [0; 8]).map(drop)),
];

fn find(root: &Arc<dyn Vnode>, at: &str) -> Arc<dyn Vnode> {
    root.lookup(&ROOT, name(at)).unwrap().unwrap().vnode
}

#[test]
fn read_only_layers_refuse_all_changes() {
    let forms: [fn(Template) -> Template; 4] = [
        |none| none,
        |names| names.names(common::Stretch(40)),
        |data| data.data(common::Chain(16)),
        |resized| resized.resizing(Arc::new(common::Runs), Foreign::Refuse),
    ];
    for form in forms {
        let faults = Faults::new();
        let below = common::memory(&faults);
        let root = form(Template::over(below.clone())).build().unwrap().root();
        let (_, file) = root.create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
        assert_eq!(file.write(&ROOT, b"some words", 0), Ok(10));
        drop(file);
        root.mkdir(&ROOT, name("d"), 0o755).unwrap();
        root.symlink(&ROOT, name("l"), b"f").unwrap();
        drop(root);
        let layer = form(Template::over(below)).read_only().build().unwrap();
        assert!(layer.properties().read_only);
        faults.reset();
        let root = layer.root();
        for (what, change) in CHANGES {
            assert_eq!(change(&root), Err(Errno::ROFS), "{what}");
        }
        // Reading works, and changes nothing below either.
        assert_eq!(names(&root), ["d", "f", "l"]);
        assert_eq!(find(&root, "l").readlink(&ROOT), Ok(b"f".to_vec()));
        let mut now = [0; 20];
        let file = find(&root, "f").open(&ROOT, OpenFlags::RDONLY).unwrap();
        assert_eq!((file.read(&ROOT, &mut now, 0), &now[..10]), (Ok(10), &b"some words"[..]));
        assert_eq!(find(&root, "f").ioctl(&ROOT, 0x5401, &[], &mut []), Err(Errno::NOTTY));
        assert_eq!(faults.changes(), 0);
        assert_eq!(file.write(&ROOT, b"x", 0), Err(Errno::BADF));
    }
}

/// A layer with a command on directories.
#[derive(Debug)]
struct Says(&'static str);

impl Commands for Says {
    fn commands(&self) -> Vec<Command> {
        vec![Command { name: "test.say", help: "For a test.", access: CommandAccess::Anyone }]
    }

    fn control(&self, _cx: &Cx<'_>, object: &Object<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>> {
        assert_eq!(command, "test.say");
        match (object.kind(), input) {
            (Kind::Directory, b"panic") => panic!("expected"),
            (Kind::Directory, _) => Ok(self.0.as_bytes().to_vec()),
            _ => Err(Errno::NOTTY),
        }
    }
}

#[test]
fn own_commands_take_precedence_and_others_are_forwarded() {
    let lower = Template::over(MemFs::new()).commands(Says("below")).build().unwrap();
    let layer = Template::over(WrapFs::new(lower)).commands(Says("above")).build().unwrap();
    assert_eq!(layer.commands().len(), 2);
    let root = layer.root();
    let say = |object: &Arc<dyn Vnode>, command: &str, input: &[u8]| object.control(&ROOT, command, input);
    assert_eq!(say(&root, "test.say", b""), Ok(b"above".to_vec()));
    assert_eq!(say(&root, "test.other", b""), Err(Errno::NOTTY));
    assert_eq!(say(&root, "test.say", b"panic"), Err(Errno::IO));
    let file = root.create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap().0.vnode;
    assert_eq!(say(&file, "test.say", b""), Err(Errno::NOTTY));
    // A read-only layer forwards no commands, because they could change something.
    let lower = Template::over(MemFs::new()).commands(Says("below")).build().unwrap();
    let closed = Template::over(lower).read_only().build().unwrap();
    assert_eq!(say(&closed.root(), "test.say", b""), Err(Errno::NOTTY));
    let lower = Template::over(MemFs::new()).commands(Says("below")).read_only().build().unwrap();
    let closed = Template::over(lower).read_only().build().unwrap();
    assert_eq!(say(&closed.root(), "test.say", b""), Ok(b"below".to_vec()));
}
