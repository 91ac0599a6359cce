//! Managed directories behave as any other: every directory of these trees is one, and every name a number below.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conformance::fixture::name;
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
const EXCEPT: &[&str] = &["set_id_bits_are_cleared"];

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

/// Entries of buckets are in the managed directory; buckets and records are nowhere.
#[test]
fn buckets_are_not_given_out_by_number() {
    let cx = Cx::internal(0, 0);
    for wanted in [DIGITS, HASH] {
        let below = MemFs::new();
        let usenet = UsenetFs::new(below.clone(), wanted);
        let set = SetAttr { mode: Some(0o755 | FLAG), ..SetAttr::default() };
        usenet.root().setattr(&cx, &set, None).unwrap();
        for i in 0..40 {
            usenet.root().mknod(&cx, name(&(10_000 + i * 37).to_string()), 0o100_644, 0).unwrap();
        }
        let sub = usenet.root().mkdir(&cx, name("77777"), 0o755).unwrap();
        sub.vnode.mknod(&cx, name("inside"), 0o100_644, 0).unwrap();
        drop(sub);
        let shown = conformance::handles::Handles::of(&*usenet);
        assert_eq!(shown.count(), 42);
        shown.check(&*usenet);
        let all = conformance::handles::Handles::of(&*below);
        assert!(all.count() > shown.count() + 3, "{}", all.count());
        for number in all.numbers().filter(|number| shown.numbers().all(|one| one != *number)) {
            assert_eq!(usenet.vnode(&cx, number).map(drop), Err(Errno::STALE));
        }
    }
}
