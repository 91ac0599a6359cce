use crate::fault::{Blame, blame};
use crate::node::Node;
use crate::report::{self, REPLICAS};
use std::any::Any;
use std::sync::Arc;
use vnode::{
    Attr, Cx, DirEntry, Entry, Errno, IoctlReply, Kind, Name, NameSink, OpenFile, OpenFlags, Result, StatFs, Vnode,
    refuse,
};

/// The ioctls that only read: `FS_IOC_GETFLAGS`, `FS_IOC_FSGETXATTR`, `FS_IOC_GETVERSION`.
const READING: [u32; 3] = [0x8008_6601, 0x801c_581f, 0x8008_7601];
/// The ioctls that change something: `FS_IOC_SETFLAGS`, `FS_IOC_FSSETXATTR`, `FS_IOC_SETVERSION`.
const CHANGING: [u32; 3] = [0x4008_6602, 0x401c_5820, 0x4008_7602];

/// Copies a value from a replica to `out`; returns only its length if `out` is empty.
fn fill((len, bytes): (usize, Vec<u8>), out: &mut [u8]) -> Result<usize> {
    if !out.is_empty() {
        out.get_mut(..len).ok_or(Errno::RANGE)?.copy_from_slice(bytes.get(..len).ok_or(Errno::IO)?);
    }
    Ok(len)
}

/// Each operation is in the file of its concept; operations that change something are refused.
impl Vnode for Node {
    refuse!(Errno::ROFS => setattr, create, tmpfile, mknod, mkdir, symlink, link, unlink, rmdir, rename);
    refuse!(Errno::ROFS => setxattr, removexattr);

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> u64 {
        self.number()
    }

    fn generation(&self) -> u32 {
        // Numbers are not reused: a replaced object gets another number while the old one is in
        // use.
        0
    }

    fn kind(&self) -> Kind {
        self.kind_of()
    }

    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr> {
        match self.with_failover(cx, |lower, cx| lower.getattr(cx)) {
            Ok(attr) => {
                self.record_seen(&attr);
                Ok(self.present(attr))
            }
            // Return the last known attributes of the root if no replica is up, so that
            // lbfs.replicas remains usable.
            Err(errno) if self.is_root() && blame(errno) != Blame::Nobody => {
                self.fs.root_attr.lock().map(|attr| self.present(attr)).ok_or(errno)
            }
            Err(errno) => Err(errno),
        }
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        self.find(cx, name)
    }

    fn names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        self.report_names(cx, sink)
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        if self.kind_of() != Kind::Symlink {
            return Err(Errno::INVAL);
        }
        self.with_failover(cx, |lower, cx| lower.readlink(cx))
    }

    fn readdir(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.list(cx, cookie, sink)
    }

    fn lists_exactly(&self, _cx: &Cx<'_>) -> bool {
        false
    }

    fn listing_stamp(&self, _cx: &Cx<'_>) -> Option<u64> {
        // Change times differ between replicas.
        None
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        self.open_regular(cx, flags)
    }

    fn getxattr(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        let (name, room): (Arc<[u8]>, _) = (name.into(), out.len());
        let get = move |lower: &Arc<dyn Vnode>, cx: &Cx<'_>| {
            let mut value = vec![0; room];
            let len = lower.getxattr(cx, &name, &mut value)?;
            Ok((len, value))
        };
        fill(self.with_failover(cx, get)?, out)
    }

    fn listxattr(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        let room = out.len();
        let list = move |lower: &Arc<dyn Vnode>, cx: &Cx<'_>| {
            let mut names = vec![0; room];
            let len = lower.listxattr(cx, &mut names)?;
            Ok((len, names))
        };
        fill(self.with_failover(cx, list)?, out)
    }

    fn refused(&self, cx: &Cx<'_>, mask: u32) -> Result<()> {
        self.with_failover(cx, move |lower, cx| lower.refused(cx, mask))
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        let figures = self.with_failover(cx, |lower, cx| lower.statfs(cx))?;
        Ok(StatFs { fsid: self.fs.fsid, ..figures })
    }

    fn fsync(&self, _cx: &Cx<'_>, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn ioctl(&self, cx: &Cx<'_>, cmd: u32, input: &[u8], out: &mut [u8]) -> Result<IoctlReply> {
        if CHANGING.contains(&cmd) {
            return Err(Errno::ROFS);
        }
        if !READING.contains(&cmd) {
            return Err(Errno::NOTTY);
        }
        let (input, room): (Arc<[u8]>, _) = (input.into(), out.len());
        let run = move |lower: &Arc<dyn Vnode>, cx: &Cx<'_>| {
            let mut answer = vec![0; room];
            let reply = lower.ioctl(cx, cmd, &input, &mut answer)?;
            Ok((reply, answer))
        };
        let (reply, answer) = self.with_failover(cx, run)?;
        out.get_mut(..reply.len).ok_or(Errno::IO)?.copy_from_slice(answer.get(..reply.len).ok_or(Errno::IO)?);
        Ok(reply)
    }

    fn control(&self, _cx: &Cx<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>> {
        match (command == REPLICAS.name, input.is_empty()) {
            (false, _) => Err(Errno::NOTTY),
            (true, false) => Err(Errno::INVAL),
            (true, true) => Ok(report::text(&self.fs).into_bytes()),
        }
    }
}
