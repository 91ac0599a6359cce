//! Branches that no union uses: views of them, read-only or with a writable leftmost branch, and
//! the names of a union's records. For tools that move changes from one branch to another
//! (`crates/changes`).

use crate::branch::Lower;
use crate::build::Unionfs;
pub use crate::copied::Copied;
pub use crate::copydata::is_acl_alias;
use crate::inode_number::{compose, lower_of, tag_of};
use crate::log::{Alias, Record as LogRecord, Tagged};
use crate::lookup::Hit;
use crate::metacopy::{as_metacopy, metacopy_of};
use crate::node::{Core, UnionVnode};
use crate::op::Op;
use crate::opaque_redirect::{OPAQUE, is_redirect};
use crate::options::{Branch, BuildError, Metacopy, Mode, Options};
use crate::ownnames::LINKS;
use crate::recorded::LinkCount;
use crate::records::Source;
use crate::set::{BranchSet, Member};
use crate::whiteout::{Listed, OLD_OPAQUE, WhiteoutName, classify};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use vnode::{Cx, DirEntry, Entry, Errno, Kind, Layer, Name, Result, Vnode};

/// The meaning of a name in a directory of a branch: docs/formats/union-branch.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A user's file.
    Entry,
    /// A whiteout of this name.
    Whiteout(&'a [u8]),
    /// A whiteout of the name for which [`whiteout_name`] returns this name.
    LongWhiteout,
    /// An opaque mark.
    Opaque,
    /// A redirect.
    Redirect,
    /// A metacopy of the file with this name.
    Metacopy(&'a [u8]),
    /// Another record, or a reserved name without a meaning.
    Other,
}

impl<'a> Record<'a> {
    /// Returns the meaning of a name.
    #[must_use]
    pub fn of(name: &'a [u8]) -> Self {
        match classify(name) {
            Listed::Plain => Self::Entry,
            Listed::Whiteout(hidden) => Self::Whiteout(hidden),
            Listed::LongWhiteout(_) => Self::LongWhiteout,
            Listed::Mark if name == OPAQUE || name == OLD_OPAQUE => Self::Opaque,
            Listed::Mark if is_redirect(name) => Self::Redirect,
            Listed::Mark => metacopy_of(name).map_or(Self::Other, Self::Metacopy),
        }
    }
}

/// The name of an opaque mark.
pub const OPAQUE_MARK: &[u8] = OPAQUE;

/// The directory in a branch's root with the index of hard links.
pub const LINK_INDEX: &[u8] = LINKS;

/// The file in a branch's root that says that the branch may have redirects.
pub const RENAMED: &[u8] = crate::opaque_redirect::MOVED;

/// The file in a branch's root that says that the branch may have metacopies.
pub const METACOPIES: &[u8] = crate::metacopy::METACOPIES;

/// Returns the name of the whiteout of `name`.
#[must_use]
pub fn whiteout_name(name: &[u8]) -> Vec<u8> {
    WhiteoutName::of(name).name().map(|name| name.as_bytes().to_vec()).unwrap_or_default()
}

/// Returns whether the first of these branches is a copy of the directory that a union wrote, by
/// the records of that union. The next union that can write the branch records when that was
/// recognised.
///
/// # Errors
/// Those of reading the branch's identity log.
pub fn copied(cx: &Cx<'_>, branches: &[(Arc<dyn Layer>, PathBuf)]) -> Result<Option<Copied>> {
    let Some(((layer, path), below)) = branches.split_first() else { return Ok(None) };
    let below: Vec<_> = below.iter().map(|(layer, _)| layer.fingerprint()).collect();
    Ok(Source::read(cx, layer, path, true)?.copied(&below))
}

/// Whether the records of the first of these branches may concern a branch that is not among them:
/// its log knows another branch, or none of those to the right. A branch that was removed from the
/// union remains in the log.
///
/// # Errors
/// Those of reading the branch's identity log.
pub fn lacks_branches(cx: &Cx<'_>, branches: &[(Arc<dyn Layer>, PathBuf)]) -> Result<bool> {
    let Some(((layer, path), below)) = branches.split_first() else { return Ok(false) };
    let source = Source::read(cx, layer, path, true)?;
    let below = below.iter().map(|(layer, path)| source.knows(path, layer.fingerprint()));
    let known: Vec<Option<u16>> = below.collect();
    let own = source.knows(path, layer.fingerprint());
    let is_given = |tag: u16| own == Some(tag) || known.contains(&Some(tag));
    Ok(known.iter().all(Option::is_none) || source.branches().any(|tag| !is_given(tag)))
}

/// A read-only union of branches. It shows what a mounted union of them would show.
#[derive(Clone, Debug)]
pub struct View(Arc<Unionfs>);

impl View {
    /// Builds the union of these branches, given with their paths, from left to right.
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn new(branches: &[(Arc<dyn Layer>, PathBuf)]) -> std::result::Result<Self, BuildError> {
        let read_only = |(layer, path): &(Arc<dyn Layer>, PathBuf)| Branch {
            layer: Arc::clone(layer),
            path: path.clone(),
            mode: Mode::ReadOnly,
        };
        Unionfs::new(branches.iter().map(read_only).collect(), Options::default()).map(Self)
    }

    /// Returns the union as a layer.
    #[must_use]
    pub fn layer(&self) -> Arc<dyn Layer> {
        self.0.clone()
    }

    /// Returns the root directory.
    #[must_use]
    pub fn root(&self) -> Arc<dyn Vnode> {
        self.0.root()
    }

    /// Returns the object with this number.
    ///
    /// # Errors
    /// `ESTALE` if there is none.
    pub fn by_number(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        self.0.vnode(cx, number)
    }

    /// Returns the lower directories that a directory of this view merges, with the positions of
    /// their branches, from left to right.
    ///
    /// # Errors
    /// `ENOTDIR`; `EXDEV` if it is not an object of this view.
    pub fn parts(&self, dir: &Arc<dyn Vnode>) -> Result<Vec<(usize, Arc<dyn Vnode>)>> {
        let (dir, set) = (self.own(dir)?, self.set());
        let parts = dir.stack()?;
        Ok(parts.iter().map(|part| (set.position(part.branch), Arc::clone(&part.vnode))).collect())
    }

    /// Returns the lower object of a file, with the position of its branch. For a metacopied file,
    /// this is the file with the data.
    ///
    /// # Errors
    /// `EXDEV` if it is not an object of this view.
    pub fn lower(&self, file: &Arc<dyn Vnode>) -> Result<(usize, Arc<dyn Vnode>)> {
        let (file, set) = (self.own(file)?, self.set());
        let Lower { vnode, branch } = file.leaf();
        let data = as_metacopy(&vnode).map(|meta| Arc::clone(meta.data()));
        Ok((set.position(branch), data.unwrap_or(vnode)))
    }

    /// Returns the lower object that the file's inode number was made from: the position of its
    /// branch, and its inode number there. That of a copied-up file is the original's. `None` if it
    /// is not known.
    ///
    /// # Errors
    /// `EXDEV` if it is not an object of this view.
    pub fn origin(&self, file: &Arc<dyn Vnode>) -> Result<Option<(usize, u64)>> {
        let (number, set) = (self.own(file)?.id, self.set());
        let at = tag_of(number).and_then(|tag| set.order.iter().position(|member| member.state.tag == tag));
        Ok(at.map(|at| (at, lower_of(number))))
    }

    /// Returns what branches to the left of these know a file by. `None` if it is not known.
    ///
    /// # Errors
    /// Those of reading the file; `EXDEV` if it is not an object of this view.
    pub fn known_as(&self, file: &Arc<dyn Vnode>) -> Result<Option<KnownAs>> {
        let (file, set) = (self.own(file)?, self.set());
        let identity = &self.0.core().identity;
        let tags = identity.tags().tags;
        let Some(branch) = tag_of(file.id).and_then(|tag| tags.get(&tag)) else { return Ok(None) };
        let leaf = file.leaf();
        let alias = identity.alias(set.branch(leaf.branch)?.tag, leaf.vnode.id());
        let generation = match alias.filter(|alias| alias.number == file.id) {
            Some(alias) => alias.generation,
            None => leaf.vnode.generation(),
        };
        Ok(Some(KnownAs { branch: branch.clone(), lower: lower_of(file.id), generation }))
    }

    /// Returns the inode number that a lower object would have in this view if it had none of its
    /// own: the inverse of [`Self::origin`].
    ///
    /// # Errors
    /// `ESTALE` if there is no such branch.
    pub fn number(&self, (at, lower): (usize, u64)) -> Result<u64> {
        let set = self.set();
        let member = set.order.get(at).ok_or(Errno::STALE)?;
        set.natural_number(member.id, lower)
    }

    /// Returns the inode number in this view of the file with this entry of the leftmost branch's
    /// index of hard links. `None` for other names, and if it is not known.
    #[must_use]
    pub fn indexed_number(&self, name: &[u8]) -> Option<u64> {
        self.set().order.first()?.state.indexed_number(name)
    }

    /// Whether the object with this number was first found on a branch of this view. False if that
    /// is not known.
    #[must_use]
    pub fn is_from_here(&self, number: u64) -> bool {
        let set = self.set();
        tag_of(number).is_some_and(|tag| set.order.iter().any(|member| member.state.tag == tag))
    }

    /// Returns the path at which the branches right of the leftmost one have the other parts of a
    /// directory, if the leftmost part has a redirect.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn redirect(&self, cx: &Cx<'_>, parent: &Arc<dyn Vnode>, name: Name<'_>) -> Result<Option<Vec<u8>>> {
        let (parent, set) = (self.own(parent)?, self.set());
        let op = Op::new(cx, &set);
        match self.core(parent).probe(&op, &parent.stack()?, name)?.hit {
            crate::lookup::Hit::Dir { redirect, .. } => Ok(redirect.map(Vec::from)),
            _ => Ok(None),
        }
    }

    /// Whether `name` would be visible in a directory of this view if the leftmost branch had
    /// neither an entry nor a whiteout of that name.
    ///
    /// # Errors
    /// Those of looking it up.
    pub fn shows_through(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: Name<'_>) -> Result<bool> {
        let (dir, set) = (self.own(dir)?, self.set());
        let op = Op::new(cx, &set);
        self.core(dir).shows_through(&op, &dir.stack()?, set.leftmost()?, name)
    }

    /// Whether a branch has records from which link counts are calculated.
    #[must_use]
    pub fn counts_links(&self) -> bool {
        !counted(self.0.core()).is_empty()
    }

    fn set(&self) -> Arc<BranchSet> {
        self.0.core().branches.get()
    }

    fn core<'a>(&self, vnode: &'a UnionVnode) -> &'a Arc<Core> {
        &vnode.core
    }

    fn own<'a>(&self, vnode: &'a Arc<dyn Vnode>) -> Result<&'a UnionVnode> {
        let own = vnode.as_any().downcast_ref::<UnionVnode>();
        own.filter(|own| Arc::ptr_eq(&own.core, self.0.core())).ok_or(Errno::XDEV)
    }
}

