use super::op::{Outcome, Side, Step};
use super::plan::{Planner, SLOTS};
use crate::tree::{self, Identities, Time, Times};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::path::Path;

/// How many of the last steps are printed when something differs.
const REMEMBERED: usize = 20;

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
        let mut identities = self.identities.clone();
        let difference = tree::difference(&want, &got, Times::Since(self.start)) + &identities.check(&want, &got);
        if difference.is_empty() {
            self.identities = identities;
        }
        difference
    }

    /// Does steps until the other file system's server is dead. What was done until then was done natively too; the last step,
    /// of which nobody knows how far it got, was not: see [`Self::settle`].
    pub fn steps_until_dead(&mut self) -> Step {
        loop {
            let step = self.planner.next(&self.native.root);
            let got = self.other.perform(&step);
            self.steps += 1;
            if matches!(got, Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED)) {
                return step;
            }
            let want = self.native.perform(&step);
            let same = want == got;
            self.remember(step, want);
            if !same {
                self.fail(&format!("natively {:?}, here {got:?}", self.last.back().expect("just pushed").1));
            }
        }
    }

    /// The server is back: the step that was interrupted must have been done, or not at all, or (if it was several system calls)
    /// up to one of them.
    pub fn settle(&mut self, interrupted: &Step) {
        let not_at_all = self.difference();
        if not_at_all.is_empty() {
            return;
        }
        for part in interrupted.parts() {
            let _ = self.native.perform(&part);
            if self.difference().is_empty() {
                return;
            }
        }
        let done = self.difference();
        let text =
            format!("killed in {interrupted:?}; now the tree is neither as before:\n{not_at_all}nor as after:\n{done}");
        self.fail(&text);
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
