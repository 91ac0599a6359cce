//! File handles (open_by_handle_at(2), NFS): a handle opens its object after the kernel has dropped
//! its caches, after a remount, and after renames and copy-up, and it never opens another object.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::fd::OwnedFd;
use rustix::fs::{Mode as Bits, OFlags, fstat, openat, readlinkat};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use strata_tests::crypt::Volume;
use strata_tests::handle::{Handle, drop_caches};
use strata_tests::process::sh;
use strata_tests::{Delete, Mode, Mounted, Sandbox, Spec, Transport, on_both_transports};

const REFER: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW);
const LIST: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// Handles of the objects of a tree, with the current paths of these objects.
struct HandleSet {
    top: PathBuf,
    handles: Vec<(PathBuf, Handle)>,
}

fn meta(path: &Path) -> Metadata {
    fs::symlink_metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

impl HandleSet {
    fn of(top: &Mounted) -> Self {
        let mut all = Self { top: top.dir().to_owned(), handles: Vec::new() };
        let mut dirs = vec![PathBuf::new()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(top.path(&dir)).unwrap() {
                let path = dir.join(entry.unwrap().file_name());
                all.handles.push((path.clone(), Handle::of(&top.path(&path))));
                if meta(&top.path(&path)).is_dir() {
                    dirs.push(path);
                }
            }
        }
        assert!(all.handles.len() > 4);
        all
    }

    fn mount(&self) -> OwnedFd {
        rustix::fs::open(&self.top, LIST, Bits::empty()).unwrap()
    }

    fn handle(&self, path: &str) -> &Handle {
        &self.handles.iter().find(|(at, _)| at == Path::new(path)).unwrap_or_else(|| panic!("{path}")).1
    }

    /// Records that the object at that path, with everything below it, was renamed.
    fn record_rename(&mut self, from: &str, to: &str) {
        for (path, _) in &mut self.handles {
            if let Ok(rest) = path.strip_prefix(from) {
                *path = if rest.as_os_str().is_empty() { to.into() } else { Path::new(to).join(rest) };
            }
        }
    }

    /// Opens all objects by handle, with cold caches, and compares them with those at their paths.
    fn check(&self) {
        drop_caches();
        let mount = self.mount();
        let opened: Vec<(&Path, OwnedFd)> = self
            .handles
            .iter()
            .map(|(path, handle)| {
                (path.as_path(), handle.open(&mount, REFER).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
            })
            .collect();
        for (path, fd) in &opened {
            self.compare(path, fd);
        }
        drop(opened);
        drop_caches();
        for (path, handle) in &self.handles {
            self.read(&mount, path, handle);
            self.list(&mount, path, handle);
        }
    }

    fn compare(&self, path: &Path, fd: &OwnedFd) {
        let (stat, meta) = (fstat(fd).unwrap(), meta(&self.top.join(path)));
        let found = (stat.st_ino, stat.st_mode, stat.st_nlink, stat.st_uid, stat.st_size as u64, stat.st_mtime);
        let wanted = (meta.ino(), meta.mode(), meta.nlink(), meta.uid(), meta.size(), meta.mtime());
        assert_eq!(found, wanted, "{}", path.display());
        if meta.is_symlink() {
            let target = readlinkat(fd, "", Vec::new()).unwrap();
            assert_eq!(target.as_bytes(), fs::read_link(self.top.join(path)).unwrap().as_os_str().as_encoded_bytes());
        }
    }

    fn read(&self, mount: &OwnedFd, path: &Path, handle: &Handle) {
        let at = self.top.join(path);
        if meta(&at).is_file() {
            let mut bytes = Vec::new();
            File::from(handle.open(mount, OFlags::RDONLY).unwrap()).read_to_end(&mut bytes).unwrap();
            assert!(bytes == fs::read(&at).unwrap(), "{}", path.display());
        }
    }

    fn list(&self, mount: &OwnedFd, path: &Path, handle: &Handle) {
        let at = self.top.join(path);
        if !meta(&at).is_dir() {
            return;
        }
        drop_caches();
        let fd = handle.open(mount, LIST).unwrap();
        let parent = meta(at.parent().unwrap()).ino();
        let mut names = BTreeSet::new();
        for entry in rustix::fs::Dir::read_from(&fd).unwrap() {
            let entry = entry.unwrap();
            match entry.file_name().to_bytes() {
                b"." => assert_eq!(entry.ino(), meta(&at).ino()),
                b".." => assert_eq!(entry.ino(), parent, ".. of {}", path.display()),
                name => assert!(names.insert(name.to_vec())),
            }
        }
        let wanted = fs::read_dir(&at).unwrap().map(|e| e.unwrap().file_name().into_encoded_bytes());
        assert_eq!(names, wanted.collect(), "{}", path.display());
        let above = openat(&fd, "..", REFER, Bits::empty()).unwrap();
        assert_eq!(fstat(&above).unwrap().st_ino, parent);
    }

    fn is_stale(&self, path: &str) {
        let found = self.handle(path).open(self.mount(), REFER);
        assert_eq!(found.err(), Some(Errno::STALE), "{path}");
    }

    /// Removes the handle of that path from the list.
    fn forget(&mut self, path: &str) {
        self.handles.retain(|(at, _)| at != Path::new(path));
    }
}

/// Creates objects of every kind.
fn fill(dir: &Path) {
    sh(
        "cd \"$1\"; mkdir -p d/e/f g; for i in $(seq 40); do echo $i > d/e/n$i; done; echo shared > d/one; ln d/one g/two
         ln d/one three; ln -s target g/s; mkfifo g/p; mknod g/c c 1 3; head -c 300000 /dev/urandom > g/large
         echo deep > d/e/f/deep; chown 1000:1000 d/e/n7",
        &[dir],
    );
}

/// Handles stay valid over changes through the mount.
fn handles_survive_changes(top: &mut Mounted) {
    let mut set = HandleSet::of(top);
    set.check();
    top.remount();
    set.check();
    // Change a file; a union copies it up.
    File::options().append(true).open(top.path("g/large")).unwrap().write_all(b"more").unwrap();
    sh("cd \"$1\"; chmod 700 d/e g; chown -h 7 g/s g/p d/one; truncate -s 0 d/e/n3", &[top.dir()]);
    set.check();
    // Rename files, within directories and across them, also those with several names, and
    // directories.
    sh("cd \"$1\"; mv d/e/n1 d/e/renamed; mv d/e/n2 g; mv d/e g/e; mv g d/g; ln d/g/n2 again", &[top.dir()]);
    set.record_rename("d/e/n1", "d/e/renamed");
    set.record_rename("d/e/n2", "g/n2");
    set.record_rename("d/e", "g/e");
    set.record_rename("g", "d/g");
    set.check();
    top.remount();
    set.check();
    sh("cd \"$1\"; mkdir -p d/e; echo new > d/e/n1; mv d/g/e/f/deep .; mv -T d/g/e/f last", &[top.dir()]);
    set.record_rename("d/g/e/f/deep", "deep");
    set.record_rename("d/g/e/f", "last");
    set.check();
    HandleSet::of(top).check();
    remove_some(top, &mut set);
    set.check();
    top.remount();
    set.check();
}

/// Handles of removed objects are stale, except those that are open.
fn remove_some(top: &Mounted, set: &mut HandleSet) {
    let removed = ["d/g/e/n5", "d/g/e/n6", "d/g/s", "d/g/p", "last"];
    let open = File::open(top.path("d/g/e/n5")).unwrap();
    sh("cd \"$1\"; rm d/g/e/n5 d/g/e/n6 d/g/s d/g/p; rmdir last; rm three", &[top.dir()]);
    drop_caches();
    let again = set.handle("d/g/e/n5").open(set.mount(), OFlags::RDONLY).unwrap();
    let mut text = String::new();
    File::from(again).read_to_string(&mut text).unwrap();
    assert_eq!(text, "5\n");
    drop(open);
    // The kernel releases a closed file asynchronously.
    drop_caches();
    std::thread::sleep(std::time::Duration::from_millis(100));
    drop_caches();
    removed.iter().for_each(|path| set.is_stale(path));
    removed.iter().for_each(|path| set.forget(path));
    // This file has two more names.
    set.forget("three");
}

fn ext4_and_tmpfs(sandbox: &Sandbox) -> [PathBuf; 2] {
    let disk = sandbox.ext4("disk", 64).join("branch");
    fs::create_dir(&disk).unwrap();
    [disk, sandbox.dir("memory")]
}

fn null_layers(transport: Transport) {
    let sandbox = Sandbox::new();
    for dir in ext4_and_tmpfs(&sandbox) {
        fill(&dir);
        let mut top = Mounted::new(Spec::wrap(&dir, transport), &sandbox.path("w"));
        handles_survive_changes(&mut top);
    }
}

fn unions(transport: Transport) {
    for (rw, delete) in [(0, Delete::Whiteout), (1, Delete::Whiteout), (0, Delete::All)] {
        let sandbox = Sandbox::new();
        let dirs = ext4_and_tmpfs(&sandbox);
        let ro = [&dirs[1 - rw], &dirs[rw]].map(|dir| dir.join("ro"));
        let rw = dirs[rw].join("rw");
        ro.iter().chain([&rw]).for_each(|dir| fs::create_dir(dir).unwrap());
        fill(&ro[0]);
        // On the rightmost branch, in a directory that is merged with those over it.
        sh(
            "cd \"$1\"; mkdir -p d/e/f far/away; echo low > d/e/low; echo hidden > d/one; echo f > far/away/f",
            &[&ro[1]],
        );
        let branches = vec![(rw, Mode::Rw), (ro[0].clone(), Mode::Ro), (ro[1].clone(), Mode::Ro)];
        let mut top = Mounted::new(Spec::Union { branches, delete, transport }, &sandbox.path("u"));
        handles_survive_changes(&mut top);
    }
}

/// Layers that encode names, ignore case, split directories, or store data in another format.
fn layers(transport: Transport) {
    for above in ["rot13 / ", "casefold / ", "usenetfs / ", "zstd / ", "rot13 / wrapfs / casefold / "] {
        let sandbox = Sandbox::new();
        let [disk, memory] = ext4_and_tmpfs(&sandbox);
        for dir in [disk, memory] {
            let mut top = Mounted::new(Spec::stack(above, &dir, transport), &sandbox.path("s"));
            fill(top.dir());
            handles_survive_changes(&mut top);
        }
    }
}

/// Encrypted names, with and without a state in each directory.
fn encrypted(transport: Transport) {
    for flags in [&[][..], &["-deterministic-names"], &["-plaintextnames"]] {
        let sandbox = Sandbox::new();
        for dir in ext4_and_tmpfs(&sandbox) {
            let volume = Volume::new(&dir.join("volume"), flags);
            let mut top = Mounted::new(volume.spec(transport), &sandbox.path("s"));
            fill(top.dir());
            handles_survive_changes(&mut top);
        }
    }
}

/// A union in a stack, over a branch that is a Strata mount: a FUSE mount supplies no
/// file handles to the server.
fn stacks(transport: Transport) {
    let sandbox = Sandbox::new();
    let [disk, memory] = ext4_and_tmpfs(&sandbox);
    fill(&memory);
    let below = Mounted::new(Spec::wrap(&memory, transport), &sandbox.path("below"));
    let words = format!("wrapfs / unionfs,dirs={}=rw:{}=ro", disk.display(), below.dir().display());
    let mut top = Mounted::new(Spec::Stack { words: words.into(), transport }, &sandbox.path("s"));
    handles_survive_changes(&mut top);
}

/// The entries of a managed directory are in its buckets.
fn managed_directories(transport: Transport) {
    let sandbox = Sandbox::new();
    for dir in ext4_and_tmpfs(&sandbox) {
        let mut top = Mounted::new(Spec::stack("usenetfs / ", &dir, transport), &sandbox.path("s"));
        sh(
            "cd \"$1\"; mkdir m other; chmod u+s m; for i in $(seq 100); do echo $i > m/$((i * 137)); done
             mkdir m/99999; echo x > m/99999/f; mv m/137 other; ln m/274 other/link",
            &[top.dir()],
        );
        let set = HandleSet::of(&top);
        set.check();
        top.remount();
        set.check();
    }
}

fn replicas(transport: Transport) {
    let sandbox = Sandbox::new();
    let [one, two] = ext4_and_tmpfs(&sandbox);
    fill(&one);
    sh("cp -a \"$1\"/. \"$2\"", &[&one, &two]);
    let words = format!("lbfs,dirs={}:{}", one.display(), two.display());
    let mut top = Mounted::new(Spec::Stack { words: words.into(), transport }, &sandbox.path("l"));
    let set = HandleSet::of(&top);
    set.check();
    top.remount();
    set.check();
}

/// A handle can name any object of the lower file system, of which the mount exposes a part.
fn handles_never_open_objects_outside_the_mount(transport: Transport) {
    let sandbox = Sandbox::new();
    let disk = sandbox.ext4("disk", 64);
    let part = disk.join("part");
    for dir in [&part, &disk.join("rest")] {
        fs::create_dir(dir).unwrap();
        fill(dir);
    }
    let whole = Mounted::new(Spec::wrap(&disk, transport), &sandbox.path("whole"));
    let narrow = Mounted::new(Spec::wrap(&part, transport), &sandbox.path("part"));
    let mount = rustix::fs::open(narrow.dir(), LIST, Bits::empty()).unwrap();
    let set = HandleSet::of(&whole);
    drop_caches();
    let mut inside = 0;
    for (path, handle) in &set.handles {
        let found = handle.open(&mount, REFER);
        if path.starts_with("part") && path.as_os_str() != "part" {
            assert_eq!(fstat(found.unwrap()).unwrap().st_ino, meta(&whole.path(path)).ino());
            inside += 1;
        } else {
            assert_eq!(found.err(), Some(Errno::STALE), "{}", path.display());
        }
    }
    assert!(inside > 40);
    // Node ids that a client invents.
    let any = &set.handles[0].1;
    for node in [0, 3, 8, 999_999, 1 << 47, 1 << 63, u64::MAX] {
        let found = any.with_node(node).open(&mount, REFER);
        assert_eq!(found.err(), Some(Errno::STALE), "{node:#x}");
    }
}

/// ext4 reuses the inode number of a removed file.
fn reused_inode_numbers_are_different_objects(transport: Transport) {
    let sandbox = Sandbox::new();
    let [disk, _] = ext4_and_tmpfs(&sandbox);
    let top = Mounted::new(Spec::wrap(&disk, transport), &sandbox.path("w"));
    let mut reused = 0;
    for i in 0..40 {
        let old = top.path(format!("old{i}"));
        fs::write(&old, "old").unwrap();
        let (handle, number) = (Handle::of(&old), meta(&old).ino());
        fs::remove_file(&old).unwrap();
        drop_caches();
        let new = top.path(format!("new{i}"));
        fs::write(&new, "new").unwrap();
        reused += usize::from(meta(&new).ino() == number);
        for _ in 0..2 {
            let mount = rustix::fs::open(top.dir(), LIST, Bits::empty()).unwrap();
            assert_eq!(handle.open(&mount, REFER).err(), Some(Errno::STALE));
            assert!(Handle::of(&new).open(&mount, REFER).is_ok());
            drop_caches();
        }
    }
    assert!(reused > 0, "ext4 reused no inode number");
}

/// With cold caches, opening 1,024 handles takes one request each, and no directory walk each.
fn opening_a_handle_costs_one_request(transport: Transport) {
    let sandbox = Sandbox::new();
    for dir in ext4_and_tmpfs(&sandbox) {
        sh("cd \"$1\"; mkdir d; cd d; for i in $(seq 1024); do echo $i > $i; done", &[&dir]);
        let top = Mounted::new(Spec::wrap(&dir, transport), &sandbox.path("w"));
        let mut set = HandleSet::of(&top);
        set.forget("d");
        drop_caches();
        let mount = set.mount();
        let began = std::time::Instant::now();
        let sent = top.during(|| {
            for (path, handle) in &set.handles {
                handle.open(&mount, REFER).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            }
        });
        eprintln!("{}: 1,024 handles in {:?}", dir.display(), began.elapsed());
        assert_eq!(sent.get("LOOKUP"), 1024, "{sent:?}");
        assert!(began.elapsed().as_secs() < 60);
    }
}

on_both_transports! {
    null_layers, unions, layers,
    encrypted, stacks, managed_directories, replicas, handles_never_open_objects_outside_the_mount,
    reused_inode_numbers_are_different_objects, opening_a_handle_costs_one_request
}
