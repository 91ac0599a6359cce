//! Commands for policies, the cleaner and the converter (docs/control.md).

use crate::convert::is_content;
use crate::core::Core;
use crate::node::VersionVnode;
use crate::policy::File;
use core::fmt::Write as _;
use std::sync::Arc;
use versionset::Letter;
use vnode::{Command, CommandAccess, Cx, Errno, Kind, Name, Result};

/// The commands of this module.
pub(crate) const COMMANDS: [Command; 5] = [
    Command {
        name: "versionfs.policy",
        help: "Input: a name in the directory, bytes up to 0x20, 0x7f and \\ as backslash and three octal digits. Output: \
               each value of the policy of that file, with the file and the line that sets it.",
        access: CommandAccess::Anyone,
    },
    Command {
        name: "versionfs.usage",
        help: "Output: `sets COUNT`, then for each format `LETTER VERSIONS BYTES CONTENT`: how many versions below the \
               directory are stored so, the bytes that they take, and the bytes of their contents.",
        access: CommandAccess::Anyone,
    },
    Command {
        name: "versionfs.clean",
        help: "Applies the policies to the whole mount now: discards versions, converts others, removes leftovers. \
               Output: `sets N versions N bytes N converted N discarded N freed N leftovers N failed N`.",
        access: CommandAccess::Owner,
    },
    Command {
        name: "versionfs.convert",
        help: "Converts the versions that were made lately into the formats of their policies, and waits for that. \
               Output: `converted N`.",
        access: CommandAccess::Owner,
    },
    Command {
        name: "versionfs.reload",
        help: "Reads the configuration files again. If the administrator's is wrong, the policies stay as they are and \
               the log says why (EINVAL).",
        access: CommandAccess::Owner,
    },
];

impl VersionVnode {
    /// Runs a command of this module. `None` if it is another one.
    pub(crate) fn run_policy_command(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Option<Result<Vec<u8>>> {
        Some(match command {
            "versionfs.policy" => self.explain(cx, input),
            "versionfs.usage" => cx.require_blocking().and_then(|()| self.show_usage(cx)),
            "versionfs.clean" => cx.require_blocking().and_then(|()| clean(&self.core, cx)),
            "versionfs.convert" => cx.require_blocking().map(|()| {
                let converted = self.core.convert_queue(&|| cx.is_cancelled());
                format!("converted {converted}\n").into_bytes()
            }),
            "versionfs.reload" => cx.require_blocking().and_then(|()| self.reload()),
            _ => return None,
        })
    }

    fn reload(&self) -> Result<Vec<u8>> {
        match self.core.policies.reload() {
            Ok(()) => {
                self.core.background.forget();
                Ok(Vec::new())
            }
            Err(wrong) => {
                tracing::error!("{wrong}");
                Err(Errno::INVAL)
            }
        }
    }

    fn explain(&self, cx: &Cx<'_>, input: &[u8]) -> Result<Vec<u8>> {
        let name = unescape(input.trim_ascii()).ok_or(Errno::INVAL)?;
        let server = self.core.server(cx);
        let found = self.lower.lookup(&server, Name::new(&name)?)?;
        let (size, uid, gid) =
            found.as_ref().map_or((0, cx.caller(), cx.gid), |entry| (entry.attr.size, entry.attr.uid, entry.attr.gid));
        if crate::node::is_reserved(Name::new(&name)?) || self.lower.kind() != Kind::Directory {
            return Err(Errno::NOENT);
        }
        let path = [&*self.core.path_of(&server, &self.lower), b"/", &*name].concat();
        let who = || Some(self.core.callers.who(cx));
        let time = self.core.now();
        let file = File { path: &path, name: &name, size, uid, gid, who: &who, time };
        let mut text = String::new();
        for reason in self.core.policies.explain(&file) {
            let _ = writeln!(text, "{reason}");
        }
        Ok(text.into_bytes())
    }

    fn show_usage(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        let usage = self.core.usage(cx, &self.lower)?;
        let mut text = format!("sets {}\n", usage.sets);
        for (letter, (versions, bytes, size)) in usage.letters {
            let size = if Letter::from_byte(letter).is_some_and(is_content) { size } else { 0 };
            let _ = writeln!(text, "{} {versions} {bytes} {size}", char::from(letter));
        }
        Ok(text.into_bytes())
    }
}

fn clean(core: &Arc<Core>, cx: &Cx<'_>) -> Result<Vec<u8>> {
    let done = core.clean(&|| cx.is_cancelled())?;
    let text = format!(
        "sets {} versions {} bytes {} converted {} discarded {} freed {} leftovers {} failed {}\n",
        done.sets, done.versions, done.stored, done.converted, done.discarded, done.freed, done.leftovers, done.failed
    );
    Ok(text.into_bytes())
}

/// Decodes a name of a command.
fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let (mut name, mut rest) = (Vec::new(), text);
    while let Some((first, after)) = rest.split_first() {
        if *first != b'\\' {
            name.push(*first);
            rest = after;
            continue;
        }
        let (digits, after) = after.split_at_checked(3)?;
        let digits = core::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|b| matches!(b, b'0'..=b'7')))?;
        name.push(u8::from_str_radix(digits, 8).ok()?);
        rest = after;
    }
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::unescape;

    #[test]
    fn names_are_decoded() {
        assert_eq!(unescape(b"a\\040b"), Some(b"a b".to_vec()));
        assert_eq!(unescape(b"\\134\\012"), Some(b"\\\n".to_vec()));
        for wrong in [&b""[..], b"a\\", b"\\04", b"\\08x", b"\\777", b"\\+12"] {
            assert_eq!(unescape(wrong), None, "{wrong:?}");
        }
    }
}
