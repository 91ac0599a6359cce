//! Recipes: which blocks a version consists of, and what the caller noted about it.

use crate::format::{Fields, HEADER, PLAIN_MAX, put_number};
use crate::name::BlockName;
use core::fmt;
use std::collections::HashMap;
use vnode::{Errno, Result};

/// Maximum size of a version's key, and of its header, in bytes.
pub(crate) const META_MAX: usize = 64 << 10;

/// Maximum number of blocks of a version.
pub(crate) const PARTS_MAX: usize = 1 << 20;

/// The number of a stored version. It is never used for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecipeId(pub u64);

impl fmt::Display for RecipeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A block as part of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    pub(crate) name: BlockName,
    /// Plain size in bytes, never 0.
    pub(crate) len: u32,
}

/// A decoded recipe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recipe {
    pub(crate) key: Vec<u8>,
    pub(crate) header: Vec<u8>,
    pub(crate) parts: Vec<Part>,
    /// Number of recipes that had to be decoded before this one.
    pub(crate) depth: u8,
    /// The recipe that this one is stored as a difference to.
    pub(crate) base: Option<RecipeId>,
}

impl Recipe {
    /// Returns the size of the version in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.len)).sum()
    }

    fn meta(&self) -> Vec<u8> {
        let mut meta = Vec::with_capacity(self.key.len() + self.header.len() + 3);
        put_number(&mut meta, self.key.len() as u64);
        meta.extend_from_slice(&self.key);
        meta.extend_from_slice(&self.header);
        meta
    }
}

/// How to find the blocks of a recipe that is being decoded.
pub(crate) trait Resolve {
    /// Returns the block whose entry is at `offset` of the recipe's pack.
    fn near(&self, offset: u64) -> Result<Part>;

    /// Returns the recipe with this id.
    fn recipe(&self, id: RecipeId) -> Result<std::sync::Arc<Recipe>>;
}

/// Kinds of steps in the list of blocks: the low two bits of a number, whose other bits are an
/// argument.
const COPY: u64 = 0;
const NEAR: u64 = 1;
const FAR: u64 = 2;

/// Appends the body of the recipe's entry, which will be at `offset`. `near` returns where a block
/// is, if it is in the same pack. `base` is the recipe that `recipe.base` names.
pub(crate) fn encode(
    recipe: &Recipe,
    id: RecipeId,
    base: Option<&Recipe>,
    offset: u64,
    near: &dyn Fn(&BlockName) -> Option<u64>,
) -> Vec<u8> {
    let mut out = Vec::new();
    put_number(&mut out, id.0);
    let back = recipe.base.map_or(0, |base| id.0.saturating_sub(base.0));
    put_number(&mut out, back);
    if back > 0 {
        out.push(recipe.depth);
    }
    let meta = recipe.meta();
    put_number(&mut out, meta.len() as u64);
    put_difference(&mut out, &meta, &base.map(Recipe::meta).unwrap_or_default());
    put_number(&mut out, recipe.parts.len() as u64);
    put_parts(&mut out, &recipe.parts, base.map_or(&[], |base| &base.parts), offset, near);
    out
}

/// Appends the steps that make the list of blocks.
fn put_parts(out: &mut Vec<u8>, parts: &[Part], base: &[Part], offset: u64, near: &dyn Fn(&BlockName) -> Option<u64>) {
    let mut places: HashMap<Part, usize> = HashMap::with_capacity(base.len());
    for (at, part) in base.iter().enumerate().rev() {
        places.insert(*part, at);
    }
    let mut cursor = 0;
    let mut rest = parts;
    while let Some((part, tail)) = rest.split_first() {
        let found = if base.get(cursor) == Some(part) { Some(cursor) } else { places.get(part).copied() };
        if let Some(from) = found {
            let run = rest.iter().zip(base.get(from..).unwrap_or_default()).take_while(|(a, b)| a == b).count().max(1);
            put_number(out, (run as u64) << 2 | COPY);
            put_number(out, from as u64);
            cursor = from + run;
            rest = rest.get(run..).unwrap_or_default();
            continue;
        }
        match near(&part.name).and_then(|at| offset.checked_sub(at)) {
            Some(back) => put_number(out, back << 2 | NEAR),
            None => {
                put_number(out, u64::from(part.len) << 2 | FAR);
                out.extend_from_slice(part.name.as_bytes());
            }
        }
        cursor += 1;
        rest = tail;
    }
}

