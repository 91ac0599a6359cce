//! File handles of a whole tree: number and generation of every object, as the kernel or an NFS
//! client stores them.

use crate::fixture::ROOT;
use std::collections::BTreeMap;
use std::sync::Arc;
use vnode::{Attr, Errno, Kind, Layer, Name, Vnode};

/// The known properties of an object, besides its handle.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Object {
    generation: u32,
    kind: Kind,
    attr: Attr,
    /// Its names, sorted: number of the directory, and name.
    names: Vec<(u64, Vec<u8>)>,
}

/// The handles of all objects of a tree except its root.
#[derive(Clone, Debug, Default)]
pub struct Handles(BTreeMap<u64, Object>);

impl Handles {
    /// Collects the handles by walking the tree.
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

    /// Returns the number of handles.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the object numbers.
    pub fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.keys().copied()
    }

    /// Checks that each handle resolves to its object, and that the object has the same names as in
    /// the tree.
    pub fn check(&self, layer: &dyn Layer) {
        for (&number, wanted) in &self.0 {
            let vnode = layer.vnode(&ROOT, number).unwrap_or_else(|e| panic!("{number:#x} {wanted:?}: {e}"));
            let found = Object {
                generation: vnode.generation(),
                kind: vnode.kind(),
                attr: vnode.getattr(&ROOT).unwrap(),
                names: names(&vnode),
            };
            // Access times may change by reading.
            let attr = Attr { atime: wanted.attr.atime, ..found.attr };
            assert_eq!(Object { attr, ..found }, *wanted, "{number:#x}");
        }
    }

    /// Checks that handles of objects not in `present` are stale or resolve to another generation.
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
