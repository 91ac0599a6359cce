//! The layer's side of the border, for layers in Rust: [`export!`](crate::export).

mod arguments;
mod attributes;
mod codec;
mod data;
mod declared;
mod instance;
mod ioctls;
mod mounted;
mod names;
mod objects;
mod operations;
mod remote;
mod server;
mod store;

pub use declared::{Declared, MakeHooks};

/// Makes the crate's shared object (`crate-type = ["cdylib"]`) a layer that the server can load: of a [`wrapfs::LayerType`], for its name and its
/// options, and of a function that makes the hooks.
///
/// ```
/// use wrapfs::hooks::{Attributes, Hooks};
/// use wrapfs::{Build, LayerType, Settings, Template, Traits};
///
/// #[derive(Debug)]
/// struct AsItIs;
/// impl Attributes for AsItIs {}
///
/// fn hooks(_settings: &Settings) -> Result<Hooks, String> {
///     Ok(Hooks::new().attributes(AsItIs))
/// }
///
/// pub const LAYER: LayerType = LayerType {
///     name: "as-it-is",
///     about: "changes nothing",
///     options: &[],
///     build: Build::Over(&|lower, settings| Ok(Template::over(lower).hooks(hooks(settings)?).build())),
///     traits: Traits::NONE,
/// };
///
/// plugin::export!(LAYER, hooks);
/// ```
///
/// In an object a hook's [`wrapfs::hooks::Object::lower`] answers what strata_layer.h offers of the layer below, and `EOPNOTSUPP` to all else:
/// `names`, `refused`, `statfs`, `ioctl` and `control` of vnodes, `flush`, `copy_from` and `reflink_from` of open files.
#[macro_export]
macro_rules! export {
    ($layer:expr, $hooks:expr) => {
        /// What the server asks for when it loads this object.
        #[unsafe(no_mangle)]
        pub extern "C" fn strata_layer_v1() -> *const $crate::abi::Layer {
            static DECLARED: $crate::guest::Declared = $crate::guest::Declared::new();
            unsafe extern "C" fn open(
                host: *const $crate::abi::Host,
                settings: *const $crate::abi::Setting,
                count: usize,
                instance: *mut $crate::abi::Instance,
                error: *mut ::core::ffi::c_char,
                room: usize,
            ) -> ::core::ffi::c_int {
                // SAFETY: called by the server, as the header says.
                unsafe { $crate::guest::Declared::open($hooks, host, settings, count, instance, error, room) }
            }
            DECLARED.get(&$layer, open)
        }
    };
}
