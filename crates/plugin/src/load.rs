//! Loading a plugin: checks of the file's ownership, of what it exports, and of its description.

use crate::{abi, elf, host};
use core::ffi::{CStr, c_char};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rustix::fs::{FileType, Mode, OFlags};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use wrapfs::{Build, LayerType, OptionSpec, Traits};

/// The description of a plugin. Plugins are never unloaded, so it is valid for the life of the
/// process.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) name: &'static str,
    pub(crate) open: abi::Open,
    pub(crate) close: Option<abi::Close>,
}

/// Loads a plugin and returns its layer type.
///
/// A plugin runs as the server. Therefore it must belong to root or to the server's user, and
/// nobody else may have write permission.
///
/// # Errors
/// One line that names the file, the problem and what to do about it.
pub fn load(path: &Path) -> Result<&'static LayerType, String> {
    let refuse = |wrong: String| format!("{}: cannot load as a layer: {wrong}", path.display());
    let file = open(path).map_err(refuse)?;
    let layer = start(file, path).map_err(refuse)?;
    // Each mount loads a few plugins at most, so leaking their descriptions is harmless.
    describe(&layer).map(|kind| &*Box::leak(Box::new(kind))).map_err(refuse)
}

/// Opens and checks the file. The descriptor ensures that the checked file is the loaded file.
fn open(path: &Path) -> Result<OwnedFd, String> {
    // Do not block on a FIFO or a device.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|errno| format!("{errno}; specify a layer file by its path, /DIR/NAME.so"))?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| errno.to_string())?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err("not a regular file".to_owned());
    }
    let me = rustix::process::geteuid().as_raw();
    if stat.st_uid != 0 && stat.st_uid != me {
        let own = if me == 0 { "root".to_owned() } else { format!("root or user {me}") };
        return Err(format!(
            "owned by user {}, but it would run as the server; chown it to {own} if you trust it",
            stat.st_uid
        ));
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(
            "writable by group or others, but it would run as the server; chmod go-w it if you trust it".to_owned()
        );
    }
    elf::check(&file, u64::try_from(stat.st_size).unwrap_or(0))?;
    Ok(file)
}

/// Loads the shared object and returns its description.
fn start(file: OwnedFd, path: &Path) -> Result<abi::Layer, String> {
    let by_number = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: runs the plugin's constructors with the server's privileges; `open` checked that its
    // writers have these privileges anyway.
    let library = unsafe { Library::open(Some(&by_number), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        // The loader's message contains the descriptor path.
        let why = reason(&error).replace(&by_number, &path.display().to_string());
        format!("the loader reports: {why}")
    })?;
    // SAFETY: the header defines the type of the function with this symbol.
    let entry = unsafe { library.get::<abi::Entry>(abi::SYMBOL.as_bytes()) }.map(|symbol| *symbol);
    // Never unload: its functions, statics and threads may be in use until the process exits.
    core::mem::forget(library);
    // The loader identifies objects by name and by inode, so neither may be reused for another
    // file.
    core::mem::forget(file);
    let entry = entry.map_err(|_| {
        format!(
            "it does not export {}: not a layer, or built for an interface version other than {}.{}",
            abi::SYMBOL,
            abi::MAJOR,
            abi::MINOR
        )
    })?;
    // SAFETY: the function is defined by the header.
    read(unsafe { entry() })
}

fn reason(error: &libloading::Error) -> String {
    match error {
        libloading::Error::DlOpen { desc } => format!("{desc:?}").trim_matches('"').to_owned(),
        other => other.to_string(),
    }
}

/// Validates and reads what a plugin exports.
fn read(layer: *const abi::Layer) -> Result<abi::Layer, String> {
    if layer.is_null() {
        return Err(format!("its function {} returned NULL", abi::SYMBOL));
    }
    // SAFETY: by the header this is a `strata_layer`; every major version begins with these fields.
    let (magic, major, size) =
        unsafe { ((&raw const (*layer).magic).read_unaligned(), (&raw const (*layer).major).read_unaligned(), layer) };
    if magic != abi::MAGIC {
        return Err("not a layer: `magic` is not STRATA_MAGIC".to_owned());
    }
    if major != abi::MAJOR {
        let remedy = "rebuild it with the strata_layer.h of this version";
        return Err(format!(
            "built for version {major} of the interface, but this server has version {}; {remedy}",
            abi::MAJOR
        ));
    }
    // SAFETY: as before; the major version has a size there.
    let size = unsafe { (&raw const (*size).size).read_unaligned() };
    if size < size_of::<abi::Layer>() {
        let least = size_of::<abi::Layer>();
        return Err(format!(
            "its strata_layer has {size} bytes, but at least {least} are required; set `size` to sizeof"
        ));
    }
    // SAFETY: the struct has at least this size; the header allows any numbers and pointers.
    Ok(unsafe { layer.read_unaligned() })
}

fn describe(layer: &abi::Layer) -> Result<LayerType, String> {
    let name = name(text(layer.name, "name")?, "name")?;
    let about = text(layer.about, "about")?;
    let open = layer.open.ok_or("its function open is NULL; it is required")?;
    let options = options(layer)?;
    let loaded: &'static Loaded = Box::leak(Box::new(Loaded { name, open, close: layer.close }));
    let build = move |lower, settings: &wrapfs::Settings| host::instantiate(lower, loaded, settings);
    let build = Build::Over(Box::leak(Box::new(build)));
    Ok(LayerType { name, about, options: options.leak(), build, traits: Traits::NONE })
}

fn options(layer: &abi::Layer) -> Result<Vec<OptionSpec>, String> {
    /// Sanity limit.
    const MAX_OPTIONS: usize = 256;
    if layer.option_count > MAX_OPTIONS || (layer.options.is_null() && layer.option_count > 0) {
        return Err(format!("it declares {} options; at most {MAX_OPTIONS} are allowed", layer.option_count));
    }
    let mut options: Vec<OptionSpec> = Vec::new();
    for i in 0..layer.option_count {
        // SAFETY: the header guarantees an array of `option_count` elements.
        let spec = unsafe { layer.options.add(i).read_unaligned() };
        let name = name(text(spec.name, "option's name")?, "option's name")?;
        if options.iter().any(|other| other.name == name) {
            return Err(format!("it declares the option {name} twice"));
        }
        let value = if spec.value.is_null() { None } else { Some(text(spec.value, "option's value")?) };
        options.push(OptionSpec { name, value, help: text(spec.help, "option's help")? });
    }
    Ok(options)
}

/// Returns a string that the plugin keeps for the life of the process.
fn text(at: *const c_char, what: &str) -> Result<&'static str, String> {
    const LONGEST: usize = 4096;
    if at.is_null() {
        return Err(format!("its {what} is NULL"));
    }
    // SAFETY: the header guarantees a NUL-terminated string, and plugins are never unloaded.
    let text = unsafe { CStr::from_ptr(at) };
    match text.to_str() {
        Ok(text) if text.len() <= LONGEST && !text.chars().any(char::is_control) => Ok(text),
        _ => Err(format!("its {what} is not one line of UTF-8 of at most {LONGEST} bytes")),
    }
}

fn name(name: &'static str, what: &str) -> Result<&'static str, String> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if name.is_empty() || name.len() > 64 || !name.bytes().all(fits) {
        return Err(format!("its {what} is {name:?}; use 1 to 64 letters, digits, - and _"));
    }
    Ok(name)
}
