use crate::ViewId;
use core::fmt;
use std::os::unix::ffi::OsStrExt as _;
use vnode::Cx;

/// What a rule requires of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Its file-system user ID.
    User(u32),
    /// Its file-system group ID, or one of its supplementary groups.
    Group(u32),
    /// Its cgroup in the unified hierarchy, or one above it: a path with a leading slash.
    Cgroup(Vec<u8>),
    /// The path of its executable.
    Executable(Vec<u8>),
}

/// A rule: callers that meet the condition get the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The condition.
    pub condition: Condition,
    /// The view.
    pub view: ViewId,
}

/// What the kernel appends to the path of a file whose name was looked up anew or removed.
const DELETED: &[u8] = b" (deleted)";

impl Condition {
    /// Parses `uid=N`, `gid=N`, `cgroup=/PATH` or `exe=/PATH`.
    ///
    /// # Errors
    /// A sentence with the reason.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let shown = || String::from_utf8_lossy(text).into_owned();
        let equals = text.iter().position(|&byte| byte == b'=');
        let Some((key, value)) = equals.map(|at| (&text[..at], text.get(at + 1..).unwrap_or_default())) else {
            return Err(format!("{}: not a condition; write uid=N, gid=N, cgroup=/PATH or exe=/PATH", shown()));
        };
        let number = || {
            let number = core::str::from_utf8(value).ok().filter(|_| value.iter().all(u8::is_ascii_digit));
            number.and_then(|text| text.parse().ok()).ok_or_else(|| format!("{}: not a number", shown()))
        };
        let path = || {
            let path = value.strip_suffix(b"/").filter(|rest| !rest.is_empty()).unwrap_or(value);
            let path = path.starts_with(b"/").then(|| path.to_vec());
            path.ok_or_else(|| format!("{}: not an absolute path", shown()))
        };
        match key {
            b"uid" => Ok(Self::User(number()?)),
            b"gid" => Ok(Self::Group(number()?)),
            b"cgroup" => Ok(Self::Cgroup(path()?)),
            b"exe" => Ok(Self::Executable(path()?)),
            _ => Err(format!("{}: unknown condition; use uid=, gid=, cgroup= or exe=", shown())),
        }
    }

    /// Whether the caller meets the condition; `None` if that can't be determined.
    pub(crate) fn holds(&self, cx: &Cx<'_>) -> Option<bool> {
        match self {
            Self::User(uid) => Some(cx.caller() == *uid),
            Self::Group(gid) if cx.gid == *gid => Some(true),
            Self::Group(gid) => cx.groups().map(|groups| groups.contains(gid)),
            Self::Cgroup(path) => cx.cgroup().map(|own| is_within(own, path)),
            Self::Executable(path) => cx.executable().map(|own| {
                let own = own.as_os_str().as_bytes();
                own == path || own.strip_suffix(DELETED) == Some(path)
            }),
        }
    }
}

/// Whether a cgroup is `top` or below it.
fn is_within(cgroup: &[u8], top: &[u8]) -> bool {
    top == b"/" || cgroup.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "uid={uid}"),
            Self::Group(gid) => write!(f, "gid={gid}"),
            Self::Cgroup(path) => write!(f, "cgroup={}", String::from_utf8_lossy(path)),
            Self::Executable(path) => write!(f, "exe={}", String::from_utf8_lossy(path)),
        }
    }
}
