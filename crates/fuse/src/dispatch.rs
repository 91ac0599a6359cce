//! Decodes requests, calls the handlers and encodes their replies. Shared by both transports, and
//! free of I/O.

use crate::abi::{self, CopyFileRangeIn, CopyFileRangeOut, EntryOut, ForgetOne, InHeader, OpenOut, RenameFlags2};
use crate::counters::Counters;
use crate::notify::KICK;
use crate::pipe::{self, Pipe};
use crate::request::{first_argument_len, parse, split_name};
use crate::{Errno, Filesystem, MAY_BLOCK, Opcode, Request, flags, trace};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use zerocopy::{FromZeros, Immutable, IntoBytes};
use zeroize::{Zeroize as _, Zeroizing};

/// Longest symbolic link target that the kernel accepts, in bytes.
const READLINK_MAX: usize = 4095;
/// Maximum number of bytes per COPY_FILE_RANGE: its reply has 32 bits, and the kernel expects whole
/// pages.
const COPY_MAX: u64 = 0xffff_f000;
/// Longest name of an extended attribute, in bytes.
const XATTR_NAME_MAX: usize = 255;
/// Number of forgotten nodes per call of the handler.
const FORGET_CHUNK: usize = 64;

/// Upper bound of the first argument's size, in bytes.
const FIRST_MAX: usize = 128;

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Success; the reply's body is this many bytes at the start of the payload.
    Reply(usize),
    /// The request failed.
    Error(Errno),
    /// The request has no reply.
    Nothing,
    /// Nothing was done: a thread that may block is needed. The payload still holds the request.
    MayBlock,
}

/// One request, as delivered by a transport.
pub(crate) struct Frame<'a> {
    pub(crate) header: InHeader,
    pub(crate) opcode: Opcode,
    /// The opcode's first argument. May be longer, with arbitrary bytes after it.
    pub(crate) first: &'a [u8],
    /// The rest of the request in the first `len` bytes; the whole slice is room for the reply.
    pub(crate) payload: &'a mut [u8],
    pub(crate) len: usize,
    pub(crate) may_block: bool,
    pub(crate) cancelled: &'a AtomicBool,
    /// Where a large READ may put its reply instead, if the transport can send it from there.
    pub(crate) pipe: Option<&'a mut Pipe>,
}

/// Calls the handlers of a file system.
pub(crate) struct Dispatcher {
    fs: Arc<dyn Filesystem>,
    negative_timeout: Duration,
    setxattr_ext: bool,
}

impl Dispatcher {
    pub(crate) fn new(fs: Arc<dyn Filesystem>, agreed_flags: u64, negative_timeout: Duration) -> Self {
        Self { fs, negative_timeout, setxattr_ext: agreed_flags & flags::SETXATTR_EXT != 0 }
    }

    /// Returns the file system.
    pub(crate) fn fs(&self) -> &dyn Filesystem {
        &*self.fs
    }

    /// Returns how many bytes after the header are the first argument.
    pub(crate) const fn first_argument_len(&self, opcode: Opcode) -> usize {
        first_argument_len(opcode, self.setxattr_ext)
    }

    /// Runs the request's handler. If it panics, the request fails with `EIO`.
    pub(crate) fn run(&self, frame: &mut Frame<'_>, counters: &Counters) -> Outcome {
        let (opcode, begun) = (frame.opcode, counters.latencies.begin());
        let outcome = if tracing::enabled!(tracing::Level::TRACE) {
            trace::traced(frame, |frame| self.run_handler(frame, counters))
        } else {
            self.run_handler(frame, counters)
        };
        // It runs again on a thread that may block.
        if let Some(begun) = begun.filter(|_| outcome != Outcome::MayBlock) {
            counters.latencies.record(opcode, begun.elapsed());
        }
        outcome
    }

    fn run_handler(&self, frame: &mut Frame<'_>, counters: &Counters) -> Outcome {
        let result = catch_unwind(AssertUnwindSafe(|| self.handle(frame, counters)));
        if frame.opcode.is_oneway() {
            return Outcome::Nothing;
        }
        match result {
            Ok(Ok(len)) => Outcome::Reply(len),
            Ok(Err(MAY_BLOCK)) if !frame.may_block => Outcome::MayBlock,
            Ok(Err(errno)) => Outcome::Error(valid_errno(errno, frame.opcode)),
            Err(_) => {
                tracing::error!(
                    opcode = %frame.opcode,
                    node = frame.header.nodeid,
                    "a handler panicked: the request fails with EIO"
                );
                Outcome::Error(Errno::IO)
            }
        }
    }

