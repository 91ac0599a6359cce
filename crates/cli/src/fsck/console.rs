//! Reports findings, asks the administrator about repairs, and counts.

use crate::exit::{Failure, FsckExit};
use crate::progress::{self, Progress};
use crate::tool::print;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;
use unionfs::fsck::{Consent, Finding, Inspector, Problem, Severity};
use vnode::Errno;

/// How questions are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answers {
    /// No: nothing is changed.
    No,
    /// Yes, if the repair is safe.
    Safe,
    /// Yes.
    Yes,
    /// By the administrator.
    Ask,
}

/// What became of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Repaired,
    Left,
    Failed(Errno),
}

pub(super) struct Console {
    answers: Answers,
    verbose: bool,
    json: bool,
    progress: Option<Progress>,
    stopped: bool,
    directories: u64,
    findings: Vec<Value>,
    not_checked: Vec<Value>,
    repaired: u64,
    left: u64,
    /// Findings that are no errors, by kind.
    notes: BTreeMap<Problem, u64>,
}

impl Console {
    pub(super) fn new(answers: Answers, verbose: bool, json: bool, progress: bool) -> Self {
        let wanted = progress || answers == Answers::Ask || std::io::stdout().is_terminal();
        let progress = wanted.then(|| Progress::on_terminal("directories checked", || 1)).flatten();
        Self {
            answers,
            verbose,
            json,
            progress,
            stopped: false,
            directories: 0,
            findings: Vec::new(),
            not_checked: Vec::new(),
            repaired: 0,
            left: 0,
            notes: BTreeMap::new(),
        }
    }

    /// Prints a line.
    pub(super) fn line(&mut self, text: &str) {
        progress::erase();
        // The exit status reports the findings even if nobody reads them.
        let _ = writeln!(std::io::stdout(), "{text}");
    }

    pub(super) fn exit(&self) -> FsckExit {
        let mut exit = FsckExit::CLEAN;
        if self.repaired > 0 {
            exit = exit.and(FsckExit::CORRECTED);
        }
        if self.left > 0 {
            exit = exit.and(FsckExit::UNCORRECTED);
        }
        if !self.not_checked.is_empty() {
            exit = exit.and(FsckExit::OPERATION);
        }
        exit
    }

    pub(super) fn print_summary(&mut self, list: &str, took: Option<Duration>) -> Result<(), Failure> {
        self.progress = None;
        let mut text = format!("{list}: {} directories", self.directories);
        match (self.repaired, self.left) {
            (0, 0) => text.push_str(", clean"),
            (repaired, left) => text.push_str(&format!(", {repaired} repaired, {left} errors left")),
        }
        if !self.not_checked.is_empty() {
            text.push_str(&format!(", {} not checked", self.not_checked.len()));
        }
        if self.stopped {
            text.push_str(", cancelled");
        }
        if let Some(took) = took {
            text.push_str(&format!(", {:.2} s", took.as_secs_f64()));
        }
        text.push('\n');
        if !self.notes.is_empty() && !self.verbose {
            let notes: Vec<_> =
                self.notes.iter().map(|(problem, count)| format!("{count} {}", problem.name())).collect();
            text.push_str(&format!("no errors, listed with -v: {}\n", notes.join(", ")));
        }
        print(text)
    }

    pub(super) fn print_json(&mut self, list: &str, exit: FsckExit, took: Option<Duration>) -> Result<(), Failure> {
        self.progress = None;
        let mut report = json!({
            "branches": list,
            "directories": self.directories,
            "findings": self.findings,
            "repaired": self.repaired,
            "left": self.left,
            "not_checked": self.not_checked,
            "exit": exit.code(),
        });
        if let (Some(took), Some(fields)) = (took, report.as_object_mut()) {
            fields.insert("seconds".to_owned(), json!(took.as_secs_f64()));
        }
        print(format!("{report}\n"))
    }

    /// Whether a repair is made, asking if necessary.
    fn decides(&mut self, finding: &Finding) -> bool {
        let Some(repair) = finding.repair() else { return false };
        match self.answers {
            Answers::No => false,
            Answers::Safe => repair.consent == Consent::Safe,
            Answers::Yes => true,
            Answers::Ask => {
                self.line(&describe(finding));
                self.ask(repair.what)
            }
        }
    }

    fn ask(&mut self, what: &str) -> bool {
        let mut input = std::io::stdin().lock();
        loop {
            let _ = write!(std::io::stdout(), "  Repair: {what}? [yes, no, all, quit] ")
                .and_then(|()| std::io::stdout().flush());
            let mut answer = String::new();
            if input.read_line(&mut answer).unwrap_or(0) == 0 {
                self.stopped = true;
                return false;
            }
            match answer.trim() {
                "y" | "yes" => return true,
                "n" | "no" | "" => return false,
                "a" | "all" => {
                    self.answers = Answers::Yes;
                    return true;
                }
                "q" | "quit" => {
                    self.stopped = true;
                    return false;
                }
                _ => {}
            }
        }
    }

