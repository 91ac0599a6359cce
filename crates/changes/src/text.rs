//! Text differences of a file.

use crate::branches::{Branches, Views, cx};
use crate::change::{Change, ChangeKind};
use crate::error::{At, Error, Failed};
use crate::ops::{read_full, resolve};
use similar::{Algorithm, ChangeTag, TextDiff};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vnode::{Kind, OpenFlags, Vnode};

/// Files of more than this many bytes are not compared line by line.
const LIMIT: u64 = 16 << 20;
/// A file with a NUL in its first bytes is binary.
const HEAD: usize = 8000;
/// Time after which a less exact difference is accepted.
const PATIENCE: Duration = Duration::from_secs(5);

/// The difference of two versions of a file or symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text {
    /// A version is not text, is larger than 16 MiB, or is not a file.
    Binary,
    /// Both versions are text.
    Lines {
        /// The difference in unified format, without the header with the names of the files.
        hunks: Vec<u8>,
        /// Number of lines that only the new version has.
        inserted: usize,
        /// Number of lines that only the old version has.
        deleted: usize,
    },
}

/// Text differences of the changes of a branch.
#[derive(Debug)]
pub struct Texts {
    views: Views,
}

impl Branches {
    /// Returns the text differences of the present state of the branches.
    ///
    /// # Errors
    /// The branches can't be used as a union.
    pub fn texts(&self) -> Result<Texts, Error> {
        Ok(Texts { views: self.views()? })
    }
}

impl Texts {
    /// Returns the difference of the data of a changed file: its lines, for a file or the target of
    /// a symbolic link. An added or removed one is compared with an empty file.
    ///
    /// # Errors
    /// The branches can't be read.
    pub fn of(&self, change: &Change) -> Result<Text, Error> {
        let views = &self.views;
        let old = change.from.as_ref().unwrap_or(&change.path);
        let before = match change.kind {
            ChangeKind::Added => Some(Vec::new()),
            _ => content(&views.below.root(), old)?,
        };
        let after = match change.kind {
            ChangeKind::Removed => Some(Vec::new()),
            _ => content(&views.all.root(), &change.path)?,
        };
        Ok(match (before, after) {
            (Some(before), Some(after)) => lines(&before, &after),
            _ => Text::Binary,
        })
    }
}

/// Returns the text of an object; `None` if it is not text.
fn content(root: &Arc<dyn Vnode>, path: &[u8]) -> Result<Option<Vec<u8>>, Failed> {
    let cx = cx();
    let Some(vnode) = resolve(&cx, root, path).at("look up", path)? else { return Ok(None) };
    let bytes = match vnode.kind() {
        Kind::Symlink => vnode.readlink(&cx).at("read", path)?,
        Kind::Regular => {
            let size = vnode.getattr(&cx).at("read the attributes", path)?.size;
            if size > LIMIT {
                return Ok(None);
            }
            let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
            let file = vnode.open(&cx, OpenFlags::RDONLY).at("open", path)?;
            let read = read_full(&cx, &*file, &mut bytes, 0).at("read", path)?;
            bytes.truncate(read);
            bytes
        }
        _ => return Ok(None),
    };
    Ok((!bytes.iter().take(HEAD).any(|&b| b == 0)).then_some(bytes))
}

fn lines(before: &[u8], after: &[u8]) -> Text {
    let mut config = TextDiff::configure();
    config.algorithm(Algorithm::Myers).deadline(Instant::now() + PATIENCE);
    let diff = config.diff_lines(before, after);
    let count = |tag| diff.iter_all_changes().filter(|change| change.tag() == tag).count();
    let mut hunks = Vec::new();
    // Writing to memory can't fail.
    let _written = diff.unified_diff().context_radius(3).to_writer(&mut hunks);
    Text::Lines { hunks, inserted: count(ChangeTag::Insert), deleted: count(ChangeTag::Delete) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_unified() {
        let Text::Lines { hunks, inserted, deleted } = lines(b"a\nb\nc", b"a\nB\nc\nd\n") else { panic!("binary") };
        assert_eq!((inserted, deleted), (3, 2));
        let text = String::from_utf8(hunks).unwrap();
        assert!(text.starts_with("@@ -1,3 +1,4 @@\n a\n-b\n"), "{text}");
        assert!(text.contains("\\ No newline at end of file"), "{text}");
    }
}
