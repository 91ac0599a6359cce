//! Small layers made with the template: each is one file, and shows one kind of hook.
#![forbid(unsafe_code)]

pub mod casefold;
pub mod rot13;
pub mod worldread;
pub mod xor;
pub mod zstd;

use wrapfs::LayerType;

/// All of them.
pub const ALL: &[LayerType] = &[casefold::LAYER, rot13::LAYER, worldread::LAYER, xor::LAYER, zstd::LAYER];
