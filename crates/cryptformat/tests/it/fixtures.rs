//! Volumes of gocryptfs are decrypted, and encrypted again to the same bytes where that has no
//! random part.
#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(clippy::disallowed_methods, reason = "the fixtures are files of the source tree")]

use cryptformat::{Config, HEADER, Keys, Limits, NameStore, Role, ZERO_IV, is_dir_iv, is_hole, reserved_in_plain_root};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What a volume contains: path, and kind with content.
type Tree = BTreeMap<String, Entry>;

#[derive(Debug, PartialEq)]
enum Entry {
    Directory,
    File(Vec<u8>),
    Link(Vec<u8>),
}

fn expected() -> Tree {
    let blocks: Vec<u8> = (0..4196u32).map(|i| (i * 7 + i / 4096) as u8).collect();
    let file = |content: &[u8]| Entry::File(content.to_vec());
    BTreeMap::from([
        ("short".to_owned(), file(b"short")),
        ("empty".to_owned(), file(b"")),
        ("blocks".to_owned(), Entry::File(blocks)),
        ("hole".to_owned(), Entry::File([&[0; 8192][..], b"after a hole"].concat())),
        ("directory".to_owned(), Entry::Directory),
        (format!("directory/{}", "a".repeat(16)), file(b"sixteen")),
        ("long".repeat(60), file(b"long name")),
        ("m".repeat(90), file(b"medium name")),
        ("link".to_owned(), Entry::Link(b"../some/target".to_vec())),
    ])
}

/// A volume that is read.
struct Volume {
    root: PathBuf,
    keys: Keys,
    store: Option<NameStore>,
    tree: Tree,
    /// Plain paths of stored ones.
    paths: BTreeMap<PathBuf, String>,
}

impl Volume {
    fn read(fixture: &Path) -> Self {
        let root = fixture.join("volume");
        let config = Config::parse(&fs::read(root.join("gocryptfs.conf")).unwrap()).unwrap();
        let master = config.unlock(b"fixture password", Limits::default()).unwrap().master;
        let keys = Keys::new(config.flags(), &master).unwrap();
        let store = config.flags().names.map(NameStore::new);
        let mut volume = Self { root: root.clone(), keys, store, tree: Tree::new(), paths: BTreeMap::new() };
        volume.read_directory(&root, "");
        volume
    }

