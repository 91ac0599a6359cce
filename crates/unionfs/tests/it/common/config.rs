//! The sets of branches that tests start from, and the expected union of each: merged here by the
//! rules of docs/unionfs.md, from plain maps.

use super::op::{Fill, Op};
use super::path::Path;
use super::tree::{Body, Caller, Id, ROOT, Tree, is_reserved};
use std::collections::HashMap;
use vnode::{Kind, RenameFlags, Time, XattrFlags};

/// Whether the union may write to a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `rw`
    Rw,
    /// `ro`
    Ro,
}

/// A set of branches, and operations to run on their union before the test.
pub struct Config {
    /// Name, for messages.
    pub name: String,
    /// The branches, left to right: access, and the operations that fill the branch.
    pub branches: Vec<(Access, Vec<Op>)>,
    /// Operations to run through the union, in whiteout mode, before it is remounted for the test.
    pub prologue: Vec<Op>,
}

impl Config {
    /// Returns the tree of each branch.
    pub fn branch_trees(&self) -> Vec<Tree> {
        self.branches.iter().map(|(_, program)| branch_tree(program)).collect()
    }

    /// Returns the tree of the union at the start of the test.
    pub fn union_tree(&self) -> Tree {
        let mut tree = merge(&self.branch_trees());
        tree.read_only = self.branches.iter().all(|(access, _)| *access == Access::Ro);
        for op in &self.prologue {
            if let Err(errnos) = tree.apply(Caller::ROOT, op) {
                panic!("{}: prologue {op:?}: {errnos:?}", self.name);
            }
        }
        tree.close_all();
        tree
    }
}

/// Returns the tree that the operations of a branch create.
pub fn branch_tree(program: &[Op]) -> Tree {
    let mut tree = Tree { reserve: false, ..Tree::new() };
    for op in program {
        if let Err(errnos) = tree.apply(Caller::ROOT, op) {
            panic!("a branch's program: {op:?}: {errnos:?}");
        }
    }
    tree
}

/// Returns the union of branches, left to right.
pub fn merge(branches: &[Tree]) -> Tree {
    // A whiteout that no union has logged does not change the link count of the file that it hides.
    // These configurations have none.
    try_merge(branches).expect("no branch has a file of which only some names are hidden")
}

/// Returns the union of branches; `None` if it hides some names of a file and shows others.
pub fn try_merge(branches: &[Tree]) -> Option<Tree> {
    let mut merger = Merger { branches, union: Tree::new(), files: HashMap::new() };
    let stack: Vec<_> = (0..branches.len()).map(|branch| (branch, ROOT)).collect();
    merger.take_attributes(ROOT, stack[0]);
    merger.directory(ROOT, &stack);
    let whole = |(&(branch, lower), &id): (&(usize, Id), &Id)| merger.union.nlink(id) == branches[branch].nlink(lower);
    merger.files.iter().all(whole).then_some(merger.union)
}

struct Merger<'a> {
    branches: &'a [Tree],
    union: Tree,
    /// File of a branch -> file of the union.
    files: HashMap<(usize, Id), Id>,
}

enum Found {
    Nothing,
    File((usize, Id)),
    Dirs(Vec<(usize, Id)>),
}

impl Merger<'_> {
    fn take_attributes(&mut self, id: Id, (branch, lower): (usize, Id)) {
        let lower = self.branches[branch].node(lower).clone();
        let entries = self.union.node(id).body.clone();
        self.union.nodes.insert(id, super::tree::Node { body: entries, ..lower });
    }

    fn directory(&mut self, id: Id, stack: &[(usize, Id)]) {
        let mut names: Vec<Vec<u8>> = Vec::new();
        for &(branch, dir) in stack {
            let entries = self.branches[branch].entries(dir).into_iter().flatten();
            names.extend(entries.map(|(name, _)| name.clone()).filter(|name| !is_reserved(name)));
        }
        names.sort();
        names.dedup();
        for name in names {
            let entry = match self.search(stack, &name) {
                Found::Nothing => continue,
                Found::File(lower) => self.file(lower),
                Found::Dirs(stack) => {
                    let node = self.branches[stack[0].0].node(stack[0].1).clone();
                    let new = self.union.add(super::tree::Node { body: Body::Dir(Default::default()), ..node });
                    self.directory(new, &stack);
                    new
                }
            };
            self.union.entries_mut(id).insert(name, entry);
        }
    }

    fn file(&mut self, lower: (usize, Id)) -> Id {
        if let Some(&known) = self.files.get(&lower) {
            return known;
        }
        let node = self.branches[lower.0].node(lower.1).clone();
        let new = self.union.add(node);
        self.files.insert(lower, new);
        new
    }

    /// Looks a name up from left to right; on each branch the entry first, then the whiteout.
    fn search(&self, stack: &[(usize, Id)], name: &[u8]) -> Found {
        let mut dirs = Vec::new();
        for &(branch, dir) in stack {
            let tree = &self.branches[branch];
            let Some(entries) = tree.entries(dir) else { break };
            if let Some(&entry) = entries.get(name) {
                let Some(below) = tree.entries(entry) else {
                    if dirs.is_empty() {
                        return Found::File((branch, entry));
                    }
                    break;
                };
                dirs.push((branch, entry));
                if below.contains_key(&b".wh..wh..opq"[..]) || below.contains_key(&b".wh.__dir_opaque"[..]) {
                    break;
                }
            }
            if entries.contains_key(&[b".wh.", name].concat()) {
                break;
            }
        }
        if dirs.is_empty() { Found::Nothing } else { Found::Dirs(dirs) }
    }
}

