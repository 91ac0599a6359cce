//! Strata file systems over Strata file systems, as separate mounts and in one server, and other
//! stackable file systems over and under them.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use strata_tests::crypt::Volume;
use strata_tests::oracle::Oracle;
use strata_tests::oracle::population::{build, population};
use strata_tests::process::sh;
use strata_tests::suite::{fsx, pjdfstest, regressions};
use strata_tests::tree::{self, Times};
use strata_tests::{Mounted, Sandbox, Spec, Transport, on_both_transports};

const STEPS: u64 = 600;

fn dirs(sandbox: &Sandbox, names: &[&str]) -> Vec<PathBuf> {
    let disk = sandbox.ext4("disk", 512);
    names.iter().map(|name| disk.join(name)).inspect(|dir| fs::create_dir(dir).unwrap()).collect()
}

/// Compares `top` with a native tree of the same contents, then performs random operations on both.
fn check(sandbox: &Sandbox, seed: u64, native: PathBuf, top: &Mounted) {
    let native = Mounted::new(Spec::Bind(native), &sandbox.path("native"));
    let mut oracle = Oracle::new(seed, native.dir(), top.dir());
    for _ in 0..3 {
        oracle.steps(STEPS / 3);
        oracle.compare("on the stack");
    }
    oracle.close_all();
    let artifacts = sandbox.dir("artifacts");
    let output = fsx(&top.path("fsx"), seed, 3000, &artifacts);
    assert!(output.status.success(), "fsx: {}", output.text);
}

/// Three null layers in three mounts behave like the native file system.
fn three_null_layers(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = dirs(&sandbox, &["native", "lower"]);
    dirs.iter().for_each(|dir| build(dir, &population(21)));
    let first = Mounted::new(Spec::wrap(&dirs[1], transport), &sandbox.path("w1"));
    let second = Mounted::new(Spec::wrap(first.dir(), transport), &sandbox.path("w2"));
    let third = Mounted::new(Spec::wrap(second.dir(), transport), &sandbox.path("w3"));
    check(&sandbox, 21, dirs[0].clone(), &third);
    drop((third, second, first));
}

/// Eight null layers in one server behave like the native file system.
fn eight_null_layers_in_one_server(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = dirs(&sandbox, &["native", "lower"]);
    dirs.iter().for_each(|dir| build(dir, &population(25)));
    let top = Mounted::new(Spec::stack(&"wrapfs / ".repeat(8), &dirs[1], transport), &sandbox.path("s"));
    check(&sandbox, 25, dirs[0].clone(), &top);
}

/// A layer that encodes names, between two null layers, behaves like the native file system.
fn a_name_encoding_layer_between_two_null_layers(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = dirs(&sandbox, &["native", "lower"]);
    dirs.iter().for_each(|dir| build(dir, &[]));
    let top = Mounted::new(Spec::stack("wrapfs / rot13 / wrapfs / ", &dirs[1], transport), &sandbox.path("s"));
    check(&sandbox, 26, dirs[0].clone(), &top);
}

fn pjdfstest_on_a_stack_of_three(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = dirs(&sandbox, &["native", "lower"]);
    let second = sandbox.dir("second");
    let native = pjdfstest(&dirs[0], &second);
    let top = Mounted::new(Spec::stack("wrapfs / rot13 / wrapfs / ", &dirs[1], transport), &sandbox.path("s"));
    let regressions = regressions(&native, &pjdfstest(top.dir(), &second));
    assert!(regressions.is_empty(), "cases that fail but pass natively:\n{}", regressions.join("\n"));
}

fn pjdfstest_on_two_null_layers(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = dirs(&sandbox, &["native", "lower"]);
    let second = sandbox.dir("second");
    let native = pjdfstest(&dirs[0], &second);
    let below = Mounted::new(Spec::wrap(&dirs[1], transport), &sandbox.path("w1"));
    let top = Mounted::new(Spec::wrap(below.dir(), transport), &sandbox.path("w2"));
    let regressions = regressions(&native, &pjdfstest(top.dir(), &second));
    assert!(regressions.is_empty(), "cases that fail but pass natively:\n{}", regressions.join("\n"));
    drop((top, below));
}

