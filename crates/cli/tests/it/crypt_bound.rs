//! `cryptctl` on bound volumes. Files are built from the format, without a mount.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cryptformat::{Config, Keys, Limits, SEGMENT_SHIFT, Seal};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use strata_tests::Sandbox;
use strata_tests::process::{Output, try_run};

const PASSPHRASE: &[u8] = b"correct horse battery";
const ID: &[u8; 16] = b"the id of a file";
const BLOCK: u64 = 4096;
const HEADER: usize = 4096;

/// A bound volume without encryption of names.
struct Volume {
    dir: PathBuf,
    passfile: PathBuf,
    master: String,
    keys: Keys,
    _sandbox: Sandbox,
}

fn cryptctl(words: &[&str], input: &str) -> Output {
    let mut command = Command::new("sh");
    let feed = "input=$1; shift; printf %s \"$input\" | \"$@\"";
    try_run(command.args(["-c", feed, "-", input, env!("CARGO_BIN_EXE_strata"), "crypt"]).args(words))
}

impl Volume {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        let (dir, passfile) = (sandbox.dir("volume"), sandbox.path("pass"));
        fs::write(&passfile, PASSPHRASE).unwrap();
        fs::set_permissions(&passfile, fs::Permissions::from_mode(0o600)).unwrap();
        let options = ["--bound", "--plaintext-names", "--scrypt-n", "10", "--passfile"];
        let paths = [&passfile, &dir].map(|path| path.to_str().unwrap());
        let made = cryptctl(&[&["init"], &options[..], &paths].concat(), "");
        assert!(made.status.success(), "{}", made.text);
        let config = Config::parse(&fs::read(dir.join("gocryptfs.conf")).unwrap()).unwrap();
        let master = config.unlock(PASSPHRASE, Limits::default()).unwrap().master;
        let keys = Keys::new(config.flags(), &master).unwrap();
        let printed = made.text.lines().find(|line| line.len() == 75 && line.starts_with("    "));
        Self { dir, passfile, master: printed.unwrap().trim().to_owned(), keys, _sandbox: sandbox }
    }

    fn run(&self, words: &[&str]) -> Output {
        cryptctl(&[words, &[self.dir.to_str().unwrap()]].concat(), "")
    }

    fn info(&self) -> Value {
        serde_json::from_str(&self.run(&["info", "--json"]).text).unwrap()
    }

    /// Encrypts blocks of a file, of which each is filled with one byte. A zero is a hole.
    fn blocks(&self, fill: &[u8]) -> Vec<Vec<u8>> {
        let encrypt = |(number, &byte): (usize, &u8)| {
            let mut stored = vec![0; self.keys.layout().stored];
            if byte != 0 {
                self.keys.seal_block(ID, number as u64, &[byte; BLOCK as usize], &mut stored).unwrap();
            }
            stored
        };
        fill.iter().enumerate().map(encrypt).collect()
    }

    /// Returns the sealed header of a file that has these blocks.
    fn header(&self, blocks: &[Vec<u8>]) -> Vec<u8> {
        let mut seal = Seal { size: blocks.len() as u64 * BLOCK, shift: SEGMENT_SHIFT, sums: vec![] };
        seal.sums.resize(blocks.len().div_ceil(1 << SEGMENT_SHIFT), 0_u128);
        for (number, block) in blocks.iter().enumerate() {
            let sum = &mut seal.sums[number >> SEGMENT_SHIFT];
            *sum = sum.wrapping_add(self.keys.weigh(ID, number as u64, block));
        }
        let mut header = vec![0; HEADER];
        self.keys.seal_header(ID, &seal, &mut header).unwrap();
        header
    }

    /// Stores a file, and returns what `fsck` finds: kinds, texts and bytes.
    fn findings(&self, header: &[u8], blocks: &[Vec<u8>]) -> Vec<Value> {
        fs::write(self.dir.join("file"), [header, &blocks.concat()].concat()).unwrap();
        let checked = self.run(&["fsck", "--json", "--passfile", self.passfile.to_str().unwrap()]);
        let json: Value = serde_json::from_str(&checked.text).unwrap();
        let findings = json["findings"].as_array().unwrap();
        assert_eq!(checked.status.code(), Some(if findings.is_empty() { 0 } else { 4 }));
        assert!(findings.iter().all(|finding| finding["path"] == "/file"), "{findings:?}");
        findings.iter().map(|finding| json!([finding["kind"], finding["text"], finding["bytes"]])).collect()
    }
}

