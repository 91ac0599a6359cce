//! Real command lines of mount(8) in a private mount namespace, with the helpers in /sbin: results,
//! side effects and error messages.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::fs::AtFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::mount::{MountFlags, mount as mount_fs, mount_bind};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use strata_tests::Sandbox;
use strata_tests::mapping::Mapping;
use strata_tests::process::await_end;

const PROGRAM: &str = env!("CARGO_BIN_EXE_strata");

/// A sandbox with the helpers in /sbin, invisible to other processes.
struct Stage {
    sandbox: Sandbox,
}

impl Stage {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        let real = fs::canonicalize("/sbin").unwrap();
        let kept = sandbox.dir("sbin");
        mount_bind(&real, &kept).unwrap();
        mount_fs("helpers", &real, "tmpfs", MountFlags::empty(), None).unwrap();
        for entry in fs::read_dir(&kept).unwrap().flatten() {
            symlink(entry.path(), real.join(entry.file_name())).unwrap();
        }
        let helpers = ["mount.unionfs", "mount.fuse.unionfs", "mount.wrapfs", "mount.fuse.wrapfs"];
        for name in helpers.into_iter().chain(["umount.fuse", "umount.fuse.unionfs"]) {
            let _ = fs::remove_file(real.join(name));
            symlink(PROGRAM, real.join(name)).unwrap();
        }
        Self { sandbox }
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.sandbox.dir(name)
    }

    /// Creates two branches and a mount point; the second branch has a file.
    fn union(&self) -> (PathBuf, PathBuf, PathBuf) {
        let (rw, ro, at) = (self.dir("rw"), self.dir("ro"), self.dir("at"));
        fs::write(ro.join("base"), "base\n").unwrap();
        (rw, ro, at)
    }
}

fn line(words: &str) -> Command {
    let mut words = words.split_ascii_whitespace();
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    command
}

/// Runs a command, which must succeed without output.
fn quiet(words: &str) {
    let outcome = testkit::outcome(&mut line(words));
    assert_eq!((outcome.code, outcome.err.as_str(), outcome.out.as_str()), (0, "", ""), "{words}");
}

fn refused(words: &str, code: i32, reason: &str) {
    let outcome = testkit::outcome(&mut line(words));
    assert_eq!(outcome.code, code, "{words}: {}", outcome.err);
    assert!(outcome.err.contains(reason), "{words}: expected {:?}, got: {}", reason, outcome.err);
    assert_eq!(outcome.err.lines().count(), 1, "one line: {}", outcome.err);
    assert!(outcome.err.starts_with("mount."), "{}", outcome.err);
}

fn findmnt(at: &Path, columns: &str) -> String {
    let outcome = testkit::outcome(Command::new("findmnt").args(["-n", "-r", "--first-only", "-o", columns]).arg(at));
    assert_eq!(outcome.code, 0, "findmnt {}", at.display());
    outcome.out.trim_end().to_owned()
}

fn is_mounted(at: &Path) -> bool {
    testkit::outcome(Command::new("mountpoint").arg("-q").arg(at)).code == 0
}

fn info(at: &Path) -> serde_json::Value {
    let outcome = testkit::outcome(Command::new(PROGRAM).args(["info", "--json"]).arg(at));
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    serde_json::from_str(&outcome.out).unwrap()
}

fn server(at: &Path) -> u64 {
    info(at)["pid"].as_u64().unwrap()
}

fn unmount(at: &Path) {
    let pid = server(at);
    let outcome = testkit::outcome(Command::new("umount").arg(at));
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    await_end(pid);
}

#[test]
fn a_live_cd_union_of_the_unionfs_papers() {
    let stage = Stage::new();
    let (changes, cd, at) = (stage.dir("ramdisk"), stage.dir("KNOPPIX"), stage.dir("UNIONFS"));
    fs::write(cd.join("f"), "from the CD\n").unwrap();
    quiet("mount -t unionfs -o dirs=/mnt/ramdisk=rw:/mnt/KNOPPIX=ro /mnt/UNIONFS /mnt/UNIONFS");
    assert_eq!(findmnt(&at, "FSTYPE,SOURCE"), "fuse.unionfs /mnt/UNIONFS");
    assert_eq!(fs::read_to_string(at.join("f")).unwrap(), "from the CD\n");
    fs::write(at.join("f"), "changed\n").unwrap();
    fs::write(at.join("new"), "new\n").unwrap();
    assert_eq!(fs::read_to_string(cd.join("f")).unwrap(), "from the CD\n");
    assert_eq!(fs::read_to_string(changes.join("f")).unwrap(), "changed\n");
    unmount(&at);
    assert!(!is_mounted(&at));
}

#[test]
fn a_diskless_machine_with_nfs_of_the_unionfs_papers() {
    let stage = Stage::new();
    let (persist, bins, bin) = (stage.dir("persist"), stage.dir("nfsbins"), stage.dir("bin"));
    fs::write(bin.join("hidden"), "").unwrap();
    fs::write(bins.join("tool"), "tool").unwrap();
    quiet("mount -t unionfs none /mnt/bin -o dirs=/mnt/persist:/mnt/nfsbins=nfsro");
    assert_eq!(findmnt(&bin, "FSTYPE,SOURCE"), "fuse.unionfs unionfs");
    assert_eq!(testkit::names(&bin), ["tool"]);
    fs::remove_file(bin.join("tool")).unwrap();
    assert!(testkit::names(&bin).is_empty());
    assert!(bins.join("tool").exists() && persist.join(".wh.tool").exists());
    let df = testkit::outcome(Command::new("df").args(["--output=source"]).arg(&bin)).out;
    assert_eq!(df.lines().last(), Some("unionfs"));
    unmount(&bin);
}

#[test]
fn branches_may_be_separated_by_commas_and_relative() {
    let stage = Stage::new();
    let (rw, _, at) = stage.union();
    quiet("mount -t unionfs -o dirs=/mnt/rw=rw,/mnt/ro=ro chroot-session /mnt/at");
    assert_eq!(findmnt(&at, "SOURCE"), "chroot-session");
    assert!(at.join("base").exists());
    unmount(&at);
    let outcome = testkit::outcome(line("mount -t unionfs -o dirs=rw:./ro none at").current_dir("/mnt"));
    assert_eq!((outcome.code, outcome.err.as_str()), (0, ""));
    fs::write(at.join("x"), "").unwrap();
    assert!(rw.join("x").exists());
    unmount(&at);
}

