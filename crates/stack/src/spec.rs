//! The text form of a stack, top first: `rot13 / xor,key=7 / /srv/data`.
//!
//! ```text
//! stack     = layer " / " stack | layer "/" group | bottom
//! layer     = ( NAME | PLUGIN ) { "," option }         a PLUGIN is a PATH that ends with ".so"
//! bottom    = directory | NAME { "," option } | group  the NAME of a layer over branches
//! group     = "[" stack "]"
//! directory = PATH [ ",ro" ]                           a PATH begins with "/" or "."
//! option    = NAME [ "=" VALUE ]
//! branches  = branch { ":" branch }                    the VALUE of the option that lists them
//! branch    = ( PATH | group ) [ "=" MODE ]
//! ```
//!
//! Separators count only outside of double quotes and without a backslash ([`Text`]). They are a
//! `/` with a blank on both sides, a comma, and the first `=`. A `[` opens a group at the start of
//! a part or a branch, and after the `/` behind a layer if its `]` ends the stack. Anywhere else it
//! is an ordinary byte. Inside a group all brackets count. A group whose whole content is in double
//! quotes is parsed again, like the value of `stack=`.

use crate::catalog::Catalog;
use crate::list::{self, Source};
use crate::suggest::nearest;
use crate::{BranchMode, Given, LayerType, OptionSpec, Text, TextError, escape};
use core::fmt;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// Maximum number of layers and directories of a stack, including those in brackets.
pub const MAX_PARTS: usize = 32;

/// A parsed stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackSpec {
    /// The layers, top first.
    pub layers: Vec<LayerSpec>,
    /// What the layers are stacked on.
    pub bottom: BottomSpec,
}

/// A layer with its options.
#[derive(Clone)]
pub struct LayerSpec {
    /// The type of the layer.
    pub kind: &'static LayerType,
    /// Its options.
    pub given: Given,
    /// Its position, for messages.
    pub at: At,
}

/// The bottom of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BottomSpec {
    /// A directory of the host file system.
    Directory {
        /// The path as written.
        path: PathBuf,
        /// Whether the directory must never be changed.
        read_only: bool,
    },
    /// A layer over branches.
    Branches(LayerSpec, Vec<BranchSpec>),
}

/// A branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchSpec {
    /// The directory or stack.
    pub lower: LowerSpec,
    /// Its mode, if given.
    pub mode: Option<BranchMode>,
}

/// The directory or stack of a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LowerSpec {
    /// A directory, possibly relative to the working directory of the mounting user.
    Directory(PathBuf),
    /// A nested stack.
    Stack(Box<StackSpec>),
}

/// The position of a part, displayed as `part 2 of the stack in branch 1`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct At {
    /// Its number in its stack, counted from 1 at the top.
    pub part: usize,
    /// The branches that contain it, innermost first: the noun and the number, counted from 1.
    pub within: Vec<(&'static str, usize)>,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "part {} of the stack", self.part)?;
        for (i, (noun, number)) in self.within.iter().enumerate() {
            let of = if i == 0 { "" } else { " of the stack" };
            write!(f, "{of} in {noun} {number}")?;
        }
        Ok(())
    }
}

/// Compares type and options, not the position. Branches are compared separately.
impl PartialEq for LayerSpec {
    fn eq(&self, other: &Self) -> bool {
        let settings = |layer: &Self| layer.given.settings(layer.kind.branches());
        self.kind.name == other.kind.name && settings(self) == settings(other)
    }
}

impl Eq for LayerSpec {}

impl fmt::Debug for LayerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Shows the name and the options without the list of branches.
impl fmt::Display for LayerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name)?;
        let list = self.kind.branches().map(|branches| branches.option);
        for (name, value) in self.given.iter().filter(|(name, _)| list != Some(*name)) {
            match value {
                None => write!(f, ",{name}")?,
                Some(value) => write!(f, ",{name}={}", escape(&value.bytes()))?,
            }
        }
        Ok(())
    }
}

