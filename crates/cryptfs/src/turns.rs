//! Whose passphrase is tried: one at a time, since each takes much memory and time. Users take
//! turns, so that one who asks often does not hold up the others.

use core::time::Duration;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use vnode::{Cx, Errno, Result};

/// Maximum number of passphrases of one user that are tried or wait for that. Root is always
/// admitted.
const PER_USER: usize = 4;
/// The same for all users but root.
const IN_ALL: usize = 64;
/// How soon a waiting request notices that its caller has given up.
const PATIENCE: Duration = Duration::from_millis(100);

/// A request that tries a passphrase.
#[derive(Debug)]
struct Request {
    uid: u32,
    number: u64,
    /// In each round, one request of each user has its turn.
    round: u64,
}

/// The requests in the order of their rounds, and in each round of their arrival. The first one has
/// its turn.
#[derive(Debug, Default)]
struct Queue {
    requests: VecDeque<Request>,
    next: u64,
}

impl Queue {
    /// Adds a request, and returns its number.
    fn add(&mut self, uid: u32) -> u64 {
        let number = self.next;
        self.next += 1;
        let present = self.requests.front().map_or(0, |first| first.round);
        let last = self.requests.iter().rfind(|request| request.uid == uid);
        let round = last.map_or(present, |last| last.round + 1);
        let at = self.requests.partition_point(|request| request.round <= round);
        self.requests.insert(at, Request { uid, number, round });
        number
    }
}

/// Lets one request at a time try a passphrase.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    queue: Mutex<Queue>,
    ended: Condvar,
}

/// A place in the queue, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    number: u64,
}

impl Turns {
    /// Waits until it is the caller's turn.
    ///
    /// # Errors
    /// `EBUSY` if too many requests of the user, or of all users, are in the queue; `EINTR`.
    pub(crate) fn take(&self, cx: &Cx<'_>) -> Result<Turn<'_>> {
        let turn = self.join(cx.caller())?;
        let mut queue = self.queue.lock();
        while queue.requests.front().is_some_and(|first| first.number != turn.number) {
            self.ended.wait_for(&mut queue, PATIENCE);
            if let Err(errno) = cx.check() {
                // The end of the turn takes the lock.
                drop(queue);
                return Err(errno);
            }
        }
        drop(queue);
        Ok(turn)
    }

    fn join(&self, uid: u32) -> Result<Turn<'_>> {
        let mut queue = self.queue.lock();
        let of_user = queue.requests.iter().filter(|request| request.uid == uid).count();
        if uid != 0 && (of_user >= PER_USER || queue.requests.len() >= IN_ALL) {
            return Err(Errno::BUSY);
        }
        Ok(Turn { turns: self, number: queue.add(uid) })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.queue.lock().requests.retain(|request| request.number != self.number);
        self.turns.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    #[test]
    fn the_queue_is_bounded_per_user_and_in_all() {
        let turns = Turns::default();
        let mut held: Vec<_> = (0..PER_USER).map(|_| turns.join(7).unwrap()).collect();
        assert_eq!(turns.join(7).err(), Some(Errno::BUSY));
        // Others still have their turn.
        held.push(turns.join(8).unwrap());
        held.remove(0);
        held.push(turns.join(7).unwrap());
        for uid in 100.. {
            match turns.join(uid) {
                Ok(turn) => held.push(turn),
                Err(errno) => {
                    assert_eq!((errno, held.len()), (Errno::BUSY, IN_ALL));
                    break;
                }
            }
        }
        // Root is always admitted.
        held.extend((0..2 * PER_USER).map(|_| turns.join(0).unwrap()));
    }

    #[test]
    fn users_take_turns() {
        let mut queue = Queue::default();
        [1, 1, 1, 1, 2, 3, 2].into_iter().for_each(|uid| {
            queue.add(uid);
        });
        let order = |queue: &Queue| queue.requests.iter().map(|request| request.uid).collect::<Vec<_>>();
        assert_eq!(order(&queue), [1, 2, 3, 1, 2, 1, 1]);
        // A later request waits for one of each user at most, and not before the first.
        queue.requests.drain(..3);
        queue.add(4);
        assert_eq!(order(&queue), [1, 2, 4, 1, 1]);
        queue.add(4);
        assert_eq!(order(&queue), [1, 2, 4, 1, 4, 1]);
    }

    #[test]
    fn turns_are_taken_one_at_a_time_in_order() {
        let (turns, running, order) = (Turns::default(), AtomicUsize::new(0), Mutex::new(Vec::new()));
        let first = turns.take(&Cx::internal(1, 1)).unwrap();
        std::thread::scope(|scope| {
            for uid in 2..12 {
                let (turns, running, order) = (&turns, &running, &order);
                scope.spawn(move || {
                    let _turn = turns.take(&Cx::internal(uid, uid)).unwrap();
                    assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                    order.lock().push(uid);
                    running.fetch_sub(1, Ordering::SeqCst);
                });
                testkit::until("it waits", || turns.queue.lock().requests.len() == uid as usize);
            }
            // One that gives up leaves the queue.
            let gone = AtomicBool::new(true);
            let cx = Cx::new(50, 50, 1, 0, true, &gone);
            assert_eq!(turns.take(&cx).err(), Some(Errno::INTR));
            drop(first);
        });
        assert_eq!(*order.lock(), (2..12).collect::<Vec<_>>());
        assert!(turns.queue.lock().requests.is_empty());
    }
}