    /// Handles a contiguous request at the start of `buffer`, as delivered by the device. Also
    /// returns where in `buffer` the reply's body starts.
    pub(crate) fn run_message(
        &self,
        buffer: &mut [u8],
        len: usize,
        (header, opcode): (InHeader, Opcode),
        (cancelled, pipe): (&AtomicBool, &mut Pipe),
        counters: &Counters,
    ) -> (Outcome, usize) {
        let at = size_of::<InHeader>();
        let payload_at = at + self.first_argument_len(opcode);
        let mut copy = [0; FIRST_MAX];
        let first = buffer.get(at..payload_at).and_then(|from| {
            let to = copy.get_mut(..from.len())?;
            to.copy_from_slice(from);
            Some(&*to)
        });
        let (Some(first), Some(payload)) = (first, buffer.get_mut(payload_at..)) else {
            return (incomplete(opcode), at);
        };
        let Some(payload_len) = len.checked_sub(payload_at).filter(|_| len == header.len as usize) else {
            return (incomplete(opcode), at);
        };
        let (len, pipe) = (payload_len, Some(pipe));
        let mut frame = Frame { header, opcode, first, payload, len, may_block: true, cancelled, pipe };
        (self.run(&mut frame, counters), payload_at)
    }

    /// Dispatches the opcode by its group. The match is exhaustive, so no opcode can be missed.
    fn handle(&self, frame: &mut Frame<'_>, counters: &Counters) -> Result<usize, Errno> {
        let Frame { header, opcode, first, len, may_block, cancelled, .. } = *frame;
        let extensions_len = usize::from(header.total_extlen) * 8;
        if len > frame.payload.len() || extensions_len > len {
            return Err(Errno::IO);
        }
        let rq = Request::new(&header, opcode, may_block, cancelled, &[]);
        match opcode {
            Opcode::Symlink | Opcode::Mknod | Opcode::Mkdir | Opcode::Create | Opcode::Tmpfile => {
                self.creation(frame, counters, extensions_len)
            }
            Opcode::Lookup
            | Opcode::Unlink
            | Opcode::Rmdir
            | Opcode::Rename
            | Opcode::Rename2
            | Opcode::Link
            | Opcode::Readdir
            | Opcode::Readdirplus => self.names(&rq, first, frame.payload, len),
            Opcode::Getattr
            | Opcode::Setattr
            | Opcode::Statx
            | Opcode::Readlink
            | Opcode::Statfs
            | Opcode::Access
            | Opcode::Setxattr
            | Opcode::Getxattr
            | Opcode::Listxattr
            | Opcode::Removexattr => self.attributes(&rq, first, frame.payload, len),
            Opcode::Open
            | Opcode::Opendir
            | Opcode::Flush
            | Opcode::Release
            | Opcode::Releasedir
            | Opcode::Fsync
            | Opcode::Fsyncdir
            | Opcode::Syncfs
            | Opcode::Getlk
            | Opcode::Setlk
            | Opcode::Setlkw => self.open_files(&rq, first, frame.payload, counters),
            Opcode::Read
            | Opcode::Write
            | Opcode::Fallocate
            | Opcode::Lseek
            | Opcode::CopyFileRange
            | Opcode::CopyFileRange64
            | Opcode::Bmap
            | Opcode::Ioctl
            | Opcode::Poll => self.data(&rq, first, (frame.payload, len), frame.pipe.as_deref_mut()),
            Opcode::Forget | Opcode::BatchForget | Opcode::NotifyReply | Opcode::Destroy => {
                self.oneway(&rq, first, frame.payload.get(..len).unwrap_or_default(), counters)
            }
            // The transport handles INIT and INTERRUPT; DAX needs its own device.
            Opcode::Init | Opcode::Interrupt | Opcode::Setupmapping | Opcode::Removemapping => Err(Errno::NOSYS),
        }
    }

