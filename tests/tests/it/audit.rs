//! The audit log of versionfs, and the exclusion of a second server, mounted.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fuse::control::{Error, call};
use rustix::io::Errno;
use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use strata_tests::process::{Output, run, try_run};
use strata_tests::user::{USER, as_user};
use strata_tests::{Mounted, Sandbox, Spec, Transport, on_both_transports};

fn mount(lower: &Path, at: &Path, options: &str, transport: Transport) -> Result<Mounted, String> {
    Mounted::try_new(Spec::stack(&format!("versionfs{options} / "), lower, transport), at, "")
}

fn versionctl(words: &[&str], dir: &Path) -> Output {
    let program = Mounted::program().expect("the program");
    try_run(Command::new(program).arg0("versionctl").args(words).arg(dir).env("TZ", "UTC"))
}

fn audit(words: &[&str], dir: &Path) -> Vec<Value> {
    let output = versionctl(&[&["audit", "--json"], words].concat(), dir);
    assert_eq!(output.status.code(), Some(0), "{}", output.text);
    serde_json::from_str::<Value>(&output.text).unwrap().as_array().unwrap().clone()
}

fn operations(records: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    records.iter().map(|record| format!("{} {}", text(&record["operation"]), text(&record["path"]))).collect()
}

fn each_operation_names_its_user_and_process(transport: Transport) {
    let sandbox = Sandbox::new();
    let (lower, at) = (sandbox.dir("lower"), sandbox.path("m"));
    fs::set_permissions(&lower, Permissions::from_mode(0o777)).unwrap();
    let mounted = mount(&lower, &at, ",comprehensive", transport).unwrap();
    as_user(USER, || {
        let mut file = File::options().create_new(true).read(true).write(true).open(at.join("f")).unwrap();
        file.write_all(b"one").unwrap();
        file.rewind().unwrap();
        file.write_all(b"two").unwrap();
        drop(file);
        fs::create_dir(at.join("d")).unwrap();
        fs::rename(at.join("f"), at.join("d/g")).unwrap();
    });
    fs::set_permissions(at.join("d/g"), Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(at.join("d/g")).unwrap();

    let all = audit(&[], &at);
    let expected = ["create /f", "write /f", "write /f", "mkdir /d", "rename /f", "chmod /d/g", "unlink /d/g"];
    assert_eq!(operations(&all), expected);
    let numbers: Vec<_> = all.iter().map(|record| record["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=7).collect::<Vec<_>>());
    assert_eq!((&all[4]["new_path"], &all[2]["range"]), (&"/d/g".into(), &serde_json::json!([0, 3])));
    // Each version that a record names can be read.
    let version = all[2]["versions"][0]["number"].as_u64().unwrap();
    assert!(version >= 1);
    let uids: Vec<_> = all.iter().map(|record| record["by"]["uid"].as_u64().unwrap()).collect();
    assert_eq!(uids, [1000, 1000, 1000, 1000, 1000, 0, 0]);
    let this = fs::read_to_string("/proc/self/comm").unwrap();
    for record in &all {
        assert_eq!(record["by"]["process"], this.trim_end(), "{record}");
        assert_ne!(record["by"]["pid"], 0);
    }
    assert_eq!(operations(&audit(&["--user", "1000", "--path", "/d*"], &at)), ["mkdir /d"]);
    assert_eq!(operations(&audit(&["--path", "/d/**", "--user", "0"], &at)), ["chmod /d/g", "unlink /d/g"]);
    assert_eq!(operations(&audit(&["--pid", "1"], &at)), [""; 0]);
    let text = versionctl(&["audit", "--path", "g"], &at).text;
    assert!(text.lines().nth(1).unwrap().contains("/f -> /d/g"), "{text}");
    assert_eq!(versionctl(&["audit", "--path", "["], &at).status.code(), Some(1));

    // Another user can neither read nor reach it.
    let root = File::open(&at).unwrap();
    as_user(USER, || {
        assert_eq!(call(&root, "versionfs.log", b""), Err(Error::Refused(Errno::PERM)));
        assert!(fs::read_dir(at.join(".;versions")).is_err());
    });
    assert!(fs::metadata(at.join(".;versions/;log/1")).is_err());
    drop((root, mounted));

    // The log goes on after a kill that left half a record.
    let segment = lower.join(".;versions/;log/1");
    let len = fs::metadata(&segment).unwrap().len();
    File::options().write(true).open(&segment).unwrap().set_len(len - 5).unwrap();
    let mounted = mount(&lower, &at, ",comprehensive", transport).unwrap();
    fs::write(at.join("h"), "").unwrap();
    let all = audit(&[], &at);
    assert_eq!(operations(&all)[5..], ["chmod /d/g", "torn -", "create /h"]);
    drop(mounted);
    // Damage in the middle is reported; the other records are listed.
    let mut bytes = Vec::new();
    File::open(&segment).unwrap().read_to_end(&mut bytes).unwrap();
    bytes[60] ^= 1;
    fs::write(&segment, &bytes).unwrap();
    let _mounted = mount(&lower, &at, ",comprehensive", transport).unwrap();
    let output = versionctl(&["audit"], &at);
    assert_eq!(output.status.code(), Some(5), "{}", output.text);
    assert!(output.text.contains("damaged: segment 1") && output.text.contains("/h"), "{}", output.text);
}

fn a_second_server_is_refused(transport: Transport) {
    let sandbox = Sandbox::new();
    let (lower, at, other) = (sandbox.ext4("lower", 64), sandbox.path("m"), sandbox.path("other"));
    let mut mounted = mount(&lower, &at, "", transport).unwrap();
    fs::write(at.join("f"), "one").unwrap();
    fs::write(at.join("f"), "two").unwrap();
    let refused = mount(&lower, &other, "", transport).map(drop).unwrap_err();
    let process = format!("process {}", mounted.server());
    for part in [lower.to_str().unwrap(), "in use by the mount at", at.to_str().unwrap(), &*process, "-o at=TIME"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    // Under another layer, too.
    let above = Mounted::try_new(Spec::stack("rot13 / versionfs / ", &lower, transport), &other, "");
    assert!(above.map(drop).unwrap_err().contains("in use by"));

    // The past is readable beside it, also what changes later.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 1;
    // The time of the view has passed.
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let time = run(Command::new("date").args(["-u", &format!("-d@{now}"), "+%FT%TZ"]));
    let past = mount(&lower, &other, &format!(",at={}", time.trim()), transport).unwrap();
    assert_eq!(fs::read_to_string(other.join("f")).unwrap(), "two");
    fs::write(at.join("f"), "three").unwrap();
    fs::remove_file(at.join("f")).unwrap();
    assert_eq!(fs::write(other.join("x"), "").unwrap_err().raw_os_error(), Some(30));
    drop(past);

    // A killed server leaves no lock behind.
    mounted.crash();
    let again = mount(&lower, &other, "", transport).unwrap();
    drop(again);
    mounted.mount_again();
    drop(mounted);

    // Over a union, whose own claims apply.
    let (rw, ro) = (sandbox.dir("rw"), sandbox.dir("ro"));
    let words = format!("versionfs,comprehensive / unionfs,dirs={}=rw:{}=ro", rw.display(), ro.display());
    let _union = Mounted::new(Spec::Stack { words: words.into(), transport }, &at);
    fs::write(at.join("f"), "one").unwrap();
    assert_eq!(operations(&audit(&[], &at))[0], "create /f");
}

/// The log begins new segments, and the thread of the server discards the oldest ones.
#[test]
fn old_segments_go_while_the_log_grows() {
    let sandbox = Sandbox::new();
    let (lower, at) = (sandbox.dir("lower"), sandbox.path("m"));
    fs::write(sandbox.path("conf"), "[audit]\nspace = \"..5MiB\"\n").unwrap();
    let options = format!(",comprehensive,config={}", sandbox.path("conf").display());
    let _mounted = mount(&lower, &at, &options, Transport::Ring).unwrap();
    // Long records.
    let target = "t".repeat(4000);
    for n in 0..3500 {
        symlink(&target, at.join(n.to_string())).unwrap();
    }
    let log = lower.join(".;versions/;log");
    // The thread that discards has a low priority, and discards one segment after another.
    let segments = || fs::read_dir(&log).unwrap().count();
    testkit::until("the oldest segments are discarded", || {
        testkit::seen(segments(), |count| !log.join("1").exists() && *count <= 2)
    });
    let all = audit(&[], &at);
    let discarded = all.iter().rfind(|record| record["operation"] == "discarded").unwrap();
    assert_eq!(all[0]["number"].as_u64(), discarded["range"][1].as_u64().map(|last| last + 1));
    assert!(all.len() > 100 && all.iter().any(|record| record["path"] == "/3499"));
}

on_both_transports!(each_operation_names_its_user_and_process, a_second_server_is_refused);
