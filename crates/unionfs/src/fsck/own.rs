//! The check of the union's own files in the root of a branch.

use super::finding::Problem;
use super::logscan::{Scan, scan};
use super::repair::remove;
use super::{CheckError, Checker, Inspector, Spot};
use crate::aside::Aside;
use crate::build::Unionfs;
use crate::logfile::{IDENT, IDENT_NEW, move_log};
use crate::options::{Branch, Options};
use crate::ownfiles::Own;
use crate::ownnames::SNAPSHOT;
use crate::trust::is_servers;
use crate::work::{DEPTH, empty_except, entries};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use vnode::{Cx, Entry, Errno, Kind, Name, OpenFlags, Result, SetAttr, Vnode};

/// The log of a branch.
struct LogFile<'a> {
    cx: &'a Cx<'a>,
    branch: &'a Branch,
    root: Arc<dyn Vnode>,
    aside: &'a mut Aside,
    inspector: &'a mut dyn Inspector,
}

/// What a mount would make of a log.
enum Verdict {
    /// There is none.
    Absent,
    /// It would not keep all of it.
    Damaged,
    /// It would keep it. The paths of the branches that interrupted changes of link counts refer
    /// to; empty if the branch is unknown.
    Good(Vec<Vec<u8>>),
}

/// Checks the identity logs, and completes what they say was interrupted. Returns whether there is
/// a log, and a mount would keep all of each.
pub(super) fn check_logs(
    cx: &Cx<'_>,
    branches: &[Branch],
    asides: &mut [Aside],
    inspector: &mut dyn Inspector,
) -> std::result::Result<bool, CheckError> {
    let (mut any, mut all) = (false, true);
    for (at, aside) in asides.iter_mut().enumerate().take(branches.len()) {
        let verdict = check_log(cx, (branches, at), aside, inspector);
        any |= !matches!(verdict, Verdict::Absent);
        all &= !matches!(verdict, Verdict::Damaged);
    }
    Ok(any && all)
}

fn check_log(
    cx: &Cx<'_>,
    (branches, at): (&[Branch], usize),
    aside: &mut Aside,
    inspector: &mut dyn Inspector,
) -> Verdict {
    let Some(branch) = branches.get(at) else { return Verdict::Absent };
    let mut log = LogFile { cx, branch, root: branch.layer.root(), aside, inspector };
    let verdict = log.check().unwrap_or_else(|errno| {
        log.inspector.not_checked(&branch.path, &[b"/", IDENT].concat(), errno);
        Verdict::Damaged
    });
    let Verdict::Good(unfinished) = &verdict else { return verdict };
    let is_listed = |path: &Vec<u8>| branches.iter().any(|branch| *branch.path.as_os_str().as_bytes() == **path);
    let listed = unfinished.iter().filter(|path| is_listed(path)).count();
    if listed < unfinished.len() {
        let detail = format!("{} names", unfinished.len() - listed);
        let obstacle = Some("the branch with the files is not in the list");
        log.found(
            Spot::new(Problem::LinksUnfinished, b"/.wh..wh.ident").detail(&detail).obstacle(obstacle),
            |_| Ok(()),
        );
    }
    if listed > 0 {
        let detail = format!("{listed} names");
        log.found(Spot::new(Problem::LinksUnfinished, b"/.wh..wh.ident").detail(&detail), |_| {
            let completed = Unionfs::new(branches.to_vec(), Options::default());
            completed.map(drop).map_err(|error| match error {
                crate::options::BuildError::Step { errno, .. } | crate::options::BuildError::NotWritable(_, errno) => {
                    errno
                }
                _ => Errno::IO,
            })
        });
    }
    verdict
}

