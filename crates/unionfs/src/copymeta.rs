//! Creation of metacopies: docs/design/unionfs.md, "Copy-up of attributes".

use crate::branch::{BranchId, Lower};
use crate::changeable::Changeable;
use crate::copydata::copy_owner;
use crate::copyup::Built;
use crate::listing::EntryChange;
use crate::metacopy::{METACOPIES, MetaCopy, ORIGIN, Origin, as_metacopy, metacopy_name};
use crate::node::{Core, Place, UnionVnode};
use crate::op::Op;
use crate::options::Metacopy;
use crate::ownfiles::link_over;
use crate::retry::Retries;
use crate::trust::is_servers;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vnode::{Attr, Errno, Kind, Name, OpenFlags, RenameFlags, Result, SetAttr, Vnode, XattrFlags};

/// The privileges that a change of attributes grants to a file or its new owner. With a metacopy,
/// the data remains in the lower file. A user who can write the lower file could then
/// change, for example, the code of a program that the change made set-user-ID. Such changes need a
/// copy of the data instead.
#[derive(Clone, Copy, Default)]
pub(crate) struct Grants {
    /// The new owner, if the change sets one.
    owner: Option<u32>,
    /// Whether the change sets set-ID bits, capabilities or other `security.*` attributes, which
    /// affect every user who runs the file.
    rights: bool,
}

impl Grants {
    /// Returns the privileges that a setattr grants.
    pub(crate) fn of_setattr(set: &SetAttr) -> Self {
        Self { owner: set.uid, rights: set.mode.is_some_and(|mode| mode & SET_ID != 0) }
    }

    /// Returns the privileges that setting this extended attribute grants.
    pub(crate) fn of_xattr(name: &[u8]) -> Self {
        Self { rights: name.starts_with(SECURITY), ..Self::default() }
    }

    /// Whether the change requires a copy of the data, because a user other than root and the user
    /// `server` may be able to write the lower file. `data`: the attributes of the lower file.
    fn needs_copy(self, data: &Attr, server: u32) -> bool {
        !is_servers(data, server) && (self.rights || self.owner.is_some_and(|owner| owner != data.uid))
    }
}

/// The set-user-ID and set-group-ID bits.
const SET_ID: u32 = 0o6000;
/// Prefix of the names of capabilities and security labels.
const SECURITY: &[u8] = b"security.";

/// A metacopy to be created, of a file on a branch that the union does not write to.
struct Plan<'a> {
    vnode: &'a Arc<UnionVnode>,
    /// The file and its attributes as users see them, possibly from an older metacopy on a branch
    /// that is read-only now.
    from: Lower,
    attr: Attr,
    /// The lower file with the data, and its own attributes.
    data: Lower,
    data_attr: Attr,
    place: Place,
    to: BranchId,
    /// The metacopy's name.
    name: Vec<u8>,
}

