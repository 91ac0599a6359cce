//! Asks mounts without waiting for those that hang: a command must not depend on a mount that is
//! none of its business.
//!
//! Once the server of a FUSE mount has read a request, the process that waits for the reply can't
//! be ended, not even by SIGKILL. So a child process sends the request. If it takes too long, it is
//! abandoned.

use crate::channel::{self, STACK};
use crate::tool;
use fuse::control::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// `argv[0]` of the child process.
const CHILD: &str = "strata-question";
/// The running executable, wherever it is installed.
const EXECUTABLE: &str = "/proc/self/exe";
/// How long a mount may take to answer: longer than on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);
/// Exit status of the child if the reply is the number of an error.
const FAILED: i32 = 1;

/// What a mount is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// The description of its layers: the reply to [`STACK`].
    Stack,
    /// Whether the attributes and the entries of its root can be read.
    Root,
}

impl Question {
    const fn word(self) -> &'static str {
        match self {
            Self::Stack => "stack",
            Self::Root => "root",
        }
    }
}

/// The answer of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The reply.
    Given(Vec<u8>),
    /// The request failed.
    Failed(Errno),
    /// There was no answer in time: the mount hangs.
    Late,
}

/// The mounts that did not answer this process, which it does not ask again.
static LATE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
/// Those of them that were named to the user.
static NAMED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Asks all mounts at the same time. The answers are in the order of `points`.
#[must_use]
pub fn ask(points: &[PathBuf], question: Question) -> Vec<Answer> {
    let known = LATE.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let children: Vec<_> =
        points.iter().map(|point| (!known.contains(point)).then(|| start(point, question))).collect();
    let end = Instant::now() + PATIENCE;
    let answers = children.into_iter().map(|child| match child {
        None => Answer::Late,
        Some(Ok(child)) => answer(child, end),
        Some(Err(_)) => Answer::Failed(Errno::IO),
    });
    let answers: Vec<_> = answers.collect();
    let late =
        points.iter().zip(&answers).filter(|(_, answer)| **answer == Answer::Late).map(|(point, _)| point.clone());
    LATE.lock().unwrap_or_else(PoisonError::into_inner).extend(late);
    answers
}

/// Prints, once, that a mount was skipped because it hangs.
pub fn warn_skipped(point: &Path) {
    if !NAMED.lock().unwrap_or_else(PoisonError::into_inner).insert(point.to_owned()) {
        return;
    }
    let program = std::env::args_os().next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default();
    let _ =
        writeln!(std::io::stderr(), "{}: {}: the mount does not answer; skipped", program.display(), point.display());
}

fn start(point: &Path, question: Question) -> std::io::Result<Child> {
    Command::new(EXECUTABLE)
        .arg0(CHILD)
        .args([OsStr::new(question.word()), point.as_os_str()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
}

/// Returns the answer that a child process gives until `end`. Else the child is killed, which may
/// have no effect until the mount answers.
fn answer(mut child: Child, end: Instant) -> Answer {
    let reply = child.stdout.take().and_then(|pipe| read_until(pipe, end));
    let (Some(reply), Some(status)) = (reply, exit_status(&mut child, end)) else {
        let _may_have_ended = child.kill();
        return Answer::Late;
    };
    match status {
        0 => Answer::Given(reply),
        FAILED => {
            let number = std::str::from_utf8(&reply).ok().and_then(|text| text.parse().ok());
            Answer::Failed(number.map_or(Errno::IO, Errno::from_raw_os_error))
        }
        _ => Answer::Failed(Errno::IO),
    }
}

/// Reads to the end; `None` if that takes too long.
fn read_until(mut pipe: ChildStdout, end: Instant) -> Option<Vec<u8>> {
    let mut reply = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let left = Timespec::try_from(end.checked_duration_since(Instant::now())?).ok()?;
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&left)) {
            Ok(0) => return None,
            Ok(_) => match pipe.read(&mut chunk).ok()? {
                0 => return Some(reply),
                read => reply.extend_from_slice(chunk.get(..read)?),
            },
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// Returns the exit status of a process that has closed its output; `None` if it does not end.
fn exit_status(child: &mut Child, end: Instant) -> Option<i32> {
    const PAUSE: Duration = Duration::from_millis(2);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.code(),
            Ok(None) if Instant::now() < end => std::thread::sleep(PAUSE),
            _ => return None,
        }
    }
}

/// Whether the program was started as the child process.
#[must_use]
pub fn is_called(program: &[u8]) -> bool {
    tool::is_called(program, CHILD)
}

/// Sends the request of the child process, and returns its exit status.
#[must_use]
pub fn run(args: &[OsString]) -> u8 {
    let _ends_with_parent = crate::process::follow_parent();
    let [_, question, point] = args else { return u8::MAX };
    let point = Path::new(point);
    let reply = match question.to_str() {
        Some("stack") => channel::call(point, STACK, b"").map_err(|error| match error {
            Error::Channel(errno) | Error::Refused(errno) => errno,
            _ => Errno::NOTTY,
        }),
        Some("root") => read_root(point).map(|()| Vec::new()),
        _ => return u8::MAX,
    };
    let (reply, status) = match reply {
        Ok(reply) => (reply, 0),
        Err(errno) => (errno.raw_os_error().to_string().into_bytes(), FAILED),
    };
    let mut out = std::io::stdout();
    match out.write_all(&reply).and_then(|()| out.flush()) {
        Ok(()) => u8::try_from(status).unwrap_or(u8::MAX),
        Err(_) => u8::MAX,
    }
}

/// Reads attributes and entries of a directory, or the attributes of a file, from their server
/// instead of the kernel's caches.
fn read_root(point: &Path) -> Result<(), Errno> {
    rustix::fs::statx(CWD, point, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS)?;
    rustix::fs::statfs(point)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(point, flags, Mode::empty()) {
        Ok(dir) => rustix::fs::Dir::new(dir)?.next().transpose().map(drop),
        Err(Errno::NOTDIR) => Ok(()),
        Err(errno) => Err(errno),
    }
}
