//! INIT: the kernel's offer, the file system's configuration, and the result of the negotiation.

use crate::abi::{InitIn, InitOut, KERNEL_MINOR_VERSION, KERNEL_VERSION, MIN_READ_BUFFER, OLDEST_MINOR_VERSION};
use crate::flags;
use core::time::Duration;

/// Unit of [`InitOut::max_pages`] on the supported architectures.
const PAGE: usize = 4096;
/// Limit of a transfer without `MAX_PAGES`, in pages.
const DEFAULT_PAGES: u16 = 32;

/// Features and limits that a file system requests: returned by [`crate::Filesystem::init`].
///
/// Flags that the kernel does not offer are silently dropped; [`crate::Session::agreed`] returns
/// the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitConfig {
    /// Flags of [`crate::flags`]. Those of the transport ([`flags::TRANSPORT`]) are implied.
    pub flags: u64,
    /// Largest write in bytes, which also limits reads. At most 1 MiB unless the system's limit was
    /// raised.
    pub max_write: u32,
    /// Largest readahead in bytes.
    pub max_readahead: u32,
    /// Maximum number of pending background requests.
    pub max_background: u16,
    /// Number of background requests from which on the kernel treats the file system as congested.
    pub congestion_threshold: u16,
    /// Granularity of timestamps in nanoseconds.
    pub time_gran: u32,
    /// Maximum stacking depth of the file system under a backing file, itself included: 1 or 2.
    /// Only with [`flags::PASSTHROUGH`].
    pub max_stack_depth: u32,
    /// Seconds after which a pending request aborts the connection; 0: never. Only with
    /// [`flags::REQUEST_TIMEOUT`].
    pub request_timeout: u16,
    /// How long the kernel may cache negative lookups; zero: not at all.
    pub negative_timeout: Duration,
}

impl Default for InitConfig {
    fn default() -> Self {
        Self {
            flags: flags::ASYNC_READ | flags::PARALLEL_DIROPS | flags::HAS_IOCTL_DIR | flags::ASYNC_DIO,
            max_write: 1 << 20,
            max_readahead: 1 << 20,
            max_background: 64,
            congestion_threshold: 48,
            time_gran: 1,
            max_stack_depth: 1,
            request_timeout: 0,
            negative_timeout: Duration::ZERO,
        }
    }
}

/// Result of the negotiation between kernel and file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Minor version of the protocol, 31 to 45.
    pub minor: u32,
    /// Flags of [`crate::flags`].
    pub flags: u64,
    /// Largest write in bytes.
    pub max_write: u32,
    /// Largest readahead in bytes.
    pub max_readahead: u32,
    /// Largest payload of a request or a reply, in bytes.
    pub payload: usize,
    /// How long the kernel may cache negative lookups.
    pub negative_timeout: Duration,
}

impl Agreed {
    /// Whether all bits of `flag` were agreed.
    #[must_use]
    pub const fn has(&self, flag: u64) -> bool {
        self.flags & flag == flag
    }
}

/// Returns the offer as an older kernel would send it: without the flags in `refuse` and those
/// newer than `max_minor`.
pub(crate) const fn reduce(offer: &InitIn, refuse: u64, max_minor: u32) -> InitIn {
    let mut offered = offer.all_flags();
    if offered & flags::INIT_EXT == 0 {
        offered &= 0xffff_ffff;
    }
    offered &= !refuse;
    offered &= flags_up_to(max_minor);
    let minor = if offer.minor < max_minor { offer.minor } else { max_minor };
    #[expect(clippy::cast_possible_truncation, reason = "the flags are split into their two words")]
    let (low, high) = (offered as u32, (offered >> 32) as u32);
    InitIn { minor, flags: low, flags2: high, ..*offer }
}

/// Returns the flags that a kernel of this minor version knows.
const fn flags_up_to(minor: u32) -> u64 {
    let first_unknown = match minor {
        ..=31 => 27,
        32 => 28,
        33..=35 => 30,
        36..=37 => 34,
        // 7.38 kernels offer EXPIRE_ONLY, but no supplementary group.
        38 => return ((1 << 34) - 1) | flags::HAS_EXPIRE_ONLY,
        39 => 37,
        40 => 40,
        41 => 41,
        42 => 42,
        _ => 64,
    };
    if first_unknown == 64 { u64::MAX } else { (1 << first_unknown) - 1 }
}

/// Whether this crate can serve a kernel with this offer.
pub(crate) const fn is_supported(offer: &InitIn) -> bool {
    offer.major == KERNEL_VERSION && offer.minor >= OLDEST_MINOR_VERSION
}

