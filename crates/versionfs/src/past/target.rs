//! Which object a version or a moment of a name is: references of renamed files are followed.

use crate::core::Core;
use crate::history::{At, History, Moment, Seen};
use crate::past::content::next_of;
use crate::past::{Body, Listing, PastFile, Special};
use std::sync::Arc;
use versionset::{Birth, Cause, Letter, STORE, StoreName, is_hashed, nanos};
use vnode::{Cx, Errno, Kind, Result, Time, Vnode};

/// Longest chain of renames that is followed.
const MAX_RENAMES: usize = 10_000;

/// Longest time between the record of a rename and the rename, in seconds.
const SLOWEST: i128 = 60;

/// What a past name refers to.
#[derive(Debug)]
pub(crate) enum Target {
    /// A regular file.
    File(Body),
    /// A directory, wherever it is now.
    Dir(Arc<dyn Vnode>),
    /// A symbolic link or special file, and the version that describes it if it is not the head.
    Special(Arc<dyn Vnode>, Option<Box<Seen>>),
}

/// A step towards the object.
enum Step {
    Done(Target),
    Next(At, Moment, Box<History>),
}

impl Target {
    /// Returns what a moment of a name refers to.
    ///
    /// # Errors
    /// `ESTALE` if the file was renamed and its further history is gone.
    pub(crate) fn of(core: &Arc<Core>, cx: &Cx<'_>, at: &At, history: History, moment: Moment) -> Result<Self> {
        let server = core.server(cx);
        let (mut at, mut history, mut moment) = (at.clone(), history, moment);
        for _ in 0..MAX_RENAMES {
            match step(core, &server, &at, &history, &moment)? {
                Step::Done(target) => return Ok(target),
                Step::Next(next_at, next_moment, next_history) => {
                    (at, moment, history) = (next_at, next_moment, *next_history);
                }
            }
        }
        Err(Errno::LOOP)
    }

    /// Returns what a version of a name refers to.
    pub(crate) fn of_version(core: &Arc<Core>, cx: &Cx<'_>, at: &At, history: History, number: u64) -> Result<Self> {
        let position = history.versions.binary_search_by_key(&number, |seen| seen.version.number);
        Self::of(core, cx, at, history, Moment::Version(position.map_err(|_| Errno::NOENT)?))
    }
}

fn step(core: &Arc<Core>, cx: &Cx<'_>, at: &At, history: &History, moment: &Moment) -> Result<Step> {
    match moment {
        Moment::Version(position) => {
            let seen = history.versions.get(*position).ok_or(Errno::NOENT)?;
            version(core, cx, at, history, seen)
        }
        Moment::Head => head(core, cx, at, history).map(Step::Done),
        Moment::Inode(stem, time) => inode(core, cx, stem, *time),
    }
}

fn head(core: &Arc<Core>, cx: &Cx<'_>, at: &At, history: &History) -> Result<Target> {
    let head = history.head.as_ref().ok_or(Errno::STALE)?;
    Ok(match head.attr.kind() {
        Kind::Directory => Target::Dir(Arc::clone(&head.vnode)),
        Kind::Regular => {
            // The history was read before: a version that was made since has at least this number.
            let next = history.next.min(next_of(core, cx, at, &*head.vnode)?);
            let seen_at = history.head_since().map_or(core.now(), |since| since.max(core.now()));
            Target::File(Body::Head { at: at.clone(), lower: Arc::clone(&head.vnode), next, seen_at })
        }
        _ => Target::Special(Arc::clone(&head.vnode), None),
    })
}

