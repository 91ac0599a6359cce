//! Copy-up of attributes without data: what it leaves in the branches, and what becomes of it.
// Helpers of tests: a failed expectation is a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use memfs::{Count, Fault, Faults, MemFs, MemOptions, Op, Plan};
use std::sync::Arc;
use std::time::Duration;
use unionfs::{Branch, BranchChange, Copyup, Delete, Metacopy, Mode, Options, Unionfs};
use vnode::{Attr, Cx, Errno, Layer, Name, OpenFlags, RenameFlags, SetAttr, SetTime, Time, Vnode, XattrFlags};

const CX: Cx<'static> = Cx::internal(0, 0);
const BIG: usize = 100_000;
const META: &str = ".wh..wh.meta.f";

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn find(layer: &dyn Layer, path: &str) -> Option<Arc<dyn Vnode>> {
    path.split('/')
        .filter(|part| !part.is_empty())
        .try_fold(layer.root(), |dir, part| dir.lookup(&CX, name(part)).unwrap().map(|entry| entry.vnode))
}

fn at(layer: &dyn Layer, path: &str) -> Arc<dyn Vnode> {
    find(layer, path).unwrap_or_else(|| panic!("{path} is not there"))
}

fn attr(layer: &dyn Layer, path: &str) -> Attr {
    at(layer, path).getattr(&CX).unwrap()
}

fn chmod(layer: &dyn Layer, path: &str, mode: u32) {
    at(layer, path).setattr(&CX, &SetAttr { mode: Some(mode), ..SetAttr::default() }, None).unwrap();
}

fn write(layer: &dyn Layer, path: &str, data: &[u8]) {
    let (dir, file) = path.rsplit_once('/').unwrap_or(("", path));
    let (_, open) = at(layer, dir).create(&CX, name(file), 0o644, OpenFlags::RDWR).unwrap();
    open.write(&CX, data, 0).unwrap();
}

fn read(layer: &dyn Layer, path: &str) -> Vec<u8> {
    let mut out = vec![0; 1 << 20];
    let got = at(layer, path).open(&CX, OpenFlags::RDONLY).unwrap().read(&CX, &mut out, 0).unwrap();
    out.truncate(got);
    out
}

fn list(layer: &dyn Layer, path: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut sink = |entry: &vnode::DirEntry<'_>| {
        names.push(entry.name.to_string());
        true
    };
    at(layer, path).readdir(&CX, 0, &mut sink).unwrap();
    names.sort();
    names
}