#[test]
fn special_characters_in_paths_are_escaped() {
    let stage = Stage::new();
    for odd in ["a:b=c,d", "with space", r"back\slash", r"octal\040", "quote\"d", "ünï", "#hash", "=ro"] {
        let (rw, ro, at) = (stage.dir(&format!("rw {odd}")), stage.dir(&format!("ro{odd}")), stage.dir("at"));
        fs::write(ro.join("base"), "").unwrap();
        let escaped = |path: &Path| stack::escape(path.as_os_str().as_encoded_bytes());
        let dirs = format!("noatime,dirs={}=rw:{},cache=0", escaped(&rw), escaped(&ro));
        let outcome = testkit::outcome(Command::new("mount").args(["-t", "unionfs", "none", "/mnt/at", "-o", &dirs]));
        assert_eq!((outcome.code, outcome.err.as_str()), (0, ""), "{dirs}");
        assert!(at.join("base").exists());
        fs::write(at.join("new"), "").unwrap();
        assert!(rw.join("new").exists(), "{dirs}");
        unmount(&at);
    }
}

#[test]
fn branches_may_contain_the_mount_point_and_vice_versa() {
    let stage = Stage::new();
    // The mount point is a branch.
    let (rw, ro, _) = stage.union();
    quiet("mount -t unionfs -o dirs=/mnt/rw:/mnt/ro none /mnt/ro");
    fs::write(ro.join("base"), "changed").unwrap();
    unmount(&ro);
    assert_eq!(fs::read_to_string(ro.join("base")).unwrap(), "base\n");
    assert_eq!(fs::read_to_string(rw.join("base")).unwrap(), "changed");
    quiet("mount -t wrapfs /mnt/ro /mnt/ro");
    assert_eq!(fs::read_to_string(ro.join("base")).unwrap(), "base\n");
    unmount(&ro);
    // The mount point is inside a branch. The union shows the directory that the mount covers.
    let (tree, inner, changes) = (stage.dir("tree"), stage.dir("tree/in/ner"), stage.dir("changes"));
    fs::write(tree.join("f"), "f").unwrap();
    quiet("mount -t unionfs -o dirs=/mnt/changes:/mnt/tree none /mnt/tree/in/ner");
    assert_eq!(fs::read(inner.join("f")).unwrap(), b"f");
    assert!(inner.join("in/ner").is_dir());
    assert_eq!(fs::read_dir(inner.join("in/ner")).unwrap().count(), 0);
    unmount(&inner);
    // A branch is inside the mount point.
    let (outer, deep) = (stage.dir("outer"), stage.dir("outer/deep"));
    fs::write(deep.join("g"), "g").unwrap();
    quiet("mount -t unionfs -o dirs=/mnt/changes:/mnt/outer/deep none /mnt/outer");
    assert_eq!(fs::read(outer.join("g")).unwrap(), b"g");
    unmount(&outer);
    assert!(changes.is_dir());
}

#[test]
fn fstab_lines_are_mounted_with_their_flags() {
    let stage = Stage::new();
    let (_, _, at) = stage.union();
    fs::create_dir(stage.dir("odd").join("a b:c")).unwrap();
    let fstab = stage.sandbox.path("fstab");
    fs::write(
        &fstab,
        "none /mnt/at unionfs dirs=/mnt/odd/a\\040b\\:c=rw:/mnt/ro=ro,_netdev,noauto,nofail,x-systemd.automount,\
         comment=hello,nosuid,nodev,noexec,noatime 0 0\n\
         none /mnt/at2 unionfs defaults,user,ro,dirs=/mnt/ro 0 0\n\
         /mnt/ro /mnt/at3 wrapfs relatime,X-mount.mkdir,noauto 0 0\n",
    )
    .unwrap();
    quiet("mount -T /mnt/fstab /mnt/at");
    let options = findmnt(&at, "OPTIONS");
    for option in ["rw", "nosuid", "nodev", "noexec", "noatime"] {
        assert!(options.split(',').any(|o| o == option), "{option} in {options}");
    }
    assert!(at.join("base").exists());
    unmount(&at);
    let at2 = stage.dir("at2");
    quiet("mount -T /mnt/fstab /mnt/at2");
    let options = findmnt(&at2, "OPTIONS");
    for option in ["ro", "nosuid", "nodev", "noexec"] {
        assert!(options.split(',').any(|o| o == option), "{option} in {options}");
    }
    assert!(fs::write(at2.join("x"), "").is_err());
    unmount(&at2);
    quiet("mount -T /mnt/fstab /mnt/at3");
    let at3 = stage.sandbox.path("at3");
    assert_eq!(findmnt(&at3, "FSTYPE,SOURCE"), "fuse.wrapfs /mnt/ro");
    unmount(&at3);
}

