//! versionfs, mounted, in adverse conditions: a full disk, servers that are killed, stacks, several
//! users, changes out of band, odd names and operations.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use strata_tests::process::sh;
use strata_tests::user::{Credentials, OTHER, USER as ALICE, as_user};
use strata_tests::versions::{Moments, command, contents, keep_all, list, path_of, read, texts};
use strata_tests::{Mounted, Rng, Sandbox, Spec, Transport, on_both_transports};
use testkit::{seen, until};
use versionclient::{Directory, Kind};

const BOB: Credentials = Credentials { uid: 1002, gid: 1002, group: None };

/// versionfs over a directory of an ext4 file system, with a policy that keeps every version.
struct Mount {
    mounted: Mounted,
    lower: PathBuf,
    /// Dropped last, because it removes everything else.
    sandbox: Sandbox,
}

impl Mount {
    fn new(transport: Transport, options: &str) -> Self {
        Self::sized(64, transport, options)
    }

    fn sized(mib: u64, transport: Transport, options: &str) -> Self {
        let sandbox = Sandbox::new();
        let disk = sandbox.ext4("disk", mib);
        Self::over(sandbox, &disk, transport, options)
    }

    fn over(sandbox: Sandbox, disk: &Path, transport: Transport, options: &str) -> Self {
        let lower = disk.join("lower");
        fs::create_dir(&lower).unwrap();
        let mut all = keep_all(&sandbox);
        if !options.is_empty() {
            all = format!("{all},{options}");
        }
        let mounted = Mounted::new(Spec::versions(&lower, &all, transport), &sandbox.path("m"));
        Self { mounted, lower, sandbox }
    }

