//! Reads every version set of a lower tree: what is on disk, independently of the layer.

use super::history::{Attrs, Key};
use std::collections::BTreeMap;
use std::sync::Arc;
use versionset::{
    Cause, Condition, Content, Index, LINKS, Letter, Plain, STORE, Sparse, StoreName, Version, parse, version_name,
};
use vnode::{Cx, Kind, Layer, Name, OpenFlags, Vnode, read_value};

/// A version as found on disk.
#[derive(Clone, Debug)]
pub struct Found {
    pub version: Version,
    /// `None` for a reference to where a file was renamed.
    pub data: Option<Vec<u8>>,
    pub attrs: Attrs,
}

pub type Sets = BTreeMap<Key, Vec<Found>>;

fn cx() -> Cx<'static> {
    Cx::internal(0, 0)
}

pub fn list(dir: &Arc<dyn Vnode>) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    dir.readdir(&cx(), 0, &mut |entry| {
        names.push(entry.name.as_bytes().to_vec());
        true
    })
    .unwrap();
    names
}

pub fn get(dir: &Arc<dyn Vnode>, name: &[u8]) -> Option<Arc<dyn Vnode>> {
    dir.lookup(&cx(), Name::new(name).unwrap()).unwrap().map(|entry| entry.vnode)
}

pub fn read(vnode: &Arc<dyn Vnode>) -> Vec<u8> {
    match vnode.kind() {
        Kind::Regular => {
            let len = usize::try_from(vnode.getattr(&cx()).unwrap().size).unwrap();
            let mut data = vec![0; len];
            let file = vnode.open(&cx(), OpenFlags::RDONLY).unwrap();
            assert_eq!(versionset::read_full(&cx(), &*file, &mut data, 0).unwrap(), len);
            data
        }
        Kind::Symlink => vnode.readlink(&cx()).unwrap(),
        _ => Vec::new(),
    }
}

pub fn xattrs(vnode: &Arc<dyn Vnode>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let names = read_value(|out| vnode.listxattr(&cx(), out)).unwrap();
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| (name.to_vec(), read_value(|out| vnode.getxattr(&cx(), name, out)).unwrap())).collect()
}

/// Whether a name's own index says that the name belongs to an inode with several names.
pub fn is_linked(dir: &Arc<dyn Vnode>, name: &[u8], ino: u64) -> bool {
    let index = get(dir, STORE).and_then(|store| get(&store, &versionset::index_name(&versionset::stem_of(name))));
    let Some(index) = index else { return false };
    let (index, _) = Index::parse(&read(&index));
    let stem = format!("{ino:x}.0").into_bytes();
    index.links.last().is_some_and(|period| period.until.is_none() && *period.stem == *stem)
}

/// How strict the stores are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Everything is as it must be.
    Success,
    /// A record may lack its file, and files under construction may be left.
    Kill,
}

/// Reads all sets below the root of a lower tree. `inodes`: the live files by number.
pub fn read_all(lower: &Arc<dyn Layer>, after: After) -> Result<Sets, String> {
    let mut all = Walk { sets: Sets::new(), inodes: BTreeMap::new(), after };
    let root = lower.root();
    all.collect(&root);
    all.dir(&root, true)?;
    Ok(all.sets)
}

struct Walk {
    sets: Sets,
    inodes: BTreeMap<u64, Arc<dyn Vnode>>,
    after: After,
}

impl Walk {
    /// Finds the live files.
    fn collect(&mut self, dir: &Arc<dyn Vnode>) {
        for name in list(dir) {
            let child = get(dir, &name).unwrap();
            if *name == *STORE {
                continue;
            }
            if child.kind() == Kind::Directory {
                self.collect(&child);
            }
            self.inodes.insert(child.id(), child);
        }
    }

    fn dir(&mut self, dir: &Arc<dyn Vnode>, is_root: bool) -> Result<(), String> {
        for name in list(dir) {
            let child = get(dir, &name).unwrap();
            if *name == *STORE {
                self.store(dir, &child, is_root)?;
            } else if child.kind() == Kind::Directory {
                self.dir(&child, false)?;
            }
        }
        Ok(())
    }

