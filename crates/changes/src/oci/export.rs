//! From a branch to an archive. The order of the entries, and all bytes, depend only on what the
//! branch contains.

use crate::branches::cx;
use crate::compare::xattrs;
use crate::error::{At, Failed};
use crate::oci::error::LayerError;
use crate::oci::item::{Item, Meta, What};
use crate::oci::write::Writer;
use crate::oci::{MAX_DEPTH, MAX_PATH};
use crate::ops::{is_dir, join, list, lookup, read_full};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use std::sync::Arc;
use unionfs::offline::{LINK_INDEX, OPAQUE_MARK, Record, whiteout_name};
use vnode::{Attr, Cx, Entry, Kind, Layer, OpenFlags, Vnode};

/// Bytes copied in one step.
const CHUNK: usize = 256 * 1024;
/// The name whose whiteout has a digest although the name is short.
const OLD_OPAQUE: &[u8] = b"__dir_opaque";
/// Records in the root of a branch that an interrupted command leaves.
const JOURNAL: &[u8] = b".wh..wh.commit";
const WORK: &[u8] = b".wh..wh.work";
const SNAPSHOT: &[u8] = b"snapshot";
/// The remedy for what a layer can't express.
const COMMIT: &str =
    "commit the changes to an empty branch and export that: strata commit --branches BRANCH:EMPTY:BELOW";

/// What was exported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Size of the archive in bytes.
    pub size: u64,
    /// Number of entries, with whiteouts and marks.
    pub entries: u64,
    /// Sockets, which an archive can't contain.
    pub sockets: Vec<Vec<u8>>,
}

struct Export<'a> {
    cx: Cx<'static>,
    out: Writer<'a>,
    /// The first path of each file with several names.
    names: HashMap<u64, Vec<u8>>,
    done: Exported,
}

/// Writes a branch to an archive. The caller makes sure that nothing writes to it meanwhile.
///
/// # Errors
/// The branch can't be read; it contains something that a layer can't express; it changed
/// meanwhile; the archive can't be written.
pub fn export(branch: &dyn Layer, out: &mut dyn Write) -> Result<Exported, LayerError> {
    let root = branch.root();
    let mut export = Export { cx: cx(), out: Writer::new(out), names: HashMap::new(), done: Exported::default() };
    export.check_root(&root)?;
    export.directory(b"", 1, &root)?;
    let size = export.out.finish()?;
    Ok(Exported { size, ..export.done })
}

/// What a directory of a branch contains, sorted.
#[derive(Default)]
struct Listing {
    opaque: bool,
    whiteouts: BTreeSet<Vec<u8>>,
    entries: Vec<Vec<u8>>,
    metacopies: Vec<Vec<u8>>,
}

impl Listing {
    fn is_empty(&self) -> bool {
        !self.opaque && self.whiteouts.is_empty() && self.entries.is_empty()
    }
}

