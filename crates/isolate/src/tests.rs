use crate::{Health, Isolate, OnLoss, STUCK_AFTER};
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Plan};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use vnode::{Cx, Errno, Layer, Name, OpenFlags, Vnode};

const CX: Cx<'static> = Cx::internal(0, 0);

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

struct Setup {
    faults: Faults,
    layer: Arc<Isolate>,
    root: Arc<dyn Vnode>,
}

impl Setup {
    fn new(hangs: bool, on_loss: OnLoss) -> Self {
        let faults = Faults::new();
        let lower = MemFs::with(MemOptions::default(), &faults);
        let root = lower.root();
        for n in 0..3000 {
            root.mknod(&CX, name(&format!("f{n}")), 0o100_644, 0).unwrap();
        }
        let (_, file) = root.create(&CX, name("data"), 0o644, OpenFlags::RDWR).unwrap();
        file.write(&CX, b"content", 0).unwrap();
        root.setxattr(&CX, b"user.x", b"value", vnode::XattrFlags::default()).unwrap();
        let layer = Isolate::new(lower, "branch /b", hangs, on_loss);
        Self { faults, root: layer.root(), layer }
    }

    fn lose(&self, errno: Errno) {
        self.faults.arm(Plan { count: Count::All, at: 1, fault: Fault::Errors(errno) });
    }

    /// Waits until the layer has this state.
    fn await_health(&self, health: Health) {
        testkit::until(&format!("the layer is {health:?}"), || {
            let now = self.layer.health();
            if now != health {
                // A lost file system is asked again by operations only.
                let _ = self.root.getattr(&CX.without_waiting());
            }
            testkit::seen(now, |now| *now == health)
        });
    }
}

fn count(root: &Arc<dyn Vnode>) -> usize {
    let mut count = 0;
    root.readdir(&CX, 0, &mut |_| {
        count += 1;
        true
    })
    .unwrap();
    count
}

#[test]
fn answers_are_those_of_the_file_system_below() {
    for hangs in [true, false] {
        let setup = Setup::new(hangs, OnLoss::Error);
        let root = &setup.root;
        assert_eq!(count(root), 3001);
        assert!(root.lookup(&CX, name("f7")).unwrap().is_some() && root.lookup(&CX, name("none")).unwrap().is_none());
        let data = root.lookup(&CX, name("data")).unwrap().unwrap();
        assert_eq!(data.attr.size, 7);
        let file = data.vnode.open(&CX, OpenFlags::RDONLY).unwrap();
        let mut out = [0; 20];
        assert_eq!(file.read(&CX, &mut out, 2), Ok(5));
        assert_eq!(&out[..5], b"ntent");
        let mut value = [0; 5];
        assert_eq!(root.getxattr(&CX, b"user.x", &mut value), Ok(5));
        assert_eq!(&value, b"value");
        assert_eq!(root.getxattr(&CX, b"user.x", &mut []), Ok(5));
        assert_eq!(setup.layer.properties().may_hang, hangs);
        assert_eq!(root.lookup(&CX, name("f7")).unwrap().unwrap().vnode.readlink(&CX), Err(Errno::INVAL));
        assert_eq!(setup.layer.health(), Health::Good);
    }
}

#[test]
fn a_caller_that_is_interrupted_does_not_wait() {
    let setup = Setup::new(true, OnLoss::Error);
    setup.faults.hang();
    let interrupted = AtomicBool::new(false);
    thread::scope(|scope| {
        let caller = scope.spawn(|| setup.root.lookup(&Cx::new(0, 0, 0, 0, true, &interrupted), name("f1")).map(drop));
        thread::sleep(Duration::from_millis(50));
        assert!(!caller.is_finished());
        interrupted.store(true, Ordering::Relaxed);
        assert_eq!(caller.join().unwrap(), Err(Errno::INTR));
    });
    // Callers on a thread that must not block are told so.
    let never = AtomicBool::new(false);
    let busy = Cx::new(0, 0, 0, 0, false, &never);
    assert_eq!(setup.root.lookup(&busy, name("f1")).map(drop), Err(vnode::MAY_BLOCK));
    setup.faults.resume();
    assert!(setup.root.lookup(&CX, name("f1")).unwrap().is_some());
}

