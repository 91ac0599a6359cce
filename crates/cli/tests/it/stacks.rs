//! Stacks of layers: `strata mount`, fstab(5), mounts over their own lower directories, `strata
//! stack` and the log level.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::mount::{MountFlags, mount as mount_fs, mount_bind};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use strata_tests::Sandbox;
use strata_tests::process::await_end;

const PROGRAM: &str = env!("CARGO_BIN_EXE_strata");

/// Runs `strata`, which must succeed, and returns its output.
fn strata(words: &[&str]) -> String {
    let outcome = testkit::outcome(Command::new(PROGRAM).args(words));
    assert_eq!((outcome.code, outcome.err.as_str()), (0, ""), "{words:?}");
    outcome.out
}

/// Runs `strata`, which must fail with that status, and returns its message of one line.
fn refused(words: &[&str], code: i32) -> String {
    let outcome = testkit::outcome(Command::new(PROGRAM).args(words));
    assert_eq!(outcome.code, code, "{words:?}: {}", outcome.err);
    assert_eq!(outcome.err.lines().count(), 1, "{}", outcome.err);
    outcome.err
}

fn stack(at: &str) -> Value {
    serde_json::from_str(&strata(&["stack", "--json", at])).unwrap()
}

/// Unmounts and waits until the server has exited.
fn unmount(at: &str) {
    let pid = stack(at)["pid"].as_u64().unwrap();
    let outcome = testkit::outcome(Command::new("umount").arg(at));
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    await_end(pid);
}

/// A sandbox with a directory `/mnt/data`, which has a file, and a mount point `/mnt/at`.
fn stage() -> Sandbox {
    let sandbox = Sandbox::new();
    fs::write(sandbox.dir("data").join("Uryyb"), "text\n").unwrap();
    fs::create_dir(sandbox.path("at")).unwrap();
    sandbox
}

/// Installs the helpers for all types into the sandbox's /sbin.
fn install(sandbox: &Sandbox) {
    let real = fs::canonicalize("/sbin").unwrap();
    let kept = sandbox.dir("sbin");
    mount_bind(&real, &kept).unwrap();
    mount_fs("helpers", &real, "tmpfs", MountFlags::empty(), None).unwrap();
    for entry in fs::read_dir(&kept).unwrap().flatten() {
        symlink(entry.path(), real.join(entry.file_name())).unwrap();
    }
    for kind in strata(&["layers", "--names"]).lines() {
        for name in [format!("mount.{kind}"), format!("mount.fuse.{kind}")] {
            let _ = fs::remove_file(real.join(&name));
            symlink(PROGRAM, real.join(name)).unwrap();
        }
    }
}

#[test]
fn a_stack_description_is_mounted() {
    let sandbox = stage();
    assert_eq!(strata(&["mount", "wrapfs / rot13 / /mnt/data", "/mnt/at", "-o", "cache=3"]), "");
    assert_eq!(fs::read_to_string("/mnt/at/Hello").unwrap(), "text\n");
    fs::write("/mnt/at/new", "new").unwrap();
    assert_eq!(fs::read_to_string("/mnt/data/arj").unwrap(), "new");
    let shown = testkit::outcome(Command::new("findmnt").args(["-n", "-o", "FSTYPE,SOURCE", "/mnt/at"])).out;
    assert_eq!(shown.trim_end(), "fuse.strata wrapfs / rot13 / /mnt/data");
    // The exit status is that of the command, or that of env(1) if it can't be executed.
    let fails = |command: &[&str], code| refused(&[&["lower", "/mnt/at"], command].concat(), code);
    assert_eq!(
        fails(&["missingcmd"], 127),
        "strata: missingcmd: can't be executed: no such file or directory; no such command in PATH\n"
    );
    assert!(fails(&["/mnt/missing"], 127).contains("/mnt/missing: can't be executed: no such file"));
    assert!(fails(&["/etc/passwd"], 126).contains("/etc/passwd: can't be executed: permission denied"));
    let own = testkit::outcome(Command::new(PROGRAM).args(["lower", "/mnt/at", "sh", "-c", "exit 5"]));
    assert_eq!((own.code, own.err.as_str()), (5, ""));
    unmount("/mnt/at");
    drop(sandbox);
}

