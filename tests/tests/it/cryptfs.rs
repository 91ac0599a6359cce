//! cryptfs with one key for all: what programs and administrators expect of a file system.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::fs::{AtFlags, CWD, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use strata_tests::crypt::{BOUND, FLAG_SETS, Volume, write_secret};
use strata_tests::process::sh;
use strata_tests::{Mounted, Rng, Sandbox, Spec, Transport, long, on_both_transports};

/// A mounted volume on ext4.
struct Encrypted {
    mounted: Mounted,
    volume: Volume,
    disk: PathBuf,
    sandbox: Sandbox,
}

/// Volumes as gocryptfs has them, and bound ones.
const KINDS: [&[&str]; 2] = [&[], &[BOUND]];

impl Encrypted {
    fn new(transport: Transport) -> Self {
        Self::with(transport, 128, &[])
    }

    /// Mounts a volume with the given flags of gocryptfs on a file system of `mib` MiB.
    fn with(transport: Transport, mib: u64, flags: &[&str]) -> Self {
        let sandbox = Sandbox::new();
        let disk = sandbox.ext4("disk", mib);
        let volume = Volume::new(&disk.join("volume"), flags);
        let mounted = Mounted::new(volume.spec(transport), &sandbox.path("m"));
        Self { mounted, volume, disk, sandbox }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounted.path(name)
    }

    /// Unmounts the volume and has it checked.
    fn check(mut self) {
        self.mounted.unmount();
        assert!(!self.volume.dir().join("gocryptfs.strata-journal").exists());
        let fsck = self.volume.fsck();
        assert!(fsck.status.success(), "{}", fsck.text);
    }
}

fn errno<T: core::fmt::Debug>(result: std::io::Result<T>) -> Option<Errno> {
    result.unwrap_err().raw_os_error().map(Errno::from_raw_os_error)
}

/// The first write creates the journal in the root, where users see nothing of it.
fn the_journal_moves_no_times_that_are_cached(transport: Transport) {
    let encrypted = Encrypted::new(transport);
    fs::write(encrypted.path("file"), "data").unwrap();
    let Encrypted { mut mounted, volume, sandbox, .. } = encrypted;
    mounted.unmount();
    let mounted = Mounted::new(volume.spec(transport), &sandbox.path("m"));
    let stat = |flags| rustix::fs::statx(CWD, mounted.path(""), flags, StatxFlags::BASIC_STATS).unwrap();
    let before = stat(AtFlags::empty());
    fs::write(mounted.path("file"), "more").unwrap();
    let [cached, now] = [AtFlags::empty(), AtFlags::STATX_FORCE_SYNC].map(stat);
    assert_eq!((cached.stx_ctime.tv_sec, cached.stx_ctime.tv_nsec), (now.stx_ctime.tv_sec, now.stx_ctime.tv_nsec));
    assert_eq!((now.stx_mtime.tv_sec, now.stx_mtime.tv_nsec), (before.stx_mtime.tv_sec, before.stx_mtime.tv_nsec));
    assert!(volume.dir().join("gocryptfs.strata-journal").exists());
}

/// Programs run, and mappings agree with reads and writes.
fn mapped_files(transport: Transport) {
    KINDS.into_iter().for_each(|flags| mapped_files_on(transport, flags));
}

