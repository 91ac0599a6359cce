//! Changes of an object while another operation moves it to another branch, or copies it up. One of
//! the two operations is paused before its k-th lower operation, for k = 1, 2, 3, ..., until the
//! other one has ended or waits for it. Whatever the order, both succeed, and the change is visible
//! afterwards, also to a new mount.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::layer_ops::{CX, at, attr, find, list, mkdir, name, read, write};
use memfs::{Faults, MemFs, MemOptions};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use unionfs::{Branch, Mode, Options, Unionfs};
use vnode::{Errno, Layer, OpenFile, OpenFlags, RenameFlags, Result, SetAttr, SetTime, Time, Vnode, XattrFlags};

/// How long the paused operation waits for the other one.
const PATIENCE: Duration = Duration::from_millis(3);
const CONTENT: &[u8] = b"hello world";
/// Content of a file that is large enough for a metacopy.
const LARGE: [u8; 8192] = [b'x'; 8192];
const MAX_STEPS: u64 = 500;

/// What is common to both operations.
#[derive(Clone)]
struct Scene {
    union: Arc<Unionfs>,
    /// The object that is changed.
    object: Arc<dyn Vnode>,
    /// The object, open for writing, if it is a file on a read-write branch.
    open: Option<Arc<dyn OpenFile>>,
}

/// An operation that gives the object another lower object.
struct Move {
    modes: &'static [Mode],
    /// Files on each branch, with their content; directories end in `/`.
    files: &'static [(usize, &'static str, &'static [u8])],
    /// Other names of files on a branch.
    links: &'static [(usize, &'static str, &'static str)],
    /// The object, before and after the move.
    path: &'static str,
    new_path: &'static str,
    prepare: fn(&Scene),
    run: fn(&Scene) -> Result<()>,
}

/// A change, and how to check that it is visible.
struct Change {
    name: &'static str,
    run: fn(&Scene) -> Result<()>,
    is_visible: fn(&dyn Layer, &Arc<dyn Vnode>) -> bool,
}

fn set(scene: &Scene, set: &SetAttr) -> Result<()> {
    scene.object.setattr(&CX, set, None).map(drop)
}

fn has_xattr(object: &Arc<dyn Vnode>, name: &[u8]) -> bool {
    object.getxattr(&CX, name, &mut []).is_ok()
}

fn content(file: &Arc<dyn Vnode>) -> Vec<u8> {
    let mut out = vec![0; 10_000];
    let got = file.open(&CX, OpenFlags::RDONLY).unwrap().read(&CX, &mut out, 0).unwrap();
    out.truncate(got);
    out
}

fn rename(union: &Unionfs, from: (&str, &str), to: (&str, &str)) -> Result<()> {
    at(union, from.0).rename(&CX, name(from.1), &at(union, to.0), name(to.1), RenameFlags::default())
}

/// Changes of attributes, for all kinds of objects.
const ATTRIBUTES: [Change; 4] = [
    Change {
        name: "chmod",
        run: |scene| set(scene, &SetAttr { mode: Some(0o711), ..SetAttr::default() }),
        is_visible: |_, object| object.getattr(&CX).unwrap().perm() == 0o711,
    },
    Change {
        name: "utimensat",
        run: |scene| set(scene, &SetAttr { atime: Some(SetTime::At(Time { sec: 7, nsec: 7 })), ..SetAttr::default() }),
        is_visible: |_, object| object.getattr(&CX).unwrap().atime == Time { sec: 7, nsec: 7 },
    },
    Change {
        name: "setxattr",
        run: |scene| scene.object.setxattr(&CX, b"user.new", b"v", XattrFlags::default()),
        is_visible: |_, object| has_xattr(object, b"user.new"),
    },
    Change {
        name: "removexattr",
        run: |scene| scene.object.removexattr(&CX, b"user.old"),
        is_visible: |_, object| !has_xattr(object, b"user.old"),
    },
];

