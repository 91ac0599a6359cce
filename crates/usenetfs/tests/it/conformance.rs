//! Managed directories behave like any other. In these trees every directory is managed, and every
//! lower name is a number.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conformance::fixture::name;
use conformance::{random, run_all, run_all_except};
use memfs::MemFs;
use std::sync::Arc;
use usenetfs::{SchemeChoice, UsenetFs};
use vnode::{Attr, Cx, Errno, Kind, Layer, Result, SetAttr};
use wrapfs::Template;
use wrapfs::hooks::{Attributes, Names, Object};

const FLAG: u32 = 0o4000;

/// A layer that sets the bit on every lower directory and hides it above.
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

/// A layer that removes the bit from all directories, for comparison.
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
    Template::over(lower).attributes(NoneManaged).build().unwrap()
}

/// Excluded, since it sets and checks the set-user-id bit of a directory, which this layer
/// interprets.
const EXCEPT: &[&str] = &["set_id_bits_are_cleared"];

/// Encodes names as numbers, with three digits per byte.
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

fn managed(wanted: SchemeChoice, names: bool) -> Arc<dyn Layer> {
    let usenet = UsenetFs::new(MemFs::new(), wanted);
    let root = SetAttr { mode: Some(0o755 | FLAG), ..SetAttr::default() };
    usenet.root().setattr(&Cx::internal(0, 0), &root, None).unwrap();
    let template = Template::over(usenet).attributes(AllManaged);
    if names { template.names(Numbers).build().unwrap() } else { template.build().unwrap() }
}

const DIGITS: SchemeChoice = SchemeChoice { hash: false, limit: None };
const HASH: SchemeChoice = SchemeChoice { hash: true, limit: Some(3) };

#[test]
fn flat_directories_conform() {
    run_all(|| UsenetFs::new(MemFs::new(), DIGITS));
    random::compare(1, 3000, &*unmanaged(UsenetFs::new(MemFs::new(), DIGITS)), &*unmanaged(MemFs::new()));
}

#[test]
fn numeric_names_conform() {
    run_all_except(EXCEPT, || managed(DIGITS, true));
}

#[test]
fn non_numeric_names_conform() {
    run_all_except(EXCEPT, || managed(DIGITS, false));
}

#[test]
fn the_hash_scheme_conforms() {
    run_all_except(EXCEPT, || managed(HASH, false));
}

#[test]
fn random_operations_match_a_flat_file_system() {
    for seed in 1..6 {
        random::compare(seed, 3000, &*managed(DIGITS, true), &*unmanaged(MemFs::new()));
        random::compare(seed, 3000, &*managed(DIGITS, false), &*unmanaged(MemFs::new()));
        random::compare(seed, 3000, &*managed(HASH, false), &*unmanaged(MemFs::new()));
    }
}

#[test]
fn two_layers_can_be_stacked() {
    let twice = || {
        let lower = managed(HASH, false);
        let usenet = UsenetFs::new(lower, DIGITS);
        Template::over(usenet).names(Numbers).build().unwrap()
    };
    run_all_except(EXCEPT, twice);
}

/// By number, entries in buckets belong to the managed directory; buckets and records can't be
/// found.
#[test]
fn buckets_can_not_be_found_by_number() {
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
