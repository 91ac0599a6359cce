//! Mounting as an unprivileged user, through fusermount3. The test executes itself again as that
//! user.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::Mounted;
use crate::common::memory::Memory;
use fuse::{Opcode, Transport};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

const ROLE: &str = "FUSE_TEST_AS_USER";
const NOBODY: u32 = 65_534;

#[test]
fn an_unprivileged_user_mounts() {
    if std::env::var_os(ROLE).is_some() {
        return as_user();
    }
    testkit::own_mounts();
    let helper = Command::new("fusermount3").arg("-V").output();
    assert!(helper.is_ok_and(|o| o.status.success()), "fusermount3 is missing: install fuse3");
    // The build directory may be inaccessible to the user.
    let dir = common::temporary_dir();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    // The device may be restricted to root here; this namespace opens it to everybody.
    let device = dir.join("fuse");
    let number = fs::metadata("/dev/fuse").unwrap().rdev();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &device,
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::from_raw_mode(0o666),
        number,
    )
    .unwrap();
    fs::set_permissions(&device, fs::Permissions::from_mode(0o666)).unwrap();
    rustix::mount::mount_bind(&device, "/dev/fuse").unwrap();
    let program = dir.join("test");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let output = Command::new(&program)
        .args(["--exact", "user::an_unprivileged_user_mounts", "--nocapture"])
        .env(ROLE, "1")
        .env("TMPDIR", &dir)
        .current_dir(&dir)
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(!fs::read_to_string("/proc/thread-self/mounts").unwrap().contains(dir.to_str().unwrap()));
    rustix::mount::unmount("/dev/fuse", rustix::mount::UnmountFlags::DETACH).unwrap();
    fs::remove_dir_all(&dir).unwrap();
}

fn as_user() {
    assert_eq!(rustix::process::geteuid().as_raw(), NOBODY);
    for transport in [Transport::Auto, Transport::Device] {
        let m = Mounted::new(Memory::new(), |options| {
            options.transport = transport;
            options.allow_other = false;
            options.source = b"a,b\\c".to_vec();
        });
        fs::write(m.at("f"), b"text").unwrap();
        assert_eq!(fs::read(m.at("f")).unwrap(), b"text");
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = table.lines().find(|l| l.contains(m.path.to_str().unwrap())).unwrap();
        assert!(line.starts_with("a,b\\134c ") && line.contains(" fuse.strata ") && line.contains("nosuid"), "{line}");
        assert!(m.session.counters().total(Opcode::Create) + m.session.counters().total(Opcode::Mknod) > 0);
    }
    let mut options = fuse::MountOptions::new("/");
    options.allow_other = false;
    let error = fuse::Session::mount(&options, std::sync::Arc::new(Memory::new())).unwrap_err();
    assert!(error.to_string().contains("fusermount3"), "{error}");
}
