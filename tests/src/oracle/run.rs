use super::op::{Answer, Outcome, Side, Step};
use super::plan::{Planner, SLOTS};
use crate::tree::{self, Identities, Time, Times, Tree};
use rustix::fs::{AtFlags, CWD, FileType, Timespec, Timestamps};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// How many of the last steps are printed when something differs.
const REMEMBERED: usize = 20;

/// The step during which the server died. Nobody knows how far it got.
#[derive(Debug)]
pub struct Interrupted {
    step: Step,
    /// So many bytes were answered to be written, if that was answered.
    written: Option<usize>,
}

/// Directories whose time of modification may have been about to change, by native number, with the time that they had.
type Stirred = HashMap<u64, Time>;

/// The native tree and the other one, side by side.
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
    /// Compares the trees at `native` and `other`, which must be the same now.
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
            // The clock of time stamps runs a tick behind.
            start: (now.tv_sec - 1, 0),
            steps: 0,
            last: VecDeque::new(),
        };
        oracle.compare("at the start");
        oracle
    }

    /// Does `n` more steps on both.
    pub fn steps(&mut self, n: u64) {
        for _ in 0..n {
            let step = self.planner.next(&self.native.root);
            let want = self.native.perform(&step);
            let got = self.other.perform(&step);
            self.steps += 1;
            let same = want == got;
            self.remember(step, want);
            if !same {
                self.fail(&format!("natively {:?}, here {got:?}", self.last.back().expect("just pushed").1));
            }
        }
    }

    /// Closes what is open: the file system is going to be unmounted.
    pub fn close_all(&mut self) {
        self.native.close_all();
        self.other.close_all();
    }

    /// Compares the two trees.
    pub fn compare(&mut self, when: &str) {
        let difference = self.difference();
        if !difference.is_empty() {
            self.fail(&format!("{when} the trees differ:\n{difference}"));
        }
    }

    /// How the trees differ. If they don't, the numbers of the objects are remembered.
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

    /// Does steps until the other file system's server is dead, which it may be once `killed` is true. What was done until then was
    /// done natively too; the last step was not: see [`Self::settle`].
    pub fn steps_until_dead(&mut self, killed: &AtomicBool) -> Interrupted {
        loop {
            let step = self.planner.next(&self.native.root);
            let got = self.other.perform(&step);
            self.steps += 1;
            if killed.load(Ordering::SeqCst)
                && let Some(written) = cut_short(&step, &got)
            {
                self.other.close_all();
                return Interrupted { step, written };
            }
            let want = self.native.perform(&step);
            let same = want == got;
            self.remember(step, want);
            if !same {
                self.fail(&format!("natively {:?}, here {got:?}", self.last.back().expect("just pushed").1));
            }
        }
    }

    /// The server is back: the step that was interrupted must have been done, or not at all, or up to where it may be cut. Closes all
    /// open files.
    pub fn settle(&mut self, interrupted: &Interrupted) {
        let step = &interrupted.step;
        let before = tree::read(&self.native.root);
        let stirred = if step.op.is_question() { Stirred::new() } else { self.stirred(step, &before) };
        let mut native = std::mem::replace(&mut self.native, Side::new(Path::new(""), 0));
        let mut not_at_all = String::new();
        let mut settled = false;
        if interrupted.written.is_none() {
            not_at_all = self.difference_after(&native, &stirred);
            settled = not_at_all.is_empty();
        }
        let mut done = String::new();
        let written = interrupted.written.unwrap_or(0);
        settled = settled
            || native.perform_by_parts(step, written, &mut |native| {
                done = self.difference_after(native, &stirred);
                done.is_empty()
            });
        self.native = native;
        if !settled {
            let said = interrupted.written.map_or(String::new(), |n| format!(" ({n} bytes, it was said)"));
            let text = format!(
                "killed in {step:?}{said}; now the tree is neither as before:\n{not_at_all}nor as after:\n{done}"
            );
            self.fail(&text);
        }
        self.native.close_all();
    }

    /// How the trees differ after a crash. See [`Self::stirred`]: such times are made the same.
    fn difference_after(&mut self, native: &Side, stirred: &Stirred) -> String {
        let want = tree::read(&native.root);
        let got = tree::read(&self.other.root);
        let late = |time: Time| time >= self.start;
        for (path, want) in want.iter().filter(|(_, node)| FileType::from_raw_mode(node.mode).is_dir()) {
            let (Some(got), Some(before)) = (got.get(path), stirred.get(&want.ino)) else { continue };
            if got.mtime != want.mtime && (late(got.mtime) || got.mtime == *before) {
                put_mtime(&native.at(path), got.mtime);
            }
        }
        let root = native.root.clone();
        self.difference_from(&tree::read(&root), &got)
    }

    /// The directories whose times a crash in this step may leave changed, though nothing else in them is, or unchanged, though something is.
    ///
    /// To make a copy, a whiteout or a mark in a directory changes its time of modification, which is then put back; and where a directory's
    /// attributes are not on the branch where an entry of it changed, its time is set afterwards. The host can't do both in one step. It concerns
    /// directories in which the step changes something, and those on the way to any name of what it changes.
    fn stirred(&self, step: &Step, before: &Tree) -> Stirred {
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
        let mut stirred = Stirred::new();
        for (path, _) in before.iter().filter(|(_, node)| objects.contains(&node.ino)) {
            let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
            for end in ends.chain([0, path.len()]) {
                let node = &before[&path[..end]];
                stirred.insert(node.ino, node.mtime);
            }
        }
        stirred
    }

    fn remember(&mut self, step: Step, outcome: Outcome) {
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back((step, outcome));
    }

    fn fail(&self, what: &str) -> ! {
        let mut text = String::new();
        for (i, (step, outcome)) in self.last.iter().enumerate() {
            let number = self.steps + 1 + i as u64 - self.last.len() as u64;
            let _ = writeln!(text, "{number}: {} -> {}", brief(&format!("{step:?}")), brief(&format!("{outcome:?}")));
        }
        panic!(
            "seed {}, after {} steps; the last ones and what they gave natively:\n{text}{what}",
            self.seed, self.steps
        );
    }
}

/// Is that what a program is told when the server dies? Answers the bytes that it was told were written.
///
/// A request that was waiting ends with one of the first three. One that the kernel was just giving to the server, or
/// whose answer it was just taking, ends with what becomes of copying from or to the memory of a process that is being killed. A page
/// that could not be read is an I/O error to the page cache. No step asks for any of these otherwise.
fn cut_short(step: &Step, got: &Outcome) -> Option<Option<usize>> {
    match got {
        Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) => Some(None),
        Err(Errno::INTR | Errno::FAULT | Errno::IO) => Some(None),
        Ok(Answer::Count(n)) if *n < step.count() => Some(Some(*n)),
        _ => None,
    }
}

fn put_mtime(path: &Path, (sec, nsec): Time) {
    const OMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0x3fff_fffe };
    let times =
        Timestamps { last_access: OMIT, last_modification: Timespec { tv_sec: sec, tv_nsec: i64::from(nsec) as _ } };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("utimensat in the native tree");
}

/// `text`, not too long, with lists of bytes made readable.
fn brief(text: &str) -> String {
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