/// Builds the operations that fill a branch. At the end every object gets a distinct mtime.
#[derive(Clone, Default)]
pub struct BranchBuilder {
    ops: Vec<Op>,
    paths: Vec<Path>,
    seed: u8,
}

impl BranchBuilder {
    /// Creates a builder. Files built from different seeds differ in content.
    pub fn new(seed: u8) -> Self {
        Self { ops: Vec::new(), paths: vec![Path::root()], seed }
    }

    fn path(&mut self, path: &str) -> Path {
        self.paths.push(path.into());
        path.into()
    }

    /// Adds a directory.
    pub fn dir(mut self, path: &str, mode: u32) -> Self {
        let path = self.path(path);
        self.ops.push(Op::Mkdir { path, mode });
        self
    }

    /// Adds a regular file of `len` bytes.
    pub fn file(mut self, path: &str, mode: u32, len: usize) -> Self {
        let path = self.path(path);
        self.seed = self.seed.wrapping_add(1);
        let fill = Fill { seed: self.seed, len };
        self.ops.push(Op::Create { path: path.clone(), mode });
        if len > 0 {
            self.ops.push(Op::Write { path, offset: 0, fill });
        }
        self
    }

    /// Adds a sparse file of `size` bytes.
    pub fn sparse(mut self, path: &str, size: u64) -> Self {
        let path = self.path(path);
        self.ops.push(Op::Create { path: path.clone(), mode: 0o600 });
        self.ops.push(Op::Truncate { path: path.clone(), size });
        for offset in [8_192, size / 2 + 17] {
            self.ops.push(Op::Write { path: path.clone(), offset, fill: Fill { seed: self.seed, len: 300 } });
        }
        self
    }

    /// Adds a whiteout or an opaque mark.
    pub fn mark(mut self, path: &str) -> Self {
        let path = self.path(path);
        self.ops.push(Op::Create { path, mode: 0o444 });
        self
    }

    /// Adds a symbolic link.
    pub fn symlink(mut self, path: &str, target: &str) -> Self {
        let path = self.path(path);
        self.ops.push(Op::Symlink { path, target: target.as_bytes().to_vec() });
        self
    }

    /// Adds a special file.
    pub fn special(mut self, path: &str, kind: Kind, rdev: u64) -> Self {
        let path = self.path(path);
        self.ops.push(Op::Mknod { path, mode: kind.mode_bits() | 0o640, rdev });
        self
    }

    /// Adds a hard link.
    pub fn link(mut self, from: &str, to: &str) -> Self {
        self.ops.push(Op::Link { from: from.into(), to: to.into() });
        self
    }

    /// Sets owner and group.
    pub fn owner(mut self, path: &str, uid: u32, gid: u32) -> Self {
        self.ops.push(Op::Chown { path: path.into(), uid, gid });
        self
    }

    /// Sets an extended attribute.
    pub fn xattr(mut self, path: &str, name: &'static [u8], len: usize) -> Self {
        let value = Fill { seed: self.seed, len };
        self.ops.push(Op::Setxattr { path: path.into(), name, value, flags: XattrFlags::default() });
        self
    }

    /// Returns the operations.
    pub fn build(mut self) -> Vec<Op> {
        for (at, path) in self.paths.into_iter().enumerate() {
            let mtime =
                Time { sec: 1_000_000_000 + i64::from(self.seed) * 1000 + at as i64, nsec: 123_456_000 + at as u32 };
            self.ops.push(Op::Utimes { path, mtime });
        }
        self.ops
    }
}

/// Returns a name of `len` bytes.
pub fn long(letter: char, len: usize) -> String {
    letter.to_string().repeat(len)
}

