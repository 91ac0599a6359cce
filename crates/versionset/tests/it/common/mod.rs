//! A version set over memfs, and the bytes that every version must have.
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod untrusted;

use memfs::{Faults, MemFs, MemOptions};
use std::collections::BTreeMap;
use std::sync::Arc;
use testkit::Rng;
use versionset::{
    Cause, Content, Flags, Head, Header, Index, Letter, Members, Newer, Plain, Record, Source, StoreFiles, Version,
    Who, encode, open_version, version_name, write_full,
};
use vnode::{Cx, Kind, Layer, Name, OpenFile, OpenFlags, Result, Time, Vnode};

pub(crate) const CX: Cx<'static> = Cx::internal(0, 0);

/// A set whose head is always the last state.
pub(crate) struct Set {
    pub(crate) fs: Arc<MemFs>,
    pub(crate) index: Index,
    /// The bytes of each version.
    pub(crate) right: BTreeMap<u64, Vec<u8>>,
    pub(crate) head: Vec<u8>,
}

pub(crate) const STEM: &[u8] = b"foo";

pub(crate) fn create(dir: &Arc<dyn Vnode>, name: &[u8]) -> Arc<dyn OpenFile> {
    dir.create(&CX, Name::new(name).unwrap(), 0o600, OpenFlags::RDWR).unwrap().1
}

pub(crate) fn content(bytes: &[u8]) -> Arc<dyn Content> {
    let file = create(&MemFs::new().root(), b"x");
    write_full(&CX, &*file, bytes, 0).unwrap();
    Arc::new(Plain::new(file, bytes.len() as u64))
}

pub(crate) fn version(number: u64, letter: Letter, size: usize) -> Version {
    let time = |sec| Time { sec, nsec: 0 };
    let born = i64::try_from(number).unwrap() * 10;
    Version {
        number,
        letter,
        kind: Kind::Regular,
        size: size as u64,
        mode: 0o640,
        uid: 1000,
        gid: 100,
        mtime: time(born),
        born: time(born),
        died: time(born + 10),
        cause: Cause::Write,
        who: Who { uid: 1000, pid: 7, sid: 7, comm: b"vi"[..].into() },
        flags: Flags::default(),
    }
}

impl Set {
    pub(crate) fn new(head: &[u8]) -> Self {
        let options = MemOptions { lose_data: true, ..MemOptions::default() };
        Self {
            fs: MemFs::with(options, &Faults::new()),
            index: Index::default(),
            right: BTreeMap::new(),
            head: head.to_vec(),
        }
    }

    pub(crate) fn dir(&self) -> Arc<dyn Vnode> {
        self.fs.root()
    }

    pub(crate) fn files(&self) -> StoreFiles {
        StoreFiles {
            dir: self.dir(),
            stem: STEM.to_vec(),
            head: Some(Head { content: content(&self.head), stamp: None }),
            blocks: None,
        }
    }

    pub(crate) fn source(&self) -> Arc<dyn Source> {
        Arc::new(self.files())
    }

    /// Makes the head the next version, stored with this letter if that is possible, and `new` the
    /// head.
    pub(crate) fn change(&mut self, letter: Letter, new: &[u8]) {
        let number = self.index.next();
        let old = core::mem::replace(&mut self.head, new.to_vec());
        let letter = write(&self.dir(), number, letter, &*content(&old), &*content(new));
        self.index.apply(Record::Made(version(number, letter, old.len())));
        self.right.insert(number, old);
    }

    /// Reads a version.
    pub(crate) fn read(&self, number: u64) -> Result<Vec<u8>> {
        let members = Members::of(&self.index, number).unwrap();
        read(&*open_version(&CX, &self.source(), members)?)
    }

    /// Checks the bytes of every version.
    pub(crate) fn check(&self) {
        for (number, right) in &self.right {
            let letter = self.index.versions[number].letter;
            assert!(self.read(*number).as_ref() == Ok(right), "{number} ({letter:?})");
        }
    }
}

/// Reads a content in pieces of odd length.
pub(crate) fn read(content: &dyn Content) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(content.size()).unwrap()];
    let mut at = 0;
    for part in bytes.chunks_mut(300_007) {
        assert_eq!(content.read_at(&CX, part, at)?, part.len());
        at += part.len() as u64;
    }
    Ok(bytes)
}

/// Writes a version file. Returns its letter, [`Letter::Full`] if `letter` saves nothing.
pub(crate) fn write(
    dir: &Arc<dyn Vnode>,
    number: u64,
    letter: Letter,
    old: &dyn Content,
    newer: &dyn Content,
) -> Letter {
    let name = version_name(STEM, letter, number);
    let header = Header { version: version(number, letter, 0), xattrs: vec![(b"user.a".to_vec(), b"b".to_vec())] };
    let newer = Newer { content: newer, base: number + 1 };
    let file = create(dir, &name);
    if encode(&CX, Arc::clone(&file), letter, &header, old, newer, 3).unwrap() {
        file.fsync(&CX, false).unwrap();
        return letter;
    }
    dir.unlink(&CX, Name::new(&name).unwrap()).unwrap();
    write(dir, number, Letter::Full, old, newer.content)
}

/// Changes bytes as programs do: in place, inserted, removed, moved, cut, appended.
pub(crate) fn edit(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let (at, len) = (rng.below(bytes.len() + 1), rng.below(9000));
    let end = (at + len).min(bytes.len());
    match rng.below(7) {
        0 => fill(rng, &mut bytes[at..end]),
        1 => {
            let mut new = vec![0; len];
            fill(rng, &mut new);
            bytes.splice(at..at, new);
        }
        2 => drop(bytes.drain(at..end)),
        3 => {
            let moved: Vec<_> = bytes.drain(at..end).collect();
            let to = rng.below(bytes.len() + 1);
            bytes.splice(to..to, moved);
        }
        4 => bytes.truncate(at),
        5 => {
            let start = bytes.len();
            bytes.resize(start + len, b'\n');
            fill(rng, &mut bytes[start..]);
        }
        _ => bytes.splice(at..at, *b"one line\n").for_each(drop),
    }
}

/// Half of it text, half of it anything.
fn fill(rng: &mut Rng, bytes: &mut [u8]) {
    let text = rng.below(2) == 0;
    for byte in bytes {
        *byte = if text { b"abc def\n"[rng.below(8)] } else { rng.bits() as u8 };
    }
}

pub(crate) fn letter(rng: &mut Rng) -> Letter {
    rng.pick(&LETTERS)
}
/// The letters of versions with content.
pub(crate) const LETTERS: [Letter; 6] =
    [Letter::Full, Letter::Compressed, Letter::Sparse, Letter::SparseCompressed, Letter::Delta, Letter::Text];

/// Makes a set with a random history.
pub(crate) fn random_set(seed: u64, count: usize) -> (Set, Rng) {
    let mut random = Rng::new(seed);
    let mut bytes = Vec::new();
    for _ in 0..random.below(12) {
        edit(&mut random, &mut bytes);
    }
    let mut set = Set::new(&bytes);
    for _ in 0..count {
        if random.below(8) > 0 {
            edit(&mut random, &mut bytes);
        }
        set.change(letter(&mut random), &bytes);
    }
    (set, random)
}
