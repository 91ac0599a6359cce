//! The C example plugins behave like any layer, and the header matches the Rust side.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{Object, fresh, top};
use conformance::fixture::{ROOT, name, names};
use conformance::{random, run_all};
use core::mem::offset_of;
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Plan};
use plugin::abi;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vnode::{Cx, Errno, Layer, OpenFlags, Vnode};

fn example(name: &str) -> Object {
    Object::compiled(&top().join(format!("examples/c/{name}.c")), &[])
}

#[test]
fn examples_conform_to_the_interface() {
    for example in ["vowels", "runs"].map(example) {
        run_all(|| example.over(MemFs::new(), &[]).unwrap());
    }
    random::compare(4, 3000, &*example("vowels").over(MemFs::new(), &[]).unwrap(), &*MemFs::new());
}

#[test]
fn the_runs_example_compresses() {
    let lower = MemFs::new();
    let layer = example("runs").over(lower.clone(), &[]).unwrap();
    let (_, file) = layer.root().create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    let mut content = vec![7; 200_000];
    content[5000..5003].copy_from_slice(b"abc");
    file.write(&ROOT, &content, 0).unwrap();
    file.write(&ROOT, b"in the middle", 100_000).unwrap();
    content[100_000..100_013].copy_from_slice(b"in the middle");
    drop(file);
    let found = example("runs").over(lower.clone(), &[]).unwrap().root().lookup(&ROOT, name("f")).unwrap().unwrap();
    assert_eq!(found.attr.size, 200_000);
    let mut now = vec![0; 200_001];
    let file = found.vnode.open(&ROOT, OpenFlags::RDONLY).unwrap();
    assert_eq!(file.read(&ROOT, &mut now, 0), Ok(200_000));
    assert!(now[..200_000] == content);
    let below = lower.root().lookup(&ROOT, name("f")).unwrap().unwrap();
    assert!(below.attr.blocks * 512 < 50_000, "{} blocks", below.attr.blocks);
}

#[test]
fn the_vowels_example_translates_letters() {
    let object = example("vowels");
    let kind = plugin::load(&object.0).unwrap();
    assert_eq!((kind.name, kind.options.len(), kind.options[0].value), ("vowels", 1, Some("LETTERS")));
    let lower = MemFs::new();
    let layer = object.over(lower.clone(), &[]).unwrap();
    layer.root().mkdir(&ROOT, name("tree-house"), 0o755).unwrap();
    assert_eq!(names(&lower.root()), ["trii-huasi"]);
    assert_eq!(names(&layer.root()), ["tree-house"]);
    let other = object.over(lower.clone(), &[("letters", "xyz")]).unwrap();
    other.root().mkdir(&ROOT, name("xx"), 0o755).unwrap();
    assert_eq!(names(&lower.root()), ["trii-huasi", "yy"]);
    for bad in ["aa", "a/", "."] {
        let wrong = object.over(MemFs::new(), &[("letters", bad)]).unwrap_err();
        assert_eq!(wrong, "letters=: each letter can stand there once, and no / or .");
    }
}

#[test]
fn names_can_be_merged() {
    let source = top().join("crates/plugin/tests/anycase.c");
    for (defines, stored) in [(&["SMALL"][..], "readme"), (&[], "ReadMe")] {
        let object = Object::compiled(&source, defines);
        let lower = MemFs::new();
        let layer = object.over(lower.clone(), &[]).unwrap();
        assert!(layer.properties().merges_names);
        let root = layer.root();
        root.mkdir(&ROOT, name("ReadMe"), 0o755).unwrap();
        assert!(root.lookup(&ROOT, name("README")).unwrap().is_some());
        assert_eq!(root.mkdir(&ROOT, name("rEADmE"), 0o755).map(|_| ()), Err(Errno::EXIST));
        assert_eq!((names(&root), names(&lower.root())), (vec![stored.to_owned()], vec![stored.to_owned()]));
        root.rmdir(&ROOT, name("README")).unwrap();
        assert_eq!(names(&lower.root()), [""; 0]);
    }
}

