//! The command line.

use std::path::PathBuf;

use clap::Parser;

use crate::branches::Experiment;
use crate::contender::Kind;
use crate::encryption;
use crate::operation::Operation;
use crate::versions::{Part, Storage};
use crate::workload::Workload;

/// Compares Strata's file systems with the native one, overlayfs and FUSE peers. Needs root.
#[derive(Debug, Parser)]
#[command(name = "strata-bench", version)]
pub(crate) struct Options {
    /// Repetitions of every measurement, each on fresh file systems
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) reps: u32,

    /// Files per operation and worker
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u32).range(4..))]
    pub(crate) files: u32,

    /// Size of the large files, MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) large_mib: u32,

    /// Numbers of workers; each worker has its own CPU and its own directories
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2], value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) threads: Vec<u32>,

    /// Measure only these operations
    #[arg(long, value_delimiter = ',', value_enum, value_name = "OPS")]
    pub(crate) only: Vec<Operation>,

    /// Measure only these contenders, and the native file system
    #[arg(long, value_delimiter = ',', value_enum, value_name = "LIST")]
    pub(crate) contenders: Vec<Kind>,

    /// Program that mounts Strata's unionfs; called as mount.unionfs, whatever its file name is
    #[arg(long, default_value = "target/release/strata", value_name = "PATH")]
    pub(crate) unionfs: PathBuf,

    /// Program that mounts Strata's wrapfs, likewise
    #[arg(long, default_value = "target/release/strata", value_name = "PATH")]
    pub(crate) wrapfs: PathBuf,

    /// Program that mounts Strata's versionfs, likewise
    #[arg(long, default_value = "target/release/strata", value_name = "PATH")]
    pub(crate) versionfs: PathBuf,

    /// Program that mounts Strata's cryptfs, likewise
    #[arg(long, default_value = "target/release/strata", value_name = "PATH")]
    pub(crate) cryptfs: PathBuf,

    /// Directory of the unpacked peers and the workloads' sources, filled by scripts/bench.sh
    #[arg(long, default_value = "cache/bench", value_name = "DIR")]
    pub(crate) cache: PathBuf,

    /// Smoke test: few and small files, one repetition
    #[arg(long)]
    pub(crate) quick: bool,

    /// Skip the single operations
    #[arg(long)]
    pub(crate) no_operations: bool,

    /// Also measure the servers' memory and descriptors
    #[arg(long)]
    pub(crate) memory: bool,

    /// Number of files in the tree that measures the server's memory per inode
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    pub(crate) memory_files: u32,

    /// Also run these workloads
    #[arg(long, value_delimiter = ',', value_enum)]
    pub(crate) workload: Vec<Workload>,

    /// Measure only the cost of each additional null layer in a stack, with and without meters
    /// between the layers
    #[arg(long)]
    pub(crate) stack: bool,

    /// Run only the experiments of the papers on Unionfs: the cost of 1 to 1,024 branches, and of
    /// snapshots
    #[arg(long, group = "papers")]
    pub(crate) branches: bool,

    /// Run only the experiments of the paper on Versionfs: time and space of keeping versions
    #[arg(long, group = "papers")]
    pub(crate) versions: bool,

    /// With --versions: run only these [default: all; with --quick all except build]
    #[arg(long, value_delimiter = ',', value_enum, value_name = "LIST", requires = "versions")]
    pub(crate) parts: Vec<Part>,

    /// With --versions: measure only these storage policies
    #[arg(long, value_delimiter = ',', value_enum, value_name = "LIST", requires = "versions")]
    pub(crate) storage: Vec<Storage>,

    /// Repetitions of each experiment of --versions
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub(crate) version_reps: u32,

    /// Run only the comparison of encrypting file systems
    #[arg(long, group = "papers")]
    pub(crate) encryption: bool,

    /// With --encryption: run only these [default: all; with --quick all except build]
    #[arg(long, value_delimiter = ',', value_enum, value_name = "LIST", requires = "encryption")]
    pub(crate) encryption_parts: Vec<encryption::Part>,

    /// With --encryption: measure only these, and the native file system
    #[arg(long, value_delimiter = ',', value_enum, value_name = "LIST", requires = "encryption")]
    pub(crate) encryption_contenders: Vec<encryption::Entrant>,

    /// Repetitions of each part of --encryption
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub(crate) encryption_reps: u32,

    /// With --branches: run only these [default: all; with --quick all except openssh]
    #[arg(long, value_delimiter = ',', value_enum, value_name = "LIST", requires = "branches")]
    pub(crate) experiments: Vec<Experiment>,

    /// Repetitions of each experiment of --branches
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub(crate) branch_reps: u32,

    /// Draw the figures of --branches, --versions or --encryption as SVG, into this directory
    #[arg(long, value_name = "DIR", requires = "papers")]
    pub(crate) figures: Option<PathBuf>,

    /// Repetitions of each workload
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) workload_reps: u32,

    /// Write all measurements as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write the tables as Markdown
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,

    /// Draw the ratios to native as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

impl Options {
    /// Number of repetitions of the single operations.
    pub(crate) fn repetitions(&self) -> u32 {
        if self.quick { 1 } else { self.reps }
    }

    /// Number of files per operation and worker.
    pub(crate) fn files(&self) -> u32 {
        if self.quick { self.files.min(40) } else { self.files }
    }

    /// Size of a large file in bytes.
    pub(crate) fn large_bytes(&self) -> u64 {
        u64::from(if self.quick { self.large_mib.min(2) } else { self.large_mib }) << 20
    }

    /// Number of files in the tree for the memory measurement.
    pub(crate) fn memory_files(&self) -> u32 {
        if self.quick { self.memory_files.min(2000) } else { self.memory_files }
    }

    /// Whether an experiment of --branches is selected. A build takes too long for a smoke test.
    pub(crate) fn wants(&self, experiment: Experiment) -> bool {
        match self.experiments.as_slice() {
            [] => !(self.quick && experiment == Experiment::Openssh),
            some => some.contains(&experiment),
        }
    }

    /// Whether a part of --versions is selected. A build takes too long for a smoke test.
    pub(crate) fn wants_part(&self, part: Part) -> bool {
        match self.parts.as_slice() {
            [] => !(self.quick && part == Part::Build),
            some => some.contains(&part),
        }
    }

    /// Whether a part of --encryption is selected. A build takes too long for a smoke test.
    pub(crate) fn wants_encryption(&self, part: encryption::Part) -> bool {
        match self.encryption_parts.as_slice() {
            [] => !(self.quick && part == encryption::Part::Build),
            some => some.contains(&part),
        }
    }

    /// Returns the operations to measure, in order of execution.
    pub(crate) fn operations(&self) -> Vec<Operation> {
        Operation::ALL.into_iter().filter(|op| self.only.is_empty() || self.only.contains(op)).collect()
    }
}