/// The syntax that [`read`] parses.
impl fmt::Display for StackSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.layers.iter().try_for_each(|layer| write!(f, "{layer} / "))?;
        match &self.bottom {
            BottomSpec::Directory { path, read_only } => {
                write!(f, "{}{}", escape(path.as_os_str().as_bytes()), if *read_only { ",ro" } else { "" })
            }
            BottomSpec::Branches(layer, branches) => {
                let option = layer.kind.branches().map_or("", |branches| branches.option);
                write!(f, "{layer},{option}=")?;
                for (i, branch) in branches.iter().enumerate() {
                    write!(f, "{}{branch}", if i == 0 { "" } else { ":" })?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for LowerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => f.write_str(&escape(path.as_os_str().as_bytes())),
            Self::Stack(stack) => write!(f, "[{stack}]"),
        }
    }
}

impl fmt::Display for BranchSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.lower)?;
        self.mode.map_or(Ok(()), |mode| write!(f, "={}", mode.name))
    }
}

impl BranchSpec {
    /// Replaces the path of each directory.
    ///
    /// # Errors
    /// The first error of `replace`.
    pub fn map_directories<E>(&mut self, replace: &mut dyn FnMut(&Path) -> Result<PathBuf, E>) -> Result<(), E> {
        match &mut self.lower {
            LowerSpec::Directory(path) => *path = replace(path)?,
            LowerSpec::Stack(stack) => match &mut stack.bottom {
                BottomSpec::Directory { path, .. } => *path = replace(path)?,
                BottomSpec::Branches(_, branches) => {
                    branches.iter_mut().try_for_each(|branch| branch.map_directories(replace))?;
                }
            },
        }
        Ok(())
    }
}

/// The option of a directory.
const DIRECTORY: &[OptionSpec] = &[OptionSpec { name: "ro", value: None, help: "Never changed through the stack." }];

/// Parses a stack.
///
/// # Errors
/// Names the part, the problem and what to do about it.
pub fn read(bytes: &[u8], catalog: &dyn Catalog) -> Result<StackSpec, String> {
    let wrong = |wrong: TextError| format!("the stack {wrong}: {}", String::from_utf8_lossy(bytes));
    let text = Text::read(bytes).map_err(wrong)?;
    Reader { catalog, is_text: true, parts: 0, within: Vec::new() }.stack(&text)
}

/// Returns a layer over the branches that its options list.
///
/// # Errors
/// Names the option and the problem.
pub fn over_branches(kind: &'static LayerType, given: Given, catalog: &dyn Catalog) -> Result<BottomSpec, String> {
    // The layer itself counts as a part.
    let mut reader = Reader { catalog, is_text: false, parts: 1, within: Vec::new() };
    reader.branches(LayerSpec { kind, given, at: At { part: 1, within: Vec::new() } })
}

/// Parser of a stack and its nested stacks.
struct Reader<'a> {
    catalog: &'a dyn Catalog,
    /// Whether the outermost stack is in text form. Otherwise it is a single layer, whose options
    /// are those of the mount.
    is_text: bool,
    /// Number of parts parsed so far.
    parts: usize,
    /// The branches being parsed, outermost first.
    within: Vec<(&'static str, usize)>,
}

/// A part of a stack: its items, and what may follow it.
struct Part {
    items: Vec<Text>,
    is_last: bool,
}

