//! The vnode interface. Each operation is passed to the hooks that observe it.

use super::guard::guard;
use super::node::TemplateVnode;
use crate::hooks::{Op, OpKind};
use std::any::Any;
use std::sync::Arc;
use vnode::{
    Attr, Cx, DirEntry, Entry, Errno, IoctlReply, Kind, Name, NameSink, OpenFile, OpenFlags, RenameFlags, Result,
    SetAttr, StatFs, Vnode, XattrFlags, forward,
};

/// Runs an operation, observed by the hook if it wants operations of this kind.
macro_rules! observed {
    ($self:ident, $cx:ident, $kind:ident { $object:ident $(, $field:ident $(: $value:expr)?)* }, $act:expr) => {
        match $self.core.watch(OpKind::$kind) {
            None => $act,
            Some(watch) => {
                let object = $self.object();
                let op = Op::$kind { $object: &object $(, $field $(: $value)?)* };
                watch.around($cx, &op, || $act)
            }
        }
    };
}

impl Vnode for TemplateVnode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    forward!(lower: id, generation, kind, listing_stamp);

    fn lists_exactly(&self, _cx: &Cx<'_>) -> bool {
        false
    }

    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr> {
        observed!(self, cx, Getattr { file }, self.show(cx))
    }

    fn getattr_open(&self, cx: &Cx<'_>, open: &dyn OpenFile) -> Result<Attr> {
        observed!(self, cx, Getattr { file }, self.show_open(cx, open))
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr> {
        self.core.check_writable()?;
        observed!(self, cx, Setattr { file, set }, self.change(cx, set, file))
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        observed!(self, cx, Lookup { dir, name }, self.find(cx, name))
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        observed!(self, cx, Readlink { file }, self.core.decode_target(cx, self.lower.readlink(cx)?))
    }

    fn readdir(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        observed!(self, cx, Readdir { dir }, self.list(cx, cookie, sink))
    }

    fn names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        self.list_names(cx, sink)
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        if flags.writes() || flags.truncates() {
            self.core.check_writable()?;
        }
        observed!(self, cx, Open { file, flags }, self.open_file(cx, flags))
    }

    fn create(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        self.core.check_writable()?;
        observed!(self, cx, Create { dir, name, mode, flags }, self.create_file(cx, name, mode, flags))
    }

    fn tmpfile(&self, cx: &Cx<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        self.core.check_writable()?;
        observed!(self, cx, Tmpfile { dir, mode, flags }, self.create_unnamed(cx, mode, flags))
    }

    fn mknod(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        self.core.check_writable()?;
        observed!(self, cx, Mknod { dir, name, mode, rdev }, {
            let below = self.mode_below(cx, Kind::from_mode(mode).unwrap_or(Kind::Regular), mode)?;
            self.create_entry(cx, name, |name| self.lower.mknod(cx, name, below, rdev))
        })
    }

    fn mkdir(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32) -> Result<Entry> {
        self.core.check_writable()?;
        if self.core.state_file.is_some() {
            cx.require_blocking()?;
        }
        observed!(self, cx, Mkdir { dir, name, mode }, {
            let below = self.mode_below(cx, Kind::Directory, mode)?;
            self.create_entry(cx, name, |name| self.lower.mkdir(cx, name, below))
        })
    }

    fn symlink(&self, cx: &Cx<'_>, name: Name<'_>, target: &[u8]) -> Result<Entry> {
        self.core.check_writable()?;
        observed!(self, cx, Symlink { dir, name, target }, {
            let below = self.core.encode_target(cx, target)?;
            self.create_entry(cx, name, |name| self.lower.symlink(cx, name, &below))
        })
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry> {
        self.core.check_writable()?;
        let below = self.same_layer(target)?;
        let object = below.object();
        observed!(
            self,
            cx,
            Link { dir, name, target: &object },
            self.create_entry(cx, name, |name| self.lower.link(cx, name, &below.lower))
        )
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        self.core.check_writable()?;
        observed!(self, cx, Unlink { dir, name }, self.remove_file(cx, name))
    }

    fn rmdir(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        self.core.check_writable()?;
        observed!(self, cx, Rmdir { dir, name }, self.remove_dir(cx, name))
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        new_dir: &Arc<dyn Vnode>,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.core.check_writable()?;
        let to = self.same_layer(new_dir)?;
        let object = to.object();
        observed!(
            self,
            cx,
            Rename { dir, name, new_dir: &object, new_name, flags },
            self.move_entry(cx, name, to, new_name, flags)
        )
    }

    fn getxattr(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        let Some(watch) = self.core.watch(OpKind::Getxattr) else { return self.xattr_get(cx, name, out) };
        let op = Op::Getxattr { file: &self.object(), name };
        watch.around_bytes(cx, &op, out, |out| self.xattr_get(cx, name, out))
    }

    fn setxattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.core.check_writable()?;
        observed!(self, cx, Setxattr { file, name, value, flags }, self.xattr_set(cx, name, value, flags))
    }

    fn listxattr(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        let Some(watch) = self.core.watch(OpKind::Listxattr) else { return self.xattr_list(cx, out) };
        watch.around_bytes(cx, &Op::Listxattr { file: &self.object() }, out, |out| self.xattr_list(cx, out))
    }

    fn removexattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        self.core.check_writable()?;
        observed!(self, cx, Removexattr { file, name }, self.xattr_remove(cx, name))
    }

    fn refused(&self, cx: &Cx<'_>, mask: u32) -> Result<()> {
        observed!(self, cx, Refused { file, mask }, self.lower.refused(cx, mask))
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        observed!(self, cx, Statfs { file }, self.lower.statfs(cx))
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        observed!(self, cx, Fsync { file, data_only }, self.lower.fsync(cx, data_only))
    }

    fn ioctl(&self, cx: &Cx<'_>, cmd: u32, input: &[u8], out: &mut [u8]) -> Result<IoctlReply> {
        observed!(self, cx, Ioctl { file, cmd, input }, self.do_ioctl(cx, cmd, input, out))
    }

    fn control(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>> {
        self.do_control(cx, command, input)
    }
}

