//! `versionctl` on mounted file systems: the history of files, and their restoration.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use strata_tests::Sandbox;

const PROGRAM: &str = env!("CARGO_BIN_EXE_strata");
const MOUNT: &str = "/mnt/at";

struct Outcome {
    code: i32,
    out: Vec<u8>,
    err: String,
}

impl Outcome {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }
}

fn run(command: &mut Command) -> Outcome {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    Outcome { code: output.status.code().unwrap_or(-1), out: output.stdout, err }
}

/// A mount of versionfs at [`MOUNT`], over `/mnt/data`.
struct Stage {
    sandbox: Sandbox,
}

impl Stage {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        let data = sandbox.dir("data");
        fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).unwrap();
        let _ = sandbox.dir("at");
        let bin = sandbox.dir("bin");
        symlink(PROGRAM, bin.join("versionctl")).unwrap();
        let mounted = run(Command::new(PROGRAM).args(["mount", "versionfs / /mnt/data", MOUNT, "-o", "allow_other"]));
        assert_eq!((mounted.code, &*mounted.err), (0, ""));
        Self { sandbox }
    }

    /// A command in the mount.
    fn versionctl<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = Command::new(self.sandbox.path("bin/versionctl"));
        command.args(words).current_dir(MOUNT).env("TZ", "UTC");
        command
    }

    fn status<S: AsRef<OsStr>>(&self, words: &[S]) -> Outcome {
        run(&mut self.versionctl(words))
    }

    /// Runs a command, which must succeed, and returns its output.
    fn done<S: AsRef<OsStr> + std::fmt::Debug>(&self, words: &[S]) -> String {
        let outcome = self.status(words);
        assert_eq!((outcome.code, &*outcome.err), (0, ""), "{words:?}: {}", outcome.text());
        outcome.text()
    }

    fn json<S: AsRef<OsStr> + std::fmt::Debug>(&self, words: &[S]) -> Value {
        serde_json::from_str(&self.done(words)).unwrap()
    }

    /// Gives the present state a name: that of no change before or after.
    fn tag(&self, tag: &str) {
        testkit::tick();
        self.done(&["tag", tag]);
        testkit::tick();
    }

    /// Runs a shell command in the mount. Each has a process of its own.
    fn shell(&self, script: &str) {
        let outcome = run(Command::new("sh").args(["-ec", script]).current_dir(MOUNT));
        assert_eq!((outcome.code, &*outcome.err), (0, ""), "{script}");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg(MOUNT));
    }
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(Path::new(MOUNT).join(path)).unwrap()
}

/// Names that several files had within a second, in the order of the renames.
#[test]
fn versions_of_renamed_names_have_an_order() {
    let stage = Stage::new();
    stage.shell("echo one >t; mv t out; echo two >t; mv t out; echo three >t; mv t out");
    assert_eq!(["1", "2", "3"].map(|number| stage.done(&["cat", "t", number])), ["one\n", "two\n", "three\n"]);
    stage.shell("echo hello >c; mv c b; mv b c; mv c b");
    for version in [["b", "1"], ["c", "1"], ["c", "2"]] {
        assert_eq!(stage.done(&["cat", version[0], version[1]]), "hello\n");
    }
    stage.shell("echo 1 >s; for i in 2 3 4; do sed -i.bak s/./$i/ s; done");
    assert_eq!(["1", "2", "3"].map(|number| stage.done(&["cat", "s", number])), ["1\n", "2\n", "3\n"]);
    // The last content before the present one is that of a file that was renamed.
    stage.shell("echo v0 >f; echo v1 >f; mv f f~; echo v2 >f");
    assert!(stage.status(&["diff", "f"]).text().contains("-v1\n+v2\n"));
    stage.done(&["restore", "f"]);
    assert_eq!(read("f"), "v1\n");
}

/// Names of one file, which others get later.
#[test]
fn the_past_of_hard_links_is_that_of_their_names() {
    let stage = Stage::new();
    stage.shell("mkdir 1 2 3; cd 1; printf one >c; printf two >>c; ln c a");
    stage.shell("cd 2; echo one >a; ln a b");
    stage.shell("cd 3; echo D >d; ln d a; echo B >b; rm a; ln b a");
    stage.done(&["tag", "then"]);
    stage.shell("cd 1; printf three >>a; rm c; printf new >c; ln c b");
    stage.shell("cd 2; rm b; truncate -s0 a; echo x >b; rm b");
    stage.shell("cd 3; echo zz >b; truncate -s5 d; chmod 600 b");
    let then = [
        ("1/a", "onetwo"),
        ("1/c", "onetwo"),
        ("2/a", "one\n"),
        ("2/b", "one\n"),
        ("3/a", "B\n"),
        ("3/b", "B\n"),
        ("3/d", "D\n"),
    ];
    for (path, content) in then {
        assert_eq!(stage.done(&["cat", path, "then"]), content, "{path}");
    }
    for dir in ["1", "2", "3"] {
        stage.done(&["restore", dir, "--at", "then"]);
    }
    for (path, content) in then {
        assert_eq!(read(path), content, "{path}");
    }
}

/// Returns the contents of files, and which of them is the first name of each one's file.
fn names<const N: usize>(paths: [&str; N]) -> [(String, usize); N] {
    let inodes = paths.map(|path| fs::metadata(Path::new(MOUNT).join(path)).unwrap().ino());
    let first = |path: &str| {
        let inode = fs::metadata(Path::new(MOUNT).join(path)).unwrap().ino();
        inodes.iter().position(|other| *other == inode).unwrap()
    };
    paths.map(|path| (read(path), first(path)))
}

