//! `make install` and `make uninstall`: the installed files and the diversions in dpkg. The tests
//! run in a private mount namespace, with stubs in place of cargo and dpkg, so they build nothing
//! and don't change this machine's dpkg database.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::mount::{MountFlags, mount as mount_fs, mount_bind};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use strata_tests::Sandbox;

const PROGRAM: &str = env!("CARGO_BIN_EXE_strata");
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Stub of cargo: copies a program instead of building, and logs the user and the arguments.
const CARGO: &str = r#"#!/bin/sh
if [ "$1" = --version ]; then echo "cargo 99.0.0"; exit; fi
echo "$(id -un) $*" >>/mnt/log/cargo
mkdir -p "$CARGO_TARGET_DIR/release"
cp /mnt/program "$CARGO_TARGET_DIR/release/strata"
"#;
/// Stub of dpkg-divert: keeps the diversions in a file, and logs its arguments except for `--list`.
const DIVERT: &str = r#"#!/bin/sh
for name; do :; done
case "$*" in
--list*) grep -F "local diversion of $name to " /mnt/log/diversions; exit 0 ;;
*--add*) echo "local diversion of $name to $name.unionfs-fuse" >>/mnt/log/diversions ;;
*--remove*) grep -vF "local diversion of $name to " /mnt/log/diversions >/mnt/log/new; mv /mnt/log/new /mnt/log/diversions ;;
esac
echo "$*" >>/mnt/log/dpkg-divert
"#;
/// Stub of dpkg-query: no package owns any file.
const QUERY: &str = "#!/bin/sh\nexit 1\n";

struct Stage {
    sandbox: Sandbox,
}

impl Stage {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        for (name, text) in [("cargo", CARGO), ("dpkg-divert", DIVERT), ("dpkg-query", QUERY)] {
            let path = sandbox.dir("bin").join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::copy(PROGRAM, sandbox.path("program")).unwrap();
        // The building user writes to these.
        for name in ["log", "target"] {
            fs::set_permissions(sandbox.dir(name), fs::Permissions::from_mode(0o777)).unwrap();
        }
        Self { sandbox }
    }

    fn make(&self, words: &[&str]) -> Command {
        let mut command = Command::new("make");
        let path = format!("/mnt/bin:{}", std::env::var("PATH").unwrap_or_default());
        command.args(["-C", SOURCE]).args(words).arg("CARGO_TARGET_DIR=/mnt/target");
        command.env("PATH", path).env("CARGO", "/mnt/bin/cargo").env_remove("SUDO_USER");
        for variable in ["PREFIX", "SBINDIR", "DESTDIR", "DIVERT", "MAKEFLAGS"] {
            command.env_remove(variable);
        }
        command
    }

    fn done(&self, words: &[&str]) -> String {
        let output = self.make(words).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "make {words:?}: {err}");
        assert_eq!(err, "", "make {words:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.sandbox.path("log").join(name)).unwrap_or_default()
    }
}

/// Returns all files and links below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.append(&mut files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

#[test]
fn install_builds_only_if_the_program_is_missing_or_outdated() {
    let stage = Stage::new();
    let places = ["PREFIX=/mnt/prefix", "SBINDIR=/mnt/sbin"];
    let install = [&["install"][..], &places].concat();
    stage.done(&install);
    assert_eq!(stage.log("cargo"), "root build --release --locked -p cli\n");
    assert!(stage.sandbox.path("prefix/bin/strata").is_file());
    // The program is up to date.
    stage.done(&install);
    assert_eq!(stage.log("cargo").lines().count(), 1);
    // The source is newer than the program.
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
    fs::File::options().write(true).open("/mnt/target/release/strata").unwrap().set_modified(old).unwrap();
    stage.done(&install);
    assert_eq!(stage.log("cargo").lines().count(), 2);
}

#[test]
fn with_sudo_the_build_runs_as_the_user() {
    let stage = Stage::new();
    let output = stage
        .make(&["install", "PREFIX=/mnt/prefix", "SBINDIR=/mnt/sbin"])
        .env("SUDO_USER", "nobody")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(stage.log("cargo"), "nobody build --release --locked -p cli\n");
    assert_eq!(fs::metadata(stage.sandbox.path("target/release/strata")).unwrap().uid(), 65534);
    assert_eq!(fs::metadata(stage.sandbox.path("prefix/bin/strata")).unwrap().uid(), 0);
}

