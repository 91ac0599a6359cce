//! A loaded layer on another one.

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

/// What most names fit into.
const USUAL: usize = 512;

/// What the layer calls itself, and the pointer that each of its hooks is given.
#[derive(Debug)]
pub(super) struct Instance {
    name: &'static str,
    me: *mut c_void,
    close: Option<abi::Close>,
    complained: AtomicBool,
}

// SAFETY: the header says that hooks are called from many threads at once; the pointer is only passed on to them.
unsafe impl Send for Instance {}
// SAFETY: as for Send.
unsafe impl Sync for Instance {}

impl Instance {
    pub(super) const fn me(&self) -> *mut c_void {
        self.me
    }

    /// The errno that a hook answered. One that is called for somebody who must not wait may answer that it would have to.
    pub(super) fn errno_for(&self, cx: &Cx<'_>, hook: &'static str, code: i64) -> Errno {
        if code == -abi::MAY_BLOCK && !cx.may_block { MAY_BLOCK } else { self.errno(hook, code) }
    }

    /// The errno that a hook answered that nobody waits for.
    pub(super) fn errno(&self, hook: &'static str, code: i64) -> Errno {
        // Those that Linux has: the kernel answers programs nothing else. Two numbers of them are not in use.
        match code.checked_neg().and_then(|errno| i32::try_from(errno).ok()) {
            Some(errno @ 1..=133) if errno != 41 && errno != 58 => Errno::from_raw_os_error(errno),
            _ => self.complain(hook, format_args!("answered {code}, which is no errno")),
        }
    }

    /// The answer of a hook that answers 0 or an errno.
    pub(super) fn done(&self, hook: &'static str, code: impl Into<i64>) -> vnode::Result<()> {
        match code.into() {
            0 => Ok(()),
            code => Err(self.errno(hook, code)),
        }
    }

    /// The same for a hook that is called for somebody.
    pub(super) fn done_for(&self, cx: &Cx<'_>, hook: &'static str, code: impl Into<i64>) -> vnode::Result<()> {
        match code.into() {
            0 => Ok(()),
            code => Err(self.errno_for(cx, hook, code)),
        }
    }

    /// Calls a hook that answers bytes: a second time if they are many.
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
            return Err(self.complain(hook, format_args!("asked for {len} bytes, and then for {again}")));
        }
        many.truncate(again);
        Ok(many)
    }

    fn length(&self, cx: &Cx<'_>, hook: &'static str, answer: i64) -> vnode::Result<usize> {
        if answer < 0 {
            return Err(self.errno_for(cx, hook, answer));
        }
        let len = usize::try_from(answer).ok().filter(|&len| len <= abi::LONGEST);
        len.ok_or_else(|| self.complain(hook, format_args!("answered {answer} bytes")))
    }

    /// Says once what is wrong with a layer.
    pub(super) fn complain(&self, hook: &'static str, what: core::fmt::Arguments<'_>) -> Errno {
        if !self.complained.swap(true, Ordering::Relaxed) {
            tracing::error!(layer = self.name, hook, "{what}; no more is said of this layer");
        }
        Errno::IO
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(close) = self.close {
            // SAFETY: the function that ends what `open` made, called once, when no hook is left that could be called.
            unsafe { close(self.me) };
        }
    }
}

/// Puts a loaded layer on `lower`.
pub(crate) fn put_on(lower: Arc<dyn Layer>, loaded: &Loaded, settings: &Settings) -> Result<Arc<dyn Layer>, String> {
    let made = open(loaded, settings)?;
    // Made before anything is checked, so that what was opened is closed.
    let instance =
        Arc::new(Instance { name: loaded.name, me: made.me, close: loaded.close, complained: AtomicBool::new(false) });
    let mut template = Template::over(lower);
    if made.flags & !abi::FLAGS != 0 {
        return Err(format!("it sets flags that this server does not know: {:#x}", made.flags & !abi::FLAGS));
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
            return Err(
                "it has both data and codec: of these a layer has one, and who needs both makes two layers".to_owned()
            );
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
    Ok(template.build())
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
    // One byte less than there is: it ends with a NUL whatever the layer writes.
    let room = error.len() - 1;
    // SAFETY: the layer's function, with room and settings that live during the call.
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
    let said = CStr::from_bytes_until_nul(&error).map(CStr::to_bytes).unwrap_or_default();
    if !said.is_empty() {
        return Err(said.utf8_chunks().flat_map(|chunk| chunk.valid().chars()).filter(|c| !c.is_control()).collect());
    }
    match code {
        -133..=-1 => Err(format!("it could not be set up: {}", Errno::from_raw_os_error(-code))),
        code => Err(format!("it could not be set up: it answered {code}, which is no errno")),
    }
}

/// A table of hooks, all of which begin with their size.
pub(super) trait Table: Copy {
    /// One without hooks.
    const EMPTY: Self;
    /// How many bytes it had in the first version that had it.
    const LEAST: usize;
}

macro_rules! tables {
    ($($table:ident { $($field:ident),* $(; $($since:ident),*)? })*) => {
        $(impl Table for abi::$table {
            const EMPTY: Self = Self { size: 0, $($field: None),* $(, $($since: None),*)? };
            // The size, and as many pointers as there are hooks.
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

/// Reads a table as far as both sides know it.
fn table<T: Table>(at: *const T, what: &str) -> Result<Option<T>, String> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: by the header a table, which begins with its size.
    let size = unsafe { at.cast::<usize>().read_unaligned() };
    if size < T::LEAST {
        return Err(format!(
            "its table of {what} has {size} bytes, and should have {}: `size` is not set, or it is damaged",
            size_of::<T>()
        ));
    }
    let mut table = T::EMPTY;
    let known = size.min(size_of::<T>());
    // SAFETY: both tables have at least as many bytes as are copied, and any bits of it are function pointers or NULL, by the header; what an
    // older one lacks stays NULL.
    unsafe { core::ptr::copy_nonoverlapping(at.cast::<u8>(), (&raw mut table).cast::<u8>(), known) };
    Ok(Some(table))
}

/// A function that must be there.
pub(super) fn must<F>(function: Option<F>, name: &str) -> Result<F, String> {
    function.ok_or_else(|| format!("its hook {name} is NULL, and must be given"))
}