fn mapped_files_on(transport: Transport, flags: &[&str]) {
    let encrypted = Encrypted::with(transport, 128, flags);
    let program = encrypted.path("true");
    fs::copy("/bin/true", &program).unwrap();
    sh("\"$1\"", &[&program]);
    let path = encrypted.path("mapped");
    let mut content = Rng::new(1).bytes(100_000);
    fs::write(&path, &content).unwrap();
    sh(
        "exec python3 -c 'import mmap, sys
f = open(sys.argv[1], \"r+b\")
m = mmap.mmap(f.fileno(), 0)
assert m[:] == open(sys.argv[1], \"rb\").read()
m[4090:4099] = b\"by memory\"
f.seek(70000)
f.write(b\"by writing\")
f.flush()
assert m[70000:70010] == b\"by writing\"
m.flush()
assert open(sys.argv[1], \"rb\").read()[4090:4099] == b\"by memory\"' \"$1\"",
        &[&path],
    );
    content[4090..4099].copy_from_slice(b"by memory");
    content[70_000..70_010].copy_from_slice(b"by writing");
    let Encrypted { mut mounted, .. } = encrypted;
    mounted.remount();
    assert!(fs::read(mounted.path("mapped")).unwrap() == content);
}

/// Direct I/O beside buffered I/O, at any offset.
fn direct_io(transport: Transport) {
    KINDS.into_iter().for_each(|flags| direct_io_on(transport, flags));
}

fn direct_io_on(transport: Transport, flags: &[&str]) {
    let encrypted = Encrypted::with(transport, 128, flags);
    let path = encrypted.path("direct");
    let direct = |path: &Path| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).custom_flags(i32::try_from(OFlags::DIRECT.bits()).unwrap());
        options.open(path).unwrap()
    };
    let mut rng = Rng::new(2);
    let mut expected = rng.bytes(300_000);
    let file = direct(&path);
    file.write_all_at(&expected, 0).unwrap();
    let buffered = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    for round in 0..200 {
        let at = rng.below(300_000);
        let len = usize::try_from(rng.pick(&[1, 4096, 8192, 5000, 131_072])).unwrap().min(300_000 - at);
        let bytes = rng.bytes(len);
        let [writer, reader] = if round % 2 == 0 { [&file, &buffered] } else { [&buffered, &file] };
        writer.write_all_at(&bytes, at as u64).unwrap();
        expected[at..at + len].copy_from_slice(&bytes);
        let mut got = vec![0; 300_000];
        reader.read_exact_at(&mut got, 0).unwrap();
        assert!(got == expected, "round {round}: {len} bytes at {at}");
    }
    sh("dd if=\"$1\" of=\"$1.copy\" bs=4096 iflag=direct oflag=direct status=none; cmp \"$1\" \"$1.copy\"", &[&path]);
    drop((file, buffered));
    encrypted.check();
}

/// Several processes append to one file: no line is lost or broken.
fn appends_of_several_processes(transport: Transport) {
    KINDS.into_iter().for_each(|flags| appends_of_several_processes_on(transport, flags));
}

fn appends_of_several_processes_on(transport: Transport, flags: &[&str]) {
    let encrypted = Encrypted::with(transport, 128, flags);
    let path = encrypted.path("log");
    sh(
        "for who in 1 2 3 4; do
             (for n in {1..150}; do echo \"process $who, line $n, and some more of it\" >>\"$1\"; done) &
             (exec >>\"$1\"; for n in {1..150}; do echo \"process $who, kept open, line $n\"; done) &
         done; wait",
        &[&path],
    );
    let text = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<_> = text.lines().collect();
    for who in 1..=4 {
        for n in 1..=150 {
            for line in
                [format!("process {who}, line {n}, and some more of it"), format!("process {who}, kept open, line {n}")]
            {
                assert_eq!(lines.iter().filter(|found| **found == line).count(), 1, "{line}");
            }
        }
    }
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 1200);
    encrypted.check();
}

/// Readers see each block as one write left it, while writers change it and the size of the file.
fn readers_and_writers(transport: Transport) {
    KINDS.into_iter().for_each(|flags| readers_and_writers_on(transport, flags));
}

fn readers_and_writers_on(transport: Transport, flags: &[&str]) {
    const BLOCK: usize = 4096;
    const BLOCKS: u64 = 8;
    let encrypted = Encrypted::with(transport, 128, flags);
    let path = encrypted.path("shared");
    fs::write(&path, vec![1; BLOCK * 8]).unwrap();
    let end = AtomicBool::new(false);
    let open = |write: bool| {
        let mut options = OpenOptions::new();
        // Past the kernel's cache, so that each access is one of the server's.
        options.read(true).write(write).custom_flags(i32::try_from(OFlags::DIRECT.bits()).unwrap());
        options.open(&path).unwrap()
    };
    std::thread::scope(|scope| {
        for who in 1..=3_u8 {
            let (file, end) = (open(true), &end);
            scope.spawn(move || {
                let mut rng = Rng::new(u64::from(who));
                for round in 0..if long() { 20_000_u64 } else { 1000 } {
                    let byte = who * 60 + u8::try_from(round % 60).unwrap();
                    let first = rng.below(BLOCKS);
                    let count = 1 + rng.below(BLOCKS - first);
                    let bytes = vec![byte; BLOCK * usize::try_from(count).unwrap()];
                    file.write_all_at(&bytes, first * BLOCK as u64).unwrap();
                    if rng.one_in(50) {
                        file.set_len(BLOCK as u64 * (1 + rng.below(BLOCKS))).unwrap();
                    }
                }
                end.store(true, Ordering::Relaxed);
            });
        }
        for _ in 0..2 {
            let (file, end) = (open(false), &end);
            scope.spawn(move || {
                while !end.load(Ordering::Relaxed) {
                    for number in 0..BLOCKS {
                        let mut block = [0; BLOCK];
                        let len = file.read_at(&mut block, number * BLOCK as u64).unwrap();
                        assert!(block[..len].iter().all(|byte| *byte == block[0]), "block {number} is mixed");
                    }
                }
            });
        }
    });
    encrypted.check();
}

/// Several threads write different bytes of one block, through the kernel's cache.
fn writers_of_one_block(transport: Transport) {
    KINDS.into_iter().for_each(|flags| writers_of_one_block_on(transport, flags));
}

fn writers_of_one_block_on(transport: Transport, flags: &[&str]) {
    let encrypted = Encrypted::with(transport, 128, flags);
    let path = encrypted.path("block");
    fs::write(&path, [0; 4096]).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..8_u64 {
            let path = &path;
            scope.spawn(move || {
                let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
                for round in 0..if long() { 20_000_u64 } else { 800 } {
                    let bytes = [u8::try_from(round % 251).unwrap(); 100];
                    file.write_all_at(&bytes, writer * 500).unwrap();
                    let mut back = [0; 100];
                    file.read_exact_at(&mut back, writer * 500).unwrap();
                    assert_eq!(back, bytes, "writer {writer}, round {round}");
                }
            });
        }
    });
    encrypted.check();
}

/// On a full file system changes fail, what was there stays, and all works once space is free.
fn a_full_file_system(transport: Transport) {
    KINDS.into_iter().for_each(|flags| a_full_file_system_on(transport, flags));
}

fn a_full_file_system_on(transport: Transport, flags: &[&str]) {
    let encrypted = Encrypted::with(transport, 16, flags);
    let mut kept = Rng::new(3).bytes(1 << 20);
    fs::write(encrypted.path("kept"), &kept).unwrap();
    fs::create_dir(encrypted.path("dir")).unwrap();
    // Small files take the last blocks.
    let fill = |name: &str, piece: usize| {
        let file = File::create(encrypted.path(name)).unwrap();
        let (mut at, block) = (0, vec![7; piece]);
        loop {
            match file.write_at(&block, at) {
                Ok(n) => at += n as u64,
                Err(error) => break (at, error.raw_os_error()),
            }
        }
    };
    let (len, error) = fill("filler", 100_000);
    assert_eq!(error, Some(Errno::NOSPC.raw_os_error()));
    let (_, error) = fill("filler2", 4096);
    assert_eq!(error, Some(Errno::NOSPC.raw_os_error()));
    // Files are extended and created until that fails, too.
    let mut failed = 0;
    let mut append = OpenOptions::new().append(true).open(encrypted.path("kept")).unwrap();
    for i in 0..300 {
        let bytes = [7; 777];
        match append.write(&bytes) {
            Ok(n) => kept.extend_from_slice(&bytes[..n]),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
                failed += 1;
            }
        }
        let long = encrypted.path("dir").join(format!("{i}-{}", "x".repeat(200)));
        for result in [fs::write(&long, "text"), symlink("x".repeat(500), encrypted.path(&format!("l{i}")))] {
            if let Err(error) = result {
                assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
                failed += 1;
            }
        }
    }
    assert!(failed > 10, "the file system is too large for this test");
    drop(append);
    let check = |mounted: &Mounted| {
        assert!(fs::read(mounted.path("kept")).unwrap() == kept);
        assert!(
            fs::read(mounted.path("filler")).unwrap()[..usize::try_from(len).unwrap()].iter().all(|byte| *byte == 7)
        );
        // Whatever exists can be read.
        sh(
            "find \"$1\" -type f -exec cat {} + | wc -c; find \"$1\" -type l -exec readlink -v {} + | wc -c",
            &[mounted.dir()],
        );
    };
    check(&encrypted.mounted);
    let Encrypted { mut mounted, volume, disk, sandbox } = encrypted;
    mounted.remount();
    check(&mounted);
    fs::remove_file(mounted.path("filler")).unwrap();
    fs::write(mounted.path("new"), &kept).unwrap();
    assert!(fs::read(mounted.path("new")).unwrap() == kept);
    sh("rm -rf \"$1\"/dir \"$1\"/l*", &[mounted.dir()]);
    Encrypted { mounted, volume, disk, sandbox }.check();
}

