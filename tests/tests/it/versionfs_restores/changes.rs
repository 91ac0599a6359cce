//! Changes of a tree as programs and users make them, drawn at random.

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use strata_tests::Rng;
use strata_tests::mapping::Mapping;
use strata_tests::process;

/// Few names, so that changes meet. The last ones have stems of another form in the store.
const NAMES: [&str; 11] = ["a", "b", "c", "d", "e", "f", "q", "b~", "with space", "f;f8", LONG];

/// A name whose stem in the store is a hash.
pub(super) const LONG: &str = match str::from_utf8(&[b'l'; 240]) {
    Ok(text) => text,
    Err(_) => "",
};

/// Lengths of contents: around blocks, and of several.
const LENGTHS: [usize; 9] = [0, 1, 100, 4095, 4096, 5000, 20_000, 70_000, 200_000];

/// Deepest directory in which something is created.
const DEPTH: usize = 4;

/// Entries of the tree from which on nothing is added.
const MANY: usize = 60;

/// An entry of the tree.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) path: String,
    pub(super) kind: Kind,
    pub(super) links: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Dir,
    Other,
}

/// Lists the tree at `root`.
pub(super) fn entries(root: &Path) -> io::Result<Vec<Entry>> {
    let mut all = vec![Entry { path: String::new(), kind: Kind::Dir, links: 1 }];
    let mut at = 0;
    while let Some(dir) = all.get(at).cloned() {
        at += 1;
        if dir.kind != Kind::Dir {
            continue;
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(root.join(&dir.path))? {
            names.push(entry?.file_name().into_string().expect("a name of this test"));
        }
        // The order of a listing differs from run to run.
        names.sort();
        for name in names {
            let path = join(&dir.path, &name);
            let found = fs::symlink_metadata(root.join(&path))?;
            let kind = match found.file_type() {
                kind if kind.is_file() => Kind::File,
                kind if kind.is_dir() => Kind::Dir,
                _ => Kind::Other,
            };
            all.push(Entry { path, kind, links: found.nlink() });
        }
    }
    Ok(all)
}

fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}

/// Whether `path` is `above` or below it.
pub(super) fn is_below(path: &str, above: &str) -> bool {
    above.is_empty() || path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

type Act = Box<dyn FnOnce(&Path) -> io::Result<()>>;

/// A change of the tree.
pub(super) struct Change {
    pub(super) kind: &'static str,
    /// The paths that it concerns.
    pub(super) paths: Vec<String>,
    /// More about it.
    pub(super) text: String,
    act: Act,
}

impl Change {
    fn new(
        kind: &'static str,
        paths: &[&str],
        text: impl Into<String>,
        act: impl FnOnce(&Path) -> io::Result<()> + 'static,
    ) -> Self {
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        Self { kind, paths, text: text.into(), act: Box::new(act) }
    }

    /// Makes the change in the tree at `root`.
    pub(super) fn run(self, root: &Path) -> io::Result<()> {
        (self.act)(root)
    }
}

/// What changes are drawn from.
pub(super) struct Draw<'a> {
    pub(super) rng: &'a mut Rng,
    pub(super) all: &'a [Entry],
    /// A number that grows.
    pub(super) step: u64,
    /// Whether the server may be killed: a page of a mapping could not be read then. Nor do names
    /// of special files get new ones, which a kill may show in the past of before.
    pub(super) is_safe: bool,
}

type Drawn = Option<Change>;

/// Draws a change of a kind.
type Drawer<'a> = fn(&mut Draw<'a>) -> Drawn;

