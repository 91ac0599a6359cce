//! The policies of a mount: whether versions of a file are made, how they are stored, and how long
//! they are kept (Versionfs paper, section 3.3; crate `versionpolicy`).
//!
//! The layer reads no file of the host and starts no program: a [`PolicyHost`] does.

use crate::core::Core;
use crate::head::Head;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use parking_lot::{Mutex, RwLock};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use versionpolicy::{
    Access, AdminConfig, Effective, External, LocalTime, NoSpace, Now, Policies, Reason, SteadyClock, Storage, Subject,
    UserConfig, Versions,
};
use versionset::{Cause, STORE, Who, nanos};
use vnode::{Attr, Cx, Kind, Name, NumberMap, OpenFlags, Result, Time, Vnode};

/// The administrator's configuration, unless the mount option `config=` names another file.
pub const CONFIG: &str = "/etc/versionfs.conf";

/// Directories whose paths are remembered.
const CACHED_PATHS: usize = 4096;

/// Longest path that is remembered, in bytes.
const LONGEST_CACHED: usize = 4096;

/// Deepest directory whose path is found out.
const MAX_DEPTH: usize = 4096;

/// What the layer asks of the program that it is part of.
pub trait PolicyHost: Send + Sync + fmt::Debug {
    /// Returns the administrator's configuration. `None` if there is no such file.
    ///
    /// # Errors
    /// A sentence that names file, line and remedy.
    fn admin(&self, path: &Path) -> core::result::Result<Option<AdminConfig>, String>;

    /// Returns the configuration of a user, if there is one. Called once per user who owns files,
    /// and again after a reload. A file below the mount point is read with `below`, which is given
    /// its path from there: the server must not wait for its own mount.
    fn user(&self, uid: u32, below: &dyn Fn(&[u8]) -> Option<Below>) -> Option<UserConfig>;

    /// Returns the supplementary groups of a user.
    fn groups(&self, uid: u32) -> Vec<u32>;

    /// Returns the seconds that the local zone is ahead of UTC now.
    fn utc_offset(&self) -> i32;

    /// Runs a program that decides which versions are discarded, with `request` on its standard
    /// input, as the user of `external`. Returns its output; `None` if it failed, or took too long.
    fn decide(&self, external: &External, request: &str) -> Option<Vec<u8>>;

    /// Returns the path of the mount as programs see it, without a slash at its end.
    fn mount_point(&self) -> Vec<u8>;
}

/// A regular file of the mount that a [`PolicyHost`] reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Below {
    /// The owner.
    pub uid: u32,
    /// The permission bits.
    pub mode: u32,
    /// The content, cut after [`MAX_BELOW`] bytes.
    pub text: Vec<u8>,
}

/// Bytes of a file that a [`PolicyHost`] reads.
pub const MAX_BELOW: usize = 256 * 1024;

/// Reads a regular file by its path below `root`. Symbolic links are not followed.
fn read_below(cx: &Cx<'_>, root: &Arc<dyn Vnode>, path: &[u8]) -> Result<Option<Below>> {
    let mut at = Arc::clone(root);
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        if at.kind() != Kind::Directory {
            return Ok(None);
        }
        let Some(entry) = at.lookup(cx, Name::new(name)?)? else { return Ok(None) };
        at = entry.vnode;
    }
    if at.kind() != Kind::Regular {
        return Ok(None);
    }
    let attr = at.getattr(cx)?;
    let file = at.open(cx, OpenFlags::RDONLY)?;
    let mut text = vec![0; MAX_BELOW];
    let mut length = 0;
    while let Some(rest) = text.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match file.read(cx, rest, length as u64)? {
            0 => break,
            read => length += read,
        }
    }
    text.truncate(length);
    Ok(Some(Below { uid: attr.uid, mode: attr.perm(), text }))
}

static HOST: OnceLock<Arc<dyn PolicyHost>> = OnceLock::new();

/// Sets what the layers of this process ask. Returns false if it was set before.
pub fn set_host(host: Arc<dyn PolicyHost>) -> bool {
    HOST.set(host).is_ok()
}

