use crate::lineage::{MAX_ANCESTORS, Parent, Process, ProcessTable, ancestors, parent};
use crate::{Answer, Classifier, ViewId};
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use vnode::{Cx, Result};

/// Identifies a process: its ID and start time.
type Key = (u32, u64);

/// Once this many processes are remembered, those that have exited are dropped.
const MAX_REMEMBERED: usize = 16_384;

/// A process that was moved to a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The process.
    pub process: u32,
    /// Its view.
    pub view: ViewId,
    /// Number of processes that are in the view because of this move, as far as they are known.
    pub members: usize,
}

/// Why a process could not be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveError {
    /// There is no such process.
    NoProcess,
    /// The process was not moved.
    NotMoved,
}

impl fmt::Display for MoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoProcess => "no such process",
            Self::NotMoved => "the process was not moved",
        })
    }
}

impl std::error::Error for MoveError {}

/// Puts processes into views, with all their descendants.
///
/// A process keeps its place when its parent exits, because it is remembered as soon as it is known
/// to be a descendant: when its ancestor is moved, or at its first request. A process that makes no
/// request between its creation and the exit of its parent is not recognized as a descendant.
#[derive(Debug)]
pub struct Moves {
    processes: Arc<dyn ProcessTable>,
    state: Mutex<State>,
    /// Whether any process is moved. Callers need not be determined otherwise.
    any: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The view of each process that was moved itself.
    moved: HashMap<Key, ViewId>,
    /// For each process seen since the last move: the moved process that it descends from.
    known: HashMap<Key, Option<Key>>,
}

impl State {
    /// Returns the moved process that this one is, or descends from.
    fn origin(&mut self, table: &dyn ProcessTable, process: Process) -> Option<Key> {
        if let Some(known) = self.known.get(&process.key()) {
            return *known;
        }
        let mut path = vec![process.key()];
        let (mut last, mut origin) = (process, None);
        while path.len() < MAX_ANCESTORS {
            let ancestor = match parent(table, last) {
                Parent::Is(ancestor) => ancestor,
                Parent::Exited => {
                    origin = self.origin_of_exited(last.parent, last.start);
                    // Unless the parent is remembered, the process that has adopted its children
                    // decides.
                    let again = table.process(last.id).filter(|again| again.key() == last.key());
                    match again.filter(|again| origin.is_none() && again.parent != last.parent) {
                        Some(again) => last = again,
                        None => break,
                    }
                    continue;
                }
                Parent::None => break,
            };
            if let Some(known) = self.known.get(&ancestor.key()) {
                origin = *known;
                break;
            }
            path.push(ancestor.key());
            last = ancestor;
        }
        for key in path {
            self.known.insert(key, origin);
        }
        origin
    }

    /// Returns the moved process that the last process with this ID, which started by `start` and
    /// has exited, descended from.
    fn origin_of_exited(&self, id: u32, start: u64) -> Option<Key> {
        let same = self.known.iter().filter(|(key, _)| key.0 == id && key.1 <= start);
        same.max_by_key(|(key, _)| key.1).and_then(|(_, origin)| *origin)
    }

    /// Drops what is known about processes that have exited.
    fn trim(&mut self, table: &dyn ProcessTable) {
        self.known.retain(|key, _| table.process(key.0).is_some_and(|process| process.key() == *key));
        let used: std::collections::HashSet<_> = self.known.values().copied().flatten().collect();
        self.moved.retain(|key, _| used.contains(key));
    }

    /// Determines the origin of all processes, while their ancestors still exist.
    fn learn(&mut self, table: &dyn ProcessTable) {
        for process in table.all() {
            let _origin = self.origin(table, process);
        }
        self.trim(table);
    }

    /// Forgets which processes descend from no moved one, because another one is moved now.
    fn reconsider(&mut self) {
        self.known.retain(|_, origin| origin.is_some());
    }
}

impl Moves {
    /// Returns a classifier that has moved no process yet.
    #[must_use]
    pub fn new(processes: Arc<dyn ProcessTable>) -> Self {
        Self { processes, state: Mutex::default(), any: AtomicBool::new(false) }
    }

