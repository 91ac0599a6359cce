//! Damaged and forged volumes: each byte altered, one at a time. What was altered is refused or
//! hidden, and never becomes other plain data; everything else stays readable.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use strata_tests::crypt::Volume;
use strata_tests::{Mounted, Rng, Sandbox, Transport};
use testkit::names;

/// Bytes of the header of a file.
const HEADER: u64 = 18;
/// Plain bytes of a block.
const PLAIN: usize = 4096;

/// A mounted volume with `file`, `other` and the directory `dir`.
struct Damaged {
    mounted: Mounted,
    volume: Volume,
    content: Vec<u8>,
    _sandbox: Sandbox,
}

impl Damaged {
    fn new(flags: &[&str]) -> Self {
        let sandbox = Sandbox::with_time(Duration::from_secs(300));
        let volume = Volume::new(&sandbox.ext4("disk", 64).join("volume"), flags);
        // The volume is changed below the mount.
        let mounted = Mounted::with_options(volume.spec(Transport::Ring), &sandbox.path("m"), "cache=0");
        let content = Rng::new(1).bytes(PLAIN * 3 + 1000);
        for name in ["file", "other"] {
            fs::write(mounted.path(name), &content).unwrap();
        }
        Self { mounted, volume, content, _sandbox: sandbox }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounted.path(name)
    }

    /// Runs `make`, which creates one entry, and returns its path below.
    fn below(&self, make: impl FnOnce()) -> PathBuf {
        let list = || -> Vec<PathBuf> {
            let entries = fs::read_dir(self.volume.dir()).unwrap().map(|entry| entry.unwrap().path());
            entries.filter(|path| !path.as_os_str().as_bytes().ends_with(b".name")).collect()
        };
        let before = list();
        make();
        let mut new: Vec<_> = list().into_iter().filter(|path| !before.contains(path)).collect();
        assert_eq!(new.len(), 1, "{new:?}");
        new.pop().unwrap()
    }

    fn check_the_other_file(&self) {
        assert!(fs::read(self.path("other")).unwrap() == self.content);
    }
}

/// Opens a file past the kernel's cache.
fn direct(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(i32::try_from(OFlags::DIRECT.bits()).unwrap()).open(path).unwrap()
}

/// Reads the plain bytes of a block; `None` if it can't be read.
fn read_block(file: &File, number: usize) -> Option<Vec<u8>> {
    let mut block = vec![0; PLAIN];
    match file.read_at(&mut block, (number * PLAIN) as u64) {
        Ok(len) => {
            block.truncate(len);
            Some(block)
        }
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
            None
        }
    }
}

/// XORs one byte of a file.
fn flip(file: &File, at: u64, with: u8) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ with], at).unwrap();
}

