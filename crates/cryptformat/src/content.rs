//! The content of files: a header, then encrypted blocks of 4 KiB. An empty file has neither.

use crate::error::{BlockDamage, HeaderDamage, RandomError};
use crate::flags::{ContentCipher, Flags, NONCE_MAX};
use crate::keys::Keys;
use crate::random;
use cryptsys::TAG;

/// Size of the header in bytes.
pub const HEADER: usize = 18;
/// Plain bytes of a block. The last one of a file may have fewer.
pub const BLOCK_PLAIN: usize = 4096;
/// Size of a file's id in bytes.
pub(crate) const ID: usize = 16;
/// The version of the format, at the start of each header.
const VERSION: [u8; 2] = [0, 2];
/// Size of a sealed header in bytes: a page, so that no kill of a writer tears it.
pub const SEALED_HEADER: usize = 4096;
/// The version at the start of a sealed header.
pub(crate) const SEALED_VERSION: [u8; 2] = [0, 3];

/// The sizes of the parts of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the header.
    pub header: usize,
    /// Plain bytes of a whole block.
    pub plain: usize,
    /// Stored bytes of a whole block.
    pub stored: usize,
}

impl Layout {
    /// Returns the layout of a volume with this cipher, which is not bound.
    #[must_use]
    pub fn of(cipher: ContentCipher) -> Self {
        Self::of_flags(&Flags { cipher, ..Flags::default() })
    }

    /// Returns the layout of a volume with these features.
    #[must_use]
    pub fn of_flags(flags: &Flags) -> Self {
        Self::with(header_len(flags.bound), flags.cipher.nonce_len())
    }

    fn with(header: usize, nonce: usize) -> Self {
        Self { header, plain: BLOCK_PLAIN, stored: nonce + BLOCK_PLAIN + TAG }
    }

    /// Bytes by which a stored block is longer than its plain bytes.
    #[must_use]
    pub fn overhead(&self) -> usize {
        self.stored - self.plain
    }

    /// Returns the size of the plain file, from the size of the file that stores it. A last block
    /// that is too short to contain a byte counts as none.
    #[must_use]
    pub fn plain_size(&self, stored_size: u64) -> u64 {
        let Some(blocks) = stored_size.checked_sub(self.header as u64) else { return 0 };
        let (stored, plain) = (self.stored as u64, self.plain as u64);
        let last = (blocks % stored).saturating_sub(self.overhead() as u64);
        (blocks / stored).saturating_mul(plain).saturating_add(last)
    }

    /// Returns the size of the file that stores a plain file of this size, or `None` if it is
    /// larger than a file can be.
    #[must_use]
    pub fn stored_size(&self, plain_size: u64) -> Option<u64> {
        if plain_size == 0 {
            return Some(0);
        }
        let blocks = plain_size.div_ceil(self.plain as u64);
        let size =
            blocks.checked_mul(self.overhead() as u64)?.checked_add(plain_size)?.checked_add(self.header as u64)?;
        (i64::try_from(size).is_ok()).then_some(size)
    }
}

/// Returns the size of the header on a volume that is bound or not.
const fn header_len(bound: bool) -> usize {
    if bound { SEALED_HEADER } else { HEADER }
}

/// Whether a stored block is a hole: a whole block of zeros, which stands for plain zeros. It is
/// not authenticated.
#[must_use]
pub fn is_hole(layout: &Layout, stored: &[u8]) -> bool {
    stored.len() == layout.stored && is_zero(stored)
}

pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// Additional authenticated data of a block: where it belongs.
pub(crate) fn place(id: &[u8; ID], number: u64) -> [u8; 8 + ID] {
    let mut place = [0; 8 + ID];
    let (front, back) = place.split_at_mut(8);
    front.copy_from_slice(&number.to_be_bytes());
    back.copy_from_slice(id);
    place
}

