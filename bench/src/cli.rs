//! The command line.

use std::path::PathBuf;

use clap::Parser;

use crate::contender::Kind;
use crate::operation::Operation;
use crate::workload::Workload;

/// Measures Strata's file systems beside the native one, overlayfs and FUSE peers. Needs root.
#[derive(Debug, Parser)]
#[command(name = "strata-bench", version)]
pub(crate) struct Options {
    /// How often everything is measured, each time on fresh file systems
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) reps: u32,

    /// Files per operation and worker
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u32).range(4..))]
    pub(crate) files: u32,

    /// Size of the large files, MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) large_mib: u32,

    /// Numbers of workers, each pinned to a CPU of its own and in directories of its own
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2], value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) threads: Vec<u32>,

    /// Only these operations
    #[arg(long, value_delimiter = ',', value_enum, value_name = "OPS")]
    pub(crate) only: Vec<Operation>,

    /// Only these contenders; the native file system is always among them
    #[arg(long, value_delimiter = ',', value_enum, value_name = "LIST")]
    pub(crate) contenders: Vec<Kind>,

    /// The program that mounts Strata's unionfs; it is called by the name mount.unionfs whatever its file is called
    #[arg(long, default_value = "target/release/strata", value_name = "PATH")]
    pub(crate) unionfs: PathBuf,

    /// The program that mounts Strata's wrapfs, likewise
    #[arg(long, default_value = "target/release/strata", value_name = "PATH")]
    pub(crate) wrapfs: PathBuf,

    /// Where scripts/bench.sh unpacks the peers and keeps the sources of the workloads
    #[arg(long, default_value = "cache/bench", value_name = "DIR")]
    pub(crate) cache: PathBuf,

    /// A smoke test: few files, small ones, once
    #[arg(long)]
    pub(crate) quick: bool,

    /// Leave the single operations out
    #[arg(long)]
    pub(crate) no_operations: bool,

    /// Measure the servers' memory and descriptors, too
    #[arg(long)]
    pub(crate) memory: bool,

    /// Files in the tree whose inodes are counted against the server's memory
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    pub(crate) memory_files: u32,

    /// Run these workloads, too
    #[arg(long, value_delimiter = ',', value_enum)]
    pub(crate) workload: Vec<Workload>,

    /// Only measure what each further null layer of a stack costs, with and without meters between the layers
    #[arg(long)]
    pub(crate) stack: bool,

    /// How often each workload is run
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) workload_reps: u32,

    /// Write everything measured as JSON
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
    /// Repetitions of the single operations.
    pub(crate) fn repetitions(&self) -> u32 {
        if self.quick { 1 } else { self.reps }
    }

    /// Files per operation and worker.
    pub(crate) fn files(&self) -> u32 {
        if self.quick { self.files.min(40) } else { self.files }
    }

    /// Bytes of a large file.
    pub(crate) fn large_bytes(&self) -> u64 {
        u64::from(if self.quick { self.large_mib.min(2) } else { self.large_mib }) << 20
    }

    /// Files in the tree of the memory figures.
    pub(crate) fn memory_files(&self) -> u32 {
        if self.quick { self.memory_files.min(2000) } else { self.memory_files }
    }

    /// The operations to measure, in the order in which they are run.
    pub(crate) fn operations(&self) -> Vec<Operation> {
        Operation::ALL.into_iter().filter(|op| self.only.is_empty() || self.only.contains(op)).collect()
    }
}
