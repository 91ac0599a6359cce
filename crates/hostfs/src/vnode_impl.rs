//! The vnode of a host object.

use crate::handle::{FileHandle, LargeHandle, SmallHandle};
use crate::identity::{self, HostInode};
use crate::layer::Shared;
use core::fmt;
use std::any::Any;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use vnode::{
    Attr, Cx, DirEntry, Entry, Errno, IoctlReply, Kind, Name, NameSink, OpenFile, OpenFlags, RenameFlags, Result,
    SetAttr, StatFs, Vnode, XattrFlags,
};

/// An object of the host. Small, because there can be millions: 40 bytes, or 56 with the counters
/// of its `Arc`.
pub(crate) struct HostVnode {
    fs: Arc<Shared>,
    id: u64,
    locator: Locator,
}

/// How an object is opened again. Each variant includes the state, so that no byte is lost to
/// alignment.
pub(crate) enum Locator {
    /// The root.
    Root(State),
    /// By a handle stored inline.
    Small(State, SmallHandle),
    /// By a longer handle.
    Large(State, Box<LargeHandle>),
    /// By its last known name.
    Place(State, Box<Place>),
}

/// The kind of an object, and whether the object is pinned after its removal.
pub(crate) struct State(AtomicU8);

const PINNED: u8 = 0x80;

impl State {
    pub(crate) fn new(kind: Kind) -> Self {
        Self(AtomicU8::new(kind.d_type() as u8))
    }

    fn kind(&self) -> Kind {
        let bits = u32::from(self.0.load(Ordering::Relaxed) & !PINNED);
        Kind::from_mode(bits << 12).unwrap_or(Kind::Regular)
    }
}

/// An object's last known place, and the inode expected there.
pub(crate) struct Place {
    pub(crate) inode: HostInode,
    pub(crate) at: Mutex<At>,
}

/// A name in a directory.
#[derive(Clone)]
pub(crate) struct At {
    pub(crate) parent: Arc<HostVnode>,
    pub(crate) name: Box<[u8]>,
}

impl Locator {
    pub(crate) fn root() -> Self {
        Self::Root(State::new(Kind::Directory))
    }

    pub(crate) fn handle(kind: Kind, handle: FileHandle) -> Self {
        match handle {
            FileHandle::Small(small) => Self::Small(State::new(kind), small),
            FileHandle::Large(large) => Self::Large(State::new(kind), large),
        }
    }

    pub(crate) fn place(kind: Kind, inode: HostInode, at: At) -> Self {
        Self::Place(State::new(kind), Box::new(Place { inode, at: Mutex::new(at) }))
    }

    fn state(&self) -> &State {
        match self {
            Self::Root(state) | Self::Small(state, _) | Self::Large(state, _) | Self::Place(state, _) => state,
        }
    }
}

impl HostVnode {
    pub(crate) fn new(fs: Arc<Shared>, id: u64, locator: Locator) -> Self {
        Self { fs, id, locator }
    }

    pub(crate) fn fs(&self) -> &Arc<Shared> {
        &self.fs
    }

    pub(crate) fn number(&self) -> u64 {
        self.id
    }

    /// Returns a generation that distinguishes objects with the same number, in all likelihood: a
    /// hash of the file handle, which includes the host's own generation. 0 without handles.
    pub(crate) fn handle_hash(&self) -> u32 {
        let (kind, bytes) = match &self.locator {
            Locator::Small(_, handle) => handle.parts(),
            Locator::Large(_, handle) => handle.parts(),
            Locator::Root(_) | Locator::Place(..) => return 0,
        };
        identity::generation(kind, bytes)
    }

    pub(crate) fn locator(&self) -> &Locator {
        &self.locator
    }

    pub(crate) fn object_kind(&self) -> Kind {
        self.locator.state().kind()
    }

    /// Whether the object is pinned because it was removed through this layer, or because it never
    /// had a name.
    pub(crate) fn is_pinned(&self) -> bool {
        self.locator.state().0.load(Ordering::Acquire) & PINNED != 0
    }

