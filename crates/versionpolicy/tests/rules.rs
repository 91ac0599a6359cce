//! The rules of the paper (section 3.3), one after the other: two users and an administrator whose
//! policies conflict, and the order in which versions are discarded.

mod common;

use common::*;
use versionpolicy::{
    Access, DiscardReason, Generation, KeepReason, LocalTime, NO_LIMIT, NoSpace, Policies, Rank, Storage, Subject,
    UserAccess, Verdict, VersionInfo, Versions, VolumeLimit, VolumeMax, apply_answer, decide, may_exceed, ranks,
    request_json,
};

const SPACE: u64 = 1000;

/// One version a day, the newest of them one day old.
fn days(count: u64) -> Vec<VersionInfo> {
    (1..=count).map(|number| version(number, i128::from(count - number + 1) * DAY, SPACE)).collect()
}

fn discarded(policy: &versionpolicy::Effective, versions: &[VersionInfo]) -> Vec<u64> {
    decide(policy, versions, NOW).discarded().collect()
}

// The administrator and users.

#[test]
fn the_administrator_provides_defaults_and_users_customize_them() {
    let policies = policies("number = \"..50\"\nstorage = \"full\"", "number = \"5..20\"", "");
    let ann = policies.effective(&subject("/f", ANN));
    assert_eq!((ann.number, ann.storage), (range(5, 20), Storage::Full));
    assert_eq!(policies.effective(&subject("/f", BOB)).number, range(0, 50));
}

#[test]
fn values_of_users_stay_within_the_bounds() {
    let policies = policies(
        "[bounds]\n number = \"2..100\"\nage = { min = \"..7d\", max = \"1d..\" }\nkeep = { hourly = \"..48\" }\n\
         storage = [\"compress\", \"sparse\"]\nversions = [true]",
        "number = \"1..500\"\nage = \"30d..60d\"\nkeep = \"all\"\nstorage = \"full\"\nversions = false",
        "number = \"..none\"\nkeep = { hourly = 72, daily = 3 }\nstorage = \"sparse\"",
    );
    let ann = policies.effective(&subject("/f", ANN));
    assert_eq!((ann.number, ann.age), (range(2, 100), range(7 * 86_400, 60 * 86_400)));
    assert_eq!(ann.keep, generations([48, u32::MAX, u32::MAX, u32::MAX, u32::MAX]));
    assert!(ann.versions == Versions::All && ann.storage == Storage::Full, "what is not permitted is ignored");
    let bob = policies.effective(&subject("/f", BOB));
    assert_eq!((bob.number.max, bob.storage, bob.keep), (100, Storage::Sparse, generations([48, 3, 0, 0, 0])));
}

#[test]
fn rules_of_the_administrator_override_those_of_users() {
    let policies = policies(
        "[[rule]]\nextension = \"log\"\n number = \"..10\"\n[[rule]]\nextension = \"c\"\ndefault = true\n number = \"..30\"",
        "[[rule]]\nextension = [\"log\", \"c\"]\n number = \"..50\"",
        "number = \"..70\"",
    );
    let max = |path, uid| policies.effective(&subject(path, uid)).number.max;
    assert_eq!(max("/a.log", ANN), 10);
    assert_eq!(max("/a.c", ANN), 50, "the administrator's rule is a default");
    assert_eq!(max("/a.c", BOB), 30, "a rule is more specific than a default of the user");
    assert_eq!(max("/a.h", BOB), 70);
}

#[test]
fn of_two_policies_of_a_user_the_most_restrictive_one_wins() {
    let policies = policies(
        "",
        "[[rule]]\nname = \"a*\"\n number = \"5..50\"\nspace = \"..1MB\"\nstorage = \"sparse\"\nlandmarks = true\n\
         keep = { hourly = 9, daily = 1 }\n\
         [[rule]]\nextension = \"c\"\n number = \"10..100\"\nstorage = \"full\"\nversions = false\nlandmarks = false\n\
         keep = { hourly = 3, daily = 7 }\nnospace = \"fail\"\n\
         [[rule]]\nsize = \"1KB..\"\nnospace = \"skip\"\nkeep = \"all\"",
        "",
    );
    let both = policies.effective(&subject("/a.c", ANN));
    assert_eq!((both.number, both.space.max, both.storage), (range(10, 50), 1_000_000, Storage::Sparse));
    assert_eq!((both.versions, both.landmarks, both.nospace), (Versions::None, false, NoSpace::Fail));
    assert_eq!(both.keep, generations([3, 1, 0, 0, 0]));
    assert_eq!(policies.effective(&subject("/b.c", ANN)).number, range(10, 100));
}

