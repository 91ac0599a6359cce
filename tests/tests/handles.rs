//! File handles (open_by_handle_at(2), NFS): they lead to their objects after the kernel has forgotten
//! these, after a remount, and whatever has become of them; and to nothing else.

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
use strata_tests::handle::{Handle, drop_caches};
use strata_tests::process::sh;
use strata_tests::{Delete, Mode, Mounted, Sandbox, Spec, Transport, on_both_transports};

const REFER: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW);
const LIST: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// The handles of a tree, with the paths that the objects had.
struct Shelf {
    top: PathBuf,
    handles: Vec<(PathBuf, Handle)>,
}

fn meta(path: &Path) -> Metadata {
    fs::symlink_metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

impl Shelf {
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

    /// The object of that path is at another one now, with all that is in it.
    fn moved(&mut self, from: &str, to: &str) {
        for (path, _) in &mut self.handles {
            if let Ok(rest) = path.strip_prefix(from) {
                *path = if rest.as_os_str().is_empty() { to.into() } else { Path::new(to).join(rest) };
            }
        }
    }

    /// Opens all by their handles, with nothing in the caches, then compares with what their paths show.
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

    /// Forgets the handle of that path.
    fn forget(&mut self, path: &str) {
        self.handles.retain(|(at, _)| at != Path::new(path));
    }
}

/// Some of everything.
fn fill(dir: &Path) {
    sh(
        "cd \"$1\"; mkdir -p d/e/f g; for i in $(seq 40); do echo $i > d/e/n$i; done; echo shared > d/one; ln d/one g/two
         ln d/one three; ln -s target g/s; mkfifo g/p; mknod g/c c 1 3; head -c 300000 /dev/urandom > g/large
         echo deep > d/e/f/deep; chown 1000:1000 d/e/n7",
        &[dir],
    );
}

/// Handles are kept over everything that changes through the mount.
fn live_through_changes(top: &mut Mounted) {
    let mut shelf = Shelf::of(top);
    shelf.check();
    top.remount();
    shelf.check();
    // Changed: in a union, copied up.
    File::options().append(true).open(top.path("g/large")).unwrap().write_all(b"more").unwrap();
    sh("cd \"$1\"; chmod 700 d/e g; chown -h 7 g/s g/p d/one; truncate -s 0 d/e/n3", &[top.dir()]);
    shelf.check();
    // Renamed, in directories and across them, with other names; directories, too.
    sh("cd \"$1\"; mv d/e/n1 d/e/renamed; mv d/e/n2 g; mv d/e g/e; mv g d/g; ln d/g/n2 again", &[top.dir()]);
    shelf.moved("d/e/n1", "d/e/renamed");
    shelf.moved("d/e/n2", "g/n2");
    shelf.moved("d/e", "g/e");
    shelf.moved("g", "d/g");
    shelf.check();
    top.remount();
    shelf.check();
    sh("cd \"$1\"; mkdir -p d/e; echo new > d/e/n1; mv d/g/e/f/deep .; mv -T d/g/e/f last", &[top.dir()]);
    shelf.moved("d/g/e/f/deep", "deep");
    shelf.moved("d/g/e/f", "last");
    shelf.check();
    Shelf::of(top).check();
    remove_some(top, &mut shelf);
    shelf.check();
    top.remount();
    shelf.check();
}

/// What was removed is stale, unless it is open.
fn remove_some(top: &Mounted, shelf: &mut Shelf) {
    let removed = ["d/g/e/n5", "d/g/e/n6", "d/g/s", "d/g/p", "last"];
    let open = File::open(top.path("d/g/e/n5")).unwrap();
    sh("cd \"$1\"; rm d/g/e/n5 d/g/e/n6 d/g/s d/g/p; rmdir last; rm three", &[top.dir()]);
    drop_caches();
    let again = shelf.handle("d/g/e/n5").open(shelf.mount(), OFlags::RDONLY).unwrap();
    let mut text = String::new();
    File::from(again).read_to_string(&mut text).unwrap();
    assert_eq!(text, "5\n");
    drop(open);
    // The kernel lets an open file go in its own time.
    drop_caches();
    std::thread::sleep(std::time::Duration::from_millis(100));
    drop_caches();
    removed.iter().for_each(|path| shelf.is_stale(path));
    removed.iter().for_each(|path| shelf.forget(path));
    // One of three names.
    shelf.forget("three");
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
        live_through_changes(&mut top);
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
        // The rightmost merges with what lies over it.
        sh(
            "cd \"$1\"; mkdir -p d/e/f far/away; echo low > d/e/low; echo hidden > d/one; echo f > far/away/f",
            &[&ro[1]],
        );
        let branches = vec![(rw, Mode::Rw), (ro[0].clone(), Mode::Ro), (ro[1].clone(), Mode::Ro)];
        let mut top = Mounted::new(Spec::Union { branches, delete, transport }, &sandbox.path("u"));
        live_through_changes(&mut top);
    }
}

