//! A stack in words, top first: `rot13 / xor,key=7 / /srv/data`.
//!
//! ```text
//! stack     = { layer " / " } bottom
//! layer     = ( NAME | OBJECT ) { "," option }      an OBJECT is a PATH that ends with ".so": a layer that is loaded
//! bottom    = directory | NAME { "," option }       the NAME of a file system over several directories
//! directory = PATH [ ",ro" ]                        a PATH begins with "/" or "."
//! option    = NAME [ "=" VALUE ]
//! ```
//!
//! What separates is only what stands there without a backslash and outside of double quotes ([`Text`]): a `/` with a blank on both sides,
//! a comma, the first `=`.

use crate::list::{self, BranchSpec};
use crate::near::nearest;
use crate::{Given, LayerType, OptionSpec, Text};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// The layer types that there are.
pub trait Catalog {
    /// The type of that name.
    fn find(&self, name: &str) -> Option<&'static LayerType>;

    /// All names.
    fn names(&self) -> Vec<&'static str>;

    /// The type that the object file at that path is.
    ///
    /// # Errors
    /// Names the path, what is wrong and what to do about it.
    fn load(&self, path: &Path) -> Result<&'static LayerType, String>;

    /// What to write for a name that stands for no layer, if it is that of a file in the working directory.
    fn path_meant(&self, name: &str) -> Option<String>;
}

/// The most layers: their figures must fit into one extended attribute.
pub const MOST: usize = 32;

/// What a stack is to be made of.
#[derive(Debug)]
pub struct StackSpec {
    /// Top first.
    pub layers: Vec<LayerSpec>,
    /// What they stand on.
    pub bottom: BottomSpec,
}

/// A layer and its options.
#[derive(Clone, Debug)]
pub struct LayerSpec {
    /// Which.
    pub kind: &'static LayerType,
    /// How.
    pub given: Given,
}

/// What a stack stands on.
#[derive(Debug)]
pub enum BottomSpec {
    /// A directory of the host.
    Directory {
        /// As it was written.
        path: PathBuf,
        /// Must it never be changed?
        read_only: bool,
    },
    /// A layer over branches.
    Branches(LayerSpec, Vec<BranchSpec>),
}

/// The option of a directory.
const DIRECTORY: &[OptionSpec] = &[OptionSpec { name: "ro", value: None, help: "Never changed through the stack." }];

/// Reads a stack.
///
/// # Errors
/// Names the part, what is wrong with it and what to do about it.
pub fn read(bytes: &[u8], catalog: &dyn Catalog) -> Result<StackSpec, String> {
    let text = Text::read(bytes).map_err(|wrong| format!("the stack {wrong}: {}", String::from_utf8_lossy(bytes)))?;
    let parts = text.split_spaced(b'/');
    if parts.len() > MOST {
        return Err(format!("the stack has {} parts: {MOST} are the most", parts.len()));
    }
    let Some((last, above)) = parts.split_last() else { return Err("the stack is empty".to_owned()) };
    let numbered = above.iter().zip(1..);
    let layers = numbered.map(|(part, number)| layer(part, catalog).map_err(|wrong| at(number, &wrong)));
    let layers = layers.collect::<Result<_, _>>()?;
    let bottom = bottom(last, catalog).map_err(|wrong| at(parts.len(), &wrong))?;
    Ok(StackSpec { layers, bottom })
}

/// A layer over the branches that its options list.
///
/// # Errors
/// Names the option and what is wrong with it.
pub fn over_branches(kind: &'static LayerType, given: Given) -> Result<BottomSpec, String> {
    let Some(declared) = kind.branches() else { return Err(format!("{} has no branches", kind.name)) };
    let lists = given.lists(declared).map(|list| list::parse(list, declared));
    let lists: Vec<_> =
        lists.collect::<Result<_, _>>().map_err(|wrong| format!("option {}=: {wrong}", declared.option))?;
    Ok(BottomSpec::Branches(LayerSpec { kind, given }, lists.concat()))
}

fn at(number: usize, wrong: &str) -> String {
    format!("part {number} of the stack: {wrong}")
}

