//! Tells the kernel what changed without its knowledge, on a thread of its own.
//!
//! A notification waits for locks that the kernel holds while it waits for a handler: the lock of a
//! directory during LOOKUP, CREATE, RENAME and the like, that of a page during READ and WRITE. So no
//! handler may send one. Everything that has something to tell leaves an order here, and the thread
//! sends them in that order. It serves no requests and holds no lock of ours while it sends.
//!
//! * Orders wait in a queue of bounded length. Should it overflow, one order that invalidates
//!   everything the kernel knows takes the place of all that wait.
//! * An order that is still waiting is not put there twice.

use crate::files::Files;
use crate::nodes::{Nodes, ROOT};
use fuse::{Notifier, Session};
use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use vnode::{Drained, Errno, Name, Upcalls};

/// More orders than this don't wait: about 4 MiB of them.
const MOST: usize = 1 << 16;

/// Something to tell the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Order {
    /// A name is looked up anew before its next use.
    Entry { dir: u64, name: Box<[u8]> },
    /// Attributes and ACLs are fetched anew.
    Attributes(u64),
    /// Pages of a file from `start` go, `len` bytes or, with 0, all; a directory's listing.
    Data { node: u64, start: u64, len: i64 },
    /// Nothing that the kernel knows can be believed.
    Everything,
}

impl Order {
    /// All pages of a file go, or a directory's listing.
    pub(crate) const fn pages(node: u64) -> Self {
        Self::Data { node, start: 0, len: 0 }
    }
}

/// Orders that wait, and who waits for them.
#[derive(Default)]
struct Queue {
    orders: VecDeque<(Order, Option<SyncSender<()>>)>,
    waiting: HashSet<Order>,
    /// What the thread is sending.
    sending: Option<Order>,
    /// For whoever waits until all is sent.
    settling: Vec<SyncSender<()>>,
    started: bool,
    closed: bool,
}

impl Queue {
    fn is_under_way(&self, order: &Order) -> bool {
        self.waiting.contains(order) || self.sending.as_ref() == Some(order)
    }

    /// Is the kernel about to be told to drop all pages of the node?
    fn drops_pages(&self, node: u64) -> bool {
        self.is_under_way(&Order::pages(node)) || self.is_under_way(&Order::Everything)
    }
}

/// Tells the kernel what changed without its knowledge.
pub(crate) struct Teller {
    nodes: Arc<Nodes>,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// An order was sent.
    sent: Condvar,
    session: Mutex<Option<Weak<Session>>>,
}

impl Teller {
    pub(crate) fn new(nodes: Arc<Nodes>) -> Arc<Self> {
        let (changed, sent) = (Condvar::new(), Condvar::new());
        Arc::new(Self { nodes, queue: Mutex::default(), changed, sent, session: Mutex::new(None) })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection is there. Orders from before it are dropped: the kernel knew nothing then.
    pub(crate) fn begin(&self, session: &Arc<Session>) {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::downgrade(session));
    }

    /// The connection is gone.
    pub(crate) fn end(&self) {
        let mut queue = self.queue();
        queue.closed = true;
        queue.orders.clear();
        queue.waiting.clear();
        queue.settling.clear();
        drop(queue);
        self.changed.notify_all();
        self.sent.notify_all();
    }

    fn session(&self) -> Option<Arc<Session>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.upgrade()
    }

    /// Takes an order. False: the kernel can't be told.
    pub(crate) fn tell(self: &Arc<Self>, order: Order) -> bool {
        self.take(order, None)
    }

    /// Is the kernel about to be told to drop all pages of the node?
    pub(crate) fn drops_pages(&self, node: u64) -> bool {
        self.queue().drops_pages(node)
    }

    /// Waits until it was told that, at most until `deadline`.
    pub(crate) fn wait_for_pages(&self, node: u64, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let pending = |queue: &mut Queue| queue.drops_pages(node);
        drop(self.sent.wait_timeout_while(self.queue(), left, pending));
    }

    /// Takes an order, and waits until the kernel was told, at most so long. Not from a handler
    /// that the kernel holds a lock for which the notification needs, unless it is content to wait
    /// that long in vain.
    pub(crate) fn tell_and_wait(self: &Arc<Self>, order: Order, patience: Duration) {
        let (done, told) = sync_channel(1);
        self.take(order, Some(done));
        let _late = told.recv_timeout(patience);
    }

    fn take(self: &Arc<Self>, order: Order, done: Option<SyncSender<()>>) -> bool {
        let mut queue = self.queue();
        if queue.closed || self.session().is_none() {
            return false;
        }
        if done.is_none() && queue.waiting.contains(&order) {
            return true;
        }
        if queue.orders.len() >= MOST {
            tracing::debug!("too many notifications wait: the kernel forgets everything");
            queue.orders.clear();
            queue.waiting.clear();
            queue.orders.push_back((Order::Everything, None));
            queue.waiting.insert(Order::Everything);
        }
        queue.waiting.insert(order.clone());
        queue.orders.push_back((order, done));
        let start = !std::mem::replace(&mut queue.started, true);
        drop(queue);
        if start {
            return self.start();
        }
        self.changed.notify_one();
        true
    }

    fn start(self: &Arc<Self>) -> bool {
        let teller = Arc::clone(self);
        let thread = std::thread::Builder::new().name("teller".into()).spawn(move || teller.serve());
        if let Err(error) = &thread {
            tracing::warn!(%error, "no thread: out-of-band changes are seen only when cached answers run out");
            self.end();
        }
        thread.is_ok()
    }

    /// Waits until every order taken so far was sent, at most so long.
    pub(crate) fn settle(&self, patience: Duration) -> bool {
        let told = {
            let mut queue = self.queue();
            if queue.closed || (queue.orders.is_empty() && queue.sending.is_none()) {
                return true;
            }
            let (done, told) = sync_channel(1);
            queue.settling.push(done);
            told
        };
        // A sender that is gone belongs to a connection that is gone.
        !matches!(told.recv_timeout(patience), Err(RecvTimeoutError::Timeout))
    }

    fn serve(&self) {
        while let Some((order, done)) = self.next() {
            let Some(session) = self.session() else { return };
            self.send(&session.notifier(), &order);
            if let Some(done) = done {
                // Whoever waited may have given up.
                let _gone = done.try_send(());
            }
        }
    }

    fn next(&self) -> Option<(Order, Option<SyncSender<()>>)> {
        let mut queue = self.queue();
        if queue.sending.take().is_some() {
            self.sent.notify_all();
        }
        loop {
            if queue.closed {
                return None;
            }
            if let Some((order, done)) = queue.orders.pop_front() {
                queue.waiting.remove(&order);
                queue.sending = Some(order.clone());
                return Some((order, done));
            }
            for waiting in queue.settling.drain(..) {
                let _gone = waiting.try_send(());
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn send(&self, kernel: &Notifier, order: &Order) {
        let sent = match order {
            Order::Entry { dir, name } => kernel.expire_entry(*dir, name),
            Order::Attributes(node) => kernel.inval_attributes(*node),
            Order::Data { node, start, len } => kernel.inval_inode(*node, *start, *len),
            Order::Everything => self.send_everything(kernel),
        };
        match sent {
            // The kernel does not know it: there is nothing to forget.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => tracing::debug!(?order, %error, "the kernel takes no notification"),
        }
    }

    /// Names by their epoch (Linux 6.16; before it they are believed for as long as `cache=` says),
    /// attributes, data and listings node by node.
    fn send_everything(&self, kernel: &Notifier) -> Result<(), Errno> {
        let names = kernel.inc_epoch();
        for node in self.nodes.all() {
            match kernel.inval_inode(node, 0, 0) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        names
    }
}

/// What layers can tell: see [`Upcalls`]. Their numbers of objects are node ids, but for the root's.
pub(crate) struct FromLayers {
    pub(crate) root: u64,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) teller: Arc<Teller>,
    pub(crate) files: Arc<Files>,
}

impl std::fmt::Debug for FromLayers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FromLayers")
    }
}

