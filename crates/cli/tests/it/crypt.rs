//! `cryptctl`: volumes of Strata are opened by gocryptfs, and the other way round; passphrases;
//! damage of each kind is found and named.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use strata_tests::Sandbox;
use testkit::{Outcome, outcome, outcome_with_input};

const PROGRAM: &str = env!("CARGO_BIN_EXE_strata");
const PASSPHRASE: &str = "correct horse battery";
/// The volume of most tests.
const DIR: &str = "/mnt/data/volume";
/// Where gocryptfs mounts it.
const AT: &str = "/mnt/at";

/// A file system for volumes, a mount point, and a file with the passphrase.
struct Stage {
    sandbox: Sandbox,
}

impl Stage {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        // tmpfs has no user attributes on old kernels.
        let _ = sandbox.ext4("data", 64);
        for dir in ["at", "bin", "data/volume"] {
            let _ = sandbox.dir(dir);
        }
        symlink(PROGRAM, sandbox.path("bin/cryptctl")).unwrap();
        let stage = Self { sandbox };
        stage.secret("pass", PASSPHRASE);
        stage
    }

    /// Writes a file that only its owner can read.
    fn secret(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.sandbox.path(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// A volume made by `cryptctl init`.
    fn init(options: &[&str]) -> Outcome {
        let words = ["init", "--passfile", "/mnt/pass"];
        let cost = if options.contains(&"--argon2id") { &[][..] } else { &["--scrypt-n", "10"] };
        cryptctl(&[&words, cost, options, &[DIR]].concat())
    }

    /// An empty directory in place of the volume.
    fn clear() {
        fs::remove_dir_all(DIR).unwrap();
        fs::create_dir(DIR).unwrap();
    }
}

fn cryptctl<S: AsRef<OsStr>>(words: &[S]) -> Outcome {
    answer(words, "")
}

fn answer<S: AsRef<OsStr>>(words: &[S], input: &str) -> Outcome {
    outcome_with_input(Command::new("/mnt/bin/cryptctl").args(words), input.as_bytes())
}

fn fsck() -> Outcome {
    cryptctl(&["fsck", "--passfile", "/mnt/pass", DIR])
}

/// A volume that gocryptfs has mounted.
struct Mounted;

impl Mounted {
    fn new() -> Self {
        Self::with(&["-passfile", "/mnt/pass"])
    }

    fn with(options: &[&str]) -> Self {
        // The server keeps what it inherits open, so reading from a pipe would not end.
        let mut command = Command::new("gocryptfs");
        command
            .arg("-q")
            .args(options)
            .args([DIR, AT])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        assert!(command.status().unwrap().success(), "{command:?}");
        Self
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(AT).status();
        assert!(std::thread::panicking() || unmounted.unwrap().success());
    }
}

/// What is in each volume: files with their sizes.
fn contents() -> BTreeMap<String, usize> {
    BTreeMap::from([
        ("short".to_owned(), 5),
        ("empty".to_owned(), 0),
        ("blocks".to_owned(), 5 * 4096 + 100),
        ("dir/inner/deep".to_owned(), 4096),
        ("n".repeat(200), 3),
        ("m".repeat(90), 4),
    ])
}

fn content(name: &str, size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 7 + at / 4096 + name.len()) as u8).collect()
}

fn fill() {
    let at = Path::new(AT);
    fs::create_dir_all(at.join("dir/inner")).unwrap();
    for (name, size) in contents() {
        fs::write(at.join(&name), content(&name, size)).unwrap();
    }
    let sparse = fs::File::create(at.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 20 * 4096).unwrap();
    symlink("../some/target", at.join("link")).unwrap();
    fs::hard_link(at.join("short"), at.join("dir/second")).unwrap();
    outcome(Command::new("setfattr").args(["-n", "user.comment", "-v", "a value"]).arg(at.join("short"))).succeeds();
}

fn check_contents() {
    let at = Path::new(AT);
    for (name, size) in contents() {
        assert_eq!(fs::read(at.join(&name)).unwrap(), content(&name, size), "{name}");
    }
    assert_eq!(fs::read_link(at.join("link")).unwrap(), Path::new("../some/target"));
    assert_eq!(fs::metadata(at.join("sparse")).unwrap().len(), 20 * 4096 + 3);
    let value = outcome(Command::new("getfattr").args(["--only-values", "-n", "user.comment"]).arg(at.join("short")))
        .succeeds()
        .out;
    assert_eq!(value, "a value");
}

/// The same features, as options of `cryptctl init` and of `gocryptfs -init`.
const FEATURES: &[(&[&str], &[&str])] = &[
    (&[], &[]),
    (&["--aes-siv"], &["-aessiv"]),
    (&["--xchacha"], &["-xchacha"]),
    (&["--plaintext-names"], &["-plaintextnames"]),
    (&["--plaintext-names", "--aes-siv"], &["-plaintextnames", "-aessiv"]),
    (&["--deterministic-names"], &["-deterministic-names"]),
    (&["--long-name-max", "100"], &["-longnamemax", "100"]),
    (
        &["--long-name-max", "62", "--xchacha", "--deterministic-names"],
        &["-longnamemax", "62", "-xchacha", "-deterministic-names"],
    ),
];

const SUMMARY: &str = "3 directories, 7 files, 1 symbolic links, ";