    fn store(&mut self, dir: &Arc<dyn Vnode>, store: &Arc<dyn Vnode>, is_root: bool) -> Result<(), String> {
        let mut files: BTreeMap<Vec<u8>, BTreeMap<u64, Letter>> = BTreeMap::new();
        let mut indices = Vec::new();
        for name in list(store) {
            match parse(&name) {
                StoreName::Index(stem) => indices.push(stem.to_vec()),
                StoreName::Version { stem, letter, number } => {
                    if let Some(other) = files.entry(stem.to_vec()).or_default().insert(number, letter) {
                        return Err(format!("{}: also as {other:?}", name.escape_ascii()));
                    }
                    if letter == Letter::Directory {
                        self.dir(&get(store, &name).unwrap(), false)?;
                    }
                }
                StoreName::Unfinished(_) if self.after == After::Kill => {}
                StoreName::Other if is_root && *name == *LINKS => {
                    let links = get(store, LINKS).unwrap();
                    self.links(&links)?;
                }
                other => return Err(format!("{}: {other:?} in a store", name.escape_ascii())),
            }
        }
        for stem in indices {
            let found = files.remove(&stem).unwrap_or_default();
            let index = self.index(store, &stem)?;
            let name = index.name.as_deref().unwrap_or(&stem).to_vec();
            let head = get(dir, &name).filter(|head| head.kind() == Kind::Regular);
            let set = self.set(store, &stem, &index, found, head.as_ref())?;
            self.sets.insert(Key::Name(dir.id(), name), set);
        }
        if let Some(stem) = files.keys().next() {
            return Err(format!("{}: versions without an index", stem.escape_ascii()));
        }
        Ok(())
    }

    fn links(&mut self, links: &Arc<dyn Vnode>) -> Result<(), String> {
        let mut files: BTreeMap<Vec<u8>, BTreeMap<u64, Letter>> = BTreeMap::new();
        let mut indices = Vec::new();
        for name in list(links) {
            match parse(&name) {
                StoreName::Index(stem) => indices.push(stem.to_vec()),
                StoreName::Version { stem, letter, number } => {
                    if files.entry(stem.to_vec()).or_default().insert(number, letter).is_some() {
                        return Err(format!("{}: in two forms", name.escape_ascii()));
                    }
                }
                StoreName::Unfinished(_) if self.after == After::Kill => {}
                other => return Err(format!("{}: {other:?} in the store of links", name.escape_ascii())),
            }
        }
        for stem in indices {
            let found = files.remove(&stem).unwrap_or_default();
            let index = self.index(links, &stem)?;
            let text = String::from_utf8(stem.clone()).unwrap();
            let ino = u64::from_str_radix(text.split('.').next().unwrap(), 16).unwrap();
            let head = self.inodes.get(&ino).cloned();
            let set = self.set(links, &stem, &index, found, head.as_ref())?;
            self.sets.insert(Key::Links(ino), set);
        }
        if let Some(stem) = files.keys().next() {
            return Err(format!("{}: versions without an index", stem.escape_ascii()));
        }
        Ok(())
    }

    fn index(&self, store: &Arc<dyn Vnode>, stem: &[u8]) -> Result<Index, String> {
        let bytes = read(&get(store, &versionset::index_name(stem)).unwrap());
        let (index, condition) = Index::parse(&bytes);
        // A failed append leaves an empty one.
        if condition != Condition::Complete && !bytes.is_empty() {
            return Err(format!("index {}: {condition:?}", stem.escape_ascii()));
        }
        Ok(index)
    }

