//! The /dev/fuse transport. FORGET and INTERRUPT arrive here even when the ring is in use.

use crate::abi::{InHeader, InterruptIn, OutHeader};
use crate::backlog::{Backlog, QueuedRequest};
use crate::core::Core;
use crate::dispatch::Outcome;
use crate::inflight::{InFlight, Slot};
use crate::pipe::Pipe;
use crate::request::parse;
use crate::sys::Mapping;
use crate::{Errno, Opcode, Session, sys};
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use zerocopy::IntoBytes;

/// Room for the header and the first argument before the payload.
const HEAD: usize = 4096;
/// Number of bytes of its buffer that an idle thread keeps.
const IDLE_BUFFER: usize = 32 << 10;
/// Idle time after which a thread releases the rest of its buffer.
const TRIM_DELAY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Maximum number of idle threads; further ones end.
const MAX_IDLE: usize = 4;
/// How long FORGETs are batched while other requests use the ring, so that removing a tree costs
/// one wake-up per batch and not per file.
const FORGET_BATCH_TIME: Duration = Duration::from_millis(2);

/// Unexpected errors of a thread's reads, in a row. The kernel completes the request that it could
/// not copy, for lack of memory for example, so another read may succeed. A permanent error would
/// otherwise keep a CPU busy and fill the log.
#[derive(Default)]
struct Failures(u32);

impl Failures {
    /// Number of failures in a row after which a thread gives up: about 4 seconds.
    const MAX: u32 = 16;
    /// The first pause, which doubles each time.
    const FIRST_PAUSE: Duration = Duration::from_millis(1);
    const LONGEST_PAUSE: Duration = Duration::from_millis(512);

    /// Counts a failure and returns how long to wait before the next read, or the error if it is
    /// time to give up. Logs the first failure and the last.
    fn pause_after(&mut self, error: Errno) -> Result<Duration, Errno> {
        self.0 += 1;
        match self.0 {
            Self::MAX.. => {
                tracing::error!(%error, "reading /dev/fuse failed {} times: giving up", self.0);
                return Err(error);
            }
            1 => tracing::error!(%error, "reading /dev/fuse failed: trying again"),
            _ => {}
        }
        Ok((Self::FIRST_PAUSE * (1 << (self.0 - 1))).min(Self::LONGEST_PAUSE))
    }
}

/// Opens the device without a connection.
pub(crate) fn open() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Threads that read the device: one permanently, more under load. At the limit, one of them only
/// reads.
pub(crate) struct Readers {
    core: Arc<Core>,
    idle: AtomicUsize,
    backlog: Backlog,
    threads: Mutex<Threads>,
    ended: Condvar,
}

/// Which thread reads the device while a request is served.
enum Next {
    /// A new thread.
    Other,
    /// The thread that was to serve the request. The others are busy, and will become free.
    Caller,
    /// None: there is only one thread.
    Nobody,
}

#[derive(Default)]
struct Threads {
    alive: usize,
    started: usize,
}

