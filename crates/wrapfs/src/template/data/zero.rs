/// Whether all bytes are zero. The first bytes usually decide.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (chunks, rest) = bytes.as_chunks::<64>();
    chunks.iter().all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0) && rest.iter().all(|&byte| byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_counts() {
        for len in [0, 1, 63, 64, 65, 200] {
            let mut bytes = vec![0; len];
            assert!(is_zero(&bytes));
            for i in 0..len {
                bytes[i] = 1;
                assert!(!is_zero(&bytes), "{i} of {len}");
                bytes[i] = 0;
            }
        }
    }
}
