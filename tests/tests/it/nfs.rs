//! A union exported over NFS, by a real server in user space (nfs-ganesha) to a real client
//! (libnfs), in a private network namespace.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use strata_tests::process::{run, sh};
use strata_tests::{Mounted, Sandbox, Spec, Transport, on_both_transports};

on_both_transports!(clients_survive_all_changes_of_the_union, handles_take_little_space);

/// Number of entries of the large directory.
const ENTRIES: usize = 100_000;
/// Number of entries of the smaller directories.
const FEWER: usize = 5_000;
const VERSIONS: [u32; 2] = [3, 4];
const PATIENCE: Duration = Duration::from_secs(60);

/// The directories of the host that the server and the port mapper write to.
const STATE: [&str; 2] = ["/run", "/var/lib/nfs"];

/// Starts a program in the background.
fn spawn(command: &mut Command, log: &Path) -> Child {
    let open = || File::options().create(true).append(true).open(log).unwrap();
    let started = command.stdin(Stdio::null()).stdout(open()).stderr(open()).spawn();
    started.unwrap_or_else(|error| panic!("{command:?}: {error}; run make deps"))
}

/// Returns the configuration that the documentation shows, for this export.
fn configuration(export: &Path) -> String {
    let page = include_str!("../../../docs/nfs.md");
    let (_, block) = page.split_once("```text\nNFS_CORE_PARAM").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let block = block.replace("/srv/union", export.to_str().unwrap()).replace("= Root_Squash", "= No_Root_Squash");
    // The client does not reclaim its state, so the server need not wait for that.
    format!("NFSv4 {{ Graceless = true; RecoveryBackend = fs; }}\nNFS_CORE_PARAM{block}")
}

/// The NFS server, and the port mapper that it needs.
struct Ganesha {
    ganesha: Option<Child>,
    rpcbind: Child,
    config: PathBuf,
    log: PathBuf,
}

impl Ganesha {
    fn new(sandbox: &Sandbox, export: &Path) -> Self {
        #[expect(deprecated, reason = "deprecated for the sake of UnshareFlags::FILES, which is not used here")]
        rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET).unwrap();
        run(Command::new("ip").args(["link", "set", "lo", "up"]));
        for dir in STATE {
            fs::create_dir_all(dir).unwrap();
            mount("tmpfs", dir, "tmpfs", MountFlags::empty(), None).unwrap();
        }
        fs::create_dir_all("/run/ganesha").unwrap();
        fs::create_dir_all("/var/lib/nfs/ganesha").unwrap();
        let (config, log) = (sandbox.path("ganesha.conf"), sandbox.path("ganesha.log"));
        fs::write(&config, configuration(export)).unwrap();
        let rpcbind = spawn(Command::new("rpcbind").args(["-w", "-f"]), &log);
        let mut all = Self { ganesha: None, rpcbind, config, log };
        all.start();
        all
    }

    fn start(&mut self) {
        let mut command = Command::new("ganesha.nfsd");
        command.args(["-F", "-N", "NIV_EVENT", "-p", "/run/ganesha.pid", "-L"]).arg(&self.log);
        self.ganesha = Some(spawn(command.arg("-f").arg(&self.config), &self.log));
        testkit::until_within(PATIENCE, "ganesha.nfsd answers", || {
            let connected = std::net::TcpStream::connect("127.0.0.1:2049");
            connected.map_err(|error| (error, fs::read_to_string(&self.log).unwrap_or_default()))
        });
    }

    fn stop(&mut self) {
        if let Some(mut ganesha) = self.ganesha.take() {
            run(Command::new("kill").arg(ganesha.id().to_string()));
            ganesha.wait().unwrap();
        }
    }
}

impl Drop for Ganesha {
    fn drop(&mut self) {
        for child in self.ganesha.iter_mut().chain([&mut self.rpcbind]) {
            let _gone = child.kill();
            let _gone = child.wait();
        }
        for dir in STATE {
            let _gone = unmount(dir, UnmountFlags::DETACH);
        }
    }
}

