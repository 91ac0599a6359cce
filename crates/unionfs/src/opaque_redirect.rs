//! Opaque marks and redirects: docs/formats/union-branch.md.

use crate::branch::{BranchId, Lower, same_stack};
use crate::inode_number::ROOT;
use crate::log::{read_all, write_all};
use crate::node::{Core, UnionVnode};
use crate::op::Op;
use crate::times::preserving_times;
use crate::trust::is_servers;
use crate::whiteout::OLD_OPAQUE;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vnode::{Attr, Errno, Kind, Name, OpenFlags, RenameFlags, Result, Vnode};

/// The opaque mark, as in OCI layers and aufs.
pub(crate) const OPAQUE: &[u8] = b".wh..wh..opq";
pub(crate) const REDIRECT: &[u8] = b".wh..wh.redirect";
/// Mark in a branch's root: directories of the branch may have redirects.
pub(crate) const MOVED: &[u8] = b".wh..wh.moved";
const HEADER: &[u8] = b"strata-redirect 1\n";
/// Maximum length of a redirect's path, in bytes.
const PATH_MAX: usize = 4096;

/// The directories that were searched for a name, and the name. Only for messages.
pub(crate) type Found<'a> = (&'a [Lower], Name<'a>);

/// Limits the work that forged redirects can cause in one lookup.
pub(crate) struct Walk {
    steps: u32,
}

impl Walk {
    pub(crate) fn new() -> Self {
        Self { steps: 100_000 }
    }

    /// Counts a step. `ELOOP` after too many.
    pub(crate) fn step(&mut self) -> Result<()> {
        self.steps = self.steps.checked_sub(1).ok_or(Errno::LOOP)?;
        Ok(())
    }
}

/// Where a directory's stack continues to the right of one of its parts.
pub(crate) enum Onward {
    /// At the same name.
    ByName,
    /// At the same name, unless the part is opaque. To be checked if another directory has the
    /// name.
    Unchecked,
    /// Nowhere.
    Opaque,
    /// At this path from the root.
    Redirected(Box<[u8]>),
}

/// The redirect of a lower directory.
pub(crate) enum Redirect {
    /// There is none.
    None,
    /// It leads to this path.
    Valid(Box<[u8]>),
    /// Something else has its name.
    NotAFile,
    /// Another user may have written it.
    Untrusted {
        /// Its owner.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// Its content is malformed.
    Damaged,
}

/// Parses a redirect and returns its path. `None` if it is malformed.
pub(crate) fn parse_redirect(bytes: &[u8]) -> Option<&[u8]> {
    let path = bytes.strip_prefix(HEADER)?.strip_suffix(b"\n")?;
    let absolute = path.strip_prefix(b"/")?;
    let good = path.len() <= PATH_MAX && absolute.split(|&b| b == b'/').all(|part| Name::new(part).is_ok());
    good.then_some(path)
}

/// Whether this is the name of a redirect.
pub(crate) fn is_redirect(name: &[u8]) -> bool {
    name == REDIRECT
}

/// Whether an entry of this name in a directory affects the directory's stack.
pub(crate) fn affects_stack(name: &[u8]) -> bool {
    [OPAQUE, OLD_OPAQUE, REDIRECT].contains(&name)
}

/// Returns the components of a redirect's path.
pub(crate) fn components(path: &[u8]) -> impl Iterator<Item = Result<Name<'_>>> {
    path.split(|&b| b == b'/').filter(|part| !part.is_empty()).map(Name::new)
}

impl Core {
    /// Returns where the stack continues right of `part`, which is the entry `found.1` of the
    /// directories `found.0`.
    pub(crate) fn onward(&self, op: &Op<'_>, part: &Lower, found: Found<'_>, walk: &mut Walk) -> Result<Onward> {
        if !op.set.has_redirects(part.branch) {
            return Ok(Onward::Unchecked);
        }
        walk.step()?;
        if self.is_opaque(op, part)? {
            return Ok(Onward::Opaque);
        }
        if let Some(path) = self.read_redirect(op, part, found)? {
            return Ok(Onward::Redirected(path));
        }
        Ok(Onward::ByName)
    }

