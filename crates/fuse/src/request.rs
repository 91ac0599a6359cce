//! The context of a request, and parsing of its arguments.

use crate::abi::{EXT_GROUPS, ExtHeader, InHeader, MAX_NR_SECCTX, SecctxHeader};
use crate::{Errno, Opcode};
use core::sync::atomic::AtomicBool;
use zerocopy::FromBytes;

/// Context of a request: its caller, and the conditions under which the handler runs.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The kernel's id of this request.
    pub unique: u64,
    /// Opcode of this request.
    pub opcode: Opcode,
    /// Node that the request concerns.
    pub node: u64,
    /// File-system user id of the caller.
    pub uid: u32,
    /// File-system group id of the caller.
    pub gid: u32,
    /// Process (thread) id of the caller in the server's pid namespace. 0: the kernel itself, a
    /// process outside of the namespace, or unknown because /proc belongs to another one
    /// ([`crate::proc_shows_callers`]).
    pub pid: u32,
    /// Whether the handler may block. False on a thread that serves other requests too: see
    /// [`crate::MAY_BLOCK`].
    pub may_block: bool,
    cancelled: &'a AtomicBool,
    extensions: &'a [u8],
}

impl<'a> Request<'a> {
    /// Creates a request from its header. `cancelled` becomes true when a signal
    /// interrupts the caller. `extensions` is the tail of a creation.
    #[must_use]
    pub fn new(
        header: &InHeader,
        opcode: Opcode,
        may_block: bool,
        cancelled: &'a AtomicBool,
        extensions: &'a [u8],
    ) -> Self {
        Self {
            unique: header.unique,
            opcode,
            node: header.nodeid,
            uid: header.uid,
            gid: header.gid,
            pid: if crate::proc_shows_callers() { header.pid } else { 0 },
            may_block,
            cancelled,
            extensions,
        }
    }

    /// Returns a flag that becomes true when a signal interrupts the caller. The handler may then
    /// return `EINTR`; if it ignores the flag, the caller keeps waiting.
    #[must_use]
    pub const fn cancelled(&self) -> &'a AtomicBool {
        self.cancelled
    }

    /// Returns the group of the parent directory, if it is one of the caller's supplementary
    /// groups. Sent with creations if [`crate::flags::CREATE_SUPP_GROUP`] was agreed.
    #[must_use]
    pub fn supplementary_group(&self) -> Option<u32> {
        self.extension(|kind| kind == EXT_GROUPS).and_then(|body| {
            let (count, groups) = u32::read_from_prefix(body).ok()?;
            if count == 0 { None } else { u32::read_from_prefix(groups).ok().map(|(group, _)| group) }
        })
    }

    /// Returns name and value of the new object's security context. Sent with creations if
    /// [`crate::flags::SECURITY_CTX`] was agreed.
    #[must_use]
    pub fn security_context(&self) -> Option<(&'a [u8], &'a [u8])> {
        // For this extension the type field holds the number of contexts, and the kernel sends at
        // most one.
        let body = self.extension(|kind| kind != 0 && kind <= MAX_NR_SECCTX)?;
        let (context, rest) = crate::abi::Secctx::read_from_prefix(body).ok()?;
        let (name, rest) = split_name(rest).ok()?;
        Some((name, rest.get(..context.size as usize)?))
    }

    fn extension(&self, wanted: impl Fn(u32) -> bool) -> Option<&'a [u8]> {
        const { assert!(size_of::<ExtHeader>() == size_of::<SecctxHeader>()) };
        let mut rest = self.extensions;
        loop {
            let (header, _) = ExtHeader::read_from_prefix(rest).ok()?;
            let body = rest.get(size_of::<ExtHeader>()..header.size as usize)?;
            if wanted(header.r#type) {
                return Some(body);
            }
            rest = rest.get((header.size as usize).checked_next_multiple_of(8)?..)?;
        }
    }
}

/// Splits `bytes` after the NUL-terminated name at the start.
pub(crate) fn split_name(bytes: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let end = bytes.iter().position(|&b| b == 0).ok_or(Errno::IO)?;
    let (name, rest) = bytes.split_at(end);
    Ok((name, rest.get(1..).unwrap_or_default()))
}

/// Reads the structure at the start of `bytes`.
pub(crate) fn parse<T: FromBytes>(bytes: &[u8]) -> Result<T, Errno> {
    T::read_from_prefix(bytes).map(|(value, _)| value).map_err(|_| Errno::IO)
}