    /// Directory entries.
    fn names(&self, rq: &Request<'_>, first: &[u8], payload: &mut [u8], len: usize) -> Result<usize, Errno> {
        let (fs, node) = (self.fs(), rq.node);
        match rq.opcode {
            Opcode::Lookup => {
                let entry = fs.lookup(rq, node, name(payload, len)?)?;
                put(payload, &entry.map_or_else(|| self.negative(), Ok)?)
            }
            Opcode::Unlink => fs.unlink(rq, node, name(payload, len)?).map(|()| 0),
            Opcode::Rmdir => fs.rmdir(rq, node, name(payload, len)?).map(|()| 0),
            Opcode::Rename => {
                let arg: abi::RenameIn = parse(first)?;
                let (old, new) = two_names(payload, len)?;
                fs.rename(rq, node, old, arg.newdir, new, RenameFlags2::default()).map(|()| 0)
            }
            Opcode::Rename2 => {
                let arg: abi::Rename2In = parse(first)?;
                let (old, new) = two_names(payload, len)?;
                fs.rename(rq, node, old, arg.newdir, new, RenameFlags2(arg.flags)).map(|()| 0)
            }
            Opcode::Link => {
                let arg: abi::LinkIn = parse(first)?;
                put(payload, &fs.link(rq, arg.oldnodeid, node, name(payload, len)?)?)
            }
            Opcode::Readdir => {
                let arg: abi::ReadIn = parse(first)?;
                fill(payload, arg.size as usize, |out| fs.readdir(rq, node, &arg, out))
            }
            Opcode::Readdirplus => {
                let arg: abi::ReadIn = parse(first)?;
                fill(payload, arg.size as usize, |out| fs.readdirplus(rq, node, &arg, out))
            }
            _ => Err(Errno::NOSYS),
        }
    }

    /// Attributes and extended attributes.
    fn attributes(&self, rq: &Request<'_>, first: &[u8], payload: &mut [u8], len: usize) -> Result<usize, Errno> {
        let (fs, node) = (self.fs(), rq.node);
        match rq.opcode {
            Opcode::Getattr => put(payload, &fs.getattr(rq, node, &parse(first)?)?),
            Opcode::Setattr => put(payload, &fs.setattr(rq, node, &parse(first)?)?),
            Opcode::Statx => put(payload, &fs.statx(rq, node, &parse(first)?)?),
            Opcode::Readlink => fill(payload, READLINK_MAX, |out| fs.readlink(rq, node, out)),
            Opcode::Statfs => put(payload, &abi::StatfsOut { st: fs.statfs(rq, node)? }),
            Opcode::Access => fs.access(rq, node, parse::<abi::AccessIn>(first)?.mask).map(|()| 0),
            Opcode::Setxattr => self.setxattr(rq, first, payload.get(..len).unwrap_or_default()),
            Opcode::Getxattr => getxattr(fs, rq, first, payload, len),
            Opcode::Listxattr => {
                let arg: abi::GetxattrIn = parse(first)?;
                xattr_reply(payload, arg.size, |out| fs.listxattr(rq, node, out))
            }
            Opcode::Removexattr => fs.removexattr(rq, node, name(payload, len)?).map(|()| 0),
            _ => Err(Errno::NOSYS),
        }
    }

    /// Open files: open, lock, sync, close.
    fn open_files(
        &self,
        rq: &Request<'_>,
        first: &[u8],
        payload: &mut [u8],
        counters: &Counters,
    ) -> Result<usize, Errno> {
        let (fs, node) = (self.fs(), rq.node);
        match rq.opcode {
            Opcode::Open => {
                let out = fs.open(rq, node, &parse(first)?)?;
                count_passthrough(counters, &out);
                put(payload, &out)
            }
            Opcode::Opendir => put(payload, &fs.opendir(rq, node, parse::<abi::OpenIn>(first)?.flags)?),
            Opcode::Flush => {
                let arg: abi::FlushIn = parse(first)?;
                fs.flush(rq, node, arg.fh, arg.lock_owner).map(|()| 0)
            }
            Opcode::Release => fs.release(rq, node, &parse(first)?).map(|()| 0),
            Opcode::Releasedir => fs.releasedir(rq, node, &parse(first)?).map(|()| 0),
            Opcode::Fsync | Opcode::Fsyncdir => {
                let arg: abi::FsyncIn = parse(first)?;
                let data_only = arg.fsync_flags & abi::FSYNC_FDATASYNC != 0;
                let is_file = rq.opcode == Opcode::Fsync;
                if is_file { fs.fsync(rq, node, arg.fh, data_only) } else { fs.fsyncdir(rq, node, arg.fh, data_only) }
                    .map(|()| 0)
            }
            Opcode::Syncfs => fs.syncfs(rq, node).map(|()| 0),
            Opcode::Getlk => put(payload, &fs.getlk(rq, node, &parse(first)?)?),
            Opcode::Setlk => fs.setlk(rq, node, &parse(first)?, false).map(|()| 0),
            Opcode::Setlkw => fs.setlk(rq, node, &parse(first)?, true).map(|()| 0),
            _ => Err(Errno::NOSYS),
        }
    }