#[test]
fn of_three_values_for_versions_the_most_restrictive_one_wins() {
    let policies = policies(
        "[bounds]\nversions = [true, \"removed\"]",
        "versions = true\n[[rule]]\nname = \"a*\"\nversions = \"removed\"\n[[rule]]\nextension = \"c\"\nversions = true",
        "[[rule]]\nname = \"a*\"\nversions = false",
    );
    let versions = |path, uid| policies.effective(&subject(path, uid)).versions;
    assert_eq!((versions("/a.c", ANN), versions("/b.c", ANN)), (Versions::Removed, Versions::All));
    assert_eq!(versions("/a", BOB), Versions::All, "what is not permitted is ignored");
    let wrong = user(ANN, "versions = \"some\"");
    assert!(wrong.problems[0].to_string().contains("removed"), "{:?}", wrong.problems);
    let explained: Vec<_> = policies.explain(&subject("/a.c", ANN)).iter().map(ToString::to_string).collect();
    assert!(explained.contains(&"versions = removed (~/versionfs.conf:4)".to_owned()), "{explained:?}");
}

#[test]
fn rules_select_by_every_fact() {
    let rule = |selector: &str| {
        let policies = policies("", &format!("[[rule]]\n{selector}\nversions = false"), "");
        move |subject: &Subject<'_>| policies.effective(subject).versions == Versions::None
    };
    let file = subject("/home/ann/src/main.tar.GZ", ANN);
    let matching = [
        "path = \"/home/*/src/*\"",
        "path = \"~/src/main*\"",
        "path = \"src/main.*\"",
        "directory = \"/home\"",
        "directory = [\"/nowhere\", \"src/\"]",
        "name = \"main.*\"",
        "extension = [\"c\", \".tar.gz\"]",
        "size = \"1KB..2KB\"",
        "user = \"ann\"",
        "group = 1001",
        "directory = \"/home\"\nexcept = \"*.c\"",
    ];
    for selector in matching {
        assert!(rule(selector)(&file), "{selector}");
    }
    let other = [
        "path = \"/home/*\"",
        "directory = \"/home/ann/sr\"",
        "name = \"main\"",
        "extension = \"tar\"",
        "size = \"..999B\"",
        "group = \"staff\"",
        "process = \"vi\"",
        "time = \"00:00..24:00\"",
        "directory = \"/home\"\nexcept = \"main.*\"",
        "name = \"main.*\"\nsize = \"2KB..\"",
    ];
    for selector in other {
        assert!(!rule(selector)(&file), "{selector}");
    }
    assert!(rule("group = \"staff\"")(&Subject { groups: &[7, STAFF], ..file }));
    assert!(!rule("extension = \"o\"")(&subject("/.o", ANN)), "a hidden file has no extension");
    let process = |name: &'static str| Subject { process: Some(name.as_bytes()), ..file };
    assert!(rule("process = [\"vi\", \"emacs*\"]")(&process("emacs-29")));
    assert!(rule("process = \"a-process-with-a-long-name\"")(&process("a-process-with-")), "as the kernel cuts it");
    let at = |minute, weekday| Subject { time: Some(LocalTime { minute, weekday }), ..file };
    let night = rule("time = \"18:00..08:00\"\nweekday = \"mon..fri\"");
    assert!(night(&at(1200, 4)) && !night(&at(600, 4)) && !night(&at(1200, 5)));
}

