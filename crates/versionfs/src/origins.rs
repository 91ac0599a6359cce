//! Where the files that had a name came from.

use crate::commands::Place;
use crate::core::Core;
use crate::history::At;
use crate::reply::{MAX_REPLY, escape, time};
use std::sync::Arc;
use versionset::STORE;
use vnode::{Cx, Errno, Name, Result, Vnode};

/// Deepest directory that is found.
const MAX_DEPTH: usize = 4096;

/// A directory and its names from the root of the mount on.
struct Chain {
    dirs: Vec<Arc<dyn Vnode>>,
    /// The name of each directory, without the root.
    names: Vec<Vec<u8>>,
}

impl Place<'_> {
    /// Lists from where files were renamed to a name: `TIME OP PATH NAME` each, the earliest
    /// first. PATH leads from this directory to the former one. Those in directories that were
    /// removed, or that the caller may not read, are left out.
    pub(crate) fn origins(&self, cx: &Cx<'_>, at: &At) -> Result<Vec<u8>> {
        self.require_read(cx)?;
        let server = self.core.server(cx);
        let history = at.history(self.core, cx)?;
        let Some(here) = chain(self.core, &server, self.lower)? else { return Ok(Vec::new()) };
        let mut out = Vec::new();
        for (_, birth) in &history.births {
            let Some(from) = &birth.from else { continue };
            cx.check()?;
            let dir = match self.core.by_number(&server, from.dir) {
                Ok(dir) => dir,
                Err(Errno::STALE | Errno::NOENT) => continue,
                Err(errno) => return Err(errno),
            };
            let Some(there) = chain(self.core, &server, &dir)? else { continue };
            if out.len() > MAX_REPLY || !may_list(cx, &there)? {
                continue;
            }
            out.extend_from_slice(format!("{} {} ", time(birth.time), birth.cause.word()).as_bytes());
            escape(&path_between(&here, &there), &mut out);
            out.push(b' ');
            escape(&from.name, &mut out);
            out.push(b'\n');
        }
        Ok(out)
    }
}

/// Returns the directories from the root to this one; `None` for one that users can't reach.
fn chain(core: &Core, server: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Option<Chain>> {
    let (root, mut at) = (core.root().id(), Arc::clone(dir));
    let mut chain = Chain { dirs: vec![Arc::clone(dir)], names: Vec::new() };
    while at.id() != root {
        if chain.dirs.len() > MAX_DEPTH {
            return Err(Errno::LOOP);
        }
        let mut above = None;
        at.names(server, &mut |dir: &Arc<dyn Vnode>, name: Name<'_>| {
            above = Some((Arc::clone(dir), name.as_bytes().to_vec()));
            false
        })?;
        let Some((dir, name)) = above.filter(|(_, name)| *name != STORE) else { return Ok(None) };
        chain.dirs.push(Arc::clone(&dir));
        chain.names.push(name);
        at = dir;
    }
    chain.dirs.reverse();
    chain.names.reverse();
    Ok(Some(chain))
}

/// Whether the caller may read the directory and search all those above it.
fn may_list(cx: &Cx<'_>, chain: &Chain) -> Result<bool> {
    for dir in &chain.dirs {
        if access::refused(cx, &**dir, access::SEARCH)? != 0 {
            return Ok(false);
        }
    }
    let Some(last) = chain.dirs.last() else { return Ok(false) };
    Ok(access::refused(cx, &**last, access::READ)? == 0)
}

fn path_between(from: &Chain, to: &Chain) -> Vec<u8> {
    let same = from.names.iter().zip(&to.names).take_while(|(one, other)| one == other).count();
    let up = from.names.iter().skip(same).map(|_| &b".."[..]);
    let path = up.chain(to.names.iter().skip(same).map(Vec::as_slice)).collect::<Vec<_>>().join(&b'/');
    if path.is_empty() { b".".to_vec() } else { path }
}
