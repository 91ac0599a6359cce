//! How far a step may have got when the server died.
//!
//! A request to the server is done or not done. But some steps are several requests: a file is opened (made, emptied) and
//! then written; before a write, the kernel sends a request of its own that takes set-user-id away where the writer has no right to keep it; a long
//! write or copy is cut at pages, by the kernel and by a host that sees its caller die, as write(2) may anywhere; the host sets the time of
//! modification before the first of them. And what takes the bits
//! away together with a truncation or an ACL is a second call of the host, after the first.

use super::op::{Op, Side, Step, open};
use crate::user::{ROOT, Who};
use rustix::fs::{Mode, OFlags, Timespec, Timestamps};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

const PAGE: u64 = 4096;
const SUID: u32 = 0o4000;
const SGID: u32 = 0o2000;
const GROUP_EXEC: u32 = 0o010;

impl Side {
    /// Does the step bit by bit and calls `look` at each state in which the server's death may have left it, until that answers true. `written`:
    /// so many bytes were said to be written, so it can't be less.
    pub(super) fn perform_by_parts(
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
                let _ = self.perform(step);
                match open(&self.at(path), OFlags::RDONLY | OFlags::NONBLOCK, 0) {
                    Ok(fd) => self.with_bits(fd.as_fd(), before, look) || look(self),
                    Err(_) => look(self),
                }
            }
            Op::FdTruncate { slot, .. } => {
                let before = self.slot(*slot).ok().and_then(|fd| mode(fd.as_fd()));
                let _ = self.perform(step);
                match self.slot(*slot).and_then(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0)) {
                    Ok(fd) => self.with_bits(fd.as_fd(), before, look) || look(self),
                    Err(_) => look(self),
                }
            }
            Op::Fallocate { path, .. } => {
                let fd = step.act(|| open(&self.at(path), OFlags::WRONLY | OFlags::NONBLOCK, 0));
                if fd.is_ok_and(|fd| self.without_bits(step.who, fd.as_fd(), look)) {
                    return true;
                }
                let _ = self.perform(step);
                look(self)
            }
            Op::FdPunch { slot, .. } => {
                let fd = self.slot(*slot).and_then(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0));
                if fd.is_ok_and(|fd| self.without_bits(step.who, fd.as_fd(), look)) {
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

    /// The state in which a change that takes set-id bits away is made, and these are still there.
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

    /// The state in which the bits that a write takes away are gone, and nothing is written.
    fn without_bits(&self, who: Who, fd: BorrowedFd<'_>, look: &mut dyn FnMut(&Self) -> bool) -> bool {
        let Ok(st) = rustix::fs::fstat(fd) else { return false };
        let kept = without_set_id(who, st.st_mode, st.st_gid);
        if kept == st.st_mode {
            return false;
        }
        set_mode(fd, kept);
        look(self)
    }

    /// The states before the first byte: the bits are gone; and the time is set, too.
    fn before_bytes(&self, who: Who, fd: BorrowedFd<'_>, look: &mut dyn FnMut(&Self) -> bool) -> bool {
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
            // Appends where the descriptor does.
            let _ = rustix::io::pwrite(fd, &bytes[part.clone()], offset + part.start as u64);
        };
        self.by_pages(step, fd, &[start], bytes.len(), written, &piece, look)
    }

    /// Does `len` bytes in pieces that end at pages, counted from each of `starts`.
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

/// The mode that a file of this mode and group has after a write of that user, as the kernel has it.
fn without_set_id(who: Who, mode: u32, gid: u32) -> u32 {
    if who == ROOT || !rustix::fs::FileType::from_raw_mode(mode).is_file() {
        return mode;
    }
    let in_group = who.gid == gid || who.group == Some(gid);
    let sgid = if mode & GROUP_EXEC != 0 || !in_group { SGID } else { 0 };
    mode & !(SUID | sgid)
}