/// Returns a header with a new random id.
///
/// # Errors
/// The kernel has no random numbers.
pub fn new_header() -> Result<[u8; HEADER], RandomError> {
    let mut header = [0; HEADER];
    let (version, id) = header.split_at_mut(VERSION.len());
    version.copy_from_slice(&VERSION);
    random::fill(id)?;
    Ok(header)
}

/// Checks a header and returns the file's id. `header` is untrusted, and not authenticated:
/// blocks of another file don't open under this id.
///
/// # Errors
/// What is wrong with it.
pub fn check_header(header: &[u8]) -> Result<[u8; ID], HeaderDamage> {
    let header: &[u8; HEADER] = header.try_into().map_err(|_| HeaderDamage::Length)?;
    if is_zero(header) {
        return Err(HeaderDamage::Zeros);
    }
    let Some(id) = header.strip_prefix(&VERSION) else { return Err(HeaderDamage::Version) };
    if is_zero(id) {
        return Err(HeaderDamage::ZeroId);
    }
    id.try_into().map_err(|_| HeaderDamage::Length)
}

/// Returns the start of a sealed header, with a new random id.
///
/// # Errors
/// The kernel has no random numbers.
pub fn new_sealed_id() -> Result<[u8; HEADER], RandomError> {
    let mut start = new_header()?;
    start.iter_mut().zip(SEALED_VERSION).for_each(|(to, version)| *to = version);
    Ok(start)
}

/// Checks the start of a sealed header and returns the file's id. `header` is untrusted.
/// [`Keys::open_header`] authenticates all of it.
///
/// # Errors
/// What is wrong with it.
pub fn check_sealed_header(header: &[u8]) -> Result<[u8; ID], HeaderDamage> {
    let start = header.get(..HEADER).ok_or(HeaderDamage::Length)?;
    if is_zero(start) {
        return Err(HeaderDamage::Zeros);
    }
    let Some(id) = start.strip_prefix(&SEALED_VERSION) else { return Err(HeaderDamage::Version) };
    if is_zero(id) {
        return Err(HeaderDamage::ZeroId);
    }
    id.try_into().map_err(|_| HeaderDamage::Length)
}

