//! A layer that shows an unprivileged user's rights on files of other users.
//!
//! A user namespace that is created without privileges has one user. The kernel refuses every
//! change of an object that belongs to nobody in the namespace, even if its mode permits it: nobody
//! could write to /tmp. The layer therefore shows the caller as the owner of all objects. The
//! owner's permission bits of another user's object are those that apply to the caller.

use parking_lot::Mutex;
use std::collections::HashMap;
use unionfs::{FOREIGN, sole_directory_mode, without_group};
use vnode::{Attr, Cx, Errno, Kind, Name, Result, SetAttr};
use wrapfs::hooks::{Attributes, Instead, Object, Op, OpKind, OpSet, Operations, Outcome, Verdict};

/// The sole user of the mount.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    uid: u32,
    gid: u32,
    /// Further groups.
    groups: Vec<u32>,
}

impl Owner {
    /// Returns this process's user.
    pub(super) fn current() -> Self {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
        }
    }

    fn is_member(&self, gid: u32) -> bool {
        gid == self.gid || self.groups.contains(&gid)
    }

    /// Whether the object belongs to another user. The union's copy of such a directory belongs to
    /// this one, with a mark.
    fn is_foreign(&self, attr: &Attr) -> bool {
        attr.uid != self.uid || (attr.kind() == Kind::Directory && attr.mode & FOREIGN != 0)
    }

    /// Returns the mode that grants the caller as the owner what `attr` grants.
    fn mode(&self, attr: &Attr) -> u32 {
        if !self.is_foreign(attr) {
            return attr.mode;
        }
        let mark = if attr.kind() == Kind::Directory { FOREIGN } else { 0 };
        let class = if self.is_member(attr.gid) { attr.mode >> 3 } else { attr.mode };
        (attr.mode & !0o700 & !mark) | ((class & 0o7) << 6)
    }
}

impl Attributes for Owner {
    fn decode_attr(&self, _cx: &Cx<'_>, _file: &Object<'_>, attr: &mut Attr) -> Result<()> {
        attr.mode = self.mode(attr);
        attr.uid = self.uid;
        attr.gid = self.gid;
        Ok(())
    }

    fn encode_attr(&self, cx: &Cx<'_>, file: &Object<'_>, set: &mut SetAttr) -> Result<()> {
        // The kernel lets an owner change these. It has checked the permission to write for the
        // others: the size, and the current time.
        let explicit = |time: Option<vnode::SetTime>| matches!(time, Some(vnode::SetTime::At(_)));
        let owners = set.mode.is_some() || explicit(set.atime) || explicit(set.mtime);
        if owners && file.attr(cx)?.uid != self.uid {
            return Err(Errno::PERM);
        }
        if file.kind() == Kind::Directory {
            set.mode = set.mode.map(stored_mode);
        }
        // The only user and group that the namespace knows are those shown.
        set.uid = None;
        set.gid = None;
        Ok(())
    }

    fn encode_mode(&self, _cx: &Cx<'_>, _dir: &Object<'_>, kind: Kind, mode: u32) -> Result<u32> {
        Ok(if kind == Kind::Directory { stored_mode(mode) } else { mode })
    }
}

/// Returns the mode that the union's copy of a directory gets, for one that the user chooses. The
/// server runs as this user: it must be able to use the directory if the user may not.
const fn stored_mode(mode: u32) -> u32 {
    mode & !0o7777 | sole_directory_mode(mode, true)
}

/// The bit of directories in which nobody removes the entries of others, such as /tmp. The kernel
/// takes all entries for the caller's own.
const STICKY: u32 = 0o1000;

impl Owner {
    /// Checks the right to remove, replace or rename an entry.
    fn check_sticky(&self, cx: &Cx<'_>, dir: &Object<'_>, name: Name<'_>) -> Result<()> {
        let attr = dir.attr(cx)?;
        if attr.mode & STICKY == 0 || !self.is_foreign(&attr) {
            return Ok(());
        }
        let entry = dir.lower().lookup(cx, name)?;
        if entry.is_some_and(|entry| self.is_foreign(&entry.attr)) { Err(Errno::PERM) } else { Ok(()) }
    }
}

impl Operations for Owner {
    fn interest(&self) -> OpSet {
        OpSet::of(&[OpKind::Unlink, OpKind::Rmdir, OpKind::Rename])
    }

    fn before(&self, cx: &Cx<'_>, op: &Op<'_>) -> Result<Verdict> {
        match op {
            Op::Unlink { dir, name } | Op::Rmdir { dir, name } => self.check_sticky(cx, dir, *name)?,
            Op::Rename { dir, name, new_dir, new_name, .. } => {
                self.check_sticky(cx, dir, *name)?;
                self.check_sticky(cx, new_dir, *new_name)?;
            }
            _ => {}
        }
        Ok(Verdict::Proceed)
    }
}