    /// Reads the versions of a set, from the newest on.
    fn set(
        &self,
        store: &Arc<dyn Vnode>,
        stem: &[u8],
        index: &Index,
        mut files: BTreeMap<u64, Letter>,
        head: Option<&Arc<dyn Vnode>>,
    ) -> Result<Vec<Found>, String> {
        let shown = stem.escape_ascii();
        let mut newer: Option<Arc<dyn Content>> = head.map(content);
        let mut found = Vec::new();
        let mut later = None;
        for (number, version) in index.versions.iter().rev() {
            let Some(letter) = files.remove(number) else {
                if found.is_empty() && self.after == After::Kill {
                    continue;
                }
                return Err(format!("{shown};{number}: a record without a file"));
            };
            if letter != version.letter || *number != version.number {
                return Err(format!("{shown};{number}: {letter:?} recorded as {version:?}"));
            }
            if version.born >= version.died || later.is_some_and(|later| version.died > later) {
                return Err(format!("{shown};{number}: interval {:?} {:?}", version.born, version.died));
            }
            later = Some(version.born);
            if version.cause.ends_head() {
                newer = None;
            }
            let file = get(store, &version_name(stem, letter, *number)).unwrap();
            let (this, xattrs) = open(&file, letter, version, newer.take())
                .map_err(|error| format!("{shown};{}{number}: {error}", letter as u8 as char))?;
            let data = match &this {
                Some(content) => {
                    let mut data = vec![0; usize::try_from(content.size()).unwrap()];
                    let read = content.read_at(&cx(), &mut data, 0);
                    if read != Ok(data.len()) {
                        return Err(format!("{shown};{number}: read {read:?} of {}", data.len()));
                    }
                    Some(data)
                }
                None if letter == Letter::Renamed => None,
                None => Some(read(&file)),
            };
            newer = this;
            let attrs = Attrs { mode: version.mode, uid: version.uid, gid: version.gid, mtime: version.mtime, xattrs };
            found.push(Found { version: version.clone(), data, attrs });
        }
        if let Some((number, letter)) = files.pop_first() {
            return Err(format!("{shown};{}{number}: a file without a record", letter as u8 as char));
        }
        found.reverse();
        Ok(found)
    }
}

fn content(vnode: &Arc<dyn Vnode>) -> Arc<dyn Content> {
    let size = vnode.getattr(&cx()).unwrap().size;
    Arc::new(Plain::new(vnode.open(&cx(), OpenFlags::RDONLY).unwrap(), size))
}

type Opened = (Option<Arc<dyn Content>>, BTreeMap<Vec<u8>, Vec<u8>>);

fn open(
    file: &Arc<dyn Vnode>,
    letter: Letter,
    version: &Version,
    newer: Option<Arc<dyn Content>>,
) -> Result<Opened, String> {
    let attr = file.getattr(&cx()).unwrap();
    match letter {
        Letter::Full => {
            if attr.size != version.size || file.kind() != Kind::Regular {
                return Err(format!("{} bytes recorded, {} found", version.size, attr.size));
            }
            if (attr.uid, attr.gid, attr.perm()) != (version.uid, version.gid, version.mode) {
                return Err(format!("attributes {attr:?} of {version:?}"));
            }
            Ok((Some(content(file)), xattrs(file)))
        }
        Letter::Sparse => {
            let lower = file.open(&cx(), OpenFlags::RDONLY).unwrap();
            let (header, is_whole) =
                Sparse::header(&cx(), &*lower, attr.size).map_err(|errno| format!("header: {errno}"))?;
            if header.version != *version {
                return Err(format!("header {header:?} of {version:?}"));
            }
            let empty: Arc<dyn Content> = Arc::new(Plain::new(Arc::clone(&lower), 0));
            let newer = match newer {
                Some(newer) => newer,
                None if is_whole => empty,
                None => return Err("lacks blocks that no newer version has".to_owned()),
            };
            let sparse = Sparse::open(&cx(), lower, attr.size, newer).map_err(|errno| errno.to_string())?;
            Ok((Some(Arc::new(sparse)), header.xattrs.into_iter().collect()))
        }
        Letter::Renamed if version.cause == Cause::Rename => Ok((None, BTreeMap::new())),
        Letter::Directory | Letter::Special => Ok((None, BTreeMap::new())),
        other => Err(format!("unexpected letter {other:?}")),
    }
}
