//! Metacopies: copy-up of attributes without data. The tests check the files on the branches and
//! every operation that ends or moves a metacopy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::layer_ops::{CX, at, attr, chmod, find, list, name, read, write};
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Op, Plan};
use std::sync::Arc;
use unionfs::{Branch, BranchChange, ChangePolicy, Copyup, Delete, InUse, Metacopy, Mode, Options, Unionfs};
use vnode::{Errno, Layer, OpenFlags, RenameFlags, SetAttr, SetTime, Time, Vnode, XattrFlags};

const BIG: usize = 100_000;
const META: &str = ".wh..wh.meta.f";

fn data() -> Vec<u8> {
    (0..BIG).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

/// Branches in memory, left to right.
struct TestUnion {
    faults: Faults,
    branches: Vec<Arc<MemFs>>,
    modes: Vec<Mode>,
}

impl TestUnion {
    /// Branches of these modes, with the large file `d/f` on the rightmost one.
    fn new(modes: &[Mode], options: MemOptions) -> Self {
        let faults = Faults::new();
        let branches: Vec<_> = modes.iter().map(|_| MemFs::with(options, &faults)).collect();
        let lower = &branches[modes.len() - 1];
        lower.root().mkdir(&CX, name("d"), 0o755).unwrap();
        write(&**lower, "d/f", &data());
        Self { faults, branches, modes: modes.into() }
    }

    fn two_branches() -> Self {
        Self::new(&[Mode::ReadWrite, Mode::ReadOnly], MemOptions::default())
    }

    fn branch(&self, index: usize) -> Branch {
        Branch { layer: self.branches[index].clone(), path: format!("/b{index}").into(), mode: self.modes[index] }
    }

    fn union_with(&self, options: Options) -> Arc<Unionfs> {
        Unionfs::new((0..self.branches.len()).map(|index| self.branch(index)).collect(), options).unwrap()
    }

    fn union(&self) -> Arc<Unionfs> {
        self.union_with(Options::default())
    }
}

#[test]
fn attribute_changes_copy_no_data_until_the_file_is_opened_for_writing() {
    let test = TestUnion::two_branches();
    let union = test.union();
    let before = attr(&*union, "d/f");
    let reader = at(&*union, "d/f").open(&CX, OpenFlags::RDONLY).unwrap();
    chmod(&*union, "d/f", 0o4750);
    let owner = SetAttr { uid: Some(7), gid: Some(8), ..SetAttr::default() };
    at(&*union, "d/f").setattr(&CX, &owner, Some(&*reader)).unwrap();
    let then = Time { sec: 11, nsec: 12 };
    let times = SetAttr { mtime: Some(SetTime::At(then)), atime: Some(SetTime::At(then)), ..SetAttr::default() };
    at(&*union, "d/f").setattr(&CX, &times, None).unwrap();
    at(&*union, "d/f").setxattr(&CX, b"user.x", b"value", XattrFlags::default()).unwrap();
    assert_eq!(list(&*test.branches[0], "d"), [META]);
    assert_eq!(attr(&*test.branches[0], &format!("d/{META}")).blocks, 0);
    let check = |union: &Unionfs| {
        let now = attr(union, "d/f");
        assert_eq!((now.ino, now.size, now.blocks, now.nlink), (before.ino, before.size, before.blocks, 1));
        // The change of the owner has cleared the set-user-ID bit, as on other file systems.
        assert_eq!((now.perm(), now.uid, now.gid, now.mtime, now.atime), (0o750, 7, 8, then, then));
        assert!(now.ctime >= before.ctime);
        let (mut names, mut value) = ([0; 100], [0; 9]);
        assert_eq!(at(union, "d/f").listxattr(&CX, &mut names), Ok(7));
        assert_eq!((&names[..7], at(union, "d/f").listxattr(&CX, &mut [])), (&b"user.x\0"[..], Ok(7)));
        assert_eq!(at(union, "d/f").getxattr(&CX, b"user.x", &mut value), Ok(5));
        assert_eq!(at(union, "d/f").getxattr(&CX, b"trusted.strata.origin", &mut value), Err(Errno::NODATA));
        assert!(read(union, "d/f") == data());
        assert_eq!(list(union, "d"), ["f"]);
    };
    check(&union);
    drop((union, reader));
    let union = test.union();
    check(&union);
    assert_eq!(read(&*test.branches[1], "d/f"), data());
    let reader = at(&*union, "d/f").open(&CX, OpenFlags::RDONLY).unwrap();
    let file = at(&*union, "d/f").open(&CX, OpenFlags::RDWR).unwrap();
    assert_eq!(list(&*test.branches[0], "d"), ["f"]);
    check(&union);
    file.write(&CX, b"new", 50_000).unwrap();
    let mut now = [0; 3];
    reader.read(&CX, &mut now, 50_000).unwrap();
    assert_eq!(&now, b"new");
    assert_eq!(attr(&*union, "d/f").perm(), 0o750);
}

#[test]
fn a_metacopy_is_removed_with_its_name() {
    let flags = RenameFlags::default();
    type Step<'a> = &'a dyn Fn(&Arc<dyn Vnode>);
    let steps: [(Step<'_>, &[&str]); 5] = [
        (&|dir| dir.unlink(&CX, name("f")).unwrap(), &[".wh.f"]),
        (&|dir| dir.rename(&CX, name("f"), dir, name("g"), flags).unwrap(), &[".wh.f", "g"]),
        (&|dir| dir.rename(&CX, name("new"), dir, name("f"), flags).unwrap(), &["f"]),
        (
            &|dir| {
                let set = SetAttr { size: Some(10), ..SetAttr::default() };
                dir.lookup(&CX, name("f")).unwrap().unwrap().vnode.setattr(&CX, &set, None).unwrap();
            },
            &["f"],
        ),
        (
            &|dir| {
                let file = dir.lookup(&CX, name("f")).unwrap().unwrap().vnode;
                dir.link(&CX, name("g"), &file).unwrap();
            },
            &["f", "g"],
        ),
    ];
    for delete in [Delete::Whiteout, Delete::All] {
        for (at_step, (step, left)) in steps.iter().enumerate() {
            let test = TestUnion::two_branches();
            let union = test.union_with(Options { delete, ..Options::default() });
            chmod(&*union, "d/f", 0o600);
            if at_step == 2 {
                write(&*union, "d/new", b"new");
            }
            let open = at(&*union, "d/f");
            step(&at(&*union, "d"));
            assert_eq!(list(&*test.branches[0], "d"), *left, "{at_step}");
            // A vnode in use keeps its attributes.
            assert_eq!(open.getattr(&CX).map(|attr| attr.perm()), Ok(0o600), "{at_step}");
        }
    }
    // A directory that is empty in the union can be removed, even with a leftover metacopy in it.
    let test = TestUnion::two_branches();
    let union = test.union();
    chmod(&*union, "d/f", 0o600);
    let left = Plan { count: Count::Only(Op::Unlink), at: 1, fault: Fault::Error(Errno::IO) };
    test.faults.arm(left);
    at(&*union, "d").unlink(&CX, name("f")).unwrap();
    test.faults.disarm();
    assert_eq!(list(&*test.branches[0], "d"), [META, ".wh.f"]);
    assert!(find(&*union, "d/f").is_none());
    union.root().rmdir(&CX, name("d")).unwrap();
    assert_eq!(list(&*test.branches[0], "").last().map(String::as_str), Some(".wh.d"));
}

/// Where a metacopy would save nothing, or can't be created, the whole file is copied.
#[test]
fn small_linked_and_long_named_files_are_copied_whole() {
    let whole = |test: &TestUnion, options: Options, file: &str| {
        let union = test.union_with(options);
        chmod(&*union, file, 0o600);
        let is_metacopy = |entry: &String| entry.starts_with(".wh..wh.meta");
        assert!(!list(&*test.branches[0], "").iter().chain(&list(&*test.branches[0], "d")).any(is_metacopy), "{file}");
        assert!(read(&*test.branches[0], file) == read(&*test.branches[1], file), "{file}");
    };
    whole(&TestUnion::two_branches(), Options { metacopy: Metacopy::Off, ..Options::default() }, "d/f");
    let test = TestUnion::two_branches();
    write(&*test.branches[1], "d/small", &[1; 4096]);
    whole(&test, Options::default(), "d/small");
    let long = format!("d/{}", "n".repeat(243));
    let test = TestUnion::two_branches();
    write(&*test.branches[1], &long, &data());
    whole(&test, Options::default(), &long);
    let test = TestUnion::two_branches();
    at(&*test.branches[1], "d").link(&CX, name("g"), &at(&*test.branches[1], "d/f")).unwrap();
    whole(&test, Options::default(), "d/f");
    for errno in [Errno::PERM, Errno::OPNOTSUPP] {
        let test = TestUnion::two_branches();
        test.faults.arm(Plan { count: Count::Only(Op::Setxattr), at: 1, fault: Fault::Error(errno) });
        whole(&test, Options::default(), "d/f");
    }
}

/// `chown -R` of an image does not fill the upper branch.
#[test]
fn chown_of_a_tree_larger_than_the_upper_branch_succeeds() {
    let small = MemOptions { space: 1 << 20, ..MemOptions::default() };
    let faults = Faults::new();
    let branches = vec![MemFs::with(small, &faults), MemFs::with(MemOptions::default(), &faults)];
    for file in 0..100 {
        write(&*branches[1], &format!("f{file}"), &data());
    }
    let test = TestUnion { faults, branches, modes: vec![Mode::ReadWrite, Mode::ReadOnly] };
    let union = test.union();
    for file in 0..100 {
        let owner = SetAttr { uid: Some(5), ..SetAttr::default() };
        at(&*union, &format!("f{file}")).setattr(&CX, &owner, None).unwrap();
    }
    assert_eq!(attr(&*union, "f99").uid, 5);
    // Opening the files for writing copies their data, which does not fit.
    let written = (0..100).take_while(|file| at(&*union, &format!("f{file}")).open(&CX, OpenFlags::RDWR).is_ok());
    assert!(written.count() < 12);
    for file in 0..100 {
        assert!(read(&*union, &format!("f{file}")) == data(), "{file}");
        assert_eq!(attr(&*union, &format!("f{file}")).uid, 5, "{file}");
    }
}

/// A user who can write to a directory of a branch, but lacks root's rights, can't change
/// attributes in the union.
#[test]
fn forged_metacopies_are_ignored() {
    let test = TestUnion::two_branches();
    write(&*test.branches[1], "d/g", &data());
    {
        let union = test.union();
        chmod(&*union, "d/f", 0o666);
    }
    let dir = at(&*test.branches[0], "d");
    // A genuine metacopy under another name.
    dir.link(&CX, name(".wh..wh.meta.g"), &at(&*test.branches[0], &format!("d/{META}"))).unwrap();
    assert_eq!(attr(&*test.union(), "d/g").perm(), 0o644);
    dir.unlink(&CX, name(".wh..wh.meta.g")).unwrap();
    // A file without the attribute that only root can set.
    let (forged, _) = dir.create(&CX, name(".wh..wh.meta.g"), 0o666, OpenFlags::RDWR).unwrap();
    forged.vnode.setxattr(&CX, b"user.strata.origin", b"1 2 3 4 5 6 7 g", XattrFlags::default()).unwrap();
    assert_eq!(attr(&*test.union(), "d/g").perm(), 0o644);
    for value in [&b""[..], b"1 2 3", b"9 1 1 1 1 1 1 g", &[0xff; 600]] {
        forged.vnode.setxattr(&CX, b"trusted.strata.origin", value, XattrFlags::default()).unwrap();
        assert_eq!(attr(&*test.union(), "d/g").perm(), 0o644);
    }
    // Users of the union can't create metacopies, either.
    let union = test.union();
    let made = at(&*union, "d").create(&CX, name(META), 0o666, OpenFlags::RDWR).map(drop);
    assert_eq!(made, Err(Errno::PERM));
    let set = at(&*union, "d/f").setxattr(&CX, b"trusted.strata.origin", b"x", XattrFlags::default());
    assert_eq!(set, Err(Errno::PERM));
}

/// The lower file is changed or replaced out of band.
#[test]
fn out_of_band_changes_of_the_lower_file_are_visible() {
    let test = TestUnion::two_branches();
    {
        let union = test.union();
        chmod(&*union, "d/f", 0o600);
        let lower = at(&*test.branches[1], "d/f").open(&CX, OpenFlags::RDWR).unwrap();
        lower.write(&CX, b"other", 0).unwrap();
        assert_eq!(attr(&*union, "d/f").mtime, attr(&*test.branches[1], "d/f").mtime);
        assert_eq!(&read(&*union, "d/f")[..5], b"other");
        assert_eq!(attr(&*union, "d/f").perm(), 0o600);
    }
    at(&*test.branches[1], "d").unlink(&CX, name("f")).unwrap();
    write(&*test.branches[1], "d/f", b"another file");
    let union = test.union();
    assert_eq!(attr(&*union, "d/f").perm(), 0o644);
    // A rebuilt image with the same file.
    let test = TestUnion::two_branches();
    let times = attr(&*test.branches[1], "d/f");
    chmod(&*test.union(), "d/f", 0o600);
    let rebuilt =
        TestUnion::new(&[Mode::ReadWrite, Mode::ReadOnly], MemOptions { generation: 9, ..MemOptions::default() });
    let set = SetAttr { mtime: Some(SetTime::At(times.mtime)), ..SetAttr::default() };
    at(&*rebuilt.branches[1], "d/f").setattr(&CX, &set, None).unwrap();
    let test = TestUnion { branches: vec![test.branches[0].clone(), rebuilt.branches[1].clone()], ..test };
    assert_eq!(attr(&*test.union(), "d/f").perm(), 0o600);
    let owner = SetAttr { uid: Some(7), ..set };
    at(&*rebuilt.branches[1], "d/f").setattr(&CX, &owner, None).unwrap();
    // The new owner could have forged the time, so the metacopy no longer applies.
    assert_eq!(attr(&*test.union(), "d/f").perm(), 0o644);
}

/// If the lower branch becomes read-write later, files with a metacopy are still copied up.
#[test]
fn files_with_a_metacopy_are_copied_up_even_from_a_branch_that_became_writable() {
    let flags = RenameFlags::default();
    for case in 0..6 {
        let mut test = TestUnion::two_branches();
        chmod(&*test.union(), "d/f", 0o600);
        test.modes[1] = Mode::ReadWrite;
        let delete = if case == 5 { Delete::All } else { Delete::Whiteout };
        let union = test.union_with(Options { delete, ..Options::default() });
        let (dir, file) = (at(&*union, "d"), at(&*union, "d/f"));
        match case {
            0 => drop(file.open(&CX, OpenFlags::RDWR).unwrap().write(&CX, b"new", 0).unwrap()),
            1 => dir.rename(&CX, name("f"), &dir, name("g"), flags).unwrap(),
            2 => drop(dir.link(&CX, name("g"), &file).unwrap()),
            3 => chmod(&*union, "d/f", 0o640),
            4 => drop(file.setattr(&CX, &SetAttr { size: Some(5), ..SetAttr::default() }, None).unwrap()),
            _ => dir.unlink(&CX, name("f")).unwrap(),
        }
        let expected = if case == 3 { 0o640 } else { 0o600 };
        assert_eq!(file.getattr(&CX).unwrap().perm(), expected, "{case}");
        if case < 5 {
            let shown = if case == 1 { "d/g" } else { "d/f" };
            assert_eq!(attr(&*union, shown).perm(), expected, "{case}");
            assert_eq!(attr(&*test.union(), shown).perm(), expected, "{case}");
            assert!(read(&*test.branches[1], "d/f") == data(), "{case}");
        } else {
            assert_eq!(list(&*union, "d"), [""; 0]);
            assert_eq!((list(&*test.branches[0], "d"), list(&*test.branches[1], "d")), (vec![], vec![]));
        }
    }
}

/// A metacopy on a branch that is read-only by now, left of a branch that is written, applies to
/// its own file only: not to a file of the same size, time, owner and mode that gets the name.
#[test]
fn a_metacopy_left_of_a_written_branch_applies_to_no_other_file() {
    const PRESENT: [Mode; 4] = [Mode::ReadWrite, Mode::ReadOnly, Mode::ReadWrite, Mode::ReadWrite];
    let flags = RenameFlags::default();
    let exchange = RenameFlags { exchange: true, ..flags };
    for (case, at_twin, last) in (0..5)
        .flat_map(|case| [2, 3].map(|twin| (case, twin)))
        .flat_map(|(case, twin)| [Mode::ReadWrite, Mode::ReadOnly].map(|last| (case, twin, last)))
    {
        let mut test =
            TestUnion::new(&[Mode::ReadWrite, Mode::ReadWrite, Mode::ReadWrite, Mode::ReadOnly], MemOptions::default());
        let older = Unionfs::new(vec![test.branch(1), test.branch(3)], Options::default()).unwrap();
        chmod(&*older, "d/f", 0o600);
        drop(older);
        test.modes = PRESENT.into();
        test.modes[3] = last;
        let original = attr(&*test.branches[3], "d/f");
        if at_twin == 2 {
            test.branches[2].root().mkdir(&CX, name("d"), 0o755).unwrap();
        }
        write(&*test.branches[at_twin], "d/twin", &data());
        let same = SetAttr { mtime: Some(SetTime::At(original.mtime)), ..SetAttr::default() };
        at(&*test.branches[at_twin], "d/twin").setattr(&CX, &same, None).unwrap();
        let union = test.union();
        let dir = at(&*union, "d");
        assert_eq!((attr(&*union, "d/f").perm(), attr(&*union, "d/twin").perm()), (0o600, 0o644));
        let expected = match case {
            0 => {
                dir.unlink(&CX, name("f")).unwrap();
                dir.rename(&CX, name("twin"), &dir, name("f"), flags).unwrap();
                [Some(0o644), None, None]
            }
            1 => {
                dir.rename(&CX, name("twin"), &dir, name("f"), flags).unwrap();
                [Some(0o644), None, None]
            }
            2 => {
                dir.rename(&CX, name("twin"), &dir, name("f"), exchange).unwrap();
                [Some(0o644), Some(0o600), None]
            }
            3 => {
                dir.rename(&CX, name("f"), &dir, name("moved"), flags).unwrap();
                dir.rename(&CX, name("twin"), &dir, name("f"), flags).unwrap();
                [Some(0o644), None, Some(0o600)]
            }
            _ => {
                chmod(&*union, "d/f", 0o640);
                [Some(0o640), Some(0o644), None]
            }
        };
        for union in [union, test.union()] {
            let shown =
                ["d/f", "d/twin", "d/moved"].map(|path| find(&*union, path).map(|_| attr(&*union, path).perm()));
            assert_eq!(shown, expected, "case {case}, the twin on branch {at_twin}, the last branch {last:?}");
        }
    }
}

#[test]
fn metacopies_apply_again_after_branch_changes() {
    let keep = &ChangePolicy { in_use: InUse::Keep, ..ChangePolicy::default() };
    let test = TestUnion::two_branches();
    let union = test.union();
    chmod(&*union, "d/f", 0o600);
    let file = at(&*union, "d/f");
    let open = file.open(&CX, OpenFlags::RDONLY).unwrap();
    // Insert a branch with another `d/f` between the metacopy and its file.
    let between = TestUnion::two_branches();
    let branch = Branch { layer: between.branches[1].clone(), path: "/between".into(), mode: Mode::ReadOnly };
    write(&*between.branches[1], "d/g", b"x");
    at(&*between.branches[1], "d").unlink(&CX, name("f")).unwrap();
    write(&*between.branches[1], "d/f", b"another");
    union.change_branches(vec![BranchChange::Insert { at: 1, branch }], keep).unwrap();
    assert_eq!((attr(&*union, "d/f").perm(), &*read(&*union, "d/f")), (0o644, &b"another"[..]));
    let mut out = vec![0; BIG];
    assert_eq!(open.read(&CX, &mut out, 0), Ok(BIG));
    union.change_branches(vec![BranchChange::Remove("/between".into())], keep).unwrap();
    assert_eq!((attr(&*union, "d/f").perm(), read(&*union, "d/f").len()), (0o600, BIG));
    // The file disappears with its branch and returns with it.
    union.change_branches(vec![BranchChange::Remove("/b1".into())], keep).unwrap();
    assert!(find(&*union, "d/f").is_none());
    union.change_branches(vec![BranchChange::Insert { at: 1, branch: test.branch(1) }], keep).unwrap();
    assert_eq!((attr(&*union, "d/f").perm(), read(&*union, "d/f").len()), (0o600, BIG));
    // The branch with the metacopy becomes read-only and a new upper branch is inserted.
    let fresh = Branch { layer: MemFs::new(), path: "/fresh".into(), mode: Mode::ReadWrite };
    let changes =
        vec![BranchChange::Mode("/b0".into(), Mode::ReadOnly), BranchChange::Insert { at: 0, branch: fresh.clone() }];
    union.change_branches(changes, keep).unwrap();
    assert_eq!(attr(&*union, "d/f").perm(), 0o600);
    chmod(&*union, "d/f", 0o604);
    assert_eq!(list(&*fresh.layer, "d"), [META]);
    assert_eq!(attr(&*test.branches[0], &format!("d/{META}")).perm(), 0o600);
    assert_eq!(attr(&*union, "d/f").perm(), 0o604);
    assert!(read(&*union, "d/f") == data());
    at(&*union, "d/f").open(&CX, OpenFlags::RDWR).unwrap();
    assert_eq!(list(&*fresh.layer, "d"), ["f"]);
    assert_eq!((attr(&*union, "d/f").perm(), list(&*test.branches[0], "d")), (0o604, vec![META.to_owned()]));
}

/// No attribute change is lost while another thread copies the data.
#[test]
fn attribute_changes_during_a_data_copy_are_kept() {
    for round in 0..50 {
        let test = TestUnion::two_branches();
        let union = test.union();
        let file = at(&*union, "d/f");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let open = at(&*union, "d/f").open(&CX, OpenFlags::RDWR).unwrap();
                open.write(&CX, b"new", 0).unwrap();
            });
            for mode in 0..40 {
                chmod(&*union, "d/f", 0o600 + mode);
                assert_eq!(attr(&*union, "d/f").perm(), 0o600 + mode, "{round}");
                file.setxattr(&CX, b"user.x", &[u8::try_from(mode).unwrap()], XattrFlags::default()).unwrap();
            }
            writer.join().unwrap();
        });
        let mut value = [0];
        assert_eq!(attr(&*union, "d/f").perm(), 0o647, "{round}");
        assert_eq!((file.getxattr(&CX, b"user.x", &mut value), value), (Ok(1), [39]), "{round}");
        assert_eq!(list(&*test.branches[0], "d"), ["f"], "{round}");
        assert_eq!(&read(&*union, "d/f")[..3], b"new");
    }
}

