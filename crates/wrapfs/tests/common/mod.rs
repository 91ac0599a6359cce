//! Short forms.
#![allow(dead_code)]

use memfs::{Faults, MemFs, MemOptions};
use std::sync::Arc;
use vnode::{Cx, Errno, Name, Result, Vnode};
use wrapfs::hooks::{Names, Object};

/// The superuser.
pub(crate) const ROOT: Cx<'static> = Cx::internal(0, 0);

pub(crate) fn name(bytes: &str) -> Name<'_> {
    Name::new(bytes.as_bytes()).unwrap()
}

pub(crate) fn memory(faults: &Faults) -> Arc<MemFs> {
    MemFs::with(MemOptions::default(), faults)
}

/// The names in a directory, in order.
pub(crate) fn names(dir: &Arc<dyn Vnode>) -> Vec<String> {
    let mut all = Vec::new();
    dir.readdir(&ROOT, 0, &mut |entry| {
        all.push(String::from_utf8(entry.name.as_bytes().to_vec()).unwrap());
        true
    })
    .unwrap();
    all.sort_unstable();
    all
}

/// Writes each byte so many times: names become long. What is not written like that is hidden.
#[derive(Debug)]
pub(crate) struct Stretch(pub(crate) usize);

impl Names for Stretch {
    fn encode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(name.iter().flat_map(|&byte| std::iter::repeat_n(byte, self.0)).collect())
    }

    fn decode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let chunks = name.chunks(self.0);
        chunks.map(|same| same.iter().all(|b| *b == same[0]).then_some(same[0]).ok_or(Errno::INVAL)).collect()
    }
}
