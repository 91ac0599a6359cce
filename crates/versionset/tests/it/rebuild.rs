//! An index that was lost is rebuilt from the version files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{CX, STEM, Set, create, random_set, version};
use proptest::prelude::*;
use versionset::{
    Birth, Cause, Index, Letter, Rebuilt, Record, SetFiles, StoreFiles, Traces, Version, Who, index_name, list,
    lost_birth, rebuild, version_name, write_full, write_index,
};
use vnode::{Attr, Errno, Name, SetAttr, SetTime, Time};

fn listed(set: &Set) -> SetFiles {
    let (mut sets, others) = list(&CX, &*set.dir()).unwrap();
    assert!(others.is_empty());
    sets.remove(STEM).unwrap_or_default()
}

/// Rebuilds the index of a set that has a head.
fn rebuilt(set: &Set, files: &StoreFiles, salvaged: &Index) -> Rebuilt {
    let head = Some(set.dir().getattr(&CX).unwrap());
    let index = set.dir().lookup(&CX, Name::new(&index_name(STEM)).unwrap()).unwrap().map(|entry| entry.attr);
    let traces = Traces { index, is_link: false, head, came_to_be: &|_| None };
    rebuild(&CX, files, &listed(set), salvaged, &traces).unwrap()
}

/// Gives full versions a later time of modification than their time of birth, as files have that
/// were removed. Others count as copies, which may lack bytes.
fn written_late(set: &Set) {
    for (number, letter) in listed(set).versions.into_iter().filter(|(_, letter)| *letter == Letter::Full) {
        let name = version_name(STEM, letter, number);
        let found = set.dir().lookup(&CX, Name::new(&name).unwrap()).unwrap().unwrap();
        let mtime = Some(SetTime::At(Time { sec: 1 << 33, nsec: 0 }));
        found.vnode.setattr(&CX, &SetAttr { mtime, ..SetAttr::default() }, None).unwrap();
    }
}

#[test]
fn a_copy_without_a_record_may_lack_bytes() {
    let mut set = Set::new(&[b'a'; 100]);
    set.change(Letter::Full, &[b'b'; 100]);
    // A power failure takes the record, but not the file with it.
    assert!(rebuilt(&set, &set.files(), &Index::default()).doubtful.is_empty());
    write_index(&CX, &set.dir(), STEM, &Index::default()).unwrap();
    let found = rebuilt(&set, &set.files(), &Index::default());
    assert_eq!(found.doubtful, [(b"foo;f1".to_vec(), b"foo;s1".to_vec())]);
    assert_eq!(found.index.versions[&1].letter, Letter::Sparse);
    // With the record, its size tells.
    let found = rebuilt(&set, &set.files(), &set.index);
    assert!(found.unreadable.is_empty() && found.doubtful.is_empty());
    set.dir()
        .lookup(&CX, Name::new(b"foo;f1").unwrap())
        .unwrap()
        .unwrap()
        .vnode
        .setattr(&CX, &SetAttr { size: Some(50), ..SetAttr::default() }, None)
        .unwrap();
    let found = rebuilt(&set, &set.files(), &set.index);
    assert_eq!(found.unreadable, [(b"foo;f1".to_vec(), Errno::IO)]);
    assert_eq!(found.index.versions[&1].size, 100);
    written_late(&set);
    let found = rebuilt(&set, &set.files(), &Index::default());
    assert!(found.unreadable.is_empty() && found.doubtful.is_empty());
}

/// A conversion to a full copy was interrupted, and a power failure took the records: the version
/// that can be read stays.
#[test]
fn a_doubtful_copy_replaces_no_version() {
    let mut set = Set::new(&[b'a'; 9000]);
    set.change(Letter::Compressed, &[b'b'; 9000]);
    create(&set.dir(), b"foo;f1");
    write_index(&CX, &set.dir(), STEM, &Index::default()).unwrap();
    let found = rebuilt(&set, &set.files(), &Index::default());
    assert!(found.doubtful.is_empty(), "{found:?}");
    assert_eq!(found.index.versions[&1].letter, Letter::Compressed);
}

