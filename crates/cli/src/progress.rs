//! Progress line of long commands; shown only if stderr is a terminal.
//!
//! A terminal has one such line. Whatever else is printed must [`erase`] it first.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::Instant;

/// Minimum time between two updates of the line.
const PAUSE: Duration = Duration::from_millis(100);
/// Run time before the remaining time is estimated; earlier estimates are unreliable.
const MIN_SAMPLE: Duration = Duration::from_secs(2);
const CLEAR: &str = "\r\x1b[K";

/// Whether the terminal shows a progress line.
static DRAWN: AtomicBool = AtomicBool::new(false);

/// Erases the progress line, if there is one, before other output.
pub fn erase() {
    if DRAWN.swap(false, Ordering::Relaxed) {
        let _ = write!(stderr(), "{CLEAR}").and_then(|()| stderr().flush());
    }
}

/// Shows a progress line in place of the previous one.
fn draw(line: &str) {
    DRAWN.store(true, Ordering::Relaxed);
    let _ = write!(stderr(), "{CLEAR}{line}").and_then(|()| stderr().flush());
}

/// The progress line of a command with `total` items. It is erased on drop.
#[derive(Debug)]
pub struct Progress {
    /// The unit: `entries moved`.
    what: &'static str,
    total: u64,
    began: Instant,
    first: Option<u64>,
    drawn: Option<Instant>,
}

impl Progress {
    /// Returns a progress line, or `None` if stderr is not a terminal.
    #[must_use]
    pub fn on_terminal(what: &'static str, total: impl FnOnce() -> u64) -> Option<Self> {
        stderr().is_terminal().then(|| Self { what, total: total(), began: Instant::now(), first: None, drawn: None })
    }

    /// Reports that `done` of `total` items are finished; the total grows while items are found.
    pub fn show_of(&mut self, done: u64, total: u64) {
        self.total = total;
        self.show(done);
    }

    /// Reports that `done` items are finished.
    pub fn show(&mut self, done: u64) {
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < PAUSE) {
            return;
        }
        let first = *self.first.get_or_insert(done);
        self.drawn = Some(Instant::now());
        draw(&line(self.what, done, self.total, rest(done, first, self.total, self.began.elapsed())));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        erase();
    }
}

/// The progress line of a command whose total is not known: files and bytes so far. It is erased
/// on drop.
#[derive(Debug)]
pub struct Tally {
    what: &'static str,
    drawn: Option<Instant>,
}

impl Tally {
    /// Returns a progress line, or `None` if stderr is not a terminal.
    #[must_use]
    pub fn on_terminal(what: &'static str) -> Option<Self> {
        stderr().is_terminal().then_some(Self { what, drawn: None })
    }

    /// Reports the files and bytes so far.
    pub fn show(&mut self, files: u64, bytes: u64) {
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < PAUSE) {
            return;
        }
        self.drawn = Some(Instant::now());
        draw(&format!("{files} files {}, {}", self.what, amount(bytes)));
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        erase();
    }
}

/// The progress line of a command that reads or writes one archive: bytes so far, of the total if
/// that is known. It is erased on drop.
#[derive(Debug)]
pub struct Transfer {
    /// `written`
    what: &'static str,
    total: Option<u64>,
    done: u64,
    began: Instant,
    drawn: Option<Instant>,
}

impl Transfer {
    /// Returns a progress line, or `None` if stderr is not a terminal.
    #[must_use]
    pub fn on_terminal(what: &'static str, total: Option<u64>) -> Option<Self> {
        stderr().is_terminal().then(|| Self { what, total, done: 0, began: Instant::now(), drawn: None })
    }

    /// Reports that so many further bytes were transferred.
    pub fn add(&mut self, bytes: usize) {
        self.done += bytes as u64;
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < PAUSE) {
            return;
        }
        self.drawn = Some(Instant::now());
        draw(&self.line(self.began.elapsed()));
    }

    fn line(&self, elapsed: Duration) -> String {
        let done = amount(self.done);
        let Some(total) = self.total else { return format!("{done} {}", self.what) };
        let end = end_of_line(self.done, total, rest(self.done, 0, total, elapsed));
        format!("{done} of {} {}{end}", amount(total), self.what)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        erase();
    }
}

