//! Notifies the kernel of out-of-band changes, on a dedicated thread.
//!
//! A notification takes locks that the kernel holds while it waits for a handler: the lock of a
//! directory during LOOKUP, CREATE, RENAME and the like, page locks during READ and WRITE. A
//! handler that sent one could deadlock. So notifications are queued here, and the thread sends
//! them in order. It serves no requests and holds no lock of the server while it sends.
//!
//! * Only attributes are invalidated by the thread that reports a change: the kernel needs no such
//!   lock for that.
//! * The queue is bounded. If it overflows, all queued notifications are replaced by one that
//!   invalidates everything the kernel caches.
//! * A notification that is still queued is not queued again.
//! * A name is expired twice, the second time after [`REPEAT`]. The reply to a LOOKUP that
//!   revalidates the name may be on its way to the kernel during the first time, too late for
//!   [`crate::reports`]. The kernel then trusts the name for another lifetime, although the reply
//!   is older than the change. (Where other notifications and replies cross, the kernel notices
//!   it, or waits.)
//! * Names are expired and never invalidated, because the kernel unmounts what is mounted on or
//!   below an invalid name: see [`crate::known_names`].

use crate::files::Files;
use crate::known_names::{KnownNames, NameIn};
use crate::nodes::{Nodes, ROOT};
use crate::reports::Reports;
use fuse::{Notifier, Session};
use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use vnode::{Attr, Drained, Errno, Name, Upcalls};

/// Maximum number of queued notifications, about 4 MiB of them.
const MAX_QUEUED: usize = 1 << 16;

/// Time until a notification is repeated, or sent that was deferred: longer than a reply takes on a
/// busy machine.
const REPEAT: Duration = Duration::from_millis(250);
/// Number of notifications that are sent at a time.
const PORTION: usize = 1 << 10;
/// Maximum number of notifications to be repeated.
const MAX_REPEATED: usize = 1 << 14;

/// A notification for the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Notification {
    /// Expire a name: the kernel looks it up before its next use.
    Entry { dir: u64, name: Box<[u8]> },
    /// Invalidate attributes and ACLs of a node.
    Attributes(u64),
    /// Drop pages of a file from `start`: `len` bytes, or all if `len` is 0. For a directory, drop
    /// its listing.
    Data { node: u64, start: u64, len: i64 },
    /// Drop a file's pages if they are still stale.
    StalePages(u64),
    /// Expire all names, and invalidate attributes, pages and listings of all nodes.
    Everything,
    /// Expire names again after everything was.
    NamesAgain(Arc<[NameIn]>),
}

impl Notification {
    /// Drops all pages of a file, or a directory's listing.
    pub(crate) const fn pages(node: u64) -> Self {
        Self::Data { node, start: 0, len: 0 }
    }
}

/// Queued notifications, and the channels of the threads that wait until they are sent.
#[derive(Default)]
struct Queue {
    notifications: VecDeque<(Notification, Option<SyncSender<()>>)>,
    /// The set of `notifications`, to find duplicates without a search.
    queued: HashSet<Notification>,
    /// The notification being sent.
    sending: Option<Notification>,
    /// Notifications to be sent later, and when. The first one is due first.
    later: VecDeque<(Instant, Notification)>,
    /// Number of notifications ever queued, and how many of them were taken out.
    pushed: u64,
    taken: u64,
    /// Channels of the threads that wait until this many have been sent, in this order.
    settling: VecDeque<(u64, SyncSender<()>)>,
    started: bool,
    closed: bool,
}

impl Queue {
    /// Takes the next of these notifications, if it is due.
    fn take_due(&mut self) -> Option<Notification> {
        let is_due = self.later.front().is_some_and(|(due, _)| *due <= Instant::now());
        if is_due { self.later.pop_front().map(|(_, notification)| notification) } else { None }
    }

    /// Schedules the repetition of a notification if it needs one.
    fn repeat(&mut self, notification: &Notification) {
        if matches!(notification, Notification::Entry { .. }) && self.later.len() < MAX_REPEATED {
            self.later.push_back((Instant::now() + REPEAT, notification.clone()));
        }
    }

