//! Plugins: the output of `strata new` and the code of the tutorial are built, tested,
//! mounted and used.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use strata_tests::{Sandbox, process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_strata");

fn strata(words: &[&str]) -> String {
    process::run(Command::new(PROGRAM).args(words))
}

fn refused(words: &[&str]) -> String {
    let said = process::try_run(Command::new(PROGRAM).args(words));
    assert!(!said.status.success() && said.text.lines().count() == 1, "{}", said.text);
    said.text
}

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the path of a scratch directory in the target directory, and removes its old content.
fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&dir);
    dir
}

/// Runs cargo in a generated crate. The target directory persists, so later runs are incremental.
fn cargo(dir: &Path, words: &[&str]) -> String {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugins");
    process::run(
        Command::new(env!("CARGO")).args(words).arg("--offline").current_dir(dir).env("CARGO_TARGET_DIR", target),
    )
}

/// Installs the plugin of a crate with mode 0755, since writable plugins are refused.
fn plugin(name: &str, sandbox: &Sandbox) -> String {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("plugins/debug/lib{name}.so"));
    let installed = sandbox.path(&format!("{name}.so"));
    fs::copy(built, &installed).unwrap();
    fs::set_permissions(&installed, fs::Permissions::from_mode(0o755)).unwrap();
    installed.to_str().unwrap().to_owned()
}

fn mount(stack: &str) {
    strata(&["mount", stack, "/mnt/at"]);
}

fn unmount() {
    process::run(Command::new("umount").arg("/mnt/at"));
}

fn stage() -> Sandbox {
    let sandbox = Sandbox::with_time(std::time::Duration::from_secs(900));
    for dir in ["data", "at"] {
        let _ = sandbox.dir(dir);
    }
    sandbox
}

/// Returns the concatenated code blocks of a document that have the info string `mark`.
fn blocks(document: &str, mark: &str) -> String {
    let (mut out, mut within) = (String::new(), None);
    for line in document.lines() {
        match (line.strip_prefix("```"), within) {
            (Some(found), None) => within = Some(found == mark),
            (Some(_), Some(_)) => within = None,
            (None, Some(true)) => out.extend([line, "\n"]),
            _ => {}
        }
    }
    assert_eq!(within, None, "a block that is not closed");
    out
}

#[test]
fn generated_rust_layers_and_the_tutorial_work() {
    let dir = scratch("veil");
    let sandbox = stage();
    strata(&["new", "veil", dir.to_str().unwrap(), "--strata", top().to_str().unwrap()]);
    // Only the link contains a path of this machine.
    let manifest = fs::read_to_string(dir.join("Cargo.toml")).unwrap();
    assert!(!manifest.contains(top().to_str().unwrap()) && !manifest.contains("\"/"), "{manifest}");
    assert_eq!(fs::read_link(dir.join("strata")).unwrap(), top());
    assert!(fs::read_to_string(dir.join(".gitignore")).unwrap().lines().any(|line| line == "/strata"));
    assert!(cargo(&dir, &["test"]).contains("3 passed"));
    // A moved crate needs a new link.
    let moved = scratch("moved");
    process::run(Command::new("cp").arg("-a").args([&dir, &moved]));
    fs::remove_file(moved.join("strata")).unwrap();
    assert!(
        !process::try_run(Command::new(env!("CARGO")).args(["tree", "--offline"]).current_dir(&moved)).status.success()
    );
    std::os::unix::fs::symlink(top(), moved.join("strata")).unwrap();
    assert!(cargo(&moved, &["tree", "--depth", "1"]).contains("wrapfs v"));
    // A mandatory option.
    let (layer, tests) = (dir.join("src/lib.rs"), dir.join("tests/layer.rs"));
    let (written, tested) = (fs::read_to_string(&layer).unwrap(), fs::read_to_string(&tests).unwrap());
    let needs = written.replace(".unwrap_or(4096)", ".ok_or(\"block: it is missing\")?");
    let given =
        tested.replace("OPTIONS: &[(&str, &str)] = &[];", "OPTIONS: &[(&str, &str)] = &[(\"block\", \"512\")];");
    assert!(needs != written && given != tested);
    fs::write(&layer, needs).unwrap();
    fs::write(&tests, given).unwrap();
    assert!(cargo(&dir, &["test"]).contains("3 passed"));
    fs::write(&layer, written).unwrap();
    fs::write(&tests, tested).unwrap();
    // The generated layer is the identity.
    cargo(&dir, &["build"]);
    let veil = plugin("veil", &sandbox);
    mount(&format!("{veil},block=100 / /mnt/data"));
    process::sh(
        "cp -a \"$1\"/src /mnt/at/copy && diff -r \"$1\"/src /mnt/at/copy && diff -r \"$1\"/src /mnt/data/copy",
        &[&dir],
    );
    unmount();
    assert!(
        refused(&["mount", &format!("{veil},block=0 / /mnt/data"), "/mnt/at"])
            .contains("block=0: out of range; use 1 to")
    );
    assert!(refused(&["mount", &format!("{veil},bolck=1 / /mnt/data"), "/mnt/at"]).contains("did you mean block?"));

    // Replace the generated code by the tutorial's code blocks.
    let tutorial = fs::read_to_string(top().join("docs/tutorial.md")).unwrap();
    fs::write(dir.join("src/lib.rs"), blocks(&tutorial, "rust")).unwrap();
    let tests = fs::read_to_string(dir.join("tests/layer.rs")).unwrap();
    fs::write(dir.join("tests/layer.rs"), tests + &blocks(&tutorial, "rust,tests")).unwrap();
    let said = cargo(&dir, &["test"]);
    assert!(said.contains("5 passed") && !said.contains("warning"), "{said}");
    cargo(&dir, &["build"]);
    let veil = plugin("veil", &sandbox);
    let shown = strata(&["layers", &veil]);
    assert!(shown.contains("key=BYTES") && shown.contains("private"), "{shown}");
    mount(&format!("wrapfs / {veil},key=secret,private / /mnt/data"));
    fs::write("/mnt/at/hello", "plain words").unwrap();
    assert_eq!(fs::read("/mnt/at/hello").unwrap(), b"plain words");
    assert_eq!(fs::metadata("/mnt/at/hello").unwrap().permissions().mode() & 0o777, 0o600);
    assert_ne!(fs::read("/mnt/data/uryyb").unwrap(), b"plain words");
    let count = "import fcntl, os, struct
number = 2 << 30 | 8 << 16 | ord('v') << 8 | 1
print(struct.unpack('Q', fcntl.ioctl(os.open('/mnt/at', os.O_RDONLY), number, bytes(8)))[0])";
    let counted: u64 = process::run(Command::new("python3").args(["-c", count])).trim().parse().unwrap();
    assert!(counted > 0);
    assert!(strata(&["stack", "/mnt/at"]).contains("veil"));
    unmount();
    assert!(refused(&["mount", &format!("{veil},key= / /mnt/data"), "/mnt/at"]).contains("the key is empty"));
}

