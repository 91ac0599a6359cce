//! The paths that a user selects.

use crate::change::{Change, ChangeKind};
use crate::error::Error;
use crate::ops::is_within;

/// Selected paths, with everything beneath them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection(Vec<Vec<u8>>);

impl Selection {
    /// Selects everything.
    #[must_use]
    pub fn all() -> Self {
        Self(vec![Vec::new()])
    }

    /// Selects these paths in the union. Leading, trailing and repeated slashes are ignored.
    #[must_use]
    pub fn of(paths: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let clean = |path: Vec<u8>| {
            let parts: Vec<&[u8]> =
                path.split(|&b| b == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
            parts.join(&b'/')
        };
        Self(paths.into_iter().map(clean).collect())
    }

    /// Whether the path is selected.
    #[must_use]
    pub fn covers(&self, path: &[u8]) -> bool {
        self.0.iter().any(|selected| is_within(path, selected))
    }

    /// Whether the path, or one beneath it, is selected.
    #[must_use]
    pub fn reaches(&self, path: &[u8]) -> bool {
        self.0.iter().any(|selected| is_within(path, selected) || is_within(selected, path))
    }

    /// Returns a selected path in this directory, for messages.
    pub(crate) fn first_within(&self, dir: &[u8]) -> Vec<u8> {
        self.0.iter().find(|selected| is_within(selected, dir)).cloned().unwrap_or_default()
    }

    /// Whether everything is selected.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.0.iter().any(Vec::is_empty)
    }

    /// Whether a change is selected: by its path, or the one that it had.
    #[must_use]
    pub fn includes(&self, change: &Change) -> bool {
        self.covers(&change.path) || change.from.as_ref().is_some_and(|from| self.covers(from))
    }

    /// As [`Self::close`], for a commit. Adds also the directories that were renamed away from a
    /// selected path: they show what the branches below have there, so the commit would change
    /// them.
    pub(crate) fn close_for_commit(mut self, changes: &[Change], groups: &[Vec<Vec<u8>>]) -> Self {
        loop {
            self = self.close(changes, groups);
            let before = self.0.len();
            for change in changes.iter().filter(|change| change.moves_dir()) {
                if let Some(from) = &change.from
                    && self.reaches(from)
                {
                    self.add(&change.path);
                    self.add(from);
                }
            }
            if self.0.len() == before {
                return self;
            }
        }
    }

    /// Adds what can't be separated from the selected changes: the other path of a renamed object,
    /// and the other names of a file.
    pub(crate) fn close(mut self, changes: &[Change], groups: &[Vec<Vec<u8>>]) -> Self {
        loop {
            let before = self.0.len();
            for change in changes {
                if let Some(from) = &change.from
                    && self.includes(change)
                {
                    self.add(&change.path);
                    self.add(from);
                }
            }
            for group in groups {
                if group.iter().any(|path| self.covers(path)) {
                    group.iter().for_each(|path| self.add(path));
                }
            }
            if self.0.len() == before {
                return self;
            }
        }
    }

    /// Returns the selected paths.
    pub(crate) fn paths(&self) -> &[Vec<u8>] {
        &self.0
    }

    fn add(&mut self, path: &[u8]) {
        if !self.covers(path) {
            self.0.push(path.to_vec());
        }
    }

    /// Refuses selected paths in a directory that was removed or renamed as a whole.
    pub(crate) fn check(&self, changes: &[Change]) -> Result<(), Error> {
        for selected in &self.0 {
            for from in changes.iter().filter(|change| change.moves_dir()).filter_map(|change| change.from.as_ref()) {
                if is_within(selected, from) && selected != from {
                    let (part, whole) = (selected.clone(), from.clone());
                    return Err(Error::Whole { part, whole, reason: "was renamed" });
                }
            }
            let inside = |change: &&Change| is_within(selected, &change.path) && *selected != change.path;
            for whole in changes.iter().filter(inside) {
                let reason = match whole.kind {
                    ChangeKind::Removed => "was removed",
                    ChangeKind::Renamed => "was renamed",
                    ChangeKind::Changed => "was another type of file",
                    ChangeKind::Added | ChangeKind::Attributes => continue,
                };
                return Err(Error::Whole { part: selected.clone(), whole: whole.path.clone(), reason });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_covers_what_lies_beneath() {
        let selection = Selection::of([b"/a//b/".to_vec(), b"./c".to_vec()]);
        assert!(selection.covers(b"a/b") && selection.covers(b"a/b/c") && selection.covers(b"c"));
        assert!(!selection.covers(b"a") && selection.reaches(b"a") && !selection.reaches(b"ab"));
        assert!(!selection.is_all() && Selection::of([b"/".to_vec()]).is_all() && Selection::all().covers(b"x"));
    }
}
