//! Coherence without passthrough: after a file changes below, the next open must return its current
//! data.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use strata_tests::user::{USER, as_user};
use strata_tests::{Mounted, Sandbox, Spec, Transport, acl, long, on_both_transports};

fn rounds(few: usize) -> usize {
    if long() { few * 20 } else { few }
}

/// Returns `len` bytes that contain the round and the writer.
fn text(who: char, round: usize, len: usize) -> Vec<u8> {
    let mut text = format!("{who} {round:08}.").into_bytes();
    text.resize(len.max(text.len()), b'0');
    text
}

/// Changes a file in place, without truncating it.
fn change(path: &Path, bytes: &[u8]) {
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
}

/// A file of a mount, and its lower file.
struct Case {
    what: String,
    /// Whether the kernel caches attributes.
    caches: bool,
    mounted: Mounted,
    file: PathBuf,
    below: PathBuf,
}

impl Case {
    /// Checks that a new open returns `expected`.
    fn check_open_returns(&self, round: usize, expected: &[u8]) {
        let seen = fs::read(&self.file).unwrap();
        let head = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(16)]).into_owned();
        assert!(
            seen == expected,
            "{}, round {round}: {:?} and {} bytes, not {:?} and {}",
            self.what,
            head(&seen),
            seen.len(),
            head(expected),
            expected.len()
        );
    }
}

/// Calls `test` with mounts that cover every data path through the server, with and without cached
/// attributes.
fn on_each(transport: Transport, test: impl Fn(&Case)) {
    for (layer, cache) in [("null", "0"), ("null", "1000"), ("union", "0"), ("union", "1000"), ("rot13", "0")] {
        let sandbox = Sandbox::new();
        let lower = sandbox.ext4("lower", 64);
        let spec = match layer {
            "null" => Spec::wrap(&lower, transport),
            "union" => Spec::union(&lower, &sandbox.dir("ro"), transport),
            // rot13 does not change digits.
            _ => Spec::stack("rot13 / ", &lower, transport),
        };
        let below = lower.join("1");
        fs::write(&below, text('0', 0, 100)).unwrap();
        let mounted = Mounted::with_options(spec, &sandbox.path("m"), &format!("passthrough=off,cache={cache}"));
        let file = mounted.path("1");
        test(&Case { what: format!("{layer}, cache={cache}"), caches: cache != "0", mounted, file, below });
    }
}

/// Returns the length of a file's text in a round: mostly constant, so that only the times differ.
fn length(round: usize) -> usize {
    if round.is_multiple_of(7) { 5000 + round % 13 * 1000 } else { 4096 }
}

/// A file is opened, read and closed, then changed below. The next open returns the new data, even
/// if the RELEASE of the previous one is still queued.
fn the_next_open_returns_new_data(transport: Transport) {
    on_each(transport, |case| {
        for round in 0..rounds(1500) {
            let new = text('1', round, length(round));
            change(&case.below, &new);
            case.check_open_returns(round, &new);
        }
    });
}

/// After a change below, an open returns the new data while the file is held open for reading.
fn an_open_returns_new_data_while_others_read(transport: Transport) {
    on_each(transport, |case| {
        let held = File::open(&case.file).unwrap();
        for round in 0..rounds(500) {
            let new = text('1', round, length(round));
            change(&case.below, &new);
            case.check_open_returns(round, &new);
            let mut bytes = vec![0; new.len()];
            held.read_exact_at(&mut bytes, 0).unwrap();
            assert!(bytes == new, "{}, round {round}: the held file returns the old data", case.what);
        }
    });
}

/// After a write through the mount and a change below, an open returns the new data, even if the
/// RELEASE of the writer is still queued.
fn an_open_returns_new_data_after_own_writes(transport: Transport) {
    on_each(transport, |case| {
        for round in 0..rounds(700) {
            let own = text('2', round, length(round + 3));
            change(&case.file, &own);
            case.check_open_returns(round, &own);
            let new = text('1', round, length(round));
            change(&case.below, &new);
            case.check_open_returns(round, &new);
            change(&case.file, &own);
            change(&case.below, &new);
            case.check_open_returns(round, &new);
        }
    });
}

/// After a change below, an open returns the new data while other threads open, read and close the
/// file.
fn an_open_returns_new_data_during_other_opens(transport: Transport) {
    on_each(transport, |case| {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        drop(fs::read(&case.file).unwrap());
                    }
                });
            }
            // A panic must stop the other threads.
            let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for round in 0..rounds(500) {
                    let new = text('1', round, length(round));
                    change(&case.below, &new);
                    case.check_open_returns(round, &new);
                }
            }));
            done.store(true, Ordering::Relaxed);
            failed.unwrap();
        });
    });
}

