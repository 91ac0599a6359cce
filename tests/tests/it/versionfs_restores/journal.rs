//! What was done, for the message of a failure and for the count of what met.

use super::changes::is_below;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Two kinds of changes, the first one before the other.
pub(super) type Pairs = BTreeMap<(&'static str, &'static str), u64>;

#[derive(Debug)]
struct Step {
    number: u64,
    kind: &'static str,
    paths: Vec<String>,
    text: String,
    /// Whether the paths are names of one object, before or after.
    joins: bool,
}

/// The steps of a run.
#[derive(Debug, Default)]
pub(super) struct Journal {
    steps: Vec<Step>,
    /// The kinds of changes that an object has met, by inode number.
    met: HashMap<u64, BTreeSet<&'static str>>,
    pub(super) pairs: Pairs,
}

impl Journal {
    /// Notes what is about to be done.
    pub(super) fn note(&mut self, number: u64, kind: &'static str, paths: &[String], text: &str) {
        let joins = paths.len() > 1 && paths.len() < 4;
        self.steps.push(Step { number, kind, paths: paths.to_vec(), text: text.to_owned(), joins });
    }

    /// Adds to the last step.
    pub(super) fn outcome(&mut self, text: &str) {
        if let Some(step) = self.steps.last_mut() {
            let _ = write!(step.text, " -> {}", text.trim_end());
        }
    }

    /// Counts what the objects at these paths have met.
    pub(super) fn count(&mut self, root: &Path, kind: &'static str, objects: &BTreeSet<u64>, paths: &[String]) {
        for object in objects.union(&objects_at(root, paths)) {
            let earlier = self.met.entry(*object).or_default();
            for before in &*earlier {
                *self.pairs.entry((before, kind)).or_default() += 1;
            }
            earlier.insert(kind);
        }
    }

    /// Returns the steps that concern a path, also under the other names of what had it.
    pub(super) fn story(&self, path: &str) -> String {
        let mut paths = BTreeSet::from([path.to_owned()]);
        let mut found = Vec::new();
        for step in self.steps.iter().rev() {
            let concerns = |mine: &String| paths.iter().any(|path| is_below(path, mine) || is_below(mine, path));
            if !step.paths.is_empty() && !step.paths.iter().any(concerns) {
                continue;
            }
            found.push(step);
            if step.joins {
                for at in paths.clone() {
                    let moved = |from: &String| {
                        let rest = at.strip_prefix(&**from).filter(|_| is_below(&at, from))?.to_owned();
                        Some(step.paths.iter().map(move |to| format!("{to}{rest}")))
                    };
                    paths.extend(step.paths.iter().filter_map(moved).flatten());
                }
            }
        }
        let mut out = String::new();
        for Step { number, kind, paths, text, .. } in found.into_iter().rev() {
            let _ = writeln!(out, "  {number}: {kind} {} {text}", paths.join(" "));
        }
        out
    }
}

/// Returns the inode numbers of what has these paths.
pub(super) fn objects_at(root: &Path, paths: &[String]) -> BTreeSet<u64> {
    paths.iter().filter_map(|path| fs::symlink_metadata(root.join(path)).ok()).map(|found| found.ino()).collect()
}

/// Returns a table of pairs: how often the kind of the line was followed by that of the column.
pub(super) fn table(pairs: &Pairs) -> String {
    let kinds: BTreeSet<_> = pairs.keys().flat_map(|(one, other)| [*one, *other]).collect();
    let mut out = String::new();
    let never = kinds.iter().flat_map(|one| kinds.iter().map(move |other| (*one, *other)));
    let never: Vec<_> = never.filter(|pair| !pairs.contains_key(pair)).collect();
    let of = kinds.len() * kinds.len();
    let _ = writeln!(out, "{} of {of} pairs of {} kinds met", pairs.len(), kinds.len());
    for kind in &kinds {
        let _ = write!(out, "{kind:>17}:");
        for other in &kinds {
            let _ = write!(out, " {:4}", pairs.get(&(*kind, *other)).unwrap_or(&0));
        }
        out.push('\n');
    }
    let _ = writeln!(out, "never: {never:?}");
    out
}
