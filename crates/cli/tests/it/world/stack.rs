//! Random stacks with cryptfs, over memory.

use crate::callers::test_host::Host;
use cli::registry;
use cryptformat::{Config, ContentCipher, Flags, Kdf, Limits, NameFlags, NewVolume, Passphrase, Scrypt};
use memfs::{Faults, MemFs, MemOptions};
use std::sync::Arc;
use testkit::Rng;
use vnode::{Cx, Layer, Name, OpenFlags};
use wrapfs::{LayerType, Settings};

pub(crate) const PASSPHRASE: &str = "at least sixteen characters";

/// The layers that lie above or below cryptfs.
const OTHERS: [&str; 10] =
    ["zstd", "casefold", "rot13", "xor", "wrapfs", "usenetfs", "snoopfs", "viewfs", "versionfs", "unionfs"];

/// Layers that programs notice: they are also above the twin.
const NOTICED: [&str; 2] = ["casefold", "usenetfs"];

/// A layer and its options.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) kind: &'static LayerType,
    options: Vec<(&'static str, String)>,
}

/// A stack: which layers with which options over what.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    /// Top first.
    pub(crate) parts: Vec<Part>,
    flags: Flags,
    pub(crate) sessions: bool,
    /// Whether a power failure is survived, too.
    pub(crate) power: bool,
    reflink: bool,
}

impl Part {
    fn random(name: &'static str, rng: &mut Rng) -> Self {
        let mut part = Self { kind: registry::find(name).unwrap(), options: Vec::new() };
        match name {
            "zstd" => {
                part.set("block", rng.pick(&["512", "4k", "16k"]));
                part.set("level", rng.pick(&["1", "3", "-5"]));
            }
            "xor" => part.set("block", rng.pick(&["4k", "512", "1"])),
            "usenetfs" => {
                part.set("scheme", rng.pick(&["digits", "hash"]));
                if part.options[0].1 == "hash" {
                    part.set("limit", rng.pick(&["2", "3", "1000"]));
                }
            }
            "versionfs" => part.set(
                "storage",
                rng.pick(&["full", "compress", "sparse", "sparse-compress", "delta", "text", "blocks"]),
            ),
            // The caller is no process.
            "viewfs" => part.set("unknown", "1"),
            "unionfs" => part.set("delete", rng.pick(&["whiteout", "all"])),
            _ => {}
        }
        part
    }

    fn set(&mut self, name: &'static str, value: &str) {
        self.options.retain(|(other, _)| *other != name);
        self.options.push((name, value.to_owned()));
    }

    fn over(&self, lower: Arc<dyn Layer>) -> Result<Arc<dyn Layer>, String> {
        let mut settings = Settings::new();
        for (name, value) in &self.options {
            settings.insert(name, value.as_bytes());
        }
        let Some(branches) = self.kind.branches() else { return self.kind.over(lower, &settings) };
        self.kind.check_above(lower.properties())?;
        let stack::Make::Opened(make) = branches.make else { return Err("not opened at once".to_owned()) };
        let situation = stack::Situation { passthrough: None, may_chown: true, cache: None };
        let branch = stack::Branch { name: "/below".into(), mode: (branches.unmarked)(0, false), lower };
        make(vec![branch], &settings, &situation).map(|made| made.layer)
    }
}

/// Whether the layers can lie above each other: those that change names below casefold, and above
/// viewfs only those that keep callers apart.
fn fit(names: &[&str]) -> bool {
    let place = |name| names.iter().position(|other| *other == name);
    let changes_names = ["cryptfs", "usenetfs", "unionfs", "rot13", "versionfs"];
    let keeps_apart = |name: &&str| registry::find(name).unwrap().traits.keeps_callers_apart;
    place("casefold").is_none_or(|fold| changes_names.iter().all(|name| place(name).is_none_or(|at| fold < at)))
        && place("viewfs").is_none_or(|views| names[..views].iter().all(keeps_apart))
}

fn random_flags(rng: &mut Rng) -> Flags {
    let names = NameFlags { dir_iv: !rng.one_in(4), ..NameFlags::default() };
    let bound = rng.one_in(3);
    Flags {
        cipher: rng.pick(&[
            ContentCipher::AesGcm,
            ContentCipher::AesGcm,
            ContentCipher::AesSiv,
            ContentCipher::XChaCha,
        ]),
        names: (!rng.one_in(5)).then_some(names),
        key_slots: bound,
        bound,
        ..Flags::default()
    }
}

