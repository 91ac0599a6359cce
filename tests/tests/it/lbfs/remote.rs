//! Remote replicas: sshfs over sshd on the loopback interface. Each replica has its own sshd, so
//! that the test can stop, kill and start each server separately.

use rustix::fs::{Gid, Uid};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use strata_tests::{Sandbox, process};
use testkit::until_within;

/// A replica on a server.
pub(crate) struct Remote {
    /// The directory that the server exports.
    pub(crate) tree: PathBuf,
    /// Mount point of sshfs.
    pub(crate) dir: PathBuf,
    port: u16,
    keys: PathBuf,
    sshd: Child,
}

impl Remote {
    /// Starts a server for `tree` and mounts it at `NAME` in the sandbox.
    pub(crate) fn new(sandbox: &Sandbox, name: &str, tree: &Path) -> Self {
        let keys = sandbox.dir(&format!("{name}.keys"));
        for key in ["host", "user"] {
            process::run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(keys.join(key)));
        }
        // sshd's privilege separation directory, which root must own.
        fs::create_dir_all("/run/sshd").unwrap();
        rustix::fs::chown("/run/sshd", Some(Uid::ROOT), Some(Gid::ROOT)).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let shown = keys.display();
        let config = format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {shown}/host\nPidFile none\nAuthorizedKeysFile {shown}/user.pub\n\
             StrictModes no\nUsePAM no\nPermitRootLogin yes\nSubsystem sftp internal-sftp\n"
        );
        fs::write(keys.join("config"), config).unwrap();
        let log = fs::File::create(keys.join("log")).unwrap();
        let sshd = Command::new("/usr/sbin/sshd")
            .args(["-D", "-e", "-f"])
            .arg(keys.join("config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("sshd is missing: run scripts/deps.sh test");
        let remote = Self { tree: tree.to_owned(), dir: sandbox.dir(name), port, keys, sshd };
        remote.mount();
        remote
    }

    /// Mounts it without sshfs's caches, so that every operation reaches the server.
    pub(crate) fn mount(&self) {
        let keys = self.keys.display();
        let options = format!(
            "IdentityFile={keys}/user,StrictHostKeyChecking=no,UserKnownHostsFile=/dev/null,LogLevel=ERROR,port={},\
             direct_io,dir_cache=no,attr_timeout=0,entry_timeout=0,negative_timeout=0",
            self.port
        );
        let from = format!("root@127.0.0.1:{}", self.tree.display());
        until_within(Duration::from_secs(20), "sshfs is mounted, once the server listens", || {
            let output = process::try_run(Command::new("sshfs").arg("-o").arg(&options).arg(&from).arg(&self.dir));
            if output.status.success() { Ok(()) } else { Err((output.text, self.log_text())) }
        });
    }

    fn log_text(&self) -> String {
        fs::read_to_string(self.keys.join("log")).unwrap_or_default()
    }

    /// Returns the server's processes that serve clients.
    fn sessions(&self) -> Vec<i32> {
        let mut found = vec![i32::try_from(self.sshd.id()).unwrap()];
        let mut next = 0;
        while let Some(parent) = found.get(next).copied() {
            found.extend(children(parent));
            next += 1;
        }
        found.remove(0);
        found
    }

    fn signal(&self, signal: Signal) {
        let sessions = self.sessions();
        assert!(!sessions.is_empty(), "no client is connected: {}", self.log_text());
        for pid in sessions {
            let _gone = kill_process(Pid::from_raw(pid).unwrap(), signal);
        }
    }

    /// Stops the server: requests hang.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues a stopped server.
    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the server. sshfs notices, ends, and unmounts: the mount point is an empty directory.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
        let there = || rustix::fs::statfs(&self.dir).is_ok_and(|figures| figures.f_type as u64 & 0xffff_ffff == FUSE);
        until_within(Duration::from_secs(10), "the mount ends without its server", || !there());
    }

    /// Kills sshfs and leaves a dead mount.
    pub(crate) fn kill_client(&self) {
        let here = fs::read_link("/proc/thread-self/ns/mnt").unwrap();
        let arguments = |pid: i32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_ours = |pid: &i32| {
            let arguments = arguments(*pid);
            let mut words = arguments.split(|b| *b == 0);
            words.next() == Some(b"sshfs")
                && words.any(|word| word == self.dir.as_os_str().as_encoded_bytes())
                && fs::read_link(format!("/proc/{pid}/ns/mnt")).is_ok_and(|ns| ns == here)
        };
        let all = fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
        let found: Vec<i32> = all.filter(is_ours).collect();
        assert_eq!(found.len(), 1, "sshfs on {}: {found:?}", self.dir.display());
        kill_process(Pid::from_raw(found[0]).unwrap(), Signal::KILL).unwrap();
        until_within(Duration::from_secs(10), "the mount ends without its server", || fs::metadata(&self.dir).is_err());
    }

    /// Unmounts a dead mount, if it still exists.
    pub(crate) fn unmount(&self) {
        while unmount(&self.dir, UnmountFlags::DETACH).is_ok() {}
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        for pid in self.sessions() {
            let _gone = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        }
        let _gone = self.sshd.kill();
        let _gone = self.sshd.wait();
        self.unmount();
    }
}

/// The type of a FUSE file system (`f_type` of statfs(2)).
const FUSE: u64 = 0x6573_5546;

fn children(pid: i32) -> Vec<i32> {
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    listed.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}