impl<'a> Draw<'a> {
    /// The kinds of changes, and how often each is drawn.
    const KINDS: [(u64, Drawer<'a>); 36] = [
        (8, Self::create),
        (4, Self::append),
        (4, Self::write),
        (4, Self::truncate),
        (4, Self::rewrite),
        (2, Self::rewrite_same),
        (2, Self::empty),
        (2, Self::store),
        (2, Self::copy_range),
        (2, Self::punch),
        (6, Self::link),
        (4, Self::force_link),
        (4, Self::rename),
        (4, Self::replace),
        (3, Self::exchange),
        (4, Self::rename_dir),
        (1, Self::replace_dir),
        (5, Self::remove),
        (3, Self::remove_tree),
        (1, Self::rmdir),
        (4, Self::mkdir),
        (2, Self::symlink),
        (1, Self::fifo),
        (3, Self::save_rename),
        (3, Self::save_link),
        (3, Self::save_move),
        (3, Self::chmod),
        (2, Self::chown),
        (2, Self::utimes),
        (2, Self::set_xattr),
        (1, Self::remove_xattr),
        (2, Self::tmpfile),
        (2, Self::copy_tree),
        (2, Self::copy_links),
        (2, Self::there_and_back),
        (2, Self::recreate),
    ];

    /// Draws a change.
    pub(super) fn change(&mut self) -> Change {
        let sum: u64 = Self::KINDS.iter().map(|(weight, _)| weight).sum();
        loop {
            let mut left = self.rng.below(sum);
            let is_drawn = |(weight, _): &&(u64, _)| {
                let is_it = left < *weight;
                left = left.saturating_sub(*weight);
                is_it
            };
            let (_, draw) = Self::KINDS.iter().find(is_drawn).expect("a number below the sum");
            if let Some(change) = draw(self) {
                return change;
            }
        }
    }

    fn one(&mut self, is_wanted: impl Fn(&Entry) -> bool) -> Option<String> {
        let all: Vec<_> = self.all.iter().filter(|entry| !entry.path.is_empty() && is_wanted(entry)).collect();
        if all.is_empty() { None } else { Some(all[self.rng.below(all.len())].path.clone()) }
    }

    /// A file; each second time one with several names, if there is one.
    pub(super) fn file(&mut self) -> Option<String> {
        let linked = if self.rng.one_in(2) { self.one(|one| one.kind == Kind::File && one.links > 1) } else { None };
        linked.or_else(|| self.one(|one| one.kind == Kind::File))
    }

    /// A file that an editor saves: no backup.
    fn saved(&mut self) -> Option<String> {
        self.file().filter(|path| !path.ends_with(['~', 'k', 'w']))
    }

    /// A name that is no directory.
    pub(super) fn name(&mut self) -> Option<String> {
        if self.rng.one_in(4) && !self.is_safe { self.one(|one| one.kind != Kind::Dir) } else { self.file() }
    }

    pub(super) fn dir(&mut self) -> Option<String> {
        self.one(|one| one.kind == Kind::Dir)
    }

    /// A path that is free.
    pub(super) fn free(&mut self) -> Option<String> {
        if self.all.len() > MANY {
            return None;
        }
        let dirs: Vec<_> = self.all.iter().filter(|entry| entry.kind == Kind::Dir).collect();
        let dir = &dirs[self.rng.below(dirs.len())].path;
        let path = join(dir, self.rng.pick(&NAMES[..]));
        let is_free = dir.split('/').count() <= DEPTH && self.all.iter().all(|entry| entry.path != path);
        is_free.then_some(path)
    }

    /// A content of lines, of random bytes, or with a hole.
    fn content(&mut self) -> Vec<u8> {
        let len = self.rng.pick(&LENGTHS[..]);
        match self.rng.below(3) {
            0 => self.rng.bytes(len),
            1 => {
                let line = format!("a line of {}\n", self.rng.below(10));
                line.bytes().cycle().take(len).collect()
            }
            _ => {
                let mut bytes = self.rng.bytes(len);
                let start = bytes.len() / 4;
                bytes.iter_mut().skip(start).take(len / 2).for_each(|byte| *byte = 0);
                bytes
            }
        }
    }

    fn create(&mut self) -> Drawn {
        let (path, content) = (self.free()?, self.content());
        let hole = if self.rng.one_in(6) { 300_000 } else { 0 };
        let text = format!("{} bytes at {hole}", content.len());
        Some(Change::new("create", &[&path.clone()], text, move |root| {
            let file = File::create_new(root.join(path))?;
            file.write_all_at(&content, hole)
        }))
    }

    fn append(&mut self) -> Drawn {
        let (path, content) = (self.file()?, self.content());
        Some(Change::new("append", &[&path.clone()], format!("{} bytes", content.len()), move |root| {
            File::options().append(true).open(root.join(path))?.write_all(&content)
        }))
    }

    fn write(&mut self) -> Drawn {
        let (path, content) = (self.file()?, self.content());
        let offset = self.rng.below(10_000_u64);
        let text = format!("{} bytes at {offset}", content.len());
        Some(Change::new("write", &[&path.clone()], text, move |root| {
            File::options().write(true).open(root.join(path))?.write_all_at(&content, offset)
        }))
    }

    fn truncate(&mut self) -> Drawn {
        let (path, len) = (self.file()?, self.rng.pick(&LENGTHS[..]) as u64);
        Some(Change::new("truncate", &[&path.clone()], format!("to {len}"), move |root| {
            File::options().write(true).open(root.join(path))?.set_len(len)
        }))
    }

    fn rewrite(&mut self) -> Drawn {
        let (path, content) = (self.file()?, self.content());
        Some(Change::new("rewrite", &[&path.clone()], format!("{} bytes", content.len()), move |root| {
            fs::write(root.join(path), content)
        }))
    }

    fn rewrite_same(&mut self) -> Drawn {
        let path = self.file()?;
        Some(Change::new("rewrite same", &[&path.clone()], "", move |root| {
            let content = fs::read(root.join(&path))?;
            fs::write(root.join(path), content)
        }))
    }

    fn empty(&mut self) -> Drawn {
        let path = self.file()?;
        Some(Change::new("empty", &[&path.clone()], "", move |root| fs::write(root.join(path), "")))
    }

    fn store(&mut self) -> Drawn {
        let (path, at) = (self.file().filter(|_| !self.is_safe)?, self.rng.below(100_000_u64));
        Some(Change::new("store", &[&path.clone()], format!("at {at} of its length"), move |root| {
            let file = File::options().read(true).write(true).open(root.join(path))?;
            let len = usize::try_from(file.metadata()?.len()).expect("a small file");
            if len == 0 {
                return Ok(());
            }
            let mut mapping = Mapping::new(&file, len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)?;
            drop(file);
            let at = usize::try_from(at).expect("a small number") % len;
            mapping.write(at, &b"stored"[..6.min(len - at)]);
            Ok(mapping.sync()?)
        }))
    }

    fn copy_range(&mut self) -> Drawn {
        let (from, to) = (self.file()?, self.file()?);
        if from == to {
            return None;
        }
        let (len, at) = (self.rng.pick(&LENGTHS[..]), self.rng.below(20_000_u64));
        Some(Change::new("copy_file_range", &[&from.clone(), &to.clone()], format!("{len} to {at}"), move |root| {
            let (from, to) = (File::open(root.join(from))?, File::options().write(true).open(root.join(to))?);
            let (mut start, mut at) = (0, at);
            match rustix::fs::copy_file_range(&from, Some(&mut start), &to, Some(&mut at), len) {
                // Two names of one file, and ranges that overlap.
                Err(rustix::io::Errno::INVAL) => Ok(()),
                copied => Ok(copied.map(drop)?),
            }
        }))
    }

    fn punch(&mut self) -> Drawn {
        let (path, at) = (self.file()?, self.rng.below(20_000_u64));
        Some(Change::new("punch hole", &[&path.clone()], format!("at {at}"), move |root| {
            let file = File::options().write(true).open(root.join(path))?;
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Behind the end, the time would change without a version.
            let at = at % file.metadata()?.len().max(1);
            Ok(rustix::fs::fallocate(&file, flags, at, 9000)?)
        }))
    }

    fn link(&mut self) -> Drawn {
        let (from, to) = (self.name()?, self.free()?);
        Some(Change::new("link", &[&from.clone(), &to.clone()], "", move |root| {
            fs::hard_link(root.join(from), root.join(to))
        }))
    }

    fn force_link(&mut self) -> Drawn {
        let (from, to) = (self.name()?, self.name()?);
        Some(Change::new("ln -f", &[&from.clone(), &to.clone()], "", move |root| {
            command(Command::new("ln").args(["-fTP", "--"]).args([root.join(from), root.join(to)]))
        }))
    }

    fn rename(&mut self) -> Drawn {
        let (from, to) = (self.name()?, self.free()?);
        Some(renamed("rename", from, to))
    }

    fn replace(&mut self) -> Drawn {
        let (from, to) = (self.name()?, self.name()?);
        Some(renamed("rename over", from, to))
    }

    fn exchange(&mut self) -> Drawn {
        let (one, other) = (self.one(|_| true)?, self.one(|_| true)?);
        if is_below(&one, &other) || is_below(&other, &one) {
            return None;
        }
        Some(Change::new("exchange", &[&one.clone(), &other.clone()], "", move |root| {
            Ok(rustix::fs::renameat_with(CWD, root.join(one), CWD, root.join(other), RenameFlags::EXCHANGE)?)
        }))
    }

    fn rename_dir(&mut self) -> Drawn {
        let (from, to) = (self.dir()?, self.free()?);
        if is_below(&to, &from) { None } else { Some(renamed("rename dir", from, to)) }
    }

    fn replace_dir(&mut self) -> Drawn {
        let (from, to) = (self.dir()?, self.free()?);
        if is_below(&to, &from) {
            return None;
        }
        Some(Change::new("rename dir over", &[&from.clone(), &to.clone()], "", move |root| {
            fs::create_dir(root.join(&to))?;
            fs::rename(root.join(from), root.join(to))
        }))
    }

    fn remove(&mut self) -> Drawn {
        let path = self.name()?;
        Some(Change::new("rm", &[&path.clone()], "", move |root| fs::remove_file(root.join(path))))
    }

    fn remove_tree(&mut self) -> Drawn {
        let path = self.dir()?;
        Some(Change::new("rm -r", &[&path.clone()], "", move |root| remove_tree(&root.join(path))))
    }

    fn rmdir(&mut self) -> Drawn {
        let all = self.all;
        let path = self.one(|one| one.kind == Kind::Dir && !all.iter().any(|other| is_in(&other.path, &one.path)))?;
        Some(Change::new("rmdir", &[&path.clone()], "", move |root| fs::remove_dir(root.join(path))))
    }

    fn mkdir(&mut self) -> Drawn {
        let path = self.free()?;
        Some(Change::new("mkdir", &[&path.clone()], "", move |root| fs::create_dir(root.join(path))))
    }

    fn symlink(&mut self) -> Drawn {
        let (path, target) = (self.free()?, self.rng.pick(&NAMES[..5]));
        Some(Change::new("symlink", &[&path.clone()], target, move |root| symlink(target, root.join(path))))
    }

    fn fifo(&mut self) -> Drawn {
        let path = self.free()?;
        Some(Change::new("mkfifo", &[&path.clone()], "", move |root| {
            let mode = Mode::RUSR | Mode::WUSR;
            Ok(rustix::fs::mknodat(CWD, root.join(path), rustix::fs::FileType::Fifo, mode, 0)?)
        }))
    }

    /// As editors save: a new file takes the name.
    fn save_rename(&mut self) -> Drawn {
        let (path, content) = (self.saved()?, self.content());
        let new = format!("{path}.new");
        Some(Change::new("save by rename", &[&path.clone(), &new.clone()], "", move |root| {
            fs::write(root.join(&new), content)?;
            fs::rename(root.join(new), root.join(path))
        }))
    }

    /// The same, with a link to the old file as the backup.
    fn save_link(&mut self) -> Drawn {
        let (path, content) = (self.saved()?, self.content());
        let [new, backup] = ["new", "bak"].map(|end| format!("{path}.{end}"));
        let text = format!("{} bytes", content.len());
        Some(Change::new("save with link", &[&path.clone(), &backup.clone()], text, move |root| {
            match fs::remove_file(root.join(&backup)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => done?,
            }
            fs::hard_link(root.join(&path), root.join(backup))?;
            fs::write(root.join(&new), content)?;
            fs::rename(root.join(new), root.join(path))
        }))
    }

    /// The same; the old file is renamed to the backup first.
    fn save_move(&mut self) -> Drawn {
        let (path, content) = (self.saved()?, self.content());
        let backup = format!("{path}~");
        let text = format!("{} bytes", content.len());
        Some(Change::new("save with backup", &[&path.clone(), &backup.clone()], text, move |root| {
            fs::rename(root.join(&path), root.join(backup))?;
            fs::write(root.join(path), content)
        }))
    }

    fn chmod(&mut self) -> Drawn {
        let (path, mode) = (self.one(|one| one.kind != Kind::Other)?, self.rng.pick(&[0o600, 0o644, 0o751, 0o777]));
        Some(Change::new("chmod", &[&path.clone()], format!("{mode:o}"), move |root| {
            fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode))
        }))
    }

    fn chown(&mut self) -> Drawn {
        let (path, id) = (self.one(|_| true)?, self.rng.pick(&[0, 1000, 1001]));
        Some(Change::new("chown", &[&path.clone()], id.to_string(), move |root| {
            std::os::unix::fs::lchown(root.join(path), Some(id), Some(id))
        }))
    }

    fn utimes(&mut self) -> Drawn {
        let (path, time) = (self.one(|_| true)?, 1_900_000_000 + self.step);
        Some(Change::new("utimes", &[&path.clone()], time.to_string(), move |root| {
            let time = Timespec { tv_sec: time.cast_signed(), tv_nsec: 5 };
            let times = Timestamps { last_access: time, last_modification: time };
            Ok(rustix::fs::utimensat(CWD, root.join(path), &times, AtFlags::SYMLINK_NOFOLLOW)?)
        }))
    }

    fn set_xattr(&mut self) -> Drawn {
        let (path, name) = (self.file()?, self.rng.pick(&["user.one", "user.two"]));
        let value = self.content();
        let value = value[..value.len().min(200)].to_vec();
        Some(Change::new("setxattr", &[&path.clone()], format!("{name}, {} bytes", value.len()), move |root| {
            Ok(rustix::fs::setxattr(root.join(path), name, &value, XattrFlags::empty())?)
        }))
    }

    fn remove_xattr(&mut self) -> Drawn {
        let (path, name) = (self.file()?, self.rng.pick(&["user.one", "user.two"]));
        Some(Change::new("removexattr", &[&path.clone()], name, move |root| {
            match rustix::fs::removexattr(root.join(path), name) {
                Err(rustix::io::Errno::NODATA) => Ok(()),
                done => Ok(done?),
            }
        }))
    }

    fn tmpfile(&mut self) -> Drawn {
        let (path, content) = (self.free()?, self.content());
        Some(Change::new("O_TMPFILE", &[&path.clone()], format!("{} bytes", content.len()), move |root| {
            let path = root.join(path);
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            let file =
                File::from(rustix::fs::open(path.parent().expect("a directory"), flags, Mode::RUSR | Mode::WUSR)?);
            (&file).write_all(&content)?;
            let from = format!("/proc/self/fd/{}", file.as_raw_fd());
            Ok(rustix::fs::linkat(CWD, from, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
        }))
    }

    fn copy(&mut self, kind: &'static str, flags: &'static str) -> Drawn {
        let (from, to) = (self.dir()?, self.free()?);
        let count = self.all.iter().filter(|entry| is_below(&entry.path, &from)).count();
        if is_below(&to, &from) || self.all.len() + count > MANY {
            return None;
        }
        Some(Change::new(kind, &[&from.clone(), &to.clone()], "", move |root| {
            command(Command::new("cp").args([flags, "-T", "--"]).args([root.join(from), root.join(to)]))
        }))
    }

    fn copy_tree(&mut self) -> Drawn {
        self.copy("cp -a", "-a")
    }

    fn copy_links(&mut self) -> Drawn {
        self.copy("cp -al", "-al")
    }

    fn there_and_back(&mut self) -> Drawn {
        let (path, other) = (self.one(|_| true)?, self.free()?);
        if is_below(&other, &path) {
            return None;
        }
        Some(Change::new("there and back", &[&path.clone(), &other.clone()], "", move |root| {
            fs::rename(root.join(&path), root.join(&other))?;
            fs::rename(root.join(other), root.join(path))
        }))
    }

    fn recreate(&mut self) -> Drawn {
        let (path, content) = (self.file()?, self.content());
        Some(Change::new("recreate", &[&path.clone()], format!("{} bytes", content.len()), move |root| {
            fs::remove_file(root.join(&path))?;
            fs::write(root.join(path), content)
        }))
    }
}

fn is_in(path: &str, dir: &str) -> bool {
    path != dir && is_below(path, dir)
}

fn renamed(kind: &'static str, from: String, to: String) -> Change {
    Change::new(kind, &[&from.clone(), &to.clone()], "", move |root| fs::rename(root.join(from), root.join(to)))
}

/// Removes a tree by a process that leads a session of its own, as a user's shell would have it:
/// what this test removed before is no part of the removal.
pub(super) fn remove_tree(path: &Path) -> io::Result<()> {
    command(Command::new("setsid").args(["--wait", "rm", "-r", "--"]).arg(path))
}

/// Runs a program that should succeed.
fn command(command: &mut Command) -> io::Result<()> {
    let output = process::try_run(command);
    if output.status.success() { Ok(()) } else { Err(io::Error::other(output.text)) }
}
