//! A small in-memory file system with files that misbehave on purpose.

use fuse::abi::*;
use fuse::{BackingId, DirBuf, Errno, Filesystem, InitConfig, MAY_BLOCK, Reply, Request, Session, flags};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

/// Name prefixes that select a behaviour:
pub const HANG: &[u8] = b"hang"; // reading waits until interrupted or `release` is called
pub const SLOW: &[u8] = b"slow"; // looking it up waits in the same way
pub const LATER: &[u8] = b"later"; // every operation wants a thread that may wait
pub const PANIC: &[u8] = b"panic"; // reading panics
pub const LIE: &[u8] = b"lie"; // reading answers more than there is room for
pub const BACKED: &[u8] = b"backed"; // opens with the backing file

#[derive(Default)]
struct Node {
    mode: u32,
    nlink: u32,
    data: Vec<u8>,
    children: BTreeMap<Vec<u8>, u64>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    name: Vec<u8>,
}

pub struct Memory {
    nodes: Mutex<HashMap<u64, Node>>,
    next: AtomicU64,
    pub init_config: InitConfig,
    pub valid: Duration,
    pub offer: OnceLock<InitIn>,
    session: OnceLock<std::sync::Weak<Session>>,
    backing_file: Option<OwnedFd>,
    backing: Mutex<Option<Arc<BackingId>>>,
    /// Readers blocked on hanging files.
    pub hanging: AtomicUsize,
    released: Mutex<bool>,
    release: Condvar,
    pub destroyed: AtomicBool,
    pub forgotten: AtomicU64,
    pub retrieved: Mutex<Vec<(u64, u64, Vec<u8>)>>,
    /// Number of calls on `later` files that returned MAY_BLOCK.
    pub refused: AtomicUsize,
    /// INIT hangs like a `hang` file.
    pub hang_in_init: bool,
    /// GETATTR of the root directory hangs like a `hang` file.
    pub hang_in_root: bool,
}

impl Memory {
    pub fn new() -> Self {
        let wished = flags::PASSTHROUGH
            | flags::DO_READDIRPLUS
            | flags::READDIRPLUS_AUTO
            | flags::ATOMIC_O_TRUNC
            | flags::HAS_RESEND
            | flags::HAS_EXPIRE_ONLY
            | flags::NO_OPENDIR_SUPPORT;
        let mut init_config = InitConfig::default();
        init_config.flags |= wished;
        let root = Node { mode: 0o40_777, nlink: 2, ..Node::default() };
        Self {
            nodes: Mutex::new(HashMap::from([(ROOT_ID, root)])),
            next: AtomicU64::new(2),
            init_config,
            valid: Duration::ZERO,
            offer: OnceLock::new(),
            session: OnceLock::new(),
            backing_file: None,
            backing: Mutex::default(),
            hanging: AtomicUsize::new(0),
            released: Mutex::new(false),
            release: Condvar::new(),
            destroyed: AtomicBool::new(false),
            forgotten: AtomicU64::new(0),
            retrieved: Mutex::default(),
            refused: AtomicUsize::new(0),
            hang_in_init: false,
            hang_in_root: false,
        }
    }

    pub fn with_backing(mut self, file: OwnedFd) -> Self {
        self.backing_file = Some(file);
        self
    }

    /// Creates a file before or during the mount.
    pub fn add_file(&self, name: &[u8], data: &[u8]) -> u64 {
        let id = self.add(ROOT_ID, name, 0o100_666).unwrap();
        self.nodes.lock().unwrap().get_mut(&id).unwrap().data = data.to_vec();
        id
    }

    /// Releases the readers of hanging files.
    pub fn release(&self) {
        *self.released.lock().unwrap() = true;
        self.release.notify_all();
    }

    fn add(&self, parent: u64, name: &[u8], mode: u32) -> Reply<u64> {
        let mut nodes = self.nodes.lock().unwrap();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let dir = nodes.get_mut(&parent).ok_or(Errno::NOENT)?;
        if dir.children.contains_key(name) {
            return Err(Errno::EXIST);
        }
        dir.children.insert(name.to_vec(), id);
        nodes.insert(id, Node { mode, nlink: 1, name: name.to_vec(), ..Node::default() });
        Ok(id)
    }

