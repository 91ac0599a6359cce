//! Applies the same random operations to two layers, and compares all results and the trees.
//!
//! The sequence depends only on the seed. A difference panics with the seed, the step and the
//! preceding operations.

mod ops;
mod side;

pub use ops::{Caller, Op, Path, SLOTS};
pub use side::{Answer, OpenState, Side, Summary};

use crate::fixture::{ROOT, counts_directories};
use memfs::Dump;
use std::collections::VecDeque;
use testkit::Rng;
use vnode::{Layer, SetAttr};

/// Number of preceding operations shown with a difference.
const SHOWN: usize = 30;

/// Number of operations between comparisons of the whole trees.
const BETWEEN_DUMPS: u64 = 200;

/// Applies `steps` random operations to two empty layers and compares them.
pub fn compare(seed: u64, steps: u64, a: &dyn Layer, b: &dyn Layer) {
    let mut rng = Rng::xorshift_star(seed);
    for layer in [a, b] {
        let same = SetAttr { mode: Some(0o755), uid: Some(0), gid: Some(0), ..SetAttr::default() };
        layer.root().setattr(&ROOT, &same, None).unwrap();
    }
    let counts = counts_directories(&a.root()) && counts_directories(&b.root());
    let (mut left, mut right) = (Side::new(a, counts), Side::new(b, counts));
    let mut last = VecDeque::new();
    for step in 0..steps {
        let op = Op::random(&mut rng);
        if last.len() == SHOWN {
            last.pop_front();
        }
        last.push_back(format!("{step}: {op:?}"));
        let answers = (left.apply(&op), right.apply(&op));
        assert!(
            answers.0 == answers.1,
            "seed {seed}, step {step}: {op:?}\n  {:?}\n  {:?}\n{}",
            answers.0,
            answers.1,
            shown(&last)
        );
        if step % BETWEEN_DUMPS == BETWEEN_DUMPS - 1 {
            compare_trees(&format!("seed {seed}, after step {step}\n{}", shown(&last)), a, b);
        }
    }
    drop((left, right));
    compare_trees(&format!("seed {seed}, in the end\n{}", shown(&last)), a, b);
}

/// Applies `steps` random operations to one layer, whatever its content. Results are ignored.
pub fn apply_random(seed: u64, steps: u64, layer: &dyn Layer) {
    let mut rng = Rng::xorshift_star(seed);
    let mut side = Side::new(layer, false);
    for _ in 0..steps {
        side.apply(&Op::random(&mut rng));
    }
}

/// Compares everything in two trees that must not differ between file systems.
pub fn compare_trees(when: &str, a: &dyn Layer, b: &dyn Layer) {
    let counts = counts_directories(&a.root()) && counts_directories(&b.root());
    let tree = |layer| {
        let dump = Dump::of(layer).unwrap().without_ids().without_times();
        if counts { dump } else { dump.without_directory_counts() }
    };
    let differences = tree(a).differences(&tree(b));
    assert!(differences.is_empty(), "{when}\n{differences}");
}

fn shown(last: &VecDeque<String>) -> String {
    last.iter().map(|line| format!("    {line}\n")).collect()
}
