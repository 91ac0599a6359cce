use super::super::data::{Scratch, blocking};
use super::file::{FormatFile, Undo};
use vnode::{Attr, Cx, Errno, Result, SetAttr};

impl<'f> FormatFile<'f> {
    /// Changes attributes, including the size: truncates, or extends by a hole. The last block,
    /// before or after the change, is re-encoded at its new length.
    pub(crate) fn resize(&self, cx: &Cx<'_>, set: &SetAttr, new: u64) -> Result<Attr> {
        if new > self.layout().max_size() {
            return Err(Errno::FBIG);
        }
        let stored = self.stored(cx)?;
        let size = self.layout().plain_size(stored);
        self.check_length(cx, if new == 0 { 0 } else { stored })?;
        let below = SetAttr { size: Some(self.layout().stored_size(new)), ..*set };
        let cx = &blocking(cx);
        self.settle()?;
        let mut undo = Undo::new(stored);
        let made = if new > size {
            self.grow(cx, &mut undo, size, new)
        } else if new < size && !new.is_multiple_of(self.layout().plain()) {
            self.cut(cx, &mut undo, new)
        } else {
            Ok(())
        };
        let answer = made.and_then(|()| {
            self.record_size(cx, &mut undo, new)?;
            self.write_seal(cx, &mut undo)?;
            if new < size {
                // A shorter file is not looked at again after a power failure.
                self.make_durable(cx, undo.recorded.as_ref())?;
            }
            self.vnode.setattr(cx, &below, Some(self.file))
        });
        // Bytes that were cut off are lost, so there is no way back if another step fails.
        let is_cut = || new < size && self.stored(cx).is_ok_and(|now| Some(now) == below.size);
        if answer.is_err() && !is_cut() {
            self.undo(cx, undo);
            return answer;
        }
        if new == 0 {
            self.inode.forget_header();
        }
        let finished = self.finish(cx, &mut undo.recorded);
        answer.and_then(|attr| finished.map(|()| attr))
    }

    /// Shortens the block that will be the last one.
    fn cut(&self, cx: &Cx<'_>, undo: &mut Undo<'f>, new: u64) -> Result<()> {
        let header = self.header(cx)?.ok_or(Errno::IO)?;
        let (number, rest) = (new / self.layout().plain(), new % self.layout().plain());
        let old = self.old_block(cx, number)?;
        let mut plain = Scratch::take(self.layout().plain() as usize);
        self.decode_old(cx, (&header, number), &old, &mut plain)?;
        plain.shorten(rest as usize);
        let sizes = (undo.stored, self.layout().stored_size(new));
        let seal = self.seal_cut(cx, (&header, number), &old, new)?;
        self.put(cx, undo, (&header, number), (old, &plain), sizes, seal)
    }

    /// Extends the last block, and writes the new last block if it is partial: only whole blocks
    /// can be holes.
    fn grow(&self, cx: &Cx<'_>, undo: &mut Undo<'f>, size: u64, new: u64) -> Result<()> {
        let plain = self.layout().plain();
        let header = if size == 0 {
            let header = self.new_header(cx)?;
            self.write_header(cx, &header, undo.stored)?;
            header
        } else {
            self.header(cx)?.ok_or(Errno::IO)?
        };
        let right = self.layout().stored_size(size);
        if size > 0 && undo.stored > right {
            self.set_size_below(cx, right)?;
            undo.stored = right;
        }
        let mut stored = if size == 0 { self.layout().header() } else { right };
        if !size.is_multiple_of(plain) {
            let number = size / plain;
            let old = self.old_block(cx, number)?;
            let mut bytes = Scratch::take(plain as usize);
            let len = self.decode_old(cx, (&header, number), &old, &mut bytes)?;
            bytes.shorten((new - number * plain).min(plain) as usize);
            bytes.get_mut(len..).unwrap_or_default().fill(0);
            let size = number * plain + bytes.len() as u64;
            let after = self.layout().stored_size(size);
            let seal = self.seal_without(cx, (&header, number), &old, size)?;
            self.put(cx, undo, (&header, number), (old, &bytes), (stored, after), seal)?;
            self.complete(cx, undo)?;
            stored = after;
        }
        let (number, rest) = (new / plain, new % plain);
        if rest > 0 && number * plain >= size {
            let (none, sizes) = (Scratch::take(0), (stored, self.layout().stored_size(new)));
            let seal = self.seal_without(cx, (&header, number), &none, new)?;
            self.put(cx, undo, (&header, number), (none, &vec![0; rest as usize]), sizes, seal)?;
            self.complete(cx, undo)?;
        }
        Ok(())
    }
}
