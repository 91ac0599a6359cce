//! Managed directories, mounted.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use strata_tests::{Mounted, Sandbox, Spec, Transport, on_both_transports, process};

fn mount(sandbox: &Sandbox, lower: &Path, options: &str, transport: Transport) -> Mounted {
    let mut words = std::ffi::OsString::from(format!("usenetfs{options} / "));
    words.push(lower);
    Mounted::new(Spec::Stack { words, transport }, &sandbox.path("m"))
}

fn listed(dir: &Path) -> BTreeSet<String> {
    let names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let set: BTreeSet<_> = names.iter().cloned().collect();
    assert_eq!(set.len(), names.len(), "an entry is listed twice");
    set
}

fn ten_thousand_articles_appear_flat(transport: Transport) {
    for (options, directories) in [("", 1000), (",scheme=hash,limit=200", 16)] {
        let sandbox = Sandbox::new();
        let disk = sandbox.ext4("disk", 128);
        let mounted = mount(&sandbox, &disk, options, transport);
        let group = mounted.path("group");
        fs::create_dir(&group).unwrap();
        fs::set_permissions(&group, PermissionsExt::from_mode(0o4755)).unwrap();
        for n in 1..=10_000 {
            fs::write(group.join(n.to_string()), n.to_string()).unwrap();
        }
        fs::write(group.join("overview"), "all").unwrap();
        fs::create_dir(group.join("345")).unwrap_err();
        fs::remove_file(group.join("345")).unwrap();
        fs::create_dir(group.join("345")).unwrap();
        fs::write(group.join("345/1"), "within").unwrap();
        let names = listed(&group);
        assert_eq!(names.len(), 10_001);
        assert_eq!(fs::metadata(&group).unwrap().nlink(), 3);
        let below = process::sh("find \"$1/group\" -type d | wc -l", &[&disk]);
        let below: usize = below.trim().parse().unwrap();
        assert!(below >= directories, "{below}");
        // rmdir(2) fails while there are entries, and succeeds afterwards.
        fs::remove_dir(&group).unwrap_err();
        fs::rename(group.join("overview"), mounted.path("overview")).unwrap();
        fs::rename(group.join("77"), group.join("78")).unwrap();
        assert_eq!(fs::read_to_string(group.join("78")).unwrap(), "77");
        drop(mounted);
        let mounted = mount(&sandbox, &disk, options, transport);
        let group = mounted.path("group");
        assert_eq!(listed(&group).len(), 9_999);
        assert_eq!(fs::read_to_string(group.join("9876")).unwrap(), "9876");
        process::sh("rm -r \"$1/\"*; rmdir \"$1\"", &[&group]);
        assert_eq!(listed(&mounted.path("")), BTreeSet::from(["overview".to_owned()]));
    }
}

fn conversion_of_a_directory_in_use(transport: Transport) {
    let sandbox = Sandbox::new();
    let disk = sandbox.ext4("disk", 128);
    let mounted = mount(&sandbox, &disk, "", transport);
    let group = mounted.path("group");
    fs::create_dir(&group).unwrap();
    for n in 0..5000 {
        fs::write(group.join(n.to_string()), n.to_string()).unwrap();
    }
    let program = Mounted::program().expect("the program");
    for words in [&["manage", "--scheme", "hash"][..], &["unmanage"], &["manage"], &["unmanage"]] {
        let ended = std::sync::atomic::AtomicBool::new(false);
        let reader = std::thread::scope(|scope| {
            let (group, ended_ref) = (&group, &ended);
            let reader = scope.spawn(move || {
                let mut reads = 0_u32;
                while !ended_ref.load(std::sync::atomic::Ordering::Relaxed) {
                    let n = reads * 37 % 5000;
                    assert_eq!(fs::read_to_string(group.join(n.to_string())).unwrap(), n.to_string());
                    reads += 1;
                }
                reads
            });
            let done = std::process::Command::new(&program).arg("usenet").args(words).arg(group).status().unwrap();
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(done.success(), "{words:?}");
            reader.join().unwrap()
        });
        assert!(reader > 0);
        assert_eq!(listed(&group).len(), 5000, "{words:?}");
        let managed = fs::metadata(&group).unwrap().mode() & 0o4000 != 0;
        assert_eq!(managed, words[0] == "manage");
    }
}

/// On a terminal, the command displays its progress in entries as users count them; in a pipe it
/// prints only the result.
fn conversion_reports_progress(transport: Transport) {
    const ENTRIES: u64 = 6000;
    let sandbox = Sandbox::new();
    let disk = sandbox.ext4("disk", 128);
    let mounted = mount(&sandbox, &disk, "", transport);
    let group = mounted.path("group");
    fs::create_dir(&group).unwrap();
    for n in 0..ENTRIES {
        fs::write(group.join(n.to_string()), "").unwrap();
    }
    let program = Mounted::program().expect("the program");
    for (words, outcome) in [
        ("manage", "managed by digits"),
        ("unmanage", "flat"),
        ("manage --scheme hash --limit 100", "managed by hash"),
        ("unmanage", "flat"),
    ] {
        let command = format!("{} usenet {words} {}", program.display(), group.display());
        let output = process::sh("script -qec \"$1\" /dev/null", &[&command]);
        let counts: Vec<u64> = output
            .split("\r\x1b[K")
            .filter_map(|line| line.split_once(&format!(" of {ENTRIES} entries moved (")))
            .map(|(count, _)| count.parse().unwrap())
            .collect();
        assert!(
            !counts.is_empty() && counts.is_sorted() && counts.iter().all(|n| *n <= ENTRIES),
            "{words}: {output:?}"
        );
        assert!(output.trim_end().ends_with(&format!("group: {outcome}, {ENTRIES} entries")), "{words}: {output:?}");
    }
    let output = process::sh("\"$1\" usenet manage --json \"$2\" 2>&1", &[&program, &group]);
    let expected = format!("\"entries\":{ENTRIES},\"moved\":0,\"scheme\":\"digits\",\"state\":\"stable\"");
    assert!(output.starts_with('{') && output.contains(&expected), "{output:?}");
}

on_both_transports!(ten_thousand_articles_appear_flat, conversion_of_a_directory_in_use, conversion_reports_progress);
