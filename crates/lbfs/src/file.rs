use crate::attempts::Attempts;
use crate::call::Call;
use crate::deadline::Deadline;
use crate::fault::{Blame, Fault, blame, errno_of};
use crate::node::Node;
use crate::replica::Opened;
use crate::timed_call;
use crate::version::Version;
use core::time::Duration;
use isolate::{Caller, Pool};
use parking_lot::RwLock;
use std::any::Any;
use std::sync::Arc;
use vnode::{Attr, Cx, Errno, Kind, OpenFile, OpenFlags, Result, Vnode, Whence};

/// An open file. It is open on one replica, and moves to another one if that replica fails.
#[derive(Debug)]
pub(crate) struct LbFile {
    node: Arc<Node>,
    /// The version that was opened. The file moves only to the same version.
    version: Version,
    flags: OpenFlags,
    current: RwLock<Arc<Place>>,
    /// The file in passthrough, which can't move.
    passthrough: Option<Arc<Place>>,
}

/// The replica on which a file is open, and the lower file.
#[derive(Debug)]
struct Place {
    replica: usize,
    opened: Arc<Opened>,
    /// `None` only during drop.
    file: Option<Arc<dyn OpenFile>>,
}

impl Place {
    fn file(&self) -> Result<&Arc<dyn OpenFile>> {
        self.file.as_ref().ok_or(Errno::BADF)
    }

    fn pool(&self) -> Option<&Arc<Pool>> {
        self.opened.pool.as_ref()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Closing may hang, so it is left to a thread of the pool.
        if let (Some(pool), Some(file)) = (&self.opened.pool, self.file.take()) {
            pool.dispose(file);
        }
    }
}

/// A file opened on a replica, with its attributes if requested.
type OpenedFile = (Arc<dyn OpenFile>, Option<Attr>);

