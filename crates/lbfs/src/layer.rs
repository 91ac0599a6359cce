use crate::fault::{Blame, blame};
use crate::node::{Core, Node};
use crate::options::Options;
use crate::prober;
use crate::replica::{MAX_REPLICAS, Replica, Source};
use crate::report;
use core::fmt;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Instant;
use vnode::{Command, Cx, Errno, Layer, Properties, Reports, Result, Upcalls, Vnode};

/// The load-balancing layer.
#[derive(Debug)]
pub struct LbFs {
    fs: Arc<Core>,
    root: Arc<Node>,
    properties: Properties,
}

/// Error of [`LbFs::new`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MakeError {
    /// No replicas, or more than [`MAX_REPLICAS`].
    Count(usize),
    /// No replica could be opened: the name and the error of each.
    NoneReachable(Vec<(String, Errno)>),
    /// A replica failed with a permanent error.
    Permanent(String, Errno),
    /// The prober thread could not be started.
    Thread(String),
}

impl fmt::Display for MakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(0) => f.write_str("no replicas given; list their directories, separated by ':'"),
            Self::Count(count) => write!(f, "{count} replicas: too many; the maximum is {MAX_REPLICAS}"),
            Self::NoneReachable(all) => {
                let all: Vec<String> = all.iter().map(|(name, errno)| format!("{name}: {errno}")).collect();
                write!(f, "no replica is reachable ({})", all.join("; "))
            }
            Self::Permanent(name, errno) => write!(f, "replica {name}: {errno}"),
            Self::Thread(why) => write!(f, "can't start the thread for probes: {why}"),
        }
    }
}

impl std::error::Error for MakeError {}

impl LbFs {
    /// Opens the replicas, within the time limit of the option `timeout`. Unreachable replicas are
    /// marked as failed, and are probed later.
    ///
    /// # Errors
    /// [`MakeError`]
    pub fn new(sources: Vec<Source>, options: Options) -> core::result::Result<Arc<Self>, MakeError> {
        if sources.is_empty() || sources.len() > MAX_REPLICAS {
            return Err(MakeError::Count(sources.len()));
        }
        let replicas: Box<[Replica]> =
            sources.into_iter().map(|source| Replica::new(source, options.isolate, options.threads)).collect();
        let fs = Arc::new(Core::new(replicas, options));
        let refused = open_all(&fs);
        if refused.len() == fs.replicas.len() {
            let named = fs.replicas.iter().zip(refused).map(|(replica, (_, errno))| (replica.name.clone(), errno));
            return Err(MakeError::NoneReachable(named.collect()));
        }
        for (i, errno) in refused {
            let name = fs.name(i);
            if blame(errno) == Blame::Nobody {
                return Err(MakeError::Permanent(name.to_owned(), errno));
            }
            tracing::warn!("replica {name}: not reachable: {errno}");
            fs.health.failed(i, Instant::now());
        }
        prober::start(&fs).map_err(|error| MakeError::Thread(error.to_string()))?;
        let opened: Vec<_> = fs.replicas.iter().map(Replica::opened).collect();
        let layers = opened.iter().flatten().filter_map(|opened| opened.layer().ok());
        let below = layers.map(|layer| layer.properties()).reduce(Properties::join).unwrap_or_default();
        // An unreachable replica can be of any type, so assume that it may hang.
        let away = opened.iter().any(|opened| opened.as_ref().is_none_or(|opened| opened.pool.is_some()));
        Ok(Arc::new(Self {
            // Nothing is ever written, so close has no error to report.
            properties: Properties { read_only: true, needs_flush: false, may_hang: below.may_hang || away, ..below },
            root: Node::root(&fs),
            fs,
        }))
    }

    /// Returns the reply to the command `lbfs.replicas`.
    #[must_use]
    pub fn statistics(&self) -> String {
        report::text(&self.fs)
    }

    /// Number of live objects, except for the root.
    #[cfg(test)]
    pub(crate) fn known(&self) -> usize {
        self.fs.table.len()
    }

    /// Number of cached directory listings.
    #[cfg(test)]
    pub(crate) fn listings(&self) -> usize {
        self.fs.listings.len()
    }
}

/// Opens all replicas in parallel. Returns the indices and errors of those that can't be opened.
fn open_all(fs: &Arc<Core>) -> Vec<(usize, Errno)> {
    let deadline = Instant::now() + fs.options.timeout;
    let (answer, answers) = mpsc::channel();
    for (i, replica) in fs.replicas.iter().enumerate() {
        let (fs, answer) = (Arc::downgrade(fs), answer.clone());
        let open = move || {
            let result = fs.upgrade().map(|fs| fs.replicas.get(i).map_or(Err(Errno::IO), |one| one.open_anew(0)));
            // After the deadline, nobody receives this; a probe finds the replica open.
            let _late = answer.send((i, result.unwrap_or(Err(Errno::IO))));
        };
        replica.probes.submit(Box::new(open));
    }
    let mut refused: Vec<(usize, Errno)> = (0..fs.replicas.len()).map(|i| (i, Errno::TIMEDOUT)).collect();
    for _ in 0..fs.replicas.len() {
        let Ok((i, result)) = answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) else { break };
        match result {
            Ok(()) => refused.retain(|(one, _)| *one != i),
            Err(errno) => refused.iter_mut().filter(|(one, _)| *one == i).for_each(|(_, why)| *why = errno),
        }
    }
    refused
}

impl Layer for LbFs {
    fn root(&self) -> Arc<dyn Vnode> {
        self.root.clone()
    }

    fn properties(&self) -> Properties {
        self.properties
    }

    fn attach(&self, _upcalls: Arc<dyn Upcalls>) {
        // Upcalls refer to inode numbers of a single replica, which are meaningless here.
    }

    fn reports(&self) -> Option<Arc<dyn Reports>> {
        None
    }

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        if number == self.root.number() {
            return Ok(self.root());
        }
        self.fs.by_number(cx, &self.root, number)
    }

    fn commands(&self) -> Vec<Command> {
        // Commands of the replicas' layers are not offered, since each would act on only one of the
        // copies.
        vec![report::REPLICAS]
    }

    fn sync(&self, _cx: &Cx<'_>) -> Result<()> {
        Ok(())
    }

    fn unmounted(&self) {
        // Nothing is written through replicas, and a call could hang.
    }
}
