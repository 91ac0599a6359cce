//! What is measured: parts, and their steps.

use serde::Serialize;

use super::entrant::Entrant;
use crate::processor::Processor;

/// A part of the comparison, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Part {
    /// A large file, written and read in sequence
    Stream,
    /// A source tree: tar, md5sum, ls -lR, rm -rf
    Tree,
    /// The OpenSSH build
    Build,
    /// Random reads and writes of 4 KiB
    Random,
    /// Small files: create, stat, remove
    Small,
}

/// A step of a part, timed separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Step {
    Write,
    WriteSync,
    Overwrite,
    OverwriteSync,
    ReadWarm,
    ReadCold,
    Untar,
    Md5sum,
    List,
    Remove,
    Build,
    RandomRead,
    RandomWrite,
    Create,
    Stat,
    Unlink,
}

/// Unit of a step's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// 10^6 bytes per second.
    Rate,
    Seconds,
    /// Per operation.
    Microseconds,
}

/// Result of a step.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Done {
    pub(crate) seconds: f64,
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    /// Of the server, and of the programs that a step starts.
    pub(crate) processor: Processor,
}

/// Aim of a step: a multiple of another contender's speed or time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Goal {
    /// At least this multiple of the speed.
    Speed(Entrant, f64),
    /// At most this multiple of the time.
    Time(Entrant, f64),
}

/// Least multiple of the speed of gocryptfs.
const SPEED_GOAL: f64 = 2.0;
/// Greatest multiple of the time of a build over the null layer. The Wrapfs paper measured this
/// for its Cryptfs.
const BUILD_GOAL: f64 = 1.092;

impl Part {
    pub(crate) const ALL: [Self; 5] = [Self::Stream, Self::Tree, Self::Build, Self::Random, Self::Small];

    /// Returns the title of its tables.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Stream => "a large file",
            Self::Tree => "a source tree",
            Self::Build => "OpenSSH, configure and make -j2",
            Self::Random => "random access",
            Self::Small => "small files",
        }
    }

    pub(super) fn unit(self) -> Unit {
        match self {
            Self::Stream => Unit::Rate,
            Self::Tree | Self::Build => Unit::Seconds,
            Self::Random | Self::Small => Unit::Microseconds,
        }
    }

    /// Whether a contender takes part. A build takes long, and compares with few.
    pub(super) fn includes(self, entrant: Entrant) -> bool {
        self != Self::Build
            || matches!(
                entrant,
                Entrant::Native | Entrant::Null | Entrant::Mount | Entrant::Session | Entrant::Gocryptfs
            )
    }
}

impl Step {
    pub(super) const ALL: [Self; 16] = [
        Self::Write,
        Self::WriteSync,
        Self::Overwrite,
        Self::OverwriteSync,
        Self::ReadWarm,
        Self::ReadCold,
        Self::Untar,
        Self::Md5sum,
        Self::List,
        Self::Remove,
        Self::Build,
        Self::RandomRead,
        Self::RandomWrite,
        Self::Create,
        Self::Stat,
        Self::Unlink,
    ];

    pub(super) fn part(self) -> Part {
        match self {
            Self::Write | Self::WriteSync | Self::Overwrite | Self::OverwriteSync | Self::ReadWarm | Self::ReadCold => {
                Part::Stream
            }
            Self::Untar | Self::Md5sum | Self::List | Self::Remove => Part::Tree,
            Self::Build => Part::Build,
            Self::RandomRead | Self::RandomWrite => Part::Random,
            Self::Create | Self::Stat | Self::Unlink => Part::Small,
        }
    }

    /// Returns the name in tables and figures.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::WriteSync => "write, fsync",
            Self::Overwrite => "overwrite",
            Self::OverwriteSync => "overwrite, fsync",
            Self::ReadWarm => "read, warm",
            Self::ReadCold => "read, cold",
            Self::Untar => "tar -x",
            Self::Md5sum => "md5sum",
            Self::List => "ls -lR",
            Self::Remove => "rm -rf",
            Self::Build => "build",
            Self::RandomRead => "random read",
            Self::RandomWrite => "random write, fsync",
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Unlink => "unlink",
        }
    }

    /// Returns the goal for a contender. Contenders are compared with those of the same cipher.
    pub(super) fn goal(self, entrant: Entrant) -> Option<Goal> {
        let peer = entrant.counterpart()?;
        match self.part() {
            Part::Stream | Part::Tree => Some(Goal::Speed(peer, SPEED_GOAL)),
            Part::Build => Some(Goal::Time(Entrant::Null, BUILD_GOAL)),
            Part::Random | Part::Small => None,
        }
    }
}

impl Done {
    /// Returns the result in that unit.
    pub(super) fn value(&self, unit: Unit) -> f64 {
        match unit {
            Unit::Rate => self.bytes as f64 / 1e6 / self.seconds,
            Unit::Seconds => self.seconds,
            Unit::Microseconds => self.seconds * 1e6 / self.operations.max(1) as f64,
        }
    }
}
