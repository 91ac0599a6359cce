//! The commands `unionfs.state` and `unionfs.revalidate`, for `uniondbg`.

use crate::branch::{Lower, is_dir};
use crate::node::UnionVnode;
use crate::op::Op;
use crate::opaque_redirect::Redirect;
use crate::state_text::text;
use serde_json::{Map, Value, json};
use stack::ChangePolicy;
use vnode::{Command, CommandAccess, Errno, Result, Vnode as _};

pub(crate) const STATE: Command = Command {
    name: "unionfs.state",
    help: "Returns what unionfs.query does, and more: the object's number, generation and link count as users see them, and \
           whether it is in the index of hard links. For each branch its tag; for the object there its kind, inode number, \
           link count, owner, mode and size, the number that the identity log has for it, and whether a directory has an \
           opaque mark, and its redirect.",
    access: CommandAccess::Owner,
};

pub(crate) const REVALIDATE: Command = Command {
    name: "unionfs.revalidate",
    help: "Looks up again whatever is in use, and makes the kernel drop what it has cached. For changes that other programs made \
           on the branches.",
    access: CommandAccess::Owner,
};

impl UnionVnode {
    /// Drops everything that was cached: each vnode is looked up again at its next use, as after a
    /// change of the set of branches.
    pub(crate) fn revalidate_all(&self) -> Result<Vec<u8>> {
        let changed = self.core.change_branches(Vec::new(), &ChangePolicy::default(), |_| {});
        changed.map(|()| Vec::new()).map_err(|error| {
            tracing::warn!(%error, "could not revalidate the union");
            Errno::BUSY
        })
    }

    /// Adds details to a reply to `unionfs.query`. `lowers`: the objects on the branches.
    pub(crate) fn add_state(&self, op: &Op<'_>, report: &mut Value, lowers: &[Lower]) -> Result<()> {
        let core = &self.core;
        let shown = core.shown(self.id);
        let index = core.links.branch(self.id).map(|at| op.set.path_of(at).to_string());
        let names = core.identity.names(self.id).map(|names| json!({ "first": names.first, "used": names.used }));
        let details = [
            ("number", json!(shown)),
            ("generation", json!(self.generation())),
            ("index", json!(index)),
            ("names", json!(names)),
            ("set", json!(op.set.generation)),
        ];
        if let Some(report) = report.as_object_mut() {
            report.extend(details.map(|(name, value)| (name.to_owned(), value)));
        }
        let branches = report.get_mut("branches").and_then(Value::as_array_mut);
        for (row, member) in branches.into_iter().flatten().zip(&op.set.order) {
            let Some(row) = row.as_object_mut() else { continue };
            row.insert("tag".to_owned(), json!(member.state.tag));
            if let Some(lower) = lowers.iter().find(|lower| lower.branch == member.id) {
                row.insert("object".to_owned(), Value::Object(self.lower_state(op, lower)?));
            }
        }
        Ok(())
    }

    fn lower_state(&self, op: &Op<'_>, lower: &Lower) -> Result<Map<String, Value>> {
        let core = &self.core;
        let attr = lower.vnode.getattr(op)?;
        let alias = core.identity.alias(op.set.branch(lower.branch)?.tag, lower.vnode.id());
        let mut state = Map::new();
        let mut add = |name: &str, value: Value| state.insert(name.to_owned(), value);
        add("kind", json!(lower.vnode.kind().word()));
        add("ino", json!(lower.vnode.id()));
        add("nlink", json!(attr.nlink));
        add("uid", json!(attr.uid));
        add("gid", json!(attr.gid));
        add("mode", json!(format!("{:04o}", attr.perm())));
        add("size", json!(attr.size));
        add("alias", json!(alias.map(|alias| alias.number)));
        if is_dir(&lower.vnode) {
            add("opaque", json!(core.is_opaque(op, lower)?));
            let redirect = match core.redirect_of(op, lower)? {
                Redirect::None => Value::Null,
                Redirect::Valid(path) => text(&path),
                Redirect::NotAFile => json!({ "ignored": "not a small regular file" }),
                Redirect::Untrusted { owner, .. } => json!({ "ignored": "untrusted", "owner": owner }),
                Redirect::Damaged => json!({ "ignored": "damaged" }),
            };
            add("redirect", redirect);
        }
        Ok(state)
    }
}
