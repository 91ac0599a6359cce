use super::Object;
use core::fmt;
/// The kind of an operation. The list is that of the vnode interface. A hook observes only the
/// kinds that have a variant in [`Op`]; the others have no effect in an [`OpSet`].
pub use vnode::Operation as OpKind;
use vnode::{Attr, Cx, Errno, Name, OpenFlags, RenameFlags, Result, SetAttr, XattrFlags};

macro_rules! operations {
    ($($(#[$doc:meta])* $kind:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* },)*) => {
        /// An operation on a vnode or an open file, with its arguments. *Plain* names and data are
        /// those that users see, before the layer encodes them.
        #[derive(Clone, Copy, Debug)]
        pub enum Op<'a> {
            $($(#[$doc])* $kind { $($(#[$field_doc])* $field: $type),* },)*
        }

        impl Op<'_> {
            /// Returns the kind of the operation.
            #[must_use]
            pub const fn kind(&self) -> OpKind {
                match self {
                    $(Self::$kind { .. } => OpKind::$kind,)*
                }
            }
        }
    };
}

operations! {
    /// Lookup of a name in a directory.
    Lookup { #[doc = "The directory."] dir: &'a Object<'a>, #[doc = "The plain name."] name: Name<'a> },
    /// Attributes are read.
    Getattr { #[doc = "The object."] file: &'a Object<'a> },
    /// Attributes are changed.
    Setattr { #[doc = "The object."] file: &'a Object<'a>, #[doc = "The attributes to set."] set: &'a SetAttr },
    /// The target of a symbolic link is read.
    Readlink { #[doc = "The link."] file: &'a Object<'a> },
    /// A directory is listed, fully or in part.
    Readdir { #[doc = "The directory."] dir: &'a Object<'a> },
    /// A file is opened.
    Open { #[doc = "The file."] file: &'a Object<'a>, #[doc = "The open flags."] flags: OpenFlags },
    /// A file is created and opened.
    Create {
        #[doc = "The directory."] dir: &'a Object<'a>,
        #[doc = "The plain name."] name: Name<'a>,
        #[doc = "Permission bits."] mode: u32,
        #[doc = "The open flags."] flags: OpenFlags
    },
    /// An unnamed file is created and opened.
    Tmpfile {
        #[doc = "The directory."] dir: &'a Object<'a>,
        #[doc = "Permission bits."] mode: u32,
        #[doc = "The open flags."] flags: OpenFlags
    },
    /// A file, FIFO, socket or device node is created.
    Mknod {
        #[doc = "The directory."] dir: &'a Object<'a>,
        #[doc = "The plain name."] name: Name<'a>,
        #[doc = "Type and permission bits."] mode: u32,
        #[doc = "The device number."] rdev: u64
    },
    /// A directory is created.
    Mkdir {
        #[doc = "The parent directory."] dir: &'a Object<'a>,
        #[doc = "The plain name."] name: Name<'a>,
        #[doc = "Permission bits."] mode: u32
    },
    /// A symbolic link is created.
    Symlink {
        #[doc = "The directory."] dir: &'a Object<'a>,
        #[doc = "The plain name."] name: Name<'a>,
        #[doc = "Its plain target."] target: &'a [u8]
    },
    /// A hard link is created.
    Link {
        #[doc = "The directory."] dir: &'a Object<'a>,
        #[doc = "The new plain name."] name: Name<'a>,
        #[doc = "The file."] target: &'a Object<'a>
    },
    /// A name of a non-directory is removed.
    Unlink { #[doc = "The directory."] dir: &'a Object<'a>, #[doc = "The plain name."] name: Name<'a> },
    /// A directory is removed.
    Rmdir { #[doc = "The parent directory."] dir: &'a Object<'a>, #[doc = "The plain name."] name: Name<'a> },
    /// An entry is renamed.
    Rename {
        #[doc = "The old directory."] dir: &'a Object<'a>,
        #[doc = "The old plain name."] name: Name<'a>,
        #[doc = "The new directory."] new_dir: &'a Object<'a>,
        #[doc = "The new plain name."] new_name: Name<'a>,
        #[doc = "The flags of renameat2(2)."] flags: RenameFlags
    },
    /// An extended attribute is read.
    Getxattr { #[doc = "The object."] file: &'a Object<'a>, #[doc = "The attribute's name."] name: &'a [u8] },
    /// An extended attribute is set.
    Setxattr {
        #[doc = "The object."] file: &'a Object<'a>,
        #[doc = "The attribute's name."] name: &'a [u8],
        #[doc = "The new value."] value: &'a [u8],
        #[doc = "The flags of setxattr(2)."] flags: XattrFlags
    },
    /// Extended attributes are listed.
    Listxattr { #[doc = "The object."] file: &'a Object<'a> },
    /// An extended attribute is removed.
    Removexattr { #[doc = "The object."] file: &'a Object<'a>, #[doc = "The attribute's name."] name: &'a [u8] },
    /// The kernel denied the caller access. The server reports the denial to the hook, whose result
    /// does not affect the caller. Observing this operation costs additional lookups, because the
    /// server then prevents the kernel from caching their results.
    Refused {
        #[doc = "The object."] file: &'a Object<'a>,
        #[doc = "The denied permissions, one or more of: read (4), write (2), execute or search (1)."] mask: u32
    },
    /// File-system statistics are read.
    Statfs { #[doc = "The object."] file: &'a Object<'a> },
    /// A file or a directory is made durable.
    Fsync { #[doc = "The object."] file: &'a Object<'a>, #[doc = "Whether to skip attributes not needed for reading."] data_only: bool },
    /// An ioctl is issued.
    Ioctl { #[doc = "The object."] file: &'a Object<'a>, #[doc = "The command."] cmd: u32, #[doc = "Its input."] input: &'a [u8] },
    /// Data is read.
    Read { #[doc = "The file."] file: &'a Object<'a>, #[doc = "The offset."] offset: u64, #[doc = "The maximum number of bytes."] len: usize },
    /// Data is written.
    Write { #[doc = "The file."] file: &'a Object<'a>, #[doc = "The offset, unless appending."] offset: u64, #[doc = "The plain data."] data: &'a [u8] },
    /// A descriptor is closed. Observed only if a layer below needs it (NFS).
    Flush { #[doc = "The file."] file: &'a Object<'a> },
    /// A range is allocated, punched or zeroed.
    Fallocate {
        #[doc = "The file."] file: &'a Object<'a>,
        #[doc = "The mode of fallocate(2)."] mode: u32,
        #[doc = "The offset."] offset: u64,
        #[doc = "The length in bytes."] len: u64
    },
    /// The next data or hole is searched.
    Seek { #[doc = "The file."] file: &'a Object<'a>, #[doc = "The offset."] offset: u64 },
    /// A range is copied from another file (copy_file_range, reflink).
    Copy { #[doc = "The destination."] file: &'a Object<'a>, #[doc = "The destination offset."] offset: u64, #[doc = "The maximum number of bytes."] len: u64 },
}

/// A set of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpSet(u64);

impl OpSet {
    /// No operations.
    pub const NONE: Self = Self(0);
    /// All operations.
    pub const ALL: Self = Self(u64::MAX);

    /// Returns a set of these operations.
    #[must_use]
    pub const fn of(kinds: &[OpKind]) -> Self {
        let mut bits = 0;
        let mut rest = kinds;
        while let [first, others @ ..] = rest {
            bits |= 1 << *first as u8;
            rest = others;
        }
        Self(bits)
    }

    /// Whether the set contains this operation.
    #[must_use]
    pub const fn has(self, kind: OpKind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }
}

/// The result of an operation that succeeded in the layer below, as passed to
/// [`Operations::after`].
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// The operation succeeded without a result.
    Done,
    /// The name does not exist ([`Op::Lookup`]).
    Missing,
    /// An object that was found or created, with its decoded attributes.
    Object(&'a Object<'a>, &'a Attr),
    /// Decoded attributes.
    Attr(&'a Attr),
    /// Data, the value of an extended attribute, a list of names, or the target of a link.
    Bytes(&'a [u8]),
    /// A number of bytes written or copied, an offset found, or the size needed if no buffer was
    /// passed.
    Count(u64),
}

/// A reply that a hook supplies in place of the layer below. Its variant must be one for the
/// operation; otherwise the caller receives `EIO` and an error is logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Success, for operations without a result.
    Done,
    /// The name does not exist ([`Op::Lookup`]).
    Missing,
    /// Attributes ([`Op::Getattr`], [`Op::Setattr`]).
    Attr(Attr),
    /// The target of a link, the value of an extended attribute, a list of NUL-terminated names, or
    /// data ([`Op::Read`]).
    Bytes(Vec<u8>),
    /// A number of bytes ([`Op::Write`], [`Op::Copy`]) or an offset ([`Op::Seek`]).
    Count(u64),
}

/// What to do with an operation before it runs. A hook returns an error to refuse it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Run it in the layer below.
    Proceed,
    /// Reply with this. The layer below does not see the operation.
    Reply(Reply),
}

/// What to do with the result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instead {
    /// Keep it.
    Keep,
    /// Replace it. Allowed only if the operation [only reads](OpKind::is_query), because a change
    /// cannot be undone.
    Of(core::result::Result<Reply, Errno>),
}

/// A hook that observes operations before and after they run. It can refuse an operation, or reply
/// to it in place of the layer below (Wrapfs paper, Table 1: "other").
///
/// The hook receives plain names and data, not the encoded ones of the layer below. It observes
/// reads and writes only if they reach the server: a layer whose set contains [`OpKind::Read`] or
/// [`OpKind::Write`] disables passthrough for its files, but reads that the kernel serves from its
/// page cache are never observed.
pub trait Operations: Send + Sync + fmt::Debug {
    /// Returns the set of operations to observe, which must always be the same. Other operations
    /// bypass the hook at no cost.
    fn interest(&self) -> OpSet;

    /// Runs before the operation.
    ///
    /// # Errors
    /// Refuses the operation with this errno.
    fn before(&self, cx: &Cx<'_>, op: &Op<'_>) -> Result<Verdict> {
        let _ = (cx, op);
        Ok(Verdict::Proceed)
    }

    /// Runs after the operation, even if the layer below returned an error. Does not run if
    /// [`Self::before`] refused it or replied to it.
    fn after(&self, cx: &Cx<'_>, op: &Op<'_>, result: core::result::Result<Outcome<'_>, Errno>) -> Instead {
        let _ = (cx, op, result);
        Instead::Keep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_contain_their_members() {
        assert!(OpKind::ALL.len() <= 64);
        let some = OpSet::of(&[OpKind::Lookup, OpKind::Copy]);
        for (kind, _) in OpKind::ALL {
            assert_eq!(some.has(kind), kind == OpKind::Lookup || kind == OpKind::Copy);
            assert!(OpSet::ALL.has(kind) && !OpSet::NONE.has(kind));
        }
    }
}