#[test]
fn generated_c_layers_work() {
    let dir = scratch("layer-in-c");
    let sandbox = stage();
    strata(&["new", "my-c", dir.to_str().unwrap(), "--c"]);
    process::run(Command::new("make").arg("-C").arg(&dir));
    // The generated check finds strata in PATH.
    let bin = sandbox.dir("bin");
    std::os::unix::fs::symlink(PROGRAM, bin.join("strata")).unwrap();
    fs::set_permissions(dir.join("my-c.so"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let check = || {
        let mut make = Command::new("make");
        make.args(["-s", "check", "-C"]).arg(&dir).env("PATH", &path).env("TMPDIR", "/mnt");
        process::try_run(&mut make)
    };
    let passes = |said: &str| assert!(said.contains("it works"), "{said}");
    passes(&check().text);
    // A layer that refuses names passes, one that changes data does not.
    let (source, written) = (dir.join("my-c.c"), fs::read_to_string(dir.join("my-c.c")).unwrap());
    let edit = |from: &str, to: &str| {
        assert!(written.contains(from), "{written}");
        fs::write(&source, written.replacen(from, to, 1)).unwrap();
        process::run(Command::new("make").arg("-C").arg(&dir));
        fs::set_permissions(dir.join("my-c.so"), fs::Permissions::from_mode(0o755)).unwrap();
    };
    let copies = "\tif (name.len <= capacity)\n";
    edit(copies, &format!("\tif (name.bytes[0] == '.')\n\t\treturn -EACCES;\n{copies}"));
    let said = check().text;
    passes(&said);
    assert!(said.contains("refused: ") && said.contains(".gitignore"), "{said}");
    edit("\tmemcpy(to, from, len);\n", "\tmemcpy(to, from, len);\n\tto[0] += len > 0;\n");
    let said = check();
    assert!(!said.status.success() && !said.text.contains("it works"), "{}", said.text);
}

#[test]
fn c_examples_can_be_mounted_and_used() {
    let sandbox = stage();
    let [vowels, ..] = ["vowels", "runs", "trash"].map(|name| {
        let plugin = sandbox.path(&format!("{name}.so"));
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-shared", "-fPIC", "-I"]).arg(top().join("include"));
        process::run(cc.arg("-o").arg(&plugin).arg(top().join(format!("examples/c/{name}.c"))));
        fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
        plugin
    });
    mount("xor / /mnt/vowels.so / /mnt/vowels.so,letters=xyz / /mnt/data");
    fs::write("/mnt/at/tree-x", "data").unwrap();
    assert!(Path::new("/mnt/data/trii-y").exists());
    fs::rename("/mnt/at/tree-x", "/mnt/at/a").unwrap();
    assert_eq!(fs::read("/mnt/at/a").unwrap(), b"data");
    unmount();
    mount("/mnt/runs.so / /mnt/data");
    fs::write("/mnt/at/long", vec![b'x'; 1 << 20]).unwrap();
    assert_eq!(fs::read("/mnt/at/long").unwrap(), vec![b'x'; 1 << 20]);
    assert_eq!(fs::metadata("/mnt/at/long").unwrap().len(), 1 << 20);
    unmount();
    let blocks = std::os::unix::fs::MetadataExt::blocks(&fs::metadata("/mnt/data/long").unwrap());
    assert!(blocks * 512 < 1 << 19, "{blocks} blocks");
    // Removed files are kept, even if lookups run on threads that must not block.
    mount("/mnt/trash.so / xor / /mnt/data");
    fs::create_dir("/mnt/at/dir").unwrap();
    for text in ["first", "second"] {
        fs::write("/mnt/at/dir/file", text).unwrap();
        fs::remove_file("/mnt/at/dir/file").unwrap();
    }
    assert!(!Path::new("/mnt/at/dir/file").exists());
    assert_eq!(fs::read("/mnt/at/dir/.trash/file").unwrap(), b"first");
    assert_eq!(fs::read("/mnt/at/dir/.trash/file.1").unwrap(), b"second");
    fs::remove_dir_all("/mnt/at/dir").unwrap();
    unmount();
    // A plugin that others can write to is not loaded.
    fs::set_permissions(&vowels, fs::Permissions::from_mode(0o777)).unwrap();
    let wrong = refused(&["mount", "/mnt/vowels.so / /mnt/data", "/mnt/at"]);
    assert!(
        wrong.contains("part 1 of the stack: /mnt/vowels.so: cannot load as a layer: writable by group or others"),
        "{wrong}"
    );
}
