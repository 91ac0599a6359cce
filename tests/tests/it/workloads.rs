//! Workloads of common programs: git, cargo, SQLite, PostgreSQL, rsync, tar.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use strata_tests::oracle::population::{build, population};
use strata_tests::process::{run, sh, try_run};
use strata_tests::tree::{self, Times, Tree};
use strata_tests::{Delete, Fixture, Sandbox, Transport, on_both_transports};

fn fixture(transport: Transport, mib: u64, fill: impl FnOnce(&Path)) -> Fixture {
    Fixture::with(Sandbox::with_time(Duration::from_secs(300)), mib, transport, Delete::Whiteout, fill)
}

/// Copies the sources of this workspace, a real project, and creates a git repository of them.
fn repository(dir: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let script = "cd \"$1\"; mkdir \"$2\"/src; tar c --exclude=target --exclude=cache --exclude=./.git . | tar x -C \"$2\"/src
                  cd \"$2\"/src; git init -q -b main; git config user.name n; git config user.email e; git config gc.auto 0
                  git add -A; git commit -q -m all; git clean -qfdx; git branch other; git tag v1";
    sh(script, &[root, dir.to_owned()]);
}

/// git on a repository on the read-only branch: commands that rewrite its files, and a clone.
fn git(transport: Transport) {
    let mut fx = fixture(transport, 256, repository);
    let script = "export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
        export GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=e GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=e
        cd \"$1\"/src; test -z \"$(git status --porcelain)\"
        git checkout -q other; git mv crates moved; git commit -q -m moved; git checkout -q main; test -d crates; test ! -e moved
        git gc -q --prune=now; git fsck --full --strict
        git clone -q --no-local . ../clone; cd ../clone; test -z \"$(git status --porcelain)\"
        git checkout -q -b work; echo more >> Cargo.toml; git commit -q -am more; git push -q origin work
        git fsck --full --strict; cd ../src; git log --format=%s work; git worktree add -q ../tree other; ls ../tree";
    let output = sh(script, &[fx.union.dir()]);
    assert!(output.contains("more\nall\n") && output.contains("moved\n"), "{output}");
    fx.remount();
    sh(
        "cd \"$1\"/src; git -c safe.directory='*' fsck --full --strict; test -z \"$(git -c safe.directory='*' status --porcelain)\"",
        &[fx.union.dir()],
    );
    sh(
        "diff -r --no-dereference --exclude=.git --exclude=Cargo.toml \"$1\"/src \"$1\"/clone; rm -r \"$1\"/clone \"$1\"/tree; ls \"$1\"",
        &[fx.union.dir()],
    );
}

/// Builds and tests a crate whose sources are on the read-only branch; the output is on the union.
fn cargo(transport: Transport) {
    let fx = fixture(transport, 1024, repository);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["test", "--offline", "--quiet", "--package", "vnode", "--target-dir"]).arg(fx.path("target"));
    let output = run(command.current_dir(fx.path("src")).env_remove("CARGO_TARGET_DIR"));
    assert!(output.contains("test result: ok"), "{output}");
    assert!(fs::read_dir(fx.path("target/debug/deps")).unwrap().count() > 10);
    sh("rm -r \"$1\"/target \"$1\"/src; test -z \"$(ls -A \"$1\")\"", &[fx.union.dir()]);
}

