//! `strata stack`: the layers of a mount, drawn from the top, with what they do.

use crate::exit::Failure;
use core::fmt::Write as _;
use core::time::Duration;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A stack, as its server described it at some moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    pid: u64,
    layers: Vec<Layer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Layer {
    name: String,
    options: String,
    figures: Option<Figures>,
    /// Mode and path.
    directories: Vec<(String, String)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Figures {
    done: u64,
    failed: u64,
    inclusive: u64,
    exclusive: u64,
    /// By operation: how often, how long.
    each: BTreeMap<String, (u64, u64)>,
}

impl Picture {
    /// Reads a server's answer.
    ///
    /// # Errors
    /// It is none.
    pub fn read(json: &str) -> Result<Self, Failure> {
        let wrong = || Failure::system("the server's answer can't be read; --json prints it");
        let stack: Value = serde_json::from_str(json).map_err(|_| wrong())?;
        let layers = stack.get("layers").and_then(Value::as_array).ok_or_else(wrong)?;
        let layers = layers.iter().map(|layer| Layer::read(layer).ok_or_else(wrong)).collect::<Result<_, _>>()?;
        Ok(Self { pid: stack.get("pid").and_then(Value::as_u64).ok_or_else(wrong)?, layers })
    }

    /// What was done since an earlier moment.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut new = self.clone();
        for (now, before) in new.layers.iter_mut().zip(&earlier.layers) {
            if let (Some(now), Some(before)) = (&mut now.figures, &before.figures) {
                now.subtract(before);
            }
        }
        new
    }

    /// The drawing. `span`: the time that the figures are of, if not since the mount.
    #[must_use]
    pub fn draw(&self, mount: &Path, span: Option<Duration>) -> String {
        let mut out = format!("{}  (server {})", mount.display(), self.pid);
        let _ = match span {
            None => writeln!(out, "  since it was mounted"),
            Some(span) => writeln!(out, "  in {}", time(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))),
        };
        let whole = self.layers.first().and_then(|layer| layer.figures.as_ref()).map_or(0, |figures| figures.inclusive);
        for (i, layer) in self.layers.iter().enumerate() {
            layer.draw(&mut out, i == 0, i + 1 == self.layers.len(), whole);
        }
        if self.layers.iter().all(|layer| layer.figures.is_none()) {
            out.push_str("Not measured: mount with the option meter=on.\n");
        }
        out
    }
}

impl Layer {
    fn read(value: &Value) -> Option<Self> {
        let text = |name: &str| Some(value.get(name)?.as_str()?.to_owned());
        let directories = value.get("directories").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let directory = |dir: &Value| {
            let text = |name: &str| Some(dir.get(name)?.as_str()?.to_owned());
            Some((text("mode")?, text("path")?))
        };
        Some(Self {
            name: text("name")?,
            options: text("options")?,
            figures: Figures::read(value),
            directories: directories.iter().map(directory).collect::<Option<_>>()?,
        })
    }

    fn draw(&self, out: &mut String, first: bool, last: bool, whole: u64) {
        let (corner, side) = match (first, last) {
            (true, false) => ('┌', '│'),
            (_, true) => ('└', ' '),
            _ => ('├', '│'),
        };
        let comma = if self.options.is_empty() { "" } else { "," };
        let _ = writeln!(out, "{corner}─ {}{comma}{}", self.name, self.options);
        for (mode, path) in &self.directories {
            let _ = writeln!(out, "{side}    {mode:<6} {path}");
        }
        let Some(figures) = &self.figures else { return };
        let failed = if figures.failed == 0 { String::new() } else { format!(", {} failed", grouped(figures.failed)) };
        let share = if whole == 0 { 0 } else { u128::from(figures.exclusive) * 100 / u128::from(whole) };
        let _ = writeln!(
            out,
            "{side}    {} operations{failed}; {} with all below, {} of its own ({share} %)",
            grouped(figures.done),
            time(figures.inclusive),
            time(figures.exclusive),
        );
        let mut each: Vec<_> = figures.each.iter().filter(|(_, (done, _))| *done > 0).collect();
        each.sort_by_key(|(_, (_, nanos))| core::cmp::Reverse(*nanos));
        for line in each.chunks(4) {
            let cells: Vec<_> = line
                .iter()
                .map(|(name, (done, nanos))| format!("{name} {} {}", grouped(*done), time(*nanos)))
                .collect();
            let _ = writeln!(out, "{side}      {}", cells.join(" · "));
        }
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

/// 1,234,567
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

/// Three digits and a unit.
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
        let drawn = Picture::read(JSON).unwrap().draw(Path::new("/mnt"), None);
        let want = "/mnt  (server 7)  since it was mounted\n\
                    ┌─ rot13,key=7\n\
                    │    1,200 operations, 3 failed; 2.00 ms with all below, 500 µs of its own (25 %)\n\
                    │      lookup 1,000 1.50 ms · open 200 500 µs\n\
                    └─ unionfs\n\
                    \x20    rw     /a\n\
                    \x20    nfsro  /b\n\
                    \x20    1,200 operations; 1.50 ms with all below, 1.50 ms of its own (75 %)\n";
        assert_eq!(drawn, want);
    }

    #[test]
    fn what_is_not_measured_is_said_to_be() {
        let json = r#"{"pid":7,"layers":[{"name":"directory","options":"","directories":[{"path":"/a","mode":"rw","fd":9}]}]}"#;
        let drawn = Picture::read(json).unwrap().draw(Path::new("/mnt"), None);
        assert!(
            drawn.ends_with("└─ directory\n     rw     /a\nNot measured: mount with the option meter=on.\n"),
            "{drawn}"
        );
    }

    #[test]
    fn a_span_has_only_what_is_new() {
        let before = Picture::read(JSON).unwrap();
        let none = before.since(&before).draw(Path::new("/mnt"), Some(Duration::from_secs(2)));
        assert!(none.starts_with("/mnt  (server 7)  in 2.00 s\n"), "{none}");
        assert!(none.contains("0 operations; 0 ns with all below") && !none.contains("lookup"), "{none}");
    }

    #[test]
    fn what_is_no_stack_is_refused() {
        for bad in ["", "{}", r#"{"pid":1,"layers":[{}]}"#, r#"{"layers":[]}"#] {
            assert!(Picture::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0, 999, 1000, 12_340, 123_400, 9_990_000, 61_000_000_000].map(time),
            ["0 ns", "999 ns", "1.00 µs", "12.3 µs", "123 µs", "9.99 ms", "61.0 s"]
        );
    }
}
