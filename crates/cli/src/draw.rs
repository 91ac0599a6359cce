//! `strata stack`: draws the layers of a mount from the top, with their operation counts and
//! latency.

use crate::exit::Failure;
use core::fmt::Write as _;
use core::time::Duration;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A snapshot of a stack, as its server reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pid: u64,
    layers: Vec<Layer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Layer {
    name: String,
    options: String,
    figures: Option<Figures>,
    /// For the last layer, the branches or the directory below it, each with its mode.
    below: Vec<(String, Below)>,
}

/// A branch or directory below the last layer of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Below {
    /// A directory, by its path.
    Directory(String),
    /// A stack, top first.
    Stack(Vec<Layer>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Figures {
    done: u64,
    failed: u64,
    inclusive: u64,
    exclusive: u64,
    /// Count and time in nanoseconds, by operation.
    each: BTreeMap<String, (u64, u64)>,
}

impl Snapshot {
    /// Parses the reply to `server.stack`.
    ///
    /// # Errors
    /// The reply is malformed.
    pub fn read(json: &str) -> Result<Self, Failure> {
        let wrong = || Failure::system("the server's reply can't be parsed; --json prints it");
        let stack: Value = serde_json::from_str(json).map_err(|_| wrong())?;
        let layers = Layer::read_all(&stack).ok_or_else(wrong)?;
        Ok(Self { pid: stack.get("pid").and_then(Value::as_u64).ok_or_else(wrong)?, layers })
    }

    /// Returns the figures of the interval since an earlier snapshot.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut new = self.clone();
        subtract(&mut new.layers, &earlier.layers);
        new
    }

    /// Returns the drawing. `span` is the interval of the figures; `None` means since the mount.
    #[must_use]
    pub fn draw(&self, mount: &Path, span: Option<Duration>) -> String {
        let mut out = format!("{}  (server {})", mount.display(), self.pid);
        let _ = match span {
            None => writeln!(out, "  since it was mounted"),
            Some(span) => writeln!(out, "  in {}", time(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))),
        };
        let whole = self.layers.first().and_then(|layer| layer.figures.as_ref()).map_or(0, |figures| figures.inclusive);
        for line in draw(&self.layers, whole) {
            let _ = writeln!(out, "{line}");
        }
        if self.layers.iter().all(|layer| layer.figures.is_none()) {
            out.push_str("No measurements: mount with the option meter=on.\n");
        }
        out
    }
}

fn subtract(now: &mut [Layer], before: &[Layer]) {
    for (now, before) in now.iter_mut().zip(before) {
        if let (Some(now), Some(before)) = (&mut now.figures, &before.figures) {
            now.subtract(before);
        }
        for below in now.below.iter_mut().zip(&before.below) {
            if let ((_, Below::Stack(now)), (_, Below::Stack(before))) = below {
                subtract(now, before);
            }
        }
    }
}

/// Returns the lines of a stack. `whole` is the time of all operations on the mount, in
/// nanoseconds.
fn draw(layers: &[Layer], whole: u64) -> Vec<String> {
    let last = layers.len().saturating_sub(1);
    layers.iter().enumerate().flat_map(|(i, layer)| layer.draw(i == 0, i == last, whole)).collect()
}

impl Layer {
    fn read_all(stack: &Value) -> Option<Vec<Self>> {
        stack.get("layers")?.as_array()?.iter().map(Self::read).collect()
    }

    fn read(value: &Value) -> Option<Self> {
        let text = |of: &Value, name: &str| Some(of.get(name)?.as_str()?.to_owned());
        let below = value.get("directories").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let below = below.iter().map(|below| {
            let what = match below.get("layers") {
                Some(_) => Below::Stack(Self::read_all(below)?),
                None => Below::Directory(text(below, "path")?),
            };
            Some((text(below, "mode")?, what))
        });
        Some(Self {
            name: text(value, "name")?,
            options: text(value, "options")?,
            figures: Figures::read(value),
            below: below.collect::<Option<_>>()?,
        })
    }

