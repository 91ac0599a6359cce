//! The commands that move files between branches, in steps: `unionctl --drain` and `--rebalance`.
//!
//! One walk of the directories that have a part on the branch considers each object there. Nothing
//! is stored on disk about its progress: what was moved is no longer found, so an interrupted task
//! continues if it is begun again.

use crate::branch::{BranchId, Lower, is_dir};
use crate::change::BranchChange;
use crate::move_file::Named;
use crate::mover::{Frame, Goal, Mover, Obstacle, Outcome};
use crate::node::{Core, UnionVnode};
use crate::op::Op;
use crate::opaque_redirect::is_redirect;
use crate::options::{BuildError, Mode, Moving};
use crate::set::{BranchSet, Member};
use crate::whiteout::{Listed, classify};
use crate::work::entries;
use serde_json::{Value, json};
use stack::{ChangePolicy, InUse, escape};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use vnode::{Command, CommandAccess, Cx, DirEntry, Errno, Kind, Name, Result, StatFs};

/// The command.
pub(crate) const MOVE: Command = Command {
    name: "unionfs.move",
    help: "Moves files between the branches of a union, in steps. unionctl --drain and --rebalance send it.",
    access: CommandAccess::Owner,
};

/// How long one step lasts at least, unless nothing remains to be done. The file that is being
/// moved then is moved completely.
const STEP: Duration = Duration::from_millis(100);
/// Maximum number of attempts to move an object.
const ATTEMPTS: u32 = 100;
/// The reason why no more files are moved.
const ENDED: &str = "a change of the branches has ended the moving of files; what was moved remains moved";
/// How long the beginning waits for operations under way.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns the used share of a file system in percent, as df(1) does.
fn percent(figures: &StatFs) -> f64 {
    let used = figures.blocks.saturating_sub(figures.bfree);
    let all = used.saturating_add(figures.bavail);
    #[expect(clippy::cast_precision_loss, reason = "a percentage")]
    if all == 0 { 100.0 } else { used as f64 * 100.0 / all as f64 }
}

impl Obstacle {
    /// Returns the reason, and what to do.
    fn text(self) -> String {
        let text = match self {
            Self::InUse => "a program has it open or mapped, and reads or writes it without the server; close it",
            Self::SeveralNames => {
                "it has several names, and can only move to a branch further left; remove its other names, or add a branch \
                 as the first one"
            }
            Self::Hidden => "an object of this name on a branch further left hides it; move it out of the branch",
            Self::Hides => "it hides objects of this name on a branch further right; remove these from their branch",
            Self::Redirect => {
                "it was renamed while it lay on several branches; copy it with cp -a, and remove the original"
            }
            Self::BesideRedirect => {
                "a directory that was renamed while it lay on several branches may lead to it; copy that directory with \
                 cp -a, and remove the original"
            }
            Self::NoSpace => "no other branch has enough free space; add a branch",
            Self::NoBranch => "no other branch can take it; add a branch as the first one",
            Self::Failed(errno) => return format!("{errno}"),
        };
        text.to_owned()
    }

    fn word(self) -> &'static str {
        match self {
            Self::InUse => "in-use",
            Self::SeveralNames => "several-names",
            Self::Hidden => "hidden",
            Self::Hides => "hides",
            Self::Redirect => "redirect",
            Self::BesideRedirect => "beside-redirect",
            Self::NoSpace => "no-space",
            Self::NoBranch => "no-branch",
            Self::Failed(_) => "failed",
        }
    }
}