/// Returns the permission bits that a copy's original grants the user, from those of the copy.
const fn unmarked(mode: u32) -> u32 {
    if mode & FOREIGN == 0 { mode } else { mode & !(FOREIGN | 0o700) | (mode & 0o7) << 6 }
}

/// Shows the attributes that the union's copies of the host's objects get
/// ([`unionfs::Copyup::Sole`]), so that a copy compares as equal to its original. For the host's
/// directories.
#[derive(Clone, Debug)]
pub(super) struct AsCopied(Owner);

impl AsCopied {
    /// Returns that for this process's user.
    pub(super) fn current() -> Self {
        Self(Owner::current())
    }
}

impl Attributes for AsCopied {
    fn decode_attr(&self, _cx: &Cx<'_>, _file: &Object<'_>, attr: &mut Attr) -> Result<()> {
        let is_own = attr.uid == self.0.uid;
        attr.uid = self.0.uid;
        if attr.kind() == Kind::Directory {
            attr.mode = attr.mode & !0o7777 | sole_directory_mode(attr.perm(), is_own);
        } else if !is_own {
            attr.mode &= !0o6000;
        }
        if !self.0.is_member(attr.gid) {
            attr.gid = self.0.gid;
            if attr.kind() != Kind::Symlink {
                attr.mode = without_group(attr.mode);
            }
        }
        if attr.kind() == Kind::Directory {
            attr.mode = unmarked(attr.mode);
        }
        Ok(())
    }
}

/// Shows the sandbox's branch without the marks of copies.
#[derive(Clone, Debug)]
pub(super) struct Unmarked;

impl Attributes for Unmarked {
    fn decode_attr(&self, _cx: &Cx<'_>, _file: &Object<'_>, attr: &mut Attr) -> Result<()> {
        if attr.kind() == Kind::Directory {
            attr.mode = unmarked(attr.mode);
        }
        Ok(())
    }
}

/// Lets the user change the entries of its own read-only directories, such as those of Go's module
/// cache: each is writable during the operation. In the sandbox's branch, also directories can be
/// listed that a command has made unreadable: as a rule they are empty there.
#[derive(Debug)]
pub(super) struct Writable {
    uid: u32,
    /// Whether unreadable directories can be listed.
    lists: bool,
    /// The directories that are writable at present, with their modes.
    opened: Mutex<HashMap<u64, u32>>,
}

impl Writable {
    /// Returns that for this process's user.
    pub(super) fn current() -> Self {
        Self { uid: rustix::process::geteuid().as_raw(), lists: false, opened: Mutex::default() }
    }

    /// Returns that for the sandbox's branch.
    pub(super) fn of_branch() -> Self {
        Self { lists: true, ..Self::current() }
    }

    /// Returns the directories whose entries an operation lists or changes.
    fn directories<'a>(op: &'a Op<'a>) -> [Option<&'a Object<'a>>; 2] {
        match op {
            Op::Lookup { dir, .. } | Op::Readdir { dir } => [Some(dir), None],
            Op::Create { dir, .. }
            | Op::Mknod { dir, .. }
            | Op::Mkdir { dir, .. }
            | Op::Symlink { dir, .. }
            | Op::Link { dir, .. }
            | Op::Unlink { dir, .. }
            | Op::Rmdir { dir, .. } => [Some(dir), None],
            Op::Rename { dir, new_dir, .. } => [Some(dir), Some(new_dir)],
            _ => [None, None],
        }
    }
}

/// The permission to change entries.
const CHANGE_ENTRIES: u32 = 0o300;
/// The permission to list entries and to look them up.
const LIST_ENTRIES: u32 = 0o500;

impl Operations for Writable {
    fn interest(&self) -> OpSet {
        let mut kinds = vec![
            OpKind::Create,
            OpKind::Mknod,
            OpKind::Mkdir,
            OpKind::Symlink,
            OpKind::Link,
            OpKind::Unlink,
            OpKind::Rmdir,
            OpKind::Rename,
        ];
        if self.lists {
            kinds.extend([OpKind::Lookup, OpKind::Readdir]);
        }
        OpSet::of(&kinds)
    }

    fn before(&self, cx: &Cx<'_>, op: &Op<'_>) -> Result<Verdict> {
        for dir in Self::directories(op).into_iter().flatten() {
            let attr = dir.attr(cx)?;
            let needed = if op.kind().changes() { CHANGE_ENTRIES } else { LIST_ENTRIES };
            if attr.uid == self.uid && attr.mode & needed != needed {
                let set = SetAttr { mode: Some(attr.perm() | needed), ..SetAttr::default() };
                dir.lower().setattr(cx, &set, None)?;
                self.opened.lock().insert(dir.lower().id(), attr.perm());
            }
        }
        Ok(Verdict::Proceed)
    }