    fn append(&mut self, notification: Notification, done: Option<SyncSender<()>>) {
        self.queued.insert(notification.clone());
        self.notifications.push_back((notification, done));
        self.pushed += 1;
    }

    /// Replaces all queued notifications by one that invalidates everything.
    fn replace_all(&mut self) {
        self.taken += self.notifications.len() as u64;
        let waiters: Vec<_> = self.notifications.drain(..).filter_map(|(_, done)| done).collect();
        self.queued.clear();
        self.append(Notification::Everything, None);
        // A caller that waits for one of the dropped notifications waits for this one instead.
        for (position, _) in &mut self.settling {
            *position = self.pushed;
        }
        self.settling.extend(waiters.into_iter().map(|waiter| (self.pushed, waiter)));
    }

    /// Releases the threads whose notifications have all been sent. None is being sent.
    fn release_settled(&mut self) {
        while self.settling.front().is_some_and(|(position, _)| *position <= self.taken) {
            if let Some((_, waiter)) = self.settling.pop_front() {
                // The waiter may have timed out.
                let _gone = waiter.try_send(());
            }
        }
    }

    /// Whether a notification that drops all pages of the node is queued or being sent.
    fn drops_pages(&self, node: u64) -> bool {
        self.will_drop_pages(node) || self.is_dropping_pages(node)
    }

    /// Whether a notification that drops all pages of the node is queued.
    fn will_drop_pages(&self, node: u64) -> bool {
        [Notification::pages(node), Notification::Everything].iter().any(|drop| self.queued.contains(drop))
    }

    /// Whether a notification that drops all pages of the node is being sent, and no other one is
    /// queued.
    fn is_dropping_pages(&self, node: u64) -> bool {
        let drops =
            |sending: &Notification| *sending == Notification::pages(node) || *sending == Notification::Everything;
        self.sending.as_ref().is_some_and(drops) && !self.will_drop_pages(node)
    }
}

/// Queue of notifications for the kernel, and the thread that sends them.
pub(crate) struct NotificationQueue {
    nodes: Arc<Nodes>,
    /// The names that the kernel has.
    pub(crate) names: KnownNames,
    /// The changes that overtake replies.
    pub(crate) reports: Reports,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Signalled after each notification was sent.
    sent: Condvar,
    session: Mutex<Option<Weak<Session>>>,
    files: OnceLock<Weak<Files>>,
}

impl NotificationQueue {
    pub(crate) fn new(nodes: Arc<Nodes>) -> Arc<Self> {
        let (changed, sent) = (Condvar::new(), Condvar::new());
        Arc::new(Self {
            nodes,
            names: KnownNames::default(),
            reports: Reports::default(),
            queue: Mutex::default(),
            changed,
            sent,
            session: Mutex::new(None),
            files: OnceLock::new(),
        })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts accepting notifications. Earlier ones are dropped, because the kernel had nothing
    /// cached.
    pub(crate) fn attach(&self, session: &Arc<Session>) {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::downgrade(session));
    }

    /// Drops all notifications and ends the thread, after the connection was closed.
    pub(crate) fn close(&self) {
        let mut queue = self.queue();
        queue.closed = true;
        queue.notifications.clear();
        queue.queued.clear();
        queue.settling.clear();
        queue.later.clear();
        drop(queue);
        self.changed.notify_all();
        self.sent.notify_all();
    }

    /// Sets the files whose pages [`Notification::StalePages`] drops.
    pub(crate) fn set_files(&self, files: &Arc<Files>) {
        let _once = self.files.set(Arc::downgrade(files));
    }

