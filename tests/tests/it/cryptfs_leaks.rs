//! Where plain data, passphrases and keys must not be: below, in logs, in core dumps, in memory
//! that others can read or that is swapped, and in memory at all once they are not needed.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use strata_tests::crypt::{FLAG_SETS, PASSPHRASE, Volume, own_session};
use strata_tests::process::{run, sh, try_run};
use strata_tests::shell::Shell;
use strata_tests::{Mounted, Rng, Sandbox, Spec, Transport, on_both_transports};

/// Searches files, and with `PID:` processes, for secrets. Arguments: a file of lines with a name
/// and hexadecimal bytes, and what to search. Prints what it finds.
const SEARCH: &str = r#"import base64, re, sys

def forms(secret):
    yield 'raw', secret
    yield 'hex', secret.hex().encode()
    yield 'HEX', secret.hex().upper().encode()
    for encode in base64.b64encode, base64.urlsafe_b64encode:
        # Without the last characters, which depend on what follows.
        yield 'base64', encode(secret)[:len(secret) * 4 // 3 - 3]
    yield 'list', ', '.join(map(str, secret)).encode()
    yield 'escaped', ''.join('\\x%02x' % byte for byte in secret).encode()

def regions(pid):
    memory = open('/proc/%s/mem' % pid, 'rb', 0)
    for line in open('/proc/%s/maps' % pid):
        start, end, mode = re.match('([0-9a-f]+)-([0-9a-f]+) (...)', line).groups()
        if 'w' in mode and '/' not in line:
            start, end = int(start, 16), int(end, 16)
            for at in range(start, end, 16 << 20):
                try:
                    memory.seek(at)
                    yield memory.read(min(end - at, (16 << 20) + 4096))
                except OSError:
                    pass

def contents(what):
    return regions(what[4:]) if what.startswith('PID:') else [open(what, 'rb').read()]

secrets = [line.split() for line in open(sys.argv[1])]
for what in sys.argv[2:]:
    for content in contents(what):
        for name, digits in secrets:
            for form, pattern in forms(bytes.fromhex(digits)):
                if pattern in content:
                    print(what, 'contains', name, form)
"#;

/// Derives the keys of a volume from its master key as docs/formats/cryptfs.md says.
const DERIVE: &str = r#"import hashlib, hmac, sys
master = bytes.fromhex(sys.argv[1])
print('master-key', master.hex())
purposes = {'gcm-key': (b'AES-GCM file content encryption', 32), 'siv-key': (b'AES-SIV file content encryption', 64),
            'xchacha-key': (b'XChaCha20-Poly1305 file content encryption', 32), 'name-key': (b'EME filename encryption', 32)}
for name, (info, length) in purposes.items():
    prk, key, block = hmac.new(bytes(32), master, hashlib.sha256).digest(), b'', b''
    for i in range((length + 31) // 32):
        block = hmac.new(prk, block + info + bytes([i + 1]), hashlib.sha256).digest()
        key += block
    print(name, key[:length].hex())
"#;

/// Returns 32 letters that occur nowhere else.
fn marker(seed: u64) -> String {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    Rng::new(seed).bytes(32).iter().map(|byte| char::from(letters[usize::from(*byte) % letters.len()])).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What must not be found.
struct Secrets {
    file: PathBuf,
    program: PathBuf,
}

impl Secrets {
    /// The secrets of a volume, and further ones.
    fn of(sandbox: &Sandbox, volume: &Volume, further: &[(&str, &str)]) -> Self {
        let (file, program) = (sandbox.path("secrets.txt"), sandbox.path("search.py"));
        fs::write(&program, SEARCH).unwrap();
        fs::write(sandbox.path("derive.py"), DERIVE).unwrap();
        let config = volume.dir().join("gocryptfs.conf");
        let script = "gocryptfs-xray -dumpmasterkey \"$1\" <\"$2\" 2>/dev/null | grep -Eo '[0-9a-f]{64}' | xargs python3 /mnt/derive.py";
        let mut text = sh(script, &[&config, &volume.passfile().to_owned()]);
        assert_eq!(text.lines().count(), 5, "{text}");
        for (name, secret) in further {
            text += &format!("{name} {}\n", hex(secret.as_bytes()));
        }
        fs::write(&file, text).unwrap();
        Self { file, program }
    }

    /// Returns what is found in these files and processes.
    fn find(&self, places: &[&str]) -> String {
        run(Command::new("python3").arg(&self.program).arg(&self.file).args(places))
    }
}

/// Writes and reads markers in everything that is encrypted, with names of all lengths.
fn use_markers(root: &Path, markers: &[String; 6]) {
    let [data, name, long, target, attribute, value] = markers;
    let dir = root.join(format!("dir-{name}"));
    fs::create_dir_all(&dir).unwrap();
    let long = format!("{long}{}", "-".repeat(200));
    for path in [dir.join(name), dir.join(&long), root.join(&long)] {
        fs::write(&path, data.repeat(400)).unwrap();
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(data.as_bytes()).unwrap();
        file.set_len(10_000).unwrap();
        file.sync_all().unwrap();
        let attribute = format!("user.{attribute}");
        rustix::fs::setxattr(&path, attribute.as_str(), value.as_bytes(), rustix::fs::XattrFlags::empty()).unwrap();
        rustix::fs::getxattr(&path, attribute.as_str(), &mut [0; 100]).unwrap();
        assert_eq!(fs::read(&path).unwrap().len(), 10_000);
    }
    let link = root.join("link");
    let _ = fs::remove_file(&link);
    symlink(target, &link).unwrap();
    fs::read_link(&link).unwrap();
    fs::rename(root.join(&long), dir.join(format!("moved-{name}"))).unwrap();
    fs::remove_file(dir.join(&long)).unwrap();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
    assert!(fs::metadata(root.join(format!("missing-{name}"))).is_err());
}

/// Nothing that is secret is on the disk below, in the logs with all details, or in what others see
/// of the server's process.
fn disk_and_logs(transport: Transport) {
    for flags in FLAG_SETS.into_iter().filter(|flags| *flags != ["-plaintextnames"]).take(3) {
        let sandbox = Sandbox::new();
        // The disk has only the volume, not the file with the passphrase.
        let disk = sandbox.ext4("disk", 32);
        let volume = Volume::new(&sandbox.path("volume"), flags);
        sh("cp -a \"$2\"/. \"$1\"; mount --bind \"$1\" \"$2\"", &[&disk, &volume.dir().to_owned()]);
        let markers = [1, 2, 3, 4, 5, 6].map(marker);
        let mut further: Vec<(&str, &str)> = vec![("passphrase", PASSPHRASE)];
        let names = ["data", "name", "long-name", "target", "attribute", "value"];
        further.extend(names.into_iter().zip(markers.iter().map(String::as_str)));
        let secrets = Secrets::of(&sandbox, &volume, &further);
        for spec in [volume.spec(transport), volume.with_sessions(transport)] {
            let mounted = Mounted::with_options(spec, &sandbox.path("m"), "log=trace");
            let crypt = |words: &[&str]| {
                let mut command = Command::new(Mounted::program().unwrap());
                try_run(command.arg("crypt").args(words).arg(mounted.dir()))
            };
            let per_session = fs::write(mounted.path("try"), "").is_err();
            if per_session {
                own_session();
                let passfile = volume.passfile().to_str().unwrap();
                for _ in 0..2 {
                    assert!(crypt(&["add", "--passfile", passfile]).status.success());
                    use_markers(mounted.dir(), &markers);
                    assert!(crypt(&["list"]).status.success());
                    assert!(crypt(&["del"]).status.success());
                    assert!(fs::read_dir(mounted.dir()).unwrap().next().unwrap().is_err());
                }
            } else {
                use_markers(mounted.dir(), &markers);
            }
            let pid = mounted.server();
            let process = ["cmdline", "environ", "comm"].map(|file| format!("/proc/{pid}/{file}"));
            assert_eq!(secrets.find(&process.each_ref().map(String::as_str)), "");
        }
        assert!(fs::metadata("/mnt/m.server.log").unwrap().len() > 10_000, "the log has no details");
        sh("sync -f \"$1\"", &[volume.dir()]);
        assert_eq!(secrets.find(&["/mnt/disk.img", "/mnt/m.log", "/mnt/m.server.log"]), "");
        // The search finds what is there.
        let found = Path::new("/mnt/found");
        fs::write(found, format!("x{}y{}z", markers[0], hex(markers[1].as_bytes()))).unwrap();
        let text = secrets.find(&["/mnt/found"]);
        assert_eq!(text, "/mnt/found contains data raw\n/mnt/found contains name hex\n");
    }
}

/// The passphrase and the master key are wiped once the keys are derived, and those when they are
/// withdrawn.
fn memory_of_the_server(transport: Transport) {
    for flags in [&[][..], &["-aessiv"], &["-xchacha"]] {
        check_memory_of_the_server(transport, flags);
    }
}

fn check_memory_of_the_server(transport: Transport, flags: &[&str]) {
    let sandbox = Sandbox::new();
    let volume = Volume::new(&sandbox.path("volume"), flags);
    let secrets = Secrets::of(&sandbox, &volume, &[("passphrase", PASSPHRASE)]);
    let found = |mounted: &Mounted| -> Vec<String> {
        let text = secrets.find(&[&format!("PID:{}", mounted.server())]);
        let mut found: Vec<_> = text.lines().map(|line| line.split(' ').nth(2).unwrap().to_owned()).collect();
        found.sort();
        found.dedup();
        found
    };
    {
        let mounted = Mounted::new(volume.spec(transport), &sandbox.path("m"));
        fs::write(mounted.path("file"), "text").unwrap();
        let found = found(&mounted);
        assert!(found.iter().any(|name| name.ends_with("-key")), "the search finds no key in use");
        assert!(found.iter().all(|name| name != "passphrase" && name != "master-key"), "{flags:?}: {found:?}");
    }
    let mounted = Mounted::new(volume.with_sessions(transport), &sandbox.path("m"));
    let mut shell = Shell::in_own_session(mounted.dir(), 0);
    let (program, passfile) = (Mounted::program().unwrap(), volume.passfile().to_owned());
    shell.run(&format!("strata={}; passfile={}", program.display(), passfile.display()));
    for _ in 0..2 {
        shell.run("$strata crypt add . --passfile $passfile; echo text >file; cat file");
        let in_use = found(&mounted);
        assert!(in_use.iter().all(|name| name != "passphrase" && name != "master-key"), "{flags:?}: {in_use:?}");
        shell.run("$strata crypt del .");
        assert_eq!(found(&mounted), [""; 0], "{flags:?}: after the key was withdrawn");
    }
}

/// The server's memory is locked, and an abort leaves no core dump, whatever the limit was.
fn no_core_dump(transport: Transport) {
    let sandbox = Sandbox::new();
    let volume = Volume::new(&sandbox.path("volume"), &[]);
    let mut mounted = Mounted::with_limit(volume.spec(transport), &sandbox.path("m"), "-c unlimited");
    fs::write(mounted.path("file"), "text").unwrap();
    let pid = mounted.server();
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let status = read("status");
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    let kib: u64 = locked.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    assert!(kib > 1000, "only {kib} KiB are locked");
    let limits = read("limits");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"], "{core}");
    let cwd = fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
    let list = || sh("ls -A \"$1\" /mnt /tmp /", &[&cwd]);
    let before = list();
    sh("kill -ABRT \"$1\"", &[&pid.to_string()]);
    mounted.crash();
    assert_eq!(list(), before);
    // A process without this protection does leave one, if the kernel writes them to files.
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if !pattern.starts_with(['|', '/']) {
        let dir = sandbox.dir("dump");
        let mut command = Command::new("bash");
        let dumped = command.args(["-c", "ulimit -c unlimited; kill -ABRT $$"]).current_dir(&dir).status().unwrap();
        assert!(dumped.core_dumped() && fs::read_dir(&dir).unwrap().count() == 1, "{dumped}");
    }
    mounted.mount_again();
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"text");
}

/// Other processes of an ordinary user can't read the memory of the user's server.
fn memory_of_a_users_server(transport: Transport) {
    let sandbox = Sandbox::new();
    let volume = Volume::new(&sandbox.path("volume"), &[]);
    let point = sandbox.dir("m");
    // Here alone, the user may open it.
    sh("mknod -m 666 /mnt/fuse c 10 229; mount --bind /mnt/fuse /dev/fuse", &[""]);
    sh("chown -R 1000:1000 \"$1\" \"$1.passphrase\" \"$2\"", &[volume.dir(), &point]);
    let as_user = |script: &str, words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "1000", "--regid", "1000", "--clear-groups", "bash", "-c", script, "bash"]);
        try_run(command.args(words).stdin(Stdio::null()))
    };
    let stack = format!("{} / {}", volume.layer(), volume.dir().display());
    let program = Mounted::program().unwrap();
    let options = format!("transport={},logfile=/mnt/user.log", transport.name());
    File::create("/mnt/user.log").and_then(|log| log.set_permissions(fs::Permissions::from_mode(0o666))).unwrap();
    chown("/mnt/user.log", Some(1000), Some(1000)).unwrap();
    let words = [program.to_str().unwrap(), &options, &stack, point.to_str().unwrap()];
    let mounted = as_user("exec \"$1\" mount -o \"$2\" \"$3\" \"$4\"", &words);
    assert!(mounted.status.success(), "{}", mounted.text);
    let written = as_user("echo text >\"$1/file\"; cat \"$1/file\"", &[point.to_str().unwrap()]);
    assert_eq!(written.text, "text\n");
    let find = "for p in /proc/[0-9]*; do test \"$(readlink $p/exe)\" = \"$1\" && test $(stat -c %u $p/task) && echo ${p#/proc/}; done";
    let servers = sh(&format!("{find} || true"), &[&program]);
    let here = fs::read_link("/proc/thread-self/ns/mnt").unwrap();
    let is_here = |pid: &&str| fs::read_link(format!("/proc/{pid}/ns/mnt")).is_ok_and(|ns| ns == here);
    let pid = servers.lines().find(is_here).unwrap().to_owned();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.contains("Uid:\t1000\t1000"), "{status}");
    for file in ["mem", "environ", "maps", "auxv", "fd/0"] {
        let output = as_user("head -c 1 \"/proc/$1/$2\"", &[&pid, file]);
        assert!(output.text.contains("ermission denied"), "{file}: {}", output.text);
    }
    let unmounted = as_user("fusermount3 -u \"$1\"", &[point.to_str().unwrap()]);
    assert!(unmounted.status.success(), "{}", unmounted.text);
}

