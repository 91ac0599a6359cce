//! Random operations on the native file system and on Strata: equal results and equal trees, before
//! and after remounts.
//!
//! `STRATA_SEED=N` runs that seed only.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;
use std::time::Duration;
use strata_tests::crypt::{BOUND, Volume};
use strata_tests::oracle::Oracle;
use strata_tests::oracle::population::{Item, build, divide, population, scatter};
use strata_tests::{Branch, Delete, Mode, Mounted, Rng, Sandbox, Spec, Transport, long};

/// Number of steps between two comparisons of the whole trees. `STRATA_TEST_STRIDE` changes it, to
/// find the step that causes a difference.
fn stride() -> u64 {
    testkit::number("STRATA_TEST_STRIDE").unwrap_or(150)
}

fn seeds(default: &[u64]) -> Vec<u64> {
    if let Some(seed) = testkit::number("STRATA_SEED") {
        return vec![seed];
    }
    if long() { (1..=40).collect() } else { default.to_vec() }
}

/// The lower directories, leftmost first.
#[derive(Clone, Copy)]
enum Layout {
    /// The null layer.
    Null,
    /// Versionfs.
    Versions,
    /// Cryptfs, with these flags of gocryptfs.
    Encrypted(&'static [&'static str]),
    /// All objects are on the branch of that number; the branches have these modes, and the others
    /// are empty.
    One(usize, &'static [Mode]),
    /// The objects are divided among the branches right of the first.
    Divided(&'static [Mode]),
    /// All branches have a part of the tree: a directory is on some of them; a file is on one, and
    /// sometimes on a later one with other contents.
    Scattered(&'static [Mode]),
}

const RW_RO: Layout = Layout::One(1, &[Mode::Rw, Mode::Ro]);
const RW_RW_RO: Layout = Layout::Divided(&[Mode::Rw, Mode::Rw, Mode::Ro]);
const RW_RO_RW: Layout = Layout::Divided(&[Mode::Rw, Mode::Ro, Mode::Rw]);
const RW_RO_RO: Layout = Layout::Divided(&[Mode::Rw, Mode::Ro, Mode::Ro]);
const SCATTERED: Layout = Layout::Scattered(&[Mode::Rw, Mode::Rw, Mode::Ro, Mode::Rw, Mode::Ro]);
const SCATTERED_RW_RW_RO: Layout = Layout::Scattered(&[Mode::Rw, Mode::Rw, Mode::Ro]);
const RW_RW: Layout = Layout::One(0, &[Mode::Rw, Mode::Rw]);

impl Layout {
    /// Prepares the trees for comparison. A journal is created and removed in the root of an
    /// encrypted volume, so its time of modification is recent; that of the native root must be,
    /// too.
    fn begin(self, native: &Mounted, mounted: &Mounted) {
        if matches!(self, Self::Encrypted(_)) {
            for root in [native, mounted] {
                std::fs::write(root.path("new"), "").unwrap();
                std::fs::remove_file(root.path("new")).unwrap();
            }
        }
    }
}

/// Builds the branches. Read-only ones are on separate file systems, which are then mounted
/// read-only.
fn branches(sandbox: &Sandbox, items: &[Item], modes: &[Mode], contents: &[Vec<Item>]) -> Vec<Branch> {
    let rw = sandbox.path("disk");
    let ro = sandbox.ext4("readonly", 256);
    let mut branches = Vec::new();
    for (i, (mode, contents)) in modes.iter().zip(contents).enumerate() {
        let dir: PathBuf = if *mode == Mode::Rw { &rw } else { &ro }.join(format!("branch{i}"));
        std::fs::create_dir(&dir).unwrap();
        build(&dir, contents);
        branches.push((dir, *mode));
    }
    assert!(!items.is_empty());
    sandbox.read_only(&ro);
    branches
}

fn spec(sandbox: &Sandbox, items: &[Item], layout: Layout, transport: Transport, delete: Delete, seed: u64) -> Spec {
    let (modes, contents) = match layout {
        Layout::Encrypted(flags) => {
            let volume = Volume::new(&sandbox.path("disk/lower"), flags);
            let mounted = Mounted::new(volume.spec(transport), &sandbox.path("m"));
            build(mounted.dir(), items);
            return volume.spec(transport);
        }
        Layout::Null | Layout::Versions => {
            let lower = sandbox.path("disk/lower");
            std::fs::create_dir(&lower).unwrap();
            build(&lower, items);
            return match layout {
                Layout::Versions => Spec::stack("versionfs / ", &lower, transport),
                _ => Spec::wrap(&lower, transport),
            };
        }
        Layout::One(home, modes) => {
            (modes, (0..modes.len()).map(|i| if i == home { items.to_vec() } else { Vec::new() }).collect())
        }
        Layout::Divided(modes) => {
            let mut contents = vec![Vec::new()];
            contents.extend(divide(items, modes.len() - 1, seed));
            (modes, contents)
        }
        Layout::Scattered(modes) => (modes, scatter(items, modes.len(), seed)),
    };
    Spec::Union { branches: branches(sandbox, items, modes, &contents), delete, transport }
}

/// Kills the server repeatedly at random moments. The interrupted operation must be performed or
/// not, and all previous ones must be performed.
fn check_crashes(layout: Layout, transport: Transport, delete: Delete, default: &[u64]) {
    for seed in seeds(default) {
        let sandbox = Sandbox::with_time(Duration::from_secs(180));
        let items = population(seed);
        let native = native(&sandbox, &items);
        let spec = spec(&sandbox, &items, layout, transport, delete, seed);
        let mut mounted = Mounted::new(spec, &sandbox.path("m"));
        layout.begin(&native, &mounted);
        let encodes = matches!(layout, Layout::Encrypted(_));
        let mut oracle = Oracle::new(seed, native.dir(), mounted.dir()).encoding_blocks(encodes);
        let mut rng = Rng::new(seed);
        for _ in 0..if long() { 60 } else { 12 } {
            let killed = mounted.kill_after(Duration::from_micros(1000 + rng.below(60_000)));
            let interrupted = oracle.steps_until_dead(&killed);
            mounted.crash();
            mounted.mount_again();
            oracle.settle(&interrupted);
        }
    }
}

/// Creates the native tree and bind-mounts it, because the root of a mount can't be renamed or
/// removed.
fn native(sandbox: &Sandbox, items: &[Item]) -> Mounted {
    let dir = sandbox.ext4("disk", 512).join("native");
    std::fs::create_dir(&dir).unwrap();
    build(&dir, items);
    Mounted::new(Spec::Bind(dir), &sandbox.path("native"))
}

fn check(layout: Layout, transport: Transport, delete: Delete, default: &[u64]) {
    for seed in seeds(default) {
        let sandbox = Sandbox::with_time(Duration::from_secs(180));
        let items = population(seed);
        let native = native(&sandbox, &items);
        let spec = spec(&sandbox, &items, layout, transport, delete, seed);
        let mut mounted = Mounted::new(spec, &sandbox.path("m"));
        layout.begin(&native, &mounted);
        let mut oracle = Oracle::new(seed, native.dir(), mounted.dir());
        for round in 1..=if long() { 30 } else { 10 } {
            for _ in 0..150_u64.div_ceil(stride()) {
                oracle.steps(stride());
                oracle.compare(&format!("in round {round}"));
            }
            if round % 2 == 0 {
                oracle.close_all();
                mounted.remount();
                oracle.compare(&format!("after the remount in round {round}"));
            }
        }
    }
}

#[test]
fn union_ring() {
    check(RW_RO, Transport::Ring, Delete::Whiteout, &[1, 2, 3]);
}

#[test]
fn union_device() {
    check(RW_RO, Transport::Device, Delete::Whiteout, &[4, 5]);
}

#[test]
fn union_delete_all_ring() {
    check(RW_RO, Transport::Ring, Delete::All, &[6, 7]);
}

#[test]
fn union_delete_all_device() {
    check(RW_RO, Transport::Device, Delete::All, &[8]);
}

#[test]
fn two_rw_branches() {
    check(RW_RW, Transport::Ring, Delete::Whiteout, &[9]);
}

#[test]
fn three_branches_rw_rw_ro() {
    check(RW_RW_RO, Transport::Ring, Delete::Whiteout, &[10, 11]);
}

#[test]
fn three_branches_rw_rw_ro_delete_all() {
    check(RW_RW_RO, Transport::Device, Delete::All, &[12, 13]);
}

#[test]
fn three_branches_rw_ro_rw() {
    check(RW_RO_RW, Transport::Device, Delete::Whiteout, &[14, 15]);
}

#[test]
fn three_branches_rw_ro_rw_delete_all() {
    check(RW_RO_RW, Transport::Ring, Delete::All, &[16]);
}

#[test]
fn three_branches_rw_ro_ro() {
    check(RW_RO_RO, Transport::Ring, Delete::Whiteout, &[17]);
}

#[test]
fn scattered_three_branches() {
    check(SCATTERED_RW_RW_RO, Transport::Ring, Delete::Whiteout, &[25, 26]);
}

#[test]
fn scattered_three_branches_delete_all() {
    check(SCATTERED_RW_RW_RO, Transport::Device, Delete::All, &[27]);
}

#[test]
fn scattered_five_branches() {
    check(SCATTERED, Transport::Device, Delete::Whiteout, &[28]);
}

#[test]
fn scattered_five_branches_delete_all() {
    check(SCATTERED, Transport::Ring, Delete::All, &[29]);
}

#[test]
fn null_layer_ring() {
    check(Layout::Null, Transport::Ring, Delete::Whiteout, &[18, 19]);
}

#[test]
fn null_layer_device() {
    check(Layout::Null, Transport::Device, Delete::Whiteout, &[20]);
}

#[test]
fn killed_ring() {
    check_crashes(RW_RO, Transport::Ring, Delete::Whiteout, &[21, 22]);
}

#[test]
fn killed_device() {
    check_crashes(RW_RO, Transport::Device, Delete::All, &[23]);
}

#[test]
fn killed_three_branches() {
    check_crashes(RW_RW_RO, Transport::Ring, Delete::Whiteout, &[24]);
}

#[test]
fn killed_scattered() {
    check_crashes(SCATTERED, Transport::Ring, Delete::Whiteout, &[30]);
}

#[test]
fn killed_scattered_delete_all() {
    check_crashes(SCATTERED_RW_RW_RO, Transport::Device, Delete::All, &[31]);
}

#[test]
fn versions_ring() {
    check(Layout::Versions, Transport::Ring, Delete::Whiteout, &[31, 32]);
}

#[test]
fn versions_device() {
    check(Layout::Versions, Transport::Device, Delete::Whiteout, &[33]);
}

#[test]
fn encrypted_ring() {
    check(Layout::Encrypted(&[]), Transport::Ring, Delete::Whiteout, &[36, 37]);
}

#[test]
fn encrypted_device() {
    check(Layout::Encrypted(&["-xchacha"]), Transport::Device, Delete::Whiteout, &[38]);
}

#[test]
fn encrypted_with_plain_names() {
    check(Layout::Encrypted(&["-plaintextnames", "-aessiv"]), Transport::Ring, Delete::Whiteout, &[39]);
}

#[test]
fn killed_encrypted() {
    check_crashes(Layout::Encrypted(&[]), Transport::Ring, Delete::Whiteout, &[40, 41]);
}

#[test]
fn killed_bound() {
    check_crashes(Layout::Encrypted(&[BOUND]), Transport::Ring, Delete::Whiteout, &[42, 43]);
}

#[test]
fn killed_versions() {
    check_crashes(Layout::Versions, Transport::Ring, Delete::Whiteout, &[34, 35]);
}