/// A volume on a read-only file system can be read, and nothing else.
fn a_read_only_volume(transport: Transport) {
    let mut encrypted = Encrypted::new(transport);
    fs::write(encrypted.path("file"), "text").unwrap();
    fs::create_dir(encrypted.path("dir")).unwrap();
    symlink("target", encrypted.path("link")).unwrap();
    encrypted.mounted.unmount();
    encrypted.sandbox.read_only(&encrypted.disk);
    encrypted.mounted.mount_again();
    assert_eq!(fs::read(encrypted.path("file")).unwrap(), b"text");
    assert_eq!(fs::read_link(encrypted.path("link")).unwrap(), Path::new("target"));
    assert_eq!(fs::read_dir(encrypted.mounted.dir()).unwrap().count(), 3);
    let refused = [
        errno(fs::write(encrypted.path("file"), "other")),
        errno(fs::create_dir(encrypted.path("new"))),
        errno(fs::remove_dir(encrypted.path("dir"))),
        errno(fs::rename(encrypted.path("file"), encrypted.path("new"))),
    ];
    assert_eq!(refused, [Some(Errno::ROFS); 4]);
}

/// Two servers would change the same blocks: the second one is refused.
fn a_second_server_is_refused(transport: Transport) {
    let mut encrypted = Encrypted::new(transport);
    let volume = &encrypted.volume;
    let union = Spec::stack(&format!("wrapfs / {} / ", volume.layer()), volume.dir(), transport);
    for spec in [volume.spec(transport), volume.with_sessions(transport), union] {
        let output = Mounted::try_new(spec, &encrypted.sandbox.path("second"), "").unwrap_err();
        assert!(output.contains("in use") || output.contains("already"), "{output}");
    }
    fs::write(encrypted.path("file"), "text").unwrap();
    encrypted.mounted.unmount();
    let second = Mounted::new(encrypted.volume.with_sessions(transport), &encrypted.sandbox.path("second"));
    drop(second);
    // A killed server does not block the next one.
    encrypted.mounted.mount_again();
    encrypted.mounted.crash();
    encrypted.mounted.mount_again();
    assert_eq!(fs::read(encrypted.path("file")).unwrap(), b"text");
}