/// Names of one file are that again, in any directories, however they were lost.
#[test]
fn restored_hard_links_are_names_of_one_file() {
    let stage = Stage::new();
    stage.shell("mkdir -p d/sub; echo one >d/a; ln d/a d/b; ln d/a d/sub/c; echo one >d/other");
    stage.shell("echo x >d/i; ln d/i d/j; ln d/i d/sub/k");
    let paths = ["d/a", "d/b", "d/sub/c", "d/other", "d/i", "d/j", "d/sub/k"];
    let before = names(paths);
    assert_eq!(before.clone().map(|(_, first)| first), [0, 0, 0, 3, 4, 4, 4]);
    stage.tag("then");
    stage.shell("rm -r d");
    stage.done(&["restore", "d"]);
    assert_eq!(names(paths), before);
    // One more is written, one is replaced, one removed, and one is of another file now.
    stage.shell("echo two >>d/a; echo n >n; mv n d/b; rm d/sub/c; ln -f d/i d/other; rm d/i; echo i >d/i");
    stage.done(&["restore", "d", "--at", "then"]);
    assert_eq!(names(paths), before);
    stage.done(&["restore", "d", "--at", "then", "--to", "copy"]);
    let copied = names(paths.map(|path| path.replacen('d', "copy", 1)).each_ref().map(String::as_str));
    assert_eq!(copied, before);
    // Names of a file that has not changed keep it.
    let inode = |name: &str| fs::metadata(Path::new(MOUNT).join(name)).unwrap().ino();
    stage.shell("ln d/b outside; rm d/a; echo other >d/a");
    stage.done(&["restore", "d", "--at", "then"]);
    assert_eq!((names(paths), inode("outside")), (before.clone(), inode("d/b")));
    stage.shell("rm d/a d/b d/other d/sub/k outside");
    stage.done(&["restore", "--process", "rm", "d"]);
    let again = names(paths);
    assert_eq!(again.clone().map(|(content, _)| content), before.map(|(content, _)| content));
    assert_eq!((again[0].1, again[1].1), (0, 0));
}

/// Names that were two files, of the same content, are that again, though they are one file now.
#[test]
fn restored_files_of_one_name_each_are_that() {
    let stage = Stage::new();
    stage.shell("echo one >a; touch -d @1 a; cp -a a b; cp -a a c; ln c d");
    stage.tag("then");
    for change in ["ln -f a b", "ln -f a b; ln -f a c; ln -f a d", "ln -f d b; rm a; ln b a"] {
        stage.shell(change);
        stage.done(&["restore", "--all", "--at", "then"]);
        assert_eq!(names(["a", "b", "c", "d"]).map(|(_, first)| first), [0, 1, 2, 2], "{change}");
    }
}

/// As after `git clone` of a repository in the same mount, which links the objects.
#[test]
fn a_removed_clone_comes_back() {
    let stage = Stage::new();
    stage.shell("mkdir -p repo/.git/objects/1f; cd repo/.git; echo object >objects/1f/e2; ln -s e2 objects/1f/link");
    stage.shell("cp -al repo clone; rm -r clone");
    let restored = stage.done(&["restore", "-v", "clone"]);
    assert_eq!(read("clone/.git/objects/1f/e2"), "object\n", "{restored}");
    assert_eq!(fs::read_link(format!("{MOUNT}/clone/.git/objects/1f/link")).unwrap(), Path::new("e2"));
    // The name under which Git wrote an object is not kept.
    stage.shell("cd repo/.git/objects/1f; echo new >tmp_obj_x; ln tmp_obj_x aa; rm tmp_obj_x");
    assert_eq!(stage.status(&["restore", "repo/.git/objects/1f/tmp_obj_x"]).code, 1);
}

/// A name may be one of another file now.
#[test]
fn a_restore_writes_to_no_other_file() {
    let stage = Stage::new();
    let write = "mkdir -p d; rm -f d/*; echo one >d/f; echo two >d/g";
    let is_as_before = || assert_eq!(names(["d/f", "d/g"]), [("one\n".into(), 0), ("two\n".into(), 1)]);
    for replace in ["ln -f d/f d/g", "ln -f d/g d/f"] {
        stage.shell(write);
        stage.tag("then");
        stage.shell(replace);
        stage.done(&["restore", "d", "--at", "then"]);
        is_as_before();
        stage.done(&["untag", "then"]);
    }
    let cases: [(&str, &[&str]); 4] = [
        ("ln -f d/g d/f", &["restore", "d/f"]),
        ("ln -f d/g d/f", &["restore", "--process", "ln", "d"]),
        ("echo x >d/f; ln -f d/g d/f", &["restore", "d/f", "1"]),
        // The present directory has no history of its own.
        ("rm -r d; mkdir d; echo two >d/g; ln d/g d/f", &["restore", "d/f", "--at", "then"]),
    ];
    for (change, restore) in cases {
        stage.shell(write);
        stage.tag("then");
        stage.shell(change);
        stage.done(restore);
        is_as_before();
        stage.done(&["untag", "then"]);
    }
    // Not to another name of the file either, nor to the one that was restored before.
    stage.shell("echo one >l; ln l k; echo two >l");
    stage.done(&["restore", "l", "1", "--to", "k"]);
    assert_eq!(names(["l", "k"]), [("two\n".into(), 0), ("one\n".into(), 1)]);
    stage.shell("echo one >v; ln v w; echo two >v");
    stage.done(&["restore", "v", "w"]);
    assert_eq!(names(["v", "w"]), [("one\n".into(), 0), ("one\n".into(), 0)]);
    // Contents and attributes may differ when the names go.
    stage.shell("echo x >m; ln m n; rm m; chmod 600 n; rm n");
    stage.done(&["restore", "m", "n"]);
    let mode = |name: &str| fs::metadata(Path::new(MOUNT).join(name)).unwrap().mode() & 0o777;
    assert_eq!((mode("m"), mode("n")), (0o644, 0o600));
    // A file that is still the same keeps its names.
    stage.shell("echo one >x; ln x y; echo two >x; mv x z; mv z x");
    stage.done(&["restore", "x"]);
    assert_eq!(names(["x", "y"]), [("one\n".into(), 0), ("one\n".into(), 0)]);
}