#[test]
fn needs_tell_which_facts_matter() {
    assert_eq!(Policies::new(None).needs(), versionpolicy::Needs::default());
    let mut policies =
        policies("", "[[rule]]\nprocess = \"vi\"\nversions = true", "[[rule]]\nweekday = \"sat\"\nversions = true");
    assert!(policies.needs().process && policies.needs().time && !policies.needs().groups);
    policies.set_user(ANN, None);
    assert!(!policies.needs().process && policies.needs().time);
}

#[test]
fn access_is_the_administrators_choice() {
    let policies = policies(
        "[users]\naccess = \"read\"\n[[users.override]]\ngroup = \"staff\"\naccess = \"change\"\n\
         [[users.override]]\nuser = \"bob\"\naccess = \"none\"\nlog = true",
        "",
        "",
    );
    assert_eq!(policies.access(ANN, 1, &[]), UserAccess { access: Access::Read, log: false });
    assert_eq!(policies.access(ANN, 1, &[STAFF]), UserAccess { access: Access::Change, log: false });
    assert_eq!(policies.access(BOB, STAFF, &[]), UserAccess { access: Access::None, log: true });
    assert_eq!(Policies::new(None).access(ANN, 1, &[]), UserAccess { access: Access::Change, log: false });
}

#[test]
fn explain_names_file_line_and_bound() {
    let policies = policies("[bounds]\n number = \"..100\"", "[[rule]]\nname = \"*\"\n number = \"..500\"", "");
    let shown: Vec<_> = policies.explain(&subject("/f", ANN)).iter().map(ToString::to_string).collect();
    let number = "number.max = 100 (~/versionfs.conf:3), changed by the bounds of /etc/versionfs.conf:3";
    assert!(shown.contains(&number.to_owned()), "{shown:#?}");
    assert!(shown.contains(&"versions = true (default)".to_owned()));
    let builtin: Vec<_> = Policies::new(None).explain(&subject("/f", ANN)).iter().map(ToString::to_string).collect();
    assert!(builtin.contains(&"storage = compress (built-in:3)".to_owned()), "{builtin:#?}");
}

#[test]
fn the_administrator_bounds_the_audit_log() {
    assert!(Policies::new(None).audit().keeps_all());
    assert!(policies("[audit]\nage = \"90d..\"\nspace = \"1GiB..none\"", "", "").audit().keeps_all());
    let limit = policies("[audit]\nage = \"90d..1y\"\nspace = \"..2GiB\"", "", "").audit();
    assert_eq!((limit.age, limit.space), (range(90 * 86_400, 365 * 86_400), range(0, 2 << 30)));
    assert!(!limit.keeps_all() && !policies("[audit]\nspace = \"..1MB\"", "", "").audit().keeps_all());
    // Users have no say, and mistakes keep the file from being used.
    assert!(user(ANN, "[audit]\nage = \"..0\"").config.is_none());
    for wrong in ["age = \"2d..1d\"", "age = \"90d\"", "space = \"..2\"", "number = \"..3\"", "space = 5"] {
        let parsed = admin(&format!("[audit]\n{wrong}"));
        assert!(parsed.config.is_none() && parsed.problems[0].line == 2, "{wrong}: {:?}", parsed.problems);
    }
}

#[test]
fn the_built_in_policy() {
    let policies = Policies::new(None);
    let file = policies.effective(&subject("/home/ann/thesis.tex", ANN));
    assert_eq!((file.versions, file.storage), (Versions::All, Storage::Compress));
    assert_eq!(file.age, range(86_400, 90 * 86_400));
    let large = policies.effective(&Subject { size: 64 << 20, ..subject("/home/ann/video.mkv", ANN) });
    assert_eq!((large.versions, large.storage), (Versions::All, Storage::Sparse));
    for path in [
        "/a/main.o",
        "/a/.git/objects/12/34",
        "/a/.git/refs/heads/main.lock",
        "/a/.b.swp",
        "/a/b~",
        "/.cache/x",
        "/a/places.sqlite-wal",
    ] {
        let removed = policies.effective(&subject(path, ANN));
        assert_eq!((removed.versions, removed.number.max), (Versions::Removed, 10), "{path}");
        assert_eq!(removed.age, range(0, 90 * 86_400), "{path}");
    }
    let unfinished = policies.effective(&subject("/a/.git/objects/12/tmp_obj_x1y2z3", ANN));
    assert_eq!(unfinished.versions, Versions::None);
    // What nobody makes again.
    for path in ["/a/.git/config", "/a/cache/x", "/a/foo", "/a/Cargo.toml", "/a/Cargo.lock", "/a/notes.db"] {
        assert_eq!(policies.effective(&subject(path, ANN)).versions, Versions::All, "{path}");
    }
    assert_eq!(policies.volume(), VolumeLimit { max: VolumeMax::Percent(25), hard: false, free: Some(1 << 30) });
    assert_eq!(policies.volume().bytes(1000), Some(250));
}