/// A client that keeps what it knows of the server: tests/nfs/open_file.c, tests/nfs/handles.c.
struct Client {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Client {
    /// Compiles a client.
    fn compile(sandbox: &Sandbox, name: &str) -> PathBuf {
        let program = sandbox.path(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("nfs/{name}.c"));
        run(Command::new("gcc").args(["-O2", "-Wall", "-Werror", "-o"]).arg(&program).arg(source).arg("-lnfs"));
        program
    }

    fn start(program: &Path, words: [&str; 2]) -> Self {
        let mut command = Command::new(program);
        let mut child = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the client");
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut client = Self { child, stdin, stdout };
        assert_eq!(client.line(), "ready", "{words:?}");
        client
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end_matches('\n').to_owned()
    }

    /// Sends a command and returns the reply.
    fn ask(&mut self, command: &str) -> String {
        writeln!(self.stdin, "{command}").unwrap();
        self.line()
    }

    /// Continues the listing of a directory with `names` names or more. Returns the last line.
    fn list(&mut self, dir: &str, names: usize, found: &mut Vec<String>) -> String {
        let mut line = self.ask(&format!("list {dir} {names}"));
        while let Some(name) = line.strip_prefix(' ') {
            found.push(name.to_owned());
            line = self.line();
        }
        line
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// Fails unless each of the names "1" to `count` was found once, and each other name at most once.
fn assert_complete(found: &[String], count: usize, what: &str) {
    let all: HashSet<&str> = found.iter().map(String::as_str).collect();
    assert_eq!(all.len(), found.len(), "{what}: entries twice");
    let missing = (1..=count).filter(|number| !all.contains(number.to_string().as_str())).count();
    assert_eq!(missing, 0, "{what}: entries missing, {} found", found.len());
}

/// A client without caches that holds handles and is in the middle of two listings.
struct Holder {
    version: u32,
    client: Client,
    /// The directories with the entries found so far.
    listings: [(&'static str, usize, Vec<String>); 2],
}

impl Holder {
    /// The files whose handles are held.
    const FILES: [&str; 2] = ["lower", "upper"];

    fn start(program: &Path, version: u32, export: &Path) -> Self {
        let mut client = Client::start(program, [&version.to_string(), export.to_str().unwrap()]);
        let files = Self::FILES.map(|file| format!("{file}{version}"));
        let large = if version == 3 { ("many", ENTRIES) } else { ("fewer", FEWER) };
        let listings = [large, ("own", FEWER)].map(|(dir, entries)| (dir, entries, Vec::new()));
        for name in listings.iter().map(|(dir, ..)| *dir).chain(files.iter().map(String::as_str)) {
            assert_eq!(client.ask(&format!("hold {name}")), "done", "NFSv{version} {name}");
        }
        Self { version, client, listings }
    }

    /// Reads the files and continues the listings. `lower`: the contents of the file of the `ro`
    /// branch.
    fn check(&mut self, when: &str, lower: &str) {
        for file in Self::FILES {
            let name = format!("{file}{}", self.version);
            let expected = if file == "lower" { lower } else { file };
            assert_eq!(self.client.ask(&format!("read {name}")), expected, "NFSv{} {name}: {when}", self.version);
        }
        for (dir, entries, found) in &mut self.listings {
            let reply = self.client.list(dir, *entries / 12, found);
            assert_eq!(reply, "more", "NFSv{} {dir}: {when}", self.version);
        }
    }

    /// Lists the rest of the directories.
    fn finish_listings(&mut self) {
        for (dir, entries, found) in &mut self.listings {
            let what = format!("NFSv{} {dir}", self.version);
            assert_eq!(self.client.list(dir, 2 * ENTRIES, found), "end", "{what}");
            assert_complete(found, *entries, &what);
        }
    }

    /// Writes to the files and renames them.
    fn change(&mut self, union: &Mounted, rw: &Path) {
        for file in Self::FILES {
            let name = format!("{file}{}", self.version);
            let to = format!("{name}.renamed");
            assert_eq!(self.client.ask(&format!("write {name}")), "done", "NFSv{} {name}", self.version);
            assert_eq!(self.client.ask(&format!("rename {name} {to}")), "done", "NFSv{} {name}", self.version);
            assert_eq!(self.client.ask(&format!("read {name}")), "WRITTEN", "NFSv{} {name}", self.version);
            assert!(fs::read(rw.join(&to)).unwrap().starts_with(b"WRITTEN"));
            assert!(fs::read(union.path(&to)).unwrap().starts_with(b"WRITTEN"));
            assert!(!union.path(name).exists());
        }
    }
}

/// Returns the URL of an object in the export.
fn url(export: &Path, name: &str, version: u32) -> String {
    format!("nfs://127.0.0.1{}?version={version}", export.join(name).display())
}

/// Lists the large directory with nfs-ls(1).
fn list_with_a_tool(export: &Path, version: u32) {
    let text = run(Command::new("nfs-ls").arg(url(export, "many", version)));
    let found: Vec<String> = text.lines().filter_map(|line| line.split(' ').next_back()).map(str::to_owned).collect();
    assert_eq!(found.len(), ENTRIES, "NFSv{version}");
    assert_complete(&found, ENTRIES, "nfs-ls");
}

/// Copies a file into the export with nfs-cp(1), and back. The program can't create files of
/// NFSv4, on any file system.
fn copy_with_a_tool(sandbox: &Sandbox, export: &Path) {
    let from = sandbox.path("from");
    fs::write(&from, vec![b'x'; 300_000]).unwrap();
    run(Command::new("nfs-cp").arg(&from).arg(url(export, "new", 3)));
    for version in VERSIONS {
        let back = sandbox.path(&format!("back{version}"));
        run(Command::new("nfs-cp").arg(url(export, "new", version)).arg(&back));
        assert!(fs::read(&back).unwrap() == fs::read(&from).unwrap(), "NFSv{version}");
    }
    assert!(fs::read(export.join("new")).unwrap() == fs::read(&from).unwrap());
}

/// Calls `strata union` with an action and a branch.
fn change_branches(union: &Mounted, action: &str, branch: &Path) {
    let mut command = Command::new(Mounted::program().unwrap());
    run(command.arg("union").arg(union.dir()).arg(action).arg(branch));
}

/// Restarts both servers. The union gets another device number. `crash`: the union's server is
/// killed while the NFS server runs.
fn restart_servers(sandbox: &Sandbox, union: &mut Mounted, ganesha: &mut Ganesha, crash: bool) {
    let device = |dir: &Path| fs::metadata(dir).unwrap().dev();
    let before = device(union.dir());
    if crash {
        union.crash();
    }
    // The NFS server keeps the mount busy.
    ganesha.stop();
    union.unmount();
    // Each new mount gets the lowest free number.
    for number in 0.. {
        let other = sandbox.dir(&format!("{number}.{crash}"));
        mount("tmpfs", &other, "tmpfs", MountFlags::empty(), None).unwrap();
        if device(&other) >= before {
            break;
        }
    }
    union.mount_again();
    assert_ne!(device(union.dir()), before);
    ganesha.start();
}

/// Clients list large directories, write and rename. Their file handles, open files and directory
/// positions survive branches that come and go, a copy-up, and a restart of the union's server.
fn clients_survive_all_changes_of_the_union(transport: Transport) {
    let sandbox = Sandbox::with_time(Duration::from_secs(300));
    let [rw, ro] = [sandbox.ext4("rw", 64), sandbox.ext4("ro", 500)];
    let module = sandbox.dir("module");
    let fill = |dir: PathBuf, entries: usize| {
        sh("mkdir \"$1\"; cd \"$1\"; seq \"$2\" | xargs touch", &[&dir, Path::new(&entries.to_string())]);
    };
    fill(ro.join("many"), ENTRIES);
    fill(ro.join("fewer"), FEWER);
    // At first on the leftmost branch only.
    fill(rw.join("own"), FEWER);
    for dir in ["many", "fewer", "own"] {
        fill(module.join(dir), 50);
        fs::write(module.join(dir).join("added"), "").unwrap();
    }
    for name in VERSIONS.iter().flat_map(|version| [format!("{version}"), format!("{version}.open")]) {
        fs::write(ro.join(format!("lower{name}")), "lower").unwrap();
        fs::write(rw.join(format!("upper{name}")), "upper").unwrap();
    }
    let spec = Spec::union(&rw, &ro, transport);
    let mut union = Mounted::with_options(spec, &sandbox.path("u"), "positions=names");
    let export = union.dir().to_owned();
    let mut ganesha = Ganesha::new(&sandbox, &export);
    let programs = ["handles", "open_file"].map(|name| Client::compile(&sandbox, name));
    let mut holders = VERSIONS.map(|version| Holder::start(&programs[0], version, &export));
    let mut open_files = Vec::new();
    copy_with_a_tool(&sandbox, &export);
    for version in VERSIONS {
        // Ganesha opens each file that it lists for an NFSv4 client, which takes half a minute.
        if version == 3 || transport == Transport::Device {
            list_with_a_tool(&export, version);
        }
        for name in Holder::FILES {
            let words = [&*url(&export, "", version), &*format!("/{name}{version}.open")];
            open_files.push((version, name, Client::start(&programs[1], words)));
        }
    }
    let mut check = |when: &str, lower: &str| {
        holders.iter_mut().for_each(|holder| holder.check(when, lower));
        for (version, name, client) in &mut open_files {
            let expected = if *name == "lower" { lower } else { *name };
            assert_eq!(client.ask("read"), expected, "NFSv{version} {name}, open: {when}");
        }
    };
    check("at first", "lower");
    change_branches(&union, "--add", &module);
    check("a branch was added", "lower");
    for name in VERSIONS.iter().flat_map(|version| [format!("lower{version}"), format!("lower{version}.open")]) {
        fs::write(union.path(&name), "copied").unwrap();
        assert!(rw.join(&name).exists());
    }
    check("copied up", "copied");
    change_branches(&union, "--remove", &module);
    check("a branch was removed", "copied");
    for (version, name, client) in &mut open_files {
        assert_eq!(client.ask("write"), "written", "NFSv{version} {name}");
        assert_eq!(client.ask("rename"), "renamed", "NFSv{version} {name}");
        assert_eq!(client.ask("read"), "WRITTEN", "NFSv{version} {name}");
    }
    // libnfs does not reclaim the NFSv4 state of open files from a server that has restarted.
    open_files.retain(|(version, ..)| *version == 3);
    for crash in [false, true] {
        restart_servers(&sandbox, &mut union, &mut ganesha, crash);
        let when = if crash { "the union's server was killed" } else { "the servers were restarted" };
        for (version, name, client) in &mut open_files {
            assert_eq!(client.ask("read"), "WRITTEN", "NFSv{version} {name}, open: {when}");
        }
        holders.iter_mut().for_each(|holder| holder.check(when, "copied"));
    }
    for holder in &mut holders {
        holder.finish_listings();
        holder.change(&union, &rw);
    }
    drop((open_files, holders));
    drop(ganesha);
}

/// Returns the total size of the files below `dir` that belong to the union.
fn own_bytes(dir: &Path) -> u64 {
    let own = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(b".wh.");
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            let meta = entry.metadata().unwrap();
            let below = if meta.is_dir() { own_bytes(&entry.path()) } else { 0 };
            below + if meta.is_file() && own(&entry) { meta.len() } else { 0 }
        })
        .sum()
}

/// What a union keeps on the leftmost branch, so that the handles of copied-up files remain valid,
/// takes at most 0.25 % of the size of the files.
fn handles_take_little_space(transport: Transport) {
    const FILES: u64 = 400;
    /// A common average file size.
    const SIZE: usize = 52_982;
    let sandbox = Sandbox::new();
    let [rw, ro] = ["rw", "ro"].map(|name| sandbox.dir(name));
    for number in 0..FILES {
        fs::write(ro.join(number.to_string()), vec![b'x'; SIZE]).unwrap();
    }
    let mut union = Mounted::new(Spec::union(&rw, &ro, transport), &sandbox.path("u"));
    for number in 0..FILES {
        let file = File::options().write(true).open(union.path(number.to_string())).unwrap();
        (&file).write_all(b"y").unwrap();
        let copy = fs::metadata(rw.join(number.to_string())).unwrap();
        assert_eq!(copy.len(), SIZE as u64);
    }
    for when in ["mounted", "unmounted"] {
        let kept = own_bytes(&rw);
        assert!(kept > FILES, "nothing is kept, {when}");
        assert!(kept * 10_000 <= 25 * FILES * SIZE as u64, "{kept} bytes for {FILES} files, {when}");
        println!("{when}: {} bytes for each file", kept / FILES);
        union.unmount();
    }
}
