//! Changes of attributes that copy no data, on mounts.

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
struct Bed {
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

impl Bed {
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

    /// All data are there, on the union and below it.
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

/// What scripts do to a tree. (Without -h, touch(1) opens a file for writing.)
const CHANGES: &str = "cd \"$1\" && chown -R 1000:1001 . && chmod -R g+w,o-r . && touch -h -d @1234567890 d0/* && \
     setfattr -n user.note -v text d1/f1 && setfacl -m u:7:r d2/* && chmod u+s d3/f3 && mv d0/f4 d1/moved && \
     ln d2/f2 d2/second && rm d3/f7 && echo more >> d1/f5 && chmod 4711 d1/f5";

fn a_tree_that_does_not_fit_changes_its_attributes(transport: Transport) {
    let mut bed = Bed::new(transport, "");
    let native = bed._sandbox.dir("native");
    // Since the bed was made.
    let start = Times::Since((tree::node(&native).mtime.0 - 100, 0));
    sh("cp -a \"$1\"/. \"$2\"", &[&bed.lower, &native]);
    sh("chown -R 7:7 \"$1\"; chown -R 8 \"$1\"", &[bed.union.dir()]);
    assert!(bed.used() < 500, "{} KiB", bed.used());
    bed.check_data();
    for top in [bed.union.dir(), &native] {
        sh(CHANGES, &[top]);
    }
    let same = |union: &Mounted| tree::difference(&tree::read(&native), &tree::read(union.dir()), start);
    assert_eq!(same(&bed.union), "");
    // Three files were moved, linked and written to.
    assert!(bed.used() < 4000, "{} KiB", bed.used());
    bed.union.remount();
    assert_eq!(same(&bed.union), "");
    // What does not fit is refused, and stays as it was.
    let before = tree::node(&bed.union.path(file(9)));
    let full = OpenOptions::new().append(true).open(bed.union.path(file(9))).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(28));
    assert_eq!(tree::node(&bed.union.path(file(9))), before);
    // It can be removed.
    sh("rm -r \"$1\"/d0 \"$1\"/d3", &[bed.union.dir()]);
    sh("test -z \"$(find \"$1\" -name '.wh..wh.meta*' -path '*/d[03]/*')\"", &[&bed.upper]);
}

/// An open file and a running program see the change, and their data stay.
fn open_files_see_the_change(transport: Transport) {
    for options in ["", "lower=shared"] {
        let bed = Bed::new(transport, options);
        let path = bed.union.path(file(0));
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
        assert_eq!(fs::metadata(bed.lower.join(file(0))).unwrap().uid(), 0);
        // A program is made executable, and runs.
        fs::copy("/bin/ls", bed.lower.join("program")).unwrap();
        let program = bed.union.path("program");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(!bed.upper.join("program").exists());
        run(Command::new(&program).arg("/"));
    }
}

fn every_copy_has_its_data_where_that_is_asked_for(transport: Transport) {
    let bed = Bed::new(transport, "metacopy=off");
    sh("chmod 600 \"$1\"/d1/f1", &[bed.union.dir()]);
    assert!(fs::read(bed.upper.join(file(1))).unwrap() == content(1));
}

/// The server is killed while attributes change: each file has the old ones or the new ones, and its data.
fn killed_while_attributes_change(transport: Transport) {
    let mut bed = Bed::new(transport, "");
    for round in 0..6 {
        let killed = bed.union.kill_after(Duration::from_millis(3 + 7 * round));
        let mut owner = 0;
        while !killed.load(std::sync::atomic::Ordering::SeqCst) {
            owner += 1;
            for number in 0..FILES {
                // Fails once the server is gone.
                let _ = chown(bed.union.path(file(number)), Some(owner), Some(owner));
            }
        }
        bed.union.crash();
        bed.union.mount_again();
        for number in 0..FILES {
            let now = fs::metadata(bed.union.path(file(number))).unwrap();
            assert_eq!(now.uid(), now.gid(), "{number}");
            assert!(now.uid() <= owner || round > 0, "{number}");
        }
        bed.check_data();
    }
}

on_both_transports! {
    a_tree_that_does_not_fit_changes_its_attributes,
    open_files_see_the_change,
    every_copy_has_its_data_where_that_is_asked_for,
    killed_while_attributes_change,
}