/// In a copy of the directory, all files are as young as the copy, and no power failure took a
/// record: what is there is whole, and the head is the one that was born.
#[test]
fn in_a_copy_times_of_birth_say_nothing() {
    let mut set = Set::new(&[b'a'; 100]);
    set.change(Letter::Full, &[b'b'; 100]);
    write_index(&CX, &set.dir(), STEM, &Index::default()).unwrap();
    let attr = |name: &[u8]| set.dir().lookup(&CX, Name::new(name).unwrap()).unwrap().unwrap().attr;
    let index = attr(&index_name(STEM));
    let copied = Attr { mtime: Time { sec: 1000, nsec: 0 }, ..index };
    let traces = |index| Traces { index: Some(index), is_link: false, head: Some(index), came_to_be: &|_| None };
    let time = Time { sec: 500, nsec: 0 };
    let birth = Birth { time, cause: Cause::Rename, who: Who::default(), from: None, first: 1 };
    let mut salvaged = Index::default();
    salvaged.apply(Record::Born(birth.clone()));
    let found = rebuild(&CX, &set.files(), &listed(&set), &salvaged, &traces(copied)).unwrap();
    assert!(found.doubtful.is_empty() && found.unreadable.is_empty());
    assert_eq!((found.index.earlier_births.get(&1), &found.index.birth), (Some(&birth), &None));
    let found = rebuild(&CX, &set.files(), &listed(&set), &salvaged, &traces(index)).unwrap();
    assert_eq!(found.doubtful.len(), 1);
}