/// With `user`, mount(8) runs the helper as the user, so it mounts with that user's rights.
#[test]
fn a_user_mounts_a_line_of_fstab() {
    const NOBODY: u32 = 65534;
    let stage = Stage::new();
    let (rw, _, at) = stage.union();
    fs::set_permissions(stage.sandbox.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    // A user can't reach the build directory, and may not open the device everywhere.
    let (program, device) = (stage.sandbox.path("strata"), stage.sandbox.path("fuse"));
    fs::copy(PROGRAM, &program).unwrap();
    let helper = Path::new("/sbin/mount.unionfs");
    fs::remove_file(helper).unwrap();
    symlink(&program, helper).unwrap();
    let number = rustix::fs::makedev(10, 229);
    let kind = rustix::fs::FileType::CharacterDevice;
    rustix::fs::mknodat(rustix::fs::CWD, &device, kind, rustix::fs::Mode::from_raw_mode(0o666), number).unwrap();
    fs::set_permissions(&device, fs::Permissions::from_mode(0o666)).unwrap();
    mount_bind(&device, "/dev/fuse").unwrap();
    let fstab = stage.sandbox.path("fstab");
    fs::write(&fstab, "web /mnt/at unionfs dirs=/mnt/rw=rw:/mnt/ro=ro,user,noauto 0 0\n").unwrap();
    if !Path::new("/etc/fstab").exists() {
        fs::write("/etc/fstab", "").unwrap();
    }
    mount_bind(&fstab, "/etc/fstab").unwrap();
    let as_user = |words: &str| testkit::outcome(line(words).uid(NOBODY).gid(NOBODY));
    let refused = as_user("mount /mnt/at");
    assert!(refused.code == 32 && refused.err.contains("/mnt/rw"), "{}", refused.err);
    for dir in [&rw, &at] {
        std::os::unix::fs::chown(dir, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    as_user("mount /mnt/at").succeeds();
    assert_eq!(findmnt(&at, "FSTYPE,SOURCE"), "fuse.unionfs web");
    let options = findmnt(&at, "OPTIONS");
    assert!(["nosuid", "nodev", "noexec", "user_id=65534"].iter().all(|option| options.contains(option)), "{options}");
    assert_eq!(as_user("cat /mnt/at/base").succeeds().out, "base\n");
    as_user("cp /mnt/at/base /mnt/at/copy").succeeds();
    // Not even root has access.
    assert!(fs::metadata(at.join("base")).is_err());
    as_user("umount /mnt/at").succeeds();
    assert_eq!(fs::metadata(rw.join("copy")).unwrap().uid(), NOBODY);
}

#[test]
fn an_fstab_line_is_mounted_only_once() {
    let stage = Stage::new();
    let (_, _, at) = stage.union();
    stage.dir("other");
    let elsewhere = stage.dir("elsewhere");
    let mounts = || fs::read_to_string("/proc/thread-self/mountinfo").unwrap().matches(" - fuse.unionfs ").count();
    let lines = |text: &str| fs::write(stage.sandbox.path("fstab"), text).unwrap();
    lines("none /mnt/at unionfs dirs=/mnt/rw=rw:/mnt/ro=ro,delete=whiteout 0 0\n");
    quiet("mount -a -T /mnt/fstab");
    let start = std::time::Instant::now();
    refused("mount -T /mnt/fstab /mnt/at", 32, "mount.unionfs: /mnt/at: already mounted: ");
    refused("mount -a -T /mnt/fstab", 32, "already mounted");
    refused("mount -t unionfs none /mnt/at -o dirs=/mnt/rw/../rw:/mnt/ro,cache=3", 32, "already mounted");
    refused("/sbin/mount.unionfs x /mnt/at -f -o dirs=/mnt/rw:/mnt/ro", 32, "already mounted");
    assert!(start.elapsed() < std::time::Duration::from_secs(4), "waited for the running server's branch");
    assert_eq!(mounts(), 1);
    // A different union at the same place, and the same branches at another place, are permitted.
    quiet("mount -t unionfs none /mnt/at -o dirs=/mnt/other:/mnt/ro");
    quiet("mount -t unionfs none /mnt/elsewhere -o dirs=/mnt/other=ro:/mnt/ro");
    assert_eq!(mounts(), 3);
    unmount(&at);
    unmount(&elsewhere);
    // The check also works if the mount covers a branch.
    unmount(&at);
    quiet("mount -t unionfs none /mnt/ro -o dirs=/mnt/rw:/mnt/ro");
    refused("mount -t unionfs none /mnt/ro -o dirs=/mnt/rw:/mnt/ro", 32, "already mounted");
    unmount(Path::new("/mnt/ro"));
    // A new directory with the same path makes a different union.
    quiet("mount -t unionfs none /mnt/at -o dirs=/mnt/ro=ro:/mnt/other=ro");
    fs::rename("/mnt/other", "/mnt/moved").unwrap();
    stage.dir("other");
    quiet("mount -t unionfs none /mnt/at -o dirs=/mnt/ro=ro:/mnt/other=ro");
    unmount(&at);
    unmount(&at);
    // mount(8) recognizes the line by its source, even if fsname= sets that to none.
    for line in [
        "www /mnt/at unionfs dirs=/mnt/rw:/mnt/ro 0 0\n",
        "none /mnt/at unionfs dirs=/mnt/rw:/mnt/ro,fsname=none 0 0\n",
    ] {
        lines(line);
        quiet("mount -a -T /mnt/fstab");
        quiet("mount -a -T /mnt/fstab");
        assert_eq!(mounts(), 1);
        unmount(&at);
    }
    // wrapfs over itself is permitted.
    quiet("mount -t wrapfs /mnt/ro /mnt/ro");
    quiet("mount -t wrapfs /mnt/ro /mnt/ro");
    unmount(Path::new("/mnt/ro"));
    unmount(Path::new("/mnt/ro"));
}

#[test]
fn noexec_forbids_execution() {
    let stage = Stage::new();
    let (rw, _, at) = stage.union();
    fs::copy("/bin/true", rw.join("true")).unwrap();
    for (options, runs) in [("noexec", false), ("exec", true)] {
        quiet(&format!("mount -t unionfs -o {options},dirs=/mnt/rw:/mnt/ro none /mnt/at"));
        assert_eq!(Command::new(at.join("true")).status().is_ok(), runs, "{options}");
        unmount(&at);
    }
}

#[test]
fn fake_sloppy_and_verbose_flags_work() {
    let stage = Stage::new();
    let (_, _, at) = stage.union();
    quiet("mount -f -t unionfs -o dirs=/mnt/rw:/mnt/ro none /mnt/at");
    assert!(!is_mounted(&at));
    refused("mount -f -t unionfs -o dirs=/mnt/rw:/mnt/missing none /mnt/at", 32, "/mnt/missing");
    quiet("mount -s -t unionfs -o dirs=/mnt/rw:/mnt/ro,no_such_option=1,other none /mnt/at");
    unmount(&at);
    let outcome = testkit::outcome(&mut line("mount -v -t unionfs -o dirs=/mnt/rw:/mnt/ro none /mnt/at"));
    assert_eq!(outcome.code, 0);
    assert!(outcome.out.contains("none mounted on /mnt/at"), "{}", outcome.out);
    unmount(&at);
    // The argument order of mount(8), and another one.
    quiet("/sbin/mount.unionfs none /mnt/at -n -s -o rw,dirs=/mnt/rw:/mnt/ro -t fuse.unionfs");
    unmount(&at);
    quiet("/sbin/mount.unionfs -no dirs=/mnt/rw:/mnt/ro none /mnt/at");
    unmount(&at);
}

#[test]
fn invalid_mounts_are_refused_with_a_reason() {
    let stage = Stage::new();
    let (rw, ro, at) = stage.union();
    fs::write(stage.sandbox.path("file"), "").unwrap();
    stage.dir("ro/inner");
    symlink("ro/inner", stage.sandbox.path("link")).unwrap();
    mount_bind(ro.join("inner"), stage.dir("bound")).unwrap();
    let mount = |dirs: &str| format!("mount -t unionfs -o dirs={dirs} none /mnt/at");
    refused(&mount("/mnt/rw:/mnt/missing=ro"), 32, "branch /mnt/missing: no such directory; create it");
    refused(&mount("/mnt/rw:/mnt/file"), 32, "branch /mnt/file: not a directory");
    refused(&mount("/mnt/rw:/mnt/ro:/mnt/ro/inner"), 32, "branch /mnt/ro/inner: is inside branch /mnt/ro;");
    refused(&mount("/mnt/rw:/mnt/link:/mnt/ro"), 32, "branch /mnt/link: is inside branch /mnt/ro;");
    refused(&mount("/mnt/rw:/mnt/ro:/mnt/bound"), 32, "branch /mnt/bound: is inside branch /mnt/ro;");
    refused(&mount("/mnt/rw:/mnt/ro:/mnt/rw/../ro"), 32, "is the same directory as branch /mnt/ro;");
    refused(&mount("/mnt/rw=ro:/mnt/ro=rw"), 32, "the first branch must be rw if another one is; mark it =rw");
    refused(&mount("/mnt/rw=rx"), 1, "unknown mode \"rx\" of branch /mnt/rw");
    refused(&mount("/mnt/rw,bogus=1"), 1, "unknown option bogus");
    refused(&mount("/mnt/rw,delete=first"), 1, "option delete=: \"first\"");
    refused("mount -t unionfs none /mnt/at", 1, "no branches");
    refused("mount -t wrapfs /mnt/missing /mnt/at", 32, "lower directory /mnt/missing");
    refused("/sbin/mount.unionfs none /mnt/nowhere -o dirs=/mnt/rw", 32, "mount point /mnt/nowhere: no such directory");
    refused("/sbin/mount.unionfs none /mnt/file -o dirs=/mnt/rw", 32, "mount point /mnt/file: not a directory");
    refused("/sbin/mount.unionfs none", 1, "none: the mount point is missing");
    refused("/sbin/mount.unionfs none /mnt/at -x", 1, "-x");
    assert!(!is_mounted(&at));
    assert_eq!(fs::read_dir(rw).unwrap().count(), 0, "nothing was written");
}

#[test]
fn an_unwritable_first_branch_is_refused() {
    let stage = Stage::new();
    let (_, _, at) = stage.union();
    let fixed = stage.dir("fixed");
    mount_fs("fixed", &fixed, "tmpfs", MountFlags::RDONLY, None).unwrap();
    refused(
        "mount -t unionfs -o dirs=/mnt/fixed=rw:/mnt/ro none /mnt/at",
        32,
        "branch /mnt/fixed: is on a read-only file system, but the first branch must be writable; put",
    );
    // A read-only union accepts it.
    quiet("mount -t unionfs -o dirs=/mnt/fixed=ro:/mnt/ro none /mnt/at");
    assert!(findmnt(&at, "OPTIONS").starts_with("ro,"));
    assert_eq!(fs::read(at.join("base")).unwrap(), b"base\n");
    unmount(&at);
    quiet("mount -t unionfs -o ro,dirs=/mnt/fixed:/mnt/ro none /mnt/at");
    unmount(&at);
}

#[test]
fn a_missing_device_is_reported() {
    let stage = Stage::new();
    stage.union();
    mount_bind("/dev", stage.dir("dev")).unwrap();
    mount_fs("dev", "/dev", "tmpfs", MountFlags::empty(), None).unwrap();
    symlink("/mnt/dev/null", "/dev/null").unwrap();
    let reason = "/dev/fuse: no such device; load the module with `modprobe fuse`";
    refused("/sbin/mount.unionfs none /mnt/at -o dirs=/mnt/rw:/mnt/ro", 2, reason);
}

#[test]
fn a_remount_changes_flags_but_not_options() {
    let stage = Stage::new();
    let (_, _, at) = stage.union();
    quiet("mount -t unionfs -o dirs=/mnt/rw:/mnt/ro none /mnt/at");
    let pid = server(&at);
    quiet("mount -o remount,ro /mnt/at");
    assert!(findmnt(&at, "OPTIONS").starts_with("ro,"));
    let error = fs::write(at.join("x"), "").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
    quiet("mount -o remount,rw,noexec /mnt/at");
    fs::write(at.join("x"), "").unwrap();
    assert!(findmnt(&at, "OPTIONS").contains("noexec"));
    refused("mount -o remount,delete=all /mnt/at", 1, "/mnt/at: option delete: can't be changed by a remount");
    refused("mount -o remount,cache=3 /mnt/at", 1, "option cache: can't be changed");
    refused("/sbin/mount.unionfs none /mnt/ro -o remount,ro", 32, "not a mount point");
    assert_eq!(server(&at), pid, "the server is the same");
    unmount(&at);
}

#[test]
fn the_server_detaches_from_its_caller_and_unmounts_on_sigterm() {
    let stage = Stage::new();
    let (_, _, at) = stage.union();
    let cwd = stage.dir("cwd");
    mount_fs("cwd", &cwd, "tmpfs", MountFlags::empty(), None).unwrap();
    let script = "exec 7</mnt/cwd && cd /mnt/cwd && exec mount -t unionfs -o dirs=/mnt/rw:/mnt/ro none /mnt/at";
    let outcome = testkit::outcome(Command::new("sh").args(["-c", script]));
    assert_eq!((outcome.code, outcome.err.as_str()), (0, ""));
    quiet("umount /mnt/cwd");
    let pid = server(&at);
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), Path::new("/"));
    assert_eq!(fs::read_to_string(format!("/proc/{pid}/comm")).unwrap(), "mount.unionfs\n");
    for fd in 0..3 {
        assert_eq!(fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap(), Path::new("/dev/null"));
    }
    // A session leader without a terminal receives no terminal signals.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    assert_eq!(stat.rsplit(") ").next().unwrap().split(' ').nth(3), Some(pid.to_string().as_str()));
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let files: Vec<_> = limits.lines().find(|l| l.starts_with("Max open files")).unwrap().split_whitespace().collect();
    assert_eq!(files[3], files[4], "soft and hard limit");
    // SIGHUP concerns the log file only; SIGTERM unmounts.
    quiet(&format!("kill -HUP {pid}"));
    assert!(at.join("base").exists());
    quiet(&format!("kill -TERM {pid}"));
    await_end(pid);
    assert!(!is_mounted(&at));
}

/// Layers are dropped at the end of the mount, when a union writes its final records and cleans up
/// its branches.
#[test]
fn unmounting_a_union_removes_its_work_directory() {
    let stage = Stage::new();
    let (rw, ro, at) = stage.union();
    fs::create_dir(ro.join("dir")).unwrap();
    quiet("mount -t unionfs -o dirs=/mnt/rw:/mnt/ro none /mnt/at");
    let pid = server(&at);
    // The copy-up of the directory takes place in the work directory.
    fs::write(at.join("dir/file"), "").unwrap();
    assert!(rw.join(".wh..wh.work").exists());
    quiet("umount /mnt/at");
    await_end(pid);
    assert!(!rw.join(".wh..wh.work").exists());
}

#[test]
fn the_first_signal_keeps_open_files_usable_and_the_second_exits() {
    let stage = Stage::new();
    let (rw, _, at) = stage.union();
    quiet("mount -t unionfs -o dirs=/mnt/rw:/mnt/ro none /mnt/at");
    let pid = server(&at);
    let mut open = fs::File::options().create(true).append(true).open(at.join("open")).unwrap();
    let dir = fs::File::open(&at).unwrap();
    quiet(&format!("kill -TERM {pid}"));
    testkit::until("the union is unmounted", || !is_mounted(&at));
    // Open files stay usable, including operations that need the server.
    open.write_all(b"after the first").unwrap();
    open.sync_all().unwrap();
    assert!(rustix::fs::statat(&dir, "base", AtFlags::empty()).is_ok());
    rustix::fs::mkdirat(&dir, "made", rustix::fs::Mode::RWXU).unwrap();
    quiet(&format!("kill -INT {pid}"));
    await_end(pid);
    let error = rustix::fs::statat(&dir, "not looked up before", AtFlags::empty()).unwrap_err();
    // ECANCELED: the ring's threads have exited, but the kernel has not aborted the connection yet.
    assert!([Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED].contains(&error), "{error}");
    assert_eq!(fs::read_to_string(rw.join("open")).unwrap(), "after the first");
    assert!(rw.join("made").is_dir());
}

/// What a program wrote to a mapping is written back before the server exits.
#[test]
fn the_second_signal_keeps_what_was_written_to_mappings() {
    let stage = Stage::new();
    let (rw, _, at) = stage.union();
    quiet("mount -t unionfs -o dirs=/mnt/rw:/mnt/ro,passthrough=off none /mnt/at");
    let pid = server(&at);
    fs::write(at.join("mapped"), vec![b'.'; 10_000]).unwrap();
    let file = fs::File::options().read(true).write(true).open(at.join("mapped")).unwrap();
    let mut mapping = Mapping::new(&file, 10_000, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED).unwrap();
    mapping.write(0, b"first");
    quiet(&format!("kill -TERM {pid}"));
    testkit::until("the union is unmounted", || !is_mounted(&at));
    mapping.write(5000, b"second");
    quiet(&format!("kill -TERM {pid}"));
    await_end(pid);
    let bytes = fs::read(rw.join("mapped")).unwrap();
    assert_eq!((&bytes[..5], &bytes[5000..5006], bytes.len()), (&b"first"[..], &b"second"[..], 10_000));
}

/// A signal to a server whose mount was detached must not unmount what is there now.
#[test]
fn a_detached_server_leaves_the_next_mount_alone() {
    let stage = Stage::new();
    let (_, ro, at) = stage.union();
    quiet("mount -t unionfs -o dirs=/mnt/ro=ro none /mnt/at");
    let old = server(&at);
    let open = fs::File::open(at.join("base")).unwrap();
    quiet("umount -l /mnt/at");
    quiet("mount -t unionfs -o dirs=/mnt/ro=ro none /mnt/at");
    quiet(&format!("kill -TERM {old}"));
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(is_mounted(&at) && server(&at) != old && Path::new(&format!("/proc/{old}")).exists());
    quiet(&format!("kill -TERM {old}"));
    await_end(old);
    assert!(is_mounted(&at));
    drop(open);
    unmount(&at);
    assert_eq!(fs::read_to_string(ro.join("base")).unwrap(), "base\n");
}

/// versionfs serves a directory once. Who keeps an old server alive is named, and how to end it.
#[test]
fn a_server_whose_mount_was_detached_is_named() {
    let stage = Stage::new();
    let (dir, at) = (stage.dir("data"), stage.dir("at"));
    fs::write(dir.join("file"), "text").unwrap();
    let mount = || {
        let mut mount = Command::new(PROGRAM);
        testkit::outcome(mount.arg0("mount.versionfs").args([&dir, &at]).args(["-o", "logfile=/mnt/log"]))
    };
    mount().succeeds();
    let old = server(&at);
    let open = fs::File::open(at.join("file")).unwrap();
    quiet("umount -l /mnt/at");
    let refused = mount();
    let why = format!("directory /mnt/data: in use by process {old}, whose mount was detached (umount -l), and ");
    assert!(refused.code == 32 && refused.err.contains(&why), "{}", refused.err);
    // Linux 6.18 shows which file system a process serves.
    let shown = fs::read_dir(format!("/proc/{old}/fdinfo")).unwrap().flatten();
    if shown.filter_map(|file| fs::read_to_string(file.path()).ok()).any(|text| text.contains("fuse_connection:")) {
        assert!(refused.err.contains(&format!("{} (", std::process::id())), "{}", refused.err);
    }
    // Signals of one kind that arrive together count once.
    quiet(&format!("kill {old}"));
    let log = stage.sandbox.path("log");
    testkit::until("the first signal has arrived", || fs::read_to_string(&log).unwrap().contains("SIGTERM: stopping"));
    quiet(&format!("kill {old}"));
    await_end(old);
    mount().succeeds();
    unmount(&at);
    drop(open);
}

/// The kernel's caches hide for seconds that a server is gone.
#[test]
fn nothing_is_mounted_over_a_dead_mount() {
    let stage = Stage::new();
    let (_, _, at) = stage.union();
    quiet("mount -t unionfs -o dirs=/mnt/rw:/mnt/ro none /mnt/at");
    let _known = fs::metadata(&at).unwrap();
    quiet(&format!("kill -KILL {}", server(&at)));
    let dead = "mount point /mnt/at: the server of this mount has exited; unmount it first (umount -l)";
    refused("mount -t unionfs -o dirs=/mnt/rw:/mnt/ro none /mnt/at", 32, dead);
    refused("mount -t wrapfs /mnt/ro /mnt/at", 32, dead);
    quiet("umount -l /mnt/at");
    quiet("mount -t unionfs -o dirs=/mnt/rw:/mnt/ro none /mnt/at");
    unmount(&at);
}

/// A service that is stopped right after its start, as systemd does it: at any moment, the server
/// ends by the signal or with success, and nothing stays mounted.
#[test]
fn a_server_is_stopped_right_after_its_start() {
    let stage = Stage::new();
    let (_, _, at) = stage.union();
    for round in 0..40 {
        let mut server = Command::new("/sbin/mount.unionfs")
            .args(["none", "/mnt/at", "--foreground", "-o", "dirs=/mnt/rw:/mnt/ro,log=off"])
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2 * round));
        quiet(&format!("kill -TERM {}", server.id()));
        let status = server.wait().unwrap();
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        assert!(status.success() || signal == Some(15), "round {round}: {status}");
        assert!(!is_mounted(&at), "round {round}");
    }
    for _ in 0..20 {
        quiet("mount -t unionfs -o dirs=/mnt/rw:/mnt/ro none /mnt/at");
        quiet("umount /mnt/at");
    }
}

