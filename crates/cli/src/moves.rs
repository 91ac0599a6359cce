//! `unionctl --drain` and `--rebalance`: requests steps of moving files between branches from the
//! server, until nothing remains to be done.

use crate::branches;
use crate::channel;
use crate::edits::{Edit, Which};
use crate::exit::{Exit, Failure};
use crate::live::WantedInUse;
use crate::progress::Tally;
use fuse::control::Error;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;

/// Moves files between branches.
const MOVE: &str = "unionfs.move";
/// The number of objects that a message names.
const NAMED: usize = 10;

/// What was moved, and what was not.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Moved {
    /// Number of files moved.
    pub files: u64,
    /// The space that they take, in bytes.
    pub bytes: u64,
    /// Number of objects that remain on a drained branch.
    pub remaining: u64,
    /// Some of these, each with the reason.
    pub objects: Vec<Object>,
}

/// An object that was not moved.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Object {
    /// Its path in the union.
    pub path: String,
    /// The reason as one word.
    pub reason: String,
    /// The reason.
    pub why: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Reply {
    refused: Option<String>,
    id: u64,
    done: bool,
    files: u64,
    bytes: u64,
    remaining: u64,
    full: bool,
    objects: Vec<Object>,
}

fn send(union: &Path, input: &Value) -> Result<Reply, Failure> {
    let reply = channel::call(union, MOVE, input.to_string().as_bytes()).map_err(|error| match error {
        Error::Refused(Errno::BUSY) => {
            Failure::mount(format!("{}: another command moves files at present; wait for its end", union.display()))
        }
        Error::Refused(Errno::STALE) => Failure::mount(format!(
            "{}: the server ended this command, because it was stopped for some seconds, or another command began to \
                 move files; run it again",
            union.display()
        )),
        error => channel::failure(union, MOVE, error),
    })?;
    let reply: Reply = serde_json::from_slice(&reply).map_err(|_| channel::failure(union, MOVE, Error::Garbled))?;
    match reply.refused {
        Some(why) => Err(Failure::mount(format!("{}: {why}", union.display()))),
        None => Ok(reply),
    }
}

/// Runs one pass over the files; `None` if there is nothing to do. Adds what was moved to `moved`.
fn pass(union: &Path, begin: &Value, tally: &mut Option<Tally>, moved: &mut Moved) -> Result<Option<Reply>, Failure> {
    let begun = send(union, begin)?;
    if begun.done {
        return Ok(None);
    }
    loop {
        let reply = send(union, &json!({ "do": "step", "id": begun.id }))?;
        if let Some(tally) = tally {
            tally.show(moved.files + reply.files, moved.bytes + reply.bytes);
        }
        if reply.done {
            moved.files += reply.files;
            moved.bytes += reply.bytes;
            return Ok(Some(reply));
        }
    }
}

/// Moves all files of a branch to the others, and removes the branch.
///
/// # Errors
/// Objects remain, named with the reasons; those that were moved remain moved.
pub fn drain(union: &Path, which: &Which) -> Result<Moved, Failure> {
    let name = branches::name_of(union, which)?;
    let begin = json!({ "do": "drain", "branch": name });
    let mut tally = Tally::on_terminal("moved");
    let mut moved = Moved::default();
    // Whether an object can leave may depend on others.
    let mut left = u64::MAX;
    loop {
        let files = moved.files;
        let Some(reply) = pass(union, &begin, &mut tally, &mut moved)? else { break };
        (moved.remaining, moved.objects) = (reply.remaining, reply.objects);
        if moved.remaining == 0 {
            // Objects created meanwhile prevent the removal; the next pass moves them.
            let edit = Edit::Remove(Which(name.clone().into_bytes()));
            match branches::apply(union, core::slice::from_ref(&edit), WantedInUse::Refuse) {
                Ok(_) => break,
                Err(_) if moved.files > files => continue,
                Err(failure) => return Err(failure),
            }
        }
        if reply.full || (moved.files == files && moved.remaining >= left) {
            drop(tally);
            return Err(unfinished(union, &name, &moved));
        }
        left = moved.remaining;
    }
    Ok(moved)
}

/// Moves files from the fullest branch to the emptiest until all are nearly equally full.
///
/// # Errors
/// The server refuses a step.
pub fn rebalance(union: &Path, within: f64) -> Result<Moved, Failure> {
    let begin = json!({ "do": "rebalance", "within": within });
    let mut tally = Tally::on_terminal("moved");
    let mut moved = Moved::default();
    let mut result = Ok(());
    loop {
        let files = moved.files;
        match pass(union, &begin, &mut tally, &mut moved) {
            Ok(Some(_)) if moved.files > files => {}
            Ok(_) => break,
            Err(failure) => {
                result = Err(failure);
                break;
            }
        }
    }
    let ended = send(union, &json!({ "do": "end", "of": "rebalance" }));
    result.and(ended.map(drop)).map(|()| moved)
}

fn unfinished(union: &Path, branch: &str, moved: &Moved) -> Failure {
    let mut reason = format!(
        "{}: branch {branch}: {} objects remain ({} files were moved); run the command again once the reasons are gone, or end \
         it with unionctl --mode {branch} rw",
        union.display(),
        moved.remaining,
        moved.files
    );
    let clean = |text: &str| text.chars().map(|c| if c.is_control() { '?' } else { c }).collect::<String>();
    for object in moved.objects.iter().take(NAMED) {
        reason.push_str(&format!("\n  {}: {}", clean(&object.path), object.why));
    }
    if moved.remaining > NAMED as u64 {
        reason.push_str(&format!("\n  and {} more", moved.remaining - NAMED as u64));
    }
    Failure { exit: Exit::Mount, reason }
}

/// Formats the result for a terminal.
#[must_use]
pub fn describe(moved: &Moved) -> String {
    format!("{} files moved ({})\n", moved.files, crate::progress::amount(moved.bytes))
}
