//! The effect of operations on the branches, their cost in lower operations, and the options of the
//! union.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::layer_ops::{CX, at, find, list, mkdir, name, read, write};
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Op, Plan};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use unionfs::{Branch, BuildError, Copyup, Delete, Mode, Numbers, Options, Unionfs};
use vnode::{Call, Cx, Errno, Kind, Layer, MAY_BLOCK, OpenFlags, Processes, RenameFlags, SetAttr};

/// Creates a redirect in a directory of a branch, with the attributes that the server gives it.
fn create_redirect(layer: &dyn Layer, dir: &str, content: &[u8]) {
    let path = format!("{dir}/.wh..wh.redirect");
    write(layer, &path, content);
    let read_only = SetAttr { mode: Some(0o444), ..SetAttr::default() };
    at(layer, &path).setattr(&CX, &read_only, None).unwrap();
}

struct TestUnion {
    faults: Faults,
    branches: Vec<(Arc<MemFs>, Mode)>,
}

impl TestUnion {
    fn new(modes: &[Mode]) -> Self {
        let faults = Faults::new();
        let branches = modes.iter().map(|&mode| (MemFs::with(MemOptions::default(), &faults), mode)).collect();
        Self { faults, branches }
    }

    /// A read-write branch over a read-only one with `d/f` and `d/sub/x`.
    fn two_branches() -> Self {
        let test = Self::new(&[Mode::ReadWrite, Mode::ReadOnly]);
        let lower = test.branch(1);
        mkdir(lower, "d");
        mkdir(lower, "d/sub");
        write(lower, "d/f", b"lower");
        write(lower, "d/sub/x", b"x");
        test
    }

    fn branch(&self, index: usize) -> &MemFs {
        &self.branches[index].0
    }

    fn union(&self, options: Options) -> Arc<Unionfs> {
        let branch = |(index, (layer, mode)): (usize, &(Arc<MemFs>, Mode))| Branch {
            layer: layer.clone(),
            path: format!("/b{index}").into(),
            mode: *mode,
        };
        Unionfs::new(self.branches.iter().enumerate().map(branch).collect(), options).unwrap()
    }
}

#[test]
fn whiteouts_and_opaque_marks_are_created_and_removed() {
    let test = TestUnion::two_branches();
    let union = test.union(Options::default());
    at(&*union, "d").unlink(&CX, name("f")).unwrap();
    assert_eq!(list(test.branch(0), "d"), [".wh.f"]);
    assert_eq!(list(&*union, "d"), ["sub"]);
    assert_eq!(at(&*union, "d/sub").unlink(&CX, name("x")), Ok(()));
    at(&*union, "d").rmdir(&CX, name("sub")).unwrap();
    assert_eq!(list(test.branch(0), "d"), [".wh.f", ".wh.sub"]);
    mkdir(&*union, "d/sub");
    assert_eq!(list(test.branch(0), "d"), [".wh.f", "sub"]);
    assert_eq!(list(test.branch(0), "d/sub"), [".wh..wh..opq"]);
    assert_eq!(list(&*union, "d/sub"), [""; 0]);
    write(&*union, "d/f", b"new");
    assert_eq!(list(test.branch(0), "d"), ["f", "sub"]);
    assert_eq!(read(test.branch(1), "d/f"), b"lower");
}

/// Whiteouts share one inode, so a branch without free inodes can still hide names.
#[test]
fn whiteouts_are_hard_links_and_need_no_free_inode() {
    for tmpfile in [true, false] {
        let faults = Faults::new();
        let options = MemOptions { tmpfile, ..MemOptions::default() };
        let branches = [Mode::ReadWrite, Mode::ReadOnly].map(|mode| (MemFs::with(options, &faults), mode)).into();
        let test = TestUnion { faults, branches };
        for file in ["a", "b", "c", "d"] {
            write(test.branch(1), file, b"lower");
        }
        mkdir(test.branch(1), "dir");
        let union = test.union(Options::default());
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        at(&*union, "a").setattr(&CX, &mode, None).unwrap();
        at(&*union, "dir").setattr(&CX, &mode, None).unwrap();
        let full = Plan { count: Count::Only(Op::Mknod), at: 1, fault: Fault::Errors(Errno::NOSPC) };
        test.faults.arm(full);
        if !tmpfile {
            assert_eq!(union.root().unlink(&CX, name("a")), Err(Errno::NOSPC));
            assert_eq!(read(&*union, "a"), b"lower");
            continue;
        }
        // Remove a copy, two read-only files and a directory. Later, `d` is removed when no
        // whiteout is left that could be linked.
        for file in ["a", "b", "c"] {
            union.root().unlink(&CX, name(file)).unwrap();
        }
        union.root().rmdir(&CX, name("dir")).unwrap();
        assert_eq!(list(&*union, ""), ["d"]);
        assert_eq!(at(test.branch(0), ".wh.a").getattr(&CX).unwrap().nlink, 4);
        for file in ["a", "b", "c", "dir"] {
            write(&*union, file, b"new");
        }
        union.root().unlink(&CX, name("d")).unwrap();
        assert_eq!(at(test.branch(0), ".wh.d").getattr(&CX).unwrap().nlink, 1);
        drop(union);
        test.faults.disarm();
        assert_eq!(list(&*test.union(Options::default()), ""), ["a", "b", "c", "dir"]);
    }
}