fn data() -> Vec<u8> {
    (0..BIG).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

/// Branches in memory, left to right.
struct Bed {
    faults: Faults,
    disks: Vec<Arc<MemFs>>,
    modes: Vec<Mode>,
}

impl Bed {
    /// `d/f` is a large file on the rightmost branch.
    fn new(modes: &[Mode], options: MemOptions) -> Self {
        let faults = Faults::new();
        let disks: Vec<_> = modes.iter().map(|_| MemFs::with(options, &faults)).collect();
        let lower = &disks[modes.len() - 1];
        lower.root().mkdir(&CX, name("d"), 0o755).unwrap();
        write(&**lower, "d/f", &data());
        Self { faults, disks, modes: modes.into() }
    }

    fn usual() -> Self {
        Self::new(&[Mode::ReadWrite, Mode::ReadOnly], MemOptions::default())
    }

    fn branch(&self, index: usize) -> Branch {
        Branch { layer: self.disks[index].clone(), path: format!("/b{index}").into(), mode: self.modes[index] }
    }

    fn union_with(&self, options: Options) -> Arc<Unionfs> {
        Unionfs::new((0..self.disks.len()).map(|index| self.branch(index)).collect(), options).unwrap()
    }

    fn union(&self) -> Arc<Unionfs> {
        self.union_with(Options::default())
    }
}

#[test]
fn attributes_are_copied_and_data_follow_the_first_write() {
    let bed = Bed::usual();
    let union = bed.union();
    let before = attr(&*union, "d/f");
    let reader = at(&*union, "d/f").open(&CX, OpenFlags::RDONLY).unwrap();
    chmod(&*union, "d/f", 0o4750);
    let owner = SetAttr { uid: Some(7), gid: Some(8), ..SetAttr::default() };
    at(&*union, "d/f").setattr(&CX, &owner, Some(&*reader)).unwrap();
    let then = Time { sec: 11, nsec: 12 };
    let times = SetAttr { mtime: Some(SetTime::At(then)), atime: Some(SetTime::At(then)), ..SetAttr::default() };
    at(&*union, "d/f").setattr(&CX, &times, None).unwrap();
    at(&*union, "d/f").setxattr(&CX, b"user.x", b"value", XattrFlags::default()).unwrap();
    assert_eq!(list(&*bed.disks[0], "d"), [META]);
    assert_eq!(attr(&*bed.disks[0], &format!("d/{META}")).blocks, 0);
    let check = |union: &Unionfs| {
        let now = attr(union, "d/f");
        assert_eq!((now.ino, now.size, now.blocks, now.nlink), (before.ino, before.size, before.blocks, 1));
        // A change of the owner has taken the set-user-ID bit away, as it does natively.
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
    let union = bed.union();
    check(&union);
    assert_eq!(read(&*bed.disks[1], "d/f"), data());
    let reader = at(&*union, "d/f").open(&CX, OpenFlags::RDONLY).unwrap();
    let file = at(&*union, "d/f").open(&CX, OpenFlags::RDWR).unwrap();
    assert_eq!(list(&*bed.disks[0], "d"), ["f"]);
    check(&union);
    file.write(&CX, b"new", 50_000).unwrap();
    let mut now = [0; 3];
    reader.read(&CX, &mut now, 50_000).unwrap();
    assert_eq!(&now, b"new");
    assert_eq!(attr(&*union, "d/f").perm(), 0o750);
}

#[test]
fn a_metacopy_goes_with_its_name() {
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
            let bed = Bed::usual();
            let union = bed.union_with(Options { delete, ..Options::default() });
            chmod(&*union, "d/f", 0o600);
            if at_step == 2 {
                write(&*union, "d/new", b"new");
            }
            let open = at(&*union, "d/f");
            step(&at(&*union, "d"));
            assert_eq!(list(&*bed.disks[0], "d"), *left, "{at_step}");
            // What is in use keeps its attributes.
            assert_eq!(open.getattr(&CX).map(|attr| attr.perm()), Ok(0o600), "{at_step}");
        }
    }
    // A directory that is empty to its users goes, whatever is left in it.
    let bed = Bed::usual();
    let union = bed.union();
    chmod(&*union, "d/f", 0o600);
    let left = Plan { count: Count::Only(Op::Unlink), at: 1, fault: Fault::Error(Errno::IO) };
    bed.faults.arm(left);
    at(&*union, "d").unlink(&CX, name("f")).unwrap();
    bed.faults.disarm();
    assert_eq!(list(&*bed.disks[0], "d"), [META, ".wh.f"]);
    assert!(find(&*union, "d/f").is_none());
    union.root().rmdir(&CX, name("d")).unwrap();
    assert_eq!(list(&*bed.disks[0], "").last().map(String::as_str), Some(".wh.d"));
}