#[test]
fn a_layer_can_be_stacked_on_a_union() {
    let sandbox = stage();
    fs::create_dir(sandbox.path("changes")).unwrap();
    strata(&["mount", "rot13 / unionfs,dirs=/mnt/changes=rw:/mnt/data=ro,delete=whiteout", "/mnt/at"]);
    fs::write("/mnt/at/Hello", "changed\n").unwrap();
    assert_eq!(fs::read_to_string("/mnt/changes/Uryyb").unwrap(), "changed\n");
    assert_eq!(fs::read_to_string("/mnt/data/Uryyb").unwrap(), "text\n");
    let layers = stack("/mnt/at")["layers"].clone();
    assert_eq!(layers[0]["name"], "rot13");
    // The branches can change: they are listed as directories.
    assert_eq!(layers[1]["options"], "delete=whiteout");
    let places: Vec<_> = layers[1]["directories"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| (d["path"].as_str().unwrap(), d["mode"].as_str().unwrap()))
        .collect();
    assert_eq!(places, [("/mnt/changes", "rw"), ("/mnt/data", "ro")]);
    assert_eq!(strata(&["lower", "--branch", "2", "/mnt/at", "ls"]), "Uryyb\n");
    assert!(refused(&["lower", "--branch", "3", "/mnt/at", "ls"], 1).contains("use 1 to 2"));
    unmount("/mnt/at");
    drop(sandbox);
}

#[test]
fn a_stack_description_may_exceed_the_kernels_source_length() {
    let _sandbox = stage();
    let words = format!("{}/mnt/data", "wrapfs / ".repeat(31));
    strata(&["mount", &words, "/mnt/at"]);
    assert_eq!(stack("/mnt/at")["layers"].as_array().unwrap().len(), 32);
    let shown = testkit::outcome(Command::new("findmnt").args(["-n", "-o", "SOURCE", "/mnt/at"])).out;
    assert_eq!(shown.trim_end(), &words[..255]);
    unmount("/mnt/at");
}

#[test]
fn a_directory_with_the_option_ro_is_never_changed() {
    let sandbox = stage();
    strata(&["mount", "wrapfs / /mnt/data,ro", "/mnt/at"]);
    assert_eq!(fs::write("/mnt/at/new", "").unwrap_err().raw_os_error(), Some(30));
    unmount("/mnt/at");
    drop(sandbox);
}

#[test]
fn fstab_lines_with_stacks_are_mounted() {
    let sandbox = stage();
    install(&sandbox);
    fs::create_dir("/mnt/with blank, comma").unwrap();
    fs::create_dir("/mnt/changes").unwrap();
    for dir in ["a", "b", "c"] {
        fs::create_dir(sandbox.path(dir)).unwrap();
    }
    let fstab = sandbox.path("fstab");
    let lines = "rot13\\040/\\040/mnt/data /mnt/a strata ro,nosuid 0 0\n\
                 rot13\\040/\\040/mnt/with\\040blank\\\\,\\040comma /mnt/b strata nofail 0 0\n\
                 none /mnt/c strata stack=\"rot13\\040/\\040unionfs,dirs=/mnt/changes=rw:/mnt/data=ro\",nodev 0 0\n\
                 /mnt/data /mnt/at rot13 noatime 0 0\n";
    fs::write(&fstab, lines.replace("\\\\,", "\\,")).unwrap();
    let outcome = testkit::outcome(Command::new("mount").arg("-a").arg("-T").arg(&fstab));
    assert_eq!((outcome.code, outcome.err.as_str()), (0, ""));
    assert_eq!(fs::read_to_string("/mnt/a/Hello").unwrap(), "text\n");
    assert_eq!(fs::write("/mnt/a/x", "").unwrap_err().raw_os_error(), Some(30));
    fs::write("/mnt/b/new", "").unwrap();
    assert!(Path::new("/mnt/with blank, comma/arj").exists());
    fs::write("/mnt/c/new", "").unwrap();
    assert!(Path::new("/mnt/changes/arj").exists());
    assert_eq!(fs::read_to_string("/mnt/at/Hello").unwrap(), "text\n");
    let options = testkit::outcome(Command::new("findmnt").args(["-n", "-o", "FSTYPE,OPTIONS", "/mnt/at"])).out;
    assert!(options.starts_with("fuse.rot13") && options.contains("noatime"), "{options}");
    // The second time, mount(8) detects that all lines are mounted.
    let outcome = testkit::outcome(Command::new("mount").arg("-a").arg("-T").arg(&fstab));
    assert_eq!((outcome.code, outcome.err.as_str()), (0, ""));
    let outcome = testkit::outcome(Command::new("mount").args(["-o", "remount,ro", "/mnt/at"]));
    assert_eq!((outcome.code, outcome.err.as_str()), (0, ""));
    // A remount repeats the options of fstab, which is permitted; other options are refused.
    let outcome = testkit::outcome(Command::new("mount").arg("-T").arg(&fstab).args(["-o", "remount,ro", "/mnt/c"]));
    assert_eq!((outcome.code, outcome.err.as_str()), (0, ""));
    assert_eq!(fs::write("/mnt/c/x", "").unwrap_err().raw_os_error(), Some(30));
    let outcome =
        testkit::outcome(Command::new("mount").arg("-T").arg(&fstab).args(["-o", "remount,cache=7", "/mnt/c"]));
    assert!(
        outcome.code == 1 && outcome.err.contains("option cache: can't be changed by a remount"),
        "{}",
        outcome.err
    );
    for at in ["/mnt/a", "/mnt/b", "/mnt/c", "/mnt/at"] {
        unmount(at);
    }
}

