//! The place for objects that a repair, or the recovery after a kill, takes out of a branch: a
//! directory `.wh..wh.asideN` in the branch's root. Users of the union don't see it.

use crate::log::write_all;
use crate::ownfiles::{ASIDE, ASIDES};
use crate::times::preserving_times;
use std::sync::Arc;
use vnode::{Cx, Errno, Name, OpenFile, OpenFlags, RenameFlags, Result, Vnode};

/// The file that lists the objects, with their former paths.
pub(crate) const LIST: &[u8] = b"LIST";
/// Stands for the number in the line of an object that was created.
pub(crate) const CREATED: &str = "+";

/// The directory of one branch, once it is needed.
#[derive(Default)]
pub(crate) struct Aside(Option<Open>);

struct Open {
    dir: Arc<dyn Vnode>,
    list: Arc<dyn OpenFile>,
    /// Length of the list.
    end: u64,
    number: u64,
}

impl Aside {
    /// Renames an entry of `dir` into the directory. Its former path is recorded before.
    pub(crate) fn set(
        &mut self,
        cx: &Cx<'_>,
        root: &Arc<dyn Vnode>,
        (dir, name): (&Arc<dyn Vnode>, Name<'_>),
        record: (&str, &[u8]),
    ) -> Result<()> {
        let (to, new) = self.reserve(cx, root, record)?;
        let new = new.to_string();
        let flags = RenameFlags { no_replace: true, ..RenameFlags::default() };
        preserving_times(cx, dir, || dir.rename(cx, name, &to, Name::new(new.as_bytes())?, flags))
    }

    /// Gives an object a second name in the directory.
    pub(crate) fn keep(
        &mut self,
        cx: &Cx<'_>,
        root: &Arc<dyn Vnode>,
        object: &Arc<dyn Vnode>,
        record: (&str, &[u8]),
    ) -> Result<()> {
        let (to, new) = self.reserve(cx, root, record)?;
        to.link(cx, Name::new(new.to_string().as_bytes())?, object).map(drop)
    }

    /// Records that an object is about to be created.
    pub(crate) fn note_created(&mut self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, record: (&str, &[u8])) -> Result<()> {
        self.open(cx, root)?.append(cx, CREATED, record)
    }

    fn open(&mut self, cx: &Cx<'_>, root: &Arc<dyn Vnode>) -> Result<&mut Open> {
        Ok(match &mut self.0 {
            Some(open) => open,
            none => none.insert(make(cx, root)?),
        })
    }

    /// Returns the directory and an unused name in it, for an object of which the kind of finding
    /// and the path are recorded.
    fn reserve(&mut self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, record: (&str, &[u8])) -> Result<(Arc<dyn Vnode>, u64)> {
        let open = self.open(cx, root)?;
        open.number += 1;
        let number = open.number;
        open.append(cx, &number.to_string(), record)?;
        Ok((open.dir.clone(), number))
    }
}

impl Open {
    /// Appends a line to the list.
    fn append(&mut self, cx: &Cx<'_>, what: &str, (kind, path): (&str, &[u8])) -> Result<()> {
        let line = format!("{what}\t{kind}\t{}\n", path.escape_ascii());
        write_all(&*self.list, cx, line.as_bytes(), self.end)?;
        self.list.fsync(cx, true)?;
        self.end += line.len() as u64;
        Ok(())
    }
}

fn make(cx: &Cx<'_>, root: &Arc<dyn Vnode>) -> Result<Open> {
    for number in 0..ASIDES {
        let name = format!("{ASIDE}{number}");
        match preserving_times(cx, root, || root.mkdir(cx, Name::new(name.as_bytes())?, 0o700)) {
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
            Ok(entry) => {
                let (_, list) = entry.vnode.create(cx, Name::new(LIST)?, 0o600, OpenFlags::WRONLY)?;
                return Ok(Open { dir: entry.vnode, list, end: 0, number: 0 });
            }
        }
    }
    Err(Errno::EXIST)
}
