//! The union's own directories in the root of a branch. Objects that are not the union's may have
//! these names. They are never used, and are renamed if they are in the way.

use crate::ownnames::{LINKS, WORK, is_index_name, is_work_name};
use crate::times::preserving_times;
use crate::trust::{OTHERS, is_servers};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vnode::{Cx, Entry, Errno, Kind, Name, RenameFlags, Result, SetAttr, Vnode};

/// Prefix of the new names of renamed objects, before a number.
pub(crate) const ASIDE: &str = ".wh..wh.aside";
/// Maximum number of such names to try.
pub(crate) const ASIDES: u32 = 1000;

/// Links a lower object to one of the union's own names in `dir`. A file that has the name is a
/// leftover to which nothing refers, and is replaced.
pub(crate) fn link_over(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: Name<'_>, vnode: &Arc<dyn Vnode>) -> Result<Entry> {
    match dir.link(cx, name, vnode) {
        Err(Errno::EXIST) => {
            dir.unlink(cx, name)?;
            dir.link(cx, name, vnode)
        }
        other => other,
    }
}

/// One of the union's own directories in the root of a branch, remembered once it was found or
/// created.
#[derive(Debug)]
pub(crate) struct OwnDir {
    which: Own,
    known: Mutex<Option<Arc<dyn Vnode>>>,
    /// Whether the warning was logged that something else has the name.
    warned: AtomicBool,
}

impl OwnDir {
    pub(crate) fn new(which: Own) -> Self {
        Self { which, known: Mutex::new(None), warned: AtomicBool::new(false) }
    }

    /// Returns the directory, if it exists. Anything else of that name is ignored, with one
    /// warning.
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
            match self.which.why_foreign(cx, &entry)? {
                None => {
                    if writes {
                        make_private(cx, &entry, path);
                    }
                    *known = Some(entry.vnode);
                }
                Some(why) if !self.warned.swap(true, Ordering::Relaxed) => {
                    tracing::warn!(branch = %path.display(), %name, "ignored, because it is not the union's: {why}");
                }
                Some(_) => {}
            }
        }
        Ok(known.clone())
    }

    /// Returns the directory, which is created if necessary. Anything else of that name is renamed.
    pub(crate) fn make(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, path: &Path) -> Result<Arc<dyn Vnode>> {
        let mut known = self.known.lock();
        if let Some(dir) = &*known {
            return Ok(dir.clone());
        }
        let name = self.which.name()?;
        let found = match root.lookup(cx, name)? {
            Some(entry) if self.which.why_foreign(cx, &entry)?.is_none() => {
                make_private(cx, &entry, path);
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
            // No check of the owner: it was created just now, even if a file system without owners
            // shows another one.
            None => preserving_times(cx, root, || root.mkdir(cx, name, 0o700))?.vnode,
        };
        *known = Some(dir.clone());
        Ok(dir)
    }

    /// Whether the directory is known to exist.
    pub(crate) fn is_known(&self) -> bool {
        self.known.lock().is_some()
    }

    /// Forgets the directory. Returns whether it was known.
    pub(crate) fn forget(&self) -> bool {
        let old = self.known.lock().take();
        old.is_some()
    }

    /// Forgets the directory if it is this one.
    pub(crate) fn forget_this(&self, dir: &Arc<dyn Vnode>) {
        let old = self.known.lock().take_if(|known| Arc::ptr_eq(known, dir));
        drop(old);
    }
}

/// One of the union's own directories.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Own {
    Work,
    Links,
}

impl Own {
    pub(crate) fn name(self) -> Result<Name<'static>> {
        Name::new(match self {
            Self::Work => WORK,
            Self::Links => LINKS,
        })
    }

    /// Returns why the object that has the name can't be the union's directory; `None` if it can.
    ///
    /// Users who may write the branch's root can create a directory of that name, or give the name
    /// to another user's directory.
    pub(crate) fn why_foreign(self, cx: &Cx<'_>, entry: &Entry) -> Result<Option<&'static str>> {
        if entry.vnode.kind() != Kind::Directory {
            return Ok(Some("it is not a directory"));
        }
        // `cx` is the server's.
        if !is_servers(&entry.attr, cx.uid) {
            return Ok(Some("a user other than root and the server's user owns it or can write it"));
        }
        if matches!(self, Self::Work) && entry.attr.mode & OTHERS != 0 {
            return Ok(Some("its mode is not 700"));
        }
        let mut foreign = false;
        entry.vnode.readdir(cx, 0, &mut |inside| {
            foreign = !self.may_hold(inside.name.as_bytes());
            !foreign
        })?;
        Ok(foreign.then_some("it holds files that are not a union's"))
    }

    /// Whether an entry of the directory may have this name.
    fn may_hold(self, name: &[u8]) -> bool {
        // An NFS client's name for a file that was removed while open.
        name.starts_with(b".nfs")
            || match self {
                Self::Work => is_work_name(name),
                Self::Links => is_index_name(name),
            }
    }
}

/// Sets the mode of one of the union's directories to 0700: it holds files of directories that
/// others may not search.
fn make_private(cx: &Cx<'_>, entry: &Entry, path: &Path) {
    if entry.attr.mode & OTHERS == 0 {
        return;
    }
    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    if let Err(errno) = entry.vnode.setattr(cx, &set, None) {
        tracing::warn!(branch = %path.display(), %errno, "other users can search one of the union's directories; run chmod 700 on .wh..wh.work and .wh..wh.links");
    }
}

/// Renames a foreign object that has one of the union's names in a branch's root.
pub(crate) fn move_aside(cx: &Cx<'_>, root: &Arc<dyn Vnode>, name: Name<'_>, path: &Path) -> Result<()> {
    let flags = RenameFlags { no_replace: true, ..RenameFlags::default() };
    for number in 0..ASIDES {
        let aside = format!("{ASIDE}{number}");
        match preserving_times(cx, root, || root.rename(cx, name, root, Name::new(aside.as_bytes())?, flags)) {
            Err(Errno::EXIST) => {}
            Ok(()) => {
                tracing::warn!(branch = %path.display(), %name, "renamed to {aside}: it has a name that the union needs, and is not the union's");
                return Ok(());
            }
            Err(errno) => {
                tracing::warn!(branch = %path.display(), %name, %errno, "it has a name that the union needs, and could not be renamed; remove or rename it");
                return Err(errno);
            }
        }
    }
    tracing::warn!(branch = %path.display(), %name, "it has a name that the union needs, and all new names for it are taken; remove {ASIDE}*");
    Err(Errno::EXIST)
}