    fn session(&self) -> Option<Arc<Session>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.upgrade()
    }

    /// Queues a notification. Returns false if the kernel cannot be notified.
    pub(crate) fn enqueue(self: &Arc<Self>, notification: Notification) -> bool {
        self.push(notification, None)
    }

    /// Invalidates the attributes of a node at once: an operation that has moved them has not been
    /// answered yet. Unlike the other notifications, this one waits for nothing.
    pub(crate) fn send_attributes(&self, node: u64) {
        let notification = Notification::Attributes(node);
        self.reports.record(&notification);
        if self.queue().closed {
            return;
        }
        if let Some(session) = self.session()
            && let Err(error) = session.notifier().inval_attributes(node)
            && error != Errno::NOENT
        {
            tracing::debug!(?notification, %error, "the kernel refused a notification");
        }
    }

    /// Sends a notification after [`REPEAT`].
    pub(crate) fn defer(self: &Arc<Self>, notification: Notification) {
        let mut queue = self.queue();
        if queue.closed || self.session().is_none() {
            return;
        }
        queue.later.push_back((Instant::now() + REPEAT, notification));
        self.wake(queue);
    }

    /// Whether a notification that drops all pages of the node is queued or being sent.
    pub(crate) fn drops_pages(&self, node: u64) -> bool {
        self.queue().drops_pages(node)
    }

    /// Whether a notification that drops all pages of the node is queued, and not yet being sent.
    pub(crate) fn will_drop_pages(&self, node: u64) -> bool {
        self.queue().will_drop_pages(node)
    }

    /// Waits while a notification that drops all pages of the node is being sent and no other one
    /// is queued, at most until `deadline`.
    pub(crate) fn wait_while_dropping_pages(&self, node: u64, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let pending = |queue: &mut Queue| queue.is_dropping_pages(node);
        drop(self.sent.wait_timeout_while(self.queue(), left, pending));
    }

    /// Waits until [`Self::drops_pages`] is false, at most until `deadline`.
    pub(crate) fn wait_for_pages(&self, node: u64, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let pending = |queue: &mut Queue| queue.drops_pages(node);
        drop(self.sent.wait_timeout_while(self.queue(), left, pending));
    }

    /// Queues a notification and waits until it was sent, at most for `timeout`. If a handler calls
    /// this while the kernel holds a lock that the notification needs, the call times out.
    pub(crate) fn enqueue_and_wait(self: &Arc<Self>, notification: Notification, timeout: Duration) {
        let (done, sent) = sync_channel(1);
        self.push(notification, Some(done));
        let _late = sent.recv_timeout(timeout);
    }

    fn push(self: &Arc<Self>, notification: Notification, done: Option<SyncSender<()>>) -> bool {
        self.reports.record(&notification);
        let mut queue = self.queue();
        if queue.closed || self.session().is_none() {
            return false;
        }
        if done.is_none() && queue.queued.contains(&notification) {
            return true;
        }
        if queue.notifications.len() >= MAX_QUEUED {
            tracing::debug!("the notification queue is full: invalidating everything that the kernel caches");
            // A caller that waits for one of the dropped notifications waits for this one instead.
            queue.replace_all();
        }
        queue.append(notification, done);
        self.wake(queue)
    }

    /// Makes the thread look at the queue. Returns false if there is no thread.
    fn wake(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue>) -> bool {
        let start = !std::mem::replace(&mut queue.started, true);
        drop(queue);
        if start {
            return self.start();
        }
        self.changed.notify_one();
        true
    }

    fn start(self: &Arc<Self>) -> bool {
        let notifier = Arc::clone(self);
        let thread = std::thread::Builder::new().name("fuse-notify".into()).spawn(move || notifier.serve());
        if let Err(error) = &thread {
            tracing::warn!(%error, "no notification thread: out-of-band changes appear only when caches expire");
            self.close();
        }
        thread.is_ok()
    }

    /// Waits until all notifications queued before the call were sent. Returns false after
    /// `timeout`.
    pub(crate) fn settle(&self, timeout: Duration) -> bool {
        let sent = {
            let mut queue = self.queue();
            if queue.closed || (queue.notifications.is_empty() && queue.sending.is_none()) {
                return true;
            }
            let (done, sent) = sync_channel(1);
            let position = queue.pushed;
            queue.settling.push_back((position, done));
            sent
        };
        // A dropped sender means that the connection is closed.
        !matches!(sent.recv_timeout(timeout), Err(RecvTimeoutError::Timeout))
    }

    fn serve(self: &Arc<Self>) {
        while let Some((notification, done)) = self.next() {
            let Some(session) = self.session() else {
                // The queued notifications will never be sent: release the threads that wait.
                self.close();
                continue;
            };
            self.send(&session.notifier(), &notification);
            if let Some(done) = done {
                // The waiter may have timed out.
                let _gone = done.try_send(());
            }
        }
    }

    fn next(&self) -> Option<(Notification, Option<SyncSender<()>>)> {
        let mut queue = self.queue();
        if queue.sending.take().is_some() {
            self.sent.notify_all();
        }
        queue.release_settled();
        loop {
            if queue.closed {
                return None;
            }
            if let Some((notification, done)) = queue.notifications.pop_front() {
                queue.queued.remove(&notification);
                queue.taken += 1;
                queue.repeat(&notification);
                queue.sending = Some(notification.clone());
                return Some((notification, done));
            }
            if let Some(notification) = queue.take_due() {
                return Some((notification, None));
            }
            let due = queue.later.front().map(|(due, _)| due.saturating_duration_since(Instant::now()));
            queue = match due {
                None => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(due) => {
                    self.changed.wait_timeout(queue, due).map_or_else(|e| e.into_inner().0, |(queue, _)| queue)
                }
            };
        }
    }

    fn send(self: &Arc<Self>, kernel: &Notifier, notification: &Notification) {
        let sent = match notification {
            Notification::Entry { dir, name } => kernel.expire_entry(*dir, name),
            Notification::Attributes(node) => kernel.inval_attributes(*node),
            Notification::Data { node, start, len } => kernel.inval_inode(*node, *start, *len),
            Notification::StalePages(node) => {
                if let Some(files) = self.files.get().and_then(Weak::upgrade) {
                    files.drop_late(*node, self);
                }
                Ok(())
            }
            Notification::Everything => self.send_everything(kernel),
            Notification::NamesAgain(names) => expire(kernel, names),
        };
        match sent {
            // The kernel does not have it cached.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => tracing::debug!(?notification, %error, "the kernel refused a notification"),
        }
    }

    fn send_everything(self: &Arc<Self>, kernel: &Notifier) -> Result<(), Errno> {
        let mut sent = Ok(());
        let recent = self.names.take(|names| sent = sent.and(expire(kernel, names)));
        if !recent.is_empty() {
            self.defer(Notification::NamesAgain(recent.into()));
        }
        in_portions(&self.nodes.all(), |nodes| kernel.inval_inodes(nodes)).and(sent)
    }
}

