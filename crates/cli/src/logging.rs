//! Destinations of log messages. In the foreground: stderr. In the background: the journal, or
//! syslog on systems without a journal. During startup, warnings are also written to stderr for the
//! mounting user. For a layer whose purpose is to warn ([`stack::Needs::warns`]), a log file
//! replaces a missing journal and syslog.

use crate::exit::Failure;
use crate::syslog::Syslog;
use core::fmt;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write, stderr};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{SystemTime, Uptime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::{Layer, fmt as layers, reload};

type Boxed = Box<dyn Layer<Registry> + Send + Sync>;

/// Destination and level of the log.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions<'a> {
    /// The lowest severity that is logged.
    pub level: LevelFilter,
    /// `logfile=`
    pub file: Option<&'a Path>,
    /// Whether stderr is closed once the file system is mounted.
    pub background: bool,
    /// The file for warnings that must not be lost, on systems without journal and syslog. If it
    /// can't be opened, the mount fails.
    pub last_resort: Option<&'a str>,
}

/// Sets up logging for the process. Returns the handle that changes the level. To be called once.
///
/// # Errors
/// The log file can't be opened.
pub fn start(program: &str, log_options: &LogOptions<'_>) -> Result<Arc<Level>, Failure> {
    let LogOptions { level, background, .. } = *log_options;
    let mut fallback = None;
    let sink = match log_options.file {
        Some(path) => Some(to_file(path)?),
        None if background => match (to_system(program), log_options.last_resort) {
            (None, Some(file)) => {
                fallback = Some(file);
                Some(to_last_resort(file)?)
            }
            (sink, _) => sink,
        },
        None => Some(to_terminal()),
    };
    let (filter, handle) = reload::Layer::new(Targets::new().with_default(level));
    let mut sinks: Vec<Boxed> = sink.map(|sink| sink.with_filter(filter).boxed()).into_iter().collect();
    if background {
        let start =
            layers::layer().with_ansi(false).event_format(OneLine { program: program.to_owned() }).with_writer(stderr);
        sinks.push(start.with_filter(level.min(LevelFilter::WARN)).boxed());
    }
    // Fails only if a subscriber is already set, which none of our programs does.
    let _ = tracing::subscriber::set_global_default(Registry::default().with(sinks));
    if let Some(file) = fallback {
        tracing::warn!(
            "neither the journal nor syslog is available: warnings are written to {file}; choose another file with logfile="
        );
    }
    let chosen = Mutex::new(Chosen { default: number_of(level), components: BTreeMap::new() });
    Ok(Arc::new(Level { filter: handle, chosen }))
}

/// The log levels, adjustable at run time.
#[derive(Debug)]
pub struct Level {
    filter: reload::Handle<Targets, Registry>,
    chosen: Mutex<Chosen>,
}

/// Indices into [`LEVELS`].
#[derive(Clone, Debug)]
struct Chosen {
    default: usize,
    /// The levels of components that differ: crates (`server`), or their modules
    /// (`unionfs::copyup`).
    components: BTreeMap<String, usize>,
}

/// Maximum number of components with a level of their own.
const COMPONENTS: usize = 64;

/// The names of the levels, from least to most verbose.
pub const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// The levels in the order of [`LEVELS`].
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
    /// Returns the name of the level of all components without one of their own.
    #[must_use]
    pub fn get(&self) -> &'static str {
        name_of(self.chosen.lock().default)
    }

    /// Returns the components with a level of their own, and its name.
    #[must_use]
    pub fn components(&self) -> BTreeMap<String, &'static str> {
        let chosen = self.chosen.lock();
        chosen.components.iter().map(|(component, number)| (component.clone(), name_of(*number))).collect()
    }

    /// Sets the level to an index into [`LEVELS`].
    pub fn set(&self, number: usize) {
        self.change(|chosen| chosen.default = number);
    }

    /// Sets the level of a component to an index into [`LEVELS`]; `None`: it has none of its own.
    /// Returns false if too many components have one.
    pub fn set_component(&self, component: &str, number: Option<usize>) -> bool {
        self.change(|chosen| match number {
            None => {
                chosen.components.remove(component);
                true
            }
            Some(number) => {
                let fits = chosen.components.len() < COMPONENTS || chosen.components.contains_key(component);
                if fits {
                    chosen.components.insert(component.to_owned(), number);
                }
                fits
            }
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Chosen) -> T) -> T {
        let mut chosen = self.chosen.lock();
        let result = change(&mut chosen);
        let level = |number: usize| FILTERS.get(number).copied().unwrap_or(LevelFilter::OFF);
        let components = chosen.components.iter().map(|(component, number)| (component.clone(), level(*number)));
        // Fails if logging was never set up, as in tests.
        let _ = self.filter.reload(Targets::new().with_default(level(chosen.default)).with_targets(components));
        result
    }
}

