//! Files of format version 1 remain readable.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::untrusted::open;
use crate::common::{CX, content, create, read};
use memfs::MemFs;
use versionset::{Condition, Index, Letter, Plain, read_header, write_full};
use vnode::Layer as _;

const FILES: [(Letter, &[u8]); 5] = [
    (Letter::Compressed, include_bytes!("../fixtures/1.c")),
    (Letter::Sparse, include_bytes!("../fixtures/1.s")),
    (Letter::SparseCompressed, include_bytes!("../fixtures/1.z")),
    (Letter::Delta, include_bytes!("../fixtures/1.x")),
    (Letter::Text, include_bytes!("../fixtures/1.t")),
];

/// Returns the newer version: 1,000 lines.
fn newer() -> Vec<u8> {
    (0..1000).flat_map(|line| format!("line {line} of the newer version\n").into_bytes()).collect()
}

/// Returns the older version: a line is missing, one differs, one is added.
fn old() -> Vec<u8> {
    let newer = String::from_utf8(newer()).unwrap();
    let mut lines: Vec<_> = newer.lines().collect();
    lines[300] = "another line 300";
    lines.remove(700);
    lines.push("the last line");
    lines.join("\n").into_bytes()
}

#[test]
fn version_files_are_readable() {
    for (letter, bytes) in FILES {
        let file = create(&MemFs::new().root(), b"x");
        write_full(&CX, &*file, bytes, 0).unwrap();
        let len = bytes.len() as u64;
        let stored = read_header(&CX, letter, &*file, len).unwrap().unwrap();
        let expected = versionset::Version { letter, ..common::version(8, letter, old().len()) };
        assert_eq!(stored.header.version, expected);
        assert_eq!(stored.header.xattrs, [(b"user.a".to_vec(), b"b".to_vec())]);
        let base = match letter {
            Letter::Compressed => None,
            Letter::Sparse => Some(0),
            _ => Some(9),
        };
        assert_eq!(stored.base, base);
        let version = open(letter, file, len, content(&newer())).unwrap();
        assert!(read(&*version).unwrap() == old(), "{letter:?}");
    }
}

#[test]
fn an_index_is_readable() {
    let (index, condition) = Index::parse(include_bytes!("../fixtures/1.i"));
    assert_eq!(condition, Condition::Complete);
    assert_eq!(index.versions.keys().copied().collect::<Vec<_>>(), [7, 8]);
    assert_eq!(index.versions[&8], common::version(8, Letter::Delta, 5));
    assert_eq!(index.notes[&7].as_ref(), b"before the talk");
    assert_eq!(index.next(), 9);
    assert_eq!(index.name.as_deref(), Some(&b"a long name"[..]));
}

/// Writes the fixtures as hexadecimal digits: `cargo test -p versionset --test fixtures --
/// --ignored
/// --nocapture`. For a new version of the format only.
#[test]
#[ignore = "writes the fixtures of a new version of the format"]
fn print_fixtures() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (old, newer) = (content(&old()), content(&newer()));
    for (letter, _) in FILES {
        let file = create(&MemFs::new().root(), b"x");
        let xattrs = vec![(b"user.a".to_vec(), b"b".to_vec())];
        let header = versionset::Header { version: common::version(8, letter, 0), xattrs };
        let newer = versionset::Newer { content: &*newer, base: 9 };
        assert!(versionset::encode(&CX, file.clone(), letter, &header, &*old, newer, 3).unwrap());
        let mut bytes = vec![0; 100_000];
        let len = versionset::read_full(&CX, &*file, &mut bytes, 0).unwrap();
        assert_eq!(read(&Plain::new(file, len as u64)).unwrap(), bytes[..len]);
        println!("FIXTURE 1.{} {}", letter as u8 as char, hex(&bytes[..len]));
    }
    let mut index = Index::default();
    index.apply(versionset::Record::Name(b"a long name"[..].into()));
    for (number, letter) in [(7, Letter::Full), (8, Letter::Delta)] {
        index.apply(versionset::Record::Made(common::version(number, letter, 5)));
    }
    index.apply(versionset::Record::Note(7, b"before the talk"[..].into()));
    println!("FIXTURE 1.i {}", hex(&index.to_bytes()));
}
