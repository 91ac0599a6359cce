//! Where log lines go: stderr in the foreground; in the background the journal, or syslog where there is none. While
//! a mount is being made, warnings go to stderr too, so that whoever mounts reads them.

use crate::exit::Failure;
use crate::syslog::Syslog;
use core::fmt;
use std::fs::OpenOptions;
use std::io::{IsTerminal as _, stderr};
use std::path::Path;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{SystemTime, Uptime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::{Layer, fmt as layers};

type Boxed = Box<dyn Layer<Registry> + Send + Sync>;

/// Lets log lines of this level and worse go where they belong. Called once.
///
/// # Errors
/// Where the log file can't be opened.
pub fn start(program: &str, level: LevelFilter, file: Option<&Path>, background: bool) -> Result<(), Failure> {
    let mut sinks: Vec<Boxed> = Vec::new();
    match file {
        Some(path) => sinks.push(to_file(path)?.with_filter(level).boxed()),
        None if background => sinks.extend(to_system(program).map(|sink| sink.with_filter(level).boxed())),
        None => sinks.push(to_terminal().with_filter(level).boxed()),
    }
    if background {
        let start =
            layers::layer().with_ansi(false).event_format(OneLine { program: program.to_owned() }).with_writer(stderr);
        sinks.push(start.with_filter(level.min(LevelFilter::WARN)).boxed());
    }
    // Somebody else's choice of a subscriber stands: there is none in our own programs.
    let _ = tracing::subscriber::set_global_default(Registry::default().with(sinks));
    Ok(())
}

fn to_file(path: &Path) -> Result<Boxed, Failure> {
    let file = OpenOptions::new().append(true).create(true).open(path).map_err(|error| {
        Failure::usage(format!("log file {}: {error}; choose another with logfile=", path.display()))
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
