//! Versions in the middle are discarded: the others keep their bytes, whenever it is interrupted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{CX, STEM, Set, edit, letter, random_set};
use memfs::{Count, Fault, Faults, Plan};
use proptest::prelude::*;
use versionset::{Record, absorb, version_name};
use vnode::{Layer as _, Name};

/// Discards a version. With `stop`, as if killed after that step.
fn discard(set: &mut Set, number: u64, stop: Option<usize>) {
    let converted = absorb(&CX, &set.files(), &set.index, number, 3).unwrap();
    if stop == Some(0) && converted.is_empty() {
        return;
    }
    for (number, letter) in converted {
        let old = set.index.versions[&number].letter;
        set.index.apply(Record::Converted { number, letter });
        set.dir().unlink(&CX, Name::new(&version_name(STEM, old, number)).unwrap()).unwrap();
    }
    if stop == Some(1) {
        return;
    }
    let letter = set.index.versions[&number].letter;
    set.index.apply(Record::Discarded(number));
    set.right.remove(&number);
    set.dir().unlink(&CX, Name::new(&version_name(STEM, letter, number)).unwrap()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn the_other_versions_keep_their_bytes(seed in any::<u64>(), count in 2usize..16) {
        let (mut set, mut random) = random_set(seed, count);
        while !set.right.is_empty() {
            let at = random.below(set.right.len());
            let number = *set.right.keys().nth(at).unwrap();
            let stop = [None, None, Some(0), Some(1)][random.below(4)];
            discard(&mut set, number, stop);
            set.check();
            // The history goes on, too.
            if random.below(4) == 0 && set.index.next() < 40 {
                let mut head = set.head.clone();
                edit(&mut random, &mut head);
                set.change(letter(&mut random), &head);
            }
        }
    }

    #[test]
    fn a_crash_at_any_step_loses_nothing(seed in any::<u64>(), count in 2usize..6) {
        let (set, mut random) = random_set(seed, count);
        let number = 1 + random.below(count) as u64;
        for step in 1.. {
            let faults = Faults::new();
            let fs = set.fs.fork(&faults);
            faults.arm(Plan { count: Count::Changes, at: step, fault: Fault::Crash });
            let files = versionset::StoreFiles { dir: fs.root(), ..set.files() };
            let result = absorb(&CX, &files, &set.index, number, 3);
            let fired = faults.fired();
            let after = Set { fs: fs.without_faults(), index: set.index.clone(), right: set.right.clone(), head: set.head.clone() };
            after.check();
            // A power failure at this point loses what was not made durable.
            let after = Set { fs: fs.recover(&Faults::new()), ..after };
            after.check();
            if !fired {
                prop_assert!(result.is_ok());
                break;
            }
        }
    }
}
