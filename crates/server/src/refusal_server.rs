//! Server of a stack with a layer that audits refused accesses: forwards each opcode to the
//! ordinary server and records the attributes sent to the kernel in [`RefusalDetector`].

use crate::convert::name;
use crate::ops::{Server, is_placeholder};
use crate::refusal_detector::{MIN_ATTR_VALIDITY, RefusalDetector, is_restricted};
use fuse::abi::{
    AttrOut, CopyFileRangeIn, CreateIn, EntryOut, FallocateIn, ForgetOne, GetattrIn, InitIn, IoctlIn, IoctlOut,
    Kstatfs, LkIn, LkOut, LseekIn, MknodIn, OpenIn, OpenOut, ReadIn, ReleaseIn, RenameFlags2, SetattrIn, SetxattrIn,
    StatxIn, StatxOut, WriteIn,
};
use fuse::{Filesystem, InitConfig, Reply, Request, Session, flags};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use vnode::{Cx, Errno, Kind, MAY_BLOCK};

const ACL: &[u8] = b"system.posix_acl_access";

/// A [`Server`] with a detector of refused accesses.
pub(crate) struct RefusalServer {
    server: Server,
    detector: RefusalDetector,
}

impl RefusalServer {
    pub(crate) fn new(server: Server) -> Self {
        let detector = RefusalDetector::new(server.cache.max(MIN_ATTR_VALIDITY));
        Self { server, detector }
    }

    /// Records and adjusts an entry that is sent to the kernel; `thread`: the thread whose LOOKUP
    /// this is, or 0.
    fn entry(&self, mut out: EntryOut, thread: u32) -> EntryOut {
        self.detector.attributes_sent(out.nodeid, thread);
        extend_validity(&mut out.attr_valid, &mut out.attr_valid_nsec);
        if is_restricted(out.attr.mode) || is_directory(out.attr.mode) && self.has_acl(out.nodeid) {
            (out.entry_valid, out.entry_valid_nsec) = (0, 0);
        }
        out
    }

    /// Whether the node has an access ACL, which can exclude users that the mode admits.
    fn has_acl(&self, node: u64) -> bool {
        match self.server.nodes.get(node).map(|vnode| vnode.getxattr(&Cx::internal(0, 0), ACL, &mut [])) {
            Ok(Err(Errno::NODATA | Errno::OPNOTSUPP)) => false,
            // If unknown, assume that it has one.
            Ok(_) | Err(_) => true,
        }
    }

    /// Records and adjusts an entry created in `parent`.
    fn created(&self, parent: u64, out: EntryOut) -> EntryOut {
        self.detector.changed(parent);
        self.entry(out, 0)
    }

    /// Returns the node id of the name that an operation is about to change. The caller has looked
    /// it up before; this lookup is the server's own.
    fn resolve(&self, rq: &Request<'_>, parent: u64, bytes: &[u8]) -> Reply<Option<u64>> {
        let found =
            self.server.nodes.get(parent)?.lookup(&self.server.context(rq).cx(0).as_server(0, 0), name(bytes)?)?;
        Ok(found.map(|entry| self.server.node_of(&entry.vnode)))
    }

    fn changed(&self, nodes: impl IntoIterator<Item = u64>) {
        nodes.into_iter().for_each(|node| self.detector.changed(node));
    }

