//! What users may do with old versions, and whose activity is logged.

use crate::context::Accounts;
use crate::document::{Node, Table};
use crate::problem::Problems;
use crate::selector::ids;
use crate::settings::named;

/// What a user may do with old versions of files that the user may access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Nothing: old versions are not visible.
    None,
    /// Read them.
    Read,
    /// Read, discard, rename and otherwise change them.
    Change,
}

const ALL: [Access; 3] = [Access::None, Access::Read, Access::Change];
const NAMES: [&str; 3] = ["none", "read", "change"];

/// The rights of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserAccess {
    /// What the user may do with old versions.
    pub access: Access,
    /// Whether the user's activity is logged without notice.
    pub log: bool,
}

impl Default for UserAccess {
    fn default() -> Self {
        Self { access: Access::Change, log: false }
    }
}

/// The table `[users]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct UserRules {
    default: UserAccess,
    overrides: Vec<Override>,
}

/// Other values for some users and groups.
#[derive(Clone, Debug)]
struct Override {
    users: Vec<u32>,
    groups: Vec<u32>,
    access: Option<Access>,
    log: Option<bool>,
}

impl UserRules {
    pub(crate) fn read(table: &Table<'_>, accounts: &dyn Accounts, problems: &mut Problems<'_>) -> Self {
        table.expect_keys(&["access", "log", "override"], problems);
        let (access, log) = read_values(table, problems);
        let standard = UserAccess::default();
        let default = UserAccess { access: access.unwrap_or(standard.access), log: log.unwrap_or(standard.log) };
        let nodes = table.get("override");
        let nodes = nodes.map_or_else(Vec::new, |node| node.array("tables [[users.override]]", problems));
        let overrides = nodes.iter().filter_map(|node| read_override(node, accounts, problems)).collect();
        Self { default, overrides }
    }

    /// Whether some rule has a user's activity logged.
    pub(crate) fn logs_someone(&self) -> bool {
        self.default.log || self.overrides.iter().any(|own| own.log == Some(true))
    }

    /// Whether some user may not change old versions.
    pub(crate) fn restricts_someone(&self) -> bool {
        let restricts = |access| access < Access::Change;
        restricts(self.default.access) || self.overrides.iter().filter_map(|own| own.access).any(restricts)
    }

    /// The rights of a user. An override for the user precedes those for groups; of several ones
    /// the most restrictive one applies.
    pub(crate) fn access(&self, uid: u32, gid: u32, groups: &[u32]) -> UserAccess {
        let by_user: Vec<_> = self.overrides.iter().filter(|own| own.users.contains(&uid)).collect();
        let in_group = |group: &u32| *group == gid || groups.contains(group);
        let by_group: Vec<_> = self.overrides.iter().filter(|own| own.groups.iter().any(in_group)).collect();
        let access = |list: &[&Override]| list.iter().filter_map(|own| own.access).min();
        let log = |list: &[&Override]| list.iter().filter_map(|own| own.log).max();
        UserAccess {
            access: access(&by_user).or_else(|| access(&by_group)).unwrap_or(self.default.access),
            log: log(&by_user).or_else(|| log(&by_group)).unwrap_or(self.default.log),
        }
    }
}

fn read_override(node: &Node<'_>, accounts: &dyn Accounts, problems: &mut Problems<'_>) -> Option<Override> {
    let table = node.table("a table [[users.override]]", problems)?;
    table.expect_keys(&["user", "group", "access", "log"], problems);
    let users = ids(&table, "user", problems, |name| accounts.user(name));
    let groups = ids(&table, "group", problems, |name| accounts.group(name));
    let (access, log) = read_values(&table, problems);
    if table.get("user").is_none() && table.get("group").is_none() {
        problems.error(&table.span, "the override names nobody; add user or group");
    }
    if access.is_none() && log.is_none() {
        problems.warning(&table.span, "the override sets nothing; add access or log");
    }
    Some(Override { users, groups, access, log })
}

fn read_values(table: &Table<'_>, problems: &mut Problems<'_>) -> (Option<Access>, Option<bool>) {
    let access = table.get("access").and_then(|node| {
        node.parse("none, read or change", problems, |text| {
            named(text, &ALL, &NAMES)
                .ok_or_else(|| format!("unknown value \"{text}\"; {}", crate::problem::instead(text, &NAMES)))
        })
    });
    (access, table.get("log").and_then(|node| node.boolean(problems)))
}
