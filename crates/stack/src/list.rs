//! Lists of branches: `BRANCH[=MODE]:BRANCH[=MODE]:...`. A branch is a path, or a stack in
//! brackets.

use crate::catalog::Catalog;
use crate::{BranchMode, Branches, Given, Text, TextError, name_and_value};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// A branch as written: its path or stack, and its mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrittenBranch {
    pub(crate) source: Source,
    pub(crate) mode: Option<BranchMode>,
}

/// The path or stack of a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Path(Text),
    /// A stack, without the brackets.
    Stack(Text),
}

/// Parses branches separated by colons.
///
/// # Errors
/// Names the problem.
pub(crate) fn parse(text: &Text, branches: &Branches) -> Result<Vec<WrittenBranch>, String> {
    let (mut all, mut begin) = (Vec::new(), 0);
    loop {
        let end = text.end_of_branches(begin, |at| text.is(at, b':')).map_err(|wrong| in_list(text, wrong))?;
        all.push(branch(&text.part(begin..end), branches)?);
        if end >= text.len() {
            return Ok(all);
        }
        begin = end + 1;
    }
}

fn in_list(text: &Text, wrong: TextError) -> String {
    format!("the list {wrong}: {}", text.show())
}

fn branch(text: &Text, branches: &Branches) -> Result<WrittenBranch, String> {
    let (noun, several) = branches.noun;
    if text.is(0, b'[') {
        let end = text.close(0).map_err(|wrong| in_list(text, wrong))? + 1;
        let (stack, after) = (text.part(0..end), text.part(end..text.len()));
        let mode = match after.split_first(b'=') {
            _ if after.is_empty() => None,
            Some((between, mode)) if between.is_empty() && !branches.modes.is_empty() => {
                Some(mode_of(&mode, &stack, branches)?)
            }
            _ => {
                let next = if branches.modes.is_empty() { "':'" } else { "=MODE or ':'" };
                return Err(format!(
                    "{:?} after the ] of {noun} {}: expected {next} (write a path that begins with a bracket as ./[ or \\[)",
                    after.show(),
                    stack.show()
                ));
            }
        };
        let stack =
            stack.without_brackets().map_err(|wrong| format!("the stack of a {noun} {wrong}: {}", stack.show()))?;
        return Ok(WrittenBranch { source: Source::Stack(stack), mode });
    }
    let (path, mode) = match text.split_last(b'=').filter(|_| !branches.modes.is_empty()) {
        None => (text.clone(), None),
        Some((path, mode)) => {
            let mode = mode_of(&mode, &path, branches)?;
            (path, Some(mode))
        }
    };
    if path.is_empty() {
        return Err(format!(
            "an empty path in the list of {several}; separate them by a single ':' (write \\: for a ':' in a path)"
        ));
    }
    Ok(WrittenBranch { source: Source::Path(path), mode })
}

fn mode_of(mode: &Text, branch: &Text, branches: &Branches) -> Result<BranchMode, String> {
    branches.mode(&mode.bytes()).ok_or_else(|| {
        format!(
            "unknown mode {:?} of {} {}: use {} (write \\= for a '=' in a path)",
            mode.show(),
            branches.noun.0,
            branch.show(),
            alternatives(branches)
        )
    })
}

/// Formats the modes: `rw, ro or nfsro`.
fn alternatives(branches: &Branches) -> String {
    let names: Vec<_> = branches.modes.iter().map(|mode| mode.name).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => names.concat(),
    }
}

/// Parses all branches of the given lists, and those in the files that they name.
pub(crate) fn of_given(
    given: &Given,
    branches: &Branches,
    catalog: &dyn Catalog,
) -> Result<Vec<WrittenBranch>, String> {
    let mut all = Vec::new();
    for list in given.lists(branches) {
        for branch in parse(list, branches)? {
            match &branch.source {
                Source::Path(path) if path.is(0, b'@') => {
                    let path = PathBuf::from(OsString::from_vec(path.part(1..path.len()).bytes()));
                    all.extend(read_file(&path, branch.mode, branches, catalog)?);
                }
                _ => all.push(branch),
            }
        }
    }
    Ok(all)
}

