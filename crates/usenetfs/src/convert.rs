//! Conversion between flat and managed directories, in steps of a bounded number of entries.
//!
//! The record names a new location *before* the first entry moves there, so every entry can be
//! found at any time. Buckets are filled and emptied in the store, since a user's entry in the
//! directory itself may have the name of a bucket. Buckets of the digits scheme then move as a
//! whole between the store and the directory.

use crate::control::{Goal, Progress};
use crate::managed::{Base, Location, Managed};
use crate::node::UsenetVnode;
use crate::record::{Phase, RECORD, Record, STORE, is_reserved, remove};
use crate::scheme::{Scheme, bucket_of_number};
use crate::split::{move_entry, names_in};
use crate::state::{FLAG, Layout};
use std::sync::Arc;
use vnode::{Cx, Errno, Name, Result, SetAttr, Vnode};

/// The state after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepResult {
    /// Further steps are necessary.
    More,
    /// The directory is managed.
    Managed,
    /// The directory is flat.
    Flat,
}

impl UsenetVnode {
    /// Performs one step towards the goal: moves up to `budget` entries or buckets.
    pub(crate) fn convert(&self, cx: &Cx<'_>, goal: Goal, budget: usize) -> Result<Progress> {
        let server = self.core.server(cx);
        server.require_blocking()?;
        let mut layout = self.state()?.write_layout(&server, &self.lower)?;
        if matches!(*layout, Layout::Flat) {
            let Goal::Manage(choice) = goal else { return Ok(Progress::default()) };
            let scheme = choice.scheme()?;
            start(&server, &self.lower, scheme)?;
            *layout = Layout::Managed(Box::new(Managed::load(&server, &self.lower)?));
        }
        let Layout::Managed(managed) = &mut *layout else { return Err(Errno::IO) };
        let done = managed
            .set_direction(&server, &self.lower, goal)
            .and_then(|()| managed.run_step(&server, &self.lower, budget.max(1)));
        match done {
            Ok(StepResult::Flat) => {
                let moved = managed.moved;
                *layout = Layout::Flat;
                Ok(Progress { moved, ..Progress::default() })
            }
            Ok(_) => Ok(managed.progress()),
            Err(errno) => {
                if errno != Errno::INTR {
                    tracing::warn!(%errno, "directory {}: the conversion has stopped ({})", self.lower.id(), managed.record.phase.name());
                }
                // Reload the state, since the step may be partly done.
                *layout = Layout::Unknown;
                Err(errno)
            }
        }
    }

    /// Returns the progress of a conversion.
    pub(crate) fn progress(&self, cx: &Cx<'_>) -> Result<Progress> {
        Ok(match &*self.read_layout(cx)? {
            Layout::Managed(managed) => managed.progress(),
            Layout::Flat | Layout::Unknown => Progress::default(),
        })
    }
}

/// Writes the record of a flat directory and sets the bit.
fn start(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, scheme: Scheme) -> Result<()> {
    let attr = dir.getattr(cx)?;
    // If there is a store, the bit was removed out of band. Keep the record, which is needed to
    // find the entries in the store.
    let store = dir.lookup(cx, Name::new(STORE)?)?;
    let old = if store.is_some() { Record::read(cx, dir)? } else { None };
    let scheme = old.map_or(scheme, |record| record.scheme);
    Record { scheme, phase: Phase::Filling }.write(cx, dir)?;
    let set = SetAttr { mode: Some(attr.perm() | FLAG), ..SetAttr::default() };
    dir.setattr(cx, &set, None).map(|_| ())
}

impl Managed {
    pub(crate) fn progress(&self) -> Progress {
        Progress { phase: Some(self.record.phase), hash: self.record.scheme != Scheme::Digits, moved: self.moved }
    }

    /// Sets the phase that leads to the goal; reverses a conversion in the other direction.
    fn set_direction(&mut self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, goal: Goal) -> Result<()> {
        let is_digits = self.record.scheme == Scheme::Digits;
        let next = match (goal, self.record.phase) {
            (Goal::Manage(choice), _) if choice.hash == is_digits => return Err(Errno::EXIST),
            (Goal::Manage(_), Phase::Lowering) => Phase::Raising,
            (Goal::Manage(_), Phase::Emptying) => Phase::Filling,
            (Goal::Unmanage, Phase::Stable) if is_digits => Phase::Lowering,
            (Goal::Unmanage, Phase::Raising) => Phase::Lowering,
            (Goal::Unmanage, Phase::Stable | Phase::Filling) => Phase::Emptying,
            (_, phase) => phase,
        };
        let fills_buckets = |phase| !matches!(phase, Phase::Lowering | Phase::Emptying);
        if fills_buckets(next) != fills_buckets(self.record.phase) {
            self.moved = 0;
        }
        self.enter_phase(cx, dir, next)
    }

    fn enter_phase(&mut self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, phase: Phase) -> Result<()> {
        if phase != self.record.phase {
            let record = Record { phase, ..self.record };
            record.write(cx, dir)?;
            self.record = record;
            *self.listing.get_mut() = None;
        }
        Ok(())
    }

