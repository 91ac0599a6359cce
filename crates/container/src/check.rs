//! Checks a container that nobody uses for damage, and repairs it where possible.

use crate::codec::{BlockAt, BlockCodec};
use crate::container::Container;
use crate::format::{HEADER, Slot, has_damaged_state};
use crate::geometry::{GROUP_BLOCKS, first_of, place_of};
use crate::group::Group;
use crate::head::{Found, Head, read_header};
use crate::read::Current;
use crate::usage::{BOUND, exceeds};
use std::sync::Arc;
use vnode::{Cx, Errno, OpenFile, OpenFlags, Result, SetAttr, SetTime, Vnode};

/// Minimum dead space worth reclaiming, in bytes.
const MIN_DEAD: u64 = 8 << 10;

/// Damage in a container. A block begins at its number times the block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The header is damaged, so nothing is known about the file. Not repairable.
    Header,
    /// One of the two state records is neither empty nor valid, because of damage or a power
    /// failure. The other one is used.
    State,
    /// A block's index entry or stored bytes are damaged; reading the block returns `EIO`.
    Block {
        /// Block number.
        number: u64,
        /// Whether the previous version is intact, so that a repair restores it.
        older: bool,
    },
    /// The stored bytes match their checksum, but the codec can't decode them. Not repairable.
    Content {
        /// Block number.
        number: u64,
    },
}

impl Damage {
    /// Whether a repair can fix it.
    #[must_use]
    pub fn is_repairable(self) -> bool {
        matches!(self, Self::State | Self::Block { older: true, .. })
    }
}

/// The result of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Id of the codec; zeros if it can't be read.
    pub codec: [u8; 8],
    /// Plain size in bytes.
    pub size: u64,
    /// Plain size of a block in bytes.
    pub block: u64,
    /// Number of blocks checked, without holes.
    pub blocks: u64,
    /// Whether the blocks were decoded too.
    pub decoded: bool,
    /// Number of damages that remain.
    pub left: u64,
    /// Number of damages repaired.
    pub repaired: u64,
    /// Bytes that a repair returned to the lower file system.
    pub reclaimed: u64,
}

/// Substitute for an unknown codec: stored bytes are compared with their checksums but not decoded.
#[derive(Debug)]
struct Unknown {
    id: [u8; 8],
    block: u32,
}

impl BlockCodec for Unknown {
    fn id(&self) -> [u8; 8] {
        self.id
    }

    fn block_size(&self) -> u32 {
        self.block
    }

    fn max_encoded(&self, _plain: usize) -> usize {
        1
    }

    fn encode(&self, _at: &BlockAt, _plain: &[u8], _out: &mut Vec<u8>) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    fn decode(&self, _at: &BlockAt, _encoded: &[u8], _out: &mut [u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
}

/// Checks a file that nobody else uses: header, index, and the checksums of all stored bytes.
/// `codec` returns the codec for an id; with a codec, blocks are decoded too. `repair` restores the
/// previous version of each damaged block where that version is intact, and reclaims dead space;
/// the modification time does not change. `found` receives each damage.
///
/// Returns `None` if the file is empty or not a container.
///
/// # Errors
/// `EMEDIUMTYPE` for a container of a later version, `EINTR`, and errors of the lower file.
pub fn check(
    cx: &Cx<'_>,
    vnode: &Arc<dyn Vnode>,
    codec: &dyn Fn([u8; 8]) -> Option<Arc<dyn BlockCodec>>,
    repair: bool,
    found: &mut dyn FnMut(Damage),
) -> Result<Option<Report>> {
    let file = vnode.open(cx, if repair { OpenFlags::RDWR } else { OpenFlags::RDONLY })?;
    let head = match read_header(cx, &*file) {
        Ok(Found::Head(head)) => head,
        Ok(Found::Empty | Found::Blank | Found::Foreign) => return Ok(None),
        Err(Errno::IO) if has_bytes(cx, &*file) => {
            found(Damage::Header);
            return Ok(Some(Report { left: 1, ..Report::default() }));
        }
        Err(errno) => return Err(errno),
    };
    let block = head.fixed.geometry.block();
    let known = codec(head.fixed.codec);
    let mut report = Report { codec: head.fixed.codec, size: head.state.size, block, ..Report::default() };
    report.decoded = known.is_some();
    let codec = known.unwrap_or_else(|| Arc::new(Unknown { id: head.fixed.codec, block: block as u32 }));
    let container = Container::open(cx, codec, Arc::clone(vnode), file)?;
    let mut check = Check { container: &container, cx, repair, found, report, fresh: 0 };
    let time = vnode.getattr(cx)?.mtime;
    check.all(*head)?;
    if repair && vnode.getattr(cx)?.mtime != time {
        vnode.setattr(cx, &SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() }, None)?;
    }
    Ok(Some(check.report))
}

/// Whether the header can be read at all. Otherwise the disk is failing.
fn has_bytes(cx: &Cx<'_>, file: &dyn OpenFile) -> bool {
    file.read(cx, &mut [0; HEADER], 0).is_ok()
}

struct Check<'a, 'c> {
    container: &'a Container,
    cx: &'a Cx<'c>,
    repair: bool,
    found: &'a mut dyn FnMut(Damage),
    report: Report,
    /// Bytes that a fresh copy would occupy.
    fresh: u64,
}

impl Check<'_, '_> {
    fn all(&mut self, mut head: Head) -> Result<()> {
        let damaged = self.is_state_damaged()?;
        if damaged {
            self.note(Damage::State, self.repair);
        }
        if head.state.size > 0 {
            self.groups(&mut head)?;
        }
        if !self.repair {
            return Ok(());
        }
        let container = self.container;
        if damaged || self.report.repaired > 0 {
            // This overwrites the damaged record.
            let state = head.state;
            container.write_state(self.cx, &mut head, state)?;
            container.file.fsync(self.cx, false)?;
        }
        let taken = container.vnode.getattr(self.cx)?.blocks.saturating_mul(512);
        // Clearing a truncated tail needs the codec.
        if !self.report.decoded || !exceeds(taken.saturating_sub(MIN_DEAD), self.fresh, BOUND) {
            return Ok(());
        }
        // The container has not cached any of the index yet, so it sees the repaired one.
        container.inner.write().head = Some(head);
        self.reclaim(taken)?;
        container.close(self.cx)
    }