fn must_be_clean() {
    let outcome = fsck();
    assert_eq!((outcome.code, &*outcome.err), (0, ""), "{}", outcome.out);
    assert!(outcome.out.starts_with(&format!("{DIR}: {SUMMARY}")), "{}", outcome.out);
    assert!(outcome.out.ends_with("checked: no damage\n"), "{}", outcome.out);
}

/// Edits the configuration as somebody without the key can.
fn edit_config(edit: impl Fn(&str) -> String) {
    let path = format!("{DIR}/gocryptfs.conf");
    let before = fs::read_to_string(&path).unwrap();
    let after = edit(&before);
    assert_ne!(before, after);
    fs::remove_file(&path).unwrap();
    fs::write(&path, after).unwrap();
}

#[test]
fn gocryptfs_opens_volumes_of_cryptctl() {
    let _stage = Stage::new();
    for (ours, _) in FEATURES {
        let made = Stage::init(ours);
        assert_eq!((made.code, &*made.err), (0, ""), "{ours:?}");
        let config = fs::metadata(format!("{DIR}/gocryptfs.conf")).unwrap();
        assert_eq!(config.mode() & 0o7777, 0o400);
        let mounted = Mounted::new();
        fill();
        check_contents();
        drop(mounted);
        outcome(Command::new("gocryptfs").args(["-q", "-fsck", "-passfile", "/mnt/pass", DIR])).succeeds();
        must_be_clean();
        Stage::clear();
    }
}

#[test]
fn cryptctl_opens_volumes_of_gocryptfs() {
    let stage = Stage::new();
    stage.secret("new", "another long passphrase");
    let padded: &[&[&str]] = &[&["-raw64=false"], &["-raw64=false", "-longnamemax", "80"]];
    for theirs in FEATURES.iter().map(|(_, theirs)| theirs).chain(padded) {
        let init = ["-init", "-q", "-scryptn", "10", "-passfile", "/mnt/pass"];
        outcome(Command::new("gocryptfs").args(init).args(*theirs).arg(DIR)).succeeds();
        if padded.contains(theirs) {
            // It ignores the option, but still opens such volumes.
            edit_config(|text| text.replace(",\n\t\t\"Raw64\"", ""));
        }
        let mounted = Mounted::new();
        fill();
        drop(mounted);
        must_be_clean();
        let changed = cryptctl(&["passwd", "--passfile", "/mnt/pass", "--new-passfile", "/mnt/new", DIR]);
        assert_eq!((changed.code, &*changed.out), (0, &*format!("{DIR}: passphrase changed\n")), "{}", changed.err);
        let refused = outcome(Command::new("gocryptfs").args(["-q", "-passfile", "/mnt/pass", DIR, AT]));
        assert_eq!(refused.code, 12, "{}", refused.err);
        let mounted = Mounted::with(&["-passfile", "/mnt/new"]);
        check_contents();
        drop(mounted);
        Stage::clear();
    }
}

#[test]
fn info_tells_how_a_volume_is_encrypted() {
    let _stage = Stage::new();
    assert_eq!(Stage::init(&["--long-name-max", "100", "--xchacha"]).code, 0);
    let info = cryptctl(&["info", DIR]);
    assert_eq!(info.code, 0);
    for line in [
        "contents: XChaCha20-Poly1305\n",
        "names: AES-EME; long if encrypted to more than 100 bytes\n",
        "features: HKDF, XChaCha20Poly1305, DirIV, LongNameMax, EMENames, LongNames, Raw64\n",
        "opened by: cryptfs and gocryptfs\n",
        "  the passphrase: scrypt, N 2^10, R 8, P 1: 1.0 MiB of memory\n",
    ] {
        assert!(info.out.contains(line), "{}", info.out);
    }
    let json: Value = serde_json::from_str(&cryptctl(&["info", "--json", DIR]).out).unwrap();
    assert_eq!((&json["contents"], &json["names"]["long_name_max"]), (&"XChaCha20-Poly1305".into(), &100.into()));
    assert_eq!((&json["passphrases"][0]["kdf"], &json["passphrases"][0]["n"]), (&"scrypt".into(), &1024.into()));
}

#[test]
fn init_refuses_what_it_must_not_touch() {
    let stage = Stage::new();
    let kept = format!("{DIR}/kept");
    fs::write(&kept, "x").unwrap();
    let refused = Stage::init(&[]);
    assert_eq!((refused.code, refused.err.contains("not empty")), (32, true), "{}", refused.err);
    assert_eq!(fs::read_dir(DIR).unwrap().count(), 1);
    fs::remove_file(kept).unwrap();
    assert_eq!(cryptctl(&["init", "--passfile", "/mnt/pass", "/mnt/none"]).code, 2);
    assert_eq!(cryptctl(&["init", "--passfile", "/mnt/none", DIR]).code, 2);
    assert_eq!(cryptctl(&["init", "--aes-siv", "--xchacha", DIR]).code, 1);
    stage.secret("empty", "\nsecond line\n");
    assert_eq!(cryptctl(&["init", "--passfile", "/mnt/empty", DIR]).code, 2);
    assert_eq!(fs::read_dir(DIR).unwrap().count(), 0, "a failed init leaves nothing");
    // A second volume in its place would lose the first one's key.
    assert_eq!(Stage::init(&["--quiet"]).out, "");
    assert_eq!(Stage::init(&[]).code, 32);
}