impl UnionVnode {
    /// Executes one step of moving files.
    pub(crate) fn move_step(&self, cx: &Cx<'_>, input: &[u8]) -> Result<Vec<u8>> {
        cx.require_blocking()?;
        let input: Value = serde_json::from_slice(input).map_err(|_| Errno::INVAL)?;
        let text = |name: &str| input.get(name).and_then(Value::as_str);
        let core = &self.core;
        let mut slot = core.mover.try_lock().ok_or(Errno::BUSY)?;
        let reply = match text("do").ok_or(Errno::INVAL)? {
            "drain" => core.begin_drain(cx, text("branch").ok_or(Errno::INVAL)?),
            "rebalance" => {
                let within = input.get("within").and_then(Value::as_f64).filter(|within| *within > 0.0);
                core.begin_balance(cx, within.ok_or(Errno::INVAL)?)
            }
            "step" => {
                let id = input.get("id").and_then(Value::as_u64).ok_or(Errno::INVAL)?;
                let mover = slot.as_mut().filter(|mover| mover.id == id).ok_or(Errno::STALE)?;
                let progress = core.advance(cx, mover);
                mover.last_request = Instant::now();
                return progress.map(|reply| reply.to_string().into_bytes());
            }
            "end" => {
                let ended = match text("of") {
                    Some("rebalance") => core.end_balance(),
                    _ => core.end_moves(|_| true),
                };
                *slot = None;
                return ended.map_or_else(|error| Ok(refusal(&error)), |()| Ok(b"{}".to_vec()));
            }
            _ => return Err(Errno::INVAL),
        };
        match reply {
            Ok(mut mover) => {
                if let Some(mover) = &mut mover {
                    let known = slot.as_ref().is_some_and(|last| last.from == mover.from && last.is_redirect_free());
                    mover.redirect_free = known || !core.branches.get().has_redirects(mover.from);
                }
                let reply =
                    mover.as_ref().map_or_else(|| json!({ "done": true, "id": 0 }), |mover| json!({ "id": mover.id }));
                *slot = mover;
                if let Some(mover) = slot.as_ref().filter(|mover| mover.goal != Goal::Drain) {
                    core.watch_client(mover.id);
                }
                Ok(reply.to_string().into_bytes())
            }
            Err(Begin::Errno(errno)) => Err(errno),
            Err(Begin::Refused(why)) => Ok(refusal(&why)),
        }
    }
}

/// Whether files may still move: no change of the branches has ended that since.
fn may_move(set: &BranchSet, mover: &Mover<UnionVnode>) -> bool {
    let moves = |branch: BranchId, how: Moving| {
        set.member(branch).is_some_and(|member| member.mode == Mode::ReadWrite && member.moving == how)
    };
    match mover.goal {
        Goal::Drain => moves(mover.from, Moving::Drained),
        Goal::Balance { to, .. } => moves(mover.from, Moving::Moves) && moves(to, Moving::Moves),
    }
}

fn refusal(why: &impl ToString) -> Vec<u8> {
    json!({ "refused": why.to_string() }).to_string().into_bytes()
}

/// Why a task did not begin.
enum Begin {
    Errno(Errno),
    Refused(String),
}

impl From<Errno> for Begin {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl From<BuildError> for Begin {
    fn from(error: BuildError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl Core {
    fn begin_drain(&self, cx: &Cx<'_>, name: &str) -> std::result::Result<Option<Mover<UnionVnode>>, Begin> {
        let set = self.branches.get();
        let named = |member: &&Member| escape(member.state.path.as_os_str().as_bytes()) == name;
        let member = set
            .order
            .iter()
            .find(named)
            .ok_or_else(|| Begin::Refused(format!("{name}: not a branch of this union")))?;
        if member.mode != Mode::ReadWrite || !set.writable(member.id) {
            return Err(Begin::Refused(format!(
                "branch {name}: is not rw, so its files can't leave it; --remove removes it"
            )));
        }
        if !set.writables().any(|other| other.id != member.id && !set.is_drained(other.id)) {
            return Err(Begin::Refused(format!("branch {name}: no other branch is rw; add one first")));
        }
        let from = member.id;
        if member.moving == Moving::Drained {
            // The server may have kept files open since.
            self.everything_changed();
        } else {
            self.change_moving(&[(from, Moving::Drained)])?;
        }
        Ok(Some(self.new_mover(cx, from, Goal::Drain)?))
    }

    /// Begins moving files from the fullest file system to the emptiest. `None` if they are nearly
    /// equally full.
    fn begin_balance(&self, cx: &Cx<'_>, within: f64) -> std::result::Result<Option<Mover<UnionVnode>>, Begin> {
        let set = self.branches.get();
        let mut shares: Vec<(BranchId, f64)> = Vec::new();
        for member in set.writables().filter(|member| !set.is_drained(member.id)) {
            shares.push((member.id, percent(&member.state.root.statfs(cx)?)));
        }
        let fullest = shares.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a });
        let emptiest = shares.iter().copied().reduce(|a, b| if b.1 < a.1 { b } else { a });
        let (Some((from, most)), Some((to, least))) = (fullest, emptiest) else {
            return Err(Begin::Refused("the union has no rw branches".to_owned()));
        };
        if most - least <= within {
            return Ok(None);
        }
        if set.moving {
            self.everything_changed();
        } else {
            let all: Vec<_> = shares.iter().map(|&(branch, _)| (branch, Moving::Moves)).collect();
            self.change_moving(&all)?;
        }
        Ok(Some(self.new_mover(cx, from, Goal::Balance { to, within })?))
    }

