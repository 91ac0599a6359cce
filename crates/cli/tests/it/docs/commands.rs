//! Runs the command blocks of a page in order, as one session of a shell.
//!
//! | in the page | meaning |
//! |---|---|
//! | a block `sh` | commands that succeed |
//! | a block `console` | commands after `$ ` or `# `, each with its output |
//! | `<!-- output -->` before a block `text` | the output of the commands before it |
//! | `<!-- end of output -->` before a block `text` | the last lines of that |
//! | `<!-- numbers vary -->` before `console` or `text` | the output is compared without its numbers |
//! | `<!-- not run: REASON -->` before a block | the block is skipped |
//! | `<!-- setup`, lines, `-->` | hidden commands: what the commands after it need |
//! | `<!-- check`, lines, `-->` | hidden commands: what the commands before it have done |
//!
//! In an output, a line `...` stands for any number of lines. Hidden commands find the other blocks
//! of the page in files: `$BLOCK` is the last one, `$BLOCKS` the directory with all of them. They
//! can use the functions of `prelude.sh`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_strata");
const SANDBOX: &str = include_str!("sandbox.sh");
const PRELUDE: &str = include_str!("prelude.sh");
/// Time limit of a page. Pages that build layers need minutes if nothing is built yet.
const LIMIT: Duration = Duration::from_secs(600);
/// Languages of blocks that aren't commands.
const OTHERS: &[&str] =
    &["text", "fstab", "ini", "json", "toml", "c", "python", "rust", "rust,tests", "rust,standalone_crate", "mermaid"];

const TIME_UNITS: &[&str] = &["ns", "µs", "ms", "s"];

/// A part of a page that matters for the test.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Commands, visible or hidden.
    Commands(String),
    /// One command with its output.
    Console { command: String, output: Output },
    /// The output of the last commands.
    Output(Output),
    /// Another block: its language and text.
    Block(String, String),
    /// Commands that are not run, and the reason.
    Skipped(String),
}

impl Step {
    /// Returns whether the step runs commands that a reader sees.
    pub(crate) fn runs(&self) -> bool {
        matches!(self, Self::Commands(_) | Self::Console { .. })
    }
}

/// The output that a page shows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Output {
    text: String,
    numbers_vary: bool,
}

/// Returns the number of the line and the step, for each step of a page.
///
/// Panics, with the number of the line, if a block has no language, or a comment is malformed.
pub(crate) fn steps(name: &str, page: &str) -> Vec<(usize, Step)> {
    let mut steps = Vec::new();
    let mut marks: Vec<&str> = Vec::new();
    let mut lines = page.lines().enumerate().map(|(index, line)| (index + 1, line));
    while let Some((number, line)) = lines.next() {
        let mut until = |end: &str| {
            let text: Vec<_> = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != end).collect();
            text.iter().flat_map(|line| [line, "\n"]).collect::<String>()
        };
        if line == "<!-- setup" || line == "<!-- check" {
            steps.push((number, Step::Commands(until("-->"))));
        } else if let Some(mark) = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) {
            marks.push(mark);
            continue;
        } else if let Some(language) = line.strip_prefix("```") {
            let text = until("```");
            steps.extend(
                block(language, text, &marks, &format!("{name}:{number}")).into_iter().map(|step| (number, step)),
            );
        } else {
            assert!(!line.trim_start().starts_with("```"), "{name}:{number}: an indented block is not tested");
            let misspelt = ["<!-- setup", "<!-- check", "<!-- not run", "<!-- output", "<!-- end of", "<!-- numbers"];
            assert!(!misspelt.iter().any(|mark| line.starts_with(mark)), "{name}:{number}: {line}");
        }
        marks.clear();
    }
    steps
}

fn block(language: &str, text: String, marks: &[&str], at: &str) -> Vec<Step> {
    if let Some(reason) = marks.iter().find_map(|mark| mark.strip_prefix("not run:")) {
        assert!(!reason.trim().is_empty(), "{at}: not run, without a reason");
        return vec![Step::Skipped(reason.trim().to_owned())];
    }
    assert!(!marks.contains(&"not run"), "{at}: not run, without a reason");
    let numbers_vary = marks.contains(&"numbers vary");
    match language {
        "sh" => vec![Step::Commands(text)],
        "console" => console(&text, numbers_vary, at),
        "text" if marks.contains(&"end of output") => {
            vec![Step::Output(Output { text: format!("...\n{text}"), numbers_vary })]
        }
        "text" if marks.contains(&"output") => vec![Step::Output(Output { text, numbers_vary })],
        _ => {
            assert!(OTHERS.contains(&language), "{at}: language {language:?}: not one of sh, console, {OTHERS:?}");
            vec![Step::Block(language.to_owned(), text)]
        }
    }
}

