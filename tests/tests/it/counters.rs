//! Request counts: proof that cached answers cost no request, and that large reads and writes
//! bypass the server.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use strata_tests::mapping::Mapping;
use strata_tests::process::try_run;
use strata_tests::user::{USER, as_user};
use strata_tests::{Fixture, Mounted, Rng, Sandbox, Spec, Transport, on_both_transports};

/// Mounts the null layer over a directory populated by `fill`, for tests that don't depend on
/// branches.
fn wrap(sandbox: &Sandbox, transport: Transport, fill: impl FnOnce(&Path)) -> Mounted {
    let lower = sandbox.ext4("lower", 256);
    fill(&lower);
    Mounted::new(Spec::wrap(&lower, transport), &sandbox.path("m"))
}

/// Checks that repeating `what` costs no request. (A READ makes the kernel distrust the access
/// time, and glibc's opendir requests all attributes: so `what` runs twice beforehand.)
fn check_free_when_cached(mounted: &Mounted, name: &str, what: impl Fn()) {
    what();
    what();
    let sent = mounted.during(what);
    assert_eq!(sent.total(), 0, "{name}, repeated: {sent:?}");
}

/// Calls stat(2) as most programs do. std's version also requests the time of birth, which listings
/// don't include.
fn stat(path: &Path) -> Result<(), Errno> {
    rustix::fs::lstat(path).map(drop)
}

fn check_cached(mounted: &Mounted) {
    let dir = mounted.path("d");
    check_free_when_cached(mounted, "stat", || (0..100).for_each(|i| stat(&dir.join(i.to_string())).unwrap()));
    check_free_when_cached(mounted, "stat of missing names", || {
        (0..100).for_each(|i| assert_eq!(stat(&dir.join(format!("missing{i}"))), Err(Errno::NOENT)));
    });
    check_free_when_cached(mounted, "readdir", || assert_eq!(fs::read_dir(&dir).unwrap().count(), 102));
    check_free_when_cached(mounted, "readlink", || drop(fs::read_link(dir.join("link")).unwrap()));
    check_free_when_cached(mounted, "access", || {
        rustix::fs::access(dir.join("1"), rustix::fs::Access::WRITE_OK | rustix::fs::Access::READ_OK).unwrap();
    });
}

fn fill(dir: &Path) {
    fs::create_dir(dir.join("d")).unwrap();
    (0..100).for_each(|i| fs::write(dir.join(format!("d/{i}")), "text").unwrap());
    std::os::unix::fs::symlink("1", dir.join("d/link")).unwrap();
    fs::create_dir(dir.join("d/sub")).unwrap();
}

/// Cached attributes, names and data cost no request, on the null layer and in a directory of the
/// read-only branch.
fn cached_answers_cost_no_request(transport: Transport) {
    let sandbox = Sandbox::new();
    check_cached(&wrap(&sandbox, transport, fill));
    drop(sandbox);
    let fx = Fixture::new(transport, fill);
    check_cached(&fx.union);
    fs::write(fx.path("d/new"), "").unwrap();
    fs::remove_file(fx.path("d/new")).unwrap();
    check_cached(&fx.union);
}

/// After readdir with attributes, stat of the listed names costs no request (`ls -l`).
fn stat_after_readdir_costs_no_request(transport: Transport) {
    let fx = Fixture::new(transport, fill);
    let names: Vec<_> = fs::read_dir(fx.path("d")).unwrap().map(|e| e.unwrap().path()).collect();
    let sent = fx.union.during(|| names.iter().for_each(|n| stat(n).unwrap()));
    assert!(sent.total() <= 10, "{sent:?} for 102 listed names");
}

/// Large reads and writes on the read-write branch, also by mapping, send neither READ nor WRITE.
fn large_reads_and_writes_bypass_the_server(transport: Transport) {
    let data = Rng::new(1).bytes(8 << 20);
    let fx = Fixture::new(transport, |_| {});
    let path = fx.path("big");
    let sent = fx.union.during(|| {
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        for chunk in data.chunks(64 * 1024) {
            file.write_all(chunk).unwrap();
        }
        let mut back = vec![0; data.len()];
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back == data);
    });
    assert_eq!((sent.get("READ"), sent.get("WRITE")), (0, 0), "{sent:?}");
    let sent = fx.union.during(|| {
        let mut bytes = Vec::new();
        File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
        assert!(bytes == data);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut map = Mapping::new(&file, data.len(), ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED).unwrap();
        map.write(5 << 20, b"mapped");
        assert_eq!(map.get(100), data[100]);
        map.sync().unwrap();
    });
    assert_eq!((sent.get("READ"), sent.get("WRITE")), (0, 0), "{sent:?}");
    assert_eq!(&fs::read(fx.rw.join("big")).unwrap()[5 << 20..(5 << 20) + 6], b"mapped");
}

