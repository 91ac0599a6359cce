//! Where live directories lead to the past: tokens, `.versions` and commands.

use crate::audit::Event;
use crate::commands::{Place, not_a_directory};
use crate::node::VersionVnode;
use crate::past::{VIEW, View};
use crate::space::once;
use core::time::Duration;
use versionset::Audited;
use vnode::{Cx, Entry, Errno, Kind, Name, Result};

impl VersionVnode {
    /// Returns the past object with this name, if there is one.
    pub(crate) fn find_past(&self, cx: &Cx<'_>, name: Name<'_>) -> Option<Result<Entry>> {
        if name.as_bytes() == VIEW && self.core.options.versions && self.lower.kind() == Kind::Directory {
            // Users who may not read old versions must not find the name in the kernel's cache.
            if self.core.policies.hides_from_someone() {
                cx.limit_name_lifetime(Duration::ZERO);
            }
            if !self.core.may_read_versions(cx) {
                return Some(Err(Errno::ACCESS));
            }
            let vnode = View::of(&self.core, &self.lower);
            return Some(vnode.getattr(cx).map(|attr| Entry { vnode, attr }));
        }
        let vnode = self.core.tokens.find(self.lower.id(), name.as_bytes())?;
        // The name is valid for seconds only.
        cx.limit_name_lifetime(Duration::ZERO);
        Some(vnode.getattr(cx).map(|attr| Entry { vnode, attr }))
    }

    /// Runs a command that was sent to this object.
    pub(crate) fn run_command(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>> {
        if self.lower.kind() != Kind::Directory && crate::commands::is_own(command) {
            return not_a_directory(cx, command);
        }
        let place = Place { core: &self.core, lower: &self.lower, id: self.lower.id() };
        let run = || once(|| place.run(cx, command, input).unwrap_or_else(|| self.lower.control(cx, command, input)));
        if !crate::commands::is_own(command) || crate::commands::only_reads(command) {
            return run();
        }
        let text = [command.as_bytes(), b" ", input.trim_ascii()].concat();
        let event = || Event::object(self, cx, Audited::Command).map(|event| event.with_text(&text));
        self.core.audited(cx, event, run, |_, _| ())
    }
}
