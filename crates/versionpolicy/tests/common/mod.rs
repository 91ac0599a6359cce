//! What the tests share.
#![allow(dead_code, missing_docs, unreachable_pub)]

use versionpolicy::{
    Accounts, AdminConfig, Effective, Generations, Keep, NO_LIMIT, NoSpace, Now, Parsed, Policies, Range, Storage,
    Subject, UserConfig, VersionInfo, Versions,
};

pub const SECOND: i128 = 1_000_000_000;
pub const DAY: i128 = 86_400 * SECOND;
/// Sunday, 15 November 2026, 00:00 UTC.
pub const NOW: Now = Now { at: 20_772 * DAY, utc_offset: 0 };
pub const ANN: u32 = 1001;
pub const BOB: u32 = 1002;
pub const STAFF: u32 = 50;

/// Two users and a group.
pub struct People;

impl Accounts for People {
    fn user(&self, name: &str) -> Option<u32> {
        [("ann", ANN), ("bob", BOB)].iter().find(|(known, _)| *known == name).map(|(_, uid)| *uid)
    }

    fn group(&self, name: &str) -> Option<u32> {
        (name == "staff").then_some(STAFF)
    }
}

pub fn admin(text: &str) -> Parsed<AdminConfig> {
    AdminConfig::parse("/etc/versionfs.conf", text.as_bytes(), &People)
}

pub fn user(uid: u32, text: &str) -> Parsed<UserConfig> {
    UserConfig::parse("~/versionfs.conf", text.as_bytes(), uid, Some("/home/ann"), &People)
}

/// The policies of an administrator without the built-in configuration, and of two users.
pub fn policies(administrator: &str, ann: &str, bob: &str) -> Policies {
    let parsed = admin(&format!("builtin = false\n{administrator}"));
    assert_eq!(parsed.problems, [], "{administrator}");
    let mut policies = Policies::new(parsed.config);
    for (uid, text) in [(ANN, ann), (BOB, bob)] {
        let parsed = user(uid, text);
        assert_eq!(parsed.problems, [], "{text}");
        policies.set_user(uid, parsed.config);
    }
    policies
}

pub fn subject(path: &str, uid: u32) -> Subject<'_> {
    let name = path.rsplit('/').next().unwrap_or(path);
    Subject {
        path: path.as_bytes(),
        name: name.as_bytes(),
        size: 1000,
        uid,
        gid: uid,
        groups: &[],
        process: None,
        time: None,
    }
}

/// No limits: every version is kept.
pub fn unlimited() -> Effective {
    Effective {
        versions: Versions::All,
        storage: Storage::Full,
        number: Range::ALL,
        age: Range::ALL,
        space: Range::ALL,
        keep: Keep::All,
        landmarks: false,
        nospace: NoSpace::Skip,
        external: None,
    }
}

pub fn range(min: u64, max: impl Into<Option<u64>>) -> Range {
    Range { min, max: max.into().unwrap_or(NO_LIMIT) }
}

pub fn generations(counts: [u32; 5]) -> Keep {
    Keep::Generations(Generations(counts))
}

/// A version that died `age` ago.
pub fn version(number: u64, age: i128, stored: u64) -> VersionInfo {
    let died = NOW.at - age;
    VersionInfo { number, born: died - SECOND, died, stored, pinned: false, landmark: false, tagged: false }
}
