use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Layer, Name, Result, Vnode};
use wrapfs::Settings;
use wrapfs::hooks::{Object, Op, OpKind};

/// Set-user-id and set-group-id.
const SETID: u32 = 0o6000;
const CAPABILITIES: &[u8] = b"security.capability";

/// Which object of an operation is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protected {
    /// The object of the operation, or the object with the given name.
    Named,
    /// The object with the new name of a rename.
    NewName,
    /// The target of a new hard link.
    Target,
}

/// The rules that apply to all users, including root.
#[derive(Debug)]
pub(crate) struct Rules {
    root: Arc<dyn Vnode>,
    /// The protected files: the components of their paths, from the root.
    protected: Vec<Vec<Vec<u8>>>,
    no_setid: bool,
}

impl Rules {
    /// Parses the options `protect` and `nosetid`.
    pub(crate) fn new(lower: &Arc<dyn Layer>, settings: &Settings) -> core::result::Result<Self, String> {
        let paths = settings.bytes("protect").unwrap_or_default().split(|&byte| byte == b':');
        let protected = paths.filter(|path| !path.is_empty()).map(names).collect::<core::result::Result<_, _>>()?;
        let rules = Self { root: lower.root(), protected, no_setid: settings.has("nosetid") };
        // A wrong path protects nothing, so fail the mount.
        for path in &rules.protected {
            rules
                .find(&Cx::internal(0, 0), path)
                .ok()
                .flatten()
                .filter(|file| file.kind() == Kind::Regular)
                .ok_or_else(|| {
                    format!(
                        "protect=/{}: no such regular file; symbolic links are not followed",
                        path.join(&b'/').escape_ascii()
                    )
                })?;
        }
        Ok(rules)
    }

    /// Returns the operations to check; none if there are no rules.
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

    /// Returns the protected object that the operation would change, or `None` if the operation is
    /// permitted.
    pub(crate) fn forbid(&self, cx: &Cx<'_>, op: &Op<'_>) -> Result<Option<Protected>> {
        let server = cx.as_server(0, 0);
        if self.no_setid
            && let Some(object) = makes_setid(&server, op)?
        {
            return Ok(Some(object));
        }
        self.overwrites(&server, op)
    }

    /// Checks whether the operation would write a protected file, or replace the file or a
    /// directory on its path.
    fn overwrites(&self, cx: &Cx<'_>, op: &Op<'_>) -> Result<Option<Protected>> {
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
            return Ok(Some(Protected::Named));
        }
        match op {
            Op::Rename { new_dir, new_name, .. } if self.is_on_path(cx, new_dir, *new_name)? => {
                Ok(Some(Protected::NewName))
            }
            _ => Ok(None),
        }
    }

    /// Whether the object is a protected file, under any of its names.
    fn is_protected(&self, cx: &Cx<'_>, file: &Object<'_>) -> Result<bool> {
        for path in &self.protected {
            if self.find(cx, path)?.is_some_and(|found| found.id() == file.id()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the name is a component of the path of a protected file.
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

    /// Looks up a path. Results are not cached, since the lower tree may change out of band.
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

/// Returns the file that the operation would make a set-id file or one with capabilities, or to
/// which it would give another name if it is one.
fn makes_setid(cx: &Cx<'_>, op: &Op<'_>) -> Result<Option<Protected>> {
    let named = match op {
        Op::Setattr { file, set } => match set.mode.filter(|mode| mode & SETID != 0 && file.kind() == Kind::Regular) {
            Some(mode) => mode & !file.attr(cx)?.mode & SETID != 0,
            None => false,
        },
        Op::Create { mode, .. } | Op::Tmpfile { mode, .. } | Op::Mknod { mode, .. } => mode & SETID != 0,
        Op::Link { target, .. } => return Ok(has_setid(cx, target.lower())?.then_some(Protected::Target)),
        Op::Rename { dir, name, new_dir, new_name, flags } => {
            if !has_setid_named(cx, dir, *name)? {
                let is_other = flags.exchange && has_setid_named(cx, new_dir, *new_name)?;
                return Ok(is_other.then_some(Protected::NewName));
            }
            true
        }
        Op::Setxattr { name, .. } => *name == CAPABILITIES,
        _ => false,
    };
    Ok(named.then_some(Protected::Named))
}

/// Whether the object with this name is a file with set-id bits or capabilities.
fn has_setid_named(cx: &Cx<'_>, dir: &Object<'_>, name: Name<'_>) -> Result<bool> {
    match dir.lower().lookup(cx, name)? {
        Some(entry) => has_setid(cx, &*entry.vnode),
        None => Ok(false),
    }
}

fn has_setid(cx: &Cx<'_>, file: &dyn Vnode) -> Result<bool> {
    Ok(file.kind() == Kind::Regular && (file.getattr(cx)?.mode & SETID != 0 || has_capabilities(cx, file)?))
}

fn has_capabilities(cx: &Cx<'_>, file: &dyn Vnode) -> Result<bool> {
    match file.getxattr(cx, CAPABILITIES, &mut []) {
        Ok(len) => Ok(len > 0),
        Err(Errno::RANGE) => Ok(true),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Splits a path into its components.
fn names(path: &[u8]) -> core::result::Result<Vec<Vec<u8>>, String> {
    let names: Vec<Vec<u8>> =
        path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect();
    if names.is_empty() || names.iter().any(|name| Name::new(name).is_err()) {
        return Err(format!("protect={}: not a valid path of a file", path.escape_ascii()));
    }
    Ok(names)
}
