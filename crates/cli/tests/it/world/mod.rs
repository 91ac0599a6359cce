//! A random world: a stack of two to four layers with cryptfs at any place, over memory. Random
//! operations through several open files, failures, full disks, kills, power failures, remounts,
//! copies of the volume in use and damage below. After each of them the stack shows what a twin in
//! memory shows, in which the same operations succeeded.
//!
//! | concept | file |
//! |---|---|
//! | the stack | `stack` |
//! | trees as values, and their checks | `trees` |
//! | what a failed operation may leave | `partial` |
//! | volumes that were damaged below | `damage` |
//! | which kinds of operations met | `pairs` |

mod damage;
mod pairs;
mod partial;
mod stack;
mod trees;

use conformance::fixture::in_session;
use conformance::random::{Answer, Caller, Op, OpenState, Path, SLOTS, Side};
use cryptfs::{ADD, AddRequest, DELETE};
use memfs::{Count, Dump, Fault, Faults, MemFs, Plan};
use pairs::Pairs;
use stack::{PASSPHRASE, Stack};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use testkit::Rng;
use vnode::{Cx, Errno, Layer, SetAttr};

/// The session that has the key, and one that never has it.
const HOLDER: u32 = 100;
const STRANGER: u32 = 300;

/// Operations of a world.
const STEPS: u64 = 300;

/// Plain operations between comparisons of the whole trees.
const BETWEEN_COMPARISONS: u64 = 20;

/// Everything that is compared: the tree, and the open files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) tree: Dump,
    pub(crate) open: [Option<OpenState>; SLOTS],
}

impl State {
    /// Returns the differences from another state, and the names of the objects concerned.
    fn differences(&self, other: &Self) -> String {
        let mut text = self.tree.differences(&other.tree);
        for (path, node) in &self.tree.0 {
            let with = other.tree.0.get(path).map(|other| node.data.iter().zip(&other.data).collect::<Vec<_>>());
            if let Some(at) = with.iter().flatten().position(|(a, b)| a != b) {
                let (a, b) = with.unwrap_or_default()[at];
                text += &format!("/{}: byte {at} is {a:#x}, not {b:#x}\n", path.escape_ascii());
            }
        }
        for (slot, pair) in self.open.iter().zip(&other.open).enumerate().filter(|(_, (a, b))| a != b) {
            let show = |state: &Option<OpenState>| match state {
                Some(Ok((summary, bytes))) => format!("{summary:?}, {} bytes", bytes.len()),
                other => format!("{other:?}"),
            };
            let bytes = |state: &Option<OpenState>| match state {
                Some(Ok((_, bytes))) => bytes.clone(),
                _ => Vec::new(),
            };
            let (a, b) = (bytes(pair.0), bytes(pair.1));
            let at = a.iter().zip(&b).position(|(a, b)| a != b);
            text += &format!("slot {slot}, byte {at:?}\n  - {}\n  + {}\n", show(pair.0), show(pair.1));
        }
        text
    }
}

