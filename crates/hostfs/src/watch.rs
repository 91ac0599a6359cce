//! Watches the host for out-of-band changes, with fanotify(7), and reports them to the layer above.
//!
//! * One fanotify group serves all layers of the process. It has a mark on each of their file
//!   systems, so the kernel reports each change once, whatever the number of layers on it.
//! * Changes made by this process are not reported: the layers above know them. Data that the
//!   kernel writes for other processes through a layer (passthrough) goes through the layer's
//!   private mount, which has a mark to ignore it.
//! * A change concerns a layer only if the layer has a live vnode of the directory or object.
//!   Nothing else can be cached above.
//! * A thread reads the events in batches: it sleeps for [`BATCH`] after the first one. So it is
//!   not woken by each event, and the kernel merges repeated changes of one object meanwhile.
//!
//! A mark does not keep its file system in use: it can be unmounted.

use crate::fanotify::{self, ATTRIBUTES, DATA, ENTRIES, Event, Object};
use crate::handle::FileHandle;
use crate::identity;
use crate::layer::Shared;
use crate::sys;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use vnode::{Errno, Name, Reports, Result, Upcalls};

/// Time from the first event to the reading of a batch. The kernel's queue has room for 16,384
/// events.
const BATCH: Duration = Duration::from_millis(5);
/// Size of the buffer for events.
const BUFFER: usize = 64 << 10;

/// Which out-of-band changes are reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watch {
    /// None.
    #[default]
    Off,
    /// Changes of names and attributes, and of data when the writer closes the file.
    Names,
    /// Also each write. This costs each write(2) to the file system about half a microsecond.
    Writes,
}

impl Watch {
    const fn mask(self) -> u64 {
        let names = ENTRIES | ATTRIBUTES | libc::FAN_CLOSE_WRITE | libc::FAN_ONDIR;
        match self {
            Self::Off => 0,
            Self::Names => names,
            Self::Writes => names | libc::FAN_MODIFY,
        }
    }
}

/// The group, and the layers that it watches for.
#[derive(Debug)]
struct Group {
    fd: Arc<OwnedFd>,
    /// Becomes readable when the group is dropped.
    dropped: Arc<OwnedFd>,
    layers: Mutex<Vec<Watched>>,
    /// Number of registrations on each device. Locked while marks are added and removed.
    marked: Mutex<HashMap<u64, usize>>,
    /// Events that were taken from the queue may not be reported yet.
    dispatching: AtomicBool,
    /// The thread has ended: nothing is reported any more.
    failed: AtomicBool,
}

/// A watched layer.
#[derive(Clone, Debug)]
struct Watched {
    fsid: [u8; 8],
    layer: Weak<Shared>,
}

/// The group of this process, while it is in use.
static GROUP: Mutex<Weak<Group>> = Mutex::new(Weak::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Group {
    /// Returns the group of this process.
    fn of_process() -> Result<Arc<Self>> {
        let mut current = lock(&GROUP);
        if let Some(group) = current.upgrade() {
            return Ok(group);
        }
        let fd = Arc::new(sys::fanotify_init()?);
        let dropped = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?);
        let group = Arc::new(Self {
            fd: Arc::clone(&fd),
            dropped: Arc::clone(&dropped),
            layers: Mutex::default(),
            marked: Mutex::default(),
            dispatching: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        });
        let weak = Arc::downgrade(&group);
        let thread = std::thread::Builder::new().name("watch".into()).spawn(move || serve(&weak, &fd, &dropped));
        thread.map_err(|_| Errno::AGAIN)?;
        *current = Arc::downgrade(&group);
        Ok(group)
    }

    fn layers(&self) -> MutexGuard<'_, Vec<Watched>> {
        lock(&self.layers)
    }

    /// Passes an event on to the layers that it concerns.
    fn dispatch(&self, event: &Event<'_>, own_pid: i32) {
        if event.pid == own_pid && !event.is_overflow() {
            return;
        }
        let fsid = event.entry.map(|(dir, _)| dir).or(event.object).map(|object| object.fsid);
        // Dropping a layer takes the lock, so its last reference must not be dropped under it.
        let layers: Vec<_> = self
            .layers()
            .iter()
            .filter(|watched| event.is_overflow() || fsid == Some(watched.fsid))
            .filter_map(|watched| watched.layer.upgrade())
            .collect();
        for layer in layers {
            layer.report(event);
        }
    }

    /// Reads and dispatches all events in the queue.
    fn drain(&self, buffer: &mut [u8], own_pid: i32) {
        // Before the first event leaves the queue: see `are_complete`.
        self.dispatching.store(true, Ordering::SeqCst);
        while let Ok(len @ 1..) = rustix::io::read(&self.fd, &mut *buffer) {
            let mut events = fanotify::events(buffer.get(..len).unwrap_or_default());
            for event in events.by_ref() {
                self.dispatch(&event, own_pid);
            }
            if !events.are_all_parsed() {
                self.dispatch(&Event { mask: libc::FAN_Q_OVERFLOW, ..Event::default() }, own_pid);
            }
        }
        self.dispatching.store(false, Ordering::SeqCst);
    }
}

