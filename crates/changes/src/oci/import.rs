//! From an archive to a branch. Every name is looked up alone, in the directory that the names
//! before it led to, and no symbolic link is followed: nothing outside of the branch can be
//! reached.

use crate::branches::cx;
use crate::compare::xattrs;
use crate::error::{At, Failed};
use crate::oci::error::LayerError;
use crate::oci::export::is_label;
use crate::oci::item::{Item, Meta, What};
use crate::oci::place::{Last, Place};
use crate::oci::read::{ReadItem, Reader};
use crate::ops::{is_dir, list, lookup, remove_tree, resolve, write_all};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::Arc;
use unionfs::offline::{OPAQUE_MARK, is_acl_alias, whiteout_name};
use vnode::{Cx, Entry, Errno, Kind, Layer, Name, OpenFlags, SetAttr, SetTime, Time, Vnode, XattrFlags};

/// Bytes copied in one step.
const CHUNK: usize = 256 * 1024;
/// Extended attributes of the union's own records.
const OWN: &[u8] = b"trusted.strata.";
/// Maximum length of a symbolic link's target, in bytes.
const MAX_TARGET: usize = 4095;

/// How an archive is imported.
#[derive(Clone, Copy, Debug)]
pub struct ImportOptions {
    /// Set owners, set-user-ID bits, and extended attributes in `security.` and `trusted.`, and
    /// create device nodes. Without it, all files belong to this process, and an archive with
    /// device nodes is refused.
    pub privileged: bool,
}

/// What was imported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Number of entries, with whiteouts and marks.
    pub entries: u64,
    /// What was left out, each kind once.
    pub warnings: BTreeSet<String>,
}

/// Creates the files, whiteouts and opaque marks of an archive in an empty branch. Removes them
/// again after an error.
///
/// # Errors
/// The branch is not empty; the archive is malformed or incomplete, or would reach outside of the
/// branch; a file can't be created.
pub fn import(input: &mut dyn Read, branch: &dyn Layer, options: ImportOptions) -> Result<Imported, LayerError> {
    let (cx, root) = (cx(), branch.root());
    if !list(&cx, &root).at("list", b"")?.is_empty() {
        return Err(LayerError::NotEmpty);
    }
    let mut import = Import { cx, root, options, dirs: BTreeMap::new(), done: Imported::default() };
    let imported = import.all(Reader::new(input)).and_then(|()| Ok(branch.sync(&cx).at("write to the disk", b"")?));
    let Err(error) = imported else { return Ok(import.done) };
    match import.remove_all() {
        Ok(()) => Err(error),
        Err(failed) => Err(LayerError::Remains { cause: Box::new(error), failed }),
    }
}

struct Import {
    cx: Cx<'static>,
    root: Arc<dyn Vnode>,
    options: ImportOptions,
    /// The attributes of all directories, which are set at the end: entries change the times, and a
    /// directory may be read-only. `None`: the archive has no entry for it.
    dirs: BTreeMap<Vec<u8>, Option<Meta>>,
    done: Imported,
}

impl Import {
    fn all(&mut self, mut reader: Reader<'_>) -> Result<(), LayerError> {
        while let Some(ReadItem { item, unknown }) = reader.next()? {
            for key in unknown {
                // Attributes of one kind have one prefix: SCHILY.acl.access.
                let kind = key.rsplitn(2, |&b| b == b'.').last().unwrap_or_default();
                self.warn(format!("pax records {} are ignored", kind.escape_ascii()));
            }
            self.item(&item, &mut reader)?;
            self.done.entries += 1;
        }
        reader.drain()?;
        self.finish_directories()
    }

    fn warn(&mut self, text: String) {
        // An archive must not fill the memory with warnings.
        if self.done.warnings.len() < 100 {
            self.done.warnings.insert(text);
        }
    }