/// A file of the read-only branch is read from the page cache the second time, and passed through
/// after it was copied up and closed.
fn page_cache_then_passthrough_after_copy_up(transport: Transport) {
    let data = Rng::new(2).bytes(1 << 20);
    let fx = Fixture::new(transport, |ro| fs::write(ro.join("f"), &data).unwrap());
    let path = fx.path("f");
    let read = || assert!(fs::read(&path).unwrap().len() >= data.len());
    let first = fx.union.during(read);
    assert!(first.get("READ") > 0, "{first:?}");
    let again = fx.union.during(read);
    assert_eq!(again.get("READ"), 0, "the page cache was not used: {again:?}");
    let mut appending = File::options().append(true).open(&path).unwrap();
    appending.write_all(b"+").unwrap();
    drop(appending);
    let sent = fx.union.during(|| {
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.write_all_at(&data, 0).unwrap();
        read();
    });
    assert_eq!((sent.get("READ"), sent.get("WRITE")), (0, 0), "copied up, closed, opened again: {sent:?}");
}

/// Creates a file of a little more than 8 MiB, outside the page cache, on the read-only branch.
fn large(ro: &Path) -> Vec<u8> {
    let data = Rng::new(5).bytes((8 << 20) + 4097);
    fs::write(ro.join("large"), &data).unwrap();
    data
}

/// Returns the number of READ requests for one sequential read of `large`, through a union mounted
/// with `options`. Checks the data, also by mapping and at random offsets.
fn reads_of_a_stream(
    sandbox: &Sandbox,
    (rw, ro): (&Path, &Path),
    transport: Transport,
    options: &str,
) -> (u64, String) {
    let data = large(ro);
    let union = Mounted::with_options(Spec::union(rw, ro, transport), &sandbox.path("u"), options);
    let path = union.path("large");
    let sent = union.during(|| {
        let mut file = File::open(&path).unwrap();
        let mut back = Vec::new();
        // Smaller than the readahead: otherwise the kernel reads the requested size.
        let mut chunk = vec![0; 16 << 10];
        while let len @ 1.. = file.read(&mut chunk).unwrap() {
            back.extend_from_slice(&chunk[..len]);
        }
        assert!(back == data, "{options}");
    });
    let file = File::open(&path).unwrap();
    let dropped = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    dropped.unwrap();
    let map = Mapping::new(&file, data.len(), ProtFlags::READ, MapFlags::SHARED).unwrap();
    let mut rng = Rng::new(6);
    for _ in 0..200 {
        let at = rng.below(data.len());
        assert_eq!(map.get(at), data[at], "{options}, mapped, at {at}");
        let mut byte = [0];
        file.read_exact_at(&mut byte, at as u64).unwrap();
        assert_eq!(byte[0], data[at], "{options}, at {at}");
    }
    (sent.get("READ"), union.log_text())
}

/// `readahead=` sets the size of READ requests of a stream, and the data are right.
fn readahead_sets_the_request_size(transport: Transport) {
    let sandbox = Sandbox::new();
    let (rw, ro) = (sandbox.ext4("rw", 64), sandbox.ext4("ro", 64));
    let reads = |options: &str| {
        let (reads, output) = reads_of_a_stream(&sandbox, (&rw, &ro), transport, options);
        assert!(!output.contains("read-ahead"), "{options}: {output}");
        reads
    };
    // The kernel starts with a smaller readahead and doubles it, hence a few more requests.
    let default = reads("cache=10");
    assert!((65..=72).contains(&default), "{default} with 128 KiB each");
    let small = reads("readahead=32k");
    assert!((257..=270).contains(&small), "{small} with 32 KiB each");
    let large = reads("readahead=1M");
    assert!((9..=16).contains(&large), "{large} with 1 MiB each");
    // Larger than a request: several requests are in flight at once.
    let largest = reads("readahead=4M");
    assert!((9..=16).contains(&largest), "{largest} with 1 MiB each");
    assert!(reads("readahead=0") > 1_000);
}

