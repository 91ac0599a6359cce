//! Detects that the same stack is already mounted at the mount point.
//!
//! `mount -a` skips a line of fstab if /proc/self/mountinfo lists its source and mount point. For
//! the source `none`, mountinfo shows the type instead. Without this check, every `mount -a` would
//! mount such a line again.

use crate::exit::Failure;
use crate::host_dir::HostDir;
use crate::hung_mounts::{self, Answer, Question};
use crate::mountinfo::{self, Mount};
use crate::report::{Below, Part};
use rustix::io::Errno;
use serde_json::Value;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Fails if the given layers are mounted at the mount point already. Layers over branches are
/// compared by their branches and modes, other layers by their options. `name` is the layer that
/// permits only one mount, for the message.
///
/// # Errors
/// Names the mount point and what to do about it.
pub fn check(point: &HostDir, name: &str, parts: &[Part]) -> Result<(), Failure> {
    let mounts = mountinfo::read();
    let top = mountinfo::mount_of(&mounts, point.fd());
    let is_ours = |mount: &Mount| mount.point() == point.real && mount.is_whole() && mount.kind().starts_with(b"fuse.");
    if !top.is_some_and(is_ours) {
        return Ok(());
    }
    // A server that does not reply is no reason to refuse.
    let mounted = match hung_mounts::ask(core::slice::from_ref(&point.real), Question::Stack).pop() {
        Some(Answer::Given(json)) => String::from_utf8(json).ok().and_then(|json| Mounted::read(&json, &point.real)),
        _ => None,
    };
    if !mounted.is_some_and(|mounted| mounted.is(parts)) {
        return Ok(());
    }
    let dir = point.given.display();
    Err(Failure::mount(format!("{dir}: already mounted: a {name} mount of the same directories; unmount it first")))
}

/// Fails if the mount point is the root of a mount whose server has exited: a mount over it would
/// hide a dead one. The kernel's caches conceal for seconds that the server is gone.
///
/// # Errors
/// Names the mount point and what to do about it.
pub fn check_alive(point: &HostDir) -> Result<(), Failure> {
    let mounts = mountinfo::read();
    let top = mountinfo::mount_of(&mounts, point.fd());
    if !top.is_some_and(|mount| mount.point() == point.real && mount.kind().starts_with(b"fuse")) {
        return Ok(());
    }
    match hung_mounts::ask(core::slice::from_ref(&point.real), Question::Root).pop() {
        Some(Answer::Failed(Errno::NOTCONN | Errno::CONNABORTED)) => Err(point.refuse(Errno::NOTCONN)),
        _ => Ok(()),
    }
}

/// The mounted stack, as its server reports it.
#[derive(Debug)]
struct Mounted {
    pid: u64,
    point: PathBuf,
    layers: Vec<Value>,
}

impl Mounted {
    /// Parses the reply to `server.stack`.
    fn read(json: &str, point: &Path) -> Option<Self> {
        let stack: Value = serde_json::from_str(json).ok()?;
        let layers = stack.get("layers")?.as_array()?.clone();
        Some(Self { pid: stack.get("pid")?.as_u64()?, point: point.to_owned(), layers })
    }

    fn is(&self, parts: &[Part]) -> bool {
        self.is_stack(&self.layers, parts)
    }

    fn is_stack(&self, layers: &[Value], parts: &[Part]) -> bool {
        layers.len() == parts.len() && layers.iter().zip(parts).all(|(layer, part)| self.is_part(layer, part))
    }

    fn is_part(&self, layer: &Value, part: &Part) -> bool {
        let below = layer.get("directories").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let same_below = below.len() == part.below.len()
            && below.iter().zip(&part.below).all(|(mounted, below)| self.is_below(mounted, below));
        let same_options = !part.below.is_empty() || text(layer, "options") == Some(&part.options);
        text(layer, "name") == Some(&part.name) && same_options && same_below
    }

    fn is_below(&self, mounted: &Value, below: &Below) -> bool {
        match below {
            Below::Directory(dir) => {
                text(mounted, "mode") == Some(dir.mode)
                    && text(mounted, "path") == Some(&dir.path.to_string_lossy())
                    && self.is_there(mounted.get("fd").and_then(Value::as_u64), &dir.path)
            }
            Below::Stack(mode, parts) => {
                let layers = mounted.get("layers").and_then(Value::as_array);
                text(mounted, "mode") == Some(mode) && layers.is_some_and(|layers| self.is_stack(layers, parts))
            }
        }
    }

