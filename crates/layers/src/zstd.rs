//! Data compressed with Zstandard. An example of a layer that changes the size of data.

use blockcodecs::Zstd;
use std::sync::Arc;
use wrapfs::container::{BLOCK_MAX, BLOCK_MIN, BlockCodec, is_block_size};
use wrapfs::{Build, Foreign, LayerType, OptionSpec, Template, Traits};

/// The layer.
pub const LAYER: LayerType = LayerType {
    name: "zstd",
    about: "compresses data with Zstandard",
    options: &[
        OptionSpec {
            name: "level",
            value: Some("N"),
            help: "Compression level: 1 to 22, or a negative level down to -131072 for more speed. Default: 3.",
        },
        OptionSpec {
            name: "block",
            value: Some("N"),
            help: "Block size in bytes for new files: a power of two, 512 to 1M. Default: 64k.",
        },
        OptionSpec {
            name: "only",
            value: None,
            help: "Refuse to open uncompressed files. By default they are shown unchanged.",
        },
    ],
    build: Build::Over(&|lower, settings| {
        let level =
            settings.number("level", Zstd::levels()).map_err(|wrong| format!("{wrong}; usual levels are 1 to 22"))?;
        let level = level.unwrap_or(3);
        let allowed = format!("a power of two from {BLOCK_MIN} to {BLOCK_MAX}");
        let given = settings.size("block").map_err(|wrong| format!("{wrong}; must be {allowed}"))?.unwrap_or(65_536);
        let block = u32::try_from(given).unwrap_or(u32::MAX);
        if !is_block_size(block) {
            return Err(format!("block={given}: invalid block size: must be {allowed}"));
        }
        let codec = Zstd::new(level, block).map_err(|errno| format!("level={level}: {errno}"))?;
        let foreign = if settings.has("only") { Foreign::Refuse } else { Foreign::Plain };
        Template::over(lower).resizing(Arc::new(codec), foreign).build()
    }),
    traits: Traits::NONE,
};

/// Returns the codec with this id, to check files without a mount.
#[must_use]
pub fn codec(id: [u8; 8]) -> Option<Arc<dyn BlockCodec>> {
    let codec = Zstd::new(3, 65_536).ok()?;
    (codec.id() == id).then(|| Arc::new(codec) as Arc<dyn BlockCodec>)
}
