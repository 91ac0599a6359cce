//! Changes of attributes that copy no data.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use strata_tests::process::{run, sh};
use strata_tests::tree::{self, Times};
use strata_tests::{Mounted, Rng, Sandbox, Spec, Transport, on_both_transports};

const FILES: usize = 40;
const SIZE: usize = 1 << 20;

/// A union whose left branch has 4 MiB, over an image of 40 MiB.
struct SmallBranchUnion {
    union: Mounted,
    upper: PathBuf,
    lower: PathBuf,
    _sandbox: Sandbox,
}

fn content(number: usize) -> Vec<u8> {
    Rng::new(number as u64).bytes(SIZE)
}

fn file(number: usize) -> PathBuf {
    Path::new(&format!("d{}", number % 4)).join(format!("f{number}"))
}

impl SmallBranchUnion {
    fn new(transport: Transport, options: &str) -> Self {
        let sandbox = Sandbox::with_time(Duration::from_secs(240));
        let (upper, lower) = (sandbox.dir("upper"), sandbox.dir("lower"));
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m,mode=755", "none"]).arg(&upper));
        for number in 0..FILES {
            let path = lower.join(file(number));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content(number)).unwrap();
        }
        let spec = Spec::union(&upper, &lower, transport);
        let union = Mounted::with_options(spec, &sandbox.path("u"), options);
        Self { union, upper, lower, _sandbox: sandbox }
    }

    /// Checks the data of all files, on the union and on the lower branch.
    fn check_data(&self) {
        for number in 0..FILES {
            for top in [self.union.dir(), &self.lower] {
                assert!(fs::read(top.join(file(number))).unwrap() == content(number), "{number} in {}", top.display());
            }
        }
    }

    fn used(&self) -> u64 {
        sh("du -sk \"$1\" | cut -f1", &[&self.upper]).trim().parse().unwrap()
    }
}

/// Changes of attributes, as scripts make them. (Without -h, touch(1) opens a file for writing.)
const CHANGES: &str = "cd \"$1\" && chown -R 1000:1001 . && chmod -R g+w,o-r . && touch -h -d @1234567890 d0/* && \
     setfattr -n user.note -v text d1/f1 && setfacl -m u:7:r d2/* && chmod u+s d3/f3 && mv d0/f4 d1/moved && \
     ln d2/f2 d2/second && rm d3/f7 && echo more >> d1/f5 && chmod 4711 d1/f5";

fn attribute_changes_of_a_tree_larger_than_the_branch(transport: Transport) {
    let mut fixture = SmallBranchUnion::new(transport, "");
    let native = fixture._sandbox.dir("native");
    // When the fixture was created.
    let start = Times::Since((tree::node(&native).mtime.0 - 100, 0));
    sh("cp -a \"$1\"/. \"$2\"", &[&fixture.lower, &native]);
    sh("chown -R 7:7 \"$1\"; chown -R 8 \"$1\"", &[fixture.union.dir()]);
    assert!(fixture.used() < 500, "{} KiB", fixture.used());
    fixture.check_data();
    for top in [fixture.union.dir(), &native] {
        sh(CHANGES, &[top]);
    }
    let same = |union: &Mounted| tree::difference(&tree::read(&native), &tree::read(union.dir()), start);
    assert_eq!(same(&fixture.union), "");
    // Three files were moved, linked and written.
    assert!(fixture.used() < 4000, "{} KiB", fixture.used());
    fixture.union.remount();
    assert_eq!(same(&fixture.union), "");
    // Copying up a file that does not fit fails and does not change it.
    let before = tree::node(&fixture.union.path(file(9)));
    let full = OpenOptions::new().append(true).open(fixture.union.path(file(9))).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(28));
    assert_eq!(tree::node(&fixture.union.path(file(9))), before);
    sh("rm -r \"$1\"/d0 \"$1\"/d3", &[fixture.union.dir()]);
    sh("test -z \"$(find \"$1\" -name '.wh..wh.meta*' -path '*/d[03]/*')\"", &[&fixture.upper]);
}

/// An open file and a running program see the new attributes, and their data stay intact.
fn open_files_see_the_new_attributes(transport: Transport) {
    for options in ["", "lower=shared"] {
        let fixture = SmallBranchUnion::new(transport, options);
        let path = fixture.union.path(file(0));
        let open = File::open(&path).unwrap();
        let ino = open.metadata().unwrap().ino();
        open.set_permissions(fs::Permissions::from_mode(0o700)).unwrap();
        chown(&path, Some(5), Some(6)).unwrap();
        for now in [open.metadata().unwrap(), fs::metadata(&path).unwrap()] {
            assert_eq!((now.mode() & 0o7777, now.uid(), now.gid(), now.ino()), (0o700, 5, 6, ino), "{options}");
        }
        let mut bytes = vec![0; SIZE];
        open.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes == content(0));
        assert_eq!(fs::metadata(fixture.lower.join(file(0))).unwrap().uid(), 0);
        // A program that was made executable runs.
        fs::copy("/bin/ls", fixture.lower.join("program")).unwrap();
        let program = fixture.union.path("program");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(!fixture.upper.join("program").exists());
        run(Command::new(&program).arg("/"));
    }
}

fn metacopy_off_copies_the_data(transport: Transport) {
    let fixture = SmallBranchUnion::new(transport, "metacopy=off");
    sh("chmod 600 \"$1\"/d1/f1", &[fixture.union.dir()]);
    assert!(fs::read(fixture.upper.join(file(1))).unwrap() == content(1));
}

/// The server is killed while attributes change: every file has the old or the new attributes, and
/// its data.
fn killed_during_attribute_changes(transport: Transport) {
    let mut fixture = SmallBranchUnion::new(transport, "");
    for round in 0..6 {
        let killed = fixture.union.kill_after(Duration::from_millis(3 + 7 * round));
        let mut owner = 0;
        while !killed.load(std::sync::atomic::Ordering::SeqCst) {
            owner += 1;
            for number in 0..FILES {
                // Fails once the server is dead.
                let _ = chown(fixture.union.path(file(number)), Some(owner), Some(owner));
            }
        }
        fixture.union.crash();
        fixture.union.mount_again();
        for number in 0..FILES {
            let now = fs::metadata(fixture.union.path(file(number))).unwrap();
            assert_eq!(now.uid(), now.gid(), "{number}");
            assert!(now.uid() <= owner || round > 0, "{number}");
        }
        fixture.check_data();
    }
}

on_both_transports! {
    attribute_changes_of_a_tree_larger_than_the_branch,
    open_files_see_the_new_attributes,
    metacopy_off_copies_the_data,
    killed_during_attribute_changes,
}