    fn with<T>(&self, node: u64, f: impl FnOnce(&mut Node) -> Reply<T>) -> Reply<T> {
        f(self.nodes.lock().unwrap().get_mut(&node).ok_or(Errno::NOENT)?)
    }

    fn attr(&self, id: u64) -> Reply<Attr> {
        self.with(id, |node| {
            Ok(Attr {
                ino: id,
                size: node.data.len() as u64,
                mode: node.mode,
                nlink: node.nlink,
                blksize: 4096,
                ..Attr::default()
            })
        })
    }

    fn entry(&self, id: u64) -> Reply<EntryOut> {
        Ok(EntryOut {
            nodeid: id,
            attr_valid: self.valid.as_secs(),
            entry_valid: self.valid.as_secs(),
            attr: self.attr(id)?,
            ..EntryOut::default()
        })
    }

    fn attr_out(&self, id: u64) -> Reply<AttrOut> {
        Ok(AttrOut { attr_valid: self.valid.as_secs(), attr: self.attr(id)?, ..AttrOut::default() })
    }

    /// Selects the behaviour by the node's name.
    fn behave(&self, rq: &Request<'_>, node: u64) -> Reply<()> {
        let name = self.with(node, |n| Ok(n.name.clone()))?;
        if name.starts_with(LATER) && !rq.may_block {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(MAY_BLOCK);
        }
        Ok(())
    }

    fn hang(&self, rq: &Request<'_>) -> Reply<()> {
        if !rq.may_block {
            return Err(MAY_BLOCK);
        }
        self.hanging.fetch_add(1, Ordering::SeqCst);
        let mut released = self.released.lock().unwrap();
        let result = loop {
            if *released {
                break Ok(());
            }
            if rq.cancelled().load(Ordering::Relaxed) {
                break Err(Errno::INTR);
            }
            released = self.release.wait_timeout(released, Duration::from_millis(5)).unwrap().0;
        };
        self.hanging.fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn list(&self, node: u64) -> Reply<Vec<(Vec<u8>, u64)>> {
        self.with(node, |dir| Ok(dir.children.iter().map(|(name, &id)| (name.clone(), id)).collect()))
    }

    fn kind(&self, id: u64) -> u32 {
        self.with(id, |n| Ok(n.mode >> 12)).unwrap_or(0)
    }
}

impl Filesystem for Memory {
    fn init(&self, session: &Arc<Session>, offer: &InitIn) -> InitConfig {
        let _once = self.offer.set(*offer);
        let _once = self.session.set(Arc::downgrade(session));
        if self.hang_in_init {
            self.hanging.fetch_add(1, Ordering::SeqCst);
            let mut released = self.released.lock().unwrap();
            while !*released {
                released = self.release.wait(released).unwrap();
            }
            self.hanging.fetch_sub(1, Ordering::SeqCst);
        }
        self.init_config
    }

    fn destroy(&self) {
        self.destroyed.store(true, Ordering::SeqCst);
    }

    fn lookup(&self, rq: &Request<'_>, parent: u64, name: &[u8]) -> Reply<Option<EntryOut>> {
        if name.starts_with(SLOW) {
            self.hang(rq)?;
        }
        let found = self.with(parent, |dir| Ok(dir.children.get(name).copied()))?;
        found.map(|id| self.entry(id)).transpose()
    }

    fn forget(&self, nodes: &[ForgetOne]) {
        self.forgotten.fetch_add(nodes.len() as u64, Ordering::SeqCst);
    }

    fn getattr(&self, rq: &Request<'_>, node: u64, _: &GetattrIn) -> Reply<AttrOut> {
        self.behave(rq, node)?;
        if node == ROOT_ID && self.hang_in_root {
            self.hang(rq)?;
        }
        self.attr_out(node)
    }

    fn setattr(&self, rq: &Request<'_>, node: u64, arg: &SetattrIn) -> Reply<AttrOut> {
        self.behave(rq, node)?;
        self.with(node, |n| {
            if arg.has(FATTR_MODE) {
                n.mode = n.mode & !0o7777 | arg.mode & 0o7777;
            }
            if arg.has(FATTR_SIZE) {
                n.data.resize(arg.size as usize, 0);
            }
            Ok(())
        })?;
        self.attr_out(node)
    }