fn layer(part: &Text, catalog: &dyn Catalog) -> Result<LayerSpec, String> {
    let (name, options) = name_and_options(part)?;
    let found = catalog.find(&name);
    if found.is_some_and(|kind| kind.branches().is_some()) || (is_path(part) && !is_object(part)) {
        return Err(format!("{name} can only be the last part: nothing can lie below it"));
    }
    let kind = match found {
        Some(kind) => kind,
        None if is_object(part) => catalog.load(&path_of(part))?,
        None => return Err(unknown(&name, catalog)),
    };
    let given = Given::read(&options, kind).map_err(|wrong| format!("{name}: {wrong}"))?;
    Ok(LayerSpec { kind, given })
}

fn bottom(part: &Text, catalog: &dyn Catalog) -> Result<BottomSpec, String> {
    let (name, options) = name_and_options(part)?;
    if is_path(part) {
        let given = Given::declared(&options, DIRECTORY, None)
            .map_err(|wrong| format!("directory {name}: {wrong} (a comma in a path is written \\,)"))?;
        return Ok(BottomSpec::Directory { path: path_of(part), read_only: given.has("ro") });
    }
    match catalog.find(&name) {
        Some(kind) if kind.branches().is_some() => Given::read(&options, kind)
            .and_then(|given| over_branches(kind, given))
            .map_err(|wrong| format!("{name}: {wrong}")),
        Some(_) => {
            Err(format!("{name} needs something below it: end the stack with a directory, as in `{name} / /srv/data`"))
        }
        None => Err(match catalog.path_meant(&name) {
            _ if name.ends_with(".so") => {
                format!("{}; below it, end the stack with a directory", unknown(&name, catalog))
            }
            Some(meant) => format!("{name}: the path of a directory begins with / or ./: {meant}"),
            None => format!("{}; a directory begins with / or ./", unknown(&name, catalog)),
        }),
    }
}

/// The path that a part begins with.
fn path_of(part: &Text) -> PathBuf {
    OsString::from_vec(part.split(b',').first().map(Text::bytes).unwrap_or_default()).into()
}

/// Is it a path, and not a name?
fn is_path(part: &Text) -> bool {
    part.bytes().first().is_some_and(|&b| b == b'/' || b == b'.')
}

/// Is it the path of an object that a layer is loaded from?
fn is_object(part: &Text) -> bool {
    is_path(part) && part.split(b',').first().is_some_and(|path| path.bytes().ends_with(b".so"))
}

fn name_and_options(part: &Text) -> Result<(String, Vec<Text>), String> {
    let items = part.split(b',');
    match items.split_first() {
        Some((name, options)) if !name.is_empty() => Ok((name.show(), options.to_vec())),
        _ => Err("nothing stands there; layers are written `top / below / DIRECTORY`".to_owned()),
    }
}