    /// File data, and opcodes without a group.
    fn data(
        &self,
        rq: &Request<'_>,
        first: &[u8],
        (payload, len): (&mut [u8], usize),
        pipe: Option<&mut Pipe>,
    ) -> Result<usize, Errno> {
        let (fs, node) = (self.fs(), rq.node);
        match rq.opcode {
            Opcode::Read => {
                let arg: abi::ReadIn = parse(first)?;
                let size = arg.size as usize;
                if let Some(pipe) = pipe.filter(|_| size >= pipe::MIN_REPLY && size <= payload.len())
                    && let Some(len) = fs.read_host(rq, node, &arg, &mut |file| pipe.fill(file, arg.offset, size))?
                {
                    return if len <= size { Ok(len) } else { Err(Errno::IO) };
                }
                fill(payload, size, |out| fs.read(rq, node, &arg, out))
            }
            Opcode::Write => {
                let arg: abi::WriteIn = parse(first)?;
                let data = payload.get(..len).and_then(|p| p.get(..arg.size as usize)).ok_or(Errno::IO)?;
                let size = fs.write(rq, node, &arg, data)?;
                if size > arg.size { Err(Errno::IO) } else { put(payload, &abi::WriteOut { size, padding: 0 }) }
            }
            Opcode::Fallocate => fs.fallocate(rq, node, &parse(first)?).map(|()| 0),
            Opcode::Lseek => put(payload, &abi::LseekOut { offset: fs.lseek(rq, node, &parse(first)?)? }),
            Opcode::CopyFileRange => {
                let mut arg: CopyFileRangeIn = parse(first)?;
                arg.len = arg.len.min(COPY_MAX);
                let size = u32::try_from(fs.copy_file_range(rq, node, &arg)?).map_err(|_| Errno::IO)?;
                put(payload, &abi::WriteOut { size, padding: 0 })
            }
            Opcode::CopyFileRange64 => {
                let bytes_copied = fs.copy_file_range(rq, node, &parse(first)?)?;
                put(payload, &CopyFileRangeOut { bytes_copied })
            }
            Opcode::Bmap => {
                let arg: abi::BmapIn = parse(first)?;
                put(payload, &abi::BmapOut { block: fs.bmap(rq, node, arg.block, arg.blocksize)? })
            }
            Opcode::Ioctl => ioctl(fs, rq, first, payload, len),
            Opcode::Poll => {
                let arg: abi::PollIn = parse(first)?;
                let revents = fs.poll(rq, node, arg.fh, arg.kh, arg.flags, arg.events)?;
                put(payload, &abi::PollOut { revents, padding: 0 })
            }
            _ => Err(Errno::NOSYS),
        }
    }

    /// Opcodes without a reply.
    fn oneway(&self, rq: &Request<'_>, first: &[u8], rest: &[u8], counters: &Counters) -> Result<usize, Errno> {
        let fs = self.fs();
        match rq.opcode {
            Opcode::Forget => {
                let arg: abi::ForgetIn = parse(first)?;
                counters.forgotten.fetch_add(1, Ordering::Relaxed);
                fs.forget(&[ForgetOne { nodeid: rq.node, nlookup: arg.nlookup }]);
            }
            Opcode::BatchForget => batch_forget(fs, counters, first, rest)?,
            Opcode::NotifyReply if rq.unique != KICK => {
                let arg: abi::NotifyRetrieveIn = parse(rest)?;
                let data = rest.get(size_of::<abi::NotifyRetrieveIn>()..).unwrap_or_default();
                let data = data.get(..arg.size as usize).ok_or(Errno::IO)?;
                fs.notify_reply(rq, rq.node, rq.unique, arg.offset, data);
            }
            _ => {}
        }
        Ok(0)
    }

