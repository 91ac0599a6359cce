//! `cryptctl journal`: interrupted writes that a mount kept, since other bytes were in their place.

use super::volume::VolumeArgs;
use crate::exit::Failure;
use crate::host_dir::reason;
use crate::sole_layer;
use crate::tool::print;
use clap::Subcommand;
use rustix::process::{getegid, geteuid};
use serde_json::{Value, json};
use std::path::Path;
use wrapfs::{KeptJournals, KeptWrite};

/// The subcommands of `cryptctl journal`.
#[derive(Debug, Subcommand)]
pub enum JournalCommand {
    /// List the files and the bytes. Needs no passphrase.
    List {
        /// The volume.
        #[command(flatten)]
        volume: VolumeArgs,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Write the kept bytes into files that were not changed since. Needs no passphrase.
    Apply {
        /// The volume.
        #[command(flatten)]
        volume: VolumeArgs,
        /// Number of the kept journal.
        number: u32,
    },
}

/// Executes a subcommand.
pub(super) fn run(command: &JournalCommand) -> Result<(), Failure> {
    match command {
        JournalCommand::List { volume, json } => list(volume, *json),
        JournalCommand::Apply { volume, number } => apply(volume, *number),
    }
}

/// Returns the kept journals of a volume, which no server uses meanwhile.
fn open(args: &VolumeArgs) -> Result<KeptJournals, Failure> {
    let real = super::not_mounted(&args.dir)?;
    let host = sole_layer::hold("cryptfs", &real)?;
    let volume = args.open()?;
    let owner = (geteuid().as_raw(), getegid().as_raw());
    cryptfs::kept_journals(host, volume.config.flags(), owner).map_err(|why| failed(&args.dir, &why))
}

fn failed(dir: &Path, why: &str) -> Failure {
    Failure::system(format!("{}: {why}", dir.display()))
}

fn list(args: &VolumeArgs, json: bool) -> Result<(), Failure> {
    let kept = open(args)?;
    let numbers = kept.numbers().map_err(|errno| failed(&args.dir, &reason(errno)))?;
    let (mut text, mut values) = (String::new(), Vec::new());
    for number in numbers {
        match kept.writes(number) {
            Ok(writes) => {
                text.extend(writes.iter().map(|write| format!("{number}: {}\n", as_text(write))));
                values.push(json!({ "number": number, "writes": writes.iter().map(as_json).collect::<Vec<_>>() }));
            }
            Err(why) => {
                text.push_str(&format!("{number}: {why}\n"));
                values.push(json!({ "number": number, "problem": why }));
            }
        }
    }
    print(if json { format!("{:#}\n", Value::Array(values)) } else { text })
}

fn apply(args: &VolumeArgs, number: u32) -> Result<(), Failure> {
    let writes = open(args)?.apply(number).map_err(|why| failed(&args.dir, &why))?;
    let text: String = writes.iter().map(|write| format!("{number}: {}\n", as_text(write))).collect();
    print(text)?;
    let left = writes.iter().filter(|write| write.problem.is_some()).count();
    match left {
        0 => Ok(()),
        _ => {
            Err(failed(&args.dir, &format!("{left} of {} writes were not restored: the journal remains", writes.len())))
        }
    }
}

fn as_text(write: &KeptWrite) -> String {
    let KeptWrite { path, inode, bytes, replaces_seal, problem } = write;
    let last = bytes.end.saturating_sub(1);
    let whole = if *replaces_seal { ", and the seal of the whole file" } else { "" };
    let problem = problem.map(|why| format!(": {why}")).unwrap_or_default();
    format!("{path} (inode {inode}): bytes {} to {last}{whole}{problem}", bytes.start)
}

fn as_json(write: &KeptWrite) -> Value {
    let KeptWrite { path, inode, bytes, replaces_seal, problem } = write;
    let (first, end) = (bytes.start, bytes.end);
    json!({
        "path": path, "inode": inode, "first": first, "end": end, "replaces_seal": replaces_seal, "problem": problem
    })
}
