//! fsx: random reads, writes, mappings, truncations, holes and copies in one file, checked byte by
//! byte.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::time::Duration;
use strata_tests::crypt::{BOUND, Volume};
use strata_tests::suite::fsx;
use strata_tests::{Mounted, Rng, Sandbox, Spec, Transport, long};

const OPERATIONS: u64 = 8000;

fn seeds() -> Vec<u64> {
    if long() { (1..=20).collect() } else { vec![1, 2] }
}

/// Runs fsx on `file` once per seed.
fn exercise(sandbox: &Sandbox, file: &Path) {
    let artifacts = sandbox.dir("artifacts");
    for seed in seeds() {
        let output = fsx(file, seed, OPERATIONS, &artifacts);
        assert!(output.status.success(), "fsx -S {seed} on {}: {}\n{}", file.display(), output.status, output.text);
    }
}

/// Creates a file of 300,000 bytes.
fn make(file: &Path) {
    std::fs::write(file, Rng::new(5).bytes(300_000)).unwrap();
}

fn null_layer(transport: Transport) {
    over_a_directory(256, |lower| Spec::wrap(lower, transport));
}

fn versions(storage: &str, transport: Transport) {
    let above = format!("versionfs,storage={storage} / ");
    // Room for thousands of versions.
    over_a_directory(4096, |lower| Spec::stack(&above, lower, transport));
}

fn over_a_directory(mebibytes: u64, spec: impl Fn(&Path) -> Spec) {
    let sandbox = Sandbox::with_time(Duration::from_secs(200));
    let disk = sandbox.ext4("disk", mebibytes);
    make(&disk.join("old"));
    exercise_old_and_new(&sandbox, spec(&disk));
}

fn encrypted(flags: &[&str], transport: Transport) {
    let sandbox = Sandbox::with_time(Duration::from_secs(200));
    let volume = Volume::new(&sandbox.ext4("disk", 256).join("volume"), flags);
    {
        let mounted = Mounted::new(volume.spec(transport), &sandbox.path("m"));
        make(&mounted.path("old"));
    }
    exercise_old_and_new(&sandbox, volume.spec(transport));
    let fsck = volume.fsck();
    assert!(fsck.status.success(), "{}", fsck.text);
}

fn exercise_old_and_new(sandbox: &Sandbox, spec: Spec) {
    let mut mounted = Mounted::new(spec, &sandbox.path("m"));
    exercise(sandbox, &mounted.path("new"));
    exercise(sandbox, &mounted.path("old"));
    mounted.remount();
    exercise(sandbox, &mounted.path("new"));
}

fn union(transport: Transport) {
    let sandbox = Sandbox::with_time(Duration::from_secs(200));
    let rw = sandbox.ext4("rw", 256);
    let ro = sandbox.ext4("ro", 256);
    make(&ro.join("old"));
    sandbox.read_only(&ro);
    let branch = rw.join("branch");
    std::fs::create_dir(&branch).unwrap();
    let mut mounted = Mounted::new(Spec::union(&branch, &ro, transport), &sandbox.path("m"));
    exercise(&sandbox, &mounted.path("new"));
    // A reader keeps the file open, so that it is copied up while open.
    let reader = std::fs::File::open(mounted.path("old")).unwrap();
    exercise(&sandbox, &mounted.path("old"));
    drop(reader);
    mounted.remount();
    exercise(&sandbox, &mounted.path("old"));
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
    union(Transport::Ring);
}

#[test]
fn union_device() {
    union(Transport::Device);
}

#[test]
fn versions_ring() {
    versions("sparse", Transport::Ring);
}

#[test]
fn versions_device() {
    versions("full", Transport::Device);
}

#[test]
fn encrypted_ring() {
    encrypted(&[], Transport::Ring);
}

#[test]
fn encrypted_device() {
    encrypted(&["-aessiv"], Transport::Device);
}

#[test]
fn encrypted_and_bound() {
    encrypted(&[BOUND], Transport::Ring);
}

#[test]
fn encrypted_with_xchacha() {
    encrypted(&["-xchacha"], Transport::Ring);
}
