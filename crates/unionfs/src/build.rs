//! Making a union of branches.

use crate::branch::{BranchId, BranchState, Lower};
use crate::copyup::keeping_times;
use crate::core::Core;
use crate::identity::{Identity, Known, ROOT};
use crate::log::{HEADER, Log, Reader, Record, write_all};
use crate::marks::MOVED;
use crate::node::UnionVnode;
use crate::op::Op;
use crate::options::{Branch, BuildError, Mode, Options};
use crate::ownfiles::move_aside;
use crate::set::{BranchSet, Member};
use crate::table::Interned;
use crate::trust::is_servers;
use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vnode::{Command, Cx, Errno, Kind, Layer, Name, OpenFlags, Properties, RenameFlags, Result, Upcalls, Vnode};

const IDENT: &[u8] = b".wh..wh.ident";
/// Tags 1 to this are given to branches: they fill bits 62..48 of a number.
const TAGS: u16 = 0x7ffe;

/// Several directories unified into one.
#[derive(Debug)]
pub struct Unionfs {
    core: Arc<Core>,
    root: Arc<UnionVnode>,
}

impl Unionfs {
    /// Makes a union of `branches`, the first of which has the highest precedence. If any is read-write the first must be.
    /// Reads the identity log, and removes what an interrupted union left unfinished.
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn new(branches: Vec<Branch>, options: Options) -> std::result::Result<Arc<Self>, BuildError> {
        check(&branches)?;
        let writes = branches.iter().any(|b| b.mode == Mode::ReadWrite);
        let first = branches.first().ok_or(BuildError::NoBranches)?;
        let path = first.path.clone();
        let step = |what| {
            let path = path.clone();
            move |errno| BuildError::Step { what, path, errno }
        };
        let cx = Cx::internal(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let root = first.layer.root();
        let mut loaded = load(&cx, &root, &path).map_err(step("reading the identity log"))?;
        let (tags, fresh) = tag(&branches, &mut loaded.known);
        let log = if writes {
            let log = write_log(&cx, (&root, &path), &loaded, fresh);
            Some(log.map_err(|errno| why_not_written(&cx, &root, &path, errno))?)
        } else {
            None
        };
        let members = branches.into_iter().zip(tags).zip(0..).map(|((branch, tag), id)| Member {
            id: BranchId(id),
            mode: branch.mode,
            state: Arc::new(BranchState::new(branch, tag)),
        });
        let set = BranchSet::new(1, members.collect());
        let core = Arc::new(Core::new(set, options, Identity::new(loaded.known, log)));
        let set = core.branches.get();
        let op = Op::new(&cx, &set);
        for member in &set.order {
            prepare(&core, &op, member)?;
        }
        for member in set.writables() {
            core.prepare_spare(&op, member.id);
        }
        core.complete_names(&op).map_err(step("counting the names of files"))?;
        let root = make_root(&core, &set).map_err(step("making the root"))?;
        Ok(Arc::new(Self { core, root }))
    }
}

/// Why the identity log can't be written. Where files can be made, and only the name is refused, another union does that.
fn why_not_written(cx: &Cx<'_>, root: &Arc<dyn Vnode>, path: &Path, errno: Errno) -> BuildError {
    if errno == Errno::PERM && root.tmpfile(cx, 0o600, OpenFlags::RDWR).is_ok() {
        return BuildError::NamesRefused(path.to_owned());
    }
    BuildError::NotWritable(path.to_owned(), errno)
}

fn check(branches: &[Branch]) -> std::result::Result<(), BuildError> {
    let first = branches.first().ok_or(BuildError::NoBranches)?;
    if branches.len() > usize::from(TAGS) {
        return Err(BuildError::TooManyBranches);
    }
    let mut seen = HashSet::new();
    for branch in branches {
        if !seen.insert(&branch.path) {
            return Err(BuildError::Duplicate(branch.path.clone()));
        }
        if branch.layer.root().kind() != Kind::Directory {
            return Err(BuildError::NotDirectory(branch.path.clone()));
        }
    }
    if first.mode != Mode::ReadWrite && branches.iter().any(|b| b.mode == Mode::ReadWrite) {
        return Err(BuildError::LeftmostReadOnly(first.path.clone()));
    }
    Ok(())
}

/// What was found in the leftmost branch.
#[derive(Default)]
struct Loaded {
    known: Known,
    /// How many bytes of the log are good.
    end: u64,
    /// How many it has.
    len: u64,
    /// There is something in it that must not stay.
    unclean: bool,
}

/// Reads the log in the leftmost branch.
fn load(cx: &Cx<'_>, root: &Arc<dyn Vnode>, path: &Path) -> Result<Loaded> {
    let mut loaded = Loaded::default();
    let Some(entry) = root.lookup(cx, Name::new(IDENT)?)? else { return Ok(loaded) };
    let branch = path.display();
    if entry.vnode.kind() != Kind::Regular {
        tracing::warn!(%branch, "the identity log .wh..wh.ident is no file: ignored");
        return Ok(loaded);
    }
    if !is_servers(&entry.attr, cx.uid) {
        // It could give one user's file the number, and by the index of hard links the data, of another's.
        let owner = entry.attr.uid;
        tracing::warn!(
            %branch,
            owner,
            "the identity log .wh..wh.ident is ignored: others than root and the server's user own it or may write it; numbers \
             of files change"
        );
        return Ok(loaded);
    }
    let file = entry.vnode.open(cx, OpenFlags::RDONLY)?;
    let read = Reader::read(&*file, cx, &mut |record| loaded.known.apply(record))?;
    if read.good < entry.attr.size {
        let lost = entry.attr.size - read.good;
        tracing::warn!(%branch, lost, "the end of the identity log is damaged: some numbers of files change");
    }
    if read.skipped > 0 {
        tracing::warn!(%branch, records = read.skipped, "the identity log names impossible paths: these records are ignored");
    }
    Ok(Loaded { end: read.good, len: entry.attr.size, unclean: read.skipped > 0, ..loaded })
}

/// The tags of the branches; those that had none get one. The records of these are answered too.
fn tag(branches: &[Branch], known: &mut Known) -> (Vec<u16>, Vec<Record>) {
    let mut used: HashSet<u16> = known.tags.values().copied().collect();
    let mut next = 1;
    let mut fresh = Vec::new();
    let mut tags = Vec::new();
    let mut taken = HashSet::new();
    for branch in branches {
        let path = branch.path.as_os_str().as_bytes();
        let old = known.tags.get(path).copied().filter(|&tag| (1..=TAGS).contains(&tag) && taken.insert(tag));
        let tag = old.unwrap_or_else(|| {
            while next < TAGS && !used.insert(next) {
                next += 1;
            }
            taken.insert(next);
            let record = Record::Tag { tag: next, path: path.to_vec() };
            known.apply(record.clone());
            fresh.push(record);
            next
        });
        tags.push(tag);
    }
    (tags, fresh)
}

/// Opens the log for appending. Where it has no good beginning, or more than half of it is out of date, it is written anew.
fn write_log(cx: &Cx<'_>, (root, path): (&Arc<dyn Vnode>, &Path), loaded: &Loaded, fresh: Vec<Record>) -> Result<Log> {
    let &Loaded { ref known, end, len, unclean } = loaded;
    let mut all = HEADER.to_vec();
    for record in known.records() {
        all.extend(record.encode()?);
    }
    let name = Name::new(IDENT)?;
    if unclean || end < HEADER.len() as u64 || (all.len() as u64) < end / 2 {
        return keeping_times(cx, root, || rewrite_log(cx, (root, path), name, &all));
    }
    let entry = root.lookup(cx, name)?.ok_or(Errno::IO)?;
    let file = entry.vnode.open(cx, OpenFlags::RDWR)?;
    if len > end {
        let cut = vnode::SetAttr { size: Some(end), ..vnode::SetAttr::default() };
        entry.vnode.setattr(cx, &cut, Some(&*file))?;
    }
    let mut log = Log::new(file, end);
    for record in fresh {
        log.append(cx, [&record])?;
    }
    Ok(log)
}

/// Writes the log aside and renames it into place.
fn rewrite_log(cx: &Cx<'_>, (root, path): (&Arc<dyn Vnode>, &Path), name: Name<'_>, bytes: &[u8]) -> Result<Log> {
    let aside = Name::new(b".wh..wh.ident.new")?;
    // A log, whole or not, can go. Nothing else of these names is ours.
    for old in [name, aside] {
        let found = root.lookup(cx, old)?;
        if found.as_ref().is_some_and(|entry| entry.vnode.kind() != Kind::Regular) {
            move_aside(cx, root, old, path)?;
        } else if found.is_some() && old == aside {
            root.unlink(cx, old)?;
        }
    }
    let (_, file) = root.create(cx, aside, 0o600, OpenFlags::RDWR)?;
    write_all(&*file, cx, bytes, 0)?;
    file.fsync(cx, true)?;
    root.rename(cx, aside, root, name, RenameFlags::default())?;
    Ok(Log::new(file, bytes.len() as u64))
}

/// Takes up what an earlier union left in a branch.
fn prepare(core: &Core, op: &Op<'_>, member: &Member) -> std::result::Result<(), BuildError> {
    let branch = &member.state;
    let step = |what| move |errno| BuildError::Step { what, path: branch.path.clone(), errno };
    let moved =
        Name::new(MOVED).and_then(|name| branch.root.lookup(op, name)).map_err(step("looking for redirects"))?;
    branch.moved.store(moved.is_some(), Ordering::Release);
    core.load_links(op, member.id).map_err(step("reading the index of hard links"))?;
    if member.mode == Mode::ReadWrite
        && let Err(errno) = core.clean_work(op, member.id)
    {
        // In the way of nothing.
        tracing::warn!(%errno, branch = %branch.path.display(), "the work directory could not be emptied");
    }
    Ok(())
}

fn make_root(core: &Arc<Core>, set: &BranchSet) -> Result<Arc<UnionVnode>> {
    let stack: Arc<[Lower]> = set.roots().into();
    let leftmost = stack.first().cloned().ok_or(Errno::IO)?;
    match core.table.intern(ROOT, || UnionVnode::new(core, ROOT, None, leftmost, Some(stack))) {
        Interned::New(root) | Interned::Present(root) => Ok(root),
    }
}

impl Drop for Unionfs {
    fn drop(&mut self) {
        let cx = self.core.own();
        if let Err(errno) = self.core.identity.flush(&cx) {
            tracing::warn!(%errno, "the end of the identity log is lost: some numbers and link counts of files change");
        }
        let set = self.core.branches.get();
        for member in set.writables() {
            self.core.drop_work(&Op::new(&cx, &set), member.id);
        }
    }
}

impl Layer for Unionfs {
    fn root(&self) -> Arc<dyn Vnode> {
        self.root.clone()
    }

    fn properties(&self) -> Properties {
        let set = self.core.branches.get();
        let below = set.order.iter().map(|b| b.state.layer.properties());
        let below = below.reduce(Properties::join).unwrap_or_default();
        Properties {
            read_only: set.read_only,
            may_hang: below.may_hang || set.order.iter().any(|b| b.mode == Mode::NfsReadOnly),
            watches_refusals: false,
            ..below
        }
    }

    fn attach(&self, upcalls: Arc<dyn Upcalls>) {
        self.core.attach(upcalls);
    }

    fn vnode(&self, _cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        if number == self.root.id() {
            return Ok(self.root());
        }
        let live = self.core.table.get(number).ok_or(Errno::STALE)?;
        Ok(live)
    }

    fn commands(&self) -> Vec<Command> {
        Vec::new()
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        cx.require_blocking()?;
        let mut done = self.core.identity.flush(&self.core.as_server(cx));
        for branch in self.core.branches.get().order.iter().filter(|b| b.mode == Mode::ReadWrite) {
            // One that fails keeps no other from being written.
            done = done.and(branch.state.layer.sync(cx));
        }
        done
    }
}