    fn read_directory(&mut self, directory: &Path, plain: &str) {
        let iv = match self.keys.names() {
            Some(names) if names.dir_iv => {
                let iv = fs::read(directory.join("gocryptfs.diriv")).unwrap();
                assert!(is_dir_iv(&iv));
                iv.try_into().unwrap()
            }
            _ => ZERO_IV,
        };
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let stored = entry.file_name().into_vec();
            let Some(encrypted) = self.encrypted(directory, &stored) else { continue };
            let name = self.keys.decrypt_name(&encrypted, &iv).unwrap();
            assert_eq!(self.keys.encrypt_name(&name, &iv).unwrap(), encrypted);
            let name = format!("{plain}{}", String::from_utf8(name).unwrap());
            let kind = entry.file_type().unwrap();
            let read = if kind.is_dir() {
                self.read_directory(&entry.path(), &format!("{name}/"));
                Entry::Directory
            } else if kind.is_symlink() {
                self.link(&entry.path())
            } else {
                self.file(&entry.path())
            };
            let stored_path = entry.path().strip_prefix(&self.root).unwrap().to_owned();
            self.paths.insert(stored_path, name.clone());
            self.tree.insert(name, read);
        }
    }

    /// Returns the encrypted name of an entry, or `None` for files of the format.
    fn encrypted(&self, directory: &Path, stored: &[u8]) -> Option<Vec<u8>> {
        let Some(store) = self.store else {
            return (!reserved_in_plain_root(stored)).then(|| stored.to_vec());
        };
        match store.role(stored) {
            Role::Name => {
                assert_eq!(store.long_name(stored), None);
                Some(stored.to_vec())
            }
            Role::Long { side } => {
                let content = fs::read(directory.join(std::ffi::OsStr::from_bytes(&side))).unwrap();
                let encrypted = store.encrypted_name(stored, &content).unwrap();
                let long = store.long_name(&encrypted).unwrap();
                assert_eq!((long.object.as_slice(), long.side, long.content), (stored, side, content));
                Some(encrypted)
            }
            Role::Side { object } => {
                assert!(directory.join(std::ffi::OsStr::from_bytes(&object)).exists());
                None
            }
            Role::Own => None,
            Role::Leftover => panic!("{stored:?}"),
        }
    }

    fn file(&self, path: &Path) -> Entry {
        let stored = fs::read(path).unwrap();
        let layout = self.keys.layout();
        let mut content = Vec::new();
        if !stored.is_empty() {
            let (header, blocks) = stored.split_at(HEADER);
            let id = self.keys.check_header(header).unwrap();
            for (number, block) in blocks.chunks(layout.stored).enumerate() {
                let mut plain = vec![0; block.len() - layout.overhead()];
                if !is_hole(&layout, block) {
                    self.keys.open_block(&id, number as u64, block, &mut plain).unwrap();
                }
                content.append(&mut plain);
            }
        }
        assert_eq!(layout.plain_size(stored.len() as u64), content.len() as u64);
        assert_eq!(layout.stored_size(content.len() as u64), Some(stored.len() as u64));
        Entry::File(content)
    }

    fn link(&self, path: &Path) -> Entry {
        let stored = fs::read_link(path).unwrap().into_os_string().into_vec();
        Entry::Link(self.keys.open_link(&stored).unwrap())
    }
}

/// Returns the extended attributes of a fixture, decrypted: plain path, name, value.
fn xattrs(fixture: &Path, volume: &Volume) -> Vec<(String, Vec<u8>, Vec<u8>)> {
    let text = fs::read_to_string(fixture.join("xattrs")).unwrap();
    let line = |line: &str| {
        let [path, name, value] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let value = data_encoding::HEXLOWER.decode(value.as_bytes()).unwrap();
        let plain = volume.keys.decrypt_xattr_name(name.as_bytes()).unwrap();
        assert_eq!(volume.keys.encrypt_xattr_name(&plain).unwrap(), name.as_bytes());
        (volume.paths[Path::new(path)].clone(), plain, volume.keys.open_xattr(&value).unwrap())
    };
    let mut all: Vec<_> = text.lines().map(line).collect();
    all.sort();
    all
}

#[test]
fn volumes_of_gocryptfs_are_read() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut names = Vec::new();
    for fixture in fs::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
        let name = fixture.file_name().unwrap().to_str().unwrap().to_owned();
        let volume = Volume::read(&fixture);
        assert_eq!(volume.tree, expected(), "{name}");
        let attribute = |name: &[u8], value: &[u8]| ("short".to_owned(), name.to_vec(), value.to_vec());
        assert_eq!(
            xattrs(&fixture, &volume),
            [attribute(b"user.comment", b"a value"), attribute(b"user.empty", b"")],
            "{name}"
        );
        names.push(name);
    }
    names.sort();
    assert_eq!(
        names,
        [
            "aes-siv",
            "default",
            "deterministic-names",
            "long-name-max",
            "no-hkdf",
            "no-hkdf-siv",
            "no-long-names",
            "padded",
            "plaintext-names",
            "xchacha"
        ]
    );
}

#[test]
fn a_configuration_of_gocryptfs_is_written_as_it_was() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for fixture in fs::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
        let bytes = fs::read(fixture.join("volume/gocryptfs.conf")).unwrap();
        assert_eq!(Config::parse(&bytes).unwrap().to_json().unwrap(), bytes, "{}", fixture.display());
    }
}