#[test]
fn short_passphrases_need_an_option() {
    let stage = Stage::new();
    stage.secret("short", "fifteen letters");
    let words = ["init", "--scrypt-n", "10", "--passfile", "/mnt/short", DIR];
    let refused = cryptctl(&words);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("15 characters; use at least 16"), "{}", refused.err);
    assert_eq!(cryptctl(&[&["init", "--short-passphrase"], &words[1..]].concat()).code, 0);
    let words = ["passwd", "--passfile", "/mnt/short", "--new-passfile", "/mnt/short"];
    assert_eq!(cryptctl(&[&words[..], &[DIR]].concat()).code, 1);
    assert_eq!(cryptctl(&[&words[..], &["--short-passphrase", DIR]].concat()).code, 0);
}

#[test]
fn passphrases_come_from_files_programs_and_standard_input() {
    let stage = Stage::new();
    assert_eq!(answer(&["init", "--scrypt-n", "10", DIR], &format!("{PASSPHRASE}\n")).code, 0);
    let opens = |words: &[&str], input: &str| answer(&[&["fsck"], words, &[DIR]].concat(), input);
    assert_eq!(opens(&[], PASSPHRASE).code, 0);
    assert_eq!(opens(&["--passfile", "/mnt/pass"], "").code, 0);
    assert_eq!(opens(&["--extpass", &format!("echo '{PASSPHRASE}'; echo more")], "").code, 0);
    for (words, code, text) in [
        (&["--extpass", "exit 3"][..], 8, "failed (exit status: 3)"),
        (&["--extpass", "true"], 8, "it printed nothing"),
        (&[], 8, "nothing was entered"),
        (&["--passfile", "/mnt/none"], 8, "No such file"),
        (&["--extpass", "echo wrong"], 8, "Nothing was checked: without the key"),
        (&["--passfile", "a", "--extpass", "b"], 16, "cannot be used with"),
        (&["--memory-limit", "0", "--passfile", "/mnt/pass"], 8, "more than the limit of 0 bytes"),
    ] {
        let outcome = opens(words, "");
        assert_eq!((outcome.code, outcome.err.contains(text)), (code, true), "{words:?}: {}", outcome.err);
        assert_eq!(outcome.out, "");
    }
    assert_eq!(answer(&["passwd", DIR], &format!("{PASSPHRASE}\nthe second passphrase\n")).code, 0);
    assert_eq!(opens(&[], "the second passphrase\n").code, 0);
    // Other users could read it.
    let open = stage.secret("open", "the second passphrase\nrest\n");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    let warned = opens(&["--passfile", "/mnt/open"], "");
    assert_eq!(warned.code, 0);
    assert!(warned.err.contains("chmod 600 /mnt/open"), "{}", warned.err);
}

/// A key file is a passphrase that every program can compute.
#[test]
fn gocryptfs_opens_a_volume_with_a_key_file() {
    let stage = Stage::new();
    let key: Vec<u8> = (0..=255).chain(0..10).collect();
    stage.secret("key", &key);
    assert_eq!(cryptctl(&["init", "--scrypt-n", "10", "--key-file", "/mnt/key", DIR]).code, 0);
    assert_eq!(cryptctl(&["fsck", "--key-file", "/mnt/key", DIR]).code, 0);
    outcome(Command::new("sh").args(["-c", "od -An -v -tx1 /mnt/key | tr -d ' \\n' >/mnt/hex"])).succeeds();
    let mounted = Mounted::with(&["-passfile", "/mnt/hex"]);
    fs::write(Path::new(AT).join("f"), "x").unwrap();
    drop(mounted);
    stage.secret("key", &key[1..]);
    assert_eq!(cryptctl(&["fsck", "--key-file", "/mnt/key", DIR]).code, 8);
    for size in [0, 15, 1025] {
        stage.secret("key", vec![1; size]);
        let refused = cryptctl(&["fsck", "--key-file", "/mnt/key", DIR]);
        assert!(refused.err.contains("16 bytes") || refused.err.contains("1024 bytes"), "{size}: {}", refused.err);
    }
}

fn master_key(printed: &str) -> String {
    let line = printed.lines().find(|line| line.len() == 75 && line.starts_with("    ")).expect("a master key");
    line.trim().to_owned()
}

#[test]
fn a_forgotten_passphrase_is_replaced_with_the_master_key() {
    for options in [&[][..], &["--plaintext-names"], &["--key-slots"]] {
        let stage = Stage::new();
        let master = master_key(&Stage::init(options).out);
        stage.secret("new", "another long passphrase");
        let passwd = |master: &str| answer(&["passwd", "--master-key", "--new-passfile", "/mnt/new", DIR], master);
        if options != ["--key-slots"] {
            let mounted = Mounted::new();
            fill();
            drop(mounted);
        }
        let before = fs::read(format!("{DIR}/gocryptfs.conf")).unwrap();
        let wrong = passwd(&master.replace(|c| c != '-', "1"));
        assert_ne!(wrong.code, 0, "a wrong key is noticed");
        assert_eq!(passwd("12345678-").code, 1);
        assert_eq!(fs::read(format!("{DIR}/gocryptfs.conf")).unwrap(), before);
        let changed = passwd(&master);
        assert_eq!(changed.code, 0, "{}", changed.err);
        assert!(changed.out.contains("the old configuration is in"), "{}", changed.out);
        assert_eq!(fs::read(format!("{DIR}/gocryptfs.conf.bak")).unwrap(), before);
        assert_eq!(fsck().code, 8);
        let checked = cryptctl(&["fsck", "--passfile", "/mnt/new", DIR]);
        assert_eq!((checked.code, checked.out.contains("no damage")), (0, true), "{}", checked.out);
        assert_eq!(answer(&["fsck", "--master-key", DIR], &master).code, 0);
        // The old configuration is not overwritten by the next one.
        assert_eq!(passwd(&master).code, 1);
    }
}

