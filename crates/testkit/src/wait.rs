use std::fmt::Debug;
use std::time::{Duration, Instant};

/// How long [`until`] waits: longer than a busy machine takes for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The longest time between two looks.
const POLL: Duration = Duration::from_millis(10);

/// What a look at the awaited state returns: `bool`, `Option`, or a `Result` whose error describes
/// the state for the message of the failed test. [`seen`] makes such a result.
pub trait Look {
    /// What [`until`] returns.
    type Found;

    /// Returns the awaited thing, or the state if it can be described.
    ///
    /// # Errors
    ///
    /// Not there yet.
    fn found(self) -> Result<Self::Found, Option<String>>;
}

impl Look for bool {
    type Found = ();

    fn found(self) -> Result<(), Option<String>> {
        if self { Ok(()) } else { Err(None) }
    }
}

impl<T> Look for Option<T> {
    type Found = T;

    fn found(self) -> Result<T, Option<String>> {
        self.ok_or(None)
    }
}

impl<T, E: Debug> Look for Result<T, E> {
    type Found = T;

    fn found(self) -> Result<T, Option<String>> {
        // Logs keep their lines.
        self.map_err(|state| Some(format!("{state:?}").replace("\\n", "\n")))
    }
}

/// Returns `value` if it is as wanted; otherwise the error is the value, which [`until`] prints.
///
/// # Errors
///
/// The value is not as wanted.
pub fn seen<T>(value: T, is_wanted: impl FnOnce(&T) -> bool) -> Result<T, T> {
    if is_wanted(&value) { Ok(value) } else { Err(value) }
}

/// Waits until `look` finds what the test waits for, and returns it:
///
/// ```
/// # use testkit::{seen, until};
/// # let (log, path) = (|| "mounted".to_owned(), std::path::Path::new("/"));
/// until("the mount point exists", || path.exists());
/// until("the server is up", || seen(log(), |log| log.contains("mounted")));
/// ```
///
/// # Panics
///
/// After [`PATIENCE`], with `what` and the last state.
#[track_caller]
pub fn until<L: Look>(what: &str, look: impl FnMut() -> L) -> L::Found {
    until_within(PATIENCE, what, look)
}

/// Waits as [`until`] does, but panics after `time`.
///
/// # Panics
///
/// After `time`, with `what` and the last state.
#[track_caller]
pub fn until_within<L: Look>(time: Duration, what: &str, look: impl FnMut() -> L) -> L::Found {
    match poll(time, look) {
        Ok(found) => found,
        Err(None) => panic!("never, in {time:?}: {what}"),
        Err(Some(state)) => panic!("never, in {time:?}: {what}; last seen: {state}"),
    }
}

/// Waits until `condition` holds, for `time` at most. Returns whether it holds.
#[must_use]
pub fn holds_within(time: Duration, condition: impl FnMut() -> bool) -> bool {
    poll(time, condition).is_ok()
}

/// Looks until something is found, and a last time after `time`.
fn poll<L: Look>(time: Duration, mut look: impl FnMut() -> L) -> Result<L::Found, Option<String>> {
    let end = Instant::now() + time;
    let mut pause = Duration::from_millis(1);
    loop {
        let is_last = Instant::now() >= end;
        match look().found() {
            Err(_) if !is_last => std::thread::sleep(pause),
            result => return result,
        }
        pause = POLL.min(pause * 2);
    }
}

/// Waits until a change of a file gets a later time stamp than those before: the kernel's clock for
/// them advances every few milliseconds.
pub fn tick() {
    std::thread::sleep(Duration::from_millis(20));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_with_what_was_found() {
        let mut count = 0;
        let mut next = || {
            count += 1;
            count
        };
        assert_eq!(until("a number", || seen(next(), |number| *number == 3)), 3);
        assert_eq!(until("the next one", || Some(next())), 4);
        assert!(holds_within(PATIENCE, || next() == 7));
    }

    #[test]
    fn a_last_look_is_taken_after_the_deadline() {
        let begun = Instant::now();
        let time = Duration::from_millis(30);
        assert!(!holds_within(time, || false) && begun.elapsed() >= time);
        assert!(holds_within(Duration::ZERO, || true));
    }

    #[test]
    #[should_panic(expected = "never, in 0ns: the server is up; last seen: \"first line\nsecond\"")]
    fn the_state_is_in_the_message() {
        until_within(Duration::ZERO, "the server is up", || Err::<(), _>("first line\nsecond"));
    }
}