    /// Moves a process and its descendants to a view.
    ///
    /// # Errors
    /// There is no such process.
    pub fn put(&self, id: u32, view: ViewId) -> core::result::Result<(), MoveError> {
        let table = &*self.processes;
        let process = table.process(id).ok_or(MoveError::NoProcess)?;
        let key = process.key();
        let mut state = self.state.lock();
        state.learn(table);
        let all = table.all();
        // Descendants follow, even those that were moved with an ancestor of this process or before
        // it.
        let follows =
            |other: &Process| other.key() == key || ancestors(table, *other).any(|ancestor| ancestor.key() == key);
        let descendants: Vec<_> = all.iter().filter(|other| follows(other)).map(Process::key).collect();
        state.reconsider();
        // Descendants whose parents have exited are known by the earlier move.
        let earlier: Vec<_> = state.known.iter().filter(|(_, origin)| **origin == Some(key)).map(|(k, _)| *k).collect();
        for member in descendants.into_iter().chain(earlier).chain([key]) {
            state.known.insert(member, Some(key));
        }
        state.moved.insert(key, view);
        self.any.store(true, Ordering::Release);
        // Those that were created meanwhile.
        state.learn(table);
        Ok(())
    }

    /// Ends the move of a process and of all processes that followed it: the other classifiers
    /// decide about them again.
    ///
    /// # Errors
    /// There is no such process, or it neither was moved nor descends from one that was.
    pub fn release(&self, id: u32) -> core::result::Result<(), MoveError> {
        let table = &*self.processes;
        let process = table.process(id).ok_or(MoveError::NoProcess)?;
        let mut state = self.state.lock();
        let origin = state.origin(table, process).ok_or(MoveError::NotMoved)?;
        state.moved.remove(&origin);
        state.known.retain(|_, known| *known != Some(origin));
        state.reconsider();
        self.any.store(!state.moved.is_empty(), Ordering::Release);
        Ok(())
    }

    /// Returns the moved processes, in numeric order.
    #[must_use]
    pub fn list(&self) -> Vec<Moved> {
        let mut state = self.state.lock();
        state.trim(&*self.processes);
        let members = |key: &Key| state.known.values().filter(|origin| **origin == Some(*key)).count();
        let moved = state.moved.iter().map(|(key, view)| Moved { process: key.0, view: *view, members: members(key) });
        let mut moved: Vec<_> = moved.collect();
        moved.sort_unstable_by_key(|moved| moved.process);
        moved
    }
}

