use crate::belongs;
use crate::grant::OpenedWith;
use crate::keyring::Keyring;
use cryptformat::{BlockDamage, HEADER, HeaderDamage, RandomError};
use std::sync::Arc;
use vnode::{Cx, Errno, OpenFlags, Result};
use wrapfs::hooks::{FileFormat, FormatBlock, Object, Sealed, State};

/// Encrypts the blocks of files, each with the key that its open file was opened with.
#[derive(Debug)]
pub(crate) struct EncryptedBlocks {
    pub(crate) keyring: Arc<Keyring>,
    /// Set on a bound volume.
    pub(crate) seals: Option<Seals>,
}

/// What happens to files that are not what their seals say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seals {
    /// Their broken parts fail with `EIO`.
    Checked,
    /// They are read as they are. The layer is read-only.
    Ignored,
}

/// Returns the key that a file was opened with.
pub(crate) fn keys_of(opened: Option<&State>) -> Result<&OpenedWith> {
    opened.and_then(|opened| opened.downcast_ref::<OpenedWith>()).ok_or(Errno::NOKEY)
}

/// Returns the file's id. The header has been checked.
pub(crate) fn header_id(header: &[u8]) -> Result<&[u8; 16]> {
    header.get(..HEADER).and_then(<[u8]>::last_chunk).ok_or(Errno::IO)
}

impl EncryptedBlocks {
    fn new_id(&self) -> core::result::Result<[u8; HEADER], RandomError> {
        if self.seals.is_some() { cryptformat::new_sealed_id() } else { cryptformat::new_header() }
    }

    fn check(&self, header: &[u8]) -> core::result::Result<[u8; 16], HeaderDamage> {
        if self.seals.is_some() { cryptformat::check_sealed_header(header) } else { cryptformat::check_header(header) }
    }
}

impl FileFormat for EncryptedBlocks {
    fn sealed(&self) -> Option<&dyn Sealed> {
        self.seals.is_some().then_some(self as &dyn Sealed)
    }

    fn opened(&self, cx: &Cx<'_>, file: &Object<'_>, _flags: OpenFlags) -> Result<Option<State>> {
        let opened = self.keyring.open(cx, file.id())?;
        if self.keyring.has_several_keys() {
            belongs::check(cx, file, &opened)?;
        }
        Ok(Some(Arc::new(opened)))
    }

    fn used(&self, _cx: &Cx<'_>, opened: Option<&State>) -> Result<()> {
        // Holes, and blocks that are cut off, need no key.
        keys_of(opened)?.check()
    }

    fn new_header(&self, _cx: &Cx<'_>, _file: &Object<'_>, header: &mut [u8]) -> Result<()> {
        // What follows in a sealed header is written with the seal.
        let id = self.new_id().map_err(|_| Errno::IO)?;
        header.get_mut(..HEADER).ok_or(Errno::IO)?.copy_from_slice(&id);
        Ok(())
    }

    fn check_header(&self, _cx: &Cx<'_>, file: &Object<'_>, header: &[u8]) -> Result<()> {
        match self.check(header) {
            Ok(_) => Ok(()),
            Err(damage) => {
                tracing::warn!(inode = file.id(), "{damage}");
                Err(Errno::IO)
            }
        }
    }

    fn encode_block(&self, _cx: &Cx<'_>, at: &FormatBlock<'_>, plain: &[u8], stored: &mut [u8]) -> Result<()> {
        let id = header_id(at.header)?;
        keys_of(at.opened)?
            .with(|keys| keys.seal_block(id, at.number, plain, stored).map_err(|damage| errno(at, damage)))
    }

    fn decode_block(&self, _cx: &Cx<'_>, at: &FormatBlock<'_>, stored: &[u8], plain: &mut [u8]) -> Result<()> {
        let id = header_id(at.header)?;
        keys_of(at.opened)?
            .with(|keys| keys.open_block(id, at.number, stored, plain).map_err(|damage| errno(at, damage)))
    }
}

fn errno(at: &FormatBlock<'_>, damage: BlockDamage) -> Errno {
    tracing::warn!(inode = at.file.id(), block = at.number, "{damage}");
    Errno::IO
}
