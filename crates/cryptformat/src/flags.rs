//! The features of a volume, which `FeatureFlags` lists by name.

use crate::error::ConfigError;
use serde::{Deserialize, Serialize};

/// An entry of `FeatureFlags`. The names are those in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the documentation of the format")]
pub enum Feature {
    HKDF,
    GCMIV128,
    XChaCha20Poly1305,
    PlaintextNames,
    DirIV,
    LongNameMax,
    EMENames,
    LongNames,
    Raw64,
    AESSIV,
    FIDO2,
    /// Several passphrases, and an authentication code: an extension that gocryptfs refuses.
    StrataKeySlots,
    /// Sealed headers: an extension that gocryptfs refuses.
    StrataBound,
}

impl Feature {
    /// All features, in the order in which gocryptfs lists them.
    const ALL: [Self; 13] = [
        Self::HKDF,
        Self::GCMIV128,
        Self::XChaCha20Poly1305,
        Self::PlaintextNames,
        Self::DirIV,
        Self::LongNameMax,
        Self::EMENames,
        Self::LongNames,
        Self::Raw64,
        Self::AESSIV,
        Self::FIDO2,
        Self::StrataKeySlots,
        Self::StrataBound,
    ];

    /// Returns the name in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::HKDF => "HKDF",
            Self::GCMIV128 => "GCMIV128",
            Self::XChaCha20Poly1305 => "XChaCha20Poly1305",
            Self::PlaintextNames => "PlaintextNames",
            Self::DirIV => "DirIV",
            Self::LongNameMax => "LongNameMax",
            Self::EMENames => "EMENames",
            Self::LongNames => "LongNames",
            Self::Raw64 => "Raw64",
            Self::AESSIV => "AESSIV",
            Self::FIDO2 => "FIDO2",
            Self::StrataKeySlots => "StrataKeySlots",
            Self::StrataBound => "StrataBound",
        }
    }

    /// Returns the features with these names.
    pub(crate) fn parse(names: &[String]) -> Result<Vec<Self>, ConfigError> {
        let known = |name: &String| Self::ALL.into_iter().find(|feature| feature.name() == name);
        let unknown: Vec<String> = names.iter().filter(|name| known(name).is_none()).cloned().collect();
        if !unknown.is_empty() {
            return Err(ConfigError::UnknownFlags(unknown));
        }
        let features: Vec<Self> = names.iter().filter_map(known).collect();
        let repeated =
            features.iter().enumerate().any(|(at, one)| features.iter().skip(at + 1).any(|other| one == other));
        if repeated { Err(ConfigError::Conflict("one is listed twice")) } else { Ok(features) }
    }
}

/// How blocks of files, link targets and values of extended attributes are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ContentCipher {
    /// AES-256-GCM with nonces of 16 bytes: the default.
    #[default]
    AesGcm,
    /// AES-SIV with two keys of 256 bits: two blocks with the same nonce do not reveal their keys.
    AesSiv,
    /// XChaCha20-Poly1305, fast on processors without AES.
    XChaCha,
}

/// Size of the largest nonce in bytes.
pub(crate) const NONCE_MAX: usize = ContentCipher::XChaCha.nonce_len();

impl ContentCipher {
    /// Returns the size of a nonce in bytes. Only the wrapped master key of volumes without HKDF
    /// has another one.
    pub(crate) const fn nonce_len(self) -> usize {
        match self {
            Self::AesGcm | Self::AesSiv => 16,
            Self::XChaCha => 24,
        }
    }
}

/// How names are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NameFlags {
    /// Each directory has its own initialization vector. Without it, names are deterministic: the
    /// same name has the same encryption in each directory.
    pub dir_iv: bool,
    /// Encrypted names with more bytes than this, 62 to 255, are stored by their hash. gocryptfs
    /// does so even without the flag `LongNames`, so that flag has no effect.
    pub long_name_max: u8,
    /// Base64 without padding.
    pub raw64: bool,
}

