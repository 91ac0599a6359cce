//! The history that versionfs keeps, read through a mount: the versions of a name, and the whole
//! tree as it was at recorded moments.

use crate::tree::{self, Tree};
use rustix::fs::FileType;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A version of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its number.
    pub number: u64,
    /// How it is stored.
    pub letter: char,
    /// Type of the object, as a word.
    pub kind: String,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// The operation that ended it.
    pub operation: String,
}

/// Sends a command to a directory of the mount and returns the reply.
///
/// # Errors
/// The errno of the layer, or of opening the directory.
pub fn command(dir: &Path, command: &str, input: &str) -> io::Result<String> {
    let reply = fuse::control::call(File::open(dir)?, command, input.as_bytes()).map_err(|e| match e {
        fuse::control::Error::Refused(errno) => io::Error::from_raw_os_error(errno.raw_os_error()),
        other => io::Error::other(other.to_string()),
    })?;
    Ok(String::from_utf8(reply).expect("an escaped reply"))
}

/// Returns a name as it is written in commands.
#[must_use]
pub fn escaped(name: &str) -> String {
    let escape = |c: char| match c {
        '\0'..=' ' | '\x7f' | '\\' => format!("\\{:03o}", u32::from(c)),
        _ => c.to_string(),
    };
    name.chars().map(escape).collect()
}

/// Returns the versions of a name, oldest first; none if it has neither versions nor a head.
#[must_use]
pub fn list(dir: &Path, name: &str) -> Vec<Version> {
    let (mut all, mut from) = (Vec::new(), Some(1));
    while let Some(number) = from.take() {
        let reply = match command(dir, "versionfs.list", &format!("{} {number}", escaped(name))) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return all,
            reply => reply.unwrap_or_else(|e| panic!("versionfs.list {name}: {e}")),
        };
        for line in reply.lines().skip(1) {
            let fields: Vec<&str> = line.split(' ').collect();
            if let ["more", number] = fields[..] {
                from = number.parse().ok();
                continue;
            }
            all.push(Version {
                number: fields[0].parse().expect("a number"),
                letter: fields[1].chars().next().expect("a letter"),
                kind: fields[2].to_owned(),
                size: fields[3].parse().expect("a size"),
                mode: u32::from_str_radix(fields[5], 8).expect("a mode"),
                uid: fields[6].parse().expect("an owner"),
                operation: fields[11].to_owned(),
            });
        }
    }
    all
}

/// Returns a path by which a version can be opened within 10 seconds.
///
/// # Errors
/// The errno of the layer.
pub fn path_of(dir: &Path, name: &str, number: u64) -> io::Result<PathBuf> {
    let token = command(dir, "versionfs.open", &format!("{} {number}", escaped(name)))?;
    Ok(dir.join(token.trim_end()))
}

/// Returns the bytes of a version.
///
/// # Errors
/// The errno of the layer, of opening or of reading.
pub fn read(dir: &Path, name: &str, number: u64) -> io::Result<Vec<u8>> {
    fs::read(path_of(dir, name, number)?)
}

/// Returns the bytes of all versions that are regular files and not references to another name,
/// oldest first. Panics if one can't be read.
#[must_use]
pub fn contents(dir: &Path, name: &str) -> Vec<Vec<u8>> {
    let files = list(dir, name).into_iter().filter(|v| v.kind == "file" && v.letter != 'r');
    files.map(|v| read(dir, name, v.number).unwrap_or_else(|e| panic!("{name} {v:?}: {e}"))).collect()
}

/// Like [`contents`], while versions are being discarded, as on a full disk: without those that are
/// gone by the time they are read.
#[must_use]
pub fn contents_left(dir: &Path, name: &str) -> Vec<Vec<u8>> {
    let is_listed = |number| list(dir, name).iter().any(|version| version.number == number);
    let files = list(dir, name).into_iter().filter(|v| v.kind == "file" && v.letter != 'r');
    let left = files.filter_map(|v| match read(dir, name, v.number) {
        Ok(bytes) => Some(bytes),
        Err(error) if is_listed(v.number) => panic!("{name} {v:?}: {error}"),
        Err(_) => None,
    });
    left.collect()
}

/// Like [`contents`], of versions that are texts.
#[must_use]
pub fn texts(dir: &Path, name: &str) -> Vec<String> {
    contents(dir, name).into_iter().map(|bytes| String::from_utf8(bytes).expect("a text")).collect()
}

/// Trees at recorded moments, which the history must show again.
#[derive(Debug)]
pub struct Moments {
    root: PathBuf,
    all: Vec<(String, Tree)>,
}

impl Moments {
    /// Begins with the present tree of the mount at `root`.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        let mut moments = Self { root: root.to_owned(), all: Vec::new() };
        moments.record();
        moments
    }

    /// Records the present tree.
    pub fn record(&mut self) {
        testkit::tick();
        let tree = tree::read(&self.root);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
        self.all.push((format!("{}.{:09}", now.as_secs(), now.subsec_nanos()), tree));
        testkit::tick();
    }

    /// Runs a step, and records the tree after it.
    pub fn after<T>(&mut self, step: impl FnOnce() -> T) -> T {
        let result = step();
        self.record();
        result
    }

    /// Returns the time of a moment, as commands and options take it.
    #[must_use]
    pub fn time(&self, moment: usize) -> &str {
        &self.all[moment].0
    }

    /// Panics if the history does not show every recorded tree.
    pub fn check(&self, when: &str) {
        for (moment, (time, _)) in self.all.iter().enumerate() {
            let token = command(&self.root, "versionfs.at", time).expect("a token");
            self.check_tree(moment, &self.root.join(token.trim_end()), when);
        }
    }

    /// Panics if the tree at `root` is not that of a moment. Compares what versions keep: not link
    /// counts, times of access, set-user-ID bits, and the attributes of directories. Modification
    /// times may be later.
    pub fn check_tree(&self, moment: usize, root: &Path, when: &str) {
        let (time, want) = &self.all[moment];
        let (want, mut got) = (kept(want), kept(&tree::read(root)));
        for (path, got) in &mut got {
            // A change of times alone makes no version, nor does writing the same bytes again.
            if let Some(want) = want.get(path).filter(|want| got.mtime > want.mtime) {
                got.mtime = want.mtime;
            }
        }
        let difference = tree::difference(&want, &got, tree::Times::Exact);
        assert!(difference.is_empty(), "{when}, the tree at moment {moment} ({time}):\n{difference}");
    }
}

/// Returns a tree without what versions don't keep.
fn kept(tree: &Tree) -> Tree {
    let mut tree = tree.clone();
    for node in tree.values_mut() {
        (node.atime, node.nlink) = ((0, 0), 0);
        if FileType::from_raw_mode(node.mode).is_file() {
            // A program that was replaced because of a flaw must not run with privileges again.
            node.mode &= !0o6000;
        }
        if FileType::from_raw_mode(node.mode).is_dir() {
            node.mode &= FileType::Directory.as_raw_mode();
            (node.mtime, node.owner) = ((0, 0), (0, 0));
            node.xattrs.clear();
        }
    }
    tree
}

/// Writes a configuration by which every version of every file is kept, and returns the mount
/// option that selects it.
#[must_use]
pub fn keep_all(sandbox: &crate::Sandbox) -> String {
    let path = sandbox.path("versionfs.conf");
    fs::write(&path, "builtin = false\n[volume]\nmax = \"none\"\n").expect("a configuration");
    format!("config={}", path.display())
}