fn version(core: &Arc<Core>, cx: &Cx<'_>, at: &At, history: &History, seen: &Seen) -> Result<Step> {
    let version = &seen.version;
    if !matches!(version.letter, Letter::Renamed | Letter::Directory | Letter::Special) {
        let body = Body::Version(seen.clone());
        return Ok(Step::Done(Target::File(body)));
    }
    let locked = seen.set.lock(core, cx)?;
    // Since the history was read, it may have been discarded.
    seen.find(&locked).ok_or(Errno::STALE)?;
    let entry = locked.file(cx, version.letter, version.number)?.ok_or(Errno::IO)?;
    drop(locked);
    match version.letter {
        Letter::Directory if entry.attr.kind() == Kind::Directory => Ok(Step::Done(Target::Dir(entry.vnode))),
        Letter::Special if !matches!(entry.attr.kind(), Kind::Directory | Kind::Regular) => {
            Ok(Step::Done(Target::Special(entry.vnode, Some(Box::new(seen.clone())))))
        }
        Letter::Renamed if entry.attr.kind() == Kind::Symlink => {
            let text = entry.vnode.readlink(cx)?;
            let to = Reference::parse(&text).ok_or(Errno::IO)?;
            match stayed(core, cx, history, seen, &to)? {
                Some(moment) if !arrived(core, cx, at, seen, &to)? => {
                    Ok(Step::Next(at.clone(), moment, Box::new(history.clone())))
                }
                _ => follow(core, cx, at, seen, &to),
            }
        }
        _ => Err(Errno::IO),
    }
}

/// Returns what the name had directly after a version that refers to another place, if that may be
/// the same object: the rename failed, or a kill interrupted it.
fn stayed(core: &Core, cx: &Cx<'_>, history: &History, seen: &Seen, to: &Reference<'_>) -> Result<Option<Moment>> {
    let newer = history.versions.iter().position(|newer| newer.version.number > seen.version.number);
    let Some(position) = newer else {
        // It may have come back later.
        let is_since = history.head_since().is_some_and(|since| since <= seen.version.died);
        let is_head = is_since && history.head.as_ref().is_some_and(|head| identity(&head.vnode) == to.object);
        return Ok(is_head.then_some(Moment::Head));
    };
    let is_next = history
        .versions
        .get(position)
        .is_some_and(|next| next.version.born == seen.version.died && next.version.kind == seen.version.kind);
    // After the clock was set back, another file may seem to begin at the same time.
    Ok((is_next && is_object(core, cx, history, position, to.object)?).then_some(Moment::Version(position)))
}

/// Whether a version of a name is one of this object, by the file of the version that ended the
/// same head. If that is another file meanwhile, no.
fn is_object(core: &Core, cx: &Cx<'_>, history: &History, position: usize, object: (u64, u32)) -> Result<bool> {
    let since = history.versions.get(position..).unwrap_or_default();
    match since.iter().find(|seen| seen.version.cause.ends_head()) {
        Some(last) => was(core, cx, last, object),
        None => Ok(history.head.as_ref().is_some_and(|head| identity(&head.vnode) == object)),
    }
}

/// Whether an object arrived at the new place at about the time of the rename.
fn arrived(core: &Arc<Core>, cx: &Cx<'_>, at: &At, seen: &Seen, to: &Reference<'_>) -> Result<bool> {
    let dir = match find(core, cx, to.dir) {
        Ok(dir) if dir.kind() == Kind::Directory => dir,
        Ok(_) | Err(Errno::STALE) => return Ok(false),
        Err(errno) => return Err(errno),
    };
    let history = At::new(&dir, to.name).history(core, cx)?;
    let is_near = |birth: &Birth| distance(birth.time, seen.version.died) <= SLOWEST;
    Ok(arrival(&history, at, seen).is_some_and(|(_, birth)| birth.first > 0 || is_near(birth)))
}

fn distance(one: Time, other: Time) -> i128 {
    (i128::from(one.sec) - i128::from(other.sec)).abs()
}

/// Returns the birth of the head that the version `seen` of another place refers to.
///
/// The birth has the number of the version. If it was recorded without one, it is the first such
/// birth since the version ended: several files may come from the same place within a second, for
/// example from an editor that renames each file to its backup. Only if there is none, or it is
/// much later, because the clock was set or a record is missing, it is the nearest one.
fn arrival<'a>(history: &'a History, from: &At, seen: &Seen) -> Option<&'a (Option<u64>, Birth)> {
    let came = |birth: &&Birth, is_wanted: &dyn Fn(u64) -> bool| {
        let place = birth.from.as_ref().filter(|place| is_wanted(if birth.first > 0 { place.number } else { 0 }));
        place.is_some_and(|place| place.dir == from.dir.id() && *place.name == *from.name)
    };
    let (number, died) = (seen.version.number, seen.version.died);
    // After the removal of a set its numbers are used again.
    let last = history.births.iter().rfind(|(_, birth)| birth.first > 0 && came(&birth, &|at| at == number));
    last.or_else(|| {
        let unnumbered = history.births.iter().filter(|(_, birth)| birth.first == 0 && came(&birth, &|_| true));
        unnumbered.min_by_key(|(_, birth)| nearness(birth.time, died))
    })
}

