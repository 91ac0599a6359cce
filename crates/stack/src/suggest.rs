//! Suggestions for misspelled names.

/// Returns the first of `known` that differs from `name` by one changed, added, removed or swapped
/// letter.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known.into_iter().find(|known| is_near(name, known))
}

fn is_near(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let same_start = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let (a, b) = (a.split_at(same_start).1, b.split_at(same_start).1);
    let same_end = a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| x == y).count();
    let (a, b) = (a.split_at(a.len() - same_end).0, b.split_at(b.len() - same_end).0);
    match (a, b) {
        ([x1, x2], [y1, y2]) => x1 == y2 && x2 == y1,
        _ => a.len() <= 1 && b.len() <= 1 && same_start + same_end > 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_one_edit_apart_are_suggested() {
        for (wrong, right) in
            [("dir", "dirs"), ("nosiud", "nosuid"), ("chache", "cache"), ("rot31", "rot13"), ("xro", "xor")]
        {
            assert_eq!(nearest(wrong, ["none", right]), Some(right));
        }
        assert_eq!(nearest("bogus", ["dirs", "cache"]), None);
        assert_eq!(nearest("", ["a"]), None);
    }
}
