//! The smallest FUSE server on Strata's transports: a fixed tree whose attributes it returns from
//! memory, without a table, a lock or a system call. The cost of a request is that of the kernel
//! and the transport.
//!
//! The tree is that of the forced stat: a directory per operation, in it a directory per worker, in
//! it one file.

use std::ffi::OsString;
use std::io::Write;
use std::sync::Arc;

use anyhow::{Context, Result};
use fuse::abi::{
    Attr, AttrOut, CopyFileRangeIn, CreateIn, EntryOut, FallocateIn, ForgetOne, GetattrIn, InitIn, IoctlIn, IoctlOut,
    Kstatfs, LkIn, LkOut, LseekIn, MknodIn, OpenIn, OpenOut, ROOT_ID, ReadIn, ReleaseIn, RenameFlags2, SetattrIn,
    SetxattrIn, StatxIn, StatxOut, WriteIn,
};
use fuse::{Errno, Filesystem, InitConfig, MountOptions, Reply, Request, Session, Transport};

/// Hidden first argument that runs this program as the server; its mount point and transport
/// follow.
pub(crate) const SUBCOMMAND: &str = "nullping";
/// Line that the server prints once it is mounted.
pub(crate) const READY: &str = "mounted";

/// Cache lifetime of names in the kernel, in seconds.
const DAY: u64 = 86_400;
/// Node of the operation's directory.
const OPERATION: u64 = 2;
/// Workers' directories have even node numbers from here on; the file in each has the next number.
const FIRST_WORKER: u64 = 4;

/// Mounts the file system at `point` and serves it until it is unmounted.
pub(crate) fn main(point: Option<OsString>, transport: Option<OsString>) -> Result<()> {
    let point = point.context("nullping is started by strata-bench itself")?;
    let mut options = MountOptions::new(&point);
    options.source = b"nullping".to_vec();
    options.subtype = "nullping".to_owned();
    options.transport =
        if transport.is_some_and(|name| name == "device") { Transport::Device } else { Transport::Auto };
    let session = Session::mount(&options, Arc::new(Nullping)).context("mount nullping")?;
    println!("{READY}");
    std::io::stdout().flush().context("say that it is mounted")?;
    session.wait();
    Ok(())
}

#[derive(Debug)]
struct Nullping;

/// Returns the node of a name in a directory, or `None` if the name does not exist.
fn child(parent: u64, name: &[u8]) -> Option<u64> {
    match parent {
        ROOT_ID => Some(OPERATION),
        OPERATION => {
            let number: u64 = std::str::from_utf8(name.strip_prefix(b"w")?).ok()?.parse().ok()?;
            number.checked_mul(2)?.checked_add(FIRST_WORKER)
        }
        directory if directory % 2 == 0 && name.starts_with(b"f") => Some(directory + 1),
        _ => None,
    }
}

fn attr(node: u64) -> Attr {
    let is_file = node > FIRST_WORKER && node % 2 == 1;
    Attr { ino: node, mode: if is_file { 0o100_644 } else { 0o040_755 }, nlink: 1, blksize: 4096, ..Attr::default() }
}

fn refused<T>() -> Reply<T> {
    Err(Errno::NOSYS)
}

