//! What commands and the cleaner report to the layer above, and the past of names that were left
//! within one second.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use crate::common::policies::{clock, control, cx, mount, name, read_all};
use core::ops::Range;
use core::time::Duration;
use memfs::MemFs;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use versionfs::{Options, VersionFs};
use vnode::{Attr, Call, Cx, Drained, Layer, Name, OpenFlags, Processes, RenameFlags, Time, Upcalls, Vnode};

/// A layer above, which notes the reports.
#[derive(Debug, Default)]
struct Above(Mutex<Vec<String>>);

impl Above {
    fn note(&self, what: &str, number: u64, name: Option<Name<'_>>) {
        let name = name.map(|name| format!(" {name}")).unwrap_or_default();
        self.0.lock().unwrap().push(format!("{what} {number:x}{name}"));
    }

    fn take(&self) -> Vec<String> {
        let mut reports = std::mem::take(&mut *self.0.lock().unwrap());
        reports.sort();
        reports
    }
}

impl Upcalls for Above {
    fn entry_changed(&self, dir: u64, name: Name<'_>) {
        self.note("entry", dir, Some(name));
    }

    fn directory_entry_changed(&self, dir: u64, name: Name<'_>) {
        self.note("directory", dir, Some(name));
    }

    fn attributes_changed(&self, vnode: u64) {
        self.note("attributes", vnode, None);
    }

    fn data_changed(&self, vnode: u64, _: Range<u64>) {
        self.note("data", vnode, None);
    }

    fn data_changed_out_of_band(&self, _: u64, _: &Attr) {}
    fn data_moved(&self, _: u64) {}

    fn everything_changed(&self) {
        self.note("everything", 0, None);
    }

    fn stop_passthrough(&self, _: u64, _: Drained) {}
    fn allow_passthrough(&self, _: u64) {}

    fn passthrough(&self) -> Vec<u64> {
        Vec::new()
    }

    fn maybe_mapped(&self) -> Vec<u64> {
        Vec::new()
    }

    fn is_host_file_unused(&self, _: BorrowedFd<'_>, _: bool) -> bool {
        true
    }

    fn settle(&self, _: Duration) -> bool {
        true
    }
}

/// No process is known.
#[derive(Debug)]
struct Nobody;

impl Processes for Nobody {
    fn groups(&self, _: u32) -> Option<Vec<u32>> {
        None
    }

    fn umask(&self, _: u32) -> Option<u32> {
        None
    }

    fn session(&self, _: u32) -> Option<(u32, u64)> {
        None
    }

    fn executable(&self, _: u32) -> Option<PathBuf> {
        None
    }

    fn cgroup(&self, _: u32) -> Option<Vec<u8>> {
        None
    }
}

fn write(dir: &Arc<dyn Vnode>, file: &[u8], text: &str) -> u64 {
    let (number, opened) = match dir.lookup(&cx(), name(file)).unwrap() {
        Some(entry) => (entry.vnode.id(), entry.vnode.open(&cx(), OpenFlags::RDWR.with_trunc()).unwrap()),
        None => {
            let (entry, opened) = dir.create(&cx(), name(file), 0o644, OpenFlags::RDWR).unwrap();
            (entry.vnode.id(), opened)
        }
    };
    opened.write(&cx(), text.as_bytes(), 0).unwrap();
    number
}

fn run(dir: &Arc<dyn Vnode>, command: &str, input: &str) -> String {
    let reply = dir.control(&cx(), &format!("versionfs.{command}"), input.as_bytes()).unwrap();
    String::from_utf8(reply).unwrap()
}

/// Returns the directory as it was at a time.
fn past(dir: &Arc<dyn Vnode>, time: &str) -> Arc<dyn Vnode> {
    let token = run(dir, "at", time);
    dir.lookup(&cx(), name(token.trim_end().as_bytes())).unwrap().unwrap().vnode
}

fn read(vnode: &dyn Vnode) -> String {
    String::from_utf8(read_all(vnode)).unwrap()
}

