//! A mounted file system, from INIT to the end of the connection.

use crate::abi::{InHeader, InitIn, InitOut, KERNEL_MINOR_VERSION, KERNEL_VERSION, MIN_READ_BUFFER};
use crate::core::Core;
use crate::counters::Counters;
use crate::device::{self, Readers};
use crate::dispatch::Dispatcher;
use crate::inflight::InFlight;
use crate::latency::LatencySnapshot;
use crate::mount::{self, Attached, Mounter, Prepared};
use crate::mount_user::Spawner;
use crate::notice_thread::NoticeThread;
use crate::request::parse;
use crate::ring::{self, Plan, Rings};
use crate::sys::Mapping;
use crate::{
    Agreed, CounterSnapshot, Errno, Filesystem, InitConfig, MountError, MountOptions, Opcode, Transport, flags,
};
use crate::{fusermount, init, sys};
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use zerocopy::{FromZeros, IntoBytes};

/// How long closing a session waits for running handlers.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// A mounted file system, from mount to unmount.
pub struct Session {
    pub(crate) device: Arc<OwnedFd>,
    pub(crate) options: MountOptions,
    pub(crate) counters: Counters,
    pub(crate) inflight: InFlight,
    pub(crate) notices: NoticeThread,
    mountpoint: PathBuf,
    attached: Attached,
    agreed: OnceLock<Agreed>,
    hint: OnceLock<&'static str>,
    /// See [`Session::file_system_number`].
    number: OnceLock<u32>,
    ring: AtomicBool,
    /// Registered backing files, for cleanup: see [`Session::close_backings`].
    pub(crate) backings: Mutex<HashSet<i32>>,
    /// Why the session ended while the file system was still mounted.
    failure: OnceLock<Errno>,
    ended: Mutex<bool>,
    end: Condvar,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("mountpoint", &self.mountpoint).field("agreed", &self.agreed.get()).finish()
    }
}

impl Session {
    /// Mounts `fs`. Returns once INIT is complete and the mount is usable. Threads of the session
    /// serve the requests; they block all signals.
    ///
    /// # Errors
    /// The step that failed and the reason. Nothing stays mounted then.
    #[expect(clippy::needless_pass_by_value, reason = "the session keeps it while mounted")]
    pub fn mount(options: &MountOptions, fs: Arc<dyn Filesystem>) -> Result<Arc<Self>, MountError> {
        let mountpoint = std::fs::canonicalize(&options.mountpoint).map_err(|error| {
            MountError::new("finding the mount point", error).with_detail(options.mountpoint.display().to_string())
        })?;
        let direct = match options.mounter {
            Mounter::Auto => rustix::process::geteuid().is_root(),
            Mounter::Direct => true,
            Mounter::Fusermount => false,
        };
        if direct {
            Self::mount_direct(options, mountpoint, &fs)
        } else {
            Self::mount_as_user(options, mountpoint, &fs)
        }
    }

    fn mount_direct(
        options: &MountOptions,
        mountpoint: PathBuf,
        fs: &Arc<dyn Filesystem>,
    ) -> Result<Arc<Self>, MountError> {
        let device = device::open().map_err(|error| MountError::new("opening /dev/fuse", error))?;
        // Since Linux 6.18: creating the superblock waits for INIT and reports its failure.
        let synchronous = sys::sync_init(device.as_fd()).is_ok();
        let session = Self::new(options, device, mountpoint, Attached::Direct);
        let early = if synchronous { Some(session.serve(fs)?) } else { None };
        let prepared = match mount::prepare(options, &session.mountpoint, &session.device) {
            Ok(prepared) => prepared,
            // If the server refused, its own reason is more precise.
            Err(error) => return Err(early.and_then(|early| refusal(&early)).unwrap_or(error)),
        };
        let started = early.map_or_else(|| session.serve(fs), Ok)?;
        let attached = await_start(&started).and_then(|()| {
            session.note_number(&prepared);
            session.raise_readahead(&prepared);
            mount::fetch_root(&prepared, &session.mountpoint);
            mount::attach(&prepared, &session.mountpoint)
        });
        if attached.is_err() && matches!(prepared, Prepared::Done) {
            let _gone = mount::abort(&session.mountpoint);
        }
        attached.map(|()| session)
    }