/// Where a metacopy would be of no use, or can't be made, the whole file is copied.
#[test]
fn some_files_are_copied_whole() {
    let whole = |bed: &Bed, options: Options, file: &str| {
        let union = bed.union_with(options);
        chmod(&*union, file, 0o600);
        let of_the_name = |entry: &String| entry.starts_with(".wh..wh.meta");
        assert!(!list(&*bed.disks[0], "").iter().chain(&list(&*bed.disks[0], "d")).any(of_the_name), "{file}");
        assert!(read(&*bed.disks[0], file) == read(&*bed.disks[1], file), "{file}");
    };
    whole(&Bed::usual(), Options { metacopy: Metacopy::Off, ..Options::default() }, "d/f");
    let bed = Bed::usual();
    write(&*bed.disks[1], "d/small", &[1; 4096]);
    whole(&bed, Options::default(), "d/small");
    let long = format!("d/{}", "n".repeat(243));
    let bed = Bed::usual();
    write(&*bed.disks[1], &long, &data());
    whole(&bed, Options::default(), &long);
    let bed = Bed::usual();
    at(&*bed.disks[1], "d").link(&CX, name("g"), &at(&*bed.disks[1], "d/f")).unwrap();
    whole(&bed, Options::default(), "d/f");
    for errno in [Errno::PERM, Errno::OPNOTSUPP] {
        let bed = Bed::usual();
        bed.faults.arm(Plan { count: Count::Only(Op::Setxattr), at: 1, fault: Fault::Error(errno) });
        whole(&bed, Options::default(), "d/f");
    }
}

/// `chown -R` of an image does not fill the branch that takes the changes.
#[test]
fn a_tree_that_does_not_fit_can_change_its_owner() {
    let small = MemOptions { space: 1 << 20, ..MemOptions::default() };
    let faults = Faults::new();
    let disks = vec![MemFs::with(small, &faults), MemFs::with(MemOptions::default(), &faults)];
    for file in 0..100 {
        write(&*disks[1], &format!("f{file}"), &data());
    }
    let bed = Bed { faults, disks, modes: vec![Mode::ReadWrite, Mode::ReadOnly] };
    let union = bed.union();
    for file in 0..100 {
        let owner = SetAttr { uid: Some(5), ..SetAttr::default() };
        at(&*union, &format!("f{file}")).setattr(&CX, &owner, None).unwrap();
    }
    assert_eq!(attr(&*union, "f99").uid, 5);
    // To change the data of all takes the room that they need.
    let written = (0..100).take_while(|file| at(&*union, &format!("f{file}")).open(&CX, OpenFlags::RDWR).is_ok());
    assert!(written.count() < 12);
    for file in 0..100 {
        assert!(read(&*union, &format!("f{file}")) == data(), "{file}");
        assert_eq!(attr(&*union, &format!("f{file}")).uid, 5, "{file}");
    }
}

/// Who may write the directory of a branch, but not what only root may, gives nobody other attributes.
#[test]
fn what_others_can_have_made_is_not_believed() {
    let bed = Bed::usual();
    write(&*bed.disks[1], "d/g", &data());
    {
        let union = bed.union();
        chmod(&*union, "d/f", 0o666);
    }
    let dir = at(&*bed.disks[0], "d");
    // A genuine one with another name.
    dir.link(&CX, name(".wh..wh.meta.g"), &at(&*dir_layer(&bed), &format!("d/{META}"))).unwrap();
    assert_eq!(attr(&*bed.union(), "d/g").perm(), 0o644);
    dir.unlink(&CX, name(".wh..wh.meta.g")).unwrap();
    // One without the attribute that only root can set.
    let (forged, _) = dir.create(&CX, name(".wh..wh.meta.g"), 0o666, OpenFlags::RDWR).unwrap();
    forged.vnode.setxattr(&CX, b"user.strata.origin", b"1 2 3 4 5 6 7 g", XattrFlags::default()).unwrap();
    assert_eq!(attr(&*bed.union(), "d/g").perm(), 0o644);
    for value in [&b""[..], b"1 2 3", b"9 1 1 1 1 1 1 g", &[0xff; 600]] {
        forged.vnode.setxattr(&CX, b"trusted.strata.origin", value, XattrFlags::default()).unwrap();
        assert_eq!(attr(&*bed.union(), "d/g").perm(), 0o644);
    }
    // Nor can a user of the union make one.
    let union = bed.union();
    let made = at(&*union, "d").create(&CX, name(META), 0o666, OpenFlags::RDWR).map(drop);
    assert_eq!(made, Err(Errno::PERM));
    let set = at(&*union, "d/f").setxattr(&CX, b"trusted.strata.origin", b"x", XattrFlags::default());
    assert_eq!(set, Err(Errno::PERM));
}

