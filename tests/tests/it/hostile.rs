//! Branches that users can write to directly, with metadata that the server did not create.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use strata_tests::process::{sh, try_run};
use strata_tests::user::{USER, as_user};
use strata_tests::{Fixture, Mounted, Sandbox, Spec, Transport, on_both_transports};

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// A user forges a redirect to a path below a directory that only root may search.
fn forged_redirects_are_ignored(transport: Transport) {
    let mut fx = Fixture::new(transport, |ro| {
        for dir in ["private/pub", "z", "w"] {
            fs::create_dir_all(ro.join(dir)).unwrap();
        }
        fs::write(ro.join("private/pub/secret"), "secret").unwrap();
        fs::write(ro.join("w/inside"), "inside").unwrap();
        chmod(&ro.join("private"), 0o700);
        chmod(&ro.join("z"), 0o1777);
    });
    // Creates the directory on the read-write branch, where lookups check for redirects.
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
    let output = fx.union.log_text();
    // Each server warns once. The first one does so only if the directory is looked up again
    // before it ends; what the second one writes during the mount is also on stderr.
    let warnings = output.matches("may be forged: its owner is 1000").count();
    assert!((1..=3).contains(&warnings), "{output}");
    assert!(output.contains("path=/z"), "{output}");
    fs::remove_file(forged).unwrap();
}

/// A copy of a branch, made by common tools, mounts as the same union.
fn a_copy_of_a_branch_is_valid(transport: Transport) {
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
        sh(&script, &[&fx.rw, &copied]);
        let spec = Spec::union(&copied, &fx.ro, transport);
        let again = Mounted::new(spec, &fx.sandbox.path("again"));
        assert_eq!(fs::read(again.path("e/inside")).unwrap(), b"inside", "{copy}");
        assert!(!exists(&again.path("d")));
        assert_eq!(fs::read(again.path("b")).unwrap(), b"changed", "{copy}");
    }
}

/// A container image layer, with whiteouts of files and directories, and opaque marks.
const LAYER: &str = r#"
mkdir -p "$1"/etc "$1"/usr/share "$1"/opaque && cd "$1"
: > .wh.gone; : > .wh.tree; : > etc/.wh.conf; : > opaque/.wh..wh..opq
echo layer > etc/new; echo layer > opaque/new; echo layer > usr/share/replaced
chown -R 7:8 opaque; chmod 700 opaque; touch -d @1000000000 .wh.gone etc
tar -C "$1" -cpf "$2" .
"#;

/// Creates the tree over which the layer is unpacked.
fn base(ro: &Path) {
    for dir in ["etc", "usr/share", "tree/deep/er", "opaque/sub"] {
        fs::create_dir_all(ro.join(dir)).unwrap();
    }
    for file in
        ["gone", "etc/conf", "etc/kept", "tree/deep/er/f", "tree/f", "opaque/old", "opaque/sub/f", "usr/share/replaced"]
    {
        fs::write(ro.join(file), "base").unwrap();
    }
}

/// tar(1) unpacks a layer through the union, as an image unpacker does: once, and again over the
/// result.
fn tar_unpacks_an_image_layer(transport: Transport) {
    let mut fx = Fixture::new(transport, base);
    let tar = fx.sandbox.path("layer.tar");
    sh(LAYER, &[&fx.sandbox.path("layer"), &tar]);
    let unpack = "tar --same-owner -C \"$1\" -xpf \"$2\"";
    // Without the option, the log has the reason.
    let refused = try_run(std::process::Command::new("sh").args(["-c", unpack, "sh"]).args([fx.union.dir(), &tar]));
    assert!(refused.text.contains("Operation not permitted"), "{refused:?}");
    assert!(fx.union.log_text().contains("whiteouts=write"), "{}", fx.union.log_text());
    fx.union.unmount();
    for entry in fs::read_dir(&fx.rw).unwrap() {
        sh("rm -r -- \"$1\"", &[entry.unwrap().path()]);
    }
    let spec = Spec::union(&fx.rw, &fx.ro, transport);
    let mut union = Mounted::with_options(spec, &fx.sandbox.path("w"), "whiteouts=write");
    // Fills the kernel's caches.
    sh("find \"$1\" -ls; cat \"$1\"/etc/*", &[union.dir()]);
    let script = "cd \"$1\"; find . -mindepth 1 | LC_ALL=C sort | tr '\n' ' '";
    let want = "./etc ./etc/kept ./etc/new ./opaque ./opaque/new ./usr ./usr/share ./usr/share/replaced ";
    for round in 0..3 {
        if round < 2 {
            sh(unpack, &[union.dir(), &tar]);
        }
        assert_eq!(sh(script, &[union.dir()]), want, "round {round}");
        assert_eq!(fs::read_to_string(union.path("usr/share/replaced")).unwrap(), "layer\n");
        let opaque = fs::metadata(union.path("opaque")).unwrap();
        assert_eq!((opaque.uid(), opaque.gid(), opaque.mode() & 0o7777), (7, 8, 0o700));
        assert_eq!(fs::metadata(fx.rw.join(".wh.gone")).unwrap().mtime(), 1_000_000_000);
        for mark in [".wh.tree", "etc/.wh.conf", "opaque/.wh..wh..opq"] {
            assert!(exists(&fx.rw.join(mark)), "{mark}");
        }
        as_user(USER, || assert!(fs::write(union.path(".wh.usr"), "").is_err()));
        union.remount();
    }
    // A directory created again must not show what the whiteout hid.
    fs::create_dir(union.path("tree")).unwrap();
    assert_eq!(fs::read_dir(union.path("tree")).unwrap().count(), 0);
    assert!(fs::write(union.path(".wh..wh.redirect"), "").is_err());
}

/// Mounting a union whose branch lies in another union fails with the reason.
fn a_branch_inside_another_union_is_refused(transport: Transport) {
    let fx = Fixture::new(transport, |ro| fs::create_dir(ro.join("inner")).unwrap());
    let spec = Spec::union(&fx.path("inner"), &fx.sandbox.dir("other"), transport);
    let output = Mounted::try_new(spec, &fx.sandbox.path("nested"), "").unwrap_err();
    assert!(
        output.contains("inner refuses names that begin with .wh.") && output.contains("another union"),
        "{output}"
    );
}

/// An identity log with a huge header field costs no memory.
fn a_huge_identity_log_costs_no_memory(transport: Transport) {
    let sandbox = Sandbox::new();
    let (rw, ro) = (sandbox.ext4("rw", 64), sandbox.dir("ro"));
    fs::write(ro.join("f"), "text").unwrap();
    for header in ["", "strata-ident 1\n\0"] {
        let log = rw.join(".wh..wh.ident");
        fs::write(&log, header).unwrap();
        fs::File::options().write(true).open(&log).unwrap().set_len(200 << 30).unwrap();
        let union = Mounted::new(Spec::union(&rw, &ro, transport), &sandbox.path("u"));
        assert_eq!(fs::read_to_string(union.path("f")).unwrap(), "text");
        let status = fs::read_to_string(format!("/proc/{}/status", union.server())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(peak < 64 << 10, "{peak} KiB");
        assert!(fs::metadata(&log).unwrap().len() < 4096, "the log was not truncated");
    }
}

on_both_transports!(
    a_huge_identity_log_costs_no_memory,
    forged_redirects_are_ignored,
    a_copy_of_a_branch_is_valid,
    tar_unpacks_an_image_layer,
    a_branch_inside_another_union_is_refused,
);
