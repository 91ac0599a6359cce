use vnode::{Errno, Result};

/// Reads a value of unknown size: queries the size, then the value, until both agree.
pub(crate) fn read_sized(mut read: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    loop {
        let len = read(&mut [])?;
        if len == 0 {
            return Ok(Vec::new());
        }
        let mut value = vec![0; len];
        match read(&mut value) {
            Ok(len) => {
                value.truncate(len);
                return Ok(value);
            }
            Err(Errno::RANGE) => {}
            Err(e) => return Err(e),
        }
    }
}