    fn draw(&self, first: bool, last: bool, whole: u64) -> Vec<String> {
        let (corner, side) = match (first, last) {
            (true, false) => ('┌', '│'),
            (_, true) => ('└', ' '),
            _ => ('├', '│'),
        };
        let comma = if self.options.is_empty() { "" } else { "," };
        let mut lines = vec![format!("{corner}─ {}{comma}{}", self.name, self.options)];
        for (mode, below) in &self.below {
            match below {
                Below::Directory(path) => lines.push(format!("{side}    {mode:<6} {path}")),
                Below::Stack(layers) => {
                    let modes = core::iter::once(mode.as_str()).chain(core::iter::repeat(""));
                    lines.extend(
                        draw(layers, whole).iter().zip(modes).map(|(line, mode)| format!("{side}    {mode:<6} {line}")),
                    );
                }
            }
        }
        if let Some(figures) = &self.figures {
            lines.extend(figures.draw(whole).iter().map(|line| format!("{side}    {line}")));
        }
        lines
    }
}

impl Figures {
    fn read(value: &Value) -> Option<Self> {
        let number = |value: &Value, name: &str| value.get(name)?.as_u64();
        let each = value.get("by_operation")?.as_object()?.iter();
        let each = each.map(|(name, row)| Some((name.clone(), (number(row, "done")?, number(row, "inclusive_ns")?))));
        Some(Self {
            done: number(value, "operations")?,
            failed: number(value, "failures")?,
            inclusive: number(value, "inclusive_ns")?,
            exclusive: number(value, "exclusive_ns")?,
            each: each.collect::<Option<_>>()?,
        })
    }

    fn draw(&self, whole: u64) -> Vec<String> {
        let failed = if self.failed == 0 { String::new() } else { format!(", {} failed", grouped(self.failed)) };
        let share = if whole == 0 { 0 } else { u128::from(self.exclusive) * 100 / u128::from(whole) };
        let mut lines = vec![format!(
            "{} operations{failed}; {} inclusive, {} exclusive ({share} %)",
            grouped(self.done),
            time(self.inclusive),
            time(self.exclusive),
        )];
        let mut each: Vec<_> = self.each.iter().filter(|(_, (done, _))| *done > 0).collect();
        each.sort_by_key(|(_, (_, nanos))| core::cmp::Reverse(*nanos));
        lines.extend(each.chunks(4).map(|line| {
            let cells: Vec<_> = line
                .iter()
                .map(|(name, (done, nanos))| format!("{name} {} {}", grouped(*done), time(*nanos)))
                .collect();
            format!("  {}", cells.join(" · "))
        }));
        lines
    }

    fn subtract(&mut self, before: &Self) {
        self.done = self.done.saturating_sub(before.done);
        self.failed = self.failed.saturating_sub(before.failed);
        self.inclusive = self.inclusive.saturating_sub(before.inclusive);
        self.exclusive = self.exclusive.saturating_sub(before.exclusive);
        for (name, (done, nanos)) in &mut self.each {
            let (done_before, nanos_before) = before.each.get(name).copied().unwrap_or_default();
            *done = done.saturating_sub(done_before);
            *nanos = nanos.saturating_sub(nanos_before);
        }
    }
}