    fn mount_as_user(
        options: &MountOptions,
        mountpoint: PathBuf,
        fs: &Arc<dyn Filesystem>,
    ) -> Result<Arc<Self>, MountError> {
        let device = fusermount::mount(options, &mountpoint)?;
        let session = Self::new(options, device, mountpoint, Attached::Fusermount);
        let result = session.serve(fs).and_then(|started| await_start(&started));
        if result.is_err() {
            let _gone = fusermount::unmount(&session.mountpoint, true);
        }
        result.map(|()| {
            session.note_number(&Prepared::Done);
            mount::fetch_root(&Prepared::Done, &session.mountpoint);
            session.warn_about_readahead();
            session
        })
    }

    /// Serves the device of a [`crate::Connection`] that another process may have created. Returns
    /// once INIT is complete. [`Self::stop`] has no effect: the session ends when the file system
    /// is no longer mounted anywhere.
    ///
    /// # Errors
    /// The step that failed and the reason.
    #[expect(clippy::needless_pass_by_value, reason = "the session keeps it while mounted")]
    pub fn serve_device(
        options: &MountOptions,
        device: OwnedFd,
        fs: Arc<dyn Filesystem>,
    ) -> Result<Arc<Self>, MountError> {
        let session = Self::new(options, device, options.mountpoint.clone(), Attached::Elsewhere);
        session.serve(&fs).and_then(|started| await_start(&started))?;
        Ok(session)
    }

    /// Returns a session that is not mounted and reads `device`.
    #[cfg(test)]
    pub(crate) fn of_device(options: &MountOptions, device: OwnedFd) -> Arc<Self> {
        Self::new(options, device, PathBuf::from("/"), Attached::Direct)
    }

    fn new(options: &MountOptions, device: OwnedFd, mountpoint: PathBuf, attached: Attached) -> Arc<Self> {
        Arc::new(Self {
            device: Arc::new(device),
            options: options.clone(),
            counters: Counters::new(usize::from(ring::possible_cpus())),
            inflight: InFlight::default(),
            notices: NoticeThread::default(),
            mountpoint,
            attached,
            agreed: OnceLock::new(),
            hint: OnceLock::new(),
            number: OnceLock::new(),
            ring: AtomicBool::new(false),
            backings: Mutex::default(),
            failure: OnceLock::new(),
            ended: Mutex::new(false),
            end: Condvar::new(),
        })
    }

    /// Notes the number of the file system that was just mounted.
    fn note_number(&self, prepared: &Prepared) {
        let number = mount::root_of(prepared, &self.mountpoint).map(|root| {
            // Anonymous file systems, as FUSE's, have numbers of 32 bits.
            u32::try_from(rustix::fs::makedev(root.stx_dev_major, root.stx_dev_minor))
        });
        if let Ok(Ok(number)) = number {
            let _unchanged = self.number.set(number);
        }
    }

    /// Returns the `st_dev` of the file system. `None` until it is mounted, and if another process
    /// mounted it.
    pub(crate) fn file_system_number(&self) -> Option<u32> {
        self.number.get().copied()
    }

    /// Returns a session without a kernel.
    #[cfg(test)]
    pub(crate) fn unmounted(options: &MountOptions, device: OwnedFd) -> Arc<Self> {
        Self::new(options, device, options.mountpoint.clone(), Attached::Direct)
    }

    /// Starts the thread that replies to INIT and then reads the device. The receiver reports when
    /// the mount is usable.
    fn serve(self: &Arc<Self>, fs: &Arc<dyn Filesystem>) -> Result<Receiver<Result<(), MountError>>, MountError> {
        let (report, started) = sync_channel(1);
        let (session, fs) = (self.clone(), fs.clone());
        std::thread::Builder::new()
            .name("fuse-device".to_owned())
            .spawn(move || {
                sys::block_signals();
                session.life(&fs, &report);
                session.close_backings();
                session.notices.close();
                drop(fs);
                *session.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
                session.end.notify_all();
            })
            .map_err(|error| MountError::new("starting a thread", error))?;
        Ok(started)
    }

    /// Serves from INIT until the connection is closed.
    fn life(self: &Arc<Self>, fs: &Arc<dyn Filesystem>, report: &SyncSender<Result<(), MountError>>) {
        let (core, rings) = match self.start(fs) {
            Ok(started) => started,
            Err(error) => {
                let _nobody_waits = report.send(Err(error));
                return;
            }
        };
        if let Some(rings) = &rings {
            self.ring.store(true, Ordering::Release);
            rings.start(&core);
        }
        let _nobody_waits = report.send(Ok(()));
        let mut all = Readers::new(core).run(SHUTDOWN_TIMEOUT);
        if let Some(rings) = rings {
            all &= rings.join(SHUTDOWN_TIMEOUT);
        }
        if all {
            fs.destroy();
        } else {
            tracing::warn!("handlers still run after the connection was closed: destroy is not called");
        }
    }