impl Reader<'_> {
    fn stack(&mut self, text: &Text) -> Result<StackSpec, String> {
        let mut layers = Vec::new();
        let (mut rest, mut groups) = (text.trim(), 0);
        loop {
            self.parts += 1;
            if self.parts > MAX_PARTS || groups > MAX_PARTS {
                return Err(format!("the stack has more than {MAX_PARTS} parts"));
            }
            let at = self.at(layers.len() + 1);
            let wrong = |wrong: String| format!("{at}: {wrong}");
            let begun = rest.trim();
            if begun.is(0, b'[') {
                groups += 1;
                self.parts -= 1;
                rest = group(&begun).map_err(wrong)?;
                continue;
            }
            let (part, after) = self.part(&rest).map_err(wrong)?;
            if part.is_last {
                let bottom = self.bottom(&part.items, at)?;
                return Ok(StackSpec { layers, bottom });
            }
            layers.push(self.layer(&part.items, at.clone()).map_err(wrong)?);
            rest = after;
        }
    }

    fn at(&self, part: usize) -> At {
        At { part, within: self.within.iter().rev().copied().collect() }
    }

    /// Splits off the first part.
    fn part(&self, rest: &Text) -> Result<(Part, Text), String> {
        let not_closed = |wrong: TextError| format!("it {wrong}: {}", rest.show());
        let (mut items, mut begin) = (Vec::new(), 0);
        let mut kind = None;
        loop {
            let ends = |at: usize| rest.is(at, b',') || rest.is_spaced(at, b'/') || self.precedes_group(rest, at, kind);
            let branches = kind.and_then(LayerType::branches);
            let end = rest.end_of_option(begin, branches, ends).map_err(not_closed)?;
            let item = rest.part(begin..end);
            // Blanks beside a part separator belong to neither part.
            let item = if items.is_empty() { item.trim_start() } else { item };
            items.push(if rest.is(end, b',') { item } else { item.trim_end() });
            if items.len() == 1 {
                kind = items.first().and_then(|name| self.catalog.find(&name.show()));
            }
            if end >= rest.len() {
                return Ok((Part { items, is_last: true }, Text::default()));
            }
            if !rest.is(end, b',') {
                return Ok((Part { items, is_last: false }, rest.part(end + 1..rest.len())));
            }
            begin = end + 1;
        }
    }

    /// Whether a `/` separates a layer from a group that ends the stack. It is part of the path if
    /// the part is a path, and part of the value if no layer can lie below this one.
    fn precedes_group(&self, rest: &Text, at: usize, kind: Option<&LayerType>) -> bool {
        if !rest.is(at, b'/') || !rest.is(at + 1, b'[') || rest.close(at + 1) != Ok(rest.len().saturating_sub(1)) {
            return false;
        }
        let name = rest.part(0..at).trim_start();
        if is_path(&name) {
            return is_plugin(&name);
        }
        kind.is_none_or(|kind| kind.branches().is_none())
    }

    fn layer(&self, items: &[Text], at: At) -> Result<LayerSpec, String> {
        let (first, name, options) = name_and_options(items)?;
        let found = self.catalog.find(&name);
        if found.is_some_and(|kind| kind.branches().is_some()) || (is_path(first) && !is_plugin(first)) {
            return Err(format!("{name} can only be the last part: nothing can lie below it"));
        }
        let kind = match found {
            Some(kind) => kind,
            None if is_plugin(first) => self.catalog.load(&path_of(first))?,
            None => return Err(unknown(&name, self.catalog)),
        };
        let given = Given::read(options, kind).map_err(|wrong| format!("{name}: {wrong}"))?;
        Ok(LayerSpec { kind, given, at })
    }

    /// Parses the bottom of a stack. Errors include the position.
    fn bottom(&mut self, items: &[Text], at: At) -> Result<BottomSpec, String> {
        let placed = |wrong: String| format!("{at}: {wrong}");
        let (first, name, options) = name_and_options(items).map_err(placed)?;
        if is_path(first) {
            let given = Given::declared(options, DIRECTORY, None)
                .map_err(|wrong| placed(format!("directory {name}: {wrong} (write \\, for a comma in a path)")))?;
            return Ok(BottomSpec::Directory { path: path_of(first), read_only: given.has("ro") });
        }
        match self.catalog.find(&name) {
            Some(kind) if kind.branches().is_some() => {
                let given = Given::read(options, kind).map_err(|wrong| placed(format!("{name}: {wrong}")))?;
                self.branches(LayerSpec { kind, given, at })
            }
            Some(_) => Err(placed(format!(
                "{name} needs a layer or directory below it: end the stack with a directory, as in `{name} / /srv/data`"
            ))),
            None => Err(placed(match self.catalog.suggest_path(&name) {
                _ if name.ends_with(".so") => {
                    format!("{}; below it, end the stack with a directory", unknown(&name, self.catalog))
                }
                Some(meant) => format!("{name}: the path of a directory must begin with / or ./: {meant}"),
                None => format!("{}; the path of a directory must begin with / or ./", unknown(&name, self.catalog)),
            })),
        }
    }

    fn branches(&mut self, layer: LayerSpec) -> Result<BottomSpec, String> {
        let name = layer.kind.name;
        let Some(declared) = layer.kind.branches() else { return Err(format!("{name} has no branches")) };
        let wrong = |wrong: String| match self.is_text || !self.within.is_empty() {
            true => format!("{}: {name}: option {}=: {wrong}", layer.at, declared.option),
            false => format!("option {}=: {wrong}", declared.option),
        };
        let written = list::of_given(&layer.given, declared, self.catalog).map_err(wrong)?;
        let mut branches = Vec::with_capacity(written.len());
        for (branch, number) in written.into_iter().zip(1..) {
            let lower = match branch.source {
                Source::Path(path) => LowerSpec::Directory(OsString::from_vec(path.bytes()).into()),
                Source::Stack(stack) => {
                    self.within.push((declared.noun.0, number));
                    let stack = self.stack(&stack)?;
                    self.within.pop();
                    LowerSpec::Stack(Box::new(stack))
                }
            };
            branches.push(BranchSpec { lower, mode: branch.mode });
        }
        Ok(BottomSpec::Branches(layer, branches))
    }
}

