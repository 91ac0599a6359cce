use crate::lineage::ProcessTable;
use crate::{Answer, Classifier};
use core::fmt;
use core::time::Duration;
use parking_lot::Mutex;
use serde_json::json;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::Instant;
use vnode::{Cx, Result};

/// Something that replies to a line with a line: a socket, or a test.
pub trait Ask: Send + Sync + fmt::Debug {
    /// Sends a line and returns the reply without its newline. `None` if there is none in time.
    fn ask(&self, line: &str) -> Option<String>;
}

/// Maximum number of cached replies.
const MAX_CACHED: usize = 16_384;

/// Time without questions after one that got no valid reply. Callers without a cached reply are
/// unknown meanwhile.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest time that a reply can be cached.
const MAX_CACHE_SECONDS: f64 = 86_400.0;

/// Identifies a caller: process ID, start time, user and group.
type Key = (u32, u64, u32, u32);

/// A classifier in another program.
///
/// Each question is a line of JSON with the fields `pid`, `start`, `uid`, `gid`, `exe` and
/// `cgroup`. The reply is a line: the name of a view or `-` (no opinion), and optionally the number
/// of seconds for which the reply is valid for this process, user and group.
#[derive(Debug)]
pub struct External {
    program: Box<dyn Ask>,
    processes: Arc<dyn ProcessTable>,
    views: Vec<String>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    cached: HashMap<Key, (Answer, Instant)>,
    /// No questions before this time.
    paused: Option<Instant>,
    /// Incremented when replies become invalid.
    generation: u64,
}

impl External {
    /// Returns a classifier that asks `program`. `views`: the names of the views.
    #[must_use]
    pub fn new(program: Box<dyn Ask>, processes: Arc<dyn ProcessTable>, views: Vec<String>) -> Self {
        Self { program, processes, views, state: Mutex::default() }
    }

    /// Drops all cached replies.
    pub fn forget(&self) {
        let mut state = self.state.lock();
        let generation = state.generation + 1;
        *state = State { generation, ..State::default() };
    }

    /// Returns the answer that needs no question, if there is one, and the generation.
    fn cached(&self, key: &Key) -> (Option<Answer>, u64) {
        let (now, state) = (Instant::now(), self.state.lock());
        let cached = state.cached.get(key).filter(|(_, end)| now < *end).map(|(answer, _)| *answer);
        let paused = state.paused.is_some_and(|end| now < end).then_some(Answer::Unknown);
        (cached.or(paused), state.generation)
    }

    fn record(&self, key: Key, reply: Option<(Answer, Duration)>, generation: u64) {
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.generation != generation {
            return;
        }
        match reply {
            None => state.paused = now.checked_add(PAUSE),
            Some((answer, valid)) if !valid.is_zero() => {
                if state.cached.len() >= MAX_CACHED {
                    state.cached.retain(|_, (_, end)| now < *end);
                }
                if state.cached.len() < MAX_CACHED
                    && let Some(end) = now.checked_add(valid)
                {
                    state.cached.insert(key, (answer, end));
                }
            }
            Some(_) => {}
        }
    }

    fn parse(&self, reply: &str) -> Option<(Answer, Duration)> {
        let mut words = reply.split_ascii_whitespace();
        let answer = match words.next()? {
            "-" => Answer::Pass,
            name => Answer::View(self.views.iter().position(|view| view == name)?),
        };
        let valid = match words.next() {
            None => Duration::ZERO,
            Some(seconds) => {
                let seconds = seconds.parse::<f64>().ok().filter(|seconds| *seconds >= 0.0)?;
                Duration::try_from_secs_f64(seconds.min(MAX_CACHE_SECONDS)).ok()?
            }
        };
        words.next().is_none().then_some((answer, valid))
    }
}

