//! Every layer above every layer that answers each caller differently: no caller gets what only
//! another one may have.

use cli::registry;
use cryptformat::{Config, Flags, Kdf, Limits, NewVolume, Passphrase, Scrypt};
use cryptfs::{ADD, AddRequest, DELETE, KeyHost, KeySource, Leader, Secret, WatchedLeader};
use memfs::{MemFs, MemOptions};
use std::collections::HashSet;
use std::process::Command;
use std::sync::Arc;
use strata_tests::Sandbox;
use testkit::outcome;
use vnode::{Cx, Errno, Layer, Name, OpenFile, OpenFlags, RenameFlags, Result, SetAttr, Vnode, Whence, XattrFlags};
use wrapfs::{Build, LayerType, Settings};

#[path = "../../../cryptfs/src/test_host.rs"]
pub(crate) mod test_host;
use test_host::Host;

const PASSPHRASE: &[u8] = b"at least sixteen characters";

/// Calls `act` as root in this session.
fn within<T>(session: u32, act: impl FnOnce(&Cx<'_>) -> T) -> T {
    conformance::fixture::in_session(0, session, act)
}

fn name(bytes: &str) -> Name<'_> {
    Name::new(bytes.as_bytes()).unwrap()
}

/// Returns the configuration of a volume.
fn configuration(flags: Flags) -> Vec<u8> {
    let kdf = Kdf::Scrypt(Scrypt { log_n: 10, ..Scrypt::default() });
    let passphrase = Passphrase { bytes: PASSPHRASE, kdf, label: "" };
    let new = NewVolume { creator: "test", flags, passphrase };
    Config::create(&new, Limits::default()).unwrap().0.to_json().unwrap()
}

/// Returns an empty volume with a key per session, over memory.
fn keyed() -> Arc<dyn Layer> {
    volume(Flags::default())
}

fn volume(flags: Flags) -> Arc<dyn Layer> {
    let _set_before = cryptfs::set_host(Arc::new(Host::new(None)));
    let lower = MemFs::new();
    let own = Cx::internal(0, 0);
    let (_, file) = lower.root().create(&own, name("gocryptfs.conf"), 0o400, OpenFlags::RDWR).unwrap();
    file.write(&own, &configuration(flags), 0).unwrap();
    registry::find("cryptfs").unwrap().over(lower, &Settings::new()).unwrap()
}

fn add(top: &Arc<dyn Layer>, session: u32) {
    let request = AddRequest { passphrase: PASSPHRASE.to_vec().into(), ..AddRequest::default() };
    within(session, |cx| top.root().control(cx, ADD.name, &request.encode())).unwrap();
}

fn read(file: &dyn OpenFile, session: u32) -> Result<Vec<u8>> {
    let mut out = [0; 16];
    within(session, |cx| file.read(cx, &mut out, 0)).map(|len| out[..len].to_vec())
}

fn errno<T>(result: Result<T>) -> Errno {
    result.map(|_| ()).expect_err("it succeeded")
}

const HOLDER: u32 = 100;
const OTHER: u32 = 200;
const STRANGER: u32 = 300;