/// One page is written through the mount and read back, while another page is changed below and
/// other threads open and read the file: no open makes the kernel reread the page before the WRITE
/// has arrived.
fn own_writes_are_never_lost(transport: Transport) {
    on_each(transport, |case| {
        change(&case.file, &text('2', 0, 8192));
        let done = AtomicBool::new(false);
        let until_done = |what: &dyn Fn(usize)| {
            (0..).take_while(|_| !done.load(Ordering::Relaxed)).for_each(what);
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| until_done(&|_| drop(fs::read(&case.file).unwrap())));
            }
            scope.spawn(|| {
                let below = File::options().write(true).open(&case.below).unwrap();
                until_done(&|round| below.write_all_at(&text('1', round, 4096), 4096).unwrap());
            });
            let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let file = File::options().read(true).write(true).open(&case.file).unwrap();
                for round in 1..rounds(3000) {
                    let (own, mut seen) = (text('2', round, 4096), vec![0; 4096]);
                    file.write_all_at(&own, 0).unwrap();
                    file.read_exact_at(&mut seen, 0).unwrap();
                    assert!(seen == own, "{}, round {round}: {:?}", case.what, String::from_utf8_lossy(&seen[..10]));
                }
            }));
            done.store(true, Ordering::Relaxed);
            failed.unwrap();
        });
        let below = File::options().write(true).open(&case.below).unwrap();
        below.write_all_at(&text('3', 0, 4096), 4096).unwrap();
        case.check_open_returns(0, &fs::read(&case.below).unwrap());
    });
}

/// Opening a file whose cached pages are current costs no additional request, even if others have
/// it open.
fn opening_an_open_file_costs_no_more_requests(transport: Transport) {
    on_each(transport, |case| {
        let read = || drop(fs::read(&case.file).unwrap());
        let held = File::open(&case.file).unwrap();
        (0..3).for_each(|_| read());
        let cost = case.mounted.during(|| (0..100).for_each(|_| read()));
        let counts = ["OPEN", "READ", "notifications"].map(|name| cost.get(name));
        assert_eq!(counts, [100, 0, 0], "{}: {cost:?}", case.what);
        drop(held);
    });
}

/// A program appends to the file all the time, so the kernel takes none of the server's replies for
/// its attributes. Permissions by an ACL change all the same.
fn an_acl_of_a_file_that_grows_takes_effect(transport: Transport) {
    const FULL: u16 = 6;
    on_each(transport, |case| {
        let done = AtomicBool::new(false);
        let open = || match as_user(USER, || File::open(&case.file)) {
            Ok(_) => true,
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => false,
            Err(error) => panic!("{}: {error}", case.what),
        };
        let set = |others| {
            // The kernel consults the mode alone: this is no more than one.
            let acl = acl::of_mode(FULL, others, others);
            rustix::fs::setxattr(&case.file, acl::ACCESS, &acl, rustix::fs::XattrFlags::empty()).unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut file = File::options().append(true).open(&case.file).unwrap();
                while !done.load(Ordering::Relaxed) {
                    file.write_all(b"x").unwrap();
                }
            });
            let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for round in 0..rounds(10) {
                    set(0);
                    assert!(!(0..5).any(|_| open()), "{}, round {round}: denied", case.what);
                    File::open(&case.file).unwrap();
                    fs::set_permissions(&case.file, fs::Permissions::from_mode(0o600)).unwrap();
                    assert!(!open(), "{}, round {round}: by its mode", case.what);
                    set(4);
                    fs::set_permissions(&case.file, fs::Permissions::from_mode(0o644)).unwrap();
                    assert!(open(), "{}, round {round}: allowed", case.what);
                }
            }));
            done.store(true, Ordering::Relaxed);
            failed.unwrap();
        });
    });
}

/// A program has the file open. Permissions that are withdrawn below, together with new data, take
/// effect with the next open, or if attributes are cached, once the change is reported. Those that
/// are granted may take one more: the kernel itself refuses.
fn a_mode_that_changes_below_with_the_data_takes_effect(transport: Transport) {
    on_each(transport, |case| {
        let held = File::open(&case.file).unwrap();
        let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held));
        let open = || match as_user(USER, || File::open(&again)) {
            Ok(_) => true,
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => false,
            Err(error) => panic!("{}: {error}", case.what),
        };
        for round in 0..rounds(50) {
            for (mode, is_allowed) in [(0o600, false), (0o644, true)] {
                held.read_at(&mut [0], 0).unwrap();
                change(&case.below, &text('1', round, length(round)));
                fs::set_permissions(&case.below, fs::Permissions::from_mode(mode)).unwrap();
                if case.caches || is_allowed {
                    testkit::until("the mode is known", || open() == is_allowed);
                }
                assert_eq!(open(), is_allowed, "{}, round {round}: mode {mode:o}", case.what);
            }
        }
    });
}

on_both_transports!(
    a_mode_that_changes_below_with_the_data_takes_effect,
    an_acl_of_a_file_that_grows_takes_effect,
    own_writes_are_never_lost,
    opening_an_open_file_costs_no_more_requests,
    the_next_open_returns_new_data,
    an_open_returns_new_data_while_others_read,
    an_open_returns_new_data_after_own_writes,
    an_open_returns_new_data_during_other_opens,
);
