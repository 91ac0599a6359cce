//! The server's side of the border: hooks of the template that call those of an object.

mod attributes;
mod codec;
mod data;
mod instance;
mod ioctls;
mod names;
mod offers;
mod operations;

pub(crate) use instance::put_on;