/// Formats an amount of space.
#[must_use]
pub fn amount(bytes: u64) -> String {
    let units = ["GiB", "MiB", "KiB"].into_iter().zip([30, 20, 10]);
    let unit = units.into_iter().find(|(_, shift)| bytes >> shift > 0);
    match unit {
        Some((unit, shift)) => {
            let tenths = (u128::from(bytes) * 10) >> shift;
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        }
        None if bytes == 1 => "1 byte".to_owned(),
        None => format!("{bytes} bytes"),
    }
}

/// Estimates the remaining time from the rate so far.
fn rest(done: u64, first: u64, total: u64, elapsed: Duration) -> Option<Duration> {
    let here = done.checked_sub(first).filter(|here| *here > 0 && elapsed >= MIN_SAMPLE)?;
    let left = u128::from(total.saturating_sub(done));
    let nanos = elapsed.as_nanos().checked_mul(left)?.checked_div(u128::from(here))?;
    u64::try_from(nanos).ok().map(Duration::from_nanos)
}

fn line(what: &str, done: u64, total: u64, rest: Option<Duration>) -> String {
    let done = done.min(total);
    format!("{done} of {total} {what}{}", end_of_line(done, total, rest))
}

/// Returns the share of the total and the remaining time, for the end of a line.
fn end_of_line(done: u64, total: u64, rest: Option<Duration>) -> String {
    let percent = (u128::from(done.min(total)) * 100).checked_div(u128::from(total)).unwrap_or(100);
    let rest = rest.map_or_else(String::new, |rest| match rest.as_secs() {
        seconds @ 0..100 => format!(", {seconds} s left"),
        seconds => format!(", {} min left", seconds.div_ceil(60)),
    });
    format!(" ({percent} %){rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_units() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1023, "1023 bytes"),
            (1536, "1.5 KiB"),
            (3 << 20, "3.0 MiB"),
            (7 << 40, "7168.0 GiB"),
        ] {
            assert_eq!(amount(bytes), text);
        }
    }

    #[test]
    fn lines_of_archives_show_bytes() {
        let transfer = |done, total| Transfer { what: "read", total, done, began: Instant::now(), drawn: None };
        let (all, quarter) = (12 << 30, 3 << 30);
        let line = transfer(quarter, Some(all)).line(Duration::from_secs(20));
        assert_eq!(line, "3.0 GiB of 12.0 GiB read (25 %), 60 s left");
        assert_eq!(transfer(512, None).line(Duration::ZERO), "512 bytes read");
        // A file that grows, and an empty one.
        assert_eq!(transfer(7, Some(5)).line(Duration::ZERO), "7 bytes of 5 bytes read (100 %)");
        assert_eq!(transfer(0, Some(0)).line(Duration::ZERO), "0 bytes of 0 bytes read (100 %)");
    }

    #[test]
    fn lines_show_count_percentage_and_remaining_time() {
        assert_eq!(line("entries moved", 0, 100_000, None), "0 of 100000 entries moved (0 %)");
        let rest = rest(25_000, 5_000, 100_000, Duration::from_secs(40));
        assert_eq!(rest, Some(Duration::from_secs(150)));
        assert_eq!(line("entries moved", 25_000, 100_000, rest), "25000 of 100000 entries moved (25 %), 3 min left");
        assert_eq!(line("x", 7, 5, Some(Duration::from_secs(9))), "5 of 5 x (100 %), 9 s left");
        assert_eq!(line("x", 0, 0, None), "0 of 0 x (100 %)");
        assert_eq!(super::rest(5, 5, 10, Duration::from_secs(9)), None);
        assert_eq!(super::rest(6, 5, 10, Duration::from_secs(1)), None);
    }
}
