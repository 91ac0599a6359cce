//! Who may use a key, with sessions that the tests control.

use crate::grant::Grant;
use crate::host::{KeyHost, KeySource, Leader, Secret, WatchedLeader};
use crate::keyring::Keyring;
use crate::reaper::Reaped as _;
use crate::volume::Volume;
use conformance::fixture::in_session as as_user;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use cryptformat::{Config, Flags, Kdf, Limits, NewVolume, Passphrase, Scrypt};
use memfs::{Faults, MemFs, MemOptions, Op};
use std::sync::Arc;
use vnode::{Cx, Errno, Layer as _, Name, OpenFlags, Result, XattrFlags};

#[path = "test_host.rs"]
mod test_host;
use test_host::Host;

const PASSPHRASE: &[u8] = b"at least sixteen characters";

/// Returns the keyring of a volume with two keys, and its host.
fn keyring(watched: Option<Arc<AtomicBool>>, idle: Option<Duration>) -> (Arc<Keyring>, Arc<Host>) {
    let lower = MemFs::new();
    let own = Cx::internal(0, 0);
    for (name, bytes) in [("gocryptfs.conf", PASSPHRASE), ("gocryptfs.conf.second", b"the passphrase of another key")] {
        let kdf = Kdf::Scrypt(Scrypt { log_n: 10, ..Scrypt::default() });
        let passphrase = Passphrase { bytes, kdf, label: "" };
        let new = NewVolume { creator: "test", flags: Flags::default(), passphrase };
        let (config, _) = Config::create(&new, Limits::default()).unwrap();
        let name = Name::new(name.as_bytes()).unwrap();
        let (_, file) = lower.root().create(&own, name, 0o400, OpenFlags::RDWR).unwrap();
        file.write(&own, &config.to_json().unwrap(), 0).unwrap();
    }
    let host = Arc::new(Host::new(watched));
    let volume = Volume::open(lower, None).unwrap();
    (Keyring::of_sessions(volume, Arc::clone(&host) as Arc<dyn KeyHost>, idle).unwrap(), host)
}

fn add(keyring: &Arc<Keyring>, uid: u32, session: u32) -> Result<Arc<Grant>> {
    as_user(uid, session, |cx| keyring.add(cx, None, PASSPHRASE, None))
}

fn uses(keyring: &Keyring, uid: u32, session: u32) -> Result<[u8; 8]> {
    as_user(uid, session, |cx| keyring.with(cx, |keys| Ok(keys.fingerprint())))
}

#[test]
fn a_key_belongs_to_a_user_and_a_session() {
    let (keyring, _) = keyring(None, None);
    assert_eq!(uses(&keyring, 7, 100), Err(Errno::NOKEY));
    let refused = as_user(7, 100, |cx| keyring.add(cx, None, b"not the passphrase", None));
    assert_eq!(refused.unwrap_err(), Errno::KEYREJECTED);
    let refused = as_user(7, 100, |cx| keyring.add(cx, Some("third"), PASSPHRASE, None));
    assert_eq!(refused.unwrap_err(), Errno::NOENT);
    // A process that the server does not see has no session.
    assert_eq!(add(&keyring, 7, 0).unwrap_err(), Errno::SRCH);
    let first = add(&keyring, 7, 100).unwrap();
    assert_eq!(first.slot.name, "default");
    for (uid, session) in [(7, 101), (8, 100), (0, 100), (7, 0)] {
        assert_eq!(uses(&keyring, uid, session), Err(Errno::NOKEY), "{uid} {session}");
    }
    let fingerprint = uses(&keyring, 7, 100).unwrap();
    // The same key again is the same grant; another key replaces it.
    assert!(Arc::ptr_eq(&first, &add(&keyring, 7, 100).unwrap()));
    let second = as_user(7, 100, |cx| keyring.add(cx, None, b"the passphrase of another key", None)).unwrap();
    assert_eq!(second.slot.name, "second");
    assert_ne!(uses(&keyring, 7, 100).unwrap(), fingerprint);
    assert!(!first.is_open());
    // The first key was nobody else's.
    assert_eq!(first.slot.with(|_| Ok(())), Err(Errno::NOKEY));
}

/// Linux refuses a namespace without a name. The name of an attribute becomes longer below.
#[test]
fn names_of_attributes_are_limited() {
    let (keyring, _) = keyring(None, None);
    add(&keyring, 7, 100).unwrap();
    let layer = crate::layer::layer(MemFs::new(), &keyring, None, None).unwrap();
    as_user(7, 100, |cx| {
        let set = |name: &str| layer.root().setxattr(cx, name.as_bytes(), b"value", XattrFlags::default());
        assert_eq!(set("user."), Err(Errno::INVAL));
        assert_eq!(layer.root().getxattr(cx, b"user.", &mut []), Err(Errno::INVAL));
        assert_eq!(set(&format!("user.{}", "n".repeat(170))), Ok(()));
        assert_eq!(set(&format!("user.{}", "n".repeat(171))), Err(Errno::RANGE));
    });
}

/// stat(2) does not read a link, which would change its access time.
#[test]
fn links_are_measured_without_being_read() {
    let (keyring, _) = keyring(None, None);
    add(&keyring, 7, 100).unwrap();
    let faults = Faults::new();
    let layer = crate::layer::layer(MemFs::with(MemOptions::default(), &faults), &keyring, None, None).unwrap();
    as_user(7, 100, |cx| {
        let root = layer.root();
        faults.record();
        for len in [1, 2, 3, 4, 100, 3038, 3039] {
            let (at, target) = (format!("link-{len}"), vec![b't'; len]);
            let at = Name::new(at.as_bytes()).unwrap();
            let made = root.symlink(cx, at, &target).unwrap();
            let found = root.lookup(cx, at).unwrap().unwrap();
            let asked = found.vnode.getattr(cx).unwrap();
            assert_eq!([made.attr.size, found.attr.size, asked.size], [len as u64; 3]);
            assert!(!faults.log().contains(&Op::Readlink), "{len}");
        }
        let long = root.symlink(cx, Name::new(b"long").unwrap(), &[b't'; 3040]);
        assert_eq!(long.err(), Some(Errno::NAMETOOLONG));
    });
}