/// A head that was created under its name needs no birth, even if the clock of the file system is
/// behind.
#[test]
fn only_a_head_that_came_later_lacks_a_birth() {
    let at = |sec, nsec| Time { sec, nsec };
    let set = Set::new(b"text");
    let mut index = Index::default();
    let removed = Version { cause: Cause::Unlink, died: at(100, 5_000_000), ..version(1, Letter::Full, 0) };
    index.apply(Record::Made(removed));
    let head = |born| Attr { btime: Some(born), ctime: at(200, 0), ..set.dir().getattr(&CX).unwrap() };
    let birth = |born, mtime| {
        let made = Attr { btime: Some(at(1, 0)), mtime, ..head(born) };
        let traces = Traces { index: Some(made), is_link: false, head: Some(head(born)), came_to_be: &|_| None };
        lost_birth(&index, &traces).map(|birth| birth.time)
    };
    assert_eq!(birth(at(100, 1_000_000), at(100, 6_000_000)), None);
    assert_eq!(birth(at(120, 0), at(150, 0)), None);
    assert_eq!(birth(at(99, 0), at(150, 0)), Some(at(150, 0)));
    assert_eq!(birth(at(100, 1_000_000), at(150, 0)), Some(at(150, 0)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn a_lost_index_is_rebuilt(seed in any::<u64>(), count in 1usize..16, cut in 0usize..4000) {
        let (set, _) = random_set(seed, count);
        // Torn anywhere, from "nothing is left" to "complete".
        let bytes = set.index.to_bytes();
        let (salvaged, _) = Index::parse(&bytes[..cut.min(bytes.len())]);
        let rebuilt = rebuilt(&set, &set.files(), &salvaged);
        prop_assert!(rebuilt.orphaned.is_empty() && rebuilt.unreadable.is_empty() && rebuilt.superseded.is_empty());
        prop_assert_eq!(rebuilt.index.next(), set.index.next());
        prop_assert_eq!(rebuilt.index.versions.len(), set.index.versions.len());
        let mut last = None;
        for (number, right) in &set.index.versions {
            let found = &rebuilt.index.versions[number];
            if right.letter != Letter::Full || salvaged.versions.contains_key(number) {
                prop_assert!(found.mode == 0o640 && found.died >= right.died, "{found:?} {right:?}");
            }
            prop_assert_eq!((found.letter, found.size), (right.letter, right.size));
            prop_assert!(last.is_none_or(|last| found.born >= last || salvaged.versions.contains_key(number)));
            last = Some(found.died);
        }
        let set = Set { index: rebuilt.index, ..set };
        set.check();
    }
}

#[test]
fn what_cannot_be_used_is_reported() {
    let mut set = Set::new(&[b'a'; 9000]);
    for (letter, byte) in [(Letter::Sparse, b'b'), (Letter::Compressed, b'c'), (Letter::Sparse, b'd')] {
        let mut new = set.head.clone();
        new[0] = byte;
        set.change(letter, &new);
    }
    // Interrupted conversion, unfinished file, damaged file, directory under a file's name.
    create(&set.dir(), b"foo;s2");
    create(&set.dir(), b"foo;s3~");
    create(&set.dir(), b"foo;i~");
    write_full(&CX, &*create(&set.dir(), b"foo;c4"), b"damaged", 0).unwrap();
    set.dir().mkdir(&CX, Name::new(b"foo;f5").unwrap(), 0o700).unwrap();
    let found = rebuilt(&set, &set.files(), &Index::default());
    // The third one lacks bytes of the fourth, which is damaged.
    assert_eq!(found.index.versions.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!(found.index.next(), 6);
    assert_eq!(found.superseded, [b"foo;s2"]);
    assert_eq!(found.unfinished.len(), 2);
    assert_eq!(found.unreadable, [(b"foo;c4".to_vec(), Errno::IO), (b"foo;f5".to_vec(), Errno::IO)]);
    assert_eq!(found.orphaned, [3, 4, 5]);

    // Without its newer version, a sparse one is orphaned; the head is missing for another.
    set.dir().unlink(&CX, Name::new(b"foo;c2").unwrap()).unwrap();
    set.dir().unlink(&CX, Name::new(b"foo;s2").unwrap()).unwrap();
    let files = StoreFiles { head: None, ..set.files() };
    let found = rebuilt(&set, &files, &Index::default());
    assert_eq!(found.orphaned, [1, 3, 4, 5]);
}

#[test]
fn what_only_the_index_knows_is_salvaged() {
    let (set, _) = random_set(7, 5);
    let mut index = set.index.clone();
    index.apply(Record::Note(2, b"before the talk"[..].into()));
    index.apply(Record::Next(50));
    let found = rebuilt(&set, &set.files(), &index).index;
    assert_eq!((&found.versions, &found.notes, found.next()), (&index.versions, &index.notes, 50));
    for _ in 0..2 {
        write_index(&CX, &set.dir(), STEM, &found).unwrap();
        let (file, len) = set.files().open_name(&CX, &index_name(STEM)).unwrap();
        let mut bytes = vec![0; usize::try_from(len).unwrap()];
        versionset::read_full(&CX, &*file, &mut bytes, 0).unwrap();
        assert_eq!(Index::parse(&bytes).0, found);
        assert!(listed(&set).has_index && listed(&set).unfinished.is_empty());
    }
}

#[test]
fn a_version_without_its_file_stays_in_the_index_if_older_ones_need_it() {
    let mut set = Set::new(&[b'a'; 9000]);
    for (letter, byte) in [(Letter::Sparse, b'b'), (Letter::Sparse, b'c'), (Letter::Compressed, b'd')] {
        let mut new = set.head.clone();
        new[0] = byte;
        set.change(letter, &new);
    }
    set.dir().unlink(&CX, Name::new(b"foo;s2").unwrap()).unwrap();
    let found = rebuilt(&set, &set.files(), &set.index);
    assert_eq!(found.index.versions.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(found.orphaned, [1, 2]);
    // The newest record without a file was written before a kill, and the file never made.
    set.dir().unlink(&CX, Name::new(b"foo;c3").unwrap()).unwrap();
    let found = rebuilt(&set, &set.files(), &set.index);
    assert_eq!(found.index.versions.keys().copied().collect::<Vec<_>>(), [1]);
}
