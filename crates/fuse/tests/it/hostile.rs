//! Arbitrary bytes as a request get a reply that the kernel accepts.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::dummy::Dummy;
use fuse::abi::{InHeader, OutHeader};
use fuse::{Errno, Filesystem, Opcode, flags, offline};
use proptest::prelude::*;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

fn message(opcode: u32, extlen: u16, body: &[u8]) -> Vec<u8> {
    let header = InHeader {
        len: (size_of::<InHeader>() + body.len()) as u32,
        opcode,
        unique: 42,
        nodeid: 1,
        total_extlen: extlen,
        ..InHeader::default()
    };
    [header.as_bytes(), body].concat()
}

fn check(fs: &Arc<dyn Filesystem>, opcode: u32, agreed: u64, message: &[u8]) {
    let reply = offline::handle(fs, agreed, message);
    let oneway = Opcode::new(opcode).is_some_and(Opcode::is_oneway);
    assert_eq!(reply.is_none(), oneway, "opcode {opcode}");
    let Some(reply) = reply else { return };
    let (header, body) = OutHeader::read_from_prefix(&reply).unwrap();
    assert_eq!(header.unique, 42);
    assert_eq!(header.len as usize, reply.len());
    assert!((-511..=0).contains(&header.error), "error {}", header.error);
    assert!(header.error == 0 || body.is_empty());
}

/// Prints panics: a handler of [`Dummy`] panics on inconsistent arguments, which the dispatcher
/// would turn into `EIO`.
fn print_panics() {
    std::panic::set_hook(Box::new(|info| {
        eprintln!("{info}");
        std::process::abort();
    }));
}

#[test]
fn every_opcode_survives_every_length() {
    print_panics();
    let fs: Arc<dyn Filesystem> = Arc::new(Dummy::default());
    for fill in [0_u8, 1, b'a', 0xff] {
        for opcode in 0..64 {
            for len in 0..200 {
                for extlen in [0, 1, 100] {
                    check(&fs, opcode, flags::SETXATTR_EXT, &message(opcode, extlen, &vec![fill; len]));
                }
            }
        }
    }
}

#[test]
fn a_wrong_length_is_an_error() {
    let fs: Arc<dyn Filesystem> = Arc::new(Dummy::default());
    for &opcode in Opcode::ALL {
        let mut bytes = message(opcode as u32, 0, &[0; 128]);
        bytes.pop();
        let reply = offline::handle(&fs, 0, &bytes);
        let error = reply.map(|reply| OutHeader::read_from_prefix(&reply).unwrap().0.error);
        assert_eq!(error, (!opcode.is_oneway()).then_some(-Errno::IO.raw_os_error()), "{opcode}");
    }
}

proptest! {
    #[test]
    fn arbitrary_requests_get_a_reply(
        opcode in 0_u32..64,
        extlen in 0_u16..40,
        agreed: u64,
        numbers in prop::collection::vec(prop_oneof![0_u32..200, any::<u32>()], 0..30),
        tail in prop::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..300),
    ) {
        print_panics();
        let fs: Arc<dyn Filesystem> = Arc::new(Dummy::default());
        let body = [numbers.as_bytes(), &tail].concat();
        check(&fs, opcode, agreed, &message(opcode, extlen, &body));
    }

    #[test]
    fn less_than_a_header_gets_no_reply(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let fs: Arc<dyn Filesystem> = Arc::new(Dummy::default());
        prop_assert_eq!(offline::handle(&fs, 0, &bytes), None);
    }
}
