//! Instances of a layer in Rust, as the server sees them.

use super::attributes::ATTRIBUTES;
use super::codec::CODEC;
use super::data::DATA;
use super::ioctls::IOCTLS;
use super::mounted::Mounted;
use super::names::NAMES;
use super::objects::OBJECTS;
use super::operations::OPERATIONS;
use super::server::guard;
use super::store::STORE;
use crate::abi;
use core::ffi::c_void;
use wrapfs::hooks::{Hooks, Matching};

/// Returns the instance for the server. Calls a hook, so the caller guards against a panic.
pub(super) fn instance(hooks: Hooks, matching: Matching) -> abi::Instance {
    const fn at<T>(there: bool, table: &'static T) -> *const T {
        if there { core::ptr::from_ref(table) } else { core::ptr::null() }
    }
    let numbered = abi::OPERATIONS.iter().zip(0_u32..);
    let interest = hooks.operations.as_ref().map(|hook| hook.interest());
    let interest = interest
        .map_or(0, |set| numbered.filter(|(kind, _)| set.has(**kind)).fold(0, |bits, (_, bit)| bits | 1 << bit));
    let matching = match matching {
        Matching::Exact => abi::MATCHING_EXACT,
        Matching::Encoded => abi::MATCHING_ENCODED,
        Matching::Folded => abi::MATCHING_FOLDED,
    };
    let mounted = Box::new(Mounted { hooks, matching, interest });
    let hooks = &mounted.hooks;
    abi::Instance {
        size: size_of::<abi::Instance>(),
        names: at(hooks.names.is_some(), &NAMES),
        attributes: at(hooks.attributes.is_some(), &ATTRIBUTES),
        data: at(hooks.data.is_some(), &DATA),
        operations: at(hooks.operations.is_some(), &OPERATIONS),
        ioctls: at(hooks.ioctls.is_some(), &IOCTLS),
        codec: at(hooks.resizing.is_some(), &CODEC),
        flags: if hooks.read_only { abi::READ_ONLY } else { 0 } | if hooks.paths { abi::PATHS } else { 0 },
        objects: at(hooks.objects.is_some(), &OBJECTS),
        store: at(hooks.store.is_some(), &STORE),
        me: Box::into_raw(mounted).cast(),
    }
}

/// The `close` function of every layer exported from Rust.
pub(super) unsafe extern "C" fn close(me: *mut c_void) {
    if me.is_null() {
        return;
    }
    // SAFETY: by the header, created by `instance` and closed once.
    let mounted = unsafe { Box::from_raw(me.cast::<Mounted>()) };
    // A hook that panics while being dropped has been dropped anyway.
    let _ = guard(|| {
        drop(mounted);
        Ok(())
    });
}
