//! File systems of ours on file systems of ours, mount over mount, and others' on ours.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;
use strata_tests::oracle::Oracle;
use strata_tests::oracle::population::{build, population};
use strata_tests::process::sh;
use strata_tests::suite::{fsx, pjdfstest, worse};
use strata_tests::tree::{self, Times};
use strata_tests::{Mounted, Sandbox, Spec, Transport, on_both_transports};

const STEPS: u64 = 600;

fn dirs(sandbox: &Sandbox, names: &[&str]) -> Vec<PathBuf> {
    let disk = sandbox.ext4("disk", 512);
    names.iter().map(|name| disk.join(name)).inspect(|dir| fs::create_dir(dir).unwrap()).collect()
}

/// Compares `top` with a native tree of the same contents, then does random things to both.
fn check(sandbox: &Sandbox, seed: u64, native: PathBuf, top: &Mounted) {
    let native = Mounted::new(Spec::Bind(native), &sandbox.path("native"));
    let mut oracle = Oracle::new(seed, native.dir(), top.dir());
    for _ in 0..3 {
        oracle.steps(STEPS / 3);
        oracle.compare("on the stack");
    }
    oracle.close_all();
    let artifacts = sandbox.dir("artifacts");
    let said = fsx(&top.path("fsx"), seed, 3000, &artifacts);
    assert!(said.status.success(), "fsx: {}", said.text);
}

/// Three null layers over one another are not to be seen.
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

/// Eight null layers in one server are not to be seen either.
fn eight_null_layers_in_one_server(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = dirs(&sandbox, &["native", "lower"]);
    dirs.iter().for_each(|dir| build(dir, &population(25)));
    let top = Mounted::new(Spec::stack(&"wrapfs / ".repeat(8), &dirs[1], transport), &sandbox.path("s"));
    check(&sandbox, 25, dirs[0].clone(), &top);
}

/// Nor is a layer that changes names on their way down between two null layers, from above.
fn a_layer_of_names_in_a_stack_of_three(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = dirs(&sandbox, &["native", "lower"]);
    dirs.iter().for_each(|dir| build(dir, &[]));
    let top = Mounted::new(Spec::stack("wrapfs / rot13 / wrapfs / ", &dirs[1], transport), &sandbox.path("s"));
    check(&sandbox, 26, dirs[0].clone(), &top);
}

/// pjdfstest on a stack of three in one server.
fn pjdfstest_on_a_stack_of_three(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = dirs(&sandbox, &["native", "lower"]);
    let second = sandbox.dir("second");
    let native = pjdfstest(&dirs[0], &second);
    let top = Mounted::new(Spec::stack("wrapfs / rot13 / wrapfs / ", &dirs[1], transport), &sandbox.path("s"));
    let worse = worse(&native, &pjdfstest(top.dir(), &second));
    assert!(worse.is_empty(), "cases that fail and pass natively:\n{}", worse.join("\n"));
}

/// pjdfstest on a null layer over a null layer.
fn pjdfstest_on_two_null_layers(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = dirs(&sandbox, &["native", "lower"]);
    let second = sandbox.dir("second");
    let native = pjdfstest(&dirs[0], &second);
    let below = Mounted::new(Spec::wrap(&dirs[1], transport), &sandbox.path("w1"));
    let top = Mounted::new(Spec::wrap(below.dir(), transport), &sandbox.path("w2"));
    let worse = worse(&native, &pjdfstest(top.dir(), &second));
    assert!(worse.is_empty(), "cases that fail and pass natively:\n{}", worse.join("\n"));
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

/// overlayfs, with its lower layer on ours, and a union with its read-only branch on overlayfs.
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
    // The other way round.
    overlay(&dirs[1], &dirs[4], &dirs[5], &over);
    let top = Mounted::new(Spec::union(&dirs[6], &over, transport), &sandbox.path("top"));
    let path = top.path(path.strip_prefix(&over).unwrap());
    File::options().append(true).open(&path).unwrap().write_all(b"+").unwrap();
    assert_eq!(tree::node(&path).size, node.size + 1);
    drop(top);
    drop(union);
    unmount(&over, UnmountFlags::empty()).unwrap();
}

/// overlayfs with its upper layer on ours, in a union and in a null layer: it renames with `RENAME_WHITEOUT`.
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
        // overlayfs over two file systems has other numbers in `d_ino` than in `st_ino`: only names are compared.
        let names = || sh("cd \"$1\" && find . | sort", &[over]);
        let seen = names();
        unmount(over, UnmountFlags::empty()).unwrap();
        // Whiteouts are devices in the upper layer, as on any file system; overlayfs links them together.
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

/// A union mounted over one of its own branches shows it: the branch was opened before it was covered.
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

on_both_transports!(
    three_null_layers,
    eight_null_layers_in_one_server,
    a_layer_of_names_in_a_stack_of_three,
    pjdfstest_on_a_stack_of_three,
    pjdfstest_on_two_null_layers,
    union_over_null_layers,
    null_layer_over_union_over_union,
    with_overlayfs,
    under_overlayfs,
    over_its_own_branch,
);
