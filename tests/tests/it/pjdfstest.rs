//! pjdfstest, a third-party POSIX test suite: every case that passes on the native file system must
//! pass on Strata.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::time::Duration;
use strata_tests::crypt::{BOUND, Volume};
use strata_tests::oracle::population::{build, population};
use strata_tests::suite::{Cases, pjdfstest, regressions};
use strata_tests::{Delete, Mounted, Sandbox, Spec, Transport};

/// A sandbox with branches, the results of the native file system, and a second file system.
struct Fixture {
    disk: PathBuf,
    second: PathBuf,
    native: Cases,
    sandbox: Sandbox,
}

impl Fixture {
    fn new() -> Self {
        let sandbox = Sandbox::with_time(Duration::from_secs(300));
        let disk = sandbox.ext4("disk", 1024);
        let second = sandbox.dir("second");
        let native = disk.join("native");
        std::fs::create_dir(&native).unwrap();
        let native = pjdfstest(&native, &second);
        assert!(native.len() > 300, "pjdfstest has only {} cases", native.len());
        Self { disk, second, native, sandbox }
    }

    /// Returns a new directory on the disk.
    fn dir(&self, name: &str) -> PathBuf {
        let dir = self.disk.join(name);
        std::fs::create_dir(&dir).unwrap();
        dir
    }

    /// Creates a populated read-only branch with the directory `inside/it`, in which the suite
    /// runs.
    fn populated_branch(&self) -> PathBuf {
        let ro = self.dir("ro");
        std::fs::create_dir_all(ro.join("inside/it")).unwrap();
        build(&ro, &population(1));
        ro
    }

    /// Runs the suite in the root and, after a remount, in the directory `inside/it`.
    fn check(&self, spec: Spec) {
        let mut mounted = Mounted::new(spec, &self.sandbox.path("m"));
        self.check_regressions(mounted.dir(), "before the remount");
        mounted.remount();
        self.check_regressions(&mounted.path("inside/it"), "after the remount");
    }

    fn check_regressions(&self, dir: &Path, when: &str) {
        let regressions = regressions(&self.native, &pjdfstest(dir, &self.second));
        assert!(
            regressions.is_empty(),
            "{when} {} cases fail but pass natively:\n{}",
            regressions.len(),
            regressions.join("\n")
        );
    }
}

fn null_layer(transport: Transport) {
    let fixture = Fixture::new();
    let lower = fixture.populated_branch();
    fixture.check(Spec::wrap(&lower, transport));
}

fn versions(transport: Transport) {
    let fixture = Fixture::new();
    let lower = fixture.populated_branch();
    fixture.check(Spec::stack("versionfs / ", &lower, transport));
}

fn encrypted(transport: Transport, flags: &[&str]) {
    let fixture = Fixture::new();
    let volume = Volume::new(&fixture.disk.join("volume"), flags);
    {
        let mounted = Mounted::new(volume.spec(transport), &fixture.sandbox.path("m"));
        std::fs::create_dir_all(mounted.path("inside/it")).unwrap();
        build(mounted.dir(), &population(1));
    }
    fixture.check(volume.spec(transport));
}

fn union(transport: Transport, delete: Delete) {
    let fixture = Fixture::new();
    let (rw, ro) = (fixture.dir("rw"), fixture.populated_branch());
    fixture.check(Spec::union(&rw, &ro, transport).delete(delete));
}

#[test]
fn null_layer_ring() {
    null_layer(Transport::Ring);
}

#[test]
fn null_layer_device() {
    null_layer(Transport::Device);
}

#[test]
fn union_ring() {
    union(Transport::Ring, Delete::Whiteout);
}

#[test]
fn union_device() {
    union(Transport::Device, Delete::Whiteout);
}

#[test]
fn union_delete_all_ring() {
    union(Transport::Ring, Delete::All);
}

#[test]
fn union_delete_all_device() {
    union(Transport::Device, Delete::All);
}

#[test]
fn encrypted_ring() {
    encrypted(Transport::Ring, &[]);
}

#[test]
fn encrypted_and_bound() {
    encrypted(Transport::Ring, &[BOUND]);
}

#[test]
fn encrypted_device() {
    encrypted(Transport::Device, &["-plaintextnames", "-xchacha"]);
}

#[test]
fn versions_ring() {
    versions(Transport::Ring);
}

#[test]
fn versions_device() {
    versions(Transport::Device);
}