/// A passphrase given on the terminal or through a pipe is in no command line.
fn the_mount_with_a_passphrase_from_standard_input(transport: Transport) {
    let sandbox = Sandbox::new();
    let volume = Volume::new(&sandbox.path("volume"), &[]);
    let spec = Spec::stack("cryptfs,key=mount / ", volume.dir(), transport);
    // Without a terminal and with an empty standard input.
    let output = Mounted::try_new(spec, &sandbox.path("m"), "").unwrap_err();
    assert!(output.contains("passphrase"), "{output}");
    let script = "printf '%s\\n' \"$5\" | \"$1\" mount -o \"$2\" \"$3\" \"$4\"";
    let stack = format!("cryptfs,key=mount / {}", volume.dir().display());
    let options = format!("transport={},logfile=/mnt/m.server.log", transport.name());
    let program = Mounted::program().unwrap();
    let point = sandbox.dir("m");
    let words = [program.as_path(), Path::new(&options), Path::new(&stack), &point, Path::new(PASSPHRASE)];
    sh(script, &words);
    fs::write(point.join("file"), "text").unwrap();
    sh("umount \"$1\"", &[&point]);
    let log = fs::read_to_string("/mnt/m.server.log").unwrap();
    assert!(!log.contains(PASSPHRASE) && log.contains("mounted by"), "{log}");
}

on_both_transports!(
    disk_and_logs,
    memory_of_the_server,
    no_core_dump,
    memory_of_a_users_server,
    the_mount_with_a_passphrase_from_standard_input,
);