#[test]
fn a_lost_configuration_is_replaced_with_the_master_key() {
    let stage = Stage::new();
    for (features, _) in FEATURES {
        let master = master_key(&Stage::init(features).out);
        let mounted = Mounted::new();
        fill();
        drop(mounted);
        let path = format!("{DIR}/gocryptfs.conf");
        let lost = cryptctl(&["info", "--json", DIR]).out;
        fs::remove_file(&path).unwrap();
        assert_eq!(cryptctl(&["passwd", "--passfile", "/mnt/pass", DIR]).code, 32);
        let passwd = |master: &str| answer(&["passwd", "--master-key", "--new-passfile", "/mnt/pass", DIR], master);
        let wrong = passwd(&master.replace(|c| c != '-', "1"));
        assert_eq!((wrong.code, wrong.err.contains("not its master key")), (1, true), "{}", wrong.err);
        assert!(!Path::new(&path).exists());
        let written = passwd(&master);
        assert_eq!(written.code, 0, "{features:?}: {}", written.err);
        must_be_clean();
        let mounted = Mounted::new();
        check_contents();
        drop(mounted);
        let info = |text: &str| {
            let json: Value = serde_json::from_str(text).unwrap();
            ["contents", "names", "hkdf"].map(|field| json[field].clone())
        };
        let [contents, mut names, hkdf] = info(&cryptctl(&["info", "--json", DIR]).out);
        if features.contains(&"--long-name-max") {
            // Any limit between the longest short name and the shortest long one is right.
            names["long_name_max"] = info(&lost)[1]["long_name_max"].clone();
        }
        assert_eq!([contents, names, hkdf], info(&lost), "{features:?}");
        Stage::clear();
    }
    drop(stage);
}

/// Several keys of a volume: each sees its own files, and `fsck` checks those of one key.
#[test]
fn a_volume_can_have_several_keys() {
    let stage = Stage::new();
    stage.secret("two", "the second passphrase");
    for features in [&[][..], &["--plaintext-names"]] {
        assert_eq!(Stage::init(features).code, 0);
        let add = |name: &str| cryptctl(&["init", "--scrypt-n", "10", "--key", name, "--passfile", "/mnt/two", DIR]);
        let added = add("team");
        assert_eq!((added.code, added.out.contains("The master key is")), (0, true), "{}", added.err);
        for name in ["team", "default", "a/b", "bak"] {
            assert_eq!(add(name).code, 1, "{name}");
        }
        let info = cryptctl(&["info", DIR]).out;
        assert!(info.contains("keys: default, team\n"), "{info}");
        let mounted = Mounted::new();
        fill();
        drop(mounted);
        let config = format!("{DIR}/gocryptfs.conf.team");
        let mounted = Mounted::with(&["-config", &config, "-passfile", "/mnt/two"]);
        fs::write(Path::new(AT).join("theirs"), "x").unwrap();
        drop(mounted);
        let outcome = fsck();
        assert_eq!((outcome.code, &*outcome.err), (0, ""), "{}", outcome.out);
        assert!(outcome.out.contains("no damage, 1 entries of other keys not checked"), "{}", outcome.out);
        let outcome = cryptctl(&["fsck", "--key", "team", "--passfile", "/mnt/two", DIR]);
        assert_eq!((outcome.code, outcome.out.contains("no damage, ")), (0, true), "{}", outcome.out);
        let outcome = cryptctl(&["fsck", "--key", "none", "--passfile", "/mnt/two", DIR]);
        assert_eq!((outcome.code, outcome.err.contains("no key none")), (8, true), "{}", outcome.err);
        let words = ["--key", "team", "--passfile", "/mnt/two", "--new-passfile", "/mnt/pass", DIR];
        assert_eq!(cryptctl(&[&["passwd"], &words[..]].concat()).code, 0);
        assert_eq!(cryptctl(&["fsck", "--key", "team", "--passfile", "/mnt/pass", DIR]).code, 0);
        Stage::clear();
    }
}