fn dir_layer(bed: &Bed) -> Arc<MemFs> {
    bed.disks[0].clone()
}

/// The lower file is changed, or another takes its place.
#[test]
fn changes_of_the_lower_file_show() {
    let bed = Bed::usual();
    {
        let union = bed.union();
        chmod(&*union, "d/f", 0o600);
        let lower = at(&*bed.disks[1], "d/f").open(&CX, OpenFlags::RDWR).unwrap();
        lower.write(&CX, b"other", 0).unwrap();
        assert_eq!(attr(&*union, "d/f").mtime, attr(&*bed.disks[1], "d/f").mtime);
        assert_eq!(&read(&*union, "d/f")[..5], b"other");
        assert_eq!(attr(&*union, "d/f").perm(), 0o600);
    }
    at(&*bed.disks[1], "d").unlink(&CX, name("f")).unwrap();
    write(&*bed.disks[1], "d/f", b"another file");
    let union = bed.union();
    assert_eq!(attr(&*union, "d/f").perm(), 0o644);
    // A new image with the same file.
    let bed = Bed::usual();
    let times = attr(&*bed.disks[1], "d/f");
    chmod(&*bed.union(), "d/f", 0o600);
    let rebuilt = Bed::new(&[Mode::ReadWrite, Mode::ReadOnly], MemOptions { generation: 9, ..MemOptions::default() });
    let set = SetAttr { mtime: Some(SetTime::At(times.mtime)), ..SetAttr::default() };
    at(&*rebuilt.disks[1], "d/f").setattr(&CX, &set, None).unwrap();
    let bed = Bed { disks: vec![bed.disks[0].clone(), rebuilt.disks[1].clone()], ..bed };
    assert_eq!(attr(&*bed.union(), "d/f").perm(), 0o600);
    let owner = SetAttr { uid: Some(7), ..set };
    at(&*rebuilt.disks[1], "d/f").setattr(&CX, &owner, None).unwrap();
    // Its owner may have made it so.
    assert_eq!(attr(&*bed.union(), "d/f").perm(), 0o644);
}

/// The lower branch is mounted read-write later: what has a metacopy is copied up all the same.
#[test]
fn a_branch_may_become_writable() {
    let flags = RenameFlags::default();
    for case in 0..6 {
        let mut bed = Bed::usual();
        chmod(&*bed.union(), "d/f", 0o600);
        bed.modes[1] = Mode::ReadWrite;
        let delete = if case == 5 { Delete::All } else { Delete::Whiteout };
        let union = bed.union_with(Options { delete, ..Options::default() });
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
            assert_eq!(attr(&*bed.union(), shown).perm(), expected, "{case}");
            assert!(read(&*bed.disks[1], "d/f") == data(), "{case}");
        } else {
            assert_eq!(list(&*union, "d"), [""; 0]);
            assert_eq!((list(&*bed.disks[0], "d"), list(&*bed.disks[1], "d")), (vec![], vec![]));
        }
    }
}

