//! Extended attributes with translated names and values.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::{Failing, FailurePlan, quietly};
use conformance::fixture::{ROOT, name};
use memfs::{Count, Fault, Faults, MemFs, Plan};
use std::collections::BTreeMap;
use std::sync::Arc;
use vnode::{Cx, Errno, Layer, OpenFlags, Result, Vnode, XattrFlags, read_value};
use wrapfs::Template;
use wrapfs::hooks::{Hooks, Object, XattrName, Xattrs};

const ANY: XattrFlags = XattrFlags { create: false, replace: false };
const PREFIX: &[u8] = b"user.enc.";

/// Stores `user.NAME` as `user.enc.` and hexadecimal digits, and values with a checksum. Empty
/// values stay empty. `user.gone.*` does not exist.
#[derive(Debug)]
struct Coded;

fn sum(name: &[u8], value: &[u8]) -> [u8; 4] {
    let all = name.iter().chain(value);
    all.fold(0x811c_9dc5_u32, |sum, &byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193)).to_le_bytes()
}

impl Xattrs for Coded {
    fn encode_name(&self, _cx: &Cx<'_>, _file: &Object<'_>, name: &[u8]) -> Result<XattrName> {
        Ok(match name.strip_prefix(b"user.") {
            Some(rest) if rest.starts_with(b"gone.") => XattrName::Hidden,
            Some(b"invalid") => XattrName::Other(b"user.\0".to_vec()),
            // Decodes to another name.
            Some(b"merged") => XattrName::Other([PREFIX, b"61"].concat()),
            Some(rest) => {
                let digits: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
                XattrName::Other([PREFIX, digits.as_bytes()].concat())
            }
            None => XattrName::Same,
        })
    }