#[test]
fn a_volume_that_is_mounted_is_not_checked() {
    let stage = Stage::new();
    assert_eq!(Stage::init(&[]).code, 0);
    let mount = || {
        let layer = format!("cryptfs,key=mount,passfile=/mnt/pass / {DIR}");
        outcome(Command::new(PROGRAM).args(["mount", &layer, AT])).succeeds();
    };
    mount();
    fs::create_dir(format!("{AT}/dir")).unwrap();
    fs::write(format!("{AT}/dir/file"), "x").unwrap();
    let refused = fsck();
    assert_eq!((refused.code, refused.err.contains("in use by the mount at /mnt/at")), (8, true), "{}", refused.err);
    // The passphrase of a mounted volume can be changed.
    stage.secret("new", "another long passphrase");
    assert_eq!(cryptctl(&["passwd", "--passfile", "/mnt/pass", "--new-passfile", "/mnt/new", DIR]).code, 0);
    assert_eq!(fs::read(format!("{AT}/dir/file")).unwrap(), b"x");
    outcome(Command::new("umount").arg(AT)).succeeds();
    fs::copy("/mnt/new", "/mnt/pass").unwrap();
    assert_eq!(fsck().code, 0);
    fs::remove_file(directory().join("gocryptfs.diriv")).unwrap();
    let noted = fsck();
    assert_eq!(noted.code, 0);
    assert!(noted.out.contains("/dir (") && noted.out.contains("a mount restores it from its copy"), "{}", noted.out);
    mount();
    assert_eq!(fs::read(format!("{AT}/dir/file")).unwrap(), b"x");
    outcome(Command::new("umount").arg(AT)).succeeds();
    assert!(!fsck().out.contains("note"));
}

#[test]
fn a_session_that_began_outside_of_the_container_can_have_no_key() {
    let _stage = Stage::new();
    assert_eq!(Stage::init(&[]).code, 0);
    let script = format!(
        "{PROGRAM} mount 'cryptfs / {DIR}' {AT}
         add() {{ /mnt/bin/cryptctl add --passfile /mnt/pass {AT}; }}; export -f add
         add && exit 9
         setsid -w bash -c 'add && echo written >{AT}/file && cat {AT}/file'
         umount {AT}"
    );
    let inside = outcome(Command::new("unshare").args(["-pf", "--mount-proc", "bash", "-ec", &script]));
    assert_eq!(inside.code, 0, "{}{}", inside.out, inside.err);
    assert!(inside.err.contains("it has no ID; start one inside, for example with: setsid -w bash"), "{}", inside.err);
    assert!(inside.out.ends_with("written\n"), "{}", inside.out);
}

#[test]
fn key_slots_are_added_and_removed() {
    let stage = Stage::new();
    assert_eq!(Stage::init(&["--argon2id", "--label", "mine"]).code, 0);
    let refused = outcome(Command::new("gocryptfs").args(["-q", "-passfile", "/mnt/pass", DIR, AT]));
    assert_ne!(refused.code, 0);
    assert!(refused.err.contains("StrataKeySlots"), "{}", refused.err);
    stage.secret("two", "the second passphrase");
    stage.secret("three", "the third passphrase");
    let list = || cryptctl(&["slot", "list", DIR]).out;
    let first = "mine: Argon2id, 3 passes, 4 lanes: 64.0 MiB of memory\n";
    assert_eq!(list(), first);
    let add = |label: &str, file: &str, more: &[&str]| {
        let words = ["slot", "add", "--passfile", "/mnt/pass", "--new-passfile", file, "--label", label];
        cryptctl(&[&words[..], more, &[DIR]].concat())
    };
    assert_eq!(add("backup", "/mnt/two", &["--scrypt-n", "10"]).out, format!("{DIR}: passphrase backup added\n"));
    let second = "backup: scrypt, N 2^10, R 8, P 1: 1.0 MiB of memory\n";
    assert_eq!(list(), format!("{first}{second}"));
    let json: Value = serde_json::from_str(&cryptctl(&["slot", "list", "--json", DIR]).out).unwrap();
    assert_eq!((&json[0]["memory_kib"], &json[1]["label"]), (&65_536.into(), &"backup".into()));
    for (outcome, text) in [
        (add("backup", "/mnt/two", &[]), "another label"),
        (add("a\tb", "/mnt/two", &[]), "Label"),
        (cryptctl(&["slot", "remove", "--passfile", "/mnt/pass", DIR, "none"]), "no such passphrase slot"),
        (cryptctl(&["slot", "remove", "--passfile", "/mnt/three", DIR, "mine"]), "wrong passphrase"),
    ] {
        assert_eq!((outcome.code, outcome.err.contains(text)), (1, true), "{text}: {}", outcome.err);
    }
    assert_eq!(cryptctl(&["fsck", "--passfile", "/mnt/two", DIR]).code, 0);
    // The slot that was opened, or the one with the label.
    let passwd = |words: &[&str]| cryptctl(&[&["passwd", "--new-passfile", "/mnt/three"], words, &[DIR]].concat()).code;
    assert_eq!(passwd(&["--passfile", "/mnt/pass", "--label", "backup"]), 0);
    assert_eq!(list(), format!("{first}{second}"), "the key derivation stays");
    assert_eq!(cryptctl(&["fsck", "--passfile", "/mnt/two", DIR]).code, 8);
    let remove = |label: &str| cryptctl(&["slot", "remove", "--passfile", "/mnt/three", DIR, label]);
    assert_eq!(remove("mine").code, 0);
    assert_eq!(fsck().code, 8);
    let last = remove("backup");
    assert_eq!((last.code, last.err.contains("last passphrase")), (1, true), "{}", last.err);
    // A forged configuration is noticed.
    edit_config(|text| text.replace("\t\t\"DirIV\",\n", ""));
    let forged = cryptctl(&["fsck", "--passfile", "/mnt/three", DIR]);
    assert_eq!((forged.code, forged.err.contains("authentication code is wrong")), (8, true), "{}", forged.err);
}

