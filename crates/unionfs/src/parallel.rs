//! Branches that may take long are asked at the same time.

use crate::branch::Lower;
use crate::op::Op;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use vnode::{Errno, Result};

/// Maximum number of branches that one operation asks at a time.
const THREADS: usize = 32;

/// Asks the parts on branches that may take long at the same time, if there are several. Returns
/// the answers by the parts' positions. A part without an answer has to be asked by the caller if
/// it is needed: it was not slow, or it hangs.
///
/// A local branch answers sooner than another thread could be asked.
pub(crate) fn ask_slow<R: Send>(
    op: &Op<'_>,
    parts: &[Lower],
    ask: impl Fn(&Op<'_>, &Lower) -> Result<R> + Sync,
) -> Vec<Option<Result<R>>> {
    ask_both(op, parts, ask, None::<&NoQuestion>).0
}

/// The absent second question of [`ask_both`].
type NoQuestion = fn(&Op<'_>, &Lower) -> Result<()>;

/// The answers of the parts, by their positions.
pub(crate) type Answers<R> = Vec<Option<Result<R>>>;

/// As [`ask_slow`], with two questions about each part, which are asked at the same time.
pub(crate) fn ask_both<A: Send, B: Send>(
    op: &Op<'_>,
    parts: &[Lower],
    first: impl Fn(&Op<'_>, &Lower) -> Result<A> + Sync,
    second: Option<&(impl Fn(&Op<'_>, &Lower) -> Result<B> + Sync)>,
) -> (Answers<A>, Answers<B>) {
    let mut one: Answers<A> = parts.iter().map(|_| None).collect();
    let mut two: Answers<B> = parts.iter().map(|_| None).collect();
    let is_slow = |part: &Lower| op.set.member(part.branch).is_some_and(|member| member.properties().may_hang);
    if !op.set.isolated || !op.may_block || parts.iter().filter(|part| is_slow(part)).count() < 2 {
        return (one, two);
    }
    let op = op.without_waiting();
    let next = AtomicUsize::new(0);
    let slow = |at: &usize| parts.get(*at).is_some_and(is_slow);
    let one_slots: Vec<_> = one.iter_mut().enumerate().filter(|(at, _)| slow(at)).map(Mutex::new).collect();
    let two_slots: Vec<_> = two.iter_mut().enumerate().filter(|(at, _)| slow(at)).map(Mutex::new).collect();
    let count = one_slots.len();
    let asked = if second.is_some() { 2 * count } else { count };
    let work = || {
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            if task >= asked {
                return;
            }
            if let Some(slot) = one_slots.get(task) {
                fill(&op, parts, &mut slot.lock(), &first);
            } else if let (Some(slot), Some(second)) = (two_slots.get(task - count), second) {
                fill(&op, parts, &mut slot.lock(), second);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..asked.min(THREADS) {
            // Without another thread, this one asks all of them.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    drop((one_slots, two_slots));
    (one, two)
}

/// Asks one question. A part that hangs remains without an answer.
fn fill<R>(
    op: &Op<'_>,
    parts: &[Lower],
    (at, answer): &mut (usize, &mut Option<Result<R>>),
    ask: &impl Fn(&Op<'_>, &Lower) -> Result<R>,
) {
    if let Some(part) = parts.get(*at) {
        **answer = Some(ask(op, part)).filter(|answer| !matches!(answer, Err(Errno::TIMEDOUT)));
    }
}