#[test]
fn removed_names_of_a_file_with_several_come_back() {
    let stage = Stage::new();
    stage.shell("echo hi >x; ln x y; rm y");
    stage.done(&["restore", "y"]);
    assert_eq!((read("x"), read("y")), ("hi\n".into(), "hi\n".into()));
    // Undoing the last change of a file goes past names that were added and removed.
    stage.shell("echo A >one; echo B >one; ln one two; rm two");
    stage.done(&["restore", "one"]);
    assert_eq!(read("one"), "A\n");
    stage.shell("mkdir -p tree/sub; echo 1 >tree/a; echo 2 >tree/b; echo 3 >tree/sub/c; ln -s a tree/l; mkfifo tree/p");
    stage.shell("cp -al tree copy; rm -r tree; echo later >>copy/a");
    stage.done(&["restore", "tree"]);
    let contents = ["tree/a", "tree/b", "tree/sub/c", "tree/l"].map(read);
    assert_eq!(contents, ["1\n", "2\n", "3\n", "1\n"]);
    assert_eq!(fs::symlink_metadata(format!("{MOUNT}/tree/p")).unwrap().mode() & 0o170_000, 0o010_000);
    assert_eq!(read("copy/a"), "1\nlater\n");
    // A name of a file that was replaced, and one that was renamed.
    stage.shell("echo old >p; ln p q; echo new >n; mv n p; mv q r; echo changed >r");
    assert_eq!((stage.done(&["cat", "p", "1"]), stage.done(&["cat", "q", "2"])), ("old\n".into(), "old\n".into()));
}

/// A file's history goes on where it came from, and not where another file of that name did.
#[test]
fn the_log_follows_renames() {
    let stage = Stage::new();
    stage.shell("echo other >a; rm a; echo one >a; echo two >a; mkdir d e; echo victim >d/b; mv a d/b");
    stage.shell("echo three >d/b; mv d/b e/c; echo new >a; echo four >e/c");
    let log = stage.json(&["log", "--json", "e/c"]);
    let former: Vec<_> = log["former"].as_array().unwrap().iter().map(|name| name["path"].as_str().unwrap()).collect();
    assert_eq!(former, ["d/b", "a"], "{log}");
    let texts = |versions: &Value, path: &str| {
        let numbers = versions.as_array().unwrap().iter().map(|version| version["version"].to_string());
        numbers.map(|number| stage.done(&["cat", path, &number])).collect::<Vec<_>>()
    };
    assert_eq!(texts(&log["former"][0]["versions"], "d/b"), ["three\n", "two\n"]);
    assert_eq!(texts(&log["former"][1]["versions"], "a"), ["two\n", "one\n"]);
    let text = stage.done(&["log", "e/c"]);
    assert_eq!(text.matches("  as d/b").count(), 2, "{text}");
    assert_eq!(text.matches("  as a").count(), 2, "{text}");
    // A filter applies to all names.
    assert!(!stage.done(&["log", "--process", "nobody", "e/c"]).contains("as "));
    // The name that it had, and the one that another file has now.
    let log = stage.json(&["log", "--json", "a"]);
    assert_eq!(log["former"], Value::Array(Vec::new()), "{log}");
    let log = stage.json(&["log", "--json", "d/b"]);
    assert_eq!(log["former"][0]["path"], "a", "{log}");
}

#[test]
fn an_overwritten_file_is_compared_and_restored() {
    let stage = Stage::new();
    stage.shell("echo one >f; chmod 640 f; touch -d '2001-02-03 04:05:06Z' f; echo two >f; printf 'two\\nthree\\n' >f");
    let inode = fs::metadata(Path::new(MOUNT).join("f")).unwrap().ino();
    let log = stage.json(&["log", "--json", "f"]);
    let newest = log["versions"][0]["version"].as_u64().unwrap();
    assert!(log["versions"].as_array().unwrap().len() >= 2, "{log}");
    // The name of the file that /bin/sh leads to, on recent kernels.
    assert!(["sh", "dash"].contains(&log["versions"][0]["by"]["process"].as_str().unwrap()), "{log}");
    assert_eq!(log["head"]["size"], 10);

    let diff = stage.status(&["diff", "f"]);
    assert_eq!(diff.code, 1, "{}", diff.err);
    assert!(diff.text().ends_with("@@ -1 +1,2 @@\n two\n+three\n"), "{}", diff.text());
    assert_eq!(stage.status(&["diff", "f", "head", "head"]).code, 0);
    assert_eq!(stage.status(&["diff", "f", "99"]).code, 2);
    assert_eq!(stage.done(&["cat", "f", &newest.to_string()]), "two\n");

    let said = stage.done(&["restore", "f"]);
    assert!(said.starts_with(&format!("f: restored version {newest}, until ")), "{said}");
    assert_eq!(read("f"), "two\n");
    // The restored state replaced the present one, which is now the newest version.
    stage.done(&["restore", "f"]);
    assert_eq!(read("f"), "two\nthree\n");
    stage.done(&["restore", "f", "1"]);
    let metadata = fs::metadata(Path::new(MOUNT).join("f")).unwrap();
    assert_eq!((read("f").as_str(), metadata.ino()), ("one\n", inode));
    let missing = stage.status(&["restore", "f", "77"]);
    assert!(
        missing.code == 1 && missing.err == "versionctl: f: no version 77; see versionctl log\n",
        "{}",
        missing.err
    );
    let never = stage.status(&["log", "never"]);
    assert!(never.code == 1 && never.err.contains("no such file, and no versions"), "{}", never.err);
}

