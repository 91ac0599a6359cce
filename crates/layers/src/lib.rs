//! Small layers built with the template. Each is one file and demonstrates one kind of hook.
#![forbid(unsafe_code)]

pub mod casefold;
pub mod rot13;
pub mod worldread;
pub mod xor;
pub mod zstd;

use wrapfs::LayerType;

/// All layers of this crate.
pub const ALL: &[LayerType] = &[casefold::LAYER, rot13::LAYER, worldread::LAYER, xor::LAYER, zstd::LAYER];
