//! The two ioctls of the mount's root that read and set the level of the log.

use crate::DebugLevel;
use fuse::Reply;
use fuse::control::{GET_DEBUG, SET_DEBUG};
use std::sync::Arc;
use vnode::{Errno, IoctlReply};

/// Who may set the level besides root, and what sets it.
#[derive(Debug)]
pub(crate) struct Debug {
    pub(crate) owner: u32,
    pub(crate) level: Option<Arc<dyn DebugLevel>>,
}

impl Debug {
    /// `EPERM` for anybody but root and the owner.
    pub(crate) fn check_owner(&self, uid: u32) -> Reply<()> {
        if uid == 0 || uid == self.owner { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Answers an ioctl on the root by `uid`; `None`: it is not one of these.
    pub(crate) fn ioctl(&self, uid: u32, cmd: u32, input: &[u8], out: &mut [u8]) -> Option<Reply<IoctlReply>> {
        let level = self.level.as_ref()?;
        match cmd {
            GET_DEBUG => Some(get(&**level, out)),
            SET_DEBUG => Some(self.check_owner(uid).and_then(|()| set(&**level, input))),
            _ => None,
        }
    }
}

fn get(level: &dyn DebugLevel, out: &mut [u8]) -> Reply<IoctlReply> {
    let bytes = level.get().to_ne_bytes();
    out.get_mut(..bytes.len()).ok_or(Errno::INVAL)?.copy_from_slice(&bytes);
    Ok(IoctlReply { result: 0, len: bytes.len() })
}

fn set(level: &dyn DebugLevel, input: &[u8]) -> Reply<IoctlReply> {
    let bytes = input.get(..4).and_then(|bytes| bytes.try_into().ok()).ok_or(Errno::INVAL)?;
    if level.set(u32::from_ne_bytes(bytes)) { Ok(IoctlReply::default()) } else { Err(Errno::INVAL) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU32, Ordering};

    #[derive(Debug, Default)]
    struct Level(AtomicU32);

    impl DebugLevel for Level {
        fn get(&self) -> u32 {
            self.0.load(Ordering::Relaxed)
        }

        fn set(&self, level: u32) -> bool {
            if level < 6 {
                self.0.store(level, Ordering::Relaxed);
            }
            level < 6
        }
    }

    #[test]
    fn root_and_the_owner_set_the_level_and_all_may_ask() {
        let debug = Debug { owner: 7, level: Some(Arc::new(Level::default())) };
        let set = |uid, level: u32| debug.ioctl(uid, SET_DEBUG, &level.to_ne_bytes(), &mut []);
        assert_eq!(set(0, 5), Some(Ok(IoctlReply::default())));
        assert_eq!(set(8, 1), Some(Err(Errno::PERM)));
        assert_eq!(set(7, 4), Some(Ok(IoctlReply::default())));
        assert_eq!(set(0, 6), Some(Err(Errno::INVAL)));
        let mut out = [0; 4];
        assert_eq!(debug.ioctl(8, GET_DEBUG, &[], &mut out), Some(Ok(IoctlReply { result: 0, len: 4 })));
        assert_eq!(u32::from_ne_bytes(out), 4);
    }

    #[test]
    fn other_ioctls_and_short_ones_are_told_apart() {
        let debug = Debug { owner: 0, level: Some(Arc::new(Level::default())) };
        assert_eq!(debug.ioctl(0, 0x1234, &[], &mut []), None);
        assert_eq!(debug.ioctl(0, SET_DEBUG, &[1], &mut []), Some(Err(Errno::INVAL)));
        assert_eq!(debug.ioctl(0, GET_DEBUG, &[], &mut [0; 2]), Some(Err(Errno::INVAL)));
        assert_eq!(Debug { owner: 0, level: None }.ioctl(0, GET_DEBUG, &[], &mut [0; 4]), None);
    }
}
