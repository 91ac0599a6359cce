//! The plugin's side of the C ABI, for layers in Rust: [`export!`](crate::export).

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

/// Turns the crate's shared object (`crate-type = ["cdylib"]`) into a plugin that the server can
/// load. The arguments are a [`wrapfs::LayerType`], for its name and options, and a function that
/// creates the hooks.
///
/// ```
/// use wrapfs::hooks::{Attributes, Hooks};
/// use wrapfs::{Build, LayerType, Settings, Template, Traits};
///
/// #[derive(Debug)]
/// struct Identity;
/// impl Attributes for Identity {}
///
/// fn hooks(_settings: &Settings) -> Result<Hooks, String> {
///     Ok(Hooks::new().attributes(Identity))
/// }
///
/// pub const LAYER: LayerType = LayerType {
///     name: "identity",
///     about: "changes nothing",
///     options: &[],
///     build: Build::Over(&|lower, settings| {
///         Template::over(lower).hooks(hooks(settings)?).build()
///     }),
///     traits: Traits::NONE,
/// };
///
/// plugin::export!(LAYER, hooks);
/// ```
///
/// In a plugin, [`wrapfs::hooks::Object::lower`] supports the operations of the layer below that
/// strata_layer.h offers. All others return `EOPNOTSUPP`: `names`, `refused`, `statfs`, `ioctl` and
/// `control` of vnodes; `flush`, `copy_from` and `reflink_from` of open files.
#[macro_export]
macro_rules! export {
    ($layer:expr, $hooks:expr) => {
        /// The function that the server calls when it loads this plugin.
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
                // SAFETY: called by the server as the header defines.
                unsafe { $crate::guest::Declared::open($hooks, host, settings, count, instance, error, room) }
            }
            DECLARED.get(&$layer, open)
        }
    };
}