/// Returns the length of an opcode's first argument, which the ring delivers apart from the rest,
/// in bytes. It is 0 for opcodes that start with a name or data.
pub(crate) const fn first_argument_len(opcode: Opcode, setxattr_ext: bool) -> usize {
    use crate::abi as a;
    match opcode {
        Opcode::Forget => size_of::<a::ForgetIn>(),
        Opcode::BatchForget => size_of::<a::BatchForgetIn>(),
        Opcode::Interrupt => size_of::<a::InterruptIn>(),
        Opcode::Getattr => size_of::<a::GetattrIn>(),
        Opcode::Setattr => size_of::<a::SetattrIn>(),
        Opcode::Statx => size_of::<a::StatxIn>(),
        Opcode::Mknod => size_of::<a::MknodIn>(),
        Opcode::Mkdir => size_of::<a::MkdirIn>(),
        Opcode::Rename => size_of::<a::RenameIn>(),
        Opcode::Rename2 => size_of::<a::Rename2In>(),
        Opcode::Link => size_of::<a::LinkIn>(),
        Opcode::Open | Opcode::Opendir => size_of::<a::OpenIn>(),
        Opcode::Create | Opcode::Tmpfile => size_of::<a::CreateIn>(),
        Opcode::Read | Opcode::Readdir | Opcode::Readdirplus => size_of::<a::ReadIn>(),
        Opcode::Write => size_of::<a::WriteIn>(),
        Opcode::Release | Opcode::Releasedir => size_of::<a::ReleaseIn>(),
        Opcode::Flush => size_of::<a::FlushIn>(),
        Opcode::Fsync | Opcode::Fsyncdir => size_of::<a::FsyncIn>(),
        // SETXATTR_EXT doubled the structure.
        Opcode::Setxattr if setxattr_ext => size_of::<a::SetxattrIn>(),
        Opcode::Setxattr => size_of::<a::SetxattrIn>() / 2,
        Opcode::Getxattr | Opcode::Listxattr => size_of::<a::GetxattrIn>(),
        Opcode::Getlk | Opcode::Setlk | Opcode::Setlkw => size_of::<a::LkIn>(),
        Opcode::Access => size_of::<a::AccessIn>(),
        Opcode::Bmap => size_of::<a::BmapIn>(),
        Opcode::Ioctl => size_of::<a::IoctlIn>(),
        Opcode::Poll => size_of::<a::PollIn>(),
        Opcode::Fallocate => size_of::<a::FallocateIn>(),
        Opcode::Lseek => size_of::<a::LseekIn>(),
        Opcode::CopyFileRange | Opcode::CopyFileRange64 => size_of::<a::CopyFileRangeIn>(),
        Opcode::Syncfs => size_of::<a::SyncfsIn>(),
        Opcode::Init
        | Opcode::Lookup
        | Opcode::Readlink
        | Opcode::Symlink
        | Opcode::Unlink
        | Opcode::Rmdir
        | Opcode::Statfs
        | Opcode::Removexattr
        | Opcode::Destroy
        | Opcode::NotifyReply
        | Opcode::Setupmapping
        | Opcode::Removemapping => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn request<'a>(extensions: &'a [u8], flag: &'a AtomicBool) -> Request<'a> {
        Request::new(&InHeader::default(), Opcode::Create, true, flag, extensions)
    }

    #[test]
    fn extensions_are_parsed() {
        let flag = AtomicBool::new(false);
        let mut bytes = Vec::new();
        bytes.extend_from_slice(ExtHeader { size: 8 + 8 + 9 + 3, r#type: 1 }.as_bytes());
        bytes.extend_from_slice(crate::abi::Secctx { size: 3, padding: 0 }.as_bytes());
        bytes.extend_from_slice(b"security\0abc");
        bytes.resize(32, 0);
        bytes.extend_from_slice(ExtHeader { size: 16, r#type: EXT_GROUPS }.as_bytes());
        bytes.extend_from_slice([1_u32, 4711].as_bytes());
        let rq = request(&bytes, &flag);
        assert_eq!(rq.supplementary_group(), Some(4711));
        assert_eq!(rq.security_context(), Some((&b"security"[..], &b"abc"[..])));
    }

    #[test]
    fn malformed_extensions_are_ignored() {
        let flag = AtomicBool::new(false);
        for size in [0_u32, 1, 7, 8, 9, u32::MAX] {
            let mut bytes = ExtHeader { size, r#type: 99 }.as_bytes().to_vec();
            bytes.resize(40, 0);
            assert_eq!(request(&bytes, &flag).supplementary_group(), None);
            assert_eq!(request(&bytes, &flag).security_context(), None);
        }
    }

    #[test]
    fn names_end_with_nul() {
        assert_eq!(split_name(b"a\0b\0"), Ok((&b"a"[..], &b"b\0"[..])));
        assert_eq!(split_name(b"a\0"), Ok((&b"a"[..], &b""[..])));
        assert_eq!(split_name(b"a"), Err(Errno::IO));
    }
}
