//! Codecs that change the size of data, for files of the crate `container`: [`Zstd`] compresses
//! blocks, [`XChaCha`] encrypts and authenticates them.
#![forbid(unsafe_code)]

mod xchacha;
mod zstd_codec;

pub use xchacha::XChaCha;
pub use zstd_codec::Zstd;
