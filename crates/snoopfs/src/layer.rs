use crate::caller::Caller;
use crate::paths::Paths;
use crate::rate_limit::RateLimit;
use crate::rules::Rules;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vnode::{Cx, Errno, Layer, Result};
use wrapfs::hooks::{Instead, Object, Op, OpKind, OpSet, Operations, Outcome, Verdict};
use wrapfs::{Build, LayerType, Needs, OptionSpec, Settings, Template, Traits};

/// The declaration of `snoopfs`.
pub const LAYER: LayerType = LayerType {
    name: "snoopfs",
    about: "warns about refused accesses and guessed names; protects programs",
    options: &[
        OptionSpec {
            name: "rate",
            value: Some("N"),
            help: "Maximum number of warnings per user and minute (default 60); 0 means no limit.",
        },
        OptionSpec {
            name: "missing",
            value: Some("hidden|all"),
            help: "Which lookups of missing names cause a warning: those in directories that the caller can't list (hidden, the \
                   default), or those in all directories of other users (all). Programs such as git probe many directories \
                   that they can list.",
        },
        OptionSpec {
            name: "protect",
            value: Some("PATH[:PATH...]"),
            help: "Nobody, not even root, can write, replace, rename or remove these files. The paths start at the root of the \
                   mount.",
        },
        OptionSpec {
            name: "nosetid",
            value: None,
            help: "Nobody, not even root, can set the set-user-id or set-group-id bit of a file, or file capabilities.",
        },
    ],
    build: Build::Over(&build),
    traits: Traits {
        needs: |_| Ok(Needs { warns: Some("/var/log/snoopfs.log"), ..Needs::NONE }),
        keeps_callers_apart: true,
        ..Traits::NONE
    },
};

#[derive(Debug)]
struct Snoop {
    paths: Paths,
    limit: RateLimit,
    rules: Rules,
    /// Whether to warn about missing names in directories that the caller can list, too.
    all_missing: bool,
}

fn build(lower: Arc<dyn Layer>, settings: &Settings) -> core::result::Result<Arc<dyn Layer>, String> {
    let snoop = Snoop {
        paths: Paths::new(lower.root().id()),
        limit: RateLimit::new(settings.number("rate", 0..=u32::MAX)?.unwrap_or(60)),
        rules: Rules::new(&lower, settings)?,
        all_missing: match settings.text("missing")? {
            None | Some("hidden") => false,
            Some("all") => true,
            Some(other) => return Err(format!("missing={other}: unknown value; use hidden or all")),
        },
    };
    Template::over(lower).operations(snoop).build()
}

impl Operations for Snoop {
    fn interest(&self) -> OpSet {
        let watched = [OpKind::Lookup, OpKind::Refused];
        let named = [OpKind::Create, OpKind::Mkdir, OpKind::Mknod, OpKind::Symlink, OpKind::Link, OpKind::Rename];
        OpSet::of(&[&watched[..], &named, self.rules.interest()].concat())
    }

    fn before(&self, cx: &Cx<'_>, op: &Op<'_>) -> Result<Verdict> {
        if let Op::Refused { file, mask } = op
            && is_watched(cx, file)
        {
            let lacks = access::refused(cx, file.lower(), *mask)?;
            if lacks != 0 {
                // Identifying the caller reads /proc, which may block.
                cx.require_blocking()?;
                self.warn(cx, format_args!("permission denied ({})", rights(lacks)), &self.paths.of(file.id()), true);
            }
        }
        let Some(object) = self.rules.forbid(cx, op)? else { return Ok(Verdict::Proceed) };
        let path = self.paths.of_object(op, object);
        self.warn(cx, format_args!("refused by the rules of this mount ({:?})", op.kind()), &path, false);
        Err(Errno::PERM)
    }

    fn after(&self, cx: &Cx<'_>, op: &Op<'_>, result: Result<Outcome<'_>>) -> Instead {
        self.paths.record_result(op, result);
        if let (Op::Lookup { dir, name }, Ok(Outcome::Missing)) = (op, result)
            && is_watched(cx, dir)
            && (self.all_missing || !may_list(cx, dir))
        {
            self.warn(cx, format_args!("no such file"), &self.paths.of_name(dir.id(), name.as_bytes()), false);
        }
        Instead::Keep
    }
}

impl Snoop {
    fn warn(&self, cx: &Cx<'_>, what: core::fmt::Arguments<'_>, path: &[u8], with_path: bool) {
        let Some(suppressed) = self.limit.admit(cx.uid) else { return };
        let caller = Caller::of(cx, with_path);
        tracing::warn!(target: "snoopfs", "{what}: path=\"{}\" {caller}{suppressed}", path.escape_ascii());
    }
}

/// Whether an access must be watched: by a user other than root and the owner.
fn is_watched(cx: &Cx<'_>, object: &Object<'_>) -> bool {
    // If the owner is unknown, warn.
    cx.uid != 0 && object.attr(&Cx::internal(0, 0)).map_or(true, |attr| attr.uid != cx.uid)
}

/// Whether the caller can list the directory, in which case a missing name is not a guess. If
/// unknown, false.
fn may_list(cx: &Cx<'_>, dir: &Object<'_>) -> bool {
    // The lookup is complete and can't be retried on another thread, so this check must be allowed
    // to block.
    let never = AtomicBool::new(false);
    let blocking = Cx::new(cx.uid, cx.gid, cx.pid, cx.umask, true, &never);
    access::refused(&blocking, dir.lower(), access::READ).is_ok_and(|lacks| lacks == 0)
}

/// Formats the missing permissions as letters of `rwx`.
fn rights(lacks: u32) -> String {
    [(access::READ, 'r'), (access::WRITE, 'w'), (access::SEARCH, 'x')]
        .into_iter()
        .filter_map(|(bit, letter)| (lacks & bit != 0).then_some(letter))
        .collect()
}
