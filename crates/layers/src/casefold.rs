//! Case-insensitive names that are stored as created. An example of a layer in which several names
//! refer to one entry.

use wrapfs::hooks::{Matching, Names, Object};
use wrapfs::vnode::{Cx, Result};
use wrapfs::{Build, LayerType, Template, Traits};

/// The layer.
pub const LAYER: LayerType = LayerType {
    name: "casefold",
    about: "case-insensitive lookups; names are stored as created",
    options: &[],
    build: Build::Over(&|lower, _settings| Template::over(lower).names(CaseFold).build()),
    traits: Traits { keeps_callers_apart: true, ..Traits::NONE },
};

#[derive(Debug)]
struct CaseFold;

impl Names for CaseFold {
    fn target_size(&self, stored: u64) -> Option<u64> {
        // Targets are stored as they are.
        Some(stored)
    }

    fn matching(&self) -> Matching {
        Matching::Folded
    }

    fn fold_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(folded(name))
    }

    fn encode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(name.to_vec())
    }

    fn decode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(name.to_vec())
    }
}

/// Returns the full Unicode case folding of a name, without normalization: `Straße` equals
/// `STRASSE`, but a precomposed `é` differs from `e` and an accent. Names that are not UTF-8 are
/// compared byte by byte.
fn folded(name: &[u8]) -> Vec<u8> {
    if name.is_ascii() {
        return name.to_ascii_lowercase();
    }
    match core::str::from_utf8(name) {
        Ok(name) => name.chars().flat_map(fold).collect::<String>().into_bytes(),
        Err(_) => name.to_vec(),
    }
}

/// Folds a character to the lowercase of its uppercase, so that all forms of a letter are equal
/// (`ς`, `σ` and `Σ`; `ẞ`, `ß` and `ss`). The dotless i, whose uppercase is that of i, remains a
/// separate letter.
fn fold(c: char) -> impl Iterator<Item = char> {
    let (dotless, other) = if c == 'ı' { (Some(c), None) } else { (None, Some(c)) };
    let small =
        other.into_iter().flat_map(char::to_lowercase).flat_map(char::to_uppercase).flat_map(char::to_lowercase);
    dotless.into_iter().chain(small)
}

#[cfg(test)]
mod tests {
    use super::folded;

    #[test]
    fn all_forms_of_a_letter_are_equal() {
        for (one, other) in
            [("README", "readme"), ("Straße", "STRASSE"), ("STRAẞE", "strasse"), ("ΣΊΣΥΦΟΣ", "σίσυφος"), ("ﬁx", "FIX")]
        {
            assert_eq!(folded(one.as_bytes()), folded(other.as_bytes()), "{one}");
        }
        for (one, other) in [("ı", "i"), ("é", "e\u{301}"), ("ä", "a"), ("K8", "K9")] {
            assert_ne!(folded(one.as_bytes()), folded(other.as_bytes()), "{one}");
        }
        assert_ne!(folded(b"\xe4A"), folded(b"\xe4a"));
    }
}