    fn dir(&self) -> &Path {
        self.mounted.dir()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounted.path(name)
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn errno<T>(result: io::Result<T>) -> Option<Errno> {
    result.err().map(|e| Errno::from_io_error(&e).unwrap_or_else(|| panic!("{e}")))
}

/// The contents that each name had, in order. `None`: it did not exist.
#[derive(Debug, Default)]
struct Past(BTreeMap<String, Vec<Option<Vec<u8>>>>);

/// Whether a version may be what a program saw between two parts of a write: the kernel may divide
/// one at a page.
fn is_half(whole: &[u8], version: &[u8]) -> bool {
    version.len().is_multiple_of(4096) && whole.starts_with(version)
}

/// What an operation does to a name.
type Effects = Vec<(String, Option<Vec<u8>>)>;

impl Past {
    fn head(&self, name: &str) -> Option<&Vec<u8>> {
        self.0.get(name).and_then(|states| states.last()).and_then(Option::as_ref)
    }

    fn apply(&mut self, effects: &Effects) {
        for (name, content) in effects {
            let states = self.0.entry(name.clone()).or_default();
            if states.last() != Some(content) {
                states.push(content.clone());
            }
        }
    }

    /// Panics if a version has a content that the name never had, or a head is not the last one. If
    /// `complete`, each earlier content of a file that kept its name must have a version, in order.
    fn check(&self, dir: &Path, complete: bool, when: &str) {
        for (name, states) in &self.0 {
            let head = fs::read(dir.join(name)).ok();
            assert!(head.as_ref() == self.head(name), "{when}: the head of {name}");
            let mut all = list(dir, name);
            // The record of a name's birth may lack room, or be lost in a kill: then a reference to
            // the file's new name can't be followed.
            let moved = all.iter().any(|version| version.letter == 'r');
            all.retain(|version| version.letter != 'r');
            let versions: Vec<Vec<u8>> = all
                .iter()
                .map(|v| read(dir, name, v.number).unwrap_or_else(|e| panic!("{when}: {name} {v:?}: {e}")))
                .collect();
            let known: Vec<&Vec<u8>> = states.iter().flatten().collect();
            for (number, version) in versions.iter().enumerate() {
                assert!(
                    known.iter().any(|known| *known == version || is_half(known, version)),
                    "{when}: {name}: {:?} has other bytes",
                    all[number]
                );
            }
            if complete && !moved {
                let mut past: Vec<&Vec<u8>> = states[..states.len() - 1].iter().flatten().collect();
                past.dedup();
                let mut versions: Vec<&Vec<u8>> = versions.iter().collect();
                versions.dedup();
                // A version whose change failed may remain if there is no room to discard it.
                let is_longer = versions.len() > past.len();
                versions.pop_if(|newest| is_longer && head.as_ref() == Some(newest));
                let digests = |all: &[&Vec<u8>]| -> Vec<(usize, u8)> {
                    all.iter().map(|v| (v.len(), v.first().copied().unwrap_or_default())).collect()
                };
                assert!(past == versions, "{when}: {name}: {:?}, expected {:?}", digests(&versions), digests(&past));
            }
        }
    }
}

/// Returns the beginning of an operation's description.
fn short(op: &Op) -> String {
    format!("{op:?}").chars().take(60).collect()
}

/// An operation of a program on one of a few names, each in an open file of its own.
#[derive(Clone, Debug)]
enum Op {
    /// Overwrites bytes of one block.
    Write(String, u64, Vec<u8>),
    Append(String, Vec<u8>),
    Truncate(String, u64),
    /// Replaces the content as an editor does that writes in place.
    Rewrite(String, Vec<u8>),
    Create(String, Vec<u8>),
    Remove(String),
    Rename(String, String),
    Exchange(String, String),
    /// Replaces the content as an editor does that writes a new file.
    Save(String, Vec<u8>),
}

impl Op {
    fn any(rng: &mut Rng, past: &Past, largest: u64) -> Self {
        let one = format!("f{}", rng.below(4));
        let other = format!("f{}", rng.below(4));
        let len = 1 + rng.below(largest);
        let data = rng.bytes(usize::try_from(len).unwrap());
        let Some(head) = past.head(&one) else { return Self::Create(one, data) };
        let size = head.len() as u64;
        match rng.below(10) {
            0..=2 if size > 0 => {
                let at = rng.below(size);
                let room = usize::try_from((4096 - at % 4096).min(size - at)).unwrap();
                Self::Write(one, at, data[..data.len().min(room)].to_vec())
            }
            0..=3 => Self::Append(one, data[..data.len().min(4096)].to_vec()),
            4 => Self::Truncate(one, rng.below(size + 1)),
            5 => Self::Rewrite(one, data),
            6 => Self::Save(one, data),
            7 => Self::Remove(one),
            8 if past.head(&other).is_some() && one != other => Self::Exchange(one, other),
            _ if one != other => Self::Rename(one, other),
            _ => Self::Remove(one),
        }
    }

    /// Returns what it does, step by step: a kill or an error may leave the state after any of
    /// them. The last one is the result.
    fn steps(&self, past: &Past) -> Vec<Effects> {
        let head = |name: &String| past.head(name).cloned();
        let one = |name: &String, content: Vec<u8>| vec![(name.clone(), Some(content))];
        match self {
            Self::Write(name, at, data) => {
                let (mut content, at) = (head(name).unwrap(), usize::try_from(*at).unwrap());
                content[at..at + data.len()].copy_from_slice(data);
                vec![one(name, content)]
            }
            Self::Append(name, data) => vec![one(name, [head(name).unwrap(), data.clone()].concat())],
            Self::Truncate(name, size) => {
                let mut content = head(name).unwrap();
                content.truncate(usize::try_from(*size).unwrap());
                vec![one(name, content)]
            }
            Self::Create(name, data) | Self::Rewrite(name, data) => {
                vec![one(name, Vec::new()), one(name, data.clone())]
            }
            Self::Remove(name) => vec![vec![(name.clone(), None)]],
            Self::Rename(from, to) => vec![vec![(to.clone(), head(from)), (from.clone(), None)]],
            Self::Exchange(left, right) => {
                vec![vec![(left.clone(), head(right)), (right.clone(), head(left))]]
            }
            Self::Save(name, data) => vec![one(name, data.clone())],
        }
    }

    fn run(&self, dir: &Path) -> io::Result<()> {
        let open = |name: &String| File::options().write(true).open(dir.join(name));
        match self {
            Self::Write(name, at, data) => open(name)?.write_all_at(data, *at),
            Self::Append(name, data) => File::options().append(true).open(dir.join(name))?.write_all(data),
            Self::Truncate(name, size) => open(name)?.set_len(*size),
            Self::Rewrite(name, data) => {
                let mut file = File::options().write(true).truncate(true).open(dir.join(name))?;
                file.write_all(data)
            }
            Self::Create(name, data) => File::create_new(dir.join(name))?.write_all(data),
            Self::Remove(name) => fs::remove_file(dir.join(name)),
            Self::Rename(from, to) => fs::rename(dir.join(from), dir.join(to)),
            Self::Exchange(left, right) => {
                Ok(rustix::fs::renameat_with(CWD, dir.join(left), CWD, dir.join(right), RenameFlags::EXCHANGE)?)
            }
            Self::Save(name, data) => {
                let new = dir.join("new");
                fs::write(&new, data).and_then(|()| fs::rename(&new, dir.join(name)))
            }
        }
    }
}

/// Fills a file system until nothing more fits.
fn fill(dir: &Path) -> PathBuf {
    let path = dir.join("filler");
    let mut file = File::create(&path).unwrap();
    for size in [1 << 16, 4096, 1] {
        while file.write_all(&vec![7; size]).is_ok() {}
    }
    file.sync_all().unwrap();
    path
}

/// Operations on a disk that is full most of the time are complete or fail, and then change
/// nothing. No earlier version is harmed.
fn full_disk(transport: Transport) {
    for (seed, options) in [(1, "no-space=fail"), (2, "no-space=fail,storage=full"), (3, "no-space=skip")] {
        let mount = Mount::sized(16, transport, options);
        let all = options.starts_with("no-space=fail");
        let (mut past, mut rng) = (Past::default(), Rng::new(seed));
        let mut failed = 0;
        for round in 0..2 {
            for _ in 0..12 {
                let op = Op::any(&mut rng, &past, 60_000);
                op.run(mount.dir()).unwrap();
                past.apply(op.steps(&past).last().unwrap());
            }
            let filler = fill(mount.lower.parent().unwrap());
            for _ in 0..40 {
                let op = Op::any(&mut rng, &past, 20_000);
                let steps = op.steps(&past);
                match op.run(mount.dir()) {
                    Ok(()) => past.apply(&steps[steps.len() - 1]),
                    Err(e) => {
                        failed += 1;
                        assert_eq!(e.raw_os_error(), Some(Errno::NOSPC.raw_os_error()), "{}", short(&op));
                        if let Op::Rewrite(name, _) = &op {
                            wait_for_close(&mount, name);
                        }
                        settle(&op, &steps, &mut past, mount.dir());
                    }
                }
                let _ = fs::remove_file(mount.path("new"));
                for name in past.0.keys() {
                    let same = fs::read(mount.path(name)).ok().as_ref() == past.head(name);
                    assert!(same, "{options}, round {round}: {name} after {}", short(&op));
                }
            }
            past.check(mount.dir(), false, &format!("{options}, round {round}, full"));
            fs::remove_file(filler).unwrap();
            past.check(mount.dir(), all, &format!("{options}, round {round}"));
        }
        assert!(failed > 5, "{options}: {failed}");
        let mut mount = mount;
        mount.mounted.remount();
        past.check(mount.dir(), all, &format!("{options}, in a new server"));
    }
}

/// What a program is told when it empties a file on a full disk is what happens: a truncation is
/// delayed only if there is room for the version at its end.
fn truncation_on_a_full_disk(transport: Transport) {
    for options in ["no-space=fail,storage=sparse", "no-space=fail,storage=full", "no-space=skip"] {
        let mount = Mount::sized(16, transport, options);
        let path = mount.path("f");
        for size in [10, 30_000] {
            fs::write(&path, vec![b'a'; size]).unwrap();
            let before = list(mount.dir(), "f").len();
            // The same bytes again make no version, while there is room.
            fs::write(&path, vec![b'a'; size]).unwrap();
            assert_eq!(list(mount.dir(), "f").len(), before, "{options}: {size}");
            let filler = fill(mount.lower.parent().unwrap());
            let emptied = File::options().write(true).truncate(true).open(&path).map(drop);
            if options == "no-space=skip" {
                emptied.unwrap();
                until("the server closes f", || fs::metadata(mount.lower.join("f")).unwrap().len() == 0);
            } else {
                assert_eq!(errno(emptied), Some(Errno::NOSPC), "{options}: {size}");
                assert!(fs::read(&path).unwrap() == vec![b'a'; size], "{options}: {size}");
            }
            fs::remove_file(filler).unwrap();
        }
    }
}

/// Allocations that fail half-way, which ext4 does not undo: the file has grown.
fn failed_allocations(transport: Transport) {
    let mut grown = 0;
    let mount = Mount::sized(32, transport, "storage=sparse");
    for room in [24, 48, 64, 96, 128, 160] {
        let (name, path) = (format!("f{room}"), mount.path(&format!("f{room}")));
        fs::write(&path, [b'a'; 20_000]).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"b", 5000).unwrap();
        drop(file);
        wait_for_close(&mount, &name);
        let filler = fill(mount.lower.parent().unwrap());
        let filled = File::options().write(true).open(&filler).unwrap();
        filled.set_len(filled.metadata().unwrap().len() - (room << 10)).unwrap();
        filled.sync_all().unwrap();
        let before = fs::read(&path).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let allocated = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 16 << 20);
        assert_eq!(allocated, Err(Errno::NOSPC), "{room}");
        drop(file);
        fs::remove_file(filler).unwrap();
        let versions = contents(mount.dir(), &name);
        assert!(versions[0] == [b'a'; 20_000], "{room}");
        if fs::metadata(&path).unwrap().len() != 20_000 {
            grown += 1;
            assert!(versions.len() == 2 && versions[1] == before, "{room}: {:?}", list(mount.dir(), &name));
        }
    }
    assert!(grown > 0);
}

/// Waits until the server has closed a file whose last write failed. Until then, users see it
/// truncated, and then as it is on disk.
fn wait_for_close(mount: &Mount, name: &str) {
    let len = |dir: &Path| fs::metadata(dir.join(name)).unwrap().len();
    until(&format!("the server closes {name}"), || {
        seen((len(mount.dir()), len(&mount.lower)), |(shown, on_disk)| shown == on_disk)
    });
}

/// Records which steps of an operation that failed or was interrupted were made.
fn settle(op: &Op, steps: &[Effects], past: &mut Past, dir: &Path) {
    let is_now = |past: &Past, name: &str| fs::read(dir.join(name)).ok().as_ref() == past.head(name);
    let names: Vec<String> = steps.iter().flatten().map(|(name, _)| name.clone()).collect();
    for step in steps {
        if names.iter().all(|name| is_now(past, name)) {
            return;
        }
        past.apply(step);
    }
    if names.iter().all(|name| is_now(past, name)) {
        return;
    }
    // A write of several blocks may be complete in part.
    let (Op::Create(name, _) | Op::Rewrite(name, _) | Op::Append(name, _)) = op else {
        panic!("half of {}", short(op))
    };
    let head = fs::read(dir.join(name)).unwrap();
    assert!(past.head(name).unwrap().starts_with(&head), "{} left other bytes", short(op));
    past.0.get_mut(name).unwrap().pop();
    past.apply(&vec![(name.clone(), Some(head))]);
}

