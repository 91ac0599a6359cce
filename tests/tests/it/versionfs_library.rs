//! libversionfs on a mounted versionfs: the paper's session, odd names, several users, threads, and
//! programs that the library must leave alone.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use strata_tests::process::{Output, run, try_run};
use strata_tests::user::USER as ALICE;
use strata_tests::versions::keep_all;
use strata_tests::{Mounted, Sandbox, Spec, Transport, on_both_transports};

/// Another user, in no group of Alice's.
const BOB: u32 = 1002;

/// A versionfs mount and the library.
struct Bed {
    mounted: Mounted,
    library: PathBuf,
    /// Dropped last, because it removes everything else.
    sandbox: Sandbox,
}

impl Bed {
    fn new(transport: Transport) -> Self {
        let sandbox = Sandbox::new();
        let lower = sandbox.ext4("disk", 64).join("lower");
        fs::create_dir(&lower).unwrap();
        let options = keep_all(&sandbox);
        let mounted = Mounted::new(Spec::versions(&lower, &options, transport), &sandbox.path("m"));
        // The build directory may be out of reach for ordinary users.
        let library = sandbox.path("libversionfs.so");
        fs::copy(build().join("libversionfs.so"), &library).unwrap();
        Self { mounted, library, sandbox }
    }

    /// Creates a directory of the mount.
    fn dir(&self, name: &str) -> PathBuf {
        let dir = self.mounted.path(name);
        fs::create_dir(&dir).unwrap();
        dir
    }

    /// Returns a command that runs in a directory with the library.
    fn with_library(&self, dir: &Path, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(dir).env("LD_PRELOAD", &self.library).env("LC_ALL", "C");
        command
    }

    /// Runs a command in a directory as a user, with the library.
    fn as_user(&self, uid: u32, dir: &Path, arguments: &[&str]) -> Output {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".into(), "env".into()]);
        command.arg(format!("LD_PRELOAD={}", self.library.display())).args(arguments);
        try_run(command.current_dir(dir))
    }
}

/// Builds the library and the programs of its tests once, and returns the directory.
fn build() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lib/versionfs");
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libversionfs");
        let programs = ["calls", "client"].map(|program| dir.join("tests").join(program));
        let mut make = Command::new("make");
        make.arg("-s").arg("-C").arg(&source).arg(format!("BUILD={}", dir.display())).arg("all").args(programs);
        let _others_wait = testkit::lock(&dir.with_extension("lock"));
        run(&mut make);
        dir
    })
}

/// Writes texts one after another: the last one is the head.
fn write_all(path: &Path, texts: &[&str]) {
    for text in texts {
        fs::write(path, text).unwrap();
    }
}

/// Returns the name of a version.
fn version_of(name: &OsStr, number: u32) -> OsString {
    let mut version = name.to_owned();
    version.push(format!(";{number}"));
    version
}

/// Section 3.4.1 of the paper, and further programs.
fn the_papers_session_is_replayed(transport: Transport) {
    let bed = Bed::new(transport);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lib/versionfs/tests/session.sh");
    let mut session = Command::new("bash");
    session.arg(script).arg(bed.dir("session")).env("BUILD", build());
    let text = run(&mut session);
    assert!(text.contains("checks passed"), "{text}");
}

on_both_transports!(the_papers_session_is_replayed);

/// Names are bytes, and a semicolon is one of them.
#[test]
fn versions_of_names_of_any_bytes_are_listed_and_read() {
    let bed = Bed::new(Transport::Device);
    let dir = bed.dir("names");
    let names: Vec<OsString> =
        [&b"a b"[..], b"line\nbreak", b"\xff\xfe", b"semi;colon", b";", b"x;1", b"-n", b"\\134", b"*"]
            .into_iter()
            .map(|name| OsString::from_vec(name.to_vec()))
            .collect();
    for name in &names {
        write_all(&dir.join(name), &["old", "new"]);
    }
    for name in &names {
        for (path, text) in [(name.clone(), "new"), (version_of(name, 1), "old")] {
            let mut cat = bed.with_library(&dir, "cat");
            assert_eq!(run(cat.arg("--").arg(&path)), text, "{path:?}");
            let whole = dir.join(&path);
            assert_eq!(run(bed.with_library(Path::new("/"), "cat").arg(&whole)), text, "{whole:?}");
        }
    }
    let listing = run(bed.with_library(&dir, "ls").args(["-U", "--quoting-style=c"]));
    let quoted = |name: &OsStr| {
        let mut list = Command::new("bash");
        list.arg("-c").arg("printf %s \"$1\" | od -An -c >/dev/null; ls -d --quoting-style=c -- \"$1\"");
        run(list.arg("bash").arg(name).current_dir(&dir)).trim_end().trim_matches('"').to_owned()
    };
    for name in &names {
        let version = format!("\"{};1\"", quoted(name));
        assert!(listing.lines().any(|line| line == version), "{version} in\n{listing}");
    }
}