#[test]
fn callers_that_need_no_answer_get_none_from_a_stuck_file_system() {
    let setup = Setup::new(true, OnLoss::Error);
    setup.faults.hang();
    thread::scope(|scope| {
        let waits = scope.spawn(|| setup.root.lookup(&CX, name("f1")).map(|found| found.is_some()));
        assert_eq!(setup.root.getattr(&CX.without_waiting()).map(drop), Err(Errno::TIMEDOUT));
        assert_eq!(setup.layer.health(), Health::Stuck);
        let begun = Instant::now();
        for _ in 0..1000 {
            assert_eq!(setup.root.getattr(&CX.without_waiting()).map(drop), Err(Errno::TIMEDOUT));
        }
        assert!(begun.elapsed() < STUCK_AFTER);
        assert!(!waits.is_finished());
        setup.faults.resume();
        assert_eq!(waits.join().unwrap(), Ok(true));
    });
    setup.await_health(Health::Good);
    assert!(setup.root.getattr(&CX.without_waiting()).is_ok());
}

#[test]
fn a_stuck_file_system_takes_a_limited_number_of_callers_and_threads() {
    let setup = Setup::new(true, OnLoss::Error);
    setup.faults.hang();
    let never = AtomicBool::new(false);
    let interrupted = AtomicBool::new(false);
    thread::scope(|scope| {
        let callers: Vec<_> = (0..100)
            .map(|_| scope.spawn(|| setup.root.lookup(&Cx::new(0, 0, 0, 0, true, &interrupted), name("f1")).map(drop)))
            .collect();
        thread::sleep(STUCK_AFTER + Duration::from_millis(200));
        assert_eq!(setup.root.lookup(&Cx::new(0, 0, 0, 0, true, &never), name("f1")).map(drop), Err(Errno::TIMEDOUT));
        interrupted.store(true, Ordering::Relaxed);
        assert!(callers.into_iter().all(|caller| caller.join().unwrap() == Err(Errno::INTR)));
    });
    setup.faults.resume();
    setup.await_health(Health::Good);
    assert!(setup.root.lookup(&CX, name("f1")).unwrap().is_some());
}

#[test]
fn a_lost_file_system_fails_or_appears_empty_until_it_is_back() {
    for (hangs, errno) in [(true, Errno::NOTCONN), (false, Errno::STALE), (false, Errno::IO)] {
        for on_loss in [OnLoss::Error, OnLoss::Empty] {
            let setup = Setup::new(hangs, on_loss);
            let root = &setup.root;
            let file = root.lookup(&CX, name("f1")).unwrap().unwrap().vnode;
            let before = root.getattr(&CX).unwrap();
            setup.lose(errno);
            match on_loss {
                OnLoss::Error => {
                    assert_eq!(root.lookup(&CX, name("f1")).map(drop), Err(Errno::IO));
                    assert_eq!(root.getattr(&CX).map(drop), Err(Errno::IO));
                    assert_eq!(file.getattr(&CX).map(drop), Err(Errno::IO));
                }
                OnLoss::Empty => {
                    assert!(root.lookup(&CX, name("f1")).unwrap().is_none());
                    assert_eq!(count(root), 0);
                    let lost = root.getattr(&CX).unwrap();
                    assert_eq!((lost.ino, lost.mode), (before.ino, before.mode));
                    assert_ne!(lost.ctime, before.ctime);
                    assert_eq!(file.getattr(&CX).map(drop), Err(Errno::STALE));
                }
            }
            assert_eq!(setup.layer.health(), Health::Lost);
            setup.faults.disarm();
            setup.await_health(Health::Good);
            assert_eq!(count(root), 3001);
            assert_eq!(root.getattr(&CX).unwrap().ctime, before.ctime);
            assert!(file.getattr(&CX).is_ok());
        }
    }
}

#[test]
fn an_error_of_one_file_is_no_loss() {
    let setup = Setup::new(true, OnLoss::Empty);
    setup.faults.arm(Plan { count: Count::All, at: 1, fault: Fault::Error(Errno::IO) });
    assert_eq!(setup.root.lookup(&CX, name("f1")).map(drop), Err(Errno::IO));
    assert_eq!(setup.layer.health(), Health::Good);
    assert!(setup.root.lookup(&CX, name("f1")).unwrap().is_some());
}
