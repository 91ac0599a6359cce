//! `include/strata_layer.h` in Rust; the header documents each field. A test compiles the header
//! and compares all sizes, offsets and constants.
#![allow(missing_docs)]

use core::ffi::{c_char, c_int, c_void};
use wrapfs::hooks::OpKind;

pub const MAGIC: u64 = u64::from_le_bytes(*b"ST-layer");
pub const MAJOR: u32 = 1;
pub const MINOR: u32 = 3;
/// First minor version in which plugins can change the size of data.
pub const MINOR_OF_CODECS: u32 = 1;
/// First minor version in which names can be merged.
pub const MINOR_OF_MATCHING: u32 = 2;
/// First minor version with instance flags, object state and access to the layer below.
pub const MINOR_OF_LOWER: u32 = 3;
/// Maximum length of a name or target returned by a hook.
pub const LONGEST: usize = 65_536;
/// Name of the function that a plugin exports.
pub const SYMBOL: &str = "strata_layer_v1";
/// The errno that means "retry on a thread that may block".
pub const MAY_BLOCK: i64 = 529;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Bytes {
    pub bytes: *const u8,
    pub len: usize,
}

impl Bytes {
    /// No bytes.
    pub const EMPTY: Self = Self { bytes: core::ptr::null(), len: 0 };