/// On a full disk, discarding versions and removing files with their history make room.
fn room_on_a_full_disk(transport: Transport) {
    for options in ["no-space=fail,storage=full", "no-space=fail,storage=sparse", "no-space=skip"] {
        let mount = Mount::sized(16, transport, options);
        for n in 0..30_u8 {
            fs::write(mount.path("often"), vec![n; 20_000]).unwrap();
        }
        let large: Vec<u8> = vec![1; 2_000_000];
        fs::write(mount.path("large"), &large).unwrap();
        fs::write(mount.path("small"), "small").unwrap();
        let filler = fill(mount.lower.parent().unwrap());
        let before = digests(mount.dir(), "often");
        // A removal without a version, or the old state.
        match fs::remove_file(mount.path("small")) {
            Ok(()) => assert!(!mount.path("small").exists()),
            Err(e) => {
                assert!(options.starts_with("no-space=fail"), "{options}: {e}");
                assert_eq!(e.raw_os_error(), Some(Errno::NOSPC.raw_os_error()), "{options}");
                assert_eq!(fs::read(mount.path("small")).unwrap(), b"small");
            }
        }
        assert_eq!(errno(fs::write(mount.path("more"), &large)), Some(Errno::NOSPC));
        command(mount.dir(), "versionfs.discard", "often 1 2 3 4 5 6 7 8").unwrap();
        assert_eq!(before[8..], digests(mount.dir(), "often"), "{options}");
        fs::write(mount.path("often"), vec![255; 20_000]).unwrap();
        // The head before that is a version now.
        assert_eq!(digests(mount.dir(), "often").len(), 22);
        assert!(fs::read(mount.path("large")).unwrap() == large);
        command(mount.dir(), "versionfs.unlink", "large").unwrap();
        fs::write(mount.path("more"), vec![2; 1_500_000]).unwrap();
        assert_eq!(before[8..], digests(mount.dir(), "often")[..21], "{options}");
        fs::remove_file(filler).unwrap();
    }
}

/// An editor renames a file to a backup, of which the built-in policy makes no versions, and
/// removes it at last. The content has a version under the file's name.
fn removed_backups(transport: Transport) {
    let sandbox = Sandbox::new();
    let disk = sandbox.ext4("disk", 64);
    let mounted = Mounted::new(Spec::versions(&disk, "", transport), &sandbox.path("m"));
    let script = "cd \"$1\"; echo one > f; mv f f~; echo two > f; rm f~; mv f f.tmp; echo three > f; rm f.tmp";
    sh(script, &[mounted.dir()]);
    let all = list(mounted.dir(), "f");
    let texts: Vec<Vec<u8>> = all.iter().map(|v| read(mounted.dir(), "f", v.number).unwrap()).collect();
    assert_eq!(texts, [b"one\n", b"two\n"]);
}

/// In a copy of the lower directory, as a backup restores it, every file is another inode, and
/// younger than its history. Files with several names go on with theirs, whether the copy keeps the
/// names together or not, and what has never changed was there before.
fn copies_of_the_lower_directory(transport: Transport) {
    for kept in ["links", ""] {
        let Mount { mounted, lower, sandbox } = Mount::new(transport, "");
        let at = mounted.dir().to_owned();
        let run = |script: &str| drop(sh(&format!("cd \"$1\"; {script}"), &[&at]));
        // How old a directory of a copy is, nothing tells, nor a file whose time has changed since.
        run("mkdir -p dir/dir; echo old >old");
        let mut moments = Moments::new(&at);
        let unchanged = "echo never >never; echo never >dir/dir/never; ln -s never link";
        let linked = ["echo one >a; ln a b", "echo two >>a", "echo three >>b", "echo alone >c; ln c d; rm c"];
        for step in [unchanged].into_iter().chain(linked) {
            moments.after(|| run(step));
        }
        drop(mounted);
        let copy = sandbox.path("disk/copy");
        let preserved = format!("--preserve=mode,ownership,timestamps,xattr,{kept}");
        let preserved = Path::new(preserved.trim_end_matches(','));
        sh("cp -R \"$3\" \"$1\" \"$2\"", &[lower.as_path(), &copy, preserved]);
        let options = keep_all(&sandbox);
        let mut mounted = Mounted::new(Spec::versions(&copy, &options, transport), &at);
        let when = format!("copied, kept: {kept:?}");
        moments.check(&when);
        assert_eq!(texts(&at, "b").last().unwrap(), "one\ntwo\n", "{when}");
        moments.after(|| run("echo four >>b"));
        moments.check(&when);
        assert_eq!(texts(&at, "b").last().unwrap(), "one\ntwo\nthree\n", "{when}");
        // What has no history keeps its place in the past, even if its times change.
        let changes = "touch old; echo new >dir/dir/new; mkdir dir/new";
        for step in ["echo five >>a", "rm b; echo six >>d", "ln a e; echo seven >e; mv e f; rm a", changes] {
            moments.after(|| run(step));
        }
        moments.check(&when);
        let lasts = if kept.is_empty() { "one\ntwo\nthree\n" } else { "one\ntwo\nthree\nfour\n" };
        assert!(texts(&at, "a").contains(&lasts.to_owned()), "{when}: {:?}", texts(&at, "a"));
        mounted.remount();
        moments.check(&when);
    }
}

/// A file that another program put below the mount in place of one with several names is not a
/// copy of that.
fn a_replacement_below_is_no_copy(transport: Transport) {
    for (made, was) in [("echo one >a; ln a b; echo two >>a", "one\ntwo\n"), ("echo one >a; ln a b", "one\n")] {
        replace_below(transport, made, was);
    }
}

fn replace_below(transport: Transport, made: &str, was: &str) {
    let Mount { mounted, lower, sandbox } = Mount::new(transport, "");
    let at = mounted.dir().to_owned();
    let mut moments = Moments::new(&at);
    moments.after(|| sh(&format!("cd \"$1\"; {made}"), &[&at]));
    drop(mounted);
    sh("cd \"$1\"; rm b; echo new >x; mv x a", &[&lower]);
    let _mounted = Mounted::new(Spec::versions(&lower, &keep_all(&sandbox), transport), &at);
    fs::OpenOptions::new().append(true).open(at.join("a")).unwrap().write_all(b"newer\n").unwrap();
    let token = command(&at, "versionfs.at", moments.time(1)).unwrap();
    // Its content then may be gone, but it is none of the other file.
    let seen = fs::read_to_string(at.join(token.trim_end()).join("a"));
    assert!(seen.as_ref().is_err() || seen.as_ref().is_ok_and(|text| text == was), "{seen:?}");
    assert!(texts(&at, "a").contains(&"new\n".to_owned()), "{:?}", texts(&at, "a"));
}

/// A second name that another program made below the mount: the versions that the file has keep
/// the bytes that they share with it.
fn links_made_below_keep_versions(transport: Transport) {
    let Mount { mounted, lower, sandbox } = Mount::new(transport, "");
    let at = mounted.dir().to_owned();
    drop(mounted);
    let config = sandbox.path("sparse.conf");
    fs::write(&config, "builtin = false\nstorage = \"sparse\"\n").unwrap();
    let options = format!("config={}", config.display());
    let mounted = Mounted::new(Spec::versions(&lower, &options, transport), &at);
    sh("cd \"$1\"; head -c 20000 <(yes one) >a", &[&at]);
    // Before the kernel has released the file, its creator may write unseen: versions are copies.
    drop(mounted);
    let mounted = Mounted::new(Spec::versions(&lower, &options, transport), &at);
    sh("cd \"$1\"; printf two >>a", &[&at]);
    assert_eq!(list(&at, "a").iter().map(|version| version.letter).collect::<Vec<_>>(), ['s']);
    drop(mounted);
    sh("cd \"$1\"; ln a b", &[&lower]);
    let mounted = Mounted::new(Spec::versions(&lower, &options, transport), &at);
    sh("cd \"$1\"; printf X | dd of=a conv=notrunc; printf Y | dd of=b seek=9 conv=notrunc", &[&at]);
    let first = read(mounted.dir(), "a", 1).unwrap();
    assert!(first.len() == 20_000 && first.starts_with(b"one\none\n"), "{}", first.escape_ascii());
    let all = contents(mounted.dir(), "a");
    assert!(all.iter().any(|text| text.ends_with(b"two") && text.starts_with(b"one")), "{}", all.len());
}

