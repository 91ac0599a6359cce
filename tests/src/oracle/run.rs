use super::op::{Outcome, Side, Step, Value};
use super::plan::{Planner, SLOTS};
use crate::acl;
use crate::tree::{self, Identities, Time, Times, Tree};
use rustix::fs::{AtFlags, CWD, FileType, Timespec, Timestamps};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of recent steps that a failure prints.
const REMEMBERED: usize = 20;

/// The step during which the server died. Its progress is unknown.
#[derive(Debug)]
pub struct Interrupted {
    step: Step,
    /// The byte count that the operation returned, if it returned one.
    written: Option<usize>,
}

/// Modification times, by native inode number, of directories whose time the crash may have left
/// changed or unchanged.
type UncertainTimes = HashMap<u64, Time>;

/// The native tree and the tested one, side by side.
#[derive(Debug)]
pub struct Oracle {
    seed: u64,
    planner: Planner,
    native: Side,
    other: Side,
    identities: Identities,
    start: Time,
    steps: u64,
    last: VecDeque<(Step, Outcome)>,
}

impl Oracle {
    /// Compares the trees at `native` and `other`, which must be equal at this point.
    #[must_use]
    pub fn new(seed: u64, native: &Path, other: &Path) -> Self {
        println!("seed {seed}: {} and {}", native.display(), other.display());
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let mut oracle = Self {
            seed,
            planner: Planner::new(seed),
            native: Side::new(native, SLOTS),
            other: Side::new(other, SLOTS),
            identities: Identities::default(),
            // File timestamps use a coarse clock, which lags by up to a tick.
            start: (now.tv_sec - 1, 0),
            steps: 0,
            last: VecDeque::new(),
        };
        oracle.compare("at the start");
        oracle
    }

    /// Performs `n` more steps on both trees.
    pub fn steps(&mut self, n: u64) {
        for _ in 0..n {
            let step = self.planner.next(&self.native.root);
            let want = self.native.perform(&step);
            let got = self.other.perform(&step);
            self.steps += 1;
            let same = want == got;
            self.remember(step, want);
            if !same {
                self.fail_at_last(&got);
            }
        }
    }

    /// Closes all open files, before an unmount.
    pub fn close_all(&mut self) {
        self.native.close_all();
        self.other.close_all();
    }

    /// Compares the two trees. Panics if they differ.
    pub fn compare(&mut self, when: &str) {
        let difference = self.difference();
        if !difference.is_empty() {
            self.fail(&format!("{when} the trees differ:\n{difference}"));
        }
    }

    /// Returns the differences between the trees. If there are none, records the inode numbers.
    fn difference(&mut self) -> String {
        let want = tree::read(&self.native.root);
        let got = tree::read(&self.other.root);
        self.difference_from(&want, &got)
    }

    fn difference_from(&mut self, want: &Tree, got: &Tree) -> String {
        let mut identities = self.identities.clone();
        let difference = tree::difference(want, got, Times::Since(self.start)) + &identities.check(want, got);
        if difference.is_empty() {
            self.identities = identities;
        }
        difference
    }

    /// Sets whether the tested file system encodes blocks: when its server dies, it then may leave
    /// states that lie between blocks.
    #[must_use]
    pub const fn encoding_blocks(mut self, encodes: bool) -> Self {
        self.native.encodes_blocks = encodes;
        self
    }

    /// Performs steps until the tested file system's server is dead, which is possible once
    /// `killed` is true. Performs every step natively as well, except the last one: see
    /// [`Self::settle`].
    pub fn steps_until_dead(&mut self, killed: &AtomicBool) -> Interrupted {
        loop {
            let step = self.planner.next(&self.native.root);
            let got = self.other.perform(&step);
            self.steps += 1;
            if killed.load(Ordering::SeqCst)
                && let Some(written) = interrupted_count(&step, &got)
            {
                self.other.close_all();
                return Interrupted { step, written };
            }
            let want = self.native.perform(&step);
            let same = want == got;
            self.remember(step, want);
            if !same {
                self.fail_at_last(&got);
            }
        }
    }

    /// Checks the tree after the server's restart: the interrupted step must have been performed,
    /// not performed, or partially performed in an allowed way. Closes all open files.
    pub fn settle(&mut self, interrupted: &Interrupted) {
        let step = &interrupted.step;
        let before = tree::read(&self.native.root);
        let uncertain = if step.op.is_read_only() { UncertainTimes::new() } else { self.uncertain(step, &before) };
        let mut native = std::mem::replace(&mut self.native, Side::new(Path::new(""), 0));
        let mut not_performed = String::new();
        let mut settled = false;
        if interrupted.written.is_none() {
            not_performed = self.difference_after(&native, &uncertain);
            settled = not_performed.is_empty();
        }
        let mut done = String::new();
        let written = interrupted.written.unwrap_or(0);
        settled = settled
            || native.perform_partially(step, written, &mut |native| {
                done = self.difference_after(native, &uncertain);
                done.is_empty()
            });
        self.native = native;
        if !settled {
            let written = interrupted.written.map_or(String::new(), |n| format!(" (returned {n} bytes)"));
            let text = format!(
                "killed in {step:?}{written}: the tree is neither as before it:\n{not_performed}nor as after it:\n{done}"
            );
            self.fail(&text);
        }
        self.native.close_all();
    }

    /// Returns the differences after a crash. Equalises the times of the directories in `uncertain`
    /// first.
    fn difference_after(&mut self, native: &Side, uncertain: &UncertainTimes) -> String {
        let want = tree::read(&native.root);
        let got = tree::read(&self.other.root);
        let late = |time: Time| time >= self.start;
        for (path, want) in want.iter().filter(|(_, node)| FileType::from_raw_mode(node.mode).is_dir()) {
            let (Some(got), Some(before)) = (got.get(path), uncertain.get(&want.ino)) else { continue };
            if got.mtime != want.mtime && (late(got.mtime) || got.mtime == *before) {
                set_mtime(&native.at(path), got.mtime);
            }
        }
        let root = native.root.clone();
        self.difference_from(&tree::read(&root), &got)
    }

