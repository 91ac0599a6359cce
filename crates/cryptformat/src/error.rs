//! Errors: of a configuration, which a person reads, and of stored data.

use core::fmt;
use cryptsys::Failed;

/// The kernel returned no random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomError;

impl fmt::Display for RandomError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the kernel returned no random numbers")
    }
}

impl core::error::Error for RandomError {}

/// Why a configuration can't be read, opened or changed. Its text has the form "what; what to do".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The file is larger than 64 KiB.
    TooLarge,
    /// It is not JSON with the expected fields.
    Syntax(String),
    /// A version other than 2.
    Version(u64),
    /// Features that are not known, by name.
    UnknownFlags(Vec<String>),
    /// Features that exclude or require each other.
    Conflict(&'static str),
    /// The volume is opened with a FIDO2 token.
    Fido2,
    /// A field has an invalid value.
    Field {
        /// Which one.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The key derivation needs more memory than allowed.
    Memory {
        /// Bytes that it needs.
        needs: u64,
        /// Bytes that are allowed.
        limit: u64,
    },
    /// No slot has a key that this passphrase decrypts.
    Passphrase,
    /// A new passphrase is empty.
    EmptyPassphrase,
    /// The configuration is not the one that was written with this master key.
    Tampered,
    /// No slot has this number or label.
    NoSlot,
    /// Two slots can't have the same label.
    LabelInUse,
    /// The last passphrase can't be removed.
    LastSlot,
    /// The number of slots is at its limit.
    SlotsFull,
    /// Argon2id is part of the extension.
    Argon2id,
    /// The volume has one passphrase, in the form that gocryptfs reads.
    OnePassphrase,
    /// A printed master key has other characters or another length.
    MasterKeyText,
    /// The cryptographic library refused a key.
    Library,
    /// No random numbers.
    Random,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => f.write_str("larger than 64 KiB; this is no gocryptfs.conf"),
            Self::Syntax(why) => write!(f, "damaged: {why}; restore the file from a backup"),
            Self::Version(version) => {
                write!(f, "format version {version}; only version 2 can be opened, which gocryptfs 0.9 introduced")
            }
            Self::UnknownFlags(flags) => {
                write!(f, "unknown feature flags {}; open it with the program that set them", flags.join(", "))
            }
            Self::Conflict(what) => write!(f, "contradicting feature flags: {what}; restore the file from a backup"),
            Self::Fido2 => f.write_str(
                "opened with a FIDO2 token, which is not supported; set a passphrase with gocryptfs, \
                 or use the printed master key",
            ),
            Self::Field { field, problem } => {
                write!(f, "{field}: {problem}; restore the file from a backup")
            }
            Self::Memory { needs, limit } => write!(
                f,
                "the key derivation needs {} of memory, more than the limit of {}; raise the limit if you \
                 trust this file",
                Size(*needs),
                Size(*limit)
            ),
            Self::Passphrase => f.write_str("wrong passphrase; try again, or use the printed master key"),
            Self::EmptyPassphrase => f.write_str("the passphrase is empty; enter a longer one"),
            Self::Tampered => f.write_str(
                "changed by someone who does not have the key: its authentication code is wrong; restore \
                 the file from a backup",
            ),
            Self::NoSlot => f.write_str("no such passphrase slot; list the slots"),
            Self::LabelInUse => f.write_str("another passphrase slot has this label; choose another label"),
            Self::LastSlot => f.write_str("the last passphrase can't be removed; add another one first"),
            Self::SlotsFull => f.write_str("all passphrase slots are in use; remove one first"),
            Self::Argon2id => f.write_str("Argon2id needs a volume with key slots; use scrypt"),
            Self::OnePassphrase => {
                f.write_str("this volume has one passphrase, in the form that gocryptfs reads; change that passphrase")
            }
            Self::MasterKeyText => {
                f.write_str("not a master key; enter its 64 hexadecimal digits, with or without dashes")
            }
            Self::Library => write!(f, "{Failed}; this is a bug: report it"),
            Self::Random => write!(f, "{RandomError}; try again"),
        }
    }
}

impl core::error::Error for ConfigError {}

impl From<Failed> for ConfigError {
    fn from(_: Failed) -> Self {
        Self::Library
    }
}

impl From<RandomError> for ConfigError {
    fn from(_: RandomError) -> Self {
        Self::Random
    }
}

/// A number of bytes, in the largest unit that leaves no remainder.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 >> shift > 0 && self.0 & ((1 << shift) - 1) == 0 {
                return write!(f, "{} {unit}", self.0 >> shift);
            }
        }
        write!(f, "{} bytes", self.0)
    }
}

/// Declares an enum of damages with a text for each.
macro_rules! damages {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $text,)*
                })
            }
        }

        impl core::error::Error for $name {}
    };
}

damages! {
    /// Why a file header is refused.
    HeaderDamage {
        /// It has not 18 bytes.
        Length = "header incomplete",
        /// Its version is not 2.
        Version = "header with an unknown version",
        /// Its file id is zero.
        ZeroId = "header with a file id of zeros",
        /// All of it is zeros.
        Zeros = "header of zeros",
    }
}

damages! {
    /// Why a block is refused.
    BlockDamage {
        /// Shorter than an encrypted block of one byte.
        TooShort = "block incomplete",
        /// Longer than the largest block.
        TooLong = "block too long",
        /// Its nonce is zero.
        ZeroNonce = "block with a nonce of zeros",
        /// It was not written with this key, for this file, at this place.
        Forged = "block altered, moved, or encrypted with another key",
        /// The buffer for the result has the wrong size.
        Buffer = "buffer of the wrong size",
        /// It is not encoded as it should be.
        Encoding = "value not in base64",
        /// No random numbers for a nonce.
        Random = "no random numbers for a nonce",
        /// The cryptographic library failed.
        Library = "the cryptographic library failed",
    }
}

damages! {
    /// Why a name is refused.
    NameDamage {
        /// It is empty, `.` or `..`, or has a `/` or NUL.
        Invalid = "name empty, reserved, or with a slash or NUL",
        /// It has more than 255 bytes.
        TooLong = "name longer than 255 bytes",
        /// It is not strict base64.
        Encoding = "name not in strict base64",
        /// It has no whole number of cipher blocks, or too many.
        Length = "name of an impossible length",
        /// Wrong padding: altered, moved from another directory, or encrypted with another key.
        Forged = "name altered, moved from another directory, or encrypted with another key",
        /// Not a name of this volume's encrypted extended attributes.
        Prefix = "extended attribute not of this volume",
    }
}

impl From<RandomError> for BlockDamage {
    fn from(_: RandomError) -> Self {
        Self::Random
    }
}