    /// Returns the bytes of a slice, valid as long as the slice.
    #[must_use]
    pub const fn of(slice: &[u8]) -> Self {
        Self { bytes: slice.as_ptr(), len: slice.len() }
    }
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Time {
    pub sec: i64,
    pub nsec: u32,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Attr {
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub rdev: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub btime: Time,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub blksize: u32,
    pub has_btime: u32,
}

pub const SET_MODE: u32 = 1 << 0;
pub const SET_UID: u32 = 1 << 1;
pub const SET_GID: u32 = 1 << 2;
pub const SET_SIZE: u32 = 1 << 3;
pub const SET_ATIME: u32 = 1 << 4;
pub const SET_MTIME: u32 = 1 << 5;
pub const SET_ATIME_NOW: u32 = 1 << 6;
pub const SET_MTIME_NOW: u32 = 1 << 7;
pub const SET_KILL_SUIDGID: u32 = 1 << 8;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SetAttr {
    pub valid: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub atime: Time,
    pub mtime: Time,
}

/// Call the layer below as the server's user.
pub const AS_SERVER: u32 = 1 << 0;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
    pub umask: u32,
    pub may_block: u32,
    pub flags: u32,
    pub cancelled: *const u8,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Object {
    pub host: *const Host,
    pub id: u64,
    pub kind: u32,
    pub reserved: u32,
    pub handle: *const c_void,
    pub state: Bytes,
}

/// An open file of the layer below, owned by the server.
#[derive(Debug)]
#[repr(C)]
pub struct File {
    _opaque: [u8; 0],
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DirEntry {
    pub cookie: u64,
    pub id: u64,
    pub kind: u32,
    pub reserved: u32,
    pub name: Bytes,
}

type Obj = *const Object;
type CallerPtr = *const Caller;

pub type Hold = unsafe extern "C" fn(Obj, *mut *mut Object) -> c_int;
pub type Release = unsafe extern "C" fn(*mut Object);
pub type Lookup = unsafe extern "C" fn(Obj, CallerPtr, Bytes, *mut *mut Object, *mut Attr) -> c_int;
pub type Each = unsafe extern "C" fn(*mut c_void, *const DirEntry) -> c_int;
pub type Readdir = unsafe extern "C" fn(Obj, CallerPtr, u64, Option<Each>, *mut c_void) -> c_int;
pub type GetBytes = unsafe extern "C" fn(Obj, CallerPtr, *mut u8, usize) -> i64;
pub type SetAttrFn = unsafe extern "C" fn(Obj, CallerPtr, *const SetAttr, *mut Attr) -> c_int;
pub type SetXattr = unsafe extern "C" fn(Obj, CallerPtr, Bytes, Bytes, u32) -> c_int;
pub type ByName = unsafe extern "C" fn(Obj, CallerPtr, Bytes) -> c_int;
pub type OpenFile = unsafe extern "C" fn(Obj, CallerPtr, u32, *mut *mut File) -> c_int;
pub type Create =
    unsafe extern "C" fn(Obj, CallerPtr, Bytes, u32, u32, *mut *mut Object, *mut Attr, *mut *mut File) -> c_int;
pub type Tmpfile = unsafe extern "C" fn(Obj, CallerPtr, u32, u32, *mut *mut Object, *mut Attr, *mut *mut File) -> c_int;
pub type Mknod = unsafe extern "C" fn(Obj, CallerPtr, Bytes, u32, u64, *mut *mut Object, *mut Attr) -> c_int;
pub type Mkdir = unsafe extern "C" fn(Obj, CallerPtr, Bytes, u32, *mut *mut Object, *mut Attr) -> c_int;
pub type Symlink = unsafe extern "C" fn(Obj, CallerPtr, Bytes, Bytes, *mut *mut Object, *mut Attr) -> c_int;
pub type Link = unsafe extern "C" fn(Obj, CallerPtr, Bytes, Obj, *mut Attr) -> c_int;
pub type Rename = unsafe extern "C" fn(Obj, CallerPtr, Bytes, Obj, Bytes, u32) -> c_int;
pub type SyncDirectory = unsafe extern "C" fn(Obj, CallerPtr, c_int) -> c_int;
pub type Read = unsafe extern "C" fn(*mut File, CallerPtr, *mut u8, usize, u64) -> i64;
pub type Write = unsafe extern "C" fn(*mut File, CallerPtr, Bytes, u64) -> i64;
pub type Fsync = unsafe extern "C" fn(*mut File, CallerPtr, c_int) -> c_int;
pub type Fallocate = unsafe extern "C" fn(*mut File, CallerPtr, u32, u64, u64) -> c_int;
pub type Seek = unsafe extern "C" fn(*mut File, CallerPtr, u64, c_int) -> i64;
pub type CloseFile = unsafe extern "C" fn(*mut File);

/// `SEEK_DATA`
pub const SEEK_DATA: c_int = 3;
/// `SEEK_HOLE`
pub const SEEK_HOLE: c_int = 4;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Lower {
    pub size: usize,
    pub hold: Option<Hold>,
    pub release: Option<Release>,
    pub lookup: Option<Lookup>,
    pub readdir: Option<Readdir>,
    pub readlink: Option<GetBytes>,
    pub setattr: Option<SetAttrFn>,
    pub setxattr: Option<SetXattr>,
    pub listxattr: Option<GetBytes>,
    pub removexattr: Option<ByName>,
    pub open: Option<OpenFile>,
    pub create: Option<Create>,
    pub tmpfile: Option<Tmpfile>,
    pub mknod: Option<Mknod>,
    pub mkdir: Option<Mkdir>,
    pub symlink: Option<Symlink>,
    pub link: Option<Link>,
    pub unlink: Option<ByName>,
    pub rmdir: Option<ByName>,
    pub rename: Option<Rename>,
    pub sync_directory: Option<SyncDirectory>,
    pub read: Option<Read>,
    pub write: Option<Write>,
    pub fsync: Option<Fsync>,
    pub fallocate: Option<Fallocate>,
    pub seek: Option<Seek>,
    pub close: Option<CloseFile>,
}

pub type GetAttr = unsafe extern "C" fn(*const Object, *const Caller, *mut Attr) -> c_int;
pub type GetXattr = unsafe extern "C" fn(*const Object, *const Caller, Bytes, *mut u8, usize) -> i64;
pub type PathOf = unsafe extern "C" fn(*const Object, *mut u8, usize) -> i64;
pub type Attach = unsafe extern "C" fn(*const Object, *mut c_void) -> *mut c_void;
pub type Attached = unsafe extern "C" fn(*const Object) -> *mut c_void;
pub type Log = unsafe extern "C" fn(c_int, *const c_char, usize);

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Host {
    pub size: usize,
    pub major: u32,
    pub minor: u32,
    pub getattr: Option<GetAttr>,
    pub getxattr: Option<GetXattr>,
    pub log: Option<Log>,
    pub lower: Option<&'static Lower>,
    pub path: Option<PathOf>,
    pub attach: Option<Attach>,
    pub attached: Option<Attached>,
}

pub type NameFn = unsafe extern "C" fn(*mut c_void, *const Caller, *const Object, Bytes, *mut u8, usize) -> i64;
pub type TargetFn = unsafe extern "C" fn(*mut c_void, *const Caller, Bytes, *mut u8, usize) -> i64;

pub type MatchingFn = unsafe extern "C" fn(*mut c_void) -> c_int;

pub const MATCHING_EXACT: c_int = 0;
pub const MATCHING_ENCODED: c_int = 1;
pub const MATCHING_FOLDED: c_int = 2;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Names {
    pub size: usize,
    pub encode_filename: Option<NameFn>,
    pub decode_filename: Option<NameFn>,
    pub encode_target: Option<TargetFn>,
    pub decode_target: Option<TargetFn>,
    pub matching: Option<MatchingFn>,
    pub fold_filename: Option<NameFn>,
}

pub const ROLE_NAME: c_int = 0;
pub const ROLE_LONG: c_int = 1;
pub const ROLE_SIDE: c_int = 2;
pub const ROLE_LEFTOVER: c_int = 3;
pub const ROLE_OWN: c_int = 4;

/// Buffer size for a file name.
pub const NAME_ROOM: usize = 256;
/// Maximum size of a side file in bytes, beyond the encoded name.
pub const SIDE_ROOM: usize = 4096;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LongName {
    pub object: [u8; NAME_ROOM],
    pub side: [u8; NAME_ROOM],
    pub object_len: usize,
    pub side_len: usize,
    pub content: *mut u8,
    pub content_capacity: usize,
    pub content_len: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StateFile {
    pub name: [u8; NAME_ROOM],
    pub name_len: usize,
    pub longest: usize,
    pub mode: u32,
    pub reserved: u32,
}

pub type RoleFn = unsafe extern "C" fn(*mut c_void, Bytes, *mut u8, *mut usize) -> c_int;
pub type LongNameFn = unsafe extern "C" fn(*mut c_void, Bytes, *mut LongName) -> c_int;
pub type EncodedName = unsafe extern "C" fn(*mut c_void, Bytes, Bytes, *mut u8, usize) -> i64;
pub type SideMode = unsafe extern "C" fn(*mut c_void) -> u32;
pub type StateFileFn = unsafe extern "C" fn(*mut c_void, *mut StateFile) -> c_int;
pub type NewState = unsafe extern "C" fn(*mut c_void, *const Caller, *mut u8, usize) -> i64;
pub type IsState = unsafe extern "C" fn(*mut c_void, Bytes) -> c_int;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NameStore {
    pub size: usize,
    pub role: Option<RoleFn>,
    pub long_name: Option<LongNameFn>,
    pub encoded_name: Option<EncodedName>,
    pub side_mode: Option<SideMode>,
    pub state_file: Option<StateFileFn>,
    pub new_state: Option<NewState>,
    pub is_state: Option<IsState>,
}

pub type Freed = unsafe extern "C" fn(*mut c_void, u64, *mut c_void);

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Objects {
    pub size: usize,
    pub freed: Option<Freed>,
}

pub type DecodeAttr = unsafe extern "C" fn(*mut c_void, *const Caller, *const Object, *mut Attr) -> c_int;
pub type EncodeAttr = unsafe extern "C" fn(*mut c_void, *const Caller, *const Object, *mut SetAttr) -> c_int;
pub type EncodeMode = unsafe extern "C" fn(*mut c_void, *const Caller, *const Object, u32, *mut u32) -> c_int;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Attributes {
    pub size: usize,
    pub decode_attr: Option<DecodeAttr>,
    pub encode_attr: Option<EncodeAttr>,
    pub encode_mode: Option<EncodeMode>,
}

pub type BlockSize = unsafe extern "C" fn(*mut c_void) -> usize;
pub type Applies = unsafe extern "C" fn(*mut c_void, *const Caller, *const Object) -> c_int;
pub type BlockFn =
    unsafe extern "C" fn(*mut c_void, *const Caller, *const Object, u64, *const u8, *mut u8, usize) -> c_int;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Data {
    pub size: usize,
    pub block_size: Option<BlockSize>,
    pub applies: Option<Applies>,
    pub encode_data: Option<BlockFn>,
    pub decode_data: Option<BlockFn>,
}

pub const FOREIGN_PLAIN: u32 = 0;
pub const FOREIGN_REFUSE: u32 = 1;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Storage {
    pub id: [u8; 8],
    pub block_size: u32,
    pub foreign: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BlockAt {
    pub file: [u8; 16],
    pub block: u64,
}

pub type HowStored = unsafe extern "C" fn(*mut c_void, *mut Storage) -> c_int;
pub type MaxEncoded = unsafe extern "C" fn(*mut c_void, usize) -> usize;
pub type EncodeFn = unsafe extern "C" fn(*mut c_void, *const BlockAt, Bytes, *mut u8, usize) -> i64;
pub type DecodeFn = unsafe extern "C" fn(*mut c_void, *const BlockAt, Bytes, *mut u8, usize) -> c_int;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Codec {
    pub size: usize,
    pub storage: Option<HowStored>,
    pub max_encoded: Option<MaxEncoded>,
    pub encode: Option<EncodeFn>,
    pub decode: Option<DecodeFn>,
}

/// The operations in numeric order. New operations are appended.
pub const OPERATIONS: &[OpKind] = &[
    OpKind::Lookup,
    OpKind::Getattr,
    OpKind::Setattr,
    OpKind::Readlink,
    OpKind::Readdir,
    OpKind::Open,
    OpKind::Create,
    OpKind::Tmpfile,
    OpKind::Mknod,
    OpKind::Mkdir,
    OpKind::Symlink,
    OpKind::Link,
    OpKind::Unlink,
    OpKind::Rmdir,
    OpKind::Rename,
    OpKind::Getxattr,
    OpKind::Setxattr,
    OpKind::Listxattr,
    OpKind::Removexattr,
    OpKind::Refused,
    OpKind::Statfs,
    OpKind::Fsync,
    OpKind::Ioctl,
    OpKind::Read,
    OpKind::Write,
    OpKind::Flush,
    OpKind::Fallocate,
    OpKind::Seek,
    OpKind::Copy,
];

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Op {
    pub kind: u32,
    pub flags: u32,
    pub object: *const Object,
    pub other: *const Object,
    pub name: Bytes,
    pub new_name: Bytes,
    pub data: Bytes,
    pub set: *const SetAttr,
    pub offset: u64,
    pub len: u64,
    pub rdev: u64,
    pub mode: u32,
    pub cmd: u32,
}

/// `RENAME_NOREPLACE`, `XATTR_CREATE`
pub const FLAG_ONE: u32 = 1;
/// `RENAME_EXCHANGE`, `XATTR_REPLACE`
pub const FLAG_TWO: u32 = 2;
/// `RENAME_WHITEOUT`
pub const FLAG_THREE: u32 = 4;

pub const DONE: u32 = 0;
pub const MISSING: u32 = 1;
pub const OBJECT: u32 = 2;
pub const ATTR: u32 = 3;
pub const BYTES: u32 = 4;
pub const COUNT: u32 = 5;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Answer {
    pub error: i32,
    pub kind: u32,
    pub object: *const Object,
    pub attr: *const Attr,
    pub data: Bytes,
    pub count: u64,
}

pub type Put = unsafe extern "C" fn(*mut Reply, *const c_void, usize) -> c_int;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Reply {
    pub kind: u32,
    pub reserved: u32,
    pub attr: Attr,
    pub count: u64,
    pub put: Option<Put>,
}

pub type Interest = unsafe extern "C" fn(*mut c_void) -> u64;
pub type Before = unsafe extern "C" fn(*mut c_void, *const Caller, *const Op, *mut Reply) -> c_int;
pub type After = unsafe extern "C" fn(*mut c_void, *const Caller, *const Op, *const Answer, *mut Reply) -> c_int;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Operations {
    pub size: usize,
    pub interest: Option<Interest>,
    pub before: Option<Before>,
    pub after: Option<After>,
}

pub type IoctlFn = unsafe extern "C" fn(
    *mut c_void,
    *const Caller,
    *const Object,
    u32,
    Bytes,
    *mut u8,
    usize,
    *mut usize,
    *mut i32,
) -> c_int;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Ioctls {
    pub size: usize,
    pub ioctl: Option<IoctlFn>,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Instance {
    pub size: usize,
    pub me: *mut c_void,
    pub names: *const Names,
    pub attributes: *const Attributes,
    pub data: *const Data,
    pub operations: *const Operations,
    pub ioctls: *const Ioctls,
    pub codec: *const Codec,
    pub flags: u64,
    pub objects: *const Objects,
    pub store: *const NameStore,
}

/// The layer is read-only.
pub const READ_ONLY: u64 = 1 << 0;
/// Hooks can query paths.
pub const PATHS: u64 = 1 << 1;
/// All known flags.
pub const FLAGS: u64 = READ_ONLY | PATHS;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Spec {
    pub name: *const c_char,
    pub value: *const c_char,
    pub help: *const c_char,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Setting {
    pub name: *const c_char,
    pub value: Bytes,
}

pub type Open = unsafe extern "C" fn(*const Host, *const Setting, usize, *mut Instance, *mut c_char, usize) -> c_int;
pub type Close = unsafe extern "C" fn(*mut c_void);

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Layer {
    pub magic: u64,
    pub major: u32,
    pub minor: u32,
    pub size: usize,
    pub name: *const c_char,
    pub about: *const c_char,
    pub options: *const Spec,
    pub option_count: usize,
    pub open: Option<Open>,
    pub close: Option<Close>,
}

/// The function at [`SYMBOL`].
pub type Entry = unsafe extern "C" fn() -> *const Layer;
