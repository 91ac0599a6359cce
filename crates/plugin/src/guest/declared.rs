//! What a plugin exports, and how its hooks are created.

use super::instance;
use super::server::{guard, set_server};
use crate::abi;
use crate::convert::slice;
use core::ffi::{c_char, c_int};
use std::ffi::{CStr, CString};
use std::sync::OnceLock;
use vnode::Errno;
use wrapfs::hooks::{Hooks, Matching};
use wrapfs::{LayerType, Settings};

/// Creates the hooks of a layer from its options.
pub type MakeHooks = fn(&Settings) -> Result<Hooks, String>;

/// What a plugin exports, created on first use.
#[derive(Debug)]
pub struct Declared(OnceLock<Exported>);

#[derive(Debug)]
struct Exported {
    layer: abi::Layer,
    /// Owns what the pointers in the exported layer refer to.
    _options: Vec<abi::Spec>,
    _texts: Vec<CString>,
}

// SAFETY: never modified after creation.
unsafe impl Send for Exported {}
// SAFETY: as for Send.
unsafe impl Sync for Exported {}

impl Declared {
    /// Returns an empty value.
    #[must_use]
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Returns what the plugin exports.
    pub fn get(&'static self, kind: &LayerType, open: abi::Open) -> *const abi::Layer {
        &raw const self.0.get_or_init(|| Exported::of(kind, open)).layer
    }

    /// Creates an instance: the `open` function of the plugin.
    ///
    /// # Safety
    /// The arguments are those of the server's call of `open`.
    pub unsafe fn open(
        make: MakeHooks,
        host: *const abi::Host,
        settings: *const abi::Setting,
        count: usize,
        instance: *mut abi::Instance,
        error: *mut c_char,
        room: usize,
    ) -> c_int {
        // SAFETY: guaranteed by the caller.
        unsafe { set_server(host) };
        // Includes `write_instance`, which calls `Names::matching` and `Operations::interest`.
        let done = guard(|| {
            // SAFETY: the header guarantees the server's settings.
            let hooks = unsafe { read(settings, count) }.and_then(|settings| make(&settings));
            // SAFETY: the header guarantees the server's instance.
            Ok(hooks.and_then(|hooks| unsafe { write_instance(host, instance, hooks) }))
        });
        let wrong = match done {
            Ok(Ok(())) => return 0,
            Ok(Err(wrong)) => wrong,
            Err(errno) => return -errno.raw_os_error(),
        };
        let len = wrong.len().min(room.saturating_sub(1));
        // SAFETY: `room` bytes from the server, by the header, of which the last keeps its NUL.
        unsafe { core::ptr::copy_nonoverlapping(wrong.as_ptr(), error.cast(), len) };
        -Errno::INVAL.raw_os_error()
    }
}

/// Writes the part of an instance that the server knows. An older server knows less.
///
/// # Safety
/// `out` has the size that its field states, and `host` comes from the server.
unsafe fn write_instance(host: *const abi::Host, out: *mut abi::Instance, hooks: Hooks) -> Result<(), String> {
    // SAFETY: guaranteed by the caller; every version has this field.
    let minor = unsafe { (&raw const (*host).minor).read() };
    check_supported(&hooks)?;
    let matching = hooks.names.as_ref().map_or(Matching::Exact, |hook| hook.matching());
    check_minor(&hooks, matching, minor)?;
    // SAFETY: guaranteed by the caller; every version has this field.
    let known = unsafe { (&raw const (*out).size).read() };
    let made = instance::instance(hooks, matching);
    // SAFETY: copies only bytes that both sides have.
    unsafe {
        core::ptr::copy_nonoverlapping((&raw const made).cast::<u8>(), out.cast(), known.min(size_of_val(&made)));
    };
    Ok(())
}

/// Rejects hooks that the C ABI lacks. Without this check they would be ignored: a format that
/// encrypts, for example, would store plain data.
fn check_supported(hooks: &Hooks) -> Result<(), String> {
    let missing = [
        (hooks.commands.is_some(), "has control-channel commands"),
        (hooks.format.is_some(), "has a file format"),
        (hooks.xattrs.is_some(), "translates extended attributes"),
        (hooks.journal.is_some(), "keeps a journal"),
        (hooks.varies_by_caller, "shows different callers different files"),
        (hooks.attached.is_some(), "reports changes to the mount"),
    ];
    match missing.iter().find(|(has, _)| *has) {
        Some((_, what)) => Err(format!("it {what}, which plugins do not support; build the layer into the server")),
        None => hooks.check(),
    }
}

