//! pjdfstest, a POSIX test suite of others, on the native file system and on ours: no case that passes there fails here.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::time::Duration;
use strata_tests::oracle::population::{build, population};
use strata_tests::suite::{Cases, pjdfstest, worse};
use strata_tests::{Delete, Mounted, Sandbox, Spec, Transport};

/// A sandbox with what all these tests need: branches, the results on the native file system, a second file system.
struct Stage {
    disk: PathBuf,
    second: PathBuf,
    native: Cases,
    sandbox: Sandbox,
}

impl Stage {
    fn new() -> Self {
        let sandbox = Sandbox::with_time(Duration::from_secs(300));
        let disk = sandbox.ext4("disk", 1024);
        let second = sandbox.dir("second");
        let native = disk.join("native");
        std::fs::create_dir(&native).unwrap();
        let native = pjdfstest(&native, &second);
        assert!(native.len() > 300, "pjdfstest has {} cases only", native.len());
        Self { disk, second, native, sandbox }
    }

    /// A directory on the disk.
    fn dir(&self, name: &str) -> PathBuf {
        let dir = self.disk.join(name);
        std::fs::create_dir(&dir).unwrap();
        dir
    }

    /// A read-only branch full of files, with a directory `inside/it` for tests to be run in.
    fn full(&self) -> PathBuf {
        let ro = self.dir("ro");
        std::fs::create_dir_all(ro.join("inside/it")).unwrap();
        build(&ro, &population(1));
        ro
    }

    /// Runs the suite in the root and, after a remount, in the directory `inside/it`.
    fn check(&self, spec: Spec) {
        let mut mounted = Mounted::new(spec, &self.sandbox.path("m"));
        self.same(mounted.dir(), "before the remount");
        mounted.remount();
        self.same(&mounted.path("inside/it"), "after the remount");
    }

    fn same(&self, dir: &Path, when: &str) {
        let worse = worse(&self.native, &pjdfstest(dir, &self.second));
        assert!(worse.is_empty(), "{when} {} cases fail that pass natively:\n{}", worse.len(), worse.join("\n"));
    }
}

fn null_layer(transport: Transport) {
    let stage = Stage::new();
    let lower = stage.full();
    stage.check(Spec::wrap(&lower, transport));
}

fn union(transport: Transport, delete: Delete) {
    let stage = Stage::new();
    let (rw, ro) = (stage.dir("rw"), stage.full());
    stage.check(Spec::union(&rw, &ro, transport).delete(delete));
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
