//! `strata check`: finds and repairs damage in the containers of a layer that changes the size of
//! data (`zstd`).

use crate::exit::{Exit, Failure};
use crate::host_dir::reason;
use crate::lower;
use crate::progress::{self, Progress};
use clap::Args;
use hostfs::{HostFs, HostOptions};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vnode::{Cx, Errno, Kind, Layer as _, Name, OpenFlags, Vnode};
use wrapfs::container::{Damage, Probe, Report, check, probe};

/// The part of the help after the options.
pub const HELP: &str = "\
DIR is the lower directory, which must not be mounted during the check. Files that are not containers are skipped. \
The check covers headers, indexes and the checksums of all stored blocks; it also decompresses zstd blocks.

--repair restores the previous version of a damaged block if that version is intact, rewrites damaged size records, and \
frees dead space. Other damage is left unchanged: reads of such a block fail with an I/O error, while the rest of the file \
remains readable.

Examples:
  strata check /srv/data
  strata check --repair --json /srv/data >report.json

Exit status: 0 no damage, 1 all damage was repaired, 4 some damage is left, 8 some files could not be checked, 16 wrong \
arguments. If several apply, the largest.";

/// The arguments of `strata check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The lower directories; they are checked recursively.
    #[arg(required = true, value_name = "DIR")]
    dir: Vec<PathBuf>,
    /// Repair damage where possible.
    #[arg(long)]
    repair: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Checks all directories and prints the results.
///
/// # Errors
/// Writing to standard output fails.
pub fn run(args: &CheckArgs) -> Result<Exit, Failure> {
    let mut check = Check { args, open: open_files(), wait_until: None, seen: HashSet::new(), found: Found::default() };
    for dir in &args.dir {
        if let Err(failure) = check.tree(dir) {
            check.found.fail(dir, &failure.reason);
        }
    }
    let found = check.found;
    let text = if args.json { format!("{}\n", found.json()) } else { found.summary() };
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| Failure {
        exit: Exit::NOT_CHECKED,
        reason: format!("can't write to standard output: {error}"),
    })?;
    Ok(found.exit())
}

/// Device and inode number of a file.
type Id = (u64, u64);

struct Check<'a> {
    args: &'a CheckArgs,
    /// The files that other processes have open.
    open: HashSet<Id>,
    /// The end of the wait for these files, once it has begun.
    wait_until: Option<Instant>,
    /// The files with several hard links that were already checked.
    seen: HashSet<Id>,
    found: Found,
}

/// The results so far.
#[derive(Debug, Default)]
struct Found {
    containers: u64,
    blocks: u64,
    repaired: u64,
    left: u64,
    reclaimed: u64,
    /// The damages, for JSON; otherwise they are printed at once.
    damages: Vec<Value>,
    failures: Vec<Value>,
}