    /// Ends what [`Self::begin_balance`] began. Drained branches get no new files as before.
    pub(crate) fn end_balance(&self) -> std::result::Result<(), BuildError> {
        self.end_moves(|moving| moving == Moving::Moves)
    }

    fn end_moves(&self, which: impl Fn(Moving) -> bool) -> std::result::Result<(), BuildError> {
        let set = self.branches.get();
        let moving = set.order.iter().filter(|member| member.moving != Moving::Stays && which(member.moving));
        let ended: Vec<_> = moving.map(|member| (member.id, Moving::Stays)).collect();
        if ended.is_empty() { Ok(()) } else { self.change_moving(&ended) }
    }

    fn change_moving(&self, wanted: &[(BranchId, Moving)]) -> std::result::Result<(), BuildError> {
        let set = self.branches.get();
        let change = |&(branch, moving): &(BranchId, Moving)| {
            set.member(branch).map(|member| BranchChange::Moving(member.state.path.clone(), moving))
        };
        let policy =
            ChangePolicy { patience: PATIENCE, in_use: InUse::Refuse, expected_generation: Some(set.generation) };
        self.change_branches(wanted.iter().filter_map(change).collect(), &policy, |_| {})
    }

    fn new_mover(&self, cx: &Cx<'_>, from: BranchId, goal: Goal) -> Result<Mover<UnionVnode>> {
        let root = self.table.get(crate::inode_number::ROOT).ok_or(Errno::STALE)?;
        let set = self.branches.get();
        let op = Op::new(cx, &set);
        root.revalidate(&op)?;
        let names = self.names_in_dir(&op, from, &root)?;
        let id = self.last_move.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Mover::new(id, from, goal, Frame { dir: root, names }))
    }

    /// Moves files for the duration of a step. Returns the progress.
    fn advance(&self, cx: &Cx<'_>, mover: &mut Mover<UnionVnode>) -> Result<Value> {
        let began = Instant::now();
        while !mover.done && began.elapsed() < STEP {
            cx.check()?;
            let Some(dir) = mover.stack.last().map(|frame| frame.dir.clone()) else {
                mover.done = true;
                break;
            };
            let mut ended = false;
            let moved = dir.run_change(cx, |op| {
                ended = !may_move(op.set, mover);
                if ended { Ok(()) } else { self.advance_once(&op.moving(), mover, &dir) }
            });
            if ended {
                return Ok(json!({ "refused": ENDED }));
            }
            match moved {
                Ok(()) => mover.attempts = 0,
                // Something changed meanwhile.
                Err(Errno::AGAIN) if mover.attempts < ATTEMPTS => mover.attempts += 1,
                // The object or directory was removed or moved by others.
                Err(Errno::STALE | Errno::NOENT) => self.skip(mover),
                Err(errno @ (Errno::INTR | Errno::CANCELED)) => return Err(errno),
                Err(errno) => {
                    mover.leave(mover.at.clone(), Obstacle::Failed(errno));
                    self.skip(mover);
                }
            }
        }
        self.progress(cx, mover)
    }

