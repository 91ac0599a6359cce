//! Companions of long names that a crash left behind.

use super::core::Core;
use super::long::{self, Own};
use vnode::{Cx, Errno, Kind, Name, Result, Vnode};

impl Core {
    /// Removes what keeps a directory from being removed though it is empty to its users. Answers true if it is empty now.
    pub(crate) fn sweep(&self, cx: &Cx<'_>, dir: &dyn Vnode) -> Result<bool> {
        if self.names.is_none() || dir.kind() != Kind::Directory {
            return Ok(false);
        }
        let Some(companions) = lone_companions(cx, dir)? else { return Ok(false) };
        let _held = self.long.hold(dir.id(), dir.id());
        for digits in &companions {
            // One that has just got its object is looked for under the lock.
            if dir.lookup(cx, Name::new(&long::object_of(digits))?)?.is_some() {
                return Ok(false);
            }
            dir.unlink(&self.server(cx), Name::new(&long::companion_of(digits))?)?;
        }
        Ok(!companions.is_empty())
    }
}

/// The digits of the companions in a directory with nothing else in it; `None` if there is something else.
fn lone_companions(cx: &Cx<'_>, dir: &dyn Vnode) -> Result<Option<Vec<Vec<u8>>>> {
    let mut companions = Some(Vec::new());
    dir.readdir(cx, 0, &mut |entry| {
        match (long::own(entry.name.as_bytes()), &mut companions) {
            (Own::Companion(digits), Some(all)) if entry.kind == Kind::Regular => all.push(digits.to_vec()),
            _ => companions = None,
        }
        companions.is_some()
    })?;
    Ok(companions)
}

/// Does that errno say that a directory is not empty?
pub(crate) fn says_not_empty(errno: Errno) -> bool {
    matches!(errno, Errno::NOTEMPTY | Errno::EXIST)
}