/// A branch with every kind of object.
fn base() -> Vec<Op> {
    BranchBuilder::new(10)
        .dir("a", 0o755)
        .owner("a", 7, 8)
        .xattr("a", b"user.on-a-dir", 10)
        .file("a/f", 0o644, 100)
        .xattr("a/f", b"user.one", 20)
        .xattr("a/f", b"trusted.two", 0)
        .owner("a/f", 1000, 100)
        .dir("a/sub", 0o2750)
        .owner("a/sub", 1000, 50)
        .file("a/sub/deep", 0o600, 5000)
        .symlink("a/sub/link", "../f")
        .dir("both", 0o755)
        .file("both/lower", 0o644, 10)
        .file("both/same", 0o644, 11)
        .file("both/gone", 0o644, 12)
        .dir("both/dir", 0o755)
        .file("both/dir/low", 0o644, 1)
        .file("x", 0o644, 30)
        .dir("y", 0o755)
        .file("y/inside", 0o644, 31)
        .file("h1", 0o640, 77)
        .link("h1", "a/h2")
        .dir("empty", 0o1777)
        .dir("opq", 0o755)
        .file("opq/hidden", 0o644, 3)
        .dir("wd", 0o755)
        .file("wd/hidden", 0o644, 4)
        .file("wf", 0o644, 5)
        .symlink("sym", "a/f")
        .special("fifo", Kind::Fifo, 0)
        .special("chr", Kind::CharDevice, 0x103)
        .sparse("sparse", 60_000)
        .file("zero", 0o444, 0)
        .file(&long('m', 252), 0o644, 6)
        .dir(&long('n', 255), 0o755)
        .build()
}

/// A branch that shares some names with `base`.
fn middle() -> Vec<Op> {
    BranchBuilder::new(60)
        .dir("a", 0o700)
        .file("a/mid", 0o644, 40)
        .dir("a/sub", 0o755)
        .file("a/sub/deep", 0o640, 41)
        .dir("both", 0o711)
        .file("both/same", 0o600, 42)
        .mark("both/.wh.lower")
        .dir("both/dir", 0o700)
        .file("both/dir/mid", 0o644, 2)
        .dir("x", 0o755)
        .file("x/in", 0o644, 43)
        .dir("empty", 0o755)
        .mark("empty/.wh.nothing")
        .file("m1", 0o644, 44)
        .link("m1", "m2")
        .dir("only", 0o755)
        .dir("only/nested", 0o755)
        .build()
}

/// A writable branch that a union has written to before.
fn upper() -> Vec<Op> {
    BranchBuilder::new(120)
        .dir("both", 0o750)
        .file("both/upper", 0o644, 20)
        .file("both/same", 0o644, 21)
        .mark("both/.wh.gone")
        .dir("both/dir", 0o755)
        .file("both/dir/up", 0o644, 2)
        .dir("x", 0o755)
        .file("x/in", 0o644, 22)
        .file("y", 0o644, 23)
        .dir("opq", 0o755)
        .mark("opq/.wh..wh..opq")
        .file("opq/new", 0o644, 24)
        .dir("wd", 0o755)
        .mark(".wh.wd")
        .mark(".wh.wf")
        .file("u1", 0o644, 25)
        .link("u1", "both/u2")
        .build()
}

fn prologue() -> Vec<Op> {
    let rename = |from: &str, to: &str| Op::Rename { from: from.into(), to: to.into(), flags: RenameFlags::default() };
    vec![
        // Renames of merged directories: a redirect, and another inside it.
        rename("a", "moved"),
        rename("moved/sub", "both/sub"),
        // A directory in place of a whiteout.
        Op::Unlink { path: "both/lower".into() },
        Op::Mkdir { path: "both/lower".into(), mode: 0o755 },
        // Copy-up of a lower file with two names.
        Op::Chmod { path: "h1".into(), mode: 0o600 },
        // Whiteouts of long names.
        Op::Unlink { path: long('m', 252).as_str().into() },
        Op::Rmdir { path: long('n', 255).as_str().into() },
        Op::Append { path: "sparse".into(), fill: Fill { seed: 3, len: 9 } },
        Op::Rename {
            from: "y".into(),
            to: "both/dir".into(),
            flags: RenameFlags { exchange: true, ..RenameFlags::default() },
        },
        Op::Utimes { path: "moved".into(), mtime: Time { sec: 5, nsec: 6 } },
    ]
}