/// `copyup=` sets owner and mode of a copy. Later changes must survive the copy of the data.
#[test]
fn changed_attributes_survive_the_data_copy() {
    for copyup in [Copyup::CurrentUser, Copyup::Mounter { uid: 5, gid: 5, mode: 0o666 }] {
        let test = TestUnion::two_branches();
        let union = test.union_with(Options { copyup, ..Options::default() });
        chmod(&*union, "d/f", 0o4751);
        let owner = SetAttr { uid: Some(7), gid: Some(8), mode: Some(0o2711), ..SetAttr::default() };
        at(&*union, "d/f").setattr(&CX, &owner, None).unwrap();
        assert_eq!(list(&*test.branches[0], "d"), [META]);
        let before = attr(&*union, "d/f");
        assert_eq!((before.uid, before.gid, before.perm()), (7, 8, 0o2711));
        at(&*union, "d/f").open(&CX, OpenFlags::RDWR).unwrap();
        assert_eq!(list(&*test.branches[0], "d"), ["f"]);
        let after = attr(&*union, "d/f");
        assert_eq!((after.uid, after.gid, after.perm()), (7, 8, 0o2711), "{copyup:?}");
    }
}

/// fsync(2) of a file also makes its metacopy durable.
#[test]
fn fsync_of_a_lower_file_also_syncs_its_metacopy() {
    let upper = Faults::new();
    let below = TestUnion::two_branches();
    let branches = vec![MemFs::with(MemOptions::default(), &upper), below.branches[1].clone()];
    let test = TestUnion { faults: upper, branches, modes: below.modes };
    let union = test.union();
    let open = at(&*union, "d/f").open(&CX, OpenFlags::RDONLY).unwrap();
    at(&*union, "d/f").setattr(&CX, &SetAttr { mode: Some(0o600), ..SetAttr::default() }, Some(&*open)).unwrap();
    test.faults.arm(Plan { count: Count::Only(Op::Fsync), at: 1, fault: Fault::Error(Errno::IO) });
    assert_eq!(open.fsync(&CX, false), Err(Errno::IO));
    test.faults.disarm();
    assert_eq!(open.fsync(&CX, false), Ok(()));
}