    /// Called only by [`crate::table::Table`], under its lock.
    pub(crate) fn set_pinned(&self, pinned: bool) {
        let state = &self.locator.state().0;
        if pinned {
            state.fetch_or(PINNED, Ordering::Release);
        } else {
            state.fetch_and(!PINNED, Ordering::Release);
        }
    }

    /// Whether two vnodes with the same number are the same object.
    pub(crate) fn is_same_object(&self, other: &Self) -> bool {
        self.object_kind() == other.object_kind()
            && match (&self.locator, &other.locator) {
                (Locator::Small(_, a), Locator::Small(_, b)) => a == b,
                (Locator::Large(_, a), Locator::Large(_, b)) => a == b,
                (Locator::Place(_, a), Locator::Place(_, b)) => a.inode == b.inode,
                _ => false,
            }
    }

    /// Whether the object is opened by this handle.
    pub(crate) fn has_handle(&self, handle: &FileHandle) -> bool {
        match (&self.locator, handle) {
            (Locator::Small(_, own), FileHandle::Small(other)) => own == other,
            (Locator::Large(_, own), FileHandle::Large(other)) => own == other,
            _ => false,
        }
    }

    /// Records the object's current place. No effect if it is opened by handle.
    pub(crate) fn set_place(&self, parent: &Arc<Self>, name: &[u8]) {
        let Locator::Place(_, place) = &self.locator else { return };
        let fresh = At { parent: Arc::clone(parent), name: name.into() };
        let mut at = place.at.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *at, fresh);
        drop(at);
        // May drop the last reference to the former parent.
        drop(old);
    }

    /// Whether the object is opened by this name.
    pub(crate) fn is_placed_at(&self, parent: &Self, name: &[u8]) -> bool {
        let Locator::Place(_, place) = &self.locator else { return false };
        let at = place.at.lock().unwrap_or_else(PoisonError::into_inner);
        std::ptr::eq(Arc::as_ptr(&at.parent), parent) && *at.name == *name
    }

    /// Returns `ENOTDIR` unless this is a directory.
    pub(crate) fn must_be_directory(&self) -> Result<()> {
        if self.object_kind() == Kind::Directory { Ok(()) } else { Err(Errno::NOTDIR) }
    }

    /// Downcasts `other` to a vnode of this layer; `EXDEV` if it belongs to another.
    pub(crate) fn same_layer(&self, other: &Arc<dyn Vnode>) -> Result<Arc<Self>> {
        let other: Arc<dyn Any + Send + Sync> = Arc::<dyn Vnode>::clone(other);
        match other.downcast::<Self>() {
            Ok(other) if Arc::ptr_eq(&self.fs, &other.fs) => Ok(other),
            _ => Err(Errno::XDEV),
        }
    }
}

impl HostVnode {
    /// Takes the parent out of the place. Called only while the vnode is dropped.
    fn take_parent(&mut self) -> Option<Arc<Self>> {
        if !matches!(self.locator, Locator::Place(..)) {
            return None;
        }
        let nowhere = Locator::Root(State::new(self.object_kind()));
        match std::mem::replace(&mut self.locator, nowhere) {
            Locator::Place(_, place) => Some(place.at.into_inner().unwrap_or_else(PoisonError::into_inner).parent),
            _ => None,
        }
    }
}

impl Drop for HostVnode {
    fn drop(&mut self) {
        self.fs.table.forget(self, self);
        if self.fs.hot.as_ref().is_some_and(|files| !files.is_empty()) {
            self.drop_kept();
        }
        // Drop a chain of otherwise unreferenced parents iteratively: recursion would overflow the
        // stack in a very deep tree.
        let mut next = self.take_parent();
        while let Some(parent) = next {
            let at = Arc::as_ptr(&parent);
            next = Arc::into_inner(parent).and_then(|mut last| {
                // `last` was moved out of its `Arc`, so its own drop won't find its address in the
                // table.
                last.fs.table.forget(&last, at);
                last.take_parent()
            });
        }
    }
}

