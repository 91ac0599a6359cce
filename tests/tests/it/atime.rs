//! Updates of the access time: as the mount options say, otherwise as the lower mount's flags say.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use strata_tests::process::run;
use strata_tests::{Mounted, Sandbox, Spec, Transport, on_both_transports};

/// A lower directory and the mount points for the file systems over it.
struct Fixture {
    sandbox: Sandbox,
    lower: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        let lower = sandbox.ext4("lower", 64).join("branch");
        fs::create_dir_all(lower.join("dir")).unwrap();
        (0..9).for_each(|i| fs::write(lower.join(i.to_string()), "text").unwrap());
        fs::create_dir(sandbox.dir("other").join("x")).unwrap();
        Self { sandbox, lower }
    }

    fn set_lower_flags(&self, flags: &str) {
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

    /// Whether reading the file updates its access time, the first and the second time.
    fn updates(&self, mounted: &Mounted, name: &str) -> (bool, bool) {
        let at = self.lower.join(name);
        let read = || {
            let before = time(&at);
            testkit::tick();
            assert_eq!(fs::read_to_string(mounted.path(name)).unwrap(), "text");
            time(&at) != before
        };
        (read(), read())
    }

    /// Modifies a file, so that relatime updates its access time at the next read.
    fn change(&self, name: &str) {
        testkit::tick();
        fs::write(self.lower.join(name), "text").unwrap();
    }
}

fn time(path: &Path) -> (i64, i64) {
    let meta = fs::metadata(path).unwrap();
    (meta.atime(), meta.atime_nsec())
}

/// Options of the lower mount, options of our mount, and whether the first and the second read
/// update the time.
const CASES: [(&str, &str, (bool, bool)); 7] = [
    ("noatime", "", (false, false)),
    ("noatime", "strictatime", (true, true)),
    ("noatime", "relatime", (true, false)),
    ("strictatime", "", (true, true)),
    ("strictatime", "noatime", (false, false)),
    ("strictatime", "relatime", (true, false)),
    ("relatime", "strictatime", (true, true)),
];

fn mount_options_decide_updates(transport: Transport) {
    let fixture = Fixture::new();
    for (lower, ours, expected) in CASES {
        fixture.set_lower_flags(lower);
        for (i, spec) in fixture.specs(transport).iter().enumerate() {
            fixture.change("1");
            let mounted = fixture.mount(spec, ours);
            assert_eq!(fixture.updates(&mounted, "1"), expected, "{ours} over {lower}, {i}");
        }
    }
    let mounted = fixture.mount(&fixture.specs(transport)[1], "ro");
    fixture.change("1");
    assert_eq!(fixture.updates(&mounted, "1"), (false, false), "read-only");
    drop(mounted);
    // Data outside the page cache, read through the server.
    for (ours, expected) in [("noatime", false), ("strictatime", true)] {
        let options = format!("passthrough=off,{ours}");
        let mounted = fixture.mount(&Spec::wrap(&fixture.lower, transport), &options);
        fixture.change("2");
        assert_eq!(fixture.updates(&mounted, "2").0, expected, "{options}");
    }
}

/// Remounts as mount(8) does, which calls the mount helper.
fn remount(mounted: &Mounted, options: &str) {
    let mut command = Command::new(Mounted::program().unwrap());
    command.arg0("/sbin/mount.fuse.unionfs").arg("none").arg(mounted.dir());
    run(command.arg("-o").arg(format!("remount,{options}")));
}

fn a_remount_changes_updates(transport: Transport) {
    let fixture = Fixture::new();
    fixture.set_lower_flags("noatime");
    let [union, ..] = fixture.specs(transport);
    let mounted = fixture.mount(&union, "");
    // mount(8) adds the options of the current mount, relatime among them.
    for (options, expected) in [
        ("rw,relatime,nosuid", (false, false)),
        ("strictatime", (true, true)),
        ("noatime", (false, false)),
        ("relatime", (true, false)),
    ] {
        remount(&mounted, options);
        fixture.change("3");
        assert_eq!(fixture.updates(&mounted, "3"), expected, "{options}");
    }
    remount(&mounted, "ro,strictatime");
    fixture.change("3");
    assert_eq!(fixture.updates(&mounted, "3"), (false, false), "read-only");
    remount(&mounted, "rw,strictatime,nodiratime");
    assert_eq!(fixture.updates(&mounted, "3"), (true, true));
    let before = time(&fixture.lower.join("dir"));
    testkit::tick();
    assert_eq!(fs::read_dir(mounted.path("dir")).unwrap().count(), 0);
    assert_eq!(time(&fixture.lower.join("dir")), before);
    // The flags of the lower mount are unchanged.
    let at = fixture.lower.join("4");
    let before = time(&at);
    testkit::tick();
    fs::read(&at).unwrap();
    assert_eq!(time(&at), before);
}

on_both_transports! {
    mount_options_decide_updates,
    a_remount_changes_updates,
}