/// A time that is set replaces that of an out-of-band change, and the next such change replaces it.
#[test]
fn a_set_mtime_is_visible_until_the_lower_file_changes_again() {
    let test = TestUnion::two_branches();
    let union = test.union();
    chmod(&*union, "d/f", 0o600);
    at(&*test.branches[1], "d/f").open(&CX, OpenFlags::RDWR).unwrap().write(&CX, b"other", 0).unwrap();
    let then = Time { sec: 11, nsec: 12 };
    let times = SetAttr { mtime: Some(SetTime::At(then)), ..SetAttr::default() };
    assert_eq!(at(&*union, "d/f").setattr(&CX, &times, None).unwrap().mtime, then);
    assert_eq!(attr(&*union, "d/f").mtime, then);
    assert_eq!(list(&*test.branches[0], "d"), [META]);
    let union = test.union();
    assert_eq!(attr(&*union, "d/f").mtime, then);
    at(&*test.branches[1], "d/f").open(&CX, OpenFlags::RDWR).unwrap().write(&CX, b"third", 0).unwrap();
    assert_eq!(attr(&*union, "d/f").mtime, attr(&*test.branches[1], "d/f").mtime);
}

/// Another union over the same branches, at other positions, finds the metacopy.
#[test]
fn a_metacopy_is_valid_in_a_union_with_other_branch_positions() {
    let test = TestUnion::two_branches();
    for uid in [0, 7] {
        at(&*test.branches[1], "d/f").setattr(&CX, &SetAttr { uid: Some(uid), ..SetAttr::default() }, None).unwrap();
        chmod(&*test.union(), "d/f", 0o600);
        let branch = |layer: &Arc<MemFs>, path: &str, mode| Branch { layer: layer.clone(), path: path.into(), mode };
        let branches = vec![
            branch(&MemFs::new(), "/new", Mode::ReadWrite),
            branch(&test.branches[0], "/b0", Mode::ReadOnly),
            branch(&test.branches[1], "/b1", Mode::ReadOnly),
        ];
        let other = Unionfs::new(branches, Options::default()).unwrap();
        assert_eq!(attr(&*other, "d/f").perm(), 0o600, "{uid}");
        // The lower branch has another path.
        let branches = vec![test.branch(0), branch(&test.branches[1], "/elsewhere", Mode::ReadOnly)];
        assert_eq!(attr(&*Unionfs::new(branches, Options::default()).unwrap(), "d/f").perm(), 0o600, "{uid}");
        at(&*test.branches[0], "d").unlink(&CX, name(META)).unwrap();
    }
}

