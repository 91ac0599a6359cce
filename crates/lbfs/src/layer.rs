use crate::fault::{Blame, blame};
use crate::keeper;
use crate::node::{Core, Node};
use crate::options::Options;
use crate::replica::{MAX_REPLICAS, Replica, Source};
use crate::report;
use core::fmt;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Instant;
use vnode::{Command, Cx, Errno, Layer, Properties, Result, Upcalls, Vnode};

/// The load-balancing layer.
#[derive(Debug)]
pub struct LbFs {
    fs: Arc<Core>,
    root: Arc<Node>,
    properties: Properties,
}

/// Why there is no layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MakeError {
    /// No replica at all, or more than [`MAX_REPLICAS`].
    Count(usize),
    /// None of them could be opened: the name and the reason of each.
    NoneOpens(Vec<(String, Errno)>),
    /// One of them is not there, and no waiting will change that.
    Wrong(String, Errno),
    /// No thread for the probes.
    Thread(String),
}

impl fmt::Display for MakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(0) => f.write_str("no replicas: name their directories, separated by ':'"),
            Self::Count(count) => write!(f, "{count} replicas are more than the {MAX_REPLICAS} that can be"),
            Self::NoneOpens(all) => {
                let all: Vec<String> = all.iter().map(|(name, errno)| format!("{name}: {errno}")).collect();
                write!(f, "no replica can be reached ({})", all.join("; "))
            }
            Self::Wrong(name, errno) => write!(f, "replica {name}: {errno}"),
            Self::Thread(why) => write!(f, "can't start a thread for probes: {why}"),
        }
    }
}

impl std::error::Error for MakeError {}

impl LbFs {
    /// Opens the replicas, which takes at most the options' `timeout`. Those that can't be reached count as down, and are tried
    /// again.
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
            return Err(MakeError::NoneOpens(named.collect()));
        }
        for (i, errno) in refused {
            let name = fs.name(i);
            if blame(errno) == Blame::Nobody {
                return Err(MakeError::Wrong(name.to_owned(), errno));
            }
            tracing::warn!("replica {name} can't be reached: {errno}");
            fs.board.failed(i, Instant::now());
        }
        keeper::start(&fs).map_err(|error| MakeError::Thread(error.to_string()))?;
        let opened: Vec<_> = fs.replicas.iter().map(Replica::opened).collect();
        let layers = opened.iter().flatten().filter_map(|opened| opened.layer().ok());
        let below = layers.map(|layer| layer.properties()).reduce(Properties::join).unwrap_or_default();
        // One that is away may be of any kind.
        let away = opened.iter().any(|opened| opened.as_ref().is_none_or(|opened| opened.pool.is_some()));
        Ok(Arc::new(Self {
            // Nothing is written, so no close has anything to report.
            properties: Properties { read_only: true, needs_flush: false, may_hang: below.may_hang || away, ..below },
            root: Node::root(&fs),
            fs,
        }))
    }

    /// What the command `lbfs.replicas` answers.
    #[must_use]
    pub fn statistics(&self) -> String {
        report::text(&self.fs)
    }

    /// How many objects are known at the moment, the root not counted.
    #[cfg(test)]
    pub(crate) fn known(&self) -> usize {
        self.fs.table.len()
    }
}

/// Opens all replicas at the same time. Answers those that can't be opened, by number.
fn open_all(fs: &Arc<Core>) -> Vec<(usize, Errno)> {
    let deadline = Instant::now() + fs.options.timeout;
    let (answer, answers) = mpsc::channel();
    for (i, replica) in fs.replicas.iter().enumerate() {
        let (fs, answer) = (Arc::downgrade(fs), answer.clone());
        let open = move || {
            let result = fs.upgrade().map(|fs| fs.replicas.get(i).map_or(Err(Errno::IO), |one| one.open_anew(0)));
            // Nobody waits any more: then a probe finds it open.
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
        // What the replicas say of numbers of their own means nothing to users of several.
    }

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        if number == self.root.number() {
            return Ok(self.root());
        }
        self.fs.by_number(cx, &self.root, number)
    }

    fn commands(&self) -> Vec<Command> {
        // Those of the replicas' layers are left out: each would act on one of several copies.
        vec![report::REPLICAS]
    }

    fn sync(&self, _cx: &Cx<'_>) -> Result<()> {
        Ok(())
    }
}
