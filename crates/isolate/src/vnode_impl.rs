use crate::file::IsolateFile;
use crate::guard::Guard;
use std::any::Any;
use std::sync::Arc;
use vnode::{
    Attr, Cx, DirEntry, Entry, Errno, IoctlReply, Kind, Name, NameSink, OpenFile, OpenFlags, RenameFlags, Result,
    SetAttr, StatFs, Vnode, forward, forward_wrapped,
};

/// Number of entries to read at a time.
const BATCH: usize = 1024;

/// A vnode of a file system that may hang or be lost.
#[derive(Debug)]
pub(crate) struct IsolateVnode {
    lower: Arc<dyn Vnode>,
    guard: Arc<Guard>,
}

/// A directory and a name in it.
type Place = (Arc<dyn Vnode>, Box<[u8]>);

/// An entry of a listing.
type Listed = (u64, u64, Kind, Box<[u8]>);

impl IsolateVnode {
    pub(crate) fn over(lower: Arc<dyn Vnode>, guard: &Arc<Guard>) -> Self {
        Self { lower, guard: Arc::clone(guard) }
    }

    fn wrap(&self, entry: Entry) -> Entry {
        Entry { vnode: Arc::new(Self::over(entry.vnode, &self.guard)), attr: entry.attr }
    }

    fn wrap_both(&self, (entry, file): (Entry, Arc<dyn OpenFile>)) -> (Entry, Arc<dyn OpenFile>) {
        (self.wrap(entry), IsolateFile::over(file, &self.guard))
    }

    /// Runs a call of the vnode below.
    fn call<T: Send + 'static>(
        &self,
        cx: &Cx<'_>,
        call: impl FnOnce(&Arc<dyn Vnode>, &Cx<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let lower = Arc::clone(&self.lower);
        self.guard.call(cx, move |cx| call(&lower, cx))
    }

    /// Reads the entries after a cookie.
    fn batch(&self, cx: &Cx<'_>, after: u64) -> Result<Vec<Listed>> {
        self.call(cx, move |lower, cx| {
            let mut batch: Vec<Listed> = Vec::new();
            lower.readdir(cx, after, &mut |entry| {
                let room = batch.len() < BATCH;
                if room {
                    batch.push((entry.cookie, entry.ino, entry.kind, entry.name.as_bytes().into()));
                }
                room
            })?;
            Ok(batch)
        })
    }
}

/// Returns the lower vnode of an isolated one.
fn unwrap(vnode: &Arc<dyn Vnode>) -> Result<&Arc<dyn Vnode>> {
    vnode.as_any().downcast_ref::<IsolateVnode>().map(|isolated| &isolated.lower).ok_or(Errno::XDEV)
}

/// Copies a value to the caller's buffer.
fn copy(out: &mut [u8], (len, value): (usize, Vec<u8>)) -> usize {
    for (to, from) in out.iter_mut().zip(value.iter().take(len)) {
        *to = *from;
    }
    len
}

impl Vnode for IsolateVnode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    forward!(lower: id, generation, kind, unlink, rmdir, setxattr, removexattr);
    forward_wrapped!(lower, wrap: mknod, mkdir, symlink);
    forward_wrapped!(lower, wrap_both: create, tmpfile);

    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr> {
        if self.guard.is_root(&self.lower) {
            return self.guard.root_attr(cx);
        }
        self.call(cx, |lower, cx| lower.getattr(cx))
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        let bytes: Box<[u8]> = name.as_bytes().into();
        let found = self.call(cx, move |lower, cx| lower.lookup(cx, Name::new(&bytes)?));
        match found {
            Err(Errno::STALE) if self.guard.is_empty(cx) => Ok(None),
            found => Ok(found?.map(|entry| self.wrap(entry))),
        }
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.call(cx, |lower, cx| lower.readlink(cx))
    }

    fn readdir(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let mut after = cookie;
        loop {
            let batch = match self.batch(cx, after) {
                Err(Errno::STALE) if self.guard.is_empty(cx) => return Ok(()),
                batch => batch?,
            };
            for (cookie, ino, kind, name) in &batch {
                after = *cookie;
                if !sink(&DirEntry { cookie: *cookie, ino: *ino, kind: *kind, name: Name::new(name)? }) {
                    return Ok(());
                }
            }
            if batch.len() < BATCH {
                return Ok(());
            }
            cx.check()?;
        }
    }

    fn names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        let names = self.call(cx, |lower, cx| {
            let mut names: Vec<Place> = Vec::new();
            lower.names(cx, &mut |dir, name| {
                names.push((Arc::clone(dir), name.as_bytes().into()));
                true
            })?;
            Ok(names)
        })?;
        for (dir, name) in names {
            let dir: Arc<dyn Vnode> = Arc::new(Self::over(dir, &self.guard));
            if !sink(&dir, Name::new(&name)?) {
                break;
            }
        }
        Ok(())
    }

    fn listing_stamp(&self, cx: &Cx<'_>) -> Option<u64> {
        self.call(cx, |lower, cx| Ok(lower.listing_stamp(cx))).ok().flatten()
    }

    fn lists_exactly(&self, cx: &Cx<'_>) -> bool {
        self.call(cx, |lower, cx| Ok(lower.lists_exactly(cx))).unwrap_or(false)
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        let file = match flags.writes() || flags.truncates() {
            true => self.lower.open(cx, flags)?,
            false => self.call(cx, move |lower, cx| lower.open(cx, flags))?,
        };
        Ok(IsolateFile::over(file, &self.guard))
    }

    fn getxattr(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        let (name, room): (Box<[u8]>, _) = (name.into(), out.len());
        let value = self.call(cx, move |lower, cx| {
            let mut value = vec![0; room];
            Ok((lower.getxattr(cx, &name, &mut value)?, value))
        })?;
        Ok(copy(out, value))
    }

    fn listxattr(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        let room = out.len();
        let names = self.call(cx, move |lower, cx| {
            let mut names = vec![0; room];
            Ok((lower.listxattr(cx, &mut names)?, names))
        })?;
        Ok(copy(out, names))
    }

    fn refused(&self, cx: &Cx<'_>, mask: u32) -> Result<()> {
        self.call(cx, move |lower, cx| lower.refused(cx, mask))
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        self.call(cx, |lower, cx| lower.statfs(cx))
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        self.call(cx, move |lower, cx| lower.fsync(cx, data_only))
    }

    fn ioctl(&self, cx: &Cx<'_>, cmd: u32, input: &[u8], out: &mut [u8]) -> Result<IoctlReply> {
        if !input.is_empty() {
            return self.lower.ioctl(cx, cmd, input, out);
        }
        let room = out.len();
        let (reply, answer) = self.call(cx, move |lower, cx| {
            let mut answer = vec![0; room];
            Ok((lower.ioctl(cx, cmd, &[], &mut answer)?, answer))
        })?;
        copy(out, (room, answer));
        Ok(reply)
    }

    fn control(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>> {
        let (command, input) = (command.to_owned(), input.to_vec());
        self.call(cx, move |lower, cx| lower.control(cx, &command, &input))
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr> {
        self.lower.setattr(cx, set, file.map(IsolateFile::lower_of))
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry> {
        self.lower.link(cx, name, unwrap(target)?).map(|made| self.wrap(made))
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        new_dir: &Arc<dyn Vnode>,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.lower.rename(cx, name, unwrap(new_dir)?, new_name, flags)
    }
}