impl Readers {
    pub(crate) fn new(core: Arc<Core>) -> Arc<Self> {
        Arc::new(Self {
            core,
            idle: AtomicUsize::new(0),
            backlog: Backlog::default(),
            threads: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    /// Reads and serves on the calling thread until the connection is closed, then waits for the
    /// other threads. Returns false if some still run handlers after `timeout`.
    pub(crate) fn run(self: &Arc<Self>, timeout: Duration) -> bool {
        let session = &self.core.session;
        let reader = Reader::new(self.clone(), session.device.clone())
            .inspect_err(|error| tracing::error!(%error, "cannot read /dev/fuse: no memory for a buffer"));
        if let Err(error) = reader.and_then(|mut reader| reader.run(false)) {
            session.fail(error);
        }
        let deadline = std::time::Instant::now() + timeout;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        while threads.alive > 0 {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return false;
            }
            threads = self.ended.wait_timeout(threads, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Starts another thread, if allowed, because all are busy. Returns which thread continues
    /// reading.
    fn grow(self: &Arc<Self>) -> Next {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.alive + 1 >= self.core.session.options.max_threads {
            return if threads.alive > 0 { Next::Caller } else { Next::Nobody };
        }
        threads.alive += 1;
        threads.started += 1;
        let name = format!("fuse-dev-{}", threads.started);
        drop(threads);
        let readers = self.clone();
        let run = move || {
            sys::block_signals();
            let device = clone_device_fd(&readers.core.session);
            // Without memory, or after repeated errors, the pool has one thread less.
            let mut reader = Reader::new(readers.clone(), device);
            while let Ok(reader) = &mut reader
                && let Ok(End::NotNeeded) = reader.run(true)
            {
                if readers.end_thread() {
                    return;
                }
            }
            readers.thread_ended();
        };
        if let Err(error) = std::thread::Builder::new().name(name).spawn(run) {
            tracing::warn!(%error, "cannot start another thread for /dev/fuse");
            self.thread_ended();
            return if self.has_others() { Next::Caller } else { Next::Nobody };
        }
        Next::Other
    }

    /// Whether threads other than the first exist.
    fn has_others(&self) -> bool {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).alive > 0
    }

    /// Ends a thread that is not needed. Returns false if requests are queued: the thread that
    /// queued them may have counted on this one.
    fn end_thread(&self) -> bool {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let ends = self.backlog.is_empty();
        if ends {
            threads.alive -= 1;
            self.ended.notify_all();
        }
        ends
    }

    /// Starts another thread for queued requests, if allowed. Called by a thread that does not
    /// serve them itself: the others may be ending, or may only read.
    fn grow_for_backlog(self: &Arc<Self>) {
        if !self.backlog.is_empty() {
            let _reader = self.grow();
        }
    }

    fn thread_ended(&self) {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).alive -= 1;
        self.ended.notify_all();
    }
}

/// Returns another descriptor of the connection, or the existing one if cloning fails.
fn clone_device_fd(session: &Session) -> Arc<OwnedFd> {
    clone_of(session).map_or_else(|_| session.device.clone(), Arc::new)
}

/// Returns another descriptor of the connection.
pub(crate) fn clone_of(session: &Session) -> Result<OwnedFd, Errno> {
    let new = open()?;
    sys::clone_device(new.as_fd(), session.device.as_fd()).map(|()| new)
}

/// Why a thread stops reading.
enum End {
    /// The connection is closed.
    Closed,
    /// Enough others are idle.
    NotNeeded,
}

/// State of one reading thread.
struct Reader {
    readers: Arc<Readers>,
    device: Arc<OwnedFd>,
    buffer: Mapping,
    slot: Arc<Slot>,
    pipe: Pipe,
    /// High-water mark of the buffer since memory was last released.
    high_water: usize,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.readers.core.session.inflight.remove_slot(&self.slot);
    }
}

impl Reader {
    fn new(readers: Arc<Readers>, device: Arc<OwnedFd>) -> Result<Self, Errno> {
        let session = &readers.core.session;
        let payload = session.agreed().map_or(crate::abi::MIN_READ_BUFFER, |agreed| agreed.payload);
        let buffer = Mapping::new(HEAD + payload)?;
        let slot = session.inflight.add_slot();
        Ok(Self { readers, device, buffer, slot, pipe: Pipe::new(), high_water: 0 })
    }

    /// Serves until the connection is closed or, if `may_end`, enough other threads are idle. Fails
    /// if reading fails again and again.
    fn run(&mut self, may_end: bool) -> Result<End, Errno> {
        let mut failures = Failures::default();
        loop {
            let idle = self.readers.idle.fetch_add(1, Ordering::SeqCst);
            // A thread that finds another one reading may serve the backlog, or end. Of two threads
            // that arrive together, one finds the other.
            let queued = idle > 0 && !self.readers.backlog.is_empty();
            if queued || (may_end && idle >= MAX_IDLE) {
                // The others may have read requests meanwhile and counted on this one to read.
                if self.readers.idle.fetch_sub(1, Ordering::SeqCst) == 1 {
                    continue;
                }
                if !queued {
                    return Ok(End::NotNeeded);
                }
                if let Some(queued) = self.readers.backlog.take() {
                    self.serve_queued(&queued);
                }
                continue;
            }
            let read = self.read();
            let last = self.readers.idle.fetch_sub(1, Ordering::SeqCst) == 1;
            match read {
                Ok(len) => {
                    failures = Failures::default();
                    self.handle(len, last);
                }
                // The request was cancelled during the read, a signal arrived, or no request was
                // there.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(End::Closed),
                Err(error) => std::thread::sleep(failures.pause_after(error)?),
            }
        }
    }

    fn read(&mut self) -> Result<usize, Errno> {
        if self.high_water > IDLE_BUFFER {
            let mut wanted = [PollFd::new(&*self.device, PollFlags::IN)];
            if poll(&mut wanted, Some(&TRIM_DELAY)) == Ok(0) {
                self.buffer.discard(IDLE_BUFFER..self.high_water.next_multiple_of(4096));
                self.high_water = 0;
            }
        }
        let len = rustix::io::read(&*self.device, self.buffer.bytes())?;
        self.high_water = self.high_water.max(len);
        Ok(len)
    }

    fn handle(&mut self, len: usize, last: bool) {
        let core = self.readers.core.clone();
        let session = &core.session;
        let message = self.buffer.bytes().get(..len).unwrap_or_default();
        let Ok(header) = parse::<InHeader>(message) else {
            return tracing::error!(len, "/dev/fuse returned less than a request header");
        };
        let opcode = Opcode::new(header.opcode);
        if let Some(opcode) = opcode {
            session.counters.device.count(opcode);
        }
        match opcode {
            Some(Opcode::Interrupt) => {
                session.counters.interrupts.fetch_add(1, Ordering::Relaxed);
                if let Ok(interrupt) = parse::<InterruptIn>(message.get(size_of::<InHeader>()..).unwrap_or_default()) {
                    session.inflight.interrupt(interrupt.unique);
                }
            }
            Some(opcode) => {
                if last
                    && !opcode.is_oneway()
                    && matches!(self.readers.grow(), Next::Caller)
                    && self.queue_request(header, len)
                {
                    return;
                }
                self.readers.grow_for_backlog();
                let (slot, device) = (self.slot.clone(), self.device.clone());
                session.inflight.begin(&slot, header.unique);
                self.serve(&core, (header, opcode), len, &slot, device.as_fd());
                if session.ring_is_up() && opcode.is_oneway() {
                    std::thread::sleep(FORGET_BATCH_TIME);
                }
            }
            None => reply(self.device.as_fd(), header.unique, Err(Errno::NOSYS)),
        }
    }

    /// Queues the request just read for the next free thread, and continues reading: only a reading
    /// thread receives interrupts. Returns false if the request has to be served here.
    fn queue_request(&mut self, header: InHeader, len: usize) -> bool {
        let backlog = &self.readers.backlog;
        // Idle threads are reading already.
        if self.readers.idle.load(Ordering::SeqCst) > 0 || !backlog.has_room() {
            return false;
        }
        let message = self.buffer.bytes().get(..len).unwrap_or_default();
        let device = self.device.clone();
        backlog.put(QueuedRequest::new(&self.readers.core.session.inflight, header.unique, message, device));
        self.readers.grow_for_backlog();
        true
    }

    /// Serves a request from the backlog.
    fn serve_queued(&mut self, queued: &QueuedRequest) {
        let core = self.readers.core.clone();
        let (message, len) = (queued.message(), queued.message().len());
        if let (Ok(header), Some(buffer)) = (parse::<InHeader>(message), self.buffer.bytes().get_mut(..len))
            && let Some(opcode) = Opcode::new(header.opcode)
        {
            buffer.copy_from_slice(message);
            self.high_water = self.high_water.max(len);
            self.serve(&core, (header, opcode), len, &queued.slot, queued.device.as_fd());
        }
        core.session.inflight.remove_slot(&queued.slot);
    }

    /// Serves the request of `len` bytes in the buffer, which was read from `device`.
    fn serve(
        &mut self,
        core: &Core,
        (header, opcode): (InHeader, Opcode),
        len: usize,
        slot: &Slot,
        device: BorrowedFd<'_>,
    ) {
        self.pipe.begin(header.unique);
        let (outcome, payload_at) = core.dispatcher.run_message(
            self.buffer.bytes(),
            len,
            (header, opcode),
            (slot.cancelled(), &mut self.pipe),
            &core.session.counters,
        );
        InFlight::end(slot);
        match outcome {
            Outcome::Reply(len) if self.pipe.is_full() => {
                self.reply_from_pipe(core, header.unique, (payload_at, len), device);
            }
            Outcome::Reply(len) => {
                self.high_water = self.high_water.max(payload_at + len);
                let body = self.buffer.bytes().get(payload_at..payload_at + len).unwrap_or_default();
                reply(device, header.unique, Ok(body));
            }
            Outcome::Error(errno) => reply(device, header.unique, Err(errno)),
            Outcome::Nothing | Outcome::MayBlock => {}
        }
    }

    /// Sends the reply from the pipe. If the file ended early, the header in the pipe announces too
    /// much and the reply is copied into the buffer.
    fn reply_from_pipe(&mut self, core: &Core, unique: u64, (payload_at, len): (usize, usize), device: BorrowedFd<'_>) {
        core.session.counters.spliced.fetch_add(1, Ordering::Relaxed);
        if let Some(sent) = self.pipe.send(device) {
            return check_sent(sent);
        }
        self.high_water = self.high_water.max(payload_at + len);
        let body = self.buffer.bytes().get_mut(payload_at..payload_at + len).unwrap_or_default();
        let taken = self.pipe.take(body);
        reply(device, unique, taken.map(|()| &*body));
    }
}

/// Handles the kernel's response to a reply.
fn check_sent(sent: Result<(), Errno>) {
    match sent {
        // ENOENT: the caller was killed. The others: the connection is closed.
        Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED) => {}
        Err(error) => tracing::warn!(%error, "the kernel refused a reply"),
    }
}

/// Sends the reply to request `unique`.
pub(crate) fn reply(device: BorrowedFd<'_>, unique: u64, result: Result<&[u8], Errno>) {
    let (body, error) = result.map_or_else(|errno| (&[][..], -errno.raw_os_error()), |body| (body, 0));
    let len = u32::try_from(size_of::<OutHeader>() + body.len()).unwrap_or(u32::MAX);
    let header = OutHeader { len, error, unique };
    check_sent(rustix::io::writev(device, &[IoSlice::new(header.as_bytes()), IoSlice::new(body)]).map(drop));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::Dispatcher;
    use crate::dummy::Dummy;
    use crate::{Filesystem, MountOptions};
    use std::time::Instant;

    #[test]
    fn a_device_that_cannot_be_read_ends_the_session() {
        // Reading a directory fails with EISDIR.
        let device = rustix::fs::open("/", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let session = Session::of_device(&MountOptions::new("/"), device);
        let fs: Arc<dyn Filesystem> = Arc::new(Dummy::default());
        let core = Arc::new(Core { session: session.clone(), dispatcher: Dispatcher::new(fs, 0, Duration::ZERO) });
        let start = Instant::now();
        assert!(Readers::new(core).run(Duration::ZERO));
        assert_eq!(session.failure(), Some(Errno::ISDIR));
        assert!(start.elapsed() > Duration::from_secs(2));
    }

    #[test]
    fn a_thread_that_was_counted_on_does_not_end() {
        let device = || rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let session = Session::of_device(&MountOptions::new("/"), device());
        let fs: Arc<dyn Filesystem> = Arc::new(Dummy::default());
        let dispatcher = Dispatcher::new(fs, 0, Duration::ZERO);
        let readers = Readers::new(Arc::new(Core { session: session.clone(), dispatcher }));
        readers.threads.lock().unwrap().alive = 1;
        readers.backlog.put(QueuedRequest::new(&session.inflight, 2, b"", Arc::new(device())));
        assert!(!readers.end_thread() && readers.has_others());
        assert!(readers.backlog.take().is_some());
        assert!(readers.end_thread() && !readers.has_others());
    }

    #[test]
    fn pauses_grow_up_to_a_limit() {
        let mut failures = Failures::default();
        let pauses: Vec<_> = std::iter::from_fn(|| failures.pause_after(Errno::FAULT).ok()).collect();
        let ms = |ms| Duration::from_millis(ms);
        assert_eq!(pauses[..3], [ms(1), ms(2), ms(4)]);
        assert_eq!((pauses.len(), pauses[14]), (15, ms(512)));
        assert_eq!(failures.pause_after(Errno::FAULT), Err(Errno::FAULT));
    }
}
