use crate::grant::{Grant, OpenedWith, SessionId};
use crate::host::{KeyHost, Leader, WatchedLeader};
use crate::reaper::{Reaped, Reaper};
use crate::slot::Slot;
use crate::turns::Turns;
use crate::volume::Volume;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use cryptformat::Keys;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use vnode::{Cx, Errno, Result, Upcalls};

/// Maximum number of sessions of one user that hold a key at the same time.
const PER_USER: usize = 256;
/// Maximum number of sessions that hold a key at the same time.
const IN_ALL: usize = 4096;
/// Time limit for the kernel to drop the pages of the files of a withdrawn key.
const SETTLE: Duration = Duration::from_secs(10);

/// The keys of a mount, and who may use them.
#[derive(Debug)]
pub(crate) struct Keyring {
    pub(crate) volume: Volume,
    /// Whether the volume has more than one key, as far as known.
    several_keys: AtomicBool,
    holder: Holder,
    turns: Turns,
    upcalls: OnceLock<Arc<dyn Upcalls>>,
}

/// Who holds the keys.
#[derive(Debug)]
enum Holder {
    /// Everybody who may use the mount.
    Mount(Arc<Grant>),
    /// Sessions, each its own.
    Sessions(Sessions),
}

#[derive(Debug)]
struct Sessions {
    host: Arc<dyn KeyHost>,
    grants: RwLock<HashMap<SessionId, Arc<Grant>>>,
    reaper: Reaper,
    /// How long an unused key is kept, unless its user wants less; `None` means no limit.
    idle: Option<Duration>,
}

impl Keyring {
    /// Returns the keyring of a mount with one key for all callers.
    ///
    /// # Errors
    /// Those of the layer below.
    pub(crate) fn of_mount(volume: Volume, slot: Slot) -> Result<Arc<Self>> {
        Self::new(volume, Holder::Mount(Arc::new(Grant::of_mount(Arc::new(slot)))))
    }

    /// Returns the empty keyring of a mount with a key per session.
    ///
    /// # Errors
    /// Those of the layer below.
    pub(crate) fn of_sessions(volume: Volume, host: Arc<dyn KeyHost>, idle: Option<Duration>) -> Result<Arc<Self>> {
        let (grants, reaper) = (RwLock::default(), Reaper::default());
        Self::new(volume, Holder::Sessions(Sessions { host, grants, reaper, idle }))
    }

    fn new(volume: Volume, holder: Holder) -> Result<Arc<Self>> {
        let several_keys = AtomicBool::new(volume.has_several_keys()?);
        Ok(Arc::new(Self { volume, several_keys, holder, turns: Turns::default(), upcalls: OnceLock::new() }))
    }

    /// Whether files and names of other keys may exist: the volume had several keys when it was
    /// mounted, or when a key was added later.
    pub(crate) fn has_several_keys(&self) -> bool {
        self.several_keys.load(Ordering::Relaxed)
    }

    /// Whether callers need keys of their own.
    pub(crate) const fn is_per_session(&self) -> bool {
        matches!(self.holder, Holder::Sessions(_))
    }

    /// Sets who is told to drop cached data.
    pub(crate) fn attach(&self, upcalls: Arc<dyn Upcalls>) {
        let _first = self.upcalls.set(upcalls);
    }

    /// Uses the caller's key.
    ///
    /// # Errors
    /// `ENOKEY` if the caller has none.
    pub(crate) fn with<T>(&self, cx: &Cx<'_>, act: impl FnOnce(&Keys) -> Result<T>) -> Result<T> {
        match &self.holder {
            Holder::Mount(grant) => grant.with(act),
            Holder::Sessions(sessions) => sessions.grant(cx)?.with(act),
        }
    }

    /// Opens a file with the caller's key.
    ///
    /// # Errors
    /// `ENOKEY` if the caller has none, or a session with another key has the file open.
    pub(crate) fn open(&self, cx: &Cx<'_>, file: u64) -> Result<OpenedWith> {
        match &self.holder {
            Holder::Mount(grant) => grant.open(file),
            Holder::Sessions(sessions) => {
                let opened = sessions.grant(cx)?.open(file)?;
                // Two keys could write different blocks of a file that is still empty.
                if self.has_several_keys() && sessions.is_open_with_another_key(&opened) {
                    return Err(Errno::NOKEY);
                }
                Ok(opened)
            }
        }
    }