/// A stack in use, and its twin.
struct World {
    rng: Rng,
    stack: Stack,
    below: Arc<MemFs>,
    top: Arc<dyn Layer>,
    side: Side,
    twin_top: Arc<dyn Layer>,
    twin: Side,
    is_full: bool,
    history: Vec<(String, Vec<String>)>,
    pairs: Pairs,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let stack = Stack::random(&mut rng);
        let below = stack.bottom();
        stack.create(&below);
        let top = stack.over(&below).unwrap_or_else(|error| panic!("seed {seed}: {stack}: {error}"));
        let twin_top = stack.twin();
        let (side, twin) = (Side::new(&*top, false), Side::new(&*twin_top, false));
        let (history, pairs) = (Vec::new(), Pairs::default());
        let mut world = Self { rng, stack, below, top, side, twin_top, twin, is_full: false, history, pairs };
        world.note(format!("mount {}", world.stack));
        world.enter();
        let same = SetAttr { mode: Some(0o755), uid: Some(0), gid: Some(0), ..SetAttr::default() };
        world.as_holder(|cx, top| top.root().setattr(cx, &same, None)).unwrap();
        world.twin_top.root().setattr(&Cx::internal(0, 0), &same, None).unwrap();
        world
    }

    fn note(&mut self, text: String) {
        self.history.push((text, Vec::new()));
    }

    fn as_holder<T>(&self, act: impl FnOnce(&Cx<'_>, &Arc<dyn Layer>) -> T) -> T {
        as_holder(&self.stack, |cx| act(cx, &self.top))
    }

    /// Gives the holder the key, if sessions have keys.
    fn enter(&mut self) {
        if self.stack.sessions {
            with_key(&self.stack, &self.top, |_| ()).unwrap();
            self.side.enter(HOLDER);
        }
    }

    fn state(&self) -> Result<State, Errno> {
        let tree = self.as_holder(|cx, top| Dump::seen_by(&**top, cx))?;
        Ok(State { tree: comparable(tree), open: self.side.open_files() })
    }

    fn twin_state(&self) -> State {
        State { tree: comparable(Dump::of(&*self.twin_top).unwrap()), open: self.twin.open_files() }
    }

    /// Compares everything.
    fn compare(&self, when: &str) -> Result<(), String> {
        let state = self.state().map_err(|errno| format!("{when}: {errno}"))?;
        let differences = state.differences(&self.twin_state());
        if differences.is_empty() { Ok(()) } else { Err(format!("{when}\n{differences}")) }
    }

    fn step(&mut self) -> Result<(), String> {
        match self.rng.below(1000) {
            // What is undone on a full disk must not fail, too.
            840..=904 if !self.is_full => self.failing(),
            0..=904 => self.plain(),
            905..=929 => self.killed(),
            930..=949 => self.remounted(),
            950..=969 => self.fill_or_free(),
            970..=979 => self.copied(),
            980..=986 => self.damaged(),
            987..=989 => self.lost_power(),
            990..=996 => self.stranger(),
            _ => self.withdrawn(),
        }
    }

    fn next_op(&mut self) -> Op {
        let op = Op::random_data(&mut self.rng);
        let op = if self.stack.sessions { op.as_root() } else { op };
        // versionfs truncates when the first byte differs. Until then, a kill brings the file back.
        // It leaves to the kernel whether a file that is copied is open for reading.
        if self.stack.has("versionfs") { op.opened_plainly() } else { op }
    }

    fn note_op(&mut self, op: &Op, how: &str) {
        let paths = op.paths().into_iter().map(|path| format!("{path:?}"));
        let objects: Vec<_> = paths.chain(op.slots().into_iter().map(|slot| format!("slot {slot}"))).collect();
        let text = format!("{op:?}");
        let kind = text.split([' ', '{']).next().unwrap_or_default().to_owned() + how;
        self.pairs.on(&kind, objects.clone());
        self.history.push((format!("{how} {text}"), objects));
    }

    fn plain(&mut self) -> Result<(), String> {
        let op = self.next_op();
        self.note_op(&op, "");
        let answer = self.side.apply(&op);
        self.settle(&op, answer, &[])
    }

    /// An operation below fails.
    fn failing(&mut self) -> Result<(), String> {
        let op = self.next_op();
        let at = 1 + self.rng.below(12);
        let (count, fault, errno) = match self.rng.below(4) {
            0 => (Count::All, Fault::Error(Errno::IO), Errno::IO),
            1 => (Count::Changes, Fault::Error(Errno::NOSPC), Errno::NOSPC),
            2 => (Count::Changes, Fault::Error(Errno::DQUOT), Errno::DQUOT),
            _ => {
                // At least one: the rest fails, and what then undoes the write does not.
                let pages = 1 + self.rng.below(4);
                (Count::Changes, Fault::ShortWrite { pages, errno: Errno::NOSPC }, Errno::NOSPC)
            }
        };
        self.note_op(&op, &format!("!{fault:?} at {at}:").replace(' ', "_").replace('{', "("));
        self.below.faults().arm(Plan { count, at, fault });
        let answer = self.side.apply(&op);
        let fired = self.below.faults().fired();
        self.below.faults().reset();
        let errors = [errno, Errno::IO];
        self.settle(&op, answer, if fired { &errors } else { &[] })?;
        if fired { self.compare("after a failure") } else { Ok(()) }
    }

    /// Applies to the twin what an operation has done, and compares. `errors` are those that the
    /// twin does not see.
    fn settle(&mut self, op: &Op, answer: Answer, errors: &[Errno]) -> Result<(), String> {
        let full = self.is_full.then_some(Errno::NOSPC);
        let errors: Vec<_> = errors.iter().copied().chain(full).collect();
        let refused = match op {
            Op::Allocate { .. } | Op::Clone { .. } => Some(Errno::OPNOTSUPP),
            // In a directory that is empty for cryptfs, usenetfs sees the initialization vector.
            Op::Chmod { .. } if self.stack.has("usenetfs") => Some(Errno::NOTEMPTY),
            _ => None,
        };
        if refused.is_some_and(|errno| answer == Answer::Failed(errno)) {
            return Ok(());
        }
        match answer {
            Answer::Failed(errno) if errors.contains(&errno) => {
                let old = self.twin_state();
                let got = self.state().map_err(|error| format!("after {errno}: {error}"))?;
                if got == old {
                    return Ok(());
                }
                self.twin.apply_unopened(op);
                let new = self.twin_state();
                self.adopt(op, (&old, &new), &got).map_err(|why| format!("after {errno}: {why}"))
            }
            Answer::Count(done) if !errors.is_empty() => {
                let want = self.twin.apply(&op.shortened(done));
                self.same(op, &answer, &want)
            }
            answer => {
                let want = self.twin.apply(op);
                self.same(op, &answer, &want)
            }
        }
    }

    fn same(&self, op: &Op, answer: &Answer, want: &Answer) -> Result<(), String> {
        let same = want == answer || is_left_to_the_kernel(op, answer, want);
        if same { Ok(()) } else { Err(format!("{answer:?}\nnot {want:?}")) }
    }

    /// Brings the twin to a state that the failed operation may have left between `old` and `new`,
    /// which is that of the twin.
    fn adopt(&mut self, op: &Op, (old, new): (&State, &State), got: &State) -> Result<(), String> {
        if got == new {
            return Ok(());
        }
        partial::check(op, (old, new), got)?;
        partial::bring(&self.twin_top, &got.tree);
        for (slot, open) in got.open.iter().enumerate() {
            if let Some(Ok((_, bytes))) =
                open.as_ref().filter(|open| self.twin.open_files()[slot].as_ref() != Some(open))
            {
                self.twin.put(slot, bytes).unwrap();
            }
        }
        self.compare("partly done")
    }

    /// The server is killed while it changes something, or between operations.
    fn killed(&mut self) -> Result<(), String> {
        let op = self.next_op();
        let at = 1 + self.rng.below(10);
        let pages = self.rng.below(5);
        let fault = if self.rng.one_in(2) { Fault::Crash } else { Fault::CrashInWrite { pages } };
        self.note_op(&op, &format!("kill_{fault:?}_at_{at}:").replace(' ', "_").replace('{', "("));
        self.below.faults().arm(Plan { count: Count::Changes, at, fault });
        let answer = self.side.apply(&op);
        let crashed = self.below.faults().crashed();
        let old = self.twin_state();
        if !crashed {
            self.below.faults().reset();
            self.settle(&op, answer, &[])?;
            return self.die(None, &op);
        }
        // Whatever the answer was, nobody has got it.
        self.die(Some(old), &op)
    }

    /// Kills the server and mounts the stack again. `old` is the state before the operation `op`
    /// that was interrupted.
    fn die(&mut self, old: Option<State>, op: &Op) -> Result<(), String> {
        self.below.faults().arm(Plan { count: Count::All, at: 1, fault: Fault::Crash });
        self.side.close_all();
        let forked = self.below.fork(&Faults::new());
        self.mount_over(forked)?;
        self.pairs.on_all("kill");
        let Some(mut old) = old else {
            self.twin.close_all();
            return self.compare("after a kill");
        };
        old.open = Default::default();
        let got = self.state().map_err(|errno| format!("after a kill: {errno}"))?;
        if got == old {
            self.twin.close_all();
            return Ok(());
        }
        self.twin.apply(op);
        self.twin.close_all();
        let new = self.twin_state();
        self.adopt(op, (&old, &new), &got).map_err(|why| format!("after a kill: {why}"))
    }

    fn mount_over(&mut self, below: Arc<MemFs>) -> Result<(), String> {
        self.is_full = false;
        below.set_space(1 << 30);
        self.stack.choose_options(&mut self.rng);
        let top = self.stack.over(&below).map_err(|error| format!("mount: {error}"))?;
        self.side = Side::new(&*top, false);
        (self.below, self.top) = (below, top);
        self.note("mount".to_owned());
        self.enter();
        Ok(())
    }

    fn unmount(&mut self) {
        self.note("unmount".to_owned());
        self.pairs.on_all("unmount");
        self.side.close_all();
        self.twin.close_all();
        self.top.unmounted();
        // Its own state is dropped with it.
        let none = self.stack.twin();
        self.side = Side::new(&*none, false);
        self.top = none;
    }

    fn remounted(&mut self) -> Result<(), String> {
        self.unmount();
        self.below.set_space(1 << 30);
        if self.rng.one_in(4) {
            trees::fsck(&self.stack, &self.below.fork(&Faults::new()))?;
        }
        self.mount_over(Arc::clone(&self.below))?;
        self.compare("after a remount")
    }

    fn fill_or_free(&mut self) -> Result<(), String> {
        if self.stack.overwrites_take_space() {
            return Ok(());
        }
        if !self.is_full {
            self.reserve_journal()?;
        }
        self.is_full = !self.is_full;
        let statfs = self.below.without_faults().root().statfs(&Cx::internal(0, 0)).unwrap();
        let used = (statfs.blocks - statfs.bfree) * statfs.frsize;
        let free = self.rng.below(12) * 4096;
        self.below.set_space(if self.is_full { used + free } else { 1 << 30 });
        self.note(if self.is_full { format!("{free} bytes free") } else { "much is free".to_owned() });
        self.pairs.on_all(if self.is_full { "full" } else { "freed" });
        self.compare("full or freed")
    }

    /// Overwrites a part of a block, for which cryptfs allocates its journal.
    fn reserve_journal(&mut self) -> Result<(), String> {
        let slot = 3;
        let write = Op::Write { slot, offset: 0, len: 10, byte: 1 };
        let ops = [Op::Tmpfile { dir: Path(Vec::new()), mode: 0o600, as_: Caller::ROOT, slot }, write.clone(), write];
        for op in ops {
            let answer = self.side.apply(&op);
            self.settle(&op, answer, &[])?;
        }
        Ok(())
    }

    /// A copy of the volume in use is another volume with the same content.
    fn copied(&mut self) -> Result<(), String> {
        if !self.stack.can_be_copied() {
            return Ok(());
        }
        self.pairs.on_all("copied");
        let copy = trees::copied(&self.stack, &self.below);
        let top = self.stack.over(&copy).map_err(|error| format!("copy: {error}"))?;
        let seen = with_key(&self.stack, &top, |cx| Dump::seen_by(&*top, cx)).and_then(|seen| seen);
        let seen = seen.map_err(|errno| format!("copy: {errno}"))?;
        let differences = comparable(seen).differences(&self.twin_state().tree);
        if differences.is_empty() { Ok(()) } else { Err(format!("a copy\n{differences}")) }
    }

    fn damaged(&mut self) -> Result<(), String> {
        if !self.stack.can_be_copied() {
            return Ok(());
        }
        self.pairs.on_all("damaged");
        let state = self.twin_state();
        damage::check(&self.stack, &self.below, &mut self.rng, &state.tree)
    }

    /// The power fails after everything was made durable.
    fn lost_power(&mut self) -> Result<(), String> {
        if !self.stack.power {
            return Ok(());
        }
        self.note("sync, then the power fails".to_owned());
        self.pairs.on_all("power");
        self.as_holder(|cx, top| top.sync(cx)).map_err(|errno| format!("sync: {errno}"))?;
        self.below.faults().arm(Plan { count: Count::All, at: 1, fault: Fault::Crash });
        self.side.close_all();
        self.twin.close_all();
        let recovered = self.below.recover(&Faults::new());
        self.mount_over(recovered)?;
        self.compare("after a power failure")
    }

    /// A session without the key gets nothing, and changes nothing.
    fn stranger(&mut self) -> Result<(), String> {
        if !self.stack.sessions {
            return Ok(());
        }
        let mut stranger = Side::new(&*self.top, false);
        stranger.enter(STRANGER);
        for _ in 0..5 {
            let op = self.next_op();
            self.note_op(&op, "stranger:");
            match stranger.apply(&op) {
                Answer::Failed(Errno::NOKEY) | Answer::Idle => {}
                // It has no open files.
                Answer::Done if matches!(op, Op::Close { .. }) => {}
                other => return Err(format!("a stranger gets {other:?}")),
            }
        }
        self.compare("after a stranger")
    }

    /// The key is withdrawn: open files fail from then on, also when the session has it again.
    fn withdrawn(&mut self) -> Result<(), String> {
        if !self.stack.sessions {
            return Ok(());
        }
        self.note("the key is withdrawn, and added again".to_owned());
        self.pairs.on_all("withdrawn");
        self.as_holder(|cx, top| top.root().control(cx, DELETE.name, b"")).unwrap();
        for again in [false, true] {
            if again {
                self.enter();
            }
            for (slot, open) in self.side.open_files().iter().enumerate() {
                match open {
                    None | Some(Err(Errno::NOKEY)) => {}
                    Some(Ok((_, bytes))) if bytes.is_empty() => {}
                    other => return Err(format!("slot {slot}, again {again}: {other:?}")),
                }
            }
        }
        self.side.close_all();
        self.twin.close_all();
        self.compare("after the key was withdrawn")
    }

    /// Returns the operations that concern what a difference names, and the last ones.
    fn concerning(&self, why: &str) -> String {
        let recent = self.history.len().saturating_sub(30);
        let concerns = |objects: &[String]| objects.iter().any(|object| why.contains(object.as_str()));
        let chosen = self
            .history
            .iter()
            .enumerate()
            .filter(|(at, (_, objects))| *at >= recent || objects.is_empty() || concerns(objects));
        chosen.map(|(at, (text, _))| format!("    {at}: {text}\n")).collect()
    }

    fn run(&mut self) -> Result<(), String> {
        for step in 1..=STEPS {
            self.step()?;
            if step % BETWEEN_COMPARISONS == 0 {
                self.compare("compared")?;
            }
        }
        self.die(None, &Op::Close { slot: 0 })?;
        self.remounted()?;
        self.unmount();
        trees::fsck(&self.stack, &self.below)
    }
}