/// A session without a key gets nothing of a file that another one has open, and a session keeps
/// its files when another one loses its key.
fn check_callers(top: &Arc<dyn Layer>) {
    add(top, HOLDER);
    let root = top.root();
    let (entry, file) = within(HOLDER, |cx| root.create(cx, name("Secret"), 0o666, OpenFlags::RDWR)).unwrap();
    let vnode: Arc<dyn Vnode> = entry.vnode;
    within(HOLDER, |cx| file.write(cx, b"hello", 0)).unwrap();
    within(HOLDER, |cx| vnode.setxattr(cx, b"user.a", b"value", XattrFlags::default())).unwrap();
    within(HOLDER, |cx| root.lookup(cx, name("secret"))).unwrap();
    // No block of it has ever been encrypted.
    let (entry, sparse) = within(HOLDER, |cx| root.create(cx, name("sparse"), 0o666, OpenFlags::RDWR)).unwrap();
    let hole: Arc<dyn Vnode> = entry.vnode;
    let long = SetAttr { size: Some(3 << 12), ..SetAttr::default() };
    within(HOLDER, |cx| hole.setattr(cx, &long, Some(&*sparse))).unwrap();
    let dir = within(HOLDER, |cx| root.mkdir(cx, name("dir"), 0o777)).unwrap().vnode;
    let link = within(HOLDER, |cx| root.symlink(cx, name("link"), b"target")).unwrap().vnode;
    within(STRANGER, |cx| {
        for flags in [OpenFlags::RDONLY, OpenFlags::WRONLY, OpenFlags::RDWR, OpenFlags::WRONLY.with_trunc()] {
            assert_eq!(errno(vnode.open(cx, flags)), Errno::NOKEY, "{flags:?}");
        }
        for size in [0, 1, 9] {
            let cut = SetAttr { size: Some(size), ..SetAttr::default() };
            assert_eq!(errno(vnode.setattr(cx, &cut, None)), Errno::NOKEY, "{size}");
        }
        for spelling in ["Secret", "secret", "missing"] {
            assert_eq!(errno(root.lookup(cx, name(spelling))), Errno::NOKEY, "{spelling}");
        }
        let chmod = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        for at in [&root, &dir] {
            assert_eq!(errno(at.readdir(cx, 0, &mut |_| true)), Errno::NOKEY);
            assert_eq!(errno(at.create(cx, name("new"), 0o644, OpenFlags::RDWR)), Errno::NOKEY);
            assert_eq!(errno(at.tmpfile(cx, 0o644, OpenFlags::RDWR)), Errno::NOKEY);
            assert_eq!(errno(at.mkdir(cx, name("new"), 0o755)), Errno::NOKEY);
            assert_eq!(errno(at.mknod(cx, name("new"), 0o010_644, 0)), Errno::NOKEY);
            assert_eq!(errno(at.symlink(cx, name("new"), b"target")), Errno::NOKEY);
            assert_eq!(errno(at.link(cx, name("new"), &vnode)), Errno::NOKEY);
            assert_eq!(errno(root.rename(cx, name("Secret"), at, name("new"), RenameFlags::default())), Errno::NOKEY);
            assert_eq!(errno(at.setattr(cx, &chmod, None)), Errno::NOKEY);
        }
        assert_eq!(errno(root.unlink(cx, name("Secret"))), Errno::NOKEY);
        assert_eq!(errno(root.rmdir(cx, name("dir"))), Errno::NOKEY);
        assert_eq!(errno(link.readlink(cx)), Errno::NOKEY);
        assert_eq!(errno(vnode.listxattr(cx, &mut [0; 99])), Errno::NOKEY);
        assert_eq!(errno(vnode.removexattr(cx, b"user.a")), Errno::NOKEY);
        // The mount point can be entered, and df works.
        assert!(root.getattr(cx).is_ok() && root.statfs(cx).is_ok());
        assert_eq!(errno(vnode.getxattr(cx, b"user.a", &mut [0; 16])), Errno::NOKEY);
    });
    assert_eq!(read(&*file, HOLDER), Ok(b"hello".to_vec()));
    add(top, OTHER);
    let other = within(OTHER, |cx| vnode.open(cx, OpenFlags::RDWR)).unwrap();
    assert_eq!(within(HOLDER, |cx| root.control(cx, DELETE.name, b"")).unwrap(), b"1");
    assert_eq!(read(&*file, HOLDER), Err(Errno::NOKEY));
    within(HOLDER, |cx| {
        assert_eq!(errno(sparse.read(cx, &mut [0; 16], 0)), Errno::NOKEY);
        assert_eq!(errno(sparse.write(cx, b"data", 0)), Errno::NOKEY);
        for mode in [0, 0x10, 3] {
            assert_eq!(errno(sparse.fallocate(cx, mode, 0, 1 << 12)), Errno::NOKEY, "{mode}");
        }
        for whence in [Whence::Data, Whence::Hole] {
            assert_eq!(errno(sparse.seek(cx, 0, whence)), Errno::NOKEY, "{whence:?}");
        }
        for size in [0, 1, 1 << 12, 4 << 12] {
            let cut = SetAttr { size: Some(size), ..SetAttr::default() };
            assert_eq!(errno(hole.setattr(cx, &cut, Some(&*sparse))), Errno::NOKEY, "{size}");
        }
        assert!(sparse.fsync(cx, false).is_ok() && hole.getattr(cx).is_ok_and(|attr| attr.size == 3 << 12));
    });
    assert_eq!(read(&*other, OTHER), Ok(b"hello".to_vec()));
    assert_eq!(within(OTHER, |cx| other.write(cx, b"J", 0)), Ok(1));
    assert_eq!(read(&*other, OTHER), Ok(b"Jello".to_vec()));
}

