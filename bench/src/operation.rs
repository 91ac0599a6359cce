//! The measured operations: names, units and targets.

use serde::{Deserialize, Serialize};

/// An operation that is measured separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Operation {
    GetattrForced,
    StatFirst,
    StatAgain,
    MissingFirst,
    MissingAgain,
    OpenReadRw,
    OpenReadRo,
    Readdir,
    Chmod,
    Rename,
    SeqRead,
    SeqWrite,
    RandRead,
    RandWrite,
    MmapRead,
    MmapWrite,
    RoFirst,
    RoAgain,
    Create,
    Mkdir,
    Rmdir,
    Unlink,
}

/// Unit of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unit {
    #[serde(rename = "ops/s")]
    Operations,
    #[serde(rename = "MB/s")]
    Megabytes,
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Unit::Operations => "ops/s",
            Unit::Megabytes => "MB/s",
        }
    }
}

impl Operation {
    /// Every operation, in order of execution: reads first and removals last, because ext4 creates
    /// slowly after many inodes were freed.
    pub(crate) const ALL: [Operation; 22] = [
        Operation::GetattrForced,
        Operation::StatFirst,
        Operation::StatAgain,
        Operation::MissingFirst,
        Operation::MissingAgain,
        Operation::OpenReadRw,
        Operation::OpenReadRo,
        Operation::Readdir,
        Operation::Chmod,
        Operation::Rename,
        Operation::SeqRead,
        Operation::SeqWrite,
        Operation::RandRead,
        Operation::RandWrite,
        Operation::MmapRead,
        Operation::MmapWrite,
        Operation::RoFirst,
        Operation::RoAgain,
        Operation::Create,
        Operation::Mkdir,
        Operation::Rmdir,
        Operation::Unlink,
    ];

    /// Returns the name on the command line and in the JSON.
    pub(crate) fn id(self) -> &'static str {
        self.texts().0
    }

    /// Returns the name in tables.
    pub(crate) fn label(self) -> &'static str {
        self.texts().1
    }

    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Operation::GetattrForced => ("getattr-forced", "stat, bypassing attribute cache"),
            Operation::StatFirst => ("stat-first", "stat, first time"),
            Operation::StatAgain => ("stat-again", "stat, again"),
            Operation::MissingFirst => ("missing-first", "stat of a missing name, first time"),
            Operation::MissingAgain => ("missing-again", "stat of a missing name, again"),
            Operation::OpenReadRw => ("open-read-rw", "open + read 4 KiB + close, rw branch"),
            Operation::OpenReadRo => ("open-read-ro", "open + read 4 KiB + close, ro branch"),
            Operation::Readdir => ("readdir", "readdir of 100 entries, again"),
            Operation::Chmod => ("chmod", "chmod"),
            Operation::Rename => ("rename", "rename"),
            Operation::SeqRead => ("seq-read", "sequential read, rw branch"),
            Operation::SeqWrite => ("seq-write", "sequential write, rw branch"),
            Operation::RandRead => ("rand-read", "random 4 KiB reads, rw branch"),
            Operation::RandWrite => ("rand-write", "random 4 KiB writes, rw branch"),
            Operation::MmapRead => ("mmap-read", "mmap read, rw branch"),
            Operation::MmapWrite => ("mmap-write", "mmap write, rw branch"),
            Operation::RoFirst => ("ro-first", "sequential read, ro branch, first time"),
            Operation::RoAgain => ("ro-again", "sequential read, ro branch, again"),
            Operation::Create => ("create", "create + write 4 KiB + close"),
            Operation::Mkdir => ("mkdir", "mkdir"),
            Operation::Rmdir => ("rmdir", "rmdir"),
            Operation::Unlink => ("unlink", "unlink"),
        }
    }

    /// Whether the operation transfers the data of a large file.
    pub(crate) fn is_large(self) -> bool {
        matches!(
            self,
            Operation::SeqRead
                | Operation::SeqWrite
                | Operation::RandRead
                | Operation::RandWrite
                | Operation::MmapRead
                | Operation::MmapWrite
                | Operation::RoFirst
                | Operation::RoAgain
        )
    }

    pub(crate) fn unit(self) -> Unit {
        if self.is_large() { Unit::Megabytes } else { Unit::Operations }
    }

    /// Returns the target for the union, as a share of the native rate.
    pub(crate) fn target(self) -> Option<f64> {
        match self {
            Operation::Create => Some(0.35),
            Operation::Unlink => Some(0.5),
            Operation::StatAgain | Operation::MissingAgain => Some(0.9),
            Operation::OpenReadRw | Operation::OpenReadRo => Some(0.18),
            Operation::Readdir => Some(0.6),
            Operation::Chmod => Some(0.17),
            Operation::Rename => Some(0.3),
            Operation::SeqRead
            | Operation::SeqWrite
            | Operation::RandRead
            | Operation::RandWrite
            | Operation::MmapRead
            | Operation::MmapWrite
            | Operation::RoAgain => Some(0.95),
            Operation::RoFirst => Some(0.4),
            Operation::GetattrForced
            | Operation::StatFirst
            | Operation::MissingFirst
            | Operation::Mkdir
            | Operation::Rmdir => None,
        }
    }

    /// Returns the number of passes over the files in the timed phase. Cached operations need
    /// several to rise above the noise; an operation that can happen once per file has one pass.
    pub(crate) fn passes(self) -> u32 {
        match self {
            Operation::StatAgain | Operation::MissingAgain => 10,
            Operation::GetattrForced | Operation::OpenReadRw | Operation::OpenReadRo | Operation::Chmod => 4,
            Operation::Readdir => 25,
            Operation::SeqRead
            | Operation::SeqWrite
            | Operation::MmapRead
            | Operation::MmapWrite
            | Operation::RoAgain => 2,
            _ => 1,
        }
    }
}