    fn item(&mut self, item: &Item, reader: &mut Reader<'_>) -> Result<(), LayerError> {
        let refuse = |reason: &str| LayerError::refused(&item.path, reason);
        let place = Place::parse(&item.path).map_err(refuse)?;
        let dir = self.parent(&place, &item.path)?;
        match place.last {
            Last::Root if item.what == What::Dir => drop(self.dirs.insert(Vec::new(), Some(item.meta.clone()))),
            Last::Root => return Err(refuse("only a directory can be the root")),
            Last::Opaque if place.dir.is_empty() => {
                let reason = "hides everything below the root, which a union can't; mount the branch without those below \
                              and remove this entry from the archive";
                return Err(refuse(reason));
            }
            Last::Opaque => self.mark(&dir, OPAQUE_MARK, item)?,
            Last::Whiteout(hidden) => self.mark(&dir, &whiteout_name(hidden.as_bytes()), item)?,
            Last::Entry(name) => {
                let path = place.path(name);
                match &item.what {
                    What::Dir => self.directory(&dir, name, path, item)?,
                    What::Link(target) => self.link(&dir, name, &path, target)?,
                    _ => self.file(&dir, name, &path, item, reader)?,
                }
            }
        }
        Ok(())
    }

    /// Returns the directory of an entry. Creates those that the archive has no entry for (yet).
    fn parent(&mut self, place: &Place<'_>, shown: &[u8]) -> Result<Arc<dyn Vnode>, LayerError> {
        let mut at = Arc::clone(&self.root);
        let mut path = Vec::new();
        for &name in &place.dir {
            path = crate::ops::join(&path, name.as_bytes());
            at = match at.lookup(&self.cx, name).at("look up", &path)? {
                Some(entry) if is_dir(&entry.vnode) => entry.vnode,
                Some(_) => {
                    let reason = format!("{} is not a directory in the archive", path.escape_ascii());
                    return Err(LayerError::refused(shown, reason));
                }
                None => {
                    self.dirs.insert(path.clone(), None);
                    at.mkdir(&self.cx, name, 0o700).at("create the directory", &path)?.vnode
                }
            };
        }
        Ok(at)
    }

    /// Creates a whiteout or an opaque mark.
    fn mark(&self, dir: &Arc<dyn Vnode>, name: &[u8], item: &Item) -> Result<(), LayerError> {
        if !matches!(item.what, What::File(_) | What::Link(_)) {
            return Err(LayerError::refused(&item.path, "a whiteout must be a regular file"));
        }
        let made = Name::new(name).and_then(|name| dir.mknod(&self.cx, name, Kind::Regular.mode_bits() | 0o444, 0));
        match made {
            Ok(_) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Ok(Err(errno).at("create the whiteout", &item.path)?),
        }
    }

    fn directory(
        &mut self,
        dir: &Arc<dyn Vnode>,
        name: Name<'_>,
        path: Vec<u8>,
        item: &Item,
    ) -> Result<(), LayerError> {
        let found = dir.lookup(&self.cx, name).at("look up", &path)?;
        if !found.as_ref().is_some_and(|entry| is_dir(&entry.vnode)) {
            if found.is_some() {
                dir.unlink(&self.cx, name).at("replace", &path)?;
            }
            dir.mkdir(&self.cx, name, 0o700).at("create the directory", &path)?;
        }
        self.dirs.insert(path, Some(item.meta.clone()));
        Ok(())
    }

    /// Removes what an earlier entry created with this name.
    fn make_room(&self, dir: &Arc<dyn Vnode>, name: Name<'_>, path: &[u8]) -> Result<(), LayerError> {
        match dir.lookup(&self.cx, name).at("look up", path)? {
            None => Ok(()),
            Some(entry) if is_dir(&entry.vnode) => {
                Err(LayerError::refused(path, "is a directory and another file in the archive"))
            }
            Some(_) => Ok(dir.unlink(&self.cx, name).at("replace", path)?),
        }
    }

