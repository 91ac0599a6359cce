//! Names of version files: `foo;f8` and `foo;i` (Versionfs paper, section 3.1), in the hidden
//! directory [`STORE`] beside the file.

use sha2::{Digest as _, Sha256};
use vnode::NAME_MAX;

/// The hidden directory with the version files of a directory's files. The only name that users can
/// neither see nor create.
pub const STORE: &[u8] = b".;versions";

/// In the store of the root: the version sets of files with several names.
pub const LINKS: &[u8] = b";links";

/// Longest suffix behind a stem: `;`, a letter and a number of up to 20 digits, and one byte for
/// files under construction.
const MAX_SUFFIX: usize = 23;

/// Bytes of a long name that its stem begins with.
const PREFIX: usize = 180;

/// How a version is stored: the letter in the name of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Letter {
    /// The whole content, an ordinary file.
    Full = b'f',
    /// The whole content, compressed.
    Compressed = b'c',
    /// The blocks that differ from the next newer version, at their offsets in a sparse file.
    Sparse = b's',
    /// As sparse, each block compressed, without holes.
    SparseCompressed = b'z',
    /// The byte ranges that differ from the next newer version, without holes.
    Delta = b'x',
    /// The differences of the lines of two texts.
    Text = b't',
    /// Content-addressed blocks of the whole volume.
    Blocks = b'b',
    /// A removed directory, moved to the store with all that it contains.
    Directory = b'd',
    /// A symbolic link, FIFO, socket or device node, moved to the store.
    Special = b'l',
    /// A file that was renamed: a symbolic link whose target describes where it went.
    Renamed = b'r',
}

impl Letter {
    /// All letters.
    pub const ALL: [Self; 10] = [
        Self::Full,
        Self::Compressed,
        Self::Sparse,
        Self::SparseCompressed,
        Self::Delta,
        Self::Text,
        Self::Blocks,
        Self::Directory,
        Self::Special,
        Self::Renamed,
    ];

    /// Returns the letter with this byte.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|letter| *letter as u8 == byte)
    }

    /// Whether a version of this kind takes the bytes that it lacks from the next newer version.
    #[must_use]
    pub const fn depends_on_newer(self) -> bool {
        matches!(self, Self::Sparse | Self::SparseCompressed | Self::Delta | Self::Text)
    }
}