/// Returns the files whose link count is calculated from records.
fn counted(core: &Core) -> BTreeSet<u64> {
    core.identity.counted().into_iter().chain(core.links.numbers()).collect()
}

/// What other branches know a file by after it moved from its branch to the next: it keeps that
/// ([`Writable::keep_known_as`]).
#[derive(Clone, Debug)]
pub struct KnownAs {
    /// The branch whose object had the number, and that object's inode number and generation.
    branch: Tagged,
    lower: u64,
    generation: u32,
}

/// A union of branches of which only the leftmost is written. It copies up with the data.
#[derive(Clone, Debug)]
pub struct Writable(Arc<Unionfs>);

impl Writable {
    /// Builds the union of these branches, given with their paths, from left to right.
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn new(branches: &[(Arc<dyn Layer>, PathBuf)]) -> std::result::Result<Self, BuildError> {
        let branch = |(at, (layer, path)): (usize, &(Arc<dyn Layer>, PathBuf))| Branch {
            layer: Arc::clone(layer),
            path: path.clone(),
            mode: if at == 0 { Mode::ReadWrite } else { Mode::ReadOnly },
        };
        let options = Options { metacopy: Metacopy::Off, no_passthrough: true, ..Options::default() };
        Unionfs::new(branches.iter().enumerate().map(branch).collect(), options).map(Self)
    }

