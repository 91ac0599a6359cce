//! The server of a stack in which a layer wants to know what is refused: each opcode goes on to the ordinary server, and what the kernel is told
//! is noted in [`Watch`].

use crate::caller::Calling;
use crate::convert::name;
use crate::ops::Server;
use crate::watch::{SHORTEST, Watch, is_closed};
use fuse::abi::{
    AttrOut, CopyFileRangeIn, CreateIn, EntryOut, FallocateIn, ForgetOne, GetattrIn, InitIn, IoctlIn, IoctlOut,
    Kstatfs, LkIn, LkOut, LseekIn, MknodIn, OpenIn, OpenOut, ReadIn, ReleaseIn, RenameFlags2, SetattrIn, SetxattrIn,
    StatxIn, StatxOut, WriteIn,
};
use fuse::{Filesystem, Reply, Request, Session, Wish, flags};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use vnode::{Cx, Errno, Kind, MAY_BLOCK};

const ACL: &[u8] = b"system.posix_acl_access";

/// See the module.
pub(crate) struct Watching {
    server: Server,
    watch: Watch,
}

impl Watching {
    pub(crate) fn new(server: Server) -> Self {
        let watch = Watch::new(server.cache.max(SHORTEST));
        Self { server, watch }
    }

    /// What the kernel is told of an entry; `thread`: it has looked it up.
    fn entry(&self, mut out: EntryOut, thread: u32) -> EntryOut {
        self.watch.told(out.nodeid, thread);
        stretch(&mut out.attr_valid, &mut out.attr_valid_nsec);
        if is_closed(out.attr.mode) || is_directory(out.attr.mode) && self.has_acl(out.nodeid) {
            (out.entry_valid, out.entry_valid_nsec) = (0, 0);
        }
        out
    }

    /// Whom an ACL shuts out, the mode does not say.
    fn has_acl(&self, node: u64) -> bool {
        match self.server.nodes.get(node).map(|vnode| vnode.getxattr(&Cx::internal(0, 0), ACL, &mut [])) {
            Ok(Err(Errno::NODATA | Errno::OPNOTSUPP)) => false,
            // In doubt it has one.
            Ok(_) | Err(_) => true,
        }
    }

    /// The same of an entry that was made in `parent`.
    fn made(&self, parent: u64, out: EntryOut) -> EntryOut {
        self.watch.changed(parent);
        self.entry(out, 0)
    }

    /// The number of what an operation is going to change by its name. The caller has looked it up before: this look-up is ours.
    fn named(&self, rq: &Request<'_>, parent: u64, bytes: &[u8]) -> Reply<Option<u64>> {
        let found = self.server.nodes.get(parent)?.lookup(&Calling::of(rq).cx(0).as_server(0, 0), name(bytes)?)?;
        Ok(found.map(|entry| self.server.node_of(&entry.vnode)))
    }

    fn changed(&self, nodes: impl IntoIterator<Item = u64>) {
        nodes.into_iter().for_each(|node| self.watch.changed(node));
    }

