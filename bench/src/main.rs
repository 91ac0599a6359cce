//! `strata-bench`: how fast, and how small, are Strata's file systems beside the native one and their peers?
//!
//! One run goes through three processes, each of which is this program:
//!
//! 1. the **outer** one ([`enclosure`]) switches the FUSE ring on if a contender can use it, starts the next one in mount
//!    and process namespaces of its own, and puts everything back whatever happens to it. When those namespaces end, the
//!    kernel ends every server and mount in them, so nothing is left behind even after `kill -9`;
//! 2. the **coordinator** ([`operations`], [`memory`], [`workload`]) makes a fresh ext4 in memory for each contender and
//!    repetition ([`stage`]), lays out the branches ([`layout`]), mounts the contender ([`contender`]) and has it measured;
//! 3. a **worker** ([`worker`]) per thread asked for runs one operation ([`operation`]) pinned to one CPU and reports when it
//!    began and ended. Workers share nothing but the file system.
//!
//! Beside the contenders, each repetition measures what no FUSE server can be faster than ([`reference`]): the round trip
//! of a server that answers from memory ([`nullping`]), and a message through a pipe and back ([`pipe`]).
//!
//! What was measured becomes rows ([`results`]), and these a table, a page and a plot ([`report`], [`plot`]).
//! `docs/benchmarks.md` says how to read them.

#![deny(unsafe_code)]

mod cli;
mod contender;
mod counters;
mod enclosure;
mod layout;
mod mapping;
mod memory;
mod nullping;
mod operation;
mod operations;
mod pipe;
mod plot;
mod process;
mod progress;
mod reference;
mod report;
mod results;
mod stacks;
mod stage;
mod uring;
mod worker;
mod workload;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let done = match args.next() {
        Some(first) if first == worker::SUBCOMMAND => worker::main(args.next()).map(|()| ExitCode::SUCCESS),
        Some(first) if first == pipe::SUBCOMMAND => pipe::main(args.next()).map(|()| ExitCode::SUCCESS),
        Some(first) if first == pipe::ECHO => pipe::echo().map(|()| ExitCode::SUCCESS),
        Some(first) if first == nullping::SUBCOMMAND => {
            nullping::main(args.next(), args.next()).map(|()| ExitCode::SUCCESS)
        }
        Some(first) if first == enclosure::SUBCOMMAND => coordinate().map(|()| ExitCode::SUCCESS),
        _ => enclosure::run(&cli::Options::parse()),
    };
    done.unwrap_or_else(|error| {
        eprintln!("strata-bench: {error:#}");
        ExitCode::FAILURE
    })
}

/// Measures what the options ask for and writes it down; runs inside the namespaces.
fn coordinate() -> anyhow::Result<()> {
    let options = cli::Options::parse_from(std::env::args_os().enumerate().filter(|(i, _)| *i != 1).map(|(_, a)| a));
    if options.stack {
        return stacks::run(&options);
    }
    let (present, absent) = contender::sort_out(&options);
    for missing in &absent {
        eprintln!("strata-bench: {} is left out: {}", missing.name, missing.reason);
    }
    let progress = progress::Progress::new();
    let mut report = results::Report::new(&options, &present, absent);
    if let Some(load) = report.machine.load_before.filter(|load| *load > 0.5) {
        eprintln!("strata-bench: the machine is busy (load {load:.1}): expect figures that vary");
    }
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
