//! Mapping of names to the layer below.

use super::core::Core;
use super::guard::guard;
use super::inverse;
use super::long;
use crate::hooks::{LongName, Matching, Names, Object, Role};
use std::sync::atomic::Ordering;
use vnode::{Cx, Errno, NAME_MAX, Name, Result};

/// Where an entry is stored in the directory below.
pub(crate) enum Place<'a> {
    /// Under the same name.
    Same(Name<'a>),
    /// Under an encoded name.
    Encoded(Vec<u8>),
    /// Under a short name that represents a long one.
    Long(LongName),
}

impl Place<'_> {
    /// Returns the stored name.
    pub(crate) fn name(&self) -> Result<Name<'_>> {
        match self {
            Self::Same(name) => Ok(*name),
            Self::Encoded(bytes) => Name::new(bytes),
            Self::Long(long) => Name::new(&long.object),
        }
    }

    pub(crate) fn long(&self) -> Option<&LongName> {
        if let Self::Long(long) = self { Some(long) } else { None }
    }
}

impl Core {
    /// Returns where an entry of this name is stored or would be stored; `None` if it would not be
    /// visible there.
    pub(crate) fn place<'a>(&self, cx: &Cx<'_>, dir: &Object<'_>, name: Name<'a>) -> Result<Option<Place<'a>>> {
        let Some(hook) = &self.names else { return Ok(Some(Place::Same(name))) };
        let encoded = encode(&**hook, cx, dir, name.as_bytes())?;
        let seen = is_trusted(&**hook)
            || match decode(&**hook, cx, dir, &encoded)? {
                None => {
                    if inverse::CHECKED {
                        tracing::debug!(
                            "decode_filename rejects the output of encode_filename for {name:?}: the name cannot be created"
                        );
                    }
                    false
                }
                Some(decoded) if decoded == name.as_bytes() => true,
                Some(decoded) => round_trips(&**hook, cx, dir, &decoded, &encoded)? && self.may_merge(name, &decoded),
            };
        if !seen {
            return Ok(None);
        }
        Ok(match self.long_name(&encoded)? {
            Some(long) => Some(Place::Long(long)),
            // The store's own files are not entries.
            None => (self.role(&encoded)? == Role::Name).then_some(Place::Encoded(encoded)),
        })
    }

    /// Called when two names have the same encoding. Returns whether the layer has declared that it
    /// merges names. The kernel caches names of a layer that has not, and would keep one name after
    /// the entry is removed or renamed under the other.
    fn may_merge(&self, name: Name<'_>, decoded: &[u8]) -> bool {
        if self.matching == Matching::Exact && !self.merge_reported.swap(true, Ordering::Relaxed) {
            tracing::error!(
                "encode_filename encodes {name:?} and \"{}\" alike, but Names::matching does not declare it: \
                 the first name is refused; return Encoded from Names::matching (matching in C) to merge them",
                decoded.escape_ascii()
            );
        }
        self.matching != Matching::Exact
    }

    /// Returns the name that an encoded name is shown as; `None` if it is not shown.
    pub(crate) fn shown_name(&self, cx: &Cx<'_>, dir: &Object<'_>, encoded: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(hook) = &self.names else { return Ok(Some(encoded.to_vec())) };
        let Some(name) = decode(&**hook, cx, dir, encoded)? else { return Ok(None) };
        let is_shown = is_trusted(&**hook) || round_trips(&**hook, cx, dir, &name, encoded)?;
        Ok(is_shown.then_some(name))
    }

    pub(crate) fn encode_target(&self, cx: &Cx<'_>, target: &[u8]) -> Result<Vec<u8>> {
        match &self.names {
            Some(hook) => {
                let encoded = guard("encode_target", || hook.encode_target(cx, target))?;
                if inverse::CHECKED {
                    let decoded = guard("decode_target", || hook.decode_target(cx, &encoded));
                    let input = || format!("the target \"{}\"", target.escape_ascii());
                    inverse::check(
                        ["encode_target", "decode_target"],
                        input,
                        target,
                        decoded.as_deref().map_err(|e| *e),
                    )?;
                }
                Ok(encoded)
            }
            None => Ok(target.to_vec()),
        }
    }

    pub(crate) fn decode_target(&self, cx: &Cx<'_>, stored: Vec<u8>) -> Result<Vec<u8>> {
        match &self.names {
            Some(hook) => guard("decode_target", || hook.decode_target(cx, &stored)),
            None => Ok(stored),
        }
    }
}

fn encode(hook: &dyn Names, cx: &Cx<'_>, dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
    let encoded = guard("encode_filename", || hook.encode_filename(cx, dir, name))?;
    if encoded.len() > long::LONGEST {
        return Err(Errno::NAMETOOLONG);
    }
    let is_dots = encoded == b"." || encoded == b"..";
    if encoded.is_empty() || is_dots || encoded.iter().any(|&b| b == b'/' || b == 0) {
        tracing::error!("encode_filename returned an invalid name: \"{}\"", encoded.escape_ascii());
        return Err(Errno::IO);
    }
    Ok(encoded)
}

/// Decodes a name; `None` if it represents no name.
fn decode(hook: &dyn Names, cx: &Cx<'_>, dir: &Object<'_>, encoded: &[u8]) -> Result<Option<Vec<u8>>> {
    match guard("decode_filename", || hook.decode_filename(cx, dir, encoded)) {
        Ok(name) if name.len() <= NAME_MAX && Name::new(&name).is_ok() => Ok(Some(name)),
        Ok(_) | Err(Errno::INVAL) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Whether the hook's names need no verification.
fn is_trusted(hook: &dyn Names) -> bool {
    !inverse::CHECKED && hook.is_bijection()
}

/// Whether `encoded` is the encoding of `name`. Without this check, two names below could be shown
/// as one.
fn round_trips(hook: &dyn Names, cx: &Cx<'_>, dir: &Object<'_>, name: &[u8], encoded: &[u8]) -> Result<bool> {
    match encode(hook, cx, dir, name) {
        Ok(again) => Ok(again == encoded),
        Err(Errno::INVAL | Errno::NAMETOOLONG) => Ok(false),
        Err(errno) => Err(errno),
    }
}