/// Reads the recipe's id and the recipe it is stored as a difference to.
pub(crate) fn parse_base(body: &[u8]) -> Result<(RecipeId, Option<RecipeId>)> {
    let mut fields = Fields::new(body);
    let id = fields.number()?;
    match fields.number()? {
        0 => Ok((RecipeId(id), None)),
        back => Ok((RecipeId(id), Some(RecipeId(id.checked_sub(back).ok_or(Errno::IO)?)))),
    }
}

/// Decodes the body of an entry at `offset`.
///
/// # Errors
/// `EIO` if it is damaged, and errors of `resolve`.
pub(crate) fn decode(body: &[u8], offset: u64, resolve: &dyn Resolve) -> Result<Recipe> {
    let (_, base_id) = parse_base(body)?;
    let mut fields = Fields::new(body);
    fields.number()?;
    fields.number()?;
    let depth = if base_id.is_some() { fields.byte()? } else { 0 };
    let base = base_id.map(|id| resolve.recipe(id)).transpose()?;
    let base = base.as_deref();
    // The chain must end, whatever the bytes say.
    if base.is_some_and(|base| base.depth >= depth) {
        return Err(Errno::IO);
    }
    let meta_len = fields.length(2 * META_MAX + 3)?;
    let meta = get_difference(&mut fields, meta_len, &base.map(Recipe::meta).unwrap_or_default())?;
    let count = fields.length(PARTS_MAX)?;
    let parts = get_parts(&mut fields, count, base.map_or(&[], |base| &base.parts), offset, resolve)?;
    let mut meta = Fields::new(&meta);
    let key_len = meta.length(META_MAX)?;
    let key = meta.bytes(key_len)?.to_vec();
    if !fields.rest().is_empty() {
        return Err(Errno::IO);
    }
    Ok(Recipe { key, header: meta.rest().to_vec(), parts, depth, base: base_id })
}

fn get_parts(
    fields: &mut Fields<'_>,
    count: usize,
    base: &[Part],
    offset: u64,
    resolve: &dyn Resolve,
) -> Result<Vec<Part>> {
    let mut parts = Vec::with_capacity(count.min(1 << 16));
    while parts.len() < count {
        let step = fields.number()?;
        match step & 3 {
            COPY => {
                let from = fields.length(base.len())?;
                let run = usize::try_from(step >> 2).map_err(|_| Errno::IO)?;
                let end = from.checked_add(run).filter(|_| run > 0 && run <= count - parts.len()).ok_or(Errno::IO)?;
                parts.extend_from_slice(base.get(from..end).ok_or(Errno::IO)?);
            }
            NEAR => {
                let at = offset.checked_sub(step >> 2).filter(|&at| at >= HEADER && at < offset).ok_or(Errno::IO)?;
                parts.push(resolve.near(at)?);
            }
            FAR => {
                let len = u32::try_from(step >> 2).map_err(|_| Errno::IO)?;
                parts.push(Part { name: BlockName::from(fields.array()?), len });
            }
            _ => return Err(Errno::IO),
        }
    }
    if parts.iter().all(|part| (1..=PLAIN_MAX).contains(&(part.len as usize))) { Ok(parts) } else { Err(Errno::IO) }
}

/// Appends `new` as a difference to `old`: steps of bytes copied from `old`, bytes of `old` left
/// out, and new bytes. Made for records that change in a few fields.
fn put_difference(out: &mut Vec<u8>, new: &[u8], old: &[u8]) {
    let same = |a: &[u8], b: &[u8]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let start = same(new, old);
    let (new_tail, old_tail) = (new.get(start..).unwrap_or_default(), old.get(start..).unwrap_or_default());
    let end = new_tail.iter().rev().zip(old_tail.iter().rev()).take_while(|(a, b)| a == b).count();
    let middle = new_tail.get(..new_tail.len() - end).unwrap_or_default();
    let replaced = old_tail.get(..old_tail.len() - end).unwrap_or_default();
    let mut copied = start;
    let (mut middle, mut replaced) = (middle, replaced);
    // Fields in place: runs of at least 3 equal bytes are copied.
    while middle.len() == replaced.len() && !middle.is_empty() {
        let mut len = 0;
        let mut run = 0;
        while len < middle.len() {
            run = same(middle.get(len..).unwrap_or_default(), replaced.get(len..).unwrap_or_default());
            if run >= 3 {
                break;
            }
            len += 1;
            run = 0;
        }
        put_step(out, copied, len, middle.get(..len).unwrap_or_default());
        copied = run;
        middle = middle.get(len + run..).unwrap_or_default();
        replaced = replaced.get(len + run..).unwrap_or_default();
    }
    if middle.is_empty() && replaced.is_empty() {
        copied += end;
        put_step(out, copied, 0, &[]);
    } else {
        put_step(out, copied, replaced.len(), middle);
        put_step(out, end, 0, &[]);
    }
}

