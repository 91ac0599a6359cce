//! Limits on the process's descriptors.
//!
//! An open file holds a descriptor until it is closed, so one user could take them all and block
//! everybody else. A part of the process's limit is therefore reserved for operations in progress
//! and for caches. Open files share the rest, and one user gets at most half of what the other
//! users have left. The superuser and the server's own user are not limited to a share, and the
//! superuser may also use half of the reserve.

use rustix::process::Resource;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use vnode::{Cx, Errno, Result};

/// Upper bound for the limit, also used if there is none: the kernel's descriptor table grows with
/// the number of descriptors.
const UNLIMITED: u64 = 1 << 20;

/// Estimate for rings, devices, logs and branches, where they can't be counted.
const FIXED: usize = 64;

/// How the process's descriptors are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    /// The limit that the plan divides.
    limit: u64,
    /// Maximum for open files.
    files: usize,
    /// Additional maximum for the superuser's open files. As many again are for operations in
    /// progress.
    reserve: usize,
    /// Maximum for caches.
    cached: usize,
}

impl Plan {
    /// Divides `limit`; `fixed` descriptors are in use for the lifetime of the process.
    fn new(limit: u64, fixed: usize) -> Self {
        let all = usize::try_from(limit.min(UNLIMITED)).unwrap_or(usize::MAX).saturating_sub(fixed);
        let (cached, reserve) = ((all / 4).min(8192), (all / 8).min(2048));
        Self { limit, files: all - cached - 2 * reserve, reserve, cached }
    }
}

/// Number of descriptors of open files, in total and by user.
#[derive(Debug, Default)]
struct Users {
    total: usize,
    by_uid: HashMap<u32, usize>,
}

/// The process's budget of descriptors.
#[derive(Debug)]
pub(crate) struct Budget {
    /// The uid that the server runs as.
    server: u32,
    limit: fn() -> u64,
    plan: Mutex<Option<Plan>>,
    users: Mutex<Users>,
    cached: AtomicUsize,
}

impl Budget {
    /// Returns the budget of this process.
    pub(crate) fn of_process() -> Arc<Self> {
        static PROCESS: OnceLock<Arc<Budget>> = OnceLock::new();
        Arc::clone(PROCESS.get_or_init(|| Arc::new(Self::new(rustix::process::geteuid().as_raw(), limit_of_process))))
    }

    fn new(server: u32, limit: fn() -> u64) -> Self {
        Self { server, limit, plan: Mutex::default(), users: Mutex::default(), cached: AtomicUsize::new(0) }
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self) -> Plan {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        *plan.get_or_insert_with(|| Plan::new((self.limit)(), fixed_of_process()))
    }

    /// Returns the plan, recalculated if the limit was changed (prlimit(1)).
    fn refreshed_plan(&self) -> Plan {
        let limit = (self.limit)();
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        match *plan {
            Some(plan) if plan.limit == limit => plan,
            // Don't count the descriptors in use: except at the first time, most of them are open
            // files.
            _ => *plan.insert(Plan::new(limit, FIXED)),
        }
    }

    /// Charges a descriptor for an open file to the caller on whose behalf it is opened. A layer's
    /// internal opens are never refused; the reserve covers them.
    ///
    /// # Errors
    /// `ENFILE` if the caller has used its share, or if no descriptors are left.
    pub(crate) fn charge(self: &Arc<Self>, cx: &Cx<'_>) -> Result<Charge> {
        let uid = cx.caller();
        let granted = cx.is_internal() || self.take(uid, self.plan()) || self.take(uid, self.refreshed_plan());
        if !granted {
            return Err(Errno::NFILE);
        }
        if cx.is_internal() {
            let mut users = self.users();
            users.total += 1;
            *users.by_uid.entry(uid).or_default() += 1;
        }
        Ok(Charge { budget: Arc::clone(self), uid })
    }

    fn take(&self, uid: u32, plan: Plan) -> bool {
        let mut users = self.users();
        let own = users.by_uid.get(&uid).copied().unwrap_or(0);
        let granted = if uid == 0 {
            users.total < plan.files + plan.reserve
        } else if uid == self.server {
            users.total < plan.files
        } else {
            let left = plan.files.saturating_sub(users.total - own);
            own < left / 2
        };
        if granted {
            users.total += 1;
            *users.by_uid.entry(uid).or_default() += 1;
        }
        granted
    }

    fn release(&self, uid: u32) {
        let mut users = self.users();
        users.total -= 1;
        if let Slot::Occupied(mut slot) = users.by_uid.entry(uid) {
            *slot.get_mut() -= 1;
            if *slot.get() == 0 {
                slot.remove();
            }
        }
    }

