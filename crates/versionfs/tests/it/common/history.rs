//! The model: files as users see them, and which versions each set must have.

use std::collections::{BTreeMap, BTreeSet};
use versionfs::{CopyOn, Options};
use versionset::Cause;
use vnode::{Attr, Kind, Time};

/// Attributes of a file that a version keeps.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Attrs {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Time,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Attrs {
    pub fn of(attr: &Attr, xattrs: BTreeMap<Vec<u8>, Vec<u8>>) -> Self {
        Self { mode: attr.perm(), uid: attr.uid, gid: attr.gid, mtime: attr.mtime, xattrs }
    }
}

/// A version that must exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ver {
    pub kind: Kind,
    pub cause: Cause,
    pub uid: u32,
    pub data: Vec<u8>,
    pub attrs: Attrs,
    /// Whether the layer may do without it, because the next newer one has the same content.
    pub maybe: bool,
}

/// A version set: that of a name in a directory, or that of an inode with several names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Name(u64, Vec<u8>),
    Links(u64),
}

/// An object.
#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    /// What users read; the target of a symbolic link.
    pub data: Vec<u8>,
    /// The content before a delayed truncation, which is still in the lower file.
    pub old: Option<Vec<u8>>,
    /// The user who wanted that truncation.
    pub truncated_by: u32,
    pub nlink: u32,
    /// Whether it has or had several names.
    pub is_linked: bool,
    pub entries: BTreeMap<Vec<u8>, u64>,
    /// Whether it became a version.
    pub buried: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Reads,
    Creates,
    Writes,
}

/// An open file.
#[derive(Clone, Debug)]
pub struct Open {
    pub ino: u64,
    pub mode: Mode,
    pub reads: bool,
    pub appends: bool,
    pub made: bool,
    /// Whether it opened the file with `O_TRUNC`, which is delayed.
    pub delays: bool,
}

/// The state of everything.
#[derive(Clone, Debug)]
pub struct Model {
    pub options: Options,
    pub root: u64,
    pub nodes: BTreeMap<u64, Node>,
    pub sets: BTreeMap<Key, Vec<Ver>>,
    pub opens: BTreeMap<usize, Open>,
    /// Attributes of all objects before the operation.
    pub before: BTreeMap<u64, Attrs>,
    /// Who runs the operation.
    pub user: u32,
}

impl Model {
    pub fn new(options: Options, root: u64) -> Self {
        let mut model = Self {
            options,
            root,
            nodes: BTreeMap::new(),
            sets: BTreeMap::new(),
            opens: BTreeMap::new(),
            before: BTreeMap::new(),
            user: 0,
        };
        model.nodes.insert(root, node(Kind::Directory, Vec::new()));
        model
    }

    pub fn node(&self, ino: u64) -> &Node {
        &self.nodes[&ino]
    }

    fn node_mut(&mut self, ino: u64) -> &mut Node {
        self.nodes.get_mut(&ino).unwrap()
    }

    pub fn child(&self, dir: u64, name: &[u8]) -> Option<u64> {
        self.nodes.get(&dir)?.entries.get(name).copied()
    }

    /// Returns the path of a directory as names from the root; `None` if it is removed.
    pub fn path(&self, dir: u64) -> Option<Vec<Vec<u8>>> {
        if dir == self.root {
            return Some(Vec::new());
        }
        let (parent, name) = self.names_of(dir).into_iter().next()?;
        let mut path = self.path(parent)?;
        path.push(name);
        Some(path)
    }

    pub fn names_of(&self, ino: u64) -> Vec<(u64, Vec<u8>)> {
        let mut names = Vec::new();
        for (dir, node) in &self.nodes {
            for (name, child) in &node.entries {
                if *child == ino {
                    names.push((*dir, name.clone()));
                }
            }
        }
        names
    }

    /// Returns the directories that users see.
    pub fn dirs(&self) -> Vec<u64> {
        let is_dir = |(ino, node): (&u64, &Node)| (node.kind == Kind::Directory && !node.buried).then_some(*ino);
        self.nodes.iter().filter_map(is_dir).collect()
    }

    fn key(&self, ino: u64) -> Option<Key> {
        if self.node(ino).buried {
            return None;
        }
        let (dir, name) = self.names_of(ino).into_iter().next()?;
        let is_linked = self.node(ino).is_linked && self.node(ino).kind == Kind::Regular;
        Some(if is_linked { Key::Links(ino) } else { Key::Name(dir, name) })
    }

    fn push(&mut self, ino: u64, cause: Cause, data: Vec<u8>, maybe: bool) {
        if let Some(key) = self.key(ino) {
            self.push_to(key, ino, cause, data, maybe);
        }
    }

    fn push_to(&mut self, key: Key, ino: u64, cause: Cause, data: Vec<u8>, maybe: bool) {
        let attrs = self.before.get(&ino).cloned().unwrap_or_default();
        let ver = Ver { kind: self.node(ino).kind, cause, uid: self.user, data, attrs, maybe };
        self.sets.entry(key).or_default().push(ver);
    }

    fn current(&self, ino: u64) -> Vec<u8> {
        self.node(ino).data.clone()
    }