impl Filesystem for Nullping {
    fn init(&self, _: &Arc<Session>, _: &InitIn) -> InitConfig {
        InitConfig::default()
    }
    fn destroy(&self) {}
    fn lookup(&self, _: &Request<'_>, parent: u64, name: &[u8]) -> Reply<Option<EntryOut>> {
        Ok(child(parent, name).map(|node| EntryOut {
            nodeid: node,
            entry_valid: DAY,
            attr_valid: DAY,
            attr: attr(node),
            ..EntryOut::default()
        }))
    }
    fn forget(&self, _: &[ForgetOne]) {}
    fn getattr(&self, _: &Request<'_>, node: u64, _: &GetattrIn) -> Reply<AttrOut> {
        Ok(AttrOut { attr_valid: DAY, attr: attr(node), ..AttrOut::default() })
    }
    fn setattr(&self, _: &Request<'_>, _: u64, _: &SetattrIn) -> Reply<AttrOut> {
        refused()
    }
    fn statx(&self, _: &Request<'_>, _: u64, _: &StatxIn) -> Reply<StatxOut> {
        refused()
    }
    fn readlink(&self, _: &Request<'_>, _: u64, _: &mut [u8]) -> Reply<usize> {
        refused()
    }
    fn symlink(&self, _: &Request<'_>, _: u64, _: &[u8], _: &[u8]) -> Reply<EntryOut> {
        refused()
    }
    fn mknod(&self, _: &Request<'_>, _: u64, _: &MknodIn, _: &[u8]) -> Reply<EntryOut> {
        refused()
    }
    fn mkdir(&self, _: &Request<'_>, _: u64, _: u32, _: u32, _: &[u8]) -> Reply<EntryOut> {
        refused()
    }
    fn unlink(&self, _: &Request<'_>, _: u64, _: &[u8]) -> Reply<()> {
        refused()
    }
    fn rmdir(&self, _: &Request<'_>, _: u64, _: &[u8]) -> Reply<()> {
        refused()
    }
    fn rename(&self, _: &Request<'_>, _: u64, _: &[u8], _: u64, _: &[u8], _: RenameFlags2) -> Reply<()> {
        refused()
    }
    fn link(&self, _: &Request<'_>, _: u64, _: u64, _: &[u8]) -> Reply<EntryOut> {
        refused()
    }
    fn open(&self, _: &Request<'_>, _: u64, _: &OpenIn) -> Reply<OpenOut> {
        refused()
    }
    fn create(&self, _: &Request<'_>, _: u64, _: &CreateIn, _: &[u8]) -> Reply<(EntryOut, OpenOut)> {
        refused()
    }
    fn tmpfile(&self, _: &Request<'_>, _: u64, _: &CreateIn) -> Reply<(EntryOut, OpenOut)> {
        refused()
    }
    fn read(&self, _: &Request<'_>, _: u64, _: &ReadIn, _: &mut [u8]) -> Reply<usize> {
        refused()
    }
    fn read_host(
        &self,
        _: &Request<'_>,
        _: u64,
        _: &ReadIn,
        _: &mut dyn FnMut(std::os::fd::BorrowedFd<'_>) -> Option<usize>,
    ) -> Reply<Option<usize>> {
        Ok(None)
    }

    fn write(&self, _: &Request<'_>, _: u64, _: &WriteIn, _: &[u8]) -> Reply<u32> {
        refused()
    }
    fn flush(&self, _: &Request<'_>, _: u64, _: u64, _: u64) -> Reply<()> {
        refused()
    }
    fn release(&self, _: &Request<'_>, _: u64, _: &ReleaseIn) -> Reply<()> {
        Ok(())
    }
    fn fsync(&self, _: &Request<'_>, _: u64, _: u64, _: bool) -> Reply<()> {
        refused()
    }
    fn opendir(&self, _: &Request<'_>, _: u64, _: u32) -> Reply<OpenOut> {
        Ok(OpenOut::default())
    }
    fn readdir(&self, _: &Request<'_>, _: u64, _: &ReadIn, _: &mut [u8]) -> Reply<usize> {
        Ok(0)
    }
    fn readdirplus(&self, _: &Request<'_>, _: u64, _: &ReadIn, _: &mut [u8]) -> Reply<usize> {
        Ok(0)
    }
    fn releasedir(&self, _: &Request<'_>, _: u64, _: &ReleaseIn) -> Reply<()> {
        Ok(())
    }
    fn fsyncdir(&self, _: &Request<'_>, _: u64, _: u64, _: bool) -> Reply<()> {
        refused()
    }
    fn statfs(&self, _: &Request<'_>, _: u64) -> Reply<Kstatfs> {
        Ok(Kstatfs { bsize: 4096, frsize: 4096, namelen: 255, ..Kstatfs::default() })
    }
    fn setxattr(&self, _: &Request<'_>, _: u64, _: &SetxattrIn, _: &[u8], _: &[u8]) -> Reply<()> {
        refused()
    }
    fn getxattr(&self, _: &Request<'_>, _: u64, _: &[u8], _: &mut [u8]) -> Reply<usize> {
        refused()
    }
    fn listxattr(&self, _: &Request<'_>, _: u64, _: &mut [u8]) -> Reply<usize> {
        refused()
    }
    fn removexattr(&self, _: &Request<'_>, _: u64, _: &[u8]) -> Reply<()> {
        refused()
    }
    fn access(&self, _: &Request<'_>, _: u64, _: u32) -> Reply<()> {
        refused()
    }
    fn getlk(&self, _: &Request<'_>, _: u64, _: &LkIn) -> Reply<LkOut> {
        refused()
    }
    fn setlk(&self, _: &Request<'_>, _: u64, _: &LkIn, _: bool) -> Reply<()> {
        refused()
    }
    fn bmap(&self, _: &Request<'_>, _: u64, _: u64, _: u32) -> Reply<u64> {
        refused()
    }
    fn ioctl(&self, _: &Request<'_>, _: u64, _: &IoctlIn, _: &[u8], _: &mut [u8]) -> Reply<(IoctlOut, usize)> {
        refused()
    }
    fn poll(&self, _: &Request<'_>, _: u64, _: u64, _: u64, _: u32, _: u32) -> Reply<u32> {
        refused()
    }
    fn fallocate(&self, _: &Request<'_>, _: u64, _: &FallocateIn) -> Reply<()> {
        refused()
    }
    fn lseek(&self, _: &Request<'_>, _: u64, _: &LseekIn) -> Reply<u64> {
        refused()
    }
    fn copy_file_range(&self, _: &Request<'_>, _: u64, _: &CopyFileRangeIn) -> Reply<u64> {
        refused()
    }
    fn syncfs(&self, _: &Request<'_>, _: u64) -> Reply<()> {
        refused()
    }
    fn notify_reply(&self, _: &Request<'_>, _: u64, _: u64, _: u64, _: &[u8]) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_that_of_the_forced_stat() {
        let operation = child(ROOT_ID, b"getattr-forced").unwrap();
        let workers = [b"w0", b"w1"].map(|name| child(operation, name).unwrap());
        assert_ne!(workers[0], workers[1]);
        for worker in workers {
            assert_eq!(attr(worker).mode, 0o040_755);
            let file = child(worker, b"f000000").unwrap();
            assert_eq!(attr(file).mode, 0o100_644);
            assert_eq!((child(worker, b"d"), child(file, b"f")), (None, None));
        }
        assert_eq!((child(operation, b"w-1"), child(operation, b"w18446744073709551615")), (None, None));
    }
}