impl Classifier for External {
    fn classify(&self, cx: &Cx<'_>) -> Result<Answer> {
        if crate::is_servers_own(cx) {
            return Ok(Answer::Pass);
        }
        let Some(process) = self.processes.process(cx.pid) else { return Ok(Answer::Unknown) };
        let key = (process.id, process.start, cx.caller(), cx.gid);
        let (cached, generation) = self.cached(&key);
        if let Some(answer) = cached {
            return Ok(answer);
        }
        cx.require_blocking()?;
        let text = |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let question = json!({
            "pid": process.id,
            "start": process.start,
            "uid": cx.caller(),
            "gid": cx.gid,
            "exe": text(cx.executable().map(|path| path.as_os_str().as_bytes())),
            "cgroup": text(cx.cgroup()),
        });
        let reply = self.program.ask(&question.to_string());
        let parsed = reply.as_deref().and_then(|reply| self.parse(reply));
        if parsed.is_none() {
            match &reply {
                Some(reply) => tracing::warn!("the classifier's reply is invalid: {reply:?}"),
                None => tracing::warn!("the classifier does not reply"),
            }
        }
        self.record(key, parsed, generation);
        Ok(parsed.map_or(Answer::Unknown, |(answer, _)| answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lineage::Process;
    use core::sync::atomic::AtomicBool;
    use vnode::MAY_BLOCK;

    #[derive(Debug)]
    struct One;

    impl ProcessTable for One {
        fn process(&self, thread: u32) -> Option<Process> {
            (thread > 0).then_some(Process { id: thread, start: 5, parent: 1 })
        }

        fn credentials(&self, process: u32) -> Option<(u32, u32)> {
            (process > 0).then_some((0, 0))
        }

        fn all(&self) -> Vec<Process> {
            Vec::new()
        }
    }

    /// Replies by user ID.
    #[derive(Debug)]
    struct Program(&'static [Option<&'static str>]);

    impl Ask for Program {
        fn ask(&self, line: &str) -> Option<String> {
            let question: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(question["start"], 5);
            assert!(question["exe"].is_null());
            self.0[question["uid"].as_u64().unwrap() as usize].map(str::to_owned)
        }
    }

    fn external(replies: &'static [Option<&'static str>]) -> External {
        External::new(Box::new(Program(replies)), Arc::new(One), vec!["good".into(), "bad".into()])
    }

    #[test]
    fn replies_are_interpreted_and_cached() {
        let never = AtomicBool::new(false);
        let external = external(&[Some("bad"), Some("good 60"), Some("-")]);
        let ask = |uid, pid, may_block| external.classify(&Cx::new(uid, 0, pid, 0, may_block, &never));
        assert_eq!(ask(0, 9, false), Err(MAY_BLOCK));
        assert_eq!((ask(0, 9, true), ask(2, 9, true)), (Ok(Answer::View(1)), Ok(Answer::Pass)));
        assert_eq!(ask(1, 9, true), Ok(Answer::View(0)));
        assert_eq!(ask(1, 9, false), Ok(Answer::View(0)), "cached");
        assert_eq!(ask(1, 8, false), Err(MAY_BLOCK), "another process");
        external.forget();
        assert_eq!(ask(1, 9, false), Err(MAY_BLOCK));
        assert_eq!(ask(1, 0, true), Ok(Answer::Unknown), "an invisible process");
    }

    #[test]
    fn invalid_replies_make_callers_unknown() {
        let never = AtomicBool::new(false);
        for reply in ["", "worse", "bad x", "bad -1", "bad nan", "bad 1 2", "good bad"] {
            let replies: &'static [_] = vec![Some(&*reply.to_owned().leak()), Some("bad 9")].leak();
            let external = external(replies);
            let ask = |uid| external.classify(&Cx::new(uid, 0, 9, 0, true, &never));
            assert_eq!(ask(0), Ok(Answer::Unknown), "{reply:?}");
            assert_eq!(ask(1), Ok(Answer::Unknown), "no question for a second");
            external.forget();
            assert_eq!(ask(1), Ok(Answer::View(1)));
        }
        let external = external(&[None]);
        assert_eq!(external.classify(&Cx::new(0, 0, 9, 0, true, &never)), Ok(Answer::Unknown));
    }
}