/// Programs that save or copy a file set its mode, owner and ACL afterwards.
#[test]
fn restore_goes_back_to_another_content() {
    let stage = Stage::new();
    stage.shell("echo one >f; echo two >f; chmod 600 f; chmod 640 f; ln f name; rm name");
    let difference = stage.status(&["diff", "f"]);
    assert!(difference.code == 1 && difference.text().contains("-one"), "{}", difference.text());
    stage.done(&["restore", "f"]);
    assert_eq!(read("/mnt/at/f"), "one\n");
    // With --any, the newest version counts, whose mode differs.
    stage.shell("echo same >g; chmod 600 g; chmod 604 g");
    stage.done(&["restore", "g", "--any"]);
    assert_eq!(fs::metadata("/mnt/at/g").unwrap().permissions().mode() & 0o777, 0o600);
    // Without another content, the newest version is the one before.
    stage.shell("echo same >h; chmod 600 h; chmod 604 h");
    stage.done(&["restore", "h"]);
    assert_eq!(fs::metadata("/mnt/at/h").unwrap().permissions().mode() & 0o777, 0o600);
    stage.shell("ln -s one s; mv s t; ln -s two s; rm s");
    stage.done(&["restore", "s"]);
    assert_eq!(fs::read_link("/mnt/at/s").unwrap(), Path::new("two"));
}

/// What changes nothing makes no version: copies of the same bytes, modes and ACLs.
#[test]
fn copies_of_the_same_file_make_no_versions() {
    let stage = Stage::new();
    stage.shell("head -c 300000 /dev/urandom >f; cp f g; cp -p f h");
    let count = |name: &str| stage.json(&["log", name, "--json"])["versions"].as_array().map_or(0, Vec::len);
    let before = [count("g"), count("h")];
    stage.shell("cp f g; cp -p f h; cp -p f h; cat f >g; chmod 644 f; chown 0:0 f");
    assert_eq!([count("g"), count("h")], before);
    // An ACL with the bits of the mode.
    let acl: Vec<u8> = [2_u32.to_le_bytes().to_vec(), entry(1, 6), entry(4, 4), entry(0x20, 4)].concat();
    let set = |acl: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr("/mnt/at/g", "system.posix_acl_access", acl, flags).unwrap();
    };
    set(&acl);
    assert_eq!(count("g"), before[0]);
    // With others, it is a change of the mode.
    set(&[2_u32.to_le_bytes().to_vec(), entry(1, 6), entry(4, 0), entry(0x20, 0)].concat());
    assert_eq!(count("g"), before[0] + 1);
    stage.shell("cmp f g; cmp f h; printf x | dd of=g conv=notrunc status=none; cp f g; cmp f g");
    assert_eq!(count("g"), before[0] + 3);
}

/// Returns an entry of an ACL without an ID.
fn entry(tag: u16, bits: u16) -> Vec<u8> {
    [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &u32::MAX.to_le_bytes()].concat()
}

#[test]
fn removed_files_come_back_with_their_attributes() {
    let stage = Stage::new();
    stage.shell(
        "echo text >f; chmod 4751 f; chown 1000:1000 f; chmod 4751 f; touch -d '2001-02-03 04:05:06Z' f; \
         echo x >g; ln -s target l; rm *",
    );
    for name in ["f", "g"] {
        let said = stage.done(&["restore", name]);
        assert!(said.contains("restored version"), "{said}");
    }
    let metadata = fs::metadata(Path::new(MOUNT).join("f")).unwrap();
    assert_eq!((read("f").as_str(), metadata.mode() & 0o7777), ("text\n", 0o4751));
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mtime()), (1000, 1000, 981_173_106));
    stage.done(&["restore", "l"]);
    assert_eq!(fs::read_link(Path::new(MOUNT).join("l")).unwrap(), Path::new("target"));
    // To another name; the removed one stays removed.
    stage.shell("rm f");
    stage.done(&["restore", "f", "--to", "copy"]);
    assert!(read("copy") == "text\n" && !Path::new(MOUNT).join("f").exists());
    // Nothing is done by a dry run.
    let said = stage.done(&["restore", "-n", "f"]);
    assert!(said.contains("would restore version") && !Path::new(MOUNT).join("f").exists(), "{said}");
}

#[test]
fn a_removed_tree_comes_back() {
    let stage = Stage::new();
    stage.shell("mkdir -p a/b/c; echo 1 >a/one; echo 2 >a/b/two; echo 3 >a/b/c/three; chmod 750 a/b; rm a/one");
    stage.shell("echo long ago >a/old; rm a/old");
    stage.shell("rm -r a");
    // A single file, whose directories are created.
    stage.done(&["restore", "a/b/two"]);
    assert_eq!(read("a/b/two"), "2\n");
    assert_eq!(fs::metadata(Path::new(MOUNT).join("a/b")).unwrap().mode() & 0o777, 0o750);
    assert!(!Path::new(MOUNT).join("a/b/c").exists());
    // Another one, whose history is in the directory that was removed.
    stage.done(&["restore", "a/b/c/three"]);
    assert_eq!(read("a/b/c/three"), "3\n");
    stage.shell("rm -r a");
    let log = stage.done(&["log", "-r", "."]);
    assert!(log.contains("a/b/two") && log.contains("rmdir"), "{log}");
    stage.done(&["restore", "a"]);
    assert_eq!((read("a/b/two"), read("a/b/c/three")), ("2\n".into(), "3\n".into()));
    // What had been removed before stays removed.
    assert!(!Path::new(MOUNT).join("a/one").exists() && !Path::new(MOUNT).join("a/old").exists());
}