/// Rejects hooks that an older server would not call, because the layer would behave differently
/// without them.
fn check_minor(hooks: &Hooks, matching: Matching, minor: u32) -> Result<(), String> {
    let needs = [
        (hooks.resizing.is_some(), abi::MINOR_OF_CODECS, "it changes the size of data"),
        (matching != Matching::Exact, abi::MINOR_OF_MATCHING, "it merges names"),
        (hooks.read_only, abi::MINOR_OF_LOWER, "it is read-only"),
        (hooks.paths, abi::MINOR_OF_LOWER, "it queries paths"),
        (hooks.objects.is_some(), abi::MINOR_OF_LOWER, "it keeps state for objects"),
        (hooks.store.is_some(), abi::MINOR_OF_LOWER, "it has a name store"),
    ];
    match needs.iter().find(|(needed, since, _)| *needed && minor < *since) {
        Some((_, since, what)) => {
            let major = abi::MAJOR;
            Err(format!(
                "{what}, which requires version {major}.{since} of the interface, but this server has {major}.{minor}"
            ))
        }
        None => Ok(()),
    }
}

/// # Safety
/// `settings` points to `count` settings as the header defines them.
unsafe fn read(settings: *const abi::Setting, count: usize) -> Result<Settings, String> {
    let mut all = Settings::new();
    for i in 0..count {
        // SAFETY: an element of the array (guaranteed by the caller), whose name ends with a NUL.
        let (name, value) = unsafe {
            let setting = settings.add(i).read();
            (CStr::from_ptr(setting.name), slice(setting.value))
        };
        let name = name.to_str().map_err(|_| "an option's name is not UTF-8".to_owned())?;
        all.insert(name, value);
    }
    Ok(all)
}

impl Exported {
    fn of(kind: &LayerType, open: abi::Open) -> Self {
        let mut texts = Vec::new();
        // A string that contains a NUL ends there.
        let mut text = |text: &str| {
            let text = CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default();
            let at = text.as_ptr();
            texts.push(text);
            at
        };
        let options: Vec<_> = kind
            .options
            .iter()
            .map(|spec| abi::Spec {
                name: text(spec.name),
                value: spec.value.map_or(core::ptr::null(), &mut text),
                help: text(spec.help),
            })
            .collect();
        let layer = abi::Layer {
            magic: abi::MAGIC,
            major: abi::MAJOR,
            minor: abi::MINOR,
            size: size_of::<abi::Layer>(),
            name: text(kind.name),
            about: text(kind.about),
            options: options.as_ptr(),
            option_count: options.len(),
            open: Some(open),
            close: Some(instance::close),
        };
        Self { layer, _options: options, _texts: texts }
    }
}

#[cfg(test)]
mod tests {
    use super::check_supported;
    use wrapfs::hooks::{FileFormat, FormatBlock, Hooks, Layout, Object};
    use wrapfs::vnode::{Cx, Result};

    #[derive(Debug)]
    struct Format;

    impl FileFormat for Format {
        fn new_header(&self, _cx: &Cx<'_>, _file: &Object<'_>, _header: &mut [u8]) -> Result<()> {
            Ok(())
        }
        fn check_header(&self, _cx: &Cx<'_>, _file: &Object<'_>, _header: &[u8]) -> Result<()> {
            Ok(())
        }
        fn encode_block(&self, _cx: &Cx<'_>, _at: &FormatBlock<'_>, _plain: &[u8], _stored: &mut [u8]) -> Result<()> {
            Ok(())
        }
        fn decode_block(&self, _cx: &Cx<'_>, _at: &FormatBlock<'_>, _stored: &[u8], _plain: &mut [u8]) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_file_format_is_refused_instead_of_ignored() {
        assert_eq!(check_supported(&Hooks::new()), Ok(()));
        let layout = Layout::new(0, 4096, 4128).unwrap();
        let refused = check_supported(&Hooks::new().format(layout, Format)).unwrap_err();
        assert_eq!(refused, "it has a file format, which plugins do not support; build the layer into the server");
    }
}