/// Old versions keep their owner and mode, and those decide who reads them.
#[test]
fn users_read_the_versions_that_they_may_read() {
    let bed = Bed::new(Transport::Device);
    let dir = bed.dir("users");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let file = dir.join("diary");
    fs::write(&file, "secret").unwrap();
    chown(&file, Some(ALICE.uid), Some(ALICE.gid)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    write_all(&file, &["shared"]);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let numbers: Vec<u32> = (1..9)
        .filter(|number| {
            let version = version_of(OsStr::new("diary"), *number);
            bed.as_user(ALICE.uid, &dir, &["cat", version.to_str().unwrap()]).text == "secret"
        })
        .collect();
    assert!(!numbers.is_empty());
    let newest = version_of(OsStr::new("diary"), *numbers.last().unwrap());
    let output = bed.as_user(BOB, &dir, &["cat", newest.to_str().unwrap()]);
    assert!(!output.status.success() && output.text.contains("Permission denied"), "{}", output.text);
    assert_eq!(bed.as_user(BOB, &dir, &["cat", "diary"]).text, "shared");
    // He may remove the name, by the directory's mode, but not Alice's history.
    assert!(bed.as_user(BOB, &dir, &["rm", "-f", "diary"]).status.success());
    assert!(!dir.join("diary").exists());
    assert_eq!(bed.as_user(ALICE.uid, &dir, &["cat", newest.to_str().unwrap()]).text, "secret");
    let listing = bed.as_user(ALICE.uid, &dir, &["ls"]).text;
    let last = listing.lines().last().unwrap();
    assert_eq!(bed.as_user(ALICE.uid, &dir, &["cat", last]).text, "shared", "{listing}");
}

/// A set-user-ID program must not open other files than those that its user named, and a static one
/// has no library.
#[test]
fn privileged_and_static_programs_do_not_see_versions() {
    let bed = Bed::new(Transport::Device);
    let dir = bed.dir("programs");
    write_all(&dir.join("foo"), &["old", "new"]);
    fs::write(dir.join("source.c"), STATIC_LIST).unwrap();
    run(Command::new("gcc").args(["-static", "-o", "list", "source.c"]).current_dir(&dir));
    let listing = run(bed.with_library(&dir, dir.join("list")).arg("."));
    assert!(listing.contains("foo\n") && !listing.contains("foo;"), "{listing}");

    let cat = bed.sandbox.path("disk").join("cat");
    fs::copy("/bin/cat", &cat).unwrap();
    fs::set_permissions(&cat, fs::Permissions::from_mode(0o755)).unwrap();
    let cat = cat.to_str().unwrap();
    assert_eq!(bed.as_user(ALICE.uid, &dir, &[cat, "foo;1"]).text, "old");
    fs::set_permissions(cat, fs::Permissions::from_mode(0o4755)).unwrap();
    let output = bed.as_user(ALICE.uid, &dir, &[cat, "foo;1"]);
    assert!(output.text.contains("No such file"), "{}", output.text);
    assert_eq!(bed.as_user(ALICE.uid, &dir, &[cat, "foo"]).text, "new");
}

const STATIC_LIST: &str = r#"
#include <dirent.h>
#include <stdio.h>
int main(int argc, char **argv) {
    DIR *dir = opendir(argc > 1 ? argv[1] : ".");
    for (struct dirent *entry; dir && (entry = readdir(dir));) puts(entry->d_name);
    return dir == NULL;
}
"#;

#[test]
fn threads_open_and_list_versions_at_once() {
    let bed = Bed::new(Transport::Device);
    let dir = bed.dir("threads");
    for file in 0..4 {
        let texts: Vec<String> = (1..=20).map(|number| format!("{file} {number}")).collect();
        write_all(&dir.join(format!("f{file}")), &texts.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let program = r#"
import os, threading
wrong = []
def work(seed):
    try:
        for i in range(60):
            file, number = (seed + i) % 4, (seed * 7 + i) % 19 + 1
            with open(f"f{file};{number}") as old:
                text = old.read()
            if text != f"{file} {number}":
                wrong.append((file, number, text))
            if len(os.listdir(".")) != 80:
                wrong.append(sorted(os.listdir(".")))
    except Exception as error:
        wrong.append(repr(error))
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(wrong[:3])
"#;
    assert_eq!(run(bed.with_library(&dir, "python3").args(["-c", program])), "[]\n");
}

/// What programs do in other directories does not depend on the library.
#[test]
fn other_directories_look_as_without_the_library() {
    let bed = Bed::new(Transport::Device);
    let plain = bed.sandbox.path("disk").join("plain");
    fs::create_dir(&plain).unwrap();
    fs::write(plain.join("foo"), "text").unwrap();
    assert_eq!(run(bed.with_library(&plain, "ls").arg("-A")), "foo\n");
    let output = try_run(bed.with_library(&plain, "cat").arg("foo;1"));
    assert_eq!(output.text, "cat: 'foo;1': No such file or directory\n");
    // From there into the mount, by a symbolic link and by a descriptor.
    let dir = bed.dir("inside");
    write_all(&dir.join("foo"), &["old", "new"]);
    std::os::unix::fs::symlink(&dir, plain.join("link")).unwrap();
    assert_eq!(run(bed.with_library(&plain, "cat").arg("link/foo;1")), "old");
    assert_eq!(run(bed.with_library(&plain, "cat").arg("link/../inside/foo;1")), "old");
    let by_descriptor = r#"
import os, sys
dir = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
print(os.read(os.open("foo;1", os.O_RDONLY, dir_fd=dir), 9), os.stat("foo;1", dir_fd=dir).st_size, sorted(os.listdir(dir)))
"#;
    let text = run(bed.with_library(&plain, "python3").args(["-c", by_descriptor]).arg(&dir));
    assert_eq!(text, "b'old' 3 ['foo', 'foo;1']\n");
}