#[test]
fn foreground_mounts_serve_in_the_started_process() {
    let stage = Stage::new();
    let (_, _, at) = stage.union();
    for arguments in [&["--foreground", "-o", "dirs=/mnt/rw:/mnt/ro"][..], &["-o", "fg,dirs=/mnt/rw:/mnt/ro,log=off"]] {
        let log = fs::File::create(stage.sandbox.path("log")).unwrap();
        let mut server =
            Command::new("/sbin/mount.unionfs").args(["none", "/mnt/at"]).args(arguments).stderr(log).spawn().unwrap();
        while !is_mounted(&at) {
            assert!(server.try_wait().unwrap().is_none(), "ended early");
        }
        assert_eq!(info(&at)["pid"].as_u64(), Some(server.id().into()));
        quiet("umount /mnt/at");
        assert!(server.wait().unwrap().success());
        let log = fs::read_to_string(stage.sandbox.path("log")).unwrap();
        assert_eq!(log.contains("/mnt/at mounted"), arguments[0] == "--foreground", "{log}");
    }
}

#[test]
fn logfile_receives_the_log() {
    let stage = Stage::new();
    let (_, _, at) = stage.union();
    quiet("mount -t unionfs -o dirs=/mnt/rw:/mnt/ro,logfile=/mnt/log none /mnt/at");
    unmount(&at);
    let log = fs::read_to_string(stage.sandbox.path("log")).unwrap();
    assert!(log.contains("/mnt/at mounted") && log.contains("/mnt/at unmounted"), "{log}");
    refused("mount -t unionfs -o dirs=/mnt/rw:/mnt/ro,logfile=/mnt/no/log none /mnt/at", 1, "log file /mnt/no/log");
}