    /// Adds the key that a passphrase unlocks to the caller's session, in place of the one that it
    /// has. `key` is the name of the key; `None`: whichever the passphrase unlocks.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the mount has one key for all; `ESRCH` if the caller's session is unknown;
    /// `EBUSY` if too many passphrases of the caller are being tried; `EKEYREJECTED` if the
    /// passphrase unlocks no key; `EDQUOT` if too many sessions hold one; those of
    /// [`Volume::unlock`].
    pub(crate) fn add(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        key: Option<&str>,
        passphrase: &[u8],
        idle: Option<Duration>,
    ) -> Result<Arc<Grant>> {
        let sessions = self.sessions()?;
        let holder = caller(cx).ok_or(Errno::SRCH)?;
        // Watched first: then the start time is that of the watched process.
        let watched = sessions.host.watch(holder.session);
        let (leader, watched) = match sessions.host.leader(holder.session, true) {
            Leader::Started(start) => (Some(start), watched),
            Leader::Exited => (None, None),
            Leader::SessionEnded => return Err(Errno::SRCH),
        };
        let (name, keys) = {
            let _turn = self.turns.take(cx)?;
            self.volume.unlock(key, passphrase)?
        };
        if self.volume.has_several_keys()? {
            self.several_keys.store(true, Ordering::Relaxed);
        }
        let idle = [idle, sessions.idle].into_iter().flatten().min();
        let (new, old) = sessions.insert(holder, leader, watched, (name, keys), idle)?;
        if let Some(old) = old {
            self.retire(sessions, &old);
        }
        sessions.reaper.start(self);
        Ok(new)
    }

    /// Withdraws the keys that `which` selects. Returns their number.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the mount has one key for all.
    pub(crate) fn withdraw(&self, which: impl Fn(&Grant) -> bool) -> Result<usize> {
        let sessions = self.sessions()?;
        let chosen = sessions.all().into_iter().filter(|grant| which(grant)).collect::<Vec<_>>();
        chosen.iter().for_each(|grant| self.retire(sessions, grant));
        Ok(chosen.len())
    }

    /// Returns all grants, ordered by user and session.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the mount has one key for all.
    pub(crate) fn grants(&self) -> Result<Vec<Arc<Grant>>> {
        self.sessions().map(Sessions::all)
    }

    fn sessions(&self) -> Result<&Sessions> {
        match &self.holder {
            Holder::Sessions(sessions) => Ok(sessions),
            Holder::Mount(_) => Err(Errno::OPNOTSUPP),
        }
    }

    /// Ends a grant. First the kernel writes the changed pages of mapped files back, and drops the
    /// pages of the files that the session has open; while that happens, its open files still work.
    /// Then nothing does, and the kernel drops all that it has cached: pages of files that were
    /// closed, and those that a mapping brought back. The key is wiped unless another session holds
    /// it.
    fn retire(&self, sessions: &Sessions, grant: &Arc<Grant>) {
        let files = grant.close();
        self.settle(|upcalls| files.iter().for_each(|&file| upcalls.data_changed(file, 0..u64::MAX)));
        grant.end();
        self.settle(|upcalls| upcalls.everything_changed());
        sessions.remove(grant);
        tracing::info!(
            uid = grant.holder.map(|id| id.uid),
            session = grant.holder.map(|id| id.session),
            "key withdrawn"
        );
    }

    /// Reports changes to the kernel, and waits until it has dropped what it cached.
    fn settle(&self, report: impl FnOnce(&dyn Upcalls)) {
        let Some(upcalls) = self.upcalls.get() else { return };
        report(&**upcalls);
        if !upcalls.settle(SETTLE) {
            tracing::error!("the kernel has not dropped plain data that it cached within {SETTLE:?}");
        }
    }
}

impl Reaped for Keyring {
    fn reap(&self) {
        let Ok(sessions) = self.sessions() else { return };
        for grant in sessions.all() {
            if grant.is_idle() || !sessions.continues(&grant, true) {
                self.retire(sessions, &grant);
            }
        }
    }