#[test]
fn branches_come_and_go() {
    let patience = Duration::from_secs(10);
    let bed = Bed::usual();
    let union = bed.union();
    chmod(&*union, "d/f", 0o600);
    let file = at(&*union, "d/f");
    let open = file.open(&CX, OpenFlags::RDONLY).unwrap();
    // Between the metacopy and its file comes another of that name.
    let between = Bed::usual();
    let branch = Branch { layer: between.disks[1].clone(), path: "/between".into(), mode: Mode::ReadOnly };
    write(&*between.disks[1], "d/g", b"x");
    at(&*between.disks[1], "d").unlink(&CX, name("f")).unwrap();
    write(&*between.disks[1], "d/f", b"another");
    union.change_branches(vec![BranchChange::Insert { at: 1, branch }], patience).unwrap();
    assert_eq!((attr(&*union, "d/f").perm(), &*read(&*union, "d/f")), (0o644, &b"another"[..]));
    let mut out = vec![0; BIG];
    assert_eq!(open.read(&CX, &mut out, 0), Ok(BIG));
    union.change_branches(vec![BranchChange::Remove("/between".into())], patience).unwrap();
    assert_eq!((attr(&*union, "d/f").perm(), read(&*union, "d/f").len()), (0o600, BIG));
    // The file goes with its branch, and comes back with it.
    union.change_branches(vec![BranchChange::Remove("/b1".into())], patience).unwrap();
    assert!(find(&*union, "d/f").is_none());
    union.change_branches(vec![BranchChange::Insert { at: 1, branch: bed.branch(1) }], patience).unwrap();
    assert_eq!((attr(&*union, "d/f").perm(), read(&*union, "d/f").len()), (0o600, BIG));
    // The branch with the metacopy is written to no longer: another takes the changes.
    let fresh = Branch { layer: MemFs::new(), path: "/fresh".into(), mode: Mode::ReadWrite };
    let changes =
        vec![BranchChange::Mode("/b0".into(), Mode::ReadOnly), BranchChange::Insert { at: 0, branch: fresh.clone() }];
    union.change_branches(changes, patience).unwrap();
    assert_eq!(attr(&*union, "d/f").perm(), 0o600);
    chmod(&*union, "d/f", 0o604);
    assert_eq!(list(&*fresh.layer, "d"), [META]);
    assert_eq!(attr(&*bed.disks[0], &format!("d/{META}")).perm(), 0o600);
    assert_eq!(attr(&*union, "d/f").perm(), 0o604);
    assert!(read(&*union, "d/f") == data());
    at(&*union, "d/f").open(&CX, OpenFlags::RDWR).unwrap();
    assert_eq!(list(&*fresh.layer, "d"), ["f"]);
    assert_eq!((attr(&*union, "d/f").perm(), list(&*bed.disks[0], "d")), (0o604, vec![META.to_owned()]));
}

/// Changes of attributes beside the first write: none is lost.
#[test]
fn attributes_change_while_the_data_are_copied() {
    for round in 0..50 {
        let bed = Bed::usual();
        let union = bed.union();
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
        assert_eq!(list(&*bed.disks[0], "d"), ["f"], "{round}");
        assert_eq!(&read(&*union, "d/f")[..3], b"new");
    }
}

/// `copyup=` says who owns a copy of the original. What was changed since is kept when the data follow.
#[test]
fn changed_attributes_outlive_the_copy_of_the_data() {
    for copyup in [Copyup::CurrentUser, Copyup::Mounter { uid: 5, gid: 5, mode: 0o666 }] {
        let bed = Bed::usual();
        let union = bed.union_with(Options { copyup, ..Options::default() });
        chmod(&*union, "d/f", 0o4751);
        let owner = SetAttr { uid: Some(7), gid: Some(8), mode: Some(0o2711), ..SetAttr::default() };
        at(&*union, "d/f").setattr(&CX, &owner, None).unwrap();
        assert_eq!(list(&*bed.disks[0], "d"), [META]);
        let before = attr(&*union, "d/f");
        assert_eq!((before.uid, before.gid, before.perm()), (7, 8, 0o2711));
        at(&*union, "d/f").open(&CX, OpenFlags::RDWR).unwrap();
        assert_eq!(list(&*bed.disks[0], "d"), ["f"]);
        let after = attr(&*union, "d/f");
        assert_eq!((after.uid, after.gid, after.perm()), (7, 8, 0o2711), "{copyup:?}");
    }
}

/// fsync(2) of a file makes its attributes durable, wherever they are.
#[test]
fn a_flush_of_the_file_flushes_its_attributes() {
    let upper = Faults::new();
    let below = Bed::usual();
    let disks = vec![MemFs::with(MemOptions::default(), &upper), below.disks[1].clone()];
    let bed = Bed { faults: upper, disks, modes: below.modes };
    let union = bed.union();
    let open = at(&*union, "d/f").open(&CX, OpenFlags::RDONLY).unwrap();
    at(&*union, "d/f").setattr(&CX, &SetAttr { mode: Some(0o600), ..SetAttr::default() }, Some(&*open)).unwrap();
    bed.faults.arm(Plan { count: Count::Only(Op::Fsync), at: 1, fault: Fault::Error(Errno::IO) });
    assert_eq!(open.fsync(&CX, false), Err(Errno::IO));
    bed.faults.disarm();
    assert_eq!(open.fsync(&CX, false), Ok(()));
}