    /// Leaves the object that is considered at present.
    fn skip(&self, mover: &mut Mover<UnionVnode>) {
        mover.attempts = 0;
        if let Some(frame) = mover.stack.last_mut()
            && frame.names.pop().is_none()
        {
            mover.stack.pop();
        }
    }

    fn progress(&self, cx: &Cx<'_>, mover: &Mover<UnionVnode>) -> Result<Value> {
        let set = self.branches.get();
        let path = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let remaining: Vec<Value> = match mover.done {
            true => mover.remaining.iter().map(|left| {
                json!({ "path": path(&left.path), "reason": left.obstacle.word(), "why": left.obstacle.text() })
            }).collect(),
            false => Vec::new(),
        };
        let full = mover.remaining.iter().any(|left| left.obstacle == Obstacle::NoSpace);
        let name = |branch: BranchId| set.member(branch).map(|member| escape(member.state.path.as_os_str().as_bytes()));
        let used = set.member(mover.from).and_then(|member| member.state.root.statfs(cx).ok());
        Ok(json!({
            "id": mover.id,
            "done": mover.done,
            "from": name(mover.from),
            "files": mover.files,
            "bytes": mover.bytes,
            "at": path(&mover.at),
            "used_percent": used.as_ref().map(percent),
            "full": full,
            "remaining": mover.remaining_count,
            "objects": remaining,
        }))
    }

    /// Considers the next object of the directory that is being emptied.
    fn advance_once(&self, op: &Op<'_>, mover: &mut Mover<UnionVnode>, dir: &Arc<UnionVnode>) -> Result<()> {
        let from = mover.from;
        if dir.is_gone() {
            mover.stack.pop();
            return Ok(());
        }
        let part = dir.part(from)?;
        let Some(name) = mover.stack.last().and_then(|frame| frame.names.last().cloned()) else {
            mover.at = dir.own_path();
            if mover.goal == Goal::Drain && part.is_some() && !mover.redirect_free {
                if dir.place().is_some() {
                    let own = dir.dir()?.redirect.lock().is_some();
                    let obstacle = if own { Obstacle::Redirect } else { Obstacle::BesideRedirect };
                    mover.leave(mover.at.clone(), obstacle);
                }
            } else if mover.goal == Goal::Drain {
                let branches = self.destinations(op, mover, 0);
                if let Err(obstacle) = self.leave_directory(op, mover, dir, &branches)? {
                    mover.leave(mover.at.clone(), obstacle);
                }
            }
            mover.stack.pop();
            return Ok(());
        };
        let lower_name = Name::new(&name)?;
        mover.at = dir.path_to(lower_name);
        let result = match classify(&name) {
            Listed::Plain => self.move_entry(op, mover, dir, part.as_ref(), lower_name)?,
            Listed::Whiteout(_) | Listed::LongWhiteout(_) if mover.goal == Goal::Drain => {
                if op.set.has_redirects_up_to(from) && !(mover.redirect_free && op.set.is_leftmost(from)) {
                    mover.leave(mover.at.clone(), Obstacle::BesideRedirect);
                    if let Some(frame) = mover.stack.last_mut() {
                        frame.names.pop();
                    }
                    return Ok(());
                }
                let branches = self.destinations(op, mover, 0);
                Some(self.move_whiteout(op, mover, dir, lower_name, &branches)?)
            }
            Listed::Mark if is_redirect(&name) => {
                mover.redirects += 1;
                Some(Ok(()))
            }
            Listed::Mark if mover.goal == Goal::Drain => self.move_metacopy(op, mover, dir, &name)?,
            _ => Some(Ok(())),
        };
        // `None`: a directory was entered. It is left in the list of its parent no longer.
        if let Some(Err(obstacle)) = result {
            mover.leave(mover.at.clone(), obstacle);
        }
        let considered = if result.is_none() { mover.stack.iter_mut().rev().nth(1) } else { mover.stack.last_mut() };
        if let Some(frame) = considered {
            frame.names.pop();
        }
        Ok(())
    }