/// A union whose branches are mounts of the null layer.
fn union_over_null_layers(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = dirs(&sandbox, &["native", "rw", "ro"]);
    build(&dirs[0], &population(22));
    build(&dirs[2], &population(22));
    build(&dirs[1], &[]);
    let rw = Mounted::new(Spec::wrap(&dirs[1], transport), &sandbox.path("wrw"));
    let ro = Mounted::new(Spec::wrap(&dirs[2], transport), &sandbox.path("wro"));
    let mut top = Mounted::new(Spec::union(rw.dir(), ro.dir(), transport), &sandbox.path("u"));
    check(&sandbox, 22, dirs[0].clone(), &top);
    let before = tree::read(top.dir());
    top.remount();
    assert_eq!(tree::difference(&before, &tree::read(top.dir()), Times::Exact), "");
    drop((top, rw, ro));
}

/// A union whose read-only branch is a union, and the null layer over it.
fn null_layer_over_union_over_union(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = dirs(&sandbox, &["native", "rw", "middle", "ro"]);
    build(&dirs[0], &population(23));
    build(&dirs[1], &[]);
    build(&dirs[2], &[]);
    build(&dirs[3], &population(23));
    let below = Mounted::new(Spec::union(&dirs[2], &dirs[3], transport), &sandbox.path("u1"));
    let union = Mounted::new(Spec::union(&dirs[1], below.dir(), transport), &sandbox.path("u2"));
    let top = Mounted::new(Spec::wrap(union.dir(), transport), &sandbox.path("w"));
    let before = tree::read(below.dir());
    check(&sandbox, 23, dirs[0].clone(), &top);
    assert_eq!(tree::difference(&before, &tree::read(below.dir()), Times::Exact), "", "the union below was written");
    drop((top, union, below));
}

/// overlayfs with a lower layer on Strata, and a union with its read-only branch on overlayfs.
fn with_overlayfs(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = dirs(&sandbox, &["rw", "ro", "upper", "work", "upper2", "work2", "rw2"]);
    build(&dirs[1], &population(24));
    build(&dirs[0], &[]);
    build(&dirs[6], &[]);
    let union = Mounted::new(Spec::union(&dirs[0], &dirs[1], transport), &sandbox.path("u"));
    let over = sandbox.dir("over");
    let overlay = |lower: &PathBuf, upper: &PathBuf, work: &PathBuf, at: &PathBuf| {
        let [lower, upper, work] = [lower, upper, work].map(|p| p.display());
        let options = CString::new(format!("lowerdir={lower},upperdir={upper},workdir={work}")).unwrap();
        mount("overlay", at, "overlay", MountFlags::empty(), Some(options.as_c_str())).expect("overlayfs on our mount");
    };
    overlay(&union.dir().to_owned(), &dirs[2], &dirs[3], &over);
    let names = |dir: &PathBuf| fs::read_dir(dir).unwrap().count();
    assert_eq!(names(&over), names(&union.dir().to_owned()));
    let file = tree::read(union.dir())
        .into_iter()
        .find(|(_, n)| rustix::fs::FileType::from_raw_mode(n.mode).is_file() && n.size > 0);
    let (path, node) = file.unwrap();
    let path = over.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&path));
    assert_eq!(tree::node(&path).content, node.content);
    File::options().append(true).open(&path).unwrap().write_all(b"+").unwrap();
    assert_eq!(tree::node(&path).size, node.size + 1);
    unmount(&over, UnmountFlags::empty()).unwrap();
    // With the roles exchanged.
    overlay(&dirs[1], &dirs[4], &dirs[5], &over);
    let top = Mounted::new(Spec::union(&dirs[6], &over, transport), &sandbox.path("top"));
    let path = top.path(path.strip_prefix(&over).unwrap());
    File::options().append(true).open(&path).unwrap().write_all(b"+").unwrap();
    assert_eq!(tree::node(&path).size, node.size + 1);
    drop(top);
    drop(union);
    unmount(&over, UnmountFlags::empty()).unwrap();
}

