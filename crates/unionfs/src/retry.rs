//! Retries. An operation decides without locks, then takes them; if its decision is out of date by
//! then, it is retried.

use crate::branch::BranchId;
use crate::node::UnionVnode;
use crate::op::Op;
use vnode::{Errno, Result};

/// Maximum number of retries. No race repeats this often; a branch that returns something else each
/// time could.
const MAX_RETRIES: u32 = 1000;

/// The result of one attempt, which may need a part of the directory on a branch where it has none.
pub(crate) enum Step<T> {
    Done(T),
    /// The directory needs a part on this branch. It is to be created without the lock on its
    /// names, before a retry.
    Need(BranchId),
    /// Retry: a branch turned out to be read-only, or something changed meanwhile.
    Retry,
}

/// The number of retries left.
pub(crate) struct Retries(u32);

impl Retries {
    pub(crate) fn new() -> Self {
        Self(MAX_RETRIES)
    }

    /// Counts a retry. `ESTALE` after too many.
    pub(crate) fn count(&mut self) -> Result<()> {
        self.0 = self.0.checked_sub(1).ok_or(Errno::STALE)?;
        Ok(())
    }
}

impl UnionVnode {
    /// Runs `once` until it is done. Creates the parts of this directory that it needs. `once` must
    /// release its locks before it returns.
    pub(crate) fn until_done<T>(&self, op: &Op<'_>, mut once: impl FnMut() -> Result<Step<T>>) -> Result<T> {
        let mut retries = Retries::new();
        loop {
            match once()? {
                Step::Done(answer) => return Ok(answer),
                Step::Need(branch) => {
                    let _ = self.core.ensure_part(op, &self.arc()?, branch)?;
                }
                Step::Retry => {}
            }
            retries.count()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Branch, Mode, Options, Unionfs};
    use memfs::{Faults, MemFs, MemOptions};
    use std::cell::Cell;
    use vnode::Layer;

    #[test]
    fn the_number_of_retries_is_limited() {
        let branch = Branch {
            layer: MemFs::with(MemOptions::default(), &Faults::new()),
            path: "/b".into(),
            mode: Mode::ReadWrite,
        };
        let union = Unionfs::new(vec![branch], Options::default()).unwrap();
        let root = union.root();
        let root = root.as_any().downcast_ref::<UnionVnode>().unwrap();
        let (cx, set) = (vnode::Cx::internal(0, 0), root.core.branches.get());
        let op = Op::new(&cx, &set);
        let calls = Cell::new(0);
        let run = |last: Option<u32>| {
            calls.set(0);
            root.until_done(&op, || {
                calls.set(calls.get() + 1);
                // The root already has a part on its only branch, so this need changes nothing.
                Ok(match calls.get() {
                    n if Some(n) == last => Step::Done(n),
                    n if n % 2 == 0 => Step::Need(BranchId(0)),
                    _ => Step::Retry,
                })
            })
        };
        assert_eq!(run(Some(1)), Ok(1));
        assert_eq!(run(Some(900)), Ok(900));
        assert_eq!(run(None), Err(Errno::STALE));
        assert_eq!(calls.get(), MAX_RETRIES + 1);
    }
}
