use crate::hooks::{Names, Object};
use vnode::{Cx, Result};

/// Leaves names unchanged: for a layer that only reserves some names for itself.
#[derive(Debug)]
pub(crate) struct UnchangedNames;

impl Names for UnchangedNames {
    fn target_size(&self, stored: u64) -> Option<u64> {
        Some(stored)
    }

    fn encode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(name.to_vec())
    }

    fn decode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(name.to_vec())
    }
}
