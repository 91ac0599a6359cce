use crate::audit::AuditLimit;
use crate::builtin;
use crate::config::{AdminConfig, Document, UserConfig};
use crate::explain::{Reason, reasons};
use crate::problem::Problem;
use crate::range::{NO_LIMIT, Range};
use crate::settings::{Generations, Keep, Limit, NoSpace, Origin, Set, Settings, Source, Storage, Versions};
use crate::subject::{Effective, External, Subject};
use crate::users::UserAccess;
use crate::volume::VolumeLimit;
use std::collections::HashMap;
use std::sync::Arc;

pub use crate::selector::Needs;

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
        let admin = self.admin.as_ref().map_or("built-in", |admin| &admin.document.file);
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
        let files = self.builtin.iter().chain(&self.admin);
        files.fold(VolumeLimit::NONE, |limit, config| config.volume.over(limit))
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
        versions: settings.versions.as_ref().map_or(Versions::All, |set| set.value),
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