/// The space that is reserved for removals on a full branch is freed at unmount and has no name.
#[test]
fn the_space_reserve_is_invisible_and_freed_at_unmount() {
    let faults = Faults::new();
    let small = MemOptions { space: 8 << 20, ..MemOptions::default() };
    let test = TestUnion { branches: vec![(MemFs::with(small, &faults), Mode::ReadWrite)], faults };
    let free = || test.branch(0).root().statfs(&CX).unwrap().bfree;
    drop(test.union(Options::default()));
    let (before, objects) = (free(), test.branch(0).objects());
    let union = test.union(Options::default());
    assert_eq!(before - free(), 8, "32 KiB of 8 MiB");
    assert_eq!(list(test.branch(0), ""), [".wh..wh.ident"]);
    drop(union);
    assert_eq!((free(), test.branch(0).objects()), (before, objects));
}

#[test]
fn delete_all_removes_the_file_from_every_writable_branch() {
    let test = TestUnion::new(&[Mode::ReadWrite, Mode::ReadWrite, Mode::ReadOnly]);
    for branch in 0..3 {
        write(test.branch(branch), "f", b"f");
    }
    write(test.branch(1), "g", b"g");
    let union = test.union(Options { delete: Delete::All, ..Options::default() });
    union.root().unlink(&CX, name("f")).unwrap();
    union.root().unlink(&CX, name("g")).unwrap();
    assert_eq!(list(test.branch(0), ""), [".wh..wh.ident", ".wh.f"]);
    assert_eq!(list(test.branch(1), ""), [""; 0]);
    assert_eq!(list(test.branch(2), ""), ["f"]);
    assert_eq!(list(&*union, ""), [""; 0]);
}

#[test]
fn renaming_a_lower_directory_creates_a_redirect_and_copies_nothing() {
    let test = TestUnion::two_branches();
    let number;
    {
        let union = test.union(Options::default());
        number = at(&*union, "d").id();
        union.root().rename(&CX, name("d"), &union.root(), name("e"), RenameFlags::default()).unwrap();
        assert_eq!(list(test.branch(0), "e"), [".wh..wh.redirect"]);
        assert_eq!(read(test.branch(0), "e/.wh..wh.redirect"), b"strata-redirect 1\n/d\n");
        assert!(find(&*union, "d").is_none());
    }
    let union = test.union(Options::default());
    assert_eq!(read(&*union, "e/sub/x"), b"x");
    assert_eq!(at(&*union, "e").id(), number);
    assert!(find(&*union, "d").is_none());
}

#[test]
fn a_rename_replaces_a_damaged_redirect() {
    let test = TestUnion::two_branches();
    let upper = test.branch(0);
    // The state after a union was killed while it wrote a redirect in place.
    write(upper, ".wh..wh.moved", b"");
    mkdir(upper, "d");
    create_redirect(upper, "d", b"");
    let union = test.union(Options::default());
    assert_eq!(list(&*union, "d"), ["f", "sub"]);
    union.root().rename(&CX, name("d"), &union.root(), name("e"), RenameFlags::default()).unwrap();
    assert_eq!(list(&*union, "e"), ["f", "sub"]);
    assert_eq!(read(upper, "e/.wh..wh.redirect"), b"strata-redirect 1\n/d\n");
}

#[test]
fn malformed_and_dangling_redirects_merge_nothing() {
    let test = TestUnion::two_branches();
    let upper = test.branch(0);
    write(upper, ".wh..wh.moved", b"");
    for (dir, target) in [("up", "/"), ("file", "/d/f"), ("gone", "/nowhere"), ("d", "/d/sub"), ("junk", "")] {
        mkdir(upper, dir);
        create_redirect(upper, dir, format!("strata-redirect 1\n{target}\n").as_bytes());
    }
    mkdir(upper, "odd");
    mkdir(upper, "odd/.wh..wh.redirect");
    mkdir(upper, "odd/.wh.hidden");
    let union = test.union(Options::default());
    for dir in ["up", "file", "gone", "junk", "odd"] {
        assert_eq!(list(&*union, dir), [""; 0], "{dir}");
    }
    assert_eq!(list(&*union, "d"), ["x"]);
}

/// Returns the number of warnings that `run` logs on this thread.
fn warnings(run: impl FnOnce()) -> usize {
    struct Counter(AtomicUsize);
    impl tracing::Subscriber for Counter {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() == tracing::Level::WARN
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }
    let counter = Arc::new(Counter(AtomicUsize::new(0)));
    tracing::subscriber::with_default(counter.clone(), run);
    counter.0.load(Ordering::Relaxed)
}

