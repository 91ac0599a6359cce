//! A Rust plugin that changes the size of data, loaded by `tests/rust.rs`.

use blockcodecs::Zstd;
use std::sync::Arc;
use wrapfs::hooks::Hooks;
use wrapfs::{Build, Foreign, LayerType, OptionSpec, Settings, Template, Traits};

const LAYER: LayerType = LayerType {
    name: "resizing",
    about: "compresses data",
    options: &[OptionSpec { name: "only", value: None, help: "Files that are not compressed can't be opened." }],
    build: Build::Over(&|lower, settings| Ok(Template::over(lower).hooks(hooks(settings)?).build())),
    traits: Traits::NONE,
};

plugin::export!(LAYER, hooks);

fn hooks(settings: &Settings) -> core::result::Result<Hooks, String> {
    let codec = Zstd::new(1, 4096).map_err(|errno| errno.to_string())?;
    let foreign = if settings.has("only") { Foreign::Refuse } else { Foreign::Plain };
    Ok(Hooks::new().resizing(Arc::new(codec), foreign))
}
