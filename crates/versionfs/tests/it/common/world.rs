//! The layer under test with its model: runs operations on both and compares.

use super::history::{Attrs, Key, Mode, Model, Ver};
use super::ops::{self, Op, Path, Target};
use super::store::{self, After, Found};
use super::{clock, set_clock};
use core::sync::atomic::AtomicBool;
use memfs::{Fault, Faults, MemFs, MemOptions, Plan};
use std::collections::BTreeMap;
use std::sync::Arc;
use testkit::Rng;
use versionfs::{Options, VersionFs};
use versionset::{Cause, Letter, STORE};
use vnode::{
    Cx, Errno, Kind, Layer, Name, OpenFile, OpenFlags, RenameFlags, Result, SetAttr, SetTime, Vnode, XattrFlags,
};

static NEVER: AtomicBool = AtomicBool::new(false);

/// What versions may exist of a set that a failed operation began to change.
#[derive(Clone, Debug, Default)]
pub struct Unchanged {
    /// The contents of the head.
    pub contents: BTreeMap<Key, Vec<Vec<u8>>>,
    /// Whether a reference to a new name may exist though the file was not renamed.
    pub references: bool,
}

impl Unchanged {
    /// Permits copies of the heads of a model.
    pub fn of(model: &Model) -> Self {
        let mut contents: BTreeMap<Key, Vec<Vec<u8>>> = BTreeMap::new();
        for (dir, node) in &model.nodes {
            for (name, child) in &node.entries {
                let child_node = model.node(*child);
                let both = [Some(&child_node.data), child_node.old.as_ref()];
                for key in [Key::Name(*dir, name.clone()), Key::Links(*child)] {
                    contents.entry(key).or_default().extend(both.into_iter().flatten().cloned());
                }
            }
        }
        Self { contents, references: false }
    }

    fn permits(&self, key: &Key, found: &Found) -> bool {
        match (&found.data, self.contents.get(key)) {
            (Some(data), Some(contents)) => found.version.kind != Kind::Directory && contents.contains(data),
            (None, Some(_)) => self.references,
            _ => false,
        }
    }
}

/// An open file of the layer under test.
pub struct Handle {
    pub file: Arc<dyn OpenFile>,
    pub vnode: Arc<dyn Vnode>,
}

pub struct World {
    pub mem: Arc<MemFs>,
    pub fs: Arc<VersionFs>,
    pub model: Model,
    pub handles: BTreeMap<usize, Handle>,
    pub rng: Rng,
    pub log: Vec<String>,
    /// Versions that sets may have in addition: of the content before an operation that failed.
    pub unchanged: Unchanged,
    options: Options,
    slots: usize,
}

impl World {
    pub fn new(seed: u64, options: Options) -> Self {
        set_clock(1_000_000);
        let options = Options { clock, ..options };
        let memory = MemOptions { reflink: seed.is_multiple_of(2), ..MemOptions::default() };
        let mem = MemFs::with(memory, &Faults::new());
        let fs = VersionFs::new(mem.clone(), options);
        let model = Model::new(options, mem.root().id());
        let (handles, log) = (BTreeMap::new(), Vec::new());
        Self {
            mem,
            fs,
            model,
            handles,
            rng: Rng::xorshift(seed),
            log,
            unchanged: Unchanged::default(),
            options,
            slots: 0,
        }
    }

    fn dir(&self, cx: &Cx<'_>, dir: u64) -> Result<Arc<dyn Vnode>> {
        let mut at = self.fs.root();
        for name in self.model.path(dir).ok_or(Errno::NOENT)? {
            at = at.lookup(cx, Name::new(&name)?)?.ok_or(Errno::NOENT)?.vnode;
        }
        Ok(at)
    }

    fn lookup(&self, cx: &Cx<'_>, path: &Path) -> Result<Arc<dyn Vnode>> {
        let dir = self.dir(cx, path.0)?;
        Ok(dir.lookup(cx, Name::new(&path.1)?)?.ok_or(Errno::NOENT)?.vnode)
    }

