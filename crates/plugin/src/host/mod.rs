//! The server's side of the border: hooks of the template that call those of an object.

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

pub(crate) use instance::put_on;
