//! The content of a version, read while programs go on writing to the head.
//!
//! A version that lacks bytes takes them from newer versions, finally from the head. So each read
//! holds the session of the head and the set, and looks which newer versions there are now.

use crate::core::Core;
use crate::history::{At, Seen};
use crate::past::Target;
use crate::set::Locked;
use std::sync::Arc;
use versionset::{Content, Head, Letter, Members, Plain, Source, Stamp, Version};
use vnode::{Attr, Cx, Errno, Kind, OpenFile, OpenFlags, Result, Time, Vnode};

/// The link count of a past file with several names. How many they were is not recorded.
const SEVERAL: u32 = 2;

/// Where the bytes and attributes of a past file are.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// In a version.
    Version(Seen),
    /// In the head, until the version with the number `next` is made. At the time `seen_at` it was
    /// the head's content.
    Head { at: At, lower: Arc<dyn Vnode>, next: u64, seen_at: Time },
    /// In a file of the store, as it is there. The attributes are those of the version.
    Raw { lower: Arc<dyn Vnode>, seen: Seen },
}

/// Returns the number of the next version of a name and the inode that has it.
pub(crate) fn next_of(core: &Core, cx: &Cx<'_>, at: &At, lower: &dyn Vnode) -> Result<u64> {
    let own = core.set_of_name(&at.dir, &at.name).lock(core, cx)?.index().next();
    if lower.kind() != Kind::Regular {
        return Ok(own);
    }
    let link = core.set_of_link(&crate::set::link_stem(lower));
    let linked = link.lock(core, cx)?.index().next();
    Ok(own.max(linked))
}

impl Body {
    /// Returns where the content is now: what was the head may have become a version, or have
    /// another name.
    pub(crate) fn now(&self, core: &Arc<Core>, cx: &Cx<'_>) -> Result<Self> {
        let Self::Head { at, lower, next, seen_at } = self else { return Ok(self.clone()) };
        let server = core.server(cx);
        if next_of(core, &server, at, &**lower)? == *next {
            return Ok(self.clone());
        }
        let history = at.history(core, &server)?;
        let since = history.versions.iter().map(|seen| &seen.version).find(|version| version.number >= *next);
        if let Some(version) = since {
            if version.born > *seen_at {
                // It is a later content: the version that was made first is discarded.
                return Err(Errno::STALE);
            }
            let number = version.number;
            return match Target::of_version(core, cx, at, history, number)? {
                Target::File(body) => Ok(body),
                Target::Dir(_) | Target::Special(..) => Err(Errno::STALE),
            };
        }
        // The versions of a name and of an inode are numbered together from the first link on.
        // The version with the content can have been discarded.
        let is_same = history.head_since().is_some_and(|since| since <= *seen_at);
        let is_head = is_same && history.head.is_some_and(|head| head.vnode.id() == lower.id());
        if is_head { Ok(self.clone()) } else { Err(Errno::STALE) }
    }

    /// Returns the attributes; the number is the caller's to set.
    pub(crate) fn attr(&self, core: &Arc<Core>, cx: &Cx<'_>) -> Result<Attr> {
        let server = core.server(cx);
        match self.now(core, cx)? {
            Self::Head { lower, .. } => {
                let attr = lower.getattr(&server)?;
                Ok(Attr { nlink: attr.nlink.clamp(1, SEVERAL), mode: without_setuid(attr.mode), ..attr })
            }
            Self::Raw { lower, seen } => {
                let stored = lower.getattr(&server)?;
                let attr = attr_of(&current(core, &server, &seen)?);
                Ok(Attr { size: stored.size, blocks: stored.blocks, ..attr })
            }
            Self::Version(seen) => {
                let nlink = if seen.set.is_link() { SEVERAL } else { 1 };
                Ok(Attr { nlink, ..attr_of(&current(core, &server, &seen)?) })
            }
        }
    }

    /// Opens the content. A file of its own is returned as it is.
    pub(crate) fn open_plain(&self, core: &Arc<Core>, cx: &Cx<'_>) -> Result<Option<Arc<dyn OpenFile>>> {
        let server = core.server(cx).held_for_caller();
        match self.now(core, cx)? {
            Self::Raw { lower, .. } => lower.open(&server, OpenFlags::RDONLY).map(Some),
            Self::Version(seen) => {
                let locked = seen.set.lock(core, cx)?;
                let version = seen.find(&locked).ok_or(Errno::STALE)?;
                if version.letter != Letter::Full {
                    return Ok(None);
                }
                let entry = locked.file(&server, version.letter, version.number)?.ok_or(Errno::IO)?;
                // Bytes of a copy can be lost by a power failure.
                if entry.attr.kind() != Kind::Regular || entry.attr.size != version.size {
                    return Err(Errno::IO);
                }
                entry.vnode.open(&server, OpenFlags::RDONLY).map(Some)
            }
            Self::Head { .. } => Ok(None),
        }
    }

