//! Compares the rules with the kernel's, through access(2) on random objects by random callers.
//! Needs root, and a file system with ACLs.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use access::{ACL_ACCESS, Caller, READ, SEARCH, WRITE};
use hostfs::{HostFs, HostOptions};
use rustix::fs::{Access, AtFlags, CWD, Gid, Mode, Uid, XattrFlags};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use testkit::{Rng, TempDir};
use vnode::{Cx, Layer, Name, Vnode};

const OBJECTS: usize = 150;
const CALLERS: usize = 60;
/// Few ids, so that owners, group members and others all occur.
const IDS: u32 = 5;
const FIRST: u32 = 7000;

fn id(rng: &mut Rng) -> u32 {
    FIRST + rng.below(IDS)
}

fn entry(tag: u8, perm: u32, id: u32) -> Vec<u8> {
    [&[tag, 0, u8::try_from(perm).unwrap(), 0][..], &id.to_le_bytes()].concat()
}

/// Returns a valid ACL: the kernel requires entries in order of tag and id.
fn acl(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    let named = |rng: &mut Rng, tag: u8, bytes: &mut Vec<u8>| {
        let mut some = false;
        for id in FIRST..FIRST + IDS {
            if rng.below(3) == 0 {
                bytes.extend(entry(tag, rng.below(8), id));
                some = true;
            }
        }
        some
    };
    bytes.extend(entry(0x01, rng.below(8), u32::MAX));
    let users = named(rng, 0x02, &mut bytes);
    bytes.extend(entry(0x04, rng.below(8), u32::MAX));
    let groups = named(rng, 0x08, &mut bytes);
    if users || groups || rng.below(2) == 0 {
        bytes.extend(entry(0x10, rng.below(8), u32::MAX));
    }
    bytes.extend(entry(0x20, rng.below(8), u32::MAX));
    bytes
}

fn make(dir: &Path, name: &str, rng: &mut Rng) {
    let path = dir.join(name);
    let mode = Mode::from_raw_mode(rng.below(0o1000));
    match rng.below(3) {
        0 => std::fs::create_dir(&path).unwrap(),
        1 => rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap(),
        _ => drop(std::fs::File::create(&path).unwrap()),
    }
    std::os::unix::fs::chown(&path, Some(id(rng)), Some(id(rng))).unwrap();
    rustix::fs::chmod(&path, mode).unwrap();
    if rng.below(2) == 0 {
        let name = core::str::from_utf8(ACL_ACCESS).unwrap();
        rustix::fs::setxattr(&path, name, &acl(rng), XattrFlags::empty()).unwrap();
    }
}

/// Returns the sets of permissions that access(2) refuses this thread, one bit for each of the
/// eight sets.
fn native(path: &Path) -> u8 {
    let may = |mask: u32| {
        let mode = Access::from_bits_truncate(mask);
        rustix::fs::accessat(CWD, path, mode, AtFlags::EACCESS).is_ok()
    };
    (1..8).filter(|&mask| !may(mask)).map(|mask| 1 << mask).sum()
}

fn refused(cx: &Cx<'_>, vnode: &dyn Vnode) -> u8 {
    (1..8).filter(|&mask| access::refused(cx, vnode, mask).unwrap() != 0).map(|mask| 1u8 << mask).sum()
}

#[test]
fn the_rules_match_the_kernel() {
    assert!(rustix::process::geteuid().is_root(), "needs root, to act as other users");
    for seed in testkit::seeds(1) {
        compare(seed);
    }
}

fn compare(seed: u64) {
    let mut rng = Rng::new(seed);
    let scratch = TempDir::new();
    rustix::fs::chmod(&*scratch, Mode::from_raw_mode(0o755)).unwrap();
    let names: Vec<String> = (0..OBJECTS).map(|n| n.to_string()).collect();
    names.iter().for_each(|name| make(&scratch, name, &mut rng));
    let host = HostFs::open(&scratch, HostOptions::default()).unwrap();
    let server = Cx::internal(0, 0);
    let vnodes: Vec<Arc<dyn Vnode>> = names
        .iter()
        .map(|name| host.root().lookup(&server, Name::new(name.as_bytes()).unwrap()).unwrap().unwrap().vnode)
        .collect();
    let never = AtomicBool::new(false);
    let mut seen = [0usize; 2];
    for _ in 0..CALLERS {
        let root = rng.below(20) == 0;
        let (uid, gid) = if root { (0, 0) } else { (id(&mut rng), id(&mut rng)) };
        let groups: Vec<u32> = (FIRST..FIRST + IDS).filter(|_| rng.below(3) == 0).collect();
        let (paths, raw) = (names.iter().map(|name| scratch.join(name)).collect::<Vec<_>>(), groups.clone());
        let (sender, receiver) = channel();
        let (done, wait) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let groups: Vec<Gid> = raw.into_iter().map(Gid::from_raw).collect();
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            rustix::thread::set_thread_groups(&groups).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            let refused_sets: Vec<u8> = paths.iter().map(|path| native(path)).collect();
            sender.send((rustix::thread::gettid().as_raw_nonzero().get(), refused_sets)).unwrap();
            let _ = wait.recv();
        });
        let (tid, refused_sets) = receiver.recv().unwrap();
        let cx = Cx::new(uid, gid, tid.unsigned_abs(), 0, true, &never);
        assert_eq!(Caller::of(&cx), Caller { uid, gid, groups: groups.clone() });
        for ((name, vnode), native) in names.iter().zip(&vnodes).zip(refused_sets) {
            let ours = refused(&cx, &**vnode);
            seen[usize::from(ours == 0)] += 1;
            assert_eq!(
                ours,
                native,
                "seed {seed}: object {name} {:?} by {uid}:{gid} {groups:?}: of {READ} read, {WRITE} write, {SEARCH} search",
                vnode.getattr(&server).unwrap()
            );
        }
        drop(done);
        thread.join().unwrap();
    }
    assert!(seen.iter().all(|&n| n > 100), "allowed and refused: {seen:?}");
}
