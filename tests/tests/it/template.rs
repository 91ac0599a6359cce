//! Layers made with the template, mounted: third-party suites and coherence on files whose names
//! and data are stored in another format.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use hostfs::{HostFs, HostOptions};
use server::Config;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use strata_tests::suite::{fsx, pjdfstest, regressions};
use strata_tests::{Rng, Sandbox, Transport, long, on_both_transports, process};
use vnode::Layer;
use wrapfs::{Build, LayerType, Settings, Template, Traits};

const XOR: &LayerType = &layers::xor::LAYER;
const ROT13: &LayerType = &layers::rot13::LAYER;

/// A layer that encodes the names of each directory with the contents of a file in it.
#[path = "../../../crates/wrapfs/tests/it/common/store.rs"]
#[allow(dead_code)]
mod store;

const STORED: &LayerType = &LayerType {
    name: "stored",
    about: "encodes names with a key per directory",
    options: &[],
    build: Build::Over(&|lower, _settings| Ok(store::Store::new(255).over(lower))),
    traits: Traits::NONE,
};

/// Delay until changes made below are visible.
const CACHE: Duration = Duration::from_millis(50);

/// A stack of layers over a directory, without passthrough; unmounted when dropped.
struct LayerStack {
    mounted: server::Mounted,
    dir: PathBuf,
}

impl LayerStack {
    /// Mounts the layers in `kinds`, lowest first, each with an option.
    fn new(lower: &Path, dir: PathBuf, transport: Transport, kinds: &[(&LayerType, &str, &str)]) -> Self {
        fs::create_dir_all(&dir).unwrap();
        let mut layer: Arc<dyn Layer> = HostFs::open(lower, HostOptions::default()).unwrap();
        for (kind, option, value) in kinds {
            let mut settings = Settings::new();
            if !option.is_empty() {
                settings.insert(option, value.as_bytes());
            }
            layer = kind.over(layer, &settings).unwrap();
        }
        let mut config = Config::new(dir.clone(), "template", "template");
        config.mount.allow_other = true;
        config.passthrough = false;
        config.cache = CACHE;
        config.mount.transport = match transport {
            Transport::Ring => fuse::Transport::Ring,
            Transport::Device => fuse::Transport::Device,
        };
        Self { mounted: server::mount(layer, &config).unwrap(), dir }
    }
}

impl Drop for LayerStack {
    fn drop(&mut self) {
        self.mounted.stop().unwrap();
        self.mounted.wait();
    }
}

const THREE: [(&LayerType, &str, &str); 3] = [(XOR, "block", "4096"), (ROT13, "", ""), (XOR, "block", "1000")];

/// Creates an empty directory with the mode bit that marks a directory managed by usenetfs.
fn make_managed_dir(dir: &Path) -> PathBuf {
    fs::create_dir(dir).unwrap();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o4755)).unwrap();
    dir.to_owned()
}

fn fsx_through_stacks(transport: Transport) {
    let sandbox = Sandbox::with_time(Duration::from_secs(300));
    let disk = sandbox.ext4("disk", 256);
    let artifacts = sandbox.dir("artifacts");
    let seeds = if long() { 1..=10 } else { 1..=1 };
    let one = |block| vec![(XOR, "block", block)];
    let zstd = vec![(&layers::zstd::LAYER, "block", "4096")];
    let snooped = vec![(&snoopfs::LAYER, "", "")];
    let spread = vec![(&usenetfs::LAYER, "", "")];
    let lower = make_managed_dir(&disk.join("lower"));
    for (i, kinds) in [one("4096"), one("7"), one("65536"), THREE.to_vec(), zstd, snooped, spread].iter().enumerate() {
        let stack = LayerStack::new(&lower, sandbox.path("m"), transport, kinds);
        for seed in seeds.clone() {
            let output = fsx(&stack.dir.join(format!("file{i}")), seed, 3000, &artifacts);
            assert!(output.status.success(), "fsx -S {seed} through {kinds:?}: {}\n{}", output.status, output.text);
        }
    }
}

