//! The union's own names in the root of a branch. Somebody else may have put anything there: it is never followed, and
//! what is in the way is given another name.

use crate::branch::Core;
use crate::copyup::keeping_times;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vnode::{Cx, Errno, Kind, Name, RenameFlags, Result, Vnode};

/// What was in the way gets this name, with a number after it.
const ASIDE: &str = ".wh..wh.aside";
/// So many numbers are tried.
const ASIDES: u32 = 1000;

/// A directory of the union's own in the root of a branch, remembered once it was found or made.
#[derive(Debug)]
pub(crate) struct OwnDir {
    name: &'static [u8],
    known: Mutex<Option<Arc<dyn Vnode>>>,
    /// It was said that something else has the name.
    told: AtomicBool,
}

impl OwnDir {
    pub(crate) fn new(name: &'static [u8]) -> Self {
        Self { name, known: Mutex::new(None), told: AtomicBool::new(false) }
    }

    /// The directory, if there is one. Anything else of that name is ignored, with one warning.
    fn get(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, path: &Path) -> Result<Option<Arc<dyn Vnode>>> {
        let mut known = self.known.lock();
        if known.is_none() {
            let found = root.lookup(cx, Name::new(self.name)?)?.map(|entry| entry.vnode);
            let is_dir = found.as_ref().is_none_or(|vnode| vnode.kind() == Kind::Directory);
            if !is_dir && !self.told.swap(true, Ordering::Relaxed) {
                let name = self.name.escape_ascii();
                tracing::warn!(branch = %path.display(), %name, "this is to be a directory, and is none: ignored");
            }
            *known = found.filter(|_| is_dir);
        }
        Ok(known.clone())
    }

    /// The directory, made if there is none. Anything else of that name gets out of the way.
    fn make(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, path: &Path) -> Result<Arc<dyn Vnode>> {
        let mut known = self.known.lock();
        if let Some(dir) = &*known {
            return Ok(dir.clone());
        }
        let name = Name::new(self.name)?;
        let found = match root.lookup(cx, name)? {
            Some(entry) if entry.vnode.kind() == Kind::Directory => Some(entry.vnode),
            Some(_) => {
                move_aside(cx, root, name, path)?;
                None
            }
            None => None,
        };
        let dir = match found {
            Some(dir) => dir,
            None => keeping_times(cx, root, || root.mkdir(cx, name, 0o700))?.vnode,
        };
        *known = Some(dir.clone());
        Ok(dir)
    }

    /// Forgets the directory. Answers whether it was known.
    pub(crate) fn forget(&self) -> bool {
        let old = self.known.lock().take();
        old.is_some()
    }

    /// Forgets the directory if it is still this one.
    fn forget_this(&self, dir: &Arc<dyn Vnode>) {
        let old = self.known.lock().take_if(|known| Arc::ptr_eq(known, dir));
        drop(old);
    }
}

/// Which of the directories.
#[derive(Clone, Copy)]
pub(crate) enum Own {
    Work,
    Links,
}

impl Core {
    /// A directory of the union's own on that branch, if it is there.
    pub(crate) fn own_dir(&self, cx: &Cx<'_>, branch: u16, which: Own) -> Result<Option<Arc<dyn Vnode>>> {
        let state = self.branch(branch)?;
        state.own(which).get(&self.server(cx), &state.root, &state.path)
    }

    /// Runs `call` with a directory of the union's own, which is made if need be; and again with a new one, should it turn out
    /// that somebody has removed it.
    pub(crate) fn in_own_dir<T>(
        &self,
        cx: &Cx<'_>,
        branch: u16,
        which: Own,
        mut call: impl FnMut(&Arc<dyn Vnode>) -> Result<T>,
    ) -> Result<T> {
        let state = self.branch(branch)?;
        let server = self.server(cx);
        let own = state.own(which);
        let dir = own.make(&server, &state.root, &state.path)?;
        match call(&dir) {
            Err(Errno::NOENT | Errno::STALE | Errno::NOTDIR) => {
                own.forget_this(&dir);
                call(&own.make(&server, &state.root, &state.path)?)
            }
            other => other,
        }
    }
}

/// Gives what has one of the union's names in a branch's root another one.
pub(crate) fn move_aside(cx: &Cx<'_>, root: &Arc<dyn Vnode>, name: Name<'_>, path: &Path) -> Result<()> {
    let flags = RenameFlags { no_replace: true, exchange: false };
    for number in 0..ASIDES {
        let aside = format!("{ASIDE}{number}");
        match keeping_times(cx, root, || root.rename(cx, name, root, Name::new(aside.as_bytes())?, flags)) {
            Err(Errno::EXIST) => {}
            Ok(()) => {
                tracing::warn!(branch = %path.display(), %name, "in the way of the union, and none of it: now {aside}");
                return Ok(());
            }
            Err(errno) => {
                tracing::warn!(branch = %path.display(), %name, %errno, "in the way of the union: remove or rename it");
                return Err(errno);
            }
        }
    }
    tracing::warn!(branch = %path.display(), %name, "in the way of the union, as much before it was: remove {ASIDE}*");
    Err(Errno::EXIST)
}