impl UnionVnode {
    /// Returns the lower object for a change of attributes. That is a metacopied file if it exists
    /// or can be created, which requires a large file on a branch that the union does not write to.
    /// Otherwise it is the object that [`Self::for_change`] returns.
    pub(crate) fn for_attributes(&self, op: &Op<'_>, grants: Grants) -> Result<Changeable<'_>> {
        op.set.require_writable()?;
        let leaf = self.leaf();
        let apart = as_metacopy(&leaf.vnode).is_some() || !op.set.writable(leaf.branch);
        if self.kind == Kind::Regular
            && apart
            && let Some(changeable) = self.core.copy_up_attributes(op, &self.arc()?, grants)?
        {
            return Ok(changeable);
        }
        self.for_change(op, None)
    }
}

impl Core {
    /// Ensures that the file has a metacopy on a branch that can be written. Returns `None` if the
    /// caller has to copy up the whole file, or if another caller has just done so.
    fn copy_up_attributes(
        &self,
        op: &Op<'_>,
        vnode: &Arc<UnionVnode>,
        grants: Grants,
    ) -> Result<Option<Changeable<'_>>> {
        let job = self.jobs.start(op, vnode.id)?;
        let leaf = vnode.leaf();
        match as_metacopy(&leaf.vnode) {
            Some(meta) if op.set.writable(meta.home) => {
                if grants.needs_copy(&meta.data().getattr(op)?, self.server_cx().uid) {
                    return Ok(None);
                }
                return Ok(Some(Changeable::metacopied(leaf.clone(), meta.home, job)));
            }
            // Another caller has copied up the whole file.
            None if op.set.writable(leaf.branch) => return Ok(None),
            _ => {}
        }
        let mut retries = Retries::new();
        loop {
            let Some(plan) = self.plan_metacopy(op, vnode, leaf.clone(), grants)? else { return Ok(None) };
            let branch = plan.to;
            let made = match self.ensure_part(op, &plan.place.parent, branch)? {
                true => self.create_metacopy(op, &plan),
                false => Err(Errno::AGAIN),
            };
            match made {
                Err(Errno::AGAIN) => op.check_restart()?,
                Err(errno) if op.set.retry_left(branch, errno) => {}
                made => return Ok(made?.map(|lower| Changeable::metacopied(lower, branch, job))),
            }
            retries.count()?;
        }
    }

    /// Copies the whole file up to the metacopy's branch or further left. Does nothing for a file
    /// without a metacopy. Call it before a link or rename, which would separate the file from its
    /// metacopy, also if the data's branch is written now.
    pub(crate) fn copy_up_metacopied(&self, op: &Op<'_>, vnode: &Arc<UnionVnode>) -> Result<()> {
        match as_metacopy(&vnode.leaf().vnode) {
            Some(meta) => self.copy_up(op, vnode, Some(op.set.writable_from(meta.home)?), None),
            None => Ok(()),
        }
    }

    fn create_metacopy(&self, op: &Op<'_>, plan: &Plan<'_>) -> Result<Option<Lower>> {
        let Some(built) = self.build_metacopy(op, plan)? else { return Ok(None) };
        let published = self.publish_metacopy(op, plan, &built);
        if !matches!(published, Ok(Some(_))) {
            self.discard(op, &built);
        }
        published
    }

