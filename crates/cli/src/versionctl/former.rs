//! The names that a file had before it was renamed.

use super::client::Dir;
use super::place::{Place, earlier_lists};
use jiff::Timestamp;
use std::path::PathBuf;
use versionclient::{Kind, List, Origin, Version};

/// Longest chain of renames that is followed.
const MAX_RENAMES: usize = 10_000;

/// A former name of a file.
#[derive(Debug)]
pub(crate) struct Former {
    pub(crate) path: PathBuf,
    /// When the directory was removed that the file was in, if it is not the present one.
    pub(crate) removed: Option<Timestamp>,
    /// The versions that the file had under this name, oldest first.
    pub(crate) versions: Vec<Version>,
}

/// Finds the former names of the file that has, or had last, a name: the latest one first. The
/// search ends where the history is unknown, or closed to this user.
pub(crate) fn former(place: &Place, list: &List) -> Vec<Former> {
    let mut found = Vec::new();
    let (mut name, mut dir): (Vec<u8>, Option<Dir>) = (place.name.clone(), None);
    let last = list.versions.last().filter(|_| list.set.head == Kind::None);
    let mut end = last.map_or(Timestamp::MAX, |version| version.died);
    let mut start = life(&list.versions, last.is_some()).0;
    while found.len() < MAX_RENAMES {
        let here = dir.as_ref().unwrap_or(&place.dir);
        let Some(origin) = here.origins(&name).ok().and_then(|all| latest(all, start, end)) else { break };
        let Ok(there) = here.relative(&origin.dir) else { break };
        let Ok(Some(mut before)) = there.list(&origin.name) else { break };
        before.versions.retain(|version| version.died <= origin.time);
        let Some(newest) = before.versions.last() else { break };
        if newest.ends_head() && newest.op != "rename" {
            // Another file had the name last: nothing is known of this one.
            break;
        }
        end = newest.died;
        let (began, first) = life(&before.versions, newest.ends_head());
        start = began;
        let versions = before.versions.split_off(first);
        found.push(Former { path: there.path_of(&origin.name), removed: None, versions });
        (name, dir) = (origin.name, Some(there));
    }
    found
}

/// Finds the histories that the name had in directories that were removed, and created again or
/// restored since: the latest one first.
pub(crate) fn in_removed(place: &Place, list: &List) -> Vec<Former> {
    let others = earlier_lists(place).into_iter().filter(|(_, other)| other.versions != list.versions);
    others.map(|(time, other)| Former { path: place.path(), removed: Some(time), versions: other.versions }).collect()
}

/// Returns when the last file that had a name got it at the earliest, and the position of its first
/// version. If it has left the name, the last version is its last.
fn life(versions: &[Version], has_left: bool) -> (Timestamp, usize) {
    let earlier = versions.split_at(versions.len().saturating_sub(usize::from(has_left))).0;
    let end = earlier.iter().enumerate().rev().find(|(_, version)| version.ends_head());
    end.map_or((Timestamp::MIN, 0), |(position, version)| (version.died, position + 1))
}

fn latest(origins: Vec<Origin>, start: Timestamp, end: Timestamp) -> Option<Origin> {
    origins.into_iter().filter(|origin| (start..=end).contains(&origin.time)).max_by_key(|origin| origin.time)
}
