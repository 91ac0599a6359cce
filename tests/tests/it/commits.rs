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
