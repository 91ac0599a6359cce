//! Who made a change: facts about the calling process, which is asked about once and not for each
//! of its changes.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use versionset::Who;
use vnode::Cx;

/// How long facts about a process are kept. A new process gets the number of an old one only after
/// all others were used.
const LIFETIME: Duration = Duration::from_millis(500);

/// Number of processes that are remembered.
const CAPACITY: usize = 256;

/// Longest name of a process in bytes, as in the kernel.
const NAME_MAX: usize = 15;

/// Facts about processes that changed files lately.
#[derive(Debug, Default)]
pub(crate) struct Callers(Mutex<HashMap<u32, (Instant, Who)>>);

impl Callers {
    /// Returns who sent the request.
    pub(crate) fn who(&self, cx: &Cx<'_>) -> Who {
        if cx.pid == 0 {
            return Who { uid: cx.caller(), ..Who::default() };
        }
        let now = Instant::now();
        if let Some((asked, who)) = self.0.lock().get(&cx.pid)
            && now.duration_since(*asked) < LIFETIME
            && who.uid == cx.caller()
        {
            return who.clone();
        }
        let name = cx.executable().and_then(|path| path.file_name()).map(std::os::unix::ffi::OsStrExt::as_bytes);
        let name = name.map_or(&b""[..], |name| name.get(..NAME_MAX).unwrap_or(name));
        let sid = cx.session().map_or(0, |(sid, _)| sid);
        let who = Who { uid: cx.caller(), pid: cx.pid, sid, comm: name.into() };
        let mut known = self.0.lock();
        if known.len() >= CAPACITY {
            known.retain(|_, (asked, _)| now.duration_since(*asked) < LIFETIME);
        }
        if known.len() >= CAPACITY {
            known.clear();
        }
        known.insert(cx.pid, (now, who.clone()));
        who
    }
}
