//! Changes of branches, and the options of a remount that request them. Three programs have defined
//! such options, and all of their forms are accepted:
//!
//! | option | meaning |
//! |---|---|
//! | `add=DIR[=MODE]` | adds a branch at the position that `unionctl --add` chooses |
//! | `add=B:DIR[=MODE]` | adds it before branch B, a path or an index |
//! | `add=:DIR[=MODE]` | adds it after all others |
//! | `append=DIR[=MODE]`, `prepend=DIR[=MODE]` | adds it after or before all others |
//! | `del=B` | removes a branch |
//! | `mode=B=MODE`, `mod=B=MODE` | switches a branch to another mode |
//! | `br=LIST` | replaces all branches, like `dirs=` |
//!
//! The first `=` may be a colon, as in aufs(5). Modes may have the additions of aufs(5), such as
//! `rr+wh`, which have no effect.

use stack::Text;

/// A change as the user requests it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Adds a branch, as written in the list of branches of a mount, possibly with a mode.
    Add {
        /// `PATH[=MODE]` or `[STACK][=MODE]`.
        branch: Text,
        /// Its position.
        position: Position,
    },
    /// Adds an empty branch before all others, and makes all others read-only.
    Snapshot(Text),
    /// Removes a branch.
    Remove(Which),
    /// Switches a branch to another mode.
    Mode(Which, String),
    /// Makes the branches those of this list.
    Set(Vec<Text>),
}

impl Edit {
    /// Whether the change names a branch by its index.
    pub(crate) fn names_an_index(&self) -> bool {
        match self {
            Self::Add { position: Position::Before(which) | Position::After(which), .. } => which.index().is_some(),
            Self::Remove(which) | Self::Mode(which, _) => which.index().is_some(),
            Self::Add { .. } | Self::Snapshot(_) | Self::Set(_) => false,
        }
    }
}

impl Which {
    /// Returns the index; `None` for a path.
    pub(crate) fn index(&self) -> Option<usize> {
        core::str::from_utf8(&self.0).ok()?.parse().ok()
    }
}

/// The position of a new branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// A writable branch becomes the first. A read-only one is placed below all writable branches.
    Default,
    /// Directly before (with precedence over) this branch.
    Before(Which),
    /// Directly after this branch.
    After(Which),
    /// Before all others.
    First,
    /// After all others.
    Last,
}

/// A branch as the user names it: an index, which begins at 0, or a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Which(pub Vec<u8>);

/// The names of the options.
const NAMES: [&str; 7] = ["add", "append", "prepend", "del", "mode", "mod", "br"];

/// Parses an option; `None` if it is none of these.
///
/// # Errors
/// Describes what is missing.
pub(crate) fn read(item: &Text) -> Result<Option<Edit>, String> {
    let Some((name, value)) = split(item) else { return Ok(None) };
    if value.is_empty() {
        return Err(format!("option {name}: needs a branch"));
    }
    let edit = match name {
        "append" => Edit::Add { branch: branch(&value), position: Position::Last },
        "prepend" => Edit::Add { branch: branch(&value), position: Position::First },
        "add" => match split_position(&value) {
            None => Edit::Add { branch: branch(&value), position: Position::Default },
            Some((before, added)) if before.is_empty() => {
                Edit::Add { branch: branch(&added), position: Position::Last }
            }
            Some((before, added)) => {
                Edit::Add { branch: branch(&added), position: Position::Before(Which(before.bytes())) }
            }
        },
        "del" => Edit::Remove(Which(value.bytes())),
        "br" => Edit::Set(value.split(b':').iter().map(branch).collect()),
        _ => match value.split_last(b'=') {
            Some((which, mode)) => Edit::Mode(Which(which.bytes()), plain_mode(&mode.show()).to_owned()),
            None => return Err(format!("option {name}: needs a branch and a mode, as in {name}=/base=ro")),
        },
    };
    Ok(Some(edit))
}

/// Splits an item after the option's name: at the first `=` or `:`.
fn split(item: &Text) -> Option<(&'static str, Text)> {
    let parts = [item.split_first(b'='), item.split_first(b':')];
    let of = |(name, value): (Text, Text)| Some((*NAMES.iter().find(|known| name.show() == **known)?, value));
    parts.into_iter().flatten().find_map(of)
}

/// Splits `B:DIR` or `:DIR`.
fn split_position(value: &Text) -> Option<(Text, Text)> {
    if value.bytes().first() == Some(&b'[') { None } else { value.split_first(b':') }
}

/// Returns the branch with its mode in the form of [`stack`].
fn branch(value: &Text) -> Text {
    let Some((path, mode)) = value.split_last(b'=') else { return value.clone() };
    let written = format!("{}={}", path.written(), plain_mode(&mode.show()));
    Text::read(written.as_bytes()).unwrap_or_else(|_| value.clone())
}

/// Returns the mode without the additions of aufs, whose `rr` is a branch that never changes at
/// all.
fn plain_mode(mode: &str) -> &str {
    match mode.split_once('+').map_or(mode, |(mode, _)| mode) {
        "rr" => "ro",
        mode => mode,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(written: &str) -> Text {
        Text::read(written.as_bytes()).unwrap()
    }

    fn edit(item: &str) -> Option<Edit> {
        read(&text(item)).unwrap()
    }

    fn add(branch: &str, position: Position) -> Option<Edit> {
        Some(Edit::Add { branch: text(branch), position })
    }

    fn which(name: &str) -> Which {
        Which(name.as_bytes().to_vec())
    }

    #[test]
    fn branches_are_added() {
        for (item, branch, position) in [
            ("add=/d", "/d", Position::Default),
            ("add=/d=rw", "/d=rw", Position::Default),
            ("add:1:/bundle=rr+wh", "/bundle=ro", Position::Before(which("1"))),
            ("add=1:/bundle=ro", "/bundle=ro", Position::Before(which("1"))),
            ("add=/b:/d=rw", "/d=rw", Position::Before(which("/b"))),
            ("add=:/d", "/d", Position::Last),
            ("append:/d=ro+wh", "/d=ro", Position::Last),
            ("prepend=/d=rw+nolwh", "/d=rw", Position::First),
            ("add=[zstd / /d]=ro", "[zstd / /d]=ro", Position::Default),
        ] {
            let want = add(branch, position);
            assert_eq!(edit(item), want, "{item}");
        }
    }

    #[test]
    fn branches_are_removed_and_switched() {
        assert_eq!(edit("del:/a b"), Some(Edit::Remove(which("/a b"))));
        assert_eq!(edit("del=/a"), edit("del:/a"));
        let switched = Some(Edit::Mode(which("/a"), "ro".to_owned()));
        for item in ["mod:/a=ro", "mode=/a=ro", "mod=/a=rr+wh"] {
            assert_eq!(edit(item), switched, "{item}");
        }
        assert_eq!(edit("br:/a=rw:/b=rr+wh"), Some(Edit::Set(vec![text("/a=rw"), text("/b=ro")])));
    }

    #[test]
    fn other_options_are_left_alone() {
        for item in ["dirs=/a", "add", "address=1", "noatime", "cache=1", "ro"] {
            assert_eq!(edit(item), None, "{item}");
        }
        for item in ["add=", "mode=/a", "del:"] {
            assert!(read(&text(item)).is_err(), "{item}");
        }
    }
}