/// Returns a key by which the birth that belongs to a version that ended at `died` is the smallest.
fn nearness(birth: Time, died: Time) -> (bool, u128) {
    (birth < died || distance(birth, died) > SLOWEST, nanos(birth).abs_diff(nanos(died)))
}

/// Returns when an object arrived whose birth was inferred, after a power failure, from what the
/// lower file system tells. That does not say where it came from.
fn inferred_arrival(history: &History, died: Time) -> Option<Time> {
    let inferred = history.births.iter().map(|(_, birth)| birth);
    let inferred = inferred.filter(|birth| birth.cause == Cause::Rename && birth.from.is_none());
    let near = inferred.filter(|birth| distance(birth.time, died) <= SLOWEST);
    near.min_by_key(|birth| nearness(birth.time, died)).map(|birth| birth.time.max(died))
}

/// Returns when an object arrived whose birth was not recorded, because of a kill or a full file
/// system: when what it replaced or was exchanged with ended.
///
/// # Errors
/// `ESTALE` if it can't be told from others that had the name; those of the layer below.
fn unrecorded_arrival(core: &Core, cx: &Cx<'_>, history: &History, died: Time, object: (u64, u32)) -> Result<Time> {
    let mut ends = history.versions.iter().filter(|seen| seen.version.cause.ends_head() && died < seen.version.died);
    let Some(first) = ends.next() else { return Ok(died) };
    let version = &first.version;
    let may_be_replaced = version.born <= died && matches!(version.cause, Cause::Replace | Cause::Rename);
    if !may_be_replaced || distance(version.died, died) > SLOWEST || was(core, cx, first, object)? {
        return Ok(died);
    }
    let is_next = match ends.next() {
        Some(next) => was(core, cx, next, object)?,
        None => history.head.as_ref().is_some_and(|head| identity(&head.vnode) == object),
    };
    if is_next { Ok(version.died) } else { Err(Errno::STALE) }
}

/// Whether a version that ended a head was this object, by its file.
fn was(core: &Core, cx: &Cx<'_>, seen: &Seen, object: (u64, u32)) -> Result<bool> {
    if seen.set.is_link() {
        return Ok(parse_number(&seen.set.stem) == Some(object));
    }
    let locked = seen.set.lock(core, cx)?;
    let Some(entry) = locked.file(cx, seen.version.letter, seen.version.number)? else { return Ok(false) };
    drop(locked);
    if seen.version.letter != Letter::Renamed {
        return Ok(identity(&entry.vnode) == object);
    }
    let text = entry.vnode.readlink(cx)?;
    Ok(Reference::parse(&text).is_some_and(|to| to.object == object))
}

fn identity(vnode: &Arc<dyn Vnode>) -> (u64, u32) {
    (vnode.id(), vnode.generation())
}

/// Follows the reference of a renamed file.
fn follow(core: &Arc<Core>, cx: &Cx<'_>, at: &At, seen: &Seen, to: &Reference<'_>) -> Result<Step> {
    if seen.version.kind == Kind::Directory {
        let dir = find(core, cx, to.object)?;
        return if dir.kind() == Kind::Directory { Ok(Step::Done(Target::Dir(dir))) } else { Err(Errno::IO) };
    }
    let dir = find(core, cx, to.dir)?;
    if dir.kind() != Kind::Directory {
        return Err(Errno::IO);
    }
    let next = At::new(&dir, to.name);
    let history = next.history(core, cx)?;
    let died = seen.version.died;
    let moment = match arrival(&history, at, seen) {
        Some(birth) if birth.1.first > 0 => history.at_birth(birth),
        Some((_, birth)) => history.at(birth.time.max(died)),
        None => {
            let came = match inferred_arrival(&history, died) {
                Some(came) => Some(came),
                // The birth may have gone with the versions that came after it.
                None if !history.is_complete() => None,
                None => Some(unrecorded_arrival(core, cx, &history, died, to.object)?),
            };
            match came.and_then(|came| history.at(came)) {
                Some(Moment::Version(position)) if !is_object(core, cx, &history, position, to.object)? => None,
                moment => moment,
            }
        }
    };
    let moment = moment.ok_or(Errno::STALE)?;
    if let Moment::Head = moment
        && history.head.as_ref().is_none_or(|head| identity(&head.vnode) != to.object)
    {
        return Err(Errno::STALE);
    }
    Ok(Step::Next(next, moment, Box::new(history)))
}