/// overlayfs with its upper layer in a union and in a null layer: it renames with
/// `RENAME_WHITEOUT`.
fn under_overlayfs(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = dirs(&sandbox, &["rw", "ro", "lower", "null", "over"]);
    for n in 0..4 {
        fs::create_dir_all(dirs[2].join(format!("d{n}/sub"))).unwrap();
        fs::write(dirs[2].join(format!("d{n}/sub/f")), format!("{n}")).unwrap();
        fs::write(dirs[2].join(format!("f{n}")), format!("{n}")).unwrap();
    }
    let union = Mounted::new(Spec::union(&dirs[0], &dirs[1], transport), &sandbox.path("u"));
    let null = Mounted::new(Spec::Wrap { lower: dirs[3].clone(), transport }, &sandbox.path("n"));
    let over = &dirs[4];
    for (upper, work) in [&union, &null].map(|mounted| (mounted.path("upper"), mounted.path("work"))) {
        fs::create_dir(&upper).unwrap();
        fs::create_dir(&work).unwrap();
        let [lower, upper_dir, work] = [&dirs[2], &upper, &work].map(|path| path.display());
        let options = format!("lowerdir={lower},upperdir={upper_dir},workdir={work},redirect_dir=on");
        let options = CString::new(options).unwrap();
        let overlay = || mount("overlay", over, "overlay", MountFlags::empty(), Some(options.as_c_str())).unwrap();
        overlay();
        File::options().append(true).open(over.join("f0")).unwrap().write_all(b"+").unwrap();
        fs::remove_file(over.join("f1")).unwrap();
        fs::rename(over.join("f2"), over.join("g2")).unwrap();
        fs::rename(over.join("f3"), over.join("f0")).unwrap();
        fs::rename(over.join("d0"), over.join("moved")).unwrap();
        fs::remove_dir_all(over.join("d1")).unwrap();
        fs::create_dir(over.join("d1")).unwrap();
        fs::rename(over.join("d2/sub/f"), over.join("d2/f")).unwrap();
        // overlayfs over two file systems returns a `d_ino` that differs from `st_ino`: compare
        // names only.
        let names = || sh("cd \"$1\" && find . | sort", &[over]);
        let seen = names();
        unmount(over, UnmountFlags::empty()).unwrap();
        // overlayfs stores whiteouts in the upper layer as device nodes, hard-linked to each other.
        let left = fs::symlink_metadata(upper.join("f2")).unwrap();
        assert!(std::os::unix::fs::FileTypeExt::is_char_device(&left.file_type()) && left.rdev() == 0);
        overlay();
        assert_eq!(names(), seen);
        assert_eq!(fs::read_to_string(over.join("f0")).unwrap(), "3");
        assert_eq!(fs::read_to_string(over.join("g2")).unwrap(), "2");
        assert_eq!(fs::read_to_string(over.join("moved/sub/f")).unwrap(), "0");
        assert_eq!(fs::read_to_string(over.join("d2/f")).unwrap(), "2");
        for gone in ["f1", "f2", "f3", "d0", "d1/sub", "d2/sub/f"] {
            assert!(!over.join(gone).exists(), "{gone}");
        }
        unmount(over, UnmountFlags::empty()).unwrap();
    }
}

/// A union mounted over one of its branches has that branch's contents: the branch was opened
/// before the mount covered it.
fn over_its_own_branch(transport: Transport) {
    let sandbox = Sandbox::with_time(Duration::from_secs(60));
    let dirs = dirs(&sandbox, &["rw", "ro"]);
    fs::write(dirs[1].join("f"), "text").unwrap();
    let union = Mounted::new(Spec::union(&dirs[0], &dirs[1], transport), &dirs[1]);
    fs::write(dirs[1].join("g"), "through the union").unwrap();
    File::options().append(true).open(dirs[1].join("f")).unwrap().write_all(b"+").unwrap();
    assert_eq!(fs::read_to_string(dirs[0].join("f")).unwrap(), "text+");
    drop(union);
    assert_eq!(fs::read_to_string(dirs[1].join("f")).unwrap(), "text");
    assert!(!dirs[1].join("g").exists() && dirs[0].join("g").exists());
}

/// Copies a tree into the directory under a stack, through the stack.
fn fill(sandbox: &Sandbox, above: &str, lower: &Path, from: &Path, transport: Transport) {
    let stack = Mounted::new(Spec::stack(above, lower, transport), &sandbox.path("filling"));
    sh("cp -a \"$1\"/. \"$2\"", &[from, stack.dir()]);
}