fn writable(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Runs `check` until it returns true: what the server knows of a file that was open ends with the
/// kernel's last message about it.
fn soon(check: impl Fn() -> bool) -> bool {
    testkit::holds_within(Duration::from_secs(5), check)
}

fn every_byte_of_a_file(flags: &[&str]) {
    let damaged = Damaged::new(flags);
    let content = damaged.content.clone();
    let lower = damaged.below(|| fs::write(damaged.path("victim"), &content).unwrap());
    let below = writable(&lower);
    let block = |number: usize| &content[number * PLAIN..content.len().min((number + 1) * PLAIN)];
    let overhead = if flags == ["-xchacha"] { 40 } else { 32 };
    let stored = (PLAIN + overhead) as u64;
    assert_eq!(below.metadata().unwrap().len(), HEADER + 3 * stored + 1000 + overhead as u64);
    // The header: no block can be read.
    for at in 0..HEADER {
        for with in [1, 0x80] {
            flip(&below, at, with);
            assert!(soon(|| read_block(&direct(&damaged.path("victim")), 0).is_none()), "header, byte {at}");
            flip(&below, at, with);
            assert!(soon(|| read_block(&direct(&damaged.path("victim")), 1).as_deref() == Some(block(1))));
        }
    }
    // A block, and the last one, which is shorter: the others can be read.
    let file = direct(&damaged.path("victim"));
    for (number, len) in [(1, stored), (3, (1000 + overhead) as u64)] {
        for at in 0..len {
            let offset = HEADER + number as u64 * stored + at;
            flip(&below, offset, 1 << (at % 8));
            assert_eq!(read_block(&file, number), None, "block {number}, byte {at}");
            if at % 97 == 0 {
                for intact in (0..4).filter(|intact| *intact != number) {
                    assert_eq!(read_block(&file, intact).as_deref(), Some(block(intact)));
                }
                damaged.check_the_other_file();
            }
            flip(&below, offset, 1 << (at % 8));
        }
        assert_eq!(read_block(&file, number).as_deref(), Some(block(number)));
    }
    // A read of all fails, rather than ending early.
    flip(&below, HEADER + 2 * stored, 1);
    assert_eq!(fs::read(damaged.path("victim")).unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    flip(&below, HEADER + 2 * stored, 1);
    // Blocks that change places, and those of another file.
    let take = |file: &File, number: u64| {
        let mut bytes = vec![0; usize::try_from(stored).unwrap()];
        file.read_exact_at(&mut bytes, HEADER + number * stored).unwrap();
        bytes
    };
    let twin = damaged.below(|| fs::write(damaged.path("twin"), &content).unwrap());
    let [first, second, foreign] = [take(&below, 0), take(&below, 1), take(&File::open(&twin).unwrap(), 0)];
    for (forged, number) in [(&second, 0), (&first, 1), (&foreign, 0)] {
        below.write_all_at(forged, HEADER + number as u64 * stored).unwrap();
        assert_eq!(read_block(&file, number), None);
        below.write_all_at(if number == 0 { &first } else { &second }, HEADER + number as u64 * stored).unwrap();
    }
    // Neither a write of a part of a damaged block nor a truncation within it makes it valid.
    flip(&below, HEADER + stored + 100, 1);
    let write = writable(&damaged.path("victim"));
    assert_eq!(write.write_at(b"part", 5000).unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    assert_eq!(write.set_len(5000).unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    assert_eq!(read_block(&file, 1), None);
    assert_eq!(read_block(&file, 2).as_deref(), Some(block(2)));
    // A whole block replaces it.
    write.write_all_at(block(1), PLAIN as u64).unwrap();
    assert_eq!(read_block(&file, 1).as_deref(), Some(block(1)));
    damaged.check_the_other_file();
}

#[test]
fn every_byte_of_a_file_with_aes_gcm() {
    every_byte_of_a_file(&[]);
}

#[test]
fn every_byte_of_a_file_with_aes_siv() {
    every_byte_of_a_file(&["-aessiv"]);
}

#[test]
fn every_byte_of_a_file_with_xchacha() {
    every_byte_of_a_file(&["-xchacha"]);
}

/// A file that was cut off anywhere has less data, or can't be read at its end.
#[test]
fn every_length_of_a_file() {
    let damaged = Damaged::new(&[]);
    let content = &damaged.content[..PLAIN + 10];
    let lower = damaged.below(|| fs::write(damaged.path("victim"), content).unwrap());
    let stored = fs::read(&lower).unwrap();
    for len in (0..stored.len()).filter(|len| *len < 60 || len % 61 == 0 || *len > stored.len() - 60) {
        fs::write(&lower, &stored[..len]).unwrap();
        // The kernel learns the new size with the attributes.
        let got = || fs::read(damaged.path("victim"));
        let right = soon(|| match got() {
            Ok(bytes) => bytes.len() < content.len() && content.starts_with(&bytes) && matches!(bytes.len(), 0 | PLAIN),
            Err(error) => error.raw_os_error() == Some(Errno::IO.raw_os_error()),
        });
        assert!(right, "{len} bytes: {:?}", got().map(|bytes| bytes.len()));
    }
    fs::write(&lower, &stored).unwrap();
    assert!(soon(|| fs::read(damaged.path("victim")).is_ok_and(|bytes| bytes == content)));
    damaged.check_the_other_file();
}

/// A nonce, an id and a header of zeros are refused; a whole block of zeros is a hole, by design of
/// the format.
#[test]
fn zeros() {
    let damaged = Damaged::new(&[]);
    let content = &damaged.content[..PLAIN + 10];
    let lower = damaged.below(|| fs::write(damaged.path("victim"), content).unwrap());
    let stored = fs::read(&lower).unwrap();
    for (range, second_block) in [(0..18, false), (2..18, false), (18..34, true), (18 + 4128..18 + 4128 + 16, true)] {
        let mut forged = stored.clone();
        forged[range.clone()].fill(0);
        fs::write(&lower, &forged).unwrap();
        let refused = soon(|| fs::read(damaged.path("victim")).is_err());
        assert!(refused, "{range:?}, {second_block}");
    }
    let mut hole = stored.clone();
    hole[18..18 + 4128].fill(0);
    fs::write(&lower, &hole).unwrap();
    let is_hole = soon(|| {
        fs::read(damaged.path("victim"))
            .is_ok_and(|bytes| bytes[..PLAIN].iter().all(|byte| *byte == 0) && bytes[PLAIN..] == content[PLAIN..])
    });
    assert!(is_hole);
}

/// Names whose encrypted form was altered are hidden, or become another random name: the format
/// does not authenticate them. The entry is never found by its old name.
#[test]
fn every_character_of_a_name() {
    let damaged = Damaged::new(&[]);
    let lower = damaged.below(|| fs::write(damaged.path("victim"), "text").unwrap());
    let name = lower.file_name().unwrap().as_bytes().to_vec();
    let mut shown = 0;
    let mut forge = |altered: &[u8]| {
        let forged = lower.with_file_name(OsStr::from_bytes(altered));
        fs::rename(&lower, &forged).unwrap();
        assert_eq!(fs::metadata(damaged.path("victim")).unwrap_err().raw_os_error(), Some(Errno::NOENT.raw_os_error()));
        let mut seen = names(damaged.mounted.dir());
        seen.retain(|name| name != "file" && name != "other");
        assert!(seen.len() <= 1 && !seen.contains(&"victim".into()), "{seen:?}");
        shown += seen.len();
        damaged.check_the_other_file();
        fs::rename(&forged, &lower).unwrap();
        assert!(fs::read(damaged.path("victim")).is_ok());
    };
    for at in 0..name.len() {
        for other in [b'A', b'9', b'-', b'_', b'+', b'=', b'\n', b'.', 0xff] {
            let mut altered = name.clone();
            if altered[at] != other {
                altered[at] = other;
                forge(&altered);
            }
        }
    }
    // The same bytes in another notation: padding, bits after the last byte, line ends.
    for end in ["=", "==", "\n", "\r\n", "A"] {
        forge(&[&name, end.as_bytes()].concat());
    }
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let last = alphabet.iter().position(|byte| byte == name.last().unwrap()).unwrap();
    let mut before = 0;
    for spare in 1..16 {
        let mut altered = name.clone();
        *altered.last_mut().unwrap() = alphabet[last & !15 | (last + spare) & 15];
        assert_ne!(altered, name);
        forge(&altered);
        before += 1;
    }
    assert_eq!(before, 15);
    // One in 256 of about two hundred.
    assert!(shown < 12, "{shown} altered names are shown");
    // A second entry that decodes to the same name does not exist; both beside each other neither.
    let mut twin = name.clone();
    *twin.last_mut().unwrap() = alphabet[last & !15 | (last + 1) & 15];
    fs::copy(&lower, lower.with_file_name(OsStr::from_bytes(&twin))).unwrap();
    assert_eq!(names(damaged.mounted.dir()), ["file", "other", "victim"]);
}

/// The file with the encrypted form of a long name.
#[test]
fn every_byte_of_a_long_name() {
    let damaged = Damaged::new(&[]);
    let long = "long".repeat(60);
    let lower = damaged.below(|| fs::write(damaged.path(&long), "text").unwrap());
    let mut side = lower.clone().into_os_string();
    side.push(".name");
    let good = fs::read(&side).unwrap();
    let listed = || names(damaged.mounted.dir());
    // By a rename, since listings are cached for as long as the directory does not change.
    let replace = |bytes: &[u8]| {
        let aside = lower.with_file_name("gocryptfs.aside");
        fs::write(&aside, bytes).unwrap();
        fs::rename(&aside, &side).unwrap();
    };
    assert_eq!(listed().len(), 3);
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        replace(&bad);
        assert_eq!(listed(), ["file", "other"], "byte {at}");
        // Found by its own name, it is the right file.
        if let Ok(text) = fs::read_to_string(damaged.path(&long)) {
            assert_eq!(text, "text");
        }
    }
    for bad in [&b""[..], &good[..good.len() - 1], &[&good[..], b"\n"].concat(), &[b'A'; 400], &[0xff; 100_000]] {
        replace(bad);
        assert_eq!(listed(), ["file", "other"]);
    }
    damaged.check_the_other_file();
    replace(&good);
    assert_eq!(listed().len(), 3);
    assert_eq!(fs::read_to_string(damaged.path(&long)).unwrap(), "text");
    fs::remove_file(&side).unwrap();
    assert_eq!(listed(), ["file", "other"]);
}

/// The initialization vector of a directory: altered, its names are hidden.
#[test]
fn every_byte_of_an_initialization_vector() {
    let mut damaged = Damaged::new(&[]);
    let lower = damaged.below(|| fs::create_dir(damaged.path("dir")).unwrap());
    for i in 0..4 {
        fs::write(damaged.path(&format!("dir/entry{i}")), "text").unwrap();
    }
    let iv = lower.join("gocryptfs.diriv");
    let good = fs::read(&iv).unwrap();
    let copy = rustix::fs::getxattr(&lower, "user.strata.diriv", &mut [0; 100]);
    let replace = |bytes: &[u8]| {
        fs::remove_file(&iv).unwrap();
        fs::write(&iv, bytes).unwrap();
    };
    let mut shown = 0;
    for at in 0..16 {
        damaged.mounted.unmount();
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        replace(&bad);
        damaged.mounted.mount_again();
        if let Ok(entries) = fs::read_dir(damaged.path("dir")) {
            let seen: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
            // One in 256 names becomes another one.
            shown += seen.len();
            assert!(seen.iter().all(|name| !name.as_bytes().starts_with(b"entry")), "{seen:?}");
        }
        assert!(fs::read(damaged.path("dir/entry0")).is_err());
        damaged.check_the_other_file();
    }
    assert!(shown < 6, "{shown} names are shown");
    // Refused as such, and restored from the copy if there is one.
    for bad in [&[0; 16][..], b"", &good[..15], &[1; 17]] {
        damaged.mounted.unmount();
        replace(bad);
        damaged.mounted.mount_again();
        match fs::read(damaged.path("dir/entry0")) {
            Ok(text) => assert!(text == b"text" && copy.is_ok()),
            Err(error) => assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error())),
        }
        damaged.check_the_other_file();
    }
    damaged.mounted.unmount();
    replace(&good);
    damaged.mounted.mount_again();
    assert_eq!(names(&damaged.path("dir")).len(), 4);
    assert_eq!(fs::read(damaged.path("dir/entry0")).unwrap(), b"text");
}

/// Targets of links: altered ones can't be read.
#[test]
fn every_byte_of_a_link() {
    let damaged = Damaged::new(&[]);
    let lower = damaged.below(|| symlink("a/target", damaged.path("link")).unwrap());
    let good = fs::read_link(&lower).unwrap().into_os_string();
    let read = |target: &[u8]| {
        fs::remove_file(&lower).unwrap();
        symlink(OsStr::from_bytes(target), &lower).unwrap();
        fs::read_link(damaged.path("link")).map_err(|error| error.raw_os_error())
    };
    for at in 0..good.len() {
        for other in [b'A', b'b', b'+', b'='] {
            let mut bad = good.as_bytes().to_vec();
            if bad[at] != other {
                bad[at] = other;
                assert_eq!(read(&bad), Err(Some(Errno::IO.raw_os_error())), "byte {at}");
            }
        }
    }
    for bad in ["x", "/etc/passwd", &"A".repeat(43), &"A".repeat(44)] {
        assert_eq!(read(bad.as_bytes()), Err(Some(Errno::IO.raw_os_error())), "{bad}");
    }
    assert_eq!(read(good.as_bytes()), Ok("a/target".into()));
}

/// Extended attributes: altered values can't be read, altered names are hidden.
#[test]
fn every_byte_of_an_attribute() {
    let damaged = Damaged::new(&[]);
    let lower = damaged.below(|| fs::write(damaged.path("victim"), "text").unwrap());
    let path = damaged.path("victim");
    let set = |path: &Path, name: &[u8], value: &[u8]| rustix::fs::setxattr(path, name, value, XattrFlags::empty());
    set(&path, b"user.note", b"a note").unwrap();
    let mut list = vec![0; 1000];
    let len = rustix::fs::listxattr(&lower, &mut list).unwrap();
    let stored = list[..len].split(|byte| *byte == 0).next().unwrap().to_vec();
    let mut value = vec![0; 1000];
    let len = rustix::fs::getxattr(&lower, stored.as_slice(), &mut value).unwrap();
    value.truncate(len);
    let get = || {
        let mut plain = vec![0; 1000];
        let len = rustix::fs::getxattr(&path, "user.note", &mut plain)?;
        plain.truncate(len);
        Ok::<_, Errno>(plain)
    };
    for at in 0..value.len() {
        let mut bad = value.clone();
        bad[at] ^= 1 << (at % 8);
        set(&lower, &stored, &bad).unwrap();
        assert_eq!(get(), Err(Errno::IO), "byte {at}");
    }
    set(&lower, &stored, &value).unwrap();
    assert_eq!(get().unwrap(), b"a note");
    rustix::fs::removexattr(&lower, stored.as_slice()).unwrap();
    for at in "user.gocryptfs.".len()..stored.len() {
        let mut bad = stored.clone();
        bad[at] = if bad[at] == b'A' { b'B' } else { b'A' };
        set(&lower, &bad, &value).unwrap();
        assert_eq!(get(), Err(Errno::NODATA));
        let mut list = vec![0; 1000];
        let len = rustix::fs::listxattr(&path, &mut list).unwrap();
        assert!(!list[..len].windows(9).any(|name| name == b"user.note"));
        rustix::fs::removexattr(&lower, bad.as_slice()).unwrap();
    }
}

/// The configuration: the mount fails and says why, or works as before.
#[test]
fn every_byte_of_the_configuration() {
    let mut damaged = Damaged::new(&[]);
    damaged.mounted.unmount();
    let path = damaged.volume.dir().join("gocryptfs.conf");
    let good = fs::read(&path).unwrap();
    let mut mounts = 0;
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::remove_file(&path).unwrap();
        fs::write(&path, &bad).unwrap();
        match Mounted::try_new(damaged.volume.spec(Transport::Device), damaged.mounted.dir(), "") {
            Ok(mounted) => {
                mounts += 1;
                assert!(fs::read(mounted.path("file")).unwrap() == damaged.content, "byte {at}");
                assert_eq!(names(mounted.dir()), ["file", "other"]);
            }
            Err(output) => {
                let says_why = output.contains("gocryptfs.conf") || output.contains("passphrase");
                assert!(says_why && !output.contains("panicked"), "byte {at}: {output}");
            }
        }
    }
    // Those in the name of the program that created it.
    assert!((10..40).contains(&mounts), "{mounts}");
    fs::remove_file(&path).unwrap();
    fs::write(&path, &good).unwrap();
    damaged.mounted.mount_again();
    damaged.check_the_other_file();
}
