//! Recovering versions, and what versions cost those who don't use them: reading heads, and listing
//! directories.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use versionclient::Directory;

use super::entrant::Entrant;
use super::passes::{self, Action, Task, Which};
use super::programs::Program;
use super::releases::{self, Releases};
use super::{Setting, control};
use crate::contender::Running;
use crate::counters::Requests;
use crate::operations::{self, Measured};
use crate::results::Values;
use crate::scratch::{ScratchFs, Size};

/// Directory of the heads, and of the versions as regular files.
const HEADS: &str = "tree";
const VERSIONS: &str = "versions";
/// Directories of files without and with a long history.
const PLAIN: &str = "plain";
const LONG: &str = "long";

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum What {
    /// All versions of the releases, just after mounting. Regular files where no versions are kept.
    Recover,
    RecoverAgain,
    /// All heads of the releases, just after mounting.
    Heads,
    HeadsAgain,
    /// A directory of files without versions.
    ListPlain,
    ListPlainAgain,
    /// A directory of files with many versions.
    ListLong,
    ListLongAgain,
    /// The version that is the farthest from the head.
    Oldest,
    Newest,
}

/// One measurement.
#[derive(Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) what: What,
    pub(crate) entrant: Entrant,
    pub(crate) rep: u32,
    /// Number of files or directories.
    pub(crate) operations: Option<u64>,
    pub(crate) bytes: Option<u64>,
    /// Per file or directory.
    pub(crate) microseconds: Option<f64>,
    /// Requests that the server received, if it counts them.
    pub(crate) requests: Option<Requests>,
    pub(crate) error: Option<String>,
}

/// Files with a long history.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Histories {
    pub(crate) directories: u32,
    /// Per directory.
    pub(crate) files: u32,
    /// Per file.
    pub(crate) versions: u32,
    /// Size of a file in bytes.
    pub(crate) size: usize,
}

/// Returns the amounts.
pub(crate) fn histories(quick: bool) -> Histories {
    if quick {
        Histories { directories: 2, files: 20, versions: 20, size: 8192 }
    } else {
        Histories { directories: 4, files: 100, versions: 100, size: 8192 }
    }
}

/// Returns one figure of the measurements of one entrant, by repetition.
pub(crate) fn values(
    samples: &[Sample],
    what: What,
    entrant: Entrant,
    figure: impl Fn(&Sample) -> Option<f64>,
) -> Values {
    let wanted = samples.iter().filter(|sample| (sample.what, sample.entrant) == (what, entrant));
    wanted.filter_map(|sample| Some((sample.rep, figure(sample)?))).collect()
}

/// Returns the time per file or directory.
pub(crate) fn microseconds(samples: &[Sample], what: What, entrant: Entrant) -> Values {
    values(samples, what, entrant, |sample| sample.microseconds)
}

/// Runs all measurements. Entrants take turns.
pub(crate) fn run(setting: &Setting<'_>, releases: &Releases) -> Result<Vec<Sample>> {
    // As many as the copies keep.
    let expected = releases.versions(64)?;
    let mut samples = Vec::new();
    let reps = setting.repetitions();
    for rep in 0..reps {
        for &entrant in setting.entrants.iter().filter(|entrant| !matches!(entrant, Entrant::OnWrite(_))) {
            let mut turn = Turn { setting, entrant, rep, samples: &mut samples };
            turn.say("recovering the releases");
            let done = turn.releases(releases, &expected);
            turn.failed(What::Recover, done);
            turn.say("long histories");
            let done = turn.histories();
            turn.failed(What::Oldest, done);
        }
    }
    Ok(samples)
}

/// One entrant's turn on fresh file systems.
struct Turn<'a> {
    setting: &'a Setting<'a>,
    entrant: Entrant,
    rep: u32,
    samples: &'a mut Vec<Sample>,
}