/// Finds the content that an inode had at a time when it had several names, of which one has left
/// without a number. No version was made since in its set, so it is that of the name that it has
/// now, if it has had that since then.
///
/// # Errors
/// `ESTALE` if that is not known; those of the layer below.
fn inode(core: &Arc<Core>, cx: &Cx<'_>, stem: &[u8], time: Time) -> Result<Step> {
    let lower = find(core, cx, parse_number(stem).ok_or(Errno::IO)?)?;
    let mut place = None;
    lower.names(cx, &mut |dir, name| {
        place = Some(At::new(dir, name.as_bytes()));
        false
    })?;
    let (place, end) = out_of_store(core, cx, place.ok_or(Errno::STALE)?)?;
    let history = place.history(core, cx)?;
    let moment = history.at(time).ok_or(Errno::STALE)?;
    // The name may have been another file's then.
    let (is_same, is_head) = match moment {
        Moment::Version(position) => {
            let since = history.versions.get(position..).unwrap_or_default();
            let ended = since.iter().find(|seen| seen.version.cause.ends_head()).map(|seen| seen.version.number);
            (ended.is_none_or(|ended| ended == end), ended.is_none())
        }
        Moment::Head => (true, true),
        Moment::Inode(..) => (false, false),
    };
    let has_head = history.head.as_ref().is_some_and(|head| identity(&head.vnode) == identity(&lower));
    if !is_same || (is_head && !has_head) {
        return Err(Errno::STALE);
    }
    Ok(Step::Next(place, moment, Box::new(history)))
}

/// Returns the name whose version a lower file has become, and the number of the version; for other
/// files the name itself and a number after all others.
fn out_of_store(core: &Core, cx: &Cx<'_>, at: At) -> Result<(At, u64)> {
    let mut home = None;
    at.dir.names(cx, &mut |dir, name| {
        home = (name.as_bytes() == STORE).then(|| Arc::clone(dir));
        false
    })?;
    let (Some(home), StoreName::Version { stem, number, .. }) = (home, versionset::parse(&at.name)) else {
        return Ok((at, u64::MAX));
    };
    let name =
        if is_hashed(stem) { crate::sets_of_dir::long_name(core, cx, &at.dir, stem)? } else { Some(stem.to_vec()) };
    Ok((At::new(&home, &name.ok_or(Errno::STALE)?), number))
}

/// Finds a lower object by number and generation.
fn find(core: &Core, cx: &Cx<'_>, (number, generation): (u64, u32)) -> Result<Arc<dyn Vnode>> {
    let found = core.by_number(cx, number).map_err(|errno| if errno == Errno::NOENT { Errno::STALE } else { errno })?;
    if found.generation() == generation { Ok(found) } else { Err(Errno::STALE) }
}

/// The text of a version file of a renamed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reference<'a> {
    dir: (u64, u32),
    object: (u64, u32),
    name: &'a [u8],
}

impl<'a> Reference<'a> {
    fn parse(text: &'a [u8]) -> Option<Self> {
        let mut fields = text.splitn(3, |byte| *byte == b' ');
        let (dir, object) = (parse_number(fields.next()?)?, parse_number(fields.next()?)?);
        let name = fields.next().filter(|name| vnode::Name::new(name).is_ok())?;
        Some(Self { dir, object, name })
    }
}

/// Returns the number and generation of the object to which the version file of a renamed file
/// refers.
pub(crate) fn object_of(text: &[u8]) -> Option<(u64, u32)> {
    Reference::parse(text).map(|to| to.object)
}