    /// Moves up to `budget` entries or buckets, as the phase requires.
    fn run_step(&mut self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, budget: usize) -> Result<StepResult> {
        match self.record.phase {
            Phase::Stable => Ok(StepResult::Managed),
            Phase::Filling => self.fill(cx, dir, budget),
            Phase::Raising => self.raise(cx, dir, budget),
            Phase::Lowering => self.lower(cx, dir, budget),
            Phase::Emptying => self.empty(cx, dir, budget),
        }
    }

    fn fill(&mut self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, budget: usize) -> Result<StepResult> {
        let is_digits = self.record.scheme == Scheme::Digits;
        let belongs_in_bucket = |name: &[u8]| !is_reserved(name) && (!is_digits || bucket_of_number(name).is_some());
        let names = names_in(cx, dir, budget, belongs_in_bucket)?;
        for (name, _) in &names {
            cx.check()?;
            let Some(Location::In(bucket)) = self.locations(name).into_iter().next() else { return Err(Errno::IO) };
            let place = self.make_bucket(cx, dir, &bucket)?;
            move_entry(cx, dir, &place, Name::new(name)?)?;
            self.moved += 1;
            self.dirty.insert(bucket.clone());
            self.count_in_bucket(cx, dir, &bucket)?;
        }
        match (names.is_empty(), is_digits) {
            (false, _) => Ok(StepResult::More),
            (true, true) => self.enter_phase(cx, dir, Phase::Raising).map(|()| StepResult::More),
            (true, false) => self.enter_phase(cx, dir, Phase::Stable).map(|()| StepResult::Managed),
        }
    }

    /// Counts a new entry in a bucket, and splits the bucket if it is too large.
    fn count_in_bucket(&mut self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<()> {
        let Scheme::Hash { limit, .. } = self.record.scheme else { return Ok(()) };
        let known = self.buckets.get(name).and_then(|bucket| bucket.entries);
        let entries = match known {
            Some(entries) => entries + 1,
            None => u32::try_from(names_in(cx, &self.bucket(cx, dir, name)?, usize::MAX, |_| true)?.len())
                .unwrap_or(u32::MAX),
        };
        if let Some(bucket) = self.buckets.get_mut(name) {
            bucket.entries = Some(entries);
        }
        if entries > limit && name.len() < crate::scheme::MAX_HASH_DIGITS { self.split(cx, dir, name) } else { Ok(()) }
    }

    fn raise(&mut self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, budget: usize) -> Result<StepResult> {
        if self.move_buckets(cx, dir, (Base::Store, Base::Directory), budget)? {
            return Ok(StepResult::More);
        }
        drop_store(cx, dir)?;
        // A managed directory without a record has the digits scheme.
        remove(cx, dir, RECORD)?;
        self.record = Record::NONE;
        Ok(StepResult::Managed)
    }

    fn lower(&mut self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, budget: usize) -> Result<StepResult> {
        if !self.move_buckets(cx, dir, (Base::Directory, Base::Store), budget)? {
            self.enter_phase(cx, dir, Phase::Emptying)?;
        }
        Ok(StepResult::More)
    }

    /// Moves whole buckets. Returns false if none is left.
    fn move_buckets(
        &mut self,
        cx: &Cx<'_>,
        dir: &Arc<dyn Vnode>,
        (from, to): (Base, Base),
        budget: usize,
    ) -> Result<bool> {
        let names: Vec<_> = self
            .buckets
            .iter()
            .filter(|(_, bucket)| bucket.base == from)
            .map(|(name, _)| name.clone())
            .take(budget)
            .collect();
        if names.is_empty() {
            return Ok(false);
        }
        let (source, target) = (self.base(cx, dir, from)?, self.make_base(cx, dir, to)?);
        for name in &names {
            cx.check()?;
            move_entry(cx, &source, &target, Name::new(name)?)?;
            if let Some(bucket) = self.buckets.get_mut(name) {
                bucket.base = to;
            }
        }
        Ok(true)
    }

    fn empty(&mut self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, budget: usize) -> Result<StepResult> {
        let mut left = budget;
        while let Some(name) = self.buckets.keys().next_back().cloned() {
            let bucket = self.bucket(cx, dir, &name)?;
            let names = names_in(cx, &bucket, left, |_| true)?;
            for (entry, _) in &names {
                cx.check()?;
                move_entry(cx, &bucket, dir, Name::new(entry)?)?;
                self.moved += 1;
            }
            left -= names.len();
            if left == 0 {
                return Ok(StepResult::More);
            }
            self.drop_bucket(cx, dir, &name)?;
        }
        drop_store(cx, dir)?;
        let set = SetAttr { mode: Some(dir.getattr(cx)?.perm() & !FLAG), ..SetAttr::default() };
        dir.setattr(cx, &set, None)?;
        // A remaining record is harmless: it is hidden, and has no effect without the bit.
        if let Err(errno) = remove(cx, dir, RECORD) {
            tracing::warn!(%errno, "directory {}: can't remove its hidden record", dir.id());
        }
        Ok(StepResult::Flat)
    }
}

/// Removes the empty store.
fn drop_store(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<()> {
    match dir.rmdir(cx, Name::new(STORE)?) {
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}