    /// Returns the root directory.
    #[must_use]
    pub fn root(&self) -> Arc<dyn Vnode> {
        self.0.root()
    }

    /// Gives a name of a lower file, which leads to the file's copy on the leftmost branch by the
    /// index of hard links, an entry of its own there. Users see no change. Does nothing for names
    /// that have an entry, or whose file was not copied to the leftmost branch.
    ///
    /// # Errors
    /// Those of the leftmost branch; `EXDEV` if `dir` is not a directory of this union; `ESTALE` if
    /// the directory can't be copied there.
    pub fn give_entry(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: Name<'_>) -> Result<()> {
        let core = self.0.core();
        let set = core.branches.get();
        let (op, leftmost) = (Op::new(cx, &set), set.leftmost()?);
        let dir = crate::node::same_layer(core, dir)?;
        let dir = core.table.get(dir.id).ok_or(Errno::STALE)?;
        let Some(found) = dir.lookup(cx, name)? else { return Ok(()) };
        let file = crate::node::same_layer(core, &found.vnode)?;
        if found.vnode.kind() == Kind::Directory || file.branch() != leftmost {
            return Ok(());
        }
        if !core.ensure_part(&op, &dir, leftmost)? {
            return Err(Errno::STALE);
        }
        let _locked = dir.lock_entry(cx, name)?;
        match core.probe(&op, &dir.stack()?, name)?.hit {
            Hit::Leaf { branch, entry } if core.link_copied_name(&op, file, &dir, name, (branch, &entry))? => {
                dir.entry_is_elsewhere(name);
                Ok(())
            }
            _ => Err(Errno::STALE),
        }
    }