    fn resolve(&self, cx: &Cx<'_>, target: &Target) -> Result<(Arc<dyn Vnode>, Option<usize>)> {
        match target {
            Target::Path(path) => Ok((self.lookup(cx, path)?, None)),
            Target::Slot(slot) => Ok((Arc::clone(&self.handles[slot].vnode), Some(*slot))),
        }
    }

    /// Reads the attributes of all objects from the lower tree.
    fn snapshot(&mut self) {
        let clean: Arc<dyn Layer> = self.mem.without_faults();
        let cx = Cx::internal(0, 0);
        let mut before = BTreeMap::new();
        for ino in self.model.nodes.keys() {
            if let Ok(vnode) = clean.vnode(&cx, *ino) {
                before.insert(*ino, Attrs::of(&vnode.getattr(&cx).unwrap(), store::xattrs(&vnode)));
            }
        }
        self.model.before = before;
    }

    /// Returns the next operation, and prepares it.
    pub fn next(&mut self) -> Op {
        let mut rng = self.rng.clone();
        let op = ops::next(&self.model, &mut rng);
        self.model.user = rng.pick(&[0, 1000, 1001]);
        self.rng = rng;
        self.snapshot();
        self.log.push(format!("{} user {}: {}", self.log.len(), self.model.user, op.shown()));
        op
    }

    /// Runs an operation on the layer and, if it succeeds, on the model.
    pub fn run(&mut self, op: &Op) -> Result<()> {
        let user = self.model.user;
        let cx = Cx::new(user, user, 0, 0o022, true, &NEVER);
        let result = self.run_as(&cx, op);
        if let Err(errno) = &result {
            self.log.push(format!("   -> {errno:?}"));
        }
        self.reconcile();
        self.model.sweep();
        result
    }

    /// Notes which delayed truncations have taken place: any operation, also one that fails, may
    /// end the delay.
    fn reconcile(&mut self) {
        let clean: Arc<dyn Layer> = self.mem.without_faults();
        for ino in self.model.nodes.keys().copied().collect::<Vec<_>>() {
            let node = self.model.node(ino);
            if node.old.is_none() || node.old.as_ref() == Some(&node.data) {
                continue;
            }
            let Ok(lower) = clean.vnode(&Cx::internal(0, 0), ino) else { continue };
            if store::read(&lower) == node.data {
                self.model.end_delay(ino);
            }
        }
    }