/// Several processes write a SQLite database from the read-only branch. No row is lost and the
/// integrity check passes.
fn sqlite(transport: Transport) {
    for journal in ["delete", "wal"] {
        let mut fx = fixture(transport, 256, |ro| {
            sh(
                "sqlite3 \"$1\" 'create table t (who int, n int, filler blob); insert into t values (0, 0, randomblob(50000))'",
                &[ro.join("db")],
            );
        });
        let script = "sqlite3 \"$1\" \"pragma journal_mode=$2\"
            for who in 1 2 3 4; do
                (for n in $(seq 25); do
                    echo '.timeout 60000'; echo 'begin immediate;'
                    echo \"insert into t values ($who, $n, randomblob(3000));\"
                    echo \"update t set filler = randomblob(2000) where who = $who and n = $n / 2;\"; echo 'commit;'
                done | sqlite3 \"$1\" || echo failed) &
            done; wait
            sqlite3 \"$1\" 'pragma integrity_check; select count(*), count(distinct who * 1000 + n) from t'";
        let output = sh(script, &[fx.path("db"), PathBuf::from(journal)]);
        assert_eq!(output, format!("{journal}\nok\n101|101\n"));
        fx.remount();
        let output = sh(
            "sqlite3 \"$1\" 'pragma integrity_check; select count(*) from t; vacuum; pragma integrity_check'",
            &[fx.path("db")],
        );
        assert_eq!(output, "ok\n101\nok\n");
    }
}

/// A PostgreSQL cluster from the read-only branch, under load, through a crash of PostgreSQL and a
/// remount.
fn postgresql(transport: Transport) {
    let version = fs::read_dir("/usr/lib/postgresql").ok().and_then(|mut d| d.next()).and_then(Result::ok);
    let bin = version.expect("PostgreSQL is missing: run scripts/deps.sh test").path().join("bin");
    let postgres = |what: &str, data: &Path| {
        let script = format!("export PATH=\"{}:$PATH\" PGHOST=/mnt/run PGDATABASE=postgres; {what}", bin.display());
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--", "bash", "-euo", "pipefail", "-c", &script, "bash"]).arg(data);
        let output = try_run(command.current_dir("/"));
        let log = fs::read_to_string("/mnt/run/postgres.txt").unwrap_or_default();
        assert!(output.status.success(), "{what}: {}\n{log}", output.text);
        output.text
    };
    let sandbox = Sandbox::with_time(Duration::from_secs(300));
    sh("mkdir /mnt/run; chown postgres: /mnt/run", &[""]);
    let mut fx = Fixture::with(sandbox, 1024, transport, Delete::Whiteout, |ro| {
        sh("mkdir \"$1\"; chown postgres: \"$1\"; chmod 755 \"$2\"", &[ro.join("data"), ro.to_owned()]);
        postgres("initdb -k -N -A trust -D \"$1\" >/dev/null", &ro.join("data"));
    });
    let data = fx.path("data");
    let start = "pg_ctl -s -w -D \"$1\" -l /mnt/run/postgres.txt -o \"-k /mnt/run -c listen_addresses='' -c full_page_writes=on\" start";
    postgres(&format!("{start}; pgbench -q -i -s 2; pgbench -c 4 -j 2 -T 4"), &data);
    let sums = "psql -Atc 'select (select sum(abalance) from pgbench_accounts) = (select sum(bbalance) from pgbench_branches),
                (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history), count(*) > 0 from pgbench_history'";
    assert_eq!(postgres(sums, &data).trim(), "t|t|t");
    // The server crashes under load and recovers from its log.
    postgres(
        "(pgbench -n -c 4 -T 30 >/dev/null 2>&1 || true) & sleep 1; pg_ctl -s -D \"$1\" -m immediate stop; wait",
        &data,
    );
    postgres(start, &data);
    assert_eq!(postgres(sums, &data).trim(), "t|t|t");
    postgres("pg_ctl -s -D \"$1\" -m fast stop; pg_checksums --check -D \"$1\"", &data);
    fx.remount();
    postgres(start, &data);
    assert_eq!(postgres(sums, &data).trim(), "t|t|t");
    postgres("pg_ctl -s -D \"$1\" -m fast stop; pg_checksums --check -D \"$1\"", &data);
}

/// Creates the trees to copy: one with every kind of object, one of many small files.
fn tree_to_copy(dir: &Path) {
    let odd = dir.join("odd");
    fs::create_dir(&odd).unwrap();
    build(&odd, &population(31));
    // rsync writes a file F as `.F.xxxxxx`. For `wh`, `.wh` and `wh.x` that is a reserved name,
    // which a union refuses.
    sh("find \"$1\" -depth -name '*wh*' -exec rm -r {} +", &[&odd]);
    sh("cp -a /usr/share/perl5 /etc \"$1\"/ 2>/dev/null || true; rm -f \"$1\"/etc/mtab", &[dir]);
}

/// rsync -aHAX to the union and back finds no difference in either direction, before and after a
/// remount.
fn rsync(transport: Transport) {
    let mut fx = fixture(transport, 512, tree_to_copy);
    let native = fx.sandbox.path("rw/native");
    tree_to_copy({
        fs::create_dir(&native).unwrap();
        &native
    });
    let same = |one: &Path, other: &Path| {
        let mut command = Command::new("rsync");
        command.args(["-aHAX", "-n", "-i", "--checksum", "--delete"]);
        command.arg(one.join("")).arg(other.join(""));
        let output = run(&mut command);
        // Symbolic links and special files have no bytes to compare; all others must compare equal.
        assert_eq!(output, "", "{} and {}", one.display(), other.display());
    };
    let there = fx.path("there");
    sh("rsync -aHAX \"$1\"/ \"$2\"/", &[&native, &there]);
    same(&native, &there);
    same(&there, &native);
    let back = fx.sandbox.path("rw/back");
    sh("rsync -aHAX \"$1\"/ \"$2\"/", &[&there, &back]);
    same(&native, &back);
    // Over a tree on the read-only branch in which some files differ, are missing or are extra.
    sh(
        "cd \"$1\"; rm -r etc/d*; date > etc/hostname; mv perl5 5perl; mkdir perl5; touch perl5/x; chmod 700 odd",
        &[fx.union.dir()],
    );
    sh("rsync -aHAX --delete --exclude=/there \"$1\"/ \"$2\"/", &[&native, &fx.union.dir().to_owned()]);
    fx.remount();
    sh("rm -r \"$1\"/there; touch -r \"$2\" \"$1\"", &[fx.union.dir(), &native]);
    same(&native, fx.union.dir());
}

/// Reads a tree without the attributes that tar does not store or that differ between file systems.
fn comparable(root: &Path) -> Tree {
    let mut tree = tree::read(root);
    tree.retain(|_, node| !rustix::fs::FileType::from_raw_mode(node.mode).is_socket());
    tree.values_mut().for_each(|node| node.atime = (0, 0));
    tree
}

/// tar preserves hard links, ACLs, extended attributes, devices and holes, both when it packs and
/// when it unpacks on the union.
fn tar(transport: Transport) {
    let fx = fixture(transport, 512, tree_to_copy);
    let all = "--acls --xattrs --xattrs-include='*' --numeric-owner --sparse --warning=no-file-ignored";
    let script = format!(
        "cd \"$1\"; mkdir -p new; tar c {all} odd perl5 etc | tar x {all} -C new; tar d {all} -f <(tar c {all} odd perl5 etc) -C new
         cp -a odd copied; mv odd moved"
    );
    sh(&script, &[fx.union.dir()]);
    for (one, other) in [("etc", "new/etc"), ("perl5", "new/perl5"), ("moved", "new/odd"), ("moved", "copied")] {
        let (want, got) = (comparable(&fx.path(one)), comparable(&fx.path(other)));
        assert_eq!(tree::difference(&want, &got, Times::Exact), "", "{one} and {other}");
    }
}

on_both_transports!(git, cargo, sqlite, postgresql, rsync, tar);