/// As logrotate(8) does: it renames the file, and sends a signal.
#[test]
fn sighup_opens_the_log_file_again() {
    let stage = Stage::new();
    let (_, _, at) = stage.union();
    quiet("mount -t unionfs -o dirs=/mnt/rw:/mnt/ro,logfile=/mnt/log none /mnt/at");
    let (log, old) = (stage.sandbox.path("log"), stage.sandbox.path("log.1"));
    fs::set_permissions(&log, fs::Permissions::from_mode(0o640)).unwrap();
    fs::rename(&log, &old).unwrap();
    quiet(&format!("kill -HUP {}", server(&at)));
    testkit::until("a new log file", || log.exists());
    assert_eq!(fs::metadata(&log).unwrap().mode() & 0o777, 0o640);
    unmount(&at);
    let [before, after] = [&old, &log].map(|log| fs::read_to_string(log).unwrap());
    assert!(before.contains("/mnt/at mounted") && !before.contains("unmounted"), "{before}");
    assert!(after.contains("/mnt/at unmounted"), "{after}");
}

#[test]
fn stats_and_info_describe_a_mount() {
    let stage = Stage::new();
    let (_, _, at) = stage.union();
    quiet("mount -t unionfs -o dirs=/mnt/rw:/mnt/ro,transport=device none /mnt/at");
    fs::read(at.join("base")).unwrap();
    let stats = testkit::outcome(Command::new(PROGRAM).arg("stats").arg(&at));
    assert_eq!(stats.code, 0);
    assert!(stats.out.lines().any(|l| l.split_whitespace().next() == Some("LOOKUP")), "{}", stats.out);
    assert_eq!(info(&at)["transport"], "device");
    let elsewhere = testkit::outcome(Command::new(PROGRAM).args(["stats", "/mnt/ro"]));
    assert_eq!(elsewhere.code, 32);
    assert!(elsewhere.err.contains("not on a Strata mount"));
    unmount(&at);
}