/// Changes of files by their vnode.
const FILES: [Change; 6] = [
    Change {
        name: "truncate",
        run: |scene| set(scene, &SetAttr { size: Some(2), ..SetAttr::default() }),
        is_visible: |_, file| file.getattr(&CX).unwrap().size == 2,
    },
    Change {
        name: "open with O_TRUNC",
        run: |scene| {
            let open = scene.object.open(&CX, OpenFlags(OpenFlags::RDWR.0 | 0o1000))?;
            open.write(&CX, b"new", 0).map(drop)
        },
        is_visible: |_, file| content(file) == b"new",
    },
    Change {
        name: "open and write",
        run: |scene| scene.object.open(&CX, OpenFlags::RDWR)?.write(&CX, b"HELLO", 0).map(drop),
        is_visible: |_, file| content(file).starts_with(b"HELLO"),
    },
    Change {
        name: "link",
        run: |scene| at(&*scene.union, "d").link(&CX, name("other"), &scene.object).map(drop),
        is_visible: |layer, file| attr(layer, "d/other").ino == file.getattr(&CX).unwrap().ino,
    },
    Change {
        name: "link in another directory",
        run: |scene| at(&*scene.union, "e").link(&CX, name("other"), &scene.object).map(drop),
        is_visible: |layer, file| attr(layer, "e/other").ino == file.getattr(&CX).unwrap().ino,
    },
    Change {
        name: "link on the leftmost branch",
        run: |scene| at(&*scene.union, "t").link(&CX, name("other"), &scene.object).map(drop),
        is_visible: |layer, file| attr(layer, "t/other").ino == file.getattr(&CX).unwrap().ino,
    },
];

/// Changes through a file that was open before the move began.
const OPEN_FILES: [Change; 5] = [
    Change {
        name: "ftruncate",
        run: |scene| {
            let size = SetAttr { size: Some(2), ..SetAttr::default() };
            scene.object.setattr(&CX, &size, scene.open.as_deref()).map(drop)
        },
        is_visible: |_, file| file.getattr(&CX).unwrap().size == 2,
    },
    Change {
        name: "write",
        run: |scene| scene.open.as_ref().unwrap().write(&CX, b"HELLO", 0).map(drop),
        is_visible: |_, file| content(file).starts_with(b"HELLO"),
    },
    Change {
        name: "fallocate",
        run: |scene| scene.open.as_ref().unwrap().fallocate(&CX, 0, 0, 100),
        is_visible: |_, file| file.getattr(&CX).unwrap().size == 100,
    },
    Change {
        name: "copy_file_range",
        run: |scene| {
            let source = at(&*scene.union, "d/source").open(&CX, OpenFlags::RDONLY)?;
            scene.open.as_ref().unwrap().copy_from(&CX, 0, &*source, 0, 6).map(drop)
        },
        is_visible: |_, file| content(file).starts_with(b"source"),
    },
    Change {
        name: "reflink",
        run: |scene| {
            let source = at(&*scene.union, "d/source").open(&CX, OpenFlags::RDONLY)?;
            match scene.open.as_ref().unwrap().reflink_from(&CX, &*source) {
                // The file has left the file system of the source.
                Err(Errno::XDEV) => scene.open.as_ref().unwrap().write(&CX, b"source", 0).map(drop),
                other => other,
            }
        },
        is_visible: |_, file| content(file).starts_with(b"source"),
    },
];

fn mount(layers: &[Arc<MemFs>], modes: &[Mode]) -> Arc<Unionfs> {
    let branch = |(at, (layer, &mode)): (usize, (&Arc<MemFs>, &Mode))| Branch {
        layer: layer.clone(),
        path: format!("/{at}").into(),
        mode,
    };
    Unionfs::new(layers.iter().zip(modes).enumerate().map(branch).collect(), Options::default()).unwrap()
}

