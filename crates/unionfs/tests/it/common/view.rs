//! Views: everything that is visible in a layer, in a form that can be printed and compared. Taking
//! a view also checks the invariants that hold for every layer.

use super::path::Path;
use super::tree::{Body, Id, Tree};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use vnode::{Attr, Cx, Entry, Errno, Kind, Layer, Name, OpenFlags, Time, Vnode, Whence};

/// Everything that is visible of one object.
#[derive(Clone, PartialEq, Eq)]
pub struct Object {
    /// Inode number.
    pub ino: u64,
    /// File type.
    pub kind: Kind,
    /// Permission bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u64,
    /// Link count.
    pub nlink: u32,
    /// Modification time; `None` where the model can't know it.
    pub mtime: Option<Time>,
    /// File data, or the target of a symbolic link.
    pub bytes: Arc<Vec<u8>>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ino, kind, perm, uid, gid, rdev, nlink, .. } = self;
        write!(f, "{kind:?} {perm:04o} {uid}:{gid} nlink={nlink} ino={ino:#x}")?;
        if *rdev != 0 {
            write!(f, " rdev={rdev:#x}")?;
        }
        match self.mtime {
            Some(t) => write!(f, " mtime={}.{:09}", t.sec, t.nsec)?,
            None => write!(f, " mtime=?")?,
        }
        if *kind != Kind::Directory {
            write!(f, " {}", Summary(&self.bytes))?;
        }
        for (name, value) in &self.xattrs {
            write!(f, " {}={}", name.escape_ascii(), Summary(value))?;
        }
        Ok(())
    }
}

/// Prints bytes as their length, their beginning and a checksum.
struct Summary<'a>(&'a [u8]);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = self.0.iter().fold(0u32, |s, &b| s.wrapping_mul(31).wrapping_add(u32::from(b)));
        let head = &self.0[..self.0.len().min(12)];
        write!(f, "{}[{}]{:08x}", self.0.len(), head.escape_ascii(), sum)
    }
}

/// A whole tree: every path with its object.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct View(pub BTreeMap<Path, Object>);

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (path, object) in &self.0 {
            writeln!(f, "  /{path:?} {object:?}")?;
        }
        Ok(())
    }
}

/// Which checks are made while a view is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walk {
    /// All checks of a union: no reserved names, correct link counts, a seek to every readdir
    /// cookie.
    User,
    /// As `User`, but without the readdir cookies.
    Quick,
    /// As `Quick`, for copies of branches: link counts may be too high, because names of files that
    /// were not copied up count again there if they were hidden. The view has the right ones.
    Copies,
    /// As `Quick`, but without link counts: a whiteout that no union has logged may hide a name.
    Loose,
    /// A branch itself, with its reserved names.
    Branch,
}

/// Returns the context of the walk.
pub fn internal_cx() -> Cx<'static> {
    Cx::internal(0, 0)
}

/// Walks the whole layer and returns its view. An error names the path and the failed check.
pub fn view(layer: &dyn Layer, walk: Walk) -> Result<View, String> {
    let root = layer.root();
    let attr = root.getattr(&internal_cx()).map_err(|e| format!("getattr of the root: {e}"))?;
    let mut walker = Walker { walk, seen: BTreeMap::new(), view: View::default() };
    walker.visit(&Path::root(), &Entry { vnode: root, attr })?;
    walker.check_links()?;
    Ok(walker.view)
}

struct Walker {
    walk: Walk,
    /// Inode number -> first path, vnode, and number of names found.
    seen: BTreeMap<u64, (Path, Arc<dyn Vnode>, u32)>,
    view: View,
}

impl Walker {
    fn visit(&mut self, path: &Path, entry: &Entry) -> Result<(), String> {
        let object = object(entry).map_err(|e| format!("/{path:?}: {e}"))?;
        if let Some((first, vnode, count)) = self.seen.get_mut(&object.ino) {
            if object.kind == Kind::Directory {
                return Err(format!("directory /{path:?} has the inode number of /{first:?}"));
            }
            if self.walk != Walk::Branch && !Arc::ptr_eq(vnode, &entry.vnode) {
                return Err(format!("/{path:?} and /{first:?} have the same inode number but different vnodes"));
            }
            *count += 1;
        } else {
            self.seen.insert(object.ino, (path.clone(), Arc::clone(&entry.vnode), 1));
        }
        let is_dir = object.kind == Kind::Directory;
        let nlink = object.nlink;
        self.view.0.insert(path.clone(), object);
        if !is_dir {
            return Ok(());
        }
        let mut subdirs = 0;
        for listed in self.list(&entry.vnode).map_err(|e| format!("/{path:?}: {e}"))? {
            let child = path.join(&listed.name);
            let found = self.lookup_listed(&entry.vnode, &listed).map_err(|e| format!("/{child:?}: {e}"))?;
            subdirs += u32::from(found.attr.kind() == Kind::Directory);
            self.visit(&child, &found)?;
        }
        // A union may have left internal directories in the root of a branch. If that branch is the
        // only one, they are part of the link count.
        let counted = self.walk != Walk::Branch && !(self.walk == Walk::Loose && *path == Path::root());
        if counted && nlink != 2 + subdirs {
            return Err(format!("/{path:?}: {nlink} links, but {subdirs} subdirectories"));
        }
        Ok(())
    }

