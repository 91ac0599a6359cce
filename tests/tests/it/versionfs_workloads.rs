//! Common programs on versionfs: editors, copying tools, git, SQLite, a compiler, programs that
//! map files. The result is that on a native file system, and the history shows each state that the
//! programs left.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};
use strata_tests::process::sh;
use strata_tests::tree::{self, Times};
use strata_tests::versions::{Moments, contents, keep_all, list, texts};
use strata_tests::{Mounted, Sandbox, Spec, Transport, on_both_transports};

/// versionfs over an empty directory of an ext4 file system.
struct Mount {
    mounted: Mounted,
    lower: PathBuf,
    transport: Transport,
    /// Dropped last, because it removes everything else.
    sandbox: Sandbox,
}

impl Mount {
    fn new(transport: Transport, options: &str) -> Self {
        let sandbox = Sandbox::new();
        let lower = sandbox.ext4("disk", 512).join("lower");
        fs::create_dir(&lower).unwrap();
        let options = format!("{}{options}", keep_all(&sandbox));
        let mounted = Mounted::new(Spec::versions(&lower, &options, transport), &sandbox.path("m"));
        Self { mounted, lower, transport, sandbox }
    }

    fn dir(&self) -> &Path {
        self.mounted.dir()
    }

    /// Checks the history in this mount, in a new server, and in a mount of each third moment.
    fn check(&mut self, moments: &Moments, count: usize) {
        moments.check("in the mount");
        self.mounted.remount();
        moments.check("in a new server");
        for moment in (0..count).step_by(3) {
            let option = format!("at={}", moments.time(moment));
            let past = Mounted::new(Spec::versions(&self.lower, &option, self.transport), &self.sandbox.path("past"));
            moments.check_tree(moment, past.dir(), "in a mount of the past");
        }
    }
}

/// Runs each script with `$1` set to the mount, and checks the history of the states between them.
fn check_states(mount: &mut Mount, scripts: &[&str]) {
    let mut moments = Moments::new(mount.dir());
    for script in scripts {
        moments.after(|| sh(&format!("cd \"$1\"; {script}"), &[mount.dir()]));
    }
    mount.check(&moments, scripts.len() + 1);
}

/// Editors that rewrite a file in place, replace it, and keep a backup of it.
fn editors(transport: Transport) {
    let mut mount = Mount::new(transport, "");
    let vim = |set: &str, edit: &str| {
        format!(
            "HOME=/nonexistent vim -u NONE -i NONE -es -c 'set nocompatible {set}' -c '{edit}' -c wq file </dev/null"
        )
    };
    let lines = "seq 3000 | sed 's/$/ a line of text/' > file; chmod 640 file; setfattr -n user.a -v b file";
    let yes = vim("backup writebackup backupcopy=yes", "%s/^1000 /1000 replaced /");
    let no = vim("nobackup writebackup backupcopy=no", "10,20d");
    let plain = vim("nobackup nowritebackup", "$d");
    let scripts = [
        lines,
        &yes,
        "rm file~",
        &no,
        &plain,
        "sed -i 's/^2999 .*/the line before the last/' file",
        "sed -i.bak 2d file",
        "printf '1d\\nw\\nq\\n' | ed -s file",
        "printf '%s\\n' '1,5d' w q | ex -u NONE -i NONE -s file",
        "perl -pi -e 's/text/texts/ if 40..50' file",
    ];
    check_states(&mut mount, &scripts);
    let first: String = (1..=3000).map(|n| format!("{n} a line of text\n")).collect();
    assert_eq!(texts(mount.dir(), "file")[0], first);
}

/// Shell redirections, dd, truncate, fallocate, cp, install, mv, rsync.
fn tools(transport: Transport) {
    for options in ["", ",storage=full", ",copy-on=write,comprehensive"] {
        let mut mount = Mount::new(transport, options);
        let scripts = [
            "seq 20000 > a; cp a b; cp -a a c; ln -s a s; mkfifo f; mkdir -p d/e; cp a d/e/x",
            "seq 19999 > a; seq 20000 > b; echo more >> c",
            "dd if=/dev/zero of=a conv=notrunc bs=1000 count=3 seek=7 status=none; truncate -s 5000 b; truncate -s +9000 c",
            "fallocate -p -o 4096 -l 8192 a; fallocate -z -o 5000 -l 4096 d/e/x; fallocate -l 200000 c; fallocate -d b",
            "cp b a; cp --remove-destination c b; install -m 600 a c",
            "mv a c; mv b a; mv d/e d/g; rm s; ln -s elsewhere s; rm f; echo now a file > f",
            "mkdir src; cp -a a c d src; rsync -a src/ copy/; echo x >> src/a; rsync -a --inplace --no-whole-file src/ copy/",
            "dd if=/dev/urandom of=src/d/g/x bs=5000 count=2 conv=notrunc seek=3 status=none; rsync -a --no-whole-file --inplace -I src/ copy/",
            "rm src/a; echo y >> src/c; rsync -a --delete --backup src/ copy/; rsync -a --append-verify src/ copy/",
            "chmod 4711 c; chown 1000:1000 a; setfattr -n user.x -v 1 a; touch -d '2040-01-01' copy/c",
            "rm -r d src; mv copy d; :> c; cat /dev/null > a",
            "rm -r d; rm -f a b c s f",
        ];
        check_states(&mut mount, &scripts);
        assert_eq!(fs::read_dir(mount.dir()).unwrap().count(), 0);
        // The directories and what was in them is below the store.
        let mut stored = fs::read_dir(mount.lower.join(".;versions")).unwrap();
        assert!(stored.any(|entry| entry.unwrap().file_type().unwrap().is_dir()));
    }
}