    /// Tells the layers, if this question for attributes means that the kernel is about to refuse something.
    fn note_refusal(&self, rq: &Request<'_>, node: u64) -> Reply<()> {
        let vnode = self.server.nodes.get(node)?;
        let mask = self.watch.refused(node, vnode.kind(), rq.pid, self.server.files.is_open(node));
        if mask == 0 {
            return Ok(());
        }
        match vnode.refused(&Calling::of(rq).cx(0), mask) {
            Err(MAY_BLOCK) => Err(MAY_BLOCK),
            Err(errno) => {
                tracing::debug!("nobody took notice that something was refused: {errno}");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

fn is_directory(mode: u32) -> bool {
    Kind::from_mode(mode) == Some(Kind::Directory)
}

/// Believed a little while at least: see [`SHORTEST`].
fn stretch(seconds: &mut u64, nanoseconds: &mut u32) {
    let valid = Duration::new(*seconds, *nanoseconds).max(SHORTEST);
    (*seconds, *nanoseconds) = (valid.as_secs(), valid.subsec_nanos());
}

impl Filesystem for Watching {
    fn init(&self, session: &Arc<Session>, offer: &InitIn) -> Wish {
        let wish = self.server.init(session, offer);
        // Each look-up of a missing name is to be seen, and each of a closed one: it must not come with a listing.
        Wish {
            flags: wish.flags & !(flags::DO_READDIRPLUS | flags::READDIRPLUS_AUTO),
            negative_timeout: Duration::ZERO,
            ..wish
        }
    }

    fn destroy(&self) {
        self.server.destroy();
    }

    fn lookup(&self, rq: &Request<'_>, parent: u64, bytes: &[u8]) -> Reply<Option<EntryOut>> {
        let found = self.server.lookup(rq, parent, bytes)?.filter(|out| out.nodeid != 0);
        Ok(found.map(|out| self.entry(out, rq.pid)))
    }

    fn forget(&self, nodes: &[ForgetOne]) {
        self.changed(nodes.iter().map(|one| one.nodeid));
        self.server.forget(nodes);
    }

    fn getattr(&self, rq: &Request<'_>, node: u64, arg: &GetattrIn) -> Reply<AttrOut> {
        let mut out = self.server.getattr(rq, node, arg)?;
        self.note_refusal(rq, node)?;
        self.watch.told(node, 0);
        stretch(&mut out.attr_valid, &mut out.attr_valid_nsec);
        Ok(out)
    }

    fn setattr(&self, rq: &Request<'_>, node: u64, arg: &SetattrIn) -> Reply<AttrOut> {
        let mut out = self.server.setattr(rq, node, arg)?;
        self.watch.told(node, 0);
        stretch(&mut out.attr_valid, &mut out.attr_valid_nsec);
        Ok(out)
    }

    fn statx(&self, rq: &Request<'_>, node: u64, arg: &StatxIn) -> Reply<StatxOut> {
        let mut out = self.server.statx(rq, node, arg)?;
        self.watch.told(node, 0);
        stretch(&mut out.attr_valid, &mut out.attr_valid_nsec);
        Ok(out)
    }

    fn readlink(&self, rq: &Request<'_>, node: u64, out: &mut [u8]) -> Reply<usize> {
        self.server.readlink(rq, node, out)
    }

    fn symlink(&self, rq: &Request<'_>, parent: u64, bytes: &[u8], target: &[u8]) -> Reply<EntryOut> {
        Ok(self.made(parent, self.server.symlink(rq, parent, bytes, target)?))
    }

    fn mknod(&self, rq: &Request<'_>, parent: u64, arg: &MknodIn, bytes: &[u8]) -> Reply<EntryOut> {
        Ok(self.made(parent, self.server.mknod(rq, parent, arg, bytes)?))
    }

    fn mkdir(&self, rq: &Request<'_>, parent: u64, mode: u32, umask: u32, bytes: &[u8]) -> Reply<EntryOut> {
        Ok(self.made(parent, self.server.mkdir(rq, parent, mode, umask, bytes)?))
    }

    fn unlink(&self, rq: &Request<'_>, parent: u64, bytes: &[u8]) -> Reply<()> {
        let victim = self.named(rq, parent, bytes)?;
        self.server.unlink(rq, parent, bytes)?;
        self.changed(victim.into_iter().chain([parent]));
        Ok(())
    }

    fn rmdir(&self, rq: &Request<'_>, parent: u64, bytes: &[u8]) -> Reply<()> {
        self.server.rmdir(rq, parent, bytes)?;
        self.watch.changed(parent);
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
        let moved = [self.named(rq, parent, bytes)?, self.named(rq, new_parent, new_bytes)?];
        self.server.rename(rq, parent, bytes, new_parent, new_bytes, flags)?;
        self.changed(moved.into_iter().flatten().chain([parent, new_parent]));
        Ok(())
    }

    fn link(&self, rq: &Request<'_>, node: u64, new_parent: u64, bytes: &[u8]) -> Reply<EntryOut> {
        let out = self.made(new_parent, self.server.link(rq, node, new_parent, bytes)?);
        self.watch.changed(node);
        Ok(out)
    }

    fn open(&self, rq: &Request<'_>, node: u64, arg: &OpenIn) -> Reply<OpenOut> {
        let out = self.server.open(rq, node, arg)?;
        self.watch.changed(node);
        Ok(out)
    }

    fn create(&self, rq: &Request<'_>, parent: u64, arg: &CreateIn, bytes: &[u8]) -> Reply<(EntryOut, OpenOut)> {
        let (entry, open) = self.server.create(rq, parent, arg, bytes)?;
        Ok((self.made(parent, entry), open))
    }

    fn tmpfile(&self, rq: &Request<'_>, parent: u64, arg: &CreateIn) -> Reply<(EntryOut, OpenOut)> {
        let (entry, open) = self.server.tmpfile(rq, parent, arg)?;
        Ok((self.made(parent, entry), open))
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
        // Reading and writing have made its attributes stale.
        self.watch.changed(node);
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
        self.watch.changed(node);
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
        self.watch.changed(node);
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
        self.watch.changed(node);
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
        self.watch.changed(node);
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

    /// Who was refused what of which object.
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

    fn watching() -> (Watching, Seen) {
        let seen = Seen::default();
        let layer = Template::over(MemFs::new()).operations(Witness(Arc::clone(&seen))).build();
        assert!(layer.properties().watches_refusals);
        (Watching::new(Server::new(layer, &Config::new("/".into(), "none", "test"))), seen)
    }

    fn make(fs: &Watching, bytes: &[u8], mode: u32) -> EntryOut {
        request(1, Opcode::Mknod, |rq| fs.mknod(rq, ROOT, &MknodIn { mode, ..MknodIn::default() }, bytes).unwrap())
    }

    fn ask(fs: &Watching, pid: u32, node: u64) {
        request(pid, Opcode::Getattr, |rq| fs.getattr(rq, node, &GetattrIn::default()).unwrap());
    }

    #[test]
    fn only_names_of_what_is_open_to_all_are_remembered() {
        let (fs, _) = watching();
        assert_eq!(make(&fs, b"file", 0o100_666).entry_valid, 0);
        let mkdir = |name: &[u8], mode| request(1, Opcode::Mkdir, |rq| fs.mkdir(rq, ROOT, mode, 0, name).unwrap());
        let lookup = |name: &[u8]| request(2, Opcode::Lookup, |rq| fs.lookup(rq, ROOT, name).unwrap().unwrap());
        assert_eq!(mkdir(b"closed", 0o711).entry_valid, 0);
        let open = mkdir(b"open", 0o755);
        assert_eq!(open.entry_valid, 10);
        assert_eq!((lookup(b"closed").entry_valid, lookup(b"closed").attr_valid), (0, 10));
        // Everybody but user 5.
        let entries = [(1, 7), (2, 0), (4, 5), (16, 5), (32, 5)];
        let acl = entries.map(|(tag, perm)| [tag, 0, perm, 0, 5, 0, 0, 0]).concat();
        let acl = [&2u32.to_le_bytes()[..], &acl].concat();
        request(1, Opcode::Setxattr, |rq| fs.setxattr(rq, open.nodeid, &SetxattrIn::default(), ACL, &acl).unwrap());
        assert_eq!((lookup(b"open").entry_valid, lookup(b"open").attr.mode), (0, 0o040_755));
    }

    #[test]
    fn a_question_for_what_was_told_is_a_refusal() {
        let (fs, seen) = watching();
        let node = make(&fs, b"f", 0o100_600).nodeid;
        ask(&fs, 2, node);
        assert_eq!(*seen.lock().unwrap(), [(2, node, 7)]);
        // What changes an object makes the kernel ask anew, once.
        request(1, Opcode::Setxattr, |rq| fs.setxattr(rq, node, &SetxattrIn::default(), b"user.a", b"b").unwrap());
        ask(&fs, 3, node);
        assert_eq!(seen.lock().unwrap().len(), 1);
        ask(&fs, 3, node);
        assert_eq!(seen.lock().unwrap().len(), 2);
    }

    #[test]
    fn of_an_open_file_a_refusal_follows_the_same_threads_lookup() {
        let (fs, seen) = watching();
        let node = make(&fs, b"f", 0o100_600).nodeid;
        let open = request(1, Opcode::Open, |rq| fs.open(rq, node, &OpenIn::default()).unwrap());
        ask(&fs, 2, node);
        ask(&fs, 2, node);
        request(3, Opcode::Lookup, |rq| fs.lookup(rq, ROOT, b"f").unwrap());
        ask(&fs, 2, node);
        assert_eq!(*seen.lock().unwrap(), []);
        request(3, Opcode::Lookup, |rq| fs.lookup(rq, ROOT, b"f").unwrap());
        ask(&fs, 3, node);
        assert_eq!(*seen.lock().unwrap(), [(3, node, 7)]);
        request(1, Opcode::Release, |rq| {
            fs.release(rq, node, &ReleaseIn { fh: open.fh, ..ReleaseIn::default() }).unwrap();
        });
        ask(&fs, 2, node);
        assert_eq!(seen.lock().unwrap().len(), 1);
    }
}