    fn statx(&self, _: &Request<'_>, node: u64, _: &StatxIn) -> Reply<StatxOut> {
        let attr = self.attr(node)?;
        let btime = SxTime { tv_sec: 1_000_000, ..SxTime::default() };
        let stat = Statx {
            mask: 0xfff,
            mode: attr.mode as u16,
            ino: node,
            nlink: attr.nlink,
            size: attr.size,
            btime,
            ..Statx::default()
        };
        Ok(StatxOut { stat, ..StatxOut::default() })
    }

    fn readlink(&self, _: &Request<'_>, node: u64, out: &mut [u8]) -> Reply<usize> {
        self.with(node, |n| {
            out[..n.data.len()].copy_from_slice(&n.data);
            Ok(n.data.len())
        })
    }

    fn symlink(&self, _: &Request<'_>, parent: u64, name: &[u8], target: &[u8]) -> Reply<EntryOut> {
        let id = self.add(parent, name, 0o120_777)?;
        self.with(id, |n| {
            n.data = target.to_vec();
            Ok(())
        })?;
        self.entry(id)
    }

    fn mknod(&self, _: &Request<'_>, parent: u64, arg: &MknodIn, name: &[u8]) -> Reply<EntryOut> {
        self.entry(self.add(parent, name, arg.mode)?)
    }

    fn mkdir(&self, _: &Request<'_>, parent: u64, mode: u32, _umask: u32, name: &[u8]) -> Reply<EntryOut> {
        self.entry(self.add(parent, name, 0o40_000 | mode)?)
    }

    fn unlink(&self, _: &Request<'_>, parent: u64, name: &[u8]) -> Reply<()> {
        self.with(parent, |dir| dir.children.remove(name).map(drop).ok_or(Errno::NOENT))
    }

    fn rmdir(&self, rq: &Request<'_>, parent: u64, name: &[u8]) -> Reply<()> {
        self.unlink(rq, parent, name)
    }

    fn rename(
        &self,
        _: &Request<'_>,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: RenameFlags2,
    ) -> Reply<()> {
        if flags.contains(RenameFlags2::NOREPLACE)
            && self.with(new_parent, |d| Ok(d.children.contains_key(new_name)))?
        {
            return Err(Errno::EXIST);
        }
        let id = self.with(parent, |dir| dir.children.remove(name).ok_or(Errno::NOENT))?;
        self.with(new_parent, |dir| {
            dir.children.insert(new_name.to_vec(), id);
            Ok(())
        })
    }

    fn link(&self, _: &Request<'_>, node: u64, new_parent: u64, new_name: &[u8]) -> Reply<EntryOut> {
        self.with(new_parent, |dir| {
            dir.children.insert(new_name.to_vec(), node);
            Ok(())
        })?;
        self.entry(node)
    }

    fn open(&self, _: &Request<'_>, node: u64, arg: &OpenIn) -> Reply<OpenOut> {
        let name = self.with(node, |n| {
            if arg.flags & 0o1000 != 0 {
                n.data = Vec::new();
            }
            Ok(n.name.clone())
        })?;
        if name.starts_with(HANG) {
            // Keeps reads in the caller's context, so that they can be interrupted.
            return Ok(OpenOut { open_flags: FOPEN_DIRECT_IO, ..OpenOut::default() });
        }
        if !name.starts_with(BACKED) {
            return Ok(OpenOut { fh: node, ..OpenOut::default() });
        }
        let mut backing = self.backing.lock().unwrap();
        if backing.is_none() {
            let session = self.session.get().and_then(std::sync::Weak::upgrade).ok_or(Errno::IO)?;
            let file = self.backing_file.as_ref().ok_or(Errno::NOENT)?;
            *backing = Some(Arc::new(session.backing_open(file.as_fd())?));
        }
        let id = backing.as_ref().map_or(0, |b| b.id());
        Ok(OpenOut { fh: node, open_flags: FOPEN_PASSTHROUGH, backing_id: id })
    }