    // Data.

    fn count(&self, ino: u64, mode: Mode) -> usize {
        self.opens.values().filter(|open| open.ino == ino && open.mode == mode).count()
    }

    /// A delayed truncation takes place.
    pub fn end_delay(&mut self, ino: u64) {
        let Some(old) = self.node_mut(ino).old.take() else { return };
        let is_shorter = self.node(ino).data.len() < old.len();
        if is_shorter {
            let by = self.node(ino).truncated_by;
            let user = core::mem::replace(&mut self.user, by);
            self.push(ino, Cause::Truncate, old, false);
            self.user = user;
        }
        for open in self.opens.values_mut().filter(|open| open.ino == ino && open.delays) {
            open.delays = false;
            open.made |= is_shorter;
        }
    }

    pub fn opened(&mut self, slot: usize, ino: u64, mode: Mode, (reads, appends): (bool, bool)) {
        if mode == Mode::Reads || mode == Mode::Writes {
            self.end_delay(ino);
        }
        let made = mode == Mode::Creates;
        self.opens.insert(slot, Open { ino, mode, reads, appends, made, delays: false });
    }

    pub fn truncated_by_open(&mut self, slot: usize) {
        let ino = self.opens[&slot].ino;
        if self.node(ino).data.is_empty() {
            return;
        }
        let is_alone = self.opens.values().filter(|open| open.ino == ino).count() == 1;
        if is_alone && self.options.copy_on == CopyOn::Change && self.key(ino).is_some() {
            let data = core::mem::take(&mut self.node_mut(ino).data);
            let user = self.user;
            let node = self.node_mut(ino);
            (node.old, node.truncated_by) = (Some(data), user);
            self.opens.get_mut(&slot).unwrap().delays = true;
            return;
        }
        self.before_change(slot, Cause::Truncate, false);
        self.node_mut(ino).data.clear();
    }

    fn before_change(&mut self, slot: usize, cause: Cause, maybe: bool) {
        let open = &self.opens[&slot];
        let ino = open.ino;
        if open.mode == Mode::Creates && self.count(ino, Mode::Writes) == 0 && !self.options.comprehensive {
            return;
        }
        if !open.made || self.options.comprehensive {
            self.push(ino, cause, self.current(ino), maybe);
            self.opens.get_mut(&slot).unwrap().made = true;
        }
    }

    pub fn write(&mut self, slot: usize, data: &[u8], offset: u64) {
        let open = self.opens[&slot].clone();
        let ino = open.ino;
        let at = if open.appends { self.node(ino).data.len() } else { usize::try_from(offset).unwrap() };
        if data.is_empty() {
            return;
        }
        let end = at + data.len();
        if let Some(old) = &self.node(ino).old {
            if at <= self.node(ino).data.len() && old.get(at..end) == Some(data) {
                put(&mut self.node_mut(ino).data, data, at);
                return;
            }
            self.end_delay(ino);
        }
        if self.options.copy_on == CopyOn::Change && self.node(ino).data.get(at..end) == Some(data) {
            return;
        }
        self.before_change(slot, Cause::Write, false);
        put(&mut self.node_mut(ino).data, data, at);
    }

    /// A change by fallocate or copying, after which the content is `data`. `touches`: it writes
    /// bytes, if only equal ones.
    pub fn changed(&mut self, slot: usize, cause: Cause, touches: bool, data: Vec<u8>) {
        let ino = self.opens[&slot].ino;
        let same = self.node(ino).data == data;
        self.end_delay(ino);
        if !same || (touches && self.options.copy_on == CopyOn::Write) {
            self.before_change(slot, cause, false);
        }
        self.node_mut(ino).data = data;
    }

    pub fn fsynced(&mut self, slot: usize) {
        if self.opens[&slot].mode == Mode::Writes {
            self.end_delay(self.opens[&slot].ino);
        }
    }

    pub fn closed(&mut self, slot: usize) {
        let open = self.opens[&slot].clone();
        if open.mode == Mode::Writes && self.count(open.ino, Mode::Writes) == 1 {
            self.end_delay(open.ino);
        }
        self.opens.remove(&slot);
    }

    /// The server is killed: delayed truncations did not happen.
    pub fn killed(&mut self) {
        self.opens.clear();
        for node in self.nodes.values_mut() {
            if let Some(old) = node.old.take() {
                node.data = old;
            }
        }
    }

    /// A delayed truncation failed at the close.
    pub fn closed_without_truncation(&mut self, slot: usize) {
        let ino = self.opens[&slot].ino;
        if let Some(old) = self.node_mut(ino).old.take() {
            self.node_mut(ino).data = old;
        }
        self.closed(slot);
    }

    // Attributes.

    fn is_being_created(&self, ino: u64) -> bool {
        self.count(ino, Mode::Creates) > 0 && self.count(ino, Mode::Writes) == 0 && !self.options.comprehensive
    }

    pub fn attribute_changed(&mut self, ino: u64, cause: Cause) {
        if self.node(ino).kind != Kind::Regular {
            return;
        }
        self.end_delay(ino);
        if !self.is_being_created(ino) {
            self.push(ino, cause, self.current(ino), false);
        }
    }