    /// Counts and reports a finding, once what becomes of it is known.
    fn conclude(&mut self, finding: &Finding, outcome: Outcome, asked: bool) {
        match outcome {
            Outcome::Repaired => self.repaired += 1,
            _ if finding.severity() == Severity::Note => *self.notes.entry(finding.problem).or_default() += 1,
            Outcome::Left | Outcome::Failed(_) => self.left += 1,
        }
        if self.json {
            self.findings.push(as_json(finding, outcome));
            return;
        }
        let result = match outcome {
            Outcome::Repaired => "repaired".to_owned(),
            Outcome::Failed(errno) => format!("NOT REPAIRED: {}", crate::host_dir::reason(errno)),
            Outcome::Left if asked => return,
            Outcome::Left if finding.severity() == Severity::Note && !self.verbose => return,
            Outcome::Left => match (finding.obstacle, finding.repair(), self.answers) {
                (Some(obstacle), _, _) if finding.problem.repair().is_some() => format!("left: {obstacle}"),
                (_, Some(repair), Answers::Safe) if finding.severity() != Severity::Note => {
                    format!("left: run without -p to {}", repair.what)
                }
                _ => String::new(),
            },
        };
        let text = match result.as_str() {
            "" => describe(finding),
            _ if asked => format!("  {result}"),
            result => format!("{}: {result}", describe(finding)),
        };
        self.line(&text);
    }
}

impl Inspector for Console {
    fn found(&mut self, finding: &Finding) -> bool {
        let asked = self.answers == Answers::Ask && finding.repair().is_some();
        let repairs = !self.stopped && self.decides(finding);
        if !repairs {
            self.conclude(finding, Outcome::Left, asked);
        }
        repairs
    }

    fn repaired(&mut self, finding: &Finding, result: vnode::Result<()>) {
        let asked = self.answers == Answers::Ask;
        self.conclude(finding, result.map_or_else(Outcome::Failed, |()| Outcome::Repaired), asked);
    }

    fn not_checked(&mut self, branch: &Path, path: &[u8], errno: Errno) {
        let text =
            format!("{}{}: not checked: {}", branch.display(), path.escape_ascii(), crate::host_dir::reason(errno));
        self.not_checked.push(json!({ "path": format!("{}{}", branch.display(), path.escape_ascii()), "reason": crate::host_dir::reason(errno) }));
        progress::erase();
        let _ = writeln!(std::io::stderr(), "fsck.unionfs: {text}");
    }

    fn restarts(&mut self) {
        if !self.json {
            self.line("Checking again, because a repair changed what is found.");
        }
        // A later check finds the remaining problems again.
        self.left = 0;
        self.notes.clear();
        self.findings.retain(|finding| finding.get("result").is_some_and(|result| result == "repaired"));
        self.not_checked.clear();
    }

    fn progress(&mut self, checked: u64, known: u64) -> bool {
        self.directories = checked;
        if let Some(progress) = &mut self.progress {
            progress.show_of(checked, known);
        }
        !self.stopped
    }
}

fn describe(finding: &Finding) -> String {
    let Finding { problem, branch, path, detail, .. } = finding;
    let detail = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
    let branch = branch.display().to_string();
    let text = format!("{branch}{}: {}{detail}", path.escape_ascii(), problem.text());
    // A branch's name must not control the terminal.
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn as_json(finding: &Finding, outcome: Outcome) -> Value {
    let Finding { problem, branch, path, detail, obstacle } = finding;
    let severity = match finding.severity() {
        Severity::Note => "note",
        Severity::Leftover => "leftover",
        Severity::Damage => "damage",
    };
    let (result, reason): (_, Option<String>) = match outcome {
        Outcome::Repaired => ("repaired", None),
        Outcome::Left => ("left", obstacle.map(str::to_owned)),
        Outcome::Failed(errno) => ("failed", Some(crate::host_dir::reason(errno))),
    };
    let path = std::str::from_utf8(path).map_or_else(|_| json!(path), |text| json!(text));
    json!({
        "kind": problem.name(),
        "severity": severity,
        "branch": branch.to_string_lossy(),
        "path": path,
        "text": problem.text(),
        "detail": detail,
        "repair": finding.repair().map(|repair| repair.what),
        "safe": finding.repair().map(|repair| repair.consent == Consent::Safe),
        "result": result,
        "reason": reason,
    })
}