    fn link(&self, dir: &Arc<dyn Vnode>, name: Name<'_>, path: &[u8], target: &[u8]) -> Result<(), LayerError> {
        let refuse = |reason: String| LayerError::refused(path, reason);
        let shown = target.escape_ascii();
        let place = Place::parse(target).map_err(|why| refuse(format!("a hard link to {shown}: {why}")))?;
        let Last::Entry(last) = place.last else {
            return Err(refuse(format!("a hard link to {shown}, which is no file")));
        };
        // Symbolic links on the way are not followed.
        let found = resolve(&self.cx, &self.root, &place.path(last)).at("look up", target)?;
        let Some(found) = found.filter(|found| !is_dir(found)) else {
            return Err(refuse(format!("a hard link to {shown}, which is no earlier file of the archive")));
        };
        if let Some(present) = dir.lookup(&self.cx, name).at("look up", path)?
            && present.vnode.id() == found.id()
        {
            return Ok(());
        }
        self.make_room(dir, name, path)?;
        dir.link(&self.cx, name, &found).at("create the hard link", path)?;
        Ok(())
    }

    fn file(
        &mut self,
        dir: &Arc<dyn Vnode>,
        name: Name<'_>,
        path: &[u8],
        item: &Item,
        reader: &mut Reader<'_>,
    ) -> Result<(), LayerError> {
        self.make_room(dir, name, path)?;
        let entry = match &item.what {
            What::File(_) => self.regular(dir, name, path, reader)?,
            What::Symlink(target) => {
                if target.is_empty() || target.len() > MAX_TARGET || target.contains(&0) {
                    return Err(LayerError::refused(path, "a symbolic link with an impossible target"));
                }
                dir.symlink(&self.cx, name, target).at("create the symbolic link", path)?
            }
            What::Char(major, minor) => self.device(dir, name, path, (Kind::CharDevice, *major, *minor))?,
            What::Block(major, minor) => self.device(dir, name, path, (Kind::BlockDevice, *major, *minor))?,
            What::Fifo => {
                let mode = Kind::Fifo.mode_bits() | 0o600;
                dir.mknod(&self.cx, name, mode, 0).at("create the FIFO", path)?
            }
            What::Dir | What::Link(_) => return Err(LayerError::refused(path, "has an impossible type")),
        };
        Ok(self.attributes(&entry.vnode, path, &item.meta)?)
    }

    fn regular(
        &self,
        dir: &Arc<dyn Vnode>,
        name: Name<'_>,
        path: &[u8],
        reader: &mut Reader<'_>,
    ) -> Result<Entry, LayerError> {
        let (entry, file) = dir.create(&self.cx, name, 0o600, OpenFlags::RDWR).at("create the file", path)?;
        let mut buffer = vec![0; CHUNK];
        let mut at = 0;
        loop {
            let read = reader.data(&mut buffer)?;
            if read == 0 {
                return Ok(entry);
            }
            write_all(&self.cx, &*file, buffer.get(..read).unwrap_or_default(), at).at("write", path)?;
            at += read as u64;
        }
    }

    fn device(
        &self,
        dir: &Arc<dyn Vnode>,
        name: Name<'_>,
        path: &[u8],
        (kind, major, minor): (Kind, u32, u32),
    ) -> Result<Entry, LayerError> {
        if !self.options.privileged {
            return Err(LayerError::refused(path, "a device node, which only root can create; import as root"));
        }
        let number = rustix::fs::makedev(major, minor);
        Ok(dir.mknod(&self.cx, name, kind.mode_bits() | 0o600, number).at("create the device node", path)?)
    }

    /// Sets owner, mode, extended attributes and time, in this order: each may reset the next.
    fn attributes(&mut self, to: &Arc<dyn Vnode>, path: &[u8], meta: &Meta) -> Result<(), Failed> {
        let cx = self.cx;
        let mut mode = meta.mode;
        if self.options.privileged {
            let owner = SetAttr { uid: Some(meta.uid), gid: Some(meta.gid), ..SetAttr::default() };
            to.setattr(&cx, &owner, None).at("set the owner", path)?;
        } else if mode & 0o6000 != 0 && to.kind() != Kind::Directory {
            // They would give away the rights of this user.
            mode &= !0o6000;
            self.warn("set-user-ID and set-group-ID bits are left out, because only root can set owners".to_owned());
        }
        self.xattrs(to, path, meta)?;
        if to.kind() != Kind::Symlink {
            to.setattr(&cx, &SetAttr { mode: Some(mode), ..SetAttr::default() }, None).at("set the mode", path)?;
        }
        set_mtime(&cx, to, meta.mtime).at("set the times", path)
    }