#[test]
fn what_a_program_did_is_undone() {
    let stage = Stage::new();
    stage.shell(
        "mkdir -p tree/sub; for n in 1 2 3; do echo $n >tree/$n; done; echo deep >tree/sub/deep; echo mine >own",
    );
    // An installer: one process rewrites, removes and adds.
    let installer = "for n in 1 2; do echo spoilt >tree/$n; done; echo new >tree/new; exec python3 -c \
        'import os; os.remove(\"tree/3\"); open(\"tree/sub/deep\", \"w\").write(\"spoilt\")'";
    let mut child = Command::new("sh").args(["-ec", installer]).current_dir(MOUNT).spawn().unwrap();
    let pid = child.id().to_string();
    assert!(child.wait().unwrap().success());
    stage.shell("echo changed since >tree/2; echo changed >own");
    let dry = stage.done(&["restore", "-n", "--pid", &pid, "tree/1"]);
    assert!(dry.contains("tree/1: would restore version"), "{dry}");
    let outcome = stage.status(&["restore", "--pid", &pid, "."]);
    assert_eq!(outcome.code, 5, "{} {}", outcome.text(), outcome.err);
    assert!(outcome.err.contains("tree/2: not restored: others have changed it since"), "{}", outcome.err);
    assert_eq!(
        (read("tree/1"), read("tree/2"), read("tree/3")),
        ("1\n".into(), "changed since\n".into(), "3\n".into())
    );
    assert_eq!(
        (read("tree/sub/deep"), read("tree/new"), read("own")),
        ("deep\n".into(), "new\n".into(), "changed\n".into())
    );
    assert_eq!(stage.status(&["restore", "--force", "--pid", &pid, "tree/2"]).code, 0);
    assert_eq!(read("tree/2"), "2\n");
    let log = stage.json(&["log", "--json", "-r", "--pid", &pid]);
    assert_eq!(log.as_array().unwrap().len(), 4, "{log}");
}

/// A file that is emptied is truncated at the last close, which the kernel reports for nobody.
#[test]
fn what_a_program_emptied_is_undone() {
    let stage = Stage::new();
    stage.shell("echo 1 >f; echo 1 >g");
    let mut child = Command::new("sh").args(["-ec", ": >f; echo 2 >>g; : >g"]).current_dir(MOUNT).spawn().unwrap();
    let pid = child.id();
    assert!(child.wait().unwrap().success());
    let newest = || stage.json(&["log", "--json", "g"])["versions"][0]["change"] == "truncate";
    testkit::until("the last close", newest);
    let by = stage.json(&["log", "--json", "f"])["versions"][0]["by"]["pid"].as_u64();
    assert_eq!(by, Some(pid.into()));
    stage.done(&["restore", "--pid", &pid.to_string(), "."]);
    assert_eq!([read("f"), read("g")], ["1\n", "1\n"]);
}

#[test]
fn names_may_be_hostile() {
    let stage = Stage::new();
    let names: [&[u8]; 6] = [b"new\nline", b"-rf", b"a b\\c", b"\xff\xfe", b"\x1b[2J", "\u{202e}x".as_bytes()];
    for name in names {
        let path = Path::new(MOUNT).join(OsStr::from_bytes(name));
        fs::write(&path, "before").unwrap();
        fs::remove_file(&path).unwrap();
        let words = |command: &str| [OsString::from(command), "--".into(), OsStr::from_bytes(name).into()];
        for command in ["log", "restore"] {
            let said = stage.done(&words(command));
            assert!(!said.contains('\x1b') && !said.contains('\u{202e}'), "{said:?}");
        }
        assert_eq!(fs::read(&path).unwrap(), b"before", "{}", name.escape_ascii());
        fs::remove_file(&path).unwrap();
    }
    let log = stage.done(&["log", "."]);
    assert_eq!(log.lines().count(), 1 + 2 * names.len(), "{log}");
}

#[test]
fn output_to_a_closed_pipe_is_no_error() {
    let stage = Stage::new();
    fs::write(Path::new(MOUNT).join("big"), vec![b'x'; 4 << 20]).unwrap();
    fs::remove_file(Path::new(MOUNT).join("big")).unwrap();
    let mut child =
        stage.versionctl(&["cat", "big", "1"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
    assert_eq!(stage.done(&["cat", "big", "1"]).len(), 4 << 20);
}

#[test]
fn each_user_sees_what_permissions_allow() {
    let stage = Stage::new();
    stage.shell("mkdir private; chmod 700 private; echo secret >private/s; rm private/s; chmod 777 .; echo r >roots; echo s >roots");
    let as_user = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "1000", "--regid", "1000", "--clear-groups", "--", "/mnt/bin/versionctl"]);
        run(command.args(words).current_dir(MOUNT))
    };
    let refused = as_user(&["log", "private/s"]);
    assert!(refused.code == 1 && refused.err.contains("private"), "{} {}", refused.code, refused.err);
    // The user may read the file and so its versions, but not write it.
    assert_eq!(as_user(&["cat", "roots", "1"]).text(), "r\n");
    let refused = as_user(&["restore", "roots"]);
    assert!(refused.code == 1 && read("roots") == "s\n", "{}", refused.err);
    let own = as_user(&["restore", "roots", "--to", "mine"]);
    assert_eq!((own.code, read("mine").as_str()), (0, "r\n"), "{}", own.err);
}