#[test]
fn each_bad_redirect_is_logged_once() {
    let test = TestUnion::two_branches();
    let upper = test.branch(0);
    write(upper, ".wh..wh.moved", b"");
    for (dir, content) in [("junk", "strata-redirect 9\n"), ("gone", "strata-redirect 1\n/nowhere\n")] {
        mkdir(upper, dir);
        create_redirect(upper, dir, content.as_bytes());
    }
    let union = test.union(Options::default());
    let look = || {
        for dir in ["junk", "gone"].repeat(3) {
            assert_eq!(list(&*union, dir), [""; 0]);
        }
    };
    assert_eq!(warnings(look), 2);
    assert_eq!(warnings(look), 0);
}

/// Creates a foreign object at a reserved name.
fn create_foreign(branch: &MemFs, own: &str, what: Kind) {
    let root = branch.root();
    match what {
        Kind::Symlink => drop(root.symlink(&CX, name(own), b"victim").unwrap()),
        Kind::Directory => {
            root.mkdir(&CX, name(own), 0o755).unwrap();
            write(branch, &format!("{own}/kept"), b"");
        }
        kind => drop(root.mknod(&CX, name(own), kind.mode_bits() | 0o644, 0).unwrap()),
    }
}

#[test]
fn foreign_objects_at_reserved_names_are_moved_aside() {
    const DIRECTORIES: [&str; 2] = [".wh..wh.work", ".wh..wh.links"];
    const FILES: [&str; 3] = [".wh..wh.ident", ".wh..wh.ident.new", ".wh..wh.moved"];
    let intruders = DIRECTORIES
        .iter()
        .flat_map(|own| [Kind::Symlink, Kind::Fifo, Kind::Regular].map(|kind| (*own, kind)))
        .chain(FILES.iter().flat_map(|own| [Kind::Symlink, Kind::Fifo, Kind::Directory].map(|kind| (*own, kind))));
    for (own, kind) in intruders {
        let test = TestUnion::two_branches();
        let lower = test.branch(1);
        lower.root().link(&CX, name("second"), &at(lower, "d/f")).unwrap();
        for index in 0..2 {
            mkdir(test.branch(index), "victim");
            write(test.branch(index), "victim/own", b"");
            create_foreign(test.branch(index), own, kind);
        }
        let mut number = None;
        for _ in 0..2 {
            let union = test.union(Options::default());
            // Copy up a file with two names, together with its directory.
            let open = at(&*union, "d/f").open(&CX, OpenFlags::RDWR).unwrap();
            open.write(&CX, b"upper", 0).unwrap();
            assert_eq!(read(&*union, "second"), b"upper", "{own} {kind:?}");
            let id = at(&*union, "second").id();
            assert_eq!(*number.get_or_insert(id), id, "{own} {kind:?}: a number changed");
        }
        assert_eq!(list(test.branch(0), "victim"), ["own"], "{own} {kind:?}");
        let aside: Vec<String> =
            list(test.branch(0), "").into_iter().filter(|name| name.starts_with(".wh..wh.aside")).collect();
        if [".wh..wh.moved", ".wh..wh.ident.new"].contains(&own) {
            assert_eq!(aside, [""; 0], "only the existence of the mark matters; no log is rewritten");
        } else {
            assert_eq!(aside, [".wh..wh.aside0"], "{own} {kind:?}");
            assert_eq!(at(test.branch(0), ".wh..wh.aside0").kind(), kind);
        }
        assert_eq!(at(lower, own).kind(), kind, "a read-only branch was changed");
    }
}

#[test]
fn removed_internal_directories_are_recreated() {
    for replaced in [false, true] {
        let test = TestUnion::two_branches();
        let lower = test.branch(1);
        for dir in ["e", "g"] {
            mkdir(lower, dir);
            write(lower, &format!("{dir}/f"), b"lower");
            lower.root().link(&CX, name(&format!("second-{dir}")), &at(lower, &format!("{dir}/f"))).unwrap();
        }
        let union = test.union(Options::default());
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        at(&*union, "e/f").setattr(&CX, &set, None).unwrap();
        let root = test.branch(0).root();
        let links = list(test.branch(0), ".wh..wh.links");
        assert_eq!(links.len(), 1);
        at(test.branch(0), ".wh..wh.links").unlink(&CX, name(&links[0])).unwrap();
        for own in [".wh..wh.work", ".wh..wh.links"] {
            root.rmdir(&CX, name(own)).unwrap();
            if replaced {
                root.symlink(&CX, name(own), b"e").unwrap();
            }
        }
        at(&*union, "g/f").setattr(&CX, &set, None).unwrap();
        assert_eq!(at(&*union, "second-g").getattr(&CX).unwrap().perm(), 0o600);
        assert_eq!(list(test.branch(0), "e"), ["f"]);
        drop(union);
        assert!(find(test.branch(0), ".wh..wh.work").is_none(), "an empty work directory is removed");
    }
}