    /// Whether a lower directory has an opaque mark.
    pub(crate) fn is_opaque(&self, op: &Op<'_>, dir: &Lower) -> Result<bool> {
        for mark in [OPAQUE, OLD_OPAQUE] {
            if dir.vnode.lookup(op, Name::new(mark)?)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Creates an opaque mark in a directory that merges nothing, so that it never will. Returns
    /// false if the mark existed.
    pub(crate) fn make_opaque(&self, op: &Op<'_>, dir: &Lower) -> Result<bool> {
        match self.create_empty(op, &dir.vnode, dir.branch, Name::new(OPAQUE)?) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(e) => {
                op.set.explain_refusal(dir.branch, e);
                Err(e)
            }
        }
    }

    /// Removes an opaque mark that has no effect yet.
    pub(crate) fn undo_opaque(&self, op: &Op<'_>, dir: &Lower) {
        self.undo_mark(op, dir, OPAQUE);
    }

    /// Removes a redirect that has no effect yet.
    pub(crate) fn undo_redirect(&self, op: &Op<'_>, dir: &Lower) {
        self.undo_mark(op, dir, REDIRECT);
    }

    fn undo_mark(&self, op: &Op<'_>, dir: &Lower, mark: &[u8]) {
        let undone = Name::new(mark).and_then(|name| dir.vnode.unlink(&self.server(op), name));
        if let Err(errno) = undone {
            tracing::warn!(%errno, branch = %op.set.path_of(dir.branch), "could not remove a mark that has no effect");
        }
    }

    fn read_redirect(&self, op: &Op<'_>, dir: &Lower, found: Found<'_>) -> Result<Option<Box<[u8]>>> {
        match self.redirect_of(op, dir)? {
            Redirect::None => Ok(None),
            Redirect::Valid(path) => Ok(Some(path)),
            Redirect::NotAFile => {
                self.warn_redirect(op, dir, found, "is ignored: it is not a small regular file; remove it");
                Ok(None)
            }
            Redirect::Untrusted { owner, mode } => {
                // Its author may lack access to the place that it names.
                let why = format!(
                    "is ignored, because it may be forged: its owner is {owner}, its mode {mode:03o}, and only a read-only file of root \
                     or of the server's user counts; remove it, or, if you know it to be genuine, chown it to \
                     root and chmod it to 444"
                );
                self.warn_redirect(op, dir, found, &why);
                Ok(None)
            }
            Redirect::Damaged => {
                self.warn_redirect(op, dir, found, "is ignored: it is damaged; remove it");
                Ok(None)
            }
        }
    }

    /// Reads the redirect of a lower directory, whether or not the directory is opaque.
    pub(crate) fn redirect_of(&self, op: &Op<'_>, dir: &Lower) -> Result<Redirect> {
        let Some(entry) = dir.vnode.lookup(op, Name::new(REDIRECT)?)? else { return Ok(Redirect::None) };
        let limit = (HEADER.len() + PATH_MAX + 1) as u64;
        if entry.vnode.kind() != Kind::Regular || entry.attr.size > limit {
            return Ok(Redirect::NotAFile);
        }
        if !self.trusts(&entry.attr) {
            return Ok(Redirect::Untrusted { owner: entry.attr.uid, mode: entry.attr.perm() });
        }
        let file = entry.vnode.open(&self.server(op), OpenFlags::RDONLY)?;
        let bytes = read_all(&*file, op, limit + 1)?;
        Ok(parse_redirect(&bytes).map_or(Redirect::Damaged, |path| Redirect::Valid(path.into())))
    }

    /// Logs a warning about a redirect in a lower directory, once per directory.
    pub(crate) fn warn_redirect(&self, op: &Op<'_>, dir: &Lower, found: Found<'_>, why: &str) {
        if self.warned.is_new(dir) {
            let (stack, name) = found;
            let (branch, path) = (op.set.path_of(dir.branch), self.path_for_log(op, stack, name));
            let inode = dir.vnode.id();
            tracing::warn!(%branch, %path, inode, "the redirect .wh..wh.redirect of this directory {why}");
        }
    }

    /// Writes a redirect into a directory that has none, or an invalid one: earlier versions could
    /// leave an empty file after a crash.
    ///
    /// The redirect is written in the work directory and made durable before it is renamed into
    /// place. A renamed directory with a truncated redirect would lose everything that it merges.
    pub(crate) fn write_redirect(&self, op: &Op<'_>, dir: &Lower, path: &[u8]) -> Result<()> {
        if path.len() > PATH_MAX {
            // On `EXDEV`, mv(1) copies the directory.
            return Err(Errno::XDEV);
        }
        // It waits for the disk.
        op.require_blocking()?;
        let op = &self.server(op);
        self.announce_moves(op, dir.branch)?;
        let make = |work: &Arc<dyn Vnode>, name: Name<'_>| work.create(op, name, 0o444, OpenFlags::WRONLY);
        let (work, name, (entry, file)) = self.begin_work(op, dir.branch, make)?;
        let bytes = [HEADER, path, b"\n"].concat();
        let published = self
            .check_owner(op, dir, &entry.attr)
            .and_then(|()| write_all(&*file, op, &bytes, 0))
            .and_then(|()| file.fsync(op, true))
            .and_then(|()| work.rename(op, name.name()?, &dir.vnode, Name::new(REDIRECT)?, RenameFlags::default()));
        if published.is_err()
            && let Err(errno) = work.unlink(op, name.name()?)
        {
            tracing::warn!(%errno, "could not remove an unfinished redirect from the work directory");
        }
        published
    }

    /// Checks that a new redirect with these attributes would be trusted. A file system that stores
    /// no owners may report any owner.
    fn check_owner(&self, op: &Op<'_>, dir: &Lower, attr: &Attr) -> Result<()> {
        if self.trusts(attr) {
            return Ok(());
        }
        if self.warned.is_new(dir) {
            let (branch, owner) = (op.set.path_of(dir.branch), attr.uid);
            tracing::warn!(
                %branch,
                owner,
                "could not rename a directory (EXDEV), so mv(1) copies it: the branch's file system gives files that the server creates to \
                 another user, so a redirect could not be distinguished from a forged one"
            );
        }
        Err(Errno::XDEV)
    }

    /// Makes lookups search for redirects on this branch, also after the next mount.
    fn announce_moves(&self, op: &Op<'_>, branch: BranchId) -> Result<()> {
        let state = op.set.branch(branch)?;
        self.announce(op, branch, MOVED, &state.has_redirects)
    }

    /// Creates a mark in a branch's root which makes lookups search for some kind of record.
    /// `announced`: whether the mark exists.
    pub(crate) fn announce(&self, op: &Op<'_>, branch: BranchId, mark: &[u8], announced: &AtomicBool) -> Result<()> {
        if announced.load(Ordering::Acquire) {
            return Ok(());
        }
        let (root, server, name) = (&op.set.branch(branch)?.root, self.server(op), Name::new(mark)?);
        let mode = Kind::Regular.mode_bits() | 0o444;
        let made = preserving_times(&server, root, || root.mknod(&server, name, mode, 0));
        self.times_moved(branch, root);
        match made {
            Ok(_) | Err(Errno::EXIST) => announced.store(true, Ordering::Release),
            Err(errno) => return Err(errno),
        }
        Ok(())
    }
}

/// All mode bits for writing.
const WRITE: u32 = 0o222;

impl Core {
    /// Whether a redirect with these attributes is trusted: if [`is_servers`] accepts them, and it
    /// is read-only even for its owner.
    ///
    /// A file of root's may hold a user's data, for example a copy under `copyup=mounter`. The
    /// owner of its directory could turn it into a redirect by renaming it. Such files are rarely
    /// read-only.
    pub(crate) fn trusts(&self, attr: &Attr) -> bool {
        is_servers(attr, self.server_cx().uid) && attr.mode & WRITE == 0
    }
}

impl Core {
    /// Returns the path in the union of the entry `name` of the directory with this stack, for
    /// messages; only the name if that directory has no live vnode.
    pub(crate) fn path_for_log(&self, op: &Op<'_>, stack: &[Lower], name: Name<'_>) -> String {
        let merges = |dir: &Arc<UnionVnode>| dir.stack().is_ok_and(|own| same_stack(&own, stack));
        let numbers = [Some(ROOT), self.directory_number(op, stack).ok()];
        let path = match numbers.into_iter().flatten().filter_map(|number| self.table.get(number)).find(merges) {
            Some(dir) => dir.path_to(name),
            None => name.as_bytes().to_vec(),
        };
        path.escape_ascii().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fixture_of_version_1() {
        assert_eq!(parse_redirect(include_bytes!("../tests/fixtures/redirect-1")), Some(&b"/old place/d\n"[..]));
    }

    #[test]
    fn malformed_redirects_are_rejected() {
        for bad in [
            "",
            "/a",
            "strata-redirect 1\n/a",
            "strata-redirect 1\na\n",
            "strata-redirect 1\n/\n",
            "strata-redirect 2\n/a\n",
        ] {
            assert_eq!(parse_redirect(bad.as_bytes()), None, "{bad:?}");
        }
        for bad in ["/a//b", "/a/../b", "/.", "/a/", "/a\0b"] {
            assert_eq!(parse_redirect(format!("strata-redirect 1\n{bad}\n").as_bytes()), None, "{bad:?}");
        }
        let long = [HEADER, b"/a".repeat(2049).as_slice(), b"\n"].concat();
        assert_eq!(parse_redirect(&long), None);
    }

    proptest! {
        #[test]
        fn parse_redirect_accepts_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let bytes = [HEADER, &bytes].concat();
            if let Some(path) = parse_redirect(&bytes) {
                prop_assert!(components(path).all(|c| c.is_ok()));
            }
        }
    }
}
