use core::fmt;
use core::str::FromStr;
use core::time::Duration;

/// How the replica of a file is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Any.
    #[default]
    Random,
    /// One after the other.
    RoundRobin,
    /// The one that has been left alone for the longest time.
    LeastRecentlyUsed,
    /// The one that answers fastest. Now and then another, to know how fast that is.
    Fastest,
    /// By the file's number: always the same for the same file, so that caches of the replicas hold different files.
    Hash,
}

impl Policy {
    /// All, with the names that they are written by.
    pub const ALL: [(&'static str, Self); 5] = [
        ("random", Self::Random),
        ("roundrobin", Self::RoundRobin),
        ("lru", Self::LeastRecentlyUsed),
        ("fastest", Self::Fastest),
        ("hash", Self::Hash),
    ];

    /// Its name.
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

/// Which replicas are called on threads that can be given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolate {
    /// Those whose layer may hang: networks, FUSE.
    #[default]
    Auto,
    /// All.
    Always,
    /// None: a replica that hangs keeps the threads that serve the mount.
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

/// A word that is none of those that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown(&'static [&'static str]);

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it is one of {}", self.0.join(", "))
    }
}

impl std::error::Error for Unknown {}

/// How replicas are chosen, waited for and taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How the replica of a file is chosen.
    pub policy: Policy,
    /// How long one call of a replica that may hang is waited for.
    pub timeout: Duration,
    /// How many calls of such a replica run at a time.
    pub threads: usize,
    /// The longest time between two probes of a replica that is down.
    pub probe: Duration,
    /// How long it takes a replica that came back to get its whole share of new files.
    pub ramp: Duration,
    /// One of so many look-ups is compared with another replica; 0: none.
    pub compare: u32,
    /// Which replicas are called on threads of their own.
    pub isolate: Isolate,
    /// Hand out the host files of replicas that can't hang. Such an open file does not move to another replica.
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
    fn names_are_read_back() {
        for (name, policy) in Policy::ALL {
            assert_eq!((name.parse(), policy.name()), (Ok(policy), name));
        }
        assert_eq!(Policy::ALL.map(|(name, _)| name), Policy::NAMES);
        assert_eq!("never".parse(), Ok(Isolate::Never));
        let why = "best".parse::<Policy>().unwrap_err().to_string();
        assert!(why.contains("roundrobin, lru"), "{why}");
    }
}
