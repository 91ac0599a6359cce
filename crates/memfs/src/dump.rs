use core::fmt;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Layer, Name, OpenFlags, Result, Time, Vnode};

/// A whole tree as a value that can be compared and printed. Keys are paths from the root without a
/// leading `/`; the root's key is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump(pub BTreeMap<Vec<u8>, Node>);

/// A name in a tree, with the properties of its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The object's type.
    pub kind: Kind,
    /// Permission bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Size in bytes; 0 for directories, whose size is specific to the file system.
    pub size: u64,
    /// Device number.
    pub rdev: u64,
    /// The data of a regular file, or the target of a symbolic link.
    pub data: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path of the object, in sorted order.
    pub first: Vec<u8>,
    /// The object's number; see [`Dump::without_ids`].
    pub ino: u64,
    /// Time of last data modification; see [`Dump::without_times`].
    pub mtime: Option<Time>,
}

impl Dump {
    /// Reads a whole layer through the vnode interface.
    ///
    /// # Errors
    /// Those of the layer.
    pub fn of(layer: &dyn Layer) -> Result<Self> {
        Self::seen_by(layer, &Cx::internal(0, 0))
    }

    /// As [`Self::of`], with the calls of a caller.
    ///
    /// # Errors
    /// Those of the layer.
    pub fn seen_by(layer: &dyn Layer, cx: &Cx<'_>) -> Result<Self> {
        let mut walk = Walk { cx, nodes: BTreeMap::new(), seen: HashMap::new() };
        walk.visit(&[], &layer.root())?;
        Ok(Self(walk.nodes))
    }

    /// Returns the dump without times, for comparing file systems with different clocks.
    #[must_use]
    pub fn without_times(mut self) -> Self {
        for node in self.0.values_mut() {
            node.mtime = None;
        }
        self
    }

    /// Returns the dump without numbers, for comparing different file systems.
    #[must_use]
    pub fn without_ids(mut self) -> Self {
        for node in self.0.values_mut() {
            node.ino = 0;
        }
        self
    }

    /// Returns the dump without link counts of directories, which some file systems do not keep
    /// (always 1 on btrfs).
    #[must_use]
    pub fn without_directory_counts(mut self) -> Self {
        for node in self.0.values_mut().filter(|node| node.kind == Kind::Directory) {
            node.nlink = 0;
        }
        self
    }

    /// Returns the differences from another dump, one entry per path; empty if there are none.
    #[must_use]
    pub fn differences(&self, other: &Self) -> String {
        let mut out = String::new();
        let paths: std::collections::BTreeSet<_> = self.0.keys().chain(other.0.keys()).collect();
        for path in paths {
            let (a, b) = (self.0.get(path), other.0.get(path));
            if a != b {
                let show = |node: Option<&Node>| node.map_or_else(|| "nothing".to_owned(), ToString::to_string);
                out += &format!("/{}\n  - {}\n  + {}\n", path.escape_ascii(), show(a), show(b));
            }
        }
        out
    }
}

struct Walk<'a> {
    cx: &'a Cx<'a>,
    nodes: BTreeMap<Vec<u8>, Node>,
    seen: HashMap<u64, Vec<u8>>,
}

impl Walk<'_> {
    /// Visits entries in name order, so that equal trees give equal dumps.
    fn visit(&mut self, path: &[u8], vnode: &Arc<dyn Vnode>) -> Result<()> {
        let node = self.node(path, vnode)?;
        let is_dir = node.kind == Kind::Directory;
        self.nodes.insert(path.to_vec(), node);
        if !is_dir {
            return Ok(());
        }
        let mut names = Vec::new();
        vnode.readdir(self.cx, 0, &mut |entry| {
            names.push(entry.name.as_bytes().to_vec());
            true
        })?;
        names.sort_unstable();
        for name in names {
            let Some(entry) = vnode.lookup(self.cx, Name::new(&name)?)? else { continue };
            let mut below = path.to_vec();
            if !below.is_empty() {
                below.push(b'/');
            }
            below.extend_from_slice(&name);
            self.visit(&below, &entry.vnode)?;
        }
        Ok(())
    }

    fn node(&mut self, path: &[u8], vnode: &Arc<dyn Vnode>) -> Result<Node> {
        let cx = self.cx;
        let attr = vnode.getattr(cx)?;
        let kind = attr.kind();
        let first = self.seen.entry(attr.ino).or_insert_with(|| path.to_vec()).clone();
        let data = match kind {
            Kind::Regular => contents(cx, vnode, attr.size)?,
            Kind::Symlink => vnode.readlink(cx)?,
            _ => Vec::new(),
        };
        Ok(Node {
            kind,
            perm: attr.perm(),
            uid: attr.uid,
            gid: attr.gid,
            nlink: attr.nlink,
            size: if kind == Kind::Directory { 0 } else { attr.size },
            rdev: attr.rdev,
            data,
            xattrs: xattrs(cx, vnode)?,
            first,
            ino: attr.ino,
            mtime: Some(attr.mtime),
        })
    }
}

fn contents(cx: &Cx<'_>, vnode: &Arc<dyn Vnode>, size: u64) -> Result<Vec<u8>> {
    let mut data = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
    let len = vnode.open(cx, OpenFlags::RDONLY)?.read(cx, &mut data, 0)?;
    data.truncate(len);
    Ok(data)
}

fn xattrs(cx: &Cx<'_>, vnode: &Arc<dyn Vnode>) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 65536];
    let len = match vnode.listxattr(cx, &mut names) {
        // A file system without extended attributes.
        Err(Errno::OPNOTSUPP) => 0,
        other => other?,
    };
    names.truncate(len);
    let mut found = BTreeMap::new();
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 65536];
        let len = vnode.getxattr(cx, name, &mut value)?;
        value.truncate(len);
        found.insert(name.to_vec(), value);
    }
    Ok(found)
}

/// Shortens bytes for printing.
fn excerpt(bytes: &[u8]) -> String {
    match bytes.get(..32) {
        Some(start) => format!("\"{}\"...", start.escape_ascii()),
        None => format!("\"{}\"", bytes.escape_ascii()),
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:04o} {}:{} nlink={}", self.kind, self.perm, self.uid, self.gid, self.nlink)?;
        match self.kind {
            Kind::Regular | Kind::Symlink => write!(f, " size={} {}", self.size, excerpt(&self.data))?,
            Kind::CharDevice | Kind::BlockDevice => write!(f, " rdev={:#x}", self.rdev)?,
            _ => {}
        }
        write!(f, " first=/{} ino={}", self.first.escape_ascii(), self.ino)?;
        if let Some(Time { sec, nsec }) = self.mtime {
            write!(f, " mtime={sec}.{nsec:09}")?;
        }
        for (name, value) in &self.xattrs {
            write!(f, " {}={}", name.escape_ascii(), excerpt(value))?;
        }
        Ok(())
    }
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (path, node) in &self.0 {
            writeln!(f, "/{} {node}", path.escape_ascii())?;
        }
        Ok(())
    }
}
