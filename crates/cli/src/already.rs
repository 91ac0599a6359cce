//! Is the same file system mounted at the mount point already?
//!
//! `mount -a` skips the lines of fstab that are mounted: those whose source and mount point it finds in /proc/self/mountinfo. The
//! source `none` is shown there as the type, so a union of that source would be mounted again at each `mount -a`.

use crate::exit::Failure;
use crate::mountinfo;
use crate::place::Place;
use crate::stats::{self, Question};
use serde_json::Value;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Refuses these layers (names and options) over `bottom` on these directories (paths and modes), if they are what is mounted at
/// the mount point now. Other options make no difference, as with other file systems.
///
/// # Errors
/// Names the mount point and what to do about it.
pub fn check(
    point: &Place,
    layers: &[(&str, String)],
    bottom: &str,
    directories: &[(&Path, &str)],
) -> Result<(), Failure> {
    // No other file system is asked: it might hang.
    let mounts = mountinfo::read();
    let top = mountinfo::mount_of(&mounts, point.fd());
    if !top.is_some_and(|mount| mount.point() == point.real && mount.kind().starts_with(b"fuse.")) {
        return Ok(());
    }
    // One that does not answer is no reason to refuse.
    let Some(mounted) = stats::ask(&point.real, Question::Stack).ok().and_then(|json| Mounted::read(&json)) else {
        return Ok(());
    };
    if !mounted.is(layers, bottom, directories, &point.real) {
        return Ok(());
    }
    let dir = point.given.display();
    Err(Failure::mount(format!(
        "{dir}: already mounted: a {bottom} of the same directories is there; unmount it first"
    )))
}

/// What is mounted.
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    pid: u64,
    /// Names and options.
    layers: Vec<(String, String)>,
    bottom: String,
    directories: Vec<Directory>,
}

#[derive(Debug, PartialEq, Eq)]
struct Directory {
    path: String,
    mode: String,
    fd: Option<u64>,
}

impl Mounted {
    /// Reads what the server says of itself.
    fn read(json: &str) -> Option<Self> {
        let stack: Value = serde_json::from_str(json).ok()?;
        let text = |of: &Value, name: &str| of.get(name)?.as_str().map(str::to_owned);
        let (last, above) = stack.get("layers")?.as_array()?.split_last()?;
        let directory = |dir: &Value| {
            let fd = dir.get("fd").and_then(Value::as_u64);
            Some(Directory { path: text(dir, "path")?, mode: text(dir, "mode")?, fd })
        };
        Some(Self {
            pid: stack.get("pid")?.as_u64()?,
            layers: above
                .iter()
                .map(|layer| Some((text(layer, "name")?, text(layer, "options")?)))
                .collect::<Option<_>>()?,
            bottom: text(last, "name")?,
            directories: last.get("directories")?.as_array()?.iter().map(directory).collect::<Option<_>>()?,
        })
    }

    fn is(&self, layers: &[(&str, String)], bottom: &str, directories: &[(&Path, &str)], point: &Path) -> bool {
        let same = |(mounted, (path, mode)): (&Directory, &(&Path, &str))| {
            mounted.mode == *mode && mounted.path == path.to_string_lossy() && self.is_there(mounted, path, point)
        };
        self.bottom == bottom
            && self
                .layers
                .iter()
                .map(|(name, options)| (name.as_str(), options))
                .eq(layers.iter().map(|(n, o)| (*n, o)))
            && self.directories.len() == directories.len()
            && self.directories.iter().zip(directories).all(same)
    }

    /// Is what is at the path now the directory that the server has? Where the mount itself covers the path, or the server's
    /// directory can't be seen, the path has to do.
    fn is_there(&self, mounted: &Directory, path: &Path, point: &Path) -> bool {
        if path.starts_with(point) {
            return true;
        }
        let Some(fd) = mounted.fd else { return true };
        let servers = PathBuf::from(format!("/proc/{}/fd/{fd}", self.pid));
        match (servers.metadata(), path.metadata()) {
            (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"pid":1,"given":[],"layers":[{"name":"rot13","options":""},{"name":"unionfs","options":"dirs=a",
        "directories":[{"path":"/no/a","mode":"rw","fd":7},{"path":"/no/b","mode":"ro","fd":null}]}]}"#;

    #[test]
    fn the_same_is_told_from_others() {
        let mounted = Mounted::read(JSON).unwrap();
        let (a, b) = ((Path::new("/no/a"), "rw"), (Path::new("/no/b"), "ro"));
        let rot13 = [("rot13", String::new())];
        let is = |layers: &[(&str, String)], bottom, directories: &[_]| {
            mounted.is(layers, bottom, directories, Path::new("/mnt"))
        };
        assert!(is(&rot13, "unionfs", &[a, b]));
        assert!(!is(&[], "unionfs", &[a, b]) && !is(&[("rot13", "key".into())], "unionfs", &[a, b]));
        assert!(!is(&rot13, "lbfs", &[a, b]));
        assert!(!is(&rot13, "unionfs", &[b, a]) && !is(&rot13, "unionfs", &[a]) && !is(&rot13, "unionfs", &[a, b, b]));
        assert!(!is(&rot13, "unionfs", &[(a.0, "ro"), b]));
    }

    #[test]
    fn what_can_not_be_read_is_nothing() {
        for bad in ["", "{}", r#"{"pid":1,"layers":[]}"#, r#"{"pid":1,"layers":[{"name":"directory"}]}"#] {
            assert_eq!(Mounted::read(bad), None, "{bad}");
        }
    }
}
