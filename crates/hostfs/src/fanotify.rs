//! Parses the events of fanotify(7).

/// An entry was created, removed, or moved from or to a directory.
pub(crate) const ENTRIES: u64 = libc::FAN_CREATE | libc::FAN_DELETE | libc::FAN_MOVED_FROM | libc::FAN_MOVED_TO;
/// Owner, mode, times, link count or extended attributes changed.
pub(crate) const ATTRIBUTES: u64 = libc::FAN_ATTRIB;
/// Data was written or truncated, or a file that was open for writing was closed.
pub(crate) const DATA: u64 = libc::FAN_MODIFY | libc::FAN_CLOSE_WRITE;

/// Length of `struct fanotify_event_metadata`.
const METADATA: usize = 24;
/// Length of `struct fanotify_event_info_header`.
const INFO: usize = 4;
/// Length of the file system's id, and of length and type of a handle.
const HANDLE: usize = 16;

/// Types of records (`FAN_EVENT_INFO_TYPE_...`).
const FID: u8 = 1;
const DFID_NAME: u8 = 2;
const DFID: u8 = 3;

/// An object in an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object<'a> {
    /// The id of its file system.
    pub(crate) fsid: [u8; 8],
    /// Type and bytes of its file handle.
    pub(crate) kind: i32,
    pub(crate) handle: &'a [u8],
}

/// A change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Event<'a> {
    /// What happened: any of the `FAN_` bits.
    pub(crate) mask: u64,
    /// The process that made the change; 0 if it is in another PID namespace.
    pub(crate) pid: i32,
    /// The directory, and the entry's name in it; `.` for the directory itself.
    pub(crate) entry: Option<(Object<'a>, &'a [u8])>,
    /// The changed object.
    pub(crate) object: Option<Object<'a>>,
}

impl Event<'_> {
    /// Whether events were lost.
    pub(crate) fn is_overflow(&self) -> bool {
        self.mask & libc::FAN_Q_OVERFLOW != 0
    }
}

/// The events in a buffer that read(2) filled. Ends early at an event that can't be parsed.
pub(crate) struct Events<'a> {
    rest: &'a [u8],
}

/// Returns the events in the buffer.
pub(crate) const fn events(buffer: &[u8]) -> Events<'_> {
    Events { rest: buffer }
}

impl Events<'_> {
    /// Whether every event was returned.
    pub(crate) const fn are_all_parsed(&self) -> bool {
        self.rest.is_empty()
    }
}

impl<'a> Iterator for Events<'a> {
    type Item = Event<'a>;

    fn next(&mut self) -> Option<Event<'a>> {
        let len = usize::try_from(number(self.rest, 0)?).ok()?;
        let version = *self.rest.get(4)?;
        let header = usize::from(u16::from_ne_bytes(array(self.rest, 6)?));
        if version != libc::FANOTIFY_METADATA_VERSION || header < METADATA || len < header {
            return None;
        }
        let (event, after) = self.rest.split_at_checked(len)?;
        let mut parsed = Event {
            mask: u64::from_ne_bytes(array(event, 8)?),
            pid: i32::from_ne_bytes(array(event, 20)?),
            ..Event::default()
        };
        let mut records = event.get(header..)?;
        while !records.is_empty() {
            let len = usize::from(u16::from_ne_bytes(array(records, 2)?));
            if len < INFO {
                return None;
            }
            let (record, rest) = records.split_at_checked(len)?;
            records = rest;
            parsed.add_record(*record.first()?, record.get(INFO..)?)?;
        }
        self.rest = after;
        Some(parsed)
    }
}

impl<'a> Event<'a> {
    /// Adds a record to the event. `None` if it is malformed.
    fn add_record(&mut self, kind: u8, record: &'a [u8]) -> Option<()> {
        if !matches!(kind, FID | DFID_NAME | DFID) {
            return Some(());
        }
        let len = usize::try_from(number(record, 8)?).ok()?;
        let (handle, name) = record.get(HANDLE..)?.split_at_checked(len)?;
        let object = Object { fsid: array(record, 0)?, kind: i32::from_ne_bytes(array(record, 12)?), handle };
        match kind {
            FID => self.object = Some(object),
            DFID_NAME => self.entry = Some((object, name.get(..name.iter().position(|&byte| byte == 0)?)?)),
            _ => self.entry = Some((object, b".")),
        }
        Some(())
    }
}

/// Returns the bytes at an offset.
fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FSID: [u8; 8] = *b"filesys!";

    /// Returns a record: type, handle, and what follows the handle.
    fn record(kind: u8, handle: &[u8], after: &[u8]) -> Vec<u8> {
        let len = INFO + HANDLE + handle.len() + after.len();
        let mut bytes = vec![kind, 0];
        bytes.extend((len as u16).to_ne_bytes());
        bytes.extend(FSID);
        bytes.extend((handle.len() as u32).to_ne_bytes());
        bytes.extend(1_i32.to_ne_bytes());
        bytes.extend(handle);
        bytes.extend(after);
        bytes
    }

    fn event(mask: u64, pid: i32, records: &[Vec<u8>]) -> Vec<u8> {
        let records = records.concat();
        let mut bytes = ((METADATA + records.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend([libc::FANOTIFY_METADATA_VERSION, 0]);
        bytes.extend((METADATA as u16).to_ne_bytes());
        bytes.extend(mask.to_ne_bytes());
        bytes.extend((-1_i32).to_ne_bytes());
        bytes.extend(pid.to_ne_bytes());
        bytes.extend(records);
        bytes
    }

    fn sample() -> Vec<u8> {
        let renamed = record(DFID_NAME, b"dir handle", b"a name\0\0");
        let attributes = [record(DFID_NAME, b"dir", b".\0\0\0"), record(FID, b"object", b"")];
        [
            event(libc::FAN_MOVED_FROM, 7, &[renamed]),
            event(libc::FAN_ATTRIB, 8, &attributes),
            event(libc::FAN_DELETE, 9, &[record(9, b"unknown type", b""), record(DFID, b"dir", b"")]),
            event(libc::FAN_Q_OVERFLOW, 0, &[]),
        ]
        .concat()
    }

    #[test]
    fn events_are_parsed() {
        let buffer = sample();
        let all: Vec<_> = events(&buffer).collect();
        let object = |handle| Object { fsid: FSID, kind: 1, handle };
        assert_eq!(
            all,
            [
                Event {
                    mask: libc::FAN_MOVED_FROM,
                    pid: 7,
                    entry: Some((object(&b"dir handle"[..]), b"a name")),
                    object: None,
                },
                Event {
                    mask: libc::FAN_ATTRIB,
                    pid: 8,
                    entry: Some((object(b"dir"), b".")),
                    object: Some(object(b"object")),
                },
                Event { mask: libc::FAN_DELETE, pid: 9, entry: Some((object(b"dir"), b".")), object: None },
                Event { mask: libc::FAN_Q_OVERFLOW, ..Event::default() },
            ]
        );
        assert!(all[3].is_overflow() && !all[0].is_overflow());
    }

    #[test]
    fn short_buffers_end_the_events() {
        let buffer = sample();
        for len in 0..buffer.len() {
            assert!(events(&buffer[..len]).count() < 4, "{len}");
        }
    }

    #[test]
    fn hostile_buffers_do_not_panic() {
        let buffer = sample();
        for at in 0..buffer.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = buffer.clone();
                bytes[at] = value;
                assert!(events(&bytes).count() <= 4);
            }
        }
        let endless = event(0, 0, &[vec![0, 0, 0, 0]]);
        assert_eq!(events(&endless).count(), 0);
    }
}