fn console(text: &str, numbers_vary: bool, at: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for line_of_text in text.lines() {
        let command = line_of_text.strip_prefix("$ ").or(line_of_text.strip_prefix("# "));
        match (command, steps.last_mut()) {
            (Some(command), _) => steps.push(Step::Console {
                command: command.to_owned(),
                output: Output { text: String::new(), numbers_vary },
            }),
            (None, Some(Step::Console { output, .. })) => output.text.extend([line_of_text, "\n"]),
            _ => panic!("{at}: a console block begins with a command, after `$ ` or `# `"),
        }
    }
    steps
}

/// Runs the steps of a page, relative to the top of the source.
pub(crate) fn run(top: &Path, page: &str) {
    assert!(rustix::process::geteuid().is_root(), "the commands of the pages need root");
    let text = fs::read_to_string(top.join(page)).unwrap();
    let steps = steps(page, &text);
    let work = Work::new(page);
    work.write(&steps, top);
    let mut sandbox = work.start(top);
    if !testkit::holds_within(LIMIT, || sandbox.try_wait().unwrap().is_some()) {
        // The PID namespace ends with this process.
        sandbox.kill().unwrap();
    }
    let status = sandbox.wait().unwrap();
    let begun = |step: usize| work.output(step).exists();
    if !status.success() || !work.dir.join("out/end").exists() {
        let last = (0..steps.len()).rev().find(|&step| begun(step));
        let line = last.map_or(0, |step| steps[step].0);
        let printed = last.map_or_else(String::new, |step| work.printed(step));
        panic!("{page}:{line}: the commands failed: {status}\n{printed}\n{}", work.log());
    }
    let mut commands = None;
    for (index, (line, step)) in steps.iter().enumerate() {
        let (source, output) = match step {
            Step::Commands(_) => {
                commands = Some(index);
                continue;
            }
            Step::Console { output, .. } => (index, output),
            Step::Output(output) => {
                (commands.unwrap_or_else(|| panic!("{page}:{line}: no commands before this output")), output)
            }
            Step::Block(..) | Step::Skipped(_) => continue,
        };
        let printed = work.printed(source);
        assert!(
            output.matches(&printed),
            "{page}:{line}: the output differs\n--- in the page:\n{}--- printed:\n{printed}",
            output.text
        );
    }
}

impl Output {
    fn matches(&self, printed: &str) -> bool {
        let lines = |text: &str| -> Vec<String> {
            text.trim_end()
                .lines()
                .map(|line| if self.numbers_vary { without_numbers(line) } else { line.trim_end().to_owned() })
                .collect()
        };
        matching(&lines(&self.text), &lines(printed))
    }
}

/// Returns whether the lines are equal, where a line `...` stands for any number of lines.
fn matching(pattern: &[String], lines: &[String]) -> bool {
    match pattern.split_first() {
        None => lines.is_empty(),
        Some((first, rest)) if first == "..." => (0..=lines.len()).any(|skip| matching(rest, &lines[skip..])),
        Some((first, rest)) => lines.split_first().is_some_and(|(line, lines)| line == first && matching(rest, lines)),
    }
}

/// Replaces each number by `N` and several blanks by one, removes units of time, and sorts lists of
/// operations.
fn without_numbers(line: &str) -> String {
    let mut words = Vec::new();
    for word in line.split_whitespace() {
        let mut out = String::new();
        for c in word.chars() {
            let in_number = out.ends_with('N');
            match c {
                '0'..='9' if in_number => {}
                '0'..='9' => out.push('N'),
                '.' if in_number => {}
                _ => out.push(c),
            }
        }
        for unit in TIME_UNITS {
            out = out.replace(&format!("N{unit}"), "N");
        }
        if !TIME_UNITS.contains(&out.trim_end_matches([',', ';', ')'])) {
            words.push(out);
        }
    }
    if line.contains(" · ") {
        // Operations are sorted by their times.
        words.sort_unstable();
    }
    words.join(" ")
}

/// The directory of a page's run, which the sandbox shows as /run/docs.
struct Work {
    dir: PathBuf,
}

