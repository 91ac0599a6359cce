//! The versions that the experiments read.

use anyhow::{Context, Result};
use versionclient::{Directory, Kind, Version};

/// Returns the versions of a name that are regular files, oldest first.
pub(crate) fn versions(dir: &Directory, name: &[u8]) -> Result<Vec<Version>> {
    let listed = dir.versions(name).with_context(|| format!("list the versions of {}", name.escape_ascii()))?;
    let all = listed.map(|list| list.versions).unwrap_or_default();
    Ok(all.into_iter().filter(|version| version.kind == Kind::File && !version.is_renamed()).collect())
}