fn put_step(out: &mut Vec<u8>, copied: usize, skipped: usize, bytes: &[u8]) {
    if copied == 0 && skipped == 0 && bytes.is_empty() {
        return;
    }
    put_number(out, copied as u64);
    put_number(out, skipped as u64);
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reverses [`put_difference`] for a result of `len` bytes.
fn get_difference(fields: &mut Fields<'_>, len: usize, old: &[u8]) -> Result<Vec<u8>> {
    let mut old = Fields::new(old);
    let mut new = Vec::with_capacity(len);
    while new.len() < len {
        let copied = fields.length(len - new.len())?;
        new.extend_from_slice(old.bytes(copied)?);
        let skipped = fields.length(2 * META_MAX + 3)?;
        old.bytes(skipped)?;
        let bytes = fields.length(len - new.len())?;
        new.extend_from_slice(fields.bytes(bytes)?);
        if copied == 0 && skipped == 0 && bytes == 0 {
            return Err(Errno::IO);
        }
    }
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    struct Known(Vec<Part>, Option<Arc<Recipe>>);

    impl Resolve for Known {
        fn near(&self, offset: u64) -> Result<Part> {
            self.0.get((offset - 100) as usize).copied().ok_or(Errno::IO)
        }

        fn recipe(&self, _id: RecipeId) -> Result<Arc<Recipe>> {
            self.1.clone().ok_or(Errno::IO)
        }
    }

    fn parts() -> impl Strategy<Value = Vec<Part>> {
        let part = (0u8..40).prop_map(|n| Part { name: BlockName::of(&[n]), len: u32::from(n) + 1 });
        proptest::collection::vec(part, 0..30)
    }

    fn meta() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(0u8..3, 0..40)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn recipes_are_decoded_as_they_were_encoded(
            keys in (meta(), meta()), headers in (meta(), meta()), lists in (parts(), parts()), with_base: bool,
        ) {
            let old = Arc::new(Recipe { key: keys.0, header: headers.0, parts: lists.0, depth: 4, base: None });
            let base = with_base.then_some(RecipeId(5));
            let depth = if with_base { 5 } else { 0 };
            let new = Recipe { key: keys.1, header: headers.1, parts: lists.1, depth, base };
            let known: Vec<Part> = new.parts.iter().copied().filter(|part| part.len % 2 == 0).collect();
            let near = |name: &BlockName| {
                known.iter().position(|part| part.name == *name).map(|at| at as u64 + 100)
            };
            let used = with_base.then_some(&*old);
            let body = encode(&new, RecipeId(9), used, 5000, &near);
            let resolve = Known(known.clone(), with_base.then(|| old.clone()));
            prop_assert_eq!(parse_base(&body), Ok((RecipeId(9), base)));
            prop_assert_eq!(decode(&body, 5000, &resolve), Ok(new));
            for cut in 0..body.len() {
                prop_assert!(decode(&body[..cut], 5000, &resolve).is_err());
            }
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&body, 5000, &Known(Vec::new(), Some(Arc::new(Recipe::default()))));
        }
    }

    #[test]
    fn an_unchanged_version_takes_a_few_bytes() {
        let part = |n: u32| Part { name: BlockName::of(&n.to_le_bytes()), len: 4096 };
        let header = [7; 80].to_vec();
        let old = Recipe {
            key: b"key".to_vec(),
            header: header.clone(),
            parts: (0..1000).map(part).collect(),
            ..Recipe::default()
        };
        let mut new = Recipe { depth: 1, base: Some(RecipeId(1)), ..old.clone() };
        new.header[20] = 8;
        let body = encode(&new, RecipeId(2), Some(&old), 100, &|_| None);
        assert!(body.len() < 25, "{}", body.len());
    }
}