/// Reads the branches that a file lists, one per line. `mode` applies to those without a mode.
/// Empty lines, and those that begin with `#`, are ignored.
fn read_file(
    path: &Path,
    mode: Option<BranchMode>,
    branches: &Branches,
    catalog: &dyn Catalog,
) -> Result<Vec<WrittenBranch>, String> {
    let (shown, several) = (path.display(), branches.noun.1);
    let content = catalog.read_list(path).map_err(|wrong| {
        format!("{shown}: can't read the list of {several}: {wrong} (write ./@ for a path that begins with @)")
    })?;
    let mut all = Vec::new();
    for (line, number) in content.split(|&byte| byte == b'\n').zip(1..) {
        let wrong = |wrong: String| format!("{shown}, line {number}: {wrong}");
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let text = Text::read(line).map_err(|error| wrong(format!("it {error}")))?;
        for branch in parse(&text, branches).map_err(wrong)? {
            if matches!(&branch.source, Source::Path(path) if path.is(0, b'@')) {
                return Err(wrong("a list can't name another list".to_owned()));
            }
            all.push(WrittenBranch { mode: branch.mode.or(mode), ..branch });
        }
    }
    if all.is_empty() { Err(format!("{shown} lists no {several}")) } else { Ok(all) }
}

/// Whether this item, found after a list of branches, is another branch.
pub(crate) fn is_branch(item: &Text, branches: &Branches) -> bool {
    let has_mode = |text: &Text| text.split_last(b'=').is_some_and(|(_, mode)| branches.mode(&mode.bytes()).is_some());
    item.is(0, b'[')
        || item.split(b':').iter().any(has_mode)
        || item.bytes().first().is_some_and(|&b| b == b'/' || b == b'.')
}

impl Text {
    /// Splits a list of options at commas, except for commas within the brackets of a branch.
    ///
    /// # Errors
    /// A bracket is not closed.
    pub fn split_options(&self, branches: Option<&Branches>) -> Result<Vec<Self>, TextError> {
        let (mut items, mut begin) = (Vec::new(), 0);
        loop {
            let end = self.end_of_option(begin, branches, |at| self.is(at, b','))?;
            items.push(self.part(begin..end));
            if end >= self.len() {
                return Ok(items);
            }
            begin = end + 1;
        }
    }

