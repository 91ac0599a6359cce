//! A file system that accepts every request and uses all of its arguments.

use fuse::abi::*;
use fuse::{Errno, Filesystem, InitConfig, MAY_BLOCK, Reply, Request, Session};
use std::sync::Arc;

/// See the module. With `always_blocks`, every request needs a thread that may block.
#[derive(Default)]
pub struct Dummy {
    pub always_blocks: bool,
}

impl Dummy {
    fn check_may_block(&self, rq: &Request<'_>) -> Reply<()> {
        let _parsed = (rq.supplementary_group(), rq.security_context());
        if self.always_blocks && !rq.may_block { Err(MAY_BLOCK) } else { Ok(()) }
    }

    fn entry(&self, rq: &Request<'_>, names: &[&[u8]]) -> Reply<EntryOut> {
        assert!(names.iter().all(|name| !name.contains(&0)), "a NUL in a name");
        self.check_may_block(rq)?;
        Ok(EntryOut { nodeid: 7, ..EntryOut::default() })
    }

    fn done(&self, rq: &Request<'_>, names: &[&[u8]]) -> Reply<()> {
        self.entry(rq, names).map(drop)
    }

    fn filled(&self, rq: &Request<'_>, out: &mut [u8]) -> Reply<usize> {
        out.fill(0xee);
        self.check_may_block(rq)?;
        Ok(out.len())
    }
}

