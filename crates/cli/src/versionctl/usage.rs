//! `versionctl du`: the space that history takes, by directory and by format, and its bounds.

use super::client::Dir;
use super::history::{Found, Visited, walk};
use super::place;
use super::text::{columns, json_name, shown};
use crate::exit::Failure;
use crate::progress::amount;
use crate::tool::print;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The letters of the formats with their names.
const FORMATS: [(char, &str); 10] = [
    ('f', "full"),
    ('c', "compressed"),
    ('s', "sparse"),
    ('z', "sparse, compressed"),
    ('x', "delta"),
    ('t', "text difference"),
    ('b', "blocks"),
    ('l', "special file"),
    ('d', "directory"),
    ('r', "renamed"),
];

/// Number of versions and their space in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    versions: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, bytes: u64) {
        self.versions += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// What bounds the history of the mount, in bytes. `None`: nothing does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bounds {
    max: Option<u64>,
    reserve: Option<u64>,
    free: u64,
}

impl Bounds {
    fn parse(reply: &[u8]) -> Option<Self> {
        let words: Vec<&str> = core::str::from_utf8(reply).ok()?.split_ascii_whitespace().collect();
        let bytes = |word: &str| if word == "none" { Some(None) } else { word.parse().ok().map(Some) };
        let ["max", max, "reserve", reserve, "free", free, ..] = *words else { return None };
        Some(Self { max: bytes(max)?, reserve: bytes(reserve)?, free: free.parse().ok()? })
    }

    fn text(&self) -> String {
        let max = self.max.map_or_else(|| "unlimited".to_owned(), amount);
        let more = match self.reserve {
            Some(reserve) => format!("while at least {} are free ({} are)", amount(reserve), amount(self.free)),
            None => format!("also on a full disk ({} are free)", amount(self.free)),
        };
        format!("At most {max} for all versions of the mount; more if a minimum protects them,\n{more}.\n")
    }

    fn json(&self) -> Value {
        json!({ "max": self.max, "reserve": self.reserve, "free": self.free })
    }
}

#[derive(Debug, Default)]
struct Usage {
    bounds: Option<Bounds>,
    total: Sum,
    by_dir: BTreeMap<PathBuf, Sum>,
    by_format: BTreeMap<char, Sum>,
}

/// Runs the command.
///
/// # Errors
/// Names the directory and the reason.
pub(crate) fn run(path: &Path, json: bool) -> Result<(), Failure> {
    let dir: Dir = place::directory(path)?;
    let bounds = dir.plain("space", b"").ok().and_then(|reply| Bounds::parse(&reply));
    let mut usage = Usage { bounds, ..Usage::default() };
    walk(dir, true, &mut |visited| {
        if let Visited::Name(found) = visited {
            usage.add(&found);
        }
    })?;
    print(if json { usage.json() } else { usage.text() })
}

/// Returns the entries with the largest first.
fn sorted<K: Clone + Ord>(sums: &BTreeMap<K, Sum>) -> Vec<(K, Sum)> {
    let mut all: Vec<_> = sums.iter().map(|(key, sum)| (key.clone(), *sum)).collect();
    all.sort_by(|(one, a), (other, b)| b.bytes.cmp(&a.bytes).then_with(|| one.cmp(other)));
    all
}

fn format_name(letter: char) -> &'static str {
    FORMATS.into_iter().find(|(known, _)| *known == letter).map_or("other", |(_, name)| name)
}

impl Usage {
    fn add(&mut self, found: &Found) {
        for version in &found.list.versions {
            let parent = found.path.parent().filter(|parent| !parent.as_os_str().is_empty());
            self.total.add(version.stored);
            self.by_dir.entry(parent.unwrap_or(Path::new(".")).to_owned()).or_default().add(version.stored);
            self.by_format.entry(version.letter).or_default().add(version.stored);
        }
    }

    fn text(&self) -> String {
        let row = |sum: Sum, what: String| vec![amount(sum.bytes), sum.versions.to_string(), what];
        let title = |what: &str| vec!["SPACE".to_owned(), "VERSIONS".to_owned(), what.to_owned()];
        let mut dirs = vec![title("DIRECTORY")];
        dirs.extend(sorted(&self.by_dir).into_iter().map(|(dir, sum)| row(sum, shown(&dir))));
        dirs.push(row(self.total, "total".to_owned()));
        let mut formats = vec![title("FORMAT")];
        formats
            .extend(sorted(&self.by_format).into_iter().map(|(letter, sum)| row(sum, format_name(letter).to_owned())));
        let bounds = self.bounds.map(|bounds| format!("\n{}", bounds.text())).unwrap_or_default();
        format!("{}\n{}{bounds}", columns(&dirs, &[0, 1]), columns(&formats, &[0, 1]))
    }

    fn json(&self) -> String {
        let sum = |sum: Sum| json!({ "bytes": sum.bytes, "versions": sum.versions });
        let entry = |key: &str, value: Value, counted: Sum| json!({ key: value, "bytes": counted.bytes, "versions": counted.versions });
        let dirs = sorted(&self.by_dir);
        let dirs = dirs.iter().map(|(dir, sum)| entry("path", json_name(dir.as_os_str().as_bytes()), *sum));
        let formats = sorted(&self.by_format);
        let formats = formats.iter().map(|(letter, sum)| entry("format", json!(format_name(*letter)), *sum));
        let all = json!({
            "total": sum(self.total), "bounds": self.bounds.map(|bounds| bounds.json()), "directories": Value::from_iter(dirs), "formats": Value::from_iter(formats),
        });
        format!("{all}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_comes_first() {
        let mut usage = Usage::default();
        for (dir, letter, bytes) in [("a", 's', 10), ("b", 'f', 4096), ("a", 's', 20)] {
            usage.total.add(bytes);
            usage.by_dir.entry(dir.into()).or_default().add(bytes);
            usage.by_format.entry(letter).or_default().add(bytes);
        }
        let text = usage.text();
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        assert_eq!(lines[1..4], ["4.0 KiB         1  b", "30 bytes         2  a", "4.0 KiB         3  total"]);
        assert!(lines[6].ends_with("full") && lines[7].ends_with("sparse"), "{text}");
        usage.bounds = Bounds::parse(b"max 2048 reserve none free 4096\n");
        assert!(
            usage.text().ends_with("protects them,\nalso on a full disk (4.0 KiB are free).\n"),
            "{}",
            usage.text()
        );
        let json: Value = serde_json::from_str(&usage.json()).unwrap();
        assert_eq!((&json["total"]["bytes"], &json["directories"][1]["path"]), (&json!(4126), &json!("a")));
    }
}
