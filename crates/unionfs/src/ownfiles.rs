//! The union's own names in the root of a branch. Somebody else may have put anything there: it is never followed, and
//! what is in the way is given another name.

use crate::ownnames::{LINKS, WORK, is_index_name, is_work_name};
use crate::times::keeping_times;
use crate::trust::{OTHERS, is_servers};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vnode::{Cx, Entry, Errno, Kind, Name, RenameFlags, Result, SetAttr, Vnode};

/// What was in the way gets this name, with a number after it.
const ASIDE: &str = ".wh..wh.aside";
/// So many numbers are tried.
const ASIDES: u32 = 1000;

/// A directory of the union's own in the root of a branch, remembered once it was found or made.
#[derive(Debug)]
pub(crate) struct OwnDir {
    which: Own,
    known: Mutex<Option<Arc<dyn Vnode>>>,
    /// It was said that something else has the name.
    told: AtomicBool,
}

impl OwnDir {
    pub(crate) fn new(which: Own) -> Self {
        Self { which, known: Mutex::new(None), told: AtomicBool::new(false) }
    }

    /// The directory, if there is one. Anything else of that name is ignored, with one warning.
    pub(crate) fn get(
        &self,
        cx: &Cx<'_>,
        root: &Arc<dyn Vnode>,
        path: &Path,
        writes: bool,
    ) -> Result<Option<Arc<dyn Vnode>>> {
        let mut known = self.known.lock();
        if known.is_none() {
            let name = self.which.name()?;
            let Some(entry) = root.lookup(cx, name)? else { return Ok(None) };
            match self.which.why_not(cx, &entry)? {
                None => {
                    if writes {
                        shut(cx, &entry, path);
                    }
                    *known = Some(entry.vnode);
                }
                Some(why) if !self.told.swap(true, Ordering::Relaxed) => {
                    tracing::warn!(branch = %path.display(), %name, "ignored, not of the union's making: {why}");
                }
                Some(_) => {}
            }
        }
        Ok(known.clone())
    }

    /// The directory, made if there is none. Anything else of that name gets out of the way.
    pub(crate) fn make(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, path: &Path) -> Result<Arc<dyn Vnode>> {
        let mut known = self.known.lock();
        if let Some(dir) = &*known {
            return Ok(dir.clone());
        }
        let name = self.which.name()?;
        let found = match root.lookup(cx, name)? {
            Some(entry) if self.which.why_not(cx, &entry)?.is_none() => {
                shut(cx, &entry, path);
                Some(entry.vnode)
            }
            Some(_) => {
                move_aside(cx, root, name, path)?;
                None
            }
            None => None,
        };
        let dir = match found {
            Some(dir) => dir,
            // Made now: its owner is the server's user, whatever a file system without owners says.
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
    pub(crate) fn forget_this(&self, dir: &Arc<dyn Vnode>) {
        let old = self.known.lock().take_if(|known| Arc::ptr_eq(known, dir));
        drop(old);
    }
}

/// Which of the directories.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Own {
    Work,
    Links,
}

impl Own {
    fn name(self) -> Result<Name<'static>> {
        Name::new(match self {
            Self::Work => WORK,
            Self::Links => LINKS,
        })
    }

    /// Why what has the name can't be the directory that the server made; `None` if it can.
    ///
    /// Who may write the branch's root can make a directory of that name, or give the name to another user's directory.
    fn why_not(self, cx: &Cx<'_>, entry: &Entry) -> Result<Option<&'static str>> {
        if entry.vnode.kind() != Kind::Directory {
            return Ok(Some("it is no directory"));
        }
        // `cx` is the server's own.
        if !is_servers(&entry.attr, cx.uid) {
            return Ok(Some("others than root and the server's user own it or may write it"));
        }
        if matches!(self, Self::Work) && entry.attr.mode & OTHERS != 0 {
            return Ok(Some("its mode is not 700"));
        }
        let mut foreign = false;
        entry.vnode.readdir(cx, 0, &mut |inside| {
            foreign = !self.may_hold(inside.name.as_bytes());
            !foreign
        })?;
        Ok(foreign.then_some("it holds what no union puts there"))
    }

    /// May an entry of the directory have that name?
    fn may_hold(self, name: &[u8]) -> bool {
        // What an NFS client makes of a file that is removed while open.
        name.starts_with(b".nfs")
            || match self {
                Self::Work => is_work_name(name),
                Self::Links => is_index_name(name),
            }
    }
}

/// Takes the rights of others away from a directory of the union: it holds files of directories that these may not search.
fn shut(cx: &Cx<'_>, entry: &Entry, path: &Path) {
    if entry.attr.mode & OTHERS == 0 {
        return;
    }
    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    if let Err(errno) = entry.vnode.setattr(cx, &set, None) {
        tracing::warn!(branch = %path.display(), %errno, "a directory of the union can be searched by everybody: chmod 700 .wh..wh.*");
    }
}

/// Gives what has one of the union's names in a branch's root another one.
pub(crate) fn move_aside(cx: &Cx<'_>, root: &Arc<dyn Vnode>, name: Name<'_>, path: &Path) -> Result<()> {
    let flags = RenameFlags { no_replace: true, ..RenameFlags::default() };
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

/// Gives the index of hard links of a branch another name: it is of a union that numbered files otherwise.
pub(crate) fn move_links_aside(cx: &Cx<'_>, root: &Arc<dyn Vnode>, path: &Path) -> Result<()> {
    let name = Own::Links.name()?;
    if root.lookup(cx, name)?.is_none() { Ok(()) } else { move_aside(cx, root, name, path) }
}