impl Classifier for Moves {
    fn classify(&self, cx: &Cx<'_>) -> Result<Answer> {
        if !self.any.load(Ordering::Acquire) || crate::is_servers_own(cx) {
            return Ok(Answer::Pass);
        }
        let Some(process) = self.processes.process(cx.pid) else { return Ok(Answer::Unknown) };
        let mut state = self.state.lock();
        if state.known.len() > MAX_REMEMBERED {
            state.trim(&*self.processes);
        }
        let origin = state.origin(&*self.processes, process);
        let view = origin.and_then(|origin| state.moved.get(&origin).copied());
        Ok(view.map_or(Answer::Pass, Answer::View))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processes of a test, by ID.
    #[derive(Debug, Default)]
    struct Table(Mutex<HashMap<u32, Process>>, Mutex<Option<u32>>);

    impl Table {
        fn start(&self, id: u32, parent: u32, start: u64) {
            self.0.lock().insert(id, Process { id, start, parent });
        }

        /// Ends a process; its children become children of process 1.
        fn end(&self, id: u32) {
            let mut all = self.0.lock();
            all.remove(&id);
            all.values_mut().filter(|process| process.parent == id).for_each(|process| process.parent = 1);
        }

        /// Ends a process as soon as one of its children was looked up.
        fn end_after_a_child(&self, id: u32) {
            *self.1.lock() = Some(id);
        }
    }

    impl ProcessTable for Table {
        fn process(&self, thread: u32) -> Option<Process> {
            let found = self.0.lock().get(&thread).copied();
            let mut ending = self.1.lock();
            if let Some(parent) = ending.take_if(|id| found.is_some_and(|process| process.parent == *id)) {
                self.end(parent);
            }
            found
        }

        fn credentials(&self, process: u32) -> Option<(u32, u32)> {
            self.0.lock().contains_key(&process).then_some((0, 0))
        }

        fn all(&self) -> Vec<Process> {
            self.0.lock().values().copied().collect()
        }
    }

    fn view(moves: &Moves, pid: u32) -> Answer {
        let never = AtomicBool::new(false);
        moves.classify(&Cx::new(0, 0, pid, 0, true, &never)).unwrap()
    }

    /// 1 - 10 - 20 - 30, and 11 beside 10.
    fn family() -> (Arc<Table>, Moves) {
        let table = Arc::new(Table::default());
        for (id, parent, start) in [(1, 0, 0), (10, 1, 5), (11, 1, 5), (20, 10, 6), (30, 20, 7)] {
            table.start(id, parent, start);
        }
        let moves = Moves::new(Arc::clone(&table) as Arc<dyn ProcessTable>);
        (table, moves)
    }

    #[test]
    fn descendants_follow_and_others_do_not() {
        let (table, moves) = family();
        assert_eq!(view(&moves, 20), Answer::Pass);
        moves.put(20, 1).unwrap();
        assert_eq!(
            [10, 11, 20, 30].map(|pid| view(&moves, pid)),
            [Answer::Pass, Answer::Pass, Answer::View(1), Answer::View(1)]
        );
        table.start(40, 30, 9);
        assert_eq!(view(&moves, 40), Answer::View(1));
        assert_eq!(view(&moves, 99), Answer::Unknown, "an invisible process may be a moved one");
        assert_eq!(moves.list(), [Moved { process: 20, view: 1, members: 3 }]);
        assert_eq!(moves.put(99, 1), Err(MoveError::NoProcess));
    }

    #[test]
    fn a_descendant_stays_when_its_parents_exit() {
        let (table, moves) = family();
        moves.put(20, 1).unwrap();
        table.end(20);
        assert_eq!(view(&moves, 30), Answer::View(1), "known since the move");
        table.start(40, 30, 9);
        assert_eq!(view(&moves, 40), Answer::View(1));
        table.start(50, 40, 9);
        assert_eq!(view(&moves, 50), Answer::View(1));
        table.end(40);
        assert_eq!(view(&moves, 50), Answer::View(1), "known since its first request");
    }

    /// The parent exits after its child was found, and before it is looked up itself.
    #[test]
    fn a_descendant_whose_parent_exits_meanwhile_does_not_escape() {
        let (table, moves) = family();
        moves.put(20, 1).unwrap();
        assert_eq!(view(&moves, 30), Answer::View(1));
        table.start(40, 30, 9);
        table.end_after_a_child(30);
        assert_eq!(view(&moves, 40), Answer::View(1));
        // The parent that exits was never seen; its own parent is process 1.
        table.start(12, 11, 9);
        table.start(13, 12, 9);
        table.end_after_a_child(12);
        assert_eq!(view(&moves, 13), Answer::Pass);
        // An earlier process with the ID of the parent was a descendant, a later one is not.
        table.end(20);
        table.start(20, 1, 50);
        table.start(21, 20, 51);
        assert_eq!(view(&moves, 20), Answer::Pass);
        table.end_after_a_child(20);
        assert_eq!(view(&moves, 21), Answer::Pass);
    }

    #[test]
    fn a_reused_process_id_is_another_process() {
        let (table, moves) = family();
        moves.put(30, 1).unwrap();
        table.end(30);
        table.start(30, 1, 99);
        assert_eq!(view(&moves, 30), Answer::Pass);
        assert_eq!(moves.list(), []);
        // A parent ID that was reused: the present process 20 started after 21.
        table.start(21, 20, 50);
        table.end(20);
        table.start(20, 1, 60);
        table.0.lock().get_mut(&21).unwrap().parent = 20;
        moves.put(20, 1).unwrap();
        assert_eq!(view(&moves, 21), Answer::Pass);
    }

    #[test]
    fn processes_return_with_those_that_followed() {
        let (table, moves) = family();
        moves.put(20, 1).unwrap();
        moves.put(20, 0).unwrap();
        assert_eq!((view(&moves, 20), view(&moves, 30)), (Answer::View(0), Answer::View(0)));
        moves.put(30, 1).unwrap();
        assert_eq!((view(&moves, 20), view(&moves, 30)), (Answer::View(0), Answer::View(1)));
        // The whole family again, with the one that was moved alone.
        moves.put(10, 2).unwrap();
        assert_eq!([10, 20, 30].map(|pid| view(&moves, pid)), [Answer::View(2); 3]);
        assert_eq!(moves.list().len(), 1);
        table.end(20);
        assert_eq!(moves.release(30), Ok(()), "releases what it follows");
        assert_eq!([10, 11, 30].map(|pid| view(&moves, pid)), [Answer::Pass; 3]);
        assert_eq!(moves.release(10), Err(MoveError::NotMoved));
    }

    #[test]
    fn an_orphan_follows_when_its_former_ancestor_is_moved_again() {
        let (table, moves) = family();
        moves.put(10, 1).unwrap();
        table.end(20);
        moves.put(10, 2).unwrap();
        assert_eq!(view(&moves, 30), Answer::View(2));
    }
}
