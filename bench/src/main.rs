//! `strata-bench` measures speed and memory use of Strata's file systems, the native one and their
//! peers.
//!
//! A run consists of three kinds of processes, all of this program:
//!
//! 1. The **outer** process ([`isolation`]) enables the FUSE ring if a contender can use it, starts
//!    the coordinator in private mount and PID namespaces, and restores the system afterwards. When
//!    those namespaces end, the kernel kills every server and removes every mount in them, even
//!    after `kill -9`.
//! 2. The **coordinator** ([`operations`], [`memory`], [`workload`]) creates a fresh ext4 in memory
//!    for each contender and repetition ([`scratch`]), populates the branches ([`layout`]), mounts
//!    the contender ([`contender`]) and starts the workers.
//! 3. A **worker** ([`worker`]) per requested thread runs one operation ([`operation`]), pinned to
//!    one CPU, and reports its start and end. Workers share only the file system.
//!
//! Each repetition also measures two lower bounds for FUSE servers ([`mod@reference`]): the round
//! trip to a server that replies from memory ([`nullping`]), and a message through a pipe and back
//! ([`pipe`]).
//!
//! The measurements become rows ([`results`]), which become a table, a page and a plot ([`report`],
//! [`plot`]). `docs/benchmarks.md` explains them.
//!
//! With `--branches`, the coordinator runs the experiments of the papers on Unionfs instead
//! ([`branches`]), on the same scratch file systems and contenders; with `--versions`, those of the
//! paper on Versionfs ([`versions`]); with `--encryption`, those on Cryptfs ([`encryption`]).

#![deny(unsafe_code)]

mod bars;
mod branches;
mod chart;
mod cli;
mod contender;
mod counters;
mod encryption;
mod isolation;
mod layout;
mod mapping;
mod memory;
mod nullping;
mod operation;
mod operations;
mod overlay;
mod pipe;
mod plot;
mod process;
mod processor;
mod progress;
mod reference;
mod report;
mod results;
mod scratch;
mod stacks;
mod uring;
mod versions;
mod worker;
mod workload;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let done = match args.next() {
        Some(first) if first == worker::SUBCOMMAND => worker::main(args.next()).map(|()| ExitCode::SUCCESS),
        Some(first) if first == branches::passes::SUBCOMMAND => {
            branches::passes::main(args.next()).map(|()| ExitCode::SUCCESS)
        }
        Some(first) if first == versions::passes::SUBCOMMAND => {
            versions::passes::main(args.next()).map(|()| ExitCode::SUCCESS)
        }
        Some(first) if first == pipe::SUBCOMMAND => pipe::main(args.next()).map(|()| ExitCode::SUCCESS),
        Some(first) if first == pipe::ECHO => pipe::echo().map(|()| ExitCode::SUCCESS),
        Some(first) if first == nullping::SUBCOMMAND => {
            nullping::main(args.next(), args.next()).map(|()| ExitCode::SUCCESS)
        }
        Some(first) if first == isolation::SUBCOMMAND => coordinate().map(|()| ExitCode::SUCCESS),
        _ => isolation::run(&cli::Options::parse()),
    };
    done.unwrap_or_else(|error| {
        eprintln!("strata-bench: {error:#}");
        ExitCode::FAILURE
    })
}

/// Measures what the options select and writes the report. Runs inside the namespaces.
fn coordinate() -> anyhow::Result<()> {
    let options = cli::Options::parse_from(std::env::args_os().enumerate().filter(|(i, _)| *i != 1).map(|(_, a)| a));
    if options.stack {
        return stacks::run(&options);
    }
    if options.branches {
        return branches::run(&options);
    }
    if options.versions {
        return versions::run(&options);
    }
    if options.encryption {
        return encryption::run(&options);
    }
    let (present, absent) = contender::select(&options);
    for missing in &absent {
        eprintln!("strata-bench: {}: skipped: {}", missing.name, missing.reason);
    }
    let progress = progress::Progress::new();
    let mut report = results::Report::new(&options, &present, absent);
    report.machine.warn_if_busy();
    if !options.no_operations {
        let (samples, references) = operations::run(&options, &present, &progress)?;
        report.rows = results::rows(&samples, &references, &present);
        report.references = references;
    }
    if options.memory {
        report.memory = memory::run(&options, &present, &progress)?;
    }
    for &workload in &options.workload {
        report.workloads.extend(workload::run(workload, &options, &present, &progress)?);
    }
    progress.clear();
    report::write(&report, &options)
}
