//! The replicas of a load-balanced mount: `DIR:DIR:...`.
//!
//! Nothing here touches a directory while options are checked: a replica that hangs would hang the mount.

use crate::exit::Failure;
use crate::text::Text;
use core::time::Duration;
use hostfs::{HostFs, HostOptions};
use lbfs::Source;
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use vnode::Layer;

/// Reads paths between colons; relative ones count from the working directory.
///
/// # Errors
/// Names what is wrong.
pub fn parse(text: &Text) -> Result<Vec<PathBuf>, Failure> {
    let mut paths = Vec::new();
    for part in text.split(b':') {
        let given = PathBuf::from(OsString::from_vec(part.bytes()));
        let path = std::path::absolute(&given).map_err(|_| {
            Failure::usage(
                "an empty path among the replicas: separate them by one ':' (one in a path is written \\:)".to_owned(),
            )
        })?;
        if paths.contains(&path) {
            return Err(Failure::usage(format!("replica {} is named twice; leave one out", path.display())));
        }
        paths.push(path);
    }
    Ok(paths)
}

/// How a replica is opened, now and whenever it has to be opened anew. `cache`: for how long what is known of it may be believed at most.
#[must_use]
pub fn source(path: &Path, cache: Option<Duration>) -> Source {
    let (name, path) = (path.display().to_string(), path.to_owned());
    let host = HostOptions::default();
    let believed = cache.map_or(host.believed, |cache| cache.min(host.believed));
    let (options, memory) = (HostOptions { read_only: true, believed, ..host }, Memory::default());
    Source { name, open: Box::new(move || open(&path, options, &memory)) }
}

/// What was found at a path before.
#[derive(Default)]
struct Memory {
    /// The type of the file system there (`f_type` of statfs(2)).
    magic: OnceLock<i64>,
    was_away: AtomicBool,
}

impl Memory {
    /// Can that be the replica? Where a network file system was, its empty mount point may be: that has no file, and all of them would be
    /// missing.
    fn accepts(&self, magic: i64, may_hang: bool) -> bool {
        match self.magic.get() {
            Some(before) => *before == magic,
            None => may_hang || !self.was_away.load(Ordering::Relaxed),
        }
    }
}

fn open(path: &Path, options: HostOptions, memory: &Memory) -> Result<Arc<dyn Layer>, Errno> {
    let opened = HostFs::open(path, options).map_err(|error| error.errno);
    let found = opened.and_then(|layer| Ok((layer, rustix::fs::statfs(path)?.f_type)));
    let (layer, magic) = found.inspect_err(|_| memory.was_away.store(true, Ordering::Relaxed))?;
    if !memory.accepts(magic, layer.properties().may_hang) {
        return Err(Errno::NOTCONN);
    }
    let _known = memory.magic.set(magic);
    Ok(layer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(spec: &str) -> Result<Vec<PathBuf>, String> {
        let text = Text::read(spec.as_bytes()).unwrap();
        parse(&text).map_err(|failure| failure.reason)
    }

    #[test]
    fn paths_stand_between_colons() {
        assert_eq!(read("/a:/b").unwrap(), [Path::new("/a"), Path::new("/b")]);
        assert_eq!(read(r"/a\:b:/c d").unwrap(), [Path::new("/a:b"), Path::new("/c d")]);
        let here = std::env::current_dir().unwrap();
        assert_eq!(read("x:/y").unwrap(), [here.join("x"), PathBuf::from("/y")]);
        assert_eq!(read("/a").unwrap().len(), 1);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for empty in ["", "/a::/b", "/a:"] {
            assert!(read(empty).unwrap_err().starts_with("an empty path"), "{empty}");
        }
        assert!(read("/a:/b:/a").unwrap_err().contains("/a is named twice"));
    }

    #[test]
    fn an_empty_mount_point_is_no_replica() {
        const NFS: i64 = 0x6969;
        const EXT4: i64 = 0xef53;
        let memory = Memory::default();
        assert!(memory.accepts(EXT4, false));
        memory.magic.set(NFS).unwrap();
        assert!(memory.accepts(NFS, true) && !memory.accepts(EXT4, false));
        let away = Memory { was_away: AtomicBool::new(true), ..Memory::default() };
        assert!(away.accepts(NFS, true) && !away.accepts(EXT4, false));
    }

    #[test]
    fn directories_of_the_host_are_opened() {
        assert!((source(&std::env::temp_dir(), None).open)().is_ok());
        let missing = std::env::temp_dir().join("strata-no-such-replica");
        assert_eq!((source(&missing, None).open)().map(|_| ()), Err(Errno::NOENT));
    }
}
