//! Encoding of numbers and byte strings in records and headers: little-endian, checked.

use vnode::Time;

/// Appends values to a buffer.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn time(&mut self, time: Time) {
        self.u64(time.sec.cast_unsigned());
        self.u32(time.nsec);
    }

    /// Appends a length and the bytes, at most 65,535 of them.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&len.to_le_bytes());
        self.0.extend_from_slice(bytes.get(..usize::from(len)).unwrap_or(bytes));
    }
}

impl Writer {
    /// Appends a payload with its length and its checksum.
    pub(crate) fn framed(&mut self, payload: &[u8]) {
        self.bytes(payload);
        self.u32(crc32c::crc32c(payload));
    }

    /// Appends a number in groups of seven bits, the lowest first (LEB128).
    pub(crate) fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
            value >>= 7;
        }
        self.0.push(u8::try_from(value).unwrap_or(0));
    }
}

/// Reads values from a buffer. Every method returns `None` at its end.
#[derive(Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn time(&mut self) -> Option<Time> {
        let (sec, nsec) = (self.u64()?.cast_signed(), self.u32()?);
        (nsec < 1_000_000_000).then_some(Time { sec, nsec })
    }

    /// Reads a number as [`Writer::varint`] wrote it, in the shortest form only.
    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits || (byte == 0 && shift > 0) {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    /// Reads a payload as [`Writer::framed`] wrote it.
    pub(crate) fn framed(&mut self) -> Option<&'a [u8]> {
        let payload = self.bytes()?;
        (self.u32()? == crc32c::crc32c(payload)).then_some(payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_are_read_as_they_were_written() {
        for value in (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit]).chain([u64::MAX]) {
            let mut out = Writer::default();
            out.varint(value);
            assert_eq!(Reader(&out.0).varint(), Some(value));
            assert_eq!(Reader(&out.0[..out.0.len() - 1]).varint(), None);
        }
        assert_eq!(Reader(&[0x80, 0]).varint(), None);
        assert_eq!(Reader(&[0xff; 11]).varint(), None);
    }
}
