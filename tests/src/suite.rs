//! Third-party suites: where they are, how they are run, what they say.

use crate::process::{Said, try_run};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program that `scripts/test-tools.sh` has installed.
#[must_use]
pub fn tool(name: &str) -> PathBuf {
    let dir = std::env::var_os("STRATA_TOOLS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../cache/tools"), PathBuf::from);
    let path = dir.join("bin").join(name);
    assert!(path.exists(), "{} is missing: run scripts/test-tools.sh", path.display());
    path
}

/// How a case of a suite ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It failed, with these words.
    Failed(String),
    /// It was not run.
    Skipped(String),
}

/// The cases of pjdfstest by name.
pub type Cases = BTreeMap<String, Outcome>;

const SETTINGS: &str = "\
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
[dummy_auth]
entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]
";

/// Runs pjdfstest in `dir`, with `second` as the other file system that some cases need.
#[must_use]
pub fn pjdfstest(dir: &Path, second: &Path) -> Cases {
    let settings = second.join("pjdfstest.toml");
    std::fs::write(&settings, SETTINGS).expect("pjdfstest's settings");
    let mut command = Command::new(tool("pjdfstest"));
    command.arg("-c").arg(&settings).arg("-p").arg(dir).arg("-s").arg(second).env("NO_COLOR", "1");
    command.env("RUST_BACKTRACE", "0");
    let said = try_run(&mut command);
    let (cases, total) = parse(&said.text);
    assert_eq!(Some(cases.len()), total, "pjdfstest did not come to its end: {}\n{}", said.status, said.text);
    cases
}

/// The cases in pjdfstest's output, and how many there should be by its own count.
fn parse(text: &str) -> (Cases, Option<usize>) {
    let mut cases = Cases::new();
    let mut total = None;
    let mut last: Option<String> = None;
    for line in text.lines() {
        if let Some(summary) = line.strip_prefix("Summary:") {
            total =
                summary.trim().strip_suffix(" total").and_then(|s| s.rsplit(' ').next()).and_then(|n| n.parse().ok());
            last = None;
            continue;
        }
        let mut words = line.split_whitespace();
        let (name, word, end) = (words.next(), words.next(), words.next());
        let outcome = match (name, word, end) {
            (Some(name), Some(word), None) if name.contains("::") && !line.starts_with(char::is_whitespace) => {
                match word {
                    "ok" => Some(Outcome::Passed),
                    "FAILED" => Some(Outcome::Failed(String::new())),
                    "skipped" => Some(Outcome::Skipped(String::new())),
                    _ => None,
                }
            }
            _ => None,
        };
        if let (Some(outcome), Some(name)) = (outcome, name) {
            cases.insert(name.to_owned(), outcome);
            last = Some(name.to_owned());
        } else if let Some(Outcome::Failed(words) | Outcome::Skipped(words)) =
            last.as_ref().and_then(|n| cases.get_mut(n))
        {
            words.push_str(line.trim());
            words.push('\n');
        }
    }
    (cases, total)
}

/// Cases that can't be run on a file system that glibc does not know: pathconf(3) has the greatest number of links in a table.
const NOT_ON_FUSE: [&str; 1] = ["link::link_count_max"];

/// What passes natively and does not pass here, one line each.
#[must_use]
pub fn worse(native: &Cases, here: &Cases) -> Vec<String> {
    let passed = native.iter().filter(|(_, outcome)| **outcome == Outcome::Passed);
    passed
        .filter_map(|(name, _)| match here.get(name) {
            Some(Outcome::Passed) => None,
            Some(Outcome::Skipped(_)) if NOT_ON_FUSE.contains(&name.as_str()) => None,
            other => Some(format!("{name}: {other:?}")),
        })
        .collect()
}

/// Runs fsx on `file` with that seed for so many operations, with everything it can do, mapped reading and writing included.
/// `artifacts` is where it leaves what it found if it fails.
#[must_use]
pub fn fsx(file: &Path, seed: u64, operations: u64, artifacts: &Path) -> Said {
    let settings = artifacts.join("fsx.toml");
    std::fs::write(&settings, FSX_SETTINGS).expect("fsx's settings");
    let mut command = Command::new(tool("fsx"));
    command.arg("-f").arg(&settings).arg("-N").arg(operations.to_string()).arg("-S").arg(seed.to_string());
    command.arg("-P").arg(artifacts).arg(file);
    try_run(&mut command)
}

const FSX_SETTINGS: &str = "\
flen = 524288
[weights]
close_open = 3
invalidate = 2
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 3
punch_hole = 3
sendfile = 3
posix_fadvise = 2
copy_file_range = 3
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_pjdfstest() {
        let text = "open::a   ok\nopen::b::c   FAILED\n\tassertion failed: x\nBacktrace:\n   0: a::b\nopen::d  skipped\n\tno\n\n\
                    Summary: 1 failed, 1 skipped, 1 passed, 0 expected failures, 3 total\nError: Some tests have failed\n";
        let (cases, total) = parse(text);
        assert_eq!((cases.len(), total), (3, Some(3)));
        assert_eq!(cases["open::a"], Outcome::Passed);
        assert!(matches!(&cases["open::b::c"], Outcome::Failed(words) if words.starts_with("assertion failed: x\n")));
        let mut native = cases.clone();
        native.insert("open::b::c".into(), Outcome::Passed);
        assert_eq!(worse(&native, &cases).len(), 1);
        assert!(worse(&native, &native).is_empty());
        assert!(worse(&cases, &native).is_empty());
    }
}