#[test]
fn reserved_names_are_refused() {
    let test = TestUnion::two_branches();
    let union = test.union(Options::default());
    let (root, hidden) = (union.root(), name(".wh.f"));
    assert!(root.lookup(&CX, name(".wh..wh.ident")).unwrap().is_none());
    assert_eq!(root.create(&CX, hidden, 0o644, OpenFlags::RDWR).unwrap_err(), Errno::PERM);
    assert_eq!(root.mkdir(&CX, hidden, 0o755).unwrap_err(), Errno::PERM);
    assert_eq!(root.symlink(&CX, hidden, b"t").unwrap_err(), Errno::PERM);
    assert_eq!(root.link(&CX, hidden, &at(&*union, "d/f")).unwrap_err(), Errno::PERM);
    assert_eq!(root.rename(&CX, name("d"), &root, hidden, RenameFlags::default()).unwrap_err(), Errno::PERM);
    assert_eq!(root.unlink(&CX, name(".wh..wh.ident")).unwrap_err(), Errno::NOENT);
}

#[test]
fn whiteouts_work_for_names_of_every_length() {
    let test = TestUnion::two_branches();
    let long = "n".repeat(255);
    for text in [long.as_str(), &long[..252], &long[..251], "__dir_opaque"] {
        write(test.branch(1), &format!("d/{text}"), b"");
    }
    let union = test.union(Options::default());
    for text in [long.as_str(), &long[..252], &long[..251], "__dir_opaque"] {
        at(&*union, "d").unlink(&CX, name(text)).unwrap();
        assert!(at(&*union, "d").lookup(&CX, name(text)).unwrap().is_none());
    }
    assert_eq!(list(&*union, "d"), ["f", "sub"]);
}

#[test]
fn removing_a_missing_xattr_copies_nothing_up() {
    let test = TestUnion::two_branches();
    let union = test.union(Options::default());
    let file = at(&*union, "d/f");
    assert_eq!(file.removexattr(&CX, b"user.none"), Err(Errno::NODATA));
    assert_eq!(file.removexattr(&CX, b"system.posix_acl_access"), Ok(()));
    assert_eq!(at(&*union, "d").removexattr(&CX, b"system.posix_acl_default"), Ok(()));
    assert!(find(test.branch(0), "d").is_none());
}

#[test]
fn the_copyup_option_sets_owner_and_mode_of_copies() {
    #[derive(Debug)]
    struct One;
    impl Processes for One {
        fn groups(&self, _pid: u32) -> Option<Vec<u32>> {
            None
        }
        fn umask(&self, pid: u32) -> Option<u32> {
            (pid == 77).then_some(0o137)
        }
        fn session(&self, _pid: u32) -> Option<(u32, u64)> {
            None
        }
        fn executable(&self, _pid: u32) -> Option<PathBuf> {
            None
        }
        fn cgroup(&self, _pid: u32) -> Option<Vec<u8>> {
            None
        }
    }
    let change = |copyup, pid, umask| {
        let test = TestUnion::two_branches();
        let lower = SetAttr { uid: Some(7), gid: Some(8), mode: Some(0o640), ..SetAttr::default() };
        at(test.branch(1), "d/f").setattr(&CX, &lower, None).unwrap();
        let union = test.union(Options { copyup, ..Options::default() });
        static NOT_CANCELLED: AtomicBool = AtomicBool::new(false);
        let call = Call::new(&One);
        let user = Cx::new(1000, 100, pid, umask, true, &NOT_CANCELLED).with_call(&call);
        at(&*union, "d/f").open(&user, OpenFlags::RDWR).unwrap();
        let attr = at(test.branch(0), "d/f").getattr(&CX).unwrap();
        (attr.uid, attr.gid, attr.perm(), at(test.branch(0), "d").getattr(&CX).unwrap().perm())
    };
    // An OPEN request carries no umask, so the union uses that of the process, and the request's
    // value only if the process is unknown.
    assert_eq!(change(Copyup::Preserve, 77, 0), (7, 8, 0o640, 0o755));
    assert_eq!(change(Copyup::CurrentUser, 77, 0), (1000, 100, 0o640, 0o640));
    assert_eq!(change(Copyup::CurrentUser, 0, 0o027), (1000, 100, 0o640, 0o750));
    assert_eq!(change(Copyup::Mounter { uid: 5, gid: 6, mode: 0o600 }, 77, 0), (5, 6, 0o600, 0o700));
}

#[test]
fn copy_up_that_must_not_block_or_is_cancelled_changes_nothing() {
    let test = TestUnion::two_branches();
    let union = test.union(Options::default());
    static NOT_CANCELLED: AtomicBool = AtomicBool::new(false);
    let nonblocking = Cx::new(0, 0, 0, 0, false, &NOT_CANCELLED);
    assert_eq!(at(&*union, "d/f").open(&nonblocking, OpenFlags::RDWR).unwrap_err(), MAY_BLOCK);
    assert_eq!(list(test.branch(0), ""), [".wh..wh.ident"]);
    static CANCELLED: AtomicBool = AtomicBool::new(true);
    let cancelled = Cx::new(0, 0, 0, 0, true, &CANCELLED);
    assert_eq!(at(&*union, "d/f").open(&cancelled, OpenFlags::RDWR).unwrap_err(), Errno::INTR);
    assert_eq!(read(&*union, "d/f"), b"lower");
}