impl Turn<'_> {
    fn say(&self, what: &str) {
        let reps = self.setting.repetitions();
        self.setting.progress.show(&format!("{}/{reps}  {what}, {}", self.rep + 1, self.entrant.label()));
    }

    /// Mounts the entrant with nothing cached.
    fn mount(&self, scratch: &ScratchFs) -> Result<Running> {
        scratch.remount()?;
        self.mount_warm(scratch)
    }

    fn mount_warm(&self, scratch: &ScratchFs) -> Result<Running> {
        let contender = self.setting.contender(self.entrant)?;
        self.entrant.mount(contender, scratch, Some(Program::Copy.bound()))
    }

    /// Recovers the versions of the releases, and reads their heads.
    fn releases(&mut self, releases: &Releases, expected: &BTreeMap<PathBuf, Vec<Vec<u8>>>) -> Result<()> {
        let scratch = ScratchFs::new(&crate::isolation::base()?, crate::workload::SIZE)?;
        let dir = Entrant::directory(&scratch)?;
        {
            let running = self.mount_warm(&scratch)?;
            releases.copy(&running.root.join(HEADS), &scratch.log().with_extension("workload"))?;
            if self.entrant.keeps_versions() {
                self.setting.convert(self.entrant, &running.root)?;
                if self.setting.recovers && self.rep == 0 {
                    self.say("verifying the versions");
                    verify(&running.root.join(HEADS), expected)?;
                }
            } else {
                releases::store(expected, &dir.join(VERSIONS))?;
            }
        }
        let recover = self.recover(Which::All);
        {
            let running = self.mount(&scratch)?;
            self.measure(&scratch, What::Heads, Action::Read, &running.root.join(HEADS), 1);
        }
        let running = self.mount(&scratch)?;
        let versions = running.root.join(if self.entrant.keeps_versions() { HEADS } else { VERSIONS });
        if self.recovers() {
            self.measure(&scratch, What::Recover, recover, &versions, 1);
            self.measure(&scratch, What::RecoverAgain, recover, &versions, 1);
        }
        self.measure(&scratch, What::HeadsAgain, Action::Read, &running.root.join(HEADS), 5);
        Ok(())
    }

    /// Lists directories of files without and with a long history, and recovers single versions.
    fn histories(&mut self) -> Result<()> {
        let amounts = histories(self.setting.options.quick);
        let scratch = ScratchFs::new(&crate::isolation::base()?, Size { bytes: 4 << 30, inodes: 200_000 })?;
        Entrant::directory(&scratch)?;
        {
            let running = self.mount_unbounded(&scratch)?;
            amounts.write(&running.root.join(PLAIN), 1)?;
            amounts.write(&running.root.join(LONG), amounts.versions + 1)?;
            if self.entrant.keeps_versions() {
                self.setting.convert(self.entrant, &running.root)?;
            }
            if self.recovers() && self.entrant.keeps_versions() {
                let made = control::versions(&open(&running.root.join(LONG).join("d0"))?, b"f0")?.len();
                ensure!(made == amounts.versions as usize, "{made} versions instead of {}", amounts.versions);
            }
        }
        scratch.remount()?;
        let running = self.mount_unbounded(&scratch)?;
        let (plain, long) = (running.root.join(PLAIN), running.root.join(LONG));
        self.measure(&scratch, What::ListPlain, Action::List, &plain, 1);
        self.measure(&scratch, What::ListLong, Action::List, &long, 1);
        self.measure(&scratch, What::ListPlainAgain, Action::List, &plain, 50);
        self.measure(&scratch, What::ListLongAgain, Action::List, &long, 50);
        if self.recovers() {
            let oldest = self.recover(Which::Oldest);
            self.measure(&scratch, What::Oldest, oldest, &long, 3);
            let newest = self.recover(Which::Newest);
            self.measure(&scratch, What::Newest, newest, &long, 3);
        }
        Ok(())
    }

    fn mount_unbounded(&self, scratch: &ScratchFs) -> Result<Running> {
        self.entrant.mount(self.setting.contender(self.entrant)?, scratch, None)
    }

    /// Whether old contents can be read: versions by the commands, or regular files.
    fn recovers(&self) -> bool {
        self.setting.recovers || !self.entrant.keeps_versions()
    }

    /// Returns how old contents are read: as versions, or as regular files.
    fn recover(&self, which: Which) -> Action {
        if self.entrant.keeps_versions() { Action::Recover(which) } else { Action::Read }
    }

    fn measure(&mut self, scratch: &ScratchFs, what: What, action: Action, root: &Path, passes: u32) {
        let result = measure(scratch, &Task { action, root: root.to_owned(), passes });
        self.record(what, result);
    }

    fn failed(&mut self, what: What, done: Result<()>) {
        if let Err(error) = done {
            self.record(what, Err(error));
        }
    }

    fn record(&mut self, what: What, result: Result<Measured>) {
        let (measured, error) = match result {
            Ok(measured) => (Some(measured), None),
            Err(error) => (None, Some(format!("{error:#}"))),
        };
        if let Some(error) = &error {
            self.setting.complain(&format!("{what:?}, {}", self.entrant.label()), error);
        }
        self.samples.push(Sample {
            what,
            entrant: self.entrant,
            rep: self.rep,
            operations: measured.as_ref().map(|measured| measured.ops),
            bytes: measured.as_ref().map(|measured| measured.bytes),
            microseconds: measured.as_ref().map(|measured| measured.microseconds(1)),
            requests: measured.and_then(|measured| measured.requests),
            error,
        });
    }
}

