//! The options that mount(8) defines for every file system: flags of mount(2), and options that
//! only mount(8), fstab(5) and systemd interpret.

use rustix::mount::MountFlags;

/// Effect of a general option on the flags of mount(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Sets the flags.
    Set(MountFlags),
    /// Clears the flags.
    Clear(MountFlags),
    /// Clears the first flags, then sets the second.
    Change(MountFlags, MountFlags),
    /// No effect in a mount helper.
    Nothing,
}

impl Effect {
    /// Returns `flags` with the effect applied.
    #[must_use]
    pub fn apply(self, flags: MountFlags) -> MountFlags {
        match self {
            Self::Set(set) => flags | set,
            Self::Clear(clear) => flags - clear,
            Self::Change(clear, set) => (flags - clear) | set,
            Self::Nothing => flags,
        }
    }
}

/// Returns the effect of a general option, or `None` if `name` is not one.
#[must_use]
pub fn effect(name: &str) -> Option<Effect> {
    use Effect::{Change, Clear, Nothing, Set};
    use MountFlags as F;
    const TIMES: MountFlags = F::NOATIME.union(F::RELATIME).union(F::STRICTATIME);
    Some(match name {
        "ro" => Set(F::RDONLY),
        "rw" => Clear(F::RDONLY),
        "nosuid" => Set(F::NOSUID),
        "suid" => Clear(F::NOSUID),
        "nodev" => Set(F::NODEV),
        "dev" => Clear(F::NODEV),
        "noexec" => Set(F::NOEXEC),
        "exec" => Clear(F::NOEXEC),
        "sync" => Set(F::SYNCHRONOUS),
        "async" => Clear(F::SYNCHRONOUS),
        "dirsync" => Set(F::DIRSYNC),
        "silent" => Set(F::SILENT),
        "loud" => Clear(F::SILENT),
        "noatime" => Change(TIMES, F::NOATIME),
        "atime" => Clear(F::NOATIME),
        "relatime" => Change(TIMES, F::RELATIME),
        "norelatime" => Clear(F::RELATIME),
        "strictatime" => Change(TIMES, F::STRICTATIME),
        "nostrictatime" => Clear(F::STRICTATIME),
        "nodiratime" => Set(F::NODIRATIME),
        "diratime" => Clear(F::NODIRATIME),
        "lazytime" => Set(F::LAZYTIME),
        "nolazytime" => Clear(F::LAZYTIME),
        "nosymfollow" => Set(F::NOSYMFOLLOW),
        "symfollow" => Clear(F::NOSYMFOLLOW),
        "defaults" => Clear(F::RDONLY | F::NOSUID | F::NODEV | F::NOEXEC | F::SYNCHRONOUS),
        // The administrator lets unprivileged users mount, so the contents are untrusted: mount(8)
        // implies these flags.
        "user" | "users" => Set(F::NOSUID.union(F::NODEV).union(F::NOEXEC)),
        "owner" | "group" => Set(F::NOSUID.union(F::NODEV)),
        "auto" | "noauto" | "nouser" | "nousers" | "noowner" | "nogroup" | "_netdev" | "nofail" | "comment"
        | "uhelper" | "helper" | "mand" | "nomand" | "iversion" | "noiversion" => Nothing,
        _ if name.starts_with("x-") || name.starts_with("X-") => Nothing,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(options: &[&str]) -> MountFlags {
        options.iter().fold(MountFlags::empty(), |flags, name| effect(name).unwrap().apply(flags))
    }

    #[test]
    fn later_options_win() {
        assert_eq!(after(&["ro", "rw"]), MountFlags::empty());
        assert_eq!(after(&["rw", "ro"]), MountFlags::RDONLY);
        assert_eq!(after(&["noatime", "relatime"]), MountFlags::RELATIME);
        assert_eq!(after(&["strictatime", "noatime"]), MountFlags::NOATIME);
        assert_eq!(after(&["user", "exec"]), MountFlags::NOSUID | MountFlags::NODEV);
        assert_eq!(after(&["user", "exec", "suid", "dev"]), MountFlags::empty());
        assert_eq!(after(&["nosuid", "defaults"]), MountFlags::empty());
    }

    #[test]
    fn options_for_mount_8_and_systemd_have_no_effect() {
        for name in ["auto", "noauto", "_netdev", "nofail", "x-systemd.automount", "X-mount.mkdir", "x-", "comment"] {
            assert_eq!(effect(name), Some(Effect::Nothing), "{name}");
        }
        assert_eq!(effect("dirs"), None);
        assert_eq!(effect("bogus"), None);
    }

    #[test]
    fn owner_and_group_imply_nosuid_and_nodev() {
        for name in ["owner", "group"] {
            assert_eq!(after(&[name]), MountFlags::NOSUID | MountFlags::NODEV);
        }
        assert_eq!(after(&["nodev"]), MountFlags::NODEV);
    }
}
