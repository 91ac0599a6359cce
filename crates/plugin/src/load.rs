//! Loading an object: who may have written it, what it exports, what it says of itself.

use crate::{abi, elf, host};
use core::ffi::{CStr, c_char};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rustix::fs::{FileType, Mode, OFlags};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use wrapfs::{Build, LayerType, OptionSpec, Traits};

/// What an object said of itself. It is never unloaded, so that this holds for the life of the process.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) name: &'static str,
    pub(crate) open: abi::Open,
    pub(crate) close: Option<abi::Close>,
}

/// Loads the layer of a shared object.
///
/// What an object does it does as the server, so only one is loaded that belongs to root or to whoever runs this, and that nobody
/// else may write.
///
/// # Errors
/// One line that names the file, what is wrong and what to do about it.
pub fn load(path: &Path) -> Result<&'static LayerType, String> {
    let refuse = |wrong: String| format!("{} can't be used as a layer: {wrong}", path.display());
    let file = open(path).map_err(refuse)?;
    let layer = start(file, path).map_err(refuse)?;
    // Each mount loads a few at most; what they say of themselves is kept.
    describe(&layer).map(|kind| &*Box::leak(Box::new(kind))).map_err(refuse)
}

/// Opens the file, so that what is checked and what is loaded are the same.
fn open(path: &Path) -> Result<OwnedFd, String> {
    // A fifo or a device must not keep us.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|errno| format!("{errno}; a layer from a file is written as its path, /DIR/NAME.so"))?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| errno.to_string())?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err("it is not a regular file".to_owned());
    }
    let me = rustix::process::geteuid().as_raw();
    if stat.st_uid != 0 && stat.st_uid != me {
        let own = if me == 0 { "root".to_owned() } else { format!("root or user {me}") };
        return Err(format!(
            "it belongs to user {}, and would run as the server: chown it to {own} if it can be trusted",
            stat.st_uid
        ));
    }
    if stat.st_mode & 0o022 != 0 {
        return Err("others may write it, and it would run as the server: chmod go-w, if it can be trusted".to_owned());
    }
    elf::check(&file, u64::try_from(stat.st_size).unwrap_or(0))?;
    Ok(file)
}

/// Loads the object and answers what it says of itself.
fn start(file: OwnedFd, path: &Path) -> Result<abi::Layer, String> {
    let by_number = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: the object's constructors run, with all that the server may do: `open` made sure that its writers may do as much.
    let library = unsafe { Library::open(Some(&by_number), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        // The loader names it by the number.
        let why = reason(&error).replace(&by_number, &path.display().to_string());
        format!("the loader says: {why}")
    })?;
    // SAFETY: a symbol of that name is a function of that type, by the header.
    let entry = unsafe { library.get::<abi::Entry>(abi::SYMBOL.as_bytes()) }.map(|symbol| *symbol);
    // Its functions, its statics and its threads can be in use for as long as this process lives.
    core::mem::forget(library);
    // The loader knows objects by name and by inode: neither may come to mean another file.
    core::mem::forget(file);
    let entry = entry.map_err(|_| {
        format!(
            "it does not export {}: it is no layer, or one for another version than {}.{} of the interface",
            abi::SYMBOL,
            abi::MAJOR,
            abi::MINOR
        )
    })?;
    // SAFETY: the function of the header.
    read(unsafe { entry() })
}

fn reason(error: &libloading::Error) -> String {
    match error {
        libloading::Error::DlOpen { desc } => format!("{desc:?}").trim_matches('"').to_owned(),
        other => other.to_string(),
    }
}

/// Reads what an object exports, as far as it can be told that it is this.
fn read(layer: *const abi::Layer) -> Result<abi::Layer, String> {
    if layer.is_null() {
        return Err(format!("its function {} answers NULL", abi::SYMBOL));
    }
    // SAFETY: by the header a `strata_layer`, of which every major version begins with these.
    let (magic, major, size) =
        unsafe { ((&raw const (*layer).magic).read_unaligned(), (&raw const (*layer).major).read_unaligned(), layer) };
    if magic != abi::MAGIC {
        return Err("what it exports is no layer: `magic` is not STRATA_MAGIC".to_owned());
    }
    if major != abi::MAJOR {
        let way_out = "build it with the strata_layer.h of this version";
        return Err(format!("it is made for version {major} of the interface, and this is {}: {way_out}", abi::MAJOR));
    }
    // SAFETY: as before; the major version has a size there.
    let size = unsafe { (&raw const (*size).size).read_unaligned() };
    if size < size_of::<abi::Layer>() {
        let least = size_of::<abi::Layer>();
        return Err(format!("what it exports has {size} bytes, and should have {least}: set `size` to sizeof"));
    }
    // SAFETY: at least as large as what is read; numbers and pointers by the header.
    Ok(unsafe { layer.read_unaligned() })
}

fn describe(layer: &abi::Layer) -> Result<LayerType, String> {
    let name = name(text(layer.name, "name")?, "name")?;
    let about = text(layer.about, "about")?;
    let open = layer.open.ok_or("its function open is NULL, and must be given")?;
    let options = options(layer)?;
    let loaded: &'static Loaded = Box::leak(Box::new(Loaded { name, open, close: layer.close }));
    let build = move |lower, settings: &wrapfs::Settings| host::put_on(lower, loaded, settings);
    let build = Build::Over(Box::leak(Box::new(build)));
    Ok(LayerType { name, about, options: options.leak(), build, traits: Traits::NONE })
}

fn options(layer: &abi::Layer) -> Result<Vec<OptionSpec>, String> {
    /// More than anybody could want.
    const MOST: usize = 256;
    if layer.option_count > MOST || (layer.options.is_null() && layer.option_count > 0) {
        return Err(format!("it says that it has {} options: at most {MOST} can be", layer.option_count));
    }
    let mut options: Vec<OptionSpec> = Vec::new();
    for i in 0..layer.option_count {
        // SAFETY: one of `option_count` in a row, by the header.
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

/// A text that the object has for ever.
fn text(at: *const c_char, what: &str) -> Result<&'static str, String> {
    const LONGEST: usize = 4096;
    if at.is_null() {
        return Err(format!("its {what} is NULL"));
    }
    // SAFETY: text with a NUL in an object that is never unloaded, by the header.
    let text = unsafe { CStr::from_ptr(at) };
    match text.to_str() {
        Ok(text) if text.len() <= LONGEST && !text.chars().any(char::is_control) => Ok(text),
        _ => Err(format!("its {what} is not one line of UTF-8, of at most {LONGEST} bytes")),
    }
}

fn name(name: &'static str, what: &str) -> Result<&'static str, String> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if name.is_empty() || name.len() > 64 || !name.bytes().all(fits) {
        return Err(format!("its {what} is {name:?}: 1 to 64 letters, digits, - and _ can be"));
    }
    Ok(name)
}