/// Returns the layer above `lower`, which is its only branch if it has branches.
fn above(kind: &LayerType, lower: Arc<dyn Layer>) -> core::result::Result<Arc<dyn Layer>, String> {
    let Some(branches) = kind.branches() else { return kind.over(lower, &Settings::new()) };
    kind.check_above(lower.properties())?;
    let stack::Make::Opened(make) = branches.make else { return Err("not opened at once".to_owned()) };
    let mut settings = Settings::new();
    if kind.name == "viewfs" {
        // The sessions of this test are no processes.
        settings.insert("unknown", b"1");
    }
    let situation = stack::Situation { passthrough: None, may_chown: true, cache: None };
    let branch = stack::Branch { name: "/below".into(), mode: (branches.unmarked)(0, false), lower };
    make(vec![branch], &settings, &situation).map(|made| made.layer)
}

/// Also an empty volume is not listed.
#[test]
fn a_session_without_a_key_can_do_nothing_whatever_is_encrypted() {
    for names in [Flags::default().names, None] {
        let volume = volume(Flags { names, ..Flags::default() });
        let listed = within(STRANGER, |cx| volume.root().readdir(cx, 0, &mut |_| true));
        assert_eq!(listed, Err(Errno::NOKEY));
        check_callers(&volume);
    }
}

#[test]
fn no_layer_shares_files_between_the_callers_of_a_layer_below() {
    let varying = MemFs::with(MemOptions { varies_by_caller: true, ..MemOptions::default() }, &memfs::Faults::new());
    let (mut apart, mut sharing) = (HashSet::new(), HashSet::new());
    for kind in registry::types() {
        let name = kind.name;
        if !kind.traits.keeps_callers_apart {
            sharing.insert(name);
            for lower in [keyed(), Arc::clone(&varying) as Arc<dyn Layer>] {
                let refused = above(kind, lower).expect_err(name);
                assert!(refused.starts_with("the layer below answers each caller differently"), "{name}: {refused}");
            }
            continue;
        }
        apart.insert(name);
        eprintln!("{name} over cryptfs");
        check_callers(&above(kind, keyed()).unwrap());
        // What it declares of itself holds for the layers above it, too.
        let top = above(kind, keyed()).unwrap();
        assert!(top.properties().varies_by_caller, "{name}");
        for next in registry::types() {
            match (next.traits.keeps_callers_apart, above(next, Arc::clone(&top))) {
                (false, Err(_)) => {}
                (true, Ok(_)) => {
                    eprintln!("{} over {name} over cryptfs", next.name);
                    check_callers(&above(next, above(kind, keyed()).unwrap()).unwrap());
                }
                (_, made) => panic!("{} over {name}: {:?}", next.name, made.map(|_| ())),
            }
        }
    }
    let names = |names: &[&'static str]| names.iter().copied().collect::<HashSet<_>>();
    assert_eq!(apart, names(&["wrapfs", "rot13", "xor", "worldread", "casefold", "snoopfs", "viewfs"]));
    assert_eq!(sharing, names(&["unionfs", "lbfs", "zstd", "usenetfs", "versionfs", "cryptfs"]));
    // All of them can lie above a layer that answers all callers alike.
    for kind in registry::types() {
        assert_eq!(kind.check_above(MemFs::new().properties()), Ok(()), "{}", kind.name);
        assert!(matches!(kind.build, Build::Over(_)) || kind.branches().is_some());
    }
}

/// The rule also holds for branches, also those that are opened late.
#[test]
fn a_mount_names_the_layer_that_must_not_lie_above() {
    let sandbox = Sandbox::new();
    let (volume, at) = (sandbox.dir("volume"), sandbox.dir("at"));
    std::fs::write(volume.join("gocryptfs.conf"), configuration(Flags::default())).unwrap();
    let (volume, at) = (volume.display(), at.to_str().unwrap());
    for (stack, part) in [
        (format!("zstd / cryptfs / {volume}"), "zstd"),
        (format!("zstd / rot13 / cryptfs / {volume}"), "zstd"),
        (format!("rot13 / unionfs,dirs=[cryptfs / {volume}]=rw"), "unionfs"),
        (format!("lbfs,dirs=[cryptfs / {volume}]"), "lbfs"),
        (format!("unionfs,dirs=[zstd / cryptfs / {volume}]=ro"), "zstd"),
    ] {
        let outcome = outcome(Command::new(env!("CARGO_BIN_EXE_strata")).args(["mount", &stack, at]));
        assert_eq!(outcome.code, 1, "{stack}: {}", outcome.err);
        assert!(
            outcome.err.contains(&format!("{part}: the layer below answers each caller differently")),
            "{}",
            outcome.err
        );
    }
}