/// Also where the lower file was changed behind the union's back.
#[test]
fn a_time_that_is_set_shows() {
    let bed = Bed::usual();
    let union = bed.union();
    chmod(&*union, "d/f", 0o600);
    at(&*bed.disks[1], "d/f").open(&CX, OpenFlags::RDWR).unwrap().write(&CX, b"other", 0).unwrap();
    let then = Time { sec: 11, nsec: 12 };
    let times = SetAttr { mtime: Some(SetTime::At(then)), ..SetAttr::default() };
    assert_eq!(at(&*union, "d/f").setattr(&CX, &times, None).unwrap().mtime, then);
    assert_eq!(attr(&*union, "d/f").mtime, then);
    assert_eq!(list(&*bed.disks[0], "d"), [META]);
    let union = bed.union();
    assert_eq!(attr(&*union, "d/f").mtime, then);
    at(&*bed.disks[1], "d/f").open(&CX, OpenFlags::RDWR).unwrap().write(&CX, b"third", 0).unwrap();
    assert_eq!(attr(&*union, "d/f").mtime, attr(&*bed.disks[1], "d/f").mtime);
}

/// The branches of one union are lower branches of another, which numbers them otherwise.
#[test]
fn another_union_shows_the_same() {
    let bed = Bed::usual();
    for uid in [0, 7] {
        at(&*bed.disks[1], "d/f").setattr(&CX, &SetAttr { uid: Some(uid), ..SetAttr::default() }, None).unwrap();
        chmod(&*bed.union(), "d/f", 0o600);
        let branch = |layer: &Arc<MemFs>, path: &str, mode| Branch { layer: layer.clone(), path: path.into(), mode };
        let branches = vec![
            branch(&MemFs::new(), "/new", Mode::ReadWrite),
            branch(&bed.disks[0], "/b0", Mode::ReadOnly),
            branch(&bed.disks[1], "/b1", Mode::ReadOnly),
        ];
        let other = Unionfs::new(branches, Options::default()).unwrap();
        assert_eq!(attr(&*other, "d/f").perm(), 0o600, "{uid}");
        // The image was mounted elsewhere.
        let branches = vec![bed.branch(0), branch(&bed.disks[1], "/elsewhere", Mode::ReadOnly)];
        assert_eq!(attr(&*Unionfs::new(branches, Options::default()).unwrap(), "d/f").perm(), 0o600, "{uid}");
        at(&*bed.disks[0], "d").unlink(&CX, name(META)).unwrap();
    }
}

/// A lower file that was a metacopy once, or has such an attribute from elsewhere.
#[test]
fn an_origin_of_the_lower_file_means_nothing() {
    let bed = Bed::usual();
    let set =
        |value: &[u8]| at(&*bed.disks[1], "d/f").setxattr(&CX, b"trusted.strata.origin", value, XattrFlags::default());
    set(b"1 2 3 4 5 6 7 g").unwrap();
    chmod(&*bed.union(), "d/f", 0o600);
    assert_eq!(list(&*bed.disks[0], "d"), [META]);
    assert_eq!(attr(&*bed.union(), "d/f").perm(), 0o600);
}

/// Extended attributes of a file may fill what the branch has for them.
#[test]
fn an_origin_that_does_not_fit_makes_a_whole_copy() {
    for at_step in 1..=2 {
        let bed = Bed::usual();
        at(&*bed.disks[1], "d/f").setxattr(&CX, b"user.x", b"value", XattrFlags::default()).unwrap();
        let union = bed.union();
        bed.faults.arm(Plan { count: Count::Only(Op::Setxattr), at: at_step, fault: Fault::Error(Errno::NOSPC) });
        chmod(&*union, "d/f", 0o600);
        bed.faults.disarm();
        assert_eq!(list(&*bed.disks[0], "d"), ["f"]);
    }
}