/// git in a repository, with packs, and branches that replace a directory.
fn git(transport: Transport) {
    let mut mount = Mount::new(transport, "");
    let export = "export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=e GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=e;
        export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=gc.auto GIT_CONFIG_VALUE_0=0; ";
    let steps = [
        "git init -q -b main; mkdir src; for n in 1 2 3 4; do seq $n 500 > src/$n; done; git add -A; git commit -q -m one",
        "git checkout -q -b other; git mv src moved; seq 7 9 > moved/3; git commit -qam two",
        "git checkout -q main; test -d src; echo more >> src/1; git stash -q; git stash pop -q; git commit -qam three",
        "git gc -q --prune=now; git fsck --full --strict; git merge -q -m four other",
        "git reset -q --hard HEAD~1; git clean -qfdx; git fsck --full --strict; git status --porcelain",
    ];
    let steps: Vec<String> = steps.iter().map(|step| format!("{export}{step}")).collect();
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    check_states(&mut mount, &steps);
    let token = |time: &str| strata_tests::versions::command(mount.dir(), "versionfs.at", time).unwrap();
    // The repository as it was before the garbage collection is complete.
    let past = Moments::new(mount.dir());
    let now = mount.dir().join(token(past.time(0)).trim_end());
    let output = sh("git -c safe.directory='*' --git-dir \"$1\"/.git log --format=%s main", &[now]);
    assert_eq!(output, "three\none\n");
}

/// SQLite with a rollback journal and with a log; the database is mapped. Each backup that the
/// history gives is a sound database.
fn sqlite(transport: Transport) {
    let mut mount = Mount::new(transport, "");
    let mut steps = vec![
        "sqlite3 db 'pragma mmap_size=1000000; create table t (n int, filler blob); insert into t values (0, randomblob(50000))'"
            .to_owned(),
    ];
    for (round, journal) in ["delete", "truncate", "persist", "wal", "wal", "delete"].iter().enumerate() {
        steps.push(format!(
            "sqlite3 db 'pragma journal_mode={journal}; pragma mmap_size=1000000; begin; insert into t values ({round}, randomblob(9000));
             update t set filler = randomblob(30000) where n = {round} / 2; commit; pragma integrity_check' | grep -qx ok"
        ));
    }
    steps.push("sqlite3 db 'vacuum; pragma integrity_check' | grep -qx ok".to_owned());
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    check_states(&mut mount, &steps);
    let copies = mount.sandbox.dir("copies");
    // Each version is what the database was between a process's open and close.
    let all = contents(mount.dir(), "db");
    assert!(all.len() >= 7, "{}", all.len());
    for (number, bytes) in all.iter().enumerate() {
        let copy = copies.join(number.to_string());
        fs::write(&copy, bytes).unwrap();
        assert_eq!(sh("sqlite3 \"$1\" 'pragma integrity_check'", &[copy]), "ok\n", "{number}");
    }
}

