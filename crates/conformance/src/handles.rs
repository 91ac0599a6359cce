//! File handles of a whole tree: number and generation of every object, as a kernel or an NFS
//! client keeps them.

use crate::fixture::ROOT;
use std::collections::BTreeMap;
use std::sync::Arc;
use vnode::{Attr, Errno, Kind, Layer, Name, Vnode};

/// What is known of an object beside its handle.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Object {
    generation: u32,
    kind: Kind,
    attr: Attr,
    /// Its names: number of the directory, and name; sorted.
    names: Vec<(u64, Vec<u8>)>,
}

/// The handles of all objects of a tree but its root.
#[derive(Clone, Debug, Default)]
pub struct Handles(BTreeMap<u64, Object>);

impl Handles {
    /// Walks the tree.
    #[must_use]
    pub fn of(layer: &dyn Layer) -> Self {
        let mut all = Self::default();
        let mut dirs = vec![layer.root()];
        while let Some(dir) = dirs.pop() {
            let mut names = Vec::new();
            dir.readdir(&ROOT, 0, &mut |entry| {
                names.push(entry.name.as_bytes().to_vec());
                true
            })
            .unwrap();
            for name in names {
                let entry = dir.lookup(&ROOT, Name::new(&name).unwrap()).unwrap().unwrap();
                let known = all.0.entry(entry.vnode.id()).or_insert_with(|| Object {
                    generation: entry.vnode.generation(),
                    kind: entry.vnode.kind(),
                    attr: entry.attr,
                    names: Vec::new(),
                });
                known.names.push((dir.id(), name));
                known.names.sort();
                if known.kind == Kind::Directory {
                    dirs.push(entry.vnode);
                }
            }
        }
        all
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The numbers.
    pub fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.keys().copied()
    }

    /// Each must lead to its object, and the object's names must be those that it has in the tree.
    pub fn check(&self, layer: &dyn Layer) {
        for (&number, wanted) in &self.0 {
            let vnode = layer.vnode(&ROOT, number).unwrap_or_else(|e| panic!("{number:#x} {wanted:?}: {e}"));
            let found = Object {
                generation: vnode.generation(),
                kind: vnode.kind(),
                attr: vnode.getattr(&ROOT).unwrap(),
                names: names(&vnode),
            };
            // Looking is allowed to move times of access.
            let attr = Attr { atime: wanted.attr.atime, ..found.attr };
            assert_eq!(Object { attr, ..found }, *wanted, "{number:#x}");
        }
    }

    /// Those whose objects are not in `present` must be stale, or lead to objects of another generation.
    pub fn check_gone(&self, layer: &dyn Layer, present: &Self) {
        for (&number, gone) in self.0.iter().filter(|(number, _)| !present.0.contains_key(number)) {
            match layer.vnode(&ROOT, number) {
                Err(errno) => assert_eq!(errno, Errno::STALE, "{gone:?}"),
                Ok(vnode) => {
                    let named = !names(&vnode).is_empty();
                    assert!(!named || vnode.generation() != gone.generation, "{number:#x} {gone:?}: {vnode:?}");
                }
            }
        }
    }
}

fn names(vnode: &Arc<dyn Vnode>) -> Vec<(u64, Vec<u8>)> {
    let mut names = Vec::new();
    let told = vnode.names(&ROOT, &mut |dir, name| {
        names.push((dir.id(), name.as_bytes().to_vec()));
        true
    });
    assert!(matches!(told, Ok(()) | Err(Errno::STALE)), "{told:?}");
    names.sort();
    names
}