    fn run_as(&mut self, cx: &Cx<'_>, op: &Op) -> Result<()> {
        match op {
            Op::Create(path, flags) => self.create(cx, path, *flags),
            Op::Tmpfile(dir) => {
                let (entry, file) = self.dir(cx, *dir)?.tmpfile(cx, 0o644, OpenFlags::RDWR)?;
                self.model.made_new(None, entry.vnode.id(), Kind::Regular, Vec::new());
                self.add(file, entry.vnode, Mode::Creates, OpenFlags::RDWR);
                Ok(())
            }
            Op::Mkdir(path) => {
                let entry = self.dir(cx, path.0)?.mkdir(cx, Name::new(&path.1)?, 0o755)?;
                self.model.made_new(Some((path.0, &path.1)), entry.vnode.id(), Kind::Directory, Vec::new());
                Ok(())
            }
            Op::Symlink(path, to) => {
                let entry = self.dir(cx, path.0)?.symlink(cx, Name::new(&path.1)?, to)?;
                self.model.made_new(Some((path.0, &path.1)), entry.vnode.id(), Kind::Symlink, to.clone());
                Ok(())
            }
            Op::Mkfifo(path) => {
                let entry = self.dir(cx, path.0)?.mknod(cx, Name::new(&path.1)?, 0o010_644, 0)?;
                self.model.made_new(Some((path.0, &path.1)), entry.vnode.id(), Kind::Fifo, Vec::new());
                Ok(())
            }
            Op::Open(target, flags) => self.open(cx, target, OpenFlags(*flags)),
            Op::Unlink(path) => {
                self.dir(cx, path.0)?.unlink(cx, Name::new(&path.1)?)?;
                self.model.unlinked(path.0, &path.1, Cause::Unlink);
                Ok(())
            }
            Op::Rmdir(path) => {
                self.dir(cx, path.0)?.rmdir(cx, Name::new(&path.1)?)?;
                self.model.unlinked(path.0, &path.1, Cause::Rmdir);
                Ok(())
            }
            Op::Rename(from, to, exchange, no_replace) => {
                let flags = RenameFlags { exchange: *exchange, no_replace: *no_replace, whiteout: false };
                let (dir, new_dir) = (self.dir(cx, from.0)?, self.dir(cx, to.0)?);
                dir.rename(cx, Name::new(&from.1)?, &new_dir, Name::new(&to.1)?, flags)?;
                self.model.renamed((from.0, &from.1), (to.0, &to.1), *exchange);
                Ok(())
            }
            Op::Link(target, to) => {
                let (vnode, _) = self.resolve(cx, target)?;
                if vnode.kind() == Kind::Directory {
                    return Err(Errno::PERM);
                }
                self.dir(cx, to.0)?.link(cx, Name::new(&to.1)?, &vnode)?;
                self.model.linked(vnode.id(), to.0, &to.1);
                Ok(())
            }
            Op::Restart => {
                self.close_all();
                self.fs = VersionFs::new(self.mem.clone(), self.options);
                Ok(())
            }
            Op::Kill => {
                self.kill();
                Ok(())
            }
            _ => self.run_on_file(cx, op),
        }
    }

    fn add(&mut self, file: Arc<dyn OpenFile>, vnode: Arc<dyn Vnode>, mode: Mode, flags: OpenFlags) -> usize {
        let mode = if mode == Mode::Creates && self.options.comprehensive { Mode::Writes } else { mode };
        let (slot, ino) = (self.slots, vnode.id());
        self.slots += 1;
        self.handles.insert(slot, Handle { file, vnode });
        self.model.opened(slot, ino, mode, (flags.reads(), flags.appends()));
        slot
    }

    fn create(&mut self, cx: &Cx<'_>, path: &Path, flags: u32) -> Result<()> {
        let flags = OpenFlags(flags);
        let (entry, file) = self.dir(cx, path.0)?.create(cx, Name::new(&path.1)?, 0o644, flags)?;
        self.model.made_new(Some((path.0, &path.1)), entry.vnode.id(), Kind::Regular, Vec::new());
        self.add(file, entry.vnode, Mode::Creates, flags);
        Ok(())
    }

    fn open(&mut self, cx: &Cx<'_>, target: &Target, flags: OpenFlags) -> Result<()> {
        let (vnode, _) = self.resolve(cx, target)?;
        if vnode.kind() != Kind::Regular {
            return Err(Errno::INVAL);
        }
        let file = vnode.open(cx, flags)?;
        let slot = self.add(file, vnode, if flags.writes() { Mode::Writes } else { Mode::Reads }, flags);
        if flags.truncates() {
            self.model.truncated_by_open(slot);
        }
        Ok(())
    }

