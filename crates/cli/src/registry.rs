//! The registry of layer types: maps names to layers.

use stack::{Catalog, LayerType};
use std::path::Path;

/// All layer types; those over branches come first.
static TYPES: &[&[LayerType]] = &[
    &[unionfs::LAYER, lbfs::LAYER, viewfs::LAYER, wrapfs::LAYER],
    layers::ALL,
    &[snoopfs::LAYER, usenetfs::LAYER, versionfs::LAYER, cryptfs::LAYER],
];

/// Iterates over all layer types.
pub fn types() -> impl Iterator<Item = &'static LayerType> {
    TYPES.iter().copied().flatten()
}

/// Returns the layer type with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static LayerType> {
    types().find(|kind| kind.name == name)
}

/// The catalog for stack descriptions: the built-in layer types and plugins.
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

    fn read_list(&self, path: &Path) -> Result<Vec<u8>, String> {
        std::fs::read(path).map_err(|error| error.to_string())
    }

    fn suggest_path(&self, name: &str) -> Option<String> {
        suggest_path(name)
    }
}

/// Returns a hint if `name` is an existing file: in a stack, a path must begin with `/` or `.`.
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
    fn layer_names_are_valid_and_unique() {
        let names: Vec<_> = types().map(|kind| kind.name).collect();
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name) && *name != "strata" && *name != "none", "{name}");
            assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{name}");
        }
    }

    #[test]
    fn options_of_layers_do_not_shadow_common_options() {
        for (name, option) in types().flat_map(|kind| kind.options.iter().map(move |option| (kind.name, option))) {
            assert!(TABLE.iter().all(|spec| spec.name != option.name), "{name}: {}", option.name);
            assert_eq!(flags::effect(option.name), None, "{name}: {}", option.name);
            assert!(!option.help.is_empty(), "{name}: {}", option.name);
        }
    }

    #[test]
    fn layers_over_branches_declare_their_list_option() {
        for (kind, branches) in types().filter_map(|kind| Some((kind, kind.branches()?))) {
            let lists = kind.options.iter().any(|option| option.name == branches.option && option.value.is_some());
            let begin = format!("{}=", branches.option);
            assert!(lists && branches.example.starts_with(&begin), "{}", kind.name);
        }
    }

    #[test]
    fn a_path_is_suggested_for_an_existing_file() {
        // The working directory of tests is that of the crate.
        assert_eq!(suggest_path("Cargo.toml").as_deref(), Some("did you mean ./Cargo.toml?"));
        assert_eq!((suggest_path("no-such-file"), suggest_path("")), (None, None));
    }
}
