//! The arithmetic of inode numbers: docs/design/unionfs.md, "Inode numbers".

/// The number of the root.
pub(crate) const ROOT: u64 = 1;

pub(crate) const LOWER_BITS: u32 = 48;
const HASHED: u64 = 1 << 63;

/// Returns the number of a lower object: tag and lower number, or a hash of both if the lower
/// number is too large.
pub(crate) fn compose(tag: u16, lower: u64) -> u64 {
    if lower >> LOWER_BITS == 0 {
        return u64::from(tag) << LOWER_BITS | lower;
    }
    HASHED | mix(lower ^ u64::from(tag).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Returns the tag in a number; `None` for numbers of the hashed range.
pub(crate) fn tag_of(number: u64) -> Option<u16> {
    if number & HASHED != 0 { None } else { u16::try_from(number >> LOWER_BITS).ok() }
}

/// Returns the lower number in a number that is not of the hashed range.
pub(crate) fn lower_of(number: u64) -> u64 {
    number & ((1 << LOWER_BITS) - 1)
}

/// Returns the number that [`narrow`] turns into this one.
pub(crate) fn widen(shown: u64) -> u64 {
    let Ok(narrow) = u32::try_from(shown) else { return shown };
    match (narrow >> 30, narrow >> 26) {
        (tag @ 1..=3, _) => u64::from(tag) << LOWER_BITS | u64::from(narrow & ((1 << 30) - 1)),
        (_, tag @ 4..=15) => u64::from(tag) << LOWER_BITS | u64::from(narrow & ((1 << 26) - 1)),
        _ => shown,
    }
}

/// Returns the number to show with `ino=32`: tags 1 to 3 leave 30 bits to the lower number, tags 4
/// to 15 leave 26. Numbers that do not fit are unchanged. No two numbers are shown as one, and the
/// root keeps its number.
pub(crate) fn narrow(number: u64) -> u64 {
    let (tag, lower) = (number >> LOWER_BITS, number & ((1 << LOWER_BITS) - 1));
    match tag {
        1..=3 if lower >> 30 == 0 => tag << 30 | lower,
        4..=15 if lower >> 26 == 0 => tag << 26 | lower,
        _ => number,
    }
}

/// Returns another number, of the hashed range, to use if `id` is taken.
pub(crate) fn next_free(id: u64) -> u64 {
    HASHED | mix(id.wrapping_add(1))
}

/// Spreads every bit of the input over all bits (the finaliser of SplitMix64).
pub(crate) fn mix(mut n: u64) -> u64 {
    n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique() {
        assert_eq!(compose(3, 5), 3 << 48 | 5);
        assert_ne!(compose(3, 1 << 50), compose(4, 1 << 50));
        assert!(compose(3, 1 << 50) >> 63 == 1);
        assert!(compose(32766, (1 << 48) - 1) >> 63 == 0);
        assert_ne!(next_free(7), next_free(next_free(7)));
    }

    #[test]
    fn narrow_numbers_are_unique() {
        assert_eq!(narrow(ROOT), ROOT);
        let fits = |number: u64| narrow(number) <= u64::from(u32::MAX);
        let lowest: Vec<u64> = (1..=15).map(|tag| narrow(compose(tag, 0))).collect();
        let highest = |tag: u16| narrow(compose(tag, (1 << if tag < 4 { 30 } else { 26 }) - 1));
        for tag in 1..=15 {
            assert!(fits(compose(tag, 7)));
            for number in [compose(tag, 0), compose(tag, 7), compose(tag, (1 << 26) - 1), compose(tag, 1 << 26)] {
                assert_eq!(widen(narrow(number)), number);
            }
            assert!(highest(tag) <= u64::from(u32::MAX) && narrow(compose(tag, 0)) > ROOT);
            // The ranges of two tags do not overlap.
            let inside = |n: &&u64| (narrow(compose(tag, 0))..=highest(tag)).contains(*n);
            assert_eq!(lowest.iter().filter(inside).count(), 1, "tag {tag}");
        }
        for large in [compose(1, 1 << 30), compose(4, 1 << 26), compose(16, 1), compose(1, 1 << 50), next_free(7)] {
            assert_eq!(narrow(large), large);
            assert_eq!(widen(large), large);
            assert!(!fits(large));
        }
    }
}
