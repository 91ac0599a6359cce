//! `strata new`: creates the source and the tests of a new layer from templates.

use crate::exit::Failure;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

/// Language of the new layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// A Rust crate.
    Rust,
    /// A C source file and a Makefile.
    C,
}

/// A file of a new layer: path, content, and whether it is executable. `@NAME@` and `@IDENT@` are
/// replaced.
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

/// Symbolic link in the new crate that points to Strata's source.
const SOURCE_LINK: &str = "strata";

/// Writes a new layer into `dir`, which must be empty or not exist. Returns a message with the next
/// steps.
///
/// # Errors
/// Names the invalid argument or the path, the reason and the remedy.
pub fn write(name: &str, dir: Option<&Path>, source: Option<&Path>, language: Language) -> Result<String, Failure> {
    check_name(name)?;
    let dir = dir.unwrap_or_else(|| Path::new(name));
    let files = if language == Language::C { C } else { RUST };
    let source = if language == Language::C { None } else { Some(find_source(source)?) };
    make_empty(dir)?;
    let fill = |text: &str| filled_in(text, name);
    for (path, text, executable) in files {
        put(&dir.join(fill(path)), fill(text).as_bytes(), *executable)?;
    }
    if let Some(source) = source {
        // The manifest refers to the link, so it contains no path of this machine and can be
        // committed.
        let link = dir.join(SOURCE_LINK);
        symlink(&source, &link).map_err(|error| Failure::system(format!("{}: {error}", link.display())))?;
        if let Ok(lock) = fs::read(source.join("Cargo.lock")) {
            // Pin the dependency versions that Strata was tested with.
            put(&dir.join("Cargo.lock"), &lock, false)?;
        }
    }
    let next = if language == Language::C { "make" } else { "cargo test" };
    let dir = dir.display();
    Ok(format!("Created the layer {name} in {dir}. Next: cd {dir} && {next}; README.md describes how to mount it.\n"))
}

fn filled_in(text: &str, name: &str) -> String {
    text.replace("@NAME@", name).replace("@IDENT@", &name.replace('-', "_"))
}

/// Checks that `name` is valid as the name of a layer, of a crate and of a C file.
fn check_name(name: &str) -> Result<(), Failure> {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    let begins = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
    if !begins || name.len() > 64 || !name.bytes().all(fits) {
        return Err(Failure::usage(format!(
            "{name:?}: not a valid layer name; use a lower-case letter, then lower-case letters, digits, - and _"
        )));
    }
    // Crates that the new crate depends on, and crates of the Rust distribution.
    let taken = ["plugin", "wrapfs", "vnode", "memfs", "conformance", "core", "std", "alloc", "test", "proc_macro"];
    if taken.contains(&name) || crate::registry::find(name).is_some() || name == "strata" {
        return Err(Failure::usage(format!("{name}: the name is taken; choose another one")));
    }
    Ok(())
}

/// Finds Strata's source tree: the given directory, an ancestor of the working directory, or the
/// tree that this program was built from.
fn find_source(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let is_source = |dir: &&Path| dir.join("crates/wrapfs/Cargo.toml").is_file() && dir.join("crates/plugin").is_dir();
    let absolute =
        |dir: &Path| dir.canonicalize().map_err(|error| Failure::system(format!("{}: {error}", dir.display())));
    if let Some(dir) = given {
        return match is_source(&dir) {
            true => absolute(dir),
            false => {
                Err(Failure::usage(format!("{}: not Strata's source tree: it has no crates/wrapfs", dir.display())))
            }
        };
    }
    let here = std::env::current_dir().unwrap_or_default();
    let built = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = here.ancestors().chain(built.ancestors()).find(is_source);
    found.map_or_else(
        || {
            Err(Failure::usage(
                "Strata's source tree: not found; pass a checkout with --strata DIR, or use --c for a layer in C",
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
                Err(Failure::usage(format!("{}: exists and is not empty; choose another directory", dir.display())))
            }
        },
        Err(error) => Err(refuse(error)),
    }
}

fn put(path: &Path, bytes: &[u8], executable: bool) -> Result<(), Failure> {
    let refuse = |error: std::io::Error| Failure::system(format!("{}: {error}", path.display()));
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(refuse)?;
    }
    fs::write(path, bytes).map_err(refuse)?;
    if executable {
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
            assert!(check_name(wrong).unwrap_err().reason.contains("not a valid layer name"), "{wrong}");
        }
        for taken in ["rot13", "unionfs", "wrapfs", "core", "strata"] {
            assert_eq!(
                check_name(taken).unwrap_err().reason,
                format!("{taken}: the name is taken; choose another one")
            );
        }
    }

    #[test]
    fn the_source_tree_is_found() {
        assert!(find_source(None).is_ok_and(|dir| dir.join("crates/wrapfs").is_dir()));
        let wrong = find_source(Some(Path::new("/"))).unwrap_err().reason;
        assert_eq!(wrong, "/: not Strata's source tree: it has no crates/wrapfs");
    }

    #[test]
    fn the_page_names_the_tests_that_are_written() {
        let page = include_str!("../../../docs/examples.md");
        let written = RUST.iter().find(|(path, ..)| *path == "tests/layer.rs").unwrap().1;
        let tests = written.split("#[test]\nfn ").skip(1).map(|rest| rest.split('(').next().unwrap());
        let rows: Vec<_> = tests.map(|test| format!("\n| `{test}` | ")).collect();
        assert_eq!(rows.len(), 3);
        assert!(rows.iter().all(|row| page.contains(row)), "{rows:?}");
    }

    #[test]
    fn all_placeholders_are_replaced() {
        // A placeholder begins with @ and a capital letter.
        let left = |text: &str| text.split('@').skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
        for (path, text, _) in RUST.iter().chain(C) {
            for text in [path, text] {
                assert!(!left(&filled_in(text, "a-layer")), "{path}");
            }
        }
        assert!(left("@NAME@") && !left("$@ a@b"));
    }
}
