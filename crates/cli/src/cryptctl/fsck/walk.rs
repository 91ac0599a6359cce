//! The tree of a volume: directories and their names.

use super::super::volume::{open_regular, small_file};
use super::report::{Kind, Place, Report};
use super::{attributes, content};
use cryptformat::{DIRIV_NAME, Keys, NameStore, Role, ZERO_IV, is_dir_iv, reserved_in_plain_root};
use cryptfs::{JOURNAL, is_kept_journal};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, FileType};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Configurations in the root, and what is made of them, begin with this.
const CONFIG: &[u8] = b"gocryptfs.conf";
/// Attribute of a directory with a copy of its initialization vector, which a mount restores.
const DIRIV_COPY: &str = "user.strata.diriv";

/// A check in progress.
pub(super) struct Walk<'a> {
    keys: &'a Keys,
    /// Whether the volume has other keys, too. What this one does not decrypt may be theirs.
    several: bool,
    store: Option<NameStore>,
    root: PathBuf,
    report: Report,
    directories: Vec<Place>,
    /// Files with several names that were checked: device and inode number.
    seen: HashSet<(u64, u64)>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(keys: &'a Keys, several: bool, root: &Path, report: Report) -> Self {
        let store = keys.names().copied().map(NameStore::new);
        let top = Place { plain: PathBuf::from("/"), lower: PathBuf::new() };
        Self { keys, several, store, root: root.to_owned(), report, directories: vec![top], seen: HashSet::new() }
    }

    pub(super) fn into_report(self) -> Report {
        self.report
    }

    /// Checks all directories.
    pub(super) fn run(&mut self) {
        if let Some(top) = self.directories.first() {
            attributes::check(self.keys, self.several, &self.root, top, &mut self.report);
        }
        while let Some(place) = self.directories.pop() {
            if let Err(error) = self.directory(&place) {
                self.report.found(Kind::Unreadable, &place, &error.to_string());
            }
        }
    }

    fn directory(&mut self, place: &Place) -> std::io::Result<()> {
        self.report.directories += 1;
        let path = self.root.join(&place.lower);
        let names: std::io::Result<Vec<OsString>> = fs::read_dir(&path)?.map(|entry| Ok(entry?.file_name())).collect();
        let mut names = names?;
        names.sort();
        let iv = self.dir_iv(&path, place, &names);
        for name in &names {
            self.entry(&path, place, name.as_bytes(), iv.as_ref(), &names);
        }
        Ok(())
    }

    /// Returns the initialization vector of a directory with these entries, or `None` if it is
    /// damaged.
    fn dir_iv(&mut self, path: &Path, place: &Place, entries: &[OsString]) -> Option<[u8; 16]> {
        if !self.keys.names().is_some_and(|names| names.dir_iv) {
            return Some(ZERO_IV);
        }
        let problem = match small_file(&path.join(OsStr::from_bytes(DIRIV_NAME))) {
            Ok(iv) if is_dir_iv(&iv) => return iv.try_into().ok(),
            Ok(_) => "gocryptfs.diriv is damaged".to_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => "gocryptfs.diriv is missing".to_owned(),
            Err(error) => format!("gocryptfs.diriv: {error}"),
        };
        let is_name =
            |store: &NameStore, name: &OsString| matches!(store.role(name.as_bytes()), Role::Name | Role::Long { .. });
        if self.store.is_some_and(|store| !entries.iter().any(|name| is_name(&store, name))) {
            let text = "an empty directory, left by an interrupted mkdir or rmdir; a mount can use and remove it";
            self.report.found(Kind::Note, place, &format!("{problem}: {text}"));
            return Some(ZERO_IV);
        }
        let mut copy = [0; 16];
        if rustix::fs::lgetxattr(path, DIRIV_COPY, &mut copy[..]) == Ok(copy.len()) && is_dir_iv(&copy) {
            self.report.found(Kind::Note, place, &format!("{problem}; a mount restores it from its copy"));
            return Some(copy);
        }
        self.report.found(Kind::DirIv, place, &format!("{problem}; no name in this directory can be decrypted"));
        None
    }

    fn entry(&mut self, path: &Path, parent: &Place, stored: &[u8], iv: Option<&[u8; 16]>, all: &[OsString]) {
        let unnamed =
            Place { plain: parent.plain.join(bracketed(stored)), lower: parent.lower.join(OsStr::from_bytes(stored)) };
        let is_root = parent.lower.as_os_str().is_empty();
        let encrypted = match self.encrypted(path, stored, is_root, all) {
            Found::Skip => return,
            Found::Note(text) => return self.report.found(Kind::Note, &unnamed, &text),
            Found::Damaged(kind, text) => Err((kind, text)),
            Found::Name(encrypted) => Ok(encrypted),
        };
        let name = encrypted.and_then(|encrypted| {
            // Without it, each name would be reported.
            let Some(iv) = iv else { return Ok(None) };
            let name = self.keys.decrypt_name(&encrypted, iv);
            name.map(Some).map_err(|damage| (Kind::Name, damage.to_string()))
        });
        if self.several && is_foreign(&name) {
            self.report.foreign += 1;
            return;
        }
        let place = match name {
            Ok(Some(name)) => Place { plain: parent.plain.join(OsStr::from_bytes(&name)), ..unnamed },
            Ok(None) => unnamed,
            Err((kind, text)) => {
                self.report.found(kind, &unnamed, &text);
                unnamed
            }
        };
        if let Err(error) = self.object(place.clone()) {
            self.report.found(Kind::Unreadable, &place, &error.to_string());
        }
    }

    /// Returns the encrypted name of an entry.
    fn encrypted(&self, path: &Path, stored: &[u8], is_root: bool, all: &[OsString]) -> Found {
        let is_own = is_root && stored.starts_with(CONFIG);
        if is_root && stored == JOURNAL {
            return Found::Note(
                "the server was killed: mount the volume once, which completes what it wrote".to_owned(),
            );
        }
        if is_root && is_kept_journal(stored) {
            let text = "an interrupted write that was not restored: see cryptctl journal list";
            return Found::Note(text.to_owned());
        }
        let Some(store) = self.store else {
            let hidden = is_own || (is_root && reserved_in_plain_root(stored));
            return if hidden { Found::Skip } else { Found::Name(stored.to_vec()) };
        };
        let exists = |name: &[u8]| all.binary_search_by(|other| other.as_bytes().cmp(name)).is_ok();
        match store.role(stored) {
            Role::Name if store.long_name(stored).is_some() => {
                Found::Damaged(Kind::Name, "name longer than LongNameMax".to_owned())
            }
            Role::Name => Found::Name(stored.to_vec()),
            Role::Long { side } => match small_file(&path.join(OsStr::from_bytes(&side))) {
                Ok(content) => match store.encrypted_name(stored, &content) {
                    Some(encrypted) => Found::Name(encrypted),
                    None => Found::Damaged(Kind::LongName, "its side file (.name) is damaged".to_owned()),
                },
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    Found::Damaged(Kind::LongName, "its side file (.name) is missing".to_owned())
                }
                Err(error) => Found::Damaged(Kind::LongName, format!("its side file (.name): {error}")),
            },
            Role::Side { object } if exists(&object) => Found::Skip,
            Role::Side { .. } => Found::Note("a side file without its object, left by a crash".to_owned()),
            Role::Leftover => Found::Note("left by an interrupted rmdir; it can be removed".to_owned()),
            Role::Own if is_own || stored == DIRIV_NAME => Found::Skip,
            Role::Own => Found::Note("a reserved name without a meaning".to_owned()),
        }
    }

    /// Checks everything about an object but its name.
    fn object(&mut self, place: Place) -> std::io::Result<()> {
        let path = self.root.join(&place.lower);
        let attributes = fs::symlink_metadata(&path)?;
        let kind: FileType = attributes.file_type();
        if !kind.is_dir() && attributes.nlink() > 1 && !self.seen.insert((attributes.dev(), attributes.ino())) {
            return Ok(());
        }
        attributes::check(self.keys, self.several, &path, &place, &mut self.report);
        if kind.is_dir() {
            self.directories.push(place);
        } else if kind.is_symlink() {
            self.report.links += 1;
            let target = fs::read_link(&path)?.into_os_string().into_vec();
            if let Err(damage) = self.keys.open_link(&target) {
                self.report.found(Kind::Link, &place, &format!("link target: {damage}"));
            }
        } else if kind.is_file() {
            let file = open_regular(&path, false)?;
            // Names that are not encrypted do not tell the key.
            let mixed = self.several && self.store.is_none();
            if mixed && content::is_of_key(self.keys, &file, attributes.size()) == Some(false) {
                self.report.foreign += 1;
                return Ok(());
            }
            self.report.files += 1;
            content::check(self.keys, &file, attributes.size(), &place, &mut self.report);
        }
        Ok(())
    }
}

/// What an entry of a directory below is.
enum Found {
    /// A file of the format.
    Skip,
    Note(String),
    Damaged(Kind, String),
    /// An object with this encrypted name.
    Name(Vec<u8>),
}

/// Whether a name is one of another key. One in 256 of them decrypts, but hardly ever to UTF-8,
/// which all names must be on a volume with several keys.
fn is_foreign(name: &Result<Option<Vec<u8>>, (Kind, String)>) -> bool {
    match name {
        Ok(Some(name)) => !core::str::from_utf8(name).is_ok_and(|name| !name.chars().any(char::is_control)),
        Ok(None) => false,
        Err((kind, _)) => *kind == Kind::Name,
    }
}

/// Returns the text for a name that can't be decrypted.
fn bracketed(stored: &[u8]) -> OsString {
    OsString::from_vec([b"[", stored, b"]"].concat())
}
