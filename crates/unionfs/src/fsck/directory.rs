//! The check of one directory of a branch: whiteouts, opaque marks, reserved names.

use super::finding::Problem;
use super::place::Place;
use super::repair::make_opaque;
use super::{Checker, Spot};
use crate::branch::{Lower, is_dir};
use crate::logfile::{IDENT, IDENT_NEW};
use crate::lookup::Hit;
use crate::metacopy::{METACOPIES, PREFIX as METACOPY};
use crate::opaque_redirect::{MOVED, OPAQUE, REDIRECT, Redirect};
use crate::ownfiles::ASIDE;
use crate::ownnames::{COMMITS, LINKS, WORK};
use crate::whiteout::{Listed, OLD_OPAQUE, classify, is_long, long_digest};
use crate::work::entries;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use vnode::{Errno, Kind, Name, Result};

/// A directory of a branch.
pub(super) struct Directory {
    /// Position of the branch.
    pub(super) at: usize,
    /// The directory itself, then its tail.
    pub(super) stack: Vec<Lower>,
    /// Its place on the branch.
    pub(super) place: Rc<Place>,
    /// The parent and its tail; empty for the root.
    pub(super) above: Rc<[Lower]>,
    /// Whether the parent has a whiteout of its name.
    pub(super) beside_whiteout: bool,
}

/// The entries of a directory by their meaning.
#[derive(Default)]
pub(super) struct Content {
    /// Users' files and directories.
    pub(super) plain: HashMap<Box<[u8]>, Kind>,
    /// Names that whiteouts hide.
    pub(super) hidden: HashSet<Box<[u8]>>,
    /// Names of whiteouts that contain a digest.
    long: Vec<Box<[u8]>>,
    /// Names of files that have a metacopy.
    pub(super) metacopies: Vec<Box<[u8]>>,
    opaque: bool,
    old_opaque: bool,
    pub(super) redirect: bool,
    unknown: Vec<Box<[u8]>>,
}

impl Content {
    pub(super) fn is_opaque(&self) -> bool {
        self.opaque || self.old_opaque
    }

    fn add(&mut self, name: &[u8], kind: Kind, is_root: bool) {
        match classify(name) {
            Listed::Plain => drop(self.plain.insert(name.into(), kind)),
            Listed::Whiteout(hidden) => drop(self.hidden.insert(hidden.into())),
            Listed::LongWhiteout(digest) if is_digest(digest) => self.long.push(name.into()),
            Listed::LongWhiteout(_) => self.unknown.push(name.into()),
            Listed::Mark => match name {
                OPAQUE => self.opaque = true,
                OLD_OPAQUE => self.old_opaque = true,
                REDIRECT => self.redirect = true,
                _ if is_root && is_of_root(name) => {}
                _ => match name.strip_prefix(METACOPY) {
                    Some(file) if !file.is_empty() => self.metacopies.push(file.into()),
                    _ => self.unknown.push(name.into()),
                },
            },
        }
    }
}

fn is_digest(digest: &[u8]) -> bool {
    digest.len() == 32 && digest.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether the union uses the name in the root of a branch.
fn is_of_root(name: &[u8]) -> bool {
    [WORK, LINKS, IDENT, IDENT_NEW, MOVED, METACOPIES].contains(&name)
        || COMMITS.contains(&name)
        || name.starts_with(ASIDE.as_bytes())
}

impl Directory {
    pub(super) fn root(at: usize, stack: Vec<Lower>) -> Self {
        Self { at, stack, place: Place::root(), above: Rc::new([]), beside_whiteout: false }
    }

    /// Returns the path of an entry.
    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        [&self.place.path(), &b"/"[..], name].concat()
    }

    /// Returns what the parent merges from the branches to the right.
    pub(super) fn tail_above(&self) -> &[Lower] {
        self.above.get(1..).unwrap_or_default()
    }

    /// Returns the directory on the branch.
    pub(super) fn own(&self) -> Result<&Lower> {
        self.stack.first().ok_or(Errno::IO)
    }

    /// Returns the parts on the branches to the right.
    pub(super) fn tail(&self) -> &[Lower] {
        self.stack.get(1..).unwrap_or_default()
    }
}