#[test]
fn an_unprivileged_user_can_mount() {
    assert!(Command::new("fusermount3").arg("-V").output().is_ok(), "fusermount3 is missing: install fuse3");
    let stage = Stage::new();
    let home = stage.dir("home");
    // A device node with mode 0666, as on desktop systems.
    let dev = stage.dir("devices");
    let number = fs::metadata("/dev/fuse").unwrap().rdev();
    let node = dev.join("fuse");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &node,
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::from_raw_mode(0o666),
        number,
    )
    .unwrap();
    fs::set_permissions(&node, fs::Permissions::from_mode(0o666)).unwrap();
    mount_bind(&node, "/dev/fuse").unwrap();
    // The build directory may be inaccessible to the user.
    fs::copy(PROGRAM, stage.sandbox.path("mount.unionfs")).unwrap();
    let user = "setpriv --reuid 65534 --regid 65534 --clear-groups --";
    for name in ["rw", "ro", "at"] {
        let dir = home.join(name);
        fs::create_dir(&dir).unwrap();
        std::os::unix::fs::chown(&dir, Some(65534), Some(65534)).unwrap();
    }
    fs::write(home.join("ro/base"), "base\n").unwrap();
    fs::write(home.join("ro/theirs"), "theirs\n").unwrap();
    fs::set_permissions(home.join("ro/theirs"), fs::Permissions::from_mode(0o666)).unwrap();
    fs::create_dir(home.join("ro/open")).unwrap();
    fs::set_permissions(home.join("ro/open"), fs::Permissions::from_mode(0o777)).unwrap();
    quiet(&format!("{user} /mnt/mount.unionfs none /mnt/home/at -o dirs=/mnt/home/rw:/mnt/home/ro"));
    let at = home.join("at");
    let options = findmnt(&at, "OPTIONS");
    for option in ["nosuid", "nodev", "user_id=65534"] {
        assert!(options.split(',').any(|o| o == option), "{option} in {options}");
    }
    let read = testkit::outcome(&mut line(&format!("{user} cat /mnt/home/at/base")));
    assert_eq!(read.out, "base\n");
    quiet(&format!("{user} touch /mnt/home/at/new"));
    assert_eq!(fs::metadata(home.join("rw/new")).unwrap().uid(), 65534);
    // Other users, even root, have no access.
    assert!(fs::read(at.join("base")).is_err());
    // Copied-up files belong to the user, who can't change their owner.
    quiet(&format!("{user} truncate -s 3 /mnt/home/at/theirs"));
    quiet(&format!("{user} mv /mnt/home/at/base /mnt/home/at/moved"));
    quiet(&format!("{user} touch /mnt/home/at/open/new"));
    for (name, mode) in [("theirs", 0o100_644), ("moved", 0o100_644), ("open", 0o40755)] {
        let copy = fs::metadata(home.join("rw").join(name)).unwrap();
        assert_eq!((copy.uid(), copy.gid(), copy.mode()), (65534, 65534, mode), "{name}");
    }
    quiet(&format!("{user} fusermount3 -u /mnt/home/at"));
    // With copyup=preserve the operation fails instead.
    fs::write(home.join("ro/other"), "other\n").unwrap();
    quiet(&format!("{user} /mnt/mount.unionfs none /mnt/home/at -o dirs=/mnt/home/rw:/mnt/home/ro,copyup=preserve"));
    let kept = testkit::outcome(&mut line(&format!("{user} mv /mnt/home/at/other /mnt/home/at/moved")));
    assert!(kept.err.contains("Operation not permitted"), "{}", kept.err);
    assert_eq!(fs::read_to_string(home.join("ro/other")).unwrap(), "other\n");
    quiet(&format!("{user} fusermount3 -u /mnt/home/at"));
    // More readahead than the kernel's default needs root; the mount succeeds without it.
    let more = "-o dirs=/mnt/home/rw:/mnt/home/ro,readahead=1M";
    let mounted = testkit::outcome(&mut line(&format!("{user} /mnt/mount.unionfs none /mnt/home/at {more}")));
    assert_eq!(mounted.code, 0, "{}", mounted.err);
    assert!(mounted.err.contains("cannot raise readahead from 131072 to 1048576 bytes"), "{}", mounted.err);
    quiet(&format!("{user} fusermount3 -u /mnt/home/at"));
    // Missing permissions are reported.
    fs::set_permissions(&node, fs::Permissions::from_mode(0o600)).unwrap();
    refused(
        &format!("{user} /mnt/mount.unionfs none /mnt/home/at -o dirs=/mnt/home/rw"),
        1,
        "/dev/fuse: permission denied",
    );
    fs::set_permissions(&node, fs::Permissions::from_mode(0o666)).unwrap();
    refused(&format!("{user} /mnt/mount.unionfs none /mnt/home/at -o dirs=/mnt/ro"), 32, "/mnt/ro");
}