impl FromLayers {
    fn node(&self, vnode: u64) -> u64 {
        if vnode == self.root { ROOT } else { self.nodes.successors.node_of(vnode) }
    }
}

impl Upcalls for FromLayers {
    fn entry_changed(&self, dir: u64, name: Name<'_>) {
        let dir = self.node(dir);
        self.teller.tell(Order::Entry { dir, name: name.as_bytes().into() });
        // The kernel keeps its listing beside the names.
        self.teller.tell(Order::Data { node: dir, start: 0, len: 0 });
    }

    fn attributes_changed(&self, vnode: u64) {
        self.teller.tell(Order::Attributes(self.node(vnode)));
    }

    fn data_changed(&self, vnode: u64, range: Range<u64>) {
        // The protocol's offsets are signed, and its length 0 means "to the end".
        let node = self.node(vnode);
        self.files.forget_held(node);
        let start = range.start.min(i64::MAX.cast_unsigned());
        let len = range.end.saturating_sub(start);
        if len > 0 {
            let to_end = range.end > i64::MAX.cast_unsigned();
            let len = if to_end { 0 } else { len.cast_signed() };
            self.teller.tell(Order::Data { node, start, len });
        }
    }

    fn data_moved(&self, vnode: u64) {
        let node = self.node(vnode);
        if self.files.supersede(node, || self.nodes.supersede(vnode)) {
            // What the kernel knows of the attributes was to hold for a while.
            self.teller.tell(Order::Attributes(node));
        }
    }

    fn everything_changed(&self) {
        if let Some(held) = &self.files.held {
            held.forget_all();
        }
        self.teller.tell(Order::Everything);
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

    fn settle(&self, patience: Duration) -> bool {
        self.teller.settle(patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfs::MemFs;
    use vnode::Layer as _;

    #[test]
    fn without_a_connection_nothing_is_kept() {
        let nodes = Arc::new(Nodes::new(MemFs::new().root()));
        let teller = Teller::new(nodes);
        teller.tell(Order::Everything);
        assert!(teller.settle(Duration::ZERO));
        teller.tell_and_wait(Order::Attributes(7), Duration::from_secs(60));
        teller.end();
        teller.tell(Order::Attributes(7));
        assert!(teller.queue().orders.is_empty() && teller.settle(Duration::ZERO));
    }

    #[test]
    fn an_order_is_under_way_until_it_was_sent() {
        let mut queue = Queue::default();
        assert!(!queue.drops_pages(7));
        queue.waiting.insert(Order::pages(7));
        assert!(queue.drops_pages(7) && !queue.drops_pages(8));
        queue.waiting.clear();
        queue.sending = Some(Order::pages(7));
        assert!(queue.drops_pages(7) && !queue.drops_pages(8));
        queue.sending = Some(Order::Attributes(7));
        assert!(!queue.drops_pages(7));
        queue.waiting.insert(Order::Everything);
        assert!(queue.drops_pages(7) && queue.drops_pages(8));
        let begun = Instant::now();
        let teller = Teller::new(Arc::new(Nodes::new(MemFs::new().root())));
        teller.wait_for_pages(7, begun + Duration::from_secs(60));
        *teller.queue() = queue;
        teller.wait_for_pages(7, begun + Duration::from_millis(20));
        assert!((20..60_000).contains(&begun.elapsed().as_millis()));
    }
}