fn expire(kernel: &Notifier, names: &[NameIn]) -> Result<(), Errno> {
    in_portions(names, |names| kernel.expire_entries(names.iter().map(|(dir, name)| (*dir, &**name))))
}

/// Sends notifications in portions. Returns the last error. What the kernel does not know need not
/// be invalidated.
fn in_portions<T>(all: &[T], mut send: impl FnMut(&[T]) -> Result<(), Errno>) -> Result<(), Errno> {
    let mut sent = Ok(());
    for portion in all.chunks(PORTION) {
        match send(portion) {
            Ok(()) | Err(Errno::NOENT) => {}
            failed => sent = failed,
        }
    }
    sent
}

/// Handles the layers' upcalls: see [`Upcalls`]. A vnode's number is its node id, except for the
/// root and for files with a successor node ([`crate::successors`]).
pub(crate) struct UpcallHandler {
    pub(crate) root: u64,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) notifier: Arc<NotificationQueue>,
    pub(crate) files: Arc<Files>,
    /// Whether the kernel caches names and listings.
    pub(crate) caches_names: bool,
    pub(crate) caches_attributes: bool,
}

impl std::fmt::Debug for UpcallHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UpcallHandler")
    }
}

impl UpcallHandler {
    fn node(&self, vnode: u64) -> u64 {
        if vnode == self.root { ROOT } else { self.nodes.successors.node_of(vnode) }
    }
}

