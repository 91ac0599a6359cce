//! A Rust plugin with its own name store, loaded by `tests/rust.rs`.

#[path = "../../wrapfs/tests/it/common/store.rs"]
#[allow(dead_code, clippy::unwrap_used)]
mod store;

use store::Store;
use wrapfs::hooks::Hooks;
use wrapfs::{Build, LayerType, Settings, Traits};

const LAYER: LayerType = LayerType {
    name: "storing",
    about: "keeps what names are encoded with in each directory",
    options: &[],
    build: Build::Over(&|lower, _settings| Ok(Store::new(20).over(lower))),
    traits: Traits::NONE,
};

plugin::export!(LAYER, hooks);

fn hooks(_settings: &Settings) -> core::result::Result<Hooks, String> {
    let store = Store::new(20);
    Ok(Hooks::new().names(store.clone()).store(store))
}