/// The lower file may have been a metacopy once, or its xattrs were copied from one.
#[test]
fn an_origin_xattr_on_the_lower_file_is_ignored() {
    let test = TestUnion::two_branches();
    let set = |value: &[u8]| {
        at(&*test.branches[1], "d/f").setxattr(&CX, b"trusted.strata.origin", value, XattrFlags::default())
    };
    set(b"1 2 3 4 5 6 7 g").unwrap();
    chmod(&*test.union(), "d/f", 0o600);
    assert_eq!(list(&*test.branches[0], "d"), [META]);
    assert_eq!(attr(&*test.union(), "d/f").perm(), 0o600);
}

/// Copying an xattr of the file, or setting the origin xattr, fails with ENOSPC.
#[test]
fn a_file_is_copied_whole_if_the_xattrs_of_its_metacopy_do_not_fit() {
    for at_step in 1..=2 {
        let test = TestUnion::two_branches();
        at(&*test.branches[1], "d/f").setxattr(&CX, b"user.x", b"value", XattrFlags::default()).unwrap();
        let union = test.union();
        test.faults.arm(Plan { count: Count::Only(Op::Setxattr), at: at_step, fault: Fault::Error(Errno::NOSPC) });
        chmod(&*union, "d/f", 0o600);
        test.faults.disarm();
        assert_eq!(list(&*test.branches[0], "d"), ["f"]);
    }
}

