//! What an object says of itself, and how its hooks are made.

use super::instance;
use super::server::{guard, meet};
use crate::abi;
use crate::convert::slice;
use core::ffi::{c_char, c_int};
use std::ffi::{CStr, CString};
use std::sync::OnceLock;
use vnode::Errno;
use wrapfs::hooks::{Hooks, Matching};
use wrapfs::{LayerType, Settings};

/// Makes the hooks of a layer as its options say.
pub type MakeHooks = fn(&Settings) -> Result<Hooks, String>;

/// What an object exports, made when it is first asked for.
#[derive(Debug)]
pub struct Declared(OnceLock<Exported>);

#[derive(Debug)]
struct Exported {
    layer: abi::Layer,
    /// What the layer's pointers point to.
    _options: Vec<abi::Spec>,
    _texts: Vec<CString>,
}

// SAFETY: nothing of it is changed once it is made.
unsafe impl Send for Exported {}
// SAFETY: as for Send.
unsafe impl Sync for Exported {}

impl Declared {
    /// Nothing yet.
    #[must_use]
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// What is exported.
    pub fn get(&'static self, kind: &LayerType, open: abi::Open) -> *const abi::Layer {
        &raw const self.0.get_or_init(|| Exported::of(kind, open)).layer
    }

    /// Makes an instance: what an object's `open` does.
    ///
    /// # Safety
    /// Called with what the server calls `open` with.
    pub unsafe fn open(
        make: MakeHooks,
        host: *const abi::Host,
        settings: *const abi::Setting,
        count: usize,
        instance: *mut abi::Instance,
        error: *mut c_char,
        room: usize,
    ) -> c_int {
        // SAFETY: this function's contract.
        unsafe { meet(host) };
        let made = guard(|| {
            // SAFETY: settings of the server's, by the header.
            let settings = unsafe { read(settings, count) };
            Ok(settings.and_then(|settings| make(&settings)))
        });
        let done = match made {
            // SAFETY: the server's instance, by the header.
            Ok(Ok(hooks)) => unsafe { hand_over(host, instance, hooks) },
            Ok(Err(wrong)) => Err(wrong),
            Err(errno) => return -errno.raw_os_error(),
        };
        let Err(wrong) = done else { return 0 };
        let len = wrong.len().min(room.saturating_sub(1));
        // SAFETY: `room` bytes of the server's, by the header, of which the last keeps its NUL.
        unsafe { core::ptr::copy_nonoverlapping(wrong.as_ptr(), error.cast(), len) };
        -Errno::INVAL.raw_os_error()
    }
}

/// Writes what the server knows of an instance: an older one has less.
///
/// # Safety
/// `out` has the size that it says, and `host` is the server's.
unsafe fn hand_over(host: *const abi::Host, out: *mut abi::Instance, hooks: Hooks) -> Result<(), String> {
    // SAFETY: this function's contract; every version has a number there.
    let minor = unsafe { (&raw const (*host).minor).read() };
    fits_an_object(&hooks)?;
    needs_no_more_than(&hooks, minor)?;
    // SAFETY: this function's contract; every version has a size there.
    let known = unsafe { (&raw const (*out).size).read() };
    let made = instance::instance(hooks);
    // SAFETY: as many bytes as both have.
    unsafe {
        core::ptr::copy_nonoverlapping((&raw const made).cast::<u8>(), out.cast(), known.min(size_of_val(&made)));
    };
    Ok(())
}

/// Refuses hooks that the interface lacks. Without this check they would be ignored: a format that encrypts, for example, would
/// store plain data.
fn fits_an_object(hooks: &Hooks) -> Result<(), String> {
    let missing =
        [(hooks.commands.is_some(), "has commands of its own"), (hooks.format.is_some(), "has a file format")];
    match missing.iter().find(|(has, _)| *has) {
        Some((_, what)) => Err(format!("it {what}, which a layer in an object file can't have")),
        None => Ok(()),
    }
}

/// Refuses hooks that an older server would not call: the layer would be another one without them.
fn needs_no_more_than(hooks: &Hooks, minor: u32) -> Result<(), String> {
    let merges = hooks.names.as_ref().is_some_and(|names| names.matching() != Matching::Exact);
    let needs = [
        (hooks.resizing.is_some(), abi::MINOR_OF_CODECS, "it changes the size of data"),
        (merges, abi::MINOR_OF_MATCHING, "several of its names mean one entry"),
        (hooks.read_only, abi::MINOR_OF_LOWER, "it is read-only"),
        (hooks.paths, abi::MINOR_OF_LOWER, "it asks for paths"),
        (hooks.objects.is_some(), abi::MINOR_OF_LOWER, "it keeps state with objects"),
        (hooks.store.is_some(), abi::MINOR_OF_LOWER, "it has a store of names"),
    ];
    match needs.iter().find(|(needed, since, _)| *needed && minor < *since) {
        Some((_, since, what)) => {
            let major = abi::MAJOR;
            Err(format!(
                "{what}, which needs a server of version {major}.{since} of the interface: this is {major}.{minor}"
            ))
        }
        None => Ok(()),
    }
}

/// # Safety
/// `count` settings at `settings`, each as the header says.
unsafe fn read(settings: *const abi::Setting, count: usize) -> Result<Settings, String> {
    let mut all = Settings::new();
    for i in 0..count {
        // SAFETY: one of `count` (this function's contract), whose name ends with a NUL.
        let (name, value) = unsafe {
            let setting = settings.add(i).read();
            (CStr::from_ptr(setting.name), slice(setting.value))
        };
        let name = name.to_str().map_err(|_| "an option's name is not text".to_owned())?;
        all.insert(name, value);
    }
    Ok(all)
}

impl Exported {
    fn of(kind: &LayerType, open: abi::Open) -> Self {
        let mut texts = Vec::new();
        // What has a NUL in it ends there.
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
    use super::fits_an_object;
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
        assert_eq!(fits_an_object(&Hooks::new()), Ok(()));
        let layout = Layout::new(0, 4096, 4128).unwrap();
        let refused = fits_an_object(&Hooks::new().format(layout, Format)).unwrap_err();
        assert_eq!(refused, "it has a file format, which a layer in an object file can't have");
    }
}