    fn lookup_listed(&self, dir: &Arc<dyn Vnode>, listed: &Listed) -> Result<Entry, String> {
        if self.walk != Walk::Branch && listed.name.starts_with(b".wh.") {
            return Err("a reserved name is listed".into());
        }
        let name = Name::new(&listed.name).map_err(|e| format!("listed, but not a name: {e}"))?;
        let entry = dir.lookup(&internal_cx(), name).map_err(|e| format!("listed, but lookup returns {e}"))?;
        let entry = entry.ok_or("listed, but not found")?;
        if entry.attr.kind() != listed.kind {
            return Err(format!("d_type {:?}, st_mode {:?}", listed.kind, entry.attr.kind()));
        }
        // Unrelated branches may show one lower object at two paths: for example a directory that
        // was renamed on each of two branches while the other one was not mounted. The second path
        // gets another inode number.
        let taken = self.walk == Walk::Loose && self.seen.contains_key(&listed.ino);
        if entry.attr.ino != listed.ino && !taken {
            return Err(format!("d_ino {:#x}, st_ino {:#x}", listed.ino, entry.attr.ino));
        }
        Ok(entry)
    }

    fn list(&self, dir: &Arc<dyn Vnode>) -> Result<Vec<Listed>, String> {
        let all = list(dir, 0, usize::MAX)?;
        let mut names: Vec<_> = all.iter().map(|l| &l.name).collect();
        names.sort();
        if let Some(twice) = names.windows(2).find(|w| w[0] == w[1]) {
            return Err(format!("\"{}\" is listed twice", twice[0].escape_ascii()));
        }
        if self.walk == Walk::User {
            for (at, listed) in all.iter().enumerate() {
                if listed.cookie == 0 {
                    return Err("a cookie is 0".into());
                }
                // Resume after every entry, and read portions of one and of two entries.
                if list(dir, listed.cookie, usize::MAX)? != all[at + 1..] {
                    return Err(format!(
                        "readdir resumed after \"{}\" lists other entries",
                        listed.name.escape_ascii()
                    ));
                }
                let cookie = if at == 0 { 0 } else { all[at - 1].cookie };
                let portion = at % 2 + 1;
                if list(dir, cookie, portion)? != all[at..(at + portion).min(all.len())] {
                    return Err(format!(
                        "readdir in portions from \"{}\" lists other entries",
                        listed.name.escape_ascii()
                    ));
                }
            }
        }
        Ok(all)
    }

