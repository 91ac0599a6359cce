//! What a check can find, and what a repair of it does.

use std::path::PathBuf;

/// The importance of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It has no effect, or the union ignores it. The branches are not damaged.
    Note,
    /// A leftover of an interrupted operation. It has no effect on what users see.
    Leftover,
    /// The view of the union is wrong, or information is lost.
    Damage,
}

/// Who has to agree to a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Consent {
    /// Nobody: the repair changes nothing that users see, in this union and in any other.
    Safe,
    /// The administrator.
    Ask,
}

/// A repair of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repair {
    /// Who has to agree.
    pub consent: Consent,
    /// What it does, as an imperative: `remove the whiteout`.
    pub what: &'static str,
}

/// A kind of finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Problem {
    /// A whiteout beside a file of its name.
    WhiteoutBesideFile,
    /// A whiteout beside a directory of its name.
    WhiteoutBesideDirectory,
    /// A whiteout of a name that no branch to the right has.
    WhiteoutHidesNothing,
    /// An opaque mark in a directory that would merge nothing without it.
    OpaqueHidesNothing,
    /// An opaque mark in the root of a branch.
    OpaqueInRoot,
    /// Both forms of the opaque mark in one directory.
    OpaqueTwice,
    /// A redirect in an opaque directory.
    RedirectBesideOpaque,
    /// A redirect to the place where the directory is.
    RedirectToItself,
    /// A redirect that another user can have written.
    RedirectUntrusted,
    /// A redirect that can't be read.
    RedirectDamaged,
    /// A redirect to a path without a directory.
    RedirectNowhere,
    /// A redirect to a directory that another directory shows too.
    RedirectShared,
    /// Redirects on a branch without the mark that announces them.
    RedirectUnannounced,
    /// A metacopy beside a file of its name.
    MetacopyBesideFile,
    /// A metacopy beside a whiteout of its name.
    MetacopyBesideWhiteout,
    /// A metacopy of a file that does not exist.
    MetacopyWithoutData,
    /// A metacopy that was made of another file than the one that has the name.
    MetacopyOfOtherFile,
    /// A metacopy without an origin: another user can have created it.
    MetacopyUntrusted,
    /// A metacopy whose origin can't be read.
    MetacopyDamaged,
    /// Metacopies on a branch without the mark that announces them.
    MetacopyUnannounced,
    /// A snapshot was interrupted, and no mount has completed or reverted it.
    SnapshotUnfinished,
    /// Records of a snapshot that is complete, or was not taken.
    SnapshotLeftovers,
    /// Files in the work directory.
    WorkLeftovers,
    /// Something else has the name of the work directory.
    WorkForeign,
    /// Something else has the name of the link index.
    IndexForeign,
    /// An index entry that can't be valid.
    IndexInvalid,
    /// An index entry without any other name.
    IndexUnused,
    /// A crash cut the identity log off.
    LogCutOff,
    /// Records in the middle of the identity log are damaged.
    LogDamaged,
    /// The identity log has records that no server wrote.
    LogForged,
    /// A later version of Strata wrote the identity log.
    LogLater,
    /// Another user can have written the identity log.
    LogUntrusted,
    /// Something else has the name of the identity log.
    LogForeign,
    /// A rewritten identity log that was not put in place.
    LogRewriteLeftover,
    /// Changes of link counts that were interrupted.
    LinksUnfinished,
    /// A link count is too low.
    LinkCountLow,
    /// A reserved name without a known meaning.
    UnknownName,
    /// Redirects make a lookup too expensive.
    TooComplex,
}

use Consent::{Ask, Safe};
use Problem as P;
use Severity::{Damage, Leftover, Note};

impl Problem {
    /// All kinds.
    pub const ALL: &[Self] = &[
        P::WhiteoutBesideFile,
        P::WhiteoutBesideDirectory,
        P::WhiteoutHidesNothing,
        P::OpaqueHidesNothing,
        P::OpaqueInRoot,
        P::OpaqueTwice,
        P::RedirectBesideOpaque,
        P::RedirectToItself,
        P::RedirectUntrusted,
        P::RedirectDamaged,
        P::RedirectNowhere,
        P::RedirectShared,
        P::RedirectUnannounced,
        P::MetacopyBesideFile,
        P::MetacopyBesideWhiteout,
        P::MetacopyWithoutData,
        P::MetacopyOfOtherFile,
        P::MetacopyUntrusted,
        P::MetacopyDamaged,
        P::MetacopyUnannounced,
        P::SnapshotUnfinished,
        P::SnapshotLeftovers,
        P::WorkLeftovers,
        P::WorkForeign,
        P::IndexForeign,
        P::IndexInvalid,
        P::IndexUnused,
        P::LogCutOff,
        P::LogDamaged,
        P::LogForged,
        P::LogLater,
        P::LogUntrusted,
        P::LogForeign,
        P::LogRewriteLeftover,
        P::LinksUnfinished,
        P::LinkCountLow,
        P::UnknownName,
        P::TooComplex,
    ];