fn unknown(name: &str, catalog: &dyn Catalog) -> String {
    if name.ends_with(".so") {
        let way_out = catalog.path_meant(name).unwrap_or_else(|| format!("write ./{name} or /DIR/{name}"));
        return format!("{name}: a layer in a file is named by a path that begins with / or ./: {way_out}");
    }
    let way_out = match nearest(name, catalog.names()) {
        Some(near) => format!("is {near} meant?"),
        None if name.contains('/') => "layers are separated by a / with a blank on both sides".to_owned(),
        None => "`strata layers` lists them".to_owned(),
    };
    format!("there is no layer {name:?}: {way_out}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Types;
    use crate::text::escape;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStrExt as _;

    fn names(stack: &str) -> Vec<String> {
        let spec = read(stack.as_bytes(), &Types).unwrap_or_else(|wrong| panic!("{stack}: {wrong}"));
        let bottom = match spec.bottom {
            BottomSpec::Directory { path, read_only } => {
                format!("{}{}", path.display(), if read_only { ",ro" } else { "" })
            }
            BottomSpec::Branches(spec, _) => format!("{},{}", spec.kind.name, spec.given.show()),
        };
        spec.layers.iter().map(|layer| layer.kind.name.to_owned()).chain([bottom]).collect()
    }

    fn wrong(stack: &str) -> String {
        read(stack.as_bytes(), &Types).unwrap_err()
    }

    #[test]
    fn stacks_are_read_from_the_top() {
        assert_eq!(names("/srv/data"), ["/srv/data"]);
        assert_eq!(names("wrapfs / wrapfs / ./data,ro"), ["wrapfs", "wrapfs", "./data,ro"]);
        assert_eq!(names("wrapfs / /"), ["wrapfs", "/"]);
        assert_eq!(names(r"  wrapfs  /  /a\,b\040c  "), ["wrapfs", "/a,b c"]);
        assert_eq!(names(r#"wrapfs / "/a / b,c""#), ["wrapfs", "/a / b,c"]);
        assert_eq!(names("wrapfs / /with a blank"), ["wrapfs", "/with a blank"]);
        let union = ["wrapfs", "unionfs,dirs=/a=rw:/b=ro,delete=all"];
        assert_eq!(names("wrapfs / unionfs,dirs=/a=rw:/b=ro,delete=all"), union);
        assert_eq!(names("unionfs,dirs=/a=rw,/b=ro"), ["unionfs,dirs=/a=rw,dirs=/b=ro"]);
    }

    #[test]
    fn errors_name_the_part_and_the_way_out() {
        assert_eq!(wrong("wrapsf / /a"), "part 1 of the stack: there is no layer \"wrapsf\": is wrapfs meant?");
        assert!(
            wrong("wrapfs / bogus / /a")
                .starts_with("part 2 of the stack: there is no layer \"bogus\": `strata layers`")
        );
        assert!(wrong("wrapfs/wrapfs / /a").contains("blank on both sides"));
        assert!(wrong("wrapfs / wrapfs").contains("part 2 of the stack: wrapfs needs something below it"));
        assert!(wrong("wrapfs / data").contains("begins with / or ./"));
        let directory = "part 2 of the stack: src: the path of a directory begins with / or ./: did you mean ./src?";
        assert_eq!(wrong("wrapfs / src"), directory);
        let object = "part 1 of the stack: upper.so: a layer in a file is named by a path that begins with / or ./: ";
        assert_eq!(wrong("upper.so,key=1 / /b"), format!("{object}write ./upper.so or /DIR/upper.so"));
        assert!(wrong("wrapfs / lower.so").ends_with("/DIR/lower.so; below it, end the stack with a directory"));
        assert!(wrong("unionfs,dirs=/a / /b").contains("unionfs can only be the last part"));
        assert!(wrong("/a / /b").contains("/a can only be the last part"));
        let object = wrong("wrapfs / /nonexistent/a\\,b.so,key=1 / /b");
        assert!(
            object.starts_with("part 2 of the stack: /nonexistent/a,b.so can't be used as a layer: No such"),
            "{object}"
        );
        assert!(wrong("wrapfs,key=1 / /b").contains("part 1 of the stack: wrapfs: unknown option key: it has none"));
        assert!(wrong("unionfs,dir=/a").contains("unknown option dir: is dirs meant?"));
        assert!(wrong("/a,rw").contains("directory /a: unknown option rw"));
        for empty in ["", " ", "wrapfs /  / /a", ",ro"] {
            assert!(wrong(empty).contains("nothing stands there"), "{empty}");
        }
        assert!(wrong(r"wrapfs / /a\").contains("lone backslash"));
        assert!(wrong(&format!("{}/a", "wrapfs / ".repeat(40))).contains("32 are the most"));
    }

    proptest! {
        #[test]
        fn any_directory_can_be_written(path in proptest::collection::vec(1u8.., 0..30)) {
            let path = [b"/".as_slice(), &path].concat();
            let spec = read(format!("wrapfs / {}", escape(&path)).as_bytes(), &Types).unwrap();
            let BottomSpec::Directory { path: read, .. } = spec.bottom else { panic!() };
            prop_assert_eq!(read.as_os_str().as_bytes(), path);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = read(&bytes, &Types);
        }

        #[test]
        fn no_text_of_stack_letters_panics(text in "(wrapfs|unionfs|,dirs=|,ro| / |/a|[,=:/\\\\\" ]){0,20}") {
            if let Err(wrong) = read(text.as_bytes(), &Types) {
                prop_assert!(!wrong.contains('\n'));
            }
        }
    }
}
