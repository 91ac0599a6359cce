use crate::{Count, Dump, Fault, Faults, MemFs, MemOptions, Op, Plan};
use vnode::{Cx, Errno, Layer, Name, OpenFlags, Result, SetAttr};

const CX: Cx<'static> = Cx::internal(0, 0);

fn name(bytes: &str) -> Name<'_> {
    Name::new(bytes.as_bytes()).unwrap()
}

/// Five operations, four of which change something.
fn scenario(fs: &MemFs) -> Result<()> {
    let root = fs.root();
    let (entry, file) = root.create(&CX, name("f"), 0o644, OpenFlags::RDWR)?;
    file.write(&CX, b"hello", 0)?;
    entry.vnode.getattr(&CX)?;
    entry.vnode.setattr(&CX, &SetAttr { mode: Some(0o600), ..SetAttr::default() }, None)?;
    root.link(&CX, name("g"), &entry.vnode)?;
    Ok(())
}

#[test]
fn each_operation_can_fail_once() {
    let mut failures = 0;
    for at in 1.. {
        let faults = Faults::new();
        let fs = MemFs::with(MemOptions::default(), &faults);
        faults.arm(Plan { count: Count::All, at, fault: Fault::Error(Errno::NOSPC) });
        let result = scenario(&fs);
        if !faults.fired() {
            result.unwrap();
            break;
        }
        assert_eq!(result, Err(Errno::NOSPC));
        failures += 1;
    }
    assert_eq!(failures, 5);
}

#[test]
fn a_crash_keeps_completed_operations() {
    let whole = MemFs::new();
    scenario(&whole).unwrap();
    let mut seen: Vec<Dump> = Vec::new();
    for at in 1..=5 {
        let faults = Faults::new();
        let fs = MemFs::with(MemOptions::default(), &faults);
        faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
        let result = scenario(&fs);
        assert_eq!(result.is_err(), at <= 4);
        if at <= 4 {
            assert_eq!(fs.root().getattr(&CX).map(|_| ()), Err(Errno::IO));
        }
        seen.push(fs.recover(&Faults::new()).dump());
    }
    assert_eq!(seen[0].0.len(), 1);
    assert_eq!(seen[4], whole.dump());
    assert!(seen.windows(2).all(|pair| pair[0] != pair[1]), "each change can be seen");
}

#[test]
fn unsynced_data_can_be_lost() {
    let fs = MemFs::with(MemOptions { lose_data: true, ..MemOptions::default() }, &Faults::new());
    let root = fs.root();
    let (_, file) = root.create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    file.write(&CX, b"kept", 0).unwrap();
    file.fsync(&CX, true).unwrap();
    file.write(&CX, b"lost", 4).unwrap();
    let dump = fs.recover(&Faults::new()).dump();
    assert_eq!(dump.0[&b"f"[..]].data, b"kept");
}

#[test]
fn a_crash_can_cut_a_write_between_pages() {
    let faults = Faults::new();
    let fs = MemFs::with(MemOptions::default(), &faults);
    let (_, file) = fs.root().create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    file.write(&CX, &[1; 5000], 0).unwrap();
    faults.arm(Plan { count: Count::Changes, at: 1, fault: Fault::CrashInWrite { pages: 2 } });
    assert_eq!(file.write(&CX, &[2; 9000], 100), Err(Errno::IO));
    assert!(faults.crashed());
    assert_eq!(file.write(&CX, &[3; 10], 0), Err(Errno::IO));
    let data = &fs.recover(&Faults::new()).dump().0[&b"f"[..]].data;
    assert_eq!(*data, [[1; 100].as_slice(), &[2; 8092]].concat());
}

#[test]
fn counters_and_log_record_operations() {
    let fs = MemFs::new();
    fs.faults().record();
    scenario(&fs).unwrap();
    assert_eq!((fs.faults().operations(), fs.faults().changes()), (5, 4));
    assert_eq!(fs.faults().log(), [Op::Create, Op::Write, Op::Getattr, Op::Setattr, Op::Link]);
    let _ = fs.dump();
    assert_eq!(fs.faults().operations(), 5);
}

#[test]
fn limits_return_their_errnos() {
    let fs = MemFs::with(MemOptions { space: 8192, ..MemOptions::default() }, &Faults::new());
    let root = fs.root();
    let (_, file) = root.create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(file.write(&CX, &[1; 20000], 0), Ok(8192));
    assert_eq!(file.write(&CX, &[1; 1], 8192), Err(Errno::NOSPC));
    fs.set_read_only(true);
    assert_eq!(root.mkdir(&CX, name("d"), 0o755).map(|_| ()), Err(Errno::ROFS));
    assert!(fs.properties().read_only);
}

#[test]
fn objects_take_space() {
    let fs = MemFs::with(MemOptions { space: 4 * 4096, object_pages: 1, ..MemOptions::default() }, &Faults::new());
    let root = fs.root();
    // The root takes a page, too.
    root.symlink(&CX, name("l"), b"to").unwrap();
    let (_, file) = root.create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(file.write(&CX, &[1; 5000], 0), Ok(4096));
    assert_eq!(root.mkdir(&CX, name("d"), 0o755).map(drop), Err(Errno::NOSPC));
    root.unlink(&CX, name("l")).unwrap();
    root.mkdir(&CX, name("d"), 0o755).unwrap();
    assert_eq!(root.statfs(&CX).unwrap().bfree, 0);
}

#[test]
fn allocations_fail_and_removals_work() {
    let faults = Faults::new();
    let fs = MemFs::with(MemOptions::default(), &faults);
    let root = fs.root();
    root.symlink(&CX, name("l"), b"to").unwrap();
    faults.arm(Plan { count: Count::Allocations, at: 1, fault: Fault::Errors(Errno::NOSPC) });
    assert_eq!(root.mkdir(&CX, name("d"), 0o755).map(drop), Err(Errno::NOSPC));
    root.unlink(&CX, name("l")).unwrap();
}

#[test]
fn unused_unlinked_objects_are_freed() {
    let fs = MemFs::new();
    let root = fs.root();
    let (entry, file) = root.create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    root.unlink(&CX, name("f")).unwrap();
    assert_eq!((fs.objects(), entry.vnode.getattr(&CX).unwrap().nlink), (2, 0));
    drop(entry);
    assert_eq!(fs.objects(), 2);
    drop(file);
    assert_eq!(fs.objects(), 1);
}

#[test]
fn pages_that_were_freed_can_be_used_again() {
    let fs = MemFs::with(MemOptions { space: 8192, ..MemOptions::default() }, &Faults::new());
    let root = fs.root();
    for round in 0..5 {
        let (_, file) = root.create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap();
        assert_eq!(file.write(&CX, &[round; 5000], 0), Ok(5000));
        assert_eq!(file.fallocate(&CX, 0, 8192, 1), Err(Errno::NOSPC));
        let (_, copy) = root.create(&CX, name("g"), 0o644, OpenFlags::RDWR).unwrap();
        assert_eq!(copy.write(&CX, b"x", 0), Err(Errno::NOSPC));
        assert_eq!(file.fallocate(&CX, 3, 0, 4096), Ok(()));
        assert_eq!(copy.write(&CX, b"x", 0), Ok(1));
        drop((file, copy));
        root.unlink(&CX, name("f")).unwrap();
        root.unlink(&CX, name("g")).unwrap();
    }
}
