//! An instance of a plugin: its layer in one mount.

use super::attributes::Attributes;
use super::codec::Codec;
use super::data::Data;
use super::ioctls::Ioctls;
use super::names::Names;
use super::objects::Objects;
use super::offers::HOST;
use super::operations::Operations;
use super::store::Store;
use crate::abi;
use crate::load::Loaded;
use core::ffi::{c_char, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use std::ffi::{CStr, CString};
use std::sync::Arc;
use vnode::{Cx, Errno, Layer, MAY_BLOCK};
use wrapfs::{Settings, Template};

/// Initial buffer size: enough for most names.
const USUAL: usize = 512;

/// A plugin's instance: the layer's name, and the pointer that each hook receives.
#[derive(Debug)]
pub(super) struct Instance {
    name: &'static str,
    me: *mut c_void,
    close: Option<abi::Close>,
    error_logged: AtomicBool,
}

// SAFETY: the header allows calling hooks from many threads at once; the pointer is only passed to
// them.
unsafe impl Send for Instance {}
// SAFETY: as for Send.
unsafe impl Sync for Instance {}

impl Instance {
    pub(super) const fn me(&self) -> *mut c_void {
        self.me
    }

    /// Converts the result of a hook to an errno. A hook called for a request that must not block
    /// may return `MAY_BLOCK`.
    pub(super) fn errno_for(&self, cx: &Cx<'_>, hook: &'static str, code: i64) -> Errno {
        if code == -abi::MAY_BLOCK && !cx.may_block { MAY_BLOCK } else { self.errno(hook, code) }
    }

    /// Converts the result of a hook to an errno, for hooks without a waiting caller.
    pub(super) fn errno(&self, hook: &'static str, code: i64) -> Errno {
        // Accept only errnos that Linux defines; the kernel passes no others to programs. Two
        // numbers in the range are unassigned.
        match code.checked_neg().and_then(|errno| i32::try_from(errno).ok()) {
            Some(errno @ 1..=133) if errno != 41 && errno != 58 => Errno::from_raw_os_error(errno),
            _ => self.log_error(hook, format_args!("returned {code}, which is not an errno")),
        }
    }

    /// Converts the result of a hook that returns 0 or an errno.
    pub(super) fn done(&self, hook: &'static str, code: impl Into<i64>) -> vnode::Result<()> {
        match code.into() {
            0 => Ok(()),
            code => Err(self.errno(hook, code)),
        }
    }

    /// Converts the result of a hook that returns 0 or an errno and has a caller.
    pub(super) fn done_for(&self, cx: &Cx<'_>, hook: &'static str, code: impl Into<i64>) -> vnode::Result<()> {
        match code.into() {
            0 => Ok(()),
            code => Err(self.errno_for(cx, hook, code)),
        }
    }

    /// Calls a hook that returns bytes, a second time with a larger buffer if needed.
    pub(super) fn bytes_for(
        &self,
        cx: &Cx<'_>,
        hook: &'static str,
        call: impl Fn(*mut u8, usize) -> i64,
    ) -> vnode::Result<Vec<u8>> {
        let mut usual = [0; USUAL];
        let len = self.length(cx, hook, call(usual.as_mut_ptr(), USUAL))?;
        if let Some(bytes) = usual.get(..len) {
            return Ok(bytes.to_vec());
        }
        let mut many = vec![0; len];
        let again = self.length(cx, hook, call(many.as_mut_ptr(), len))?;
        if again > len {
            return Err(self.log_error(hook, format_args!("returned a length of {len} bytes, and then of {again}")));
        }
        many.truncate(again);
        Ok(many)
    }

    fn length(&self, cx: &Cx<'_>, hook: &'static str, answer: i64) -> vnode::Result<usize> {
        if answer < 0 {
            return Err(self.errno_for(cx, hook, answer));
        }
        let len = usize::try_from(answer).ok().filter(|&len| len <= abi::LONGEST);
        len.ok_or_else(|| self.log_error(hook, format_args!("returned a length of {answer} bytes")))
    }

    /// Logs an error of the layer once, and returns `EIO`.
    pub(super) fn log_error(&self, hook: &'static str, what: core::fmt::Arguments<'_>) -> Errno {
        if !self.error_logged.swap(true, Ordering::Relaxed) {
            tracing::error!(layer = self.name, hook, "{what}; further errors of this layer are not logged");
        }
        Errno::IO
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(close) = self.close {
            // SAFETY: closes what `open` created, once, after the last hook has been dropped.
            unsafe { close(self.me) };
        }
    }
}

/// Creates an instance of a plugin over `lower`.
pub(crate) fn instantiate(
    lower: Arc<dyn Layer>,
    loaded: &Loaded,
    settings: &Settings,
) -> Result<Arc<dyn Layer>, String> {
    let made = open(loaded, settings)?;
    // Created before any check, so that dropping it closes the plugin's instance after an error.
    let instance = Arc::new(Instance {
        name: loaded.name,
        me: made.me,
        close: loaded.close,
        error_logged: AtomicBool::new(false),
    });
    let mut template = Template::over(lower);
    if made.flags & !abi::FLAGS != 0 {
        return Err(format!("it sets flags that this server does not support: {:#x}", made.flags & !abi::FLAGS));
    }
    if made.flags & abi::READ_ONLY != 0 {
        template = template.read_only();
    }
    if made.flags & abi::PATHS != 0 {
        template = template.paths();
    }
    if let Some(table) = table(made.objects, "objects")? {
        template = template.objects(Objects::new(&instance, table)?);
    }
    if let Some(table) = table(made.store, "store")? {
        template = template.store(Store::new(&instance, table)?);
    }
    if let Some(table) = table(made.names, "names")? {
        template = template.names(Names::new(&instance, table)?);
    }
    if let Some(table) = table(made.attributes, "attributes")? {
        template = template.attributes(Attributes::new(&instance, table));
    }
    if let Some(table) = table(made.data, "data")? {
        template = template.data(Data::new(&instance, table)?);
    }
    if let Some(table) = table(made.codec, "codec")? {
        if !made.data.is_null() {
            return Err("it has both data and codec; use only one, or split it into two layers".to_owned());
        }
        let (codec, foreign) = Codec::new(&instance, table)?;
        template = template.resizing(Arc::new(codec), foreign);
    }
    if let Some(table) = table(made.operations, "operations")? {
        template = template.operations(Operations::new(&instance, table)?);
    }
    if let Some(table) = table(made.ioctls, "ioctls")? {
        template = template.ioctls(Ioctls::new(&instance, table)?);
    }
    template.build()
}

fn open(loaded: &Loaded, settings: &Settings) -> Result<abi::Instance, String> {
    let names: Vec<CString> =
        settings.iter().map(|(name, _)| CString::new(name)).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    let given: Vec<_> = names
        .iter()
        .zip(settings.iter())
        .map(|(name, (_, value))| abi::Setting { name: name.as_ptr(), value: abi::Bytes::of(value) })
        .collect();
    let mut made = abi::Instance {
        size: size_of::<abi::Instance>(),
        me: core::ptr::null_mut(),
        names: core::ptr::null(),
        attributes: core::ptr::null(),
        data: core::ptr::null(),
        operations: core::ptr::null(),
        ioctls: core::ptr::null(),
        codec: core::ptr::null(),
        flags: 0,
        objects: core::ptr::null(),
        store: core::ptr::null(),
    };
    let mut error = [0_u8; 1024];
    // Keep the last byte as NUL, whatever the plugin writes.
    let room = error.len() - 1;
    // SAFETY: calls the plugin's function; buffer and settings outlive the call.
    let code = unsafe {
        (loaded.open)(
            &raw const HOST,
            given.as_ptr(),
            given.len(),
            &raw mut made,
            error.as_mut_ptr().cast::<c_char>(),
            room,
        )
    };
    if code == 0 {
        return Ok(made);
    }
    let message = CStr::from_bytes_until_nul(&error).map(CStr::to_bytes).unwrap_or_default();
    if !message.is_empty() {
        return Err(message
            .utf8_chunks()
            .flat_map(|chunk| chunk.valid().chars())
            .filter(|c| !c.is_control())
            .collect());
    }
    match code {
        -133..=-1 => Err(format!("its function open failed: {}", Errno::from_raw_os_error(-code))),
        code => Err(format!("its function open returned {code}, which is not an errno")),
    }
}

/// A table of hooks. All tables begin with their size.
pub(super) trait Table: Copy {
    /// A table without hooks.
    const EMPTY: Self;
    /// Size in bytes in the first version that had the table.
    const LEAST: usize;
}

macro_rules! tables {
    ($($table:ident { $($field:ident),* $(; $($since:ident),*)? })*) => {
        $(impl Table for abi::$table {
            const EMPTY: Self = Self { size: 0, $($field: None),* $(, $($since: None),*)? };
            // The size field, followed by one pointer per hook.
            const LEAST: usize = size_of::<usize>() * (1 + [$(stringify!($field)),*].len());
        })*
    };
}

tables! {
    Names { encode_filename, decode_filename, encode_target, decode_target; matching, fold_filename }
    Attributes { decode_attr, encode_attr, encode_mode }
    Data { block_size, applies, encode_data, decode_data }
    Codec { storage, max_encoded, encode, decode }
    Operations { interest, before, after }
    Ioctls { ioctl }
    Objects { freed }
    NameStore { role, long_name, encoded_name, side_mode, state_file, new_state, is_state }
}

/// Reads the part of a table that both sides know.
fn table<T: Table>(at: *const T, what: &str) -> Result<Option<T>, String> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: by the header, the table begins with its size.
    let size = unsafe { at.cast::<usize>().read_unaligned() };
    if size < T::LEAST {
        return Err(format!(
            "its table of {what} has {size} bytes instead of {}; set `size` to sizeof",
            size_of::<T>()
        ));
    }
    let mut table = T::EMPTY;
    let known = size.min(size_of::<T>());
    // SAFETY: both tables have at least as many bytes as are copied. By the header they contain
    // function pointers or NULL; fields that an older table lacks remain NULL.
    unsafe { core::ptr::copy_nonoverlapping(at.cast::<u8>(), (&raw mut table).cast::<u8>(), known) };
    Ok(Some(table))
}

/// Returns a required function.
pub(super) fn must<F>(function: Option<F>, name: &str) -> Result<F, String> {
    function.ok_or_else(|| format!("its hook {name} is NULL; it is required"))
}
