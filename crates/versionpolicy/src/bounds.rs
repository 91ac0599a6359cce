//! The administrator's limits on the values that users set.

use crate::document::Table;
use crate::problem::{Problem, Problems, Severity, one_of};
use crate::quantity::Quantity;
use crate::range::{NO_LIMIT, Range};
use crate::settings::{Generation, Generations, Keep, Limit, NoSpace, Set, Settings, Storage, Versions};
use std::sync::Arc;

const KEYS: [&str; 9] = ["versions", "storage", "number", "age", "space", "keep", "landmarks", "nospace", "external"];

/// A bound and its line.
#[derive(Clone, Debug)]
pub(crate) struct Bound<T> {
    pub(crate) value: T,
    line: u32,
}

/// The table `[bounds]`. Without a bound, users may set any value, but no external policy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bounds {
    limits: [Option<Bound<Range>>; 6],
    keep: [Option<Bound<Range>>; 5],
    versions: Option<Bound<Vec<Versions>>>,
    storage: Option<Bound<Vec<Storage>>>,
    landmarks: Option<Bound<Vec<bool>>>,
    nospace: Option<Bound<Vec<NoSpace>>>,
    external: Option<Bound<bool>>,
}

impl Bounds {
    pub(crate) fn read(table: &Table<'_>, problems: &mut Problems<'_>) -> Self {
        table.expect_keys(&KEYS, problems);
        let mut bounds = Self::default();
        for (key, quantity, at) in
            [("number", Quantity::Count, 0), ("age", Quantity::Duration, 2), ("space", Quantity::Size, 4)]
        {
            let (min, max) = read_pair(table, key, quantity, problems);
            if let Some([own_min, own_max]) = bounds.limits.get_mut(at..at + 2) {
                (*own_min, *own_max) = (min, max);
            }
        }
        if let Some(node) = table.get("keep")
            && let Some(keep) = node.table("a table such as { hourly = \"..48\" }", problems)
        {
            keep.expect_keys(&Generation::NAMES, problems);
            for (name, bound) in Generation::NAMES.iter().zip(&mut bounds.keep) {
                *bound = read_range(&keep, name, Quantity::Count, problems);
            }
        }
        bounds.versions = read_choices(table, "versions", &Versions::ALL, &Versions::NAMES, problems);
        bounds.landmarks = read_choices(table, "landmarks", &[true, false], &["true", "false"], problems);
        bounds.storage = read_choices(table, "storage", &Storage::ALL, &Storage::NAMES, problems);
        bounds.nospace = read_choices(table, "nospace", &NoSpace::ALL, &NoSpace::NAMES, problems);
        bounds.external = table.get("external").and_then(|node| {
            let value = node.boolean(problems)?;
            Some(Bound { value, line: node.place(problems).line })
        });
        bounds
    }

    /// Changes the values of a user to those that are allowed, with a warning for each.
    pub(crate) fn apply(&self, settings: &mut Settings, user: &Arc<str>, admin: &str, warnings: &mut Vec<Problem>) {
        let mut report = Report { user, admin, warnings };
        for ((limit, set), bound) in Limit::ALL.iter().zip(&mut settings.limits).zip(&self.limits) {
            if let (Some(set), Some(bound)) = (set, bound) {
                clamp(set, *limit, bound, &mut report);
            }
        }
        if let Some(set) = &mut settings.keep {
            self.clamp_keep(set, &mut report);
        }
        let flag = |value: bool| if value { "true" } else { "false" };
        choose(&mut settings.versions, self.versions.as_ref(), "versions", Versions::name, &mut report);
        choose(&mut settings.landmarks, self.landmarks.as_ref(), "landmarks", flag, &mut report);
        choose(&mut settings.storage, self.storage.as_ref(), "storage", Storage::name, &mut report);
        choose(&mut settings.nospace, self.nospace.as_ref(), "nospace", NoSpace::name, &mut report);
        let may_register = self.external.as_ref().is_some_and(|bound| bound.value);
        if let Some(set) = settings.external.take_if(|set| !may_register && !set.value.is_empty()) {
            let message = format!("external is ignored: {admin} does not permit it in [bounds]; remove it");
            report.warn(set.source.line, message);
        }
    }

