//! What a format knows of the open file that a block is read or written through.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conformance::fixture::{ROOT, name};
use memfs::{MemFs, MemOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vnode::{Cx, Errno, Layer, OpenFlags, Result, SetAttr};
use wrapfs::Template;
use wrapfs::hooks::{FileFormat, FormatBlock, Layout, Object, State};

/// Whether an open file may still be used.
struct Permit(AtomicBool);

/// Stores each byte twice. Opens are permitted while the switch is on; each open file has a permit.
#[derive(Debug)]
struct Permitted(Arc<AtomicBool>);

/// The permit of the block's open file, which must not have been withdrawn.
fn check(at: &FormatBlock<'_>) -> Result<()> {
    let permit = at.opened.and_then(|state| state.downcast_ref::<Permit>()).ok_or(Errno::IO)?;
    if permit.0.load(Ordering::Relaxed) { Ok(()) } else { Err(Errno::NOKEY) }
}

/// The permits that have been given, oldest first.
static GIVEN: std::sync::Mutex<Vec<std::sync::Weak<Permit>>> = std::sync::Mutex::new(Vec::new());

impl FileFormat for Permitted {
    fn opened(&self, _cx: &Cx<'_>, _file: &Object<'_>, _flags: OpenFlags) -> Result<Option<State>> {
        if !self.0.load(Ordering::Relaxed) {
            return Err(Errno::NOKEY);
        }
        let permit = Arc::new(Permit(AtomicBool::new(true)));
        GIVEN.lock().unwrap().push(Arc::downgrade(&permit));
        Ok(Some(permit))
    }

    fn new_header(&self, _cx: &Cx<'_>, _file: &Object<'_>, header: &mut [u8]) -> Result<()> {
        header.fill(1);
        Ok(())
    }

    fn check_header(&self, _cx: &Cx<'_>, _file: &Object<'_>, _header: &[u8]) -> Result<()> {
        Ok(())
    }

    fn encode_block(&self, _cx: &Cx<'_>, at: &FormatBlock<'_>, plain: &[u8], stored: &mut [u8]) -> Result<()> {
        check(at)?;
        stored[..16].fill(9);
        stored[16..].copy_from_slice(plain);
        Ok(())
    }

    fn decode_block(&self, _cx: &Cx<'_>, at: &FormatBlock<'_>, stored: &[u8], plain: &mut [u8]) -> Result<()> {
        check(at)?;
        plain.copy_from_slice(&stored[16..]);
        Ok(())
    }
}

#[test]
fn every_block_belongs_to_an_open_file() {
    let open = Arc::new(AtomicBool::new(true));
    let below = MemFs::with(MemOptions::default(), &memfs::Faults::default());
    let layout = Layout::new(8, 64, 80).unwrap();
    let layer =
        Template::over(below.clone() as Arc<dyn Layer>).format(layout, Permitted(Arc::clone(&open))).build().unwrap();
    let (entry, first) = layer.root().create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    let second = entry.vnode.open(&ROOT, OpenFlags::RDONLY).unwrap();
    let permit = |at: usize| GIVEN.lock().unwrap()[at].upgrade();
    assert_eq!(first.write(&ROOT, &[5; 100], 0), Ok(100));
    let mut read = [0; 100];
    assert_eq!((second.read(&ROOT, &mut read, 0), read), (Ok(100), [5; 100]));

    // Without the permit of its own, an open file is useless; others are not affected.
    permit(0).unwrap().0.store(false, Ordering::Relaxed);
    assert_eq!(first.write(&ROOT, &[6; 100], 0), Err(Errno::NOKEY));
    assert_eq!(first.read(&ROOT, &mut read, 0), Err(Errno::NOKEY));
    let to = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    assert_eq!(entry.vnode.setattr(&ROOT, &to(10), Some(&*first)).unwrap_err(), Errno::NOKEY);
    assert_eq!((second.read(&ROOT, &mut read, 0), read), (Ok(100), [5; 100]));

    // A truncation without an open file asks, and so do open and create.
    entry.vnode.setattr(&ROOT, &to(10), None).unwrap();
    open.store(false, Ordering::Relaxed);
    assert_eq!(entry.vnode.setattr(&ROOT, &to(5), None).unwrap_err(), Errno::NOKEY);
    let truncating = OpenFlags(OpenFlags::WRONLY.0 | 0o1000);
    assert_eq!(entry.vnode.open(&ROOT, truncating).unwrap_err(), Errno::NOKEY);
    assert_eq!(layer.root().create(&ROOT, name("g"), 0o644, OpenFlags::RDWR).unwrap_err(), Errno::NOKEY);
    assert!(layer.root().lookup(&ROOT, name("g")).unwrap().is_none(), "the refused file remains");
    assert_eq!(entry.vnode.getattr(&ROOT).unwrap().size, 10);

    // A permit is given back when its open file is closed.
    drop(first);
    assert!(permit(0).is_none() && permit(1).is_some());
    drop(second);
    assert!(permit(1).is_none());
}
