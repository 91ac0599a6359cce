use crate::rules::Protected;
use std::sync::{Mutex, MutexGuard, PoisonError};
use vnode::{NumberMap, Result};
use wrapfs::hooks::{Op, Outcome};

/// Maximum number of entries in each of the two generations.
const CAPACITY: usize = 16_384;
/// Maximum depth of a path, which exceeds `PATH_MAX`. Reused inode numbers can form a cycle among
/// stale entries.
const MAX_DEPTH: usize = 4096;

/// The paths of objects, from their last lookups. The paths of objects that were not looked up
/// recently may be incomplete.
#[derive(Debug)]
pub(crate) struct Paths {
    root: u64,
    names: Mutex<Generations>,
}

/// Directory and name by inode number, in two generations. A used entry moves to the young
/// generation. When that is full, it replaces the old one.
#[derive(Debug, Default)]
struct Generations {
    young: NumberMap<Entry>,
    old: NumberMap<Entry>,
}

type Entry = (u64, Box<[u8]>);

impl Generations {
    fn put(&mut self, id: u64, entry: Entry) {
        if self.young.len() >= CAPACITY {
            self.old = core::mem::take(&mut self.young);
        }
        self.young.insert(id, entry);
    }

    fn get(&mut self, id: u64) -> Option<&Entry> {
        if let Some(entry) = self.old.remove(&id)
            && !self.young.contains_key(&id)
        {
            self.put(id, entry);
        }
        self.young.get(&id)
    }
}

impl Paths {
    pub(crate) fn new(root: u64) -> Self {
        Self { root, names: Mutex::default() }
    }

    fn names(&self) -> MutexGuard<'_, Generations> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the new position of an object after an operation.
    pub(crate) fn record_result(&self, op: &Op<'_>, result: Result<Outcome<'_>>) {
        match (op, result) {
            (
                Op::Lookup { dir, name }
                | Op::Create { dir, name, .. }
                | Op::Mkdir { dir, name, .. }
                | Op::Mknod { dir, name, .. }
                | Op::Symlink { dir, name, .. }
                | Op::Link { dir, name, .. },
                Ok(Outcome::Object(object, _)),
            ) => self.record(object.id(), dir.id(), name.as_bytes()),
            (Op::Rename { dir, name, new_dir, new_name, flags }, Ok(_)) => {
                let server = vnode::Cx::internal(0, 0);
                let moved = [Some((new_dir, new_name)), flags.exchange.then_some((dir, name))];
                for (dir, name) in moved.into_iter().flatten() {
                    if let Ok(Some(moved)) = dir.lower().lookup(&server, *name) {
                        self.record(moved.vnode.id(), dir.id(), name.as_bytes());
                    }
                }
            }
            _ => {}
        }
    }

    fn record(&self, id: u64, dir: u64, name: &[u8]) {
        let mut names = self.names();
        if names.get(id).is_none_or(|(old_dir, old)| *old_dir != dir || **old != *name) {
            names.put(id, (dir, name.into()));
        }
    }

    /// Returns the path of an object from the root of the mount; `?` replaces an unknown part.
    pub(crate) fn of(&self, id: u64) -> Vec<u8> {
        let mut names = self.names();
        let (mut parts, mut at) = (Vec::new(), id);
        while at != self.root {
            let Some((dir, name)) = names.get(at).filter(|_| parts.len() < MAX_DEPTH) else {
                parts.push(b"?".to_vec());
                break;
            };
            parts.push([b"/", &**name].concat());
            at = *dir;
        }
        parts.reverse();
        if parts.is_empty() { b"/".to_vec() } else { parts.concat() }
    }

    /// Returns the path of a name in a directory.
    pub(crate) fn of_name(&self, dir: u64, name: &[u8]) -> Vec<u8> {
        let mut path = self.of(dir);
        if path != b"/" {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    /// Returns the path of the protected object of a forbidden operation.
    pub(crate) fn of_object(&self, op: &Op<'_>, object: Protected) -> Vec<u8> {
        match (op, object) {
            (Op::Link { target, .. }, Protected::Target) => self.of(target.id()),
            (Op::Rename { new_dir: dir, new_name: name, .. }, Protected::NewName)
            | (
                Op::Create { dir, name, .. }
                | Op::Mkdir { dir, name, .. }
                | Op::Mknod { dir, name, .. }
                | Op::Symlink { dir, name, .. }
                | Op::Link { dir, name, .. }
                | Op::Unlink { dir, name }
                | Op::Rmdir { dir, name }
                | Op::Rename { dir, name, .. },
                _,
            ) => self.of_name(dir.id(), name.as_bytes()),
            (Op::Tmpfile { dir, .. }, _) => self.of(dir.id()),
            (Op::Setattr { file, .. } | Op::Open { file, .. } | Op::Setxattr { file, .. }, _) => self.of(file.id()),
            // Other operations are never forbidden.
            _ => b"?".to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_assembled_from_names() {
        let paths = Paths::new(2);
        paths.record(10, 2, b"home");
        paths.record(11, 10, b"alice");
        assert_eq!(paths.of(2), b"/");
        assert_eq!(paths.of(11), b"/home/alice");
        assert_eq!(paths.of_name(2, b"x"), b"/x");
        assert_eq!(paths.of_name(11, b"x"), b"/home/alice/x");
        assert_eq!(paths.of_name(99, b"x"), b"?/x");
        paths.record(10, 2, b"users");
        assert_eq!(paths.of(11), b"/users/alice");
    }

    #[test]
    fn cycles_are_cut() {
        let paths = Paths::new(2);
        paths.record(10, 11, b"a");
        paths.record(11, 10, b"b");
        assert!(paths.of(10).starts_with(b"?/"));
    }

    #[test]
    fn used_entries_are_kept_and_others_evicted() {
        let paths = Paths::new(2);
        paths.record(3, 2, b"used");
        for id in 10..10 + 4 * CAPACITY as u64 {
            paths.record(id, 3, b"x");
            assert_eq!(paths.of(id), b"/used/x");
        }
        assert_eq!(paths.of(10), b"?");
        let names = paths.names();
        assert!(names.young.len() <= CAPACITY && names.old.len() <= CAPACITY);
    }
}
