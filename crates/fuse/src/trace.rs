//! Logs each request at level `trace`: opcode, arguments, result, duration, caller.
//!
//! `LOOKUP node 1 "letter": ENOENT in 12.3µs; uid 1000 gid 1000 pid 4242 (cat)`

use crate::abi::{self, EntryOut, InHeader};
use crate::dispatch::{Frame, Outcome};
use crate::notify::KICK;
use crate::request::{parse, split_name};
use crate::{Errno, Opcode};
use core::fmt::Write as _;
use core::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Whether names are secret in this process.
static HIDES_NAMES: AtomicBool = AtomicBool::new(false);

/// Logs only the lengths of names from now on, in all sessions of this process: for a file system
/// that encrypts names.
pub fn hide_names_in_trace() {
    HIDES_NAMES.store(true, Ordering::Relaxed);
}

/// Runs the request and logs it. A request that is repeated on a blocking thread is logged there.
#[cold]
pub(crate) fn traced(frame: &mut Frame<'_>, run: impl FnOnce(&mut Frame<'_>) -> Outcome) -> Outcome {
    let (header, opcode) = (frame.header, frame.opcode);
    // The reply overwrites the names, and the caller may exit once it is sent.
    let (request, by) = (describe_request(frame), caller(&header));
    let begun = Instant::now();
    let outcome = run(frame);
    let time = begun.elapsed();
    if outcome != Outcome::MayBlock && !(opcode == Opcode::NotifyReply && header.unique == KICK) {
        tracing::trace!("{request}: {} in {time:?}; {by}", describe_outcome(opcode, outcome, frame.payload));
    }
    outcome
}

/// Formats opcode, node and arguments.
fn describe_request(frame: &Frame<'_>) -> String {
    let mut out = format!("{} node {}", frame.opcode, frame.header.nodeid);
    // A truncated request gets an error as its reply; the line shows the complete part.
    let _ = arguments(&mut out, frame);
    out
}

fn arguments(out: &mut String, frame: &Frame<'_>) -> Result<(), Errno> {
    let payload = frame.payload.get(..frame.len).ok_or(Errno::IO)?;
    match frame.opcode {
        Opcode::Lookup
        | Opcode::Unlink
        | Opcode::Rmdir
        | Opcode::Mknod
        | Opcode::Mkdir
        | Opcode::Create
        | Opcode::Getxattr
        | Opcode::Setxattr
        | Opcode::Removexattr => name(out, " ", split_name(payload)?.0),
        Opcode::Symlink => {
            let (link, rest) = split_name(payload)?;
            name(out, " ", link);
            name(out, " -> ", split_name(rest)?.0);
        }
        Opcode::Link => {
            let _ = write!(out, " to node {}", parse::<abi::LinkIn>(frame.first)?.oldnodeid);
            name(out, " ", split_name(payload)?.0);
        }
        Opcode::Rename | Opcode::Rename2 => {
            let (old, rest) = split_name(payload)?;
            name(out, " ", old);
            // Both structures begin with this field.
            let _ = write!(out, " -> node {}", parse::<abi::RenameIn>(frame.first)?.newdir);
            name(out, " ", split_name(rest)?.0);
        }
        Opcode::Read | Opcode::Readdir | Opcode::Readdirplus => {
            let arg: abi::ReadIn = parse(frame.first)?;
            let _ = write!(out, " {} bytes at {}", arg.size, arg.offset);
        }
        Opcode::Write => {
            let arg: abi::WriteIn = parse(frame.first)?;
            let _ = write!(out, " {} bytes at {}", arg.size, arg.offset);
        }
        _ => {}
    }
    Ok(())
}

/// Appends a name: quoted and escaped to fit on one line, or its length if names are secret.
fn name(out: &mut String, before: &str, name: &[u8]) {
    out.push_str(before);
    if HIDES_NAMES.load(Ordering::Relaxed) { hidden(out, name) } else { quoted(out, name) }
}

/// Appends the length of a name.
fn hidden(out: &mut String, name: &[u8]) {
    let _ = write!(out, "<{} bytes>", name.len());
}

