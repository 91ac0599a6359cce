//! A Rust plugin that uses the layer below, keeps state for objects and queries paths, loaded by
//! `tests/rust.rs`. An ioctl makes it create, use and remove a tree; a failed assertion panics,
//! which becomes `EIO`.

#![allow(clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wrapfs::hooks::{Attributes, Hooks, Ioctls, Object, Objects, Op, OpKind, OpSet, Operations, Reply, State, Verdict};
use wrapfs::vnode::{
    Attr, Cx, Errno, IoctlReply, Kind, Name, OpenFlags, RenameFlags, Result, SetAttr, Vnode, Whence, XattrFlags,
};
use wrapfs::{Build, LayerType, Settings, Template, Traits};

const LAYER: LayerType = LayerType {
    name: "lower",
    about: "uses the layer below",
    options: &[],
    build: Build::Over(&|lower, settings| Template::over(lower).hooks(hooks(settings)?).build()),
    traits: Traits::NONE,
};

plugin::export!(LAYER, hooks);

fn hooks(_settings: &Settings) -> core::result::Result<Hooks, String> {
    let counts = Arc::new(Counts::default());
    let uses = Uses(Arc::clone(&counts));
    Ok(Hooks::new().ioctls(uses.clone()).attributes(uses.clone()).operations(uses.clone()).objects(uses).paths())
}

#[derive(Debug, Default)]
struct Counts {
    attached: AtomicU64,
    freed: AtomicU64,
}

#[derive(Clone, Debug)]
struct Uses(Arc<Counts>);

/// The state of an object: its number.
#[derive(Debug)]
struct Number(u64);

impl Objects for Uses {
    fn freed(&self, id: u64, state: State) {
        let number = Arc::try_unwrap(state.downcast::<Number>().expect("its own")).expect("nobody else has it");
        assert_eq!(number.0, id);
        self.0.freed.fetch_add(1, Ordering::SeqCst);
    }
}

impl Attributes for Uses {
    fn decode_attr(&self, _cx: &Cx<'_>, file: &Object<'_>, _attr: &mut Attr) -> Result<()> {
        if let Some(state) = file.attached() {
            assert_eq!(state.downcast_ref::<Number>().map(|number| number.0), Some(file.id()));
            return Ok(());
        }
        let new: State = Arc::new(Number(file.id()));
        let attached = file.attach(Arc::clone(&new)).expect("there is a hook");
        self.0.attached.fetch_add(u64::from(Arc::ptr_eq(&attached, &new)), Ordering::SeqCst);
        Ok(())
    }
}

impl Operations for Uses {
    fn interest(&self) -> OpSet {
        OpSet::of(&[OpKind::Getxattr])
    }

    fn before(&self, _cx: &Cx<'_>, op: &Op<'_>) -> Result<Verdict> {
        let Op::Getxattr { file, name } = op else { return Ok(Verdict::Proceed) };
        Ok(match *name {
            b"user.path" => Verdict::Reply(Reply::Bytes(file.path().ok_or(Errno::NODATA)?)),
            b"user.counts" => {
                let counts = [&self.0.attached, &self.0.freed].map(|count| count.load(Ordering::SeqCst));
                Verdict::Reply(Reply::Bytes(format!("{counts:?}").into_bytes()))
            }
            _ => Verdict::Proceed,
        })
    }
}

impl Ioctls for Uses {
    fn ioctl(
        &self,
        cx: &Cx<'_>,
        dir: &Object<'_>,
        cmd: u32,
        _input: &[u8],
        _out: &mut [u8],
    ) -> Result<Option<IoctlReply>> {
        if cmd != 1 {
            return Ok(None);
        }
        let held = dir.hold()?;
        assert!(held.id() == dir.id() && held.kind() == Kind::Directory);
        let sub = held.mkdir(cx, name("sub"), 0o750)?;
        let done = in_directory(cx, &held, &sub.vnode);
        if done.is_ok() {
            held.rmdir(cx, name("sub"))?;
        }
        done.map(|()| Some(IoctlReply::default()))
    }
}