// Retention.

#[test]
fn what_is_excluded_goes_before_all_others_unless_somebody_protects_it() {
    let versions = [days(3), vec![VersionInfo { number: 4, pinned: true, ..days(1)[0] }]].concat();
    let rank = |versions_made| {
        let policy =
            versionpolicy::Effective { versions: versions_made, age: range(u64::MAX / 2, None), ..unlimited() };
        ranks(&policy, &versions, NOW).iter().map(|(rank, _)| *rank).collect::<Vec<_>>()
    };
    let [excluded, aged] = [Rank::Excluded, Rank::Age].map(Some);
    assert_eq!(rank(Versions::Removed), [excluded, excluded, excluded, None]);
    assert_eq!(rank(Versions::All), [aged, aged, aged, None]);
    assert!(Rank::Excluded < Rank::Loose);
}

#[test]
fn a_maximum_number_discards_the_tail() {
    let policy = versionpolicy::Effective { number: range(0, 3), ..unlimited() };
    assert_eq!(discarded(&policy, &days(5)), [1, 2]);
    assert_eq!(discarded(&policy, &days(3)), [0; 0]);
}

#[test]
fn a_maximum_age_discards_the_tail() {
    let policy = versionpolicy::Effective { age: range(0, 2 * 86_400), ..unlimited() };
    assert_eq!(discarded(&policy, &days(5)), [1, 2, 3]);
}

#[test]
fn a_maximum_space_discards_the_tail_until_the_rest_fits() {
    let policy = versionpolicy::Effective { space: range(0, 2 * SPACE + 1), ..unlimited() };
    assert_eq!(discarded(&policy, &days(5)), [1, 2, 3]);
}

#[test]
fn a_minimum_wins_over_any_maximum() {
    let limits = |number, age, space| versionpolicy::Effective { number, age, space, ..unlimited() };
    let (none, day) = (range(0, None), 86_400);
    // The paper's example: at least 10 versions and at least 2 days.
    assert_eq!(
        discarded(&limits(range(10, 100), range(2 * day, 5 * day), none), &days(20)),
        (1..=10).collect::<Vec<_>>()
    );
    assert_eq!(discarded(&limits(range(2, 1), none, none), &days(5)), [1, 2, 3]);
    assert_eq!(discarded(&limits(range(0, 1), range(4 * day, None), none), &days(5)), [1, 2]);
    assert_eq!(discarded(&limits(range(0, 1), none, range(3 * SPACE, None)), &days(5)), [1, 2]);
    assert_eq!(discarded(&limits(range(3, None), none, range(0, 1)), &days(5)), [1, 2]);
    assert_eq!(discarded(&limits(range(4, None), range(0, day), none), &days(5)), [1]);
}

#[test]
fn junk_writes_cannot_flush_history() {
    let policy = versionpolicy::Effective {
        number: range(0, 10),
        space: range(0, 10 * SPACE),
        age: range(86_400, None),
        ..unlimited()
    };
    let mut versions = vec![version(1, 3600 * SECOND, SPACE)];
    versions.extend((2..1000).map(|number| version(number, SECOND, SPACE)));
    assert_eq!(discarded(&policy, &versions), [0; 0]);
}