/// A plugin built with the header of an older minor version.
#[test]
fn plugins_of_older_minor_versions_load() {
    let old = include_str!("../headers/strata_layer-1.2.h");
    let dir = fresh("old");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("strata_layer.h"), old).unwrap();
    // The compiler finds the header beside the source first.
    for (example, source) in [("vowels", "examples/c/vowels.c"), ("anycase", "crates/plugin/tests/anycase.c")] {
        let copy = dir.join(format!("{example}.c"));
        fs::copy(top().join(source), &copy).unwrap();
        let layer = Object::compiled(&copy, &[]).over(MemFs::new(), &[]).unwrap();
        layer.root().mkdir(&ROOT, name("Name"), 0o755).unwrap();
        assert_eq!(names(&layer.root()), ["Name"], "{example}");
        assert!(!layer.properties().read_only);
    }
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn read_only_flag_is_honored() {
    let object = Object::compiled(&top().join("crates/plugin/tests/hostile.c"), &["FLAGS=STRATA_READ_ONLY"]);
    let lower = MemFs::new();
    lower.root().mkdir(&ROOT, name("there"), 0o755).unwrap();
    let layer = object.over(lower, &[]).unwrap();
    assert!(layer.properties().read_only);
    assert_eq!(names(&layer.root()), ["there"]);
    assert_eq!(layer.root().mkdir(&ROOT, name("d"), 0o755).map(|_| ()), Err(Errno::ROFS));
    assert_eq!(layer.root().rmdir(&ROOT, name("there")), Err(Errno::ROFS));
}

fn compiled(name: &str, defines: &[&str]) -> Object {
    Object::compiled(&top().join(format!("crates/plugin/tests/{name}.c")), defines)
}

/// Runs all ioctls of `lower.c` in a directory. Returns the failing line and the errno.
fn all_of_lower(dir: &Arc<dyn Vnode>, cx: &Cx<'_>) -> (i32, i32) {
    let mut code = [0; 4];
    let reply = dir.ioctl(cx, 1, &[], &mut code).unwrap();
    (reply.result, i32::from_ne_bytes(code))
}

#[test]
fn the_layer_below_can_be_used() {
    let object = compiled("lower", &[]);
    let faults = Faults::new();
    let lower = MemFs::with(MemOptions::default(), &faults);
    let layer = object.over(lower.clone(), &[]).unwrap();
    let (root, empty) = (layer.root(), lower.dump());
    assert_eq!(all_of_lower(&root, &ROOT), (0, 0), "failed in that line, with that");
    assert_eq!(lower.dump().without_times(), empty.clone().without_times());
    // With the caller's context: new objects belong to the caller, unless created as the server.
    let cancelled = AtomicBool::new(false);
    let user = Cx::new(7, 8, 1, 0, true, &cancelled);
    let dir = root.mkdir(&user, name("d"), 0o755).unwrap().vnode;
    assert_eq!(all_of_lower(&dir, &user), (0, 0));
    assert_eq!(names(&dir), [""; 0]);
    // Errors are passed through, and a thread that must not block is told so.
    let mut failed = 0;
    for at in 1.. {
        let dir = root.mkdir(&user, name(&format!("e{at}")), 0o755).unwrap().vnode;
        faults.arm(Plan { count: Count::Changes, at, fault: Fault::Error(Errno::DQUOT) });
        let (line, code) = all_of_lower(&dir, &user);
        let fired = faults.fired();
        faults.disarm();
        if !fired {
            assert_eq!((line, code), (0, 0));
            break;
        }
        assert!(line > 0, "{at}: it went on after {code}");
        failed += i32::from(code == -Errno::DQUOT.raw_os_error());
    }
    assert!(failed > 12, "{failed}");
}

