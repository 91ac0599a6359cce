//! Shorthands for operations on a layer by path, as the server. Unexpected errors panic.

use std::collections::BTreeSet;
use std::sync::Arc;
use vnode::{Attr, Cx, DirEntry, Errno, Layer, Name, OpenFlags, SetAttr, Vnode};

/// The context of operations that the server itself makes.
pub const CX: Cx<'static> = Cx::internal(0, 0);

/// Returns `text` as the name of an entry.
pub fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// Splits a path into its directory and its last component.
pub fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Returns the vnode at `path`; `None` if it does not exist.
pub fn find(layer: &dyn Layer, path: &str) -> Option<Arc<dyn Vnode>> {
    path.split('/')
        .filter(|part| !part.is_empty())
        .try_fold(layer.root(), |dir, part| dir.lookup(&CX, name(part)).unwrap().map(|entry| entry.vnode))
}

/// Returns the vnode at `path`, which must exist.
pub fn at(layer: &dyn Layer, path: &str) -> Arc<dyn Vnode> {
    find(layer, path).unwrap_or_else(|| panic!("{path} does not exist"))
}

/// Returns the attributes of the object at `path`.
pub fn attr(layer: &dyn Layer, path: &str) -> Attr {
    at(layer, path).getattr(&CX).unwrap()
}

/// Changes the permission bits of the object at `path`.
pub fn chmod(layer: &dyn Layer, path: &str, mode: u32) {
    at(layer, path).setattr(&CX, &SetAttr { mode: Some(mode), ..SetAttr::default() }, None).unwrap();
}

/// Creates a directory of mode 0755.
pub fn mkdir(layer: &dyn Layer, path: &str) {
    let (dir, file) = split(path);
    at(layer, dir).mkdir(&CX, name(file), 0o755).unwrap();
}

/// Creates an empty file of mode 0644.
pub fn create(layer: &dyn Layer, path: &str) -> Result<Arc<dyn Vnode>, Errno> {
    let (dir, file) = split(path);
    at(layer, dir).create(&CX, name(file), 0o644, OpenFlags::RDWR).map(|(entry, _)| entry.vnode)
}

/// Creates a file of mode 0644 with the given content.
pub fn write(layer: &dyn Layer, path: &str, data: &[u8]) {
    let (dir, file) = split(path);
    let (_, open) = at(layer, dir).create(&CX, name(file), 0o644, OpenFlags::RDWR).unwrap();
    open.write(&CX, data, 0).unwrap();
}

/// Returns the content of a file of at most 1 MiB.
pub fn read(layer: &dyn Layer, path: &str) -> Vec<u8> {
    let mut out = vec![0; 1 << 20];
    let got = at(layer, path).open(&CX, OpenFlags::RDONLY).unwrap().read(&CX, &mut out, 0).unwrap();
    out.truncate(got);
    out
}

/// Returns the sorted names of the entries of a directory.
pub fn list(layer: &dyn Layer, path: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut sink = |entry: &DirEntry<'_>| {
        names.push(entry.name.to_string());
        true
    };
    at(layer, path).readdir(&CX, 0, &mut sink).unwrap();
    names.sort();
    names
}

/// Returns the names in a directory.
pub fn names(dir: &Arc<dyn Vnode>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    dir.readdir(&CX, 0, &mut |entry| names.insert(entry.name.to_string())).unwrap();
    names
}