#[test]
fn operations_in_a_single_branch_directory_cost_at_most_two_lower_operations() {
    let test = TestUnion::two_branches();
    let union = test.union(Options::default());
    let dir = union.root().mkdir(&CX, name("new"), 0o755).unwrap().vnode;
    let cost = |run: &mut dyn FnMut()| {
        test.faults.reset();
        run();
        test.faults.operations()
    };
    assert_eq!(cost(&mut || drop(dir.lookup(&CX, name("f")).unwrap())), 1);
    assert_eq!(cost(&mut || drop(dir.create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap())), 1);
    assert_eq!(cost(&mut || drop(dir.lookup(&CX, name("f")).unwrap())), 1);
    assert_eq!(cost(&mut || dir.rename(&CX, name("f"), &dir, name("g"), RenameFlags::default()).unwrap()), 2);
    assert_eq!(cost(&mut || dir.unlink(&CX, name("g")).unwrap()), 1);
    assert_eq!(cost(&mut || drop(union.root().lookup(&CX, name("none")).unwrap())), 3, "entry, whiteout, entry");
    assert_eq!(cost(&mut || drop(union.root().create(&CX, name("none"), 0o644, OpenFlags::RDWR).unwrap())), 1);
}

#[test]
fn changes_of_objects_only_on_the_leftmost_branch_need_no_whiteouts() {
    let test = TestUnion::two_branches();
    let union = test.union(Options::default());
    let root = union.root();
    root.create(&CX, name("new"), 0o644, OpenFlags::RDWR).unwrap();
    root.mkdir(&CX, name("newdir"), 0o755).unwrap();
    let cost = |run: &mut dyn FnMut()| {
        test.faults.reset();
        run();
        test.faults.operations()
    };
    let rename = &mut || root.rename(&CX, name("new"), &root, name("moved"), RenameFlags::default()).unwrap();
    assert_eq!(cost(rename), 5, "both names on the lower branch, a whiteout of the new one; lookup, rename");
    assert_eq!(cost(&mut || root.unlink(&CX, name("moved")).unwrap()), 2, "lookup on the lower branch; unlink");
    assert_eq!(
        cost(&mut || root.rmdir(&CX, name("newdir")).unwrap()),
        5,
        "lookup: entry, whiteout, entry; lookup on the lower branch; rmdir"
    );
    assert_eq!(list(test.branch(0), ""), [".wh..wh.ident"]);
}

#[test]
fn unused_vnodes_are_freed_even_in_very_deep_trees() {
    let test = TestUnion::two_branches();
    let union = test.union(Options::default());
    let weak = Arc::downgrade(&at(&*union, "d/sub/x"));
    assert!(weak.upgrade().is_none());
    let deep = (0..5000).fold(union.root(), |dir, _| dir.mkdir(&CX, name("d1"), 0o755).unwrap().vnode);
    drop(deep);
}

#[test]
fn a_branch_that_returns_erofs_is_treated_as_read_only() {
    let test = TestUnion::new(&[Mode::ReadWrite, Mode::ReadWrite]);
    write(test.branch(1), "f", b"old");
    let union = test.union(Options::default());
    test.branch(1).set_read_only(true);
    at(&*union, "f").open(&CX, OpenFlags::RDWR).unwrap();
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    assert_eq!(at(&*union, "f").setattr(&CX, &set, None).unwrap().perm(), 0o600);
    assert_eq!(read(test.branch(0), "f"), b"old");
    test.branch(0).set_read_only(true);
    assert_eq!(union.root().mkdir(&CX, name("n"), 0o755).unwrap_err(), Errno::ROFS);
}

/// An operation that changes a union.
type Change<'a> = &'a dyn Fn(&dyn Layer);

/// Returns branches with `etc` on the leftmost and, with `etc/apt`, on the read-only rightmost one.
/// The read-write branch between them has no `etc`, so it can't hold a part of `etc/apt`.
fn branches_with_a_gap() -> TestUnion {
    let test = TestUnion::new(&[Mode::ReadWrite, Mode::ReadWrite, Mode::ReadOnly]);
    mkdir(test.branch(0), "etc");
    mkdir(test.branch(1), "mid");
    let lower = test.branch(2);
    mkdir(lower, "etc");
    mkdir(lower, "etc/apt");
    mkdir(lower, "etc/apt/d");
    mkdir(lower, "etc/apt/empty");
    write(lower, "etc/apt/s", b"deb");
    write(lower, "etc/apt/two", b"two");
    at(lower, "etc/apt").link(&CX, name("names"), &at(lower, "etc/apt/two")).unwrap();
    test
}