    /// Whether `path` now leads to the directory that the server has open. If the mount itself
    /// covers the path, or the server's directory is inaccessible, equal paths are sufficient.
    fn is_there(&self, fd: Option<u64>, path: &Path) -> bool {
        if path.starts_with(&self.point) {
            return true;
        }
        let Some(fd) = fd else { return true };
        let servers = PathBuf::from(format!("/proc/{}/fd/{fd}", self.pid));
        match (servers.metadata(), path.metadata()) {
            (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
            _ => true,
        }
    }
}

fn text<'a>(of: &'a Value, name: &str) -> Option<&'a str> {
    of.get(name)?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Directory;

    const JSON: &str = r#"{"pid":1,"given":[],"layers":[{"name":"rot13","options":""},{"name":"unionfs","options":"dirs=a",
        "directories":[{"path":"/no/a","mode":"rw","fd":7},{"path":"/no/b","mode":"ro","fd":null}]}]}"#;

    fn part(name: &str, options: &str, below: &[(&str, &'static str)]) -> Part {
        let below = below.iter().map(|(path, mode)| Below::Directory(Directory { path: path.into(), mode, fd: None }));
        Part { name: name.to_owned(), options: options.to_owned(), counts: None, below: below.collect() }
    }

    #[test]
    fn only_an_identical_stack_matches() {
        let mounted = Mounted::read(JSON, Path::new("/mnt")).unwrap();
        let (a, b) = (("/no/a", "rw"), ("/no/b", "ro"));
        let rot13 = part("rot13", "", &[]);
        let union = |below: &[_]| part("unionfs", "dirs=other", below);
        let is = |parts: &[Part]| mounted.is(parts);
        assert!(is(&[rot13.clone(), union(&[a, b])]));
        assert!(!is(&[union(&[a, b])]) && !is(&[part("rot13", "key", &[]), union(&[a, b])]));
        assert!(!is(&[rot13.clone(), part("lbfs", "", &[a, b])]));
        for other in [&[b, a][..], &[a], &[a, b, b], &[(a.0, "ro"), b], &[]] {
            assert!(!is(&[rot13.clone(), union(other)]), "{other:?}");
        }
    }

    #[test]
    fn stacks_in_branches_are_compared() {
        let json = r#"{"pid":1,"layers":[{"name":"unionfs","options":"","directories":[
            {"mode":"rw","layers":[{"name":"rot13","options":""},{"name":"directory","options":"",
                "directories":[{"path":"/no/a","mode":"rw","fd":7}]}]},
            {"path":"/no/b","mode":"ro","fd":8}]}]}"#;
        let mounted = Mounted::read(json, Path::new("/mnt")).unwrap();
        let union = |mode, layer: &str, path: &str| {
            let stack = vec![part(layer, "", &[]), part("directory", "", &[(path, "rw")])];
            let mut union = part("unionfs", "", &[("/no/b", "ro")]);
            union.below.insert(0, Below::Stack(mode, stack));
            union
        };
        assert!(mounted.is(&[union("rw", "rot13", "/no/a")]));
        for other in [union("ro", "rot13", "/no/a"), union("rw", "zstd", "/no/a"), union("rw", "rot13", "/no/c")] {
            assert!(!mounted.is(&[other]));
        }
        assert!(!mounted.is(&[part("unionfs", "", &[("/no/a", "rw"), ("/no/b", "ro")])]));
    }

    #[test]
    fn malformed_replies_match_nothing() {
        let read = |json: &str| Mounted::read(json, Path::new("/mnt"));
        assert!(["", "{}", r#"{"pid":1}"#, r#"{"layers":[]}"#].iter().all(|bad| read(bad).is_none()));
        let odd = r#"{"pid":1,"layers":[{"name":"unionfs","directories":[{"path":7}]}]}"#;
        assert!(!read(odd).unwrap().is(&[part("unionfs", "", &[("/a", "rw")])]));
    }
}