/// What somebody else has put at the name does not keep anybody from changing attributes.
#[test]
fn something_else_may_have_the_name() {
    for directory in [false, true] {
        let bed = Bed::usual();
        bed.disks[0].root().mkdir(&CX, name("d"), 0o755).unwrap();
        let dir = at(&*bed.disks[0], "d");
        if directory {
            dir.mkdir(&CX, name(META), 0o755).unwrap();
        } else {
            dir.symlink(&CX, name(META), b"x").unwrap();
        }
        chmod(&*bed.union(), "d/f", 0o600);
        assert_eq!(attr(&*bed.union(), "d/f").perm(), 0o600);
        assert_eq!(list(&*bed.disks[0], "d").contains(&"f".to_owned()), directory);
    }
}

/// Somebody removes a metacopy behind the union's back, or puts it back.
#[test]
fn a_metacopy_may_go_and_come() {
    let bed = Bed::usual();
    let union = bed.union();
    chmod(&*union, "d/f", 0o600);
    let file = at(&*union, "d/f");
    let dir = at(&*bed.disks[0], "d");
    dir.rename(&CX, name(META), &dir, name("aside"), RenameFlags::default()).unwrap();
    assert_eq!(attr(&*union, "d/f").perm(), 0o644);
    assert_eq!(file.getattr(&CX).unwrap().perm(), 0o644);
    dir.rename(&CX, name("aside"), &dir, name(META), RenameFlags::default()).unwrap();
    assert_eq!(attr(&*union, "d/f").perm(), 0o600);
    dir.unlink(&CX, name(META)).unwrap();
    chmod(&*union, "d/f", 0o640);
    assert_eq!(attr(&*bed.union(), "d/f").perm(), 0o640);
}

/// A user makes a file like another's, has the union make a metacopy of it, and moves that to the other one.
#[test]
fn a_metacopy_of_ones_own_file_does_not_fit_another() {
    let bed = Bed::usual();
    let root = bed.disks[1].root();
    root.mkdir(&CX, name("own"), 0o777).unwrap();
    write(&*bed.disks[1], "own/f", &data());
    let secret = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    at(&*bed.disks[1], "d/f").setattr(&CX, &secret, None).unwrap();
    let like =
        SetAttr { mtime: Some(SetTime::At(attr(&*bed.disks[1], "d/f").mtime)), uid: Some(7), ..SetAttr::default() };
    at(&*bed.disks[1], "own/f").setattr(&CX, &like, None).unwrap();
    chmod(&*bed.union(), "own/f", 0o666);
    let upper = bed.disks[0].root();
    upper.mkdir(&CX, name("d"), 0o777).unwrap();
    let (own, d) = (at(&*bed.disks[0], "own"), at(&*bed.disks[0], "d"));
    own.rename(&CX, name(META), &d, name(META), RenameFlags::default()).unwrap();
    let now = attr(&*bed.union(), "d/f");
    assert_eq!((now.uid, now.perm()), (0, 0o600));
}

/// The owner of two directories can't move a metacopy from one of root's files to another that looks the same.
#[test]
fn a_metacopy_of_a_similar_file_does_not_fit_in_a_users_directory() {
    let bed = Bed::usual();
    let root = bed.disks[1].root();
    root.mkdir(&CX, name("e"), 0o755).unwrap();
    write(&*bed.disks[1], "e/f", &data());
    let time = SetAttr { mtime: Some(SetTime::At(attr(&*bed.disks[1], "d/f").mtime)), ..SetAttr::default() };
    at(&*bed.disks[1], "e/f").setattr(&CX, &time, None).unwrap();
    chmod(&*bed.union(), "e/f", 0o666);
    bed.disks[0].root().mkdir(&CX, name("d"), 0o755).unwrap();
    let (e, d) = (at(&*bed.disks[0], "e"), at(&*bed.disks[0], "d"));
    e.rename(&CX, name(META), &d, name(META), RenameFlags::default()).unwrap();
    // Root has done it, perhaps with a new image.
    assert_eq!(attr(&*bed.union(), "d/f").perm(), 0o666);
    let users = SetAttr { uid: Some(7), ..SetAttr::default() };
    d.setattr(&CX, &users, None).unwrap();
    assert_eq!(attr(&*bed.union(), "d/f").perm(), 0o644);
}

