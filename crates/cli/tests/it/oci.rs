//! `strata export` and `strata import` on directories of the host: exit statuses, messages,
//! archives of GNU tar, an ordinary user, other file systems.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::Bed;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_strata");

impl Bed {
    /// Runs a script in the directory, with its own mounts. `$S` is the program. Returns the status
    /// and all output.
    fn script(&self, script: &str) -> (i32, String) {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "bash", "-euo", "pipefail", "-c", script]);
        Self::output(command.current_dir(&self.0).env("S", PROGRAM))
    }

    fn output(command: &mut Command) -> (i32, String) {
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
    }

    /// Runs a script that succeeds.
    fn ok(&self, script: &str) -> String {
        let (code, out) = self.script(script);
        assert_eq!(code, 0, "{script}\n{out}");
        out
    }

    /// Runs a script that fails with this status and message.
    fn fails(&self, script: &str, status: i32, message: &str) {
        let (code, out) = self.script(script);
        assert!(code == status && out.contains(message), "{script}\n{code}: {out}");
    }
}

#[test]
fn progress_is_shown_on_a_terminal_only() {
    let bed = Bed::new();
    bed.ok("mkdir b c d; head -c 3M /dev/zero >b/f");
    let shown = bed.ok("script -qec \"$S export b -o one.tar\" /dev/null");
    assert!(shown.contains("iB written\r\u{1b}[K"), "{shown:?}");
    let shown = bed.ok("script -qec \"$S import one.tar c\" /dev/null");
    assert!(shown.contains(" of 3.0 MiB read (") && shown.ends_with("\r\u{1b}[K"), "{shown:?}");
    assert_eq!(bed.ok("$S export b -o two.tar 2>&1 | cat; $S import two.tar d 2>&1 | cat"), "");
}

#[test]
fn a_missing_branch_is_named_without_the_options_of_a_mount() {
    let bed = Bed::new();
    for command in ["export none", "import one.tar none", "diff --branches none:c", "fsck -n none"] {
        let (code, out) = bed.script(&format!("mkdir -p c; : >one.tar; $S {command}"));
        let wanted = "none: no such directory; create it, or name another one\n";
        assert!(code != 0 && out.ends_with(wanted), "{command}: {out}");
    }
}