/// Names are encoded, case is ignored, directories are split, data is stored in another form.
fn layers(transport: Transport) {
    for above in ["rot13 / ", "casefold / ", "usenetfs / ", "zstd / ", "rot13 / wrapfs / casefold / "] {
        let sandbox = Sandbox::new();
        let [disk, memory] = ext4_and_tmpfs(&sandbox);
        for dir in [disk, memory] {
            let mut top = Mounted::new(Spec::stack(above, &dir, transport), &sandbox.path("s"));
            fill(top.dir());
            live_through_changes(&mut top);
        }
    }
}

/// A union in a stack, over a branch that is a mount of ours: FUSE below gives no handles.
fn stacks(transport: Transport) {
    let sandbox = Sandbox::new();
    let [disk, memory] = ext4_and_tmpfs(&sandbox);
    fill(&memory);
    let below = Mounted::new(Spec::wrap(&memory, transport), &sandbox.path("below"));
    let words = format!("wrapfs / unionfs,dirs={}=rw:{}=ro", disk.display(), below.dir().display());
    let mut top = Mounted::new(Spec::Stack { words: words.into(), transport }, &sandbox.path("s"));
    live_through_changes(&mut top);
}

/// Buckets hold the entries of a managed directory.
fn managed_directories(transport: Transport) {
    let sandbox = Sandbox::new();
    for dir in ext4_and_tmpfs(&sandbox) {
        let mut top = Mounted::new(Spec::stack("usenetfs / ", &dir, transport), &sandbox.path("s"));
        sh(
            "cd \"$1\"; mkdir m other; chmod u+s m; for i in $(seq 100); do echo $i > m/$((i * 137)); done
             mkdir m/99999; echo x > m/99999/f; mv m/137 other; ln m/274 other/link",
            &[top.dir()],
        );
        let shelf = Shelf::of(&top);
        shelf.check();
        top.remount();
        shelf.check();
    }
}

fn replicas(transport: Transport) {
    let sandbox = Sandbox::new();
    let [one, two] = ext4_and_tmpfs(&sandbox);
    fill(&one);
    sh("cp -a \"$1\"/. \"$2\"", &[&one, &two]);
    let words = format!("lbfs,dirs={}:{}", one.display(), two.display());
    let mut top = Mounted::new(Spec::Stack { words: words.into(), transport }, &sandbox.path("l"));
    let shelf = Shelf::of(&top);
    shelf.check();
    top.remount();
    shelf.check();
}

/// A handle names an object of the file system below, of which the mount shows a part.
fn handles_lead_nowhere_else(transport: Transport) {
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
    let shelf = Shelf::of(&whole);
    drop_caches();
    let mut inside = 0;
    for (path, handle) in &shelf.handles {
        let found = handle.open(&mount, REFER);
        if path.starts_with("part") && path.as_os_str() != "part" {
            assert_eq!(fstat(found.unwrap()).unwrap().st_ino, meta(&whole.path(path)).ino());
            inside += 1;
        } else {
            assert_eq!(found.err(), Some(Errno::STALE), "{}", path.display());
        }
    }
    assert!(inside > 40);
    // Numbers that a client makes up.
    let any = &shelf.handles[0].1;
    for node in [0, 3, 8, 999_999, 1 << 47, 1 << 63, u64::MAX] {
        let found = any.with_node(node).open(&mount, REFER);
        assert_eq!(found.err(), Some(Errno::STALE), "{node:#x}");
    }
}

/// ext4 gives the inode number of a removed file to the next one.
fn reused_numbers_are_other_objects(transport: Transport) {
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
    assert!(reused > 0, "no number was given twice");
}

/// 1,024 handles after the caches were dropped: each is one request, and no walk for each.
fn a_thousand_handles(transport: Transport) {
    let sandbox = Sandbox::new();
    for dir in ext4_and_tmpfs(&sandbox) {
        sh("cd \"$1\"; mkdir d; cd d; for i in $(seq 1024); do echo $i > $i; done", &[&dir]);
        let top = Mounted::new(Spec::wrap(&dir, transport), &sandbox.path("w"));
        let mut shelf = Shelf::of(&top);
        shelf.forget("d");
        drop_caches();
        let mount = shelf.mount();
        let began = std::time::Instant::now();
        let asked = top.during(|| {
            for (path, handle) in &shelf.handles {
                handle.open(&mount, REFER).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            }
        });
        eprintln!("{}: 1,024 handles in {:?}", dir.display(), began.elapsed());
        assert_eq!(asked.get("LOOKUP"), 1024, "{asked:?}");
        assert!(began.elapsed().as_secs() < 20);
    }
}

on_both_transports! {
    null_layers, unions, layers, stacks, managed_directories, replicas, handles_lead_nowhere_else,
    reused_numbers_are_other_objects, a_thousand_handles
}
