//! Layers in which several names refer to one entry, mounted: the kernel's name cache must not
//! cause data loss.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use strata_tests::{Mounted, Rng, Sandbox, Spec, Transport, on_both_transports, process};
use testkit::names;

/// Returns case-insensitive stacks over `lower`: casefold alone, and below and above other layers.
fn stacks(lower: &Path) -> [String; 5] {
    let lower = lower.display();
    [
        format!("casefold / {lower}"),
        format!("rot13 / casefold / {lower}"),
        format!("casefold / rot13 / {lower}"),
        format!("snoopfs / wrapfs / casefold / {lower}"),
        format!("casefold / unionfs,dirs={lower}-changes=rw:{lower}=ro"),
    ]
}

fn remove_and_rename_in_another_case(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = sandbox.dir("lower");
    let _changes = sandbox.dir("lower-changes");
    for cache in ["", "cache=1000"] {
        for words in stacks(&lower) {
            let spec = Spec::Stack { words: (&words).into(), transport };
            let mounted = Mounted::with_options(spec, &sandbox.path("m"), cache);
            let output = process::sh(
                "cd \"$1\"
                 echo one >Foo; cat foo; rm foo; echo important >Foo; cat Foo
                 echo moved >a; cat A; mv a b; echo clobber >A; cat b A
                 mkdir Dir; ls DIR; mv dir other; mkdir DIR; rmdir Dir; ls -d other
                 echo old >x; cat X; echo new >y; mv y X; cat x
                 : missing; ls none NONE 2>/dev/null || echo not yet; echo made >NONE; cat none",
                &[mounted.dir()],
            );
            let expected = "one\nimportant\nmoved\nmoved\nclobber\nother\nold\nnew\nnot yet\nmade\n";
            assert_eq!(output, expected, "{words} {cache}");
            assert_eq!(names(mounted.dir()), ["A", "Foo", "NONE", "b", "other", "x"], "{words} {cache}");
            process::sh("rm -r \"$1\"/*", &[mounted.dir()]);
        }
    }
}

fn renames_that_change_case(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = sandbox.dir("lower");
    let mounted = Mounted::new(Spec::stack("casefold / ", &lower, transport), &sandbox.path("m"));
    let output = process::sh(
        "cd \"$1\"
         echo x >foo
         mv foo FOO 2>&1 || ls
         mv foo step; mv step FOO; ls
         ln Foo fOO 2>/dev/null || echo exists
         mkdir d; mkdir D 2>/dev/null || echo exists
         set -C; echo y 2>/dev/null >foO || echo exists
         cd d; touch ../D/in; ls; cd ..; rm -r D; ls",
        &[mounted.dir()],
    );
    let same = "mv: 'foo' and 'FOO' are the same file";
    assert_eq!(output, format!("{same}\nfoo\nFOO\nexists\nexists\nexists\nin\nFOO\n"));
}

/// On a host file system that ignores case, here another Strata mount.
fn over_a_mount_that_ignores_case(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = sandbox.dir("lower");
    fs::write(lower.join("Some-name"), "").unwrap();
    let below = Mounted::new(Spec::stack("casefold / ", &lower, transport), &sandbox.path("below"));
    let mounted = Mounted::new(Spec::wrap(below.dir(), transport), &sandbox.path("m"));
    let output = process::sh(
        "cd \"$1\"; echo one >Foo; cat foo; rm foo; echo important >Foo; cat Foo
         echo moved >a; cat A; mv a b; echo clobber >A; cat b",
        &[mounted.dir()],
    );
    assert_eq!(output, "one\nimportant\nmoved\nmoved\n");
}

/// Random writes, renames and removals with names in random case, compared with a model.
fn no_write_is_lost(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = sandbox.dir("lower");
    let mounted = Mounted::new(Spec::stack("casefold / ", &lower, transport), &sandbox.path("m"));
    let mut rng = Rng::new(16);
    let mut model: BTreeMap<String, (String, String)> = BTreeMap::new();
    let pick = |rng: &mut Rng, max: usize| rng.bytes(1)[0] as usize % max;
    for step in 0..3000 {
        let mut spelling = || -> String {
            let letters = ["alpha", "beta", "gamma", "delta", "epsilon"][pick(&mut rng, 5)];
            letters.chars().map(|c| if pick(&mut rng, 2) == 0 { c.to_ascii_uppercase() } else { c }).collect()
        };
        let (name, other) = (spelling(), spelling());
        let (key, other_key) = (name.to_lowercase(), other.to_lowercase());
        let path = mounted.dir().join(&name);
        match pick(&mut rng, 4) {
            0 => {
                let content = format!("{step}");
                fs::write(&path, &content).unwrap();
                model.entry(key).or_insert_with(|| (name, String::new())).1 = content;
            }
            1 => match (fs::read_to_string(&path), model.get(&key)) {
                (Ok(read), Some((_, content))) => assert_eq!(read, *content, "{step}: {name}"),
                (Err(error), None) if error.kind() == ErrorKind::NotFound => {}
                (read, known) => panic!("{step}: {name} is {read:?}, expected {known:?}"),
            },
            2 => {
                let removed = fs::remove_file(&path).is_ok();
                assert_eq!(removed, model.remove(&key).is_some(), "{step}: {name}");
            }
            _ => {
                let moved = fs::rename(&path, mounted.dir().join(&other)).is_ok();
                assert_eq!(moved, model.contains_key(&key), "{step}: {name} to {other}");
                // For the kernel, two spellings of one name may be one entry.
                if moved && key != other_key {
                    let (_, content) = model.remove(&key).unwrap();
                    model.entry(other_key).or_insert_with(|| (other, String::new())).1 = content;
                }
            }
        }
        if step % 50 == 0 {
            let mut known: Vec<_> = model.values().map(|(name, _)| std::ffi::OsString::from(name)).collect();
            known.sort();
            assert_eq!(names(&lower), known, "{step}");
        }
    }
}

on_both_transports! {
    remove_and_rename_in_another_case,
    renames_that_change_case,
    over_a_mount_that_ignores_case,
    no_write_is_lost,
}