    /// Opcodes that create an object: extensions may follow their arguments.
    fn creation(&self, frame: &mut Frame<'_>, counters: &Counters, extensions_len: usize) -> Result<usize, Errno> {
        let fs = self.fs();
        let node = frame.header.nodeid;
        let (args, extensions) = frame
            .payload
            .get(..frame.len)
            .and_then(|request| request.split_at_checked(frame.len.checked_sub(extensions_len)?))
            .ok_or(Errno::IO)?;
        let rq = Request::new(&frame.header, frame.opcode, frame.may_block, frame.cancelled, extensions);
        let first = frame.first;
        let (name, rest) = split_name(args)?;
        let entry = match frame.opcode {
            Opcode::Symlink => fs.symlink(&rq, node, name, split_name(rest)?.0)?,
            Opcode::Mknod => fs.mknod(&rq, node, &parse(first)?, name)?,
            Opcode::Mkdir => {
                let arg: abi::MkdirIn = parse(first)?;
                fs.mkdir(&rq, node, arg.mode, arg.umask, name)?
            }
            _ => {
                let arg = parse(first)?;
                let (entry, open) = if frame.opcode == Opcode::Create {
                    fs.create(&rq, node, &arg, name)?
                } else {
                    fs.tmpfile(&rq, node, &arg)?
                };
                count_passthrough(counters, &open);
                let at = put(frame.payload, &entry)?;
                return Ok(at + put(frame.payload.get_mut(at..).unwrap_or_default(), &open)?);
            }
        };
        put(frame.payload, &entry)
    }

    fn setxattr(&self, rq: &Request<'_>, first: &[u8], request: &[u8]) -> Result<usize, Errno> {
        let mut arg = abi::SetxattrIn::new_zeroed();
        let sent = first.get(..self.first_argument_len(Opcode::Setxattr)).ok_or(Errno::IO)?;
        arg.as_mut_bytes().get_mut(..sent.len()).ok_or(Errno::IO)?.copy_from_slice(sent);
        let (name, value) = split_name(request)?;
        let value = value.get(..arg.size as usize).ok_or(Errno::IO)?;
        self.fs().setxattr(rq, rq.node, &arg, name, value).map(|()| 0)
    }

    /// Returns the reply to a negative lookup.
    fn negative(&self) -> Result<EntryOut, Errno> {
        if self.negative_timeout.is_zero() {
            return Err(Errno::NOENT);
        }
        Ok(EntryOut {
            entry_valid: self.negative_timeout.as_secs(),
            entry_valid_nsec: self.negative_timeout.subsec_nanos(),
            ..EntryOut::default()
        })
    }
}

/// Returns the outcome of a truncated request.
const fn incomplete(opcode: Opcode) -> Outcome {
    if opcode.is_oneway() { Outcome::Nothing } else { Outcome::Error(Errno::IO) }
}

/// Returns an errno that the kernel accepts: 1 to 511.
fn valid_errno(errno: Errno, opcode: Opcode) -> Errno {
    if (1..512).contains(&errno.raw_os_error()) {
        return errno;
    }
    tracing::error!(
        %opcode,
        errno = errno.raw_os_error(),
        "a handler returned an invalid errno: the request fails with EIO"
    );
    Errno::IO
}

fn name(payload: &[u8], len: usize) -> Result<&[u8], Errno> {
    Ok(split_name(payload.get(..len).ok_or(Errno::IO)?)?.0)
}

fn two_names(payload: &[u8], len: usize) -> Result<(&[u8], &[u8]), Errno> {
    let (old, rest) = split_name(payload.get(..len).ok_or(Errno::IO)?)?;
    Ok((old, split_name(rest)?.0))
}

/// Encodes a reply that is one structure.
fn put<T: IntoBytes + Immutable>(payload: &mut [u8], reply: &T) -> Result<usize, Errno> {
    reply.write_to_prefix(payload).map_err(|_| Errno::IO)?;
    Ok(size_of::<T>())
}