impl Work {
    fn new(page: &str) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("docs").join(page.replace('/', "-"));
        let _ = fs::remove_dir_all(&dir);
        for sub in ["out", "blocks"] {
            fs::create_dir_all(dir.join(sub)).unwrap();
        }
        Self { dir }
    }

    fn output(&self, step: usize) -> PathBuf {
        self.dir.join(format!("out/{step}"))
    }

    fn printed(&self, step: usize) -> String {
        String::from_utf8_lossy(&fs::read(self.output(step)).unwrap_or_default()).into_owned()
    }

    /// Returns what the sandbox itself printed.
    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Writes the program, the blocks, and the script of all steps.
    fn write(&self, steps: &[(usize, Step)], top: &Path) {
        fs::hard_link(PROGRAM, self.dir.join("strata"))
            .or_else(|_| fs::copy(PROGRAM, self.dir.join("strata")).map(drop))
            .unwrap();
        let mut script = format!("{PRELUDE}\nexport BLOCKS=/run/docs/blocks BLOCK=\n");
        script.push_str(&format!("export SOURCE={:?}\n", top.to_str().unwrap()));
        for (index, (_, step)) in steps.iter().enumerate() {
            let redirect = format!("exec >/run/docs/out/{index} 2>&1\n");
            match step {
                Step::Commands(commands) => script.extend([redirect.as_str(), commands]),
                Step::Console { command, .. } => script.extend([redirect.as_str(), command, " || true\n"]),
                Step::Block(language, text) => {
                    let name = format!("blocks/{index:03}.{language}");
                    fs::write(self.dir.join(&name), text).unwrap();
                    script.push_str(&format!("BLOCK=/run/docs/{name}\n"));
                }
                Step::Output(_) | Step::Skipped(_) => {}
            }
        }
        script.push_str("exec >/run/docs/out/end\n");
        fs::write(self.dir.join("script"), script).unwrap();
        fs::write(self.dir.join("sandbox.sh"), SANDBOX).unwrap();
    }

    fn start(&self, top: &Path) -> std::process::Child {
        let log = File::create(self.dir.join("log")).unwrap();
        // The sandbox ends if this thread does.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        command.args(["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash"]);
        let layers = Path::new(env!("CARGO_TARGET_TMPDIR")).join("docs/layers");
        fs::create_dir_all(&layers).unwrap();
        command.arg(self.dir.join("sandbox.sh")).arg(top).arg(&self.dir).arg(layers);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        command.spawn().unwrap()
    }
}

mod tests {
    use super::{Output, Step, steps};

    fn matches(page: &str, printed: &str, numbers_vary: bool) -> bool {
        Output { text: page.to_owned(), numbers_vary }.matches(printed)
    }

    #[test]
    fn output_is_compared() {
        assert!(matches("a 1\n", "a 1\n", false) && !matches("a 1\n", "a 2\n", false));
        assert!(matches("a\n...\nb\n", "a\n1\n2\nb\n", false) && matches("...\nb\n", "b\n", false));
        assert!(!matches("a\n...\nb\n", "a\n1\n2\n", false) && !matches("a\n", "a\nb\n", false));
        assert!(matches("x 5 in 42.7µs; 1.21 ms\n", "x 17  in 3ms; 900 µs\n", true));
        assert!(!matches("x 5\n", "y 5\n", true) && matches("a 1 · b 2\n", "b 7 · a 3\n", true));
    }

    #[test]
    fn marks_change_blocks() {
        let of = |page: &str| steps("page", page).into_iter().map(|(_, step)| step).collect::<Vec<_>>();
        assert_eq!(of("```sh\ntrue\n```\n"), [Step::Commands("true\n".to_owned())]);
        assert_eq!(of("<!-- setup\ntrue\n-->\n"), [Step::Commands("true\n".to_owned())]);
        assert_eq!(of("<!-- not run: network -->\n```sh\nfalse\n```\n"), [Step::Skipped("network".to_owned())]);
        // A mark belongs to the next line only.
        assert_eq!(of("<!-- not run: network -->\n\n```sh\ntrue\n```\n"), [Step::Commands("true\n".to_owned())]);
        let shown = of("```console\n$ echo a\na\n# false\n```\n");
        let output = |text: &str| Output { text: text.to_owned(), numbers_vary: false };
        assert_eq!(
            shown,
            [
                Step::Console { command: "echo a".to_owned(), output: output("a\n") },
                Step::Console { command: "false".to_owned(), output: output("") },
            ]
        );
    }

    #[test]
    #[should_panic(expected = "page:2: not run, without a reason")]
    fn a_reason_is_required() {
        steps("page", "<!-- not run: -->\n```sh\nfalse\n```\n");
    }

    #[test]
    #[should_panic(expected = "page:1: language")]
    fn a_language_is_required() {
        steps("page", "```\ntrue\n```\n");
    }
}
