//! Conversion of operations from the C ABI to the form that Rust hooks see.

use super::remote::Remote;
use crate::abi;
use crate::convert::{set_in, slice};
use vnode::{Errno, Name, OpenFlags, RenameFlags, Result, SetAttr, XattrFlags};
use wrapfs::hooks::{Object, Op, OpKind};

/// Calls `see` with an operation of the server.
///
/// # Safety
/// `op` is an operation from the server.
pub(super) unsafe fn with_op<R>(op: &abi::Op, see: impl FnOnce(&Op<'_>) -> R) -> Result<R> {
    // SAFETY: guaranteed by the caller.
    let (one, other, name, new_name, data, set) = unsafe {
        let other = if op.other.is_null() { None } else { Some(Remote::new(op.other)?) };
        (Remote::new(op.object)?, other, slice(op.name), slice(op.new_name), slice(op.data), op.set.as_ref())
    };
    let set: SetAttr = set.map_or(Some(SetAttr::default()), set_in).ok_or(Errno::IO)?;
    let object = one.lent();
    let other = other.as_ref().map(Remote::lent);
    let index = usize::try_from(op.kind).unwrap_or(usize::MAX);
    let kind = *abi::OPERATIONS.get(index).ok_or(Errno::IO)?;
    let args = Args { op, object: &object, other: other.as_ref(), name, new_name, data, set: &set };
    Ok(see(&args.op(kind)?))
}

/// The arguments of an operation.
struct Args<'a> {
    op: &'a abi::Op,
    object: &'a Object<'a>,
    other: Option<&'a Object<'a>>,
    name: &'a [u8],
    new_name: &'a [u8],
    data: &'a [u8],
    set: &'a SetAttr,
}

impl<'a> Args<'a> {
    fn op(&self, kind: OpKind) -> Result<Op<'a>> {
        let (dir, file, bits) = (self.object, self.object, self.op.flags);
        let (one, two) = (bits & abi::FLAG_ONE != 0, bits & abi::FLAG_TWO != 0);
        let name = || Name::new(self.name);
        let other = || self.other.ok_or(Errno::IO);
        let (mode, flags, offset, len, data) = (self.op.mode, OpenFlags(bits), self.op.offset, self.op.len, self.data);
        Ok(match kind {
            OpKind::Lookup => Op::Lookup { dir, name: name()? },
            OpKind::Getattr => Op::Getattr { file },
            OpKind::Setattr => Op::Setattr { file, set: self.set },
            OpKind::Readlink => Op::Readlink { file },
            OpKind::Readdir => Op::Readdir { dir },
            OpKind::Open => Op::Open { file, flags },
            OpKind::Create => Op::Create { dir, name: name()?, mode, flags },
            OpKind::Tmpfile => Op::Tmpfile { dir, mode, flags },
            OpKind::Mknod => Op::Mknod { dir, name: name()?, mode, rdev: self.op.rdev },
            OpKind::Mkdir => Op::Mkdir { dir, name: name()?, mode },
            OpKind::Symlink => Op::Symlink { dir, name: name()?, target: data },
            OpKind::Link => Op::Link { dir, name: name()?, target: other()? },
            OpKind::Unlink => Op::Unlink { dir, name: name()? },
            OpKind::Rmdir => Op::Rmdir { dir, name: name()? },
            OpKind::Rename => {
                let flags = RenameFlags { no_replace: one, exchange: two, whiteout: bits & abi::FLAG_THREE != 0 };
                Op::Rename { dir, name: name()?, new_dir: other()?, new_name: Name::new(self.new_name)?, flags }
            }
            OpKind::Getxattr => Op::Getxattr { file, name: self.name },
            OpKind::Setxattr => {
                let flags = XattrFlags { create: one, replace: two };
                Op::Setxattr { file, name: self.name, value: data, flags }
            }
            OpKind::Listxattr => Op::Listxattr { file },
            OpKind::Removexattr => Op::Removexattr { file, name: self.name },
            OpKind::Refused => Op::Refused { file, mask: mode },
            OpKind::Statfs => Op::Statfs { file },
            OpKind::Fsync => Op::Fsync { file, data_only: one },
            OpKind::Ioctl => Op::Ioctl { file, cmd: self.op.cmd, input: data },
            OpKind::Read => Op::Read { file, offset, len: usize::try_from(len).unwrap_or(usize::MAX) },
            OpKind::Write => Op::Write { file, offset, data },
            OpKind::Flush => Op::Flush { file },
            OpKind::Fallocate => Op::Fallocate { file, mode, offset, len },
            OpKind::Seek => Op::Seek { file, offset },
            OpKind::Copy => Op::Copy { file, offset, len },
            // These are never passed to hooks.
            OpKind::Reflink | OpKind::Sync | OpKind::Names | OpKind::Vnode | OpKind::Control => return Err(Errno::IO),
        })
    }
}
