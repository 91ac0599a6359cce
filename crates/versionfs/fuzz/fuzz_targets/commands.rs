//! Sends arbitrary input with each command of the layer. The first byte selects the command and the
//! user, and input that begins with a blank gets the name of a file that has versions.

#![no_main]

use libfuzzer_sys::fuzz_target;
use memfs::MemFs;
use std::sync::Arc;
use versionfs::{Options, Storage, VersionFs};
use vnode::{Cx, Layer as _, Name, OpenFlags, RenameFlags, Vnode};

fn cx() -> Cx<'static> {
    Cx::internal(0, 0)
}

fn name(bytes: &[u8]) -> Name<'_> {
    Name::new(bytes).expect("a valid name")
}

fn write(dir: &Arc<dyn Vnode>, file: &[u8], data: &[u8]) {
    let open = match dir.lookup(&cx(), name(file)).expect("a lookup") {
        Some(entry) => entry.vnode.open(&cx(), OpenFlags::RDWR.with_trunc()).expect("an open file"),
        None => dir.create(&cx(), name(file), 0o644, OpenFlags::RDWR).expect("a new file").1,
    };
    open.write(&cx(), data, 0).expect("a write");
}

/// A file `a` with versions, a removed directory `d`, a renamed file `r`.
fn history(fs: &VersionFs) {
    let root = fs.root();
    for data in [&b"one"[..], b"two, which is longer", b"three"] {
        write(&root, b"a", data);
        write(&root, b"q", data);
    }
    let dir = root.mkdir(&cx(), name(b"d"), 0o755).expect("a directory").vnode;
    write(&dir, b"b", b"content");
    dir.unlink(&cx(), name(b"b")).expect("no file");
    root.rmdir(&cx(), name(b"d")).expect("no directory");
    root.rename(&cx(), name(b"q"), &root, name(b"r"), RenameFlags::default()).expect("another name");
}

/// Reads what a token, if the reply is one, refers to.
fn redeem(dir: &Arc<dyn Vnode>, reply: &[u8]) {
    let Ok(token) = Name::new(reply.trim_ascii_end()) else { return };
    let Ok(Some(entry)) = dir.lookup(&cx(), token) else { return };
    let _ = entry.vnode.readdir(&cx(), 0, &mut |_| true);
    if let Ok(open) = entry.vnode.open(&cx(), OpenFlags::RDONLY) {
        let _ = open.read(&cx(), &mut [0; 100], 0);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, input)) = data.split_first() else { return };
    let storage = if choice & 0x40 == 0 { Storage::Sparse } else { Storage::Full };
    let fs = VersionFs::new(MemFs::new(), Options { storage, ..Options::default() });
    history(&fs);
    let commands = fs.commands();
    let Some(command) = commands.get(usize::from(choice & 0x1f)) else { return };
    let caller = if choice & 0x80 == 0 { cx() } else { Cx::internal(1000, 1000) };
    for line in input.split(|byte| *byte == b'\n').take(8) {
        let line = if line.starts_with(b" ") { [b"a", line].concat() } else { line.to_vec() };
        if let Ok(reply) = fs.root().control(&caller, command.name, &line) {
            redeem(&fs.root(), &reply);
        }
    }
    // Every name can still be used.
    let _ = fs.root().control(&cx(), "versionfs.names", b"").expect("names");
    write(&fs.root(), b"new", b"data");
});