#[test]
fn install_writes_only_to_the_given_directories() {
    let stage = Stage::new();
    for (places, prefix, sbin) in [
        (&["PREFIX=/mnt/one", "SBINDIR=/mnt/one/sbin"][..], "one", "one/sbin"),
        (&["PREFIX=/mnt/two/usr", "SBINDIR=/mnt/two/sbin", "DIVERT=1"], "two/usr", "two/sbin"),
        (&["DESTDIR=/mnt/three"], "three/usr/local", "three/sbin"),
    ] {
        let before = files(Path::new("/usr/sbin"));
        let said = stage.done(&[&["install"][..], places].concat());
        let helper = stage.sandbox.path(sbin).join("mount.unionfs");
        let target = fs::read_link(&helper).unwrap();
        assert!(stage.sandbox.path(prefix).join("bin/strata").ends_with(target.strip_prefix("/").unwrap()));
        assert_eq!(said.contains("by its full name"), !places[0].starts_with("DESTDIR"), "{said}");
        for name in ["fsck.unionfs", "fsck.versionfs", "umount.fuse", "umount.fuse.unionfs"] {
            assert!(stage.sandbox.path(sbin).join(name).is_symlink(), "{name}");
        }
        for page in ["man1/strata.1", "man8/mount.unionfs.8", "man8/mount.strata.8", "man8/fsck.versionfs.8"] {
            assert!(stage.sandbox.path(prefix).join("share/man").join(page).is_file(), "{page}");
        }
        let completions = [
            "share/bash-completion/completions/versionctl",
            "share/zsh/site-functions/_versionctl",
            "share/bash-completion/completions/fsck.unionfs",
            "share/fish/vendor_completions.d/mount.unionfs.fish",
        ];
        let library = ["lib/libversionfs.so", "lib/pkgconfig/versionfs.pc", "include/versionfs.h"];
        for file in completions.into_iter().chain(library) {
            assert!(stage.sandbox.path(prefix).join(file).is_file(), "{file}");
        }
        for page in ["man3/versionfs.3", "man8/libversionfs.8"] {
            assert!(stage.sandbox.path(prefix).join("share/man").join(page).is_file(), "{page}");
        }
        assert_eq!(files(Path::new("/usr/sbin")), before);
        stage.done(&[&["uninstall"][..], places].concat());
        let top = stage.sandbox.path(prefix.split('/').next().unwrap());
        assert_eq!(files(&top), Vec::<PathBuf>::new(), "{places:?}");
    }
    assert_eq!(stage.log("dpkg-divert"), "", "dpkg-divert was called");
}

#[test]
fn installing_into_sbin_diverts_the_helper_of_a_package() {
    let stage = Stage::new();
    let sbin = fs::canonicalize("/sbin").unwrap();
    let kept = stage.sandbox.dir("sbin");
    mount_bind(&sbin, &kept).unwrap();
    mount_fs("sbin", &sbin, "tmpfs", MountFlags::empty(), None).unwrap();
    for entry in fs::read_dir(&kept).unwrap().flatten() {
        if !entry.file_name().to_string_lossy().starts_with("mount.") {
            symlink(entry.path(), sbin.join(entry.file_name())).unwrap();
        }
    }
    stage.done(&["install", "PREFIX=/mnt/prefix"]);
    let name = sbin.join("mount.unionfs");
    assert_eq!(fs::read_link(&name).unwrap(), Path::new("/mnt/prefix/bin/strata"));
    let diversion = format!("local diversion of {0} to {0}.unionfs-fuse\n", name.display());
    assert_eq!(stage.log("diversions"), diversion);
    stage.done(&["install", "PREFIX=/mnt/prefix"]);
    assert_eq!(stage.log("dpkg-divert").lines().count(), 1, "one diversion");
    stage.done(&["uninstall", "PREFIX=/mnt/prefix"]);
    assert_eq!(stage.log("diversions"), "");
    assert!(fs::symlink_metadata(&name).is_err());
}

#[test]
fn a_user_can_install_into_the_home_directory() {
    let stage = Stage::new();
    let home = stage.sandbox.dir("home");
    std::os::unix::fs::chown(&home, Some(65534), Some(65534)).unwrap();
    stage.done(&["install", "DESTDIR=/mnt/built"]);
    // The user may have no access to the real source tree, so copy the necessary files.
    let source = stage.sandbox.dir("source");
    for part in ["scripts", "include", "crates"] {
        fs::create_dir(source.join(part)).unwrap();
    }
    for file in
        ["Makefile", "Cargo.toml", "Cargo.lock", "scripts/install.sh", "scripts/common.sh", "include/strata_layer.h"]
    {
        fs::copy(Path::new(SOURCE).join(file), source.join(file)).unwrap();
    }
    fs::copy(Path::new(SOURCE).join("include/versionfs.h"), source.join("include/versionfs.h")).unwrap();
    let copied = Command::new("cp").args(["-r", &format!("{SOURCE}/lib"), "/mnt/source"]).status().unwrap();
    assert!(copied.success());
    let as_user = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--", "make", "-C", "/mnt/source"]);
        command.args(words).arg("CARGO_TARGET_DIR=/mnt/target").env("CARGO", "/mnt/bin/cargo");
        command.env("PATH", format!("/mnt/bin:{}", std::env::var("PATH").unwrap_or_default())).output().unwrap()
    };
    // Newer than the copied sources, so that nothing is rebuilt.
    fs::File::options()
        .write(true)
        .open("/mnt/target/release/strata")
        .unwrap()
        .set_modified(std::time::SystemTime::now())
        .unwrap();
    let output = as_user(&["install", "PREFIX=/mnt/home/.local", "SBINDIR=/mnt/home/.local/sbin"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(home.join(".local/sbin/mount.unionfs").is_symlink());
    let output = as_user(&["install"]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && err.contains("can't write there: run sudo make install"), "{err}");
}
