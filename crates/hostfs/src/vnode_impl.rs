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

/// An object of the host. Small, since there can be millions: 40 bytes, 56 with the counters of its `Arc`.
pub(crate) struct HostVnode {
    fs: Arc<Shared>,
    id: u64,
    reach: Reach,
}

/// How an object is reached again. Each variant has the state, so that no byte is lost to alignment beside it.
pub(crate) enum Reach {
    /// It is the root.
    Root(State),
    /// By a handle that fits in here.
    Small(State, SmallHandle),
    /// By any other handle.
    Large(State, Box<LargeHandle>),
    /// By the name it was last known by.
    Place(State, Box<Place>),
}

/// The kind of an object, and whether it is a removed one that is kept by a descriptor.
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

/// Where an object was last known to be, and what tells whether it still is what is there.
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

impl Reach {
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
    pub(crate) fn new(fs: Arc<Shared>, id: u64, reach: Reach) -> Self {
        Self { fs, id, reach }
    }

    pub(crate) fn fs(&self) -> &Arc<Shared> {
        &self.fs
    }

    pub(crate) fn number(&self) -> u64 {
        self.id
    }

    /// A number that another object of the same number most likely does not have: a hash of the
    /// file handle, which has the host's own generation in it. 0 where there are no handles.
    pub(crate) fn handle_hash(&self) -> u32 {
        let (kind, bytes) = match &self.reach {
            Reach::Small(_, handle) => handle.parts(),
            Reach::Large(_, handle) => handle.parts(),
            Reach::Root(_) | Reach::Place(..) => return 0,
        };
        identity::generation(kind, bytes)
    }

    pub(crate) fn reach(&self) -> &Reach {
        &self.reach
    }

    pub(crate) fn what(&self) -> Kind {
        self.reach.state().kind()
    }

    /// Does a descriptor keep it, because it was removed through this layer? Also of what never had a name.
    pub(crate) fn is_pinned(&self) -> bool {
        self.reach.state().0.load(Ordering::Acquire) & PINNED != 0
    }

    /// Only for [`crate::table::Table`], under its lock.
    pub(crate) fn set_pinned(&self, pinned: bool) {
        let state = &self.reach.state().0;
        if pinned {
            state.fetch_or(PINNED, Ordering::Release);
        } else {
            state.fetch_and(!PINNED, Ordering::Release);
        }
    }

    /// Are these two, of the same number, the same object?
    pub(crate) fn is_same_object(&self, other: &Self) -> bool {
        self.what() == other.what()
            && match (&self.reach, &other.reach) {
                (Reach::Small(_, a), Reach::Small(_, b)) => a == b,
                (Reach::Large(_, a), Reach::Large(_, b)) => a == b,
                (Reach::Place(_, a), Reach::Place(_, b)) => a.inode == b.inode,
                _ => false,
            }
    }

    /// The object is known to be there now. Nothing to do for one that is reached by handle.
    pub(crate) fn set_place(&self, parent: &Arc<Self>, name: &[u8]) {
        let Reach::Place(_, place) = &self.reach else { return };
        let fresh = At { parent: Arc::clone(parent), name: name.into() };
        let mut at = place.at.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *at, fresh);
        drop(at);
        // May be the last that holds the former parent.
        drop(old);
    }

    /// Is it reached by this very name?
    pub(crate) fn is_placed_at(&self, parent: &Self, name: &[u8]) -> bool {
        let Reach::Place(_, place) = &self.reach else { return false };
        let at = place.at.lock().unwrap_or_else(PoisonError::into_inner);
        std::ptr::eq(Arc::as_ptr(&at.parent), parent) && *at.name == *name
    }

    /// `ENOTDIR` unless it is a directory.
    pub(crate) fn must_be_directory(&self) -> Result<()> {
        if self.what() == Kind::Directory { Ok(()) } else { Err(Errno::NOTDIR) }
    }

    /// The vnode of this layer that `other` is.
    pub(crate) fn same_layer(&self, other: &Arc<dyn Vnode>) -> Result<Arc<Self>> {
        let other: Arc<dyn Any + Send + Sync> = Arc::<dyn Vnode>::clone(other);
        match other.downcast::<Self>() {
            Ok(other) if Arc::ptr_eq(&self.fs, &other.fs) => Ok(other),
            _ => Err(Errno::XDEV),
        }
    }
}

impl HostVnode {
    /// The directory by which this was reached. To be called at the end only.
    fn take_parent(&mut self) -> Option<Arc<Self>> {
        if !matches!(self.reach, Reach::Place(..)) {
            return None;
        }
        let nowhere = Reach::Root(State::new(self.what()));
        match std::mem::replace(&mut self.reach, nowhere) {
            Reach::Place(_, place) => Some(place.at.into_inner().unwrap_or_else(PoisonError::into_inner).parent),
            _ => None,
        }
    }
}

impl Drop for HostVnode {
    fn drop(&mut self) {
        self.fs.table.forget(self, self);
        if self.fs.hot.as_ref().is_some_and(|files| !files.is_empty()) {
            self.cool();
        }
        // A chain of parents that nobody else holds goes one by one, not recursively: a tree may be very deep.
        let mut next = self.take_parent();
        while let Some(parent) = next {
            let at = Arc::as_ptr(&parent);
            next = Arc::into_inner(parent).and_then(|mut last| {
                // It was moved out of its place, by which the table knows it: its own drop finds nothing to do.
                last.fs.table.forget(&last, at);
                last.take_parent()
            });
        }
    }
}

impl fmt::Debug for HostVnode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostVnode({:?} {})", self.what(), self.id)
    }
}

/// Each operation is in the file of its concept.
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
        self.what()
    }

    fn getattr(&self, _cx: &Cx<'_>) -> Result<Attr> {
        self.attributes()
    }

    fn setattr(&self, _cx: &Cx<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr> {
        self.change_attributes(set, file)
    }

    fn lookup(&self, _cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        self.find(name)
    }

    fn names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        self.tell_names(cx, sink)
    }

    fn readlink(&self, _cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.link_target()
    }

    fn readdir(&self, _cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.list(cookie, sink)
    }

    fn listing_stamp(&self, _cx: &Cx<'_>) -> Option<u64> {
        Some(0)
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        self.open_regular(cx, flags)
    }

    fn create(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        self.make_open(cx, name, mode, flags)
    }

    fn tmpfile(&self, cx: &Cx<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        self.make_unnamed(cx, mode, flags)
    }

    fn mknod(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        self.make_node(cx, name, mode, rdev)
    }

    fn mkdir(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32) -> Result<Entry> {
        self.make_directory(cx, name, mode)
    }

    fn symlink(&self, cx: &Cx<'_>, name: Name<'_>, target: &[u8]) -> Result<Entry> {
        self.make_symlink(cx, name, target)
    }

    fn link(&self, _cx: &Cx<'_>, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry> {
        self.make_link(name, target)
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
        self.figures()
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
