//! Tests of a mounted file system, on both transports and as with an older kernel.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::memory::Memory;
use crate::common::{Mounted, errno, on_each, pin, ring_is_on};
use fuse::{Errno, MountOptions, Opcode, Session, Transport, flags};
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use testkit::until;

#[test]
fn names_are_created_renamed_and_removed() {
    on_each(|mount| {
        let m = mount(Memory::new());
        fs::write(m.at("a"), b"one").unwrap();
        fs::create_dir(m.at("dir")).unwrap();
        fs::rename(m.at("a"), m.at("dir/b")).unwrap();
        assert_eq!(fs::read(m.at("dir/b")).unwrap(), b"one");
        assert_eq!(errno(&fs::metadata(m.at("a")).unwrap_err()), Some(Errno::NOENT));
        fs::hard_link(m.at("dir/b"), m.at("c")).unwrap();
        assert_eq!(fs::metadata(m.at("c")).unwrap().ino(), fs::metadata(m.at("dir/b")).unwrap().ino());
        symlink("some/where", m.at("link")).unwrap();
        assert_eq!(fs::read_link(m.at("link")).unwrap().to_str(), Some("some/where"));
        fs::set_permissions(m.at("c"), fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(fs::metadata(m.at("c")).unwrap().mode(), 0o100_640);
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        let cwd = rustix::fs::CWD;
        assert_eq!(rustix::fs::renameat_with(cwd, m.at("c"), cwd, m.at("link"), flags), Err(Errno::EXIST));
        rustix::fs::renameat_with(cwd, m.at("c"), cwd, m.at("d"), flags).unwrap();
        fs::remove_file(m.at("dir/b")).unwrap();
        fs::remove_dir(m.at("dir")).unwrap();
        assert!(fs::metadata(m.at("dir")).is_err());
        let counters = m.session.counters();
        assert_eq!(counters.total(Opcode::Rename2), 1);
        assert_eq!(counters.by_ring() > 0, m.session.ring_is_up());
        assert_eq!(counters.by_device() > 20, !m.session.ring_is_up());
    });
}

#[test]
fn large_transfers() {
    on_each(|mount| {
        let m = mount(Memory::new());
        let data: Vec<u8> = (0..3_000_001_u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
        let data = &data[..3_000_001];
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(m.at("f")).unwrap();
        file.write_all(data).unwrap();
        file.sync_all().unwrap();
        assert!(m.session.counters().total(Opcode::Write) <= 30, "{}", m.session.counters().to_json());
        drop(file);
        let mut file = File::open(m.at("f")).unwrap();
        let mut back = Vec::new();
        file.read_to_end(&mut back).unwrap();
        assert!(back == data);
        // Two passes, with a pause in between in which buffers are released.
        std::thread::sleep(Duration::from_millis(1300));
        let mut part = vec![0; 1 << 20];
        let file = File::open(m.at("f")).unwrap();
        file.read_exact_at(&mut part, 12_345).unwrap();
        assert!(part == data[12_345..12_345 + (1 << 20)]);
    });
}

#[test]
fn thousands_of_names() {
    on_each(|mount| {
        for plus in [true, false] {
            let mut memory = Memory::new();
            if !plus {
                memory.init_config.flags &= !(flags::DO_READDIRPLUS | flags::READDIRPLUS_AUTO);
            }
            let expected: HashSet<String> = (0..5000).map(|i| format!("name-{i:0>width$}", width = i % 100)).collect();
            for name in &expected {
                memory.add_file(name.as_bytes(), b"");
            }
            let m = mount(memory);
            let found: Vec<String> =
                fs::read_dir(&m.path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            assert_eq!(found.len(), expected.len());
            assert_eq!(found.into_iter().collect::<HashSet<_>>(), expected);
            assert_eq!(m.session.counters().total(Opcode::Readdirplus) > 0, plus);
        }
    });
}

#[test]
fn requests_that_may_block_run_on_a_worker() {
    on_each(|mount| {
        let m = mount(Memory::new());
        m.fs.add_file(b"later", b"text");
        assert_eq!(fs::read(m.at("later")).unwrap(), b"text");
        let path = m.at("later");
        let size = 200;
        rustix::fs::setxattr(&path, "user.long-enough-name", &vec![7; size], rustix::fs::XattrFlags::empty()).unwrap();
        let mut value = vec![0; size];
        assert_eq!(rustix::fs::getxattr(&path, "user.long-enough-name", &mut value), Ok(size));
        assert_eq!(value, vec![7; size]);
        assert_eq!(rustix::fs::getxattr(&path, "user.none", &mut value), Err(Errno::NODATA));
        File::open(&path).unwrap().sync_all().unwrap();
        let ring = m.session.ring_is_up();
        assert_eq!(m.fs.refused.load(Ordering::Relaxed) > 0, ring);
        assert_eq!(m.session.counters().offloads > 0, ring);
    });
}

#[test]
fn copy_file_range_and_lseek() {
    on_each(|mount| {
        let m = mount(Memory::new());
        m.fs.add_file(b"from", b"0123456789");
        m.fs.add_file(b"to", b"");
        let from = File::open(m.at("from")).unwrap();
        let to = OpenOptions::new().write(true).open(m.at("to")).unwrap();
        let mut at = 3;
        assert_eq!(rustix::fs::copy_file_range(&from, Some(&mut at), &to, None, 5), Ok(5));
        assert_eq!(fs::read(m.at("to")).unwrap(), b"34567");
        assert_eq!(rustix::fs::seek(&from, rustix::fs::SeekFrom::Hole(0)), Ok(10));
        let fallocate = rustix::fs::fallocate(&to, rustix::fs::FallocateFlags::empty(), 0, 4096);
        assert_eq!(fallocate, Err(Errno::OPNOTSUPP));
    });
}

#[test]
fn ioctls_on_files_and_directories() {
    on_each(|mount| {
        let m = mount(Memory::new());
        m.fs.add_file(b"f", b"");
        for (path, expected) in [(m.at("f"), 0), (m.path.clone(), 1)] {
            let file = File::open(path).unwrap();
            let mut data = *b"0123456789abcdef";
            // SAFETY: reads and writes 16 bytes (`_IOWR('x', 1, char[16])`).
            let result = unsafe { libc::ioctl(file.as_raw_fd(), 0xc010_7801, data.as_mut_ptr()) };
            assert_eq!(result, expected);
            assert_eq!(&data, b"fedcba9876543210");
        }
    });
}

#[test]
fn misbehaving_handlers_affect_only_their_caller() {
    on_each(|mount| {
        let m = mount(Memory::new());
        m.fs.add_file(b"panic", b"x");
        m.fs.add_file(b"lie", b"x");
        m.fs.add_file(b"good", b"x");
        for _ in 0..10 {
            assert_eq!(errno(&fs::read(m.at("panic")).unwrap_err()), Some(Errno::IO));
            assert_eq!(errno(&fs::read(m.at("lie")).unwrap_err()), Some(Errno::IO));
        }
        assert_eq!(fs::read(m.at("good")).unwrap(), b"x");
    });
}

#[test]
fn an_interrupted_caller_returns() {
    on_each(|mount| {
        let m = mount(Memory::new());
        m.fs.add_file(b"hang", b"x");
        m.fs.add_file(b"good", b"y");
        for _ in 0..5 {
            let mut reader = Command::new("cat").arg(m.at("hang")).stdout(Stdio::null()).spawn().unwrap();
            until("the reader hangs", || m.fs.hanging.load(Ordering::SeqCst) == 1);
            assert_eq!(fs::read(m.at("good")).unwrap(), b"y");
            let pid = rustix::process::Pid::from_child(&reader);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
            assert_eq!(reader.wait().unwrap().signal(), Some(libc::SIGTERM));
            assert_eq!(m.fs.hanging.load(Ordering::SeqCst), 0);
        }
        assert_eq!(m.session.counters().interrupts, 5);
        assert_eq!(fs::read(m.at("good")).unwrap(), b"y");
    });
}

#[test]
fn with_all_threads_busy_interrupts_arrive_and_queued_requests_are_served() {
    const THREADS: usize = 4;
    const CALLERS: usize = 10;
    testkit::own_mounts();
    for threads in [2, THREADS] {
        let m = Mounted::new(Memory::new(), |options| {
            options.transport = Transport::Device;
            options.max_threads = threads;
        });
        m.fs.add_file(b"good", b"y");
        let mut callers: Vec<_> = (0..CALLERS)
            .map(|i| {
                m.fs.add_file(format!("hang{i}").as_bytes(), b"x");
                Command::new("cat").arg(m.at(&format!("hang{i}"))).stdout(Stdio::null()).spawn().unwrap()
            })
            .collect();
        until("all that can be are served", || m.fs.hanging.load(Ordering::SeqCst) == threads - 1);
        std::thread::scope(|scope| {
            // It arrives last and is served although the earlier ones never finish on their own.
            let good = scope.spawn(|| fs::read(m.at("good")).unwrap());
            for caller in &mut callers {
                let pid = rustix::process::Pid::from_child(caller);
                rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
            }
            for caller in &mut callers {
                assert_eq!(caller.wait().unwrap().signal(), Some(libc::SIGTERM));
            }
            assert_eq!(good.join().unwrap(), b"y");
        });
        assert_eq!(m.fs.hanging.load(Ordering::SeqCst), 0);
        assert_eq!(fs::read(m.at("good")).unwrap(), b"y");
    }
}

#[test]
fn slow_requests_do_not_block_fast_ones() {
    const SLOW: usize = 64;
    testkit::own_mounts();
    for transport in [Transport::Ring, Transport::Device] {
        if transport == Transport::Ring && !ring_is_on() {
            continue;
        }
        // Reads, where the kernel knows a regular file, and lookups, where it knows none.
        for name in ["hang", "slow"] {
            let m = Mounted::new(Memory::new(), |options| {
                options.transport = transport;
                options.depth = 2;
                // The device's pool is limited; that many slow requests would exhaust it.
                options.max_threads = SLOW + 8;
            });
            m.fs.add_file(b"good", b"y");
            for i in 0..SLOW {
                m.fs.add_file(format!("{name}{i}").as_bytes(), b"x");
            }
            std::thread::scope(|scope| {
                let slow: Vec<_> = (0..SLOW)
                    .map(|i| {
                        let path = m.at(&format!("{name}{i}"));
                        scope.spawn(move || {
                            pin(0);
                            fs::read(path).unwrap()
                        })
                    })
                    .collect();
                until("all hang", || m.fs.hanging.load(Ordering::SeqCst) == SLOW);
                let fast = scope.spawn(|| {
                    pin(0);
                    for _ in 0..1000 {
                        assert_eq!(fs::metadata(m.at("good")).unwrap().len(), 1);
                    }
                });
                fast.join().unwrap();
                assert_eq!(m.fs.hanging.load(Ordering::SeqCst), SLOW);
                m.fs.release();
                for reader in slow {
                    assert_eq!(reader.join().unwrap(), b"x");
                }
            });
        }
    }
}

#[test]
fn with_may_hang_no_request_runs_on_a_queue_thread() {
    testkit::own_mounts();
    if !ring_is_on() {
        return;
    }
    let m = Mounted::new(Memory::new(), |options| {
        options.transport = Transport::Ring;
        options.may_hang = true;
    });
    m.fs.add_file(b"later", b"text");
    assert_eq!(fs::read(m.at("later")).unwrap(), b"text");
    assert_eq!(m.fs.refused.load(Ordering::Relaxed), 0);
    let counters = m.session.counters();
    assert_eq!(counters.offloads, counters.by_ring());
}

#[test]
fn backing_files_bypass_the_server() {
    testkit::own_mounts();
    for transport in [Transport::Ring, Transport::Device] {
        if transport == Transport::Ring && !ring_is_on() {
            continue;
        }
        let dir = common::temporary_dir();
        let below = dir.join("below");
        fs::write(&below, b"from below").unwrap();
        let file = rustix::fs::open(&below, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        let m = Mounted::new(Memory::new().with_backing(file), |options| options.transport = transport);
        m.fs.add_file(b"backed", b"never seen");
        assert!(m.session.agreed().unwrap().has(flags::PASSTHROUGH));
        {
            let mut a = OpenOptions::new().read(true).write(true).open(m.at("backed")).unwrap();
            let mut text = String::new();
            a.read_to_string(&mut text).unwrap();
            assert_eq!(text, "from below");
            a.seek(SeekFrom::Start(5)).unwrap();
            a.write_all(b"above").unwrap();
            let mut b = File::open(m.at("backed")).unwrap();
            text.clear();
            b.read_to_string(&mut text).unwrap();
            assert_eq!(text, "from above");
        }
        assert_eq!(fs::read(&below).unwrap(), b"from above");
        until("the registration is given back", || m.session.counters().backing_closes == 1);
        let counters = m.session.counters();
        assert_eq!((counters.total(Opcode::Read), counters.total(Opcode::Write)), (0, 0));
        assert_eq!((counters.passthrough_opens, counters.backing_opens), (2, 1));
        fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn older_kernels_are_supported() {
    testkit::own_mounts();
    let m = Mounted::new(Memory::new(), |options| options.max_minor = 38);
    let agreed = *m.session.agreed().unwrap();
    assert_eq!(agreed.minor, 38);
    assert!(!agreed.has(flags::PASSTHROUGH) && !agreed.has(flags::OVER_IO_URING) && agreed.has(flags::HAS_EXPIRE_ONLY));
    let file = rustix::fs::open("/dev/null", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    assert!(m.session.backing_open(std::os::fd::AsFd::as_fd(&file)).is_err());
    fs::write(m.at("f"), b"text").unwrap();
    assert_eq!(fs::read(m.at("f")).unwrap(), b"text");
    drop(m);
    let m = Mounted::new(Memory::new(), |options| {
        options.transport = Transport::Device;
        options.refuse = flags::MAX_PAGES | flags::INIT_EXT;
    });
    fs::write(m.at("f"), vec![7; 1 << 20]).unwrap();
    assert_eq!(fs::read(m.at("f")).unwrap(), vec![7; 1 << 20]);
    assert_eq!(m.session.agreed().unwrap().payload, 128 << 10);
}

#[test]
fn notifications_invalidate_the_kernels_caches() {
    on_each(|mount| {
        let mut memory = Memory::new();
        memory.valid = Duration::from_secs(3600);
        memory.init_config.negative_timeout = Duration::from_secs(3600);
        let node = memory.add_file(b"f", b"old text");
        let m = mount(memory);
        let notifier = m.session.notifier();
        let lookups = || m.session.counters().total(Opcode::Lookup);
        let path = m.at("f");
        let stat = || fs::metadata(&path).unwrap().len();

        stat();
        let known = lookups();
        stat();
        assert_eq!(lookups(), known);
        notifier.inval_entry(1, b"f").unwrap();
        stat();
        assert_eq!(lookups(), known + 1);
        notifier.expire_entry(1, b"f").unwrap();
        stat();
        assert_eq!(lookups(), known + 2);
        notifier.expire_entries([(1, &b"absent"[..]), (99, b"f"), (1, b"f")].into_iter()).unwrap();
        stat();
        assert_eq!(lookups(), known + 3);
        assert_eq!(notifier.expire_entries([(1, &b"absent"[..])].into_iter()), Err(Errno::NOENT));

        let getattrs = m.session.counters().total(Opcode::Getattr);
        notifier.inval_attributes(node).unwrap();
        stat();
        assert!(m.session.counters().total(Opcode::Getattr) + m.session.counters().total(Opcode::Statx) > getattrs);

        let mut file = File::open(&path).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "old text");
        notifier.store(node, 0, b"new").unwrap();
        file.rewind().unwrap();
        text.clear();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "new text");
        let number = notifier.retrieve(node, 0, 8).unwrap();
        until("the data is there", || !m.fs.retrieved.lock().unwrap().is_empty());
        assert_eq!(*m.fs.retrieved.lock().unwrap(), [(number, 0, b"new text".to_vec())]);
        notifier.inval_inode(node, 0, 0).unwrap();
        file.rewind().unwrap();
        text.clear();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "old text");
        drop(file);

        assert!(fs::metadata(m.at("later-there")).is_err());
        m.fs.add_file(b"later-there", b"");
        assert!(fs::metadata(m.at("later-there")).is_err(), "a negative entry is remembered");
        notifier.inval_entry(1, b"later-there").unwrap();
        assert!(fs::metadata(m.at("later-there")).is_ok());

        assert_eq!(notifier.inval_entry(1, b"unknown"), Err(Errno::NOENT));
        assert_eq!(notifier.inval_attributes(4711), Err(Errno::NOENT));
        assert_eq!(notifier.delete(1, node, b"unknown"), Err(Errno::NOENT));
        notifier.delete(1, node, b"f").unwrap();
        assert!(matches!(notifier.prune(&[node]), Ok(()) | Err(Errno::INVAL)));
        assert!(matches!(notifier.resend(), Ok(()) | Err(Errno::INVAL)));
        notifier.poll_wakeup(1).unwrap();
    });
}

#[test]
fn removed_files_are_forgotten() {
    on_each(|mount| {
        let m = mount(Memory::new());
        for round in 0..10 {
            for i in 0..200 {
                File::create(m.at(&format!("{round}-{i}"))).unwrap();
            }
            for i in 0..200 {
                fs::remove_file(m.at(&format!("{round}-{i}"))).unwrap();
            }
        }
        until("all are forgotten", || m.session.counters().forgotten >= 2000);
        assert_eq!(m.fs.forgotten.load(Ordering::SeqCst), m.session.counters().forgotten);
        if m.session.ring_is_up() {
            let counters = m.session.counters();
            let wakeups = counters.total(Opcode::Forget) + counters.total(Opcode::BatchForget);
            assert!(wakeups < 1000, "{wakeups} wake-ups for 2000 files");
        }
    });
}

#[test]
fn mount_errors_name_the_step_and_reason() {
    testkit::own_mounts();
    let fs = || Arc::new(Memory::new()) as Arc<dyn fuse::Filesystem>;
    let missing = Session::mount(&MountOptions::new("/no/such/place"), fs()).unwrap_err();
    assert!(missing.to_string().contains("/no/such/place"), "{missing}");
    let dir = common::temporary_dir();
    let options = MountOptions { transport: Transport::Ring, refuse: flags::OVER_IO_URING, ..MountOptions::new(&dir) };
    let refused = Session::mount(&options, fs()).unwrap_err();
    assert!(refused.to_string().contains("io_uring"), "{refused}");
    let options = MountOptions { max_minor: 30, ..MountOptions::new(&dir) };
    let old = Session::mount(&options, fs()).unwrap_err();
    assert!(old.to_string().contains("7.30"), "{old}");
    let options = MountOptions { max_read: Some(0), subtype: String::new(), ..MountOptions::new(&dir) };
    if let Ok(session) = Session::mount(&options, fs()) {
        session.stop().unwrap();
        session.wait();
    }
    fs::remove_dir(&dir).unwrap();
}

#[test]
fn mount_options_appear_in_the_mount_table() {
    testkit::own_mounts();
    let m = Mounted::new(Memory::new(), |options| {
        options.source = b"rw=/a:ro=/b c".to_vec();
        options.subtype = "example".to_owned();
        options.flags.nosuid = true;
        options.flags.nodev = true;
        options.flags.noexec = true;
        options.flags.noatime = true;
    });
    let table = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    let line = table.lines().find(|l| l.contains(m.path.to_str().unwrap())).unwrap();
    let mut fields = line.split(' ');
    assert_eq!(fields.next(), Some("rw=/a:ro=/b\\040c"));
    assert_eq!(fields.nth(1), Some("fuse.example"));
    let options: HashSet<&str> = fields.next().unwrap().split(',').collect();
    for option in ["rw", "nosuid", "nodev", "noexec", "noatime", "default_permissions", "allow_other"] {
        assert!(options.contains(option), "{option} is not in {line}");
    }
}