    fn is_needed(&self) -> bool {
        self.sessions().is_ok_and(|sessions| !sessions.grants.read().is_empty())
    }

    fn reaper(&self) -> Option<&Reaper> {
        self.sessions().ok().map(|sessions| &sessions.reaper)
    }
}

impl Sessions {
    /// Returns the caller's grant.
    fn grant(&self, cx: &Cx<'_>) -> Result<Arc<Grant>> {
        let grants = self.grants.read();
        if grants.is_empty() {
            return Err(Errno::NOKEY);
        }
        let id = caller(cx).ok_or(Errno::NOKEY)?;
        let grant = grants.get(&id).cloned().ok_or(Errno::NOKEY)?;
        drop(grants);
        if self.continues(&grant, false) { Ok(grant) } else { Err(Errno::NOKEY) }
    }

    /// Whether the session is the one that the key was given to. The ID of a session is not used
    /// again while any process of it exists, but it is afterwards.
    fn continues(&self, grant: &Grant, thorough: bool) -> bool {
        let Some(id) = grant.holder else { return true };
        if grant.watched.as_ref().is_some_and(|leader| leader.is_running()) {
            return true;
        }
        match self.host.leader(id.session, thorough) {
            Leader::Started(start) => grant.leader == Some(start),
            Leader::Exited => true,
            Leader::SessionEnded => false,
        }
    }

    /// Whether a session with another key has the file open.
    fn is_open_with_another_key(&self, opened: &OpenedWith) -> bool {
        self.grants.read().values().any(|grant| grant.conflicts(opened))
    }

    fn all(&self) -> Vec<Arc<Grant>> {
        let mut all: Vec<_> = self.grants.read().values().cloned().collect();
        all.sort_by_key(|grant| grant.holder);
        all
    }

    /// Adds a grant. Returns it, and the one that it replaces.
    fn insert(
        &self,
        holder: SessionId,
        leader: Option<u64>,
        watched: Option<Box<dyn WatchedLeader>>,
        (name, keys): (String, Keys),
        idle: Option<Duration>,
    ) -> Result<(Arc<Grant>, Option<Arc<Grant>>)> {
        let mut grants = self.grants.write();
        let fingerprint = keys.fingerprint();
        let same = |grant: &&Arc<Grant>| grant.slot.fingerprint == fingerprint;
        let prior = grants.get(&holder).cloned();
        if let Some(grant) = prior.as_ref().filter(same)
            && grant.is_open()
            && grant.leader == leader
        {
            grant.set_idle(idle);
            return Ok((Arc::clone(grant), None));
        }
        let of_user = grants.keys().filter(|id| id.uid == holder.uid).count();
        if prior.is_none() && (of_user >= PER_USER || grants.len() >= IN_ALL) {
            return Err(Errno::DQUOT);
        }
        let shared = grants.values().find(same).map(|grant| Arc::clone(&grant.slot));
        let slot = shared.unwrap_or_else(|| Arc::new(Slot::new(name, keys)));
        let grant = Arc::new(Grant::of_session(holder, leader, watched, slot));
        grant.set_idle(idle);
        grants.insert(holder, Arc::clone(&grant));
        Ok((grant, prior))
    }

    /// Forgets an ended grant, and wipes its key unless another session holds it.
    fn remove(&self, grant: &Arc<Grant>) {
        let mut grants = self.grants.write();
        if let Some(id) = grant.holder
            && grants.get(&id).is_some_and(|now| Arc::ptr_eq(now, grant))
        {
            grants.remove(&id);
        }
        if !grants.values().any(|other| Arc::ptr_eq(&other.slot, &grant.slot)) {
            grant.slot.wipe();
        }
    }
}

/// Returns the caller's session; `None` if its process is not visible.
pub(crate) fn caller(cx: &Cx<'_>) -> Option<SessionId> {
    let session = cx.session_id()?;
    // Session 0 belongs to no process that this server sees: those outside its PID namespace.
    (session != 0).then(|| SessionId { uid: cx.caller(), session })
}
