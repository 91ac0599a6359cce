//! Calls of the file system below, and whether it is lost.

use crate::caller::Caller;
use crate::calls::Calls;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vnode::{Attr, Cx, Errno, Result, Time, Vnode};

/// How often a lost file system is asked whether it is back.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// How a lost file system appears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// Every operation fails with `EIO`.
    Error,
    /// It is empty.
    Empty,
}

/// The state of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It answers.
    Good,
    /// An operation has not returned for [`crate::STUCK_AFTER`].
    Stuck,
    /// Its root returns an error.
    Lost,
}

/// A file system that may hang or be lost.
#[derive(Debug)]
pub(crate) struct Guard {
    name: String,
    root: Arc<dyn Vnode>,
    /// Whether a lost file system appears empty.
    empties: AtomicBool,
    /// `None` if the file system does not hang: calls run on the caller's thread.
    pub(crate) calls: Option<Arc<Calls>>,
    loss: Mutex<Loss>,
}

#[derive(Debug, Default)]
struct Loss {
    /// When the root was last asked, if the file system is lost.
    lost: Option<Instant>,
    /// The root's attributes when it last answered.
    root: Option<Attr>,
}

/// Whether this may be the error of a lost file system.
fn may_be_lost(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::STALE | Errno::IO | Errno::SHUTDOWN | Errno::NODEV)
}

impl Guard {
    pub(crate) fn new(name: &str, root: Arc<dyn Vnode>, hangs: bool, on_loss: OnLoss) -> Arc<Self> {
        let calls = hangs.then(|| Calls::new(name));
        Arc::new(Self {
            name: name.to_owned(),
            root,
            empties: (on_loss == OnLoss::Empty).into(),
            calls,
            loss: Mutex::default(),
        })
    }

    pub(crate) fn health(&self) -> Health {
        if self.loss.lock().lost.is_some() {
            Health::Lost
        } else if self.calls.as_ref().is_some_and(|calls| calls.is_stuck()) {
            Health::Stuck
        } else {
            Health::Good
        }
    }

    /// Whether this is the root of the file system below.
    pub(crate) fn is_root(&self, lower: &Arc<dyn Vnode>) -> bool {
        Arc::ptr_eq(lower, &self.root)
    }

    pub(crate) fn set_on_loss(&self, on_loss: OnLoss) {
        self.empties.store(on_loss == OnLoss::Empty, Ordering::Relaxed);
    }

    fn on_loss(&self) -> OnLoss {
        if self.empties.load(Ordering::Relaxed) { OnLoss::Empty } else { OnLoss::Error }
    }

    /// Whether the file system is lost and appears empty.
    pub(crate) fn is_empty(&self, cx: &Cx<'_>) -> bool {
        self.on_loss() == OnLoss::Empty && self.is_lost(cx)
    }

    /// Whether the file system is lost. Asks it now and then whether it is back.
    fn is_lost(&self, cx: &Cx<'_>) -> bool {
        {
            let mut loss = self.loss.lock();
            match loss.lost {
                None => return false,
                Some(asked) if asked.elapsed() < PROBE_INTERVAL => return true,
                Some(_) => loss.lost = Some(Instant::now()),
            }
        }
        !self.ask_root(cx).is_ok_and(|lost| !lost)
    }

    /// Asks the root whether the file system is lost, and notes the answer.
    fn ask_root(&self, cx: &Cx<'_>) -> Result<bool> {
        let root = Arc::clone(&self.root);
        // The kernel may have cached the attributes, but asks the file system for its size.
        let answer = self.run(cx, move |cx| root.statfs(cx).and_then(|_| root.getattr(cx)))?;
        let mut loss = self.loss.lock();
        match answer {
            Ok(attr) => {
                loss.root = Some(attr);
                if loss.lost.take().is_some() {
                    drop(loss);
                    tracing::warn!("{} is back", self.name);
                }
                Ok(false)
            }
            Err(errno) if may_be_lost(errno) => {
                if loss.lost.replace(Instant::now()).is_none() {
                    drop(loss);
                    let then = match self.on_loss() {
                        OnLoss::Error => "operations that need it fail with EIO",
                        OnLoss::Empty => "it appears empty",
                    };
                    tracing::error!("{} is lost ({errno}): {then} until it is back", self.name);
                }
                Ok(true)
            }
            Err(_) => Ok(false),
        }
    }

    /// Runs a call of the file system below.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        cx: &Cx<'_>,
        call: impl FnOnce(&Cx<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if self.is_lost(cx) {
            return Err(self.lost_error());
        }
        match self.run(cx, call)? {
            Err(errno) if may_be_lost(errno) && self.ask_root(cx)? => Err(self.lost_error()),
            answer => answer,
        }
    }

    /// Returns the error of an operation on a file of the lost file system.
    fn lost_error(&self) -> Errno {
        match self.on_loss() {
            OnLoss::Error => Errno::IO,
            OnLoss::Empty => Errno::STALE,
        }
    }

    /// Returns the attributes of the root. Those of a lost one are the last ones with another
    /// change time, by which a cached listing is recognised as outdated.
    pub(crate) fn root_attr(&self, cx: &Cx<'_>) -> Result<Attr> {
        let root = Arc::clone(&self.root);
        match self.call(cx, move |cx| root.getattr(cx)) {
            Ok(attr) => {
                self.loss.lock().root = Some(attr);
                Ok(attr)
            }
            Err(Errno::STALE) if self.on_loss() == OnLoss::Empty => {
                let attr = self.loss.lock().root.ok_or(Errno::IO)?;
                Ok(Attr { ctime: Time { sec: 0, nsec: 0 }, nlink: 2, ..attr })
            }
            Err(errno) => Err(errno),
        }
    }

    /// Runs `call`, on another thread if the file system may hang.
    fn run<T: Send + 'static>(&self, cx: &Cx<'_>, call: impl FnOnce(&Cx<'_>) -> T + Send + 'static) -> Result<T> {
        let Some(calls) = &self.calls else { return Ok(call(cx)) };
        let caller = Caller::of(cx);
        Ok(calls.call(cx, move || caller.run(call))?.take(cx))
    }
}
