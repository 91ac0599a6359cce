//! States that an operation may leave when the server dies.
//!
//! A single request is atomic: it is performed or not. But some operations take several requests or
//! several host calls:
//! - a file is opened (created, truncated) and then written;
//! - before a write, the kernel sends a request that clears set-user-id if the writer may not keep
//!   it;
//! - the kernel cuts a long write or copy at page boundaries, and so does a host whose caller dies,
//!   as write(2) may anywhere;
//! - the host sets the modification time before it writes the first page;
//! - a truncation or an ACL change clears the set-id bits in a second host call, after the first;
//! - a layer that encodes blocks fills a file's last block before it adds others, and zeroes a
//!   range block by block (docs/wrapfs.md, "A journal").

use super::op::{Op, Side, Step, open};
use crate::user::{Credentials, ROOT};
use rustix::fs::{FallocateFlags, Mode, OFlags, Timespec, Timestamps};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

const PAGE: u64 = 4096;
const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
const SUID: u32 = 0o4000;
const SGID: u32 = 0o2000;
const GROUP_EXEC: u32 = 0o010;

impl Side {
    /// Performs the step incrementally. Calls `look` at each state that the server's death may have
    /// left, until `look` returns true. At least `written` bytes are written, because that many
    /// were reported.
    pub(super) fn perform_partially(
        &mut self,
        step: &Step,
        written: usize,
        look: &mut dyn FnMut(&Self) -> bool,
    ) -> bool {
        match &step.op {
            Op::Write { path, flags, mode, offset, data } => {
                let before = self.mode_at(path);
                let Ok(fd) = step.act(|| open(&self.at(path), *flags, *mode)) else { return look(self) };
                if flags.contains(OFlags::TRUNC) && self.with_bits(fd.as_fd(), before, look) {
                    return true;
                }
                let bytes = data.bytes();
                self.write_by_pages(step, fd.as_fd(), *offset, &bytes, written, look)
            }
            Op::FdWrite { slot, offset, data } => {
                let Ok(fd) = self.slot(*slot).and_then(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0)) else {
                    return look(self);
                };
                self.write_by_pages(step, fd.as_fd(), *offset, &data.bytes(), written, look)
            }
            Op::CopyRange { from, to, offset, len } => {
                let source = step.act(|| open(&self.at(from), OFlags::RDONLY | OFlags::NONBLOCK, 0));
                let target = step.act(|| open(&self.at(to), OFlags::WRONLY | OFlags::NONBLOCK, 0));
                let (Ok(source), Ok(target)) = (source, target) else { return look(self) };
                let piece = |part: Range<usize>| {
                    let (mut at, mut to) = (part.start as u64, offset + part.start as u64);
                    let _ = rustix::fs::copy_file_range(&source, Some(&mut at), &target, Some(&mut to), part.len());
                };
                self.by_pages(step, target.as_fd(), &[0, *offset], *len, written, &piece, look)
            }
            Op::Truncate { path, .. } | Op::SetXattr { path, .. } => {
                let before = self.mode_at(path);
                if let Op::Truncate { len, .. } = &step.op {
                    let fd = step.act(|| open(&self.at(path), OFlags::WRONLY | OFlags::NONBLOCK, 0));
                    if fd.is_ok_and(|fd| self.with_filled_block(fd.as_fd(), *len, look)) {
                        return true;
                    }
                }
                let _ = self.perform(step);
                match open(&self.at(path), OFlags::RDONLY | OFlags::NONBLOCK, 0) {
                    Ok(fd) => self.with_bits(fd.as_fd(), before, look) || look(self),
                    Err(_) => look(self),
                }
            }
            Op::FdTruncate { slot, len } => {
                let before = self.slot(*slot).ok().and_then(|fd| mode(fd.as_fd()));
                let fd = self.slot(*slot).and_then(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0));
                if fd.is_ok_and(|fd| self.with_filled_block(fd.as_fd(), *len, look)) {
                    return true;
                }
                let _ = self.perform(step);
                match self.slot(*slot).and_then(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0)) {
                    Ok(fd) => self.with_bits(fd.as_fd(), before, look) || look(self),
                    Err(_) => look(self),
                }
            }
            Op::Fallocate { path, mode, offset, len } => {
                let fd = step.act(|| open(&self.at(path), OFlags::WRONLY | OFlags::NONBLOCK, 0));
                if fd.is_ok_and(|fd| self.allocate_partially(step.who, fd.as_fd(), *mode, *offset..offset + len, look))
                {
                    return true;
                }
                let _ = self.perform(step);
                look(self)
            }
            Op::FdPunch { slot, offset, len } => {
                let fd = self.slot(*slot).and_then(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0));
                if fd.is_ok_and(|fd| self.allocate_partially(step.who, fd.as_fd(), PUNCH, *offset..offset + len, look))
                {
                    return true;
                }
                let _ = self.perform(step);
                look(self)
            }
            _ => {
                let _ = self.perform(step);
                look(self)
            }
        }
    }

    fn mode_at(&self, path: &[u8]) -> Option<u32> {
        rustix::fs::stat(self.at(path)).ok().map(|st| st.st_mode)
    }

    /// Calls `look` with the change applied but the set-id bits, which the change clears, still
    /// set.
    fn with_bits(&self, fd: BorrowedFd<'_>, before: Option<u32>, look: &mut dyn FnMut(&Self) -> bool) -> bool {
        let (Some(before), Some(after)) = (before, mode(fd)) else { return false };
        if before & !after & (SUID | SGID) == 0 {
            return false;
        }
        set_mode(fd, after | before & (SUID | SGID));
        if look(self) {
            return true;
        }
        set_mode(fd, after);
        false
    }

    /// Calls `look` with the file, which is to grow to `end` bytes, grown to the end of its last
    /// block only, if the tested file system encodes blocks and that is less.
    fn with_filled_block(&self, fd: BorrowedFd<'_>, end: u64, look: &mut dyn FnMut(&Self) -> bool) -> bool {
        let Ok(st) = rustix::fs::fstat(fd) else { return false };
        let size = st.st_size.cast_unsigned();
        let filled = size.next_multiple_of(PAGE);
        let grows = self.encodes_blocks && size < filled && filled < end;
        grows && rustix::fs::ftruncate(fd, filled).is_ok() && look(self)
    }

    /// Calls `look` with the states of a file between the start and the end of a fallocate(2).
    fn allocate_partially(
        &self,
        who: Credentials,
        fd: BorrowedFd<'_>,
        mode: FallocateFlags,
        range: Range<u64>,
        look: &mut dyn FnMut(&Self) -> bool,
    ) -> bool {
        let zeroes = mode.intersects(FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE);
        self.without_bits(who, fd, look)
            || (zeroes && self.with_zeroed_part(fd, range.clone(), look))
            || (!mode.contains(FallocateFlags::KEEP_SIZE) && self.with_filled_block(fd, range.end, look))
    }

    /// Calls `look` with parts of the range zeroed, if the tested file system encodes blocks: first
    /// its whole blocks, one by one, then the part before them, then the part behind them.
    fn with_zeroed_part(&self, fd: BorrowedFd<'_>, range: Range<u64>, look: &mut dyn FnMut(&Self) -> bool) -> bool {
        let Ok(st) = rustix::fs::fstat(fd) else { return false };
        let end = range.end.min(st.st_size.cast_unsigned());
        if !self.encodes_blocks || range.start >= end {
            return false;
        }
        let (first, after) = (range.start.next_multiple_of(PAGE).min(end), end / PAGE * PAGE);
        let whole = (first..after).step_by(PAGE as usize).map(|start| start..start + PAGE);
        let parts = whole.chain([range.start..first, first.max(after)..end]);
        parts
            .filter(|part| !part.is_empty())
            .any(|part| rustix::fs::fallocate(fd, PUNCH, part.start, part.end - part.start).is_ok() && look(self))
    }

    /// Calls `look` with the set-id bits, which a write clears, cleared and nothing written.
    fn without_bits(&self, who: Credentials, fd: BorrowedFd<'_>, look: &mut dyn FnMut(&Self) -> bool) -> bool {
        let Ok(st) = rustix::fs::fstat(fd) else { return false };
        let kept = without_set_id(who, st.st_mode, st.st_gid);
        if kept == st.st_mode {
            return false;
        }
        set_mode(fd, kept);
        look(self)
    }

    /// Calls `look` with the states before the first byte: set-id bits cleared, then the
    /// modification time set as well.
    fn before_bytes(&self, who: Credentials, fd: BorrowedFd<'_>, look: &mut dyn FnMut(&Self) -> bool) -> bool {
        if self.without_bits(who, fd, look) {
            return true;
        }
        let [omit, now] = [0x3fff_fffe, 0x3fff_ffff].map(|tv_nsec| Timespec { tv_sec: 0, tv_nsec });
        let times = Timestamps { last_access: omit, last_modification: now };
        rustix::fs::futimens(fd, &times).expect("futimens in the native tree");
        look(self)
    }

    fn write_by_pages(
        &self,
        step: &Step,
        fd: BorrowedFd<'_>,
        offset: u64,
        bytes: &[u8],
        written: usize,
        look: &mut dyn FnMut(&Self) -> bool,
    ) -> bool {
        let appends = rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::APPEND));
        let size = rustix::fs::fstat(fd).map_or(0, |st| u64::try_from(st.st_size).unwrap_or(0));
        let start = if appends { size } else { offset };
        let piece = |part: Range<usize>| {
            // Appends if the descriptor is in append mode.
            let _ = rustix::io::pwrite(fd, &bytes[part.clone()], offset + part.start as u64);
        };
        self.by_pages(step, fd, &[start], bytes.len(), written, &piece, look)
    }

    /// Performs `len` bytes in pieces that end at page boundaries, counted from each of `starts`.
    #[expect(clippy::too_many_arguments, reason = "what is done, by whom, to what, and who looks")]
    fn by_pages(
        &self,
        step: &Step,
        fd: BorrowedFd<'_>,
        starts: &[u64],
        len: usize,
        written: usize,
        piece: &dyn Fn(Range<usize>),
        look: &mut dyn FnMut(&Self) -> bool,
    ) -> bool {
        if written == 0 && (look(self) || (len > 0 && self.before_bytes(step.who, fd, look))) {
            return true;
        }
        // Only the target of a copy, the last one, grows.
        if written == 0 && starts.last().is_some_and(|start| self.with_filled_block(fd, *start, look)) {
            return true;
        }
        let is_cut = |done: usize| starts.iter().any(|start| (start + done as u64).is_multiple_of(PAGE));
        let mut done = 0;
        for end in (1..=len).filter(|&end| end == len || end == written || is_cut(end)) {
            step.act(|| piece(done..end));
            done = end;
            if done >= written && look(self) {
                return true;
            }
        }
        look(self)
    }
}

fn mode(fd: BorrowedFd<'_>) -> Option<u32> {
    rustix::fs::fstat(fd).ok().map(|st| st.st_mode)
}

fn set_mode(fd: BorrowedFd<'_>, mode: u32) {
    rustix::fs::fchmod(fd, Mode::from_raw_mode(mode & 0o7777)).expect("chmod in the native tree");
}

/// Returns the mode of a file after a write by that user, as the kernel computes it.
fn without_set_id(who: Credentials, mode: u32, gid: u32) -> u32 {
    if who == ROOT || !rustix::fs::FileType::from_raw_mode(mode).is_file() {
        return mode;
    }
    let in_group = who.gid == gid || who.group == Some(gid);
    let sgid = if mode & GROUP_EXEC != 0 || !in_group { SGID } else { 0 };
    mode & !(SUID | sgid)
}