/// Over `/dev/fuse`, large READs of data that a host file holds unchanged are replied to with that
/// file's pages. Requests over the ring, small files and layers that change data are not. The data
/// are right in every case: at the end of a file, and after a copy-up and a write.
fn large_reads_are_spliced(transport: Transport) {
    let sandbox = Sandbox::new();
    let (rw, ro) = (sandbox.ext4("rw", 64), sandbox.ext4("ro", 64));
    let spliced = |mounted: &Mounted, what: &dyn Fn()| {
        let before = mounted.requests().get("spliced");
        what();
        mounted.requests().get("spliced") - before
    };
    let data = large(&ro);
    fs::write(ro.join("small"), &data[..8192]).unwrap();
    let with_hole = File::create(ro.join("hole")).unwrap();
    with_hole.write_all_at(&data[..100_000], 3 << 20).unwrap();
    let union = Mounted::new(Spec::union(&rw, &ro, transport), &sandbox.path("u"));
    let whole = |mounted: &Mounted, name: &str, want: &[u8]| {
        assert!(fs::read(mounted.path(name)).unwrap() == want, "{name}");
    };
    let held = File::open(union.path("large")).unwrap();
    let count = spliced(&union, &|| whole(&union, "large", &data));
    assert_eq!(count > 60, transport == Transport::Device, "{count} of about 65 READs");
    assert_eq!(spliced(&union, &|| whole(&union, "small", &data[..8192])), 0);
    whole(&union, "hole", &[vec![0; 3 << 20], data[..100_000].to_vec()].concat());
    // With O_DIRECT, at offsets that are not page-aligned.
    let direct = rustix::fs::open(union.path("large"), OFlags::RDONLY | OFlags::DIRECT, Mode::empty()).unwrap();
    for (at, len) in [(512, 1 << 20), (100 << 10, 200 << 10), (8 << 20, 1 << 20), (9 << 20, 1 << 20)] {
        let mut out = vec![0; len];
        let done = rustix::io::pread(&direct, &mut out, at as u64).unwrap();
        let want = data.get(at..).unwrap_or_default();
        assert!(done == want.len().min(len) && out[..done] == want[..done], "{len} from {at}");
    }
    // A file opened before the copy-up shows later writes to the copy.
    let writer = File::options().write(true).open(union.path("large")).unwrap();
    writer.write_all_at(&[7; 300_000], 1 << 20).unwrap();
    let mut changed = data.clone();
    changed[1 << 20..][..300_000].fill(7);
    rustix::fs::fadvise(&held, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut back = vec![0; data.len()];
    held.read_exact_at(&mut back, 0).unwrap();
    assert!(back == changed, "after the copy-up");
    assert!(fs::read(ro.join("large")).unwrap() == data);
    drop((held, writer, direct, union));
    // Truncated below while it is read: the data may end early, but are right.
    let mounted = Mounted::with_options(Spec::wrap(&ro, transport), &sandbox.path("w"), "passthrough=off");
    let count = spliced(&mounted, &|| whole(&mounted, "large", &data));
    assert_eq!(count > 60, transport == Transport::Device, "{count} of about 65 READs, the null layer");
    let mut file = File::open(mounted.path("hole")).unwrap();
    File::options().write(true).open(ro.join("hole")).unwrap().set_len(1 << 20).unwrap();
    let mut back = Vec::new();
    let _ends_early = file.read_to_end(&mut back);
    assert!(back.iter().all(|&byte| byte == 0));
    drop((file, mounted));
    let coded = Mounted::new(Spec::stack("rot13 / xor / ", &rw, transport), &sandbox.path("s"));
    let count = spliced(&coded, &|| {
        fs::write(coded.path("coded"), &data).unwrap();
        rustix::fs::fadvise(File::open(coded.path("coded")).unwrap(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
        whole(&coded, "coded", &data);
    });
    assert_eq!(count, 0, "a layer that changes data");
}

/// If the readahead can't be set, the mount works with the kernel's default and logs a warning.
fn refused_readahead_is_a_warning(transport: Transport) {
    let sandbox = Sandbox::new();
    let (rw, ro) = (sandbox.ext4("rw", 64), sandbox.ext4("ro", 64));
    // As in a container: the directory is empty in this test's mount namespace.
    let output = try_run(Command::new("mount").args(["-t", "tmpfs", "none", "/sys/class/bdi"]));
    assert!(output.status.success(), "{}", output.text);
    let (reads, output) = reads_of_a_stream(&sandbox, (&rw, &ro), transport, "readahead=1M");
    assert!((65..=72).contains(&reads), "{reads} with 128 KiB each");
    assert!(output.contains("cannot raise readahead from 131072 to 1048576 bytes: /sys/class/bdi/"), "{output}");
    assert_eq!(fs::read_dir("/sys/class/bdi").unwrap().count(), 0);
    let output = try_run(Command::new("umount").arg("/sys/class/bdi"));
    assert!(output.status.success(), "{}", output.text);
}

/// create + write + close costs a lookup, the create, one request for the file's capabilities, and
/// the release. It also costs one for the directory's attributes: the kernel invalidates them at
/// each change and needs them to check permissions.
fn requests_per_created_file(transport: Transport) {
    let sandbox = Sandbox::new();
    let wrapped = wrap(&sandbox, transport, fill);
    let check = |mounted: &Mounted| {
        // Caches the directory.
        let _ = fs::metadata(mounted.path("d"));
        let sent = mounted.during(|| {
            for i in 0..100 {
                File::create(mounted.path(format!("d/new{i}"))).unwrap().write_all(&[1; 4096]).unwrap();
            }
        });
        assert!(sent.get("LOOKUP") <= 100 && sent.get("CREATE") == 100 && sent.get("GETXATTR") <= 100, "{sent:?}");
        assert!(sent.get("GETATTR") <= 100, "{sent:?}");
        let rest = sent.except(&["LOOKUP", "CREATE", "GETXATTR", "GETATTR"]);
        assert!(rest.total() <= 2, "other requests for 100 files: {rest:?}");
    };
    check(&wrapped);
    drop(wrapped);
    drop(sandbox);
    check(&Fixture::new(transport, fill).union);
}

/// Repeated writes to one open file request its capabilities once, and close sends no FLUSH.
fn repeated_writes_request_capabilities_once(transport: Transport) {
    let fx = Fixture::new(transport, |ro| fs::write(ro.join("old"), "text").unwrap());
    fs::write(fx.path("new"), "").unwrap();
    for name in ["new", "old"] {
        let mut file = File::options().append(true).open(fx.path(name)).unwrap();
        file.write_all(b"first").unwrap();
        let sent = fx.union.during(|| (0..100).for_each(|_| file.write_all(b"again").unwrap()));
        assert!(sent.get("GETXATTR") <= 1, "100 writes to {name}: {sent:?}");
        assert_eq!(sent.except(&["WRITE", "GETXATTR"]).total(), 0, "100 writes to {name}: {sent:?}");
        let sent = fx.union.during(move || drop(file));
        assert_eq!(sent.get("FLUSH"), 0, "{name}: {sent:?}");
    }
}

/// Opening and reading small files repeatedly costs one request each: the OPEN (the RELEASE is
/// asynchronous).
fn an_open_costs_one_request(transport: Transport) {
    let fx = Fixture::new(transport, fill);
    let read = || {
        let mut bytes = [0; 100];
        for i in 0..100 {
            assert_eq!(File::open(fx.path(&format!("d/{i}"))).unwrap().read(&mut bytes).unwrap(), 4);
        }
    };
    read();
    let sent = fx.union.during(read);
    assert!(
        sent.get("OPEN") <= 100 && sent.except(&["OPEN"]).total() == 0,
        "100 files of the read-only branch read again: {sent:?}"
    );
    (0..100).for_each(|i| fs::write(fx.path(&format!("d/{i}")), "TEXT").unwrap());
    // What the copy-ups changed may still be under way to the kernel, which then asks once more.
    let passes = (0..10).map(|_| fx.union.during(read));
    let mut passes = passes.skip_while(|sent| sent.except(&["OPEN"]).total() > 0);
    let sent = passes.next().expect("one of ten passes costs nothing but OPEN");
    assert!(sent.get("OPEN") <= 100, "the same, copied up: {sent:?}");
}

/// Unlink and rename cost a lookup and the operation.
fn requests_per_unlink_and_rename(transport: Transport) {
    let fx = Fixture::new(transport, fill);
    (0..100).for_each(|i| fs::write(fx.path(&format!("d/new{i}")), "").unwrap());
    let sent = fx.union.during(|| (0..50).for_each(|i| fs::remove_file(fx.path(&format!("d/new{i}"))).unwrap()));
    assert!(sent.get("UNLINK") == 50 && sent.except(&["GETATTR"]).total() <= 102, "50 unlinks: {sent:?}");
    let sent = fx.union.during(|| {
        (50..100).for_each(|i| fs::rename(fx.path(&format!("d/new{i}")), fx.path(&format!("d/moved{i}"))).unwrap());
    });
    assert!(sent.except(&["GETATTR"]).total() <= 153, "50 renames: {sent:?}");
    let sent = fx.union.during(|| {
        (0..100).for_each(|i| {
            rustix::fs::chmod(fx.path(&format!("d/{i}")), rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        });
    });
    // A copy-up moves the change time of the directory, whose attributes the kernel then requests.
    let is_right = sent.get("SETATTR") == 100 && sent.get("GETATTR") <= 110 && sent.total() <= 310;
    assert!(is_right, "100 chmods: {sent:?}");
}

/// Returns the requests for extended attributes in the server's log.
fn xattr_requests(mounted: &Mounted) -> Vec<String> {
    mounted.log_text().lines().filter(|line| line.contains("XATTR")).map(str::to_owned).collect()
}

/// With `noxattr` the kernel sends one request per kind and never again: not for ACLs, not at
/// writes.
fn noxattr_stops_xattr_requests(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = sandbox.ext4("lower", 64);
    fill(&lower);
    fs::write(lower.join("labelled"), "text").unwrap();
    rustix::fs::setxattr(lower.join("labelled"), "user.label", b"kept", XattrFlags::empty()).unwrap();
    let mounted = Mounted::with_options(Spec::wrap(&lower, transport), &sandbox.path("m"), "noxattr,log=trace");
    for i in 0..100 {
        let path = mounted.path(format!("d/{i}"));
        let mut file = File::options().append(true).open(&path).unwrap();
        (0..10).for_each(|_| file.write_all(b"more").unwrap());
        fs::write(mounted.path(format!("d/new{i}")), "text").unwrap();
        rustix::fs::chmod(&path, Mode::from_raw_mode(0o600)).unwrap();
        as_user(USER, || assert!(File::open(&path).is_err()));
    }
    let labelled = mounted.path("labelled");
    for _ in 0..10 {
        let mut value = [0_u8; 16];
        assert_eq!(rustix::fs::getxattr(&labelled, "user.label", &mut value), Err(Errno::OPNOTSUPP));
        assert_eq!(rustix::fs::listxattr(&labelled, &mut value), Err(Errno::OPNOTSUPP));
        assert_eq!(rustix::fs::removexattr(&labelled, "user.label"), Err(Errno::OPNOTSUPP));
        let set = rustix::fs::setxattr(&labelled, "user.label", b"lost", XattrFlags::empty());
        assert_eq!(set, Err(Errno::OPNOTSUPP));
    }
    let requests = xattr_requests(&mounted);
    for opcode in ["GETXATTR", "LISTXATTR", "REMOVEXATTR", "SETXATTR"] {
        let sent = requests.iter().filter(|line| line.contains(&format!(" {opcode}"))).count();
        assert_eq!(sent, 1, "{opcode}: {requests:#?}");
    }
    drop(mounted);
    let mut value = [0_u8; 16];
    assert_eq!(rustix::fs::getxattr(lower.join("labelled"), "user.label", &mut value), Ok(4));
    assert_eq!(fs::read(lower.join("d/7")).unwrap().len(), 4 + 10 * 4);
}

/// With `noxattr` the union still uses its own extended attributes on the branches: opaque
/// directories, copied-up files.
fn noxattr_keeps_the_unions_own_xattrs(transport: Transport) {
    let sandbox = Sandbox::new();
    let disk = sandbox.ext4("disk", 64);
    let (rw, ro) = (disk.join("rw"), disk.join("ro"));
    [&rw, &ro].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
    fill(&ro);
    rustix::fs::setxattr(ro.join("d/1"), "user.label", b"kept", XattrFlags::empty()).unwrap();
    let mounted = || Mounted::with_options(Spec::union(&rw, &ro, transport), &sandbox.path("u"), "noxattr");
    let union = mounted();
    fs::rename(union.path("d"), union.path("moved")).unwrap();
    fs::create_dir(union.path("d")).unwrap();
    File::options().append(true).open(union.path("moved/1")).unwrap().write_all(b"+").unwrap();
    drop(union);
    let union = mounted();
    assert_eq!(fs::read_dir(union.path("d")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(union.path("moved")).unwrap().count(), 102);
    assert_eq!(fs::read(union.path("moved/1")).unwrap(), b"text+");
    drop(union);
    // Extended attributes were copied up.
    let union = Mounted::new(Spec::union(&rw, &ro, transport), &sandbox.path("u"));
    let mut value = [0_u8; 16];
    assert_eq!(rustix::fs::getxattr(union.path("moved/1"), "user.label", &mut value), Ok(4));
}

/// With `noxattr`, a write still clears set-user-id and capabilities, on every data path.
fn noxattr_writes_clear_privileges(transport: Transport) {
    /// Version 2, effective, with `CAP_NET_RAW`.
    const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let sandbox = Sandbox::new();
    let lower = sandbox.ext4("lower", 64);
    for way in ["auto", "off"] {
        let below = lower.join(way);
        fs::write(&below, "text").unwrap();
        rustix::fs::setxattr(&below, "security.capability", &CAPABILITY, XattrFlags::empty()).unwrap();
        rustix::fs::chmod(&below, Mode::from_raw_mode(0o6777)).unwrap();
        let options = format!("noxattr,passthrough={way}");
        let mounted = Mounted::with_options(Spec::wrap(&lower, transport), &sandbox.path("m"), &options);
        as_user(USER, || File::options().append(true).open(mounted.path(way)).unwrap().write_all(b"more").unwrap());
        assert_eq!(fs::metadata(&below).unwrap().permissions().mode() & 0o7777, 0o777, "passthrough={way}");
        let capability = rustix::fs::getxattr(&below, "security.capability", &mut [0_u8; 32]);
        assert_eq!(capability, Err(Errno::NODATA), "passthrough={way}");
    }
}

/// The control channel works with `noxattr`, and a remount checks the options of the mount.
fn noxattr_keeps_the_control_channel(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = sandbox.dir("lower");
    let mounted = Mounted::with_options(Spec::wrap(&lower, transport), &sandbox.path("m"), "noxattr,cache=5");
    let strata = |words: &[&str]| {
        let mut command = Command::new(Mounted::program().unwrap());
        try_run(command.arg0("strata").args(words).arg(mounted.dir()))
    };
    for (words, expected) in
        [("stats", "IOCTL"), ("info", "transport"), ("stack", "wrapfs"), ("sync", ""), ("debug", "info\n")]
    {
        let output = strata(&[words]);
        assert!(output.status.success() && output.text.contains(expected), "{words}: {}", output.text);
    }
    let remount = |options: &str| {
        let mut command = Command::new(Mounted::program().unwrap());
        try_run(command.arg0("mount.fuse.wrapfs").arg("none").arg(mounted.dir()).args(["-o", options]))
    };
    assert!(remount("remount,ro").status.success());
    assert!(fs::write(mounted.path("new"), "").is_err());
    assert!(remount("remount,rw,noxattr,cache=5").status.success());
    fs::write(mounted.path("new"), "").unwrap();
    let output = remount("remount,rw,cache=6");
    assert!(!output.status.success() && output.text.contains("option cache: can't be changed"), "{}", output.text);
}

on_both_transports!(
    noxattr_stops_xattr_requests,
    noxattr_keeps_the_unions_own_xattrs,
    noxattr_writes_clear_privileges,
    noxattr_keeps_the_control_channel,
    cached_answers_cost_no_request,
    stat_after_readdir_costs_no_request,
    large_reads_and_writes_bypass_the_server,
    page_cache_then_passthrough_after_copy_up,
    large_reads_are_spliced,
    readahead_sets_the_request_size,
    refused_readahead_is_a_warning,
    requests_per_created_file,
    repeated_writes_request_capabilities_once,
    an_open_costs_one_request,
    requests_per_unlink_and_rename,
);