#[test]
fn pins_tags_and_marked_landmarks_stay() {
    let policy = versionpolicy::Effective { number: range(0, 2), ..unlimited() };
    let mut versions = days(6);
    versions[0].pinned = true;
    versions[1].tagged = true;
    versions[2].landmark = true;
    let decision = decide(&policy, &versions, NOW);
    assert_eq!(decision.discarded().collect::<Vec<_>>(), [4, 5, 6]);
    let kept = [KeepReason::Pinned, KeepReason::Tagged, KeepReason::Landmark];
    for ((_, verdict), reason) in decision.verdicts.iter().zip(kept) {
        assert_eq!(*verdict, Verdict::Keep(reason));
    }
    assert_eq!(decision.verdicts[5].1, Verdict::Discard(DiscardReason::MaxNumber));
}

#[test]
fn generations_thin_out_the_middle() {
    let policy = versionpolicy::Effective { keep: generations([0, 3, 2, 2, 1]), ..unlimited() };
    let decision = decide(&policy, &days(60), NOW);
    let kept = |(number, verdict): &(u64, Verdict)| match verdict {
        Verdict::Keep(KeepReason::Generation(generation)) => Some((*number, *generation)),
        _ => None,
    };
    let kept: Vec<_> = decision.verdicts.iter().filter_map(kept).collect();
    // 60 is 14 November, a Saturday: its week began on the 9th. 46 is 31 October.
    let expected =
        [(46, Generation::Monthly), (54, Generation::Weekly), (58, Generation::Daily), (59, Generation::Daily)];
    assert_eq!(kept, [&expected[..], &[(60, Generation::Daily)]].concat());
    let policy = versionpolicy::Effective { age: range(0, 5 * 86_400), ..policy };
    assert!(discarded(&policy, &days(60)).contains(&54), "maximums apply to what generations keep");
}

#[test]
fn landmarks_survive_thinning() {
    let policy = versionpolicy::Effective { keep: generations([0; 5]), landmarks: true, ..unlimited() };
    let mut versions = days(10);
    versions[4].born = versions[4].died - DAY;
    let decision = decide(&policy, &versions, NOW);
    assert_eq!(decision.verdicts[4].1, Verdict::Keep(KeepReason::LongLived));
    assert_eq!(decision.discarded().count(), 9);
}

#[test]
fn a_clock_that_jumps_back_discards_nothing() {
    let policy = versionpolicy::Effective { age: range(86_400, 2 * 86_400), number: range(0, 1), ..unlimited() };
    let versions = [version(1, -DAY, 1), version(2, 5 * DAY, 1), version(3, 5 * DAY, 1)];
    assert_eq!(discarded(&policy, &versions), [0; 0]);
    let policy = versionpolicy::Effective { age: range(0, 1), ..unlimited() };
    assert_eq!(discarded(&policy, &versions), [0; 0], "ages are never negative, and monotonic in a set");
}

#[test]
fn whether_a_new_version_needs_a_decision() {
    let policy = versionpolicy::Effective { number: range(0, 3), age: range(0, 86_400), ..unlimited() };
    assert!(may_exceed(&policy, 4, 0, NOW.at, NOW) && !may_exceed(&policy, 3, NO_LIMIT, NOW.at - DAY, NOW));
    assert!(may_exceed(&policy, 1, 0, NOW.at - DAY - 1, NOW));
}

// The volume.

#[test]
fn what_a_minimum_age_protects_goes_last() {
    let policy = versionpolicy::Effective { age: range(3 * 86_400, None), number: range(6, None), ..unlimited() };
    let mut versions = days(20);
    versions[0].pinned = true;
    versions[1].tagged = true;
    // The clock was set back.
    versions[4].died -= 10 * DAY;
    let ranks = ranks(&policy, &versions, NOW);
    assert!(ranks.iter().map(|(_, died)| died).is_sorted());
    let of: Vec<_> = ranks.iter().map(|(rank, _)| *rank).collect();
    assert_eq!(of[..2], [None, None]);
    assert!(of[2..14].iter().all(|rank| *rank == Some(Rank::Loose)), "{of:?}");
    assert!(of[14..18].iter().all(|rank| *rank == Some(Rank::Number)), "{of:?}");
    assert!(of[18..].iter().all(|rank| *rank == Some(Rank::Age)), "{of:?}");
    assert!(Rank::Loose < Rank::Number && Rank::Number < Rank::Age);
}

