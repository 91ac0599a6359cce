//! Random operations in several views: each view always equals its own union mounted alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{Kernel, copy, union, views};
use conformance::random::{Op, Side, apply_random, compare_trees};
use memfs::MemFs;
use std::sync::Arc;
use testkit::Rng;
use vnode::Layer;

/// The views of a test and their twins: unions that are used alone.
struct Pair {
    views: Vec<Arc<dyn Layer>>,
    twins: Vec<Arc<dyn Layer>>,
}

/// Each view has a writable branch of its own. All share the read-only base.
fn pair(seed: u64, count: usize) -> Pair {
    let base = MemFs::new();
    apply_random(seed, 150, &*base);
    let unions = |base: &Arc<MemFs>| (0..count).map(|_| union(&MemFs::new(), &[base])).collect();
    Pair { views: unions(&base), twins: unions(&copy(&base)) }
}

/// Unions alone check no permissions.
fn as_root(mut op: Op) -> Op {
    if let Op::Create { as_, .. }
    | Op::Mkdir { as_, .. }
    | Op::Symlink { as_, .. }
    | Op::Mknod { as_, .. }
    | Op::Tmpfile { as_, .. } = &mut op
    {
        (as_.uid, as_.gid) = (0, 0);
    }
    op
}

fn run(seed: u64, steps: usize, count: usize, remembered: usize) {
    let Pair { views: layers, twins } = pair(seed, count);
    let (fs, switch) = views(layers);
    let kernel = Kernel::over(fs, remembered);
    let mut rng = Rng::xorshift_star(seed);
    let mut sides: Vec<_> = (0..count).map(|_| Side::new(&*kernel, false)).collect();
    let mut twin_sides: Vec<_> = twins.iter().map(|twin| Side::new(&**twin, false)).collect();
    let mut log = Vec::new();
    for step in 0..steps {
        let (view, op) = (rng.below(count), as_root(Op::random(&mut rng)));
        log.push(format!("{step}: view {view}: {op:?}"));
        switch.set(view);
        let answers = (sides[view].apply(&op), twin_sides[view].apply(&op));
        let shown = || log[log.len().saturating_sub(30)..].join("\n");
        assert!(answers.0 == answers.1, "seed {seed}: {answers:?}\n{}", shown());
        if step % 200 == 199 {
            for (view, twin) in twins.iter().enumerate() {
                switch.set(view);
                compare_trees(&format!("seed {seed}, view {view}\n{}", shown()), &*kernel, &**twin);
            }
        }
    }
}

#[test]
fn each_view_equals_its_own_union() {
    for seed in 1..9 {
        run(seed, 1200, 2, 400);
    }
}

#[test]
fn three_views_with_hardly_any_vnodes_in_use() {
    for seed in 20..24 {
        run(seed, 800, 3, 5);
    }
}
