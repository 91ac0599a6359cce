//! Everything that can stand in a stack, by name.

use stack::{Catalog, LayerType};
use std::path::Path;

/// Every layer type, those over branches first.
static TYPES: &[&[LayerType]] =
    &[&[unionfs::LAYER, lbfs::LAYER, wrapfs::LAYER], layers::ALL, &[snoopfs::LAYER, usenetfs::LAYER]];

/// Every layer type.
pub fn types() -> impl Iterator<Item = &'static LayerType> {
    TYPES.iter().copied().flatten()
}

/// The layer type of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static LayerType> {
    types().find(|kind| kind.name == name)
}

/// What stacks in words are made of: the types of this program, and objects.
#[derive(Debug)]
pub struct Registry;

impl Catalog for Registry {
    fn find(&self, name: &str) -> Option<&'static LayerType> {
        find(name)
    }

    fn names(&self) -> Vec<&'static str> {
        types().map(|kind| kind.name).collect()
    }

    fn load(&self, path: &Path) -> Result<&'static LayerType, String> {
        plugin::load(path)
    }

    fn suggest_path(&self, name: &str) -> Option<String> {
        suggest_path(name)
    }
}

/// The path that was meant by the name of a file that is there: a path in a stack begins with `/`
/// or `.`.
#[must_use]
pub fn suggest_path(name: &str) -> Option<String> {
    let is_file = !name.is_empty() && Path::new(name).symlink_metadata().is_ok();
    is_file.then(|| format!("did you mean ./{name}?"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags;
    use crate::options::TABLE;

    #[test]
    fn names_are_names_and_stand_for_one_thing() {
        let names: Vec<_> = types().map(|kind| kind.name).collect();
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name) && *name != "strata" && *name != "none", "{name}");
            assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{name}");
        }
    }

    #[test]
    fn options_of_their_own_are_no_general_ones() {
        for (name, option) in types().flat_map(|kind| kind.options.iter().map(move |option| (kind.name, option))) {
            assert!(TABLE.iter().all(|spec| spec.name != option.name), "{name}: {}", option.name);
            assert_eq!(flags::effect(option.name), None, "{name}: {}", option.name);
            assert!(!option.help.is_empty(), "{name}: {}", option.name);
        }
    }

    #[test]
    fn layers_over_branches_declare_how_these_are_listed() {
        for (kind, branches) in types().filter_map(|kind| Some((kind, kind.branches()?))) {
            let lists = kind.options.iter().any(|option| option.name == branches.option && option.value.is_some());
            let begin = format!("{}=", branches.option);
            assert!(lists && branches.example.starts_with(&begin), "{}", kind.name);
        }
    }

    #[test]
    fn files_of_that_name_are_seen() {
        // Tests run in the directory of the crate.
        assert_eq!(suggest_path("Cargo.toml").as_deref(), Some("did you mean ./Cargo.toml?"));
        assert_eq!((suggest_path("no-such-file"), suggest_path("")), (None, None));
    }
}
