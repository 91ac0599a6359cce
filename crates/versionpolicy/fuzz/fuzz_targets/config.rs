//! Feeds arbitrary texts as configuration files of the administrator and of a user, a path that
//! their patterns are matched with, and the answer of an external policy. NUL separates them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use versionpolicy::{
    Accounts, AdminConfig, Now, Policies, Subject, UserConfig, VersionInfo, apply_answer, decide, request_json,
};

const SECOND: i128 = 1_000_000_000;

struct People;

impl Accounts for People {
    fn user(&self, name: &str) -> Option<u32> {
        (name == "ann").then_some(1001)
    }

    fn group(&self, name: &str) -> Option<u32> {
        (name == "staff").then_some(50)
    }
}

fn versions(times: &[u8]) -> Vec<VersionInfo> {
    let mut number = 0;
    let version = |time: &u8| {
        number += 1;
        // The clock jumps as it likes.
        let died = i128::from(*time).pow(4) * SECOND;
        let stored = u64::from(*time) << 20;
        VersionInfo { number, born: died - SECOND, died, stored, pinned: false, landmark: false, tagged: false }
    };
    times.iter().take(100).map(version).collect()
}

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(4, |byte| *byte == 0);
    let mut part = || parts.next().unwrap_or_default();
    let (admin, user, path, answer) = (part(), part(), part(), part());
    let mut policies = Policies::new(AdminConfig::parse("a", admin, &People).config);
    policies.set_user(1001, UserConfig::parse("u", user, 1001, Some("/home/ann"), &People).config);
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let subject = Subject { path, name, size: 1000, uid: 1001, gid: 50, groups: &[50], process: None, time: None };
    let policy = policies.effective(&subject);
    let _ = policies.explain(&subject);
    let (versions, now) = (versions(path), Now { at: 2_000_000_000 * SECOND, utc_offset: 3600 });
    let decision = decide(&policy, &versions, now);
    for number in decision.discarded() {
        let version = versions.iter().find(|version| version.number == number).expect("a known version");
        let latest = versions.iter().filter(|other| other.number <= number).map(|other| other.died).max();
        let age = now.at - latest.unwrap_or(version.died);
        assert!(age >= i128::from(policy.age.min) * SECOND, "{number} is protected by its age");
    }
    // What remains is kept if the rules are applied again.
    let gone: Vec<u64> = decision.discarded().collect();
    let left: Vec<_> = versions.iter().filter(|version| !gone.contains(&version.number)).copied().collect();
    assert_eq!(decide(&policy, &left, now).discarded().count(), 0);
    let _ = request_json(&policy, path, &versions, now);
    let _ = apply_answer(&policy, &versions, now, answer);
});