/// A FIFO with the name of a configuration is no key, and prevents none.
#[test]
fn what_is_no_file_is_no_key() {
    let (keyring, _) = keyring(None, None);
    let root = keyring.volume.lower_root();
    let own = Cx::internal(0, 0);
    root.unlink(&own, Name::new(b"gocryptfs.conf.second").unwrap()).unwrap();
    root.mknod(&own, Name::new(b"gocryptfs.conf.fifo").unwrap(), 0o010_644, 0).unwrap();
    root.symlink(&own, Name::new(b"gocryptfs.conf.link").unwrap(), b"gocryptfs.conf").unwrap();
    assert_eq!(keyring.volume.has_several_keys(), Ok(false));
    assert_eq!(add(&keyring, 7, 100).unwrap().slot.name, "default");
    let refused = as_user(7, 100, |cx| keyring.add(cx, Some("fifo"), PASSPHRASE, None));
    assert_eq!(refused.unwrap_err(), Errno::NOENT);
}

#[test]
fn a_key_is_wiped_with_its_last_session() {
    let (keyring, _) = keyring(None, None);
    let (one, other) = (add(&keyring, 7, 100).unwrap(), add(&keyring, 8, 200).unwrap());
    assert!(Arc::ptr_eq(&one.slot, &other.slot));
    let open = as_user(7, 100, |cx| keyring.open(cx, 42)).unwrap();
    assert_eq!(keyring.withdraw(|grant| Some(7) == grant.holder.map(|id| id.uid)), Ok(1));
    // Its open files fail; those of the other session work.
    assert_eq!(open.with(|_| Ok(())), Err(Errno::NOKEY));
    assert_eq!(uses(&keyring, 7, 100), Err(Errno::NOKEY));
    assert!(uses(&keyring, 8, 200).is_ok());
    assert_eq!(keyring.withdraw(|_| true), Ok(1));
    assert_eq!(other.slot.with(|_| Ok(())), Err(Errno::NOKEY));
    assert!(keyring.grants().unwrap().is_empty());
    // It can be added again; the old open file remains useless.
    add(&keyring, 7, 100).unwrap();
    assert!(uses(&keyring, 7, 100).is_ok());
    assert_eq!(open.with(|_| Ok(())), Err(Errno::NOKEY));
}

/// A session ID is used again once the session has ended.
#[test]
fn another_session_with_the_same_id_has_no_key() {
    for watched in [None, Some(Arc::new(AtomicBool::new(true)))] {
        let (keyring, host) = keyring(watched.clone(), None);
        add(&keyring, 7, 100).unwrap();
        assert!(uses(&keyring, 7, 100).is_ok());
        if let Some(running) = &watched {
            running.store(false, Ordering::Relaxed);
        }
        // The leader has exited, other processes remain.
        host.set(Leader::Exited);
        assert!(uses(&keyring, 7, 100).is_ok());
        keyring.reap();
        assert!(uses(&keyring, 7, 100).is_ok());
        // A process with the ID of the leader, which started later.
        host.set(Leader::Started(6));
        assert_eq!(uses(&keyring, 7, 100), Err(Errno::NOKEY));
        keyring.reap();
        assert!(!keyring.is_needed());
    }
}

#[test]
fn a_key_goes_with_its_session() {
    let (keyring, host) = keyring(None, None);
    add(&keyring, 7, 100).unwrap();
    host.set(Leader::SessionEnded);
    assert_eq!(add(&keyring, 8, 200).unwrap_err(), Errno::SRCH);
    keyring.reap();
    assert!(!keyring.is_needed());
    assert_eq!(uses(&keyring, 7, 100), Err(Errno::NOKEY));
}

#[test]
fn an_unused_key_is_withdrawn() {
    let (keyring, _) = keyring(None, Some(Duration::from_secs(1)));
    // A user can ask for less than the mount says, not for more.
    let grant = as_user(7, 100, |cx| keyring.add(cx, None, PASSPHRASE, Some(Duration::from_secs(99)))).unwrap();
    assert_eq!(grant.idle(), Some(Duration::from_secs(1)));
    let uses_of_file = AtomicU64::new(0);
    let open = as_user(7, 100, |cx| keyring.open(cx, 42)).unwrap();
    let end = std::time::Instant::now() + Duration::from_millis(1500);
    while std::time::Instant::now() < end {
        // The use of an open file counts.
        open.with(|_| Ok(())).unwrap();
        uses_of_file.fetch_add(1, Ordering::Relaxed);
        keyring.reap();
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(uses_of_file.into_inner() > 1 && keyring.is_needed());
    std::thread::sleep(Duration::from_millis(1100));
    keyring.reap();
    assert!(!keyring.is_needed());
    assert_eq!(open.with(|_| Ok(())), Err(Errno::NOKEY));
}

#[test]
fn sessions_with_a_key_are_limited() {
    let (keyring, _) = keyring(None, None);
    for session in 1..=256 {
        add(&keyring, 7, session).unwrap();
    }
    assert_eq!(add(&keyring, 7, 257).unwrap_err(), Errno::DQUOT);
    // Other users are not affected, and neither is a session that has a key.
    add(&keyring, 8, 257).unwrap();
    add(&keyring, 7, 256).unwrap();
}