/// Whoever can write a lower file where it lies gets no share in what the file is given in the union.
#[test]
fn what_others_can_write_is_copied_before_it_is_given_rights() {
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
    // The new owner, and whether it gives rights.
    let cases: [(Change<'_>, Option<u32>, bool); 4] =
        [(&given, Some(0), false), (&set_id, None, true), (&capable, None, true), (&plain, Some(7), false)];
    for before in [false, true] {
        for (uid, mode, others) in [(7, 0o644, true), (0, 0o666, true), (0, 0o644, false)] {
            for (at_case, (case, owner, rights)) in cases.iter().enumerate() {
                let bed = Bed::usual();
                at(&*bed.disks[1], "d/f").setattr(&CX, &owned(uid, mode), None).unwrap();
                let union = bed.union();
                if before {
                    chmod(&*union, "d/f", 0o600);
                }
                case(&at(&*union, "d/f")).unwrap();
                let whole = others && (*rights || owner.is_some_and(|owner| owner != uid));
                let expected = if whole { "f" } else { META };
                assert_eq!(list(&*bed.disks[0], "d"), [expected], "{uid} {mode:o} {at_case} {before}");
                assert!(read(&*union, "d/f") == data());
            }
        }
    }
    // Nor does copy-up give the file away.
    let bed = Bed::usual();
    at(&*bed.disks[1], "d/f").setattr(&CX, &owned(7, 0o644), None).unwrap();
    let copyup = Copyup::Mounter { uid: 0, gid: 0, mode: 0o644 };
    chmod(&*bed.union_with(Options { copyup, ..Options::default() }), "d/f", 0o755);
    assert_eq!(list(&*bed.disks[0], "d"), ["f"]);
}

/// The branch of a metacopy turns out to be read-only: the next change goes to one further left.
#[test]
fn a_metacopy_moves_left_where_its_branch_refuses_changes() {
    let bed = Bed::new(&[Mode::ReadWrite, Mode::ReadWrite, Mode::ReadOnly], MemOptions::default());
    bed.disks[1].root().mkdir(&CX, name("d"), 0o755).unwrap();
    let union = bed.union();
    chmod(&*union, "d/f", 0o4700);
    assert_eq!(
        (list(&*bed.disks[0], ""), list(&*bed.disks[1], "d")),
        (vec![".wh..wh.ident".into()], vec![META.into()])
    );
    bed.faults.arm(Plan { count: Count::Only(Op::Setattr), at: 1, fault: Fault::Error(Errno::ROFS) });
    let owner = SetAttr { gid: Some(8), ..SetAttr::default() };
    at(&*union, "d/f").setattr(&CX, &owner, None).unwrap();
    bed.faults.disarm();
    assert_eq!(list(&*bed.disks[0], "d"), [META]);
    let now = attr(&*union, "d/f");
    assert_eq!((now.gid, now.perm()), (8, 0o700));
    assert_eq!(attr(&*bed.disks[1], &format!("d/{META}")).gid, 0);
    // The next mount finds it writable again.
    let union = bed.union();
    assert_eq!((attr(&*union, "d/f").gid, attr(&*union, "d/f").perm()), (8, 0o700));
    at(&*union, "d/f").open(&CX, OpenFlags::RDWR).unwrap();
    assert_eq!((attr(&*union, "d/f").gid, read(&*union, "d/f") == data()), (8, true));
    chmod(&*union, "d/f", 0o640);
    at(&*union, "d").unlink(&CX, name("f")).unwrap();
    assert!(find(&*bed.union(), "d/f").is_none());
}
