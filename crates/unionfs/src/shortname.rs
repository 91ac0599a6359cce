use std::fmt;

const INLINE: usize = 22;

/// A name stored in a vnode. Short names need no allocation.
#[derive(Clone)]
pub(crate) enum ShortName {
    Inline(u8, [u8; INLINE]),
    Heap(Box<[u8]>),
}

impl ShortName {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut inline = [0; INLINE];
        match (inline.get_mut(..bytes.len()), u8::try_from(bytes.len())) {
            (Some(room), Ok(len)) => {
                room.copy_from_slice(bytes);
                Self::Inline(len, inline)
            }
            _ => Self::Heap(bytes.into()),
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Inline(len, bytes) => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Self::Heap(bytes) => bytes,
        }
    }
}

impl fmt::Debug for ShortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_lengths_are_stored() {
        for len in [0, 1, 21, 22, 23, 255] {
            let bytes = vec![b'n'; len];
            assert_eq!(ShortName::new(&bytes).as_bytes(), bytes);
        }
        assert!(size_of::<ShortName>() <= 24);
    }
}
