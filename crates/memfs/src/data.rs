use std::collections::BTreeMap;
use std::sync::Arc;

/// Allocation unit in bytes.
pub(crate) const PAGE: u64 = 4096;

/// The data of a file: written pages with holes between them. Copies share pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Data {
    size: u64,
    pages: BTreeMap<u64, Arc<[u8; PAGE as usize]>>,
}

impl Data {
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the number of allocated pages.
    pub(crate) fn allocated(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Returns the number of pages that writing the range would allocate.
    pub(crate) fn needed(&self, offset: u64, len: u64) -> u64 {
        if len == 0 {
            return 0;
        }
        let (first, last) = (offset / PAGE, (offset + len - 1) / PAGE);
        (last - first + 1) - self.pages.range(first..=last).count() as u64
    }

    /// Reads up to the end of the file.
    pub(crate) fn read(&self, out: &mut [u8], offset: u64) -> usize {
        let len = self.size.saturating_sub(offset).min(out.len() as u64) as usize;
        let mut done = 0;
        while let Some(rest) = out.get_mut(done..len).filter(|rest| !rest.is_empty()) {
            let at = offset + done as u64;
            let start = (at % PAGE) as usize;
            let n = rest.len().min(PAGE as usize - start);
            let Some(to) = rest.get_mut(..n) else { break };
            match self.pages.get(&(at / PAGE)).and_then(|page| page.get(start..start + n)) {
                Some(from) => to.copy_from_slice(from),
                None => to.fill(0),
            }
            done += n;
        }
        len
    }

    /// Writes all data, extending the file if needed.
    pub(crate) fn write(&mut self, data: &[u8], offset: u64) {
        let mut done = 0;
        while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
            let at = offset + done as u64;
            let start = (at % PAGE) as usize;
            let n = rest.len().min(PAGE as usize - start);
            if let (Some(to), Some(from)) = (self.page(at / PAGE).get_mut(start..start + n), rest.get(..n)) {
                to.copy_from_slice(from);
            }
            done += n;
        }
        if !data.is_empty() {
            self.size = self.size.max(offset + data.len() as u64);
        }
    }

    fn page(&mut self, index: u64) -> &mut [u8; PAGE as usize] {
        Arc::make_mut(self.pages.entry(index).or_insert_with(|| Arc::new([0; PAGE as usize])))
    }

    /// Truncates, or extends by a hole.
    pub(crate) fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size.next_multiple_of(PAGE) - size);
            let _cut = self.pages.split_off(&size.div_ceil(PAGE));
        }
        self.size = size;
    }

    /// Allocates pages of zeros. Extends the file unless `keep_size` is set.
    pub(crate) fn allocate(&mut self, offset: u64, len: u64, keep_size: bool) {
        let end = offset + len;
        for index in offset / PAGE..end.div_ceil(PAGE) {
            self.page(index);
        }
        if !keep_size {
            self.size = self.size.max(end);
        }
    }

    /// Punches a hole: whole pages are freed, partial pages zeroed.
    pub(crate) fn punch(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        self.zero(offset, len);
        // A range within one page contains no whole page: its first whole page lies after its last.
        let first = offset.div_ceil(PAGE);
        let whole: Vec<u64> = self.pages.range(first..first.max(end / PAGE)).map(|(&index, _)| index).collect();
        for index in whole {
            self.pages.remove(&index);
        }
    }

    /// Zeroes the allocated part of the range.
    pub(crate) fn zero(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        let touched = self.pages.range_mut(offset / PAGE..end.div_ceil(PAGE));
        for (&index, page) in touched {
            let start = offset.saturating_sub(index * PAGE).min(PAGE) as usize;
            let stop = (end - index * PAGE).min(PAGE) as usize;
            if let Some(bytes) = Arc::make_mut(page).get_mut(start..stop) {
                bytes.fill(0);
            }
        }
    }

    /// Returns the next data at or after the offset, or `None` if there is none before the end.
    pub(crate) fn next_data(&self, offset: u64) -> Option<u64> {
        let (&index, _) = self.pages.range(offset / PAGE..).next()?;
        Some(offset.max(index * PAGE)).filter(|&found| found < self.size)
    }

    /// Returns the next hole at or after the offset. The end of the file counts as a hole.
    pub(crate) fn next_hole(&self, offset: u64) -> u64 {
        let mut index = offset / PAGE;
        while self.pages.contains_key(&index) {
            index += 1;
        }
        offset.max(index * PAGE).min(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_found_and_read_as_zeros() {
        let mut data = Data::default();
        data.write(b"x", 3 * PAGE);
        assert_eq!((data.size(), data.allocated()), (3 * PAGE + 1, 1));
        assert_eq!(data.next_data(0), Some(3 * PAGE));
        assert_eq!(data.next_hole(0), 0);
        assert_eq!(data.next_hole(3 * PAGE), 3 * PAGE + 1);
        data.truncate(5 * PAGE);
        assert_eq!(data.next_hole(3 * PAGE), 4 * PAGE);
        assert_eq!(data.next_data(4 * PAGE), None);
        let mut out = [9; 4];
        assert_eq!(data.read(&mut out, 3 * PAGE - 2), 4);
        assert_eq!(out, [0, 0, b'x', 0]);
    }

    #[test]
    fn truncated_data_does_not_reappear() {
        let mut data = Data::default();
        data.write(&[7; 6000], 0);
        data.truncate(10);
        data.truncate(6000);
        let mut out = [1; 6000];
        assert_eq!(data.read(&mut out, 0), 6000);
        assert_eq!((&out[..10], &out[10..]), (&[7; 10][..], &[0; 5990][..]));
        assert_eq!(data.allocated(), 1);
    }

    #[test]
    fn punching_frees_whole_pages_and_zeroes_parts() {
        let mut data = Data::default();
        data.write(&[7; 4 * PAGE as usize], 0);
        data.punch(PAGE / 2, 2 * PAGE);
        assert_eq!(data.allocated(), 3);
        assert_eq!(data.next_hole(0), PAGE);
        let mut out = [1; 3 * PAGE as usize];
        data.read(&mut out, 0);
        assert!(out[PAGE as usize / 2..5 * PAGE as usize / 2].iter().all(|&b| b == 0));
        assert_eq!((out[0], out[5 * PAGE as usize / 2]), (7, 7));
        assert_eq!(data.needed(0, 4 * PAGE), 1);
    }
}