    fn check_links(&mut self) -> Result<(), String> {
        if matches!(self.walk, Walk::Branch | Walk::Loose) {
            return Ok(());
        }
        for (path, _, count) in self.seen.values() {
            let object = &self.view.0[path];
            let may_differ = self.walk == Walk::Copies && object.nlink > *count;
            if object.kind != Kind::Directory && object.nlink != *count && !may_differ {
                return Err(format!("/{path:?}: st_nlink {}, but {count} names", object.nlink));
            }
        }
        for object in self.view.0.values_mut().filter(|object| object.kind != Kind::Directory) {
            object.nlink = self.seen[&object.ino].2;
        }
        Ok(())
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Listed {
    cookie: u64,
    ino: u64,
    kind: Kind,
    name: Vec<u8>,
}

/// Returns up to `most` entries after `cookie`.
fn list(dir: &Arc<dyn Vnode>, cookie: u64, most: usize) -> Result<Vec<Listed>, String> {
    let mut all = Vec::new();
    dir.readdir(&internal_cx(), cookie, &mut |e| {
        if all.len() == most {
            return false;
        }
        all.push(Listed { cookie: e.cookie, ino: e.ino, kind: e.kind, name: e.name.as_bytes().to_vec() });
        true
    })
    .map_err(|e| format!("readdir from {cookie:#x}: {e}"))?;
    Ok(all)
}

/// Returns everything visible of one object, after checking that its attributes are consistent.
pub fn object(entry: &Entry) -> Result<Object, String> {
    let Entry { vnode, attr } = entry;
    let again = vnode.getattr(&internal_cx()).map_err(|e| format!("getattr: {e}"))?;
    if *attr != again {
        return Err(format!("lookup returns {attr:?}, getattr {again:?}"));
    }
    if attr.ino != vnode.id() || attr.kind() != vnode.kind() {
        return Err(format!("attributes of another object: {attr:?}, id {:#x}, {:?}", vnode.id(), vnode.kind()));
    }
    let bytes = match attr.kind() {
        Kind::Regular => read_all(vnode, attr)?,
        Kind::Symlink => vnode.readlink(&internal_cx()).map_err(|e| format!("readlink: {e}"))?,
        _ => Vec::new(),
    };
    if attr.kind() == Kind::Symlink && attr.size != bytes.len() as u64 {
        return Err(format!("st_size {}, target of {} bytes", attr.size, bytes.len()));
    }
    Ok(Object {
        ino: attr.ino,
        kind: attr.kind(),
        perm: attr.perm(),
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        nlink: attr.nlink,
        mtime: Some(attr.mtime),
        bytes: Arc::new(bytes),
        xattrs: xattrs(vnode)?,
    })
}

fn read_all(vnode: &Arc<dyn Vnode>, attr: &Attr) -> Result<Vec<u8>, String> {
    let file = vnode.open(&internal_cx(), OpenFlags::RDONLY).map_err(|e| format!("open: {e}"))?;
    // Request one byte beyond the end, in two reads.
    let mut bytes = vec![0xee; attr.size as usize + 1];
    let half = bytes.len() / 2;
    let mut got = file.read(&internal_cx(), &mut bytes[..half], 0).map_err(|e| format!("read: {e}"))?;
    if got != half {
        return Err(format!("short read in the middle of the file: {got} of {half} bytes"));
    }
    got += file.read(&internal_cx(), &mut bytes[half..], half as u64).map_err(|e| format!("read: {e}"))?;
    if got as u64 != attr.size {
        return Err(format!("st_size {}, but {got} bytes can be read", attr.size));
    }
    bytes.truncate(got);
    check_holes(&*file, &bytes)?;
    Ok(bytes)
}

/// Whether all bytes are zero. Slices are compared because that is fast in debug builds too.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(4096).all(|chunk| *chunk == [0; 4096][..chunk.len()])
}

/// Checks that every hole that `SEEK_HOLE` and `SEEK_DATA` report reads as zeros.
fn check_holes(file: &dyn vnode::OpenFile, bytes: &[u8]) -> Result<(), String> {
    let size = bytes.len() as u64;
    let mut at = 0;
    while at < size {
        let data = match file.seek(&internal_cx(), at, Whence::Data) {
            Ok(data) => data,
            Err(Errno::NXIO) => size,
            Err(e) => return Err(format!("SEEK_DATA at {at}: {e}")),
        };
        if data < at || !is_zero(&bytes[at as usize..data.min(size) as usize]) {
            return Err(format!("SEEK_DATA at {at} returns {data}, but there is data before that"));
        }
        if data >= size {
            break;
        }
        let hole = file.seek(&internal_cx(), data, Whence::Hole).map_err(|e| format!("SEEK_HOLE at {data}: {e}"))?;
        if hole <= data || hole > size {
            return Err(format!("SEEK_HOLE at {data} returns {hole}, size {size}"));
        }
        at = hole;
    }
    Ok(())
}

fn xattrs(vnode: &Arc<dyn Vnode>) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
    let fail = |e: Errno| format!("listxattr: {e}");
    let size = vnode.listxattr(&internal_cx(), &mut []).map_err(fail)?;
    let mut names = vec![0; size];
    let size = if size == 0 { 0 } else { vnode.listxattr(&internal_cx(), &mut names).map_err(fail)? };
    let mut all = BTreeMap::new();
    for name in names[..size].split(|&b| b == 0).filter(|n| !n.is_empty()) {
        let fail = |e: Errno| format!("getxattr {}: {e}", name.escape_ascii());
        let size = vnode.getxattr(&internal_cx(), name, &mut []).map_err(fail)?;
        let mut value = vec![0; size];
        if size > 0 {
            let got = vnode.getxattr(&internal_cx(), name, &mut value).map_err(fail)?;
            value.truncate(got);
        }
        all.insert(name.to_vec(), value);
    }
    Ok(all)
}