    fn decode_name(&self, _cx: &Cx<'_>, _file: &Object<'_>, name: &[u8]) -> Result<XattrName> {
        let Some(digits) = name.strip_prefix(PREFIX) else {
            return Ok(if name.starts_with(b"user.") { XattrName::Hidden } else { XattrName::Same });
        };
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let byte = |pair: &[u8]| match pair {
            [high, low] => Some((digit(*high)? * 16 + digit(*low)?) as u8),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
        Ok(bytes.map_or(XattrName::Hidden, |rest| XattrName::Other([b"user.", &rest[..]].concat())))
    }

    fn encode_value(&self, _cx: &Cx<'_>, _file: &Object<'_>, name: &[u8], value: &[u8]) -> Result<Vec<u8>> {
        let coded: Vec<u8> = value.iter().map(|byte| !byte).collect();
        Ok(if value.is_empty() { coded } else { [&sum(name, value)[..], &coded].concat() })
    }

    fn decode_value(&self, _cx: &Cx<'_>, _file: &Object<'_>, name: &[u8], value: &[u8]) -> Result<Vec<u8>> {
        if value.is_empty() {
            return Ok(Vec::new());
        }
        let (tag, coded) = value.split_at_checked(4).ok_or(Errno::IO)?;
        let plain: Vec<u8> = coded.iter().map(|byte| !byte).collect();
        if tag == sum(name, &plain) { Ok(plain) } else { Err(Errno::IO) }
    }
}

impl<T: Xattrs> Xattrs for Failing<T> {
    fn encode_name(&self, cx: &Cx<'_>, file: &Object<'_>, name: &[u8]) -> Result<XattrName> {
        self.1.changes()?;
        self.0.encode_name(cx, file, name)
    }
    fn decode_name(&self, cx: &Cx<'_>, file: &Object<'_>, name: &[u8]) -> Result<XattrName> {
        self.1.changes()?;
        self.0.decode_name(cx, file, name)
    }
    fn encode_value(&self, cx: &Cx<'_>, file: &Object<'_>, name: &[u8], value: &[u8]) -> Result<Vec<u8>> {
        self.1.changes()?;
        self.0.encode_value(cx, file, name, value)
    }
    fn decode_value(&self, cx: &Cx<'_>, file: &Object<'_>, name: &[u8], value: &[u8]) -> Result<Vec<u8>> {
        self.1.changes()?;
        self.0.decode_value(cx, file, name, value)
    }
}

fn over(below: Arc<dyn Layer>) -> Arc<dyn Layer> {
    Template::over(below).hooks(Hooks::new().xattrs(Coded)).build().unwrap()
}

fn made(layer: &Arc<dyn Layer>) -> Arc<dyn Vnode> {
    match layer.root().lookup(&ROOT, name("f")).unwrap() {
        Some(entry) => entry.vnode,
        None => layer.root().create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap().0.vnode,
    }
}

fn get(vnode: &dyn Vnode, name: &str) -> Result<Vec<u8>> {
    read_value(|out| vnode.getxattr(&ROOT, name.as_bytes(), out))
}

fn list(vnode: &dyn Vnode) -> Result<Vec<String>> {
    let names = read_value(|out| vnode.listxattr(&ROOT, out))?;
    let mut names: Vec<String> =
        names.split(|&byte| byte == 0).map(|name| String::from_utf8(name.to_vec()).unwrap()).collect();
    assert_eq!(names.pop().as_deref(), Some(""), "the list ends with a NUL");
    Ok(names)
}

#[test]
fn xattr_layers_conform() {
    conformance::run_all(|| over(MemFs::new()));
    conformance::run_all(|| over(over(MemFs::new())));
}

#[test]
fn names_and_values_are_translated() {
    let below = MemFs::new();
    let layer = over(below.clone());
    let (file, raw) = (made(&layer), made(&(below.clone() as Arc<dyn Layer>)));
    file.setxattr(&ROOT, b"user.ab", b"value", ANY).unwrap();
    file.setxattr(&ROOT, b"user.none", b"", ANY).unwrap();
    file.setxattr(&ROOT, b"trusted.t", b"plain", ANY).unwrap();
    let stored = get(&*raw, "user.enc.6162").unwrap();
    assert_eq!(stored.len(), 9);
    assert!(!stored.ends_with(b"value"));
    assert_eq!(get(&*raw, "user.enc.6e6f6e65"), Ok(Vec::new()));
    assert_eq!(get(&*raw, "trusted.t"), Ok(b"plain".to_vec()));
    assert_eq!(get(&*file, "user.ab"), Ok(b"value".to_vec()));
    assert_eq!(get(&*file, "user.none"), Ok(Vec::new()));
    assert_eq!(get(&*file, "trusted.t"), Ok(b"plain".to_vec()));
    // Sizes are those of plain names and values.
    assert_eq!(file.getxattr(&ROOT, b"user.ab", &mut []), Ok(5));
    assert_eq!(file.getxattr(&ROOT, b"user.ab", &mut [0; 4]), Err(Errno::RANGE));
    assert_eq!(file.getxattr(&ROOT, b"user.ab", &mut [0; 6]), Ok(5));
    let size = "user.ab\0user.none\0trusted.t\0".len();
    assert_eq!(file.listxattr(&ROOT, &mut []), Ok(size));
    assert_eq!(file.listxattr(&ROOT, &mut vec![0; size - 1]), Err(Errno::RANGE));
    assert_eq!(file.listxattr(&ROOT, &mut vec![0; size]), Ok(size));
    file.removexattr(&ROOT, b"user.ab").unwrap();
    assert_eq!(file.removexattr(&ROOT, b"user.ab"), Err(Errno::NODATA));
    assert_eq!(get(&*raw, "user.enc.6162"), Err(Errno::NODATA));
}

/// Foreign names below do not appear, and cannot be reached under their stored name.
#[test]
fn other_stored_names_are_hidden() {
    let below = MemFs::new();
    let layer = over(below.clone());
    let (file, raw) = (made(&layer), made(&(below.clone() as Arc<dyn Layer>)));
    // Plain; no digits; not the name that the decoded name encodes to; no name; hidden.
    for stored in ["user.plain", "user.enc.6", "user.enc.6A", "user.enc.00", "user.enc.676f6e652e61", "user.enc.61"] {
        raw.setxattr(&ROOT, stored.as_bytes(), b"", ANY).unwrap();
    }
    assert_eq!(list(&*file), Ok(vec!["user.a".to_owned()]));
    assert_eq!(get(&*file, "user.plain"), Err(Errno::NODATA));
    assert_eq!(get(&*file, "user.enc.61"), Err(Errno::NODATA));
    assert_eq!(file.removexattr(&ROOT, b"user.plain"), Err(Errno::NODATA));
    // A damaged value.
    raw.setxattr(&ROOT, b"user.enc.61", b"12345678", ANY).unwrap();
    assert_eq!(get(&*file, "user.a"), Err(Errno::IO));
    assert_eq!(file.getxattr(&ROOT, b"user.a", &mut []), Err(Errno::IO));
}

#[test]
fn impossible_names_are_refused() {
    let below = MemFs::new();
    let layer = over(below.clone());
    let file = made(&layer);
    let set = |name: &str| file.setxattr(&ROOT, name.as_bytes(), b"value", ANY);
    assert_eq!(set("user.gone.a"), Err(Errno::OPNOTSUPP));
    assert_eq!(get(&*file, "user.gone.a"), Err(Errno::NODATA));
    assert_eq!(file.removexattr(&ROOT, b"user.gone.a"), Err(Errno::NODATA));
    assert_eq!(set("user.invalid"), Err(Errno::IO));
    assert_eq!(set("user.merged"), Err(Errno::INVAL));
    assert_eq!(set(&format!("user.{}", "n".repeat(150))), Err(Errno::RANGE));
    assert_eq!(file.setxattr(&ROOT, b"user.big", &[1; 65_536], ANY), Err(Errno::TOOBIG));
    assert!(below.dump().to_string().find("value").is_none());
    let read_only = Template::over(below).xattrs(Coded).read_only().build().unwrap();
    assert_eq!(made(&read_only).setxattr(&ROOT, b"user.a", b"", ANY), Err(Errno::ROFS));
}

type Model = BTreeMap<String, Vec<u8>>;

fn seen(file: &dyn Vnode) -> Result<Model> {
    list(file)?.into_iter().map(|name| get(file, &name).map(|value| (name, value))).collect()
}

/// Makes one change, and makes it in the model if it succeeds.
fn change(file: &dyn Vnode, model: &mut Model, step: usize) -> Result<()> {
    let name = format!("user.{}", step % 3);
    match step % 4 {
        3 => {
            file.removexattr(&ROOT, name.as_bytes()).or_else(|e| if e == Errno::NODATA { Ok(()) } else { Err(e) })?;
            model.remove(&name);
        }
        _ => {
            let value = vec![step as u8; step % 7];
            file.setxattr(&ROOT, name.as_bytes(), &value, ANY)?;
            model.insert(name, value);
        }
    }
    Ok(())
}

#[test]
fn a_failure_at_any_step_changes_all_or_nothing() {
    for at in 1..60 {
        let faults = Faults::new();
        let below = common::memory(&faults);
        let file = made(&over(below.clone()));
        file.setxattr(&ROOT, b"user.kept", b"old", ANY).unwrap();
        let mut model = Model::from([("user.kept".to_owned(), b"old".to_vec())]);
        faults.arm(Plan { count: Count::All, at, fault: Fault::Error(Errno::NOSPC) });
        for step in 0..12 {
            // A failed change is not in the model.
            let _ = change(&*file, &mut model, step);
            match seen(&*file) {
                Ok(seen) => assert_eq!(seen, model, "fault at {at}, step {step}"),
                Err(errno) => assert_eq!(errno, Errno::NOSPC),
            }
        }
        faults.disarm();
        assert_eq!(seen(&*made(&over(below))).unwrap(), model, "fault at {at}");
    }
}

#[test]
fn failing_hooks_change_nothing() {
    quietly();
    for seed in 0..40 {
        let below = MemFs::new();
        let hook = Failing(Coded, FailurePlan::of(seed));
        let layer = Template::over(below.clone()).xattrs(hook).build().unwrap();
        let (file, calm) = (made(&layer), made(&over(below)));
        let mut model = Model::new();
        let mut failed = 0;
        for step in 0..60 {
            if let Err(errno) = change(&*file, &mut model, step) {
                assert!(matches!(errno, Errno::DQUOT | Errno::IO), "{errno:?}");
                failed += 1;
            }
            assert_eq!(seen(&*calm).unwrap(), model, "seed {seed}, step {step}");
        }
        assert!(failed > 0, "{seed}");
    }
}