/// Where the policies of a mount come from.
#[derive(Clone, Debug, Default)]
pub struct PolicySource {
    /// Who reads files and runs programs. Without it, only the built-in configuration applies.
    pub host: Option<Arc<dyn PolicyHost>>,
    /// The administrator's file.
    pub config: PathBuf,
    /// How versions are stored unless a file says otherwise.
    pub storage: Option<Storage>,
    /// What happens to a change without room for its version, unless a file says otherwise.
    pub nospace: Option<NoSpace>,
    /// The path of the root as programs see it, without a slash at its end.
    pub mount_point: Vec<u8>,
    /// Returns the time since the host was started. With it, nothing is discarded because the
    /// clock jumps forward for a moment.
    pub uptime: Option<fn() -> Duration>,
}

impl PolicySource {
    /// Returns the source of a mount: files and programs come from [`set_host`].
    #[must_use]
    pub fn of_mount() -> Self {
        let host = HOST.get().cloned();
        let mount_point = host.as_ref().map(|host| host.mount_point()).unwrap_or_default();
        Self { host, config: PathBuf::from(CONFIG), mount_point, uptime: Some(uptime), ..Self::default() }
    }
}

/// Returns the time since the host was started, suspended times included.
fn uptime() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[derive(Debug)]
struct State {
    policies: Policies,
    /// The users whose configuration was asked for.
    asked: HashSet<u32>,
}

/// The policies of a mount.
#[derive(Debug)]
pub(crate) struct MountPolicies {
    source: PolicySource,
    state: RwLock<State>,
    /// Paths of directories by number, until a directory is renamed.
    paths: Mutex<NumberMap<Arc<[u8]>>>,
    clock: Mutex<SteadyClock>,
    /// The lower root, for the files of users who are at home in the mount.
    root: OnceLock<Arc<dyn Vnode>>,
    /// Whether the history yields on a full disk.
    yields: AtomicBool,
}

impl MountPolicies {
    /// Sets the lower root.
    pub(crate) fn set_root(&self, root: Arc<dyn Vnode>) {
        let _ = self.root.set(root);
    }