impl Default for NameFlags {
    fn default() -> Self {
        Self { dir_iv: true, long_name_max: u8::MAX, raw64: true }
    }
}

/// The features of a volume, checked: every value of this type can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flags {
    /// The cipher of content.
    pub cipher: ContentCipher,
    /// The encryption of names. `None`: names and link targets are not encrypted.
    pub names: Option<NameFlags>,
    /// Keys are derived from the master key with HKDF. Without it, in volumes of gocryptfs before
    /// 1.3, ciphers use the master key itself.
    pub hkdf: bool,
    /// Several passphrases, and an authentication code.
    pub key_slots: bool,
    /// Files have sealed headers, which bind their blocks to each other. Needs key slots.
    pub bound: bool,
}

impl Default for Flags {
    fn default() -> Self {
        Self {
            cipher: ContentCipher::default(),
            names: Some(NameFlags::default()),
            hkdf: true,
            key_slots: false,
            bound: false,
        }
    }
}

/// Smallest permitted limit of encrypted names: the length of the hash of a long name, with
/// its prefix, is 62.
pub(crate) const LONG_NAME_MAX_MIN: u8 = 62;

impl Flags {
    /// Interprets features that were read, and the field `LongNameMax`.
    pub(crate) fn of(features: &[Feature], long_name_max: Option<u8>) -> Result<Self, ConfigError> {
        let has = |feature| features.contains(&feature);
        if has(Feature::FIDO2) {
            return Err(ConfigError::Fido2);
        }
        if has(Feature::StrataBound) && !has(Feature::StrataKeySlots) {
            return Err(ConfigError::Conflict("StrataBound needs StrataKeySlots"));
        }
        Ok(Self {
            cipher: content_cipher(has)?,
            names: name_flags(has, long_name_max)?,
            hkdf: has(Feature::HKDF),
            key_slots: has(Feature::StrataKeySlots),
            bound: has(Feature::StrataBound),
        })
    }

    /// Returns the features of these flags.
    pub(crate) fn features(&self) -> Vec<Feature> {
        let names = self.names;
        let has_names = |is: fn(NameFlags) -> bool| names.is_some_and(is);
        let has = |feature: Feature| match feature {
            Feature::HKDF => self.hkdf,
            Feature::GCMIV128 => matches!(self.cipher, ContentCipher::AesGcm | ContentCipher::AesSiv),
            Feature::XChaCha20Poly1305 => self.cipher == ContentCipher::XChaCha,
            Feature::PlaintextNames => names.is_none(),
            Feature::DirIV => has_names(|names| names.dir_iv),
            Feature::LongNameMax => has_names(|names| names.long_name_max != u8::MAX),
            Feature::EMENames | Feature::LongNames => names.is_some(),
            Feature::Raw64 => has_names(|names| names.raw64),
            Feature::AESSIV => self.cipher == ContentCipher::AesSiv,
            Feature::FIDO2 => false,
            Feature::StrataKeySlots => self.key_slots,
            Feature::StrataBound => self.bound,
        };
        Feature::ALL.into_iter().filter(|&feature| has(feature)).collect()
    }

    /// Returns the value for the field `LongNameMax`.
    pub(crate) fn long_name_max(&self) -> Option<u8> {
        self.names.map(|names| names.long_name_max).filter(|&max| max != u8::MAX)
    }
}

fn content_cipher(has: impl Fn(Feature) -> bool) -> Result<ContentCipher, ConfigError> {
    if has(Feature::XChaCha20Poly1305) {
        if has(Feature::GCMIV128) || has(Feature::AESSIV) {
            return Err(ConfigError::Conflict("XChaCha20Poly1305 excludes GCMIV128 and AESSIV"));
        }
        if !has(Feature::HKDF) {
            return Err(ConfigError::Conflict("XChaCha20Poly1305 needs HKDF"));
        }
        return Ok(ContentCipher::XChaCha);
    }
    if !has(Feature::GCMIV128) {
        return Err(ConfigError::Conflict("GCMIV128 is missing, as in gocryptfs before 0.5"));
    }
    Ok(if has(Feature::AESSIV) { ContentCipher::AesSiv } else { ContentCipher::AesGcm })
}