#[test]
fn info_says_that_a_volume_is_bound() {
    let volume = Volume::new();
    let text = volume.run(&["info"]).text;
    for line in [
        "contents: AES-256-GCM; bound: changes without the key are noticed\n",
        "features: HKDF, GCMIV128, PlaintextNames, StrataKeySlots, StrataBound\n",
        "opened by: cryptfs only\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let info = volume.info();
    assert_eq!((&info["bound"], &info["key_slots"]), (&true.into(), &true.into()));
}

#[test]
fn mixtures_of_two_states_are_found() {
    let volume = Volume::new();
    let fill: Vec<u8> = (0..600_u32).map(|number| u8::try_from(number % 255 + 1).unwrap()).collect();
    let mut old = volume.blocks(&fill);
    old[300].fill(0);
    let new = [&volume.blocks(&fill[..400])[..], &old[400..512]].concat();
    let (before, after) = (volume.header(&old), volume.header(&new));
    assert!(volume.findings(&before, &old).is_empty());
    assert!(volume.findings(&after, &new).is_empty());

    let text = "some of these were put back from another version, damaged, or replaced by holes";
    let segment = |number: u64| json!(["seal", text, [number << 20, ((number + 1) << 20) - 1]]);
    let mixed = |edit: &dyn Fn(&mut Vec<Vec<u8>>)| {
        let mut blocks = new.clone();
        edit(&mut blocks);
        volume.findings(&after, &blocks)
    };
    assert_eq!(mixed(&|blocks| blocks[7].clone_from(&old[7])), [segment(0)]);
    assert_eq!(mixed(&|blocks| blocks[300].clone_from(&old[300])), [segment(1)], "a hole from before");
    assert_eq!(mixed(&|blocks| blocks[511].fill(0)), [segment(1)], "a new hole");
    let size = |what: &str, now: u64| {
        json!(["seal", format!("{what} without the key: it has {now} bytes instead of {}", 512 * BLOCK), null])
    };
    assert_eq!(mixed(&|blocks| blocks.truncate(511)), [size("cut", 511 * BLOCK), segment(1)]);
    assert_eq!(mixed(&|blocks| blocks.truncate(256)), [size("cut", 256 * BLOCK), segment(1)]);
    assert_eq!(mixed(&|blocks| blocks.push(old[512].clone())), [size("extended", 513 * BLOCK)], "an old block");
    let exchanged = volume.findings(&before, &new);
    assert_eq!(exchanged.len(), 4, "the length and each segment: {exchanged:?}");
    // The seal tells what is missing, and each block what is altered.
    let kinds = mixed(&|blocks| blocks[0][100] ^= 1);
    assert_eq!(kinds, [json!(["block", "block altered, moved, or encrypted with another key", [0, BLOCK - 1]])]);
}

/// The sealed headers tell that the volume is bound, even of a file that begins with a hole.
#[test]
fn a_lost_configuration_is_replaced() {
    let volume = Volume::new();
    let blocks = volume.blocks(&[0, 1]);
    assert!(volume.findings(&volume.header(&blocks), &blocks).is_empty());
    let lost = volume.info();
    fs::remove_file(volume.dir.join("gocryptfs.conf")).unwrap();
    let passfile = volume.passfile.to_str().unwrap();
    let words = ["passwd", "--master-key", "--new-passfile", passfile, volume.dir.to_str().unwrap()];
    let written = cryptctl(&words, &volume.master);
    assert!(written.status.success(), "{}", written.text);
    let info = volume.info();
    for field in ["contents", "names", "hkdf", "key_slots", "bound", "features"] {
        assert_eq!(info[field], lost[field], "{field}");
    }
    assert!(volume.findings(&volume.header(&blocks), &blocks).is_empty());
}