impl LogFile<'_> {
    fn found(&mut self, spot: Spot<'_>, repair: impl FnOnce(&mut Self) -> Result<()>) -> bool {
        let finding = spot.finding(self.branch);
        if !self.inspector.found(&finding) || finding.repair().is_none() {
            return false;
        }
        let result = repair(self);
        let repaired = result.is_ok();
        self.inspector.repaired(&finding, result);
        repaired
    }

    fn check(&mut self) -> Result<Verdict> {
        self.rewrite_leftover()?;
        let Some(entry) = self.root.lookup(self.cx, Name::new(IDENT)?)? else { return Ok(Verdict::Absent) };
        let path = [b"/", IDENT].concat();
        if entry.vnode.kind() != Kind::Regular {
            self.found(Spot::new(Problem::LogForeign, &path), |_| Ok(()));
            return Ok(Verdict::Damaged);
        }
        if !is_servers(&entry.attr, self.cx.uid) {
            let detail = format!("owner {}, mode {:03o}", entry.attr.uid, entry.attr.perm());
            let owner = self.root.getattr(self.cx)?.uid;
            let obstacle = (owner != 0 && owner == entry.attr.uid)
                .then_some("it belongs to the owner of the branch; run this command as the user who mounts the union");
            let spot = Spot::new(Problem::LogUntrusted, &path).detail(&detail).obstacle(obstacle);
            self.found(spot, |this| {
                let (root, record) = (this.root.clone(), (Problem::LogUntrusted.name(), &path[..]));
                this.aside.set(this.cx, &root, (&root, Name::new(IDENT)?), record)
            });
            return Ok(Verdict::Damaged);
        }
        let file = entry.vnode.open(self.cx, OpenFlags::RDONLY)?;
        let scan = scan(&*file, self.cx, entry.attr.size)?;
        drop(file);
        let usable = self.content(&entry, &scan, &path);
        let known = &scan.salvaged;
        let path = |tag: u16| known.tags.get(&tag).map(|branch| branch.path.clone());
        let branches = known.using.values().flatten().map(|using| match using.path.is_empty() {
            // It moves between branches, whichever.
            true => self.branch.path.as_os_str().as_bytes().to_vec(),
            false => path(using.tag).unwrap_or_default(),
        });
        Ok(if usable { Verdict::Good(branches.collect()) } else { Verdict::Damaged })
    }

    /// Checks the content of the log. Returns whether a mount would keep all of it.
    fn content(&mut self, entry: &Entry, scan: &Scan, path: &[u8]) -> bool {
        let detail = format!("{} of {} bytes are good, {} records follow", scan.good, scan.size, scan.after_damage);
        if scan.later {
            self.found(Spot::new(Problem::LogLater, path), |_| Ok(()));
            return false;
        }
        if scan.is_damaged() {
            let spot = Spot::new(Problem::LogDamaged, path).detail(&detail);
            return self.found(spot, |this| this.rewrite(entry, scan, Problem::LogDamaged, path));
        }
        let mut usable = true;
        if scan.forged > 0 {
            let detail = format!("{} records with impossible paths", scan.forged);
            let spot = Spot::new(Problem::LogForged, path).detail(&detail);
            usable = self.found(spot, |this| this.rewrite(entry, scan, Problem::LogForged, path));
        } else if scan.is_cut_off() {
            usable = self.found(Spot::new(Problem::LogCutOff, path).detail(&detail), |this| {
                let file = entry.vnode.open(this.cx, OpenFlags::RDWR)?;
                let cut = SetAttr { size: Some(scan.good), ..SetAttr::default() };
                entry.vnode.setattr(this.cx, &cut, Some(&*file)).map(drop)
            });
        }
        usable
    }

    /// Replaces the log by one of all readable records. The old one is set aside.
    fn rewrite(&mut self, entry: &Entry, scan: &Scan, problem: Problem, path: &[u8]) -> Result<()> {
        let root = self.root.clone();
        self.aside.keep(self.cx, &root, &entry.vnode, (problem.name(), path))?;
        move_log(self.cx, (&root, &self.branch.path), &scan.salvaged).map(drop)
    }

    fn rewrite_leftover(&mut self) -> Result<()> {
        let Some(entry) = self.root.lookup(self.cx, Name::new(IDENT_NEW)?)? else { return Ok(()) };
        let path = [b"/", IDENT_NEW].concat();
        if entry.vnode.kind() == Kind::Regular && is_servers(&entry.attr, self.cx.uid) {
            self.found(Spot::new(Problem::LogRewriteLeftover, &path), |this| remove(this.cx, &this.root, IDENT_NEW));
        } else {
            self.found(Spot::new(Problem::UnknownName, &path), |_| Ok(()));
        }
        Ok(())
    }
}

impl Checker<'_> {
    /// Checks the work directory and the link index of a branch.
    pub(super) fn own_directories(&mut self, at: usize) {
        for own in [Own::Work, Own::Links] {
            if let Err(errno) = self.own_directory(at, own) {
                let path = own.name().map_or_else(|_| Vec::new(), |name| [b"/", name.as_bytes()].concat());
                self.not_checked(at, &path, errno);
            }
        }
    }

    fn own_directory(&mut self, at: usize, own: Own) -> Result<()> {
        let Some(root) = self.root(at) else { return Ok(()) };
        let name = own.name()?;
        let Some(entry) = root.lookup(&self.op, name)? else { return Ok(()) };
        let path = [b"/", name.as_bytes()].concat();
        if let Some(why) = own.why_foreign(&self.op, &entry)? {
            let problem = if matches!(own, Own::Work) { Problem::WorkForeign } else { Problem::IndexForeign };
            self.found(at, Spot::new(problem, &path).detail(why), |_| Ok(()));
        } else if matches!(own, Own::Work) {
            // Removing the records of a snapshot completes or reverts nothing: see `snapshots`.
            let left = entries(&self.op, &entry.vnode)?.iter().filter(|(name, _)| **name != *SNAPSHOT).count();
            if left > 0 {
                let detail = format!("{left} entries");
                self.found(at, Spot::new(Problem::WorkLeftovers, &path).detail(&detail), |this| {
                    empty_except(&this.op, &entry.vnode, DEPTH, SNAPSHOT)
                });
            }
        }
        Ok(())
    }
}