/// What a file in a store is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreName<'a> {
    /// The index of the set with this stem.
    Index(&'a [u8]),
    /// Version `number` of the set with this stem.
    Version {
        /// The stem.
        stem: &'a [u8],
        /// How the version is stored.
        letter: Letter,
        /// Its number, at least 1.
        number: u64,
    },
    /// A file under construction, which nobody needs after a crash.
    Unfinished(&'a [u8]),
    /// Anything else.
    Other,
}

/// Returns the stem of the version files of `name`: the name itself, or for a long name its
/// beginning and its hash.
#[must_use]
pub fn stem_of(name: &[u8]) -> Vec<u8> {
    if name.len() + MAX_SUFFIX <= NAME_MAX && !is_hashed(name) {
        return name.to_vec();
    }
    let hash = Sha256::digest(name);
    let mut stem = name.get(..PREFIX).unwrap_or(name).to_vec();
    stem.extend_from_slice(b";h");
    for byte in hash.iter().take(16) {
        stem.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    stem
}

/// Whether a stem is that of a long name, so the index has to be read to know the name.
#[must_use]
pub fn is_hashed(stem: &[u8]) -> bool {
    let Some(start) = stem.len().checked_sub(34) else { return false };
    let (_, end) = stem.split_at(start);
    end.strip_prefix(b";h").is_some_and(|hex| hex.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}

/// Returns the name of the index of a set.
#[must_use]
pub fn index_name(stem: &[u8]) -> Vec<u8> {
    [stem, b";i"].concat()
}

/// Returns the name of a new index, which is renamed to [`index_name`] when it is complete.
#[must_use]
pub fn new_index_name(stem: &[u8]) -> Vec<u8> {
    [stem, b";i~"].concat()
}

/// Returns the name of a version file.
#[must_use]
pub fn version_name(stem: &[u8], letter: Letter, number: u64) -> Vec<u8> {
    let mut name = stem.to_vec();
    name.extend_from_slice(&[b';', letter as u8]);
    name.extend_from_slice(number.to_string().as_bytes());
    name
}

/// Returns the name under which a version file is built before it is renamed to
/// [`version_name`].
#[must_use]
pub fn new_version_name(stem: &[u8], letter: Letter, number: u64) -> Vec<u8> {
    let mut name = version_name(stem, letter, number);
    name.push(b'~');
    name
}

/// Parses the name of a file in a store.
#[must_use]
pub fn parse(name: &[u8]) -> StoreName<'_> {
    if let Some(unfinished) = name.strip_suffix(b"~") {
        return match parse(unfinished) {
            StoreName::Index(stem) | StoreName::Version { stem, .. } => StoreName::Unfinished(stem),
            StoreName::Unfinished(_) | StoreName::Other => StoreName::Other,
        };
    }
    let Some(at) = name.iter().rposition(|&byte| byte == b';') else { return StoreName::Other };
    let (stem, rest) = name.split_at(at);
    let Some((letter, digits)) = rest.get(1..).and_then(<[u8]>::split_first) else { return StoreName::Other };
    if stem.is_empty() {
        return StoreName::Other;
    }
    if *letter == b'i' && digits.is_empty() {
        return StoreName::Index(stem);
    }
    match (Letter::from_byte(*letter), number_of(digits)) {
        (Some(letter), Some(number)) => StoreName::Version { stem, letter, number },
        _ => StoreName::Other,
    }
}

/// Up to this number a history may pass over any others.
const MAX_SKIPPED: u64 = 1 << 62;

/// Beyond that, how far a number may be above the next one.
const MAX_STEP: u64 = 1 << 32;

/// The largest number in the name of a version file.
pub const MAX_NUMBER: u64 = 1 << 63;

/// Whether a history that goes on with the number `next` may go on with `number` instead. Larger
/// ones are none that it reaches, and count as nothing: otherwise a record or file that somebody
/// forged would leave no numbers for further versions. An index has fewer than 2^27 records, so all
/// of them leave some.
#[must_use]
pub const fn may_follow(number: u64, next: u64) -> bool {
    let counted = if next > MAX_SKIPPED { next } else { MAX_SKIPPED };
    number <= counted.saturating_add(MAX_STEP)
}

/// Parses a version number: decimal digits without leading zeros, from 1 to [`MAX_NUMBER`].
#[must_use]
pub fn number_of(digits: &[u8]) -> Option<u64> {
    if digits.first().is_none_or(|first| !matches!(first, b'1'..=b'9')) {
        return None;
    }
    core::str::from_utf8(digits).ok()?.parse().ok().filter(|number| *number <= MAX_NUMBER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_numbers_leave_room_for_further_ones() {
        assert!(may_follow(1, 1) && may_follow(MAX_SKIPPED, 1) && may_follow(7, MAX_SKIPPED + 9));
        assert!(!may_follow(MAX_NUMBER, 1) && !may_follow(u64::MAX, MAX_SKIPPED));
        // As many records as an index can have.
        let next = MAX_SKIPPED + (1 << 27) * MAX_STEP;
        assert!(next < MAX_NUMBER - MAX_SKIPPED / 2 && may_follow(next + 1, next) && !may_follow(MAX_NUMBER, next));
    }

    #[test]
    fn names_are_parsed_as_they_are_made() {
        for stem in [&b"foo"[..], b"foo;bar", b";", b"a;f8", b"x~", b"\xff\n"] {
            assert_eq!(parse(&index_name(stem)), StoreName::Index(stem));
            assert_eq!(parse(&new_index_name(stem)), StoreName::Unfinished(stem));
            for letter in Letter::ALL {
                for number in [1, 8, 100_000, MAX_NUMBER] {
                    assert_eq!(parse(&version_name(stem, letter, number)), StoreName::Version { stem, letter, number });
                    assert_eq!(parse(&new_version_name(stem, letter, number)), StoreName::Unfinished(stem));
                }
            }
        }
    }

    #[test]
    fn other_names_are_nothing() {
        for name in [
            &b"foo"[..],
            b"foo;",
            b"foo;f",
            b"foo;f0",
            b"foo;f01",
            b"foo;q1",
            b"foo;f1x",
            b";i",
            b";links",
            b"foo;i1",
            b"~",
            b"foo;f99999999999999999999",
        ] {
            assert_eq!(parse(name), StoreName::Other, "{}", name.escape_ascii());
        }
    }

    #[test]
    fn long_names_get_short_distinct_stems() {
        let (one, two) = ([b'x'; 255], [&[b'x'; 254][..], b"y"].concat());
        let (first, second) = (stem_of(&one), stem_of(&two));
        assert_ne!(first, second);
        for stem in [&first, &second] {
            assert!(is_hashed(stem));
            assert!(new_version_name(stem, Letter::Full, u64::MAX).len() <= NAME_MAX);
        }
        assert_eq!(stem_of(&[b'x'; 232]), [b'x'; 232]);
        assert!(is_hashed(&stem_of(&[b'x'; 233])));
        // A name that looks like the stem of a long one gets a stem of its own.
        assert_ne!(stem_of(&first), first);
    }
}