/// A union whose branches are stacks behaves like the native file system, and its read-only branch
/// does not change.
fn union_of_stacks(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = dirs(&sandbox, &["native", "rw", "ro"]);
    build(&dirs[0], &population(27));
    build(&dirs[1], &[]);
    fill(&sandbox, "zstd / ", &dirs[2], &dirs[0], transport);
    let before = tree::read(&dirs[2]);
    let [rw, ro] = [&dirs[1], &dirs[2]].map(|dir| dir.display());
    let words = format!("wrapfs / unionfs,dirs=[rot13/[xor,key=a,block=1000/[{rw}]]]=rw:[zstd / {ro}]=ro").into();
    let mut top = Mounted::new(Spec::Stack { words, transport }, &sandbox.path("u"));
    check(&sandbox, 27, dirs[0].clone(), &top);
    let seen = tree::read(top.dir());
    top.remount();
    assert_eq!(tree::difference(&seen, &tree::read(top.dir()), Times::Exact), "");
    drop(top);
    assert_eq!(tree::difference(&before, &tree::read(&dirs[2]), Times::Exact), "", "the read-only branch was written");
}

/// A union over a union, in one server.
fn union_over_a_union_in_one_server(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = dirs(&sandbox, &["native", "rw", "middle", "ro"]);
    build(&dirs[0], &population(28));
    build(&dirs[1], &[]);
    build(&dirs[2], &[]);
    build(&dirs[3], &population(28));
    let before = [&dirs[2], &dirs[3]].map(|dir| tree::read(dir));
    let [rw, middle, ro] = [&dirs[1], &dirs[2], &dirs[3]].map(|dir| dir.display());
    let words = format!("unionfs,dirs={rw}=rw:[unionfs,dirs={middle}=ro:{ro}=ro]=ro").into();
    let mut top = Mounted::new(Spec::Stack { words, transport }, &sandbox.path("u"));
    check(&sandbox, 28, dirs[0].clone(), &top);
    let seen = tree::read(top.dir());
    top.remount();
    assert_eq!(tree::difference(&seen, &tree::read(top.dir()), Times::Exact), "");
    drop(top);
    for (dir, before) in [&dirs[2], &dirs[3]].iter().zip(before) {
        assert_eq!(tree::difference(&before, &tree::read(dir), Times::Exact), "", "the union below was written");
    }
}

/// Files are copied up into a branch that compresses them, and from a branch with a different key
/// than the target.
fn copy_up_into_a_branch_that_is_a_stack(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = dirs(&sandbox, &["rw", "plain", "masked"]);
    let line = "what is repeated takes little room\n";
    let big = line.repeat(100_000);
    let fill = |dir: &Path| {
        fs::write(dir.join("big"), &big).unwrap();
        fs::set_permissions(dir.join("big"), PermissionsExt::from_mode(0o640)).unwrap();
    };
    fill(&dirs[1]);
    let masked = Mounted::new(Spec::stack("xor,key=one / ", &dirs[2], transport), &sandbox.path("filling"));
    fill(masked.dir());
    fs::rename(masked.path("big"), masked.path("masked")).unwrap();
    drop(masked);
    let lower = [&dirs[1], &dirs[2]].map(|dir| tree::read(dir));
    let [rw, plain, masked] = [&dirs[0], &dirs[1], &dirs[2]].map(|dir| dir.display());
    let words = format!("unionfs,dirs=[zstd / xor,key=two / {rw}]=rw:{plain}=ro:[xor,key=one/[{masked}]]=ro").into();
    let mut union = Mounted::new(Spec::Stack { words, transport }, &sandbox.path("u"));
    for name in ["big", "masked"] {
        let before = fs::metadata(union.path(name)).unwrap();
        File::options().append(true).open(union.path(name)).unwrap().write_all(b"more\n").unwrap();
        let after = fs::metadata(union.path(name)).unwrap();
        assert_eq!((after.ino(), after.mode(), after.len()), (before.ino(), 0o100_640, big.len() as u64 + 5), "{name}");
    }
    for remounted in [false, true] {
        for name in ["big", "masked"] {
            let text = fs::read_to_string(union.path(name)).unwrap();
            assert!(text.strip_suffix("more\n") == Some(&big), "{name}, remounted: {remounted}");
            let stored = fs::metadata(dirs[0].join(name)).unwrap();
            assert!(stored.blocks() * 512 < big.len() as u64 / 10, "{name} occupies {} blocks", stored.blocks());
        }
        union.remount();
    }
    drop(union);
    for (dir, before) in [&dirs[1], &dirs[2]].iter().zip(lower) {
        assert_eq!(tree::difference(&before, &tree::read(dir), Times::Exact), "");
    }
}