/// Versions of a file with holes take no more space than its data, whichever way they are made.
fn holes_stay_holes(transport: Transport) {
    let mount = Mount::sized(256, transport, "");
    let steps = [
        "truncate -s 600M a; printf x | dd of=a bs=1 seek=150M conv=notrunc; truncate -s 200M a",
        "truncate -s 400M b; printf y | dd of=b bs=1 seek=5000 conv=notrunc",
        "truncate -s 400M c; printf z | dd of=c bs=1 seek=300M conv=notrunc; exec 3<c 4<>c; printf w >&4; exec 3>&- 4>&-",
        "truncate -s 400M d; ln d e; printf v | dd of=d bs=1 seek=7000 conv=notrunc; rm e; truncate -s 0 d",
    ];
    for step in steps {
        sh(&format!("cd \"$1\"; {step}"), &[mount.dir()]);
    }
    command(mount.dir(), "versionfs.clean", "").unwrap();
    let kib: u64 = sh("du -sk \"$1\" | cut -f 1", &[&mount.lower]).trim().parse().unwrap();
    assert!(kib < 8 << 10, "{kib} KiB");
    let sizes = |name| list(mount.dir(), name).iter().map(|version| version.size >> 20).collect::<Vec<_>>();
    assert_eq!((sizes("a").last(), sizes("c").last()), (Some(&600), Some(&400)));
    let last = list(mount.dir(), "a").last().unwrap().number;
    let mut old = File::open(path_of(mount.dir(), "a", last).unwrap()).unwrap();
    let mut byte = [0; 3];
    old.read_exact_at(&mut byte, (150 << 20) - 1).unwrap();
    assert_eq!(byte, [0, b'x', 0]);
    let copied = io::copy(&mut old, &mut io::sink()).unwrap();
    assert_eq!(copied, 600 << 20);
}

/// Returns the length and first byte of each version.
fn digests(dir: &Path, name: &str) -> Vec<(usize, u8)> {
    contents(dir, name).iter().map(|v| (v.len(), v.first().copied().unwrap_or_default())).collect()
}

/// The server is killed at random moments. Completed calls are in the heads; every version is
/// readable and was there.
fn killed(transport: Transport) {
    for (seed, options) in [(11, ""), (12, "storage=full"), (13, "comprehensive,copy-on=write")] {
        let mut mount = Mount::sized(256, transport, options);
        let (mut past, mut rng) = (Past::default(), Rng::new(seed));
        for round in 0..if strata_tests::long() { 100 } else { 6 } {
            mount.mounted.kill_after(Duration::from_micros(500 + rng.below(30_000)));
            let (op, steps) = loop {
                let op = Op::any(&mut rng, &past, 30_000);
                let steps = op.steps(&past);
                match op.run(mount.dir()) {
                    Ok(()) => past.apply(&steps[steps.len() - 1]),
                    Err(_) => break (op, steps),
                }
            };
            mount.mounted.crash();
            mount.mounted.mount_again();
            settle(&op, &steps, &mut past, mount.dir());
            let _ = fs::remove_file(mount.path("new"));
            past.check(mount.dir(), false, &format!("{options}, seed {seed}, round {round}, after {}", short(&op)));
        }
    }
}

/// Versions of stacks, in one server and in several.
fn stacks(transport: Transport) {
    let steps = [
        "seq 5000 > a; mkdir -p d/e; cp a d/e/b; ln -s a s",
        "sed -i s/100/x/ a; echo more >> d/e/b; chmod 600 d/e/b",
        "mv d/e/b c; rm s; mv d f; echo again > old/one; rm old/two; mv old/three old/four",
        "rm -r f old; mkdir old; echo new > old/one",
        "echo 1 > c; echo 2 > c; mv c a",
    ];
    for arrangement in 0..5 {
        let sandbox = Sandbox::new();
        let disk = sandbox.ext4("disk", 128);
        for branch in ["rw", "ro"] {
            fs::create_dir(disk.join(branch)).unwrap();
        }
        fs::create_dir(disk.join("rw/old")).unwrap();
        fs::create_dir(disk.join("ro/ro")).unwrap();
        ["one", "two", "three"].iter().for_each(|name| {
            fs::write(disk.join("rw/old").join(name), *name).unwrap();
            fs::write(disk.join("ro/ro").join(name), *name).unwrap();
        });
        sh("cd \"$1\"/ro/ro; mkdir -p sub/dir; echo 6 > sub/dir/five; echo 7 > six; ln six seven", &[&disk]);
        let (rw, ro) = (disk.join("rw"), disk.join("ro"));
        let layer = format!("versionfs,{}", keep_all(&sandbox));
        let below: Mounted;
        let (top, history) = match arrangement {
            0 => {
                (Mounted::new(Spec::stack(&format!("snoopfs / {layer} / "), &rw, transport), &sandbox.path("s")), None)
            }
            1 => {
                below = Mounted::new(Spec::stack(&format!("{layer} / "), &rw, transport), &sandbox.path("v"));
                let top = Mounted::new(Spec::stack("snoopfs / ", below.dir(), transport), &sandbox.path("s"));
                (top, Some(below.dir()))
            }
            2 => {
                let words = format!("{layer} / unionfs,dirs={}=rw:{}=ro", rw.display(), ro.display());
                (Mounted::new(Spec::Stack { words: words.into(), transport }, &sandbox.path("s")), None)
            }
            3 => {
                below = Mounted::new(Spec::union(&rw, &ro, transport), &sandbox.path("u"));
                (Mounted::new(Spec::stack(&format!("{layer} / "), below.dir(), transport), &sandbox.path("s")), None)
            }
            _ => {
                below = Mounted::new(Spec::stack(&format!("{layer} / "), &rw, transport), &sandbox.path("v"));
                (Mounted::new(Spec::union(below.dir(), &ro, transport), &sandbox.path("s")), Some(below.dir()))
            }
        };
        let history = history.unwrap_or(top.dir()).to_owned();
        let mut moments = Moments::new(&history);
        for step in steps {
            moments.after(|| sh(&format!("cd \"$1\"; {step}"), &[top.dir()]));
        }
        moments.check(&format!("arrangement {arrangement}"));
        if arrangement == 2 || arrangement == 3 {
            copied_up(&history, &mut moments);
            moments.check(&format!("arrangement {arrangement}, copied up"));
        }
        let first: String = (1..=5000).map(|n| format!("{n}\n")).collect();
        // A file that is created through a second mount may have been empty for a moment.
        let texts = texts(&history, "a");
        assert!(texts.iter().find(|text| !text.is_empty()) == Some(&first), "arrangement {arrangement}");
        drop(top);
    }
}