    fn clamp_keep(&self, set: &mut Set<Keep>, report: &mut Report<'_>) {
        let original = set.value;
        let Keep::Generations(Generations(mut counts)) = (match original {
            Keep::All if self.keep.iter().all(Option::is_none) => return,
            Keep::All => Keep::Generations(Generations([u32::MAX; 5])),
            keep @ Keep::Generations(_) => keep,
        }) else {
            return;
        };
        let mut changed_by = None;
        for (count, bound) in counts.iter_mut().zip(&self.keep) {
            let Some(Bound { value: range, line }) = bound else { continue };
            let own = if *count == u32::MAX { NO_LIMIT } else { u64::from(*count) };
            let allowed = own.clamp(range.min, range.max);
            if allowed != own {
                changed_by = Some(*line);
                *count = u32::try_from(allowed).unwrap_or(u32::MAX);
            }
        }
        if let Some(line) = changed_by {
            set.value = Keep::Generations(Generations(counts));
            set.source.bound = Some(line);
            let (shown, used) = (original.show(), set.value.show());
            let bound = report.bound(line);
            report.warn(set.source.line, format!("keep = {shown} is outside the bounds of {bound}; {used} is used"));
        }
    }
}

/// Where warnings go, and the names of both files.
struct Report<'r> {
    user: &'r Arc<str>,
    admin: &'r str,
    warnings: &'r mut Vec<Problem>,
}

impl Report<'_> {
    fn bound(&self, line: u32) -> String {
        format!("{}:{line}", self.admin)
    }

    fn warn(&mut self, line: u32, message: String) {
        let file = Arc::clone(self.user);
        self.warnings.push(Problem { severity: Severity::Warning, file, line, column: 1, message });
    }
}

fn clamp(set: &mut Set<u64>, limit: Limit, bound: &Bound<Range>, report: &mut Report<'_>) {
    let allowed = set.value.clamp(bound.value.min, bound.value.max);
    if allowed == set.value {
        return;
    }
    let (shown, used, name) = (limit.show(set.value), limit.show(allowed), limit.name());
    let place = report.bound(bound.line);
    report.warn(set.source.line, format!("{name} = {shown} is outside the bounds of {place}; {used} is used"));
    set.value = allowed;
    set.source.bound = Some(bound.line);
}

fn choose<T: PartialEq + Copy>(
    set: &mut Option<Set<T>>,
    bound: Option<&Bound<Vec<T>>>,
    key: &str,
    name: impl Fn(T) -> &'static str,
    report: &mut Report<'_>,
) {
    let Some(Bound { value: allowed, line }) = bound else { return };
    if let Some(refused) = set.take_if(|set| !allowed.contains(&set.value)) {
        let names: Vec<_> = allowed.iter().map(|value| name(*value)).collect();
        let (refused_name, place) = (name(refused.value), report.bound(*line));
        let message = format!("{key} = {refused_name} is ignored: {place} permits only {}", one_of(&names));
        report.warn(refused.source.line, message);
    }
}

/// Reads `"10..100"` for both the minimum and the maximum, or a table with a range for each.
fn read_pair(
    table: &Table<'_>,
    key: &str,
    quantity: Quantity,
    problems: &mut Problems<'_>,
) -> (Option<Bound<Range>>, Option<Bound<Range>>) {
    let Some(node) = table.get(key) else { return (None, None) };
    if !node.value.is_table() {
        let both = read_range(table, key, quantity, problems);
        return (both.clone(), both);
    }
    let Some(pair) = node.table("a table", problems) else { return (None, None) };
    pair.expect_keys(&["min", "max"], problems);
    (read_range(&pair, "min", quantity, problems), read_range(&pair, "max", quantity, problems))
}

pub(crate) fn read_range(
    table: &Table<'_>,
    key: &str,
    quantity: Quantity,
    problems: &mut Problems<'_>,
) -> Option<Bound<Range>> {
    let node = table.get(key)?;
    let line = node.place(problems).line;
    node.ends(quantity, problems).map(|ends| Bound { value: ends.filled(), line })
}

/// Reads the list of values that users may set.
fn read_choices<T: Copy>(
    table: &Table<'_>,
    key: &str,
    all: &[T],
    names: &[&str],
    problems: &mut Problems<'_>,
) -> Option<Bound<Vec<T>>> {
    let node = table.get(key)?;
    let line = node.place(problems).line;
    let values = node
        .value
        .as_array()
        .map_or_else(|| vec![node.clone()], |list| list.iter().map(crate::document::Node::new).collect());
    Some(Bound { value: values.into_iter().filter_map(|node| node.word(all, names, problems)).collect(), line })
}