struct Fixture {
    fs: Arc<VersionFs>,
    root: Arc<dyn Vnode>,
    above: Arc<Above>,
}

impl Fixture {
    fn new(config: &str) -> Self {
        Self::over(&MemFs::new(), config)
    }

    fn over(lower: &Arc<MemFs>, config: &str) -> Self {
        let fs = mount(lower, config);
        let above = Arc::new(Above::default());
        fs.attach(above.clone());
        let root = fs.root();
        Self { fs, root, above }
    }
}

#[test]
fn commands_report_each_change_once() {
    let Fixture { root, above, .. } = Fixture::new("builtin = false");
    let dir = root.mkdir(&cx(), name(b"dir"), 0o755).unwrap().vnode;
    let other = root.mkdir(&cx(), name(b"other"), 0o755).unwrap().vnode;
    let file = write(&dir, b"f", "0");
    for step in 1..4 {
        write(&dir, b"f", &step.to_string());
    }
    let (d, o, r) = (dir.id(), other.id(), root.id());
    let reports = |command: &str, input: &str| {
        drop(above.take());
        run(&dir, command, input);
        above.take()
    };
    // Nobody has seen the past.
    assert!(reports("discard", "f 1").is_empty());
    let (past, past_of_other) = (past(&dir, "1"), past(&other, "1"));
    let (p, po) = (past.id(), past_of_other.id());
    assert_eq!(reports("discard", "f 2 3"), [format!("entry {p:x} f")]);
    assert_eq!(reports("chmod", "f 600"), [format!("attributes {file:x}")]);
    assert_eq!(reports("chown", "f 7 -1"), [format!("attributes {file:x}")]);
    write(&dir, b"f", "more");
    for command in ["list", "pin", "annotate"] {
        let input = ["f", "f 4 on", "f 4 text"][usize::from(command != "list") + usize::from(command == "annotate")];
        assert!(reports(command, input).is_empty(), "{command}");
    }
    run(&dir, "pin", "f 4 off");
    let mut renamed = vec![
        format!("attributes {file:x}"),
        format!("entry {d:x} f"),
        format!("entry {o:x} g"),
        format!("entry {p:x} f"),
        format!("entry {po:x} g"),
    ];
    renamed.sort();
    assert_eq!(reports("rename", &format!("f {o} g")), renamed);
    drop(above.take());
    run(&other, "unlink", "g");
    let mut removed = vec![format!("attributes {file:x}"), format!("entry {o:x} g"), format!("entry {po:x} g")];
    removed.sort();
    assert_eq!(above.take(), removed);
    // What exists only in the past.
    write(&other, b"h", "h");
    other.unlink(&cx(), name(b"h")).unwrap();
    drop(above.take());
    run(&other, "unlink", "h");
    assert_eq!(above.take(), [format!("entry {po:x} h")]);
    run(&root, "rename", &format!("dir {r} moved"));
    let mut moved = vec![format!("attributes {d:x}"), format!("directory {r:x} dir"), format!("directory {r:x} moved")];
    moved.sort();
    assert_eq!(above.take(), moved);
    run(&root, "rmdir", "moved");
    let mut removed = vec![format!("attributes {d:x}"), format!("directory {r:x} moved")];
    removed.sort();
    assert_eq!(above.take(), removed);
}

/// Returns the layer with a policy that keeps two versions, over a directory with more: of `f` and
/// `g`, which are one file if `linked`.
fn over_many_versions(linked: bool) -> Fixture {
    let lower = MemFs::new();
    let before = mount(&lower, "builtin = false").root();
    write(&before, b"f", "text");
    if linked {
        before.link(&cx(), name(b"g"), &before.lookup(&cx(), name(b"f")).unwrap().unwrap().vnode).unwrap();
    }
    for step in 0..9 {
        write(&before, b"f", &step.to_string());
        write(&before, b"g", &step.to_string());
    }
    drop(before);
    Fixture::over(&lower, &["builtin = false", "number = \"1..2\""].join("\n"))
}