impl TemplateVnode {
    /// Runs an ioctl of this layer or of the layer below.
    fn do_ioctl(&self, cx: &Cx<'_>, cmd: u32, input: &[u8], out: &mut [u8]) -> Result<IoctlReply> {
        if let Some(hook) = &self.core.ioctls
            && let Some(reply) = guard("ioctl", || hook.ioctl(cx, &self.object(), cmd, input, out))?
        {
            return if reply.len <= out.len() { Ok(reply) } else { Err(Errno::IO) };
        }
        match cmd >> 30 {
            // `_IOC_READ` only: nothing is copied in.
            IOC_READ => {}
            IOC_NONE if self.core.read_only => return Err(Errno::NOTTY),
            _ => self.core.check_writable()?,
        }
        if self.core.encodes_data() && self.kind() == Kind::Regular && makes_append_only(cmd, input) {
            // What is appended changes the last block, too.
            return Err(Errno::OPNOTSUPP);
        }
        self.lower.ioctl(cx, cmd, input, out)
    }
}

/// Whether an ioctl makes a file append-only, as chattr(1) does.
fn makes_append_only(cmd: u32, input: &[u8]) -> bool {
    /// `FS_IOC_SETFLAGS` with the size that the kernel uses, and with that of 32-bit programs.
    const SETFLAGS: [u32; 2] = [0x4008_6602, 0x4004_6602];
    const FSSETXATTR: u32 = 0x401c_5820;
    const FLAGS_APPEND: u32 = 0x20;
    const XFLAGS_APPEND: u32 = 0x10;
    let flags = input.first_chunk().map_or(0, |flags| u32::from_ne_bytes(*flags));
    (SETFLAGS.contains(&cmd) && flags & FLAGS_APPEND != 0) || (cmd == FSSETXATTR && flags & XFLAGS_APPEND != 0)
}

/// Direction bits of an ioctl number: no data is copied.
const IOC_NONE: u32 = 0;
/// Direction bits of an ioctl number: data is copied out.
const IOC_READ: u32 = 2;
