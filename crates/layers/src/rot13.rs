//! Names encoded with ROT13. An example of a layer that changes names.

use wrapfs::hooks::{Names, Object};
use wrapfs::vnode::{Cx, Result};
use wrapfs::{Build, LayerType, Template, Traits};

/// The layer.
pub const LAYER: LayerType = LayerType {
    name: "rot13",
    about: "stores names encoded with ROT13",
    options: &[],
    build: Build::Over(&|lower, _settings| Template::over(lower).names(Rot13).build()),
    traits: Traits { keeps_callers_apart: true, ..Traits::NONE },
};

#[derive(Debug)]
struct Rot13;

impl Names for Rot13 {
    fn target_size(&self, stored: u64) -> Option<u64> {
        // Targets are stored as they are.
        Some(stored)
    }

    fn encode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(rotated(name))
    }

    fn decode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(rotated(name))
    }
}

fn rotated(name: &[u8]) -> Vec<u8> {
    let rotate = |&byte: &u8| match byte {
        b'a'..=b'm' | b'A'..=b'M' => byte + 13,
        b'n'..=b'z' | b'N'..=b'Z' => byte - 13,
        other => other,
    };
    name.iter().map(rotate).collect()
}
