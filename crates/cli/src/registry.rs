//! Everything that can stand in a stack, by name.

use crate::balance::BALANCE;
use crate::bottom::BottomType;
use crate::union::UNION;
use wrapfs::{LayerType, WrapFs};

/// The name of the null layer.
pub const NULL_NAME: &str = "wrapfs";
/// The name of the one that balances replicas.
pub const BALANCE_NAME: &str = "lbfs";
/// The name of the union.
pub const UNION_NAME: &str = "unionfs";

/// The null layer.
const NULL: LayerType = LayerType {
    name: NULL_NAME,
    about: "adds nothing: the null layer, which every layer begins with",
    options: &[],
    build: &|lower, _settings| Ok(WrapFs::new(lower)),
};

/// Layers over one other.
static LAYERS: &[&[LayerType]] = &[&[NULL], layers::ALL, &[snoopfs::LAYER, usenetfs::LAYER]];

/// File systems over several directories.
static BOTTOMS: &[&BottomType] = &[&UNION, &BALANCE];

/// Every layer that stands on one other.
pub fn layers() -> impl Iterator<Item = &'static LayerType> {
    LAYERS.iter().copied().flatten()
}

/// Every file system that stands on several directories.
pub fn bottoms() -> impl Iterator<Item = &'static BottomType> {
    BOTTOMS.iter().copied()
}

/// The layer of that name.
#[must_use]
pub fn layer(name: &str) -> Option<&'static LayerType> {
    layers().find(|layer| layer.name == name)
}

/// The file system of that name.
#[must_use]
pub fn bottom(name: &str) -> Option<&'static BottomType> {
    bottoms().find(|bottom| bottom.name == name)
}

/// Every name.
pub fn names() -> impl Iterator<Item = &'static str> {
    bottoms().map(|bottom| bottom.name).chain(layers().map(|layer| layer.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags;
    use crate::options::TABLE;

    #[test]
    fn names_are_names_and_stand_for_one_thing() {
        let names: Vec<_> = names().collect();
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name) && *name != "strata" && *name != "none", "{name}");
            assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{name}");
        }
    }

    #[test]
    fn options_of_their_own_are_no_general_ones() {
        let all = layers().map(|l| (l.name, l.options)).chain(bottoms().map(|b| (b.name, b.options)));
        for (name, option) in all.flat_map(|(name, options)| options.iter().map(move |option| (name, option))) {
            assert!(TABLE.iter().all(|spec| spec.name != option.name), "{name}: {}", option.name);
            assert_eq!(flags::effect(option.name), None, "{name}: {}", option.name);
            assert!(!option.help.is_empty(), "{name}: {}", option.name);
        }
    }
}