/// A notification about an inode makes the kernel discard attributes of it that are under way: a
/// permission check then uses the previous ones. So none is sent about what the kernel does not
/// cache.
impl Upcalls for UpcallHandler {
    fn entry_changed(&self, dir: u64, name: Name<'_>) {
        if !self.caches_names {
            return;
        }
        let dir = self.node(dir);
        self.notifier.enqueue(Notification::Entry { dir, name: name.as_bytes().into() });
        // The kernel caches listings separately from names.
        self.notifier.enqueue(Notification::Data { node: dir, start: 0, len: 0 });
    }

    fn directory_entry_changed(&self, dir: u64, name: Name<'_>) {
        // What the kernel caches below a directory belongs to its node, wherever that is.
        self.entry_changed(dir, name);
    }

    fn attributes_changed(&self, vnode: u64) {
        if !self.caches_attributes {
            return;
        }
        self.notifier.send_attributes(self.node(vnode));
    }

    fn data_changed(&self, vnode: u64, range: Range<u64>) {
        // The protocol's offsets are signed, and its length 0 means "to the end".
        let node = self.node(vnode);
        self.files.forget_cached_open(node);
        let start = range.start.min(i64::MAX.cast_unsigned());
        let len = range.end.saturating_sub(start);
        if len > 0 {
            let to_end = range.end > i64::MAX.cast_unsigned();
            let len = if to_end { 0 } else { len.cast_signed() };
            self.notifier.enqueue(Notification::Data { node, start, len });
        }
    }

    fn data_changed_out_of_band(&self, vnode: u64, attr: &Attr) {
        self.files.data_changed_out_of_band(self.node(vnode), attr, &self.notifier);
    }

    fn data_moved(&self, vnode: u64) {
        let node = self.node(vnode);
        if self.files.supersede(node, || self.nodes.supersede(vnode)) {
            // The kernel may have cached the attributes with a nonzero lifetime.
            self.notifier.enqueue(Notification::Attributes(node));
        }
    }

    fn everything_changed(&self) {
        if let Some(open_cache) = &self.files.open_cache {
            open_cache.forget_all();
        }
        self.notifier.enqueue(Notification::Everything);
    }

    fn stop_passthrough(&self, vnode: u64, drained: Drained) {
        self.files.stop_passthrough(self.node(vnode), drained);
    }

    fn allow_passthrough(&self, vnode: u64) {
        self.files.allow_passthrough(self.node(vnode));
    }

    fn passthrough(&self) -> Vec<u64> {
        let nodes = self.files.with_passthrough();
        nodes.into_iter().map(|node| self.nodes.successors.number_of(node)).collect()
    }

    fn maybe_mapped(&self) -> Vec<u64> {
        let nodes = self.files.shared_mappings.nodes();
        nodes.into_iter().map(|node| self.nodes.successors.number_of(node)).collect()
    }

    fn is_host_file_unused(&self, file: BorrowedFd<'_>, readers: bool) -> bool {
        fuse::is_only_user(file, readers)
    }

    fn settle(&self, timeout: Duration) -> bool {
        self.notifier.settle(timeout)
    }
}