/// Files of a read-only branch have versions like others, and were there before they were copied
/// up.
fn copied_up(dir: &Path, moments: &mut Moments) {
    let changes = [
        "echo new > one; rm two; mv three four; echo more >> four",
        "touch sub/dir/five; echo more >> six",
        "rm -r sub; echo more >> seven",
    ];
    for change in changes {
        moments.after(|| sh(&format!("cd \"$1\"/ro; {change}"), &[dir]));
    }
    let dir = dir.join("ro");
    assert_eq!(texts(&dir, "one"), ["one"]);
    assert_eq!(texts(&dir, "two"), ["two"]);
    assert_eq!(texts(&dir, "four"), ["three"]);
    let three = list(&dir, "three");
    assert_eq!(read(&dir, "three", three[0].number).unwrap(), b"three");
    assert!(!dir.join("two").exists() && !dir.join("three").exists());
}

/// A user reads an old version if its mode permits that, and reaches it only through directories
/// that they may search.
fn reading_old_versions(transport: Transport) {
    let mount = Mount::new(transport, "versions");
    mode(mount.dir(), 0o755);
    let as_bob = |name: &str, number| as_user(BOB, || errno(read(mount.dir(), name, number)));
    let path = mount.path("open");
    fs::write(&path, "1 for all").unwrap();
    chown(&path, Some(1000), Some(1000)).unwrap();
    mode(&path, 0o600);
    fs::write(&path, "3 for Alice").unwrap();
    mode(&path, 0o644);
    let all = list(mount.dir(), "open");
    let seen: Vec<(u64, u32, u32)> = all.iter().map(|v| (v.number, v.mode, v.uid)).collect();
    assert_eq!(seen, [(1, 0o644, 0), (2, 0o644, 1000), (3, 0o600, 1000), (4, 0o600, 1000)]);
    // What Bob could not read then he can't read now, although the head is open to him.
    let refused: Vec<Option<Errno>> = (1..=4).map(|number| as_bob("open", number)).collect();
    assert_eq!(refused, [None, None, Some(Errno::ACCESS), Some(Errno::ACCESS)]);
    assert_eq!(as_user(ALICE, || errno(read(mount.dir(), "open", 4))), None);
    // Root can pass on a token; it does not carry root's rights.
    let token = path_of(mount.dir(), "open", 3).unwrap();
    assert_eq!(as_user(BOB, || errno(File::open(&token))), Some(Errno::ACCESS));
    assert_eq!(errno(File::options().write(true).open(&token)), Some(Errno::ROFS));
    // A directory that Bob may not search, or not list.
    let dir = mount.path("private");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("f"), "1").unwrap();
    fs::write(dir.join("f"), "2").unwrap();
    mode(&dir, 0o700);
    assert_eq!(as_user(BOB, || errno(command(&dir, "versionfs.list", "f"))), Some(Errno::ACCESS));
    assert_eq!(as_user(BOB, || errno(fs::read_dir(dir.join(".versions")))), Some(Errno::ACCESS));
    let now = command(mount.dir(), "versionfs.at", &seconds()).unwrap();
    let past = mount.path(now.trim_end());
    assert_eq!(as_user(BOB, || errno(fs::read(past.join("private/f")))), Some(Errno::ACCESS));
    mode(&dir, 0o711);
    assert_eq!(as_user(BOB, || errno(fs::read_dir(&dir))), Some(Errno::ACCESS));
    assert_eq!(as_user(BOB, || errno(command(&dir, "versionfs.list", "f"))), Some(Errno::ACCESS));
    // A removed private directory stays private.
    mode(&dir, 0o700);
    fs::remove_dir_all(&dir).unwrap();
    let number = list(mount.dir(), "private").last().unwrap().number;
    let removed = path_of(mount.dir(), "private", number).unwrap();
    assert_eq!(as_user(BOB, || errno(fs::read_dir(&removed))), Some(Errno::ACCESS));
    assert_eq!(fs::metadata(&removed).unwrap().mode() & 0o777, 0o700);
}

fn seconds() -> String {
    sh::<&str>("sleep 0.02; date +%s.%N; sleep 0.02", &[]).trim().to_owned()
}

/// Who may discard, pin and restore; a set-user-ID program of the past is none.
fn changing_old_versions(transport: Transport) {
    let mount = Mount::new(transport, "");
    mode(mount.dir(), 0o1777);
    as_user(ALICE, || {
        fs::write(mount.path("f"), "1").unwrap();
        fs::write(mount.path("f"), "2").unwrap();
        fs::write(mount.path("f"), "3").unwrap();
        fs::write(mount.path("gone"), "1").unwrap();
        fs::remove_file(mount.path("gone")).unwrap();
    });
    for who in [BOB, OTHER] {
        let refused = |text: &str, input: &str| as_user(who, || errno(command(mount.dir(), text, input)));
        assert_eq!(refused("versionfs.discard", "f 1"), Some(Errno::PERM));
        assert_eq!(refused("versionfs.pin", "f 1 on"), Some(Errno::PERM));
        assert_eq!(refused("versionfs.annotate", "f 1 mine"), Some(Errno::PERM));
        assert_eq!(refused("versionfs.unlink", "f"), Some(Errno::PERM));
        assert_eq!(refused("versionfs.unlink", "gone"), Some(Errno::PERM));
        assert_eq!(
            refused("versionfs.rename", &format!("f {} g", fs::metadata(mount.dir()).unwrap().ino())),
            Some(Errno::PERM)
        );
        assert_eq!(refused("versionfs.chown", "f 1002 -1"), Some(Errno::PERM));
        assert_eq!(refused("versionfs.chmod", "f 666"), Some(Errno::PERM));
        assert_eq!(refused("versionfs.tag", "mine"), Some(Errno::PERM));
    }
    assert_eq!(texts(mount.dir(), "f"), ["1", "2"]);
    as_user(ALICE, || {
        command(mount.dir(), "versionfs.pin", "f 1 on").unwrap();
        assert_eq!(errno(command(mount.dir(), "versionfs.discard", "f 1")), Some(Errno::PERM));
        command(mount.dir(), "versionfs.discard", "f 2").unwrap();
    });
    assert_eq!(texts(mount.dir(), "f"), ["1"]);
    // Another user takes the name of a removed file. The old versions stay Alice's.
    as_user(ALICE, || {
        fs::write(mount.path("taken"), "Alice's").unwrap();
        mode(&mount.path("taken"), 0o600);
        fs::remove_file(mount.path("taken")).unwrap();
    });
    as_user(BOB, || {
        fs::write(mount.path("taken"), "Bob's").unwrap();
        fs::write(mount.path("taken"), "Bob's second").unwrap();
        for version in list(mount.dir(), "taken").iter().filter(|v| v.uid == 1000 && v.mode == 0o600) {
            assert_eq!(errno(read(mount.dir(), "taken", version.number)), Some(Errno::ACCESS));
            assert_eq!(
                errno(command(mount.dir(), "versionfs.discard", &format!("taken {}", version.number))),
                Some(Errno::PERM)
            );
        }
        assert_eq!(errno(command(mount.dir(), "versionfs.chmod", "taken 666")), Some(Errno::PERM));
        assert_eq!(errno(command(mount.dir(), "versionfs.unlink", "taken")), Some(Errno::PERM));
    });
    // A program that was replaced because of a flaw does not get its rights back.
    fs::copy("/usr/bin/id", mount.path("id")).unwrap();
    mode(&mount.path("id"), 0o6755);
    fs::remove_file(mount.path("id")).unwrap();
    let number = list(mount.dir(), "id").last().unwrap().number;
    let old = path_of(mount.dir(), "id", number).unwrap();
    assert_eq!(fs::metadata(&old).unwrap().mode() & 0o7777, 0o755);
}