/// Returns the result of the negotiation, and the reply to INIT.
pub(crate) fn agree(offer: &InitIn, init_config: &InitConfig, ring: bool) -> (Agreed, InitOut) {
    let offered = offer.all_flags();
    let mut agreed = offered & (init_config.flags & !flags::TRANSPORT | flags::TRANSPORT);
    if !ring {
        agreed &= !flags::OVER_IO_URING;
    }
    if agreed & flags::PASSTHROUGH != 0 && (agreed & flags::WRITEBACK_CACHE != 0 || init_config.max_stack_depth == 0) {
        tracing::warn!("passthrough is off: it needs a stack depth of 1 or 2 and excludes the writeback cache");
        agreed &= !flags::PASSTHROUGH;
    }
    let page = u32::try_from(PAGE).unwrap_or(4096);
    let wanted_pages = u16::try_from(init_config.max_write.div_ceil(page).max(1)).unwrap_or(u16::MAX);
    let max_pages = if agreed & flags::MAX_PAGES != 0 { wanted_pages } else { DEFAULT_PAGES.min(wanted_pages) };
    let max_write = init_config.max_write.clamp(page, u32::from(max_pages) * page);
    let minor = offer.minor.min(KERNEL_MINOR_VERSION);
    let passthrough = agreed & flags::PASSTHROUGH != 0;
    #[expect(clippy::cast_possible_truncation, reason = "the flags are split into their two words")]
    let (low, high) = (agreed as u32, (agreed >> 32) as u32);
    let out = InitOut {
        major: KERNEL_VERSION,
        minor,
        max_readahead: offer.max_readahead.min(init_config.max_readahead),
        flags: low,
        max_background: init_config.max_background,
        congestion_threshold: init_config.congestion_threshold,
        max_write,
        time_gran: init_config.time_gran,
        max_pages,
        map_alignment: 0,
        flags2: high,
        max_stack_depth: if passthrough { init_config.max_stack_depth.min(2) } else { 0 },
        request_timeout: if agreed & flags::REQUEST_TIMEOUT != 0 { init_config.request_timeout } else { 0 },
        unused: [0; 11],
    };
    // Without MAX_PAGES, reads may still reach the kernel's default size.
    let payload_pages = if agreed & flags::MAX_PAGES != 0 { max_pages } else { DEFAULT_PAGES };
    let payload = (usize::from(payload_pages) * PAGE).max(max_write as usize).max(MIN_READ_BUFFER);
    let agreed = Agreed {
        minor,
        flags: agreed,
        max_write,
        max_readahead: out.max_readahead,
        payload,
        negative_timeout: init_config.negative_timeout,
    };
    (agreed, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(minor: u32, all: u64) -> InitIn {
        InitIn {
            major: 7,
            minor,
            max_readahead: 131_072,
            flags: (all & 0xffff_ffff) as u32,
            flags2: (all >> 32) as u32,
            unused: [0; 11],
        }
    }

    #[test]
    fn only_flags_that_both_sides_want_are_agreed() {
        let init_config = InitConfig { flags: flags::PASSTHROUGH | flags::DONT_MASK, ..InitConfig::default() };
        let (agreed, out) = agree(&offer(45, u64::MAX), &init_config, true);
        assert!(agreed.has(flags::PASSTHROUGH | flags::DONT_MASK | flags::OVER_IO_URING | flags::MAX_PAGES));
        assert!(!agreed.has(flags::POSIX_ACL));
        assert_eq!((out.minor, out.max_stack_depth, out.max_pages), (45, 1, 256));
        assert_eq!(agreed.payload, 1 << 20);
        let (agreed, _) = agree(&offer(45, u64::MAX), &init_config, false);
        assert!(!agreed.has(flags::OVER_IO_URING));
        let (agreed, out) = agree(&offer(99, flags::DONT_MASK), &init_config, true);
        assert_eq!(agreed.flags, flags::DONT_MASK);
        assert_eq!((out.minor, out.max_stack_depth, out.max_write, agreed.payload), (45, 0, 131_072, 131_072));
    }

    #[test]
    fn passthrough_excludes_the_writeback_cache() {
        let init_config = InitConfig { flags: flags::PASSTHROUGH | flags::WRITEBACK_CACHE, ..InitConfig::default() };
        assert!(!agree(&offer(45, u64::MAX), &init_config, true).0.has(flags::PASSTHROUGH));
    }

    #[test]
    fn offers_can_be_reduced_to_older_kernels() {
        let reduced = reduce(&offer(45, u64::MAX), flags::POSIX_ACL, 38);
        assert_eq!(reduced.minor, 38);
        let all = reduced.all_flags();
        assert_eq!(all & (flags::PASSTHROUGH | flags::OVER_IO_URING | flags::POSIX_ACL | flags::CREATE_SUPP_GROUP), 0);
        assert_ne!(all & flags::HAS_EXPIRE_ONLY, 0);
        // The second word does not count without INIT_EXT.
        assert_eq!(reduce(&offer(45, !flags::INIT_EXT), 0, 45).flags2, 0);
        assert!(is_supported(&offer(31, 0)) && !is_supported(&offer(30, 0)));
    }
}