fn quoted(out: &mut String, name: &[u8]) {
    out.push('"');
    for part in name.utf8_chunks() {
        out.extend(part.valid().chars().flat_map(char::escape_debug));
        for byte in part.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out.push('"');
}

/// Formats the caller. The pid is 0 for the kernel itself, and for processes outside the server's
/// pid namespace.
fn caller(header: &InHeader) -> String {
    let mut out = format!("uid {} gid {} pid {}", header.uid, header.gid, header.pid);
    if header.pid != 0
        && crate::proc_shows_callers()
        && let Ok(command) = std::fs::read(format!("/proc/{}/comm", header.pid))
    {
        let _ = write!(out, " ({})", command.trim_ascii_end().escape_ascii());
    }
    out
}

fn describe_outcome(opcode: Opcode, outcome: Outcome, payload: &[u8]) -> String {
    match outcome {
        // A cacheable negative lookup is a reply without a node.
        Outcome::Reply(_)
            if opcode == Opcode::Lookup && parse::<EntryOut>(payload).is_ok_and(|entry| entry.nodeid == 0) =>
        {
            "ENOENT".to_owned()
        }
        Outcome::Reply(len) if matches!(opcode, Opcode::Read | Opcode::Readlink) => format!("{len} bytes"),
        Outcome::Error(errno) => format!("{:?}", nix::errno::Errno::from_raw(errno.raw_os_error())),
        Outcome::Reply(_) | Outcome::Nothing | Outcome::MayBlock => "done".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;
    use zerocopy::{FromZeros as _, IntoBytes as _};

    fn line(opcode: Opcode, first: &[u8], payload: &[u8]) -> String {
        let mut header = InHeader::new_zeroed();
        header.nodeid = 7;
        let (mut payload, len) = (payload.to_vec(), payload.len());
        let cancelled = AtomicBool::new(false);
        describe_request(&Frame {
            header,
            opcode,
            first,
            payload: &mut payload,
            len,
            may_block: true,
            cancelled: &cancelled,
            pipe: None,
        })
    }

    #[test]
    fn names_are_logged_on_one_line() {
        assert_eq!(line(Opcode::Lookup, &[], b"letter\0"), r#"LOOKUP node 7 "letter""#);
        assert_eq!(line(Opcode::Unlink, &[], b"a\nb\"\xff\xc3\xa4\0"), "UNLINK node 7 \"a\\nb\\\"\\xffä\"");
        assert_eq!(line(Opcode::Symlink, &[], b"s\0../t\0"), r#"SYMLINK node 7 "s" -> "../t""#);
        let (mut rename, mut link) = (abi::Rename2In::new_zeroed(), abi::LinkIn::new_zeroed());
        (rename.newdir, link.oldnodeid) = (9, 8);
        assert_eq!(line(Opcode::Rename2, rename.as_bytes(), b"a\0b\0"), r#"RENAME2 node 7 "a" -> node 9 "b""#);
        assert_eq!(line(Opcode::Link, link.as_bytes(), b"n\0"), r#"LINK node 7 to node 8 "n""#);
        assert_eq!(line(Opcode::Getattr, &[], b""), "GETATTR node 7");
        // Truncated.
        assert_eq!(line(Opcode::Rename, &[], b"a\0b"), r#"RENAME node 7 "a""#);
        assert_eq!(line(Opcode::Mkdir, &[], b"a"), "MKDIR node 7");
        let mut out = String::new();
        hidden(&mut out, b"secret");
        assert_eq!(out, "<6 bytes>");
    }

    #[test]
    fn errors_are_logged_by_name() {
        let error = |errno| describe_outcome(Opcode::Open, Outcome::Error(errno), &[]);
        assert_eq!((error(Errno::ACCESS).as_str(), error(Errno::TOOBIG).as_str()), ("EACCES", "E2BIG"));
        let entry = EntryOut::default();
        assert_eq!(describe_outcome(Opcode::Lookup, Outcome::Reply(size_of_val(&entry)), entry.as_bytes()), "ENOENT");
        assert_eq!(describe_outcome(Opcode::Getattr, Outcome::Reply(1), &[0; 200]), "done");
        assert_eq!(describe_outcome(Opcode::Read, Outcome::Reply(5), &[0; 200]), "5 bytes");
    }

    #[test]
    fn the_caller_is_logged() {
        let mut header = InHeader::new_zeroed();
        assert_eq!(caller(&header), "uid 0 gid 0 pid 0");
        (header.uid, header.pid) = (3, std::process::id());
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(caller(&header), format!("uid 3 gid 0 pid {} ({})", header.pid, comm.trim_end()));
    }
}