    pub fn truncated(&mut self, ino: u64, slot: Option<usize>, size: usize) {
        if self.node(ino).data.len() == size {
            return;
        }
        self.end_delay(ino);
        let has_made = slot.is_some_and(|slot| self.opens[&slot].made);
        if (!self.is_being_created(ino) && !has_made) || self.options.comprehensive {
            self.push(ino, Cause::Truncate, self.current(ino), false);
            if let Some(slot) = slot {
                self.opens.get_mut(&slot).unwrap().made = true;
            }
        }
        self.node_mut(ino).data.resize(size, 0);
    }

    // Names.

    pub fn made_new(&mut self, dir: Option<(u64, &[u8])>, ino: u64, kind: Kind, data: Vec<u8>) {
        let mut new = node(kind, data);
        new.nlink = u32::from(dir.is_some());
        self.nodes.insert(ino, new);
        if let Some((dir, name)) = dir {
            self.node_mut(dir).entries.insert(name.to_vec(), ino);
        }
    }

    pub fn linked(&mut self, ino: u64, dir: u64, name: &[u8]) {
        self.end_delay(ino);
        if self.node(ino).kind == Kind::Regular && self.node(ino).nlink == 1 && !self.node(ino).is_linked {
            // The set of the first name may need a copy.
            self.push(ino, Cause::Link, self.current(ino), true);
        }
        let node = self.node_mut(ino);
        node.nlink += 1;
        node.is_linked |= node.nlink > 1;
        self.node_mut(dir).entries.insert(name.to_vec(), ino);
    }

    /// A name goes; the object becomes a version if it was the last one.
    fn lost_name(&mut self, dir: u64, name: &[u8], cause: Cause) {
        let ino = self.node_mut(dir).entries[name];
        self.end_delay(ino);
        let is_last = self.node(ino).nlink == 1;
        let kind = self.node(ino).kind;
        if is_last {
            self.push(ino, cause, self.current(ino), false);
        } else if kind == Kind::Regular {
            // The history of the name ends with a version of the inode.
            self.push_to(Key::Links(ino), ino, Cause::Link, self.current(ino), false);
        } else {
            self.push_to(Key::Name(dir, name.to_vec()), ino, cause, self.current(ino), false);
        }
        self.node_mut(dir).entries.remove(name);
        let is_written = self.count(ino, Mode::Writes) + self.count(ino, Mode::Creates) > 0;
        let node = self.node_mut(ino);
        node.nlink -= 1;
        node.buried = is_last && (node.kind != Kind::Regular || !is_written);
    }

    pub fn unlinked(&mut self, dir: u64, name: &[u8], cause: Cause) {
        self.lost_name(dir, name, cause);
    }

    fn leave(&mut self, dir: u64, name: &[u8]) {
        let ino = self.node(dir).entries[name];
        self.end_delay(ino);
        let kind = self.node(ino).kind;
        if kind != Kind::Regular || !self.node(ino).is_linked {
            self.push_to(Key::Name(dir, name.to_vec()), ino, Cause::Rename, self.current(ino), false);
        } else {
            self.push_to(Key::Links(ino), ino, Cause::Link, self.current(ino), false);
        }
    }

    pub fn renamed(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), exchange: bool) {
        let ino = self.node(from.0).entries[from.1];
        let target = self.child(to.0, to.1);
        if target == Some(ino) {
            return;
        }
        self.leave(from.0, from.1);
        match target {
            Some(target) if exchange => {
                self.leave(to.0, to.1);
                self.node_mut(from.0).entries.insert(from.1.to_vec(), target);
            }
            Some(_) => {
                self.lost_name(to.0, to.1, Cause::Replace);
                self.node_mut(from.0).entries.remove(from.1);
            }
            None => drop(self.node_mut(from.0).entries.remove(from.1)),
        }
        self.node_mut(to.0).entries.insert(to.1.to_vec(), ino);
        // The next write makes a version: the former name keeps what it had.
        let renamed = [Some(ino), target.filter(|_| exchange)];
        self.opens.values_mut().filter(|open| renamed.contains(&Some(open.ino))).for_each(|open| open.made = false);
    }

    /// Forgets objects that nobody can reach any more.
    pub fn sweep(&mut self) {
        let named: BTreeSet<u64> = self.nodes.values().flat_map(|node| node.entries.values().copied()).collect();
        let open: BTreeSet<u64> = self.opens.values().map(|open| open.ino).collect();
        let root = self.root;
        self.nodes.retain(|ino, node| {
            *ino == root || named.contains(ino) || open.contains(ino) || node.kind == Kind::Directory
        });
    }
}

fn node(kind: Kind, data: Vec<u8>) -> Node {
    Node { kind, data, old: None, truncated_by: 0, nlink: 1, is_linked: false, entries: BTreeMap::new(), buried: false }
}

fn put(data: &mut Vec<u8>, new: &[u8], at: usize) {
    let end = at + new.len();
    if data.len() < end {
        data.resize(end, 0);
    }
    data[at..end].copy_from_slice(new);
}