    /// Replies to INIT.
    fn start(self: &Arc<Self>, fs: &Arc<dyn Filesystem>) -> Result<(Arc<Core>, Option<Rings>), MountError> {
        let (header, real_offer) = self.read_init()?;
        let offer = init::reduce(&real_offer, self.options.refuse, self.options.max_minor);
        let refuse = |error| {
            device::reply(self.device.as_fd(), header.unique, Err(Errno::PROTO));
            error
        };
        if !init::is_supported(&offer) {
            return Err(refuse(MountError::without_reason(
                "agreeing on the FUSE protocol",
                format!("the kernel speaks {}.{}, not 7.31 or newer", offer.major, offer.minor),
            )));
        }
        self.notices.start(self);
        let mut init_config = fs.init(self, &offer);
        init_config.max_readahead = self.options.readahead.unwrap_or(init_config.max_readahead);
        let rings = self.rings(&offer, &init_config).map_err(refuse)?;
        let (agreed, out) = init::agree(&offer, &init_config, rings.is_some());
        let _once = self.agreed.set(agreed);
        device::reply(self.device.as_fd(), header.unique, Ok(out.as_bytes()));
        let dispatcher = Dispatcher::new(fs.clone(), agreed.flags, agreed.negative_timeout);
        Ok((Arc::new(Core { session: self.clone(), dispatcher }), rings))
    }

    fn read_init(&self) -> Result<(InHeader, InitIn), MountError> {
        let failed = |error| MountError::new("reading the kernel's first request", error);
        let mut buffer = Mapping::new(MIN_READ_BUFFER).map_err(failed)?;
        loop {
            let len = match rustix::io::read(&*self.device, buffer.bytes()) {
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
                result => result.map_err(failed)?,
            };
            let message = buffer.bytes().get(..len).unwrap_or_default();
            let header: InHeader = parse(message).map_err(failed)?;
            if Opcode::new(header.opcode) != Some(Opcode::Init) {
                return Err(failed(Errno::PROTO));
            }
            self.counters.device.count(Opcode::Init);
            let mut offer = InitIn::new_zeroed();
            let body = message.get(size_of::<InHeader>()..).unwrap_or_default();
            for (to, from) in offer.as_mut_bytes().iter_mut().zip(body) {
                *to = *from;
            }
            if offer.major <= KERNEL_VERSION {
                return Ok((header, offer));
            }
            // A kernel with a newer major version repeats INIT in our version.
            let ours = InitOut { major: KERNEL_VERSION, minor: KERNEL_MINOR_VERSION, ..InitOut::new_zeroed() };
            device::reply(self.device.as_fd(), header.unique, Ok(ours.as_bytes()));
        }
    }

    /// Creates the rings if the kernel offers them and the options ask for them.
    fn rings(self: &Arc<Self>, offer: &InitIn, init_config: &InitConfig) -> Result<Option<Rings>, MountError> {
        let offered = offer.all_flags() & flags::OVER_IO_URING != 0;
        let wanted = self.options.transport;
        if !offered && ring_is_switched_off() {
            let _once = self.hint.set(RING_HINT);
        }
        match (wanted, offered) {
            (Transport::Device, _) | (Transport::Auto, false) => return Ok(None),
            (Transport::Ring, false) => {
                let why = self.hint().unwrap_or("this kernel does not offer it: needs Linux 6.14 or newer");
                return Err(MountError::without_reason("using the io_uring transport", why));
            }
            (_, true) => {}
        }
        let spawner = Spawner::start().map_err(|error| MountError::new("starting a thread", error))?;
        let plan = Plan {
            device: self.device.clone(),
            depth: self.options.depth,
            payload: init::agree(offer, init_config, true).0.payload,
            workers: self.options.max_workers,
            spawner,
        };
        match Rings::prepare(self, &plan) {
            Ok(rings) => Ok(Some(rings)),
            Err(error) if wanted == Transport::Ring => Err(MountError::new("creating the io_uring queues", error)),
            Err(error) => {
                tracing::warn!(%error, "io_uring is not available: requests use /dev/fuse");
                Ok(None)
            }
        }
    }