fn name_flags(has: impl Fn(Feature) -> bool, max: Option<u8>) -> Result<Option<NameFlags>, ConfigError> {
    let long_name_max = match (has(Feature::LongNameMax), max) {
        (false, None) => u8::MAX,
        (true, Some(max)) if max >= LONG_NAME_MAX_MIN => max,
        (true, Some(_)) => {
            return Err(ConfigError::Field { field: "LongNameMax", problem: "not between 62 and 255".to_owned() });
        }
        _ => return Err(ConfigError::Conflict("LongNameMax is both a flag and a field, or neither")),
    };
    if has(Feature::PlaintextNames) {
        let others = [Feature::DirIV, Feature::LongNames, Feature::LongNameMax, Feature::Raw64, Feature::EMENames];
        if others.into_iter().any(has) {
            return Err(ConfigError::Conflict(
                "PlaintextNames excludes DirIV, LongNames, LongNameMax, Raw64 and EMENames",
            ));
        }
        return Ok(None);
    }
    if !has(Feature::EMENames) {
        return Err(ConfigError::Conflict("neither EMENames nor PlaintextNames, as in gocryptfs before 0.9"));
    }
    Ok(Some(NameFlags { dir_iv: has(Feature::DirIV), long_name_max, raw64: has(Feature::Raw64) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_and_flags_correspond() {
        let names =
            [None, Some(NameFlags::default()), Some(NameFlags { dir_iv: false, long_name_max: 62, raw64: false })];
        let ciphers = [ContentCipher::AesGcm, ContentCipher::AesSiv, ContentCipher::XChaCha];
        for names in names {
            for cipher in ciphers {
                let hkdf = cipher == ContentCipher::XChaCha;
                for (hkdf, key_slots, bound) in
                    [(true, false, false), (true, true, false), (hkdf, false, false), (hkdf, true, true)]
                {
                    let flags = Flags { cipher, names, hkdf, key_slots, bound };
                    assert_eq!(Flags::of(&flags.features(), flags.long_name_max()), Ok(flags));
                }
            }
        }
    }

    #[test]
    fn contradictions_are_refused() {
        use Feature::*;
        let wrong: [&[Feature]; 11] = [
            &[HKDF, GCMIV128, EMENames, StrataBound],
            &[],
            &[HKDF, GCMIV128],
            &[GCMIV128, XChaCha20Poly1305, HKDF, EMENames],
            &[AESSIV, XChaCha20Poly1305, HKDF, EMENames],
            &[XChaCha20Poly1305, EMENames],
            &[AESSIV, EMENames],
            &[EMENames],
            &[GCMIV128, PlaintextNames, DirIV],
            &[GCMIV128, PlaintextNames, EMENames],
            &[EMENames, GCMIV128, LongNameMax],
        ];
        for features in wrong {
            assert!(matches!(Flags::of(features, None), Err(ConfigError::Conflict(_))), "{features:?}");
        }
        assert!(matches!(Flags::of(&[EMENames, GCMIV128], Some(100)), Err(ConfigError::Conflict(_))));
        assert!(matches!(Flags::of(&[EMENames, GCMIV128, LongNameMax], Some(61)), Err(ConfigError::Field { .. })));
        assert_eq!(Flags::of(&[EMENames, FIDO2], None), Err(ConfigError::Fido2));
        let names = ["EMENames", "Shiny", "HKDF", "Other"].map(str::to_owned);
        assert_eq!(
            Feature::parse(&names),
            Err(ConfigError::UnknownFlags(vec!["Shiny".to_owned(), "Other".to_owned()]))
        );
        assert!(Feature::parse(&["HKDF", "HKDF"].map(str::to_owned)).is_err());
    }
}