#[test]
fn volumes_without_key_slots_have_one_passphrase() {
    let _stage = Stage::new();
    assert_eq!(Stage::init(&[]).code, 0);
    let words = ["--passfile", "/mnt/pass", "--new-passfile", "/mnt/pass"];
    let refused = cryptctl(&[&["slot", "add", "--label", "x"], &words[..], &[DIR]].concat());
    assert_eq!((refused.code, refused.err.contains("one passphrase")), (1, true), "{}", refused.err);
    let refused = cryptctl(&[&["passwd", "--argon2id"], &words[..], &[DIR]].concat());
    assert_eq!((refused.code, refused.err.contains("Argon2id needs")), (1, true), "{}", refused.err);
    assert_eq!(cryptctl(&["info", "/mnt"]).code, 32);
    assert_eq!(cryptctl(&["passwd", "--passfile", "/mnt/pass", "/mnt"]).code, 32);
    edit_config(|_| "{}".to_owned());
    assert_eq!(cryptctl(&["info", DIR]).code, 32);
}

/// Returns the path in the volume of the only entry below `dir` for which this holds.
fn lower(dir: &str, is: impl Fn(&Path) -> bool) -> PathBuf {
    let found: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| is(path)).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

fn has_size(size: u64) -> impl Fn(&Path) -> bool {
    move |path| path.symlink_metadata().is_ok_and(|attributes| attributes.is_file() && attributes.len() == size)
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

/// The lower file of `blocks`: a header and six blocks.
fn blocks() -> PathBuf {
    lower(DIR, has_size(18 + 5 * 4128 + 132))
}

fn directory() -> PathBuf {
    lower(DIR, Path::is_dir)
}

fn side_file() -> PathBuf {
    lower(DIR, |path| path.as_os_str().as_bytes().ends_with(b".name"))
}

#[test]
fn damage_of_each_kind_is_found_and_named() {
    let _stage = Stage::new();
    assert_eq!(Stage::init(&[]).code, 0);
    let mounted = Mounted::new();
    fill();
    drop(mounted);
    let copy = "/mnt/data/copy";
    outcome(Command::new("cp").args(["-a", DIR, copy])).succeeds();
    let set_size = |path: &Path, size| {
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(size).unwrap();
    };
    let with = |path: &Path, suffix: &str| PathBuf::from(format!("{}{suffix}", path.display()));
    let long = "n".repeat(200);
    let damages: &[(&dyn Fn(), &[&str])] = &[
        (
            &|| overwrite(&blocks(), 18 + 4128 + 100, b"XYZ"),
            &["/blocks (", "block 1, bytes 4096 to 8191: block altered"],
        ),
        (
            &|| (1..4).for_each(|block| overwrite(&blocks(), 18 + block * 4128 + 20, b"XYZ")),
            &["/blocks (", "blocks 1 to 3, bytes 4096 to 16383: block altered"],
        ),
        (&|| overwrite(&blocks(), 18 + 5 * 4128 + 131, b"\0"), &["block 5, bytes 20480 to 20579: "]),
        (&|| set_size(&blocks(), 18 + 2 * 4128 + 30), &["/blocks (", "block 2: block incomplete"]),
        (&|| set_size(&blocks(), 18 + 2 * 4128 + 300), &["block 2, bytes 8192 to 8459: block altered"]),
        (
            &|| set_size(&blocks(), 18 + 7 * 4128 + 40),
            &["block 5, bytes 20480 to 24575: ", "block 7, bytes 28672 to 28679: block with a nonce of zeros"],
        ),
        (&|| overwrite(&blocks(), 18 + 4128, &[0; 16]), &["block 1, bytes 4096 to 8191: block with a nonce of zeros"]),
        (&|| overwrite(&blocks(), 5, b"XYZ"), &["blocks 0 to 5, bytes 0 to 20579: block altered, moved"]),
        (&|| overwrite(&blocks(), 0, &[0; 18]), &["/blocks (", "header of zeros; no block can be decrypted"]),
        (&|| overwrite(&blocks(), 2, &[0; 16]), &["header with a file id of zeros"]),
        (&|| overwrite(&blocks(), 0, b"\0\x03"), &["header with an unknown version"]),
        (&|| set_size(&blocks(), 17), &["header incomplete"]),
        (&|| fs::remove_file(directory().join("gocryptfs.diriv")).unwrap(), &["/dir (", "gocryptfs.diriv is missing"]),
        (
            &|| {
                fs::remove_file(directory().join("gocryptfs.diriv")).unwrap();
                fs::write(directory().join("gocryptfs.diriv"), [0; 16]).unwrap();
            },
            &["/dir (", "gocryptfs.diriv is damaged"],
        ),
        (&|| fs::rename(blocks(), with(&blocks(), "A")).unwrap(), &["/[", "A]", "name of an impossible length"]),
        (&|| fs::rename(blocks(), with(&blocks(), "==")).unwrap(), &["/[", "==]", "name not in strict base64"]),
        (&|| fs::write(format!("{DIR}/AAAA"), "").unwrap(), &["/[AAAA] (AAAA): name of an impossible length"]),
        (
            &|| {
                // A name from another directory.
                let inner = lower(directory().to_str().unwrap(), Path::is_dir);
                fs::rename(&inner, Path::new(DIR).join(inner.file_name().unwrap())).unwrap();
            },
            &["/[", "name altered, moved from another directory"],
        ),
        (&|| fs::remove_file(side_file()).unwrap(), &["gocryptfs.longname.", "its side file (.name) is missing"]),
        (&|| overwrite(&side_file(), 3, b"*"), &["gocryptfs.longname.", "its side file (.name) is damaged"]),
        (
            &|| {
                let link = lower(DIR, Path::is_symlink);
                let target = fs::read_link(&link).unwrap().into_os_string().into_string().unwrap();
                fs::remove_file(&link).unwrap();
                let altered = if target.starts_with('B') { "C" } else { "B" };
                symlink(format!("{altered}{}", &target[1..]), &link).unwrap();
            },
            &["/link (", "link target: block altered"],
        ),
        (
            &|| {
                let link = lower(DIR, Path::is_symlink);
                fs::remove_file(&link).unwrap();
                symlink("/etc/passwd", &link).unwrap();
            },
            &["/link (", "link target: value not in base64"],
        ),
        (
            &|| {
                let short = lower(DIR, has_size(18 + 5 + 32));
                let name = outcome(Command::new("getfattr").args(["-h", "-m", "-"]).arg(&short)).succeeds().out;
                let name = name.lines().find(|line| line.starts_with("user.gocryptfs.")).unwrap().to_owned();
                outcome(Command::new("setfattr").args(["-n", &name, "-v", &"x".repeat(40)]).arg(&short)).succeeds();
            },
            &["extended attribute user.comment: block altered"],
        ),
        (
            &|| {
                outcome(Command::new("setfattr").args(["-n", "user.gocryptfs.AAAA", "-v", "x", DIR])).succeeds();
            },
            &["/ (): extended attribute user.gocryptfs.AAAA: name of an impossible length"],
        ),
    ];
    for (number, (damage, texts)) in damages.iter().enumerate() {
        damage();
        let before = state();
        let found = fsck();
        assert_eq!((found.code, &*found.err), (4, ""), "{number}: {}", found.out);
        for text in *texts {
            assert!(found.out.contains(text), "{number}: no {text} in {}", found.out);
        }
        assert!(state() == before, "{number}: fsck changed something");
        let json: Value =
            serde_json::from_str(&cryptctl(&["fsck", "--json", "--passfile", "/mnt/pass", DIR]).out).unwrap();
        assert_eq!((&json["exit"], json["findings"].as_array().unwrap().is_empty()), (&4.into(), false));
        fs::remove_dir_all(DIR).unwrap();
        outcome(Command::new("cp").args(["-a", copy, DIR])).succeeds();
    }
    must_be_clean();
    // What a crash may leave is no damage.
    let notes: &[(&dyn Fn(), &str)] = &[
        (&|| fs::write(format!("{DIR}/gocryptfs.diriv.rmdir.12"), [1; 16]).unwrap(), "left by an interrupted rmdir"),
        (
            &|| {
                let side = side_file();
                fs::remove_file(side.to_str().unwrap().strip_suffix(".name").unwrap()).unwrap();
            },
            "a side file without its object",
        ),
        (&|| fs::write(format!("{DIR}/gocryptfs.other"), "").unwrap(), "a reserved name without a meaning"),
        (&|| fs::write(format!("{DIR}/gocryptfs.strata-journal"), "x").unwrap(), "the server was killed: mount"),
        (&|| fs::write(format!("{DIR}/gocryptfs.strata-journal.3"), "x").unwrap(), "see cryptctl journal list"),
        (
            &|| {
                let inner = lower(lower(DIR, Path::is_dir).to_str().unwrap(), Path::is_dir);
                fs::remove_dir_all(&inner).unwrap();
                fs::create_dir(&inner).unwrap();
            },
            "an empty directory, left by an interrupted mkdir or rmdir",
        ),
        (&|| set_size(&blocks(), 18), ""),
    ];
    for (change, text) in notes {
        change();
        let found = fsck();
        assert_eq!((found.code, found.out.contains(text)), (0, true), "{text}: {}", found.out);
    }
    assert!(!fsck().out.contains(&long));
}

/// An attacker who can write to the volume can put anything there: nothing waits for it.
#[test]
fn what_is_no_file_stops_nothing() {
    let _stage = Stage::new();
    assert_eq!(Stage::init(&[]).code, 0);
    for fifo in ["gocryptfs.conf.tmp123", "gocryptfs.conf.one", "gocryptfs.strata-journal"] {
        outcome(Command::new("mkfifo").arg(Path::new(DIR).join(fifo))).succeeds();
    }
    symlink("/etc/passwd", format!("{DIR}/gocryptfs.conf.two")).unwrap();
    fs::create_dir(format!("{DIR}/gocryptfs.conf.three")).unwrap();
    let info = cryptctl(&["info", "--json", DIR]);
    assert_eq!(serde_json::from_str::<Value>(&info.out).unwrap()["keys"], serde_json::json!(["default"]));
    let mount = || {
        let stack = "cryptfs,key=mount,passfile=/mnt/pass / /mnt/data/volume";
        outcome(Command::new(PROGRAM).args(["mount", stack, AT]))
    };
    mount().succeeds();
    fs::create_dir(format!("{AT}/dir")).unwrap();
    fs::write(format!("{AT}/dir/file"), "text").unwrap();
    outcome(Command::new("umount").arg(AT)).succeeds();
    assert!(Path::new(DIR).join("gocryptfs.strata-journal.1").exists());
    let dir = lower(DIR, |path| path.is_dir() && !path.ends_with("gocryptfs.conf.three"));
    let iv = dir.join("gocryptfs.diriv");
    fs::remove_file(&iv).unwrap();
    outcome(Command::new("mkfifo").arg(&iv)).succeeds();
    let found = fsck();
    assert_eq!(found.code, 0, "{}", found.out);
    assert!(found.out.contains("gocryptfs.diriv: not a regular file; a mount restores it"), "{}", found.out);
    mount().succeeds();
    assert_eq!(fs::read(format!("{AT}/dir/file")).unwrap(), b"text");
    outcome(Command::new("umount").arg(AT)).succeeds();
    // The configuration itself.
    fs::copy(format!("{DIR}/gocryptfs.conf"), "/mnt/conf").unwrap();
    fs::remove_file(format!("{DIR}/gocryptfs.conf")).unwrap();
    outcome(Command::new("mkfifo").arg(format!("{DIR}/gocryptfs.conf"))).succeeds();
    for words in [&["info", DIR][..], &["fsck", "--passfile", "/mnt/pass", DIR]] {
        let refused = cryptctl(words);
        assert!(refused.code != 0 && refused.err.contains("not a regular file"), "{}", refused.err);
    }
    assert_ne!(mount().code, 0);
    assert_eq!(cryptctl(&["info", "--config", "/mnt/conf", DIR]).code, 0);
}

/// Every name, size, time and byte in the volume.
fn state() -> String {
    let script =
        format!("find {DIR} -printf '%P %s %m %T@ %C@ %l\\n' | sort; find {DIR} -type f | sort | xargs sha256sum");
    outcome(Command::new("sh").args(["-c", &script])).succeeds().out
}

#[test]
fn json_names_blocks_and_bytes() {
    let _stage = Stage::new();
    assert_eq!(Stage::init(&[]).code, 0);
    let mounted = Mounted::new();
    fill();
    drop(mounted);
    let path = blocks();
    overwrite(&path, 18 + 4128 + 100, b"XYZ");
    let json: Value = serde_json::from_str(&cryptctl(&["fsck", "--json", "--passfile", "/mnt/pass", DIR]).out).unwrap();
    assert_eq!(
        json["findings"],
        serde_json::json!([{
            "kind": "block", "path": "/blocks", "lower": path.file_name().unwrap().to_str().unwrap(),
            "text": "block altered, moved, or encrypted with another key", "blocks": [1, 1], "bytes": [4096, 8191],
        }])
    );
    assert_eq!((&json["directories"], &json["files"], &json["links"]), (&3.into(), &7.into(), &1.into()));
}

#[test]
fn progress_is_erased_before_the_result() {
    let stage = Stage::new();
    Stage::init(&["--plaintext-names"]).succeeds();
    let stack = format!("cryptfs,key=mount,passfile=/mnt/pass / {DIR}");
    outcome(Command::new(PROGRAM).args(["mount", &stack, AT])).succeeds();
    for name in ["one", "two"] {
        fs::write(Path::new(AT).join(name), vec![7; 100_000]).unwrap();
    }
    drop(Mounted);
    fs::write(Path::new(DIR).join("three"), "not encrypted").unwrap();
    let check = stage.sandbox.path("bin/cryptctl").display().to_string() + " fsck --passfile /mnt/pass " + DIR;
    let out = outcome(Command::new("script").args(["-qec", &check, "/dev/null"])).out;
    assert!(out.contains(" files checked, "), "{out:?}");
    // Each result is at the beginning of a line, or after the progress was erased.
    for result in ["/three (three): ", "/mnt/data/volume: "] {
        let (before, _) = out.split_once(result).unwrap_or_else(|| panic!("{out:?}"));
        assert!(before.is_empty() || before.ends_with(['\n', 'K']), "{out:?}");
    }
}

#[test]
fn wrong_arguments_have_their_exit_status() {
    let _stage = Stage::new();
    assert_eq!(cryptctl(&["fsck", "--none"]).code, 16);
    assert_eq!(cryptctl(&["fsck", "/mnt/none"]).code, 8);
    assert_eq!(cryptctl(&["info"]).code, 1);
    assert_eq!(cryptctl(&["--help"]).code, 0);
    let strata = |words: &[&str]| outcome(Command::new(PROGRAM).args(words)).code;
    assert_eq!(strata(&["crypt", "fsck", "--none"]), 16);
    assert_eq!(strata(&["crypt", "info", "/mnt"]), 32);
}

#[test]
fn every_program_has_completions() {
    for shell in ["bash", "zsh", "fish"] {
        for (program, word) in [
            ("cryptctl", "plaintext-names"),
            ("mount.unionfs", "dirs="),
            ("fsck.unionfs", "undo"),
            ("fsck.versionfs", "json"),
        ] {
            let completions = outcome(Command::new(PROGRAM).args(["completions", shell, program])).succeeds();
            assert!(completions.out.contains(word), "{shell} {program}");
        }
    }
}
