use crate::belongs;
use crate::grant::OpenedWith;
use crate::keyring::Keyring;
use cryptformat::{BlockDamage, Keys};
use std::sync::Arc;
use vnode::{Cx, Errno, OpenFlags, Result};
use wrapfs::hooks::{FileFormat, FormatBlock, Object, State};

/// Encrypts the blocks of files, each with the key that its open file was opened with.
#[derive(Debug)]
pub(crate) struct EncryptedBlocks(pub(crate) Arc<Keyring>);

/// Uses the key of the block's open file.
fn with<T>(at: &FormatBlock<'_>, act: impl FnOnce(&Keys) -> Result<T>) -> Result<T> {
    at.opened.and_then(|opened| opened.downcast_ref::<OpenedWith>()).ok_or(Errno::NOKEY)?.with(act)
}

/// Returns the file's id. The header has been checked.
fn id<'a>(at: &FormatBlock<'a>) -> Result<&'a [u8; 16]> {
    at.header.last_chunk().ok_or(Errno::IO)
}

impl FileFormat for EncryptedBlocks {
    fn opened(&self, cx: &Cx<'_>, file: &Object<'_>, _flags: OpenFlags) -> Result<Option<State>> {
        let opened = self.0.open(cx, file.id())?;
        if self.0.has_several_keys() {
            belongs::check(cx, file, &opened)?;
        }
        Ok(Some(Arc::new(opened)))
    }

    fn new_header(&self, _cx: &Cx<'_>, _file: &Object<'_>, header: &mut [u8]) -> Result<()> {
        header.copy_from_slice(&cryptformat::new_header().map_err(|_| Errno::IO)?);
        Ok(())
    }

    fn check_header(&self, _cx: &Cx<'_>, file: &Object<'_>, header: &[u8]) -> Result<()> {
        match cryptformat::check_header(header) {
            Ok(_) => Ok(()),
            Err(damage) => {
                tracing::warn!(inode = file.id(), "{damage}");
                Err(Errno::IO)
            }
        }
    }

    fn encode_block(&self, _cx: &Cx<'_>, at: &FormatBlock<'_>, plain: &[u8], stored: &mut [u8]) -> Result<()> {
        let id = id(at)?;
        with(at, |keys| keys.seal_block(id, at.number, plain, stored).map_err(|damage| errno(at, damage)))
    }

    fn decode_block(&self, _cx: &Cx<'_>, at: &FormatBlock<'_>, stored: &[u8], plain: &mut [u8]) -> Result<()> {
        let id = id(at)?;
        with(at, |keys| keys.open_block(id, at.number, stored, plain).map_err(|damage| errno(at, damage)))
    }
}

fn errno(at: &FormatBlock<'_>, damage: BlockDamage) -> Errno {
    tracing::warn!(inode = at.file.id(), block = at.number, "{damage}");
    Errno::IO
}
