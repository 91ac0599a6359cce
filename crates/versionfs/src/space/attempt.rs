//! What a thread knows of the operation that it runs: whether more can be discarded for it.

use core::cell::Cell;
use vnode::{Errno, Result};

/// What this thread knows of the operation that it runs (`Core::with_room`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attempt {
    /// Whether there is such an operation.
    pub(super) is_under_way: bool,
    /// Whether nothing more is discarded for it.
    pub(super) is_last: bool,
    /// Whether it goes on without its version rather than fail.
    pub(super) loses: bool,
    /// Whether a user's data, not a version, had no room.
    pub(super) lacked_data: bool,
    /// Whether part of the change was made.
    pub(super) is_partial: bool,
    /// What its version takes in bytes, as far as is known.
    pub(super) wants: u64,
    /// The owner of its version, if it makes one.
    pub(super) owner: Option<u32>,
}

thread_local! {
    static ATTEMPT: Cell<Attempt> = const { Cell::new(Attempt {
        is_under_way: false,
        is_last: false,
        loses: false,
        lacked_data: false,
        is_partial: false,
        wants: 0,
        owner: None,
    }) };
}

pub(super) fn note(change: impl FnOnce(&mut Attempt)) {
    let mut attempt = ATTEMPT.get();
    change(&mut attempt);
    ATTEMPT.set(attempt);
}

/// Passes on the result of storing a user's data: for that, protected versions stay.
pub(crate) fn of_data<T>(result: Result<T>) -> Result<T> {
    if matches!(result, Err(Errno::NOSPC | Errno::DQUOT)) {
        note(|attempt| attempt.lacked_data = true);
    }
    result
}

/// Notes that an operation that fails has made a part of its change: it must not run again.
pub(crate) fn is_partial() {
    note(|attempt| attempt.is_partial = true);
}

/// Notes that a version takes so many bytes.
pub(crate) fn wants(bytes: u64) {
    note(|attempt| attempt.wants = attempt.wants.max(bytes));
}

/// Notes whose version is made: it counts against that user's quota.
pub(crate) fn belongs_to(uid: u32) {
    note(|attempt| attempt.owner = Some(uid));
}

/// Whether nothing more is discarded for the operation of this thread.
pub(crate) fn is_last_try() -> bool {
    let attempt = ATTEMPT.get();
    attempt.is_last || !attempt.is_under_way
}

/// Whether what takes no space natively goes on without a version.
pub(crate) fn loses_version() -> bool {
    ATTEMPT.get().loses
}

/// Whether an operation is under way already, which may be tried again.
pub(super) fn is_under_way() -> bool {
    ATTEMPT.get().is_under_way
}

impl Attempt {
    /// Runs an operation once. Returns what became known of it.
    pub(super) fn run<T>(is_last: bool, loses: bool, run: impl FnOnce() -> T) -> (T, Self) {
        let before = ATTEMPT.replace(Self { is_under_way: true, is_last, loses, ..Self::default() });
        let done = run();
        (done, ATTEMPT.replace(before))
    }
}

/// Runs an operation that must not run twice.
pub(crate) fn once<T>(run: impl FnOnce() -> T) -> T {
    Attempt::run(true, false, run).0
}