impl Checker<'_> {
    /// Finds a subdirectory and its tail. `None` if it is no directory any more.
    pub(super) fn enter(&mut self, parent: &Rc<Directory>, name: &[u8]) -> Result<Option<Directory>> {
        let known = Name::new(name)?;
        let own = parent.own()?;
        let stack = match self.core.probe(&self.op, &parent.stack, known) {
            Ok(probe) => match probe.hit {
                Hit::Dir { stack, .. } => stack,
                Hit::Leaf { .. } | Hit::None => return Ok(None),
            },
            Err(Errno::LOOP) => {
                self.found(parent.at, Spot::new(Problem::TooComplex, &parent.path_of(name)), |_| Ok(()));
                let Some(entry) = own.vnode.lookup(&self.op, known)? else { return Ok(None) };
                vec![Lower { vnode: entry.vnode, branch: own.branch }]
            }
            Err(errno) => return Err(errno),
        };
        if stack.first().is_none_or(|first| first.branch != own.branch || !is_dir(&first.vnode)) {
            return Ok(None);
        }
        let beside_whiteout = self.core.has_whiteout(&self.op, own, known)?;
        let (place, above) = (parent.place.child(name), parent.stack.as_slice().into());
        Ok(Some(Directory { at: parent.at, stack, place, above, beside_whiteout }))
    }

    /// Checks a directory. Returns its subdirectories, which are to be checked.
    pub(super) fn directory(&mut self, dir: &Rc<Directory>) -> Vec<(Rc<Directory>, Box<[u8]>)> {
        let content = match self.content(dir) {
            Ok(content) => content,
            Err(errno) => {
                self.not_checked(dir.at, &dir.place.path(), errno);
                return Vec::new();
            }
        };
        for check in [Self::whiteouts, Self::long_whiteouts, Self::marks, Self::metacopies, Self::redirect] {
            if let Err(errno) = check(self, dir, &content) {
                self.not_checked(dir.at, &dir.place.path(), errno);
            }
        }
        for name in &content.unknown {
            self.found(dir.at, Spot::new(Problem::UnknownName, &dir.path_of(name)), |_| Ok(()));
        }
        let mut below: Vec<_> = content.plain.into_iter().filter(|(_, kind)| *kind == Kind::Directory).collect();
        below.sort_unstable_by(|one, other| other.0.cmp(&one.0));
        below.into_iter().map(|(name, _)| (dir.clone(), name)).collect()
    }

    fn content(&self, dir: &Directory) -> Result<Content> {
        let mut content = Content::default();
        for (name, kind) in entries(&self.op, &dir.own()?.vnode)? {
            content.add(&name, kind, dir.place.is_root());
        }
        Ok(content)
    }

    /// Whiteouts beside entries of their names, and those that hide nothing.
    fn whiteouts(&mut self, dir: &Rc<Directory>, content: &Content) -> Result<()> {
        let mut hidden: Vec<_> = content.hidden.iter().collect();
        hidden.sort_unstable();
        for name in hidden {
            let whiteout = [crate::whiteout::PREFIX, name].concat();
            self.whiteout(dir, content.plain.get(name).copied(), (name, &whiteout))?;
        }
        Ok(())
    }

    /// Whiteouts whose names contain a digest.
    fn long_whiteouts(&mut self, dir: &Rc<Directory>, content: &Content) -> Result<()> {
        if content.long.is_empty() {
            return Ok(());
        }
        let mut names: HashMap<[u8; 32], Box<[u8]>> = HashMap::new();
        for part in dir.tail() {
            let all = entries(&self.op, &part.vnode)?;
            let long = all.into_iter().map(|(name, _)| name).filter(|name| is_long(name));
            names.extend(long.map(|name| (long_digest(&name), name)));
        }
        let own = content.plain.keys().filter(|name| is_long(name));
        names.extend(own.map(|name| (long_digest(name), name.clone())));
        for whiteout in &content.long {
            let digest = whiteout.get(whiteout.len().saturating_sub(32)..).unwrap_or_default();
            match names.iter().find(|(known, _)| *known == digest) {
                Some((_, name)) => self.whiteout(dir, content.plain.get(name).copied(), (name, whiteout))?,
                None => self.useless_whiteout(dir, whiteout),
            }
        }
        Ok(())
    }

    /// Checks a whiteout of `name`; `beside` is the kind of the entry of that name.
    fn whiteout(&mut self, dir: &Rc<Directory>, beside: Option<Kind>, (name, whiteout): (&[u8], &[u8])) -> Result<()> {
        match beside {
            Some(Kind::Directory) => self.whiteout_beside_directory(dir, name, whiteout),
            Some(_) => {
                let (problem, path) = (Problem::WhiteoutBesideFile, dir.path_of(whiteout));
                let own = dir.own()?.vnode.clone();
                self.found(dir.at, Spot::new(problem, &path), |this| {
                    this.remove_name(dir.at, problem, (&own, whiteout), &path)
                });
                Ok(())
            }
            None => {
                if matches!(self.core.probe(&self.op, dir.tail(), Name::new(name)?)?.hit, Hit::None) {
                    self.useless_whiteout(dir, whiteout);
                }
                Ok(())
            }
        }
    }

    fn useless_whiteout(&mut self, dir: &Rc<Directory>, whiteout: &[u8]) {
        let (problem, path) = (Problem::WhiteoutHidesNothing, dir.path_of(whiteout));
        let Ok(own) = dir.own().cloned() else { return };
        self.found(dir.at, Spot::new(problem, &path), |this| {
            this.remove_name(dir.at, problem, (&own.vnode, whiteout), &path)
        });
    }

    /// A whiteout ends the stack of a directory beside it unless the directory has a redirect. An
    /// opaque mark does the same from inside.
    fn whiteout_beside_directory(&mut self, dir: &Rc<Directory>, name: &[u8], whiteout: &[u8]) -> Result<()> {
        let own = dir.own()?.clone();
        let Some(entry) = own.vnode.lookup(&self.op, Name::new(name)?)? else { return Ok(()) };
        let inner = Lower { vnode: entry.vnode, branch: own.branch };
        let announced = self.announces_redirects(dir.at);
        let (has_mark, obstacle) = match self.core.redirect_of(&self.op, &inner)? {
            _ if self.core.is_opaque(&self.op, &inner)? => (true, None),
            Redirect::Valid(_) if announced => (true, None),
            Redirect::Valid(_) => (false, Some("the redirect of the directory is to be repaired before")),
            _ => (false, None),
        };
        let (problem, path) = (Problem::WhiteoutBesideDirectory, dir.path_of(whiteout));
        self.found(dir.at, Spot::new(problem, &path).obstacle(obstacle), |this| {
            if !has_mark {
                make_opaque(&this.op, &inner.vnode)?;
            }
            this.remove_name(dir.at, problem, (&own.vnode, whiteout), &path)
        });
        Ok(())
    }

    /// Opaque marks.
    fn marks(&mut self, dir: &Rc<Directory>, content: &Content) -> Result<()> {
        let own = dir.own()?.vnode.clone();
        let mark = if content.opaque { OPAQUE } else { OLD_OPAQUE };
        let useless = |this: &mut Self, problem, mark: &[u8]| {
            let path = dir.path_of(mark);
            this.found(dir.at, Spot::new(problem, &path), |this| {
                this.remove_name(dir.at, problem, (&own, mark), &path)
            });
        };
        if content.opaque && content.old_opaque {
            useless(self, Problem::OpaqueTwice, OLD_OPAQUE);
        }
        if !content.is_opaque() || (content.opaque && content.old_opaque) {
            return Ok(());
        }
        if dir.place.is_root() {
            useless(self, Problem::OpaqueInRoot, mark);
        } else if !content.redirect {
            // With a redirect, the mark decides that the redirect has no effect.
            let hit = self.core.probe(&self.op, dir.tail_above(), Name::new(dir.place.name())?)?.hit;
            let hides = matches!(hit, Hit::Dir { .. }) && !dir.beside_whiteout;
            if !hides {
                useless(self, Problem::OpaqueHidesNothing, mark);
            }
        }
        Ok(())
    }
}