/// A C project is built, changed, built again and packed: as natively, and the history has all of
/// it.
fn compile(transport: Transport) {
    let mut mount = Mount::new(transport, "");
    let native = mount.sandbox.dir("disk/native");
    let project = "mkdir p; cd p; for n in 1 2 3; do printf 'int f%s(int x) { return x * %s; }\\n' $n $n > f$n.c; done
        printf 'int f1(int), f2(int), f3(int);\\nint main(void) { return f1(f2(f3(7))) - 42; }\\n' > main.c
        printf 'o = main.o f1.o f2.o f3.o\\np: $(o) lib.a\\n\\tgcc -o p main.o lib.a\\nlib.a: $(o)\\n\\tar rcsD lib.a f1.o f2.o f3.o\\n' > Makefile
        touch -d 2020-01-01 *.c Makefile";
    let steps = [
        project,
        "cd p; make -s CFLAGS=-O1; ./p",
        "cd p; sed -i s/42/43/ main.c; make -s CFLAGS=-O1; if ./p; then exit 1; fi",
        "tar cf t.tar --mtime=@0 --sort=name p; mkdir new; tar xf t.tar -C new; cmp new/p/p p/p",
        "cd p; make -s CFLAGS=-O0 -B; rm *.o; cd ..; rm -r new; tar xf t.tar; p/p || test $? = 255",
    ];
    for step in steps {
        sh(&format!("cd \"$1\"; {step}"), &[&native]);
    }
    check_states(&mut mount, &steps);
    let trees = [&native, mount.dir()].map(|dir| {
        let mut tree = tree::read(dir);
        tree.values_mut().for_each(|node| (node.mtime, node.atime) = ((0, 0), (0, 0)));
        tree
    });
    assert_eq!(tree::difference(&trees[0], &trees[1], Times::Exact), "");
    assert!(list(&mount.dir().join("p"), "p").len() >= 3);
}

/// A program that maps a file and closes it changes it through the mapping, unseen by the layer,
/// while others read, write and map it.
fn mappings(transport: Transport) {
    let mount = Mount::new(transport, "");
    let script = r#"
import mmap, os, subprocess, sys
os.chdir(sys.argv[1])
def content(byte): return bytes([byte]) * 40000
def put(name, offset, data):
    fd = os.open(name, os.O_WRONLY); os.pwrite(fd, data, offset); os.close(fd)
# A reader has the file open, and the kernel does its I/O.
open('read', 'wb').write(content(1))
reader = open('read', 'rb', buffering=0); assert reader.read(10) == content(1)[:10]
fd = os.open('read', os.O_RDWR)
m = mmap.mmap(fd, 40000); m[0:10] = b'mapped one'; m[20000:20010] = b'mapped two'
m.flush(); m.close(); os.close(fd)
reader.seek(0); assert reader.read(10) == b'mapped one'
fd = os.open('read', os.O_RDWR); os.pwrite(fd, b'written', 30000); os.close(fd)
# The creator maps its new file, closes it, and changes it later.
fd = os.open('made', os.O_RDWR | os.O_CREAT | os.O_EXCL); os.write(fd, content(2))
m = mmap.mmap(fd, 40000); os.close(fd)
put('made', 5, b'first')
m[20000:20005] = b'later'; m.flush()
put('made', 39000, b'third')
m[10000:10005] = b'again'; m.close()
put('made', 0, b'last')
# A mapping outlives the name.
fd = os.open('gone', os.O_RDWR | os.O_CREAT | os.O_EXCL); os.write(fd, content(3))
m = mmap.mmap(fd, 40000); os.close(fd)
os.unlink('gone'); m[0:4] = b'late'; m.close()
# A mapping of a file that another program replaces.
open('old', 'wb').write(content(4))
fd = os.open('old', os.O_RDWR); m = mmap.mmap(fd, 40000); m[0:4] = b'once'; os.close(fd)
open('new', 'wb').write(content(5)); os.rename('new', 'old')
m[0:4] = b'more'; m.close()
"#;
    let mut command = std::process::Command::new("python3");
    strata_tests::process::run(command.arg("-c").arg(script).arg(mount.dir()));
    let filled = |byte: u8, changes: &[(usize, &[u8])]| {
        let mut bytes = vec![byte; 40000];
        for (at, text) in changes {
            bytes[*at..at + text.len()].copy_from_slice(text);
        }
        bytes
    };
    let read = contents(mount.dir(), "read");
    assert!(read[0] == filled(1, &[]));
    let mapped: [(usize, &[u8]); 2] = [(0, b"mapped one"), (20000, b"mapped two")];
    assert!(*read.last().unwrap() == filled(1, &mapped));
    let changes: [(usize, &[u8]); 4] = [(5, b"first"), (20000, b"later"), (39000, b"third"), (10000, b"again")];
    let made = contents(mount.dir(), "made");
    assert_eq!(made.len(), 3);
    for (number, bytes) in made.iter().enumerate() {
        let count = [0, 2, 4][number];
        assert!(*bytes == filled(2, &changes[..count]), "version {}", number + 1);
    }
    let gone = contents(mount.dir(), "gone");
    assert!(gone.len() == 1 && (gone[0] == filled(3, &[]) || gone[0] == filled(3, &[(0, b"late")])));
    let old = contents(mount.dir(), "old");
    assert!(old[0] == filled(4, &[]), "the version before the mapping");
    assert!(fs::read(mount.dir().join("old")).unwrap() == [5; 40000]);
}

on_both_transports!(editors, tools, git, sqlite, compile, mappings);