/// Calls `act` as a caller who may have the key.
fn as_holder<T>(stack: &Stack, act: impl FnOnce(&Cx<'_>) -> T) -> T {
    if stack.sessions { in_session(0, HOLDER, act) } else { act(&Cx::internal(0, 0)) }
}

/// Calls `act` as a caller with the key.
fn with_key<T>(stack: &Stack, top: &Arc<dyn Layer>, act: impl FnOnce(&Cx<'_>) -> T) -> Result<T, Errno> {
    as_holder(stack, |cx| {
        if stack.sessions {
            let request = AddRequest { passphrase: PASSPHRASE.as_bytes().to_vec().into(), ..AddRequest::default() };
            top.root().control(cx, ADD.name, &request.encode())?;
        }
        Ok(act(cx))
    })
}

/// Whether the kernel never asks, because it finds the error itself.
fn is_left_to_the_kernel(op: &Op, answer: &Answer, want: &Answer) -> bool {
    match (op, answer, want) {
        // Of several errors, it looks for another one first.
        (Op::Link { .. }, Answer::Failed(Errno::PERM), Answer::Failed(Errno::EXIST)) => true,
        (Op::Rename { .. }, Answer::Failed(Errno::NOENT), Answer::Failed(Errno::NOTDIR)) => true,
        (Op::Copy { .. }, Answer::Count(0), Answer::Failed(Errno::BADF)) => true,
        _ => false,
    }
}

/// Returns a tree without what differs between file systems.
fn comparable(tree: Dump) -> Dump {
    tree.without_ids().without_times().without_directory_counts()
}

/// Runs one world. Returns which kinds of operations met.
fn world(seed: u64) -> Pairs {
    // A failure shows what the layers have logged.
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_test_writer().without_time();
    let _was_set = log.try_init();
    let mut world = World::new(seed);
    let ran = catch_unwind(AssertUnwindSafe(|| world.run()));
    let why = match ran {
        Ok(Ok(())) => return world.pairs,
        Ok(Err(why)) => why,
        Err(_) => "it panicked".to_owned(),
    };
    panic!("STRATA_SEED={seed}: {why}\n{}\n{}", world.stack, world.concerning(&why));
}

#[test]
fn random_stacks_over_memory() {
    let mut pairs = Pairs::default();
    for seed in testkit::seeds(16) {
        let of_world = world(seed);
        assert!(of_world.kinds() >= 5, "STRATA_SEED={seed}");
        pairs.add(of_world);
    }
    println!("{}", pairs.histogram());
}
