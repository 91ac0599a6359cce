//! The command `versionfs.lost`: what a restore of a directory can't bring back.

use crate::commands::Place;
use crate::content_time;
use crate::history::{At, History, Moment};
use crate::past::{PastDir, stored_xattrs};
use crate::reply::{MAX_REPLY, field, time};
use crate::sets_of_dir::{names_in, names_with_sets};
use crate::tags;
use std::collections::BTreeSet;
use versionpolicy::Versions;
use versionset::{Gap, Letter, Lost, Why};
use vnode::{Cx, Errno, Kind, Name, Result, Time};

impl Place<'_> {
    /// Lists the names whose last state is not in the history.
    pub(crate) fn lost(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.require_read(cx)?;
        let mut all = self.core.lost_in(&self.core.server(cx), self.lower)?;
        for name in names_with_sets(self.core, cx, self.lower)? {
            cx.check()?;
            let history = At::new(self.lower, &name).history(self.core, cx)?;
            if let Some(gap) = history.last_gap() {
                all.push(Lost { name: name.into(), why: Why::Discarded, gap });
            }
        }
        Ok(reply(all.iter().map(line)))
    }

    /// Lists the names, or only `one`, that existed at a time in a state that is not known.
    pub(crate) fn lost_at(&self, cx: &Cx<'_>, when: &[u8], one: Option<&[u8]>) -> Result<Vec<u8>> {
        self.require_read(cx)?;
        let when = crate::reply::unescape(when).ok_or(Errno::INVAL)?;
        let moment = tags::moment(self.core, cx, &when)?.ok_or(Errno::NOENT)?;
        let (mut lines, mut known) = (Vec::new(), BTreeSet::new());
        let names = one.map_or_else(|| names_in(self.core, cx, self.lower), |one| Ok([one.to_vec()].into()));
        for name in names? {
            cx.check()?;
            let history = At::new(self.lower, &name).history(self.core, cx)?;
            let why = match history.at(moment) {
                None if history.was_lost(moment) => "discarded",
                Some(known) if self.is_astray(cx, &name, (&history, &known), moment) => "discarded",
                Some(known) if self.is_unrecorded(cx, &name, (&history, &known), moment) => "unrecorded",
                None => continue,
                Some(_) => {
                    known.insert(name);
                    continue;
                }
            };
            let mut line = format!("{why} ").into_bytes();
            field(&name, &mut line);
            lines.push(line);
            known.insert(name);
        }
        let was = |lost: &&Lost| {
            let is_wanted = !known.contains(&*lost.name) && one.is_none_or(|one| *lost.name == *one);
            is_wanted && lost.gap.has(moment)
        };
        let all = self.core.lost_in(&self.core.server(cx), self.lower)?;
        Ok(reply(lines.into_iter().chain(all.iter().filter(was).map(line))))
    }

    /// Whether the name is known to have been renamed later, but not to what.
    fn is_astray(&self, cx: &Cx<'_>, name: &[u8], (history, known): (&History, &Moment), moment: Time) -> bool {
        let Moment::Version(at) = known else { return false };
        let is_renamed = history.versions.get(*at).is_some_and(|seen| seen.version.letter == Letter::Renamed);
        let shown = || PastDir::at(self.core, self.lower, moment).lookup(cx, Name::new(name)?);
        is_renamed && !matches!(shown(), Ok(Some(_)))
    }

    /// Whether a file was changed after `moment`, at which it is known as this, because its policy
    /// keeps no versions of changes.
    fn is_unrecorded(&self, cx: &Cx<'_>, name: &[u8], (history, known): (&History, &Moment), moment: Time) -> bool {
        let (server, who) = (self.core.server(cx), || Some(self.core.callers.who(cx)));
        // A file whose changes have versions may have got its time without any.
        let keeps_none = |facts| {
            let policy = self.core.policy_of(&server, (self.lower, name), facts, &who, self.core.now());
            policy.versions != Versions::All
        };
        let changed = match known {
            Moment::Version(at) => history.versions.get(*at).and_then(|seen| {
                let version = &seen.version;
                let is_meant = version.kind == Kind::Regular && keeps_none((version.size, version.uid, version.gid));
                let xattrs = is_meant.then(|| stored_xattrs(self.core, &server, seen).unwrap_or_default())?;
                let xattrs = xattrs.iter().map(|(name, value)| (&**name, &**value));
                Some(content_time::recorded(version.mtime, xattrs).unwrap_or_else(|| version.mtime.min(version.died)))
            }),
            Moment::Head => history.head.as_ref().and_then(|head| {
                let attr = &head.attr;
                let is_meant = attr.kind() == Kind::Regular && keeps_none((attr.size, attr.uid, attr.gid));
                let recorded = is_meant.then(|| content_time::recorded_at(&server, &*head.vnode, attr.mtime))?;
                Some(recorded.unwrap_or_else(|| attr.mtime.min(attr.ctime)))
            }),
            Moment::Inode(..) => None,
        };
        changed.is_some_and(|changed| changed > moment)
    }
}

/// Returns the line of a record.
fn line(lost: &Lost) -> Vec<u8> {
    let why = match lost.why {
        Why::NoRoom => "no-room ",
        Why::Discarded => "discarded ",
    };
    let mut line = why.as_bytes().to_vec();
    field(&lost.name, &mut line);
    let Gap { born, died, cause, who } = &lost.gap;
    let (born, died, op) = (time(*born), time(*died), cause.word());
    line.extend_from_slice(format!(" {born} {died} {op} {} {} {} ", who.uid, who.pid, who.sid).as_bytes());
    field(&who.comm, &mut line);
    line
}

/// Joins lines. Where they are too many, the last one stands for the others.
fn reply(lines: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut out = Vec::new();
    for line in lines {
        if out.len() > MAX_REPLY {
            out.extend_from_slice(b"discarded -\n");
            break;
        }
        out.extend_from_slice(&line);
        out.push(b'\n');
    }
    out
}