    /// Records on the leftmost branch that other branches know files of that branch by other
    /// numbers: the copies that they have of them remain copies of them. Does nothing for a number
    /// that another file has. The records are durable then.
    ///
    /// # Errors
    /// Those of reading the files and of writing the log.
    pub fn keep_known_as(&self, cx: &Cx<'_>, files: &[(Arc<dyn Vnode>, KnownAs)]) -> Result<()> {
        let core = self.0.core();
        let set = core.branches.get();
        let leftmost = set.leftmost()?;
        let tag = set.branch(leftmost)?.tag;
        let mut records = Vec::new();
        for (file, known) in files {
            let number = compose(core.identity.tag_branch(&known.branch), known.lower);
            if core.links.branch(number) == Some(leftmost) {
                continue;
            }
            if set.natural_number(leftmost, file.id())? != number {
                let born = file.getattr(cx)?.btime.unwrap_or_default();
                let alias = Alias { born, number, generation: known.generation };
                records.push(LogRecord::Alias { tag, lower: file.id(), alias });
            }
            // The file now has the names that the branch counted.
            if core.identity.names_by(number, tag) != LinkCount::default() {
                records.push(LogRecord::Names { by: tag, number, first: 0, used: 0 });
            }
        }
        if records.is_empty() {
            return Ok(());
        }
        core.identity.append_all(cx, records)?;
        self.0.sync(cx)
    }

    /// Gives copies on the leftmost branch that were renamed numbers of their own if their
    /// originals are visible again: each was known by the number of its original.
    ///
    /// # Errors
    /// Those of reading the branches and of writing the log.
    pub fn separate_numbers(&self, cx: &Cx<'_>) -> Result<()> {
        let core = self.0.core();
        let set = core.branches.get();
        let op = Op::new(cx, &set);
        let tag = set.branch(set.leftmost()?)?.tag;
        for (lower, alias) in core.identity.aliases_on(tag) {
            let of_original = tag_of(alias.number).filter(|of| *of != tag && core.links.branch(alias.number).is_none());
            let member = set.order.iter().find(|member| Some(member.state.tag) == of_original);
            let Some(member) = member else { continue };
            let Some(original) = original(cx, member, alias.number)? else { continue };
            let is_reused = alias.generation != 0 && original.generation() != alias.generation;
            if original.kind() != Kind::Directory && !is_reused && core.is_shown(&op, member, &original)? {
                core.identity.append(cx, LogRecord::Unalias { tag, lower })?;
            }
        }
        Ok(())
    }

