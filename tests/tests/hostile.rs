//! Branches that users can write to directly, and records in them that the server did not make.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use strata_tests::user::{USER, as_user};
use strata_tests::{Fixture, Transport, on_both_transports};

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// A user forges a redirect to what lies below a directory that only root may search.
fn forged_redirects_lead_nowhere(transport: Transport) {
    let mut fx = Fixture::new(transport, |ro| {
        for dir in ["private/pub", "z", "w"] {
            fs::create_dir_all(ro.join(dir)).unwrap();
        }
        fs::write(ro.join("private/pub/secret"), "secret").unwrap();
        fs::write(ro.join("w/inside"), "inside").unwrap();
        chmod(&ro.join("private"), 0o700);
        chmod(&ro.join("z"), 0o1777);
    });
    // The directory comes to the read-write branch, and redirects are looked for there.
    fs::write(fx.path("z/f"), "").unwrap();
    fs::rename(fx.path("w"), fx.path("moved")).unwrap();
    let redirect = fs::metadata(fx.rw.join("moved/.wh..wh.redirect")).unwrap();
    assert_eq!((redirect.uid(), redirect.mode() & 0o7777), (0, 0o444));
    let forged = fx.rw.join("z/.wh..wh.redirect");
    as_user(USER, || fs::write(&forged, "strata-redirect 1\n/private/pub\n").unwrap());
    fx.remount();
    as_user(USER, || {
        assert!(fs::read(fx.path("private/pub/secret")).is_err());
        assert!(!exists(&fx.path("z/secret")));
        assert_eq!(fs::read_dir(fx.path("z")).unwrap().count(), 1);
        assert_eq!(fs::read(fx.path("moved/inside")).unwrap(), b"inside");
    });
    let said = fx.union.said();
    // While mounting, warnings go to stderr as well.
    let told = said.matches("may be forged: its owner is 1000").count();
    assert!((1..=2).contains(&told), "{said}");
    assert!(said.contains("path=/z"), "{said}");
    fs::remove_file(forged).unwrap();
}

/// A copy of a branch, made by the usual tools, says the same.
fn copied_branches_are_valid(transport: Transport) {
    for copy in ["cp -a", "rsync -aHAX", "tar"] {
        let fx = Fixture::new(transport, |ro| {
            fs::create_dir(ro.join("d")).unwrap();
            fs::write(ro.join("d/inside"), "inside").unwrap();
            fs::write(ro.join("a"), "a").unwrap();
            fs::hard_link(ro.join("a"), ro.join("b")).unwrap();
        });
        fs::rename(fx.path("d"), fx.path("e")).unwrap();
        fs::write(fx.path("a"), "changed").unwrap();
        let script = match copy {
            "tar" => "mkdir \"$2\"; tar -C \"$1\" -c . | tar -C \"$2\" -x".to_owned(),
            _ => format!("{copy} \"$1\"/ \"$2\""),
        };
        let copied = fx.sandbox.dir("copies").join("rw");
        strata_tests::process::sh(&script, &[&fx.rw, &copied]);
        let spec = strata_tests::Spec::union(&copied, &fx.ro, transport);
        let again = strata_tests::Mounted::new(spec, &fx.sandbox.path("again"));
        assert_eq!(fs::read(again.path("e/inside")).unwrap(), b"inside", "{copy}");
        assert!(!exists(&again.path("d")));
        assert_eq!(fs::read(again.path("b")).unwrap(), b"changed", "{copy}");
    }
}

on_both_transports!(forged_redirects_lead_nowhere, copied_branches_are_valid);