/// Names of the store can't be reached, made or replaced through the mount.
fn reserved_names(transport: Transport) {
    let mount = Mount::new(transport, "versions");
    fs::write(mount.path("f"), "1").unwrap();
    fs::write(mount.path("f"), "2").unwrap();
    let store = mount.path(".;versions");
    assert!(mount.lower.join(".;versions/f;i").exists());
    assert_eq!(errno(fs::metadata(&store)), Some(Errno::NOENT));
    assert_eq!(errno(fs::read(store.join("f;i"))), Some(Errno::NOENT));
    assert_eq!(errno(fs::create_dir(&store)), Some(Errno::INVAL));
    assert_eq!(errno(fs::write(&store, "")), Some(Errno::INVAL));
    assert_eq!(errno(symlink("/", &store)), Some(Errno::INVAL));
    assert_eq!(errno(fs::hard_link(mount.path("f"), &store)), Some(Errno::INVAL));
    assert_eq!(errno(fs::rename(mount.path("f"), &store)), Some(Errno::INVAL));
    assert_eq!(errno(fs::rename(&store, mount.path("g"))), Some(Errno::NOENT));
    assert_eq!(errno(fs::remove_dir_all(&store)), Some(Errno::NOENT));
    let names: Vec<_> = fs::read_dir(mount.dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["f"]);
    for input in [".;versions", "..", ".", "a/b", "", "\\000", ".;versions/f;i"] {
        assert!(command(mount.dir(), "versionfs.list", input).is_err(), "{input}");
        assert!(command(mount.dir(), "versionfs.open", &format!("{input} 1")).is_err(), "{input}");
        assert!(command(mount.dir(), "versionfs.unlink", input).is_err(), "{input}");
    }
    // Names that look like files of a store are ordinary ones.
    for name in
        ["f;f1", "f;s1", "f;i", "f;c1", ";links", ";tags", "a;h0123456789abcdef0123456789abcdef", ";", "é\n x\\"]
    {
        fs::write(mount.path(name), "1").unwrap();
        fs::write(mount.path(name), "2").unwrap();
        fs::remove_file(mount.path(name)).unwrap();
        fs::write(mount.path(name), "3").unwrap();
        assert_eq!(texts(mount.dir(), name), ["1", "2"], "{name}");
    }
    assert_eq!(texts(mount.dir(), "f"), ["1"]);
    fs::remove_dir(mount.path("empty")).unwrap_err();
    fs::create_dir(mount.path("empty")).unwrap();
    fs::write(mount.path("empty/f"), "").unwrap();
    fs::remove_file(mount.path("empty/f")).unwrap();
    assert_eq!(fs::metadata(mount.path("empty")).unwrap().nlink(), 2);
    fs::remove_dir(mount.path("empty")).unwrap();
}

/// The longest names, hard links over directories, files without names, removed open files.
fn odd_files(transport: Transport) {
    let mut mount = Mount::new(transport, "");
    let mut moments = Moments::new(mount.dir());
    let names: Vec<String> = [232, 233, 254, 255].iter().map(|len| "n".repeat(*len)).collect();
    moments.after(|| {
        fs::create_dir(mount.path("d")).unwrap();
        for name in &names {
            fs::write(mount.path(name), "1").unwrap();
            fs::write(mount.path(name), "2").unwrap();
        }
        fs::write(mount.path("one"), "linked").unwrap();
        fs::hard_link(mount.path("one"), mount.path("d/two")).unwrap();
    });
    moments.after(|| {
        for name in &names {
            fs::rename(mount.path(name), mount.path("d").join(name)).unwrap();
        }
        fs::write(mount.path("d/two"), "by the second name").unwrap();
        fs::hard_link(mount.path("d/two"), mount.path("three")).unwrap();
        fs::remove_file(mount.path("one")).unwrap();
    });
    moments.after(|| {
        fs::write(mount.path("three"), "by the third name").unwrap();
        fs::rename(mount.path("d"), mount.path("moved")).unwrap();
        fs::write(mount.path("one"), "another file").unwrap();
    });
    moments.after(|| {
        fs::remove_file(mount.path("moved/two")).unwrap();
        fs::write(mount.path("three"), "one name left").unwrap();
        fs::create_dir(mount.path("e")).unwrap();
        fs::write(mount.path("e/x"), "x").unwrap();
        rustix::fs::renameat_with(CWD, mount.path("e"), CWD, mount.path("moved"), RenameFlags::EXCHANGE).unwrap();
        rustix::fs::renameat_with(CWD, mount.path("one"), CWD, mount.path("three"), RenameFlags::EXCHANGE).unwrap();
    });
    moments.after(|| {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let file = File::from(rustix::fs::open(mount.dir(), flags, Mode::from_raw_mode(0o644)).unwrap());
        file.write_all_at(b"without a name", 0).unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        rustix::fs::linkat(CWD, path, CWD, mount.path("tmp"), AtFlags::SYMLINK_FOLLOW).unwrap();
    });
    let mut removed = File::options().read(true).write(true).open(mount.path("tmp")).unwrap();
    moments.after(|| fs::remove_file(mount.path("tmp")).unwrap());
    removed.write_all(b"WITHOUT").unwrap();
    removed.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    let mut text = String::new();
    io::Seek::rewind(&mut removed).unwrap();
    removed.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), removed.metadata().unwrap().nlink()), ("WITHOUT a name", 0));
    drop(removed);
    moments.after(|| sh("rm -r \"$1\"/*", &[mount.dir()]));
    moments.check("in the mount");
    assert_eq!(texts(mount.dir(), "tmp"), ["without a name"]);
    mount.mounted.remount();
    moments.check("in a new server");
    assert_eq!(texts(mount.dir(), "tmp"), ["without a name"]);
}

/// copy_file_range, reflinks and holes, on file systems that share blocks.
fn shared_blocks(transport: Transport) {
    for kind in ["xfs", "btrfs"] {
        for options in ["storage=sparse", "storage=full", ""] {
            let sandbox = Sandbox::new();
            let disk = if kind == "xfs" { sandbox.xfs("disk") } else { sandbox.btrfs("disk") };
            let mut mount = Mount::over(sandbox, &disk, transport, options);
            let mut moments = Moments::new(mount.dir());
            for step in [
                "seq 100000 > a; cp --reflink=auto a b; cp --sparse=always /dev/null c; truncate -s 1M c",
                "cp --reflink=auto b c; dd if=/dev/zero of=a bs=4096 seek=3 count=5 conv=notrunc status=none",
                "fallocate -p -o 65536 -l 65536 b; fallocate -d c",
                "python3 -c \"import os; a=os.open('a',os.O_RDONLY); b=os.open('b',os.O_WRONLY); os.copy_file_range(a,b,100000,5,70001)\"",
                "mv a b; truncate -s 10 c; cp b c; rm b",
            ] {
                moments.after(|| sh(&format!("cd \"$1\"; {step}"), &[mount.dir()]));
            }
            moments.check(&format!("{kind}, {options}"));
            mount.mounted.remount();
            moments.check(&format!("{kind}, {options}, in a new server"));
        }
    }
}

