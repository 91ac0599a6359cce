use crate::caller::Caller;
use crate::limit::Limit;
use crate::paths::Paths;
use crate::rules::Rules;
use std::sync::Arc;
use vnode::{Cx, Errno, Layer, Result};
use wrapfs::hooks::{Answer, Instead, Object, Op, OpKind, OpSet, Operations, Verdict};
use wrapfs::{LayerType, OptionSpec, Settings, Template};

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
    build: &build,
};

#[derive(Debug)]
struct Snoop {
    paths: Paths,
    limit: Limit,
    rules: Rules,
}

fn build(lower: Arc<dyn Layer>, settings: &Settings) -> core::result::Result<Arc<dyn Layer>, String> {
    let snoop = Snoop {
        paths: Paths::new(lower.root().id()),
        limit: Limit::new(settings.number("rate", 0..=u32::MAX)?.unwrap_or(60)),
        rules: Rules::new(&lower, settings)?,
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
        self.rules.check(cx, op).inspect_err(|&errno| {
            if let (Errno::PERM, Some(path)) = (errno, self.paths.of_op(op)) {
                self.warn(cx, format_args!("refused by the rules of this mount ({:?})", op.kind()), &path, false);
            }
        })?;
        Ok(Verdict::Proceed)
    }

    fn after(&self, cx: &Cx<'_>, op: &Op<'_>, result: Result<Answer<'_>>) -> Instead {
        self.paths.learn_from(op, result);
        if let (Op::Lookup { dir, name }, Ok(Answer::Missing)) = (op, result)
            && concerns(cx, dir)
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

/// `rwx`, as far as it is lacking.
fn rights(lacks: u32) -> String {
    [(access::READ, 'r'), (access::WRITE, 'w'), (access::SEARCH, 'x')]
        .into_iter()
        .filter_map(|(bit, letter)| (lacks & bit != 0).then_some(letter))
        .collect()
}
