//! Hard links where other features meet them: new first branches, commits, copies of branches,
//! snapshots and fsck.unionfs. Each test is a user's session.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use strata_tests::session;

/// Runs a session that begins with a file of two names.
fn session(script: &str) {
    session::run(&format!("mkdir a b c u; echo one >c/f; ln c/f c/g\n{script}"));
}

#[test]
fn a_new_first_branch() {
    session(
        r#"
        mu b=rw:c=ro; echo two >>u/f; um
        mu a=rw:b=ro:c=ro
        is "one two" cat u/g
        is "2 2" stat -c %h u/f u/g
        echo three >>u/g
        is "one two three" cat u/f
        um
        fsck -n a=rw:b=ro:c=ro
        strata discard --branches a:b:c --all
        mu a=rw:b=ro:c=ro
        is "one two" cat u/g
        is "one two" cat u/f
        um
        "#,
    );
}

#[test]
fn a_commit_of_removed_names() {
    session(
        r#"
        mu b=rw:c=ro; echo two >>u/f; um
        echo data >b/v; for n in w x y z; do ln b/v b/$n; done
        mu a=rw:b=ro:c=ro; rm u/v u/w; um
        strata commit --branches a:b:c
        mu a=rw:b=ro:c=ro
        is "3 3 3" stat -c %h u/x u/y u/z
        echo NEW >>u/x; rm u/x
        um
        mu a=rw:b=ro:c=ro
        is "data NEW" cat u/y
        is "2 2" stat -c %h u/y u/z
        um
        fsck -n a=rw:b=ro:c=ro
        "#,
    );
}

#[test]
fn a_check_takes_nothing_from_a_snapshot() {
    for last in ["echo three >>u/g", "rm u/g"] {
        session(&format!(
            r#"
            mu b=rw:c=ro; echo two >>u/f; rm u/f
            unionctl u --snapshot a
            {last}
            um
            fsck -n a=rw:b=rw:c=rw
            fsck -p a=rw:b=rw:c=rw
            fsck -y a=rw:b=rw:c=rw
            mu b=ro:c=ro
            is "one two" cat u/g
            um
            "#
        ));
    }
}

#[test]
fn copies_of_branches() {
    session(
        r#"
        mu b=rw:c=ro; echo two >>u/f; um
        mkdir copy; cp -a b c copy
        mu copy/b=rw:copy/c=ro
        is "one two" cat u/g
        echo three >>u/g
        is "one two three" cat u/f
        um
        fsck -n copy/b=rw:copy/c=ro
        mkdir rsync; rsync -aHAX b c rsync
        rm -r b c; mv rsync/b rsync/c .
        mu b=rw:c=ro
        is "one two" cat u/g
        is "2 2" stat -c %h u/f u/g
        um
        fsck -n b=rw:c=ro
        "#,
    );
}

#[test]
fn a_merge_leaves_no_record() {
    session(
        r#"
        mu b=rw:c=ro; echo two >>u/f
        unionctl u --snapshot a
        echo three >>u/g
        um
        mkdir new
        snapmerge --below c a b
        fsck -n b=rw:c=ro
        mu new=rw:b=ro:c=ro
        is "one two three" cat u/f
        is "one two three" cat u/g
        is "2 2" stat -c %h u/f u/g
        um
        "#,
    );
}

#[test]
fn a_branch_is_removed_and_returns() {
    session(
        r#"
        ln c/f c/h
        mu a=rw:c=ro
        ls -l u
        unionctl u --remove c
        unionctl u --add c
        echo two >>u/g
        is "one two" cat u/f
        is "one two" cat u/h
        is "3 3 3" stat -c %h u/f u/g u/h
        um
        mkdir -p b/e
        mu a=rw:b=rw:c=ro
        rm u/g
        mv u/f u/e/x
        is "2 2" stat -c %h u/h u/e/x
        um
        "#,
    );
}