    fn after(&self, cx: &Cx<'_>, op: &Op<'_>, _result: std::result::Result<Outcome<'_>, Errno>) -> Instead {
        for dir in Self::directories(op).into_iter().flatten() {
            let Some(mode) = self.opened.lock().remove(&dir.lower().id()) else { continue };
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            if let Err(errno) = dir.lower().setattr(cx, &set, None) {
                tracing::warn!(%errno, "a directory remains writable that was read-only");
            }
        }
        Instead::Keep
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfs::MemFs;
    use vnode::Layer as _;
    use wrapfs::Template;

    #[test]
    fn the_owner_bits_are_those_that_apply() {
        let owner = Owner { uid: 1000, gid: 1000, groups: vec![1000, 50] };
        let shown = |uid, gid, mode| {
            let time = vnode::Time::default();
            let (ino, size, blocks, nlink, rdev, blksize) = (7, 0, 0, 1, 0, 4096);
            let (atime, mtime, ctime, btime) = (time, time, time, None);
            owner.mode(&Attr { ino, size, blocks, atime, mtime, ctime, btime, mode, nlink, uid, gid, rdev, blksize })
        };
        assert_eq!(shown(1000, 0, 0o100_604), 0o100_604);
        assert_eq!(shown(0, 0, 0o100_644), 0o100_444);
        assert_eq!(shown(0, 50, 0o100_664), 0o100_664);
        assert_eq!(shown(0, 0, 0o41_777), 0o41_777);
        assert_eq!(shown(0, 0, 0o40_700), 0o40_000);
        assert_eq!(shown(1000, 0, 0o44_755), 0o40_555);
        // The group's bits apply to members, even if others have more.
        assert_eq!(shown(0, 50, 0o100_604), 0o100_004);
    }

    /// What the user may not write on the host, it may not write in a copy.
    #[test]
    fn a_copy_without_its_group_grants_no_more() {
        let owner = Owner { uid: 1000, gid: 1000, groups: vec![] };
        let attr = MemFs::new().root().getattr(&Cx::internal(0, 0)).unwrap();
        // /usr/local of Debian: root:staff 2775.
        let original = Attr { mode: 0o42_775, uid: 0, gid: 50, ..attr };
        let mode = 0o40_000 | without_group(sole_directory_mode(original.perm(), false));
        let copy = Attr { mode, uid: 1000, gid: 1000, ..attr };
        assert_eq!((owner.mode(&original) & 0o700, owner.mode(&copy) & 0o700), (0o500, 0o500));
    }

    #[test]
    fn entries_of_others_stay_in_sticky_directories() {
        let (root, me) = (Cx::internal(0, 0), Cx::internal(1000, 1000));
        let name = |text: &'static str| Name::new(text.as_bytes()).unwrap();
        let fs = MemFs::new();
        for (dir, mode) in [("sticky", 0o1777), ("open", 0o777)] {
            let dir = fs.root().mkdir(&root, name(dir), mode).unwrap().vnode;
            dir.mknod(&root, name("theirs"), 0o100_666, 0).unwrap();
            dir.mkdir(&root, name("dir"), 0o777).unwrap();
            dir.mknod(&me, name("mine"), 0o100_600, 0).unwrap();
        }
        let owner = Owner { uid: 1000, gid: 1000, groups: vec![] };
        let layer = Template::over(fs).attributes(owner.clone()).operations(owner).build().unwrap();
        let at = |dir| layer.root().lookup(&me, name(dir)).unwrap().unwrap().vnode;
        let (sticky, open) = (at("sticky"), at("open"));
        let moved = |from: &str, to: &str| {
            let name = |text: &str| text.as_bytes().to_vec();
            let (from, to) = (name(from), name(to));
            let (from, to) = (Name::new(&from).unwrap(), Name::new(&to).unwrap());
            sticky.rename(&me, from, &sticky, to, vnode::RenameFlags::default())
        };
        assert_eq!(sticky.unlink(&me, name("theirs")), Err(Errno::PERM));
        assert_eq!(sticky.rmdir(&me, name("dir")), Err(Errno::PERM));
        assert_eq!((moved("theirs", "x"), moved("mine", "theirs")), (Err(Errno::PERM), Err(Errno::PERM)));
        assert_eq!((moved("mine", "x"), sticky.unlink(&me, name("x"))), (Ok(()), Ok(())));
        assert_eq!((open.unlink(&me, name("theirs")), open.rmdir(&me, name("dir"))), (Ok(()), Ok(())));
    }
}
