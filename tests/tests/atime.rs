//! When reading moves the time of access: as the mount's flags say, or else the lower mount's.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use strata_tests::process::run;
use strata_tests::{Mounted, Sandbox, Spec, Transport, on_both_transports};

/// What is mounted over the directory whose times are looked at.
struct Stage {
    sandbox: Sandbox,
    lower: PathBuf,
}

impl Stage {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        let lower = sandbox.ext4("lower", 64).join("branch");
        fs::create_dir_all(lower.join("dir")).unwrap();
        (0..9).for_each(|i| fs::write(lower.join(i.to_string()), "text").unwrap());
        fs::create_dir(sandbox.dir("other").join("x")).unwrap();
        Self { sandbox, lower }
    }

    fn flags_of_lower(&self, flags: &str) {
        run(Command::new("mount").arg("-o").arg(format!("remount,{flags}")).arg(self.sandbox.path("lower")));
    }

    fn specs(&self, transport: Transport) -> [Spec; 3] {
        [
            Spec::union(&self.lower, &self.sandbox.path("other"), transport),
            Spec::wrap(&self.lower, transport),
            Spec::stack("wrapfs / snoopfs / ", &self.lower, transport),
        ]
    }

    fn mount(&self, spec: &Spec, options: &str) -> Mounted {
        Mounted::with_options(spec.clone(), &self.sandbox.path("m"), options)
    }

    /// Does reading the file move its time of access, and does it do so again?
    fn moves(&self, mounted: &Mounted, name: &str) -> (bool, bool) {
        let at = self.lower.join(name);
        let read = || {
            let before = time(&at);
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(fs::read_to_string(mounted.path(name)).unwrap(), "text");
            time(&at) != before
        };
        (read(), read())
    }

    /// Makes a file one that was changed after it was read.
    fn change(&self, name: &str) {
        std::thread::sleep(Duration::from_millis(20));
        fs::write(self.lower.join(name), "text").unwrap();
    }
}

fn time(path: &Path) -> (i64, i64) {
    let meta = fs::metadata(path).unwrap();
    (meta.atime(), meta.atime_nsec())
}

/// Options of the lower mount, options of ours, whether a first and a second reading move the time.
const CASES: [(&str, &str, (bool, bool)); 7] = [
    ("noatime", "", (false, false)),
    ("noatime", "strictatime", (true, true)),
    ("noatime", "relatime", (true, false)),
    ("strictatime", "", (true, true)),
    ("strictatime", "noatime", (false, false)),
    ("strictatime", "relatime", (true, false)),
    ("relatime", "strictatime", (true, true)),
];

fn as_the_options_say(transport: Transport) {
    let stage = Stage::new();
    for (lower, ours, expected) in CASES {
        stage.flags_of_lower(lower);
        for (i, spec) in stage.specs(transport).iter().enumerate() {
            stage.change("1");
            let mounted = stage.mount(spec, ours);
            assert_eq!(stage.moves(&mounted, "1"), expected, "{ours} over {lower}, {i}");
        }
    }
    let mounted = stage.mount(&stage.specs(transport)[1], "ro");
    stage.change("1");
    assert_eq!(stage.moves(&mounted, "1"), (false, false), "read-only");
    drop(mounted);
    // Data that the kernel does not keep yet, through the server.
    for (ours, expected) in [("noatime", false), ("strictatime", true)] {
        let options = format!("passthrough=off,{ours}");
        let mounted = stage.mount(&Spec::wrap(&stage.lower, transport), &options);
        stage.change("2");
        assert_eq!(stage.moves(&mounted, "2").0, expected, "{options}");
    }
}

/// The program, called as mount(8) calls it.
fn remount(mounted: &Mounted, options: &str) {
    let mut command = Command::new(Mounted::program().unwrap());
    command.arg0("/sbin/mount.fuse.unionfs").arg("none").arg(mounted.dir());
    run(command.arg("-o").arg(format!("remount,{options}")));
}

fn as_a_remount_says(transport: Transport) {
    let stage = Stage::new();
    stage.flags_of_lower("noatime");
    let [union, ..] = stage.specs(transport);
    let mounted = stage.mount(&union, "");
    // mount(8) adds what the mount shows, and it shows relatime.
    for (options, expected) in [
        ("rw,relatime,nosuid", (false, false)),
        ("strictatime", (true, true)),
        ("noatime", (false, false)),
        ("relatime", (true, false)),
    ] {
        remount(&mounted, options);
        stage.change("3");
        assert_eq!(stage.moves(&mounted, "3"), expected, "{options}");
    }
    remount(&mounted, "ro,strictatime");
    stage.change("3");
    assert_eq!(stage.moves(&mounted, "3"), (false, false), "read-only");
    remount(&mounted, "rw,strictatime,nodiratime");
    assert_eq!(stage.moves(&mounted, "3"), (true, true));
    let before = time(&stage.lower.join("dir"));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(fs::read_dir(mounted.path("dir")).unwrap().count(), 0);
    assert_eq!(time(&stage.lower.join("dir")), before);
    // The lower mount itself is as it was.
    let at = stage.lower.join("4");
    let before = time(&at);
    std::thread::sleep(Duration::from_millis(20));
    fs::read(&at).unwrap();
    assert_eq!(time(&at), before);
}

on_both_transports! {
    as_the_options_say,
    as_a_remount_says,
}
