use core::fmt;
use core::str::FromStr;
use core::time::Duration;

/// The policy that selects the replica of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// A random replica.
    #[default]
    Random,
    /// Each replica in turn.
    RoundRobin,
    /// The least recently used replica.
    LeastRecentlyUsed,
    /// The replica with the lowest latency. Occasionally another one, to update its latency.
    Fastest,
    /// By a hash of the file's number: a file is always read from the same replica, so the caches
    /// of the replicas hold different files.
    Hash,
}

impl Policy {
    /// All policies with their names.
    pub const ALL: [(&'static str, Self); 5] = [
        ("random", Self::Random),
        ("roundrobin", Self::RoundRobin),
        ("lru", Self::LeastRecentlyUsed),
        ("fastest", Self::Fastest),
        ("hash", Self::Hash),
    ];

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, policy)| *policy == self).map_or("random", |(name, _)| name)
    }
}

impl FromStr for Policy {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        Self::ALL.iter().find(|(name, _)| *name == text).map(|(_, policy)| *policy).ok_or(Unknown(&Self::NAMES))
    }
}

impl Policy {
    const NAMES: [&'static str; 5] = ["random", "roundrobin", "lru", "fastest", "hash"];
}

/// Which replicas are called on threads that can be abandoned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolate {
    /// Replicas whose layer may hang: network file systems and FUSE.
    #[default]
    Auto,
    /// All replicas.
    Always,
    /// None. A hanging replica then blocks the threads that serve the mount.
    Never,
}

impl Isolate {
    const NAMES: [&'static str; 3] = ["auto", "always", "never"];
}

impl FromStr for Isolate {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        match text {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(Unknown(&Self::NAMES)),
        }
    }
}

/// Error for an unknown word. The field lists the valid ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown(&'static [&'static str]);

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it is one of {}", self.0.join(", "))
    }
}

impl std::error::Error for Unknown {}

/// The options of the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The policy that selects the replica of a file.
    pub policy: Policy,
    /// Time limit for one operation.
    pub timeout: Duration,
    /// Maximum number of concurrent calls to a replica that may hang.
    pub threads: usize,
    /// Maximum time between two probes of a replica that is down.
    pub probe: Duration,
    /// Time until a recovered replica gets its full share of new files.
    pub ramp: Duration,
    /// One in this many lookups is compared with another replica; 0 disables comparisons.
    pub compare: u32,
    /// Which replicas are called on a separate thread pool.
    pub isolate: Isolate,
    /// Whether to use passthrough for files on replicas that can't hang. Such an open file can't
    /// move to another replica.
    pub passthrough: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: Policy::Random,
            timeout: Duration::from_secs(2),
            threads: 16,
            probe: Duration::from_secs(30),
            ramp: Duration::from_secs(30),
            compare: 64,
            isolate: Isolate::Auto,
            passthrough: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_names_round_trip() {
        for (name, policy) in Policy::ALL {
            assert_eq!((name.parse(), policy.name()), (Ok(policy), name));
        }
        assert_eq!(Policy::ALL.map(|(name, _)| name), Policy::NAMES);
        assert_eq!("never".parse(), Ok(Isolate::Never));
        let why = "best".parse::<Policy>().unwrap_err().to_string();
        assert!(why.contains("roundrobin, lru"), "{why}");
    }
}