impl Keys {
    /// Returns the sizes of the parts of a file.
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout::with(header_len(self.is_bound()), self.nonce_len())
    }

    /// Returns the start of a header, with a new random id: see [`new_header`], and for bound
    /// volumes [`new_sealed_id`].
    ///
    /// # Errors
    /// As there.
    pub fn new_header(&self) -> Result<[u8; HEADER], RandomError> {
        if self.is_bound() { new_sealed_id() } else { new_header() }
    }

    /// Checks a header and returns the file's id: see [`check_header`], and for bound volumes
    /// [`check_sealed_header`].
    ///
    /// # Errors
    /// As there.
    pub fn check_header(&self, header: &[u8]) -> Result<[u8; ID], HeaderDamage> {
        if self.is_bound() { check_sealed_header(header) } else { check_header(header) }
    }

    /// Whether files have sealed headers.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.bound
    }

    /// Encrypts block `number` of the file `id` with a random nonce. `plain` has 1 to 4096 bytes,
    /// and `out` as many and [`Layout::overhead`].
    ///
    /// # Errors
    /// A buffer has the wrong size, or a library failed. `out` must not be used then.
    pub fn seal_block(&self, id: &[u8; ID], number: u64, plain: &[u8], out: &mut [u8]) -> Result<(), BlockDamage> {
        if plain.len() > BLOCK_PLAIN {
            return Err(BlockDamage::Buffer);
        }
        self.seal(&place(id, number), plain, out)
    }

    /// Decrypts block `number` of the file `id`. `out` has [`Layout::overhead`] bytes less than
    /// `stored`, which is untrusted and must not be a [hole](is_hole).
    ///
    /// # Errors
    /// What is wrong with the block. `out` consists of zeros then.
    pub fn open_block(&self, id: &[u8; ID], number: u64, stored: &[u8], out: &mut [u8]) -> Result<(), BlockDamage> {
        if stored.len() > self.layout().stored {
            out.fill(0);
            return Err(BlockDamage::TooLong);
        }
        self.open(&place(id, number), stored, out)
    }

    pub(crate) fn nonce_len(&self) -> usize {
        self.cipher.nonce_len()
    }

    /// Encrypts at least one byte. `out` is larger by a nonce and a tag.
    pub(crate) fn seal(&self, associated: &[u8], plain: &[u8], out: &mut [u8]) -> Result<(), BlockDamage> {
        let nonce_len = self.nonce_len();
        if plain.is_empty() || out.len() != nonce_len + plain.len() + TAG {
            return Err(BlockDamage::Buffer);
        }
        let mut nonce = [0; NONCE_MAX];
        let nonce = nonce.get_mut(..nonce_len).ok_or(BlockDamage::Buffer)?;
        // Readers refuse a nonce of zeros, and one in 2^96 is one.
        while is_zero(nonce) {
            random::fill(nonce)?;
        }
        self.seal_with(nonce, associated, plain, out)
    }

    /// Encrypts with a given nonce.
    pub(crate) fn seal_with(
        &self,
        nonce: &[u8],
        associated: &[u8],
        plain: &[u8],
        out: &mut [u8],
    ) -> Result<(), BlockDamage> {
        let (front, rest) = out.split_at_mut_checked(nonce.len()).ok_or(BlockDamage::Buffer)?;
        front.copy_from_slice(nonce);
        match self.cipher {
            ContentCipher::AesGcm | ContentCipher::XChaCha => {
                let (sealed, tag) = rest.split_last_chunk_mut().ok_or(BlockDamage::Buffer)?;
                self.auth.seal(nonce, associated, plain, sealed, tag).map_err(|_| BlockDamage::Library)
            }
            ContentCipher::AesSiv => {
                let nonce = nonce.try_into().map_err(|_| BlockDamage::Buffer)?;
                let (vector, data) = rest.split_first_chunk_mut::<TAG>().ok_or(BlockDamage::Buffer)?;
                data.copy_from_slice(plain);
                *vector = self.siv.seal(nonce, associated, data).ok_or(BlockDamage::Library)?;
                Ok(())
            }
        }
    }

    /// Decrypts at least one byte. `out` is smaller by a nonce and a tag. After an error it
    /// consists of zeros.
    pub(crate) fn open(&self, associated: &[u8], stored: &[u8], out: &mut [u8]) -> Result<(), BlockDamage> {
        let opened = self.open_unchecked(associated, stored, out);
        if opened.is_err() {
            // Never expose unauthenticated data.
            out.fill(0);
        }
        opened
    }

    fn open_unchecked(&self, associated: &[u8], stored: &[u8], out: &mut [u8]) -> Result<(), BlockDamage> {
        let (nonce, rest) = stored.split_at_checked(self.nonce_len()).ok_or(BlockDamage::TooShort)?;
        let plain = rest.len().checked_sub(TAG).filter(|&plain| plain > 0).ok_or(BlockDamage::TooShort)?;
        if is_zero(nonce) {
            return Err(BlockDamage::ZeroNonce);
        }
        if out.len() != plain {
            return Err(BlockDamage::Buffer);
        }
        match self.cipher {
            ContentCipher::AesGcm | ContentCipher::XChaCha => {
                let (sealed, tag) = rest.split_last_chunk().ok_or(BlockDamage::TooShort)?;
                self.auth.open(nonce, associated, sealed, tag, out).map_err(|_| BlockDamage::Forged)
            }
            ContentCipher::AesSiv => {
                let nonce = nonce.try_into().map_err(|_| BlockDamage::TooShort)?;
                let (vector, data) = rest.split_first_chunk().ok_or(BlockDamage::TooShort)?;
                out.copy_from_slice(data);
                if self.siv.open(nonce, associated, vector, out) { Ok(()) } else { Err(BlockDamage::Forged) }
            }
        }
    }
}
