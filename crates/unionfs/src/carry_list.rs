//! The list of the open files that a snapshot carries to the new branch:
//! docs/formats/union-branch.md, "Interrupted snapshot". One file with a name in the old branch and
//! one in the new: a single write commits the snapshot for both.

use crate::log::{frame, read_all, take, unframe, write_all};
use crate::opaque_redirect::components;
use crate::ownnames::SNAPSHOT;
use crate::trust::{OTHERS, is_servers};
use std::sync::Arc;
use vnode::{Cx, Entry, Errno, Kind, Name, OpenFile, OpenFlags, Result, Vnode};

const HEADER: &[u8; 18] = b"strata-snapshot 1\n";
/// The name of the list in the old branch's directory.
const LIST: &[u8] = b"list";
/// The type of a record that describes a file.
const FILE: u8 = 1;
/// The type of the record that commits the snapshot.
const COMMIT: u8 = 2;
/// Maximum number of bytes read from a list: some five million files.
const LIMIT: u64 = 1 << 30;

/// A carried file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The number of the lower file.
    pub(crate) number: u64,
    /// Its generation.
    pub(crate) generation: u32,
    /// Its path in both branches, with a leading `/`.
    pub(crate) path: Vec<u8>,
}

/// The content of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) files: Vec<Listed>,
    /// Whether the snapshot was taken: the new branch counts, and the old one is to be completed.
    pub(crate) committed: bool,
}

/// What an interrupted snapshot has left in a branch.
pub(crate) enum Found {
    /// Nothing.
    Nothing,
    /// The branch is the old one: the directory with the clones, and the list.
    Old(Arc<dyn Vnode>, List),
    /// The branch is the new one.
    New(List),
}

impl Listed {
    /// Whether this is the file.
    pub(crate) fn is(&self, entry: &Entry) -> bool {
        (self.number, self.generation) == (entry.vnode.id(), entry.vnode.generation())
            && entry.vnode.kind() == Kind::Regular
    }

    /// Returns the file's directory in the branch with this root, and its name; `None` if the
    /// directory does not exist.
    pub(crate) fn place(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>) -> Result<Option<(Arc<dyn Vnode>, Name<'_>)>> {
        let mut names = components(&self.path).collect::<Result<Vec<_>>>()?;
        let name = names.pop().ok_or(Errno::INVAL)?;
        let mut dir = root.clone();
        for name in names {
            match dir.lookup(cx, name)? {
                Some(entry) if entry.vnode.kind() == Kind::Directory => dir = entry.vnode,
                _ => return Ok(None),
            }
        }
        Ok(Some((dir, name)))
    }
}

/// The name of the clone of the list's file at this index, in the old branch's directory.
pub(crate) fn clone_name(index: usize) -> String {
    format!("c{index}")
}

/// Returns the name of the list.
pub(crate) fn list_name() -> Result<Name<'static>> {
    Name::new(LIST)
}

/// Returns the name in the work directories of both branches.
pub(crate) fn snapshot_name() -> Result<Name<'static>> {
    Name::new(SNAPSHOT)
}

/// Writes a list without the record that commits it. Returns its length.
pub(crate) fn write(cx: &Cx<'_>, file: &dyn OpenFile, files: &[Listed]) -> Result<u64> {
    let mut bytes = HEADER.to_vec();
    for listed in files {
        let mut payload = listed.number.to_le_bytes().to_vec();
        payload.extend(listed.generation.to_le_bytes());
        payload.extend(&listed.path);
        bytes.extend(frame(FILE, &payload)?);
    }
    write_all(file, cx, &bytes, 0)?;
    file.fsync(cx, true)?;
    Ok(bytes.len() as u64)
}

/// Writes the record that commits the snapshot after a list of `len` bytes and `count` files.
pub(crate) fn commit(cx: &Cx<'_>, file: &dyn OpenFile, (len, count): (u64, usize)) -> Result<()> {
    write_all(file, cx, &frame(COMMIT, &(count as u64).to_le_bytes())?, len)?;
    file.fsync(cx, true)
}