/// Returns the operation that opens a file and, with `with_attr`, reads its attributes.
fn opening(
    flags: OpenFlags,
    with_attr: bool,
) -> impl Fn(&Arc<dyn Vnode>, &Cx<'_>) -> Result<OpenedFile> + Clone + Send + 'static {
    move |vnode, cx| {
        let file = vnode.open(cx, flags)?;
        let attr = if with_attr { Some(vnode.getattr(cx)?) } else { None };
        Ok((file, attr))
    }
}

impl Node {
    /// Opens a regular file for reading, on one replica.
    pub(crate) fn open_regular(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        match self.kind_of() {
            Kind::Regular => {}
            Kind::Directory => return Err(Errno::ISDIR),
            _ => return Err(Errno::INVAL),
        }
        if flags.writes() || flags.truncates() {
            return Err(Errno::ROFS);
        }
        let prefer = self.choice();
        // If the file may have to move, its exact version is necessary; otherwise that of the
        // lookup is sufficient.
        let exactly = self.fs.may_move();
        let mut deadline = Deadline::new(self.fs.options.timeout);
        let answer =
            self.with_failover_for(cx, &mut deadline, self.path().number(), prefer, opening(flags, exactly))?;
        self.choose(answer.replica);
        let (file, attr) = answer.value;
        if let Some(attr) = &attr {
            self.record_seen(attr);
        }
        let version = attr.map_or_else(|| self.seen(), |attr| Version::of(&attr));
        let place = Arc::new(Place { replica: answer.replica, opened: answer.opened, file: Some(file) });
        let passthrough = (self.fs.options.passthrough && place.pool().is_none()).then(|| Arc::clone(&place));
        let node = self.to_arc()?;
        Ok(Arc::new(LbFile { node, version, flags, current: RwLock::new(place), passthrough }))
    }
}

impl LbFile {
    /// Runs `op` on the replica where the file is open. If that replica fails, moves the file and
    /// retries.
    fn with_failover<T>(
        &self,
        cx: &Cx<'_>,
        mut op: impl FnMut(&Arc<Place>, &mut Attempts<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut deadline = Deadline::new(self.node.fs.options.timeout);
        let mut attempts = Attempts::new(&self.node.fs, &mut deadline, self.node.path().number(), None);
        attempts.begin(cx)?;
        loop {
            let place = Arc::clone(&self.current.read());
            let errno = if self.node.fs.is_unavailable(place.replica) {
                Errno::NOTCONN
            } else {
                match op(&place, &mut attempts) {
                    Err(errno) if blame(errno) != Blame::Nobody => errno,
                    answer => return answer,
                }
            };
            attempts.file_failed(place.replica, errno);
            self.fail_over(cx, &mut attempts, &place)?;
        }
    }

    /// Moves the file from `former` to a replica with the same version.
    fn fail_over(&self, cx: &Cx<'_>, attempts: &mut Attempts<'_>, former: &Arc<Place>) -> Result<()> {
        loop {
            if !Arc::ptr_eq(&self.current.read(), former) {
                // Another thread has moved it.
                return Ok(());
            }
            let replica = attempts.next(cx)?;
            match self.node.attempt(cx, replica, || attempts.timeout(replica), &opening(self.flags, true)) {
                Ok(((file, attr), opened)) => {
                    let place = Arc::new(Place { replica, opened, file: Some(file) });
                    if attr.is_none_or(|attr| Version::of(&attr) != self.version) {
                        self.node.differs_on(replica, former.replica);
                        attempts.lacks(replica);
                        continue;
                    }
                    self.node.choose(replica);
                    *self.current.write() = place;
                    return Ok(());
                }
                Err(Fault::Missing) => {
                    self.node.differs_on(replica, former.replica);
                    attempts.lacks(replica);
                }
                Err(Fault::Errno(vnode::MAY_BLOCK)) => return Err(vnode::MAY_BLOCK),
                Err(Fault::Errno(errno)) if blame(errno) == Blame::Nobody => attempts.lacks(replica),
                Err(Fault::Errno(errno)) => attempts.failed(replica, errno),
            }
        }
    }

    /// Runs `op` on a thread of the pool, for a replica that may hang, with accounting.
    fn isolated<T: Send + 'static>(
        &self,
        cx: &Cx<'_>,
        (place, pool): (&Arc<Place>, &Arc<Pool>),
        timeout: Duration,
        op: impl FnOnce(&dyn OpenFile, &Cx<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let work = {
            let (place, caller) = (Arc::clone(place), Caller::of(cx));
            move || caller.run(|cx| op(&**place.file()?, cx))
        };
        let begun = self.node.fs.begin_read(place.replica);
        let done = timed_call::call(pool, timeout, work).map_err(errno_of).and_then(|result| result.take(cx));
        self.ended(place, begun, done)
    }

    /// Runs a call to a replica that can't hang, with accounting.
    fn counted<T>(&self, place: &Place, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let begun = self.node.fs.begin_read(place.replica);
        let done = call();
        self.ended(place, begun, done)
    }

    fn ended<T>(&self, place: &Place, begun: Call, done: Result<T>) -> Result<T> {
        self.node.fs.end(begun, &place.opened, done.as_ref().err().map(|errno| Fault::Errno(*errno)));
        done
    }
}

impl OpenFile for LbFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn backing(&self) -> Option<vnode::Backing<'_>> {
        self.passthrough.as_ref()?.file.as_ref()?.backing()
    }

    fn closes_quickly(&self) -> bool {
        self.backing().is_some()
    }

    fn bind(&self) {
        if let Some(file) = self.passthrough.as_ref().and_then(|place| place.file.as_ref()) {
            file.bind();
        }
    }

    fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        self.with_failover(cx, |place, attempts| {
            let Some(pool) = place.pool() else {
                return self.counted(place, || place.file()?.read(cx, out, offset));
            };
            cx.require_blocking()?;
            let len = out.len();
            // A stuck call may outlive the request's buffer, so it gets a separate one.
            let read = move |file: &dyn OpenFile, cx: &Cx<'_>| {
                let mut bytes = vec![0; len];
                let done = file.read(cx, &mut bytes, offset)?;
                bytes.truncate(done);
                Ok(bytes)
            };
            let bytes = self.isolated(cx, (place, pool), attempts.timeout(place.replica), read)?;
            out.get_mut(..bytes.len()).ok_or(Errno::IO)?.copy_from_slice(&bytes);
            Ok(bytes.len())
        })
    }

    fn read_host(&self, cx: &Cx<'_>, take: vnode::HostReader<'_>) -> Result<Option<usize>> {
        self.with_failover(cx, |place, _| match place.pool() {
            // A call that may hang needs a thread that can be abandoned, so it is left to `read`.
            Some(_) => Ok(None),
            None => self.counted(place, || place.file()?.read_host(cx, take)),
        })
    }

    fn write(&self, _cx: &Cx<'_>, _data: &[u8], _offset: u64) -> Result<usize> {
        Err(Errno::BADF)
    }

    fn flush(&self, _cx: &Cx<'_>) -> Result<()> {
        Ok(())
    }

    fn fsync(&self, _cx: &Cx<'_>, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn fallocate(&self, _cx: &Cx<'_>, _mode: u32, _offset: u64, _len: u64) -> Result<()> {
        Err(Errno::BADF)
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, whence: Whence) -> Result<u64> {
        self.with_failover(cx, |place, attempts| {
            let Some(pool) = place.pool() else {
                return self.counted(place, || place.file()?.seek(cx, offset, whence));
            };
            cx.require_blocking()?;
            let seek = move |file: &dyn OpenFile, cx: &Cx<'_>| file.seek(cx, offset, whence);
            self.isolated(cx, (place, pool), attempts.timeout(place.replica), seek)
        })
    }

    fn copy_from(&self, _cx: &Cx<'_>, _to: u64, _source: &dyn OpenFile, _from: u64, _len: u64) -> Result<u64> {
        Err(Errno::BADF)
    }

    fn reflink_from(&self, _cx: &Cx<'_>, _source: &dyn OpenFile) -> Result<()> {
        Err(Errno::BADF)
    }
}