fn mapped_files_can_be_read_executed_and_written(transport: Transport) {
    let sandbox = Sandbox::new();
    let disk = sandbox.dir("disk");
    let stack = LayerStack::new(&disk, sandbox.path("m"), transport, &THREE);
    // Programs are executed from mappings.
    let program = stack.dir.join("true");
    fs::copy("/bin/true", &program).unwrap();
    assert_ne!(fs::read(disk.join("gehr")).unwrap(), fs::read("/bin/true").unwrap());
    process::sh("\"$1\"", &[&program]);
    // write(2) and the mapping are coherent.
    let path = stack.dir.join("mapped");
    let mut content = Rng::new(1).bytes(100_000);
    fs::write(&path, &content).unwrap();
    process::sh(
        "exec python3 -c 'import mmap, sys
f = open(sys.argv[1], \"r+b\")
m = mmap.mmap(f.fileno(), 0)
assert m[:] == open(sys.argv[1], \"rb\").read()
m[5000:5009] = b\"by memory\"
f.seek(70000)
f.write(b\"by writing\")
f.flush()
assert m[70000:70010] == b\"by writing\"
m.flush()' \"$1\"",
        &[&path],
    );
    content[5000..5009].copy_from_slice(b"by memory");
    content[70_000..70_010].copy_from_slice(b"by writing");
    drop(stack);
    let again = LayerStack::new(&disk, sandbox.path("m"), transport, &THREE);
    assert!(fs::read(again.dir.join("mapped")).unwrap() == content);
}

fn appends_and_sparse_files(transport: Transport) {
    let sandbox = Sandbox::new();
    let disk = sandbox.ext4("disk", 64);
    let stack = LayerStack::new(&disk, sandbox.path("m"), transport, &[(XOR, "block", "512")]);
    let path = stack.dir.join("log");
    let mut log = OpenOptions::new().append(true).create(true).open(&path).unwrap();
    for line in 0..500 {
        log.write_all(format!("line {line}\n").as_bytes()).unwrap();
    }
    let expected: String = (0..500).map(|line| format!("line {line}\n")).collect();
    assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    // Sparse files and copies of them keep their holes.
    let sparse = File::create(stack.dir.join("sparse")).unwrap();
    sparse.write_all_at(b"far away", 50 << 20).unwrap();
    process::sh("cp --sparse=always \"$1/sparse\" \"$1/copy\"; cmp \"$1/sparse\" \"$1/copy\"", &[&stack.dir]);
    for name in ["sparse", "copy"] {
        let blocks = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(stack.dir.join(name)).unwrap());
        assert!(blocks < 100, "{name}: {blocks}");
    }
}

/// Several threads write different bytes of one page and read them back: a page must not be dropped
/// while a WRITE to it is queued.
fn concurrent_writers_of_one_page(transport: Transport) {
    const WRITERS: u64 = 8;
    let sandbox = Sandbox::with_time(Duration::from_secs(120));
    let disk = sandbox.ext4("disk", 256);
    let zstd = vec![(&layers::zstd::LAYER, "", "")];
    for (i, kinds) in [zstd, Vec::new()].iter().enumerate() {
        let stack = LayerStack::new(&disk, sandbox.path("m"), transport, kinds);
        let path = stack.dir.join(format!("page{i}"));
        fs::write(&path, [0; 4096]).unwrap();
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let path = &path;
                scope.spawn(move || {
                    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
                    for round in 0..if long() { 20_000_u64 } else { 1500 } {
                        let bytes = [u8::try_from(round % 251).unwrap(); 100];
                        file.write_all_at(&bytes, writer * 100).unwrap();
                        let mut back = [0; 100];
                        file.read_exact_at(&mut back, writer * 100).unwrap();
                        assert_eq!(back, bytes, "writer {writer}, round {round}, {kinds:?}");
                    }
                });
            }
        });
    }
}

/// An open file returns data changed below, at the latest after its attributes are requested.
fn open_files_return_data_changed_below(transport: Transport) {
    let sandbox = Sandbox::with_time(Duration::from_secs(60));
    let disk = sandbox.ext4("disk", 64);
    let stack = LayerStack::new(&disk, sandbox.path("m"), transport, &[]);
    fs::write(disk.join("f"), b"first").unwrap();
    let open = File::open(stack.dir.join("f")).unwrap();
    for text in ["first", "other", "longer than before", "short"] {
        fs::write(disk.join("f"), text).unwrap();
        testkit::until("the open file shows the new data", || {
            let len = open.metadata().unwrap().len();
            let mut bytes = vec![0; 64];
            let read = open.read_at(&mut bytes, 0).unwrap();
            let bytes = bytes[..read].escape_ascii().to_string();
            testkit::seen((len, bytes), |(len, bytes)| *len == text.len() as u64 && bytes == text)
        });
        // A newly opened file returns the new data only.
        assert_eq!(fs::read(stack.dir.join("f")).unwrap(), text.as_bytes());
    }
}

/// A layer that refuses all changes and declares itself read-only.
const FROZEN: &LayerType = &LayerType {
    name: "frozen",
    about: "refuses all changes",
    options: &[],
    build: Build::Over(&|lower, _settings| Template::over(lower).read_only().build()),
    traits: Traits::NONE,
};

