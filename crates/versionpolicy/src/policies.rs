use crate::audit::AuditLimit;
use crate::builtin;
use crate::config::{AdminConfig, Document, UserConfig};
use crate::daytime::LocalTime;
use crate::explain::{Reason, reasons};
use crate::problem::Problem;
use crate::range::{NO_LIMIT, Range};
use crate::settings::{Generations, Keep, Limit, NoSpace, Origin, Set, Settings, Source, Storage};
use crate::users::UserAccess;
use crate::volume::VolumeLimit;
use std::collections::HashMap;
use std::sync::Arc;

pub use crate::selector::Needs;

/// The file whose policy is wanted. `uid`, `gid` and `groups` are those of the user whose policy
/// applies: the owner of the file.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'s> {
    /// The absolute path as programs see it, mount point included.
    pub path: &'s [u8],
    /// The last component of the path.
    pub name: &'s [u8],
    /// The size of the file in bytes.
    pub size: u64,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Supplementary groups of the owner; needed only if [`Needs::groups`].
    pub groups: &'s [u32],
    /// The name of the process that changes the file. `None`: rules for processes don't apply. The
    /// cleaner passes the one that is recorded with the newest version.
    pub process: Option<&'s [u8]>,
    /// The local time of the change. `None`: rules for times don't apply. The cleaner passes the
    /// time of the newest version.
    pub time: Option<LocalTime>,
}

/// The policy of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    /// Whether versions are made.
    pub versions: bool,
    /// How versions are stored.
    pub storage: Storage,
    /// How many versions are kept.
    pub number: Range,
    /// How long versions are kept, in seconds since they were the head.
    pub age: Range,
    /// How much space the versions of the file take, in bytes.
    pub space: Range,
    /// Which versions beyond the minimums are kept.
    pub keep: Keep,
    /// Whether versions that were the head for long are kept when `keep` thins out the others.
    pub landmarks: bool,
    /// What happens to a change if there is no space for the version.
    pub nospace: NoSpace,
    /// The program that decides instead of `keep` and `landmarks`.
    pub external: Option<External>,
}

/// A program that decides which versions are discarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    /// Its absolute path.
    pub path: Arc<str>,
    /// The user who registered it and as whom it must run. `None`: the administrator.
    pub uid: Option<u32>,
}

/// The policies of the administrator and of all users.
#[derive(Clone, Debug)]
pub struct Policies {
    admin: Option<Arc<AdminConfig>>,
    builtin: Option<Arc<AdminConfig>>,
    users: HashMap<u32, Document>,
    needs: Needs,
    mount: Mount,
}

/// What the options of the mount set.
#[derive(Clone, Copy, Debug, Default)]
struct Mount {
    storage: Option<Storage>,
    nospace: Option<NoSpace>,
}

impl Default for Policies {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Policies {
    /// The policies of an administrator, or the built-in ones.
    #[must_use]
    pub fn new(admin: Option<AdminConfig>) -> Self {
        let builtin = builtin::CONFIG.clone().filter(|_| admin.as_ref().is_none_or(|admin| admin.builtin));
        let needs = admin.as_ref().map_or_else(Needs::default, |admin| admin.document.needs());
        Self { admin: admin.map(Arc::new), builtin, users: HashMap::new(), needs, mount: Mount::default() }
    }

    /// Policies without any file: every version is made, and kept forever.
    #[must_use]
    pub fn everything() -> Self {
        Self { admin: None, builtin: None, users: HashMap::new(), needs: Needs::default(), mount: Mount::default() }
    }

    /// Sets what the options of the mount say: it replaces the values of the built-in
    /// configuration, but none of a file.
    #[must_use]
    pub fn with_mount(self, storage: Option<Storage>, nospace: Option<NoSpace>) -> Self {
        Self { mount: Mount { storage, nospace }, ..self }
    }

    /// Replaces the policy of a user; `None` removes it. Returns a warning for each value that the
    /// administrator's bounds change.
    pub fn set_user(&mut self, uid: u32, config: Option<UserConfig>) -> Vec<Problem> {
        let mut warnings = Vec::new();
        self.users.remove(&uid);
        if let Some(UserConfig { mut document }) = config {
            let file = Arc::clone(&document.file);
            // Without an administrator's file, the built-in configuration sets the bounds.
            if let Some(admin) = self.admin.as_ref().or(builtin::CONFIG.as_ref()) {
                for settings in document.settings_mut() {
                    admin.bounds.apply(settings, &file, &admin.document.file, &mut warnings);
                }
            }
            self.users.insert(uid, document);
        }
        let documents = self.admin.iter().map(|admin| &admin.document).chain(self.users.values());
        self.needs = documents.fold(Needs::default(), |needs, document| needs.or(document.needs()));
        warnings.sort_by_key(|warning| warning.line);
        warnings
    }