#[test]
fn space_is_counted() {
    let stage = Stage::new();
    stage.shell("mkdir d; head -c 100000 /dev/urandom >d/big; rm d/big; echo x >small; rm small");
    let usage = stage.json(&["du", "--json"]);
    assert_eq!((&usage["directories"][0]["path"], &usage["total"]["versions"]), (&"d".into(), &2.into()), "{usage}");
    assert!(usage["directories"][0]["bytes"].as_u64().unwrap() >= 100_000);
    assert!(stage.done(&["du"]).contains("total"));
}

#[test]
fn it_is_mounted_by_mount_and_fstab() {
    let sandbox = Sandbox::new();
    let (data, at) = (sandbox.dir("data"), sandbox.dir("at"));
    let helper = sandbox.dir("sbin").join("mount.versionfs");
    symlink(PROGRAM, &helper).unwrap();
    let mounted = run(Command::new(&helper).args([&data, &at]).args(["-o", "storage=sparse,nosuid"]));
    assert_eq!((mounted.code, &*mounted.err), (0, ""));
    fs::write(at.join("f"), "1").unwrap();
    fs::remove_file(at.join("f")).unwrap();
    let restored = run(Command::new(PROGRAM).args(["versions", "restore", "/mnt/at/f"]));
    assert_eq!((restored.code, &*restored.err), (0, ""));
    assert_eq!(fs::read_to_string(at.join("f")).unwrap(), "1");
    assert_eq!(run(Command::new("umount").arg(&at)).code, 0);
    let wrong = run(Command::new(&helper).args([&data, &at]).args(["-o", "storage=odd"]));
    assert!(wrong.code != 0 && wrong.err.contains("storage=odd"), "{}", wrong.err);
}

#[test]
fn the_browser_restores_on_a_terminal() {
    use std::io::{Read as _, Write as _};
    let stage = Stage::new();
    stage.shell("echo old >f; rm f");
    let master = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY).unwrap();
    rustix::pty::grantpt(&master).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let name = rustix::pty::ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let size = rustix::termios::Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&master, size).unwrap();
    let terminal = || fs::File::options().read(true).write(true).open(&name).unwrap();
    let mut child = Command::new("setsid");
    child.args(["--ctty", "--wait", "/mnt/bin/versionctl", "browse", "."]).current_dir(MOUNT).env("TERM", "xterm");
    let mut child = child.stdin(terminal()).stdout(terminal()).stderr(terminal()).spawn().unwrap();
    let mut master = fs::File::from(master);
    let mut screen = Vec::new();
    let mut wait_for = |master: &mut fs::File, text: &str| {
        let mut buffer = [0; 4096];
        while !screen.windows(text.len()).any(|window| window == text.as_bytes()) {
            let got = master.read(&mut buffer).unwrap();
            screen.extend_from_slice(&buffer[..got]);
        }
        screen.clear();
    };
    wait_for(&mut master, "quit");
    master.write_all(b"r").unwrap();
    wait_for(&mut master, "any other key");
    master.write_all(b"y").unwrap();
    wait_for(&mut master, "restored");
    master.write_all(b"q").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(read("f"), "old\n");
    // Without a terminal, it says so.
    let refused = stage.status(&["browse"]);
    assert!(refused.code == 2 && refused.err.contains("needs a terminal"), "{}", refused.err);
}

#[test]
fn directories_are_restored_to_a_tag() {
    let stage = Stage::new();
    stage.shell("mkdir -p d/sub; echo 1 >d/one; echo 2 >d/sub/two");
    stage.tag("good");
    assert_eq!(stage.json(&["tags", "--json"])[0]["tag"], "good");
    stage.shell("echo worse >d/one; rm -r d/sub; echo 3 >d/new");
    let dry = stage.done(&["restore", "-n", "d", "--at", "good", "--delete"]);
    assert!(dry.contains("d/sub/two: would restore") && dry.contains("d/new: would remove"), "{dry}");
    assert_eq!(read("d/one"), "worse\n");
    stage.done(&["restore", "d", "--at", "good"]);
    assert_eq!((read("d/one"), read("d/sub/two"), read("d/new")), ("1\n".into(), "2\n".into(), "3\n".into()));
    stage.done(&["restore", "--all", "--at", "good", "--delete"]);
    assert!(!Path::new(MOUNT).join("d/new").exists());
    // What was removed is a version.
    stage.done(&["restore", "d/new"]);
    stage.done(&["untag", "good"]);
    assert_eq!(stage.status(&["untag", "good"]).code, 1);
}

/// A restore names what it can't bring back, and does not remove it.
#[test]
fn a_restore_names_what_is_missing() {
    let stage = Stage::new();
    stage.shell("mkdir d; echo 1 >d/a; echo 1 >d/b.o; echo 1 >d/c");
    testkit::tick();
    stage.done(&["tag", "then"]);
    testkit::tick();
    stage.shell("echo 2 >d/a; echo 3 >d/a; echo 2 >d/b.o; echo 2 >d/c; echo 2 >d/new");
    stage.done(&["discard", "d/a", "1"]);
    let restored = stage.status(&["restore", "d", "--at", "then", "--delete"]);
    assert_eq!((restored.code, read("d/a"), read("d/b.o"), read("d/c")), (5, "3\n".into(), "2\n".into(), "1\n".into()));
    assert!(!Path::new(MOUNT).join("d/new").exists());
    let discarded = "d/a: not restored: its version was discarded\n";
    let unrecorded = "d/b.o: not restored: it has changed since, and its policy keeps no versions of changes\n";
    assert!(restored.err.contains(discarded) && restored.err.contains(unrecorded), "{}", restored.err);
    assert!(restored.text().contains("2 not in the history"), "{}", restored.text());
    for (name, reason) in [("d/a", "its version was discarded"), ("d/b.o", "keeps no versions of changes")] {
        let refused = stage.status(&["restore", name, "--at", "then"]);
        assert!(refused.code == 1 && refused.err.contains(reason), "{}", refused.err);
    }
    // In a removed directory, and of those that one process removed.
    stage.shell("rm -r d");
    let versions = stage.json(&["log", "d/c", "--json"]);
    let last = versions["versions"].as_array().unwrap().iter().filter_map(|version| version["version"].as_u64()).max();
    stage.done(&["discard", "d/c", &last.unwrap().to_string()]);
    for words in [&["restore", "-n", "--process", "rm", "d"][..], &["restore", "d"]] {
        let restored = stage.status(words);
        assert!(restored.code == 5 && restored.err.contains("d/c: not restored"), "{}", restored.err);
    }
    assert_eq!((read("d/a"), read("d/b.o")), ("3\n".into(), "2\n".into()));
    assert!(!Path::new(MOUNT).join("d/c").exists());
}