impl Reports for Group {
    fn are_complete(&self) -> bool {
        // The kernel queues an event before the change returns to its process. So each is in the
        // queue, or was taken from it before the queue was seen empty, and `dispatching` was set
        // before that.
        let mut queue = [PollFd::new(&self.fd, PollFlags::IN)];
        let is_empty = matches!(rustix::event::poll(&mut queue, Some(&Timespec::default())), Ok(0));
        is_empty && !self.dispatching.load(Ordering::SeqCst) && !self.failed.load(Ordering::SeqCst)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Only a full counter could make this fail.
        let _woken = rustix::io::write(&*self.dropped, &1_u64.to_ne_bytes());
    }
}

/// Reads and dispatches events until the group is dropped.
fn serve(group: &Weak<Group>, fd: &OwnedFd, dropped: &OwnedFd) {
    let own_pid = rustix::process::getpid().as_raw_pid();
    let mut buffer = vec![0_u8; BUFFER];
    loop {
        let mut wanted = [PollFd::new(fd, PollFlags::IN), PollFd::new(dropped, PollFlags::IN)];
        match rustix::event::poll(&mut wanted, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => {
                if let Some(group) = group.upgrade() {
                    group.failed.store(true, Ordering::SeqCst);
                }
                return;
            }
        }
        std::thread::sleep(BATCH);
        let Some(group) = group.upgrade() else { return };
        group.drain(&mut buffer, own_pid);
    }
}

/// A layer's place in the group, until it is dropped.
pub(crate) struct Registration {
    group: Arc<Group>,
    root: Arc<OwnedFd>,
    root_handle: FileHandle,
    dev: u64,
    writes: bool,
    layer: OnceLock<Weak<Shared>>,
    upcalls: OnceLock<Arc<dyn Upcalls>>,
    /// Reports are passed on.
    started: AtomicBool,
}

impl Registration {
    /// Marks the file system of `root`, a directory on this device that is watched for a layer.
    ///
    /// # Errors
    /// Those of fanotify_init(2), fanotify_mark(2) and name_to_handle_at(2): missing privileges, or
    /// a file system that can't be watched.
    pub(crate) fn new(root: &Arc<OwnedFd>, dev: u64, private: bool, watch: Watch) -> Result<Self> {
        let root_handle = FileHandle::of_fd(root.as_fd())?;
        let group = Group::of_process()?;
        let mark = |flags, mask| sys::fanotify_mark(group.fd.as_fd(), libc::FAN_MARK_ADD | flags, mask, root.as_fd());
        {
            let mut marked = lock(&group.marked);
            mark(libc::FAN_MARK_FILESYSTEM, watch.mask())?;
            *marked.entry(dev).or_default() += 1;
        }
        if private {
            // Writes through passthrough. Without the mark, they cost some invalidations.
            let ignored = libc::FAN_MARK_MOUNT | libc::FAN_MARK_IGNORED_MASK | libc::FAN_MARK_IGNORED_SURV_MODIFY;
            let _unmarked = mark(ignored, DATA);
        }
        let (layer, upcalls, root) = (OnceLock::new(), OnceLock::new(), Arc::clone(root));
        let (writes, started) = (watch == Watch::Writes, AtomicBool::new(false));
        Ok(Self { group, root, root_handle, dev, writes, layer, upcalls, started })
    }