impl Move {
    fn layers(&self, faults: &Faults) -> Vec<Arc<MemFs>> {
        let options = MemOptions { reflink: true, ..MemOptions::default() };
        let layers: Vec<_> = self.modes.iter().map(|_| MemFs::with(options, faults)).collect();
        for &(branch, path, bytes) in self.files {
            let layer = &*layers[branch];
            let names: Vec<&str> = path.split('/').collect();
            for end in 1..names.len() {
                if find(layer, &names[..end].join("/")).is_none() {
                    mkdir(layer, &names[..end].join("/"));
                }
            }
            if !path.ends_with('/') {
                write(layer, path, bytes);
            }
        }
        for &(branch, path, other) in self.links {
            let (dir, file) = common::layer_ops::split(other);
            at(&*layers[branch], dir).link(&CX, name(file), &at(&*layers[branch], path)).unwrap();
        }
        for layer in &layers {
            if let Some(object) = find(&**layer, self.path) {
                object.setxattr(&CX, b"user.old", b"v", XattrFlags::default()).unwrap();
            }
        }
        layers
    }

    /// Pauses one operation before its k-th lower operation. Returns whether it was reached.
    fn run_at(&self, k: u64, change: &Change, pause_change: bool) -> std::result::Result<bool, String> {
        let faults = Faults::new();
        let layers = self.layers(&faults);
        let union = mount(&layers, self.modes);
        let object = at(&*union, self.path);
        let mut scene = Scene { union, object, open: None };
        (self.prepare)(&scene);
        if OPEN_FILES.iter().any(|one| one.name == change.name) {
            scene.open = Some(scene.object.open(&CX, OpenFlags::RDWR).unwrap());
        }
        let (paused, other) = if pause_change { (change.run, self.run) } else { (self.run, change.run) };
        let (sender, receiver) = mpsc::channel();
        let inner = scene.clone();
        faults.call_at(k, move || {
            let (ended, end) = mpsc::channel();
            std::thread::spawn(move || {
                let done = other(&inner);
                drop(inner);
                let _ = ended.send(());
                sender.send(done)
            });
            let _ = end.recv_timeout(PATIENCE);
        });
        let first = paused(&scene);
        if faults.forget_call() {
            return Ok(false);
        }
        let second = receiver.recv().unwrap();
        faults.reset();
        first.map_err(|errno| format!("the paused operation fails: {errno:?}"))?;
        second.map_err(|errno| format!("the other operation fails: {errno:?}"))?;
        if !(change.is_visible)(&*scene.union, &scene.object) {
            return Err("the change is lost".into());
        }
        let found = at(&*scene.union, self.new_path);
        if !(change.is_visible)(&*scene.union, &found) || found.id() != scene.object.id() {
            return Err("the new name leads to another object".into());
        }
        let number = scene.object.id();
        drop((scene, found));
        let union = mount(&layers, self.modes);
        let found = at(&*union, self.new_path);
        if !(change.is_visible)(&*union, &found) || found.id() != number {
            return Err("the change is lost after a remount".into());
        }
        Ok(true)
    }

    fn every_step<'a>(&self, changes: impl Iterator<Item = &'a Change>) {
        let mut failures = Vec::new();
        for change in changes {
            for pause_change in [false, true] {
                for k in 1.. {
                    assert!(k < MAX_STEPS, "{}", change.name);
                    match self.run_at(k, change, pause_change) {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(e) => {
                            let paused = if pause_change { "this" } else { "the move" };
                            failures.push(format!("{}, {paused} paused at step {k}: {e}", change.name));
                        }
                    }
                }
            }
        }
        assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    }
}

const RW_RW: &[Mode] = &[Mode::ReadWrite, Mode::ReadWrite];
const RW_RW_RO: &[Mode] = &[Mode::ReadWrite, Mode::ReadWrite, Mode::ReadOnly];

/// A rename into a directory of the leftmost branch, which moves the file there.
const RENAME: Move = Move {
    modes: RW_RW,
    files: &[(0, "t/", b""), (1, "d/f", CONTENT), (1, "d/source", b"source"), (1, "e/", b"")],
    links: &[],
    path: "d/f",
    new_path: "t/f",
    prepare: |_| {},
    run: |scene| rename(&scene.union, ("d", "f"), ("t", "f")),
};

#[test]
fn a_rename_to_another_branch_loses_no_change() {
    RENAME.every_step(ATTRIBUTES.iter().chain(&FILES).chain(&OPEN_FILES));
}