/// Returns the view that the model expects, with the model's own object ids as inode numbers.
pub fn expected(tree: &Tree) -> View {
    let paths = tree.paths();
    // One pass counts the names of all files, which keeps large trees cheap.
    let mut names: BTreeMap<Id, u32> = BTreeMap::new();
    for &id in paths.values() {
        *names.entry(id).or_default() += 1;
    }
    View(paths.into_iter().map(|(path, id)| (path, expected_object(tree, id, names[&id]))).collect())
}

/// Returns the expected view of one object; `names` is the link count unless it is a directory.
pub fn expected_object(tree: &Tree, id: Id, names: u32) -> Object {
    let node = tree.node(id);
    Object {
        ino: id,
        kind: node.kind,
        perm: node.perm,
        uid: node.uid,
        gid: node.gid,
        rdev: node.rdev,
        nlink: if node.kind == Kind::Directory { tree.nlink(id) } else { names },
        mtime: node.mtime,
        bytes: match &node.body {
            Body::Data(bytes) => Arc::clone(bytes),
            Body::Target(bytes) => Arc::new(bytes.clone()),
            Body::Dir(_) | Body::Special => Arc::default(),
        },
        xattrs: node.xattrs.clone(),
    }
}

/// The inode number of each object of the model, which must never change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    seen: BTreeMap<Id, u64>,
    /// Whether branches are copies.
    copies: bool,
}

impl Numbers {
    /// Returns those after branches were replaced by copies, which have other inode numbers.
    pub fn of_copies() -> Self {
        Self { copies: true, ..Self::default() }
    }

    /// Returns the checks to make while a view is taken.
    pub fn walk(&self, times: Times) -> Walk {
        match times {
            _ if self.copies => Walk::Copies,
            Times::All => Walk::User,
            // Fault tests have so many runs that the readdir cookies are checked only without
            // faults.
            Times::Files => Walk::Quick,
        }
    }

    /// Records that the object has the inode number `ino`; fails if it had another before.
    pub fn record(&mut self, id: Id, ino: u64) -> Result<(), String> {
        match self.seen.insert(id, ino) {
            Some(before) if before != ino => Err(format!("inode number was {before:#x}, is {ino:#x}")),
            _ => Ok(()),
        }
    }

    /// Forgets objects that the model no longer holds: their inode numbers may be reused.
    pub fn retain(&mut self, tree: &Tree) {
        self.seen.retain(|id, _| tree.nodes.contains_key(id));
    }
}

/// Which modification times are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Times {
    /// All times that the model knows.
    All,
    /// Those of files only: a failed or interrupted operation may have touched a directory.
    Files,
}

/// Compares a view with the model; the error lists every difference.
pub fn compare(seen: &View, model: &Tree, numbers: &mut Numbers, times: Times) -> Result<(), String> {
    let expected = expected(model);
    let mut wrong = Vec::new();
    for (path, want) in &expected.0 {
        let Some(got) = seen.0.get(path) else {
            wrong.push(format!("/{path:?} is missing: {want:?}"));
            continue;
        };
        if let Err(e) = compare_object(got, want, numbers, times) {
            wrong.push(format!("/{path:?}: {e}"));
        }
    }
    for (path, got) in &seen.0 {
        if !expected.0.contains_key(path) {
            wrong.push(format!("/{path:?} is unexpected: {got:?}"));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Compares one object with the expected one.
pub fn compare_object(got: &Object, want: &Object, numbers: &mut Numbers, times: Times) -> Result<(), String> {
    numbers.record(want.ino, got.ino)?;
    let mut got_here = Object { ino: want.ino, ..got.clone() };
    if numbers.copies && want.kind != Kind::Directory && want.nlink > 0 {
        got_here.nlink = got.nlink.min(want.nlink);
    }
    if want.mtime.is_none() || (times == Times::Files && want.kind == Kind::Directory) {
        got_here.mtime = want.mtime;
    }
    if got_here == *want { Ok(()) } else { Err(format!("found    {got:?}\n    expected {want:?}")) }
}

/// Copies the times that the model can't know from a view into the model.
pub fn learn_times(seen: &View, model: &mut Tree) {
    for (path, id) in model.paths() {
        if let (Some(object), Some(node)) = (seen.0.get(&path), model.nodes.get_mut(&id)) {
            node.mtime = object.mtime;
        }
    }
}
