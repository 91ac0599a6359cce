//! Trees as values: copied to other file systems, and checked by fsck.

use super::stack::{PASSPHRASE, Stack};
use hostfs::{HostFs, HostOptions};
use memfs::{Dump, MemFs, Node};
use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use testkit::{TempDir, outcome};
use vnode::{Cx, Kind, Layer, Name, OpenFlags, SetAttr, Vnode, XattrFlags};

const OWN: Cx<'static> = Cx::internal(0, 0);

/// Copies a tree into an empty one, as a backup program does.
pub(crate) fn copy(dump: &Dump, to: &dyn Layer) {
    let mut made: HashMap<&[u8], Arc<dyn Vnode>> = HashMap::from([(&b""[..], to.root())]);
    for (path, node) in &dump.0 {
        let vnode = if path.is_empty() { to.root() } else { create(path, node, &made) };
        made.insert(path, Arc::clone(&vnode));
        for (name, value) in &node.xattrs {
            vnode.setxattr(&OWN, name, value, XattrFlags::default()).unwrap();
        }
        let owner = SetAttr { uid: Some(node.uid), gid: Some(node.gid), ..SetAttr::default() };
        vnode.setattr(&OWN, &owner, None).unwrap();
        if node.kind != Kind::Symlink {
            let mode = SetAttr { mode: Some(node.perm), ..SetAttr::default() };
            vnode.setattr(&OWN, &mode, None).unwrap();
        }
    }
}

fn create(path: &[u8], node: &Node, made: &HashMap<&[u8], Arc<dyn Vnode>>) -> Arc<dyn Vnode> {
    let (above, last) = match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&b""[..], path),
    };
    let (dir, name) = (&made[above], Name::new(last).unwrap());
    if node.first != path {
        return dir.link(&OWN, name, &made[&node.first[..]]).unwrap().vnode;
    }
    match node.kind {
        Kind::Directory => dir.mkdir(&OWN, name, node.perm).unwrap().vnode,
        Kind::Symlink => dir.symlink(&OWN, name, &node.data).unwrap().vnode,
        Kind::Regular => {
            let (entry, file) = dir.create(&OWN, name, node.perm, OpenFlags::RDWR).unwrap();
            write_sparse(&*entry.vnode, &*file, &node.data);
            entry.vnode
        }
        kind => dir.mknod(&OWN, name, kind.mode_bits() | node.perm, node.rdev).unwrap().vnode,
    }
}

/// Writes the blocks that are not zero.
fn write_sparse(vnode: &dyn Vnode, file: &dyn vnode::OpenFile, data: &[u8]) {
    let size = SetAttr { size: Some(data.len() as u64), ..SetAttr::default() };
    vnode.setattr(&OWN, &size, Some(file)).unwrap();
    for (number, block) in data.chunks(4096).enumerate() {
        if block.iter().any(|&byte| byte != 0) {
            assert_eq!(file.write(&OWN, block, number as u64 * 4096), Ok(block.len()));
        }
    }
}

/// Returns a copy of a bottom in new objects.
pub(crate) fn copied(stack: &Stack, below: &MemFs) -> Arc<MemFs> {
    let copied = stack.bottom();
    copy(&below.dump(), &*copied);
    copied
}

/// Checks the volume of a stack that is not mounted with `cryptctl fsck`, and with that of
/// gocryptfs if it can. Returns what they found.
pub(crate) fn fsck(stack: &Stack, below: &Arc<MemFs>) -> Result<(), String> {
    // A journal with a record that could not be cleared is left to the next mount.
    stack.over(below)?.unmounted();
    let volume = Dump::of(&*stack.below_cryptfs(below)?).map_err(|errno| format!("below cryptfs: {errno}"))?;
    if let Some(name) = volume.0.keys().find(|name| name.starts_with(cryptfs::JOURNAL)) {
        return Err(format!("{} is there", name.escape_ascii()));
    }
    let scratch = TempDir::in_memory();
    let (dir, passfile) = (scratch.dir("volume"), scratch.join("passphrase"));
    strata_tests::crypt::write_secret(&passfile, PASSPHRASE);
    copy(&volume, &*HostFs::open(&dir, HostOptions::default()).unwrap());
    let mut own = Command::new(env!("CARGO_BIN_EXE_strata"));
    own.args(["crypt", "fsck", "--passfile"]).arg(&passfile).arg(&dir);
    let mut theirs = Command::new("gocryptfs");
    theirs.args(["-fsck", "-q", "-nosyslog", "-passfile"]).arg(&passfile).arg(&dir);
    let found = check(own)?;
    // An interrupted mkdir leaves a directory that gocryptfs can't use. Ours only notes it.
    if stack.is_gocryptfs() && !found.contains(": note: ") { check(theirs).map(|_| ()) } else { Ok(()) }
}

fn check(mut command: Command) -> Result<String, String> {
    let outcome = outcome(&mut command);
    if outcome.code == 0 {
        return Ok(outcome.out);
    }
    Err(format!("{command:?}: {}: {}{}", outcome.code, outcome.out, outcome.err))
}