/// Parses `NUMBER.GENERATION` in hexadecimal.
pub(crate) fn parse_number(text: &[u8]) -> Option<(u64, u32)> {
    let (number, generation) = core::str::from_utf8(text).ok()?.split_once('.')?;
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex(number) || !is_hex(generation) {
        return None;
    }
    Some((u64::from_str_radix(number, 16).ok()?, u32::from_str_radix(generation, 16).ok()?))
}

impl Target {
    /// Returns the vnode with this number. Directories are shown as they were at `time`.
    pub(crate) fn into_vnode(self, core: &Arc<Core>, id: u64, time: Time) -> Arc<dyn Vnode> {
        let core = Arc::clone(core);
        match self {
            Self::File(body) => Arc::new(PastFile::new(&core, id, body)),
            Self::Dir(lower) => Arc::new(crate::past::PastDir { id, core, lower, time, listing: Listing::default() }),
            Self::Special(lower, version) => Arc::new(Special { id, core, lower, version }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::VersionVnode;
    use crate::{Options, VersionFs};
    use vnode::{Layer as _, Name, OpenFlags, RenameFlags};

    #[test]
    fn the_first_birth_since_the_end_belongs_to_it() {
        let time = |sec, nsec| Time { sec, nsec };
        let nearest = |died: Time, births: &[Time]| *births.iter().min_by_key(|birth| nearness(**birth, died)).unwrap();
        let births = [time(7, 100), time(7, 300), time(7, 900), time(8, 0)];
        for (died, expected) in [(50, 100), (100, 100), (101, 300), (250, 300), (301, 900)] {
            assert_eq!(nearest(time(7, died), &births), time(7, expected));
        }
        assert_eq!(nearest(time(7, 901), &births), time(8, 0));
        // The clock was set back, or the record is missing.
        assert_eq!(nearest(time(9, 0), &births), time(8, 0));
        assert_eq!(nearest(time(9, 0), &[time(8, 0), time(1000, 0)]), time(8, 0));
        assert_eq!(nearest(time(9, 0), &[time(8, 0), time(10, 0)]), time(10, 0));
    }

    #[test]
    fn a_version_that_is_discarded_after_its_history_was_read_is_stale() {
        let never = core::sync::atomic::AtomicBool::new(false);
        let cx = Cx::new(0, 0, 0, 0o022, true, &never);
        let layer = VersionFs::new(memfs::MemFs::new(), Options::default());
        let (root, name) = (layer.root(), |name| Name::new(name).unwrap());
        root.symlink(&cx, name(b"link"), b"target").unwrap();
        root.unlink(&cx, name(b"link")).unwrap();
        root.mkdir(&cx, name(b"dir"), 0o755).unwrap();
        root.rmdir(&cx, name(b"dir")).unwrap();
        root.create(&cx, name(b"file"), 0o644, OpenFlags::WRONLY).unwrap();
        root.rename(&cx, name(b"file"), &root, name(b"new"), RenameFlags::default()).unwrap();
        let core = &root.as_any().downcast_ref::<VersionVnode>().unwrap().core;
        for file in ["link", "dir", "file"] {
            let at = At::new(&core.root(), file.as_bytes());
            let history = at.history(core, &cx).unwrap();
            let open = || Target::of_version(core, &cx, &at, history.clone(), 1).map(drop);
            assert_eq!(open(), Ok(()), "{file}");
            root.control(&cx, "versionfs.discard", format!("{file} 1").as_bytes()).unwrap();
            assert_eq!(open(), Err(Errno::STALE), "{file}");
        }
    }

    #[test]
    fn references_are_parsed() {
        let reference = Reference { dir: (0x1f, 0), object: (0xa0, 2), name: b"a b" };
        assert_eq!(Reference::parse(b"1f.0 a0.2 a b"), Some(reference));
        for text in [&b""[..], b"1f.0 a0.2", b"1f.0 a0.2 ", b"1f a0.2 x", b"+1.0 2.0 x", b"1.0 2.0 a/b", b"1.0 2.0 .."]
        {
            assert_eq!(Reference::parse(text), None);
        }
    }
}
