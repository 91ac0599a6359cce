//! Threads that use the server's own mount.
//!
//! The kernel ends a connection when the last descriptor of its device is closed, and then
//! everything that waits for a reply. If the server is killed, a thread that waits for a reply of
//! its own server cannot end before that. It would keep the descriptor table that it shares with
//! the other threads, hence the device, and wait forever: an unkillable process, a file system
//! that cannot be unmounted, and a sync(2) that hangs. So such a thread gets its own table, without
//! the device.

use crate::{Errno, sys};
use std::io;
use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};

/// Starts a thread that may wait for replies of this server. `file` is its only descriptor: not
/// even the standard streams are open. If the kernel refuses a separate table (before Linux 5.9, or
/// a seccomp filter), the thread shares that of the process.
///
/// # Safety
/// `work` neither owns nor borrows another descriptor.
///
/// # Errors
/// The thread cannot be started.
pub(crate) unsafe fn spawn(
    name: String,
    file: Option<OwnedFd>,
    work: impl FnOnce(Option<OwnedFd>) + Send + 'static,
) -> io::Result<()> {
    let number = file.map(OwnedFd::into_raw_fd);
    // SAFETY: `into_raw_fd` gave up the ownership. It is taken once per table: by the new thread,
    // and, if that has its own table or does not exist, by this one.
    let own = move || number.map(|number| unsafe { OwnedFd::from_raw_fd(number) });
    let (report, separated) = sync_channel(1);
    let run = move || {
        sys::block_signals();
        // SAFETY: the caller vouches for `work`; the channel has no descriptor.
        let separate = unsafe { sys::separate_files(number) };
        let _received = report.send(separate);
        work(own());
    };
    let started = std::thread::Builder::new().name(name).spawn(run);
    // Without a descriptor there is nothing to wait for.
    if started.is_err() || (number.is_some() && separated.recv() == Ok(true)) {
        drop(own());
    }
    started.map(drop)
}

/// A thread's name, what it does, and where to report whether it was started.
type Thread = (String, Box<dyn FnOnce() + Send>, SyncSender<io::Result<()>>);

/// Starts threads like [`spawn`], without a descriptor, while the mount is in use.
///
/// To leave a descriptor table is to close one's copies of what is in it, and closing a file on
/// NFS or on another FUSE file system waits for its server, which may hang. So one thread leaves
/// the table before the mount opens files, and starts the others, which share its own, empty one.
/// It ends when the last clone of this value is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Spawner(Sender<Thread>);

impl Spawner {
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start() -> io::Result<Self> {
        let (threads, wanted) = channel::<Thread>();
        let run = move |_| {
            while let Ok((name, work, report)) = wanted.recv() {
                let _received = report.send(std::thread::Builder::new().name(name).spawn(work).map(drop));
            }
        };
        // SAFETY: `run` has no descriptor, nor has what it receives.
        unsafe { spawn("fuse-spawner".to_owned(), None, run) }?;
        Ok(Self(threads))
    }

    /// Starts a thread.
    ///
    /// # Safety
    /// `work` neither owns nor borrows a descriptor.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) unsafe fn spawn(&self, name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let (report, started) = sync_channel(1);
        let _ended = self.0.send((name, Box::new(work), report));
        started.recv().unwrap_or_else(|_| Err(Errno::SRCH.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    #[test]
    fn the_thread_has_only_its_file() {
        let kept = std::fs::File::open("/dev/null").unwrap();
        let file = rustix::fs::open("/proc/self", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        let (done, seen) = sync_channel(1);
        let work = move |file: Option<OwnedFd>| {
            // The directory itself takes a descriptor while it is read.
            let open = std::fs::read_dir("/proc/thread-self/fd").unwrap().count();
            let usable = rustix::fs::fstat(file.as_ref().unwrap()).is_ok();
            drop(file);
            done.send((open, usable)).unwrap();
        };
        // SAFETY: `work` has no descriptor.
        unsafe { spawn("test".to_owned(), Some(file), work) }.unwrap();
        assert_eq!(seen.recv(), Ok((2, true)));
        // The copy of this table is closed: its number is free, or names another file by now.
        let path = std::fs::read_link(format!("/proc/self/fd/{number}"));
        assert!(path.is_err() || path.unwrap() != std::path::Path::new("/proc"));
        assert!(rustix::fs::fstat(kept.as_fd()).is_ok());
    }

    #[test]
    fn threads_started_later_have_no_files() {
        let spawner = Spawner::start().unwrap();
        let kept = std::fs::File::open("/dev/null").unwrap();
        for _ in 0..2 {
            let (done, seen) = sync_channel(1);
            let work = move || {
                // The directory itself takes a descriptor while it is read.
                done.send(std::fs::read_dir("/proc/thread-self/fd").unwrap().count()).unwrap();
            };
            // SAFETY: `work` has no descriptor.
            unsafe { spawner.spawn("test".to_owned(), work) }.unwrap();
            assert_eq!(seen.recv(), Ok(1));
        }
        assert!(rustix::fs::fstat(kept.as_fd()).is_ok());
    }
}