    fn note(&mut self, damage: Damage, repaired: bool) {
        (self.found)(damage);
        if repaired {
            self.report.repaired += 1;
        } else {
            self.report.left += 1;
        }
    }

    fn is_state_damaged(&self) -> Result<bool> {
        let mut header = [0; HEADER];
        self.container.read_lower(self.cx, &mut header, 0)?;
        Ok(has_damaged_state(&header))
    }

    fn groups(&mut self, head: &mut Head) -> Result<()> {
        let last = place_of((head.state.size - 1) / self.report.block).0;
        let mut next = 0;
        while let Some(number) = self.container.next_group(self.cx, head, next, last)? {
            self.cx.check()?;
            let group = Group::load(self.cx, &*self.container.file, &head.fixed, number)?;
            self.fresh += group.fresh();
            for at in 0..GROUP_BLOCKS {
                if (first_of(number) + at as u64).saturating_mul(self.report.block) < head.state.size {
                    self.block(head, &group, at)?;
                }
            }
            next = number + 1;
        }
        Ok(())
    }

    fn block(&mut self, head: &mut Head, group: &Group, at: usize) -> Result<()> {
        let number = first_of(group.number) + at as u64;
        let entry = group.entry(at)?;
        if !entry.is_data() {
            return Ok(());
        }
        self.report.blocks += 1;
        let mut buffer = Vec::new();
        match self.container.current(self.cx, head, group, at, &mut buffer) {
            Ok(Current::Hole) => {}
            Ok(Current::Data(version)) if self.report.decoded => {
                let mut plain = vec![0; version.plain as usize];
                let encoded = buffer.get(..version.len as usize).ok_or(Errno::IO)?;
                let at = BlockAt { file: head.fixed.file, block: number };
                if self.container.codec.decode(&at, encoded, &mut plain).is_err() {
                    self.note(Damage::Content { number }, false);
                }
            }
            Ok(Current::Data(_)) => {}
            Err(Errno::IO) => {
                let whole = self.intact_slot(head, group, at)?;
                let repaired = self.repair && whole.is_some();
                if let Some(slot) = whole.filter(|_| repaired) {
                    self.restore(head, group, at, slot)?;
                }
                self.note(Damage::Block { number, older: whole.is_some() }, repaired);
            }
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    /// Returns a slot of a damaged entry whose version is intact.
    fn intact_slot(&self, head: &Head, group: &Group, at: usize) -> Result<Option<usize>> {
        for (slot, what) in group.entry(at)?.slots.iter().enumerate() {
            if let Slot::Version(version) = what
                && self.container.is_intact(self.cx, head, group.number, version)?
            {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    /// Clears the other slot, which makes the version in `slot` the current one.
    fn restore(&self, head: &mut Head, group: &Group, at: usize, slot: usize) -> Result<()> {
        let mut group = group.clone();
        if let Some(other) = group.entry_mut(at)?.slots.get_mut(1 - slot) {
            *other = Slot::Empty;
        }
        let (offset, bytes) = group.bytes(&head.fixed, at, at);
        head.unsynced = true;
        self.container.write_lower(self.cx, &bytes, offset)
    }

    fn reclaim(&mut self, before: u64) -> Result<()> {
        match self.container.sync(self.cx, false).and_then(|()| {
            while self.container.compact(self.cx)? {}
            Ok(())
        }) {
            // Reclaiming failed; the file is unchanged.
            Ok(()) | Err(Errno::NOSPC | Errno::DQUOT | Errno::OPNOTSUPP | Errno::IO) => {}
            Err(errno) => return Err(errno),
        }
        let after = self.container.vnode.getattr(self.cx)?.blocks.saturating_mul(512);
        self.report.reclaimed = before.saturating_sub(after);
        Ok(())
    }
}
