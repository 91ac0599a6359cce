//! Which kinds of operations met on one object.

use std::collections::{BTreeMap, HashMap};

/// Counts pairs of kinds of events, the second of which followed the first on the same object.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    last: HashMap<String, String>,
    counts: BTreeMap<(String, String), u64>,
}

impl Pairs {
    /// Notes an event on objects.
    pub(crate) fn on(&mut self, kind: &str, objects: impl IntoIterator<Item = String>) {
        for object in objects {
            if let Some(before) = self.last.insert(object, kind.to_owned()) {
                *self.counts.entry((before, kind.to_owned())).or_default() += 1;
            }
        }
    }

    /// Notes an event on all objects.
    pub(crate) fn on_all(&mut self, kind: &str) {
        let all: Vec<_> = self.last.keys().cloned().collect();
        self.on(kind, all);
    }

    /// Returns the number of kinds.
    pub(crate) fn kinds(&self) -> usize {
        let kinds = self.counts.keys().flat_map(|(a, b)| [a, b]);
        kinds.collect::<std::collections::BTreeSet<_>>().len()
    }

    /// Adds those of another world.
    pub(crate) fn add(&mut self, other: Self) {
        for (pair, count) in other.counts {
            *self.counts.entry(pair).or_default() += count;
        }
    }

    /// Returns a line for each kind: what followed it on the same object, and how often.
    pub(crate) fn histogram(&self) -> String {
        let mut lines: BTreeMap<&str, String> = BTreeMap::new();
        for ((before, after), count) in &self.counts {
            *lines.entry(before).or_default() += &format!(" {after} {count}");
        }
        lines.iter().map(|(before, rest)| format!("{before}, then:{rest}\n")).collect()
    }
}