    /// Runs `read` with the content. Nothing changes the content meanwhile.
    pub(crate) fn with<T>(
        &self,
        core: &Arc<Core>,
        cx: &Cx<'_>,
        read: impl FnOnce(&Cx<'_>, &dyn Content) -> Result<T>,
    ) -> Result<T> {
        cx.require_blocking()?;
        let server = core.server(cx);
        if let Self::Head { lower, .. } = self {
            let inode = core.inodes.get(lower.id());
            let session = inode.session(&server)?;
            // With the session locked, no version can be made.
            if let Self::Head { lower: now, .. } = self.now(core, cx)?
                && now.id() == lower.id()
            {
                return read(&server, &*head_content(&server, lower)?);
            }
            drop(session);
        }
        match self.now(core, cx)? {
            Self::Version(seen) => with_version(core, &server, &seen, read),
            Self::Head { .. } | Self::Raw { .. } => Err(Errno::IO),
        }
    }
}

fn with_version<T>(
    core: &Core,
    cx: &Cx<'_>,
    seen: &Seen,
    read: impl FnOnce(&Cx<'_>, &dyn Content) -> Result<T>,
) -> Result<T> {
    let head = seen.set.content_head(core, cx)?;
    let inode = head.as_ref().map(|head| core.inodes.get(head.id()));
    let _session = inode.as_ref().map(|inode| inode.session(cx)).transpose()?;
    let locked = seen.set.lock(core, cx)?;
    let number = seen.find(&locked).ok_or(Errno::STALE)?.number;
    let content = open_version(cx, &locked, number, head.as_ref())?;
    read(cx, &*content)
}

/// Returns the bytes of a head that can't change meanwhile.
pub(crate) fn head_content(cx: &Cx<'_>, head: &Arc<dyn Vnode>) -> Result<Arc<dyn Content>> {
    head_of(cx, head).map(|head| head.content)
}

/// Returns the head of a set as versions need it.
pub(crate) fn head_of(cx: &Cx<'_>, head: &Arc<dyn Vnode>) -> Result<Head> {
    let file = head.open(cx, OpenFlags::RDONLY)?;
    let attr = head.getattr(cx)?;
    Ok(Head { content: Arc::new(Plain::new(file, attr.size)), stamp: Some(Stamp::of(&attr)) })
}

/// Opens a version of a set whose head can't change.
pub(crate) fn open_version(
    cx: &Cx<'_>,
    locked: &Locked<'_>,
    number: u64,
    head: Option<&Arc<dyn Vnode>>,
) -> Result<Arc<dyn Content>> {
    let members = Members::of(locked.index(), number).ok_or(Errno::STALE)?;
    let source: Arc<dyn Source> = Arc::new(locked.files(cx, head)?);
    versionset::open_version(cx, &source, members)
}

/// Returns a version with the owner and mode that it has now: an object in use outlives commands
/// that change them, and the kernel checks permissions by what the object says. A version that was
/// discarded meanwhile keeps those it had.
pub(crate) fn current(core: &Core, cx: &Cx<'_>, seen: &Seen) -> Result<Version> {
    let locked = seen.set.lock(core, cx)?;
    let now = seen.find(&locked).unwrap_or(&seen.version);
    Ok(Version { mode: now.mode, uid: now.uid, gid: now.gid, ..seen.version.clone() })
}

/// Returns the attributes of a version.
pub(crate) fn attr_of(version: &Version) -> Attr {
    Attr {
        ino: 0,
        size: version.size,
        blocks: version.size.div_ceil(512),
        atime: version.mtime,
        mtime: version.mtime,
        ctime: version.died,
        btime: Some(version.born),
        mode: without_setuid(version.kind.mode_bits() | version.mode),
        nlink: 1,
        uid: version.uid,
        gid: version.gid,
        rdev: 0,
        blksize: 4096,
    }
}

/// Returns a mode without set-user-ID and set-group-ID: a program that was replaced because of a
/// hole must not run with its privileges again.
fn without_setuid(mode: u32) -> u32 {
    if mode & Kind::MASK == Kind::Regular.mode_bits() { mode & !0o6000 } else { mode }
}