/// Data is compressed, then encrypted.
fn compression_above_encryption(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = dirs(&sandbox, &["native", "lower"]);
    build(&dirs[0], &population(41));
    let volume = Volume::new(&dirs[1], &[]);
    let above = format!("zstd / {} / ", volume.layer());
    fill(&sandbox, &above, volume.dir(), &dirs[0], transport);
    let mut top = Mounted::new(Spec::stack(&above, volume.dir(), transport), &sandbox.path("s"));
    // Reading changes times of access.
    let read = |dir: &Path| {
        let mut tree = tree::read(dir);
        tree.values_mut().for_each(|node| node.atime = (0, 0));
        tree
    };
    assert_eq!(tree::difference(&read(&dirs[0]), &read(top.dir()), Times::Exact), "");
    let output = fsx(&top.path("fsx"), 41, 3000, &sandbox.dir("artifacts"));
    assert!(output.status.success(), "fsx: {}", output.text);
    let text = "what is repeated takes little room\n".repeat(100_000);
    fs::write(top.path("text"), &text).unwrap();
    top.remount();
    assert!(fs::read_to_string(top.path("text")).unwrap() == text);
    assert!(fs::metadata(top.path("text")).unwrap().blocks() * 512 < text.len() as u64 / 10);
    drop(top);
    let fsck = volume.fsck();
    assert!(fsck.status.success(), "{}", fsck.text);
}

/// A union whose branches are encrypted with different keys and ciphers.
fn union_of_encrypted_branches(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = dirs(&sandbox, &["native", "rw", "ro"]);
    build(&dirs[0], &population(42));
    let (rw, ro) = (Volume::new(&dirs[1], &[]), Volume::new(&dirs[2], &["-xchacha"]));
    fill(&sandbox, &format!("{} / ", ro.layer()), ro.dir(), &dirs[0], transport);
    sh("touch -r \"$1\" \"$2\"", &[&dirs[0], &dirs[1]]);
    let before = tree::read(ro.dir());
    let branches = format!("[{} / {}]=rw:[{} / {}]=ro", rw.layer(), dirs[1].display(), ro.layer(), dirs[2].display());
    let words = format!("unionfs,dirs={branches}").into();
    let mut top = Mounted::new(Spec::Stack { words, transport }, &sandbox.path("u"));
    check(&sandbox, 42, dirs[0].clone(), &top);
    let seen = tree::read(top.dir());
    top.remount();
    assert_eq!(tree::difference(&seen, &tree::read(top.dir()), Times::Exact), "");
    drop(top);
    assert_eq!(tree::difference(&before, &tree::read(ro.dir()), Times::Exact), "", "the read-only branch was written");
}

/// Replicas that store the same tree in different formats.
fn replicas_that_are_stacks(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = dirs(&sandbox, &["native", "packed", "masked"]);
    build(&dirs[0], &population(29));
    for (above, dir) in [("zstd / ", &dirs[1]), ("rot13 / xor / ", &dirs[2])] {
        fill(&sandbox, above, dir, &dirs[0], transport);
    }
    let [native, packed, masked] = [&dirs[0], &dirs[1], &dirs[2]].map(|dir| dir.display());
    let replicas = format!("{native}:[zstd / {packed}]:[rot13/[xor / {masked}]]");
    let words = format!("wrapfs / lbfs,dirs={replicas},policy=roundrobin,compare=1").into();
    let top = Mounted::new(Spec::Stack { words, transport }, &sandbox.path("lb"));
    let want = sh("cd \"$1\" && find . -type f | sort | xargs -d '\\n' sha256sum", &[&dirs[0]]);
    for _ in 0..3 {
        assert_eq!(sh("cd \"$1\" && find . -type f | sort | xargs -d '\\n' sha256sum", &[&top.dir().to_owned()]), want);
    }
    assert_eq!(fs::write(top.path("new"), "").unwrap_err().raw_os_error(), Some(30));
}

on_both_transports!(
    three_null_layers,
    eight_null_layers_in_one_server,
    a_name_encoding_layer_between_two_null_layers,
    pjdfstest_on_a_stack_of_three,
    pjdfstest_on_two_null_layers,
    union_over_null_layers,
    null_layer_over_union_over_union,
    with_overlayfs,
    under_overlayfs,
    over_its_own_branch,
    union_of_stacks,
    union_over_a_union_in_one_server,
    copy_up_into_a_branch_that_is_a_stack,
    compression_above_encryption,
    union_of_encrypted_branches,
    replicas_that_are_stacks,
);