    /// Decides whether a metacopy can be created instead of a copy, and on which branch. Returns
    /// `None` if a copy is needed.
    fn plan_metacopy<'a>(
        &self,
        op: &Op<'_>,
        vnode: &'a Arc<UnionVnode>,
        from: Lower,
        grants: Grants,
    ) -> Result<Option<Plan<'a>>> {
        let Metacopy::Above(limit) = self.options.metacopy else { return Ok(None) };
        // A file of a removed branch is not copied.
        op.set.branch(from.branch)?;
        let data = as_metacopy(&from.vnode).map_or(&from.vnode, MetaCopy::data).clone();
        let data = Lower { vnode: data, branch: from.branch };
        let data_attr = data.vnode.getattr(op)?;
        // A metacopy belongs to one name: a file with several names needs a copy that they share,
        // and a file without a name needs a copy too.
        let has_one_name = data_attr.nlink == 1 && self.links.branch(vnode.id).is_none();
        let Some(place) = vnode.place().filter(|_| has_one_name && data_attr.size > limit) else { return Ok(None) };
        let Some(name) = metacopy_name(place.name()?) else { return Ok(None) };
        let to = self.copy_target(op, None, Some(&place), &from)?;
        if op.set.branch(to)?.no_metacopies.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let attr = from.vnode.getattr(op)?;
        let (owner, ..) = copy_owner(self.options.copyup, op, &attr);
        let grants = Grants { owner: grants.owner.or(Some(owner)), ..grants };
        if grants.needs_copy(&data_attr, self.server_cx().uid) {
            return Ok(None);
        }
        Ok(Some(Plan { vnode, from, attr, data, data_attr, place, to, name }))
    }

    /// Builds a metacopy that no lookup finds yet. `None` if the branch can't have metacopies, or
    /// if a full copy costs no more because the branch can share the data by reflink.
    fn build_metacopy(&self, op: &Op<'_>, plan: &Plan<'_>) -> Result<Option<Built>> {
        op.require_blocking()?;
        let built = self.build_file(op, plan.to)?;
        match self.fill_metacopy(op, plan, &built) {
            Ok(true) => Ok(Some(built)),
            other => {
                self.discard(op, &built);
                other.map(|_| None)
            }
        }
    }

    fn fill_metacopy(&self, op: &Op<'_>, plan: &Plan<'_>, built: &Built) -> Result<bool> {
        let (server, copy) = (self.server(op), &built.entry.vnode);
        if let Some(open) = &built.open {
            let source = plan.data.vnode.open(&server, OpenFlags::RDONLY)?;
            if open.reflink_from(&server, &*source).is_ok() {
                return Ok(false);
            }
        }
        let alias = self.alias_of(op, &plan.data, &plan.data_attr)?;
        let origin = Origin::of(op, &plan.data, &plan.data_attr, (alias, plan.place.name()?))?;
        match copy.setxattr(&server, ORIGIN, &origin.encode(), XattrFlags::default()) {
            Ok(()) => {}
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => {
                op.set.branch(plan.to)?.no_metacopies.store(true, Ordering::Relaxed);
                return Ok(false);
            }
            // The file system limits the length of a value.
            Err(Errno::RANGE | Errno::INVAL | Errno::TOOBIG | Errno::NOSPC) => return Ok(false),
            Err(errno) => return Err(errno),
        }
        match self.copy_attributes(op, &plan.from.vnode, &plan.attr, copy) {
            // With the origin added, the extended attributes may exceed the file system's limit.
            Err(Errno::TOOBIG | Errno::NOSPC) => return Ok(false),
            copied => copied?,
        }
        self.announce_metacopies(op, plan.to)?;
        Ok(true)
    }

    /// Creates the mark that makes lookups search for metacopies on this branch, in this mount and
    /// later ones.
    fn announce_metacopies(&self, op: &Op<'_>, branch: BranchId) -> Result<()> {
        let state = op.set.branch(branch)?;
        self.announce(op, branch, METACOPIES, &state.metacopies)
    }

    /// Publishes a finished metacopy. It has the file's present attributes, so users see no change.
    /// `None` if the file is no longer at its place, or if the metacopy's name is taken.
    fn publish_metacopy(&self, op: &Op<'_>, plan: &Plan<'_>, built: &Built) -> Result<Option<Lower>> {
        let &Plan { vnode, ref from, ref place, to, .. } = plan;
        let dir = &place.parent;
        let _locked = dir.lock_entry(op, place.name()?)?;
        if !self.is_still_at(op, vnode, from, place)? {
            return Ok(None);
        }
        let part = dir.part(to)?.ok_or(Errno::AGAIN)?;
        let (server, name) = (self.server(op), Name::new(&plan.name)?);
        let published = self.preserving_times(op, &part, || match &built.work {
            Some((work, work_name)) => {
                work.rename(&server, work_name.name()?, &part.vnode, name, RenameFlags::default())
            }
            None => link_over(&server, &part.vnode, name, &built.entry.vnode).map(drop),
        });
        match published {
            // A directory that was created out of band has the metacopy's name.
            Err(Errno::ISDIR) => return Ok(None),
            published => published.inspect_err(|&errno| op.set.explain_refusal(to, errno))?,
        }
        let (data, attributes) = (plan.data.vnode.clone(), built.entry.vnode.clone());
        let both: Arc<dyn Vnode> = Arc::new(MetaCopy::new(data, attributes, to, plan.data_attr.mtime));
        let lower = Lower { vnode: both, branch: from.branch };
        vnode.replace_view(lower.clone());
        dir.entry_changed(place.name()?, EntryChange::Unknown);
        Ok(Some(lower))
    }
}