#[test]
fn copy_up_skips_a_branch_without_the_parent_directories() {
    let flags = RenameFlags::default();
    let exchange = RenameFlags { exchange: true, ..flags };
    let changes: &[(&str, Change<'_>)] = &[
        ("append", &|u| {
            let file = at(u, "etc/apt/s").open(&CX, OpenFlags::RDWR).unwrap();
            file.write(&CX, b"more", 3).unwrap();
        }),
        ("create", &|u| write(u, "etc/apt/new", b"")),
        ("mkdir", &|u| drop(at(u, "etc/apt/d").mkdir(&CX, name("new"), 0o755).unwrap())),
        ("tmpfile", &|u| drop(at(u, "etc/apt").tmpfile(&CX, 0o600, OpenFlags::RDWR).unwrap())),
        ("link", &|u| drop(at(u, "etc/apt").link(&CX, name("new"), &at(u, "etc/apt/s")).unwrap())),
        ("link elsewhere", &|u| drop(at(u, "mid").link(&CX, name("new"), &at(u, "etc/apt/s")).unwrap())),
        ("link of two", &|u| drop(at(u, "mid").link(&CX, name("new"), &at(u, "etc/apt/two")).unwrap())),
        ("unlink", &|u| at(u, "etc/apt").unlink(&CX, name("s")).unwrap()),
        ("unlink of two", &|u| at(u, "etc/apt").unlink(&CX, name("two")).unwrap()),
        ("rmdir", &|u| at(u, "etc/apt").rmdir(&CX, name("empty")).unwrap()),
        ("rename", &|u| at(u, "etc/apt").rename(&CX, name("s"), &at(u, "mid"), name("new"), flags).unwrap()),
        ("rename of two", &|u| at(u, "etc/apt").rename(&CX, name("two"), &at(u, "mid"), name("new"), flags).unwrap()),
        ("rename into", &|u| {
            write(u, "mid/f", b"mid");
            at(u, "mid").rename(&CX, name("f"), &at(u, "etc/apt"), name("s"), flags).unwrap();
        }),
        ("rename of a directory", &|u| {
            at(u, "etc/apt").rename(&CX, name("d"), &at(u, "mid"), name("new"), flags).unwrap();
        }),
        ("rename of a directory into", &|u| {
            mkdir(u, "mid/x");
            at(u, "mid").rename(&CX, name("x"), &at(u, "etc/apt"), name("empty"), flags).unwrap();
        }),
        ("exchange", &|u| {
            write(u, "mid/f", b"mid");
            at(u, "etc/apt").rename(&CX, name("s"), &at(u, "mid"), name("f"), exchange).unwrap();
        }),
        ("exchange of two", &|u| {
            write(u, "mid/f", b"mid");
            at(u, "mid").rename(&CX, name("f"), &at(u, "etc/apt"), name("two"), exchange).unwrap();
        }),
        ("attributes", &|u| {
            let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
            assert_eq!(at(u, "etc/apt/d").setattr(&CX, &set, None).unwrap().perm(), 0o700);
            assert_eq!(at(u, "etc/apt/s").setattr(&CX, &set, None).unwrap().perm(), 0o700);
        }),
        ("an extended attribute", &|u| {
            at(u, "etc/apt").setxattr(&CX, b"user.new", b"v", vnode::XattrFlags::default()).unwrap();
        }),
    ];
    for delete in [Delete::Whiteout, Delete::All] {
        for (what, change) in changes {
            let test = branches_with_a_gap();
            let options = Options { delete, ..Options::default() };
            let union = test.union(options);
            change(&*union);
            assert!(find(test.branch(1), "etc").is_none(), "{what}: the middle branch has a part of etc");
            let seen = ["etc/apt", "mid"].map(|dir| list(&*union, dir));
            drop(union);
            let union = test.union(options);
            assert_eq!(["etc/apt", "mid"].map(|dir| list(&*union, dir)), seen, "{what}: after a remount");
        }
    }
}

#[test]
fn changes_after_a_directory_rename_survive_a_remount() {
    let test = TestUnion::new(&[Mode::ReadWrite, Mode::ReadWrite, Mode::ReadOnly]);
    let lower = test.branch(2);
    mkdir(lower, "a");
    for dir in ["b", "c"] {
        at(lower, "a").mkdir(&CX, name(dir), 0o755).unwrap();
        write(lower, &format!("a/{dir}/f"), b"f");
    }
    let union = test.union(Options::default());
    let a = at(&*union, "a");
    // A merged directory is renamed on the leftmost branch, which creates a part of `a` there.
    a.rename(&CX, name("c"), &a, name("C"), RenameFlags::default()).unwrap();
    write(&*union, "a/b/new", b"");
    at(&*union, "a/b/f").open(&CX, OpenFlags::RDWR).unwrap().write(&CX, b"g", 0).unwrap();
    write(&*union, "a/C/new", b"");
    at(&*union, "a/C").unlink(&CX, name("f")).unwrap();
    let union = test.union(Options::default());
    assert_eq!((list(&*union, "a/b"), read(&*union, "a/b/f")), (vec!["f".into(), "new".into()], b"g".to_vec()));
    assert_eq!(list(&*union, "a/C"), ["new"]);
}

#[test]
fn copy_up_of_a_directory_moves_on_to_the_next_branch_after_erofs() {
    let changes: &[(&str, Change<'_>)] = &[
        ("create", &|u| write(u, "d/sub/new", b"")),
        ("append", &|u| {
            at(u, "d/sub/x").open(&CX, OpenFlags::RDWR).unwrap().write(&CX, b"y", 0).unwrap();
        }),
        ("chmod", &|u| {
            let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
            assert_eq!(at(u, "d/sub").setattr(&CX, &set, None).unwrap().perm(), 0o700);
        }),
        ("unlink", &|u| at(u, "d/sub").unlink(&CX, name("x")).unwrap()),
        ("rmdir", &|u| at(u, "d").rmdir(&CX, name("empty")).unwrap()),
        ("rename", &|u| {
            let flags = RenameFlags::default();
            at(u, "d/sub").rename(&CX, name("x"), &at(u, "d"), name("new"), flags).unwrap();
        }),
        ("exchange", &|u| {
            let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
            at(u, "d/sub").rename(&CX, name("x"), &at(u, "d"), name("f"), flags).unwrap();
        }),
        ("link", &|u| drop(at(u, "d").link(&CX, name("new"), &at(u, "d/sub/x")).unwrap())),
    ];
    for (what, change) in changes {
        let test = TestUnion::new(&[Mode::ReadWrite, Mode::ReadWrite, Mode::ReadOnly]);
        let lower = test.branch(2);
        mkdir(lower, "d");
        mkdir(lower, "d/sub");
        mkdir(lower, "d/empty");
        write(lower, "d/f", b"f");
        write(lower, "d/sub/x", b"x");
        let union = test.union(Options::default());
        test.branch(1).set_read_only(true);
        assert!(warnings(|| change(&*union)) <= 1, "{what}");
        assert!(find(test.branch(0), "d").is_some(), "{what}");
    }
}

/// A file created with O_TMPFILE on one branch gets its first name on another.
#[test]
fn a_tmpfile_linked_on_another_branch_keeps_its_inode_number() {
    let test = TestUnion::new(&[Mode::ReadWrite, Mode::ReadWrite]);
    mkdir(test.branch(0), "left");
    mkdir(test.branch(1), "right");
    let union = test.union(Options::default());
    let (entry, open) = at(&*union, "right").tmpfile(&CX, 0o600, OpenFlags::RDWR).unwrap();
    open.write(&CX, b"text", 0).unwrap();
    at(&*union, "left").link(&CX, name("f"), &entry.vnode).unwrap();
    assert!(Arc::ptr_eq(&at(&*union, "left/f"), &entry.vnode));
    open.write(&CX, b"more", 4).unwrap();
    let number = entry.vnode.id();
    assert_eq!(entry.vnode.getattr(&CX).unwrap().nlink, 1);
    drop((entry, open, union));
    let union = test.union(Options::default());
    assert_eq!((at(&*union, "left/f").id(), read(&*union, "left/f")), (number, b"textmore".to_vec()));
    // A file whose last name was removed can't be linked again, although its copy could be.
    let open = at(&*union, "left/f").open(&CX, OpenFlags::RDWR).unwrap();
    let vnode = at(&*union, "left/f");
    at(&*union, "left").unlink(&CX, name("f")).unwrap();
    assert_eq!(union.root().link(&CX, name("g"), &vnode).unwrap_err(), Errno::NOENT);
    drop(open);
}

#[test]
fn an_all_read_only_union_is_read_only() {
    let test = TestUnion::two_branches();
    let branches = |modes: [Mode; 2]| {
        let branch = |(index, mode): (usize, Mode)| Branch {
            layer: test.branches[index].0.clone(),
            path: format!("/b{index}").into(),
            mode,
        };
        modes.into_iter().enumerate().map(branch).collect::<Vec<_>>()
    };
    let union = Unionfs::new(branches([Mode::ReadOnly, Mode::NfsReadOnly]), Options::default()).unwrap();
    assert!(union.properties().read_only && union.properties().may_hang);
    assert_eq!(union.root().mkdir(&CX, name("n"), 0o755).unwrap_err(), Errno::ROFS);
    assert_eq!(list(test.branch(0), ""), [""; 0]);
    let refused = Unionfs::new(branches([Mode::ReadOnly, Mode::ReadWrite]), Options::default()).unwrap_err();
    assert_eq!(refused, BuildError::LeftmostReadOnly("/b0".into()));
    test.branch(0).set_read_only(true);
    let refused = Unionfs::new(branches([Mode::ReadWrite, Mode::ReadOnly]), Options::default()).unwrap_err();
    assert_eq!(refused, BuildError::NotWritable("/b0".into(), Errno::ROFS));
    assert_eq!(Unionfs::new(Vec::new(), Options::default()).unwrap_err(), BuildError::NoBranches);
}

#[test]
fn sync_continues_after_a_branch_fails_and_returns_the_error() {
    let test = TestUnion::new(&[Mode::ReadWrite, Mode::ReadWrite, Mode::ReadOnly]);
    let union = test.union(Options::default());
    test.faults.record();
    union.sync(&CX).unwrap();
    let syncs = |log: Vec<Op>| log.into_iter().filter(|op| *op == Op::Sync).count();
    assert_eq!(syncs(test.faults.log()), 2, "only writable branches are synced");
    test.faults.arm(Plan { count: Count::Only(Op::Sync), at: 1, fault: Fault::Error(Errno::IO) });
    assert_eq!(union.sync(&CX), Err(Errno::IO));
    test.faults.arm(Plan { count: Count::Only(Op::Sync), at: 2, fault: Fault::Error(Errno::NOSPC) });
    assert_eq!(union.sync(&CX), Err(Errno::NOSPC));
    test.faults.arm(Plan { count: Count::Only(Op::Sync), at: 3, fault: Fault::Error(Errno::IO) });
    assert_eq!(union.sync(&CX), Ok(()));
    assert!(!test.faults.fired());
    test.faults.arm(Plan { count: Count::Only(Op::Sync), at: 1, fault: Fault::Error(Errno::IO) });
    assert_eq!(union.sync(&CX), Err(Errno::IO));
    assert_eq!(test.faults.operations(), 2, "the second branch was not synced");
    test.faults.disarm();
    let cancelled = AtomicBool::new(false);
    assert_eq!(union.sync(&Cx::new(0, 0, 1, 0, false, &cancelled)), Err(MAY_BLOCK));
}

/// Narrow inode numbers fit 32 bits and are the same in every reply. The identity log stays valid
/// when the option changes.
#[test]
fn narrow_inode_numbers_fit_32_bits_and_survive_a_change_of_the_option() {
    let test = TestUnion::two_branches();
    let lower = test.branch(1);
    lower.root().link(&CX, name("h"), &at(lower, "d/f")).unwrap();
    let numbers = |union: &Unionfs| {
        let mut seen = Vec::new();
        for dir in ["", "d", "d/sub"] {
            let vnode = at(union, dir);
            seen.push(vnode.getattr(&CX).unwrap().ino);
            assert_eq!(Some(&vnode.id()), seen.last());
            let mut listed = Vec::new();
            vnode
                .readdir(&CX, 0, &mut |entry| {
                    listed.push((entry.name.to_string(), entry.ino, entry.cookie));
                    true
                })
                .unwrap();
            for (entry, ino, cookie) in listed {
                let found = vnode.lookup(&CX, name(&entry)).unwrap().unwrap();
                assert_eq!((found.vnode.id(), found.attr.ino), (ino, ino), "{entry}");
                seen.extend([ino, cookie]);
            }
        }
        seen
    };
    let narrow = Options { numbers: Numbers::Narrow, ..Options::default() };
    let union = test.union(narrow);
    let before = numbers(&union);
    assert!(before.iter().all(|&n| n <= u64::from(u32::MAX)), "{before:x?}");
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let changed = at(&*union, "h").setattr(&CX, &set, None).unwrap();
    assert_eq!(changed.ino, at(&*union, "h").id());
    at(&*union, "d/sub/x").setattr(&CX, &set, None).unwrap();
    assert_eq!(numbers(&union), before);
    drop(union);
    for options in [narrow, Options::default(), narrow] {
        let union = test.union(options);
        assert_eq!(numbers(&union) == before, options == narrow);
        let (one, other) = (at(&*union, "h"), at(&*union, "d/f"));
        assert_eq!((one.id(), one.getattr(&CX).unwrap().nlink), (other.id(), 2));
        assert_eq!(other.getattr(&CX).unwrap().mode & 0o777, 0o600);
    }
}

/// The branch of a renamed directory turns out to be read-only: the directory is renamed on the
/// leftmost branch.
#[test]
fn a_rename_that_is_retried_on_another_branch_leaves_no_mark() {
    let test = TestUnion::new(&[Mode::ReadWrite, Mode::ReadWrite, Mode::ReadOnly]);
    mkdir(test.branch(1), "d");
    write(test.branch(1), "d/f", b"f");
    write(test.branch(1), ".wh.e", b"");
    mkdir(test.branch(2), "e");
    write(test.branch(2), "e/hidden", b"h");
    let union = test.union(Options::default());
    test.faults.arm(Plan { count: Count::Only(Op::Rename), at: 1, fault: Fault::Error(Errno::ROFS) });
    union.root().rename(&CX, name("d"), &union.root(), name("e"), RenameFlags::default()).unwrap();
    assert!(test.faults.fired());
    assert_eq!(list(&*union, "e"), ["f"]);
    assert!(find(&*union, "d").is_none());
    assert!(find(test.branch(1), "d/.wh..wh..opq").is_none());
    assert_eq!(list(&*test.union(Options::default()), "e"), ["f"]);
}