#[test]
fn objects_have_state_and_paths() {
    let object = compiled("lower", &[]);
    let layer = object.over(MemFs::new(), &[]).unwrap();
    let root = layer.root();
    let counts = |dir: &Arc<dyn Vnode>| {
        let mut out = [0; 24];
        assert_eq!(dir.ioctl(&ROOT, 2, &[], &mut out).unwrap().len, 24);
        [0, 8, 16].map(|at| u64::from_ne_bytes(out[at..at + 8].try_into().unwrap()))
    };
    let d = root.mkdir(&ROOT, name("d"), 0o755).unwrap().vnode;
    let (f, file) = d.create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(counts(&root), [2, 0, 0]);
    let mut out = [0; 9];
    assert_eq!(f.vnode.ioctl(&ROOT, 3, &[], &mut out).unwrap().len, 4);
    assert_eq!(&out[..4], b"/d/f");
    drop(f);
    assert_eq!(counts(&root), [2, 0, 0], "it is open");
    drop(file);
    assert_eq!(counts(&root), [2, 1, 0]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    d.lookup(&ROOT, name("f")).unwrap().unwrap().vnode.getattr(&ROOT).unwrap();
                }
            });
        }
    });
    let [attached, freed, wrong] = counts(&root);
    assert!(attached > 10 && freed == attached - 1 && wrong == 0, "{attached} {freed} {wrong}");
}

#[test]
fn a_name_store_in_c() {
    let object = compiled("store", &[]);
    run_all(|| object.over(MemFs::new(), &[]).unwrap());
    random::compare(6, 2000, &*object.over(MemFs::new(), &[]).unwrap(), &*MemFs::new());
    let lower = MemFs::new();
    let root = object.over(lower.clone(), &[]).unwrap().root();
    root.mkdir(&ROOT, name("d"), 0o755).unwrap();
    root.mkdir(&ROOT, name(&"n".repeat(200)), 0o755).unwrap();
    lower.root().mkdir(&ROOT, name("c.other"), 0o755).unwrap();
    assert_eq!(names(&root).len(), 2);
    let stored = names(&lower.root());
    assert!(stored.iter().any(|at| at == "c.state") && stored.len() == 5, "{stored:?}");
    root.rmdir(&ROOT, name(&"n".repeat(200))).unwrap();
    assert_eq!(names(&lower.root()).len(), 3);
    for (define, said) in [
        ("NO_IS_STATE", "hook is_state is NULL"),
        ("BAD_STATE=0", "its state_file has a name of 0 bytes"),
        ("BAD_STATE=300", "its state_file has a name of 300 bytes"),
    ] {
        let wrong = compiled("store", &[define]).wrong();
        assert!(wrong.contains(said), "{define}: {wrong}");
    }
    // Invalid results hide names or are errors.
    let root = |define| compiled("store", &[define]).over(MemFs::new(), &[]).unwrap().root();
    for bad in ["BAD_ROLE=-5", "BAD_ROLE=9", "BAD_ROLE=STRATA_ROLE_LONG"] {
        assert_eq!(root(bad).mkdir(&ROOT, name("d"), 0o755).map(|_| ()), Err(Errno::INVAL), "{bad}");
    }
    for bad in ["BAD_LENGTH=0", "BAD_LENGTH=257", "BAD_LENGTH=(size_t)-1"] {
        let long = "n".repeat(99);
        assert_eq!(root(bad).mkdir(&ROOT, name(&long), 0o755).map(|_| ()), Err(Errno::IO), "{bad}");
    }
}

