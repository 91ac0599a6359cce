//! `fsck.unionfs` finds nothing in branches of which only their union was used.

#![forbid(unsafe_code)]

use strata_tests::session;

/// The redirect of `usr/lib` has the path that the directory itself has.
#[test]
fn a_directory_that_moved_back_below_another_one() {
    session::run(
        r#"
        mkdir -p a b/usr/lib b/d1/s b/d2/s u; touch b/usr/lib/f b/d1/s/1 b/d2/s/2
        mu a=rw:b=ro
        mv u/usr u/usr2; mkdir u/usr; mv u/usr2/lib u/usr/lib
        mv u/d1 u/t; mv u/d2 u/d1; mv u/t u/d2; mv u/d1/s u/d1/s2; mv u/d2/s u/d1/s
        um
        fails 0 fsck.unionfs -n a=rw:b=ro
        mu a=rw:b=ro
        is "f" ls u/usr/lib
        is "1" ls u/d1/s
        um
        # A copy of such a directory shows the same as the original.
        cp -a a/usr/lib a/usr/copy
        fails 4 fsck.unionfs -n a=rw:b=ro
        "#,
    );
}

/// The whiteout of the old name is lost: both names show the directory.
#[test]
fn a_lost_whiteout_is_found() {
    session::run(
        r#"
        mkdir -p a b/old u; touch b/old/f
        mu a=rw:b=ro; mv u/old u/new; um
        rm a/.wh.old
        fails 4 fsck.unionfs -n a=rw:b=ro
        "#,
    );
}

/// A drain removes the directory to which a redirect leads. Another one with its old path does not
/// appear in the renamed directory.
#[test]
fn a_drain_ends_redirects() {
    session::run(
        r#"
        mkdir -p a/d b/d c u; touch b/d/f
        mu a=rw:b=rw:c=ro
        chmod 700 u/d; mv u/d u/e
        is "/d" sed -n 2p a/e/.wh..wh.redirect
        unionctl u --drain "$PWD"/b
        is "f" ls u/e
        mv u/e u/g
        um
        is "" find b -mindepth 1 ! -name '.wh..wh.*'
        fails 0 fsck.unionfs -n a=rw:b=rw:c=ro
        mkdir b/d; touch b/d/other
        mu a=rw:b=rw:c=ro
        is "f" ls u/g
        is "700" stat -c %a u/g
        um
        "#,
    );
}