    /// Returns the end of the option that begins at `begin`: the first byte outside of a branch's
    /// brackets for which `ends` holds.
    pub(crate) fn end_of_option(
        &self,
        begin: usize,
        branches: Option<&Branches>,
        ends: impl Fn(usize) -> bool,
    ) -> Result<usize, TextError> {
        let end = (begin..self.len()).find(|at| ends(*at)).unwrap_or(self.len());
        let Some(branches) = branches else { return Ok(end) };
        let item = self.part(begin..end);
        match name_and_value(&item) {
            (name, Some(_)) if name == branches.option => self.end_of_branches(begin + name.len() + 1, ends),
            // The list of branches continues.
            _ if branches.joined && item.is(0, b'[') => self.end_of_branches(begin, ends),
            _ => Ok(end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{BRANCHES, RO, RW};
    use crate::text::escape;
    use proptest::prelude::*;

    fn read(s: &str) -> Result<Vec<(String, Option<BranchMode>)>, String> {
        let branches = parse(&Text::read(s.as_bytes()).unwrap(), &BRANCHES)?;
        let show = |source: &Source| match source {
            Source::Path(path) => path.show(),
            Source::Stack(stack) => format!("<{}>", stack.show()),
        };
        Ok(branches.iter().map(|branch| (show(&branch.source), branch.mode)).collect())
    }

    #[test]
    fn modes_are_optional() {
        let read = read("/a=rw:/b:rel/c=ro:.=rw").unwrap();
        let want = [("/a", Some(RW)), ("/b", None), ("rel/c", Some(RO)), (".", Some(RW))];
        assert_eq!(read, want.map(|(path, mode)| (path.to_owned(), mode)));
    }

    #[test]
    fn separators_can_be_escaped_in_paths() {
        let read = read(r"/a\:b=rw:/c\=ro:/d\=rw=ro:/e=f\=ro=ro").unwrap();
        let want = [
            ("/a:b", Some(RW)),
            ("/c=ro", None),
            ("/d=rw", Some(RO)),
            // An earlier '=' needs no backslash if a mode follows.
            ("/e=f=ro", Some(RO)),
        ];
        assert_eq!(read, want.map(|(path, mode)| (path.to_owned(), mode)));
    }

    #[test]
    fn errors_name_the_branch() {
        assert!(read("/a=rx").unwrap_err().contains("\"rx\" of branch /a"));
        assert!(read("/a=").unwrap_err().contains("\"\" of branch /a"));
        for empty in ["", "/a::/b", ":/a", "/a:", "=rw"] {
            assert!(read(empty).unwrap_err().starts_with("an empty path"), "{empty}");
        }
    }

    #[test]
    fn stacks_are_written_in_brackets() {
        let read = read("[xor,key=7/[/a:b]]=rw:/c:[/d]:[x=[1,2]:3/[/e]]=ro").unwrap();
        let want = [("<xor,key=7/[/a:b]>", Some(RW)), ("/c", None), ("</d>", None), ("<x=[1,2]:3/[/e]>", Some(RO))];
        assert_eq!(read, want.map(|(path, mode)| (path.to_owned(), mode)));
    }

    #[test]
    fn other_brackets_are_part_of_the_path() {
        let read = read(r"/a[1]=rw:/b]:./[c]=ro:\[d]=ro:/e[").unwrap();
        let want = [("/a[1]", Some(RW)), ("/b]", None), ("./[c]", Some(RO)), ("[d]", Some(RO)), ("/e[", None)];
        assert_eq!(read, want.map(|(path, mode)| (path.to_owned(), mode)));
    }

    #[test]
    fn unbalanced_brackets_are_reported() {
        assert_eq!(
            read("[/a=rw:/b").unwrap_err(),
            r"the list has a [ that is not closed (write \[ for a literal one): [/a=rw:/b"
        );
        for after in ["x", "x=rw", "/b=rw"] {
            let wrong = read(&format!("[/a]{after}")).unwrap_err();
            assert!(
                wrong.starts_with(&format!("{after:?} after the ] of branch [/a]: expected =MODE or ':'")),
                "{wrong}"
            );
        }
        assert!(read("[/a]=rx").unwrap_err().contains("\"rx\" of branch [/a]"));
        assert!(read(r#"["/a\\"]"#).unwrap_err().contains("lone backslash"));
    }

    #[test]
    fn options_are_split_outside_of_brackets() {
        let split = |s: &str, branches| {
            let items = Text::read(s.as_bytes()).unwrap().split_options(branches)?;
            Ok(items.iter().map(Text::show).collect::<Vec<_>>())
        };
        let all = "delete=[,dirs=[xor,key=7/[/a]]=rw:/b,[x,y/[/c]]=ro,fsname=[x,ro";
        let want = ["delete=[", "dirs=[xor,key=7/[/a]]=rw:/b", "[x,y/[/c]]=ro", "fsname=[x", "ro"];
        assert_eq!(split(all, Some(&BRANCHES)), Ok(want.map(str::to_owned).to_vec()));
        assert_eq!(split("dirs=[a,b],c", None).map(|items| items.len()), Ok(3));
        assert_eq!(split("", Some(&BRANCHES)), Ok(vec![String::new()]));
        assert_eq!(split("ro,dirs=[a,b", Some(&BRANCHES)), Err(TextError::OpenBracket));
    }

    #[test]
    fn branches_after_a_comma() {
        let item = |s: &str| is_branch(&Text::read(s.as_bytes()).unwrap(), &BRANCHES);
        assert!(
            item("/a=ro")
                && item("/a")
                && item("./a")
                && item("../a")
                && item("a=ro")
                && item("a=rw:b")
                && item("[x,y]")
        );
        assert!(!item("ro") && !item("delete=all") && !item("a") && !item(""));
    }

    proptest! {
        #[test]
        fn any_path_can_be_written(
            paths in proptest::collection::vec((proptest::collection::vec(1u8.., 1..20), 0usize..3), 1..6),
        ) {
            let written = |path: &[u8], mode: usize| match BRANCHES.modes.get(mode) {
                Some(mode) => format!("{}={}", escape(path), mode.name),
                None => escape(path),
            };
            let line: Vec<_> = paths.iter().map(|(path, mode)| written(path, *mode)).collect();
            let read = parse(&Text::read(line.join(":").as_bytes()).unwrap(), &BRANCHES).unwrap();
            prop_assert_eq!(read.len(), paths.len());
            for (branch, (path, mode)) in read.iter().zip(&paths) {
                prop_assert_eq!(&branch.source, &Source::Path(Text::read(escape(path).as_bytes()).unwrap()));
                prop_assert_eq!(branch.mode, BRANCHES.modes.get(*mode).copied());
            }
        }
    }
}
