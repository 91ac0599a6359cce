//! A layer that gives the temporary files of a commit names that unions don't reserve, for a host
//! that is itself a union: that of an outer sandbox.

use vnode::{Cx, Result};
use wrapfs::hooks::{Names, Object};

/// The prefix of the commit's temporary names: `changes::temp`.
const RESERVED: &[u8] = b".wh..wh.tmp.";
/// What it is stored as.
const STORED: &[u8] = b".strata-commit-tmp.";

/// The layer's hook.
#[derive(Clone, Copy, Debug)]
pub(super) struct TempNames;

impl Names for TempNames {
    fn target_size(&self, stored: u64) -> Option<u64> {
        // Targets are stored as they are.
        Some(stored)
    }

    fn encode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(replace(name, RESERVED, STORED))
    }

    fn decode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(replace(name, STORED, RESERVED))
    }
}

fn replace(name: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    name.strip_prefix(from).map_or_else(|| name.to_vec(), |rest| [to, rest].concat())
}

/// Whether a directory is on a FUSE file system, such as a union.
pub(super) fn are_needed(dir: &std::path::Path) -> bool {
    const FUSE: i64 = 0x6573_5546;
    rustix::fs::statfs(dir).is_ok_and(|figures| figures.f_type & 0xffff_ffff == FUSE)
}
