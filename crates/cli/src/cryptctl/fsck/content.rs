//! The content of a file: its header and each block.

use super::report::{Blocks, Kind, Place, Report};
use super::seal::Weighing;
use cryptformat::{BlockDamage, Keys, is_hole};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Blocks that are read at once.
const AT_ONCE: usize = 64;

/// Decrypts a file of `size` stored bytes.
pub(super) fn check(keys: &Keys, file: &File, size: u64, place: &Place, report: &mut Report) {
    if let Err(error) = Content::new(keys, file, size, place, report).check() {
        report.found(Kind::Unreadable, place, &error.to_string());
    }
}

/// Whether the key decrypts the first block with data. `None` if there is none, or if it can't be
/// read.
pub(super) fn is_of_key(keys: &Keys, file: &File, size: u64) -> Option<bool> {
    let layout = keys.layout();
    let start = layout.header as u64;
    let mut header = vec![0; layout.header];
    file.read_exact_at(&mut header, 0).ok()?;
    let id = keys.check_header(&header).ok()?;
    if keys.is_bound() && keys.open_header(&id, &header).is_ok() {
        return Some(true);
    }
    let (stored, mut number) = (layout.stored as u64, 0);
    loop {
        // Blocks share pages with holes, so what is no hole below may be one here.
        let from = start + number * stored;
        let data = rustix::fs::seek(file, SeekFrom::Data(from)).ok()?.max(from);
        number = (data - start) / stored;
        let at = start + number * stored;
        let mut block = vec![0; layout.stored.min(usize::try_from(size.checked_sub(at)?).ok()?)];
        file.read_exact_at(&mut block, at).ok()?;
        if !is_hole(&layout, &block) {
            let mut plain = vec![0; block.len().saturating_sub(layout.overhead())];
            return Some(keys.open_block(&id, number, &block, &mut plain).is_ok());
        }
        number += 1;
    }
}

struct Content<'a> {
    keys: &'a Keys,
    file: &'a File,
    size: u64,
    place: &'a Place,
    report: &'a mut Report,
    /// Adjacent blocks with the same damage.
    pending: Option<(u64, u64, BlockDamage)>,
}

impl<'a> Content<'a> {
    fn new(keys: &'a Keys, file: &'a File, size: u64, place: &'a Place, report: &'a mut Report) -> Self {
        Self { keys, file, size, place, report, pending: None }
    }

    fn check(&mut self) -> std::io::Result<()> {
        if self.size == 0 {
            return Ok(());
        }
        let len = self.keys.layout().header;
        let mut header = vec![0; len.min(usize::try_from(self.size).unwrap_or(len))];
        self.file.read_exact_at(&mut header, 0)?;
        let id = match self.keys.check_header(&header) {
            Ok(id) => id,
            Err(damage) => {
                self.report.found(Kind::Header, self.place, &format!("{damage}; no block can be decrypted"));
                return Ok(());
            }
        };
        let mut weighing = if self.keys.is_bound() {
            match self.keys.open_header(&id, &header) {
                Ok(seal) => Some(Weighing::new(seal)),
                Err(damage) => {
                    self.report.found(Kind::Header, self.place, &format!("seal: {damage}"));
                    None
                }
            }
        } else {
            None
        };
        let checked = self.blocks(&id, weighing.as_mut());
        self.report_pending();
        checked?;
        if let Some(weighing) = weighing {
            weighing.report(&self.keys.layout(), self.size, self.place, self.report);
        }
        Ok(())
    }

    fn blocks(&mut self, id: &[u8; 16], mut weighing: Option<&mut Weighing>) -> std::io::Result<()> {
        let layout = self.keys.layout();
        let stored = layout.stored as u64;
        let mut batch = vec![0; AT_ONCE * layout.stored];
        let mut plain = vec![0; layout.plain];
        let (mut number, mut at) = (0, layout.header as u64);
        while at < self.size {
            let holes = self.holes(at) / stored;
            number += holes;
            at += holes * stored;
            let left = usize::try_from(self.size - at).unwrap_or(usize::MAX);
            let read = batch.len().min(left);
            let Some(bytes) = batch.get_mut(..read) else { break };
            self.file.read_exact_at(bytes, at)?;
            for block in bytes.chunks(layout.stored) {
                if !is_hole(&layout, block) {
                    let out = plain.get_mut(..block.len().saturating_sub(layout.overhead())).unwrap_or_default();
                    if let Err(damage) = self.keys.open_block(id, number, block, out) {
                        self.damaged(number, damage);
                    }
                    if let Some(weighing) = &mut weighing {
                        weighing.add(number, self.keys.weigh(id, number, block));
                    }
                }
                number += 1;
            }
            at += read as u64;
            self.report.progress(read as u64);
        }
        Ok(())
    }

    /// Returns the number of bytes from `at` that the file system below stores as a hole.
    fn holes(&self, at: u64) -> u64 {
        match rustix::fs::seek(self.file, SeekFrom::Data(at)) {
            Ok(data) => data.saturating_sub(at),
            // No more data.
            Err(Errno::NXIO) => self.size - at,
            Err(_) => 0,
        }
    }

    fn damaged(&mut self, number: u64, damage: BlockDamage) {
        match &mut self.pending {
            Some((_, last, same)) if *same == damage && *last + 1 == number => *last = number,
            _ => {
                self.report_pending();
                self.pending = Some((number, number, damage));
            }
        }
    }

    fn report_pending(&mut self) {
        let Some((first, last, damage)) = self.pending.take() else { return };
        let layout = self.keys.layout();
        let (plain, size) = (layout.plain as u64, layout.plain_size(self.size));
        let end = (last + 1).saturating_mul(plain).min(size);
        let bytes = (first * plain < end).then(|| (first * plain, end - 1));
        self.report.found_blocks(self.place, &damage.to_string(), Blocks { first, last, bytes });
    }
}