/// Formats a number with thousands separators: 1,234,567.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a time with three significant digits and a unit.
fn time(nanos: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")];
    let Some((size, unit)) = UNITS.into_iter().find(|(size, _)| nanos >= *size) else { return format!("{nanos} ns") };
    let whole = nanos / size;
    let digits = match whole {
        0..10 => 2,
        10..100 => 1,
        _ => 0,
    };
    format!("{:.digits$} {unit}", nanos as f64 / size as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"pid":7,"layers":[
        {"name":"rot13","options":"key=7","operations":1200,"failures":3,"inclusive_ns":2000000,"exclusive_ns":500000,
         "by_operation":{"lookup":{"done":1000,"failed":0,"inclusive_ns":1500000},"open":{"done":200,"failed":3,"inclusive_ns":500000}}},
        {"name":"unionfs","options":"","operations":1200,"failures":0,"inclusive_ns":1500000,"exclusive_ns":1500000,"by_operation":{},
         "directories":[{"path":"/a","mode":"rw","fd":9},{"path":"/b","mode":"nfsro","fd":11}]}]}"#;

    #[test]
    fn a_stack_is_drawn_from_the_top() {
        let drawn = Snapshot::read(JSON).unwrap().draw(Path::new("/mnt"), None);
        let want = "/mnt  (server 7)  since it was mounted\n\
                    ┌─ rot13,key=7\n\
                    │    1,200 operations, 3 failed; 2.00 ms inclusive, 500 µs exclusive (25 %)\n\
                    │      lookup 1,000 1.50 ms · open 200 500 µs\n\
                    └─ unionfs\n\
                    \x20    rw     /a\n\
                    \x20    nfsro  /b\n\
                    \x20    1,200 operations; 1.50 ms inclusive, 1.50 ms exclusive (75 %)\n";
        assert_eq!(drawn, want);
    }

    #[test]
    fn stacks_in_branches_are_drawn_inside() {
        let figures = |ns: u64| {
            format!(
                r#""operations":2,"failures":0,"inclusive_ns":{ns},"exclusive_ns":{ns},"by_operation":{{"open":{{"done":2,"inclusive_ns":{ns}}}}}"#
            )
        };
        let json = format!(
            r#"{{"pid":7,"layers":[{{"name":"unionfs","options":"","directories":[
                {{"mode":"rw","layers":[{{"name":"zstd","options":"level=9",{}}},{{"name":"directory","options":"",
                    "directories":[{{"path":"/a","mode":"rw","fd":9}}],{}}}]}},
                {{"path":"/b","mode":"nfsro","fd":11}}],{}}}]}}"#,
            figures(500),
            figures(400),
            figures(1000)
        );
        let snapshot = Snapshot::read(&json).unwrap();
        let want = "/mnt  (server 7)  since it was mounted\n\
                    └─ unionfs\n\
                    \x20    rw     ┌─ zstd,level=9\n\
                    \x20           │    2 operations; 500 ns inclusive, 500 ns exclusive (50 %)\n\
                    \x20           │      open 2 500 ns\n\
                    \x20           └─ directory\n\
                    \x20                rw     /a\n\
                    \x20                2 operations; 400 ns inclusive, 400 ns exclusive (40 %)\n\
                    \x20                  open 2 400 ns\n\
                    \x20    nfsro  /b\n\
                    \x20    2 operations; 1.00 µs inclusive, 1.00 µs exclusive (100 %)\n\
                    \x20      open 2 1.00 µs\n";
        assert_eq!(snapshot.draw(Path::new("/mnt"), None), want);
        let none = snapshot.since(&snapshot).draw(Path::new("/mnt"), None);
        assert_eq!(none.matches("0 operations; 0 ns inclusive").count(), 3, "{none}");
    }

    #[test]
    fn missing_measurements_are_reported() {
        let json = r#"{"pid":7,"layers":[{"name":"directory","options":"","directories":[{"path":"/a","mode":"rw","fd":9}]}]}"#;
        let drawn = Snapshot::read(json).unwrap().draw(Path::new("/mnt"), None);
        assert!(
            drawn.ends_with("└─ directory\n     rw     /a\nNo measurements: mount with the option meter=on.\n"),
            "{drawn}"
        );
    }

    #[test]
    fn an_interval_has_only_new_operations() {
        let before = Snapshot::read(JSON).unwrap();
        let none = before.since(&before).draw(Path::new("/mnt"), Some(Duration::from_secs(2)));
        assert!(none.starts_with("/mnt  (server 7)  in 2.00 s\n"), "{none}");
        assert!(none.contains("0 operations; 0 ns inclusive") && !none.contains("lookup"), "{none}");
    }

    #[test]
    fn malformed_replies_are_refused() {
        for bad in ["", "{}", r#"{"pid":1,"layers":[{}]}"#, r#"{"layers":[]}"#] {
            assert!(Snapshot::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_are_grouped_and_times_have_units() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0, 999, 1000, 12_340, 123_400, 9_990_000, 61_000_000_000].map(time),
            ["0 ns", "999 ns", "1.00 µs", "12.3 µs", "123 µs", "9.99 ms", "61.0 s"]
        );
    }
}