/// What a session removed before `rm -r`, such as temporary files, does not come back. A program
/// that removes nothing but the directory has others remove the rest.
#[test]
fn a_removed_directory_comes_back_without_temporary_files() {
    let stage = Stage::new();
    stage.shell("mkdir -p d/sub; echo 1 >d/a; echo 2 >d/sub/b; echo t >d/.a.X; echo t >d/sub/.b.Y");
    stage.shell("rm d/.a.X d/sub/.b.Y; rm -r d");
    stage.done(&["restore", "d"]);
    let names = |dir: &str| {
        let all = fs::read_dir(Path::new(MOUNT).join(dir)).unwrap();
        let mut names: Vec<_> = all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!((names("d"), names("d/sub")), (vec!["a".to_owned(), "sub".to_owned()], vec!["b".to_owned()]));
    stage.shell("mkdir e; echo 1 >e/a; echo 2 >e/b; rm e/a; rm e/b; rmdir e");
    stage.done(&["restore", "e"]);
    assert_eq!(names("e"), ["a", "b"]);
}

#[test]
fn several_files_are_restored() {
    let stage = Stage::new();
    stage.shell("mkdir d; echo 1 >m1; echo 1 >m2; echo 1 >d/m3; echo 2 >m1; rm m2; echo 2 >d/m3");
    let said = stage.done(&["restore", "m1", "m2", "d/m3"]);
    assert!(said.ends_with("3 objects restored\n"), "{said}");
    assert_eq!([read("m1"), read("m2"), read("d/m3")], ["1\n", "1\n", "1\n"]);
    // A second path is no version, whether it exists or not; a tag is one, even if it is a name.
    stage.shell("echo 3 >m1; rm m2");
    stage.done(&["restore", "m1", "m2"]);
    assert_eq!([read("m1"), read("m2")], ["1\n", "1\n"]);
    stage.done(&["tag", "m2"]);
    testkit::tick();
    stage.shell("echo 4 >m1");
    stage.done(&["restore", "m1", "m2"]);
    assert_eq!(read("m1"), "1\n");
    let missing = stage.status(&["restore", "m1", "never"]);
    assert!(missing.code == 1 && missing.err.contains("never: no such tag"), "{}", missing.err);
    for wrong in
        [&["restore", "m1", "3", "--at", "now"][..], &["restore", "m1", "2", "--any"], &["restore", "m1", "m2", "1"]]
    {
        let refused = stage.status(wrong);
        assert!(refused.code == 1 && refused.err.contains("a version goes with one file"), "{}", refused.err);
    }
    let partly = stage.status(&["restore", "m1", "never", "m2"]);
    assert!(partly.code == 5 && partly.err.contains("never: no such file"), "{} {}", partly.code, partly.err);
}

#[test]
fn versions_are_pinned_annotated_and_discarded() {
    let stage = Stage::new();
    stage.shell("echo 1 >f; echo 2 >f; echo 3 >f");
    stage.done(&["pin", "f", "1"]);
    stage.done(&["annotate", "f", "2", "a note: x\ny"]);
    let log = stage.json(&["log", "--json", "f"]);
    assert_eq!((&log["versions"][1]["pinned"], &log["versions"][0]["note"]), (&true.into(), &"a note: x\ny".into()));
    stage.done(&["unpin", "f", "1"]);
    stage.done(&["discard", "f", "1"]);
    assert_eq!(stage.status(&["cat", "f", "1"]).code, 1);
    assert_eq!(stage.done(&["cat", "f", "2"]), "2\n");
}

/// Directories that have another place now, with all that is in them.
#[test]
fn what_was_in_a_moved_directory_is_restored() {
    let stage = Stage::new();
    stage.shell("mkdir -p q/e/s; echo 1 >q/e/f; echo 2 >q/g; ln -s f q/e/l");
    stage.tag("then");
    stage.shell("mv q r; echo later >r/e/f; mkdir x; mv r x");
    assert_eq!(stage.done(&["cat", "q/e/f", "then"]), "1\n");
    assert_eq!(stage.done(&["cat", "q/e/l", "then"]), "f");
    stage.done(&["restore", "q/g", "--at", "then"]);
    stage.done(&["restore", "q/e/l", "--at", "then"]);
    stage.done(&["restore", "q/e/s", "--at", "then"]);
    stage.done(&["restore", "q/e", "--at", "then"]);
    assert_eq!([read("q/g"), read("q/e/f"), read("x/r/e/f")], ["2\n", "1\n", "later\n"]);
    assert_eq!(fs::read_link(Path::new(MOUNT).join("q/e/l")).unwrap(), Path::new("f"));
    // Another directory has the name now, which is not the one that had it.
    stage.shell("mkdir -p y/q/e; echo other >y/q/e/f; echo other >y/q/g; rm -r q; mv y/q q");
    stage.done(&["restore", "q/g", "--at", "then"]);
    assert_eq!([read("q/g"), read("q/e/f")], ["2\n", "other\n"]);
    assert_eq!(stage.status(&["diff", "q/e/f", "then"]).text().lines().count(), 5);
}

/// A name that is a directory now, with something in it, goes if that is wanted.
#[test]
fn a_directory_makes_room_for_a_file() {
    let stage = Stage::new();
    stage.shell("mkdir d; echo 1 >d/f; ln -s f d/l");
    stage.tag("then");
    stage.shell("rm d/f d/l; mkdir d/f d/l; echo 2 >d/f/x; echo 2 >d/l/x");
    let refused = stage.status(&["restore", "d", "--at", "then"]);
    assert!(refused.code == 5 && refused.err.contains("not empty"), "{}", refused.err);
    assert_eq!(read("d/f/x"), "2\n");
    let dry = stage.done(&["restore", "-n", "d", "--at", "then", "--delete"]);
    assert!(dry.contains("d/f/x: would remove") && dry.contains("d/f: would restore"), "{dry}");
    stage.done(&["restore", "d/l", "--at", "then", "--delete"]);
    stage.done(&["restore", "d", "--at", "then", "--delete"]);
    assert_eq!([read("d/f"), read("d/l")], ["1\n", "1\n"]);
}

/// The root of a mount has no directory above it in the mount.
#[test]
fn the_root_is_restored_to_a_tag() {
    let stage = Stage::new();
    stage.shell("echo 1 >f");
    stage.tag("then");
    stage.shell("echo 2 >f");
    stage.done(&["restore", ".", "--at", "then", "--to", "copy"]);
    assert_eq!([read("f"), read("copy/f")], ["2\n", "1\n"]);
    stage.done(&["restore", MOUNT, "--at", "then"]);
    assert_eq!(read("f"), "1\n");
}

/// Symbolic links and FIFOs have owners and times, too. Their names are not older than they are.
#[test]
fn links_and_fifos_are_as_they_were() {
    let stage = Stage::new();
    stage.shell("ln -s t l; mkfifo -m 604 p; chown -h 1000:1001 l p; touch -hd @5 l p");
    stage.tag("then");
    let facts = |name: &str| {
        let found = fs::symlink_metadata(Path::new(MOUNT).join(name)).unwrap();
        (found.mode(), found.uid(), found.gid(), found.mtime())
    };
    let before = ["l", "p"].map(facts);
    stage.shell("rm l p");
    stage.done(&["restore", "l", "p"]);
    assert_eq!(["l", "p"].map(facts), before);
    stage.shell("rm l p; mknod l c 1 3; ln -s x p");
    stage.done(&["restore", "--all", "--at", "then"]);
    assert_eq!(["l", "p"].map(facts), before);
    // A name of a link that has been there for longer.
    stage.shell("ln l second; ln p third");
    let absent = stage.status(&["restore", "second", "--at", "then"]);
    assert!(absent.code == 1 && absent.err.contains("did not exist"), "{}", absent.err);
    stage.done(&["restore", "--all", "--at", "then", "--delete"]);
    assert_eq!(["second", "third"].map(|name| Path::new(MOUNT).join(name).symlink_metadata().is_ok()), [false; 2]);
    // Where a symbolic link was, a file with several names is now.
    stage.shell("rm l; echo 1 >f; ln f l");
    stage.done(&["restore", "l", "--at", "then"]);
    assert_eq!((facts("l"), read("f")), (before[0], "1\n".into()));
}

/// A directory that was removed and restored is a new one: its history is that of the old one.
#[test]
fn a_restored_directory_has_the_states_it_had_before() {
    let stage = Stage::new();
    stage.shell("mkdir d; echo first > d/f");
    stage.done(&["tag", "begin"]);
    stage.shell("echo second > d/f; touch later; rm -r d");
    stage.done(&["restore", "d"]);
    assert_eq!(read("/mnt/at/d/f"), "second\n");

    let log = stage.done(&["log", "d/f"]);
    let lines: Vec<_> = log.lines().collect();
    assert!(lines.len() == 4 && lines[1].starts_with("head"), "{log}");
    assert!(lines[2..].iter().all(|line| line.contains("in the directory removed at ")), "{log}");
    let former = &stage.json(&["log", "--json", "d/f"])["former"][0];
    assert!(former["path"] == "d/f" && former["directory_removed"].is_string(), "{former}");
    assert_eq!(former["versions"].as_array().unwrap().len(), 2);

    assert_eq!(stage.done(&["cat", "d/f", "begin"]), "first\n");
    let diff = stage.status(&["diff", "d/f", "begin"]);
    assert!(diff.code == 1 && diff.text().ends_with("-first\n+second\n"), "{}", diff.text());
    stage.done(&["restore", "d", "--at", "begin"]);
    assert_eq!(read("/mnt/at/d/f"), "first\n");
    stage.done(&["restore", "d/f", "head"]);

    // Removed, it comes back as it was then, and not as it was when it was removed.
    stage.shell("echo third > d/f; rm -r d");
    assert!(stage.done(&["restore", "-n", "d", "--at", "begin"]).starts_with("d/f: would restore"));
    stage.done(&["restore", "d", "--at", "begin", "--to", "copy"]);
    stage.done(&["restore", "d/f", "--at", "begin"]);
    assert_eq!((&*read("/mnt/at/d/f"), &*read("/mnt/at/copy/f")), ("first\n", "first\n"));

    for words in [&["cat", "later", "begin"][..], &["restore", "copy", "--at", "begin"]] {
        let refused = stage.status(words);
        assert!(refused.code == 1 && refused.err.contains("it did not exist at"), "{}", refused.err);
    }
}
