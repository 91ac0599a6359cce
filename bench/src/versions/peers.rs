//! Version control and backup programs that store the same releases: the space they need.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;

use super::Setting;
use super::entrant::Entrant;
use super::releases::Releases;
use super::space::Space;
use crate::process;
use crate::processor::Processor;
use crate::scratch::ScratchFs;

/// A program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Peer {
    Git,
    Borg,
    Restic,
    RdiffBackup,
}

/// One run: every release is copied over the last one, and stored.
#[derive(Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) peer: Peer,
    pub(crate) run: Option<Run>,
    pub(crate) error: Option<String>,
}

/// Result of one run.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) seconds: f64,
    pub(crate) processor: Processor,
    /// Of the repository, in bytes: the blocks, and the sizes of the files.
    pub(crate) blocks: u64,
    pub(crate) sizes: u64,
}

impl Peer {
    pub(crate) const ALL: [Self; 4] = [Self::Git, Self::Borg, Self::Restic, Self::RdiffBackup];

    /// Returns the name of the Debian package.
    pub(crate) fn package(self) -> &'static str {
        match self {
            Self::Git => "git",
            Self::Borg => "borgbackup",
            Self::Restic => "restic",
            Self::RdiffBackup => "rdiff-backup",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Borg => "borg",
            _ => self.package(),
        }
    }

    /// Returns the shell commands that create the repository, store the tree once, and finish.
    fn commands(self) -> [&'static str; 3] {
        match self {
            Self::Git => [
                "env -u GIT_WORK_TREE git init -q --bare \"$REPO\"",
                "git add -A . && git commit -q -m \"$N\"",
                "git gc -q --aggressive --prune=now",
            ],
            Self::Borg => ["borg init -e none", "borg create --compression zstd ::\"$N\" .", "borg compact"],
            Self::Restic => ["restic -q init", "restic -q --no-cache backup .", "restic -q --no-cache prune"],
            // Each backup needs a second of its own.
            Self::RdiffBackup => {
                [":", "rdiff-backup --api-version 201 --current-time $((1000000000 + N)) backup . \"$REPO\"", ":"]
            }
        }
    }

    /// Returns the commands for the report.
    pub(crate) fn settings(self) -> String {
        let commands = self.commands();
        commands.into_iter().filter(|command| *command != ":").collect::<Vec<_>>().join("; ")
    }
}

/// Runs the programs that are installed.
pub(crate) fn run(setting: &Setting<'_>, releases: &Releases) -> Vec<Sample> {
    let samples = Peer::ALL.into_iter().map(|peer| {
        setting.progress.show(&format!("the releases in {}", peer.package()));
        let result = once(peer, releases).map_err(|error| format!("{error:#}"));
        if let Err(error) = &result {
            setting.complain(peer.package(), error);
        }
        Sample { peer, run: result.as_ref().ok().copied(), error: result.err() }
    });
    samples.collect()
}

fn once(peer: Peer, releases: &Releases) -> Result<Run> {
    process::find(peer.program()).with_context(|| format!("{} is not installed", peer.program()))?;
    let scratch = ScratchFs::new(&crate::isolation::base()?, crate::workload::SIZE)?;
    let tree = Entrant::directory(&scratch)?;
    let repository = scratch.disk().join("repository");
    let (begun, before) = (Instant::now(), Processor::of_processes()?);
    let [first, each, last] = peer.commands();
    let shell = |number: usize, script: &str| shell(&scratch, &tree, &repository, number, script);
    shell(0, first)?;
    let mut number = 0;
    releases.in_turn(|release| {
        number += 1;
        process::run(Command::new("cp").arg("-R").arg(release.join(".")).arg(&tree), &scratch.log())?;
        shell(number, each)
    })?;
    shell(0, last)?;
    let (seconds, processor) = (begun.elapsed().as_secs_f64(), Processor::of_processes()?.since(before));
    rustix::fs::syncfs(scratch.open()?).context("sync the file system")?;
    let (blocks, sizes) = repository_space(peer, &repository, &tree)?;
    Ok(Run { seconds, processor, blocks, sizes })
}

fn shell(scratch: &ScratchFs, tree: &Path, repository: &Path, number: usize, script: &str) -> Result<()> {
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(tree).env("REPO", repository).env("N", number.to_string());
    // Neither the settings nor the caches of the user who measures.
    command.env("HOME", scratch.disk()).env("BORG_BASE_DIR", scratch.disk()).env("BORG_REPO", repository);
    command.env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes");
    command.env("RESTIC_REPOSITORY", repository).env("RESTIC_PASSWORD", "benchmark");
    command.env("GIT_DIR", repository).env("GIT_WORK_TREE", tree).env("GIT_CONFIG_NOSYSTEM", "1");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "bench").env(format!("GIT_{who}_EMAIL"), "bench@localhost");
    }
    process::run(&mut command, &scratch.log())
}

/// Returns the blocks and the sizes of a repository, without the newest state where that is a plain
/// copy of the tree.
fn repository_space(peer: Peer, repository: &Path, tree: &Path) -> Result<(u64, u64)> {
    let part = if peer == Peer::Git { repository.join("objects") } else { repository.to_owned() };
    let (all, head) = (Space::of(&part)?, if peer == Peer::RdiffBackup { Space::of(tree)? } else { Space::default() });
    let size = |dir: &Path| -> Result<u64> {
        let files = super::releases::files(dir)?;
        files.iter().map(|file| Ok(std::fs::symlink_metadata(file)?.len())).sum()
    };
    let head_size = if peer == Peer::RdiffBackup { size(tree)? } else { 0 };
    Ok((all.heads.saturating_sub(head.heads), size(&part)?.saturating_sub(head_size)))
}