#[test]
fn a_mount_can_be_placed_in_another_mount_namespace() {
    let stage = Stage::new();
    let (_, _, at) = stage.union();
    // A process in a private mount namespace, which exits at the end of its input.
    let mut other = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", "echo up; read x"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut up = [0; 3];
    std::io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut up).unwrap();
    let pid = other.id();
    quiet(&format!("/sbin/mount.unionfs none /mnt/at -N {pid} -o dirs=/mnt/rw:/mnt/ro"));
    assert!(!is_mounted(&at));
    quiet(&format!("nsenter -t {pid} -m test -e /mnt/at/base"));
    let server = testkit::outcome(&mut line(&format!("nsenter -t {pid} -m {PROGRAM} info --json /mnt/at")));
    quiet(&format!("nsenter -t {pid} -m umount /mnt/at"));
    if let Ok(info) = serde_json::from_str::<serde_json::Value>(&server.out) {
        await_end(info["pid"].as_u64().unwrap());
    }
    drop(other.stdin.take());
    other.wait().unwrap();
}

/// The helper returns when the server has closed the branches.
#[test]
fn umount_waits_for_the_server() {
    let stage = Stage::new();
    let (rw, ro, at) = stage.union();
    quiet(&format!("mount -t unionfs -o dirs={}=rw:{}=ro none {}", rw.display(), ro.display(), at.display()));
    let info = testkit::outcome(Command::new(PROGRAM).args(["info", "--json"]).arg(&at)).succeeds().out;
    let pid = serde_json::from_str::<serde_json::Value>(&info).unwrap()["pid"].to_string();
    let is_mounted = || {
        let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap();
        mounts.contains(&format!(" {} ", at.display()))
    };
    // The process can end between the two steps.
    let is_served =
        || fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|mut files| files.next().is_some_and(|file| file.is_ok()));
    quiet(&format!("kill -STOP {pid}"));
    // umount(8) itself would send the server a request.
    let mut umount = Command::new("/sbin/umount.fuse").arg(&at).spawn().unwrap();
    while is_mounted() {
        std::thread::yield_now();
    }
    assert!(umount.try_wait().unwrap().is_none() && is_served());
    quiet(&format!("kill -CONT {pid}"));
    assert!(umount.wait().unwrap().success());
    assert!(!is_served());
}