impl Export<'_> {
    /// Refuses a branch that depends on those below, or on the completion of a command.
    fn check_root(&self, root: &Arc<dyn Vnode>) -> Result<(), LayerError> {
        let find = |dir: &Arc<dyn Vnode>, name: &[u8]| lookup(&self.cx, dir, name).at("look up", name);
        if find(root, JOURNAL)?.is_some() {
            let reason = "a commit or discard was interrupted; run the same command again first";
            return Err(LayerError::refused(JOURNAL, reason));
        }
        if let Some(work) = find(root, WORK)?.filter(|entry| is_dir(&entry.vnode))
            && find(&work.vnode, SNAPSHOT)?.is_some()
        {
            return Err(LayerError::refused(WORK, "a snapshot was interrupted; mount the union once, read-write"));
        }
        let index = find(root, LINK_INDEX)?.filter(|entry| is_dir(&entry.vnode));
        if let Some(index) = index
            && !list(&self.cx, &index.vnode).at("list", LINK_INDEX)?.is_empty()
        {
            let reason =
                format!("files with several names were copied up, and other names are on the branches below; {COMMIT}");
            return Err(LayerError::refused(LINK_INDEX, reason));
        }
        Ok(())
    }

    fn directory(&mut self, path: &[u8], depth: usize, dir: &Arc<dyn Vnode>) -> Result<(), LayerError> {
        let listing = self.list(path, dir)?;
        if depth > MAX_DEPTH && !listing.is_empty() {
            return Err(LayerError::refused(path, "contains a path with more than 256 components"));
        }
        // Marks come first: a program that applies the archive in order must not remove its own
        // entries. A mark in the root has no effect.
        if listing.opaque && !path.is_empty() {
            self.mark(join(path, OPAQUE_MARK))?;
        }
        for hidden in &listing.whiteouts {
            self.mark(join(path, &[b".wh.", &hidden[..]].concat()))?;
        }
        for name in &listing.entries {
            let inner = join(path, name);
            let found = lookup(&self.cx, dir, name).at("look up", &inner)?;
            let entry = found.ok_or_else(|| changed(&inner))?;
            self.entry(&inner, &entry)?;
            if is_dir(&entry.vnode) {
                self.directory(&inner, depth + 1, &entry.vnode)?;
            }
        }
        Ok(())
    }

    fn list(&self, path: &[u8], dir: &Arc<dyn Vnode>) -> Result<Listing, LayerError> {
        let mut listing = Listing::default();
        for (name, _) in list(&self.cx, dir).at("list", path)? {
            match Record::of(&name) {
                Record::Entry => listing.entries.push(name),
                Record::Whiteout(hidden) => drop(listing.whiteouts.insert(hidden.to_vec())),
                Record::LongWhiteout if name == whiteout_name(OLD_OPAQUE) => {
                    listing.whiteouts.insert(OLD_OPAQUE.to_vec());
                }
                Record::LongWhiteout => {
                    let reason = "hides a name of more than 251 bytes, which it does not contain; \
                                  discard the removal: strata discard";
                    return Err(LayerError::refused(&join(path, &name), reason));
                }
                Record::Opaque => listing.opaque = true,
                Record::Redirect => {
                    let reason = format!("was renamed, and merges a directory of the branches below; {COMMIT}");
                    return Err(LayerError::refused(path, reason));
                }
                Record::Metacopy(of) => listing.metacopies.push(of.to_vec()),
                Record::Other => {}
            }
        }
        // A metacopy beside the file itself is left over, and has no effect.
        if let Some(of) = listing.metacopies.iter().find(|of| listing.entries.binary_search(of).is_err()) {
            let reason = format!("only its attributes are on this branch, its data are on one below; {COMMIT}");
            return Err(LayerError::refused(&join(path, of), reason));
        }
        Ok(listing)
    }

    fn mark(&mut self, path: Vec<u8>) -> Result<(), LayerError> {
        self.header(&Item { path, what: What::File(0), meta: Meta::default() })
    }

    fn header(&mut self, item: &Item) -> Result<(), LayerError> {
        if item.path.len() > MAX_PATH {
            return Err(LayerError::refused(&item.path, "the path has more than 4096 bytes"));
        }
        self.done.entries += 1;
        Ok(self.out.item(item)?)
    }

    fn entry(&mut self, path: &[u8], entry: &Entry) -> Result<(), LayerError> {
        let attr = &entry.attr;
        if attr.kind() == Kind::Socket {
            self.done.sockets.push(path.to_vec());
            return Ok(());
        }
        let mut what = self.what(path, entry)?;
        let mut meta = self.meta(path, entry)?;
        if attr.kind() != Kind::Directory && attr.nlink > 1 {
            if let Some(first) = self.names.get(&attr.ino) {
                what = What::Link(first.clone());
                // All names have the attributes of the first one.
                meta.xattrs = BTreeMap::new();
            } else {
                self.names.insert(attr.ino, path.to_vec());
            }
        }
        self.header(&Item { path: path.to_vec(), what: what.clone(), meta })?;
        match what {
            What::File(size) => self.data(path, size, entry),
            _ => Ok(()),
        }
    }

    fn what(&self, path: &[u8], entry: &Entry) -> Result<What, Failed> {
        let device = |attr: &Attr| (rustix::fs::major(attr.rdev), rustix::fs::minor(attr.rdev));
        let attr = &entry.attr;
        Ok(match attr.kind() {
            Kind::Regular | Kind::Socket => What::File(attr.size),
            Kind::Directory => What::Dir,
            Kind::Symlink => What::Symlink(entry.vnode.readlink(&self.cx).at("read", path)?),
            Kind::Fifo => What::Fifo,
            Kind::CharDevice => What::Char(device(attr).0, device(attr).1),
            Kind::BlockDevice => What::Block(device(attr).0, device(attr).1),
        })
    }

    fn meta(&self, path: &[u8], entry: &Entry) -> Result<Meta, LayerError> {
        let mut all = xattrs(&self.cx, &entry.vnode).at("read the extended attributes", path)?;
        all.retain(|name, _| !is_label(name));
        if let Some(name) = all.keys().find(|name| name.contains(&b'=') || core::str::from_utf8(name).is_err()) {
            let reason =
                format!("its extended attribute {} has a name that an archive can't contain", name.escape_ascii());
            return Err(LayerError::refused(path, reason));
        }
        let Attr { uid, gid, mtime, .. } = entry.attr;
        let symlink = entry.attr.kind() == Kind::Symlink;
        let mode = if symlink { 0o777 } else { entry.attr.perm() };
        Ok(Meta { mode, uid, gid, mtime, xattrs: all })
    }

    fn data(&mut self, path: &[u8], size: u64, entry: &Entry) -> Result<(), LayerError> {
        let file = entry.vnode.open(&self.cx, OpenFlags::RDONLY).at("open", path)?;
        let mut buffer = vec![0; CHUNK.min(usize::try_from(size).unwrap_or(CHUNK))];
        let mut at = 0;
        while at < size {
            let want = usize::try_from(size - at).unwrap_or(CHUNK).min(CHUNK);
            let part = buffer.get_mut(..want).unwrap_or_default();
            if read_full(&self.cx, &*file, part, at).at("read", path)? < want {
                return Err(changed(path));
            }
            self.out.data(part)?;
            at += want as u64;
        }
        self.out.pad()?;
        let after = entry.vnode.getattr(&self.cx).at("read the attributes", path)?;
        if (after.size, after.mtime) != (size, entry.attr.mtime) {
            return Err(changed(path));
        }
        Ok(())
    }
}

fn changed(path: &[u8]) -> LayerError {
    LayerError::refused(path, "changed meanwhile; export the branch while nothing writes to it")
}

/// Whether an extended attribute is the label of a security module, which labels files by the
/// rules of its host.
pub(crate) fn is_label(name: &[u8]) -> bool {
    name == b"security.selinux" || name.starts_with(b"security.SMACK64")
}