impl Check<'_> {
    fn tree(&mut self, dir: &Path) -> Result<(), Failure> {
        let real = dir.canonicalize().map_err(|error| Failure::system(error.to_string()))?;
        refuse_mounted(&real)?;
        let root =
            HostFs::open(&real, HostOptions::default()).map_err(|error| Failure::system(error.to_string()))?.root();
        let mut progress = Progress::on_terminal("files checked", || count(&root));
        let mut done = 0;
        let mut directories = vec![(root, dir.to_owned())];
        while let Some((vnode, path)) = directories.pop() {
            for name in names(&*vnode).unwrap_or_else(|errno| self.unreadable(&path, errno)) {
                let path = path.join(OsStr::from_bytes(&name));
                let entry = Name::new(&name).and_then(|name| vnode.lookup(&own(), name));
                let child = match entry {
                    Ok(Some(entry)) => entry.vnode,
                    Ok(None) => continue,
                    Err(errno) => {
                        self.found.fail(&path, &reason(errno));
                        continue;
                    }
                };
                match child.kind() {
                    Kind::Directory => directories.push((child, path)),
                    Kind::Regular => {
                        self.file(&child, &path).unwrap_or_else(|errno| self.found.fail(&path, &explain(errno)));
                        done += 1;
                        if let Some(progress) = &mut progress {
                            progress.show(done);
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn unreadable(&mut self, path: &Path, errno: Errno) -> Vec<Vec<u8>> {
        self.found.fail(path, &reason(errno));
        Vec::new()
    }

    /// Whether another process has the file open. umount(8) returns before the server has closed
    /// its files and written their last records, so this waits for a while, once in all.
    fn is_open(&mut self, id: Id) -> bool {
        while self.open.contains(&id) {
            let end = *self.wait_until.get_or_insert_with(|| Instant::now() + WAIT);
            if Instant::now() >= end {
                return true;
            }
            std::thread::sleep(PAUSE);
            self.open = open_files();
        }
        false
    }

    fn file(&mut self, vnode: &Arc<dyn Vnode>, path: &Path) -> Result<(), Errno> {
        let file = vnode.open(&own(), OpenFlags::RDONLY)?;
        // If the probe fails, the header is damaged, and the check reports it.
        if matches!(probe(&own(), &*file), Ok(Probe::Empty | Probe::Blank | Probe::Foreign)) {
            return Ok(());
        }
        if let Some(backing) = file.backing() {
            let stat = rustix::fs::fstat(backing.file)?;
            let id = (stat.st_dev, stat.st_ino);
            if self.is_open(id) {
                self.found.fail(path, "not checked: open in another process; close it or unmount it first");
                return Ok(());
            }
            if stat.st_nlink > 1 && !self.seen.insert(id) {
                return Ok(());
            }
        }
        drop(file);
        let mut damages = Vec::new();
        let report = check(&own(), vnode, &layers::zstd::codec, self.args.repair, &mut |damage| {
            // Limits the output of badly damaged files; further damages are only counted.
            if damages.len() < SHOWN {
                damages.push(damage);
            }
        })?;
        if let Some(report) = report {
            self.found.add(path, &report, &damages, self.args)?;
        }
        Ok(())
    }
}

/// How long to wait for other processes to close the files: a server that was just unmounted takes
/// this long at most, unless a disk hangs.
const WAIT: Duration = Duration::from_secs(5);

/// Interval between two looks at the files that are open.
const PAUSE: Duration = Duration::from_millis(50);

/// Maximum number of damages that are shown per file.
const SHOWN: usize = 1000;

impl Found {
    fn fail(&mut self, path: &Path, why: &str) {
        progress::erase();
        let _ = writeln!(std::io::stderr(), "strata: {}: {why}", path.display());
        self.failures.push(json!({ "path": path.to_string_lossy(), "reason": why }));
    }

    fn add(&mut self, path: &Path, report: &Report, damages: &[Damage], args: &CheckArgs) -> Result<(), Errno> {
        self.containers += 1;
        self.blocks += report.blocks;
        self.repaired += report.repaired;
        self.left += report.left;
        self.reclaimed += report.reclaimed;
        progress::erase();
        for damage in damages {
            if args.json {
                self.damages.push(as_json(path, *damage, report, args.repair));
            } else {
                let text = describe(*damage, report, args.repair);
                writeln!(std::io::stdout(), "{}: {text}", path.display()).map_err(|_| Errno::PIPE)?;
            }
        }
        let all = report.left + report.repaired;
        if !args.json && all > damages.len() as u64 {
            let more = all - damages.len() as u64;
            writeln!(std::io::stdout(), "{}: {more} more", path.display()).map_err(|_| Errno::PIPE)?;
        }
        Ok(())
    }

    fn exit(&self) -> Exit {
        match (self.failures.is_empty(), self.left, self.repaired) {
            (false, _, _) => Exit::NOT_CHECKED,
            (true, 1.., _) => Exit::DAMAGED,
            (true, 0, 1..) => Exit::REPAIRED,
            (true, 0, 0) => Exit::Success,
        }
    }

    fn summary(&self) -> String {
        let mut text = format!("{} containers, {} blocks: ", self.containers, self.blocks);
        match (self.repaired, self.left) {
            (0, 0) => text.push_str("no damage"),
            (repaired, left) => text.push_str(&format!("{repaired} repaired, {left} damaged")),
        }
        if self.reclaimed > 0 {
            text.push_str(&format!(", {} KiB freed", self.reclaimed >> 10));
        }
        if !self.failures.is_empty() {
            text.push_str(&format!(", {} not checked", self.failures.len()));
        }
        text.push('\n');
        text
    }

    fn json(&self) -> Value {
        json!({
            "containers": self.containers,
            "blocks": self.blocks,
            "repaired": self.repaired,
            "damaged": self.left,
            "given_back": self.reclaimed,
            "damages": self.damages,
            "not_checked": self.failures,
        })
    }
}

/// Describes a damage in a sentence.
fn describe(damage: Damage, report: &Report, repair: bool) -> String {
    let range = |number: u64| {
        let start = number.saturating_mul(report.block);
        let end = start.saturating_add(report.block).min(report.size);
        format!("bytes {start} to {}", end.saturating_sub(1))
    };
    match damage {
        Damage::Header => "the header is damaged: no data can be read".to_owned(),
        Damage::State if repair => "a size record was damaged: rewritten from the other record".to_owned(),
        Damage::State => "a size record is damaged: the other record is in use".to_owned(),
        Damage::Block { number, older: true } if repair => {
            format!("{} were damaged: the previous version is restored", range(number))
        }
        Damage::Block { number, older: true } => {
            format!("{} are damaged; --repair restores the previous version", range(number))
        }
        Damage::Block { number, older: false } => format!("{} are lost", range(number)),
        Damage::Content { number } => format!("{} can't be decoded", range(number)),
    }
}

fn as_json(path: &Path, damage: Damage, report: &Report, repair: bool) -> Value {
    let (kind, block) = match damage {
        Damage::Header => ("header", None),
        Damage::State => ("state", None),
        Damage::Block { number, .. } => ("block", Some(number)),
        Damage::Content { number } => ("content", Some(number)),
    };
    let (start, len) = (block.map(|number| number.saturating_mul(report.block)), block.map(|_| report.block));
    json!({
        "path": path.to_string_lossy(),
        "kind": kind,
        "offset": start,
        "length": len,
        "repairable": damage.is_repairable(),
        "repaired": repair && damage.is_repairable(),
    })
}

fn explain(errno: Errno) -> String {
    match errno {
        Errno::MEDIUMTYPE => "written in a later version of the format; use a newer strata".to_owned(),
        errno => reason(errno),
    }
}

fn own() -> Cx<'static> {
    Cx::internal(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Returns the sorted names in a directory.
fn names(dir: &dyn Vnode) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    dir.readdir(&own(), 0, &mut |entry| {
        let name = entry.name.as_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
        true
    })?;
    names.sort_unstable();
    Ok(names)
}

/// Counts the regular files in a tree, as far as it is readable.
fn count(root: &Arc<dyn Vnode>) -> u64 {
    let mut files = 0;
    let mut directories = vec![Arc::clone(root)];
    while let Some(dir) = directories.pop() {
        let mut below = Vec::new();
        let _ignored = dir.readdir(&own(), 0, &mut |entry| {
            match entry.kind {
                Kind::Regular => files += 1,
                Kind::Directory => below.push(entry.name.as_bytes().to_vec()),
                _ => {}
            }
            true
        });
        let child = |name: &Vec<u8>| dir.lookup(&own(), Name::new(name).ok()?).ok()?;
        directories.extend(below.iter().filter_map(child).map(|entry| entry.vnode));
    }
    files
}

/// Fails if the directory is in use by a mount, or is inside a mount.
fn refuse_mounted(real: &Path) -> Result<(), Failure> {
    match lower::mount_over(real) {
        None => Ok(()),
        Some(point) => Err(Failure::system(format!("in use by the mount at {}; unmount it first", point.display()))),
    }
}

/// Returns the files that other processes have open. These include the servers of mounts in other
/// mount namespaces. Only root sees the processes of other users.
fn open_files() -> HashSet<Id> {
    let own = std::process::id().to_string();
    let mut open = HashSet::new();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let others = processes.filter(|entry| {
        let name = entry.file_name();
        name.as_bytes().iter().all(u8::is_ascii_digit) && name.as_bytes() != own.as_bytes()
    });
    for process in others {
        for file in std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            // Use attributes cached in the kernel, since a server might hang.
            let stat = rustix::fs::statx(CWD, file.path(), AtFlags::STATX_DONT_SYNC, StatxFlags::INO);
            if let Ok(stat) = stat {
                open.insert((rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino));
            }
        }
    }
    open
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Creates a directory that includes a container which was written twice.
    fn sample() -> testkit::TempDir {
        let dir = testkit::TempDir::new();
        fs::create_dir_all(dir.join("deep/er")).unwrap();
        let host = HostFs::open(&dir.join("deep/er"), HostOptions::default()).unwrap();
        let layer = layers::zstd::LAYER.over(host, &wrapfs::Settings::new()).unwrap();
        let (_, file) = layer.root().create(&own(), Name::new(b"f").unwrap(), 0o644, OpenFlags::RDWR).unwrap();
        for byte in [b'a', b'b'] {
            file.write(&own(), &[byte; 200_000], 0).unwrap();
            file.fsync(&own(), false).unwrap();
        }
        drop(file);
        fs::write(dir.join("deep/plain"), "text").unwrap();
        std::os::unix::fs::symlink("nowhere", dir.join("link")).unwrap();
        dir
    }

    fn run_on(dir: &Path, repair: bool) -> Exit {
        run(&CheckArgs { dir: vec![dir.to_owned()], repair, json: repair }).unwrap()
    }

    #[test]
    fn the_exit_status_reports_damage_and_repairs() {
        let dir = sample();
        let path = dir.join("deep/er/f");
        assert_eq!(run_on(&dir, false), Exit::Success);
        let good = fs::read(&path).unwrap();
        // The newest version of the first block: the second slot of the first entry.
        let mut bad = good.clone();
        bad[1024 + 32 + 9] ^= 1;
        fs::write(&path, &bad).unwrap();
        assert_eq!(run_on(&dir, false), Exit::DAMAGED);
        assert_eq!(fs::read(&path).unwrap(), bad);
        assert_eq!(run_on(&dir, true), Exit::REPAIRED);
        assert_eq!(run_on(&dir, true), Exit::Success);
        bad = good;
        bad[20] ^= 1;
        fs::write(&path, &bad).unwrap();
        assert_eq!(run_on(&dir, true), Exit::DAMAGED);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(run_on(&dir, true), Exit::NOT_CHECKED);
    }

    #[test]
    fn an_open_file_is_not_checked() {
        let dir = sample();
        let mut holder = std::process::Command::new("sleep");
        let mut holder = holder.arg("60").stdin(fs::File::open(dir.join("deep/er/f")).unwrap()).spawn().unwrap();
        assert_eq!(run_on(&dir, true), Exit::NOT_CHECKED);
        holder.kill().unwrap();
        holder.wait().unwrap();
        assert_eq!(run_on(&dir, true), Exit::Success);
    }

    #[test]
    fn a_server_that_ends_is_waited_for() {
        let dir = sample();
        let mut holder = std::process::Command::new("sleep");
        let mut holder = holder.arg("0.5").stdin(fs::File::open(dir.join("deep/er/f")).unwrap()).spawn().unwrap();
        assert_eq!(run_on(&dir, false), Exit::Success);
        holder.wait().unwrap();
    }

    #[test]
    fn damages_are_described() {
        let report = Report { size: 1000, block: 512, ..Report::default() };
        let lost = Damage::Block { number: 1, older: false };
        assert_eq!(describe(lost, &report, true), "bytes 512 to 999 are lost");
        let older = Damage::Block { number: 0, older: true };
        assert_eq!(describe(older, &report, true), "bytes 0 to 511 were damaged: the previous version is restored");
        assert_eq!(as_json(Path::new("f"), older, &report, true)["repaired"], true);
        assert_eq!(as_json(Path::new("f"), lost, &report, true)["repaired"], false);
    }
}
