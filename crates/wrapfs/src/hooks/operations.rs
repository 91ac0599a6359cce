use super::Object;
use core::fmt;
/// What an operation is: the interface's own list. Those that the hook can't see are never in its sets.
pub use vnode::Operation as OpKind;
use vnode::{Attr, Cx, Errno, Name, OpenFlags, RenameFlags, Result, SetAttr, XattrFlags};

macro_rules! operations {
    ($($(#[$doc:meta])* $kind:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* },)*) => {
        /// An operation of a vnode or of an open file, with what it was called with.
        #[derive(Clone, Copy, Debug)]
        pub enum Op<'a> {
            $($(#[$doc])* $kind { $($(#[$field_doc])* $field: $type),* },)*
        }

        impl Op<'_> {
            /// What it is.
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
    /// The object of a name is looked for.
    Lookup { #[doc = "Where."] dir: &'a Object<'a>, #[doc = "The name above."] name: Name<'a> },
    /// Attributes are asked for.
    Getattr { #[doc = "Of what."] file: &'a Object<'a> },
    /// Attributes are changed.
    Setattr { #[doc = "Of what."] file: &'a Object<'a>, #[doc = "Which, to what."] set: &'a SetAttr },
    /// The target of a symbolic link is read.
    Readlink { #[doc = "The link."] file: &'a Object<'a> },
    /// A directory, or a part of it, is listed.
    Readdir { #[doc = "The directory."] dir: &'a Object<'a> },
    /// A file is opened.
    Open { #[doc = "The file."] file: &'a Object<'a>, #[doc = "How."] flags: OpenFlags },
    /// A file is made and opened.
    Create {
        #[doc = "Where."] dir: &'a Object<'a>,
        #[doc = "The name above."] name: Name<'a>,
        #[doc = "Permission bits."] mode: u32,
        #[doc = "How it is opened."] flags: OpenFlags
    },
    /// A file without a name is made and opened.
    Tmpfile {
        #[doc = "Where."] dir: &'a Object<'a>,
        #[doc = "Permission bits."] mode: u32,
        #[doc = "How it is opened."] flags: OpenFlags
    },
    /// A file, fifo, socket or device is made.
    Mknod {
        #[doc = "Where."] dir: &'a Object<'a>,
        #[doc = "The name above."] name: Name<'a>,
        #[doc = "Type and permission bits."] mode: u32,
        #[doc = "Which device."] rdev: u64
    },
    /// A directory is made.
    Mkdir {
        #[doc = "Where."] dir: &'a Object<'a>,
        #[doc = "The name above."] name: Name<'a>,
        #[doc = "Permission bits."] mode: u32
    },
    /// A symbolic link is made.
    Symlink {
        #[doc = "Where."] dir: &'a Object<'a>,
        #[doc = "The name above."] name: Name<'a>,
        #[doc = "Its target, as the program gave it."] target: &'a [u8]
    },
    /// A file gets another name.
    Link {
        #[doc = "Where."] dir: &'a Object<'a>,
        #[doc = "The new name above."] name: Name<'a>,
        #[doc = "The file."] target: &'a Object<'a>
    },
    /// A name of something that is not a directory is removed.
    Unlink { #[doc = "Where."] dir: &'a Object<'a>, #[doc = "The name above."] name: Name<'a> },
    /// A directory is removed.
    Rmdir { #[doc = "Where."] dir: &'a Object<'a>, #[doc = "The name above."] name: Name<'a> },
    /// An entry is renamed.
    Rename {
        #[doc = "From where."] dir: &'a Object<'a>,
        #[doc = "The old name above."] name: Name<'a>,
        #[doc = "To where."] new_dir: &'a Object<'a>,
        #[doc = "The new name above."] new_name: Name<'a>,
        #[doc = "How."] flags: RenameFlags
    },
    /// An extended attribute is read.
    Getxattr { #[doc = "Of what."] file: &'a Object<'a>, #[doc = "Which."] name: &'a [u8] },
    /// An extended attribute is set.
    Setxattr {
        #[doc = "Of what."] file: &'a Object<'a>,
        #[doc = "Which."] name: &'a [u8],
        #[doc = "To what."] value: &'a [u8],
        #[doc = "How."] flags: XattrFlags
    },
    /// Extended attributes are listed.
    Listxattr { #[doc = "Of what."] file: &'a Object<'a> },
    /// An extended attribute is removed.
    Removexattr { #[doc = "Of what."] file: &'a Object<'a>, #[doc = "Which."] name: &'a [u8] },
    /// The kernel has refused the caller something. Seen after the fact: what is answered changes nothing. A layer whose set has this
    /// one costs more look-ups, since the server then has the kernel ask again where it would remember.
    Refused {
        #[doc = "What was to be used."] file: &'a Object<'a>,
        #[doc = "One or more of these were refused: read (4), write (2), execute or search (1)."] mask: u32
    },
    /// Figures of the file system are asked for.
    Statfs { #[doc = "Through what."] file: &'a Object<'a> },
    /// A file or a directory is made durable.
    Fsync { #[doc = "Which."] file: &'a Object<'a>, #[doc = "Without attributes that reading does not need."] data_only: bool },
    /// An ioctl.
    Ioctl { #[doc = "On what."] file: &'a Object<'a>, #[doc = "Which."] cmd: u32, #[doc = "Its argument."] input: &'a [u8] },
    /// Data are read.
    Read { #[doc = "From what."] file: &'a Object<'a>, #[doc = "Where."] offset: u64, #[doc = "At most so many bytes."] len: usize },
    /// Data are written.
    Write { #[doc = "To what."] file: &'a Object<'a>, #[doc = "Where, unless appended."] offset: u64, #[doc = "Plain data."] data: &'a [u8] },
    /// A descriptor is closed; seen only where a layer below needs it (NFS).
    Flush { #[doc = "Of what."] file: &'a Object<'a> },
    /// A range is allocated, punched or zeroed.
    Fallocate {
        #[doc = "In what."] file: &'a Object<'a>,
        #[doc = "As for fallocate(2)."] mode: u32,
        #[doc = "From here."] offset: u64,
        #[doc = "So many bytes."] len: u64
    },
    /// A hole or data are looked for.
    Seek { #[doc = "In what."] file: &'a Object<'a>, #[doc = "From here."] offset: u64 },
    /// A range is copied into a file from another (copy_file_range, reflink).
    Copy { #[doc = "Into what."] file: &'a Object<'a>, #[doc = "Where to."] offset: u64, #[doc = "At most so many bytes."] len: u64 },
}

/// A set of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpSet(u64);

impl OpSet {
    /// None.
    pub const NONE: Self = Self(0);
    /// Every one.
    pub const ALL: Self = Self(u64::MAX);

    /// These.
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

    /// Is this one among them?
    #[must_use]
    pub const fn has(self, kind: OpKind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }
}

/// What an operation answered, as [`Operations::after`] sees it.
#[derive(Clone, Copy, Debug)]
pub enum Answer<'a> {
    /// It is done; there is nothing more to say.
    Done,
    /// There is no object of that name ([`Op::Lookup`]).
    Missing,
    /// An object was found or made, with these attributes (as shown above).
    Object(&'a Object<'a>, &'a Attr),
    /// Attributes, as shown above.
    Attr(&'a Attr),
    /// Data, an extended attribute's value, a list of names, a link's target.
    Bytes(&'a [u8]),
    /// So many bytes were written or copied; the offset that was found; the size of what was asked for without a buffer.
    Count(u64),
}

/// What a hook answers in place of the layer below. It must be what the operation can answer; else the program gets `EIO`, with a word in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is done: for operations that answer nothing else.
    Done,
    /// There is no object of that name ([`Op::Lookup`]).
    Missing,
    /// Attributes ([`Op::Getattr`], [`Op::Setattr`]).
    Attr(Attr),
    /// A link's target, an extended attribute's value, a list of names with a NUL after each, data ([`Op::Read`]).
    Bytes(Vec<u8>),
    /// So many bytes ([`Op::Write`], [`Op::Copy`]), an offset ([`Op::Seek`]).
    Count(u64),
}

/// What becomes of an operation that has not been done yet; an error refuses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The layer below does it.
    Proceed,
    /// It is answered like this; the layer below does not hear of it.
    Answer(Reply),
}

/// What becomes of the result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instead {
    /// It stays.
    Keep,
    /// This takes its place: only where the operation [only looks](OpKind::only_looks), since what is done is done.
    Of(core::result::Result<Reply, Errno>),
}

/// Sees operations before and after they are done: observes, refuses, answers (Wrapfs paper, Table 1: "other").
///
/// Names and data are those of programs, not encoded ones. Reads and writes are seen only where they come to the server: a layer whose set has [`OpKind::Read`]
/// or [`OpKind::Write`] takes passthrough away from its files, and reads from the kernel's page cache are seen by nobody.
pub trait Operations: Send + Sync + fmt::Debug {
    /// Which operations it wants to see: always the same. All others cost nothing.
    fn interest(&self) -> OpSet;

    /// Before it is done.
    ///
    /// # Errors
    /// Refuses the operation with that errno.
    fn before(&self, cx: &Cx<'_>, op: &Op<'_>) -> Result<Verdict> {
        let _ = (cx, op);
        Ok(Verdict::Proceed)
    }

    /// After it was done, or refused by the layer below; not after [`Self::before`] refused or answered.
    fn after(&self, cx: &Cx<'_>, op: &Op<'_>, result: core::result::Result<Answer<'_>, Errno>) -> Instead {
        let _ = (cx, op, result);
        Instead::Keep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_they_were_made_of() {
        assert!(OpKind::ALL.len() <= 64);
        let some = OpSet::of(&[OpKind::Lookup, OpKind::Copy]);
        for (kind, _) in OpKind::ALL {
            assert_eq!(some.has(kind), kind == OpKind::Lookup || kind == OpKind::Copy);
            assert!(OpSet::ALL.has(kind) && !OpSet::NONE.has(kind));
        }
    }
}