/// A symbolic link is replaced with the metacopy; a directory makes the union copy the whole file.
#[test]
fn a_foreign_object_at_the_metacopy_name_does_not_block_changes() {
    for directory in [false, true] {
        let test = TestUnion::two_branches();
        test.branches[0].root().mkdir(&CX, name("d"), 0o755).unwrap();
        let dir = at(&*test.branches[0], "d");
        if directory {
            dir.mkdir(&CX, name(META), 0o755).unwrap();
        } else {
            dir.symlink(&CX, name(META), b"x").unwrap();
        }
        chmod(&*test.union(), "d/f", 0o600);
        assert_eq!(attr(&*test.union(), "d/f").perm(), 0o600);
        assert_eq!(list(&*test.branches[0], "d").contains(&"f".to_owned()), directory);
    }
}

/// A metacopy is removed and restored out of band.
#[test]
fn out_of_band_removal_and_restoration_of_a_metacopy_is_noticed() {
    let test = TestUnion::two_branches();
    let union = test.union();
    chmod(&*union, "d/f", 0o600);
    let file = at(&*union, "d/f");
    let dir = at(&*test.branches[0], "d");
    dir.rename(&CX, name(META), &dir, name("aside"), RenameFlags::default()).unwrap();
    assert_eq!(attr(&*union, "d/f").perm(), 0o644);
    assert_eq!(file.getattr(&CX).unwrap().perm(), 0o644);
    dir.rename(&CX, name("aside"), &dir, name(META), RenameFlags::default()).unwrap();
    assert_eq!(attr(&*union, "d/f").perm(), 0o600);
    dir.unlink(&CX, name(META)).unwrap();
    chmod(&*union, "d/f", 0o640);
    assert_eq!(attr(&*test.union(), "d/f").perm(), 0o640);
}

