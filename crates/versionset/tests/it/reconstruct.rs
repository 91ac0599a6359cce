//! Every version reconstructs to the bytes that were there, whatever its neighbours are stored as.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::{CX, Set, create, random_set, read};
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use versionset::{Content, Index, Letter, Members, Record, Seal, Source, StoreFiles, open_version};
use vnode::{Cx, Errno, Name, OpenFile, Result};

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn random_histories_are_reconstructed(seed in any::<u64>(), count in 1usize..24) {
        let (set, _) = random_set(seed, count);
        set.check();
    }
}

/// A set of very many versions, all of the same two files: odd numbers have no block, even ones the
/// first. Counts the files.
#[derive(Debug)]
struct Many {
    set: StoreFiles,
    opened: AtomicUsize,
    is_open: Mutex<Vec<Weak<dyn OpenFile>>>,
    most_open: AtomicUsize,
}

impl Source for Many {
    fn open(&self, cx: &Cx<'_>, letter: Letter, number: u64) -> Result<(Arc<dyn OpenFile>, u64)> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let (file, len) = self.set.open(cx, letter, 2 - number % 2)?;
        let mut open = self.is_open.lock().unwrap();
        open.retain(|file| file.strong_count() > 0);
        open.push(Arc::downgrade(&file));
        self.most_open.fetch_max(open.len(), Ordering::Relaxed);
        Ok((file, len))
    }

    fn head(&self, cx: &Cx<'_>, seal: Seal) -> Result<Arc<dyn Content>> {
        self.set.head(cx, seal)
    }

    fn blocks(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Content>> {
        self.set.blocks(cx, number)
    }
}

#[test]
fn a_long_chain_needs_neither_stack_nor_descriptors() {
    const COUNT: u64 = 100_000;
    let mut set = Set::new(&[b'a'; 10_000]);
    set.change(Letter::Sparse, &[b'a'; 10_000]);
    set.change(Letter::Sparse, &[&[b'b'][..], &[b'a'; 9_999]].concat());
    // An ordinary file's first two versions, repeated: the stack of a test's thread has 2 MiB.
    let mut index = Index::default();
    for number in 1..=COUNT {
        index.apply(Record::Made(common::version(number, Letter::Sparse, 10_000)));
    }
    let (opened, most_open) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let many = Arc::new(Many { set: set.files(), opened, is_open: Mutex::default(), most_open });
    let source: Arc<dyn Source> = Arc::clone(&many) as _;
    let first = open_version(&CX, &source, Members::of(&index, 1).unwrap()).unwrap();
    assert!(read(&*first).unwrap() == [b'a'; 10_000]);
    assert_eq!(many.opened.swap(0, Ordering::Relaxed) as u64, COUNT);
    // A second read knows which members have none of the bytes.
    let mut out = [0; 100];
    assert_eq!(first.read_at(&CX, &mut out, 9_000), Ok(100));
    assert!(out == [b'a'; 100]);
    assert!(many.opened.load(Ordering::Relaxed) <= 1);
    assert!(many.most_open.load(Ordering::Relaxed) <= 18);
}

#[test]
fn a_missing_member_is_an_error() {
    let mut set = Set::new(&[b'a'; 9000]);
    set.change(Letter::Sparse, &[b'b'; 9000]);
    let mut new = [b'b'; 9000];
    new[5000] = b'c';
    set.change(Letter::Sparse, &new);
    new[0] = b'd';
    set.change(Letter::Sparse, &new);
    set.check();
    set.dir().unlink(&CX, Name::new(b"foo;s3").unwrap()).unwrap();
    assert_eq!(set.read(2), Err(Errno::NOENT));
    assert!(set.read(1).is_ok());
    // A version that has no content ends the chain, and so does a missing head.
    set.index.apply(Record::Made(common::version(3, Letter::Renamed, 0)));
    assert_eq!(set.read(2), Err(Errno::IO));
    let files = StoreFiles { head: None, ..set.files() };
    set.index.apply(Record::Discarded(3));
    let source: Arc<dyn Source> = Arc::new(files);
    let second = open_version(&CX, &source, Members::of(&set.index, 2).unwrap()).unwrap();
    assert_eq!(read(&*second), Err(Errno::IO));
}

#[test]
fn blocks_may_be_added_while_a_version_is_open() {
    let old = [b'a'; 20_000];
    let mut set = Set::new(&old);
    let file = create(&set.dir(), b"foo;s1");
    let header = versionset::Header { version: common::version(1, Letter::Sparse, 20_000), xattrs: Vec::new() };
    let mut writer = versionset::SparseWriter::begin(&CX, file, 20_000, &header).unwrap();
    set.index.apply(Record::Made(header.version));
    set.head = old.to_vec();
    let files = set.files();
    let head = files.head.clone().unwrap();
    let source: Arc<dyn Source> = Arc::new(files);
    let open = open_version(&CX, &source, Members::of(&set.index, 1).unwrap()).unwrap();
    assert!(read(&*open).unwrap() == old);
    writer.add(&CX, &old[4096..12_288], 4096).unwrap();
    versionset::write_full(&CX, &**head.content.plain().unwrap(), &[b'b'; 8192], 4096).unwrap();
    assert!(read(&*open).unwrap() == old);
}