#[test]
fn an_archive_depends_only_on_the_contents() {
    let bed = Bed::new();
    bed.ok("mkdir -p b/dir/sub b/empty c tmpfs
        echo hi >b/dir/f; ln b/dir/f b/a; ln -s /etc/passwd b/link; mkfifo b/fifo; mknod b/dev c 5 300
        touch b/.wh.gone b/empty/.wh..wh..opq; chown 3000000:4000000 b/dir/sub; chmod 4755 b/dir/f
        setfattr -n user.x -v $'a\\nb=c' b/dir
        echo x >\"b/dir/sub/$(printf 'n%.0s' {1..200})\"; truncate -s 100000 b/sparse
        touch -d '1969-12-31 23:59:58.5 UTC' b/empty; chmod 555 b/dir");
    let id = bed.ok("$S export b -o one.tar --diff-id");
    assert_eq!(id, bed.ok("echo sha256:$(sha256sum <one.tar | cut -c1-64)"));
    // Another file system, and another order of the directory.
    bed.ok("mount -t tmpfs none tmpfs
        (cd b; find . | sort -r | tar --no-recursion --xattrs --xattrs-include='*' -T - -c) |
            tar -C tmpfs --xattrs --xattrs-include='*' -xp
        cmp one.tar <($S export tmpfs)");
    bed.ok(&format!("$S import one.tar c --diff-id {id}"));
    bed.ok("cmp one.tar <($S export c); $S export b -o - | cmp one.tar -; tar -df one.tar -C b --exclude='.wh.*'");
    assert_eq!(fs::metadata(bed.path("c/a")).unwrap().ino(), fs::metadata(bed.path("c/dir/f")).unwrap().ino());
    let json = bed.ok("$S export b -o two.tar --json");
    assert!(json.contains(id.trim()) && json.contains("\"path\":\"two.tar\""), "{json}");
    // Nothing else was left beside the archives.
    assert_eq!(bed.ok("ls -A"), "b\nc\none.tar\ntmpfs\ntwo.tar\n");
}

#[test]
fn a_layer_of_gnu_tar_is_a_branch() {
    let bed = Bed::new();
    let out = bed.ok("mkdir -p src/etc src/usr/bin low/etc low/usr/bin low/gone/x layer mnt
        echo new >src/etc/hosts; touch src/.wh.gone src/usr/bin/.wh..wh..opq src/etc/.wh.passwd; echo t >src/usr/bin/tool
        ln src/.wh.gone src/etc/.wh.shadow; ln src/usr/bin/tool src/usr/bin/twin
        long=$(printf 'n%.0s' {1..180}); echo long >src/etc/$long
        echo old >low/etc/hosts; echo root >low/etc/passwd; echo s >low/etc/shadow; echo o >low/usr/bin/other; echo k >low/kept
        for format in gnu pax ustar; do
            [[ $format == ustar ]] && rm src/etc/$long
            tar --format=$format -C src -cf $format.tar .
            rm -rf layer; mkdir layer; $S import $format.tar layer
            $S mount 'unionfs,dirs='$PWD/layer=rw:$PWD/low=ro mnt
            (cd mnt; find . | sort | tr '\\n' ' '; cat etc/hosts; stat -c %h usr/bin/twin)
            umount mnt
        done");
    let tree =
        |long: &str| format!(". ./etc ./etc/hosts {long}./kept ./usr ./usr/bin ./usr/bin/tool ./usr/bin/twin new\n2\n");
    let long = format!("./etc/{} ", "n".repeat(180));
    assert_eq!(out, [tree(&long), tree(&long), tree("")].concat());
}

#[test]
fn an_exported_branch_hides_the_same_files() {
    let bed = Bed::new();
    bed.ok("mkdir -p up low/d low/e/sub low/r new mnt copy
        for f in low/a low/d/b low/e/sub/c low/r/x; do echo $f >$f; done
        $S mount 'unionfs,dirs='$PWD/up=rw:$PWD/low=ro mnt
        rm mnt/a; rm -r mnt/e; mkdir mnt/e; echo mine >mnt/e/mine; echo more >>mnt/d/b
        cp -a mnt copy; umount mnt
        $S export up -o layer.tar; $S import layer.tar new
        $S mount 'unionfs,dirs='$PWD/new=ro:$PWD/low=ro mnt
        diff -r mnt copy/mnt; umount mnt");
    // A branch that depends on those below is refused, until it is committed to an empty one.
    bed.ok("rm -rf copy; mkdir copy
        $S mount 'unionfs,dirs='$PWD/up=rw:$PWD/low=ro mnt; mv mnt/r mnt/renamed; cp -a mnt copy; umount mnt");
    bed.fails("$S export up -o bad.tar", 1, "/renamed: was renamed");
    bed.ok("[[ ! -e bad.tar ]]; mkdir whole; rm -r new; mkdir new
        $S commit --branches up:whole:low; $S export whole | $S import - new
        $S mount 'unionfs,dirs='$PWD/new=ro:$PWD/low=ro mnt
        diff -r mnt copy/mnt; umount mnt");
}

#[test]
fn hostile_archives_reach_nothing_outside() {
    let bed = Bed::new();
    bed.ok("mkdir in outside src; echo keep >outside/file
        ln -s ../outside src/link; tar -C src -cf link.tar link
        rm src/link; mkdir src/link; echo evil >src/link/file; cp link.tar through.tar; tar -C src -rf through.tar link/file
        tar -P -C src -cf dotdot.tar --transform 's,^link/file,../outside/file,' link/file
        tar -P -C src -cf absolute.tar --transform \"s,^link/file,$PWD/outside/file,\" link/file
        mkdir src/d; echo x >src/d/.wh..wh.ident; tar -C src -cf reserved.tar d
        head -c 600 link.tar >short.tar; gzip -k link.tar");
    for (archive, why) in [
        ("through.tar", "link is not a directory"),
        ("dotdot.tar", "contains .."),
        ("absolute.tar", "absolute"),
        ("reserved.tar", "reserved"),
        ("short.tar", "incomplete"),
        ("link.tar.gz", "compressed with gzip"),
        ("missing.tar", "no such file"),
    ] {
        bed.fails(&format!("$S import {archive} in"), 1, why);
        assert_eq!(bed.ok("ls -A in; cat outside/*; ls -A outside"), "keep\nfile\n", "{archive}");
    }
    bed.fails("$S import link.tar in --diff-id sha256:00", 1, "its digest is sha256:");
    bed.fails("$S import link.tar src", 1, "is not empty");
    bed.fails("$S import link.tar missing", 32, "no such directory");
    bed.fails("$S export missing", 32, "no such directory");
    bed.fails("$S export in --diff-id", 1, "--output");
    bed.fails("$S export outside -o /dev/full/x", 2, "can't create it");
    bed.fails("$S export outside >/dev/full", 2, "no space left");
    bed.ok("$S import - in <link.tar; [[ $(readlink in/link) == ../outside ]]");
}

#[test]
fn an_ordinary_user_gets_own_files() {
    let bed = Bed::new();
    bed.ok("cp $S strata; chmod 755 . strata; mkdir -p b/locked/deep mine
        echo x >b/locked/deep/f; chmod 4755 b/locked/deep/f; chmod 500 b/locked/deep b/locked; touch b/.wh.w
        $S export b -o good.tar; mknod b/zz c 1 3; $S export b -o device.tar; head -c 5000 good.tar >short.tar; chmod 644 *.tar");
    chown(bed.path("mine"), Some(65534), Some(65534)).unwrap();
    let import = |archive: &str| {
        let mut command = Command::new(bed.path("strata"));
        Bed::output(command.args(["import", archive, "mine"]).current_dir(&bed.0).uid(65534).gid(65534))
    };
    for (archive, why) in [("device.tar", "device node"), ("short.tar", "incomplete")] {
        let (code, out) = import(archive);
        assert!(code == 1 && out.contains(why), "{archive}: {out}");
        assert_eq!(bed.ok("ls -A mine"), "", "{archive}");
    }
    let (code, out) = import("good.tar");
    assert!(code == 0 && out.contains("set-user-ID"), "{out}");
    assert_eq!(
        bed.ok("stat -c '%u %a' mine/locked mine/locked/deep/f; ls -A mine"),
        "65534 500\n65534 755\n.wh.w\nlocked\n"
    );
}

#[test]
fn a_branch_in_use_is_refused() {
    let bed = Bed::new();
    bed.ok("mkdir src in mnt; echo x >src/f; $S export src -o a.tar");
    bed.fails(
        "$S mount 'unionfs,dirs='$PWD/in=rw:$PWD/src=ro mnt; code=0; $S import a.tar in || code=$?; umount mnt; exit $code",
        32,
        "in use",
    );
}