    /// Moves the object that a lower name leads to. `None` if it is a directory, which was entered.
    fn move_entry(
        &self,
        op: &Op<'_>,
        mover: &mut Mover<UnionVnode>,
        dir: &Arc<UnionVnode>,
        part: Option<&Lower>,
        name: Name<'_>,
    ) -> Result<Option<Outcome>> {
        let entry = part.map(|part| part.vnode.lookup(op, name)).transpose()?.flatten();
        let Some(entry) = entry else {
            // A directory without a part at this place can have one elsewhere, or one below it can.
            let Some((vnode, _)) = dir.find(op, name)? else { return Ok(Some(Ok(()))) };
            return self.enter(op, mover, vnode);
        };
        let lower = Lower { vnode: entry.vnode, branch: mover.from };
        let hidden = if mover.goal == Goal::Drain { Err(Obstacle::Hidden) } else { Ok(()) };
        let Some((vnode, _)) = dir.find(op, name)? else { return Ok(Some(hidden)) };
        if is_dir(&lower.vnode) {
            if vnode.dir.is_none() || !vnode.part(mover.from)?.is_some_and(|part| part.is(&lower)) {
                if hidden.is_err() {
                    mover.leave(mover.at.clone(), Obstacle::Hidden);
                }
                return if self.walks_all(op) { self.enter(op, mover, vnode) } else { Ok(Some(Ok(()))) };
            }
            return self.enter(op, mover, vnode);
        }
        if vnode.dir.is_some() || self.number_of(op, &lower, &entry.attr)? != vnode.id {
            return Ok(Some(hidden));
        }
        let named = Named { dir, name, lower: &lower, attr: &entry.attr };
        if !vnode.leaf().is(&lower) {
            // The original of a copy further left.
            return self.drop_name(op, mover, &vnode, &named).map(Some);
        }
        if mover.goal != Goal::Drain && (entry.attr.nlink > 1 || self.links.branch(vnode.id).is_some()) {
            // New files on the branch could get the inode number that its other names refer to.
            return Ok(Some(Ok(())));
        }
        let size = entry.attr.blocks.saturating_mul(512);
        if !self.is_worth_moving(op, mover, size)? {
            return Ok(Some(Ok(())));
        }
        let branches = self.destinations(op, mover, size);
        if branches.is_empty() {
            let obstacle = if mover.goal == Goal::Drain { Err(Obstacle::NoSpace) } else { Ok(()) };
            return Ok(Some(obstacle));
        }
        let moved = self.move_file(op, mover, &vnode, &named, &branches)?;
        if moved.is_ok() {
            mover.files += 1;
            mover.bytes += size;
        }
        Ok(Some(if mover.goal == Goal::Drain { moved } else { Ok(()) }))
    }

    /// Whether directories may lie at other paths on the branch than in the union.
    fn walks_all(&self, op: &Op<'_>) -> bool {
        op.set.order.iter().any(|member| op.set.has_redirects(member.id))
    }

    /// Considers a directory's entries next.
    fn enter(&self, op: &Op<'_>, mover: &mut Mover<UnionVnode>, dir: Arc<UnionVnode>) -> Result<Option<Outcome>> {
        if dir.dir.is_none() {
            return Ok(Some(Ok(())));
        }
        let names = self.names_in_dir(op, mover.from, &dir)?;
        mover.stack.push(Frame { dir, names });
        Ok(None)
    }

