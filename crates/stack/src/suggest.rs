//! Suggestions for misspelled names, and for the options of other file systems.

/// Returns the first of `known` that differs from `name` by one changed, added, removed or swapped
/// letter.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known.into_iter().find(|known| is_near(name, known))
}

/// An option of another file system.
struct Elsewhere {
    names: &'static [&'static str],
    of: &'static str,
    /// The option that takes its place.
    here: &'static str,
    /// What to do, after the colon.
    remedy: &'static str,
}

const ELSEWHERE: &[Elsewhere] = &[
    Elsewhere {
        names: &["lowerdir", "lowerdir+", "datadir+", "upperdir"],
        of: "overlayfs",
        here: "dirs",
        remedy: "list all directories in dirs=, the writable one first: dirs=/upper=rw:/lower=ro",
    },
    Elsewhere { names: &["workdir"], of: "overlayfs", here: "dirs", remedy: "a union needs none; leave it out" },
    Elsewhere {
        names: &["br"],
        of: "aufs",
        here: "dirs",
        remedy: "list the directories in dirs=: dirs=/upper=rw:/lower=ro",
    },
    Elsewhere { names: &["category.create", "func.create"], of: "mergerfs", here: "create", remedy: "use create=" },
    Elsewhere { names: &["minfreespace"], of: "mergerfs", here: "minfree", remedy: "use minfree=" },
    Elsewhere {
        names: &["cow"],
        of: "unionfs-fuse",
        here: "dirs",
        remedy: "a union copies to branches that are =rw; leave it out",
    },
    Elsewhere {
        names: &["attr_timeout", "entry_timeout", "negative_timeout", "ac_attr_timeout"],
        of: "libfuse",
        here: "cache",
        remedy: "use cache=",
    },
];

/// Returns what to do about an option of another file system, if one of the `known` options takes
/// its place.
#[must_use]
pub fn elsewhere<'a>(name: &str, mut known: impl Iterator<Item = &'a str>) -> Option<String> {
    // aufs also permits br:/upper.
    let name = name.split(':').next().unwrap_or(name);
    let found = ELSEWHERE.iter().find(|option| option.names.contains(&name))?;
    known.any(|known| known == found.here).then(|| format!("an option of {}: {}", found.of, found.remedy))
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

    #[test]
    fn options_of_other_file_systems_are_known() {
        let hint = |name| elsewhere(name, ["create", "dirs"].into_iter());
        let list =
            "an option of overlayfs: list all directories in dirs=, the writable one first: dirs=/upper=rw:/lower=ro";
        assert_eq!(hint("lowerdir").as_deref(), Some(list));
        assert!(hint("br:/upper").is_some_and(|hint| hint.starts_with("an option of aufs: ")));
        assert_eq!((hint("attr_timeout"), hint("bogus"), hint("")), (None, None, None));
        assert_eq!(elsewhere("lowerdir", ["cache"].into_iter()), None);
    }
}
