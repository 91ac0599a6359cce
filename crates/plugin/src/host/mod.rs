//! The server's side of the C ABI: template hooks that call those of a plugin.

mod attributes;
mod codec;
mod data;
mod instance;
mod ioctls;
mod lower;
mod names;
mod objects;
mod offers;
mod operations;
mod store;

pub(crate) use instance::instantiate;