/// A user creates a file with the attributes of another user's file, lets the union create a
/// metacopy of it, and moves that metacopy beside the other file's name.
#[test]
fn a_metacopy_moved_to_another_file_is_ignored() {
    let test = TestUnion::two_branches();
    let root = test.branches[1].root();
    root.mkdir(&CX, name("own"), 0o777).unwrap();
    write(&*test.branches[1], "own/f", &data());
    let secret = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    at(&*test.branches[1], "d/f").setattr(&CX, &secret, None).unwrap();
    let like =
        SetAttr { mtime: Some(SetTime::At(attr(&*test.branches[1], "d/f").mtime)), uid: Some(7), ..SetAttr::default() };
    at(&*test.branches[1], "own/f").setattr(&CX, &like, None).unwrap();
    chmod(&*test.union(), "own/f", 0o666);
    let upper = test.branches[0].root();
    upper.mkdir(&CX, name("d"), 0o777).unwrap();
    let (own, d) = (at(&*test.branches[0], "own"), at(&*test.branches[0], "d"));
    own.rename(&CX, name(META), &d, name(META), RenameFlags::default()).unwrap();
    let now = attr(&*test.union(), "d/f");
    assert_eq!((now.uid, now.perm()), (0, 0o600));
}

/// A user who owns two directories moves a metacopy from one of root's files to a similar file of
/// root.
#[test]
fn a_metacopy_of_a_similar_file_is_ignored_in_a_directory_of_a_user() {
    let test = TestUnion::two_branches();
    let root = test.branches[1].root();
    root.mkdir(&CX, name("e"), 0o755).unwrap();
    write(&*test.branches[1], "e/f", &data());
    let time = SetAttr { mtime: Some(SetTime::At(attr(&*test.branches[1], "d/f").mtime)), ..SetAttr::default() };
    at(&*test.branches[1], "e/f").setattr(&CX, &time, None).unwrap();
    chmod(&*test.union(), "e/f", 0o666);
    test.branches[0].root().mkdir(&CX, name("d"), 0o755).unwrap();
    let (e, d) = (at(&*test.branches[0], "e"), at(&*test.branches[0], "d"));
    e.rename(&CX, name(META), &d, name(META), RenameFlags::default()).unwrap();
    // Only root can write to these directories, so the metacopy applies.
    assert_eq!(attr(&*test.union(), "d/f").perm(), 0o666);
    let users = SetAttr { uid: Some(7), ..SetAttr::default() };
    d.setattr(&CX, &users, None).unwrap();
    assert_eq!(attr(&*test.union(), "d/f").perm(), 0o644);
}

