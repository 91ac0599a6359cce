//! A Rust plugin that changes the size of data, loaded by `tests/rust.rs`.

use blockcodecs::Zstd;
use std::sync::Arc;
use wrapfs::hooks::{Block, Data, Hooks};
use wrapfs::vnode::{Cx, Result};
use wrapfs::{Build, Foreign, LayerType, OptionSpec, Settings, Template, Traits};

const LAYER: LayerType = LayerType {
    name: "resizing",
    about: "compresses data",
    options: &[
        OptionSpec { name: "only", value: None, help: "Files that are not compressed can't be opened." },
        OptionSpec { name: "data", value: None, help: "Sets a second hook for data, which is refused." },
    ],
    build: Build::Over(&|lower, settings| Template::over(lower).hooks(hooks(settings)?).build()),
    traits: Traits::NONE,
};

plugin::export!(LAYER, hooks);

fn hooks(settings: &Settings) -> core::result::Result<Hooks, String> {
    let codec = Zstd::new(1, 4096).map_err(|errno| errno.to_string())?;
    let foreign = if settings.has("only") { Foreign::Refuse } else { Foreign::Plain };
    let hooks = Hooks::new().resizing(Arc::new(codec), foreign);
    Ok(if settings.has("data") { hooks.data(Same) } else { hooks })
}

#[derive(Debug)]
struct Same;

impl Data for Same {
    fn block_size(&self) -> usize {
        512
    }

    fn encode_data(&self, _cx: &Cx<'_>, _at: &Block<'_>, plain: &[u8], encoded: &mut [u8]) -> Result<()> {
        encoded.copy_from_slice(plain);
        Ok(())
    }

    fn decode_data(&self, _cx: &Cx<'_>, _at: &Block<'_>, encoded: &[u8], plain: &mut [u8]) -> Result<()> {
        plain.copy_from_slice(encoded);
        Ok(())
    }
}