/// umount(8) knows an absolute path without options as one of type fuse, others by their mount.
#[test]
fn umount_runs_the_helper() {
    let stage = Stage::new();
    let (rw, ro, at) = stage.union();
    for helper in ["/sbin/umount.fuse", "/sbin/umount.fuse.unionfs"] {
        fs::remove_file(helper).unwrap();
        let script = format!("#!/bin/bash\necho called >>/mnt/calls\nexec -a \"$0\" {PROGRAM} \"$@\"\n");
        fs::write(helper, script).unwrap();
        fs::set_permissions(helper, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for options in ["", "-c "] {
        quiet(&format!("mount -t unionfs -o dirs={}=rw:{}=ro none {}", rw.display(), ro.display(), at.display()));
        quiet(&format!("umount {options}{}", at.display()));
    }
    assert_eq!(fs::read_to_string(stage.sandbox.path("calls")).unwrap(), "called\ncalled\n");
}

/// A mount that is still used elsewhere is not waited for.
#[test]
fn umount_of_one_of_two_mounts() {
    let stage = Stage::new();
    let (rw, ro, at) = stage.union();
    let second = stage.dir("second");
    quiet(&format!("mount -t unionfs -o dirs={}=rw:{}=ro none {}", rw.display(), ro.display(), at.display()));
    quiet(&format!("mount --bind {} {}", at.display(), second.display()));
    quiet(&format!("umount {}", at.display()));
    assert_eq!(fs::read(second.join("base")).unwrap(), b"base\n");
    let held = fs::File::open(second.join("base")).unwrap();
    let outcome = testkit::outcome(Command::new("umount").arg(&second));
    assert_eq!(outcome.code, 32);
    assert!(outcome.err.contains("target is busy"), "{}", outcome.err);
    drop(held);
    quiet(&format!("umount {}", second.display()));
}

/// A server ends when the last other process has left its mount namespace, unless the mount can be
/// reached from another one.
#[test]
fn servers_end_with_their_mount_namespace() {
    // A server that can't read a process stays: that one may use the mount.
    if testkit::runs_with_own_processes() {
        return;
    }
    let stage = Stage::new();
    let (rw, ro, at) = stage.union();
    let shared = stage.dir("shared");
    mount_fs("shared", &shared, "tmpfs", MountFlags::empty(), None).unwrap();
    quiet(&format!("mount --make-shared {}", shared.display()));
    let outside = shared.join("at");
    fs::create_dir(&outside).unwrap();
    let script = r#"mount -t unionfs -o "dirs=$1=rw:$2=ro" none "$3" && "$4" info --json "$3""#;
    let start_in = |(propagation, before, after): (&str, &str, &str), rw: &Path, at: &Path| {
        let mut command = Command::new("unshare");
        let script = [before, script, after].concat();
        command.args(["-m", "--propagation", propagation, "sh", "-c", &script, "sh"]);
        let info = testkit::outcome(command.args([rw, &ro, at, Path::new(PROGRAM)])).succeeds().out;
        serde_json::from_str::<serde_json::Value>(&info).unwrap()["pid"].as_u64().unwrap()
    };
    let start = |propagation: &str, rw: &Path, at: &Path| start_in((propagation, "", ""), rw, at);
    let [second, third, fourth] = ["second", "third", "fourth"].map(|name| stage.dir(name));
    let visible = start("unchanged", &second, &outside);
    // As in a service with PrivateMounts=yes: each mount is in a peer group, alone.
    let systemd = "mount --make-rshared / && ";
    let at_other = stage.dir("other");
    // A process in another namespace, to which such a mount propagates.
    let holder = second.with_file_name("holder");
    let other = format!(
        "; unshare -m --propagation slave sh -c 'echo $$ >{}; exec sleep 300' >/dev/null 2>&1 & sleep 0.5",
        holder.display()
    );
    let held = start_in(("slave", systemd, &other), &third, &at_other);
    let lost_in_service = start_in(("slave", systemd, ""), &fourth, &at);
    let lost = start("private", &rw, &at);
    await_end(lost);
    await_end(lost_in_service);
    // The other servers have looked by then, too.
    let pid = fs::read_to_string(&holder).unwrap();
    let base = format!("/proc/{}/root{}", pid.trim(), at_other.join("base").display());
    assert_eq!(fs::read(base).unwrap(), b"base\n");
    quiet(&format!("kill {}", pid.trim()));
    await_end(held);
    assert_eq!(fs::read(outside.join("base")).unwrap(), b"base\n");
    quiet(&format!("umount {}", outside.display()));
    await_end(visible);
}