fn name_of(number: usize) -> &'static str {
    LEVELS.get(number).copied().unwrap_or_default()
}

fn to_file(path: &Path) -> Result<Boxed, Failure> {
    let file = OpenOptions::new().append(true).create(true).open(path).map_err(|error| {
        Failure::usage(format!("log file {}: can't be opened: {error}; choose another with logfile=", path.display()))
    })?;
    Ok(to_reopenable(path, file))
}

/// Opens the fallback log with mode 0600, since its warnings name users and what they accessed.
fn to_last_resort(path: &str) -> Result<Boxed, Failure> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(|error| {
        Failure::system(format!(
            "{path}: can't be opened: {error}; it is needed for warnings, since neither the journal nor syslog is available; \
             choose a file with logfile="
        ))
    })?;
    Ok(to_reopenable(Path::new(path), file))
}

fn to_reopenable(path: &Path, file: File) -> Boxed {
    // The working directory changes.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let log = LOG_FILE.get_or_init(|| Arc::new(LogFile { path, file: Mutex::new(file) }));
    layers::layer().with_ansi(false).with_timer(SystemTime).with_writer(|| Appender(Arc::clone(log))).boxed()
}

/// The log file of this process.
static LOG_FILE: OnceLock<Arc<LogFile>> = OnceLock::new();

struct LogFile {
    path: PathBuf,
    file: Mutex<File>,
}

struct Appender(Arc<LogFile>);

impl Write for Appender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.file.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.file.lock().flush()
    }
}

/// Opens the log file again, if there is one: a program such as logrotate(8) has renamed it.
pub fn reopen() {
    let Some(log) = LOG_FILE.get() else { return };
    // This process has no umask of its own.
    let mode = log.file.lock().metadata().map_or(0o600, |metadata| metadata.permissions().mode() & 0o777);
    match OpenOptions::new().append(true).create(true).mode(mode).open(&log.path) {
        Ok(file) => *log.file.lock() = file,
        Err(error) => {
            tracing::warn!("log file {}: can't be opened again: {error}; the old one is used", log.path.display());
        }
    }
}

/// Returns the journal, or syslog, or `None` on systems with neither.
fn to_system(program: &str) -> Option<Boxed> {
    if let Ok(journal) = tracing_journald::layer() {
        return Some(journal.with_syslog_identifier(program.to_owned()).boxed());
    }
    let syslog = Syslog::open(program)?;
    Some(layers::layer().with_ansi(false).event_format(OneLine { program: String::new() }).with_writer(syslog).boxed())
}

fn to_terminal() -> Boxed {
    let layer = layers::layer().with_writer(stderr).with_target(false).with_ansi(stderr().is_terminal());
    // The journal adds the time to a service's lines.
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        return layer.without_time().boxed();
    }
    layer.with_timer(Uptime::default()).boxed()
}

/// Formats messages as `program: message`.
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
    fn level_names_and_filters_are_in_the_same_order() {
        for (name, level) in LEVELS.iter().zip(FILTERS) {
            assert_eq!(level.to_string(), *name);
            assert_eq!(FILTERS.get(number_of(level)), Some(&level));
        }
    }
}
