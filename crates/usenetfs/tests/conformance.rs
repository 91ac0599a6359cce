//! Managed directories behave as any other: every directory of these trees is one, and every name a number below.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conformance::{random, run_all, run_all_except};
use memfs::MemFs;
use std::sync::Arc;
use usenetfs::{UsenetFs, Wanted};
use vnode::{Attr, Cx, Errno, Kind, Layer, Result, SetAttr};
use wrapfs::Template;
use wrapfs::hooks::{Attributes, Names, Object};

const FLAG: u32 = 0o4000;

/// Every directory has the bit below, and none shows it.
#[derive(Debug)]
struct AllManaged;

impl Attributes for AllManaged {
    fn decode_attr(&self, _cx: &Cx<'_>, _file: &Object<'_>, attr: &mut Attr) -> Result<()> {
        if attr.kind() == Kind::Directory {
            attr.mode &= !FLAG;
        }
        Ok(())
    }

    fn encode_attr(&self, _cx: &Cx<'_>, file: &Object<'_>, set: &mut SetAttr) -> Result<()> {
        if file.kind() == Kind::Directory {
            set.mode = set.mode.map(|mode| mode | FLAG);
        }
        Ok(())
    }

    fn encode_mode(&self, _cx: &Cx<'_>, _dir: &Object<'_>, kind: Kind, mode: u32) -> Result<u32> {
        Ok(if kind == Kind::Directory { mode | FLAG } else { mode })
    }
}

/// No directory has the bit, above and below: what is compared with.
#[derive(Debug)]
struct NoneManaged;

impl Attributes for NoneManaged {
    fn encode_attr(&self, _cx: &Cx<'_>, file: &Object<'_>, set: &mut SetAttr) -> Result<()> {
        if file.kind() == Kind::Directory {
            set.mode = set.mode.map(|mode| mode & !FLAG);
        }
        Ok(())
    }

    fn encode_mode(&self, _cx: &Cx<'_>, _dir: &Object<'_>, kind: Kind, mode: u32) -> Result<u32> {
        Ok(if kind == Kind::Directory { mode & !FLAG } else { mode })
    }
}

fn unmanaged(lower: Arc<dyn Layer>) -> Arc<dyn Layer> {
    Template::over(lower).attributes(NoneManaged).build()
}

/// It sets and wants to see the set-user-id bit of a directory, which is this layer's.
const EXCEPT: &[&str] = &["set_id_bits_go"];

/// Names as numbers: three digits for each byte.
#[derive(Debug)]
struct Numbers;

impl Names for Numbers {
    fn encode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(name.iter().flat_map(|byte| format!("{byte:03}").into_bytes()).collect())
    }

    fn decode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let digits = name.chunks(3).map(|three| core::str::from_utf8(three).ok()?.parse().ok());
        digits.collect::<Option<Vec<u8>>>().ok_or(Errno::INVAL)
    }
}

fn managed(wanted: Wanted, names: bool) -> Arc<dyn Layer> {
    let usenet = UsenetFs::new(MemFs::new(), wanted);
    let root = SetAttr { mode: Some(0o755 | FLAG), ..SetAttr::default() };
    usenet.root().setattr(&Cx::internal(0, 0), &root, None).unwrap();
    let template = Template::over(usenet).attributes(AllManaged);
    if names { template.names(Numbers).build() } else { template.build() }
}

const DIGITS: Wanted = Wanted { hash: false, limit: None };
const HASH: Wanted = Wanted { hash: true, limit: Some(3) };

#[test]
fn flat_directories() {
    run_all(|| UsenetFs::new(MemFs::new(), DIGITS));
    random::compare(1, 3000, &*unmanaged(UsenetFs::new(MemFs::new(), DIGITS)), &*unmanaged(MemFs::new()));
}

#[test]
fn numbers() {
    run_all_except(EXCEPT, || managed(DIGITS, true));
}

#[test]
fn names_that_are_no_numbers() {
    run_all_except(EXCEPT, || managed(DIGITS, false));
}

#[test]
fn hashes() {
    run_all_except(EXCEPT, || managed(HASH, false));
}

#[test]
fn random_operations() {
    for seed in 1..6 {
        random::compare(seed, 3000, &*managed(DIGITS, true), &*unmanaged(MemFs::new()));
        random::compare(seed, 3000, &*managed(DIGITS, false), &*unmanaged(MemFs::new()));
        random::compare(seed, 3000, &*managed(HASH, false), &*unmanaged(MemFs::new()));
    }
}

#[test]
fn one_over_another() {
    let twice = || {
        let lower = managed(HASH, false);
        let usenet = UsenetFs::new(lower, DIGITS);
        Template::over(usenet).names(Numbers).build()
    };
    run_all_except(EXCEPT, twice);
}