    /// Whether any rule depends on facts that are expensive to find out.
    #[must_use]
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// Returns the policy of a file.
    #[must_use]
    pub fn effective(&self, subject: &Subject<'_>) -> Effective {
        effective(&self.settings(subject), subject.uid)
    }

    /// Says for each value of [`Policies::effective`] where it comes from.
    #[must_use]
    pub fn explain(&self, subject: &Subject<'_>) -> Vec<Reason> {
        let user = self.users.get(&subject.uid).map_or("", |document| &document.file);
        let admin = self.admin.as_ref().map_or("(built-in)", |admin| &admin.document.file);
        reasons(&self.settings(subject), admin, user)
    }

    /// Whether the activity of some user is logged.
    #[must_use]
    pub fn logs_someone(&self) -> bool {
        self.admin.as_ref().is_some_and(|admin| admin.users.logs_someone())
    }

    /// Whether some user may not change old versions.
    #[must_use]
    pub fn restricts_someone(&self) -> bool {
        self.admin.as_ref().is_some_and(|admin| admin.users.restricts_someone())
    }

    /// What a user may do with old versions.
    #[must_use]
    pub fn access(&self, uid: u32, gid: u32, groups: &[u32]) -> UserAccess {
        self.admin.as_ref().map_or_else(UserAccess::default, |admin| admin.users.access(uid, gid, groups))
    }

    /// The bound for the history of the whole volume.
    #[must_use]
    pub fn volume(&self) -> VolumeLimit {
        let of = |config: &Option<Arc<AdminConfig>>| config.as_ref().and_then(|config| config.volume);
        of(&self.admin).or_else(|| of(&self.builtin)).unwrap_or(VolumeLimit::NONE)
    }

    /// The bounds of the audit log.
    #[must_use]
    pub fn audit(&self) -> AuditLimit {
        self.admin.as_ref().and_then(|admin| admin.audit).unwrap_or(AuditLimit::NONE)
    }

    /// Applies the policies from the lowest to the highest rank.
    fn settings(&self, subject: &Subject<'_>) -> Settings {
        let (builtin, admin) = (self.builtin.as_deref(), self.admin.as_deref());
        let (builtin, admin) = (builtin.map(|config| &config.document), admin.map(|config| &config.document));
        let user = self.users.get(&subject.uid);
        let mut settings = Settings::default();
        for document in [builtin, admin, user].into_iter().flatten() {
            settings.override_with(&document.defaults);
        }
        let ranks = [(builtin, true), (admin, true), (user, false), (admin, false)];
        for (document, is_default) in ranks {
            let Some(document) = document else { continue };
            let mut rules = document.rules.iter().filter(|rule| rule.is_default == is_default);
            let Some(first) = rules.find(|rule| rule.selector.matches(subject)) else { continue };
            let mut rank = first.settings.clone();
            for rule in rules.filter(|rule| rule.selector.matches(subject)) {
                rank.restrict(&rule.settings);
            }
            settings.override_with(&rank);
        }
        replace_builtin(&mut settings.storage, self.mount.storage);
        replace_builtin(&mut settings.nospace, self.mount.nospace);
        settings
    }
}

/// Sets a value unless a file does.
fn replace_builtin<T>(set: &mut Option<Set<T>>, mount: Option<T>) {
    let is_builtin = set.as_ref().is_none_or(|set| set.source.origin == Origin::Builtin);
    if let Some(value) = mount.filter(|_| is_builtin) {
        *set = Some(Set { value, source: Source { origin: Origin::Mount, line: 0, bound: None } });
    }
}

fn effective(settings: &Settings, uid: u32) -> Effective {
    let limit = |limit, default| settings.limit(limit).map_or(default, |set| set.value);
    let range = |min, max| Range { min: limit(min, 0), max: limit(max, NO_LIMIT) };
    let keep = settings.keep.as_ref().map_or(Keep::All, |set| set.value);
    let external = settings.external.as_ref().filter(|set| !set.value.is_empty());
    Effective {
        versions: settings.versions.as_ref().is_none_or(|set| set.value),
        storage: settings.storage.as_ref().map_or(Storage::Full, |set| set.value),
        number: range(Limit::NumberMin, Limit::NumberMax),
        age: range(Limit::AgeMin, Limit::AgeMax),
        space: range(Limit::SpaceMin, Limit::SpaceMax),
        keep: if keep == Keep::Generations(Generations([u32::MAX; 5])) { Keep::All } else { keep },
        landmarks: settings.landmarks.as_ref().is_some_and(|set| set.value),
        nospace: settings.nospace.as_ref().map_or(NoSpace::Skip, |set| set.value),
        external: external.map(|set| External {
            path: Arc::clone(&set.value),
            uid: (set.source.origin == Origin::User).then_some(uid),
        }),
    }
}
