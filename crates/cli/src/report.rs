//! What a server tells of its stack, as JSON: the attribute `user.strata.stack` of the mount's root.

use crate::bottom::Directory;
use meter::{Count, Counts, Operation};
use serde_json::{Map, Value, json};

/// One layer, or what the stack stands on.
#[derive(Clone, Debug)]
pub struct Part {
    /// The layer's name; `directory` for one directory.
    pub name: String,
    /// Its options.
    pub options: String,
    /// What passed from above, where that is measured.
    pub counts: Option<&'static Counts>,
    /// The directories under it, if it is the last.
    pub directories: Vec<Directory>,
}

/// A stack in use, top first.
#[derive(Clone, Debug)]
pub struct Report {
    parts: Vec<Part>,
    /// The mount's options that hold for its life, as they were given.
    given: Vec<String>,
}

impl Report {
    pub(crate) fn new(parts: Vec<Part>, given: Vec<String>) -> Self {
        Self { parts, given }
    }

    /// Everything, as it is now.
    #[must_use]
    pub fn json(&self) -> String {
        let below = self.parts.iter().skip(1).map(Some).chain([None]);
        let layers: Vec<_> = self.parts.iter().zip(below).map(|(part, below)| describe(part, below)).collect();
        json!({ "pid": std::process::id(), "given": self.given, "layers": layers }).to_string()
    }
}

fn describe(part: &Part, below: Option<&Part>) -> Value {
    let mut fields = Map::new();
    fields.insert("name".to_owned(), json!(part.name));
    fields.insert("options".to_owned(), json!(part.options));
    if let Some(counts) = part.counts {
        let total = total(counts);
        let own = below.and_then(|below| below.counts).map_or(total.time, |below| {
            // The two are not read at the same moment.
            total.time.saturating_sub(self::total(below).time)
        });
        fields.insert("operations".to_owned(), json!(total.done));
        fields.insert("failures".to_owned(), json!(total.failed));
        fields.insert("inclusive_ns".to_owned(), json!(nanos(total.time)));
        fields.insert("exclusive_ns".to_owned(), json!(nanos(own)));
        fields.insert("by_operation".to_owned(), by_operation(counts));
    }
    if !part.directories.is_empty() {
        let directories = part.directories.iter();
        let directories =
            directories.map(|dir| json!({ "path": dir.path.to_string_lossy(), "mode": dir.mode, "fd": dir.fd }));
        fields.insert("directories".to_owned(), directories.collect());
    }
    Value::Object(fields)
}

fn by_operation(counts: &Counts) -> Value {
    let counted = Operation::ALL.iter().map(|(operation, name)| (name, counts.of(*operation)));
    let rows = counted.filter(|(_, count)| count.done > 0).map(|(name, count)| {
        let figures = json!({ "done": count.done, "failed": count.failed, "inclusive_ns": nanos(count.time) });
        ((*name).to_owned(), figures)
    });
    Value::Object(rows.collect())
}

fn total(counts: &Counts) -> Count {
    Operation::ALL.iter().map(|(operation, _)| counts.of(*operation)).fold(Count::default(), |sum, count| Count {
        done: sum.done + count.done,
        failed: sum.failed + count.failed,
        time: sum.time + count.time,
    })
}

fn nanos(time: core::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