    /// Reads a file of the mount, as the server.
    fn below(&self, path: &[u8]) -> Option<Below> {
        let cx = Cx::internal(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        read_below(&cx, self.root.get()?, path).ok().flatten()
    }

    /// Whether some user has fewer rights to old versions than others.
    pub(crate) fn hides_from_someone(&self) -> bool {
        self.state.read().policies.restricts_someone()
    }

    /// What the caller may do with old versions. Root may do everything.
    pub(crate) fn access(&self, cx: &Cx<'_>) -> Access {
        let state = self.state.read();
        if cx.caller() == 0 || !state.policies.restricts_someone() {
            return Access::Change;
        }
        state.policies.access(cx.caller(), cx.gid, cx.groups().unwrap_or_default()).access
    }

    fn with(source: PolicySource, policies: Policies) -> Self {
        let policies = policies.with_mount(source.storage, source.nospace);
        let yields = AtomicBool::new(policies.volume().free.is_some());
        let state = RwLock::new(State { policies, asked: HashSet::new() });
        Self { source, state, paths: Mutex::default(), clock: Mutex::default(), root: OnceLock::new(), yields }
    }

    /// Every version is made and kept forever.
    pub(crate) fn keeping_all(source: PolicySource) -> Self {
        Self::with(source, Policies::everything())
    }

    /// The built-in configuration and the files of `source`.
    ///
    /// # Errors
    /// A sentence about what is wrong in the administrator's file.
    pub(crate) fn load(source: PolicySource) -> core::result::Result<Self, String> {
        let policies = Self::read(&source)?;
        Ok(Self::with(source, policies))
    }

    fn read(source: &PolicySource) -> core::result::Result<Policies, String> {
        let admin = source.host.as_ref().map(|host| host.admin(&source.config)).transpose()?.flatten();
        Ok(Policies::new(admin))
    }

    /// Reads the files again. If they are wrong, the policies stay as they are.
    pub(crate) fn reload(&self) -> core::result::Result<(), String> {
        let policies = Self::read(&self.source)?.with_mount(self.source.storage, self.source.nospace);
        self.yields.store(policies.volume().free.is_some(), Ordering::Relaxed);
        *self.state.write() = State { policies, asked: HashSet::new() };
        Ok(())
    }

    /// Forgets the paths: a directory was renamed.
    pub(crate) fn forget_paths(&self) {
        self.paths.lock().clear();
    }

    /// Returns the time for decisions.
    pub(crate) fn now(&self, time: Time) -> Now {
        let at = nanos(time);
        let at = self.source.uptime.map_or(at, |uptime| self.clock.lock().now(at, uptime()));
        Now { at, utc_offset: self.utc_offset() }
    }

    fn utc_offset(&self) -> i32 {
        self.source.host.as_ref().map_or(0, |host| host.utc_offset())
    }

    /// Whether the administrator wants the activity of the caller logged.
    pub(crate) fn logs(&self, cx: &Cx<'_>) -> bool {
        let state = self.state.read();
        // Most configurations log nobody. Finding out the groups of the caller takes longer.
        state.policies.logs_someone() && state.policies.access(cx.caller(), cx.gid, cx.groups().unwrap_or_default()).log
    }

    /// The bounds of the audit log.
    pub(crate) fn audit(&self) -> versionpolicy::AuditLimit {
        self.state.read().policies.audit()
    }

    /// Whether the history yields on a full disk.
    pub(crate) fn yields(&self) -> bool {
        self.yields.load(Ordering::Relaxed)
    }

    pub(crate) fn volume(&self) -> versionpolicy::VolumeLimit {
        self.state.read().policies.volume()
    }

    /// Asks the program of a policy. `None` if there is none, or if it failed.
    pub(crate) fn ask(&self, policy: &Effective, request: impl FnOnce() -> String) -> Option<Vec<u8>> {
        let external = policy.external.as_ref()?;
        self.source.host.as_ref()?.decide(external, &request())
    }

    /// Loads the configuration of an owner of files, once.
    fn know(&self, uid: u32) {
        let Some(host) = &self.source.host else { return };
        if self.state.read().asked.contains(&uid) {
            return;
        }
        let config = host.user(uid, &|path| self.below(path));
        let mut state = self.state.write();
        state.asked.insert(uid);
        for warning in state.policies.set_user(uid, config) {
            tracing::warn!("{warning}");
        }
    }

    fn subject<T>(&self, file: &File<'_>, take: impl FnOnce(&Policies, &Subject<'_>) -> T) -> T {
        self.know(file.uid);
        let needs = self.state.read().policies.needs();
        let groups = match &self.source.host {
            Some(host) if needs.groups => host.groups(file.uid),
            _ => Vec::new(),
        };
        let who = if needs.process { (file.who)() } else { None };
        let subject = Subject {
            path: file.path,
            name: file.name,
            size: file.size,
            uid: file.uid,
            gid: file.gid,
            groups: &groups,
            process: who.as_ref().map(|who| &*who.comm),
            time: needs.time.then(|| LocalTime::new(file.time.sec, self.utc_offset())),
        };
        take(&self.state.read().policies, &subject)
    }

    /// Returns the policy of a file.
    pub(crate) fn effective(&self, file: &File<'_>) -> Effective {
        self.subject(file, Policies::effective)
    }

    /// Says where each value of a policy comes from.
    pub(crate) fn explain(&self, file: &File<'_>) -> Vec<Reason> {
        self.subject(file, Policies::explain)
    }
}

/// The facts by which a policy is chosen.
pub(crate) struct File<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) name: &'a [u8],
    pub(crate) size: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Who changes the file; asked only if some rule needs it.
    pub(crate) who: &'a dyn Fn() -> Option<Who>,
    pub(crate) time: Time,
}

impl Core {
    /// Returns the path of a lower directory as programs see it, without a slash at its end. That
    /// of a removed directory is its former path. If it can't be found out, only the part below the
    /// last known directory.
    pub(crate) fn path_of(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Arc<[u8]> {
        let root = self.root().id();
        let (mut at, mut below): (_, Vec<(u64, Vec<u8>)>) = (Arc::clone(dir), Vec::new());
        let mut path = loop {
            if let Some(known) = self.policies.paths.lock().get(&at.id()) {
                break Arc::clone(known);
            }
            let mut above = None;
            if at.id() != root && below.len() < MAX_DEPTH {
                let found = at.names(cx, &mut |dir: &Arc<dyn Vnode>, name: Name<'_>| {
                    above = Some((Arc::clone(dir), name.as_bytes().to_vec()));
                    false
                });
                above = above.filter(|_| found.is_ok());
            }
            let Some((dir, name)) = above else { break self.policies.source.mount_point.clone().into() };
            below.push((at.id(), name));
            at = dir;
        };
        let mut paths = self.policies.paths.lock();
        // Those above are remembered, too: the next directory may be beside this one.
        for (number, name) in below.iter().rev() {
            if *name != STORE {
                path = [&*path, b"/", former_name(name)].concat().into();
            }
            if path.len() > LONGEST_CACHED {
                continue;
            }
            if paths.len() >= CACHED_PATHS {
                paths.clear();
            }
            paths.insert(*number, Arc::clone(&path));
        }
        path
    }