#[test]
fn the_trash_example_keeps_removed_files() {
    let lower = MemFs::new();
    let root = example("trash").over(lower.clone(), &[]).unwrap().root();
    let long = "n".repeat(255);
    for round in 0..3 {
        for at in ["f", &long] {
            let (_, file) = root.create(&ROOT, name(at), 0o644, OpenFlags::RDWR).unwrap();
            file.write(&ROOT, &[round], 0).unwrap();
            root.unlink(&ROOT, name(at)).unwrap();
        }
    }
    root.mkdir(&ROOT, name("d"), 0o755).unwrap();
    assert_eq!(root.unlink(&ROOT, name("d")), Err(Errno::ISDIR));
    assert_eq!(root.unlink(&ROOT, name("none")), Err(Errno::NOENT));
    assert_eq!(names(&root), [".trash", "d"]);
    let trash = root.lookup(&ROOT, name(".trash")).unwrap().unwrap();
    assert_eq!((trash.attr.perm(), names(&trash.vnode).len()), (0o700, 6));
    let kept = trash.vnode.lookup(&ROOT, name("f.2")).unwrap().unwrap().vnode;
    let mut byte = [0];
    kept.open(&ROOT, OpenFlags::RDONLY).unwrap().read(&ROOT, &mut byte, 0).unwrap();
    assert_eq!(byte, [2]);
    // Files removed from the trash are gone.
    for at in names(&trash.vnode) {
        trash.vnode.unlink(&ROOT, name(&at)).unwrap();
    }
    assert_eq!(names(&trash.vnode), [""; 0]);
    root.rmdir(&ROOT, name(".trash")).unwrap();
}