    /// Whether each write is reported.
    pub(crate) const fn sees_writes(&self) -> bool {
        self.writes
    }

    /// Returns the source of the reports, once they are passed on.
    pub(crate) fn reports(&self) -> Option<Arc<dyn Reports>> {
        let is_started = self.started.load(Ordering::Acquire);
        is_started.then(|| Arc::clone(&self.group) as Arc<dyn Reports>)
    }

    /// Begins to report changes to `upcalls`.
    pub(crate) fn start(&self, layer: &Arc<Shared>, upcalls: Arc<dyn Upcalls>) {
        let Ok(stats) = rustix::fs::fstatfs(&self.root) else { return };
        if self.upcalls.set(upcalls).is_ok() && self.layer.set(Arc::downgrade(layer)).is_ok() {
            let watched = Watched { fsid: sys::fsid_of(&stats), layer: Arc::downgrade(layer) };
            self.group.layers().push(watched);
            self.started.store(true, Ordering::Release);
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(own) = self.layer.get() {
            self.group.layers().retain(|watched| !watched.layer.ptr_eq(own));
        }
        let mut marked = lock(&self.group.marked);
        let Some(others) = marked.get_mut(&self.dev) else { return };
        *others -= 1;
        if *others == 0 {
            marked.remove(&self.dev);
            let flags = libc::FAN_MARK_REMOVE | libc::FAN_MARK_FILESYSTEM;
            // Fails only if the mark is gone, with the file system.
            let _gone = sys::fanotify_mark(self.group.fd.as_fd(), flags, Watch::Writes.mask(), self.root.as_fd());
        }
    }
}

impl Shared {
    /// Reports a change to the layer above.
    fn report(&self, event: &Event<'_>) {
        let Some(watch) = &self.watch else { return };
        let Some(upcalls) = watch.upcalls.get() else { return };
        if event.is_overflow() || (event.mask & ENTRIES != 0 && event.entry.is_none()) {
            self.names.clear();
            upcalls.everything_changed();
            return;
        }
        if let Some((dir, name)) = event.entry
            && event.mask & ENTRIES != 0
            && let Some(number) = self.live_number(watch, &dir)
            && let Ok(name) = Name::new(name)
        {
            self.names.remove(number);
            self.finder.moved();
            if event.mask & libc::FAN_ONDIR == 0 {
                upcalls.entry_changed(number, name);
            } else {
                upcalls.directory_entry_changed(number, name);
            }
        }
        if event.mask & (ATTRIBUTES | DATA) != 0
            && let Some(object) = event.object.or(event.entry.filter(|(_, name)| *name == b".").map(|(dir, _)| dir))
            && let Some(number) = self.live_number(watch, &object)
        {
            if event.mask & DATA == 0 {
                upcalls.attributes_changed(number);
            } else if let Some(Ok(attr)) = self.table.get(number).map(|vnode| vnode.attributes()) {
                upcalls.data_changed_out_of_band(number, &attr);
            } else {
                upcalls.data_changed(number, 0..u64::MAX);
            }
        }
    }

    /// Returns the number of the live vnode of an object; `None` if it has none.
    fn live_number(&self, watch: &Registration, object: &Object<'_>) -> Option<u64> {
        let handle = FileHandle::new(object.kind, object.handle);
        if handle == watch.root_handle {
            return Some(identity::ROOT);
        }
        let word = |at: usize| object.handle.get(at..at + 4)?.first_chunk().copied().map(u32::from_le_bytes);
        let at = usize::from(self.handles?.ino_at?);
        let low = u64::from(word(at)?);
        let wide = word(at + 4).map(|high| low | u64::from(high) << 32);
        // The next field may be the upper half of the inode number, or something else. The last
        // candidate is for objects that don't have their inode number: on another device.
        [Some(low), wide, Some(identity::hash_of_handle(&handle))]
            .into_iter()
            .flatten()
            .find(|&number| self.table.get(number).is_some_and(|live| live.has_handle(&handle)))
    }
}
