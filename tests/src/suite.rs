//! Third-party test suites: their location, their invocation and their results.

use crate::process::{Output, try_run};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path of a program installed by `scripts/tools.sh`.
#[must_use]
pub fn tool(name: &str) -> PathBuf {
    let dir = std::env::var_os("STRATA_TOOLS").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(Path::new(&home).join(".cache/strata/tools"))
    });
    let path = dir.expect("neither STRATA_TOOLS nor HOME is set").join("bin").join(name);
    assert!(path.exists(), "{} is missing: run scripts/tools.sh {name}", path.display());
    path
}

/// Result of a test case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It failed with this message.
    Failed(String),
    /// It was skipped for this reason.
    Skipped(String),
}

/// Results of pjdfstest by case name.
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

/// Runs pjdfstest in `dir`. Some cases need a second file system: `second` is a directory
/// on it.
#[must_use]
pub fn pjdfstest(dir: &Path, second: &Path) -> Cases {
    let settings = second.join("pjdfstest.toml");
    std::fs::write(&settings, SETTINGS).expect("pjdfstest's settings");
    let mut command = Command::new(tool("pjdfstest"));
    command.arg("-c").arg(&settings).arg("-p").arg(dir).arg("-s").arg(second).env("NO_COLOR", "1");
    command.env("RUST_BACKTRACE", "0");
    let output = try_run(&mut command);
    let (cases, total) = parse(&output.text);
    assert_eq!(Some(cases.len()), total, "pjdfstest did not finish: {}\n{}", output.status, output.text);
    cases
}

/// Parses pjdfstest's output. Returns the cases and the number of cases that it announced.
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

/// Cases that can't run on FUSE: pathconf(3) takes the maximum link count from glibc's table of
/// file systems, which lacks FUSE.
const NOT_ON_FUSE: [&str; 1] = ["link::link_count_max"];

/// Returns the cases that pass natively but not on the tested file system, one line each.
#[must_use]
pub fn regressions(native: &Cases, here: &Cases) -> Vec<String> {
    let passed = native.iter().filter(|(_, outcome)| **outcome == Outcome::Passed);
    passed
        .filter_map(|(name, _)| match here.get(name) {
            Some(Outcome::Passed) => None,
            Some(Outcome::Skipped(_)) if NOT_ON_FUSE.contains(&name.as_str()) => None,
            other => Some(format!("{name}: {other:?}")),
        })
        .collect()
}

/// Runs fsx on `file` with the given seed and number of operations, including mapped reads and
/// writes. On failure, fsx writes its findings to `artifacts`.
#[must_use]
pub fn fsx(file: &Path, seed: u64, operations: u64, artifacts: &Path) -> Output {
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
        assert_eq!(regressions(&native, &cases).len(), 1);
        assert!(regressions(&native, &native).is_empty());
        assert!(regressions(&cases, &native).is_empty());
    }
}
