//! Volumes that somebody without the key changed below.

use super::stack::Stack;
use super::{trees, with_key};
use memfs::{Dump, MemFs, Node};
use std::sync::Arc;
use testkit::Rng;
use vnode::{Cx, Errno, Kind, Layer, Name, OpenFlags, Result};

/// What was changed.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    /// A byte of a file; the second is set if it tells names.
    Flip(Vec<u8>, bool),
    /// An entry was added that means nothing.
    Plant(Vec<u8>),
}

/// Mounts a copy of a volume with one change: what can be read is what was there, and what can't is
/// only what was changed.
pub(crate) fn check(stack: &Stack, below: &MemFs, rng: &mut Rng, whole: &Dump) -> core::result::Result<(), String> {
    let mut volume = below.dump();
    let Some(change) = change(&mut volume, rng) else { return Ok(()) };
    let damaged = stack.bottom();
    trees::copy(&volume, &*damaged);
    let top = stack.over(&damaged).map_err(|error| format!("{change:?}: mount: {error}"))?;
    let wrong =
        with_key(stack, &top, |cx| whole.0.iter().filter_map(|(path, node)| wrong(cx, &top, path, node)).collect());
    let wrong: Vec<(&[u8], String)> = wrong.map_err(|errno| format!("{change:?}: {errno}"))?;
    let may_fail = match change {
        Change::Flip(_, true) => usize::MAX,
        Change::Flip(_, false) => wrong.first().map_or(0, |(path, _)| whole.0[*path].nlink as usize),
        Change::Plant(_) => 0,
    };
    let is_error = wrong.iter().all(|(_, what)| what.starts_with("error"));
    if is_error && wrong.len() <= may_fail { Ok(()) } else { Err(format!("{change:?}: {wrong:?}")) }
}

fn change(volume: &mut Dump, rng: &mut Rng) -> Option<Change> {
    if rng.one_in(3) {
        let name = rng.pick(&["!!!", "gocryptfs.longname.AAAA", "AAAAAAAAAAAAAAAAAAAAAA", "gocryptfs.conf.second"]);
        let kind = rng.pick(&[Kind::Regular, Kind::Fifo, Kind::Directory, Kind::Symlink]);
        let name = name.as_bytes().to_vec();
        let data = rng.bytes(20).into_iter().map(|byte| byte | 1).collect();
        let perm = if kind == Kind::Symlink { 0o777 } else { 0o600 };
        let node = Node { kind, perm, data, first: name.clone(), nlink: 1, ..volume.0[&b""[..]].clone() };
        volume.0.insert(name.clone(), Node { xattrs: Default::default(), ..node });
        return Some(Change::Plant(name));
    }
    let is_file = |(path, node): &(&Vec<u8>, &Node)| {
        // Also if rot13 lies between.
        let reserved = [&b"gocryptfs.conf"[..], b"tbpelcgsf.pbas", cryptfs::JOURNAL, b"tbpelcgsf.fgengn-wbheany"];
        let free = reserved.iter().all(|name| !path.starts_with(name));
        node.kind == Kind::Regular && !node.data.is_empty() && node.first == **path && free
    };
    let files: Vec<_> = volume.0.iter().filter(is_file).map(|(path, _)| path.clone()).collect();
    let path = if files.is_empty() { return None } else { rng.pick(&files) };
    let node = volume.0.get_mut(&path)?;
    let at = rng.below(node.data.len());
    node.data[at] ^= 1 << rng.below(8);
    // As a copy does: the other names are links to the first.
    let last = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let tells_names = last.starts_with(b"gocryptfs.") || last.starts_with(b"tbpelcgsf.") || last.len() > 250;
    Some(Change::Flip(path, tells_names))
}

/// Returns how an object differs from what it was.
fn wrong<'a>(cx: &Cx<'_>, top: &Arc<dyn Layer>, path: &'a [u8], node: &Node) -> Option<(&'a [u8], String)> {
    match data(cx, top, path, node) {
        Ok(data) if data == node.data => None,
        Ok(data) => Some((path, format!("{} bytes, not {}", data.len(), node.data.len()))),
        Err(errno) => Some((path, format!("error {errno}"))),
    }
}

fn data(cx: &Cx<'_>, top: &Arc<dyn Layer>, path: &[u8], node: &Node) -> Result<Vec<u8>> {
    let mut at = top.root();
    for part in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
        at = at.lookup(cx, Name::new(part)?)?.ok_or(Errno::NOENT)?.vnode;
    }
    match node.kind {
        Kind::Regular => {
            let mut bytes = vec![0; at.getattr(cx)?.size as usize];
            let len = at.open(cx, OpenFlags::RDONLY)?.read(cx, &mut bytes, 0)?;
            bytes.truncate(len);
            Ok(bytes)
        }
        Kind::Symlink => at.readlink(cx),
        Kind::Directory => at.readdir(cx, 0, &mut |_| true).map(|()| Vec::new()),
        _ => Ok(Vec::new()),
    }
}
