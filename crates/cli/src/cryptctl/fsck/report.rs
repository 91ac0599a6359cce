//! What was found, as text and JSON.

use crate::exit::FsckExit;
use crate::progress::{self, Tally, amount};
use serde_json::{Map, Value, json};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// What kind of object a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The initialization vector of a directory.
    DirIv,
    /// A name.
    Name,
    /// A name that is stored by its hash, or its side file.
    LongName,
    /// The header of a file.
    Header,
    /// Blocks of a file.
    Block,
    /// What binds the blocks of a file to each other and to its length.
    Seal,
    /// The target of a symbolic link.
    Link,
    /// An extended attribute.
    Attribute,
    /// What could not be read from the file system below.
    Unreadable,
    /// Hidden in a mount, and harmless.
    Note,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::DirIv => "diriv",
            Self::Name => "name",
            Self::LongName => "long-name",
            Self::Header => "header",
            Self::Block => "block",
            Self::Seal => "seal",
            Self::Link => "link",
            Self::Attribute => "attribute",
            Self::Unreadable => "unreadable",
            Self::Note => "note",
        }
    }
}

/// Where an object is: as programs see it, and below.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The path in the mount. Names that can't be decrypted are in brackets, as they are below.
    pub(super) plain: PathBuf,
    /// The path in the volume.
    pub(super) lower: PathBuf,
}

/// A range of blocks that are damaged in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    pub(super) first: u64,
    pub(super) last: u64,
    /// The first and the last plain byte that is lost. `None` for a block too short for one.
    pub(super) bytes: Option<(u64, u64)>,
}

/// The results so far.
#[derive(Debug)]
pub(super) struct Report {
    is_json: bool,
    tally: Option<Tally>,
    pub(super) directories: u64,
    pub(super) files: u64,
    pub(super) links: u64,
    /// Stored bytes.
    pub(super) bytes: u64,
    /// Objects of other keys, which were not checked.
    pub(super) foreign: u64,
    damages: u64,
    unreadable: u64,
    notes: u64,
    findings: Vec<Value>,
}

impl Report {
    pub(super) fn new(is_json: bool) -> Self {
        Self {
            is_json,
            tally: Tally::on_terminal("checked"),
            directories: 0,
            files: 0,
            links: 0,
            bytes: 0,
            foreign: 0,
            damages: 0,
            unreadable: 0,
            notes: 0,
            findings: Vec::new(),
        }
    }

    /// Counts stored bytes that were checked.
    pub(super) fn progress(&mut self, bytes: u64) {
        self.bytes += bytes;
        if let Some(tally) = &mut self.tally {
            tally.show(self.files, self.bytes);
        }
    }

    /// Reports something about an object.
    pub(super) fn found(&mut self, kind: Kind, place: &Place, text: &str) {
        self.add(kind, place, text, None);
    }

    /// Reports damaged blocks.
    pub(super) fn found_blocks(&mut self, place: &Place, text: &str, blocks: Blocks) {
        self.add(Kind::Block, place, text, Some(blocks));
    }

    /// Reports a range of blocks that are not all those that were written.
    pub(super) fn found_seal(&mut self, place: &Place, text: &str, blocks: Blocks) {
        self.add(Kind::Seal, place, text, Some(blocks));
    }

    fn add(&mut self, kind: Kind, place: &Place, text: &str, blocks: Option<Blocks>) {
        match kind {
            Kind::Unreadable => self.unreadable += 1,
            Kind::Note => self.notes += 1,
            _ => self.damages += 1,
        }
        if self.is_json {
            self.findings.push(as_json(kind, place, text, blocks));
            return;
        }
        progress::erase();
        let blocks = blocks.map(|blocks| format!("{}: ", range(blocks))).unwrap_or_default();
        let note = if kind == Kind::Note { "note: " } else { "" };
        let (plain, lower) = (printable(&place.plain), printable(&place.lower));
        // The exit status reports the findings even if nobody reads them.
        let _ = writeln!(std::io::stdout(), "{plain} ({lower}): {note}{blocks}{text}");
    }

    pub(super) fn exit(&self) -> FsckExit {
        let damaged = if self.damages > 0 { FsckExit::UNCORRECTED } else { FsckExit::CLEAN };
        let unread = if self.unreadable > 0 { FsckExit::OPERATION } else { FsckExit::CLEAN };
        damaged.and(unread)
    }

    pub(super) fn summary(&self, dir: &str) -> String {
        let Self { directories, files, links, foreign, damages, unreadable, .. } = self;
        let others = match foreign {
            0 => String::new(),
            foreign => format!(", {foreign} entries of other keys not checked"),
        };
        let unread = if *unreadable > 0 { format!(", {unreadable} could not be read") } else { String::new() };
        let result = if *damages > 0 { format!("{damages} damaged") } else { "no damage".to_owned() };
        format!(
            "{dir}: {directories} directories, {files} files, {links} symbolic links, {} checked: {result}{unread}{others}\n",
            amount(self.bytes)
        )
    }

    pub(super) fn json(&self) -> String {
        let report = json!({
            "directories": self.directories, "files": self.files, "links": self.links, "bytes": self.bytes,
            "other_keys": self.foreign, "damages": self.damages, "unreadable": self.unreadable, "notes": self.notes, "findings": self.findings,
            "exit": self.exit().code(),
        });
        format!("{report}\n")
    }
}

fn as_json(kind: Kind, place: &Place, text: &str, blocks: Option<Blocks>) -> Value {
    let mut finding = Map::new();
    finding.insert("kind".to_owned(), kind.word().into());
    finding.insert("path".to_owned(), place.plain.to_string_lossy().into());
    finding.insert("lower".to_owned(), place.lower.to_string_lossy().into());
    finding.insert("text".to_owned(), text.into());
    if let Some(blocks) = blocks {
        finding.insert("blocks".to_owned(), json!([blocks.first, blocks.last]));
        if let Some((first, last)) = blocks.bytes {
            finding.insert("bytes".to_owned(), json!([first, last]));
        }
    }
    Value::Object(finding)
}

fn range(blocks: Blocks) -> String {
    let Blocks { first, last, bytes } = blocks;
    let numbers = if first == last { format!("block {first}") } else { format!("blocks {first} to {last}") };
    bytes.map_or(numbers.clone(), |(first, last)| format!("{numbers}, bytes {first} to {last}"))
}

/// Returns a path for the terminal, which names below must not control.
fn printable(path: &Path) -> String {
    let mut text = String::new();
    for character in path.to_string_lossy().chars() {
        if character.is_control() { text.extend(character.escape_default()) } else { text.push(character) }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_paths_are_shown() {
        assert_eq!(range(Blocks { first: 3, last: 3, bytes: Some((12_288, 16_383)) }), "block 3, bytes 12288 to 16383");
        assert_eq!(range(Blocks { first: 3, last: 5, bytes: None }), "blocks 3 to 5");
        assert_eq!(printable(Path::new("a\x1b[2J\nb")), "a\\u{1b}[2J\\nb");
    }
}