/// On a lower file system that became read-only, heads and versions are readable and nothing else
/// works.
fn read_only_lower(transport: Transport) {
    let mut mount = Mount::new(transport, "");
    let mut moments = Moments::new(mount.dir());
    moments.after(|| sh("cd \"$1\"; seq 1000 > f; mkdir d; cp f d/g; ln f d/f", &[mount.dir()]));
    moments.after(|| sh("cd \"$1\"; echo x > f; rm d/g; mv d e", &[mount.dir()]));
    // The version is the file itself: it was written later than created, so it is no copy.
    sh("(sleep .1; printf 1) > \"$1\"; rm \"$1\"", &[mount.path("torn")]);
    mount.mounted.unmount();
    // A power failure has left half a record: the index can't be repaired on the disk.
    sh("truncate -s -1 \"$1\"", &[mount.lower.join(".;versions/torn;i")]);
    mount.sandbox.read_only(mount.lower.parent().unwrap());
    mount.mounted.mount_again();
    moments.check("on a read-only disk");
    assert_eq!(texts(mount.dir(), "torn"), ["1"]);
    assert_eq!(errno(fs::write(mount.path("f"), "y")), Some(Errno::ROFS));
    assert_eq!(errno(fs::remove_file(mount.path("f"))), Some(Errno::ROFS));
    assert_eq!(errno(fs::rename(mount.path("f"), mount.path("g"))), Some(Errno::ROFS));
    assert_eq!(errno(command(mount.dir(), "versionfs.discard", "f 1")), Some(Errno::ROFS));
    assert_eq!(errno(command(mount.dir(), "versionfs.tag", "t")), Some(Errno::ROFS));
}

/// Changes of the store out of band: heads are served, versions have their bytes or an error.
fn damaged_stores(transport: Transport) {
    for damage in [
        "rm -r \"$1\"",
        "rm \"$1\"/f\\;i",
        "truncate -s 30 \"$1\"/f\\;i",
        "printf x | dd of=\"$1\"/f\\;i bs=1 seek=40 conv=notrunc status=none",
        "rm \"$1\"/f\\;[cfs]2",
        "truncate -s 5 \"$1\"/f\\;[cfs]2",
        "printf x | dd of=\"$(ls \"$1\"/f\\;[cfs]2)\" bs=1 seek=100 conv=notrunc status=none",
        "ln -sf /etc/passwd \"$1\"/f\\;i",
        "for f in \"$1\"/f\\;[cfs]2; do ln -sf /etc/passwd \"$f\"; done",
        "rm -r \"$1\"; ln -s /etc \"$1\"",
        "rm -r \"$1\"; mkfifo \"$1\"",
        "rm \"$1\"/f\\;i; mkfifo \"$1\"/f\\;i",
        "rm \"$1\"/f\\;i; mkdir \"$1\"/f\\;i",
        "cp \"$1\"/f\\;i \"$1\"/f\\;s9; head -c 100000 /dev/urandom > \"$1\"/f\\;c8",
    ] {
        for live in [true, false] {
            let mut mount = Mount::new(transport, "storage=sparse,versions");
            let states: Vec<Vec<u8>> = (1..=4_u8)
                .map(|n| {
                    let mut content: Vec<u8> = vec![n; 20_000];
                    content[8000..16_000].fill(0);
                    content
                })
                .collect();
            for state in &states {
                fs::write(mount.path("f"), state).unwrap();
            }
            if !live {
                mount.mounted.unmount();
            }
            sh(damage, &[mount.lower.join(".;versions")]);
            if !live {
                mount.mounted.mount_again();
            }
            assert!(fs::read(mount.path("f")).unwrap() == states[3], "{damage}");
            let input = |number: u64| format!("f {number}");
            for number in 1..10 {
                let Ok(token) = command(mount.dir(), "versionfs.open", &input(number)) else { continue };
                if let Ok(bytes) = fs::read(mount.path(token.trim_end())) {
                    assert!(states.contains(&bytes), "{damage}, {live}: version {number} has {} bytes", bytes.len());
                }
            }
            // Writing goes on, or says why not; the head is one or the other.
            let written = fs::write(mount.path("f"), [9; 10]);
            if written.is_err() {
                wait_for_close(&mount, "f");
            }
            let head = fs::read(mount.path("f")).unwrap();
            // After a failed write the file is as before, or truncated with a version of what it
            // was.
            let is_old = head == states[3] || (head.is_empty() && contents(mount.dir(), "f").contains(&states[3]));
            assert!(
                if written.is_ok() { head == [9; 10] } else { is_old },
                "{damage}, {live}: {written:?}, {} bytes",
                head.len()
            );
            fs::read_dir(mount.dir()).unwrap().for_each(|entry| drop(entry.unwrap()));
            assert!(fs::read_to_string("/etc/passwd").unwrap().starts_with("root:"));
        }
    }
}

/// The name that the layer knows goes, and the next operation is one that does not look up another:
/// touch(1) sets the times of the file that it has open.
fn times_of_a_file_whose_known_name_went(transport: Transport) {
    let mount = Mount::new(transport, "");
    fs::create_dir(mount.path("d")).unwrap();
    fs::write(mount.path("d/f"), "first").unwrap();
    let file = File::open(mount.path("d/f")).unwrap();
    fs::hard_link(mount.path("d/f"), mount.path("d/g")).unwrap();
    fs::remove_file(mount.path("d/g")).unwrap();
    sh("touch -d @77 \"$1\"", &[mount.path("d/f")]);
    assert_eq!(file.metadata().unwrap().mtime(), 77);
}

/// Heads that are changed, replaced, removed or renamed out of band.
fn heads_changed_out_of_band(transport: Transport) {
    let mut mount = Mount::new(transport, "storage=sparse");
    let state = |n: u8| vec![n; 20_000];
    for name in ["kept", "replaced", "removed", "renamed", "shorter"] {
        fs::write(mount.path(name), state(1)).unwrap();
        fs::write(mount.path(name), state(2)).unwrap();
    }
    fs::write(mount.path("partly"), state(1)).unwrap();
    let change_in_place = |path: &Path, byte: u8, at: u64| {
        File::options().write(true).open(path).unwrap().write_all_at(&[byte; 100], at).unwrap();
    };
    change_in_place(&mount.path("partly"), 2, 0);
    wait_for_close(&mount, "partly");
    mount.mounted.unmount();
    let lower = |name: &str| mount.lower.join(name);
    fs::write(lower("new"), state(7)).unwrap();
    fs::rename(lower("new"), lower("replaced")).unwrap();
    fs::remove_file(lower("removed")).unwrap();
    fs::rename(lower("renamed"), lower("other")).unwrap();
    File::options().write(true).open(lower("shorter")).unwrap().set_len(100).unwrap();
    change_in_place(&lower("partly"), 3, 8192);
    mount.mounted.mount_again();
    for name in ["kept", "replaced", "removed", "renamed", "shorter"] {
        // All blocks of this version are its own: nothing out of band harms it.
        assert!(contents(mount.dir(), name) == [state(1)], "{name}");
    }
    // A version that lacks bytes can't get them any more; the next one is of what is there now.
    assert_eq!(errno(read(mount.dir(), "partly", 1)), Some(Errno::IO));
    let mut partly = state(1);
    partly[..100].fill(2);
    partly[8192..8292].fill(3);
    change_in_place(&mount.path("partly"), 4, 0);
    assert_eq!(errno(read(mount.dir(), "partly", 1)), Some(Errno::IO));
    assert!(read(mount.dir(), "partly", 2).unwrap() == partly);
    fs::write(mount.path("removed"), "new").unwrap();
    fs::write(mount.path("renamed"), "new").unwrap();
    fs::write(mount.path("other"), "new").unwrap();
    fs::write(mount.path("shorter"), "new").unwrap();
    assert!(contents(mount.dir(), "shorter") == [state(1), vec![2; 100]]);
    assert!(contents(mount.dir(), "removed") == [state(1)]);
    assert!(contents(mount.dir(), "other") == [state(2)]);
}

