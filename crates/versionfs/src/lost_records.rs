//! What the lower file system says of changes whose records a power failure took.

use crate::past::object_of;
use std::sync::Arc;
use versionset::Traces;
use vnode::{Attr, Cx, Result, Time, Vnode};

/// Runs `infer` with what is known of a set besides its records and version files: the attributes
/// of its index, whether it is the set of an inode, and its head. `birth` returns the time of birth
/// of an object that counts, `find` an object by its number.
///
/// # Errors
/// Those of the layer below, and of `infer`.
pub(crate) fn with_traces<T>(
    cx: &Cx<'_>,
    (index, is_link, head): (Option<Attr>, bool, Option<&Arc<dyn Vnode>>),
    birth: impl Fn(&Attr) -> Option<Time>,
    find: impl Fn(u64) -> Result<Arc<dyn Vnode>>,
    infer: impl FnOnce(&Traces<'_>) -> Result<T>,
) -> Result<T> {
    let attr = head.map(|head| head.getattr(cx)).transpose()?;
    let head = attr.map(|attr| Attr { btime: birth(&attr), ..attr });
    let came_to_be = |text: &[u8]| {
        let (number, generation) = object_of(text)?;
        let found = find(number).ok().filter(|found| found.generation() == generation)?;
        found.getattr(cx).ok().and_then(|attr| birth(&attr))
    };
    infer(&Traces { index, is_link, head, came_to_be: &came_to_be })
}