    /// Returns the names to consider in a directory. Entries are last, so that they are considered
    /// first.
    fn names_in_dir(&self, op: &Op<'_>, from: BranchId, dir: &Arc<UnionVnode>) -> Result<Vec<Box<[u8]>>> {
        let mut names: Vec<Box<[u8]>> = match dir.part(from)? {
            Some(part) => entries(op, &part.vnode)?.into_iter().map(|(name, _)| name).collect(),
            None => Vec::new(),
        };
        if self.walks_all(op) {
            let mut sink = |entry: &DirEntry<'_>| {
                if entry.kind == Kind::Directory && !names.iter().any(|name| **name == *entry.name.as_bytes()) {
                    names.push(entry.name.as_bytes().into());
                }
                true
            };
            dir.read_dir(op, 0, &mut sink)?;
        }
        names.sort_by_key(|name| matches!(classify(name), Listed::Plain));
        Ok(names)
    }

    /// Copies up the data of a file whose metacopy lies on the branch.
    fn move_metacopy(
        &self,
        op: &Op<'_>,
        mover: &mut Mover<UnionVnode>,
        dir: &Arc<UnionVnode>,
        lower: &[u8],
    ) -> Result<Option<Outcome>> {
        let Some(name) = crate::metacopy::metacopy_of(lower) else { return Ok(Some(Ok(()))) };
        let name = Name::new(name)?;
        let Some((vnode, attr)) = dir.find(op, name)? else { return Ok(Some(Ok(()))) };
        let leaf = vnode.leaf();
        if crate::metacopy::as_metacopy(&leaf.vnode).is_none_or(|meta| meta.home != mover.from) {
            return Ok(Some(Ok(())));
        }
        for to in self.destinations(op, mover, attr.blocks.saturating_mul(512)) {
            if op.set.is_left(to, leaf.branch) && dir.can_lie_on(op, to)? {
                self.copy_up(op, &vnode, Some(to), None)?;
                self.make_durable(op, mover, dir, &vnode.leaf())?;
                mover.files += 1;
                mover.bytes += attr.blocks.saturating_mul(512);
                return Ok(Some(Ok(())));
            }
        }
        Ok(Some(Err(Obstacle::NoSpace)))
    }

    /// Returns the branches that may take a file of this size, the best one first.
    fn destinations(&self, op: &Op<'_>, mover: &Mover<UnionVnode>, size: u64) -> Vec<BranchId> {
        let needed = size.saturating_add(self.options.create.min_free);
        let takes = |branch: BranchId| branch != mover.from && !op.set.is_drained(branch);
        match mover.goal {
            Goal::Balance { to, .. } => Some(to).filter(|&to| self.free_space(op, to) >= needed).into_iter().collect(),
            Goal::Drain => {
                let ranked = self.ranked_by_policy(op);
                ranked
                    .into_iter()
                    .filter(|&(branch, free)| takes(branch) && free >= needed)
                    .map(|(branch, _)| branch)
                    .collect()
            }
        }
    }

    /// Whether moving a file of this size brings the file systems closer to each other. Ends the
    /// task if they are close enough.
    fn is_worth_moving(&self, op: &Op<'_>, mover: &mut Mover<UnionVnode>, size: u64) -> Result<bool> {
        let Goal::Balance { to, within } = mover.goal else { return Ok(true) };
        let figures = |branch: BranchId| op.set.branch(branch).and_then(|state| state.root.statfs(op));
        let (from, to) = (figures(mover.from)?, figures(to)?);
        let gap = percent(&from) - percent(&to);
        if from.fsid == to.fsid || gap <= within {
            mover.stack.clear();
            mover.done = true;
            return Ok(false);
        }
        let blocks = |figures: &StatFs| size / figures.frsize.max(1);
        let moved_to =
            StatFs { bfree: to.bfree.saturating_sub(blocks(&to)), bavail: to.bavail.saturating_sub(blocks(&to)), ..to };
        let moved_from = StatFs { bfree: from.bfree + blocks(&from), bavail: from.bavail + blocks(&from), ..from };
        // Afterwards the destination must not be the fuller one.
        Ok(size > 0 && percent(&moved_from) >= percent(&moved_to))
    }
}
