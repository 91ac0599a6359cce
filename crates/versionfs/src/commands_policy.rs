//! Commands for policies, the cleaner and the converter.

use crate::commands::Place;
use crate::policy::File;
use core::fmt::Write as _;
use vnode::{Command, CommandAccess, Cx, Errno, Result};

/// The commands of this file.
pub(crate) const ALL: [Command; 5] = [
    Command {
        name: "versionfs.policy",
        help: "Returns the policy of a file, a line for each value with the file and line that sets it. The input is NAME.",
        access: CommandAccess::Anyone,
    },
    Command {
        name: "versionfs.space",
        help: "Returns what bounds the versions of the whole mount, in bytes: max N reserve N free N. Without a bound, N is \
               none. The input is empty.",
        access: CommandAccess::Anyone,
    },
    Command {
        name: "versionfs.clean",
        help: "Applies the policies to the whole mount: discards and converts versions, removes what interrupted work left. \
               The input is empty. Returns sets N versions N bytes N converted N discarded N freed N leftovers N failed N.",
        access: CommandAccess::Owner,
    },
    Command {
        name: "versionfs.convert",
        help: "Converts the versions that were made lately into the formats of their policies. The input is empty. Returns \
               converted N.",
        access: CommandAccess::Owner,
    },
    Command {
        name: "versionfs.reload",
        help: "Reads the configuration files again. If that of the administrator is wrong, the command fails with EINVAL, the \
               log says why, and the policies stay as they are. Returns an empty reply.",
        access: CommandAccess::Owner,
    },
];

impl Place<'_> {
    /// Runs a command of this file.
    pub(crate) fn run_policy(&self, cx: &Cx<'_>, command: &str, fields: &[&[u8]]) -> Result<Vec<u8>> {
        match (command, fields) {
            ("versionfs.policy", [name]) => self.explain(cx, name),
            ("versionfs.space", []) => Ok(self.core.bounds(cx)?.into_bytes()),
            ("versionfs.clean", []) => self.clean(cx),
            ("versionfs.convert", []) => {
                let converted = self.core.convert_queue(&|| cx.is_cancelled());
                Ok(format!("converted {converted}\n").into_bytes())
            }
            ("versionfs.reload", []) => self.reload().map(|()| Vec::new()),
            _ => Err(Errno::INVAL),
        }
    }

    fn reload(&self) -> Result<()> {
        self.core.policies.reload().map_err(|wrong| {
            tracing::error!("{wrong}");
            Errno::INVAL
        })?;
        self.core.background.forget();
        self.core.space.forget();
        self.core.report_policies();
        Ok(())
    }

    fn explain(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let at = self.at(name)?;
        self.require_search(cx)?;
        let server = self.core.server(cx);
        let found = self.lower.lookup(&server, vnode::Name::new(&at.name)?)?;
        // A file that does not exist yet would be the caller's.
        let (size, uid, gid) =
            found.as_ref().map_or((0, cx.caller(), cx.gid), |entry| (entry.attr.size, entry.attr.uid, entry.attr.gid));
        let path = [&*self.core.path_of(&server, self.lower), b"/", &*at.name].concat();
        let who = || Some(self.core.callers.who(cx));
        let file = File { path: &path, name: &at.name, size, uid, gid, who: &who, time: self.core.now() };
        let mut text = String::new();
        for reason in self.core.policies.explain(&file) {
            let _ = writeln!(text, "{reason}");
        }
        Ok(text.into_bytes())
    }

    fn clean(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        let done = self.core.clean(&|| cx.is_cancelled())?;
        let text = format!(
            "sets {} versions {} bytes {} converted {} discarded {} freed {} leftovers {} failed {}\n",
            done.sets,
            done.versions,
            done.stored,
            done.converted,
            done.discarded,
            done.freed,
            done.leftovers,
            done.failed
        );
        Ok(text.into_bytes())
    }
}