    /// Counts a cached descriptor. Returns whether the budget has room for it.
    pub(crate) fn keep(self: &Arc<Self>) -> (Kept, bool) {
        let before = self.cached.fetch_add(1, Ordering::Relaxed);
        (Kept(Arc::clone(self)), before < self.plan().cached)
    }

    /// Number of cached descriptors.
    #[cfg(test)]
    fn kept(&self) -> usize {
        self.cached.load(Ordering::Relaxed)
    }
}

/// One descriptor charged to a user, until dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    uid: u32,
}

impl Charge {
    /// Returns the uid of the user whose limit counts these descriptors.
    #[cfg(test)]
    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.release(self.uid);
    }
}

/// One cached descriptor, until dropped.
#[derive(Debug)]
pub(crate) struct Kept(Arc<Budget>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.cached.fetch_sub(1, Ordering::Relaxed);
    }
}

fn limit_of_process() -> u64 {
    rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(UNLIMITED)
}

fn fixed_of_process() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(FIXED, |open| open.count().max(FIXED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn caller(uid: u32) -> Cx<'static> {
        Cx::new(uid, uid, 1, 0, true, &NEVER)
    }

    /// The budget of a server that runs as this user and may have 1,024 descriptors.
    fn budget(server: u32) -> Arc<Budget> {
        let budget = Budget::new(server, || 1024);
        *budget.plan.lock().unwrap() = Some(Plan::new(1024, 24));
        Arc::new(budget)
    }

    /// Opens files until an open is refused.
    fn take_all(budget: &Arc<Budget>, uid: u32) -> Vec<Charge> {
        std::iter::from_fn(|| budget.charge(&caller(uid)).ok()).collect()
    }

    #[test]
    fn a_user_gets_half_of_the_rest_and_root_more() {
        let budget = budget(0);
        let first = take_all(&budget, 1000);
        assert_eq!(first.len(), 250);
        assert_eq!(budget.charge(&caller(1000)).unwrap_err(), Errno::NFILE);
        let second = take_all(&budget, 1001);
        assert_eq!(second.len(), 125);
        assert_eq!(take_all(&budget, 1002).len(), 62);
        drop(second);
        let third = take_all(&budget, 1002);
        assert_eq!(third.len(), 125);
        let root = take_all(&budget, 0);
        assert_eq!(first.len() + third.len() + root.len(), 500 + 125);
        assert!(budget.charge(&Cx::internal(0, 0)).is_ok(), "internal opens");
        assert_eq!(take_all(&budget, 1003).len(), 0);
        drop((first, third, root));
        assert_eq!(take_all(&budget, 1003).len(), 250);
        assert!(budget.users().by_uid.is_empty());
    }

    #[test]
    fn the_servers_user_is_not_limited_to_a_share() {
        let budget = budget(1000);
        assert_eq!(take_all(&budget, 1000).len(), 500);
        assert_eq!(take_all(&budget, 1001).len(), 250);
    }

    #[test]
    fn opens_by_the_server_for_a_caller_are_charged_to_the_caller() {
        let budget = budget(0);
        let cx = caller(1000);
        let own: Vec<_> = (0..400).map(|_| budget.charge(&cx.as_server(0, 0)).unwrap()).collect();
        assert_eq!(budget.charge(&cx).unwrap_err(), Errno::NFILE);
        assert_eq!(own[0].uid(), 1000);
    }

    #[test]
    fn a_raised_limit_is_noticed_when_the_old_one_is_reached() {
        let budget = Budget::new(0, || 4096);
        *budget.plan.lock().unwrap() = Some(Plan::new(1024, 24));
        assert_eq!(take_all(&Arc::new(budget), 1000).len(), (4096 - 64) / 4);
    }

    #[test]
    fn cached_descriptors_are_counted() {
        let budget = budget(0);
        let kept: Vec<_> = (0..250).map(|_| budget.keep()).collect();
        assert!(kept.iter().all(|(_, room)| *room));
        assert!(!budget.keep().1);
        assert_eq!(budget.kept(), 250);
        drop(kept);
        assert!(budget.keep().1);
    }

    #[test]
    fn every_limit_is_divided_completely() {
        for limit in [0, 1, 8, 63, 64, 100, 1024, 20_000, 1 << 20, u64::MAX] {
            let plan = Plan::new(limit, 64);
            let all = plan.files + plan.cached + 2 * plan.reserve;
            assert_eq!(all as u64, limit.min(UNLIMITED).saturating_sub(64));
        }
        assert_eq!(Plan::new(20_000, 64).files, 20_000 - 64 - 4984 - 2 * 2048);
    }
}