#[test]
fn the_reserve_is_a_small_part_of_a_small_file_system() {
    let admin = |text: &str| Policies::new(admin(text).config).volume();
    let gib = 1 << 30;
    assert_eq!(admin("number = \"..3\"").reserve(100 * gib), Some(gib));
    assert_eq!(admin("[volume]\nfree = \"4GiB\"").reserve(40 * gib), Some(2 * gib));
    // What a file leaves open stays as it is built in.
    assert_eq!(admin("[volume]\nfree = \"none\"").bytes(1000), Some(250));
    assert_eq!(admin("[volume]\nfree = \"none\"").reserve(gib), None);
    assert_eq!(admin("[volume]\nmax = \"none\"").reserve(20 * gib), Some(gib));
}

// External policies.

#[test]
fn external_policies_need_permission() {
    let text = "external = \"/home/ann/policy\"";
    let path = |policies: &Policies| policies.effective(&subject("/f", ANN)).external;
    assert_eq!(path(&policies("", text, "")), None);
    let permitted = path(&policies("[bounds]\nexternal = true", text, "")).expect("permitted");
    assert_eq!((&*permitted.path, permitted.uid), ("/home/ann/policy", Some(ANN)));
    let own =
        path(&policies("[[rule]]\nname = \"*\"\nexternal = \"/usr/bin/p\"", "", "")).expect("the administrator's");
    assert_eq!(own.uid, None);
}

#[test]
fn answers_are_bounded_by_minimums_and_maximums() {
    let policy = versionpolicy::Effective { number: range(2, 4), keep: generations([0; 5]), ..unlimited() };
    let answer = |text: &str| apply_answer(&policy, &days(6), NOW, text.as_bytes());
    let numbers = |text: &str| answer(text).expect("valid").discarded().collect::<Vec<_>>();
    assert_eq!(numbers("{\"discard\": [3, 6]}"), [1, 3], "6 is protected, 1 exceeds the maximum");
    assert_eq!(numbers("{\"discard\": []}"), [1, 2]);
    let error = |text: &str| answer(text).expect_err("invalid").to_string();
    assert_eq!(error("{\"discard\": [7]}"), "the answer discards version 7, which does not exist");
    let malformed = "the answer is not {\"discard\": [NUMBER, ...]}: ";
    for text in ["", "[]", "{}", "{\"discard\": [-1]}", "{\"discard\": [1], \"keep\": []}", "{\"discard\": [1]} x"] {
        assert!(error(text).starts_with(malformed), "{text}");
    }
    assert_eq!(
        apply_answer(&policy, &[], NOW, &vec![b' '; versionpolicy::MAX_ANSWER + 1]),
        Err(versionpolicy::AnswerError::TooLong)
    );
}

#[test]
fn the_request_is_one_json_object() {
    let policy = versionpolicy::Effective { number: range(1, 4), ..unlimited() };
    let json = request_json(&policy, b"/a\xff", &[version(7, DAY, 5), version(8, -1, 0)], NOW);
    assert_eq!(
        json,
        "{\"request\":1,\"path\":\"/a\u{fffd}\",\"path_bytes\":[47,97,255],\"now\":\"1794700800.000000000\",\
         \"number\":{\"min\":1,\"max\":4},\"age\":{\"min\":0,\"max\":null},\"space\":{\"min\":0,\"max\":null},\
         \"versions\":[\
         {\"number\":7,\"born\":\"1794614399.000000000\",\"died\":\"1794614400.000000000\",\"stored\":5,\
         \"pinned\":false,\"tagged\":false,\"landmark\":false,\"protected\":false},\
         {\"number\":8,\"born\":\"1794700799.000000001\",\"died\":\"1794700800.000000001\",\"stored\":0,\
         \"pinned\":false,\"tagged\":false,\"landmark\":false,\"protected\":true}]}\n"
    );
}
