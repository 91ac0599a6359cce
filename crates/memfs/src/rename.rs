use crate::tree::Tree;
use vnode::{Errno, Kind, RenameFlags, Result};

/// A directory and a name in it.
type Place<'a> = (u64, &'a [u8]);

impl Tree {
    /// renameat2(2), with errors in the kernel's order.
    pub(crate) fn rename(&mut self, from: Place<'_>, to: Place<'_>, flags: RenameFlags) -> Result<()> {
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            return Err(Errno::INVAL);
        }
        let (from_dir, to_dir) = (self.dir(from.0)?, self.dir(to.0)?);
        let old = from_dir.dir.get(from.1).ok_or(Errno::NOENT)?;
        let new = to_dir.dir.get(to.1);
        if self.dir(to.0)?.nlink == 0 {
            return Err(Errno::NOENT);
        }
        self.check_loops(from, to, (old, new), flags)?;
        if new == Some(old) {
            return Ok(());
        }
        match new {
            Some(new) if flags.exchange => self.exchange(from, to, (old, new)),
            Some(new) => {
                self.check_replace(old, new)?;
                self.replace(from, to, (old, new))
            }
            None => self.move_to_free(from, to, old),
        }
    }

    fn check_loops(&self, from: Place<'_>, to: Place<'_>, ends: (u64, Option<u64>), flags: RenameFlags) -> Result<()> {
        let (old, new) = ends;
        match new {
            Some(_) if flags.no_replace => return Err(Errno::EXIST),
            None if flags.exchange => return Err(Errno::NOENT),
            _ => {}
        }
        if self.get(old)?.kind == Kind::Directory && self.is_above(old, to.0) {
            return Err(Errno::INVAL);
        }
        match new {
            Some(new) if self.get(new)?.kind == Kind::Directory && self.is_above(new, from.0) => {
                Err(if flags.exchange { Errno::INVAL } else { Errno::NOTEMPTY })
            }
            _ => Ok(()),
        }
    }

    fn check_replace(&self, old: u64, new: u64) -> Result<()> {
        let (old, new) = (self.get(old)?, self.get(new)?);
        match (old.kind == Kind::Directory, new.kind == Kind::Directory) {
            (true, false) => Err(Errno::NOTDIR),
            (false, true) => Err(Errno::ISDIR),
            (true, true) if !new.dir.is_empty() => Err(Errno::NOTEMPTY),
            _ => Ok(()),
        }
    }

    fn exchange(&mut self, from: Place<'_>, to: Place<'_>, (old, new): (u64, u64)) -> Result<()> {
        self.get_mut(from.0)?.dir.put(from.1, new);
        self.get_mut(to.0)?.dir.put(to.1, old);
        self.reparent(old, from.0, to.0)?;
        self.reparent(new, to.0, from.0)?;
        self.renamed(from, to, old)?;
        self.touch(new)
    }

    fn replace(&mut self, from: Place<'_>, to: Place<'_>, (old, new): (u64, u64)) -> Result<()> {
        self.get_mut(from.0)?.dir.take(from.1);
        self.get_mut(to.0)?.dir.put(to.1, old);
        self.name_removed(to.0, new)?;
        self.reparent(old, from.0, to.0)?;
        self.renamed(from, to, old)
    }

    fn move_to_free(&mut self, from: Place<'_>, to: Place<'_>, old: u64) -> Result<()> {
        self.get_mut(from.0)?.dir.take(from.1);
        self.get_mut(to.0)?.dir.put(to.1, old);
        self.reparent(old, from.0, to.0)?;
        self.renamed(from, to, old)
    }

    /// Updates the link counts of the parents of a moved directory.
    fn reparent(&mut self, ino: u64, from: u64, to: u64) -> Result<()> {
        if self.get(ino)?.kind == Kind::Directory {
            self.get_mut(from)?.nlink -= 1;
            self.get_mut(to)?.nlink += 1;
            self.get_mut(ino)?.dir.parent = to;
        }
        Ok(())
    }

    fn renamed(&mut self, from: Place<'_>, to: Place<'_>, ino: u64) -> Result<()> {
        self.touch_dir(from.0)?;
        if to.0 != from.0 {
            self.touch_dir(to.0)?;
        }
        self.touch(ino)
    }
}
