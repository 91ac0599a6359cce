//! Branches that start with different trees, several of them read-write: a directory exists on the
//! leftmost branch and on one further right, but not on a branch between them.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use strata_tests::process::sh;
use strata_tests::{Delete, Mode, Mounted, Sandbox, Spec, Transport, on_both_transports};

/// Mounts a union of `up=rw:mid=rw:lo=ro`, whose branches the script `fill` populates.
fn mount_three_branches(sandbox: &Sandbox, transport: Transport, delete: Delete, fill: &str) -> (PathBuf, Mounted) {
    let disk = sandbox.ext4("disk", 128);
    sh(&format!("cd \"$1\"; mkdir up mid lo; {fill}"), &[&disk]);
    let branch = |name: &str, mode| (disk.join(name), mode);
    let branches = vec![branch("up", Mode::Rw), branch("mid", Mode::Rw), branch("lo", Mode::Ro)];
    let union = Mounted::new(Spec::Union { branches, delete, transport }, &sandbox.path("u"));
    (disk, union)
}

fn output_of(dir: &Path, script: &str) -> String {
    sh(&format!("cd \"$1\"; {script}"), &[dir])
}

/// The leftmost branch has `etc`; only the read-only branch has `etc/apt`.
fn changes_below_a_directory_whose_parent_is_further_left(transport: Transport) {
    for delete in [Delete::Whiteout, Delete::All] {
        let sandbox = Sandbox::new();
        let fill = "mkdir -p up/etc lo/etc/apt; echo deb > lo/etc/apt/s; echo old > lo/etc/apt/t; \
                    echo two > lo/etc/apt/two; ln lo/etc/apt/two lo/etc/apt/too; mkdir mid/w lo/etc/apt/d";
        let (disk, mut union) = mount_three_branches(&sandbox, transport, delete, fill);
        let m = union.dir().to_owned();
        output_of(&m, "echo x >> etc/apt/s; touch etc/apt/new; rm etc/apt/t");
        output_of(&m, "ln etc/apt/s w/s; chmod 600 etc/apt/too; mv etc/apt/two w; mv etc/apt/d w; mkdir etc/apt/d");
        for _ in 0..2 {
            assert_eq!(output_of(&m, "cat etc/apt/s w/s w/two etc/apt/too"), "deb\nx\ndeb\nx\ntwo\ntwo\n");
            assert_eq!(output_of(&m, "ls etc/apt w"), "etc/apt:\nd\nnew\ns\ntoo\n\nw:\nd\ns\ntwo\n");
            assert_eq!(output_of(&m, "stat -c %h etc/apt/s w/two; stat -c %a w/two"), "2\n2\n600\n");
            assert_eq!(output_of(&disk, "ls mid"), "w\n", "etc was created right of its leftmost branch");
            union.remount();
        }
        output_of(&m, "rm etc/apt/s; test ! -e etc/apt/s; cat w/s");
    }
}

/// A directory rename also creates the directory on the leftmost branch.
fn changes_next_to_a_renamed_directory(transport: Transport) {
    let sandbox = Sandbox::new();
    let fill = "mkdir -p lo/a/b lo/a/c; echo 1 > lo/a/b/f; echo 2 > lo/a/c/f";
    let (_, mut union) = mount_three_branches(&sandbox, transport, Delete::Whiteout, fill);
    let m = union.dir().to_owned();
    output_of(&m, "mv a/c a/C; echo x >> a/b/f; touch a/b/new; mkdir a/b/d; mv a/b/f a/b/d; rm a/C/f; rmdir a/C");
    for _ in 0..2 {
        assert_eq!(output_of(&m, "ls a a/b; cat a/b/d/f"), "a:\nb\n\na/b:\nd\nnew\n1\nx\n");
        union.remount();
    }
}

/// Another process repeatedly creates the parent on the leftmost branch while operations below
/// choose their branches.
fn branch_choice_is_retried_when_parents_change(transport: Transport) {
    let sandbox = Sandbox::new();
    let fill = "for i in $(seq 60); do mkdir -p lo/$i/a/b lo/$i/c; echo f > lo/$i/a/b/f; echo g > lo/$i/a/b/g; done";
    let (disk, mut union) = mount_three_branches(&sandbox, transport, Delete::Whiteout, fill);
    let m = union.dir().to_owned();
    output_of(
        &m,
        "(for i in $(seq 60); do mv $i/c $i/C || exit 1; done) & p=$!
         (for i in $(seq 60); do echo x >> $i/a/b/f || exit 1; done) & q=$!
         for i in $(seq 60); do touch $i/a/new; rm $i/a/b/g; done
         wait $p; wait $q",
    );
    for _ in 0..2 {
        output_of(
            &m,
            "for i in $(seq 60); do test -d $i/C; test ! -e $i/c; test -e $i/a/new; test ! -e $i/a/b/g
             test \"$(cat $i/a/b/f)\" = \"$(printf 'f\\nx')\"; done",
        );
        union.remount();
    }
    drop(disk);
}

on_both_transports!(
    changes_below_a_directory_whose_parent_is_further_left,
    changes_next_to_a_renamed_directory,
    branch_choice_is_retried_when_parents_change,
);