    fn create(&self, rq: &Request<'_>, parent: u64, arg: &CreateIn, name: &[u8]) -> Reply<(EntryOut, OpenOut)> {
        let id = self.add(parent, name, arg.mode)?;
        Ok((self.entry(id)?, self.open(rq, id, &OpenIn::default())?))
    }

    fn tmpfile(&self, _: &Request<'_>, _: u64, _: &CreateIn) -> Reply<(EntryOut, OpenOut)> {
        Err(Errno::OPNOTSUPP)
    }

    fn read(&self, rq: &Request<'_>, node: u64, arg: &ReadIn, out: &mut [u8]) -> Reply<usize> {
        self.behave(rq, node)?;
        let name = self.with(node, |n| Ok(n.name.clone()))?;
        if name.starts_with(HANG) {
            self.hang(rq)?;
        }
        if name.starts_with(PANIC) {
            panic!("as the test wants");
        }
        if name.starts_with(LIE) {
            return Ok(out.len() + 1);
        }
        self.with(node, |n| {
            let rest = n.data.get(arg.offset as usize..).unwrap_or_default();
            let len = rest.len().min(out.len());
            out[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        })
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

    fn write(&self, rq: &Request<'_>, node: u64, arg: &WriteIn, data: &[u8]) -> Reply<u32> {
        self.behave(rq, node)?;
        self.with(node, |n| {
            let end = arg.offset as usize + data.len();
            if n.data.len() < end {
                n.data.resize(end, 0);
            }
            n.data[arg.offset as usize..end].copy_from_slice(data);
            Ok(data.len() as u32)
        })
    }

    fn flush(&self, _: &Request<'_>, _: u64, _: u64, _: u64) -> Reply<()> {
        Err(Errno::NOSYS)
    }

    fn release(&self, _: &Request<'_>, node: u64, _: &ReleaseIn) -> Reply<()> {
        if self.with(node, |n| Ok(n.name.starts_with(BACKED)))? {
            *self.backing.lock().unwrap() = None;
        }
        Ok(())
    }

    fn fsync(&self, rq: &Request<'_>, _: u64, _: u64, _: bool) -> Reply<()> {
        assert!(rq.may_block, "fsync is to be run by a worker");
        Ok(())
    }

    fn opendir(&self, _: &Request<'_>, _: u64, _: u32) -> Reply<OpenOut> {
        Err(Errno::NOSYS)
    }

    fn readdir(&self, _: &Request<'_>, node: u64, arg: &ReadIn, out: &mut [u8]) -> Reply<usize> {
        let mut dir = DirBuf::new(out);
        for (i, (name, id)) in self.list(node)?.iter().enumerate().skip(arg.offset as usize) {
            if !dir.push(*id, i as u64 + 1, self.kind(*id), name) {
                break;
            }
        }
        Ok(dir.len())
    }

    fn readdirplus(&self, _: &Request<'_>, node: u64, arg: &ReadIn, out: &mut [u8]) -> Reply<usize> {
        let mut dir = DirBuf::new(out);
        for (i, (name, id)) in self.list(node)?.iter().enumerate().skip(arg.offset as usize) {
            if !dir.push_plus(&self.entry(*id)?, *id, i as u64 + 1, self.kind(*id), name) {
                break;
            }
        }
        Ok(dir.len())
    }

    fn releasedir(&self, _: &Request<'_>, _: u64, _: &ReleaseIn) -> Reply<()> {
        Ok(())
    }

    fn fsyncdir(&self, _: &Request<'_>, _: u64, _: u64, _: bool) -> Reply<()> {
        Ok(())
    }

    fn statfs(&self, _: &Request<'_>, _: u64) -> Reply<Kstatfs> {
        Ok(Kstatfs { bsize: 4096, frsize: 4096, namelen: 255, blocks: 4711, ..Kstatfs::default() })
    }

    fn setxattr(&self, rq: &Request<'_>, node: u64, _: &SetxattrIn, name: &[u8], value: &[u8]) -> Reply<()> {
        self.behave(rq, node)?;
        self.with(node, |n| {
            n.xattrs.insert(name.to_vec(), value.to_vec());
            Ok(())
        })
    }

    fn getxattr(&self, rq: &Request<'_>, node: u64, name: &[u8], out: &mut [u8]) -> Reply<usize> {
        // Written before MAY_BLOCK is returned: the name must survive that.
        out.fill(0xee);
        self.behave(rq, node)?;
        self.with(node, |n| copy_out(n.xattrs.get(name).ok_or(Errno::NODATA)?, out))
    }

    fn listxattr(&self, _: &Request<'_>, node: u64, out: &mut [u8]) -> Reply<usize> {
        self.with(node, |n| {
            let list: Vec<u8> = n.xattrs.keys().flat_map(|k| k.iter().copied().chain([0])).collect();
            copy_out(&list, out)
        })
    }

    fn removexattr(&self, _: &Request<'_>, node: u64, name: &[u8]) -> Reply<()> {
        self.with(node, |n| n.xattrs.remove(name).map(drop).ok_or(Errno::NODATA))
    }

    fn access(&self, _: &Request<'_>, _: u64, _: u32) -> Reply<()> {
        Err(Errno::NOSYS)
    }

    fn getlk(&self, _: &Request<'_>, _: u64, _: &LkIn) -> Reply<LkOut> {
        Err(Errno::NOSYS)
    }

    fn setlk(&self, _: &Request<'_>, _: u64, _: &LkIn, _: bool) -> Reply<()> {
        Err(Errno::NOSYS)
    }

    fn bmap(&self, _: &Request<'_>, _: u64, _: u64, _: u32) -> Reply<u64> {
        Err(Errno::NOSYS)
    }

    fn ioctl(&self, rq: &Request<'_>, _: u64, arg: &IoctlIn, input: &[u8], out: &mut [u8]) -> Reply<(IoctlOut, usize)> {
        out.fill(0xee);
        if !rq.may_block {
            return Err(MAY_BLOCK);
        }
        // Returns its input reversed, and whether the target is a directory.
        let reversed: Vec<u8> = input.iter().rev().copied().collect();
        let len = copy_out(&reversed, out)?;
        Ok((IoctlOut { result: i32::from(arg.flags & IOCTL_DIR != 0), ..IoctlOut::default() }, len))
    }

    fn poll(&self, _: &Request<'_>, _: u64, _: u64, _: u64, _: u32, _: u32) -> Reply<u32> {
        Err(Errno::NOSYS)
    }

    fn fallocate(&self, _: &Request<'_>, _: u64, _: &FallocateIn) -> Reply<()> {
        Err(Errno::OPNOTSUPP)
    }

    fn lseek(&self, _: &Request<'_>, node: u64, arg: &LseekIn) -> Reply<u64> {
        let size = self.attr(node)?.size;
        if arg.offset >= size { Err(Errno::NXIO) } else { Ok(if arg.whence == 3 { arg.offset } else { size }) }
    }

    fn copy_file_range(&self, rq: &Request<'_>, node: u64, arg: &CopyFileRangeIn) -> Reply<u64> {
        assert!(rq.may_block, "copying is to be done by a worker");
        let data = self.with(node, |n| {
            let rest = n.data.get(arg.off_in as usize..).unwrap_or_default();
            Ok(rest[..rest.len().min(arg.len as usize)].to_vec())
        })?;
        let to = WriteIn { offset: arg.off_out, ..WriteIn::default() };
        self.write(rq, arg.nodeid_out, &to, &data).map(u64::from)
    }

    fn syncfs(&self, _: &Request<'_>, _: u64) -> Reply<()> {
        Ok(())
    }

    fn notify_reply(&self, _: &Request<'_>, _: u64, unique: u64, offset: u64, data: &[u8]) {
        self.retrieved.lock().unwrap().push((unique, offset, data.to_vec()));
    }
}

fn copy_out(value: &[u8], out: &mut [u8]) -> Reply<usize> {
    if !out.is_empty() {
        out.get_mut(..value.len()).ok_or(Errno::RANGE)?.copy_from_slice(value);
    }
    Ok(value.len())
}