    /// Reports a refusal to the layers if this GETATTR means that the kernel is about to refuse the
    /// caller.
    fn report_refusal(&self, rq: &Request<'_>, node: u64) -> Reply<()> {
        let vnode = self.server.nodes.get(node)?;
        let mask = self.detector.refused_mask(node, vnode.kind(), rq.pid, self.server.files.is_open(node));
        if mask == 0 {
            return Ok(());
        }
        match vnode.refused(&self.server.context(rq).cx(0), mask) {
            Err(MAY_BLOCK) => Err(MAY_BLOCK),
            Err(errno) => {
                tracing::debug!("no layer recorded a refused access: {errno}");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

fn is_directory(mode: u32) -> bool {
    Kind::from_mode(mode) == Some(Kind::Directory)
}

/// Extends a validity to at least [`MIN_ATTR_VALIDITY`].
fn extend_validity(seconds: &mut u64, nanoseconds: &mut u32) {
    let valid = Duration::new(*seconds, *nanoseconds).max(MIN_ATTR_VALIDITY);
    (*seconds, *nanoseconds) = (valid.as_secs(), valid.subsec_nanos());
}

impl Filesystem for RefusalServer {
    fn init(&self, session: &Arc<Session>, offer: &InitIn) -> InitConfig {
        let init_config = self.server.init(session, offer);
        // The detector needs every lookup of a missing or restricted name, so READDIRPLUS is off.
        InitConfig {
            flags: init_config.flags & !(flags::DO_READDIRPLUS | flags::READDIRPLUS_AUTO),
            negative_timeout: Duration::ZERO,
            ..init_config
        }
    }

    fn destroy(&self) {
        self.server.destroy();
    }

    fn lookup(&self, rq: &Request<'_>, parent: u64, bytes: &[u8]) -> Reply<Option<EntryOut>> {
        let found = self.server.lookup(rq, parent, bytes)?.filter(|out| out.nodeid != 0);
        Ok(found.map(|out| {
            if is_placeholder(&out) {
                // The kernel has no valid attributes now: a GETATTR does not mean a refusal.
                self.detector.changed(out.nodeid);
                return out;
            }
            self.entry(out, rq.pid)
        }))
    }

    fn forget(&self, nodes: &[ForgetOne]) {
        self.changed(nodes.iter().map(|one| one.nodeid));
        self.server.forget(nodes);
    }

    fn getattr(&self, rq: &Request<'_>, node: u64, arg: &GetattrIn) -> Reply<AttrOut> {
        let mut out = self.server.getattr(rq, node, arg)?;
        self.report_refusal(rq, node)?;
        self.detector.attributes_sent(node, 0);
        extend_validity(&mut out.attr_valid, &mut out.attr_valid_nsec);
        Ok(out)
    }

    fn setattr(&self, rq: &Request<'_>, node: u64, arg: &SetattrIn) -> Reply<AttrOut> {
        let mut out = self.server.setattr(rq, node, arg)?;
        self.detector.attributes_sent(node, 0);
        extend_validity(&mut out.attr_valid, &mut out.attr_valid_nsec);
        Ok(out)
    }

    fn statx(&self, rq: &Request<'_>, node: u64, arg: &StatxIn) -> Reply<StatxOut> {
        let mut out = self.server.statx(rq, node, arg)?;
        self.detector.attributes_sent(node, 0);
        extend_validity(&mut out.attr_valid, &mut out.attr_valid_nsec);
        Ok(out)
    }

    fn readlink(&self, rq: &Request<'_>, node: u64, out: &mut [u8]) -> Reply<usize> {
        self.server.readlink(rq, node, out)
    }

    fn symlink(&self, rq: &Request<'_>, parent: u64, bytes: &[u8], target: &[u8]) -> Reply<EntryOut> {
        Ok(self.created(parent, self.server.symlink(rq, parent, bytes, target)?))
    }

    fn mknod(&self, rq: &Request<'_>, parent: u64, arg: &MknodIn, bytes: &[u8]) -> Reply<EntryOut> {
        Ok(self.created(parent, self.server.mknod(rq, parent, arg, bytes)?))
    }

    fn mkdir(&self, rq: &Request<'_>, parent: u64, mode: u32, umask: u32, bytes: &[u8]) -> Reply<EntryOut> {
        Ok(self.created(parent, self.server.mkdir(rq, parent, mode, umask, bytes)?))
    }

    fn unlink(&self, rq: &Request<'_>, parent: u64, bytes: &[u8]) -> Reply<()> {
        let victim = self.resolve(rq, parent, bytes)?;
        self.server.unlink(rq, parent, bytes)?;
        self.changed(victim.into_iter().chain([parent]));
        Ok(())
    }

    fn rmdir(&self, rq: &Request<'_>, parent: u64, bytes: &[u8]) -> Reply<()> {
        self.server.rmdir(rq, parent, bytes)?;
        self.detector.changed(parent);
        Ok(())
    }

    fn rename(
        &self,
        rq: &Request<'_>,
        parent: u64,
        bytes: &[u8],
        new_parent: u64,
        new_bytes: &[u8],
        flags: RenameFlags2,
    ) -> Reply<()> {
        let moved = [self.resolve(rq, parent, bytes)?, self.resolve(rq, new_parent, new_bytes)?];
        self.server.rename(rq, parent, bytes, new_parent, new_bytes, flags)?;
        self.changed(moved.into_iter().flatten().chain([parent, new_parent]));
        Ok(())
    }

    fn link(&self, rq: &Request<'_>, node: u64, new_parent: u64, bytes: &[u8]) -> Reply<EntryOut> {
        let out = self.created(new_parent, self.server.link(rq, node, new_parent, bytes)?);
        self.detector.changed(node);
        Ok(out)
    }

    fn open(&self, rq: &Request<'_>, node: u64, arg: &OpenIn) -> Reply<OpenOut> {
        let out = self.server.open(rq, node, arg)?;
        self.detector.changed(node);
        Ok(out)
    }

    fn create(&self, rq: &Request<'_>, parent: u64, arg: &CreateIn, bytes: &[u8]) -> Reply<(EntryOut, OpenOut)> {
        let (entry, open) = self.server.create(rq, parent, arg, bytes)?;
        Ok((self.created(parent, entry), open))
    }

    fn tmpfile(&self, rq: &Request<'_>, parent: u64, arg: &CreateIn) -> Reply<(EntryOut, OpenOut)> {
        let (entry, open) = self.server.tmpfile(rq, parent, arg)?;
        Ok((self.created(parent, entry), open))
    }

    fn read(&self, rq: &Request<'_>, node: u64, arg: &ReadIn, out: &mut [u8]) -> Reply<usize> {
        self.server.read(rq, node, arg, out)
    }

    fn read_host(
        &self,
        rq: &Request<'_>,
        node: u64,
        arg: &ReadIn,
        take: &mut dyn FnMut(BorrowedFd<'_>) -> Option<usize>,
    ) -> Reply<Option<usize>> {
        self.server.read_host(rq, node, arg, take)
    }

    fn write(&self, rq: &Request<'_>, node: u64, arg: &WriteIn, data: &[u8]) -> Reply<u32> {
        self.server.write(rq, node, arg, data)
    }

    fn flush(&self, rq: &Request<'_>, node: u64, fh: u64, lock_owner: u64) -> Reply<()> {
        self.server.flush(rq, node, fh, lock_owner)
    }

    fn release(&self, rq: &Request<'_>, node: u64, arg: &ReleaseIn) -> Reply<()> {
        // Reads and writes have made the cached attributes stale.
        self.detector.changed(node);
        self.server.release(rq, node, arg)
    }

    fn fsync(&self, rq: &Request<'_>, node: u64, fh: u64, data_only: bool) -> Reply<()> {
        self.server.fsync(rq, node, fh, data_only)
    }

    fn opendir(&self, rq: &Request<'_>, node: u64, flags: u32) -> Reply<OpenOut> {
        self.server.opendir(rq, node, flags)
    }

    fn readdir(&self, rq: &Request<'_>, node: u64, arg: &ReadIn, out: &mut [u8]) -> Reply<usize> {
        let len = self.server.readdir(rq, node, arg, out)?;
        self.detector.changed(node);
        Ok(len)
    }

    fn readdirplus(&self, rq: &Request<'_>, node: u64, arg: &ReadIn, out: &mut [u8]) -> Reply<usize> {
        self.server.readdirplus(rq, node, arg, out)
    }

    fn releasedir(&self, rq: &Request<'_>, node: u64, arg: &ReleaseIn) -> Reply<()> {
        self.server.releasedir(rq, node, arg)
    }

    fn fsyncdir(&self, rq: &Request<'_>, node: u64, fh: u64, data_only: bool) -> Reply<()> {
        self.server.fsyncdir(rq, node, fh, data_only)
    }

    fn statfs(&self, rq: &Request<'_>, node: u64) -> Reply<Kstatfs> {
        self.server.statfs(rq, node)
    }

    fn setxattr(&self, rq: &Request<'_>, node: u64, arg: &SetxattrIn, key: &[u8], value: &[u8]) -> Reply<()> {
        self.server.setxattr(rq, node, arg, key, value)?;
        self.detector.changed(node);
        Ok(())
    }

    fn getxattr(&self, rq: &Request<'_>, node: u64, key: &[u8], out: &mut [u8]) -> Reply<usize> {
        self.server.getxattr(rq, node, key, out)
    }

    fn listxattr(&self, rq: &Request<'_>, node: u64, out: &mut [u8]) -> Reply<usize> {
        self.server.listxattr(rq, node, out)
    }

    fn removexattr(&self, rq: &Request<'_>, node: u64, key: &[u8]) -> Reply<()> {
        self.server.removexattr(rq, node, key)?;
        self.detector.changed(node);
        Ok(())
    }

    fn access(&self, rq: &Request<'_>, node: u64, mask: u32) -> Reply<()> {
        self.server.access(rq, node, mask)
    }

    fn getlk(&self, rq: &Request<'_>, node: u64, arg: &LkIn) -> Reply<LkOut> {
        self.server.getlk(rq, node, arg)
    }

    fn setlk(&self, rq: &Request<'_>, node: u64, arg: &LkIn, wait: bool) -> Reply<()> {
        self.server.setlk(rq, node, arg, wait)
    }

    fn bmap(&self, rq: &Request<'_>, node: u64, block: u64, blocksize: u32) -> Reply<u64> {
        self.server.bmap(rq, node, block, blocksize)
    }

    fn ioctl(
        &self,
        rq: &Request<'_>,
        node: u64,
        arg: &IoctlIn,
        input: &[u8],
        out: &mut [u8],
    ) -> Reply<(IoctlOut, usize)> {
        let reply = self.server.ioctl(rq, node, arg, input, out)?;
        self.detector.changed(node);
        Ok(reply)
    }

    fn poll(&self, rq: &Request<'_>, node: u64, fh: u64, kh: u64, flags: u32, events: u32) -> Reply<u32> {
        self.server.poll(rq, node, fh, kh, flags, events)
    }

    fn fallocate(&self, rq: &Request<'_>, node: u64, arg: &FallocateIn) -> Reply<()> {
        self.server.fallocate(rq, node, arg)
    }

    fn lseek(&self, rq: &Request<'_>, node: u64, arg: &LseekIn) -> Reply<u64> {
        self.server.lseek(rq, node, arg)
    }

    fn copy_file_range(&self, rq: &Request<'_>, node: u64, arg: &CopyFileRangeIn) -> Reply<u64> {
        self.server.copy_file_range(rq, node, arg)
    }

    fn syncfs(&self, rq: &Request<'_>, node: u64) -> Reply<()> {
        self.server.syncfs(rq, node)
    }

    fn notify_reply(&self, rq: &Request<'_>, node: u64, unique: u64, offset: u64, data: &[u8]) {
        self.server.notify_reply(rq, node, unique, offset, data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::nodes::ROOT;
    use fuse::Opcode;
    use fuse::abi::InHeader;
    use memfs::MemFs;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;
    use vnode::Result;
    use wrapfs::Template;
    use wrapfs::hooks::{Op, OpKind, OpSet, Operations, Verdict};

    /// Pid, node and mask of each refusal.
    type Seen = Arc<Mutex<Vec<(u32, u64, u32)>>>;

    #[derive(Debug)]
    struct Witness(Seen);

    impl Operations for Witness {
        fn interest(&self) -> OpSet {
            OpSet::of(&[OpKind::Refused])
        }

        fn before(&self, cx: &Cx<'_>, op: &Op<'_>) -> Result<Verdict> {
            if let Op::Refused { file, mask } = op {
                self.0.lock().unwrap().push((cx.pid, file.id(), *mask));
            }
            Ok(Verdict::Proceed)
        }
    }

    fn request<T>(pid: u32, opcode: Opcode, run: impl FnOnce(&Request<'_>) -> T) -> T {
        let cancelled = AtomicBool::new(false);
        let header = InHeader { uid: 7, gid: 7, pid, ..InHeader::default() };
        run(&Request::new(&header, opcode, true, &cancelled, &[]))
    }

    fn refusal_server() -> (RefusalServer, Seen) {
        let seen = Seen::default();
        let layer = Template::over(MemFs::new()).operations(Witness(Arc::clone(&seen))).build().unwrap();
        assert!(layer.properties().audits_refusals);
        (RefusalServer::new(Server::new(layer, &Config::new("/".into(), "none", "test"))), seen)
    }

    fn make(fs: &RefusalServer, bytes: &[u8], mode: u32) -> EntryOut {
        request(1, Opcode::Mknod, |rq| fs.mknod(rq, ROOT, &MknodIn { mode, ..MknodIn::default() }, bytes).unwrap())
    }

    fn getattr_as(fs: &RefusalServer, pid: u32, node: u64) {
        request(pid, Opcode::Getattr, |rq| fs.getattr(rq, node, &GetattrIn::default()).unwrap());
    }

    #[test]
    fn only_names_of_unrestricted_objects_are_cached() {
        let (fs, _) = refusal_server();
        assert_eq!(make(&fs, b"file", 0o100_666).entry_valid, 0);
        let mkdir = |name: &[u8], mode| request(1, Opcode::Mkdir, |rq| fs.mkdir(rq, ROOT, mode, 0, name).unwrap());
        let lookup = |name: &[u8]| request(2, Opcode::Lookup, |rq| fs.lookup(rq, ROOT, name).unwrap().unwrap());
        assert_eq!(mkdir(b"closed", 0o711).entry_valid, 0);
        let open = mkdir(b"open", 0o755);
        assert_eq!(open.entry_valid, 10);
        assert_eq!((lookup(b"closed").entry_valid, lookup(b"closed").attr_valid), (0, 10));
        // Everybody except user 5.
        let entries = [(1, 7), (2, 0), (4, 5), (16, 5), (32, 5)];
        let acl = entries.map(|(tag, perm)| [tag, 0, perm, 0, 5, 0, 0, 0]).concat();
        let acl = [&2u32.to_le_bytes()[..], &acl].concat();
        request(1, Opcode::Setxattr, |rq| fs.setxattr(rq, open.nodeid, &SetxattrIn::default(), ACL, &acl).unwrap());
        assert_eq!((lookup(b"open").entry_valid, lookup(b"open").attr.mode), (0, 0o040_755));
    }

    /// The kernel has to request them: that is no refusal.
    #[test]
    fn unknown_attributes_are_not_cached() {
        let faults = memfs::Faults::new();
        let seen = Seen::default();
        let below = MemFs::with(memfs::MemOptions::default(), &faults);
        let layer = Template::over(below).operations(Witness(Arc::clone(&seen))).build().unwrap();
        let fs = RefusalServer::new(Server::new(layer, &Config::new("/".into(), "none", "test")));
        let node = request(1, Opcode::Mkdir, |rq| fs.mkdir(rq, ROOT, 0o755, 0, b"dir").unwrap()).nodeid;
        faults.arm(memfs::Plan { count: memfs::Count::All, at: 1, fault: memfs::Fault::Errors(Errno::IO) });
        let kept = request(2, Opcode::Lookup, |rq| fs.lookup(rq, ROOT, b"dir").unwrap().unwrap());
        faults.reset();
        assert_eq!((kept.nodeid, kept.attr_valid, kept.attr_valid_nsec), (node, 0, 0));
        getattr_as(&fs, 2, node);
        // As for a directory that was reached by a descriptor.
        assert_eq!(*seen.lock().unwrap(), [(2, node, 1)]);
    }

    #[test]
    fn a_getattr_for_valid_attributes_is_a_refusal() {
        let (fs, seen) = refusal_server();
        let node = make(&fs, b"f", 0o100_600).nodeid;
        getattr_as(&fs, 2, node);
        assert_eq!(*seen.lock().unwrap(), [(2, node, 7)]);
        // After a change of an object, the kernel requests its attributes once.
        request(1, Opcode::Setxattr, |rq| fs.setxattr(rq, node, &SetxattrIn::default(), b"user.a", b"b").unwrap());
        getattr_as(&fs, 3, node);
        assert_eq!(seen.lock().unwrap().len(), 1);
        getattr_as(&fs, 3, node);
        assert_eq!(seen.lock().unwrap().len(), 2);
    }

    #[test]
    fn a_refusal_of_an_open_file_follows_a_lookup_by_the_same_thread() {
        let (fs, seen) = refusal_server();
        let node = make(&fs, b"f", 0o100_600).nodeid;
        let open = request(1, Opcode::Open, |rq| fs.open(rq, node, &OpenIn::default()).unwrap());
        getattr_as(&fs, 2, node);
        getattr_as(&fs, 2, node);
        request(3, Opcode::Lookup, |rq| fs.lookup(rq, ROOT, b"f").unwrap());
        getattr_as(&fs, 2, node);
        assert_eq!(*seen.lock().unwrap(), []);
        request(3, Opcode::Lookup, |rq| fs.lookup(rq, ROOT, b"f").unwrap());
        getattr_as(&fs, 3, node);
        assert_eq!(*seen.lock().unwrap(), [(3, node, 7)]);
        request(1, Opcode::Release, |rq| {
            fs.release(rq, node, &ReleaseIn { fh: open.fh, ..ReleaseIn::default() }).unwrap();
        });
        getattr_as(&fs, 2, node);
        assert_eq!(seen.lock().unwrap().len(), 1);
    }
}