fn name(text: &'static str) -> Name<'static> {
    Name::new(text.as_bytes()).expect("a name")
}

fn listed(cx: &Cx<'_>, dir: &dyn Vnode) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let mut cookie = 0;
    // One entry per call.
    loop {
        let before = names.len();
        dir.readdir(cx, cookie, &mut |entry| {
            if names.len() > before {
                return false;
            }
            names.push(String::from_utf8_lossy(entry.name.as_bytes()).into_owned());
            cookie = entry.cookie;
            true
        })?;
        if names.len() == before {
            names.sort();
            return Ok(names);
        }
    }
}

fn in_directory(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, sub: &Arc<dyn Vnode>) -> Result<()> {
    let (made, file) = sub.create(cx, name("file"), 0o640, OpenFlags::RDWR)?;
    assert_eq!((made.attr.perm(), made.attr.uid), (0o640, cx.uid));
    assert_eq!(file.write(cx, b"some words", 0)?, 10);
    let mut out = [0; 64];
    assert_eq!((file.read(cx, &mut out, 5)?, &out[..5]), (5, &b"words"[..]));
    file.fsync(cx, true)?;
    assert_eq!((file.seek(cx, 3, Whence::Hole)?, file.seek(cx, 3, Whence::Data)?), (10, 3));
    file.fallocate(cx, 3, 1, 2)?;
    let cut = SetAttr { size: Some(4), ..SetAttr::default() };
    assert_eq!(made.vnode.setattr(cx, &cut, Some(&*file))?.size, 4);
    assert_eq!(made.vnode.open(cx, OpenFlags::RDONLY)?.read(cx, &mut out, 0)?, 4);
    assert_eq!(&out[..4], b"s\0\0e");
    made.vnode.setxattr(cx, b"user.x", b"value", XattrFlags::default())?;
    let create = XattrFlags { create: true, ..XattrFlags::default() };
    assert_eq!(made.vnode.setxattr(cx, b"user.x", b"value", create), Err(Errno::EXIST));
    assert_eq!((made.vnode.getxattr(cx, b"user.x", &mut out)?, made.vnode.listxattr(cx, &mut [])?), (5, 7));
    made.vnode.removexattr(cx, b"user.x")?;
    let long = [b't'; 1000];
    assert_eq!(sub.symlink(cx, name("link"), &long)?.vnode.readlink(cx)?, long);
    sub.mknod(cx, name("pipe"), Kind::Fifo.mode_bits() | 0o644, 0)?;
    assert_eq!(dir.link(cx, name("second"), &made.vnode)?.attr.nlink, 2);
    let own = sub.mkdir(&cx.as_server(0, 0), name("own"), 0o777)?;
    assert_eq!((own.attr.uid, own.attr.perm()), (0, 0o777));
    assert_eq!(listed(cx, &**sub)?, ["file", "link", "own", "pipe"]);
    let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
    sub.rename(cx, name("pipe"), dir, name("second"), flags)?;
    assert_eq!(sub.lookup(cx, name("pipe"))?.map(|entry| entry.vnode.id()), Some(made.vnode.id()));
    assert!(sub.lookup(cx, name("none"))?.is_none());
    sub.fsync(cx, false)?;
    assert_eq!(dir.rmdir(cx, name("sub")), Err(Errno::NOTEMPTY));
    assert_eq!(sub.statfs(cx).map(drop), Err(Errno::OPNOTSUPP));
    sub.tmpfile(cx, 0o600, OpenFlags::RDWR)?;
    for at in ["file", "link", "pipe"] {
        sub.unlink(cx, name(at))?;
    }
    dir.unlink(cx, name("second"))?;
    sub.rmdir(cx, name("own"))?;
    // An unlinked file that is held remains usable.
    assert_eq!(file.read(cx, &mut out, 0)?, 4);
    Ok(())
}