/// Compares sizes, offsets and constants between C and Rust.
#[test]
fn the_header_matches_the_rust_side() {
    let mut source = "#include \"strata_layer.h\"\n#include <stdio.h>\nint main(void) {\n".to_owned();
    let mut expected = String::new();
    let mut ask = |what: &str, value: u64| {
        source += &format!("printf(\"%s %llu\\n\", \"{what}\", (unsigned long long)({what}));\n");
        expected += &format!("{what} {value}\n");
    };
    macro_rules! layout {
        ($($rust:ident $c:ident { $($field:ident $c_field:ident),* })*) => { $(
            ask(concat!("sizeof(struct ", stringify!($c), ")"), size_of::<abi::$rust>() as u64);
            $(ask(concat!("offsetof(struct ", stringify!($c), ", ", stringify!($c_field), ")"), offset_of!(abi::$rust, $field) as u64);)*
        )* };
    }
    layout! {
        Bytes strata_bytes { bytes bytes, len len }
        Time strata_time { sec sec, nsec nsec }
        Attr strata_attr { ino ino, size size, blocks blocks, rdev rdev, atime atime, mtime mtime, ctime ctime, btime btime, mode mode,
            nlink nlink, uid uid, gid gid, blksize blksize, has_btime has_btime }
        SetAttr strata_setattr { valid valid, mode mode, uid uid, gid gid, size size, atime atime, mtime mtime }
        Caller strata_caller { uid uid, gid gid, pid pid, umask umask, may_block may_block, flags flags, cancelled cancelled }
        Object strata_object { host host, id id, kind kind, handle handle, state state }
        DirEntry strata_entry { cookie cookie, id id, kind kind, name name }
        Lower strata_lower { size size, hold hold, release release, lookup lookup, readdir readdir, readlink readlink, setattr setattr,
            setxattr setxattr, listxattr listxattr, removexattr removexattr, open open, create create, tmpfile tmpfile, mknod mknod,
            mkdir mkdir, symlink symlink, link link, unlink unlink, rmdir rmdir, rename rename, sync_directory sync_directory,
            read read, write write, fsync fsync, fallocate fallocate, seek seek, close close }
        Host strata_host { size size, major major, minor minor, getattr getattr, getxattr getxattr, log log, lower lower, path path,
            attach attach, attached attached }
        LongName strata_long_name { object object, side side, object_len object_len, side_len side_len, content content,
            content_capacity content_capacity, content_len content_len }
        StateFile strata_state_file { name name, name_len name_len, longest longest, mode mode }
        NameStore strata_name_store { size size, role role, long_name long_name, encoded_name encoded_name, side_mode side_mode,
            state_file state_file, new_state new_state, is_state is_state }
        Objects strata_objects { size size, freed freed }
        Names strata_names { size size, encode_filename encode_filename, decode_filename decode_filename, encode_target encode_target,
            decode_target decode_target, matching matching, fold_filename fold_filename }
        Attributes strata_attributes { size size, decode_attr decode_attr, encode_attr encode_attr, encode_mode encode_mode }
        Data strata_data { size size, block_size block_size, applies applies, encode_data encode_data, decode_data decode_data }
        Op strata_op { kind kind, flags flags, object object, other other, name name, new_name new_name, data data, set set,
            offset offset, len len, rdev rdev, mode mode, cmd cmd }
        Answer strata_answer { error error, kind kind, object object, attr attr, data data, count count }
        Reply strata_reply { kind kind, attr attr, count count, put put }
        Operations strata_operations { size size, interest interest, before before, after after }
        Ioctls strata_ioctls { size size, ioctl ioctl }
        Instance strata_instance { size size, me self, names names, attributes attributes, data data, operations operations, ioctls ioctls,
            codec codec, flags flags, objects objects, store store }
        Storage strata_storage { id id, block_size block_size, foreign foreign }
        BlockAt strata_block_at { file file, block block }
        Codec strata_codec { size size, storage storage, max_encoded max_encoded, encode encode, decode decode }
        Spec strata_option { name name, value value, help help }
        Setting strata_setting { name name, value value }
        Layer strata_layer { magic magic, major major, minor minor, size size, name name, about about, options options,
            option_count option_count, open open, close close }
    }
    macro_rules! numbers {
        ($($rust:ident $c:ident),*) => { $(ask(stringify!($c), #[allow(clippy::cast_lossless)] { abi::$rust as u64 });)* };
    }
    numbers! {
        MAGIC STRATA_MAGIC, MAJOR STRATA_MAJOR, MINOR STRATA_MINOR, LONGEST STRATA_LONGEST, MAY_BLOCK STRATA_MAY_BLOCK,
        SET_MODE STRATA_SET_MODE, SET_UID STRATA_SET_UID, SET_GID STRATA_SET_GID, SET_SIZE STRATA_SET_SIZE,
        SET_ATIME STRATA_SET_ATIME, SET_MTIME STRATA_SET_MTIME, SET_ATIME_NOW STRATA_SET_ATIME_NOW,
        SET_MTIME_NOW STRATA_SET_MTIME_NOW, SET_KILL_SUIDGID STRATA_SET_KILL_SUIDGID,
        MATCHING_EXACT STRATA_MATCHING_EXACT, MATCHING_ENCODED STRATA_MATCHING_ENCODED,
        MATCHING_FOLDED STRATA_MATCHING_FOLDED, FOREIGN_PLAIN STRATA_FOREIGN_PLAIN, FOREIGN_REFUSE STRATA_FOREIGN_REFUSE,
        READ_ONLY STRATA_READ_ONLY, PATHS STRATA_PATHS, AS_SERVER STRATA_AS_SERVER,
        ROLE_NAME STRATA_ROLE_NAME, ROLE_LONG STRATA_ROLE_LONG, ROLE_SIDE STRATA_ROLE_SIDE,
        ROLE_LEFTOVER STRATA_ROLE_LEFTOVER, ROLE_OWN STRATA_ROLE_OWN, DONE STRATA_DONE, MISSING STRATA_MISSING, OBJECT STRATA_OBJECT, ATTR STRATA_ATTR, BYTES STRATA_BYTES, COUNT STRATA_COUNT
    }
    ask("STRATA_MAX_BLOCK", wrapfs::hooks::MAX_BLOCK as u64);
    for (i, kind) in abi::OPERATIONS.iter().enumerate() {
        assert_eq!(i, *kind as usize, "the numbers are those of the interface");
    }
    for (kind, number) in abi::OPERATIONS.iter().zip(0..) {
        ask(&format!("STRATA_{}", format!("{kind:?}").to_uppercase()), number);
    }
    source += "return 0; }\n";
    let (file, program) = (fresh("layout.c"), fresh("layout"));
    fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-pedantic", "-Wall", "-Werror", "-I"]).arg(top().join("include"));
    let said = cc.arg("-o").arg(&program).arg(&file).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let said = Command::new(&program).output().unwrap();
    assert_eq!(String::from_utf8(said.stdout).unwrap(), expected);
    for path in [file, program] {
        fs::remove_file(path).unwrap();
    }
}
