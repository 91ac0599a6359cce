use super::lower::CodedFile;
use super::scratch::Scratch;
use vnode::{Cx, Result};

impl CodedFile<'_> {
    /// Reads a range. The range is extended to block boundaries, and whole blocks are decoded
    /// directly into `out`.
    pub(crate) fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        let block = self.coding.block();
        let mut done = 0;
        while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = offset.saturating_add(done as u64);
            let skip = (at % block) as usize;
            let span = (skip + rest.len()).next_multiple_of(block as usize).min(self.coding.chunk());
            let mut encoded = Scratch::take(span);
            let got = self.read_below(cx, &mut encoded, at - skip as u64)?;
            done += self.decode_span(cx, at / block, encoded.get(..got).unwrap_or_default(), skip, rest)?;
            if got < span {
                break;
            }
        }
        Ok(done)
    }

    /// Decodes blocks starting with `first` into `out`, skipping the first `skip` bytes. Returns
    /// the number of bytes produced.
    fn decode_span(&self, cx: &Cx<'_>, first: u64, encoded: &[u8], mut skip: usize, out: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        for (number, bytes) in (first..).zip(encoded.chunks(self.coding.block() as usize)) {
            let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) else { break };
            if skip == 0 && rest.len() >= bytes.len() {
                let (whole, _) = rest.split_at_mut(bytes.len());
                self.decode(cx, number, bytes, whole)?;
                done += bytes.len();
                continue;
            }
            let mut plain = Scratch::take(bytes.len());
            self.decode(cx, number, bytes, &mut plain)?;
            let part = plain.get(skip..).unwrap_or_default();
            let len = part.len().min(rest.len());
            rest.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
            done += len;
            skip = 0;
        }
        Ok(done)
    }
}
