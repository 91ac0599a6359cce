//! Replies that reported changes overtake, and commands that wait for their notifications.
//!
//! A reply to a LOOKUP or the like may be computed before a change, and reach the kernel after the
//! notification of it. The kernel then trusts the reply for its whole lifetime, although it is
//! older than the change. So each request takes the [`Moment`] of its start, each reported change
//! gets a number, and a reply that is older than a change of what it describes has no lifetime: the
//! kernel asks again at the next use.
//!
//! This leaves the time between the comparison and the kernel's receipt of the reply. For names,
//! the repeated notification ([`crate::notifier`]) covers it; for attributes, the kernel notices.

use crate::notifier::{Notification, NotificationQueue};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of slots for names and nodes, a power of two. Two that share a slot cost a request at
/// most.
const SLOTS: usize = 1 << 10;

/// Longest time that the reply to a command waits for its notifications. One of them may wait for a
/// request that in turn waits for the command, for example if a program that the server starts
/// sends it.
const PATIENCE: Duration = Duration::from_secs(5);

/// The start of a request, as the number of changes reported before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(u64);

/// The numbers of the last reported changes.
#[derive(Debug)]
pub(crate) struct Reports {
    /// Number of changes reported so far.
    count: AtomicU64,
    /// The last change of everything.
    everything: AtomicU64,
    /// The last change of the names and nodes of each slot.
    slots: Box<[AtomicU64]>,
    hasher: BuildHasherDefault<DefaultHasher>,
}

impl Default for Reports {
    fn default() -> Self {
        let slots = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        Self { count: AtomicU64::new(0), everything: AtomicU64::new(0), slots, hasher: BuildHasherDefault::default() }
    }
}

impl Reports {
    /// Returns the current moment. To be called before a request reads anything.
    pub(crate) fn now(&self) -> Moment {
        Moment(self.count.load(Ordering::SeqCst))
    }

    /// Records a change, after it was made and before the kernel is notified.
    pub(crate) fn record(&self, notification: &Notification) {
        let number = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        match notification {
            Notification::Entry { dir, name } => self.set(self.name(*dir, name), number),
            Notification::Attributes(node) | Notification::Data { node, .. } => self.set(self.node(*node), number),
            // Pages have no lifetime, and the names were recorded the first time.
            Notification::StalePages(_) | Notification::NamesAgain(_) => {}
            Notification::Everything => {
                self.everything.fetch_max(number, Ordering::SeqCst);
            }
        }
    }

    /// Whether a change of the name was reported since then.
    pub(crate) fn is_name_overtaken(&self, since: Moment, dir: u64, name: &[u8]) -> bool {
        self.is_overtaken(since, || self.name(dir, name))
    }

    /// Whether a change of the node was reported since then.
    pub(crate) fn is_node_overtaken(&self, since: Moment, node: u64) -> bool {
        self.is_overtaken(since, || self.node(node))
    }

    fn is_overtaken(&self, since: Moment, slot: impl FnOnce() -> usize) -> bool {
        // Mostly nothing was reported during a request: then no hash is needed.
        self.now().0 != since.0
            && (self.everything.load(Ordering::SeqCst) > since.0
                || self.slots.get(slot()).is_some_and(|last| last.load(Ordering::SeqCst) > since.0))
    }

    fn set(&self, slot: usize, number: u64) {
        if let Some(last) = self.slots.get(slot) {
            last.fetch_max(number, Ordering::SeqCst);
        }
    }

    fn name(&self, dir: u64, name: &[u8]) -> usize {
        self.slot(self.hasher.hash_one((dir, name)))
    }

    fn node(&self, node: u64) -> usize {
        self.slot(self.hasher.hash_one(node))
    }

    fn slot(&self, hash: u64) -> usize {
        // The remainder is below the number of slots.
        usize::try_from(hash % self.slots.len() as u64).unwrap_or(0)
    }
}

/// Runs a command, and returns its result once the kernel has received the notifications that were
/// queued meanwhile: the caller sees what the command changed. To be called on a thread that may
/// block.
pub(crate) fn settled<T>(notifier: &NotificationQueue, name: &str, command: impl FnOnce() -> T) -> T {
    let begun = notifier.reports.now();
    let done = command();
    if notifier.reports.now().0 != begun.0 && !notifier.settle(PATIENCE) {
        tracing::warn!(
            name,
            "the kernel did not take the notifications of a command within {PATIENCE:?}: its caller may see the state before"
        );
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::Nodes;
    use memfs::MemFs;
    use std::sync::Arc;
    use vnode::Layer as _;

    fn entry(dir: u64, name: &[u8]) -> Notification {
        Notification::Entry { dir, name: name.into() }
    }

    #[test]
    fn a_change_overtakes_only_earlier_requests_for_the_same_object() {
        let reports = Reports::default();
        let before = reports.now();
        assert!(!reports.is_name_overtaken(before, 1, b"a") && !reports.is_node_overtaken(before, 7));
        reports.record(&entry(1, b"a"));
        let between = reports.now();
        reports.record(&Notification::Attributes(7));
        let after = reports.now();
        assert_eq!(
            [before, between, after].map(|since| reports.is_name_overtaken(since, 1, b"a")),
            [true, false, false]
        );
        assert_eq!([before, between, after].map(|since| reports.is_node_overtaken(since, 7)), [true, true, false]);
        assert!(!reports.is_name_overtaken(before, 1, b"b") && !reports.is_name_overtaken(before, 2, b"a"));
        assert!(!reports.is_node_overtaken(before, 8));
        reports.record(&Notification::StalePages(8));
        assert!(!reports.is_node_overtaken(before, 8));
        reports.record(&Notification::pages(8));
        assert!(reports.is_node_overtaken(after, 8) && !reports.is_node_overtaken(after, 7));
        reports.record(&Notification::Everything);
        assert!(reports.is_name_overtaken(after, 1, b"b") && reports.is_node_overtaken(after, 9));
        assert!(!reports.is_node_overtaken(reports.now(), 9));
    }

    #[test]
    fn only_a_command_that_reports_something_waits() {
        let notifier = NotificationQueue::new(Arc::new(Nodes::new(MemFs::new().root())));
        assert_eq!(settled(&notifier, "quiet", || 1), 1);
        // Without a connection there is nothing to wait for.
        assert!(!settled(&notifier, "loud", || notifier.enqueue(entry(1, b"a"))));
        assert_eq!(notifier.reports.now().0, 1);
    }
}