impl Filesystem for Dummy {
    fn init(&self, _: &Arc<Session>, _: &InitIn) -> InitConfig {
        InitConfig::default()
    }
    fn destroy(&self) {}
    fn lookup(&self, rq: &Request<'_>, _: u64, name: &[u8]) -> Reply<Option<EntryOut>> {
        self.entry(rq, &[name]).map(Some)
    }
    fn forget(&self, nodes: &[ForgetOne]) {
        assert!(!nodes.is_empty());
    }
    fn getattr(&self, rq: &Request<'_>, _: u64, _: &GetattrIn) -> Reply<AttrOut> {
        self.check_may_block(rq).map(|()| AttrOut::default())
    }
    fn setattr(&self, rq: &Request<'_>, _: u64, _: &SetattrIn) -> Reply<AttrOut> {
        self.check_may_block(rq).map(|()| AttrOut::default())
    }
    fn statx(&self, rq: &Request<'_>, _: u64, _: &StatxIn) -> Reply<StatxOut> {
        self.check_may_block(rq).map(|()| StatxOut::default())
    }
    fn readlink(&self, rq: &Request<'_>, _: u64, out: &mut [u8]) -> Reply<usize> {
        self.filled(rq, out)
    }
    fn symlink(&self, rq: &Request<'_>, _: u64, name: &[u8], target: &[u8]) -> Reply<EntryOut> {
        self.entry(rq, &[name, target])
    }
    fn mknod(&self, rq: &Request<'_>, _: u64, _: &MknodIn, name: &[u8]) -> Reply<EntryOut> {
        self.entry(rq, &[name])
    }
    fn mkdir(&self, rq: &Request<'_>, _: u64, _: u32, _: u32, name: &[u8]) -> Reply<EntryOut> {
        self.entry(rq, &[name])
    }
    fn unlink(&self, rq: &Request<'_>, _: u64, name: &[u8]) -> Reply<()> {
        self.done(rq, &[name])
    }
    fn rmdir(&self, rq: &Request<'_>, _: u64, name: &[u8]) -> Reply<()> {
        self.done(rq, &[name])
    }
    fn rename(&self, rq: &Request<'_>, _: u64, old: &[u8], _: u64, new: &[u8], _: RenameFlags2) -> Reply<()> {
        self.done(rq, &[old, new])
    }
    fn link(&self, rq: &Request<'_>, _: u64, _: u64, name: &[u8]) -> Reply<EntryOut> {
        self.entry(rq, &[name])
    }
    fn open(&self, rq: &Request<'_>, _: u64, _: &OpenIn) -> Reply<OpenOut> {
        self.check_may_block(rq).map(|()| OpenOut::default())
    }
    fn create(&self, rq: &Request<'_>, _: u64, _: &CreateIn, name: &[u8]) -> Reply<(EntryOut, OpenOut)> {
        self.entry(rq, &[name]).map(|entry| (entry, OpenOut::default()))
    }
    fn tmpfile(&self, rq: &Request<'_>, _: u64, _: &CreateIn) -> Reply<(EntryOut, OpenOut)> {
        self.entry(rq, &[]).map(|entry| (entry, OpenOut::default()))
    }
    fn read(&self, rq: &Request<'_>, _: u64, _: &ReadIn, out: &mut [u8]) -> Reply<usize> {
        self.filled(rq, out)
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

    fn write(&self, rq: &Request<'_>, _: u64, arg: &WriteIn, data: &[u8]) -> Reply<u32> {
        assert_eq!(data.len(), arg.size as usize);
        self.check_may_block(rq).map(|()| arg.size)
    }
    fn flush(&self, rq: &Request<'_>, _: u64, _: u64, _: u64) -> Reply<()> {
        self.check_may_block(rq)
    }
    fn release(&self, rq: &Request<'_>, _: u64, _: &ReleaseIn) -> Reply<()> {
        self.check_may_block(rq)
    }
    fn fsync(&self, rq: &Request<'_>, _: u64, _: u64, _: bool) -> Reply<()> {
        self.check_may_block(rq)
    }
    fn opendir(&self, rq: &Request<'_>, _: u64, _: u32) -> Reply<OpenOut> {
        self.check_may_block(rq).map(|()| OpenOut::default())
    }
    fn readdir(&self, rq: &Request<'_>, _: u64, _: &ReadIn, out: &mut [u8]) -> Reply<usize> {
        self.filled(rq, out)
    }
    fn readdirplus(&self, rq: &Request<'_>, _: u64, _: &ReadIn, out: &mut [u8]) -> Reply<usize> {
        self.filled(rq, out)
    }
    fn releasedir(&self, rq: &Request<'_>, _: u64, _: &ReleaseIn) -> Reply<()> {
        self.check_may_block(rq)
    }
    fn fsyncdir(&self, rq: &Request<'_>, _: u64, _: u64, _: bool) -> Reply<()> {
        self.check_may_block(rq)
    }
    fn statfs(&self, rq: &Request<'_>, _: u64) -> Reply<Kstatfs> {
        self.check_may_block(rq).map(|()| Kstatfs::default())
    }
    fn setxattr(&self, rq: &Request<'_>, _: u64, arg: &SetxattrIn, name: &[u8], value: &[u8]) -> Reply<()> {
        assert_eq!(value.len(), arg.size as usize);
        self.done(rq, &[name])
    }
    fn getxattr(&self, rq: &Request<'_>, _: u64, name: &[u8], out: &mut [u8]) -> Reply<usize> {
        assert!(name.len() < 256 && !name.contains(&0));
        self.filled(rq, out)
    }
    fn listxattr(&self, rq: &Request<'_>, _: u64, out: &mut [u8]) -> Reply<usize> {
        self.filled(rq, out)
    }
    fn removexattr(&self, rq: &Request<'_>, _: u64, name: &[u8]) -> Reply<()> {
        self.done(rq, &[name])
    }
    fn access(&self, rq: &Request<'_>, _: u64, _: u32) -> Reply<()> {
        self.check_may_block(rq)
    }
    fn getlk(&self, rq: &Request<'_>, _: u64, arg: &LkIn) -> Reply<LkOut> {
        self.check_may_block(rq).map(|()| LkOut { lk: arg.lk })
    }
    fn setlk(&self, rq: &Request<'_>, _: u64, _: &LkIn, _: bool) -> Reply<()> {
        self.check_may_block(rq)
    }
    fn bmap(&self, rq: &Request<'_>, _: u64, block: u64, _: u32) -> Reply<u64> {
        self.check_may_block(rq).map(|()| block)
    }
    fn ioctl(&self, rq: &Request<'_>, _: u64, arg: &IoctlIn, input: &[u8], out: &mut [u8]) -> Reply<(IoctlOut, usize)> {
        assert_eq!(input.len(), arg.in_size as usize);
        self.filled(rq, out).map(|len| (IoctlOut::default(), len))
    }
    fn poll(&self, rq: &Request<'_>, _: u64, _: u64, _: u64, _: u32, events: u32) -> Reply<u32> {
        self.check_may_block(rq).map(|()| events)
    }
    fn fallocate(&self, rq: &Request<'_>, _: u64, _: &FallocateIn) -> Reply<()> {
        self.check_may_block(rq)
    }
    fn lseek(&self, rq: &Request<'_>, _: u64, _: &LseekIn) -> Reply<u64> {
        self.check_may_block(rq).and(Err(Errno::NXIO))
    }
    fn copy_file_range(&self, rq: &Request<'_>, _: u64, arg: &CopyFileRangeIn) -> Reply<u64> {
        self.check_may_block(rq).map(|()| arg.len)
    }
    fn syncfs(&self, rq: &Request<'_>, _: u64) -> Reply<()> {
        self.check_may_block(rq)
    }
    fn notify_reply(&self, _: &Request<'_>, _: u64, _: u64, _: u64, data: &[u8]) {
        assert!(data.len() <= u32::MAX as usize);
    }
}
