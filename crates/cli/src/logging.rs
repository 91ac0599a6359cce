//! Where log lines go: stderr in the foreground; in the background the journal, or syslog where there is none. While
//! a mount is being made, warnings go to stderr too, so that whoever mounts reads them. A layer that is there to warn
//! ([`stack::Needs::warns`]) has a file where there is neither.

use crate::exit::Failure;
use crate::syslog::Syslog;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::fs::OpenOptions;
use std::io::{IsTerminal as _, stderr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{SystemTime, Uptime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::{Layer, fmt as layers, reload};

type Boxed = Box<dyn Layer<Registry> + Send + Sync>;

/// Where and what to log.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// This level and worse.
    pub level: LevelFilter,
    /// `logfile=`
    pub file: Option<&'a Path>,
    /// Is there no terminal to write to once it is mounted?
    pub background: bool,
    /// Where warnings go that must not be lost, on a system without journal and syslog; there, or nothing is mounted.
    pub last_resort: Option<&'a str>,
}

/// Lets log lines go where they belong. Called once. Answers what changes the level.
///
/// # Errors
/// Where the log file can't be opened.
pub fn start(program: &str, wanted: &Wanted<'_>) -> Result<Arc<Level>, Failure> {
    let Wanted { level, background, .. } = *wanted;
    let mut resorted = None;
    let sink = match wanted.file {
        Some(path) => Some(to_file(path)?),
        None if background => match (to_system(program), wanted.last_resort) {
            (None, Some(file)) => {
                resorted = Some(file);
                Some(to_last_resort(file)?)
            }
            (sink, _) => sink,
        },
        None => Some(to_terminal()),
    };
    let (filter, handle) = reload::Layer::new(level);
    let mut sinks: Vec<Boxed> = sink.map(|sink| sink.with_filter(filter).boxed()).into_iter().collect();
    if background {
        let start =
            layers::layer().with_ansi(false).event_format(OneLine { program: program.to_owned() }).with_writer(stderr);
        sinks.push(start.with_filter(level.min(LevelFilter::WARN)).boxed());
    }
    // Somebody else's choice of a subscriber stands: there is none in our own programs.
    let _ = tracing::subscriber::set_global_default(Registry::default().with(sinks));
    if let Some(file) = resorted {
        tracing::warn!(
            "neither the journal nor syslog can be reached: warnings go to {file}; name another file with logfile="
        );
    }
    Ok(Arc::new(Level { filter: handle, number: AtomicUsize::new(number_of(level)) }))
}

/// The level of the log, which can be changed at any time.
#[derive(Debug)]
pub struct Level {
    filter: reload::Handle<LevelFilter, Registry>,
    number: AtomicUsize,
}

/// The levels' names, from quiet to loud.
pub const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// The levels, as [`LEVELS`] numbers them.
const FILTERS: [LevelFilter; 6] = [
    LevelFilter::OFF,
    LevelFilter::ERROR,
    LevelFilter::WARN,
    LevelFilter::INFO,
    LevelFilter::DEBUG,
    LevelFilter::TRACE,
];

fn number_of(level: LevelFilter) -> usize {
    FILTERS.iter().position(|known| *known == level).unwrap_or(0)
}

impl Level {
    /// Its name.
    #[must_use]
    pub fn get(&self) -> &'static str {
        LEVELS.get(self.number.load(Ordering::Relaxed)).copied().unwrap_or_default()
    }

    /// Changes it, to a number of [`LEVELS`].
    pub fn set(&self, number: usize) {
        let Some(level) = FILTERS.get(number).copied() else { return };
        // Where nothing is logged at all there is nothing to change.
        let _ = self.filter.reload(level);
        self.number.store(number, Ordering::Relaxed);
    }
}

fn to_file(path: &Path) -> Result<Boxed, Failure> {
    let file = OpenOptions::new().append(true).create(true).open(path).map_err(|error| {
        Failure::usage(format!("log file {}: {error}; choose another with logfile=", path.display()))
    })?;
    Ok(layers::layer().with_ansi(false).with_timer(SystemTime).with_writer(file).boxed())
}

/// A file for root alone: it says who did what.
fn to_last_resort(path: &str) -> Result<Boxed, Failure> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(|error| {
        Failure::system(format!(
            "warnings would be lost: neither the journal nor syslog can be reached, and {path} can't be written: {error}; \
             name a file with logfile="
        ))
    })?;
    Ok(layers::layer().with_ansi(false).with_timer(SystemTime).with_writer(file).boxed())
}

/// The journal, or syslog, or nothing where a system has neither.
fn to_system(program: &str) -> Option<Boxed> {
    if let Ok(journal) = tracing_journald::layer() {
        return Some(journal.with_syslog_identifier(program.to_owned()).boxed());
    }
    let syslog = Syslog::open(program)?;
    Some(layers::layer().with_ansi(false).event_format(OneLine { program: String::new() }).with_writer(syslog).boxed())
}

fn to_terminal() -> Boxed {
    let layer = layers::layer().with_writer(stderr).with_target(false).with_ansi(stderr().is_terminal());
    // A service's lines get their time from the journal.
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        return layer.without_time().boxed();
    }
    layer.with_timer(Uptime::default()).boxed()
}

/// `program: message`, as a command complains.
struct OneLine {
    program: String,
}

impl<S, N> FormatEvent<S, N> for OneLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        if !self.program.is_empty() {
            write!(writer, "{}: ", self.program)?;
        }
        ctx.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_numbered_as_their_names_are() {
        for (name, level) in LEVELS.iter().zip(FILTERS) {
            assert_eq!(level.to_string(), *name);
            assert_eq!(FILTERS.get(number_of(level)), Some(&level));
        }
    }
}