    /// Returns the policy of the file with this name.
    pub(crate) fn policy_of(
        &self,
        cx: &Cx<'_>,
        (dir, name): (&Arc<dyn Vnode>, &[u8]),
        (size, uid, gid): (u64, u32, u32),
        who: &dyn Fn() -> Option<Who>,
        time: Time,
    ) -> Effective {
        let path = [&*self.path_of(cx, dir), b"/", name].concat();
        self.policies.effective(&File { path: &path, name, size, uid, gid, who, time })
    }
}

/// Returns the name that a removed directory had: `foo;d8` was `foo`.
fn former_name(name: &[u8]) -> &[u8] {
    match versionset::parse(name) {
        versionset::StoreName::Version { stem, letter: versionset::Letter::Directory, .. } => stem,
        _ => name,
    }
}

impl Head<'_> {
    /// Returns the policy of the file; `None` if it has no name.
    pub(crate) fn policy(&self, cx: &Cx<'_>, attr: &Attr) -> Result<Option<Effective>> {
        let server = self.core.server(cx);
        let Some(place) = self.place(&server)? else { return Ok(None) };
        let who = || Some(self.who(cx));
        let facts = (attr.size, attr.uid, attr.gid);
        Ok(Some(self.core.policy_of(&server, (&place.dir, &place.name), facts, &who, self.core.now())))
    }

    /// Whether no versions of changes of the file are made.
    pub(crate) fn is_excluded(&self, cx: &Cx<'_>, attr: &Attr) -> Result<bool> {
        Ok(self.wanted(cx, attr)? != Versions::All)
    }

    /// Whether the policy wants no version of the file when a name leaves it. A file that is
    /// renamed is not lost.
    pub(crate) fn leaves_none(&self, cx: &Cx<'_>, attr: &Attr, cause: Cause) -> Result<bool> {
        if cause == Cause::Rename { self.is_excluded(cx, attr) } else { self.is_forgotten(cx, attr) }
    }

    /// Whether no version of the file is made when a name of it is removed.
    pub(crate) fn is_forgotten(&self, cx: &Cx<'_>, attr: &Attr) -> Result<bool> {
        Ok(self.wanted(cx, attr)? == Versions::None)
    }

    fn wanted(&self, cx: &Cx<'_>, attr: &Attr) -> Result<Versions> {
        Ok(self.policy(cx, attr)?.map_or(Versions::All, |policy| policy.versions))
    }

    /// Whether a file whose last name goes leaves no version: the policy excludes it, no older
    /// version lacks bytes that only it has, and it had no name before that is not excluded. The
    /// history of such a name refers to this one: an editor may rename a file to a backup, which it
    /// removes later.
    pub(crate) fn is_droppable(&self, cx: &Cx<'_>, attr: &Attr) -> Result<bool> {
        if !self.is_forgotten(cx, attr)? {
            return Ok(false);
        }
        let Some(sets) = self.sets(cx, attr.nlink)? else { return Ok(true) };
        let from = sets.own.lock(self.core, cx)?.index().birth.as_ref().and_then(|birth| birth.from.clone());
        if from.is_some_and(|from| !self.was_forgotten(cx, attr, &from)) {
            return Ok(false);
        }
        Ok(sets.keeps.lock(self.core, cx)?.dependent().is_none())
    }

    /// Whether the policy excludes the file under a former name. If that can't be found out, no.
    fn was_forgotten(&self, cx: &Cx<'_>, attr: &Attr, from: &versionset::Place) -> bool {
        let server = self.core.server(cx);
        let Ok(dir) = self.core.by_number(&server, from.dir) else { return false };
        let facts = (attr.size, attr.uid, attr.gid);
        let who = || Some(self.core.callers.who(cx));
        self.core.policy_of(&server, (&dir, &from.name), facts, &who, self.core.now()).versions == Versions::None
    }
}