/// Over a read-only layer the mount is read-only, and the kernel refuses changes without a request.
fn a_read_only_layer_is_mounted_read_only(transport: Transport) {
    let sandbox = Sandbox::new();
    let disk = sandbox.dir("disk");
    fs::write(disk.join("f"), b"as it is").unwrap();
    let stack = LayerStack::new(&disk, sandbox.path("m"), transport, &[(FROZEN, "", "")]);
    assert_eq!(fs::read(stack.dir.join("f")).unwrap(), b"as it is");
    let refused = [fs::write(stack.dir.join("f"), b"other"), fs::create_dir(stack.dir.join("d"))];
    for error in refused.map(Result::unwrap_err) {
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    }
    let options = process::sh("findmnt -no OPTIONS \"$1\"", &[&stack.dir]);
    assert!(options.split(',').any(|option| option == "ro"), "{options}");
}

fn directories_with_state(transport: Transport) {
    let sandbox = Sandbox::with_time(Duration::from_secs(120));
    let disk = sandbox.ext4("disk", 256);
    let lower = disk.join("lower");
    fs::create_dir(&lower).unwrap();
    let mounted = || LayerStack::new(&lower, sandbox.path("m"), transport, &[(STORED, "", "")]);
    let stack = mounted();
    // A tree with long names and with read-only directories; copied, moved and linked.
    let tree = sandbox.dir("tree");
    process::sh(
        "cd \"$1\"; long=$(printf 'n%.0s' {1..200}); mkdir -p a/b/c \"d/$long\" a/$long; echo text > \"d/$long/$long\"
         ln \"d/$long/$long\" a/b/linked; ln -s ../b a/$long/link; echo more > a/b/c/file; chmod 555 a/b/c",
        &[&tree],
    );
    process::sh(
        "cd \"$2\"; cp -a \"$1\" one; mv one two; mkdir one; cp -a \"$1\" one/; mv one/tree three; rmdir one
         cp -al two/. three/again; mkdir empty; mv -T three/again empty; ! mv -T two empty 2> /dev/null",
        &[&tree, &stack.dir],
    );
    let same =
        "diff -r --no-dereference \"$1\" \"$2/$3\"; (cd \"$1\"; find . | sort) | cmp - <(cd \"$2/$3\"; find . | sort)";
    let check = |dir: &Path| {
        process::sh("cmp <(ls \"$1\") <(printf 'empty\\nthree\\ntwo\\n')", &[dir]);
        for copy in ["two", "three", "empty"] {
            process::sh(same, &[&tree, dir, Path::new(copy)]);
        }
    };
    check(&stack.dir);
    // Every directory has a state, and no plain name appears below.
    process::sh(
        "cd \"$1\"; find . -type d | while read -r dir; do test -f \"$dir/store.state\"; done
         test -z \"$(find . -name 'linked' -o -name 'nnn*')\"",
        &[&lower],
    );
    drop(stack);
    let stack = mounted();
    check(&stack.dir);
    process::sh("chmod -R u+w \"$1\"; rm -r \"$1\"/*; test -z \"$(ls -A \"$1\")\"", &[&stack.dir]);
    assert_eq!(process::sh("ls -A \"$1\"", &[&lower]).trim(), store::STATE);
}

on_both_transports!(
    directories_with_state,
    a_read_only_layer_is_mounted_read_only,
    fsx_through_stacks,
    mapped_files_can_be_read_executed_and_written,
    appends_and_sparse_files,
    concurrent_writers_of_one_page,
    open_files_return_data_changed_below
);

/// Every case of pjdfstest that passes natively also passes through a stack of three, with
/// compressed data, in a managed directory, and with per-directory state.
#[test]
fn pjdfstest_through_layers() {
    let sandbox = Sandbox::with_time(Duration::from_secs(400));
    let disk = sandbox.ext4("disk", 1024);
    let second = sandbox.dir("second");
    let [native, three, zstd, stored] = ["native", "three", "zstd", "stored"].map(|name| disk.join(name));
    for dir in [&native, &three, &zstd, &stored] {
        fs::create_dir(dir).unwrap();
    }
    let usenet = make_managed_dir(&disk.join("usenet"));
    let native = pjdfstest(&native, &second);
    let compressing = [(&layers::zstd::LAYER, "", "")];
    let make_managed_dir = [(&usenetfs::LAYER, "scheme", "hash")];
    let storing = [(STORED, "", "")];
    let layers = [
        (&three, &THREE[..], "m"),
        (&zstd, &compressing, "z"),
        (&usenet, &make_managed_dir, "u"),
        (&stored, &storing, "s"),
    ];
    for (lower, kinds, mount) in layers {
        let stack = LayerStack::new(lower, sandbox.path(mount), Transport::Ring, kinds);
        let mut regressions = regressions(&native, &pjdfstest(&stack.dir, &second));
        if *lower == usenet {
            // These four cases set the mode of their working directory, which clears the bit that
            // makes it managed.
            regressions.retain(|case| !case.contains("::uid_gid_eq_euid_egid: ") || !case.contains("ENOTEMPTY"));
        }
        assert!(
            regressions.is_empty(),
            "{kinds:?}: {} cases fail but pass natively:\n{}",
            regressions.len(),
            regressions.join("\n")
        );
    }
}
