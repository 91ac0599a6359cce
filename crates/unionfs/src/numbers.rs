//! Inode numbers of objects: docs/design/unionfs.md, "Inode numbers".

use crate::branch::Lower;
use crate::log::{Alias, Record};
use crate::node::{Core, UnionVnode};
use crate::op::Op;
use vnode::{Attr, Errno, Result, Time, Vnode};

impl Core {
    /// Returns the number of a lower file.
    pub(crate) fn number_of(&self, op: &Op<'_>, lower: &Lower, attr: &Attr) -> Result<u64> {
        let tag = op.set.branch(lower.branch)?.tag;
        let born = attr.btime.unwrap_or_default();
        match self.identity.alias(tag, lower.vnode.id()) {
            Some(alias) if alias.born == born => return Ok(alias.number),
            // The lower number was reused after an out-of-band removal. A lookup writes nothing,
            // because the branch may be frozen.
            Some(_) if !op.set.read_only => self.identity.unalias_deferred(tag, lower.vnode.id()),
            _ => {}
        }
        self.own_number(op, lower, || Ok(born))
    }

    /// Returns the alias of a lower file, if it has one.
    pub(crate) fn alias_of(&self, op: &Op<'_>, lower: &Lower, attr: &Attr) -> Result<Option<Alias>> {
        let alias = self.identity.alias(op.set.branch(lower.branch)?.tag, lower.vnode.id());
        Ok(alias.filter(|alias| alias.born == attr.btime.unwrap_or_default()))
    }

    /// Returns the number of a lower object without an alias. It is made from the lower number,
    /// unless that belonged to an object that was moved to another branch and kept its number: the
    /// lower file system has reused it since. The object gets an alias then, so that it keeps its
    /// number when the other one is removed.
    fn own_number(&self, op: &Op<'_>, lower: &Lower, born: impl FnOnce() -> Result<Time>) -> Result<u64> {
        let number = op.set.natural_number(lower.branch, lower.vnode.id())?;
        let generation = lower.vnode.generation();
        if !self.identity.is_taken(number, generation) {
            return Ok(number);
        }
        let key = (op.set.branch(lower.branch)?.tag, lower.vnode.id());
        Ok(self.identity.number_beside(key, number, born()?, generation))
    }

    /// Returns the record that a lower file has the alias `number`, with this generation.
    pub(crate) fn alias_record(
        &self,
        op: &Op<'_>,
        lower: &Lower,
        attr: &Attr,
        (number, generation): (u64, u32),
    ) -> Result<Record> {
        let tag = op.set.branch(lower.branch)?.tag;
        let alias = Alias { born: attr.btime.unwrap_or_default(), number, generation };
        Ok(Record::Alias { tag, lower: lower.vnode.id(), alias })
    }

    /// Returns the number of a directory: that of its rightmost part, or that part's alias if it
    /// has one ([`Self::keep_number`]).
    pub(crate) fn directory_number(&self, op: &Op<'_>, stack: &[Lower]) -> Result<u64> {
        let part = stack.last().ok_or(Errno::IO)?;
        let getattr = || part.vnode.getattr(&self.server_cx());
        if self.identity.alias(op.set.branch(part.branch)?.tag, part.vnode.id()).is_none() {
            return self.own_number(op, part, || Ok(getattr()?.btime.unwrap_or_default()));
        }
        self.number_of(op, part, &getattr()?)
    }

    /// Logs a directory's number as the alias of its leftmost part. Called before a whiteout, an
    /// opaque mark or the removal of a redirect cuts the stack down to that part, as the removal of
    /// a directory does. If the removal then fails or is interrupted, the directory keeps its
    /// number.
    pub(crate) fn keep_number(&self, op: &Op<'_>, dir: &UnionVnode) -> Result<()> {
        let stack = dir.stack()?;
        let [leftmost, _, ..] = &*stack else { return Ok(()) };
        let attr = leftmost.vnode.getattr(op)?;
        if self.number_of(op, leftmost, &attr)? == dir.id {
            return Ok(());
        }
        self.identity.append(&self.server(op), self.alias_record(op, leftmost, &attr, (dir.id, dir.generation()))?)
    }

    /// Logs a directory's number as the alias of a lower directory that becomes its rightmost part.
    pub(crate) fn number_part(&self, op: &Op<'_>, dir: &UnionVnode, part: &Lower) -> Result<()> {
        let attr = part.vnode.getattr(op)?;
        self.identity.append(&self.server(op), self.alias_record(op, part, &attr, (dir.id, dir.generation()))?)
    }

    /// Drops the alias of a directory part that was removed.
    pub(crate) fn part_removed(&self, op: &Op<'_>, part: &Lower) {
        if let Ok(branch) = op.set.branch(part.branch) {
            self.identity.unalias(&self.server(op), branch.tag, part.vnode.id());
        }
    }
}