/// Creates metacopies, then writes to, renames and changes some of the files.
fn attributes_changed() -> Vec<Op> {
    let chmod = |path: &str, mode| Op::Chmod { path: path.into(), mode };
    vec![
        chmod("a/f", 0o600),
        chmod("a/sub/deep", 0o755),
        Op::Chown { path: "sparse".into(), uid: 3, gid: 4 },
        Op::Utimes { path: "x/in".into(), mtime: Time { sec: 5, nsec: 6 } },
        chmod("h1", 0o600),
        chmod("both/same", 0o640),
        // A write copies the data up, too.
        Op::Append { path: "a/sub/deep".into(), fill: Fill { seed: 3, len: 9 } },
        // A rename of the directory that holds the metacopy.
        Op::Rename { from: "a".into(), to: "moved".into(), flags: RenameFlags::default() },
        Op::Setxattr {
            path: "moved/f".into(),
            name: b"user.late",
            value: Fill { seed: 1, len: 7 },
            flags: XattrFlags::default(),
        },
    ]
}

/// Returns all sets of branches.
pub fn configs() -> Vec<Config> {
    use Access::{Ro, Rw};
    let config = |name: &str, branches, prologue| Config { name: name.to_owned(), branches, prologue };
    vec![
        config("empty rw, ro", vec![(Rw, BranchBuilder::new(0).build()), (Ro, base())], vec![]),
        config("used rw, ro", vec![(Rw, upper()), (Ro, base())], vec![]),
        config("rw, rw, ro", vec![(Rw, upper()), (Rw, middle()), (Ro, base())], vec![]),
        config("rw, ro, ro", vec![(Rw, upper()), (Ro, middle()), (Ro, base())], vec![]),
        config("rw, ro, rw", vec![(Rw, upper()), (Ro, middle()), (Rw, base())], vec![]),
        config("rw, rw", vec![(Rw, upper()), (Rw, base())], vec![]),
        config("redirects", vec![(Rw, BranchBuilder::new(0).build()), (Ro, base())], prologue()),
        config("rw", vec![(Rw, base())], vec![]),
        config(
            "metacopies",
            vec![(Rw, BranchBuilder::new(0).build()), (Ro, middle()), (Ro, base())],
            attributes_changed(),
        ),
        config("metacopies between", vec![(Rw, upper()), (Rw, middle()), (Ro, base())], attributes_changed()),
        config("ro, ro", vec![(Ro, middle()), (Ro, base())], vec![]),
    ]
}

/// Returns branches with a directory `tN` for each of `threads` threads, and with the shared
/// directories `both`, `a` and `s`.
pub fn threads_config(threads: usize) -> Config {
    let mut low =
        BranchBuilder::new(10).dir("s", 0o755).dir("s/dir", 0o755).file("s/dir/f", 0o644, 20).file("s/f", 0o644, 9);
    let mut high = BranchBuilder::new(90).dir("s", 0o755).dir("s/dir", 0o755).file("s/dir/x", 0o644, 21);
    for shared in ["both", "a"] {
        let path = |name: &str| format!("{shared}/{name}");
        low =
            low.dir(shared, 0o755).file(&path("f"), 0o644, 30).dir(&path("sub"), 0o755).file(&path("sub/x"), 0o644, 3);
        high = high.dir(shared, 0o755).file(&path("b"), 0o644, 30).mark(&path(".wh.f"));
    }
    for thread in 0..threads {
        let path = |name: &str| format!("t{thread}{name}");
        low = low
            .dir(&path(""), 0o755)
            .dir(&path("/dir"), 0o755)
            .file(&path("/dir/f"), 0o644, 300)
            .dir(&path("/dir/sub"), 0o755)
            .file(&path("/dir/sub/a"), 0o644, 400)
            .file(&path("/x"), 0o644, 500)
            .link(&path("/x"), &path("/dir/x"));
        high = high.dir(&path(""), 0o755).dir(&path("/dir"), 0o755).file(&path("/dir/b"), 0o644, 100);
    }
    let branches = vec![(Access::Rw, high.build()), (Access::Ro, low.build())];
    Config { name: "for threads".to_owned(), branches, prologue: vec![] }
}

/// Returns the same with two more read-write branches that have only some of the directories each,
/// so the branches that can hold a directory change while the threads run.
pub fn threads_config_with_gaps(threads: usize) -> Config {
    let mut config = threads_config(threads);
    let mut left = BranchBuilder::new(150).dir("s", 0o755);
    let mut middle = BranchBuilder::new(180).dir("both", 0o755).dir("both/sub", 0o755);
    for thread in 0..threads {
        let dir = format!("t{thread}");
        match thread % 3 {
            0 => left = left.dir(&dir, 0o755),
            1 => middle = middle.dir(&dir, 0o755).dir(&format!("{dir}/dir"), 0o755),
            _ => {}
        }
    }
    config.branches[0] = (Access::Rw, left.build());
    config.branches.insert(1, (Access::Rw, middle.build()));
    config.name = "for threads, with gaps".to_owned();
    config
}
