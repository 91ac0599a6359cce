//! A version: what a file was between two points in time, and who ended it.

use crate::names::Letter;
use crate::wire::{Reader, Writer};
use vnode::{Kind, Time};

/// The operation that ended a version, or that gave a head its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "each is the operation of that name")]
pub enum Cause {
    Write = 1,
    Truncate = 2,
    Unlink = 3,
    Rmdir = 4,
    /// The file was renamed to another name.
    Rename = 5,
    /// Another file was renamed to this name.
    Replace = 6,
    Chmod = 7,
    Chown = 8,
    Xattr = 9,
    /// The number of names changed.
    Link = 10,
    Fallocate = 11,
    /// By a command.
    Manual = 12,
    /// Created under this name.
    Create = 13,
    /// The times were set (comprehensive mode).
    Times = 14,
}

impl Cause {
    /// All causes with the words for them in replies.
    pub const ALL: [(Self, &'static str); 14] = [
        (Self::Write, "write"),
        (Self::Truncate, "truncate"),
        (Self::Unlink, "unlink"),
        (Self::Rmdir, "rmdir"),
        (Self::Rename, "rename"),
        (Self::Replace, "replace"),
        (Self::Chmod, "chmod"),
        (Self::Chown, "chown"),
        (Self::Xattr, "xattr"),
        (Self::Link, "link"),
        (Self::Fallocate, "fallocate"),
        (Self::Manual, "manual"),
        (Self::Create, "create"),
        (Self::Times, "times"),
    ];

    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().map(|(cause, _)| cause).find(|cause| *cause as u8 == byte)
    }

    /// Returns the word for the cause.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::ALL.into_iter().find(|(cause, _)| *cause == self).map_or("", |(_, word)| word)
    }
}

/// Who did something: the user and process that sent the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// User ID.
    pub uid: u32,
    /// Process ID in the server's PID namespace; 0 if unknown.
    pub pid: u32,
    /// Session ID of the process; 0 if unknown.
    pub sid: u32,
    /// Name of the process (`comm`), at most 15 bytes; empty if unknown.
    pub comm: Box<[u8]>,
}

impl Who {
    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u32(self.uid);
        out.u32(self.pid);
        out.u32(self.sid);
        out.bytes(&self.comm);
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self { uid: from.u32()?, pid: from.u32()?, sid: from.u32()?, comm: from.bytes()?.into() })
    }
}

/// Flags of a version, which users set and clear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Never discarded.
    pub pinned: bool,
    /// Marked as a landmark by hand.
    pub landmark: bool,
}

impl Flags {
    pub(crate) const fn to_byte(self) -> u8 {
        self.pinned as u8 | (self.landmark as u8) << 1
    }

    pub(crate) const fn from_byte(byte: u8) -> Self {
        Self { pinned: byte & 1 != 0, landmark: byte & 2 != 0 }
    }
}

/// A version of a file: its attributes, when it was the head, and who ended it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The version's number, from 1 upward.
    pub number: u64,
    /// How it is stored.
    pub letter: Letter,
    /// The type of the object.
    pub kind: Kind,
    /// Size of the content in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time of the content.
    pub mtime: Time,
    /// When it became the head. Never before the `died` of the version before it.
    pub born: Time,
    /// When it ceased to be the head; later than `born`, even if the clock was set back.
    pub died: Time,
    /// The operation that ended it.
    pub cause: Cause,
    /// Who ended it.
    pub who: Who,
    /// Flags.
    pub flags: Flags,
}

const KINDS: [Kind; 7] =
    [Kind::Regular, Kind::Directory, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::CharDevice, Kind::BlockDevice];

impl Version {
    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u64(self.number);
        out.u8(self.letter as u8);
        out.u8(KINDS.iter().position(|kind| *kind == self.kind).and_then(|at| u8::try_from(at).ok()).unwrap_or(0));
        out.u8(self.cause as u8);
        out.u8(self.flags.to_byte());
        out.u64(self.size);
        out.u32(self.mode);
        out.u32(self.uid);
        out.u32(self.gid);
        out.time(self.mtime);
        out.time(self.born);
        out.time(self.died);
        self.who.encode(out);
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Option<Self> {
        let number = from.u64().filter(|number| *number > 0)?;
        let letter = Letter::from_byte(from.u8()?)?;
        let kind = *KINDS.get(usize::from(from.u8()?))?;
        let cause = Cause::from_byte(from.u8()?)?;
        let flags = Flags::from_byte(from.u8()?);
        Some(Self {
            number,
            letter,
            kind,
            cause,
            flags,
            size: from.u64().filter(|size| *size <= i64::MAX.cast_unsigned())?,
            mode: from.u32().filter(|mode| *mode <= 0o7777)?,
            uid: from.u32()?,
            gid: from.u32()?,
            mtime: from.time()?,
            born: from.time()?,
            died: from.time()?,
            who: Who::decode(from)?,
        })
    }
}

/// Returns the point in time directly after `time`.
#[must_use]
pub const fn just_after(time: Time) -> Time {
    if time.nsec < 999_999_999 {
        Time { sec: time.sec, nsec: time.nsec + 1 }
    } else {
        Time { sec: time.sec.saturating_add(1), nsec: 0 }
    }
}

/// Returns a time in nanoseconds since the epoch.
#[must_use]
pub fn nanos(time: Time) -> i128 {
    i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a version with this number.
    pub(crate) fn example(number: u64) -> Version {
        Version {
            number,
            letter: Letter::Full,
            kind: Kind::Regular,
            size: 5,
            mode: 0o644,
            uid: 1000,
            gid: 100,
            mtime: Time { sec: -5, nsec: 7 },
            born: Time { sec: 10, nsec: 0 },
            died: Time { sec: 11, nsec: 999_999_999 },
            cause: Cause::Write,
            who: Who { uid: 1000, pid: 4711, sid: 4000, comm: b"vi"[..].into() },
            flags: Flags { pinned: true, landmark: false },
        }
    }

    #[test]
    fn versions_are_decoded_as_they_were_encoded() {
        for letter in Letter::ALL {
            for kind in KINDS {
                for (cause, _) in Cause::ALL {
                    let version = Version { letter, kind, cause, ..example(8) };
                    let mut out = Writer::default();
                    version.encode(&mut out);
                    assert_eq!(Version::decode(&mut Reader(&out.0)).as_ref(), Some(&version));
                    for len in 0..out.0.len() {
                        assert_eq!(Version::decode(&mut Reader(&out.0[..len])), None);
                    }
                }
            }
        }
    }

    #[test]
    fn time_advances() {
        assert_eq!(just_after(Time { sec: 1, nsec: 999_999_999 }), Time { sec: 2, nsec: 0 });
        assert_eq!(just_after(Time { sec: 1, nsec: 0 }), Time { sec: 1, nsec: 1 });
    }
}
