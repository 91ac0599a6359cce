//! Runs the suite on the layers of this workspace that need no other layer.
#![allow(missing_docs, clippy::unwrap_used)]

use conformance::run_all;
use hostfs::{HostFs, HostOptions};
use memfs::{Faults, MemFs, MemOptions};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use testkit::TempDir;
use vnode::Layer;
use wrapfs::WrapFs;

#[test]
fn memfs() {
    run_all(|| MemFs::new());
}

#[test]
fn memfs_with_reflinks_and_without_tmpfile() {
    let options = MemOptions { reflink: true, tmpfile: false, ..MemOptions::default() };
    run_all(|| MemFs::with(options, &Faults::new()));
}

#[test]
fn wrapfs_over_memfs() {
    run_all(|| WrapFs::new(MemFs::new()));
}

/// Runs the suite on each available kind of host file system, over host directories that `stack`
/// turns into layers.
fn on_the_host(options: HostOptions, stack: impl Fn(Arc<HostFs>) -> Arc<dyn Layer>) {
    testkit::need_root("it creates objects of other users");
    for place in [std::env::temp_dir(), Path::new("/dev/shm").to_owned()] {
        if !place.is_dir() {
            continue;
        }
        let scratch = TempDir::within(&place);
        let count = Cell::new(0);
        run_all(|| {
            count.set(count.get() + 1);
            stack(HostFs::open(&scratch.dir(&count.get().to_string()), options).unwrap())
        });
    }
}

#[test]
fn hostfs_by_handle() {
    on_the_host(HostOptions::default(), |host| host);
}

#[test]
fn hostfs_by_name() {
    let options = HostOptions { handles: false, detach: false, ..HostOptions::default() };
    on_the_host(options, |host| host);
}

#[test]
fn hostfs_with_hardly_any_descriptors() {
    let options = HostOptions { directories: 1, listings: 1, ..HostOptions::default() };
    on_the_host(options, |host| host);
    on_the_host(HostOptions { handles: false, ..options }, |host| host);
}

#[test]
fn three_null_layers_over_hostfs() {
    on_the_host(HostOptions::default(), |host| WrapFs::new(WrapFs::new(WrapFs::new(host))));
}