impl Stack {
    /// Returns a stack of two to four layers, one of which is cryptfs.
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let mut names;
        loop {
            let mut others = OTHERS.to_vec();
            names = vec!["cryptfs"];
            for _ in 0..rng.pick(&[1, 1, 2, 2, 3]) {
                let other = others.swap_remove(rng.below(others.len()));
                names.insert(rng.below(names.len() + 1), other);
            }
            if fit(&names) {
                break;
            }
        }
        let parts: Vec<_> = names.iter().map(|name| Part::random(name, rng)).collect();
        let mut stack = Self { parts, flags: random_flags(rng), sessions: false, power: false, reflink: rng.one_in(2) };
        let (above, below) = stack.parts.split_at(stack.place());
        stack.sessions = above.iter().all(|part| part.kind.traits.keeps_callers_apart) && rng.one_in(3);
        let keeps_order =
            |part: &Part| ["rot13", "wrapfs", "casefold", "snoopfs", "viewfs", "cryptfs"].contains(&part.kind.name);
        stack.power = above.iter().chain(below).all(keeps_order) && rng.one_in(2);
        stack.choose_options(rng);
        stack
    }

    /// Returns the index of cryptfs.
    pub(crate) fn place(&self) -> usize {
        self.parts.iter().position(|part| part.kind.name == "cryptfs").unwrap()
    }

    /// Chooses the options anew that can differ at each mount.
    pub(crate) fn choose_options(&mut self, rng: &mut Rng) {
        let (sessions, power) = (self.sessions, self.power);
        for part in &mut self.parts {
            match part.kind.name {
                "zstd" => part.set("level", rng.pick(&["1", "3", "-5"])),
                "cryptfs" => {
                    part.set("journal", if power { "power" } else { rng.pick(&["kill", "kill", "power"]) });
                    part.set("key", if sessions { "session" } else { "mount" });
                    if !sessions {
                        part.set("extpass", PASSPHRASE);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns an empty bottom.
    pub(crate) fn bottom(&self) -> Arc<MemFs> {
        let options =
            MemOptions { lose_data: self.power, reflink: self.reflink, identified: true, ..MemOptions::default() };
        MemFs::with(options, &Faults::new())
    }

    /// Creates the volume.
    pub(crate) fn create(&self, below: &Arc<MemFs>) {
        let root = self.below_cryptfs(below).unwrap();
        let own = Cx::internal(0, 0);
        let diriv = self.flags.names.is_some_and(|names| names.dir_iv).then_some(vec![7; 16]);
        let files = [("gocryptfs.conf", Some(self.configuration())), ("gocryptfs.diriv", diriv)];
        for (name, bytes) in files.into_iter().filter_map(|(name, bytes)| Some((name, bytes?))) {
            let name = Name::new(name.as_bytes()).unwrap();
            let (_, file) = root.root().create(&own, name, 0o400, OpenFlags::RDWR).unwrap();
            file.write(&own, &bytes, 0).unwrap();
        }
        root.sync(&own).unwrap();
        root.unmounted();
    }

    fn configuration(&self) -> Vec<u8> {
        let kdf = Kdf::Scrypt(Scrypt { log_n: 10, ..Scrypt::default() });
        let label = if self.flags.key_slots { "first" } else { "" };
        let passphrase = Passphrase { bytes: PASSPHRASE.as_bytes(), kdf, label };
        let new = NewVolume { creator: "test", flags: self.flags, passphrase };
        Config::create(&new, Limits::default()).unwrap().0.to_json().unwrap()
    }

    /// Builds the whole stack.
    pub(crate) fn over(&self, below: &Arc<MemFs>) -> Result<Arc<dyn Layer>, String> {
        let _set_before = cryptfs::set_host(Arc::new(Host::new(None)));
        build(&self.parts, Arc::clone(below) as Arc<dyn Layer>)
    }

    /// Builds what lies below cryptfs.
    pub(crate) fn below_cryptfs(&self, below: &Arc<MemFs>) -> Result<Arc<dyn Layer>, String> {
        build(&self.parts[self.place() + 1..], Arc::clone(below) as Arc<dyn Layer>)
    }

    /// Returns an empty tree that differs from the stack in nothing that programs notice.
    pub(crate) fn twin(&self) -> Arc<dyn Layer> {
        let noticed: Vec<_> = self.parts.iter().filter(|part| NOTICED.contains(&part.kind.name)).cloned().collect();
        let options = MemOptions { reflink: true, ..MemOptions::default() };
        build(&noticed, MemFs::with(options, &Faults::new())).unwrap()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.parts.iter().any(|part| part.kind.name == name)
    }

    /// Whether, on a full disk, cryptfs can't write what it has written before.
    pub(crate) fn overwrites_take_space(&self) -> bool {
        self.parts[self.place()..].iter().any(|part| part.kind.name == "zstd")
    }

    /// Whether a copy of the bottom is the same volume: the records of other layers name inodes.
    pub(crate) fn can_be_copied(&self) -> bool {
        !self.has("unionfs") && !self.has("versionfs")
    }

    /// Whether gocryptfs can open the volume.
    pub(crate) fn is_gocryptfs(&self) -> bool {
        !self.flags.key_slots
    }
}

fn build(parts: &[Part], bottom: Arc<dyn Layer>) -> Result<Arc<dyn Layer>, String> {
    parts.iter().rev().try_fold(bottom, |lower, part| part.over(lower))
}

impl core::fmt::Display for Stack {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for part in &self.parts {
            write!(f, "{}", part.kind.name)?;
            part.options.iter().try_for_each(|(name, value)| write!(f, ",{name}={value}"))?;
            write!(f, " / ")?;
        }
        write!(f, "memory ({:?}, lose_data {}, reflink {})", self.flags, self.power, self.reflink)
    }
}
