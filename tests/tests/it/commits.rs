//! Conflicts of a commit where other features meet it: parts of the changes, copies of branches.

#![forbid(unsafe_code)]

use strata_tests::session;

/// A commit of one name moves the change time of the file's other names below.
#[test]
fn a_commit_of_a_part_leaves_no_conflict() {
    session::run(
        r#"
        mkdir a b u
        for n in x y z; do echo one >b/$n; ln b/$n b/${n}2; done
        mu a=rw:b=ro
        rm u/x u/x2
        rm u/y; echo new >u/y; rm u/y2
        rm u/z u/z2
        um
        strata commit --branches a:b x
        is "a/.wh..wh.committed" ls a/.wh..wh.committed
        is "" sh -c 'fsck.unionfs -nv a=rw:b=ro | grep unknown'
        # Together with what an earlier commit moved.
        strata commit --branches a:b y
        strata commit --branches a:b z
        strata commit --branches a:b x2
        # What somebody else changes afterwards is a conflict.
        sleep .05; chmod 600 b/z2
        fails 3 strata commit --branches a:b
        strata commit --branches a:b --skip-conflicts
        is "y z2" ls b
        strata commit --branches a:b --force
        is "y" ls b
        is "new" cat b/y
        is "" ls -A a
        "#,
    );
}

#[test]
fn a_commit_of_a_part_of_a_merge_of_names() {
    session::run(
        r#"
        mkdir a b c u
        echo one >c/f; ln c/f c/g; ln c/f c/h
        mu b=rw:c=ro; echo two >>u/f; um
        mu a=rw:b=ro:c=ro; rm u/f; rm u/g; um
        strata commit --branches a:b:c f
        strata commit --branches a:b:c
        mu a=rw:b=ro:c=ro
        is "h" ls u
        is "one two" cat u/h
        um
        fsck -n a=rw:b=ro:c=ro
        "#,
    );
}

/// Times of birth and change are those of the copying.
#[test]
fn copies_of_branches() {
    session::run(
        r#"
        mkdir -p a b/d b/emptied u
        for n in d/f gone attributes linked later theirs theirs-gone emptied/x; do echo one >b/$n; done
        ln b/linked b/linked2
        mu a=rw:b=ro
        echo two | tee -a u/d/f u/linked u/theirs; chmod 600 u/attributes; rm u/gone u/theirs-gone
        rm -r u/emptied; mkdir u/emptied; echo new >u/new
        um
        sleep .05
        mkdir 1 2 3; cp -a a b 1; cp -a b a 2; cp -a a b 3
        strata commit --branches 1/a:1/b
        is "" ls -A 1/a
        is "one two" cat 1/b/d/f
        # What was changed in the copies is still a conflict.
        sleep .05; echo theirs | tee 2/b/theirs >2/b/theirs-gone
        fails 3 strata commit --branches 2/a:2/b
        strata commit --branches 2/a:2/b --skip-conflicts
        is "theirs theirs" cat 2/b/theirs 2/b/theirs-gone
        is "one two" cat 2/b/linked2
        # Also after the copies were mounted.
        mu 3/a=rw:3/b=ro; echo two >>u/later; um
        sleep .05; echo theirs >3/b/later
        fails 3 strata commit --branches 3/a:3/b
        strata commit --branches 3/a:3/b --skip-conflicts
        is "theirs" cat 3/b/later
        is "one two one two" cat 3/b/d/f 3/b/theirs
        # The originals are no copies.
        sleep .05; chmod 644 b/d/f
        fails 3 strata commit --branches a:b
        "#,
    );
}

/// Changes below that keep old modification times (`mv`, `tar -x`, `rsync -a`, `chmod`) after a
/// copy was made.
#[test]
fn changes_below_copies_keep_old_times() {
    session::run(
        r#"
        mkdir a b u
        for n in moved mode later gone new2; do echo one >b/$n; done; touch -d 2001-01-01 b/*
        mu a=rw:b=ro
        echo two | tee -a u/moved u/mode; rm u/gone
        um
        theirs() { echo theirs >tmp; touch -d 2001-01-01 tmp; mv tmp "$1"; }
        sleep .05
        # Both were copied, and mounted.
        mkdir 1 2 3 4; cp -a a b 1; cp -a a b 2; cp -a a b 4
        mu 1/a=rw:1/b=ro; echo two >>u/later; um
        sleep .05
        theirs 1/b/moved; theirs 1/b/gone; chmod 600 1/b/mode 1/b/later
        fails 3 strata commit --branches 1/a:1/b
        strata commit --branches 1/a:1/b --skip-conflicts
        is "theirs theirs one one" cat 1/b/moved 1/b/gone 1/b/mode 1/b/later
        is "600 600" stat -c %a 1/b/mode 1/b/later
        # The first commit recognises the copy.
        sleep .05; echo theirs >2/b/gone
        fails 3 strata commit --branches 2/a:2/b
        sleep .05; theirs 2/b/moved
        strata commit --branches 2/a:2/b --skip-conflicts
        is "theirs theirs" cat 2/b/moved 2/b/gone
        is "one two" cat 2/b/mode
        # The first branch alone was copied: changes count since then.
        cp -a a 3; sleep .05; theirs b/moved
        fails 3 strata commit -n --branches 3/a:b
        mu 3/a=rw:b=ro; echo two >>u/new2; um
        strata commit --branches 3/a:b --skip-conflicts
        is "theirs" cat b/moved
        is "one two one two" cat b/mode b/new2
        # A commit of a part leaves no conflict.
        ln 4/b/mode 4/b/mode2; ln 4/b/later 4/b/later2
        mu 4/a=rw:4/b=ro; rm u/later u/later2; um
        sleep .05
        strata commit --branches 4/a:4/b later
        strata commit --branches 4/a:4/b
        is "" ls -A 4/a
        "#,
    );
}

/// A file system on another device is not a copy, also if its root has no nanoseconds of birth.
#[test]
fn a_branch_on_another_device_is_no_copy() {
    session::run(
        r#"
        image=../image; truncate -s 320M $image; mkfs.xfs -q $image; mkdir a b u
        xfs_db -x -c "inode 128" -c "write -d v3.crtime.nsec 0" $image >/dev/null
        one=$(losetup -f --show $image); other=; trap 'losetup -d $one; test -z "$other" || losetup -d $other' EXIT
        mount $one a
        stat -c %w a | grep '[.]000000000'
        echo one >b/f; touch -d 2001-01-01 b/f
        mu a=rw:b=ro; echo two >>u/f; um
        umount a
        # The server may keep the file system for a moment.
        other=$(losetup -f --show $image)
        for _ in $(seq 100); do mount $other a 2>/dev/null && break; sleep .1; done
        losetup -d $other; other=; mountpoint -q a
        sleep .05; chmod 600 b/f
        fails 3 strata commit -n --branches a:b
        umount a
        "#,
    );
}