#[test]
fn the_cleaner_reports_what_it_discards_once() {
    for linked in [false, true] {
        let Fixture { fs, root, above } = over_many_versions(linked);
        let past = past(&root, "1").id();
        let discarded = control(&fs, "versionfs.clean").unwrap();
        assert!(!discarded.contains(" discarded 0 "), "{discarded}");
        assert_eq!(above.take(), [format!("entry {past:x} f"), format!("entry {past:x} g")], "{linked}");
        control(&fs, "versionfs.clean").unwrap();
        assert!(above.take().is_empty(), "{linked}");
        assert_eq!(past, self::past(&root, "1").id());
    }
}

#[test]
fn versions_that_a_new_one_replaces_are_reported() {
    let Fixture { root, above, .. } = over_many_versions(false);
    let past = past(&root, "1");
    write(&root, b"f", "one more");
    assert_eq!(above.take(), [format!("entry {:x} f", past.id())]);
}

#[test]
fn tags_and_policies_are_reported_where_dot_versions_was_seen() {
    let above = Arc::new(Above::default());
    let fs = VersionFs::new(MemFs::new(), Options { versions: true, clock, ..Options::default() });
    fs.attach(above.clone());
    let root = fs.root();
    run(&root, "tag", "one");
    assert!(above.take().is_empty());
    let view = root.lookup(&cx(), name(b".versions")).unwrap().unwrap().vnode;
    assert!(view.lookup(&cx(), name(b"two")).unwrap().is_none());
    run(&root, "tag", "two");
    assert_eq!(above.take(), [format!("entry {:x} two", view.id())]);
    assert!(view.lookup(&cx(), name(b"two")).unwrap().is_some());
    run(&root, "untag", "two");
    assert_eq!(above.take(), [format!("entry {:x} two", view.id())]);
    run(&root, "reload", "");
    assert_eq!(above.take(), [format!("directory {:x} .versions", root.id())]);
}

/// A time in `.versions` is a full second, rounded up: until then, programs may change what it
/// shows, which nobody reports.
#[test]
fn what_the_future_shows_is_not_cached() {
    let Fixture { root, .. } = Fixture::new("builtin = false");
    write(&root, b"f", "text");
    for (time, lifetime) in [("9999999999", 0), ("1", 60)] {
        let dir = past(&root, time);
        let call = Call::new(&Nobody);
        let cx = Cx::internal(0, 0).with_call(&call);
        for file in [&b"f"[..], b"absent"] {
            dir.lookup(&cx, name(file)).unwrap();
            assert_eq!(call.names_lifetime(Duration::from_secs(60)).as_secs(), lifetime, "{time}");
            call.reset_lifetimes();
        }
        dir.getattr(&cx).unwrap();
        assert_eq!(call.attributes_lifetime(Duration::from_secs(60)).as_secs(), lifetime, "{time}");
        assert_eq!(dir.listing_stamp(&cx) == dir.listing_stamp(&cx), lifetime > 0, "{time}");
    }
}

/// An editor renames the file to its backup, writes a new one, and removes the backup: several
/// times within one second. Each version is found under the name that it was given.
#[test]
fn a_name_that_is_left_several_times_within_a_second_keeps_its_versions_apart() {
    static NANOSECONDS: AtomicU32 = AtomicU32::new(0);
    let clock = || Time { sec: 1_700_000_000, nsec: NANOSECONDS.fetch_add(1000, Ordering::Relaxed) };
    let fs = VersionFs::new(MemFs::new(), Options { clock, ..Options::default() });
    let root = fs.root();
    write(&root, b"text", "content 0");
    for step in 1..6 {
        root.rename(&cx(), name(b"text"), &root, name(b"text~"), RenameFlags::default()).unwrap();
        write(&root, b"text", &format!("content {step}"));
        root.unlink(&cx(), name(b"text~")).unwrap();
        for version in 1..=step {
            let token = run(&root, "open", &format!("text {version}"));
            let found = root.lookup(&cx(), name(token.trim_end().as_bytes())).unwrap().unwrap();
            assert_eq!(read(&*found.vnode), format!("content {}", version - 1), "version {version} after {step}");
        }
    }
}