    fn run_on_file(&mut self, cx: &Cx<'_>, op: &Op) -> Result<()> {
        match op {
            Op::Write(slot, offset, data) => {
                let written = self.handles[slot].file.write(cx, data, *offset)?;
                assert_eq!(written, data.len());
                self.model.write(*slot, data, *offset);
            }
            Op::Read(slot) => self.read(cx, *slot)?,
            Op::Close(slot) => self.close(*slot),
            Op::Fsync(slot) => {
                self.handles[slot].file.fsync(cx, false)?;
                self.model.fsynced(*slot);
            }
            Op::Fallocate(slot, mode, offset, len) => {
                self.handles[slot].file.fallocate(cx, *mode, *offset, *len)?;
                let data = &self.model.node(self.model.opens[slot].ino).data;
                let touches = mode & !1 != 0 && *offset < data.len() as u64;
                let data = allocated(data, *mode, *offset, *len);
                self.model.changed(*slot, Cause::Fallocate, touches, data);
            }
            Op::Copy(slot, offset, source, from, len) => {
                let (to, source_file) = (Arc::clone(&self.handles[slot].file), Arc::clone(&self.handles[source].file));
                if self.model.opens[slot].ino == self.model.opens[source].ino {
                    // What it copied may be copied again: a peculiarity of memfs.
                    return Err(Errno::INVAL);
                }
                let copied = to.copy_from(cx, *offset, &*source_file, *from, *len)?;
                let ino = self.model.opens[source].ino;
                self.model.end_delay(ino);
                let source = &self.model.node(ino).data;
                let (from, copied) = (usize::try_from(*from).unwrap(), usize::try_from(copied).unwrap());
                let bytes = source.get(from..).unwrap_or_default();
                assert_eq!(copied, bytes.len().min(usize::try_from(*len).unwrap()), "copied");
                let bytes = bytes[..copied].to_vec();
                let mut data = self.model.node(self.model.opens[slot].ino).data.clone();
                let at = usize::try_from(*offset).unwrap();
                if !bytes.is_empty() {
                    data.resize(data.len().max(at + bytes.len()), 0);
                    data[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                self.model.changed(*slot, Cause::Write, !bytes.is_empty(), data);
            }
            Op::Reflink(slot, source) => {
                let (to, source_file) = (Arc::clone(&self.handles[slot].file), Arc::clone(&self.handles[source].file));
                to.reflink_from(cx, &*source_file)?;
                let ino = self.model.opens[source].ino;
                self.model.end_delay(ino);
                self.model.changed(*slot, Cause::Write, true, self.model.node(ino).data.clone());
            }
            _ => self.change_attributes(cx, op)?,
        }
        Ok(())
    }

    fn change_attributes(&mut self, cx: &Cx<'_>, op: &Op) -> Result<()> {
        let (Op::Truncate(target, _)
        | Op::Chmod(target, _)
        | Op::Chown(target, ..)
        | Op::Touch(target)
        | Op::SetXattr(target, ..)
        | Op::RemoveXattr(target, _)) = op
        else {
            unreachable!("{op:?}")
        };
        let (vnode, slot) = self.resolve(cx, target)?;
        let ino = vnode.id();
        let before = self.model.before.get(&ino).cloned().unwrap_or_default();
        let file = slot.map(|slot| Arc::clone(&self.handles[&slot].file));
        let set = |set: &SetAttr| vnode.setattr(cx, set, file.as_deref());
        match op {
            Op::Truncate(_, size) => {
                if vnode.kind() != Kind::Regular {
                    return Err(Errno::INVAL);
                }
                let writable = slot.is_none_or(|slot| self.model.opens[&slot].mode != Mode::Reads);
                if !writable {
                    return Err(Errno::INVAL);
                }
                set(&SetAttr { size: Some(*size), ..SetAttr::default() })?;
                self.model.truncated(ino, slot, usize::try_from(*size).unwrap());
            }
            Op::Chmod(_, mode) => {
                if vnode.kind() == Kind::Symlink {
                    return Err(Errno::OPNOTSUPP);
                }
                set(&SetAttr { mode: Some(*mode), ..SetAttr::default() })?;
                if before.mode != *mode {
                    self.model.attribute_changed(ino, Cause::Chmod);
                }
            }
            Op::Chown(_, uid, gid) => {
                set(&SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() })?;
                if (before.uid, before.gid) != (*uid, *gid) {
                    self.model.attribute_changed(ino, Cause::Chown);
                }
            }
            Op::Touch(_) => {
                let mtime = Some(SetTime::At(vnode::Time { sec: 77, nsec: 0 }));
                set(&SetAttr { mtime, ..SetAttr::default() })?;
                if self.options.comprehensive {
                    self.model.attribute_changed(ino, Cause::Times);
                }
            }
            Op::SetXattr(_, name, value, create) => {
                vnode.setxattr(cx, name, value, XattrFlags { create: *create, replace: false })?;
                if before.xattrs.get(name) != Some(value) {
                    self.model.attribute_changed(ino, Cause::Xattr);
                }
            }
            Op::RemoveXattr(_, name) => {
                vnode.removexattr(cx, name)?;
                self.model.attribute_changed(ino, Cause::Xattr);
            }
            _ => unreachable!(),
        }
        Ok(())
    }

    /// Reads an open file to the end, and compares it with the model.
    fn read(&mut self, cx: &Cx<'_>, slot: usize) -> Result<()> {
        let open = &self.model.opens[&slot];
        let mut data = vec![0; 40_000];
        let file = &self.handles[&slot].file;
        let read = file.read(cx, &mut data, 0)?;
        data.truncate(read);
        assert!(open.reads, "read through a file opened for writing only");
        assert!(data == self.model.node(open.ino).data, "slot {slot}: other bytes are read");
        Ok(())
    }

    fn close(&mut self, slot: usize) {
        drop(self.handles.remove(&slot));
        self.model.closed(slot);
    }

    fn close_all(&mut self) {
        for slot in self.handles.keys().copied().collect::<Vec<_>>() {
            self.close(slot);
        }
    }

    /// Kills the server: nothing that it does at a close happens.
    pub fn kill(&mut self) {
        for (_, handle) in core::mem::take(&mut self.handles) {
            core::mem::forget(handle);
        }
        self.mem = self.mem.recover(&Faults::new());
        core::mem::forget(core::mem::replace(&mut self.fs, VersionFs::new(self.mem.clone(), self.options)));
        self.model.killed();
        self.model.sweep();
    }

    /// Compares the lower tree with the model: heads and histories.
    pub fn check(&mut self, after: After) -> core::result::Result<(), String> {
        self.check_tree()?;
        let clean: Arc<dyn Layer> = self.mem.without_faults();
        let found = store::read_all(&clean, after)?;
        let keys = found.keys().chain(self.model.sets.keys()).cloned();
        for key in keys.collect::<std::collections::BTreeSet<_>>() {
            let found = found.get(&key).map_or(&[][..], Vec::as_slice);
            let expected = self.model.sets.get(&key).map_or(&[][..], Vec::as_slice);
            let adopted = compare(&key, found, expected, &self.unchanged).map_err(|error| {
                let found: Vec<_> = found.iter().map(show_found).collect();
                let expected: Vec<_> = expected.iter().map(show).collect();
                format!(
                    "{key:?}: {error}\nfound    {}\nexpected {}",
                    found.join("\n         "),
                    expected.join("\n         ")
                )
            })?;
            self.model.sets.insert(key, adopted);
        }
        Ok(())
    }

    /// Compares what users see with the model.
    pub fn check_tree(&self) -> core::result::Result<(), String> {
        let cx = Cx::internal(0, 0);
        let clean: Arc<dyn Layer> = self.mem.without_faults();
        for dir in self.model.dirs() {
            let vnode = self.dir(&cx, dir).map_err(|errno| format!("directory {dir}: {errno}"))?;
            let lower = clean.vnode(&cx, dir).map_err(|errno| format!("directory {dir}: {errno}"))?;
            let mut names = store::list(&vnode);
            names.sort();
            let expected: Vec<_> = self.model.node(dir).entries.keys().cloned().collect();
            if names != expected {
                return Err(format!("directory {dir}: {} names, not {}", names.len(), expected.len()));
            }
            let below = self.model.node(dir).entries.values();
            let dirs = below.filter(|child| self.model.node(**child).kind == Kind::Directory).count();
            let nlink = vnode.getattr(&cx).unwrap().nlink as usize;
            if nlink != dirs + 2 {
                return Err(format!("directory {dir}: nlink {nlink}, not {}", dirs + 2));
            }
            assert!(vnode.lookup(&cx, Name::new(STORE).unwrap()).unwrap().is_none());
            for (name, child) in &self.model.node(dir).entries {
                self.check_node(&vnode, &lower, name, *child)
                    .map_err(|error| format!("directory {dir}: {}: {error}", name.escape_ascii()))?;
            }
        }
        Ok(())
    }

    fn check_node(
        &self,
        dir: &Arc<dyn Vnode>,
        lower: &Arc<dyn Vnode>,
        name: &[u8],
        ino: u64,
    ) -> core::result::Result<(), String> {
        let cx = Cx::internal(0, 0);
        let node = self.model.node(ino);
        let vnode = store::get(dir, name).ok_or("it is missing")?;
        if (vnode.id(), vnode.kind()) != (ino, node.kind) {
            return Err(format!("{} {:?}", vnode.id(), vnode.kind()));
        }
        if node.kind == Kind::Directory {
            return Ok(());
        }
        let attr = vnode.getattr(&cx).unwrap();
        // A crash in a rename can leave a second name in the store, until the set is used.
        let is_unread = self.unchanged.references || node.kind != Kind::Regular;
        let is_left = !self.unchanged.contents.is_empty() && is_unread && attr.nlink == node.nlink + 1;
        if attr.nlink != node.nlink && !is_left {
            return Err(format!("nlink {}, not {}", attr.nlink, node.nlink));
        }
        if node.kind == Kind::Fifo {
            return Ok(());
        }
        if attr.size != node.data.len() as u64 {
            return Err(format!("size {}, not {}", attr.size, node.data.len()));
        }
        // Opening it would end a delayed truncation.
        let data = store::read(&store::get(lower, name).ok_or("it is missing below")?);
        if data != *node.old.as_ref().unwrap_or(&node.data) {
            return Err(format!("its {} bytes differ", data.len()));
        }
        Ok(())
    }

    /// Runs an operation with a fault. After a failed one the model is as before.
    pub fn run_with_fault(&mut self, op: &Op, plan: Plan) -> Result<()> {
        let faults = self.mem.faults().clone();
        faults.arm(plan);
        let result = self.run(op);
        if plan.fault != Fault::Crash {
            faults.disarm();
        }
        result
    }

    /// Whether the fault of [`Self::run_with_fault`] happened.
    pub fn fired(&self) -> bool {
        self.mem.faults().fired()
    }

    /// After a link that was not completed, a file may have its versions where those of files with
    /// several names are.
    pub fn adopt_links(&mut self) {
        let clean: Arc<dyn Layer> = self.mem.without_faults();
        let mut linked = Vec::new();
        for dir in self.model.dirs() {
            let Ok(lower) = clean.vnode(&Cx::internal(0, 0), dir) else { continue };
            let entries = &self.model.node(dir).entries;
            linked.extend(
                entries.iter().filter(|(name, ino)| store::is_linked(&lower, name, **ino)).map(|(_, ino)| *ino),
            );
        }
        for ino in linked {
            self.model.nodes.get_mut(&ino).unwrap().is_linked = true;
        }
    }

    /// Changes the mode of each file, which makes the layer read its version set.
    pub fn touch_all(&mut self) {
        let mut paths = BTreeMap::new();
        for dir in self.model.dirs() {
            for (name, child) in &self.model.node(dir).entries {
                if self.model.node(*child).kind == Kind::Regular {
                    paths.insert(*child, (dir, name.clone()));
                }
            }
        }
        for path in paths.into_values() {
            self.snapshot();
            self.run(&Op::Chmod(Target::Path(path), 0o640)).unwrap();
        }
    }
}

/// Returns what fallocate makes of some data.
fn allocated(data: &[u8], mode: u32, offset: u64, len: u64) -> Vec<u8> {
    let mut data = data.to_vec();
    let (start, end) = (usize::try_from(offset).unwrap(), usize::try_from(offset + len).unwrap());
    if mode & 1 == 0 && end > data.len() {
        data.resize(end, 0);
    }
    if mode & !1 != 0 {
        let limit = data.len();
        data[start.min(limit)..end.min(limit)].fill(0);
    }
    data
}

/// Compares the versions of a set. Returns those that exist.
fn compare(
    key: &Key,
    found: &[Found],
    expected: &[Ver],
    unchanged: &Unchanged,
) -> core::result::Result<Vec<Ver>, String> {
    let mut adopted = Vec::new();
    let mut rest = expected.iter().peekable();
    for version in found {
        while rest.peek().is_some_and(|next| next.maybe && !matches(version, next)) {
            rest.next();
        }
        match rest.peek() {
            Some(next) if matches(version, next) => {
                let maybe = next.maybe && !unchanged.contents.is_empty();
                adopted.push(Ver { maybe, ..(*next).clone() });
                rest.next();
            }
            _ if unchanged.permits(key, version) => {
                let Found { version, data, attrs } = version;
                let data = data.clone().unwrap_or_default();
                let (kind, cause, uid) = (version.kind, version.cause, version.who.uid);
                // The layer may find out yet that the operation did not happen.
                adopted.push(Ver { kind, cause, uid, data, attrs: attrs.clone(), maybe: true });
            }
            Some(next) => return Err(format!("found {}\nexpected {}", show_found(version), show(next))),
            None => return Err(format!("invented {}", show_found(version))),
        }
    }
    match rest.find(|next| !next.maybe) {
        Some(lost) => Err(format!("lost {}", show(lost))),
        None => Ok(adopted),
    }
}

fn matches(found: &Found, expected: &Ver) -> bool {
    let version = &found.version;
    let same_data = match &found.data {
        None => expected.cause == Cause::Rename,
        Some(data) => *data == expected.data,
    };
    let in_file = version.letter != Letter::Renamed && expected.kind == Kind::Regular;
    let (theirs, ours) = (&found.attrs, &expected.attrs);
    version.kind == expected.kind
        && version.cause == expected.cause
        && version.who.uid == expected.uid
        && same_data
        && (!in_file || theirs.xattrs == ours.xattrs)
        && (!in_file || version.size == expected.data.len() as u64)
        && (theirs.mode, theirs.uid, theirs.gid) == (ours.mode, ours.uid, ours.gid)
}

fn excerpt(data: &[u8]) -> String {
    format!("{} bytes {}...", data.len(), data[..data.len().min(12)].escape_ascii())
}

fn show(ver: &Ver) -> String {
    let Ver { kind, cause, uid, data, attrs, maybe } = ver;
    let Attrs { mode, uid: owner, gid, xattrs, .. } = attrs;
    format!(
        "{kind:?} {cause:?} by {uid}, {mode:o} {owner}:{gid} {} xattrs, {} maybe {maybe}",
        xattrs.len(),
        excerpt(data)
    )
}

fn show_found(found: &Found) -> String {
    let Found { version, data, attrs } = found;
    let Attrs { mode, uid: owner, gid, xattrs, .. } = attrs;
    let (letter, number) = (version.letter as u8 as char, version.number);
    let (kind, cause, uid) = (version.kind, version.cause, version.who.uid);
    let data = data.as_ref().map_or_else(|| "a reference".to_owned(), |data| excerpt(data));
    format!("{letter}{number}: {kind:?} {cause:?} by {uid}, {mode:o} {owner}:{gid} {} xattrs, {data}", xattrs.len())
}