    /// Corrects the link counts that differ from the number of names in the union, and drops the
    /// records of files that don't exist any more. Names outside of the branches count too.
    ///
    /// # Errors
    /// Those of reading the branches and of writing the log.
    pub fn correct_link_counts(&self, cx: &Cx<'_>) -> Result<()> {
        let core = self.0.core();
        let set = core.branches.get();
        let op = Op::new(cx, &set);
        let numbers = counted(core);
        let mut visible: BTreeMap<u64, Counted> = BTreeMap::new();
        if !numbers.is_empty() {
            each_file(cx, self.root(), |entry| {
                if numbers.contains(&entry.vnode.id()) {
                    let leaf = crate::node::same_layer(core, &entry.vnode)?.leaf();
                    let new = Counted { visible: 0, shown: entry.attr.nlink, leaf };
                    visible.entry(entry.vnode.id()).or_insert(new).visible += 1;
                }
                Ok(())
            })?;
        }
        if visible.values().any(|file| file.shown > file.visible) {
            self.add_outside(cx, &mut visible)?;
        }
        for number in numbers {
            let known = core.identity.names(number);
            match (visible.get(&number), known) {
                (Some(&Counted { visible, shown, .. }), _) if visible > shown => {
                    core.raise_link_count(&op, number, visible - shown)?;
                }
                (Some(&Counted { visible, shown, .. }), Some(_)) if shown > visible => {
                    core.lower_link_count(&op, number, shown - visible)?;
                }
                (None, Some(_)) if self.is_gone(cx, number) => core.drop_names(&op, number),
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds the names outside of the branches to those that are visible in the union.
    fn add_outside(&self, cx: &Cx<'_>, files: &mut BTreeMap<u64, Counted>) -> Result<()> {
        let core = self.0.core();
        let set = core.branches.get();
        for member in &set.order {
            // By lower number: the file's number, and how many of its names were not found yet.
            let mut left: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
            for (&number, file) in files.iter() {
                let lower = if file.leaf.branch == member.id {
                    Arc::clone(&file.leaf.vnode)
                } else if tag_of(number) == Some(member.state.tag) {
                    match original(cx, member, number)? {
                        Some(original) => original,
                        None => continue,
                    }
                } else {
                    continue;
                };
                left.insert(lower.id(), (number, lower.getattr(cx)?.nlink));
            }
            if !left.is_empty() {
                each_file(cx, Arc::clone(&member.state.root), |entry| {
                    if let Some((_, names)) = left.get_mut(&entry.vnode.id()) {
                        *names = names.saturating_sub(1);
                    }
                    Ok(())
                })?;
            }
            for (number, outside) in left.into_values() {
                if let Some(file) = files.get_mut(&number) {
                    file.visible = file.visible.saturating_add(outside);
                }
            }
        }
        Ok(())
    }

    /// Whether no branch has the lower file with this number.
    fn is_gone(&self, cx: &Cx<'_>, number: u64) -> bool {
        let core = self.0.core();
        let set = core.branches.get();
        let member = set.order.iter().find(|member| Some(member.state.tag) == tag_of(number));
        let original = member.map(|member| member.state.layer.vnode(cx, lower_of(number)));
        core.links.branch(number).is_none()
            && core.identity.aliases_of(number).is_empty()
            && matches!(original, Some(Err(Errno::STALE | Errno::NOENT)))
    }
}

/// A file whose link count is calculated.
struct Counted {
    /// Number of its names in the union, and outside of the branches once these are known.
    visible: u32,
    /// Its link count.
    shown: u32,
    leaf: Lower,
}

/// Returns the lower file that a number was made from, if its branch still has it.
fn original(cx: &Cx<'_>, member: &Member, number: u64) -> Result<Option<Arc<dyn Vnode>>> {
    match member.state.layer.vnode(cx, lower_of(number)) {
        Err(Errno::STALE | Errno::NOENT) => Ok(None),
        found => found.map(Some),
    }
}

/// Calls `take` with each name of a file in a tree.
pub(crate) fn each_file(cx: &Cx<'_>, root: Arc<dyn Vnode>, mut take: impl FnMut(&Entry) -> Result<()>) -> Result<()> {
    let mut todo = vec![root];
    while let Some(dir) = todo.pop() {
        for name in names(cx, &dir)? {
            match dir.lookup(cx, Name::new(&name)?)? {
                Some(entry) if entry.vnode.kind() == Kind::Directory => todo.push(entry.vnode),
                Some(entry) => take(&entry)?,
                None => {}
            }
        }
    }
    Ok(())
}

/// Returns the names in a directory.
fn names(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let mut sink = |entry: &DirEntry<'_>| {
        names.push(entry.name.as_bytes().to_vec());
        true
    };
    dir.readdir(cx, 0, &mut sink)?;
    Ok(names)
}
