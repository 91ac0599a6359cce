use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Layer, Name, Result, Vnode};
use wrapfs::Settings;
use wrapfs::hooks::{Object, Op, OpKind};

/// Set-user-id and set-group-id.
const SETID: u32 = 0o6000;
const CAPABILITIES: &[u8] = b"security.capability";

/// Which of the objects of an operation stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Culprit {
    /// The one that the operation is about, or has the name.
    Named,
    /// What has the new name of a rename.
    NewName,
    /// The file that would get another name.
    Target,
}

/// What nobody may do, root neither.
#[derive(Debug)]
pub(crate) struct Rules {
    root: Arc<dyn Vnode>,
    /// Files that stay as they are: the names of their paths, from the root.
    protected: Vec<Vec<Vec<u8>>>,
    no_setid: bool,
}

impl Rules {
    /// Those of the options `protect` and `nosetid`.
    pub(crate) fn new(lower: &Arc<dyn Layer>, settings: &Settings) -> core::result::Result<Self, String> {
        let paths = settings.bytes("protect").unwrap_or_default().split(|&byte| byte == b':');
        let protected = paths.filter(|path| !path.is_empty()).map(names).collect::<core::result::Result<_, _>>()?;
        let rules = Self { root: lower.root(), protected, no_setid: settings.has("nosetid") };
        // A path that is wrong protects nothing: whoever mounts has to know.
        for path in &rules.protected {
            rules
                .find(&Cx::internal(0, 0), path)
                .ok()
                .flatten()
                .filter(|file| file.kind() == Kind::Regular)
                .ok_or_else(|| {
                    format!(
                        "protect=/{}: there is no such file (links are not followed)",
                        path.join(&b'/').escape_ascii()
                    )
                })?;
        }
        Ok(rules)
    }

    /// What has to be checked: nothing, without rules.
    pub(crate) fn interest(&self) -> &'static [OpKind] {
        if self.protected.is_empty() && !self.no_setid {
            return &[];
        }
        &[
            OpKind::Setattr,
            OpKind::Open,
            OpKind::Create,
            OpKind::Tmpfile,
            OpKind::Mknod,
            OpKind::Mkdir,
            OpKind::Symlink,
            OpKind::Link,
            OpKind::Unlink,
            OpKind::Rmdir,
            OpKind::Rename,
            OpKind::Setxattr,
        ]
    }

    /// What of an operation's the rules forbid to be changed; `None`: it is allowed.
    pub(crate) fn forbid(&self, cx: &Cx<'_>, op: &Op<'_>) -> Result<Option<Culprit>> {
        let server = cx.as_server(0, 0);
        if self.no_setid && makes_setid(&server, op)? {
            return Ok(Some(if let Op::Link { .. } = op { Culprit::Target } else { Culprit::Named }));
        }
        self.overwrites(&server, op)
    }

    /// Would a protected file be written, or another object be put in its place or in that of a directory on its path?
    fn overwrites(&self, cx: &Cx<'_>, op: &Op<'_>) -> Result<Option<Culprit>> {
        let named = match op {
            Op::Open { file, flags } if flags.writes() || flags.truncates() => self.is_protected(cx, file)?,
            Op::Setattr { file, set } if set.size.is_some() => self.is_protected(cx, file)?,
            Op::Create { dir, name, .. }
            | Op::Mknod { dir, name, .. }
            | Op::Mkdir { dir, name, .. }
            | Op::Symlink { dir, name, .. }
            | Op::Link { dir, name, .. }
            | Op::Unlink { dir, name }
            | Op::Rmdir { dir, name }
            | Op::Rename { dir, name, .. } => self.is_on_path(cx, dir, *name)?,
            _ => false,
        };
        if named {
            return Ok(Some(Culprit::Named));
        }
        match op {
            Op::Rename { new_dir, new_name, .. } if self.is_on_path(cx, new_dir, *new_name)? => {
                Ok(Some(Culprit::NewName))
            }
            _ => Ok(None),
        }
    }

    /// Is that one of the files, by whatever name it was reached?
    fn is_protected(&self, cx: &Cx<'_>, file: &Object<'_>) -> Result<bool> {
        for path in &self.protected {
            if self.find(cx, path)?.is_some_and(|found| found.id() == file.id()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Does the way to one of the files lead through this name?
    fn is_on_path(&self, cx: &Cx<'_>, dir: &Object<'_>, name: Name<'_>) -> Result<bool> {
        for path in &self.protected {
            let places = path.iter().enumerate().filter(|(_, part)| **part == name.as_bytes());
            for (depth, _) in places {
                let above = path.get(..depth).unwrap_or_default();
                if self.find(cx, above)?.is_some_and(|found| found.id() == dir.id()) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// What there is at a path now: the tree below may change behind us.
    fn find(&self, cx: &Cx<'_>, path: &[Vec<u8>]) -> Result<Option<Arc<dyn Vnode>>> {
        let mut at = Arc::clone(&self.root);
        for part in path {
            if at.kind() != Kind::Directory {
                return Ok(None);
            }
            let Some(entry) = at.lookup(cx, Name::new(part)?)? else { return Ok(None) };
            at = entry.vnode;
        }
        Ok(Some(at))
    }
}

/// Would there be a program that runs with the rights of another, or another name for one?
fn makes_setid(cx: &Cx<'_>, op: &Op<'_>) -> Result<bool> {
    Ok(match op {
        Op::Setattr { file, set } => match set.mode.filter(|mode| mode & SETID != 0 && file.kind() == Kind::Regular) {
            Some(mode) => mode & !file.attr(cx)?.mode & SETID != 0,
            None => false,
        },
        Op::Create { mode, .. } | Op::Tmpfile { mode, .. } | Op::Mknod { mode, .. } => mode & SETID != 0,
        Op::Link { target, .. } => {
            target.kind() == Kind::Regular && (target.attr(cx)?.mode & SETID != 0 || has_capabilities(cx, target)?)
        }
        Op::Setxattr { name, .. } => *name == CAPABILITIES,
        _ => false,
    })
}

fn has_capabilities(cx: &Cx<'_>, file: &Object<'_>) -> Result<bool> {
    match file.lower().getxattr(cx, CAPABILITIES, &mut []) {
        Ok(len) => Ok(len > 0),
        Err(Errno::RANGE) => Ok(true),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// The names of a path.
fn names(path: &[u8]) -> core::result::Result<Vec<Vec<u8>>, String> {
    let names: Vec<Vec<u8>> =
        path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect();
    if names.is_empty() || names.iter().any(|name| Name::new(name).is_err()) {
        return Err(format!("protect={}: not the path of a file", path.escape_ascii()));
    }
    Ok(names)
}
