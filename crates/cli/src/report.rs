//! The server command `server.stack`: describes the stack as JSON.

use crate::channel::STACK;
use core::time::Duration;
use meter::{Count, Counts, Operation};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use vnode::{CommandAccess, Errno};

/// A part of a stack: a layer, or the directory at the bottom.
#[derive(Clone, Debug)]
pub struct Part {
    /// The layer's name; `directory` for one directory.
    pub name: String,
    /// Its options.
    pub options: String,
    /// Counts of the operations from above, if metered.
    pub counts: Option<&'static Counts>,
    /// The branches or the directory below it, if it is the last part of its stack.
    pub below: Vec<Below>,
}

/// A branch or directory below the last part of a stack.
#[derive(Clone, Debug)]
pub enum Below {
    /// A host directory.
    Directory(Directory),
    /// A stack that is a branch, with its mode.
    Stack(&'static str, Vec<Part>),
}

impl Part {
    /// Returns the total time of the operations of the stacks below it.
    fn time_below(&self) -> Duration {
        let tops = self.below.iter().filter_map(|below| match below {
            Below::Directory(_) => None,
            Below::Stack(_, parts) => parts.first().and_then(|part| part.counts),
        });
        tops.map(|counts| total(counts).time).sum()
    }
}

/// A directory at the bottom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    /// Its path, without symbolic links, when it was opened.
    pub path: PathBuf,
    /// Its mode: `rw`, `ro` and so on.
    pub mode: &'static str,
    /// The server's descriptor, if it is open for the life of the mount.
    pub fd: Option<i32>,
}

/// A stack in use.
pub struct Report {
    /// Returns the parts as they are now, top first.
    parts: Box<dyn Fn() -> Vec<Part> + Send + Sync>,
    /// The mount options that a remount can't change, as given.
    given: Vec<String>,
}

impl core::fmt::Debug for Report {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Report").field("given", &self.given).finish_non_exhaustive()
    }
}

impl Report {
    pub(crate) fn new(parts: Box<dyn Fn() -> Vec<Part> + Send + Sync>, given: Vec<String>) -> Self {
        Self { parts, given }
    }

    /// Returns the server command that replies with the report.
    #[must_use]
    pub fn command(self) -> server::Command {
        let help = "Returns as JSON the layers of the mount, with their options and directories, and with operation counts and \
                    latency if metered (meter=on).";
        let declared = vnode::Command { name: STACK, help, access: CommandAccess::Anyone };
        let run = move |given: &server::Invocation<'_>| match given.input {
            [] => Ok(self.json().into_bytes()),
            _ => Err(Errno::INVAL),
        };
        server::Command { declared, run: Arc::new(run) }
    }

    /// Returns the current state as JSON.
    #[must_use]
    pub fn json(&self) -> String {
        json!({ "pid": std::process::id(), "given": self.given, "layers": stack(&(self.parts)()) }).to_string()
    }
}

fn stack(parts: &[Part]) -> Vec<Value> {
    let below = parts.iter().skip(1).map(Some).chain([None]);
    parts.iter().zip(below).map(|(part, below)| describe(part, below)).collect()
}

fn describe(part: &Part, below: Option<&Part>) -> Value {
    let mut fields = Map::new();
    fields.insert("name".to_owned(), json!(part.name));
    fields.insert("options".to_owned(), json!(part.options));
    if let Some(counts) = part.counts {
        let total = total(counts);
        let below =
            below.and_then(|below| below.counts).map_or_else(|| part.time_below(), |counts| self::total(counts).time);
        // The two counters are not read atomically.
        let own = total.time.saturating_sub(below);
        fields.insert("operations".to_owned(), json!(total.done));
        fields.insert("failures".to_owned(), json!(total.failed));
        fields.insert("inclusive_ns".to_owned(), json!(nanos(total.time)));
        fields.insert("exclusive_ns".to_owned(), json!(nanos(own)));
        fields.insert("by_operation".to_owned(), by_operation(counts));
    }
    if !part.below.is_empty() {
        fields.insert("directories".to_owned(), part.below.iter().map(describe_below).collect());
    }
    Value::Object(fields)
}

fn describe_below(below: &Below) -> Value {
    match below {
        Below::Directory(dir) => json!({ "path": dir.path.to_string_lossy(), "mode": dir.mode, "fd": dir.fd }),
        Below::Stack(mode, parts) => json!({ "mode": mode, "layers": stack(parts) }),
    }
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

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
