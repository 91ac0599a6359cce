//! `strata new`: a layer of one's own to begin with, and its tests.

use crate::exit::Failure;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

/// In which language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// A crate.
    Rust,
    /// A source file and a Makefile.
    C,
}

/// A file of a new layer: where it is, what is in it, whether it can be run. `@NAME@` and the like are filled in.
type Template = (&'static str, &'static str, bool);

const RUST: &[Template] = &[
    ("Cargo.toml", include_str!("../templates/Cargo.toml.txt"), false),
    ("src/lib.rs", include_str!("../templates/lib.rs.txt"), false),
    ("tests/layer.rs", include_str!("../templates/layer.rs.txt"), false),
    ("README.md", include_str!("../templates/README.md.txt"), false),
    (".gitignore", "/target\n# A link to Strata's source on this machine.\n/strata\n", false),
];

const C: &[Template] = &[
    ("@NAME@.c", include_str!("../templates/layer.c.txt"), false),
    ("strata_layer.h", include_str!("../../../include/strata_layer.h"), false),
    ("Makefile", include_str!("../templates/Makefile.txt"), false),
    ("check.sh", include_str!("../templates/check.sh.txt"), true),
    ("README.md", include_str!("../templates/README-c.md.txt"), false),
    (".gitignore", "*.so\n", false),
];

/// The link in a crate that leads to Strata's source.
const SOURCE_LINK: &str = "strata";

/// Writes a new layer into `dir`, which must not be there yet, or empty. Answers what to do next.
///
/// # Errors
/// Names what is wrong and what to do about it.
pub fn write(name: &str, dir: Option<&Path>, source: Option<&Path>, language: Language) -> Result<String, Failure> {
    check_name(name)?;
    let dir = dir.unwrap_or_else(|| Path::new(name));
    let files = if language == Language::C { C } else { RUST };
    let source = if language == Language::C { None } else { Some(find_source(source)?) };
    make_empty(dir)?;
    let fill = |text: &str| filled_in(text, name);
    for (path, text, runs) in files {
        put(&dir.join(fill(path)), fill(text).as_bytes(), *runs)?;
    }
    if let Some(source) = source {
        // A manifest that names no place of this machine can be committed, and built elsewhere.
        let link = dir.join(SOURCE_LINK);
        symlink(&source, &link).map_err(|error| Failure::system(format!("{}: {error}", link.display())))?;
        if let Ok(lock) = fs::read(source.join("Cargo.lock")) {
            // The versions that Strata was tested with.
            put(&dir.join("Cargo.lock"), &lock, false)?;
        }
    }
    let next = if language == Language::C { "make" } else { "cargo test" };
    Ok(format!("{} is written. Next: cd {} && {next}; README.md says how it is mounted.\n", name, dir.display()))
}

fn filled_in(text: &str, name: &str) -> String {
    text.replace("@NAME@", name).replace("@IDENT@", &name.replace('-', "_"))
}

/// The name of a layer, of a crate and of a C file.
fn check_name(name: &str) -> Result<(), Failure> {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    let begins = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
    if !begins || name.len() > 64 || !name.bytes().all(fits) {
        return Err(Failure::usage(format!(
            "{name:?} can't be a layer's name: it is a letter, then lower-case letters, digits, - and _"
        )));
    }
    // Names of crates that the new one needs, and of what Rust has.
    let taken = ["plugin", "wrapfs", "vnode", "memfs", "conformance", "core", "std", "alloc", "test", "proc_macro"];
    if taken.contains(&name) || crate::registry::find(name).is_some() || name == "strata" {
        return Err(Failure::usage(format!("{name} is taken: choose another name")));
    }
    Ok(())
}

/// Where Strata's source is: as given, around the working directory, or where this program was built.
fn find_source(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let is_source = |dir: &&Path| dir.join("crates/wrapfs/Cargo.toml").is_file() && dir.join("crates/plugin").is_dir();
    let absolute =
        |dir: &Path| dir.canonicalize().map_err(|error| Failure::system(format!("{}: {error}", dir.display())));
    if let Some(dir) = given {
        return match is_source(&dir) {
            true => absolute(dir),
            false => Err(Failure::usage(format!("{} is not Strata's source: it has no crates/wrapfs", dir.display()))),
        };
    }
    let here = std::env::current_dir().unwrap_or_default();
    let built = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = here.ancestors().chain(built.ancestors()).find(is_source);
    found.map_or_else(
        || {
            Err(Failure::usage(
                "Strata's source is not found: say where it is, --strata DIR (a checkout of it), or use --c",
            ))
        },
        absolute,
    )
}

fn make_empty(dir: &Path) -> Result<(), Failure> {
    let refuse = |error: std::io::Error| Failure::system(format!("{}: {error}", dir.display()));
    match fs::create_dir(dir) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => match fs::read_dir(dir).map_err(refuse)?.next() {
            None => Ok(()),
            Some(_) => {
                Err(Failure::usage(format!("{} is there, and not empty: choose another directory", dir.display())))
            }
        },
        Err(error) => Err(refuse(error)),
    }
}

fn put(path: &Path, bytes: &[u8], runs: bool) -> Result<(), Failure> {
    let refuse = |error: std::io::Error| Failure::system(format!("{}: {error}", path.display()));
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(refuse)?;
    }
    fs::write(path, bytes).map_err(refuse)?;
    if runs {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(refuse)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!(check_name("my-layer_2").is_ok());
        for wrong in ["", "-a", "2a", "A", "a/b", "a b", "ä", &"a".repeat(65)] {
            assert!(check_name(wrong).unwrap_err().reason.contains("can't be a layer's name"), "{wrong}");
        }
        for taken in ["rot13", "unionfs", "wrapfs", "core", "strata"] {
            assert_eq!(check_name(taken).unwrap_err().reason, format!("{taken} is taken: choose another name"));
        }
    }

    #[test]
    fn sources_are_found() {
        assert!(find_source(None).is_ok_and(|dir| dir.join("crates/wrapfs").is_dir()));
        let wrong = find_source(Some(Path::new("/"))).unwrap_err().reason;
        assert_eq!(wrong, "/ is not Strata's source: it has no crates/wrapfs");
    }

    #[test]
    fn everything_is_filled_in() {
        // What is left to be filled in would be @ and a capital letter.
        let left = |text: &str| text.split('@').skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
        for (path, text, _) in RUST.iter().chain(C) {
            for text in [path, text] {
                assert!(!left(&filled_in(text, "a-layer")), "{path}");
            }
        }
        assert!(left("@NAME@") && !left("$@ a@b"));
    }
}
