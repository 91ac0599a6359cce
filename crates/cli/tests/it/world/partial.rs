//! What an operation that failed, or was interrupted, may leave.

use super::State;
use conformance::random::{Op, OpenState};
use memfs::{Dump, Node};
use std::sync::Arc;
use vnode::{Cx, Kind, Layer, Name, OpenFlags, SetAttr, Vnode};

const OWN: Cx<'static> = Cx::internal(0, 0);

/// Whether an operation changes data, so that a part of it may be done.
fn changes_data(op: &Op) -> bool {
    matches!(
        op,
        Op::Write { .. }
            | Op::Scribble { .. }
            | Op::Punch { .. }
            | Op::Allocate { .. }
            | Op::Copy { .. }
            | Op::TruncateSlot { .. }
            | Op::Truncate { .. }
            | Op::Open { .. }
    )
}

/// Checks that everything is as before or after the operation; of a file whose data it changes,
/// each byte.
pub(crate) fn check(op: &Op, (old, new): (&State, &State), got: &State) -> Result<(), String> {
    let differs = || format!("before:\n{}after:\n{}", got.differences(old), got.differences(new));
    if !changes_data(op) || !old.tree.0.keys().eq(got.tree.0.keys()) {
        return Err(differs());
    }
    let between = |path: &Vec<u8>| {
        let (Some(old), Some(new), Some(got)) = (old.tree.0.get(path), new.tree.0.get(path), got.tree.0.get(path))
        else {
            return false;
        };
        got == old || got == new || is_between(old, new, got)
    };
    let slots = old.open.iter().zip(&new.open).zip(&got.open);
    let mut slots = slots.map(|((old, new), got)| got == old || got == new || is_open_between(old, new, got));
    if got.tree.0.keys().all(between) && slots.all(|fits| fits) { Ok(()) } else { Err(differs()) }
}

fn is_between(old: &Node, new: &Node, got: &Node) -> bool {
    let without_data = |node: &Node| Node { data: Vec::new(), size: 0, ..node.clone() };
    let attributes = without_data(got);
    old.kind == Kind::Regular
        && (attributes == without_data(old) || attributes == without_data(new))
        && are_between(&old.data, &new.data, &got.data)
}

fn is_open_between(old: &Option<OpenState>, new: &Option<OpenState>, got: &Option<OpenState>) -> bool {
    let (Some(Ok((old_attr, old))), Some(Ok((new_attr, new))), Some(Ok((attr, got)))) = (old, new, got) else {
        return false;
    };
    [old_attr, new_attr].iter().any(|other| other.without_size() == attr.without_size()) && are_between(old, new, got)
}

/// Whether each byte is an old or a new one, and the length between the two.
fn are_between(old: &[u8], new: &[u8], got: &[u8]) -> bool {
    let at = |bytes: &[u8], place: usize| bytes.get(place).copied().unwrap_or(0);
    let lengths = old.len().min(new.len())..=old.len().max(new.len());
    lengths.contains(&got.len()) && (0..got.len()).all(|place| [at(old, place), at(new, place)].contains(&got[place]))
}

/// Gives the files of a tree the data of another one with the same names.
pub(crate) fn bring(layer: &Arc<dyn Layer>, to: &Dump) {
    for (path, node) in to.0.iter().filter(|(path, node)| node.kind == Kind::Regular && node.first == **path) {
        let vnode = find(layer, path);
        let file = vnode.open(&OWN, OpenFlags::RDWR).unwrap();
        let size = SetAttr { size: Some(node.size), ..SetAttr::default() };
        vnode.setattr(&OWN, &size, Some(&*file)).unwrap();
        assert_eq!(file.write(&OWN, &node.data, 0), Ok(node.data.len()));
        let mode = SetAttr { mode: Some(node.perm), ..SetAttr::default() };
        vnode.setattr(&OWN, &mode, None).unwrap();
    }
}

/// Returns the vnode at a path.
fn find(layer: &Arc<dyn Layer>, path: &[u8]) -> Arc<dyn Vnode> {
    path.split(|&byte| byte == b'/')
        .fold(layer.root(), |at, part| at.lookup(&OWN, Name::new(part).unwrap()).unwrap().unwrap().vnode)
}