    /// Returns the name of the kind in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// Returns the importance on a branch that can be repaired.
    #[must_use]
    pub const fn severity(self) -> Severity {
        self.row().1
    }

    /// Returns what is wrong, in one clause.
    #[must_use]
    pub const fn text(self) -> &'static str {
        self.row().2
    }

    /// Returns the repair; `None` if there is none.
    #[must_use]
    pub const fn repair(self) -> Option<Repair> {
        match self.row().3 {
            Some((consent, what)) => Some(Repair { consent, what }),
            None => None,
        }
    }

    #[allow(clippy::type_complexity)]
    const fn row(self) -> (&'static str, Severity, &'static str, Option<(Consent, &'static str)>) {
        match self {
            P::WhiteoutBesideFile => (
                "whiteout-beside-file",
                Leftover,
                "a whiteout beside the file of its name",
                Some((Safe, "remove the whiteout")),
            ),
            P::WhiteoutBesideDirectory => (
                "whiteout-beside-directory",
                Leftover,
                "a whiteout beside the directory of its name",
                Some((Safe, "mark the directory opaque, if it has no mark, and remove the whiteout")),
            ),
            P::WhiteoutHidesNothing => {
                ("whiteout-hides-nothing", Note, "a whiteout hides nothing", Some((Ask, "set the whiteout aside")))
            }
            P::OpaqueHidesNothing => {
                ("opaque-hides-nothing", Note, "an opaque mark hides nothing", Some((Ask, "set the mark aside")))
            }
            P::OpaqueInRoot => (
                "opaque-in-root",
                Note,
                "an opaque mark in the root of a branch has no effect",
                Some((Ask, "set the mark aside")),
            ),
            P::OpaqueTwice => (
                "opaque-twice",
                Note,
                "the opaque mark of Unionfs 2 beside another one",
                Some((Ask, "set the mark of Unionfs 2 aside")),
            ),
            P::RedirectBesideOpaque => (
                "redirect-beside-opaque",
                Leftover,
                "a redirect in an opaque directory",
                Some((Safe, "remove the redirect")),
            ),
            P::RedirectToItself => (
                "redirect-to-itself",
                Note,
                "a redirect leads to the place where the directory is",
                Some((Ask, "set the redirect aside")),
            ),
            P::RedirectUntrusted => (
                "redirect-untrusted",
                Note,
                "a redirect is ignored, because another user can have written it",
                Some((Ask, "set the redirect aside")),
            ),
            P::RedirectDamaged => (
                "redirect-damaged",
                Damage,
                "a redirect is damaged: what the directory merged is not shown",
                Some((Ask, "set the redirect aside")),
            ),
            P::RedirectNowhere => (
                "redirect-nowhere",
                Damage,
                "a redirect leads to no directory on the branches to the right",
                Some((Ask, "mark the directory opaque and set the redirect aside")),
            ),
            P::RedirectShared => {
                ("redirect-shared", Damage, "a redirect leads to a directory that is shown elsewhere too", None)
            }
            P::RedirectUnannounced => (
                "redirect-unannounced",
                Damage,
                "redirects of this branch are ignored, because .wh..wh.moved is missing in its root",
                Some((Ask, "create .wh..wh.moved: renamed directories show their contents again")),
            ),
            P::MetacopyBesideFile => (
                "metacopy-beside-file",
                Leftover,
                "a metacopy beside the file of its name",
                Some((Safe, "remove the metacopy")),
            ),
            P::MetacopyBesideWhiteout => (
                "metacopy-beside-whiteout",
                Leftover,
                "a metacopy of a removed file",
                Some((Safe, "remove the metacopy")),
            ),
            P::MetacopyWithoutData => (
                "metacopy-without-data",
                Damage,
                "a metacopy without the file that holds the data",
                Some((Ask, "set the metacopy aside")),
            ),
            P::MetacopyOfOtherFile => (
                "metacopy-of-other-file",
                Damage,
                "a metacopy is ignored, because it was made of another file than the one that has the name",
                Some((Ask, "set the metacopy aside")),
            ),
            P::MetacopyUntrusted => (
                "metacopy-untrusted",
                Note,
                "a metacopy is ignored, because another user can have created it",
                Some((Ask, "set the metacopy aside")),
            ),
            P::MetacopyDamaged => (
                "metacopy-damaged",
                Damage,
                "a metacopy is ignored, because its attribute trusted.strata.origin is damaged",
                Some((Ask, "set the metacopy aside")),
            ),
            P::MetacopyUnannounced => (
                "metacopy-unannounced",
                Damage,
                "metacopies of this branch are ignored, because .wh..wh.metacopies is missing in its root",
                Some((Ask, "create .wh..wh.metacopies: files get their changed attributes again")),
            ),
            P::SnapshotUnfinished => (
                "snapshot-unfinished",
                Damage,
                "a snapshot was interrupted: the branch shares files with another one",
                Some((Safe, "complete or revert the snapshot, as a mount does")),
            ),
            P::SnapshotLeftovers => (
                "snapshot-leftovers",
                Leftover,
                "records of an interrupted snapshot that have no effect",
                Some((Safe, "remove them")),
            ),
            P::WorkLeftovers => {
                ("work-leftovers", Leftover, "unfinished copies in the work directory", Some((Safe, "remove them")))
            }
            P::WorkForeign => {
                ("work-foreign", Note, "the work directory is not the union's; the next mount sets it aside", None)
            }
            P::IndexForeign => {
                ("index-foreign", Damage, "the index of hard links is ignored, because it is not the union's", None)
            }
            P::IndexInvalid => (
                "index-invalid",
                Note,
                "an index entry of a file that can't have a copy here",
                Some((Ask, "set the entry aside")),
            ),
            P::IndexUnused => (
                "index-unused",
                Damage,
                "an index entry of a file without names: its data are reachable only here",
                Some((Ask, "set the entry aside")),
            ),
            P::LogCutOff => (
                "log-cut-off",
                Leftover,
                "the last record of the identity log is incomplete",
                Some((Safe, "cut the log off after the last complete record")),
            ),
            P::LogDamaged => (
                "log-damaged",
                Damage,
                "the identity log is damaged: inode numbers and link counts change",
                Some((Ask, "write a new log of all readable records and set the old one aside")),
            ),
            P::LogForged => (
                "log-forged",
                Damage,
                "the identity log has records that no server writes",
                Some((Safe, "write a new log without them")),
            ),
            P::LogLater => {
                ("log-later", Damage, "a later version of Strata wrote the identity log; use that version", None)
            }
            P::LogUntrusted => (
                "log-untrusted",
                Damage,
                "the identity log is ignored, because another user can have written it",
                Some((Ask, "set the log aside: inode numbers and link counts change")),
            ),
            P::LogForeign => {
                ("log-foreign", Note, "the identity log is not a file; the next mount sets it aside", None)
            }
            P::LogRewriteLeftover => (
                "log-rewrite-leftover",
                Leftover,
                "a rewritten identity log that was not put in place",
                Some((Safe, "remove it")),
            ),
            P::LinksUnfinished => (
                "links-unfinished",
                Leftover,
                "changes of link counts were interrupted",
                Some((Safe, "complete them, as a mount does")),
            ),
            P::LinkCountLow => (
                "link-count-low",
                Damage,
                "the identity log counts fewer names of a file than there are",
                Some((Ask, "correct the count")),
            ),
            P::UnknownName => ("unknown-name", Note, "a reserved name without a known meaning; left as it is", None),
            P::TooComplex => {
                ("too-complex", Damage, "redirects make this directory too expensive to look up (ELOOP)", None)
            }
        }
    }
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The kind.
    pub problem: Problem,
    /// The branch.
    pub branch: PathBuf,
    /// The path on the branch of the whiteout, mark, record or directory.
    pub path: Vec<u8>,
    /// More about this instance, such as the target of a redirect. Printable text.
    pub detail: String,
    /// Why it can't be repaired, although others of its kind can.
    pub obstacle: Option<&'static str>,
}

impl Finding {
    /// Returns the importance. A leftover that can't be repaired here is only a note.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self.problem.severity() {
            Leftover if self.repair().is_none() => Note,
            severity => severity,
        }
    }

    /// Returns the repair; `None` if it can't be repaired.
    #[must_use]
    pub fn repair(&self) -> Option<Repair> {
        self.problem.repair().filter(|_| self.obstacle.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_leftovers_can_be_repaired() {
        let names: HashSet<_> = Problem::ALL.iter().map(|problem| problem.name()).collect();
        assert_eq!(names.len(), Problem::ALL.len());
        for problem in Problem::ALL {
            assert!(problem.severity() != Leftover || problem.repair().is_some(), "{problem:?}");
            let safe = problem.repair().is_some_and(|repair| repair.consent == Safe);
            assert!(!safe || problem.severity() != Note, "{problem:?}: fsck -p would repair what is no error");
        }
    }
}