    /// Records that the kernel refused the ring and sends everything to the device.
    pub(crate) fn ring_failed(&self) {
        self.ring.store(false, Ordering::Release);
    }

    /// Whether requests arrive over the ring.
    #[must_use]
    pub fn ring_is_up(&self) -> bool {
        self.ring.load(Ordering::Acquire)
    }

    /// Returns the result of INIT; `None` until INIT is complete.
    #[must_use]
    pub fn agreed(&self) -> Option<&Agreed> {
        self.agreed.get()
    }

    /// Returns a one-line hint for the administrator on making this mount faster, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        self.hint.get().copied()
    }

    /// Returns the counters since mounting.
    #[must_use]
    pub fn counters(&self) -> CounterSnapshot {
        self.counters.snapshot()
    }

    /// Returns how long the handlers of each opcode took while that was measured, since
    /// [`Session::start_latencies`].
    #[must_use]
    pub fn latencies(&self) -> Vec<LatencySnapshot> {
        self.counters.latencies.snapshot()
    }

    /// Whether the time of handlers is measured.
    #[must_use]
    pub fn measures_latencies(&self) -> bool {
        self.counters.latencies.is_measuring()
    }

    /// Starts to measure the time of handlers, from zero.
    pub fn start_latencies(&self) {
        self.counters.latencies.start();
    }

    /// Stops to measure the time of handlers. The results remain.
    pub fn stop_latencies(&self) {
        self.counters.latencies.stop();
    }

    /// Returns the mount point.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Blocks until the file system is unmounted (or the connection aborted) and its threads have
    /// ended.
    pub fn wait(&self) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        while !*ended {
            ended = self.end.wait(ended).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Records why the session ends although the file system is mounted.
    pub(crate) fn fail(&self, error: Errno) {
        let _once = self.failure.set(error);
    }

    /// Returns the error if the session ended because /dev/fuse could not be read. The file system
    /// is then still mounted, and every operation on it fails once the process has exited.
    #[must_use]
    pub fn failure(&self) -> Option<Errno> {
        self.failure.get().copied()
    }

    /// Unmounts, lazily if the file system is in use; [`Session::wait`] waits until it no longer
    /// is.
    ///
    /// # Errors
    /// If unmounting fails, most often because the file system was unmounted already.
    pub fn stop(&self) -> Result<(), MountError> {
        self.check_at_mountpoint()?;
        mount::detach(self.attached, &self.mountpoint, true)
    }

    /// Fails if another file system is at the mount point: this one was detached there, or another
    /// one covers it.
    fn check_at_mountpoint(&self) -> Result<(), MountError> {
        let there = mount::root_of(&Prepared::Done, &self.mountpoint);
        let there = there.map(|root| rustix::fs::makedev(root.stx_dev_major, root.stx_dev_minor));
        match (self.file_system_number(), there) {
            (Some(own), Ok(there)) if u64::from(own) != there => {
                Err(MountError::without_reason("unmounting", "it was detached before, or another mount covers it"))
            }
            _ => Ok(()),
        }
    }

    /// Aborts the connection at once: operations on open files fail from now on. Needs root.
    ///
    /// # Errors
    /// If umount2(2) fails.
    pub fn abort(&self) -> Result<(), MountError> {
        self.check_at_mountpoint()?;
        mount::abort(&self.mountpoint)
    }
}

/// Hint for enabling the ring.
const RING_HINT: &str = "FUSE over io_uring is switched off; for about twice the speed of metadata operations: \
    echo Y > /sys/module/fuse/parameters/enable_uring";

/// Whether the kernel supports the ring but has it disabled.
fn ring_is_switched_off() -> bool {
    std::fs::read("/sys/module/fuse/parameters/enable_uring").is_ok_and(|value| value.starts_with(b"N"))
}

fn await_start(started: &Receiver<Result<(), MountError>>) -> Result<(), MountError> {
    started.recv().unwrap_or_else(|_| Err(thread_ended()))
}

/// Returns the server's reason for refusing INIT, or `None` if it never received one. Its thread
/// then waits for INIT until the process ends: nothing can wake it without a connection.
fn refusal(started: &Receiver<Result<(), MountError>>) -> Option<MountError> {
    started.recv_timeout(Duration::from_millis(500)).ok()?.err()
}

fn thread_ended() -> MountError {
    MountError::without_reason("replying to the kernel's first request", "its thread ended")
}