    /// Returns the directories whose modification time a crash in this step may leave inconsistent:
    /// changed although nothing else in them is, or unchanged although an entry is.
    ///
    /// Creating a copy, a whiteout or a marker in a directory changes the directory's modification
    /// time, which the union then restores. If a directory's attributes are not on the branch where
    /// one of its entries changed, the union sets its time afterwards. The host can't do both in
    /// one call. Affected are the directories in which the step changes an entry, and all ancestors
    /// of every name of a changed object.
    fn uncertain(&self, step: &Step, before: &Tree) -> UncertainTimes {
        let mut objects = HashSet::new();
        for path in step.op.paths() {
            let path = self.native.at(path);
            let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
            let found = path.canonicalize().ok();
            objects.extend(
                parent.iter().chain(&found).filter_map(|path| rustix::fs::lstat(path).ok()).map(|st| st.st_ino),
            );
            objects.extend(rustix::fs::lstat(&path).ok().map(|st| st.st_ino));
        }
        let slot = step.op.slot().and_then(|slot| self.native.slot(slot).ok());
        objects.extend(slot.and_then(|fd| rustix::fs::fstat(fd).ok()).map(|st| st.st_ino));
        let mut uncertain = UncertainTimes::new();
        for (path, _) in before.iter().filter(|(_, node)| objects.contains(&node.ino)) {
            let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
            for end in ends.chain([0, path.len()]) {
                let node = &before[&path[..end]];
                uncertain.insert(node.ino, node.mtime);
            }
        }
        uncertain
    }

    fn remember(&mut self, step: Step, outcome: Outcome) {
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back((step, outcome));
    }

    /// Fails because the last step returned `got` on the tested file system. Prints what both trees
    /// have on the way to each of its paths, and what the step returns there when repeated.
    fn fail_at_last(&mut self, got: &Outcome) -> ! {
        let (step, want) = self.last.back().cloned().expect("the last step");
        let mut text = format!("natively {want:?}, here {got:?}");
        for path in step.op.paths() {
            let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
            for path in ends.chain([path.len()]).map(|end| &path[..end]) {
                let _ = write!(text, "\n{}:", path.escape_ascii());
                for (name, side) in [("natively", &self.native), ("here", &self.other)] {
                    let _ = write!(text, "\n  {name} {}", describe(&side.at(path)));
                }
            }
        }
        let _ = write!(text, "\nrepeated here: {:?}", self.other.perform(&step));
        self.fail(&text)
    }

    fn fail(&self, what: &str) -> ! {
        let mut text = String::new();
        for (i, (step, outcome)) in self.last.iter().enumerate() {
            let number = self.steps + 1 + i as u64 - self.last.len() as u64;
            let _ = writeln!(
                text,
                "{number}: {} -> {}",
                abbreviate(&format!("{step:?}")),
                abbreviate(&format!("{outcome:?}"))
            );
        }
        panic!(
            "seed {}, after {} steps; the last steps and their native results:\n{text}{what}",
            self.seed, self.steps
        );
    }
}

/// Returns `None` if the result does not stem from the server's death; otherwise the byte count
/// that the operation returned, if any.
///
/// A waiting request fails with one of the first three errors. A request that the kernel was
/// passing to the server, or whose reply it was taking, fails as a copy from or to the memory of a
/// dying process does. A page that can't be read is an I/O error to the page cache. No step causes
/// any of these errors otherwise.
fn interrupted_count(step: &Step, got: &Outcome) -> Option<Option<usize>> {
    match got {
        Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) => Some(None),
        Err(Errno::INTR | Errno::FAULT | Errno::IO) => Some(None),
        Ok(Value::Count(n)) if *n < step.count() => Some(Some(*n)),
        _ => None,
    }
}

/// Describes who may do what with an object.
fn describe(path: &Path) -> String {
    let st = match rustix::fs::lstat(path) {
        Ok(st) => st,
        Err(errno) => return errno.to_string(),
    };
    let mut value = [0; 1024];
    let acl = match rustix::fs::lgetxattr(path, acl::ACCESS, &mut value) {
        Ok(len) => value[..len].escape_ascii().to_string(),
        Err(errno) => errno.to_string(),
    };
    format!("mode {:o}, owner {}:{}, ACL {acl}", st.st_mode, st.st_uid, st.st_gid)
}

fn set_mtime(path: &Path, (sec, nsec): Time) {
    const OMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0x3fff_fffe };
    let times =
        Timestamps { last_access: OMIT, last_modification: Timespec { tv_sec: sec, tv_nsec: i64::from(nsec) as _ } };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("utimensat in the native tree");
}

/// Abbreviates `text` and prints lists of bytes as strings.
fn abbreviate(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(open) = rest.find('[') {
        let close = rest[open..].find(']').map_or(rest.len(), |c| open + c);
        let bytes: Option<Vec<u8>> = rest[open + 1..close].split(", ").map(|n| n.parse().ok()).collect();
        out.push_str(&rest[..open]);
        match bytes {
            Some(bytes) => {
                let _ = write!(out, "\"{}\"", bytes.escape_ascii().to_string().replace(&"n".repeat(255), "n*255"));
            }
            None => out.push_str(&rest[open..rest.len().min(close + 1)]),
        }
        rest = rest.get(close + 1..).unwrap_or("");
    }
    out.push_str(rest);
    out
}
