//! Layers whose results depend on the caller, and that report changes to the mount.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conformance::fixture::{ROOT, name, user};
use memfs::MemFs;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use vnode::{Attr, Cx, Drained, Errno, Name, OpenFlags, Result, Upcalls};
use wrapfs::Template;
use wrapfs::hooks::{Attributes, Hooks, Names, Object};

/// Records reports.
#[derive(Debug, Default)]
struct Collector(Mutex<Vec<String>>);

impl Collector {
    fn add(&self, report: String) {
        self.0.lock().unwrap().push(report);
    }
}

impl Upcalls for Collector {
    fn entry_changed(&self, dir: u64, name: Name<'_>) {
        self.add(format!("entry {dir} {name:?}"));
    }
    fn directory_entry_changed(&self, dir: u64, name: Name<'_>) {
        self.add(format!("directory {dir} {name:?}"));
    }
    fn attributes_changed(&self, vnode: u64) {
        self.add(format!("attributes {vnode}"));
    }
    fn data_changed(&self, vnode: u64, range: Range<u64>) {
        self.add(format!("data {vnode} {range:?}"));
    }
    fn data_moved(&self, vnode: u64) {
        self.add(format!("moved {vnode}"));
    }
    fn everything_changed(&self) {
        self.add("everything".to_owned());
    }
    fn stop_passthrough(&self, _vnode: u64, drained: Drained) {
        drained();
    }
    fn allow_passthrough(&self, _vnode: u64) {}
    fn passthrough(&self) -> Vec<u64> {
        Vec::new()
    }
    fn maybe_mapped(&self) -> Vec<u64> {
        Vec::new()
    }
    fn is_host_file_unused(&self, _file: BorrowedFd<'_>, _readers: bool) -> bool {
        true
    }
    fn settle(&self, _timeout: Duration) -> bool {
        true
    }
}

/// Shows names only to user 0, and only as long as there is a key.
#[derive(Debug)]
struct Keyed {
    has_key: Arc<AtomicBool>,
    dropped: Arc<AtomicBool>,
}

impl Names for Keyed {
    fn encode_filename(&self, cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        if cx.uid == 0 && self.has_key.load(Ordering::SeqCst) { Ok(name.to_vec()) } else { Err(Errno::NOKEY) }
    }
    fn decode_filename(&self, cx: &Cx<'_>, dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.encode_filename(cx, dir, name)
    }
}

impl Drop for Keyed {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_layer_reports_that_a_key_is_gone() {
    let (has_key, dropped) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let upcalls: Arc<OnceLock<Arc<dyn Upcalls>>> = Arc::default();
    let hook = Keyed { has_key: Arc::clone(&has_key), dropped: Arc::clone(&dropped) };
    let kept = Arc::clone(&upcalls);
    let hooks = Hooks::new().names(hook).varies_by_caller().attached(move |upcalls| {
        assert!(kept.set(upcalls).is_ok(), "attached twice");
    });
    let layer = Template::over(MemFs::new()).hooks(hooks).build().unwrap();
    assert!(layer.properties().varies_by_caller);
    let collector = Arc::new(Collector::default());
    layer.attach(collector.clone());
    let (entry, file) = layer.root().create(&ROOT, name("f"), 0o600, OpenFlags::RDWR).unwrap();
    assert_eq!(layer.root().lookup(&user(5, 5, 0), name("f")).map(|_| ()), Err(Errno::NOKEY));
    assert!(layer.root().lookup(&ROOT, name("f")).unwrap().is_some());
    has_key.store(false, Ordering::SeqCst);
    let above = upcalls.get().unwrap();
    above.data_changed(entry.vnode.id(), 0..u64::MAX);
    above.entry_changed(layer.root().id(), name("f"));
    above.everything_changed();
    assert_eq!(layer.root().lookup(&ROOT, name("f")).map(|_| ()), Err(Errno::NOKEY));
    let (file_id, root_id) = (entry.vnode.id(), layer.root().id());
    let expected = [
        format!("data {file_id} {:?}", 0..u64::MAX),
        format!("entry {root_id} {:?}", name("f")),
        "everything".to_owned(),
    ];
    assert_eq!(*collector.0.lock().unwrap(), expected);
    // The hooks outlive the last open file.
    drop((layer, entry));
    assert!(!dropped.load(Ordering::SeqCst));
    drop(file);
    assert!(dropped.load(Ordering::SeqCst));
}

#[test]
fn a_panicking_setting_leaves_a_working_layer() {
    /// Shows the size 1.
    #[derive(Debug)]
    struct One;
    impl Attributes for One {
        fn decode_attr(&self, _cx: &Cx<'_>, _file: &Object<'_>, attr: &mut Attr) -> Result<()> {
            attr.size = 1;
            Ok(())
        }
    }
    let layer = Template::over(MemFs::new()).attributes(One).attached(|_| panic!("expected")).build().unwrap();
    assert!(!layer.properties().varies_by_caller);
    layer.attach(Arc::new(Collector::default()));
    assert_eq!(layer.root().getattr(&ROOT).unwrap().size, 1);
    // The settings alone make a layer, too.
    assert!(Template::over(MemFs::new()).varies_by_caller().build().unwrap().properties().varies_by_caller);
}
