use crate::{Meter, Operation};
use core::time::Duration;
use memfs::{Count, Dump, Fault, Faults, MemFs, MemOptions, Op, Plan};
use std::sync::Arc;
use vnode::{Cx, Errno, Layer, MAY_BLOCK, Name, OpenFlags, RenameFlags};
use wrapfs::WrapFs;

const CX: Cx<'static> = Cx::internal(0, 0);

fn name(bytes: &str) -> Name<'_> {
    Name::new(bytes.as_bytes()).unwrap()
}

#[test]
fn a_meter_is_transparent() {
    let below = MemFs::new();
    let meter = Meter::new(below.clone(), "memory");
    let root = meter.root();
    let dir = root.mkdir(&CX, name("d"), 0o755).unwrap();
    let (file, open) = dir.vnode.create(&CX, name("f"), 0o640, OpenFlags::RDWR).unwrap();
    open.write(&CX, b"bytes", 0).unwrap();
    root.link(&CX, name("g"), &file.vnode).unwrap();
    root.rename(&CX, name("g"), &dir.vnode, name("h"), RenameFlags::default()).unwrap();
    let counted = |operation| meter.counts().of(operation).done;
    assert_eq!([Operation::Mkdir, Operation::Write, Operation::Link, Operation::Rename].map(counted), [1; 4]);
    assert_eq!(counted(Operation::Unlink), 0);
    assert_eq!(Dump::of(&*meter).unwrap(), below.dump());
}

#[test]
fn failures_are_counted_and_retries_are_counted_once() {
    let faults = Faults::new();
    let meter = Meter::new(MemFs::with(MemOptions::default(), &faults), "memory");
    let root = meter.root();
    assert!(root.lookup(&CX, name("missing")).unwrap().is_none());
    assert_eq!(root.unlink(&CX, name("missing")), Err(Errno::NOENT));
    faults.arm(Plan { count: Count::Only(Op::Setattr), at: 1, fault: Fault::Error(MAY_BLOCK) });
    let set = vnode::SetAttr { mode: Some(0o700), ..vnode::SetAttr::default() };
    assert_eq!(root.setattr(&CX, &set, None).map(|_| ()), Err(MAY_BLOCK));
    assert_eq!(meter.counts().of(Operation::Setattr).done, 0);
    root.setattr(&CX, &set, None).unwrap();
    let counted = |operation| (meter.counts().of(operation).done, meter.counts().of(operation).failed);
    assert_eq!(counted(Operation::Lookup), (1, 0));
    assert_eq!(counted(Operation::Unlink), (1, 1));
    assert_eq!(counted(Operation::Setattr), (1, 0));
}

#[test]
fn the_callback_of_a_listing_is_not_timed() {
    const SLOW: Duration = Duration::from_millis(20);
    let meter = Meter::new(MemFs::new(), "memory");
    meter.root().mkdir(&CX, name("d"), 0o755).unwrap();
    meter
        .root()
        .readdir(&CX, 0, &mut |_| {
            std::thread::sleep(SLOW);
            true
        })
        .unwrap();
    let count = meter.counts().of(Operation::Readdir);
    assert!(count.done == 1 && count.time < SLOW, "{count:?}");
}

#[test]
fn time_includes_the_layers_below() {
    let inner = Meter::new(MemFs::new(), "memory");
    let outer = Meter::new(WrapFs::new(inner.clone()), "null");
    for i in 0..1000 {
        outer.root().mkdir(&CX, name(&format!("d{i}")), 0o755).unwrap();
    }
    let (above, below) = (outer.counts().of(Operation::Mkdir), inner.counts().of(Operation::Mkdir));
    assert_eq!((above.done, below.done), (1000, 1000));
    assert!(above.time >= below.time && !below.time.is_zero(), "{above:?} {below:?}");
}

#[test]
fn concurrent_threads_are_counted() {
    let meter = Meter::new(MemFs::new(), "memory");
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| (0..100).for_each(|_| assert!(meter.root().getattr(&CX).is_ok())));
        }
    });
    assert_eq!(meter.counts().of(Operation::Getattr).done, 2000);
}

#[test]
fn vnodes_of_another_layer_are_refused() {
    let (a, b): (Arc<dyn Layer>, _) = (Meter::new(MemFs::new(), "a"), MemFs::new());
    let (file, _) = b.root().create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(a.root().link(&CX, name("g"), &file.vnode).map(|_| ()), Err(Errno::XDEV));
}