#[cfg(test)]
impl NotificationQueue {
    /// Makes the queue appear as if a notification that drops the node's pages were queued, or were
    /// being sent.
    pub(crate) fn pretend_to_drop_pages(&self, node: u64, is_queued: bool, is_sending: bool) {
        let (mut queue, pages) = (self.queue(), Notification::pages(node));
        queue.queued = is_queued.then(|| pages.clone()).into_iter().collect();
        queue.sending = is_sending.then_some(pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfs::MemFs;
    use vnode::Layer as _;

    #[test]
    fn nothing_is_queued_without_a_connection() {
        let nodes = Arc::new(Nodes::new(MemFs::new().root()));
        let notifier = NotificationQueue::new(nodes);
        notifier.enqueue(Notification::Everything);
        assert!(notifier.settle(Duration::ZERO));
        notifier.enqueue_and_wait(Notification::Attributes(7), Duration::from_secs(60));
        notifier.close();
        notifier.enqueue(Notification::Attributes(7));
        assert!(notifier.queue().notifications.is_empty() && notifier.settle(Duration::ZERO));
    }

    #[test]
    fn the_end_of_the_session_releases_all_waiters() {
        let notifier = NotificationQueue::new(Arc::new(Nodes::new(MemFs::new().root())));
        let begun = Instant::now();
        let (done, sent) = sync_channel(1);
        let queued = [(Notification::pages(7), None), (Notification::Attributes(8), Some(done))];
        notifier.queue().notifications.extend(queued);
        std::thread::scope(|scope| {
            let settled = scope.spawn(|| notifier.settle(Duration::from_secs(60)));
            notifier.serve();
            assert!(settled.join().unwrap() && notifier.settle(Duration::from_secs(60)));
        });
        assert_eq!(sent.recv_timeout(Duration::from_secs(60)), Err(RecvTimeoutError::Disconnected));
        notifier.wait_for_pages(7, begun + Duration::from_secs(60));
        assert!(begun.elapsed() < Duration::from_secs(60));
    }

    /// A steady stream of later notifications delays nobody.
    #[test]
    fn threads_wait_only_for_earlier_notifications() {
        let mut queue = Queue::default();
        let (done, first) = sync_channel(1);
        queue.append(Notification::pages(7), None);
        queue.settling.push_back((queue.pushed, done));
        queue.append(Notification::pages(8), None);
        queue.release_settled();
        assert!(first.try_recv().is_err());
        drop(queue.notifications.pop_front());
        queue.taken += 1;
        queue.release_settled();
        assert_eq!(first.try_recv(), Ok(()));
        // A dropped notification is replaced by one for everything.
        let ((done, second), (waiter, third)) = (sync_channel(1), sync_channel(1));
        queue.settling.push_back((queue.pushed, done));
        queue.append(Notification::pages(9), Some(waiter));
        queue.replace_all();
        queue.release_settled();
        assert!(second.try_recv().is_err() && third.try_recv().is_err());
        assert_eq!(queue.notifications.pop_front().unwrap().0, Notification::Everything);
        queue.taken += 1;
        queue.release_settled();
        assert_eq!((second.try_recv(), third.try_recv()), (Ok(()), Ok(())));
        assert!(queue.notifications.is_empty() && queue.settling.is_empty() && queue.pushed == queue.taken);
    }

    #[test]
    fn a_notification_is_pending_until_it_was_sent() {
        let mut queue = Queue::default();
        assert!(!queue.drops_pages(7));
        queue.queued.insert(Notification::pages(7));
        assert!(queue.drops_pages(7) && !queue.drops_pages(8));
        queue.queued.clear();
        queue.sending = Some(Notification::pages(7));
        assert!(queue.drops_pages(7) && !queue.drops_pages(8));
        assert!(queue.is_dropping_pages(7) && !queue.will_drop_pages(7));
        queue.queued.insert(Notification::pages(7));
        assert!(!queue.is_dropping_pages(7) && queue.will_drop_pages(7));
        queue.queued.clear();
        queue.sending = Some(Notification::Attributes(7));
        assert!(!queue.drops_pages(7));
        queue.queued.insert(Notification::Everything);
        assert!(queue.drops_pages(7) && queue.drops_pages(8) && queue.will_drop_pages(7));
        let begun = Instant::now();
        let notifier = NotificationQueue::new(Arc::new(Nodes::new(MemFs::new().root())));
        notifier.wait_for_pages(7, begun + Duration::from_secs(60));
        *notifier.queue() = queue;
        notifier.wait_for_pages(7, begun + Duration::from_millis(20));
        assert!((20..60_000).contains(&begun.elapsed().as_millis()));
    }

    #[test]
    fn expired_names_are_repeated_once() {
        let mut queue = Queue::default();
        let entry = Notification::Entry { dir: 1, name: b"a"[..].into() };
        queue.repeat(&Notification::Attributes(7));
        queue.repeat(&entry);
        assert_eq!((queue.later.len(), queue.take_due()), (1, None));
        queue.later.front_mut().unwrap().0 = Instant::now();
        assert_eq!((queue.take_due(), queue.take_due()), (Some(entry), None));
    }
}