#[test]
fn a_rename_of_a_file_with_several_names_loses_no_change() {
    let several = Move { links: &[(1, "d/f", "d/g")], ..RENAME };
    several.every_step(ATTRIBUTES.iter().chain(&FILES).chain(&OPEN_FILES));
}

#[test]
fn a_link_on_another_branch_loses_no_change() {
    let link = Move {
        new_path: "t/g",
        run: |scene| at(&*scene.union, "t").link(&CX, name("g"), &scene.object).map(drop),
        ..RENAME
    };
    link.every_step(ATTRIBUTES.iter().chain(&FILES).chain(&OPEN_FILES));
}

#[test]
fn an_exchange_loses_no_change() {
    let exchange = Move {
        files: &[(0, "t/f", b"t"), (1, "d/f", CONTENT), (1, "d/source", b"source"), (1, "e/", b"")],
        run: |scene| {
            let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
            at(&*scene.union, "d").rename(&CX, name("f"), &at(&*scene.union, "t"), name("f"), flags)
        },
        ..RENAME
    };
    exchange.every_step(ATTRIBUTES.iter().chain(&FILES).chain(&OPEN_FILES));
}

/// The first open for writing of a file on a read-only branch.
const COPY_UP: Move = Move {
    modes: RW_RW_RO,
    files: &[(0, "t/", b""), (1, "d/", b""), (1, "e/", b""), (2, "d/f", CONTENT)],
    links: &[],
    path: "d/f",
    new_path: "d/f",
    prepare: |_| {},
    run: |scene| scene.object.open(&CX, OpenFlags::RDWR).map(drop),
};

#[test]
fn a_copy_up_loses_no_change() {
    COPY_UP.every_step(ATTRIBUTES.iter().chain(&FILES));
}

#[test]
fn a_copy_up_of_a_file_with_several_names_loses_no_change() {
    let several = Move { links: &[(2, "d/f", "d/g")], ..COPY_UP };
    several.every_step(ATTRIBUTES.iter().chain(&FILES));
}

#[test]
fn a_rename_of_a_file_of_a_read_only_branch_loses_no_change() {
    let rename = Move { new_path: "t/f", run: RENAME.run, ..COPY_UP };
    rename.every_step(ATTRIBUTES.iter().chain(&FILES));
}

/// A change of attributes that copies only these up.
const METACOPY: Move = Move {
    files: &[(0, "t/", b""), (1, "d/", b""), (1, "e/", b""), (2, "d/f", &LARGE)],
    run: |scene| scene.object.setxattr(&CX, b"user.meta", b"v", XattrFlags::default()),
    ..COPY_UP
};

#[test]
fn the_creation_of_a_metacopy_loses_no_change() {
    METACOPY.every_step(ATTRIBUTES.iter().chain(&FILES));
}

#[test]
fn a_copy_up_of_a_metacopied_file_loses_no_change() {
    let copy = Move {
        prepare: |scene| scene.object.setxattr(&CX, b"user.meta", b"v", XattrFlags::default()).unwrap(),
        run: COPY_UP.run,
        ..METACOPY
    };
    copy.every_step(ATTRIBUTES.iter().chain(&FILES));
}

/// A directory gets a part on a branch further left, with its attributes.
#[test]
fn a_copy_of_a_directory_loses_no_change() {
    let copy = Move {
        modes: RW_RW,
        files: &[(0, "t/x", b"x"), (1, "d/e/", b"")],
        links: &[],
        path: "d",
        new_path: "d",
        prepare: |_| {},
        run: |scene| rename(&scene.union, ("t", "x"), ("d/e", "x")),
    };
    copy.every_step(ATTRIBUTES.iter());
    let union = mount(&copy.layers(&Faults::new()), RW_RW);
    rename(&union, ("t", "x"), ("d/e", "x")).unwrap();
    assert_eq!((list(&*union, "d/e"), read(&*union, "d/e/x")), (vec!["x".to_owned()], b"x".to_vec()));
}