/// Returns the content of the group that ends a stack.
fn group(text: &Text) -> Result<Text, String> {
    let close = text.close(0).map_err(|wrong| format!("it {wrong}: {}", text.show()))?;
    if close + 1 < text.len() {
        let after = text.part(close + 1..text.len());
        return Err(format!("{:?} after the ]: nothing may follow the brackets that end a stack", after.show()));
    }
    text.without_brackets().map_err(|wrong| format!("it {wrong}: {}", text.show()))
}

/// Returns the path at the start of a part.
fn path_of(first: &Text) -> PathBuf {
    OsString::from_vec(first.bytes()).into()
}

/// Whether this is a path rather than a name.
fn is_path(first: &Text) -> bool {
    first.bytes().first().is_some_and(|&b| b == b'/' || b == b'.')
}

/// Whether this is the path of a plugin.
fn is_plugin(first: &Text) -> bool {
    is_path(first) && first.split(b',').first().is_some_and(|path| path.bytes().ends_with(b".so"))
}

fn name_and_options(items: &[Text]) -> Result<(&Text, String, &[Text]), String> {
    match items.split_first() {
        Some((first, options)) if !first.is_empty() => Ok((first, first.show(), options)),
        _ => Err("an empty part; write a stack as `top / below / DIRECTORY`".to_owned()),
    }
}