#[test]
fn branches_may_be_stacks() {
    let sandbox = stage();
    fs::create_dir(sandbox.path("changes")).unwrap();
    let words = "wrapfs / unionfs,dirs=[rot13 / xor,key=7 / /mnt/changes]=rw:[wrapfs/[unionfs,dirs=/mnt/data]]=ro";
    strata(&["mount", words, "/mnt/at"]);
    fs::write("/mnt/at/new", "new").unwrap();
    assert_eq!(fs::read("/mnt/changes/arj").unwrap(), [b'n' ^ b'7', b'e' ^ b'7', b'w' ^ b'7']);
    fs::write("/mnt/at/Uryyb", "changed").unwrap();
    assert_eq!(fs::read_to_string("/mnt/data/Uryyb").unwrap(), "text\n");
    let layers = stack("/mnt/at")["layers"].clone();
    let branches = &layers[1]["directories"];
    let names = |branch: &Value| -> Vec<String> {
        let layers = branch["layers"].as_array().unwrap().iter();
        layers.map(|layer| layer["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        (names(&branches[0]), branches[0]["mode"].as_str()),
        (["rot13", "xor", "directory"].map(str::to_owned).to_vec(), Some("rw"))
    );
    assert_eq!(
        (names(&branches[1]), branches[1]["mode"].as_str()),
        (["wrapfs", "unionfs"].map(str::to_owned).to_vec(), Some("ro"))
    );
    // All layers are metered, including those in branches.
    assert!(branches[0]["layers"][1]["by_operation"]["write"]["done"].as_u64().unwrap() >= 2);
    let drawn = strata(&["stack", "/mnt/at"]);
    for line in [
        "     rw     ┌─ rot13\n",
        "            ├─ xor,key=7\n",
        "            └─ directory\n",
        "     ro     ┌─ wrapfs\n",
    ] {
        assert!(drawn.contains(&format!("\n{line}")), "{line}: {drawn}");
    }
    // `strata lower` lists the directories of all stacks.
    let lower = strata(&["lower", "/mnt/at"]);
    let lines: Vec<_> = lower.lines().map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>()).collect();
    assert_eq!(lines, [["rw", "/mnt/changes"], ["ro", "/mnt/data"]]);
    assert_eq!(strata(&["lower", "--branch", "2", "/mnt/at", "ls"]), "Uryyb\n");
    // An equivalent description is recognized as already mounted; a different stack is not.
    let same = words.replace("[rot13 / xor,key=7 / /mnt/changes]", "[rot13/[xor,key=7/[/mnt/./changes]]]");
    assert!(
        refused(&["mount", &same, "/mnt/at"], 32).contains("/mnt/at: already mounted: a unionfs mount of the same")
    );
    let other = "unionfs,dirs=[rot13 / xor,key=7 / /mnt/changes]=ro:/mnt/data=ro";
    strata(&["mount", other, "/mnt/at"]);
    unmount("/mnt/at");
    unmount("/mnt/at");
    // A branch keeps its identity, and files their inode numbers, if options of its layers change.
    strata(&["mount", words, "/mnt/at"]);
    let number = fs::metadata("/mnt/at/new").unwrap().ino();
    unmount("/mnt/at");
    strata(&["mount", &words.replace("key=7", "key=7,block=4k"), "/mnt/at"]);
    assert_eq!(fs::metadata("/mnt/at/new").unwrap().ino(), number);
    unmount("/mnt/at");
    drop(sandbox);
}

#[test]
fn branches_that_are_stacks_in_fstab() {
    let sandbox = stage();
    install(&sandbox);
    for dir in ["a", "b", "c", "changes", "replica", "more", "[odd]", "with [brackets]"] {
        fs::create_dir(sandbox.path(dir)).unwrap();
    }
    fs::write("/mnt/[odd]/odd", "").unwrap();
    // mount(8) splits options at commas, except in double quotes, and removes the options that it
    // handles.
    let lines = "u /mnt/a unionfs dirs=[rot13/[/mnt/changes]]=rw:[xor,key=7/[unionfs,dirs=/mnt/data:/mnt/[odd]]]=ro,nosuid 0 0\n\
                 v /mnt/b unionfs dirs=[\"xor,key=7\\040/\\040/mnt/more,ro\"]=ro:/mnt/with\\040[brackets],noatime 0 0\n\
                 [rot13/[/mnt/replica]]:/mnt/[odd] /mnt/c lbfs nofail 0 0\n";
    let fstab = sandbox.path("fstab");
    fs::write(&fstab, lines.replace("/mnt/[odd]]", "/mnt/\\[odd\\]]")).unwrap();
    fs::write("/mnt/replica/bqq", "").unwrap();
    for _ in 0..2 {
        // The second time, mount(8) detects that all lines are mounted.
        let outcome = testkit::outcome(Command::new("mount").arg("-a").arg("-T").arg(&fstab));
        assert_eq!((outcome.code, outcome.err.as_str()), (0, ""));
    }
    fs::write("/mnt/a/new", "").unwrap();
    assert!(Path::new("/mnt/changes/arj").exists() && Path::new("/mnt/a/odd").exists());
    assert_eq!(fs::write("/mnt/b/new", "").unwrap_err().raw_os_error(), Some(30));
    assert!(Path::new("/mnt/c/odd").exists());
    let places = |at: &str| {
        strata(&["lower", at]).lines().map(|line| line.rsplit("  ").next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(places("/mnt/a"), ["/mnt/changes", "/mnt/data", "/mnt/[odd]"]);
    assert_eq!(places("/mnt/b"), ["/mnt/more", "/mnt/with [brackets]"]);
    assert_eq!(places("/mnt/c"), ["/mnt/replica", "/mnt/[odd]"]);
    // A remount may repeat the options of fstab.
    let outcome = testkit::outcome(Command::new("mount").arg("-T").arg(&fstab).args(["-o", "remount,ro", "/mnt/a"]));
    assert_eq!((outcome.code, outcome.err.as_str()), (0, ""));
    assert_eq!(fs::write("/mnt/a/x", "").unwrap_err().raw_os_error(), Some(30));
    for at in ["/mnt/a", "/mnt/b", "/mnt/c"] {
        unmount(at);
    }
}

/// `mount -t lbfs` takes its replicas from the first argument or from `dirs=`, never from both.
#[test]
fn replicas_are_listed_once() {
    let sandbox = stage();
    install(&sandbox);
    fs::write(sandbox.dir("other").join("Hello"), "text\n").unwrap();
    let mount = |source: &str, options: &str| {
        testkit::outcome(Command::new("/sbin/mount.lbfs").args([
            source,
            "/mnt/at",
            "-o",
            options,
            "-o",
            "logfile=/mnt/log",
        ]))
    };
    let both = mount("/mnt/data", "dirs=/mnt/other,policy=hash");
    assert_eq!(
        (both.code, both.err.as_str()),
        (
            1,
            "mount.lbfs: the replicas are given twice, by the first argument, /mnt/data, and by dirs=/mnt/other; \
             remove one of them\n"
        )
    );
    for source in ["none", ""] {
        let neither = mount(source, "policy=hash");
        assert!(neither.code == 1 && neither.err.contains(": no replicas given; add them"), "{}", neither.err);
        let outcome = mount(source, "dirs=/mnt/data:[rot13/[/mnt/other]]");
        assert_eq!((outcome.code, outcome.err.as_str()), (0, ""));
        assert_eq!(fs::read_to_string("/mnt/at/Uryyb").unwrap(), "text\n");
        assert_eq!(strata(&["lower", "/mnt/at"]).lines().count(), 2);
        let source = testkit::outcome(Command::new("findmnt").args(["-n", "-o", "SOURCE", "/mnt/at"])).out;
        assert_eq!(source.trim_end(), "lbfs");
        unmount("/mnt/at");
    }
    // A directory of that name is reached by a path.
    fs::rename("/mnt/data", "/mnt/none").unwrap();
    let outcome =
        testkit::outcome(Command::new("/sbin/mount.lbfs").args(["./none:/mnt/other", "/mnt/at"]).current_dir("/mnt"));
    assert_eq!((outcome.code, outcome.err.as_str()), (0, ""));
    unmount("/mnt/at");
    drop(sandbox);
}

/// Overlaps, unwritable directories and invalid options are detected in branches that are stacks,
/// too.
#[test]
fn errors_in_a_branch_are_reported_in_one_line() {
    let sandbox = stage();
    for dir in ["a", "b", "data/inner"] {
        fs::create_dir(sandbox.path(dir)).unwrap();
    }
    let wrong = |stack: &str, code| refused(&["mount", stack, "/mnt/at"], code);
    for (stack, code, reason) in [
        ("unionfs,dirs=/mnt/a:[rto13/[/mnt/data]]", 1, "part 1 of the stack in branch 2: no such layer \"rto13\""),
        (
            "rot13 / unionfs,dirs=[wrapfs / xor,x=1 / /mnt/a]",
            1,
            "part 2 of the stack in branch 1: xor: unknown option x",
        ),
        ("unionfs,dirs=[zstd,level=99 / /mnt/a]", 1, "part 1 of the stack in branch 1: zstd: level=99"),
        ("lbfs,dirs=/mnt/a:[zstd,level=99 / /mnt/b]", 1, "part 1 of the stack in replica 2: zstd: level=99"),
        (
            "lbfs,dirs=/mnt/a:[unionfs,dirs=/mnt/b=rw]",
            32,
            "part 1 of the stack in replica 2: branch 1: is rw, but its stack",
        ),
        ("unionfs,dirs=/mnt/a:[unionfs,delete=all]", 1, "in branch 2: unionfs: no directories given"),
        ("unionfs,dirs=[cryptfs / /mnt/a]", 32, "part 1 of the stack in branch 1: cryptfs: not an encrypted volume"),
        ("unionfs,dirs=[usenetfs,scheme=x / /mnt/a]", 1, "part 1 of the stack in branch 1: usenetfs: scheme=x: "),
        ("unionfs,dirs=[rot13 / /mnt/missing]", 32, "branch /mnt/missing: no such directory"),
        ("unionfs,dirs=[rot13 / /mnt/data]:/mnt/data/inner", 32, "/mnt/data/inner: is inside branch /mnt/data"),
        ("unionfs,dirs=/mnt/a:[unionfs,dirs=/mnt/b:/mnt/a]", 32, "is the same directory as branch /mnt/a"),
        ("unionfs,dirs=/mnt/a:[lbfs,dirs=/mnt/b:/mnt/a/x]", 32, "/mnt/a/x: overlaps with the writable branch /mnt/a"),
        ("unionfs,dirs=[rot13 / /mnt/a,ro]=rw:/mnt/b", 32, "branch 1: is rw, but its stack permits no changes"),
        ("unionfs,dirs=[lbfs,dirs=/mnt/a]=rw:/mnt/b", 32, "branch 1: is rw, but its stack permits no changes"),
        ("unionfs,dirs=[rot13 / /mnt/a]=ro:/mnt/b=rw", 32, "branch [rot13 / /mnt/a]: the first branch must be rw"),
        ("lbfs,dirs=[rot13/[/mnt/a]]:[rot13 / /mnt/a]", 1, "replica [rot13 / /mnt/a]: given twice"),
        ("unionfs,dirs=[rot13 / /mnt/a", 1, "part 1 of the stack: it has a [ that is not closed"),
        ("unionfs,dirs=[rot13 / /mnt/a]rw", 1, "after the ] of branch [rot13 / /mnt/a]"),
    ] {
        let said = wrong(stack, code);
        assert!(said.contains(reason), "{stack}: {said}");
    }
    let many = format!("unionfs,dirs={}", ["[wrapfs / wrapfs / /mnt/a]"; 11].join(":"));
    assert!(wrong(&many, 1).contains("more than 32 parts"));
    for dir in ["/mnt/a", "/mnt/b"] {
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "nothing was written");
    }
    assert!(stack_is_missing("/mnt/at"));
    drop(sandbox);
}

fn stack_is_missing(at: &str) -> bool {
    refused(&["stack", at], 32).contains("not on a Strata mount")
}

#[test]
fn errors_are_reported_in_one_line() {
    let sandbox = stage();
    // On a machine without journal and syslog, snoopfs would add a line unless logfile= is given.
    let wrong = |stack: &str, code| refused(&["mount", stack, "/mnt/at", "-o", "logfile=/mnt/log"], code);
    assert!(
        wrong("rto13 / /mnt/data", 1).contains("part 1 of the stack: no such layer \"rto13\": did you mean rot13?")
    );
    assert!(wrong("rot13,x=1 / /mnt/data", 1).contains("part 1 of the stack: rot13: unknown option x"));
    assert!(wrong("rot13 / /mnt/missing", 32).contains("directory /mnt/missing: no such directory"));
    assert!(wrong("rot13 / unionfs,dirs=/mnt/data=rx", 1).contains("unknown mode \"rx\""));
    assert!(wrong("xor,key=1,key=2 / /mnt/data", 1).contains("xor: option key is given twice"));
    assert!(wrong("none", 1).contains("no stack"));
    for stack in ["unionfs", "rot13 / unionfs,delete=all"] {
        let reason =
            "unionfs: no directories given; add them to the stack, as in `unionfs,dirs=/changes=rw:/base=ro`\n";
        assert_eq!(wrong(stack, 1), format!("mount.strata: {reason}"));
    }
    assert!(wrong("lbfs", 1).contains("as in `lbfs,dirs=/net/a:/net/b`"));
    fs::write("/mnt/upper.so", "").unwrap();
    let here =
        testkit::outcome(Command::new(PROGRAM).args(["mount", "upper.so / /mnt/data", "/mnt/at"]).current_dir("/mnt"));
    assert!(here.code == 1 && here.err.ends_with(": did you mean ./upper.so?\n"), "{}", here.err);
    let at_file = refused(&["mount", "/mnt/data", "/mnt/upper.so"], 32);
    assert!(at_file.contains("mount point /mnt/upper.so: not a directory; choose a directory"), "{at_file}");
    // Messages about invalid values name the valid ones.
    for (part, allowed) in [
        ("zstd,level=99", "level=99: it is a number from -131072 to 22; usual levels are 1 to 22"),
        ("zstd,level=x", "level=x: it is a number from -131072 to 22"),
        ("zstd,block=1000", "a power of two from 512 to 1048576"),
        ("zstd,block=1G", "must be a power of two from 512 to 1048576"),
        ("zstd,block=1P", "as 4096, 4k or 1M; must be a power of two from 512 to 1048576"),
        ("xor,block=0", "a number from 1 to 1048576"),
        ("xor,block=x", "a number from 1 to 1048576"),
        ("snoopfs,rate=-1", "a number from 0 to 4294967295"),
        ("usenetfs,scheme=x", "none of digits, hash"),
        ("usenetfs,scheme=hash,limit=1", "a number from 2 to 1000000"),
    ] {
        assert!(wrong(&format!("{part} / /mnt/data"), 1).contains(allowed), "{part}");
    }
    for (option, allowed) in [
        ("policy=x", "random, roundrobin, lru, fastest, hash"),
        ("isolate=x", "auto, always, never"),
        ("timeout=0", "more than 0"),
        ("threads=x", "a number from 0 to"),
    ] {
        assert!(wrong(&format!("lbfs,dirs=/mnt/data:/mnt/at,{option}"), 1).contains(allowed), "{option}");
    }
    assert!(refused(&["mount", "rot13 / /mnt/data", "/mnt/at", "-o", "metre=on"], 1).contains("unknown option metre"));
    assert!(refused(&["stack", "/mnt/at"], 32).contains("not on a Strata mount"));
    assert!(refused(&["lower", "/mnt/at"], 32).contains("not on a Strata mount"));
    assert!(refused(&["debug", "/mnt/at"], 32).contains("not on a Strata mount"));
    // `-f` does not mount.
    strata(&["mount", "-f", "rot13 / /mnt/data", "/mnt/at"]);
    assert_eq!(fs::read_dir("/mnt/at").unwrap().count(), 0);
    drop(sandbox);
}

/// Root can reach the lower files through `strata lower` even if one or two mounts cover them.
#[test]
fn lower_reaches_the_files_under_an_overlay_mount() {
    let sandbox = stage();
    let covered = fs::metadata("/mnt/data/Uryyb").unwrap();
    let pids = || -> u64 { stack("/mnt/data")["pid"].as_u64().unwrap() };
    strata(&["mount", "rot13 / /mnt/data", "/mnt/data"]);
    assert_eq!(fs::read_to_string("/mnt/data/Hello").unwrap(), "text\n");
    let first = pids();
    let by = strata(&["lower", "--branch", "1", "/mnt/data"]);
    let through = Path::new(by.trim_end()).join("Uryyb");
    assert!(by.starts_with(&format!("/proc/{first}/fd/")), "{by}");
    assert_eq!(fs::metadata(&through).unwrap().ino(), covered.ino());
    // Changes to the lower directory are visible in the mount.
    fs::write(through.with_file_name("orybj"), "from below").unwrap();
    assert_eq!(fs::read_to_string("/mnt/data/below").unwrap(), "from below");
    // A command sees the lower files at the mount point, which is its working directory.
    assert_eq!(
        strata(&["lower", "/mnt/data", "sh", "-c", "pwd; ls; ls /mnt/data"]),
        "/mnt/data\nUryyb\norybj\nUryyb\norybj\n"
    );
    // Other processes still see the mount.
    assert_eq!(fs::read_to_string("/mnt/data/Hello").unwrap(), "text\n");
    // A second mount on top: its lower directory is the first mount.
    strata(&["mount", "rot13 / /mnt/data", "/mnt/data"]);
    assert_ne!(pids(), first);
    assert_eq!(strata(&["lower", "/mnt/data", "ls"]), "Hello\nbelow\n");
    assert_eq!(strata(&["lower", "/mnt/data", PROGRAM, "lower", "/mnt/data", "ls"]), "Uryyb\norybj\n");
    unmount("/mnt/data");
    unmount("/mnt/data");
    assert!(Path::new("/mnt/data/Uryyb").exists());
    // A mount whose lower directory was covered later.
    strata(&["mount", "rot13 / /mnt/data", "/mnt/at"]);
    mount_fs("cover", "/mnt/data", "tmpfs", MountFlags::empty(), None).unwrap();
    assert_eq!(fs::read_dir("/mnt/data").unwrap().count(), 0);
    assert_eq!(fs::read_to_string("/mnt/at/Hello").unwrap(), "text\n");
    assert_eq!(strata(&["lower", "/mnt/at", "ls"]), "Uryyb\norybj\n");
    unmount("/mnt/at");
    rustix::mount::unmount("/mnt/data", rustix::mount::UnmountFlags::empty()).unwrap();
    drop(sandbox);
}

#[test]
fn lower_reaches_the_branches_of_a_union_over_one_of_them() {
    let sandbox = stage();
    fs::create_dir(sandbox.path("changes")).unwrap();
    strata(&["mount", "wrapfs / unionfs,dirs=/mnt/changes=rw:/mnt/data=ro", "/mnt/data"]);
    fs::write("/mnt/data/Uryyb", "changed").unwrap();
    assert_eq!(fs::read_to_string("/mnt/changes/Uryyb").unwrap(), "changed");
    assert_eq!(strata(&["lower", "--branch", "2", "/mnt/data", "cat", "Uryyb"]), "text\n");
    assert_eq!(strata(&["lower", "/mnt/data", "cat", "Uryyb"]), "changed");
    unmount("/mnt/data");
    assert_eq!(fs::read_to_string("/mnt/data/Uryyb").unwrap(), "text\n");
}

#[test]
fn the_stack_report_has_operations_and_times_of_each_layer() {
    let sandbox = stage();
    strata(&["mount", "rot13 / wrapfs / /mnt/data", "/mnt/at", "-o", "passthrough=off"]);
    for i in 0..50 {
        fs::write(format!("/mnt/at/f{i}"), "x").unwrap();
    }
    assert!(!Path::new("/mnt/at/missing").exists());
    let stack = stack("/mnt/at");
    let layers = stack["layers"].as_array().unwrap();
    let names: Vec<_> = layers.iter().map(|layer| layer["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["rot13", "wrapfs", "directory"]);
    let number = |layer: &Value, name: &str| layer[name].as_u64().unwrap();
    for layer in layers {
        let each = layer["by_operation"].as_object().unwrap();
        assert_eq!((number(&each["create"], "done"), number(&each["write"], "done")), (50, 50), "{layer}");
        let sum: u64 = each.values().map(|row| row["inclusive_ns"].as_u64().unwrap()).sum();
        assert_eq!(sum, number(layer, "inclusive_ns"));
    }
    let own: u64 = layers.iter().map(|layer| number(layer, "exclusive_ns")).sum();
    assert_eq!(own, number(&layers[0], "inclusive_ns"), "the exclusive times add up to the total");
    let drawn = strata(&["stack", "/mnt/at"]);
    assert!(
        drawn.contains("\n┌─ rot13\n│    ") && drawn.contains("\n└─ directory\n     rw     /mnt/data\n"),
        "{drawn}"
    );
    // In a pipe, --watch writes no control characters, and exits when the reader does.
    let watch = format!("{PROGRAM} stack --watch=0.1 /mnt/at | head -n 12");
    let watched = testkit::outcome(Command::new("sh").args(["-c", &watch]));
    assert_eq!(watched.out.lines().count(), 12);
    assert!(!watched.out.contains('\x1b') && watched.err.is_empty(), "{}", watched.err);
    unmount("/mnt/at");
    drop(sandbox);
}

#[test]
fn a_mount_without_metering_is_reported_as_such() {
    let sandbox = stage();
    strata(&["mount", "wrapfs / /mnt/data", "/mnt/at", "-o", "meter=off"]);
    assert!(strata(&["stack", "/mnt/at"]).contains("No measurements: mount with the option meter=on"));
    assert!(stack("/mnt/at")["layers"][0].get("operations").is_none());
    unmount("/mnt/at");
    drop(sandbox);
}

#[test]
fn the_log_level_can_be_changed_while_mounted() {
    let sandbox = stage();
    let log = sandbox.path("log");
    strata(&["mount", "rot13 / /mnt/data", "/mnt/at", "-o", "logfile=/mnt/log,log=error,allow_other"]);
    let log_text = || fs::read_to_string(&log).unwrap();
    assert_eq!((strata(&["debug", "/mnt/at"]).as_str(), log_text().as_str()), ("error\n", ""));
    strata(&["debug", "/mnt/at", "trace"]);
    assert_eq!(strata(&["debug", "/mnt/at"]), "trace\n");
    assert!(!Path::new("/mnt/at/first").exists());
    assert!(
        log_text().contains("rot13: lookup: done in") && log_text().contains("directory: lookup: done in"),
        "{}",
        log_text()
    );
    // The lines of layers have the names that each layer sees; the line of a request has its caller
    // and result.
    let line = |begin: &str, end: &str| {
        let found = |line: &str| line.contains(begin) && line.contains(end);
        assert!(log_text().lines().any(found), "{begin} ... {end}: {}", log_text());
    };
    line("rot13: lookup: done in", "; \"first\"");
    line("directory: lookup: done in", "; \"svefg\"");
    line("LOOKUP node 1 \"first\": ENOENT in ", "; uid 0 gid 0 pid ");
    let outcome = testkit::outcome(Command::new("mkdir").arg("/mnt/at/ünï\nx").uid(65534).gid(65533));
    assert_eq!(outcome.code, 1);
    line("LOOKUP node 1 \"ünï\\nx\": ENOENT in ", "uid 65534 gid 65533 pid ");
    line("LOOKUP node 1 \"ünï\\nx\": ENOENT in ", " (mkdir)");
    strata(&["debug", "/mnt/at", "0"]);
    let before = log_text();
    assert!(!Path::new("/mnt/at/second").exists());
    assert_eq!((strata(&["debug", "/mnt/at"]).as_str(), log_text()), ("off\n", before));
    assert!(refused(&["debug", "/mnt/at", "loud"], 1).contains("off, error, warn, info, debug, trace"));
    // Other users may read the level, but not set it. The build directory may be inaccessible to
    // them.
    let program = sandbox.path("strata");
    fs::copy(PROGRAM, &program).unwrap();
    let as_nobody = |words: &[&str]| testkit::outcome(Command::new(&program).args(words).uid(65534).gid(65534));
    assert_eq!(as_nobody(&["debug", "/mnt/at"]).out, "off\n");
    let outcome = as_nobody(&["debug", "/mnt/at", "trace"]);
    assert!(outcome.code == 1 && outcome.err.contains("only root and the mounting user"), "{}", outcome.err);
    assert_eq!(strata(&["debug", "/mnt/at"]), "off\n");
    unmount("/mnt/at");
}

/// An independent Perl implementation of the documented frame format.
#[test]
fn the_control_channel_works_as_documented() {
    let sandbox = stage();
    strata(&["mount", "rot13 / /mnt/data", "/mnt/at"]);
    let script = r#"open(my $root, "<", "/mnt/at") or die "open: $!";
        my $number = 3 << 30 | 8192 << 16 | ord("S") << 8 | 1;
        sub give {
            my ($version, $name, $input) = @_;
            my $frame = pack("a8 v x2 x4 x24 V V x16", "Strata?\n", $version, length $name, length $input);
            $frame .= $name . $input;
            $frame .= "\0" x (8192 - length $frame);
            ioctl($root, $number, $frame) or return "$!";
            my ($magic, $answers, $errno, $token, $offset, $total, $len) = unpack("a8 v x2 V Q< Q< Q< x4 V", $frame);
            $magic eq "Strata!\n" or return "no reply";
            $! = $errno;
            return $errno ? "$answers: $!" : substr($frame, 64, $len);
        }
        print join "|", give(1, "server.debug", "debug"), give(1, "server.debug", "loud"), give(1, "no.such", ""),
            give(2, "server.debug", ""), give(1, "bad", "");"#;
    let outcome = testkit::outcome(Command::new("perl").args(["-e", script]));
    let expected = "{\"level\":\"debug\"}|1: Invalid argument|1: Inappropriate ioctl for device|1: Protocol error|1: Invalid argument";
    assert_eq!((outcome.out.as_str(), outcome.err.as_str()), (expected, ""));
    assert_eq!(strata(&["debug", "/mnt/at"]), "debug\n");
    unmount("/mnt/at");
    drop(sandbox);
}

#[test]
fn snoopfs_warns_even_without_journal_and_syslog() {
    let sandbox = stage();
    // Hide the sockets of the journal and of syslog.
    for dir in ["/run", "/var/log"] {
        mount_fs("nobody", dir, "tmpfs", MountFlags::empty(), None).unwrap();
    }
    if Path::new("/dev/log").exists() {
        mount_bind("/dev/null", "/dev/log").unwrap();
    }
    let closed = sandbox.path("data").join("closed");
    fs::write(&closed, "secret").unwrap();
    fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    fs::set_permissions("/mnt/data", std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let log = Path::new("/var/log/snoopfs.log");
    let mount = |options: &[&str]| {
        testkit::outcome(Command::new(PROGRAM).args(["mount", "wrapfs / snoopfs / /mnt/data", "/mnt/at"]).args(options))
    };
    let mounted = mount(&[]);
    assert_eq!(mounted.code, 0, "{}", mounted.err);
    assert!(mounted.err.contains("warnings are written to /var/log/snoopfs.log"), "{}", mounted.err);
    assert_eq!(testkit::outcome(Command::new("cat").arg("/mnt/at/closed").uid(1002).gid(1002)).code, 1);
    unmount("/mnt/at");
    let said = fs::read_to_string(log).unwrap();
    assert!(said.contains("permission denied (rwx): path=\"/closed\" uid=1002"), "{said}");
    assert_eq!(fs::metadata(log).unwrap().mode() & 0o777, 0o600);
    // With logfile= there is no message.
    let mounted = mount(&["-o", "logfile=/mnt/log"]);
    assert_eq!((mounted.code, mounted.err.as_str()), (0, ""));
    unmount("/mnt/at");
    // If the fallback can't be opened, the mount fails. Stacks without snoopfs don't need a log.
    rustix::mount::mount_remount("/var/log", MountFlags::RDONLY, "").unwrap();
    let refused = mount(&[]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("it is needed for warnings") && refused.err.contains("logfile="), "{}", refused.err);
    assert_eq!(strata(&["mount", "wrapfs / /mnt/data", "/mnt/at"]), "");
    unmount("/mnt/at");
}
