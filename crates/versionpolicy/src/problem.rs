use core::fmt;
use core::ops::Range as Span;
use std::sync::Arc;

/// How serious a [`Problem`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The file is not used.
    Error,
    /// The file is used, but part of it may not do what its author wants.
    Warning,
}

/// A mistake in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Whether the file can be used.
    pub severity: Severity,
    /// The name of the file, as the caller gave it.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
    /// What is wrong, and after a semicolon what to write instead.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, file, line, column, message } = self;
        let severity = if *severity == Severity::Warning { "warning: " } else { "" };
        write!(f, "{file}:{line}:{column}: {severity}{message}")
    }
}

/// A place in a configuration file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// The problems of one file, and the positions of its lines.
pub(crate) struct Problems<'t> {
    file: Arc<str>,
    text: &'t str,
    /// The offset at which each line starts.
    lines: Vec<usize>,
    found: Vec<Problem>,
}

impl<'t> Problems<'t> {
    pub(crate) fn new(file: Arc<str>, text: &'t str) -> Self {
        let starts = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { file, text, lines: core::iter::once(0).chain(starts).collect(), found: Vec::new() }
    }

    /// Returns line and column of an offset.
    pub(crate) fn place(&self, at: usize) -> Place {
        let line = self.lines.partition_point(|&start| start <= at).max(1);
        let start = self.lines.get(line - 1).copied().unwrap_or(0);
        let before = self.text.as_bytes().get(start..at.min(self.text.len())).unwrap_or_default();
        // Characters: bytes, without UTF-8 continuation bytes.
        let column = before.iter().filter(|&&byte| byte & 0xC0 != 0x80).count() + 1;
        Place { line: number(line), column: number(column) }
    }

    pub(crate) fn error(&mut self, span: &Span<usize>, message: impl Into<String>) {
        self.add(Severity::Error, self.place(span.start), message.into());
    }

    pub(crate) fn warning(&mut self, span: &Span<usize>, message: impl Into<String>) {
        self.add(Severity::Warning, self.place(span.start), message.into());
    }

    fn add(&mut self, severity: Severity, place: Place, message: String) {
        let Place { line, column } = place;
        self.found.push(Problem { severity, file: Arc::clone(&self.file), line, column, message });
    }

    /// Returns the problems in the order of the file.
    pub(crate) fn into_sorted(mut self) -> Vec<Problem> {
        self.found.sort_by_key(|problem| (problem.line, problem.column, problem.severity));
        self.found
    }
}

fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Returns the word of `known` that a mistyped word most likely stands for.
pub(crate) fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let folded = word.to_lowercase();
    let scored = known.iter().map(|&candidate| (strsim::jaro_winkler(&folded, candidate), candidate));
    scored.filter(|(score, _)| *score >= 0.8).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, candidate)| candidate)
}

/// Says what to write instead of an unknown word: the nearest one, else all of them.
pub(crate) fn instead(word: &str, known: &[&str]) -> String {
    match nearest(word, known) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("use {}", one_of(known)),
    }
}

/// Returns `a, b or c`.
pub(crate) fn one_of(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}