/// A user who can write to the lower file itself must not gain from privileges that the file gets
/// in the union, such as a set-user-ID bit: such a file is copied whole.
#[test]
fn files_writable_by_others_are_copied_whole_before_they_gain_privileges() {
    let owned = |uid, mode| SetAttr { uid: Some(uid), mode: Some(mode), ..SetAttr::default() };
    let change = |set: &SetAttr| {
        let set = *set;
        move |file: &Arc<dyn Vnode>| file.setattr(&CX, &set, None).map(drop)
    };
    type Change<'a> = &'a dyn Fn(&Arc<dyn Vnode>) -> vnode::Result<()>;
    let only = SetAttr::default();
    let given = change(&SetAttr { uid: Some(0), ..only });
    let set_id = change(&SetAttr { mode: Some(0o4755), ..only });
    let capable = |file: &Arc<dyn Vnode>| file.setxattr(&CX, b"security.capability", b"x", XattrFlags::default());
    let plain = change(&SetAttr { mode: Some(0o700), uid: Some(7), ..only });
    // The change, the new owner, and whether the change grants privileges.
    let cases: [(Change<'_>, Option<u32>, bool); 4] =
        [(&given, Some(0), false), (&set_id, None, true), (&capable, None, true), (&plain, Some(7), false)];
    for before in [false, true] {
        for (uid, mode, others) in [(7, 0o644, true), (0, 0o666, true), (0, 0o644, false)] {
            for (at_case, (case, owner, rights)) in cases.iter().enumerate() {
                let test = TestUnion::two_branches();
                at(&*test.branches[1], "d/f").setattr(&CX, &owned(uid, mode), None).unwrap();
                let union = test.union();
                if before {
                    chmod(&*union, "d/f", 0o600);
                }
                case(&at(&*union, "d/f")).unwrap();
                let whole = others && (*rights || owner.is_some_and(|owner| owner != uid));
                let expected = if whole { "f" } else { META };
                assert_eq!(list(&*test.branches[0], "d"), [expected], "{uid} {mode:o} {at_case} {before}");
                assert!(read(&*union, "d/f") == data());
            }
        }
    }
    // The owner that `copyup=` sets counts as a change of the owner, too.
    let test = TestUnion::two_branches();
    at(&*test.branches[1], "d/f").setattr(&CX, &owned(7, 0o644), None).unwrap();
    let copyup = Copyup::Mounter { uid: 0, gid: 0, mode: 0o644 };
    chmod(&*test.union_with(Options { copyup, ..Options::default() }), "d/f", 0o755);
    assert_eq!(list(&*test.branches[0], "d"), ["f"]);
}

/// The branch of a metacopy turns out to be read-only: the next change uses a branch to its left.
#[test]
fn a_metacopy_is_copied_left_if_its_branch_returns_erofs() {
    let test = TestUnion::new(&[Mode::ReadWrite, Mode::ReadWrite, Mode::ReadOnly], MemOptions::default());
    test.branches[1].root().mkdir(&CX, name("d"), 0o755).unwrap();
    let union = test.union();
    chmod(&*union, "d/f", 0o4700);
    assert_eq!(
        (list(&*test.branches[0], ""), list(&*test.branches[1], "d")),
        (vec![".wh..wh.ident".into()], vec![META.into()])
    );
    test.faults.arm(Plan { count: Count::Only(Op::Setattr), at: 1, fault: Fault::Error(Errno::ROFS) });
    let owner = SetAttr { gid: Some(8), ..SetAttr::default() };
    at(&*union, "d/f").setattr(&CX, &owner, None).unwrap();
    test.faults.disarm();
    assert_eq!(list(&*test.branches[0], "d"), [META]);
    let now = attr(&*union, "d/f");
    assert_eq!((now.gid, now.perm()), (8, 0o700));
    assert_eq!(attr(&*test.branches[1], &format!("d/{META}")).gid, 0);
    // The next mount finds it writable again.
    let union = test.union();
    assert_eq!((attr(&*union, "d/f").gid, attr(&*union, "d/f").perm()), (8, 0o700));
    at(&*union, "d/f").open(&CX, OpenFlags::RDWR).unwrap();
    assert_eq!((attr(&*union, "d/f").gid, read(&*union, "d/f") == data()), (8, true));
    chmod(&*union, "d/f", 0o640);
    at(&*union, "d").unlink(&CX, name("f")).unwrap();
    assert!(find(&*test.union(), "d/f").is_none());
}
