//! Data XORed with a key. An example of a layer that changes data. It provides no confidentiality.

use wrapfs::hooks::{Block, Data, MAX_BLOCK};
use wrapfs::vnode::{Cx, Result};
use wrapfs::{Build, LayerType, OptionSpec, Template, Traits};

/// The layer.
pub const LAYER: LayerType = LayerType {
    name: "xor",
    about: "stores data XORed with a key (no confidentiality)",
    options: &[
        OptionSpec {
            name: "key",
            value: Some("BYTES"),
            help: "The key, repeated from the start of each block. Default: wrapfs.",
        },
        OptionSpec { name: "block", value: Some("N"), help: "Block size in bytes, 1 to 1M. Default: 4k." },
    ],
    build: Build::Over(&|lower, settings| {
        let allowed = format!("a number from 1 to {MAX_BLOCK}");
        let block = settings.size("block").map_err(|wrong| format!("{wrong}; must be {allowed}"))?.unwrap_or(4096);
        if !(1..=MAX_BLOCK).contains(&block) {
            return Err(format!("block={block}: invalid block size: must be {allowed}"));
        }
        let key = settings.bytes("key").unwrap_or(b"wrapfs");
        if key.is_empty() {
            return Err("key=: the key is empty; give at least one byte".to_owned());
        }
        let stream = key.iter().copied().cycle().take(block).collect();
        Template::over(lower).data(Xor { stream }).build()
    }),
    traits: Traits { keeps_callers_apart: true, ..Traits::NONE },
};

#[derive(Debug)]
struct Xor {
    stream: Box<[u8]>,
}

impl Data for Xor {
    fn block_size(&self) -> usize {
        self.stream.len()
    }

    fn encode_data(&self, _cx: &Cx<'_>, _at: &Block<'_>, plain: &[u8], encoded: &mut [u8]) -> Result<()> {
        for ((out, byte), key) in encoded.iter_mut().zip(plain).zip(&self.stream) {
            *out = byte ^ key;
        }
        Ok(())
    }

    fn decode_data(&self, cx: &Cx<'_>, at: &Block<'_>, encoded: &[u8], plain: &mut [u8]) -> Result<()> {
        self.encode_data(cx, at, encoded, plain)
    }
}