/// Parses a list, up to its first record that is cut off or damaged.
fn parse(bytes: &[u8]) -> List {
    let mut list = List::default();
    let Some(mut rest) = bytes.strip_prefix(HEADER.as_slice()) else { return list };
    while let Some((kind, mut payload)) = unframe(&mut rest) {
        if kind == COMMIT {
            list.committed = rest.is_empty() && payload == (list.files.len() as u64).to_le_bytes();
            break;
        }
        let (Some(number), Some(generation)) = (take(&mut payload), take(&mut payload)) else { break };
        let inside = payload.strip_prefix(b"/");
        let is_path = inside.is_some_and(|path| path.split(|&byte| byte == b'/').all(|name| Name::new(name).is_ok()));
        if kind != FILE || !is_path {
            break;
        }
        list.files.push(Listed {
            number: u64::from_le_bytes(number),
            generation: u32::from_le_bytes(generation),
            path: payload.to_vec(),
        });
    }
    list
}

fn read(cx: &Cx<'_>, file: &Entry) -> Result<List> {
    if file.vnode.kind() != Kind::Regular || !is_servers(&file.attr, cx.uid) {
        return Ok(List::default());
    }
    let file = file.vnode.open(cx, OpenFlags::RDONLY)?;
    Ok(parse(&read_all(&*file, cx, LIMIT)?))
}

/// Looks for an interrupted snapshot in the work directory of a branch. `cx` is the server's.
pub(crate) fn find(cx: &Cx<'_>, work: &Arc<dyn Vnode>) -> Result<Found> {
    let Some(entry) = work.lookup(cx, snapshot_name()?)? else { return Ok(Found::Nothing) };
    if !is_servers(&entry.attr, cx.uid) {
        return Ok(Found::Nothing);
    }
    match entry.vnode.kind() {
        Kind::Regular => Ok(Found::New(read(cx, &entry)?)),
        Kind::Directory if entry.attr.mode & OTHERS == 0 => {
            let list = match entry.vnode.lookup(cx, list_name()?)? {
                Some(list) => read(cx, &list)?,
                None => List::default(),
            };
            Ok(Found::Old(entry.vnode, list))
        }
        _ => Ok(Found::Nothing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfs::MemFs;
    use proptest::prelude::*;
    use vnode::Layer as _;

    const CX: Cx<'static> = Cx::internal(0, 0);

    fn listed(number: u64, path: &str) -> Listed {
        Listed { number, generation: 7, path: path.as_bytes().to_vec() }
    }

    /// Returns the bytes of a committed list.
    fn written(files: &[Listed]) -> Vec<u8> {
        let disk = MemFs::new();
        let (_, file) = disk.root().create(&CX, list_name().unwrap(), 0o600, OpenFlags::RDWR).unwrap();
        let len = write(&CX, &*file, files).unwrap();
        commit(&CX, &*file, (len, files.len())).unwrap();
        read_all(&*file, &CX, LIMIT).unwrap()
    }

    #[test]
    fn a_list_is_committed_by_its_last_byte() {
        let files = [listed(5, "/a/b"), listed(1 << 60, "/c")];
        let bytes = written(&files);
        assert_eq!(parse(&bytes), List { files: files.to_vec(), committed: true });
        for cut in 0..bytes.len() {
            let list = parse(&bytes[..cut]);
            assert!(!list.committed && files.starts_with(&list.files), "{cut}");
        }
        assert_eq!(bytes, include_bytes!("../tests/fixtures/snapshot-1"));
    }

    #[test]
    fn paths_that_lead_elsewhere_end_a_list() {
        for path in ["a", "/", "/../a", "/a/./b", "/a//b", ""] {
            let list = parse(&written(&[listed(1, "/good"), listed(2, path)]));
            assert_eq!(list, List { files: vec![listed(1, "/good")], committed: false }, "{path}");
        }
    }

    proptest! {
        #[test]
        fn parse_accepts_any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), good in any::<bool>()) {
            if good {
                bytes.splice(0..0, HEADER.iter().copied());
            }
            let list = parse(&bytes);
            prop_assert!(list.files.len() <= bytes.len());
        }
    }
}
