//! The conformance suite of all layers, on several sets of branches.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use memfs::MemFs;
use std::sync::Arc;
use unionfs::{Branch, Delete, Mode, Options, Unionfs};
use vnode::Layer;

fn union(modes: &[Mode], delete: Delete) -> Arc<dyn Layer> {
    let branch =
        |(index, &mode): (usize, &Mode)| Branch { layer: MemFs::new(), path: format!("/b{index}").into(), mode };
    let branches = modes.iter().enumerate().map(branch).collect();
    Unionfs::new(branches, Options { delete, ..Options::default() }).unwrap()
}

#[test]
fn one_branch() {
    conformance::run_all(|| union(&[Mode::ReadWrite], Delete::Whiteout));
}

#[test]
fn over_a_read_only_branch() {
    conformance::run_all(|| union(&[Mode::ReadWrite, Mode::ReadOnly], Delete::Whiteout));
}

#[test]
fn over_a_read_only_branch_with_delete_all() {
    conformance::run_all(|| union(&[Mode::ReadWrite, Mode::ReadOnly], Delete::All));
}

#[test]
fn two_read_write_branches() {
    conformance::run_all(|| union(&[Mode::ReadWrite, Mode::ReadWrite, Mode::NfsReadOnly], Delete::Whiteout));
}

#[test]
fn two_read_write_branches_with_delete_all() {
    conformance::run_all(|| union(&[Mode::ReadWrite, Mode::ReadWrite, Mode::NfsReadOnly], Delete::All));
}