impl fmt::Debug for HostVnode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostVnode({:?} {})", self.object_kind(), self.id)
    }
}

/// Each operation is implemented in the module for its concept.
impl Vnode for HostVnode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn generation(&self) -> u32 {
        self.handle_hash()
    }

    fn kind(&self) -> Kind {
        self.object_kind()
    }

    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr> {
        self.fs.lifetimes.limit_attributes(cx, self.object_kind());
        self.attributes()
    }

    fn getattr_open(&self, cx: &Cx<'_>, file: &dyn OpenFile) -> Result<Attr> {
        self.fs.lifetimes.limit_attributes(cx, self.object_kind());
        self.attributes_of_open(file)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr> {
        self.fs.lifetimes.limit_attributes(cx, self.object_kind());
        self.change_attributes(set, file)
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        let found = self.find(name)?;
        self.fs.lifetimes.limit_entry(cx, found.as_ref().map(|entry| entry.vnode.kind()));
        Ok(found)
    }

    fn names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        self.emit_names(cx, sink)
    }

    fn readlink(&self, _cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.link_target()
    }

    fn readdir(&self, _cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.list(cookie, sink)
    }

    fn lists_exactly(&self, _cx: &Cx<'_>) -> bool {
        self.lists_all_names()
    }

    fn listing_stamp(&self, _cx: &Cx<'_>) -> Option<u64> {
        Some(0)
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        self.open_file(cx, flags)
    }

    fn create(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        self.fs.lifetimes.limit_entry(cx, Some(Kind::Regular));
        self.create_regular(cx, name, mode, flags)
    }

    fn tmpfile(&self, cx: &Cx<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        self.fs.lifetimes.limit_entry(cx, Some(Kind::Regular));
        self.create_unnamed(cx, mode, flags)
    }

    fn mknod(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        self.fs.lifetimes.limit_entry(cx, Some(Kind::from_mode(mode).unwrap_or(Kind::Regular)));
        self.create_node(cx, name, mode, rdev)
    }

    fn mkdir(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32) -> Result<Entry> {
        self.fs.lifetimes.limit_entry(cx, Some(Kind::Directory));
        self.create_directory(cx, name, mode)
    }

    fn symlink(&self, cx: &Cx<'_>, name: Name<'_>, target: &[u8]) -> Result<Entry> {
        self.fs.lifetimes.limit_entry(cx, Some(Kind::Symlink));
        self.create_symlink(cx, name, target)
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry> {
        self.fs.lifetimes.limit_entry(cx, Some(target.kind()));
        self.create_link(name, target)
    }

    fn unlink(&self, _cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        self.remove_file(name)
    }

    fn rmdir(&self, _cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        self.remove_directory(name)
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        new_dir: &Arc<dyn Vnode>,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.move_entry(cx, name, new_dir, new_name, flags)
    }

    fn getxattr(&self, _cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        self.xattr_get(name, out)
    }

    fn setxattr(&self, _cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.xattr_set(name, value, flags)
    }

    fn listxattr(&self, _cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        self.xattr_list(out)
    }

    fn removexattr(&self, _cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        self.xattr_remove(name)
    }

    fn refused(&self, _cx: &Cx<'_>, _mask: u32) -> Result<()> {
        Ok(())
    }

    fn statfs(&self, _cx: &Cx<'_>) -> Result<StatFs> {
        self.fs_stats()
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        self.make_durable(cx, data_only)
    }

    fn ioctl(&self, _cx: &Cx<'_>, cmd: u32, input: &[u8], out: &mut [u8]) -> Result<IoctlReply> {
        self.do_ioctl(cmd, input, out)
    }

    fn control(&self, _cx: &Cx<'_>, _command: &str, _input: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::NOTTY)
    }
}