/// Files keep their holes, and report them.
fn sparse_files(transport: Transport) {
    for flags in [&[][..], &["-xchacha"], &[BOUND], &[BOUND, "--xchacha"], &[BOUND, "--aes-siv"]] {
        let encrypted = Encrypted::with(transport, 64, flags);
        let sparse = File::create_new(encrypted.path("sparse")).unwrap();
        sparse.write_all_at(b"start", 0).unwrap();
        sparse.write_all_at(b"far away", 50 << 20).unwrap();
        sparse.set_len(100 << 20).unwrap();
        let seek = |from| rustix::fs::seek(&sparse, from);
        let hole = seek(SeekFrom::Hole(0)).unwrap();
        let data = seek(SeekFrom::Data(hole)).unwrap();
        assert_eq!((hole, data), (4096, 50 << 20));
        assert_eq!(seek(SeekFrom::Hole(data)).unwrap(), (50 << 20) + 4096);
        assert_eq!(seek(SeekFrom::Data((50 << 20) + 4096)), Err(Errno::NXIO));
        sh("cp --sparse=always \"$1/sparse\" \"$1/copy\"; cmp \"$1/sparse\" \"$1/copy\"", &[encrypted.mounted.dir()]);
        for name in ["sparse", "copy"] {
            let blocks = fs::metadata(encrypted.path(name)).unwrap().blocks();
            assert!(blocks < 100, "{name}: {blocks}");
        }
        let mut zeros = vec![1; 1 << 20];
        sparse.read_exact_at(&mut zeros, 10 << 20).unwrap();
        assert!(zeros.iter().all(|byte| *byte == 0));
        drop(sparse);
        encrypted.check();
    }
}