    fn xattrs(&mut self, to: &Arc<dyn Vnode>, path: &[u8], meta: &Meta) -> Result<(), Failed> {
        const STEP: &str = "set the extended attributes";
        let cx = self.cx;
        // The directory above may have a default ACL, which new files inherit.
        let present = xattrs(&cx, to).at(STEP, path)?;
        for name in present.keys().filter(|name| !meta.xattrs.contains_key(*name) && !is_label(name)) {
            to.removexattr(&cx, name).at(STEP, path)?;
        }
        for (name, value) in meta.xattrs.iter().filter(|(name, value)| present.get(*name) != Some(value)) {
            if is_acl_alias(name) {
                // The archive also has the ACL itself.
            } else if is_label(name) {
                self.warn("labels of security modules are left out".to_owned());
            } else if name.starts_with(OWN) {
                self.warn("extended attributes trusted.strata. are left out: they are reserved for unions".to_owned());
            } else if !self.options.privileged && (name.starts_with(b"security.") || name.starts_with(b"trusted.")) {
                let kind = name.split(|&b| b == b'.').next().unwrap_or_default();
                self.warn(format!("extended attributes {}. are left out: only root can set them", kind.escape_ascii()));
            } else {
                to.setxattr(&cx, name, value, XattrFlags::default()).at(STEP, path)?;
            }
        }
        Ok(())
    }

    /// Sets the attributes of all directories, the deepest first.
    fn finish_directories(&mut self) -> Result<(), LayerError> {
        for (path, meta) in std::mem::take(&mut self.dirs).into_iter().rev() {
            let found = resolve(&self.cx, &self.root, &path).at("look up", &path)?;
            let dir = found.ok_or(Errno::STALE).at("look up", &path)?;
            match meta {
                Some(meta) => self.attributes(&dir, &path, &meta)?,
                None => {
                    let mode = SetAttr { mode: Some(0o755), ..SetAttr::default() };
                    dir.setattr(&self.cx, &mode, None).at("set the mode", &path)?;
                }
            }
        }
        Ok(())
    }

    /// Removes everything from the branch.
    fn remove_all(&self) -> Result<(), Failed> {
        self.open_directories(&self.root, true)?;
        for (name, _) in list(&self.cx, &self.root).at("list", b"")? {
            remove_tree(&self.cx, &self.root, &name).at("remove what was imported", &name)?;
        }
        Ok(())
    }

    /// Makes all directories writable for this process. Only those of an unprivileged one aren't.
    fn open_directories(&self, dir: &Arc<dyn Vnode>, root: bool) -> Result<(), Failed> {
        if self.options.privileged {
            return Ok(());
        }
        if !root {
            let mode = SetAttr { mode: Some(0o700), ..SetAttr::default() };
            dir.setattr(&self.cx, &mode, None).at("remove what was imported", b"")?;
        }
        for (name, kind) in list(&self.cx, dir).at("list", b"")? {
            if kind == Kind::Directory
                && let Some(entry) = lookup(&self.cx, dir, &name).at("look up", &name)?
                && is_dir(&entry.vnode)
            {
                self.open_directories(&entry.vnode, false)?;
            }
        }
        Ok(())
    }
}

fn set_mtime(cx: &Cx<'_>, to: &Arc<dyn Vnode>, mtime: Time) -> vnode::Result<()> {
    to.setattr(cx, &SetAttr { mtime: Some(SetTime::At(mtime)), ..SetAttr::default() }, None).map(drop)
}
