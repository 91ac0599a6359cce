//! Mounts many times in a row, to find races between the mounting thread and the queues.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::memory::Memory;
use crate::common::on_each;
use std::fs;

#[test]
fn repeated_mounts_are_usable() {
    on_each(|mount| {
        for _ in 0..200 {
            let m = mount(Memory::new());
            fs::write(m.at("f"), b"x").unwrap();
            let ring = m.session.ring_is_up();
            assert_eq!(m.session.counters().by_ring() > 0, ring);
        }
    });
}