/// An open starts to read the file from the disk, before the program asks for its data.
fn an_open_begins_to_read(transport: Transport) {
    let encrypted = Encrypted::with(transport, 64, &["-plaintextnames"]);
    fs::write(encrypted.path("file"), vec![1; 20_000]).unwrap();
    let stored = File::open(encrypted.volume.dir().join("file")).unwrap();
    stored.sync_all().unwrap();
    let cached = || {
        let output = sh("fincore --bytes --noheadings --output PAGES \"$1\"", &[&encrypted.volume.dir().join("file")]);
        output.trim().parse::<u32>().unwrap()
    };
    let patience = Instant::now();
    while cached() > 0 {
        assert!(patience.elapsed() < Duration::from_secs(60), "pages are not dropped");
        rustix::fs::fadvise(&stored, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
    let file = File::open(encrypted.path("file")).unwrap();
    let patience = Instant::now();
    while cached() < 5 {
        assert!(patience.elapsed() < Duration::from_secs(60), "{} pages", cached());
    }
    drop((file, stored));
    encrypted.check();
}

/// The longest names and targets, and names that the volume uses itself.
fn names_and_targets(transport: Transport) {
    for flags in FLAG_SETS {
        // With blocks of 4 KiB, so that the longest links fit.
        let encrypted = Encrypted::with(transport, 600, flags);
        let plain = flags.contains(&"-plaintextnames");
        for len in [1, 15, 16, 100, 175, 176, 255] {
            let name = "n".repeat(len);
            fs::write(encrypted.path(&name), name.as_bytes()).unwrap();
            assert_eq!(fs::read(encrypted.path(&name)).unwrap(), name.as_bytes());
        }
        assert_eq!(errno(File::create(encrypted.path(&"n".repeat(256)))), Some(Errno::NAMETOOLONG));
        let longest = match flags.first() {
            Some(&"-plaintextnames") => 4095,
            Some(&"-xchacha") => 3031,
            Some(&"-raw64=false") => 3037,
            _ => 3039,
        };
        let target = "t".repeat(longest);
        symlink(&target, encrypted.path("link")).unwrap();
        assert_eq!(fs::read_link(encrypted.path("link")).unwrap(), Path::new(&target));
        assert_eq!(fs::symlink_metadata(encrypted.path("link")).unwrap().len(), longest as u64);
        let refused = errno(symlink("t".repeat(longest + 1), encrypted.path("link2")));
        assert_eq!(refused, Some(Errno::NAMETOOLONG));
        let own = ["gocryptfs.conf", "gocryptfs.conf.bob", "gocryptfs.diriv", "gocryptfs.longname.x.name"];
        for name in own {
            let created = File::create(encrypted.path(name));
            if plain && name.starts_with("gocryptfs.conf") {
                assert!(created.is_err(), "{name}");
                assert_eq!(errno(fs::metadata(encrypted.path(name))), Some(Errno::NOENT), "{name}");
            } else {
                created.unwrap();
                fs::write(encrypted.path(name), name).unwrap();
                assert_eq!(fs::read(encrypted.path(name)).unwrap(), name.as_bytes());
                fs::remove_file(encrypted.path(name)).unwrap();
            }
        }
        assert_eq!(fs::read_dir(encrypted.mounted.dir()).unwrap().count(), 8);
        sh("rm -r \"$1\"/*; test -z \"$(ls -A \"$1\")\"", &[encrypted.mounted.dir()]);
        let Encrypted { mut mounted, volume, disk, sandbox } = encrypted;
        mounted.unmount();
        // Nothing but the volume's own files remains.
        let has_iv = volume.dir().join("gocryptfs.diriv").exists();
        assert_eq!(fs::read_dir(volume.dir()).unwrap().count(), 1 + usize::from(has_iv), "{flags:?}");
        Encrypted { mounted, volume, disk, sandbox }.check();
    }
}

/// A mount that can't work fails at once and says why.
fn mounts_that_fail(transport: Transport) {
    let sandbox = Sandbox::with_time(Duration::from_secs(60));
    let volume = Volume::new(&sandbox.path("volume"), &[]);
    let (wrong, empty) = (sandbox.path("wrong"), sandbox.path("empty-file"));
    write_secret(&wrong, "wrong");
    write_secret(&empty, "");
    let config = volume.dir().join("gocryptfs.conf");
    let good = fs::read_to_string(&config).unwrap();
    let fails = |options: &str, lower: &Path| {
        let spec = Spec::stack(&format!("cryptfs,{options} / "), lower, transport);
        Mounted::try_new(spec, &sandbox.path("m"), "").unwrap_err()
    };
    let passfile = format!("key=mount,passfile={}", volume.passfile().display());
    let refuses = |options: &str, lower: &Path, words: &[&str]| {
        let output = fails(options, lower);
        for word in words {
            assert!(output.contains(word), "{options}: {word}: {output}");
        }
        assert!(!output.contains("panicked"), "{output}");
    };
    refuses(&format!("key=mount,passfile={}", wrong.display()), volume.dir(), &["wrong passphrase"]);
    refuses(&format!("key=mount,passfile={}", empty.display()), volume.dir(), &["empty"]);
    refuses("key=mount,passfile=/mnt/missing", volume.dir(), &["/mnt/missing", "No such file"]);
    refuses("key=mount,extpass=false", volume.dir(), &["extpass=false", "failed"]);
    refuses(&format!("{passfile},extpass=false"), volume.dir(), &["passfile=", "extpass=", "one"]);
    refuses(&format!("{passfile},keyname=bob"), volume.dir(), &["bob", "no such key"]);
    refuses(&format!("{passfile},idle=3"), volume.dir(), &["idle="]);
    refuses("key=nobody", volume.dir(), &["key=nobody"]);
    refuses("passfile=/mnt/wrong", volume.dir(), &["passfile=", "key=mount"]);
    refuses(&passfile, &sandbox.dir("no-volume"), &["gocryptfs.conf", "cryptctl init"]);
    refuses("key=session", &sandbox.dir("no-volume"), &["gocryptfs.conf", "cryptctl init"]);
    let configs = [
        (String::new(), "gocryptfs.conf"),
        ("{}".to_owned(), "gocryptfs.conf"),
        (good[..good.len() / 2].to_owned(), "gocryptfs.conf"),
        (good.replace("\"Version\": 2", "\"Version\": 3"), "3"),
        (good.replace("\"HKDF\"", "\"Quantum\""), "Quantum"),
        (good.replace("\"N\": 1024", "\"N\": 512"), "N"),
        (good.replace("\"N\": 1024", "\"N\": 1099511627776"), "N"),
        (good.replace("\"EMENames\",", "\"EMENames\", \"FIDO2\","), "FIDO2"),
        ("x".repeat(100_000), "gocryptfs.conf"),
    ];
    for (text, word) in configs {
        fs::remove_file(&config).unwrap();
        fs::write(&config, &text).unwrap();
        refuses(&passfile, volume.dir(), &[word]);
    }
    fs::remove_file(&config).unwrap();
    symlink("/etc/passwd", &config).unwrap();
    refuses(&passfile, volume.dir(), &["gocryptfs.conf"]);
    fs::remove_file(&config).unwrap();
    fs::write(&config, &good).unwrap();
    let mounted = Mounted::new(volume.spec(transport), &sandbox.path("m"));
    fs::write(mounted.path("file"), "text").unwrap();
}

/// The sources of the passphrase of a mount.
fn sources_of_the_passphrase(transport: Transport) {
    let sandbox = Sandbox::new();
    let volume = Volume::new(&sandbox.path("volume"), &[]);
    let config = sandbox.path("outside.conf");
    let command = format!("cat {}", volume.passfile().display());
    let mount = |options: &str| {
        let spec = Spec::stack(&format!("cryptfs,key=mount,{options} / "), volume.dir(), transport);
        Mounted::new(spec, &sandbox.path("m"))
    };
    let passfile = format!("passfile={}", volume.passfile().display());
    for options in [&passfile, &format!("{passfile},keyname=default"), &format!("extpass={command}")] {
        fs::write(mount(options).path("file"), options).unwrap();
        assert_eq!(fs::read_to_string(mount(options).path("file")).unwrap(), *options);
    }
    fs::rename(volume.dir().join("gocryptfs.conf"), &config).unwrap();
    let mounted = mount(&format!("{passfile},config={}", config.display()));
    assert!(fs::read_to_string(mounted.path("file")).unwrap().starts_with("extpass="));
}

on_both_transports!(
    the_journal_moves_no_times_that_are_cached,
    mapped_files,
    direct_io,
    appends_of_several_processes,
    readers_and_writers,
    writers_of_one_block,
    a_full_file_system,
    a_read_only_volume,
    a_second_server_is_refused,
    sparse_files,
    an_open_begins_to_read,
    names_and_targets,
    mounts_that_fail,
    sources_of_the_passphrase,
);