impl Histories {
    /// Writes the files, and overwrites each as often as it needs to have `contents` in turn.
    fn write(self, root: &Path, contents: u32) -> Result<()> {
        for directory in 0..self.directories {
            let dir = root.join(format!("d{directory}"));
            fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
            for content in 0..contents {
                for file in 0..self.files {
                    let path = dir.join(format!("f{file}"));
                    fs::write(&path, self.content(content)).with_context(|| format!("write {}", path.display()))?;
                }
            }
        }
        Ok(())
    }

    /// Returns text in which one line differs from that of the content before.
    fn content(self, content: u32) -> Vec<u8> {
        let lines =
            (0..).map(|line| if line == content % 100 { format!("{content:062}\n") } else { format!("{line:062}\n") });
        let mut text: Vec<u8> = lines.take(self.size / 63 + 1).flat_map(String::into_bytes).collect();
        text.truncate(self.size);
        // The line that changed last was restored: without this, contents could repeat.
        if let Some(last) = text.last_mut() {
            *last = content.to_le_bytes()[0];
        }
        text
    }
}

fn open(path: &Path) -> Result<Directory> {
    Directory::open(path).with_context(|| format!("open {}", path.display()))
}

fn measure(scratch: &ScratchFs, task: &Task) -> Result<Measured> {
    let json = serde_json::to_string(task).context("describe the task")?;
    let measured = operations::counted(passes::SUBCOMMAND, &[json], &task.root, || {
        rustix::fs::syncfs(scratch.open()?).context("sync the file system")
    })?;
    ensure!(measured.ops > 0, "there is nothing in {}", task.root.display());
    Ok(measured)
}

/// Fails unless the versions of every file below `root` are the expected ones.
fn verify(root: &Path, expected: &BTreeMap<PathBuf, Vec<Vec<u8>>>) -> Result<()> {
    use std::io::Read;
    for (path, contents) in expected {
        let name = path.file_name().context("a file without a name")?.as_encoded_bytes();
        let dir = open(&root.join(path.parent().unwrap_or(Path::new(""))))?;
        let versions = control::versions(&dir, name).with_context(|| path.display().to_string())?;
        let (is, should) = (versions.len(), contents.len());
        ensure!(is == should, "{}: {is} versions instead of {should}", path.display());
        for (version, content) in versions.iter().zip(contents) {
            let mut bytes = Vec::new();
            fs::File::from(dir.open_version(name, version.number).context("open a version")?)
                .read_to_end(&mut bytes)
                .with_context(|| format!("read version {} of {}", version.number, path.display()))?;
            ensure!(bytes == *content, "version {} of {} has other bytes", version.number, path.display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successive_contents_differ() {
        let amounts = histories(false);
        let contents: Vec<_> = (0..=amounts.versions).map(|n| amounts.content(n)).collect();
        assert!(contents.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(contents.iter().all(|content| content.len() == amounts.size));
    }
}