/// The client crate: every method, as a program uses it.
fn client_crate(transport: Transport) {
    let mount = Mount::new(transport, "storage=full");
    for text in ["one", "two", "three"] {
        fs::write(mount.path("f"), text).unwrap();
    }
    symlink("target", mount.path("l")).unwrap();
    fs::remove_file(mount.path("l")).unwrap();
    fs::create_dir(mount.path("d")).unwrap();
    fs::write(mount.path("d/inside"), "inside").unwrap();
    fs::remove_dir_all(mount.path("d")).unwrap();
    let dir = Directory::open(mount.dir()).unwrap();
    let numbers = |name: &[u8]| -> Vec<u64> {
        dir.versions(name).unwrap().unwrap().versions.iter().map(|version| version.number).collect()
    };
    let content = |dir: &Directory, name: &[u8], number| {
        let mut bytes = Vec::new();
        dir.recover(name, number, &mut bytes).map(|size| (size == bytes.len() as u64, bytes))
    };
    let list = dir.versions(b"f").unwrap().unwrap();
    assert_eq!((list.set.head, list.set.count), (Kind::File, 2));
    assert_eq!((list.versions[0].size, list.versions[1].size, &*list.versions[0].op), (3, 3, "truncate"));
    assert_eq!(dir.versions(b"never").unwrap(), None);
    let mut names: Vec<_> = dir.names().unwrap().into_iter().map(|named| (named.name, named.set.head)).collect();
    names.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(names, [(b"d".to_vec(), Kind::None), (b"f".to_vec(), Kind::File), (b"l".to_vec(), Kind::None)]);
    assert_eq!(content(&dir, b"f", 2).unwrap(), (true, b"two".to_vec()));
    assert_eq!(errno(content(&dir, b"f", 9)), Some(Errno::NOENT));
    dir.convert().unwrap();
    let mut raw = String::new();
    File::from(dir.open_raw(b"f", 1).unwrap()).read_to_string(&mut raw).unwrap();
    assert_eq!(raw, "one");
    assert_eq!(dir.link_target(b"l", 1).unwrap(), b"target");
    let old = dir.directory_version(b"d", numbers(b"d")[0]).unwrap();
    assert_eq!(content(&old, b"inside", 1).unwrap().1, b"inside");
    let past = dir.at(list.versions[0].born).unwrap();
    let mut then = String::new();
    File::from(rustix::fs::openat(&past, "f", OFlags::RDONLY, Mode::empty()).unwrap())
        .read_to_string(&mut then)
        .unwrap();
    assert_eq!(then, "one");

    dir.pin(b"f", 1, true).unwrap();
    dir.annotate(b"f", 1, b"a note").unwrap();
    let first = |name: &[u8]| dir.versions(name).unwrap().unwrap().versions[0].clone();
    assert_eq!((&*first(b"f").flags, &*first(b"f").note), ("p", &b"a note"[..]));
    assert!(dir.discard(b"f", &[1]).is_err());
    dir.pin(b"f", 1, false).unwrap();
    dir.discard(b"f", &[1]).unwrap();
    assert_eq!(numbers(b"f"), [2]);
    dir.chmod(b"f", 0o640).unwrap();
    dir.chown(b"f", Some(7), None).unwrap();
    assert_eq!((first(b"f").mode, first(b"f").uid, first(b"f").gid), (0o640, 7, 0));
    fs::create_dir(mount.path("other")).unwrap();
    let other = dir.child(b"other").unwrap();
    dir.rename(b"f", &other, b"g h").unwrap();
    assert_eq!(dir.versions(b"f").unwrap(), None);
    assert_eq!(content(&other, b"g h", 2).unwrap().1, b"two");
    assert_eq!(fs::read(mount.path("other/g h")).unwrap(), b"three");
    other.unlink(b"g h").unwrap();
    assert_eq!(other.versions(b"g h").unwrap(), None);
    dir.rmdir(b"other").unwrap();
    assert!(!mount.path("other").exists());
    assert!(dir.tags().unwrap().is_empty());
    assert_eq!(dir.audit_log(&mut |_| ()), Ok(()));
}

/// Programs that write through the buffers of a standard library send few requests: the layer
/// proposes large buffers. Directories propose what they do below.
fn buffered_writes(transport: Transport) {
    let mount = Mount::new(transport, "storage=sparse");
    let block_size = |path: &Path| fs::symlink_metadata(path).unwrap().blksize();
    assert_eq!(block_size(mount.dir()), block_size(&mount.lower));
    let lines = mount.sandbox.path("lines");
    sh("seq 1000000 1131071 > \"$1\"; seq 10 > \"$2\"", &[&lines, &mount.path("log")]);
    // A megabyte each, in short lines. The kernel sends each buffer as two requests: the bytes up
    // to the next page, and the others. glibc buffers 8 KiB at most.
    for (append, most) in [
        ("python3 -c 'f = open(\"'$2'\", \"ab\"); [f.write(line) for line in open(\"'$1'\", \"rb\")]'", 40),
        ("cut -c 1-7 \"$1\" >> \"$2\"", 270),
    ] {
        let sent = mount.mounted.during(|| drop(sh(append, &[&lines, &mount.path("log")]))).get("WRITE");
        assert!((1..=most).contains(&sent), "{sent} WRITEs: {append}");
    }
    let versions = contents(mount.dir(), "log");
    assert_eq!(versions.iter().map(Vec::len).collect::<Vec<_>>(), [21, 21 + (1 << 20)]);
    assert_eq!(fs::metadata(mount.path("log")).unwrap().len(), 21 + (2 << 20));
}

/// A mount of the past looks for names that the other server is about to create.
fn a_mount_of_the_past_sees_each_change_at_once(transport: Transport) {
    let mount = Mount::new(transport, "");
    let files: Vec<String> = (0..20).map(|number| format!("f{number}")).collect();
    for name in &files {
        fs::write(mount.path(name), name).unwrap();
    }
    // There is a store.
    fs::write(mount.path("f0"), "changed").unwrap();
    testkit::tick();
    let time = Moments::new(mount.dir()).time(0).to_owned();
    let past = Mounted::new(
        Spec::versions(&mount.lower, &format!("at={time},watch=off"), transport),
        &mount.sandbox.path("past"),
    );
    // Without reports, the names of the store would count for a while.
    for number in 0..20 {
        assert!(!past.path(format!("never{number}")).exists());
    }
    for name in &files[1..] {
        fs::remove_file(mount.path(name)).unwrap();
        assert_eq!(fs::read_to_string(past.path(name)).unwrap(), *name);
    }
}

/// The kernel truncates the file, then removes its capability, which the host has done.
fn a_program_with_a_capability_is_overwritten(transport: Transport) {
    /// `cap_net_raw` of revision 2, as setcap(8) writes it.
    const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mount = Mount::new(transport, "");
    let path = mount.path("program");
    for round in 0..3 {
        fs::write(&path, format!("old {round}")).unwrap();
        rustix::fs::setxattr(&path, "security.capability", &CAPABILITY, rustix::fs::XattrFlags::empty()).unwrap();
        fs::write(&path, format!("new {round}")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("new {round}"));
        let left = rustix::fs::getxattr(&path, "security.capability", &mut [0; 20]);
        assert_eq!(left, Err(Errno::NODATA));
    }
    assert_eq!(texts(mount.dir(), "program").first().map(String::as_str), Some("old 0"));
}

on_both_transports!(
    a_program_with_a_capability_is_overwritten,
    buffered_writes,
    client_crate,
    full_disk,
    room_on_a_full_disk,
    truncation_on_a_full_disk,
    failed_allocations,
    removed_backups,
    copies_of_the_lower_directory,
    holes_stay_holes,
    a_replacement_below_is_no_copy,
    links_made_below_keep_versions,
    killed,
    stacks,
    reading_old_versions,
    changing_old_versions,
    reserved_names,
    odd_files,
    shared_blocks,
    read_only_lower,
    damaged_stores,
    heads_changed_out_of_band,
    times_of_a_file_whose_known_name_went,
    a_mount_of_the_past_sees_each_change_at_once,
);
