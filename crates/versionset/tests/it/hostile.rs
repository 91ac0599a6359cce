//! Damaged and hostile version files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::untrusted::{FORMATS, correct, exercise, exercise_index, open};
use crate::common::{CX, content, create, edit, read, version};
use memfs::MemFs;
use proptest::prelude::*;
use testkit::Rng;
use versionset::{Header, Letter, Newer, encode, read_full, write_full};
use vnode::{Errno, Layer as _};

/// Returns a version file with the bytes of the version and of the newer one. `None` if the random
/// edit made the version something that the format is not for.
fn example(letter: Letter, seed: u64) -> Option<(Vec<u8>, Vec<u8>, Vec<u8>)> {
    let mut random = Rng::new(seed);
    let mut old: Vec<u8> = (0..3000).flat_map(|line| format!("line {line}\n").into_bytes()).collect();
    let newer = old.clone();
    edit(&mut random, &mut old);
    old.extend_from_slice(b"at least two blocks".repeat(500).as_slice());
    let fs = MemFs::new();
    let file = create(&fs.root(), b"x");
    let header = Header { version: version(8, letter, 0), xattrs: Vec::new() };
    let of_newer = content(&newer);
    let newer_version = Newer { content: &*of_newer, base: 9 };
    if !encode(&CX, file.clone(), letter, &header, &*content(&old), newer_version, 3).unwrap() {
        return None;
    }
    let mut bytes = vec![0; 200_000];
    let len = read_full(&CX, &*file, &mut bytes, 0).unwrap();
    bytes.truncate(len);
    Some((bytes, old, newer))
}

#[test]
fn damage_is_an_error_and_never_other_bytes() {
    for (letter, _) in FORMATS.into_iter().filter(|(letter, _)| *letter != Letter::Sparse) {
        let (bytes, old, newer) = example(letter, 5).unwrap();
        let newer = content(&newer);
        let fs = MemFs::new();
        let file = create(&fs.root(), b"x");
        write_full(&CX, &*file, &bytes, 0).unwrap();
        let mut damaged = 0;
        for at in (0..bytes.len()).step_by(bytes.len() / 2000 + 1) {
            for mask in [0x01, 0x40, 0xff] {
                write_full(&CX, &*file, &[bytes[at] ^ mask], at as u64).unwrap();
                let opened = open(letter, file.clone(), bytes.len() as u64, newer.clone());
                match opened.and_then(|version| read(&*version)) {
                    Ok(read) => assert!(read == old, "{letter:?} {at}"),
                    Err(errno) => {
                        assert_eq!(errno, Errno::IO, "{letter:?} {at}");
                        damaged += 1;
                    }
                }
            }
            write_full(&CX, &*file, &bytes[at..=at], at as u64).unwrap();
        }
        assert!(damaged > 1000.min(bytes.len()), "{letter:?}: {damaged} of {}", bytes.len());
        // A file that ends too early.
        for len in (0..bytes.len()).step_by(bytes.len() / 200 + 1) {
            let cut = create(&fs.root(), format!("{letter:?}{len}").as_bytes());
            write_full(&CX, &*cut, &bytes[..len], 0).unwrap();
            let opened = open(letter, cut, len as u64, newer.clone());
            assert_eq!(opened.and_then(|version| read(&*version)), Err(Errno::IO), "{letter:?} {len}");
        }
    }
}

proptest! {
    #[test]
    fn hostile_bytes_are_no_problem(
        format in 0usize..5,
        mut bytes in prop::collection::vec(any::<u8>(), 0..400),
        offsets in prop::collection::vec(any::<u64>(), 3),
    ) {
        let (letter, magic) = FORMATS[format];
        exercise(letter, &bytes, &offsets);
        correct(magic, &mut bytes);
        exercise(letter, &bytes, &offsets);
        exercise_index(&bytes);
    }

    #[test]
    fn changed_files_with_right_checksums_are_no_problem(
        format in 0usize..5,
        seed in any::<u64>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        offsets in prop::collection::vec(any::<u64>(), 3),
    ) {
        let (letter, magic) = FORMATS[format];
        let example = example(letter, seed);
        prop_assume!(example.is_some());
        let (mut bytes, ..) = example.unwrap();
        let front = bytes.len().min(300);
        for (at, byte) in changes {
            bytes[at.index(front)] = byte;
        }
        if letter != Letter::Sparse {
            correct(magic, &mut bytes);
        }
        exercise(letter, &bytes, &offsets);
    }
}