/// Lets `handler` fill at most `size` bytes.
fn fill(
    payload: &mut [u8],
    size: usize,
    handler: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let size = size.min(payload.len());
    let len = handler(payload.get_mut(..size).unwrap_or_default())?;
    if len > size { Err(Errno::IO) } else { Ok(len) }
}

fn count_passthrough(counters: &Counters, open: &OpenOut) {
    if open.open_flags & abi::FOPEN_PASSTHROUGH != 0 {
        counters.passthrough_opens.fetch_add(1, Ordering::Relaxed);
    }
}

fn batch_forget(fs: &dyn Filesystem, counters: &Counters, first: &[u8], list: &[u8]) -> Result<(), Errno> {
    let arg: abi::BatchForgetIn = parse(first)?;
    let list = list.get(..(arg.count as usize).saturating_mul(size_of::<ForgetOne>())).ok_or(Errno::IO)?;
    counters.forgotten.fetch_add(u64::from(arg.count), Ordering::Relaxed);
    let mut nodes = [ForgetOne::default(); FORGET_CHUNK];
    for chunk in list.chunks(size_of_val(&nodes)) {
        let count = chunk.len() / size_of::<ForgetOne>();
        if let Some(place) = nodes.as_mut_bytes().get_mut(..chunk.len()) {
            place.copy_from_slice(chunk);
        }
        fs.forget(nodes.get(..count).unwrap_or_default());
    }
    Ok(())
}

/// GETXATTR and LISTXATTR: returns the value, or only its size if the caller passed no buffer.
fn xattr_reply(
    payload: &mut [u8],
    size: u32,
    handler: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    if size == 0 {
        let size = u32::try_from(handler(&mut [])?).map_err(|_| Errno::TOOBIG)?;
        return put(payload, &abi::GetxattrOut { size, padding: 0 });
    }
    let size = (size as usize).min(payload.len());
    let len = handler(payload.get_mut(..size).unwrap_or_default())?;
    if len > size { Err(Errno::RANGE) } else { Ok(len) }
}

fn getxattr(
    fs: &dyn Filesystem,
    rq: &Request<'_>,
    first: &[u8],
    payload: &mut [u8],
    len: usize,
) -> Result<usize, Errno> {
    let arg: abi::GetxattrIn = parse(first)?;
    // The value overwrites the name.
    let mut copy = [0; XATTR_NAME_MAX];
    let name = name(payload, len)?;
    let place = copy.get_mut(..name.len()).ok_or(Errno::RANGE)?;
    place.copy_from_slice(name);
    let name = &*place;
    let result = xattr_reply(payload, arg.size, |out| fs.getxattr(rq, rq.node, name, out));
    if result == Err(MAY_BLOCK) {
        restore(payload, name);
    }
    result
}

fn ioctl(fs: &dyn Filesystem, rq: &Request<'_>, first: &[u8], payload: &mut [u8], len: usize) -> Result<usize, Errno> {
    let arg: abi::IoctlIn = parse(first)?;
    // The input may be a passphrase, so nothing of it is left behind.
    let request = Zeroizing::new(payload.get(..len).ok_or(Errno::IO)?.to_vec());
    let input = request.get(..arg.in_size as usize).ok_or(Errno::IO)?;
    let at = size_of::<abi::IoctlOut>();
    let room = payload.get_mut(at..).ok_or(Errno::IO)?;
    let size = (arg.out_size as usize).min(room.len());
    let result = fs.ioctl(rq, rq.node, &arg, input, room.get_mut(..size).unwrap_or_default());
    let filled = result.as_ref().map_or(0, |(_, filled)| at + filled);
    payload.get_mut(filled..len).unwrap_or_default().zeroize();
    match result {
        Ok((out, filled)) if filled <= size => Ok(put(payload, &out)? + filled),
        Ok(_) => Err(Errno::IO),
        Err(errno) => {
            if errno == MAY_BLOCK {
                restore(payload, input);
            }
            Err(errno)
        }
    }
}

/// Restores the arguments of a request that is to be handled again.
fn restore(payload: &mut [u8], argument: &[u8]) {
    if let Some(place) = payload.get_mut(..argument.len()) {
        place.copy_from_slice(argument);
    }
    if let Some(terminator) = payload.get_mut(argument.len()) {
        *terminator = 0;
    }
}
