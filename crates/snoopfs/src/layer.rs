use crate::caller::Caller;
use crate::limit::Limit;
use crate::paths::Paths;
use crate::rules::Rules;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vnode::{Cx, Errno, Layer, Result};
use wrapfs::hooks::{Answer, Instead, Object, Op, OpKind, OpSet, Operations, Verdict};
use wrapfs::{Build, LayerType, Needs, OptionSpec, Settings, Template, Traits};

/// `snoopfs`, for the list of layers.
pub const LAYER: LayerType = LayerType {
    name: "snoopfs",
    about: "warns of refused accesses and guessed names; protects programs",
    options: &[
        OptionSpec {
            name: "rate",
            value: Some("N"),
            help: "At most N warnings about each user in a minute (60); 0: all of them.",
        },
        OptionSpec {
            name: "missing",
            value: Some("hidden|all"),
            help: "Missing names that are told: those in directories that the caller may not list (hidden, the default), or in all directories \
                   of others (all). Programs such as git probe directories that they can list anyway.",
        },
        OptionSpec {
            name: "protect",
            value: Some("PATH[:PATH...]"),
            help: "These files, named from the root of the mount, can't be written, replaced, renamed or removed, by root neither.",
        },
        OptionSpec {
            name: "nosetid",
            value: None,
            help: "No program can be made set-user-id or set-group-id, or be given capabilities, by root neither.",
        },
    ],
    build: Build::Over(&build),
    traits: Traits { needs: |_| Ok(Needs { warns: Some("/var/log/snoopfs.log"), ..Needs::NONE }), ..Traits::NONE },
};

#[derive(Debug)]
struct Snoop {
    paths: Paths,
    limit: Limit,
    rules: Rules,
    /// Tell of missing names also in directories that the caller may list.
    all_missing: bool,
}

fn build(lower: Arc<dyn Layer>, settings: &Settings) -> core::result::Result<Arc<dyn Layer>, String> {
    let snoop = Snoop {
        paths: Paths::new(lower.root().id()),
        limit: Limit::new(settings.number("rate", 0..=u32::MAX)?.unwrap_or(60)),
        rules: Rules::new(&lower, settings)?,
        all_missing: match settings.text("missing")? {
            None | Some("hidden") => false,
            Some("all") => true,
            Some(other) => return Err(format!("missing={other}: it is hidden or all")),
        },
    };
    Ok(Template::over(lower).operations(snoop).build())
}

impl Operations for Snoop {
    fn interest(&self) -> OpSet {
        let watched = [OpKind::Lookup, OpKind::Refused];
        let named = [OpKind::Create, OpKind::Mkdir, OpKind::Mknod, OpKind::Symlink, OpKind::Link, OpKind::Rename];
        OpSet::of(&[&watched[..], &named, self.rules.interest()].concat())
    }

    fn before(&self, cx: &Cx<'_>, op: &Op<'_>) -> Result<Verdict> {
        if let Op::Refused { file, mask } = op
            && concerns(cx, file)
        {
            let lacks = access::refused(cx, file.lower(), *mask)?;
            if lacks != 0 {
                // To find out who it was may take a moment.
                cx.require_blocking()?;
                self.warn(cx, format_args!("permission denied ({})", rights(lacks)), &self.paths.of(file.id()), true);
            }
        }
        let Some(culprit) = self.rules.forbid(cx, op)? else { return Ok(Verdict::Proceed) };
        let path = self.paths.of_culprit(op, culprit);
        self.warn(cx, format_args!("refused by the rules of this mount ({:?})", op.kind()), &path, false);
        Err(Errno::PERM)
    }

    fn after(&self, cx: &Cx<'_>, op: &Op<'_>, result: Result<Answer<'_>>) -> Instead {
        self.paths.learn_from(op, result);
        if let (Op::Lookup { dir, name }, Ok(Answer::Missing)) = (op, result)
            && concerns(cx, dir)
            && (self.all_missing || !may_list(cx, dir))
        {
            self.warn(cx, format_args!("no such file"), &self.paths.of_name(dir.id(), name.as_bytes()), false);
        }
        Instead::Keep
    }
}

impl Snoop {
    fn warn(&self, cx: &Cx<'_>, what: core::fmt::Arguments<'_>, path: &[u8], ask: bool) {
        let Some(unsaid) = self.limit.admit(cx.uid) else { return };
        let caller = Caller::of(cx, ask);
        tracing::warn!(target: "snoopfs", "{what}: path=\"{}\" {caller}{unsaid}", path.escape_ascii());
    }
}

/// Is it anybody's business but the caller's? Not what root does, nor the owner.
fn concerns(cx: &Cx<'_>, object: &Object<'_>) -> bool {
    // A question that can't be answered is no reason to keep silent.
    cx.uid != 0 && object.attr(&Cx::internal(0, 0)).map_or(true, |attr| attr.uid != cx.uid)
}

/// May the caller see the names in a directory? Then a missing one is no guess. In doubt it may not.
fn may_list(cx: &Cx<'_>, dir: &Object<'_>) -> bool {
    // The look-up is done, and can't begin anew on another thread.
    let never = AtomicBool::new(false);
    let waiting = Cx::new(cx.uid, cx.gid, cx.pid, cx.umask, true, &never);
    access::refused(&waiting, dir.lower(), access::READ).is_ok_and(|lacks| lacks == 0)
}

/// `rwx`, as far as it is lacking.
fn rights(lacks: u32) -> String {
    [(access::READ, 'r'), (access::WRITE, 'w'), (access::SEARCH, 'x')]
        .into_iter()
        .filter_map(|(bit, letter)| (lacks & bit != 0).then_some(letter))
        .collect()
}