fn unknown(name: &str, catalog: &dyn Catalog) -> String {
    if name.ends_with(".so") {
        let remedy = catalog.suggest_path(name).unwrap_or_else(|| format!("write ./{name} or /DIR/{name}"));
        return format!("{name}: the path of a layer file must begin with / or ./: {remedy}");
    }
    let remedy = match nearest(name, catalog.names()) {
        Some(near) => format!("did you mean {near}?"),
        None if name.contains('/') => "separate layers by a / with a blank on both sides".to_owned(),
        None => "`strata layers` lists all layers".to_owned(),
    };
    format!("no such layer {name:?}: {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{RO, RW, Types};
    use proptest::prelude::*;

    fn names(stack: &str) -> Vec<String> {
        let spec = read(stack.as_bytes(), &Types).unwrap_or_else(|wrong| panic!("{stack}: {wrong}"));
        let bottom = match spec.bottom {
            BottomSpec::Directory { path, read_only } => {
                format!("{}{}", path.display(), if read_only { ",ro" } else { "" })
            }
            BottomSpec::Branches(layer, _) => format!("{},{}", layer.kind.name, layer.given.show()),
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
    fn errors_name_the_part_and_the_remedy() {
        assert_eq!(wrong("wrapsf / /a"), "part 1 of the stack: no such layer \"wrapsf\": did you mean wrapfs?");
        assert!(
            wrong("wrapfs / bogus / /a").starts_with("part 2 of the stack: no such layer \"bogus\": `strata layers`")
        );
        assert!(wrong("wrapfs/wrapfs / /a").contains("blank on both sides"));
        assert!(wrong("wrapfs / wrapfs").contains("part 2 of the stack: wrapfs needs a layer or directory below it"));
        assert!(wrong("wrapfs / data").contains("must begin with / or ./"));
        let directory =
            "part 2 of the stack: src: the path of a directory must begin with / or ./: did you mean ./src?";
        assert_eq!(wrong("wrapfs / src"), directory);
        let object = "part 1 of the stack: upper.so: the path of a layer file must begin with / or ./: ";
        assert_eq!(wrong("upper.so,key=1 / /b"), format!("{object}write ./upper.so or /DIR/upper.so"));
        assert!(wrong("wrapfs / lower.so").ends_with("/DIR/lower.so; below it, end the stack with a directory"));
        assert!(wrong("unionfs,dirs=/a / /b").contains("unionfs can only be the last part"));
        assert!(wrong("/a / /b").contains("/a can only be the last part"));
        let object = wrong("wrapfs / /nonexistent/a\\,b.so,key=1 / /b");
        assert!(
            object.starts_with("part 2 of the stack: /nonexistent/a,b.so: cannot load as a layer: No such"),
            "{object}"
        );
        assert!(
            wrong("wrapfs,key=1 / /b")
                .contains("part 1 of the stack: wrapfs: unknown option key: there are no options")
        );
        assert!(wrong("unionfs,dir=/a").contains("unknown option dir: did you mean dirs?"));
        assert!(wrong("/a,rw").contains("directory /a: unknown option rw"));
        for empty in ["", " ", "wrapfs /  / /a", ",ro"] {
            assert!(wrong(empty).contains("an empty part"), "{empty}");
        }
        assert!(wrong(r"wrapfs / /a\").contains("lone backslash"));
        assert!(wrong(&format!("{}/a", "wrapfs / ".repeat(40))).contains("more than 32 parts"));
    }

    fn shown(stack: &str) -> String {
        read(stack.as_bytes(), &Types).unwrap_or_else(|wrong| panic!("{stack}: {wrong}")).to_string()
    }

    #[test]
    fn branches_are_stacks() {
        let want = r"unionfs,dirs=[wrapfs / /upper]=rw:[xor,key=7 / unionfs,dirs=/a:/b]=ro:/base=ro";
        for stack in [
            "unionfs,dirs=[wrapfs/[/upper]]=rw:[xor,key=7/[unionfs,dirs=/a:/b]]=ro:/base=ro",
            "unionfs,dirs=[wrapfs / /upper]=rw:[xor,key=7 / unionfs,dirs=/a:/b]=ro:/base=ro",
            "unionfs,dirs=[wrapfs/[[/upper]]]=rw,[xor,key=7/[unionfs,dirs=/a,dirs=/b]]=ro,/base=ro",
            r#"unionfs,dirs=["wrapfs / /upper"]=rw:["xor,key=7 / unionfs,dirs=/a:/b"]=ro:/base=ro"#,
            r#"[unionfs,dirs=[wrapfs / ["/upper"]]=rw:[xor,key="7"/["unionfs,dirs=/a:/b"]]=ro:/base=ro]"#,
        ] {
            assert_eq!(shown(stack), want, "{stack}");
        }
        assert_eq!(shown("wrapfs/[xor,key=7/[wrapfs/[/a,ro]]]"), "wrapfs / xor,key=7 / wrapfs / /a,ro");
        assert_eq!(shown("xor,key=[/[/a]"), r"xor,key=\[ / /a");
        // Shared objects are named by paths, in which other brackets are ordinary bytes.
        assert_eq!(shown("/x/[y]/good.so/[/a]"), "xor / /a");
        assert_eq!(
            shown("wrapfs/[./good.so,key=/[1]/[unionfs,dirs=[/good.so/[/b]]]]"),
            r"wrapfs / xor,key=/\[1\] / unionfs,dirs=[xor / /b]"
        );
        assert_eq!(shown("/x/good.so/[/a]b"), r"/x/good.so/\[/a\]b");
        // The layers of a group count as parts of the enclosing stack.
        assert!(wrong("wrapfs/[xro / /a]").starts_with("part 2 of the stack: no such layer \"xro\""));
    }

    #[test]
    fn branches_can_be_listed_in_a_file() {
        let want = r"unionfs,dirs=/x=rw:/a=rw:/b:[wrapfs / /c]=ro:/d\:e";
        assert_eq!(shown("unionfs,dirs=/x=rw:@/list"), shown(want));
        let want = r"unionfs,dirs=/a=rw:/b=ro:[wrapfs / /c]=ro:/d\:e=ro";
        assert_eq!(shown("unionfs,dirs=@/list=ro"), shown(want));
        assert!(wrong("unionfs,dirs=@/none").contains("/none: can't read the list of branches: No such file"));
        assert!(wrong("unionfs,dirs=@/nested").contains("/nested, line 2: a list can't name another list"));
        assert!(wrong("unionfs,dirs=@/empty").contains("/empty lists no branches"));
        assert!(wrong("unionfs,dirs=@/wrong").contains("/wrong, line 2: unknown mode"));
        assert_eq!(shown("unionfs,dirs=./@list:/a"), "unionfs,dirs=./@list:/a");
    }

    #[test]
    fn brackets_in_paths_and_values_are_bytes() {
        for (stack, want) in [
            ("/srv/[x]", r"/srv/\[x\]"),
            ("wrapfs / /srv/a[1]/[b],ro", r"wrapfs / /srv/a\[1\]/\[b\],ro"),
            ("xor,key=[ / /a", r"xor,key=\[ / /a"),
            ("xor,key=/a/[b]/c / /d", r"xor,key=/a/\[b\]/c / /d"),
            ("xor,key=a[b,key=]c / /d", r"xor,key=a\[b,key=\]c / /d"),
            ("unionfs,dirs=/a/[b]:/c[", r"unionfs,dirs=/a/\[b\]:/c\["),
            ("unionfs,dirs=/a,delete=/[b]", r"unionfs,delete=/\[b\],dirs=/a"),
            (r"unionfs,dirs=\[a]:./[b]", r"unionfs,dirs=\[a\]:./\[b\]"),
            (r#"unionfs,dirs="[a]":/b"#, r"unionfs,dirs=\[a\]:/b"),
        ] {
            assert_eq!(shown(stack), want);
        }
    }

    #[test]
    fn errors_in_brackets_name_the_branch() {
        let place = "part 2 of the stack in branch 1: ";
        assert!(wrong("unionfs,dirs=[wrapfs/[xro/[/a]]]=rw").starts_with(&format!("{place}no such layer \"xro\"")));
        assert!(wrong("wrapfs / unionfs,dirs=[wrapfs / a]").starts_with(&format!("{place}no such layer \"a\"")));
        let inner = "unionfs,dirs=/a:/b:[unionfs,dirs=/c:[xor,kye=1 / /d]]";
        let place = "part 1 of the stack in branch 2 of the stack in branch 3: ";
        assert_eq!(wrong(inner), format!("{place}xor: unknown option kye: did you mean key?"));
        assert!(
            wrong("wrapfs / unionfs,dirs=/a=rx")
                .starts_with("part 2 of the stack: unionfs: option dirs=: unknown mode")
        );
        let union = Types.find("unionfs").unwrap();
        let alone = |list: &str| {
            let mut given = Given::default();
            given.add("dirs", Text::read(list.as_bytes()).unwrap());
            over_branches(union, given, &Types).unwrap_err()
        };
        assert!(alone("/a=rx").starts_with("option dirs=: unknown mode"));
        assert!(alone("/a:[xro / /b]").starts_with("part 1 of the stack in branch 2: no such layer"));
        assert!(
            alone("/a:[unionfs,dirs=/b=rx]").starts_with("part 1 of the stack in branch 2: unionfs: option dirs=: ")
        );
        assert!(wrong("[/a]x").contains(r#"part 1 of the stack: "x" after the ]"#));
        assert!(wrong("unionfs,dirs=[]").contains("in branch 1: an empty part"));
        assert!(wrong("wrapfs / [/a").contains("part 2 of the stack: it has a [ that is not closed"));
        assert!(wrong("unionfs,dirs=[/a").contains("part 1 of the stack: it has a [ that is not closed"));
        assert!(wrong("unionfs/[/a]").contains("unionfs can only be the last part"));
    }

    #[test]
    fn nested_parts_count() {
        let union = |branches: usize| format!("unionfs,dirs={}", vec!["[wrapfs / /a]"; branches].join(":"));
        assert!(read(union(15).as_bytes(), &Types).is_ok());
        assert!(wrong(&union(16)).contains("more than 32 parts"));
        let deep = format!("{}/a{}", "[".repeat(40), "]".repeat(40));
        assert!(wrong(&deep).contains("more than 32 parts"));
        let deep = format!("{}/a{}", "unionfs,dirs=[".repeat(40), "]".repeat(40));
        assert!(wrong(&deep).contains("more than 32 parts"));
    }

    fn path() -> impl Strategy<Value = PathBuf> {
        proptest::collection::vec(1_u8.., 0..8).prop_map(|bytes| OsString::from_vec([b"/", &bytes[..]].concat()).into())
    }

    fn layer() -> impl Strategy<Value = LayerSpec> {
        let keys = proptest::option::of(proptest::collection::vec(1_u8.., 0..6));
        (any::<bool>(), keys).prop_map(|(null, key)| {
            let kind = Types.find(if null { "wrapfs" } else { "xor" }).unwrap();
            let mut given = Given::default();
            if let Some(key) = key.filter(|_| !null) {
                given.add("key", Text::read(escape(&key).as_bytes()).unwrap());
            }
            LayerSpec { kind, given, at: At::default() }
        })
    }

    fn stack_over(bottom: impl Strategy<Value = BottomSpec>) -> impl Strategy<Value = StackSpec> {
        (proptest::collection::vec(layer(), 0..3), bottom).prop_map(|(layers, bottom)| StackSpec { layers, bottom })
    }

    /// Generates any tree of stacks.
    fn tree() -> impl Strategy<Value = StackSpec> {
        let directory = (path(), any::<bool>()).prop_map(|(path, read_only)| BottomSpec::Directory { path, read_only });
        stack_over(directory).prop_recursive(3, 24, 4, |inner| {
            let stack = inner.prop_map(|stack| LowerSpec::Stack(Box::new(stack)));
            let lower = prop_oneof![path().prop_map(LowerSpec::Directory), stack];
            let modes = proptest::option::of(prop_oneof![Just(RW), Just(RO)]);
            let branch = (lower, modes).prop_map(|(lower, mode)| BranchSpec { lower, mode });
            stack_over(proptest::collection::vec(branch, 1..4).prop_map(|branches| {
                let (kind, given) = (Types.find("unionfs").unwrap(), Given::default());
                BottomSpec::Branches(LayerSpec { kind, given, at: At::default() }, branches)
            }))
        })
    }

    fn parts(stack: &StackSpec) -> usize {
        let below = match &stack.bottom {
            BottomSpec::Directory { .. } => 0,
            BottomSpec::Branches(_, branches) => branches
                .iter()
                .map(|branch| match &branch.lower {
                    LowerSpec::Directory(_) => 0,
                    LowerSpec::Stack(stack) => parts(stack),
                })
                .sum(),
        };
        stack.layers.len() + 1 + below
    }

    /// Formats a stack without blanks, as in fstab.
    fn tight(stack: &StackSpec) -> String {
        let bottom = StackSpec { layers: Vec::new(), bottom: stack.bottom.clone() };
        let mut text = match &stack.bottom {
            BottomSpec::Directory { .. } => bottom.to_string(),
            BottomSpec::Branches(layer, branches) => {
                let branch = |branch: &BranchSpec| match (&branch.lower, branch.mode) {
                    (LowerSpec::Directory(_), _) => branch.to_string(),
                    (LowerSpec::Stack(stack), None) => format!("[{}]", tight(stack)),
                    (LowerSpec::Stack(stack), Some(mode)) => format!("[{}]={}", tight(stack), mode.name),
                };
                format!("{layer},dirs={}", branches.iter().map(branch).collect::<Vec<_>>().join(":"))
            }
        };
        for layer in stack.layers.iter().rev() {
            text = format!("{layer}/[{text}]");
        }
        text
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
        fn any_tree_of_stacks_is_read_back(stack in tree()) {
            for text in [stack.to_string(), tight(&stack)] {
                let read = read(text.as_bytes(), &Types);
                if parts(&stack) > MAX_PARTS {
                    prop_assert!(read.unwrap_err().contains("more than 32 parts"));
                } else {
                    prop_assert_eq!(read.as_ref(), Ok(&stack), "{}", text);
                    // Also within double quotes in brackets.
                    let quoted = format!("unionfs,dirs=[\"{}\"]", text.replace('\\', "\\\\").replace('"', "\\\""));
                    let outer = super::read(quoted.as_bytes(), &Types);
                    if parts(&stack) < MAX_PARTS {
                        let want = format!("unionfs,dirs=[{stack}]");
                        prop_assert_eq!(outer.unwrap().to_string(), want);
                    }
                }
            }
            prop_assert!(!tight(&stack).contains(' '));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = read(&bytes, &Types);
        }

        #[test]
        fn no_text_of_stack_letters_panics(text in "(wrapfs|unionfs|,dirs=|,ro| / |/a|/[\\[]|\\]|[\\[\\],=:/\\\\\" ]){0,24}") {
            if let Err(wrong) = read(text.as_bytes(), &Types) {
                prop_assert!(!wrong.contains('\n'));
            }
        }
    }
}
