//! `mount -o remount,...`: changes the flags of a mount, and the branches of a union. Other options
//! can't be changed.

use crate::atime;
use crate::branches;
use crate::channel::{self, STACK};
use crate::cmdline::Cmdline;
use crate::edits::Edit;
use crate::exit::{Exit, Failure};
use crate::host_dir::reason;
use crate::live::WantedInUse;
use crate::mountinfo;
use crate::options::{self, Options, Type};
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::mount::MountFlags;
use serde_json::Value;
use std::io::Write as _;
use std::path::Path;

/// The option of mounts that can't become writable.
const CACHED: &str = "data=cached";

/// Returns the options of the mount that a remount can't change; none if the server does not reply.
fn given(dir: &Path) -> Vec<String> {
    let reply = channel::text(dir, STACK).unwrap_or_default();
    let stack: Value = serde_json::from_str(&reply).unwrap_or_default();
    let given = stack.get("given").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    given.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Returns the new list of branches, if the options contain one. If the mount point is in fstab,
/// mount(8) adds the options there before those of the command line: the list there is no new one.
fn new_list(option: &'static str, options: &Options, kind: Type, dir: &Path) -> Option<Edit> {
    let lists = |options: &Options| -> Vec<String> {
        let lists = options.fixed.iter().filter(|(name, _)| *name == option);
        lists.map(|(_, whole)| whole.clone()).collect()
    };
    let in_fstab = of_fstab(kind, dir).map(|options| lists(&options)).unwrap_or_default();
    let skipped = if lists(options).starts_with(&in_fstab) { in_fstab.len() } else { 0 };
    let new = options.own.iter().filter(|(name, _)| *name == option).filter_map(|(_, list)| list);
    let new: Vec<_> = new.skip(skipped).cloned().collect();
    (!new.is_empty()).then_some(Edit::Set(new))
}

/// Returns the options of the mount point in fstab.
fn of_fstab(kind: Type, dir: &Path) -> Option<Options> {
    let table = std::fs::read("/etc/fstab").ok()?;
    let wanted = dir.canonicalize().ok()?;
    let mut lines = table.split(|&byte| byte == b'\n').filter_map(mountinfo::line_of_fstab);
    let (_, given) = lines.find(|(point, _)| *point == wanted)?;
    options::parse(given, kind, true).ok()
}

/// Whether the flags differ from those of the mount. Without any, those for times of access stay as
/// they are.
fn changes_flags(wanted: MountFlags, present: MountFlags) -> bool {
    let switches =
        MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::SYNCHRONOUS;
    let times = MountFlags::NOATIME | MountFlags::NODIRATIME | MountFlags::RELATIME;
    let strict = wanted.contains(MountFlags::STRICTATIME) && present.intersects(times);
    (wanted ^ present).intersects(switches) || !present.contains(wanted & times) || strict
}

/// Returns the flags of the mount.
fn flags_of(dir: &Path) -> Result<MountFlags, Errno> {
    let present = rustix::fs::statvfs(dir)?.f_flag;
    let all = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::SYNCHRONOUS, MountFlags::SYNCHRONOUS),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    Ok(all.iter().filter(|(present_as, _)| present.contains(*present_as)).map(|(_, flag)| *flag).collect())
}

/// Makes the changes of branches and the flags of a mount. If one fails, the others are undone.
fn change_branches(dir: &Path, edits: &[Edit], options: &Options) -> Result<(), Failure> {
    let shown = dir.display();
    if mountinfo::is_root(dir) == Some(false) {
        return Err(Failure::mount(format!("{shown}: can't remount: not a mount point")));
    }
    let present = flags_of(dir).map_err(|errno| Failure::mount(format!("{shown}: {}", reason(errno))))?;
    // A user without privileges can't repeat the flags of the mount.
    let none = options.flags.is_empty() && !rustix::process::geteuid().is_root();
    let changes = !none && changes_flags(options.flags, present);
    if changes {
        change_flags(dir, options)?;
    }
    let changed = branches::apply(dir, edits, WantedInUse::Refuse).inspect_err(|_| {
        if changes {
            let _as_before = change_flags(dir, &Options { flags: present, ..options.clone() });
        }
    })?;
    if let Some(hint) = changed.ends_writes.then(|| branches::hint(dir, &changed)).flatten() {
        let _ = writeln!(std::io::stderr(), "mount.unionfs: {shown}: {hint}");
    }
    Ok(())
}

/// Changes the branches and the flags of the mount.
///
/// # Errors
/// Names the option that can't be changed, or the kernel's reason.
pub fn remount(kind: Type, cmdline: &Cmdline, options: &Options) -> Result<(), Failure> {
    let dir = cmdline.dir.display();
    // mount(8) adds the options of fstab; those that the mount already has are not a change.
    let before = given(&cmdline.dir);
    let option = kind.live_branches().map(|branches| branches.option);
    let list = option.and_then(|option| new_list(option, options, kind, &cmdline.dir));
    let mut fixed = options.fixed.iter().filter(|(name, _)| Some(*name) != option);
    if let Some((name, _)) = fixed.find(|(_, whole)| !before.contains(whole)) {
        return Err(Failure::usage(format!(
            "{dir}: option {name}: can't be changed by a remount; unmount it and mount it again"
        )));
    }
    if !options.read_only() && !options.bind && before.iter().any(|option| option == CACHED) {
        return Err(Failure::usage(format!(
            "{dir}: can't remount: data=cached is only for read-only mounts; add ro, or unmount it and mount it without data=cached"
        )));
    }
    if cmdline.fake {
        return Ok(());
    }
    let edits: Vec<Edit> = list.into_iter().chain(options.edits.iter().cloned()).collect();
    match edits.is_empty() {
        true => change_flags(&cmdline.dir, options),
        false => change_branches(&cmdline.dir, &edits, options),
    }
}

/// Changes the flags of the mount.
fn change_flags(dir: &Path, options: &Options) -> Result<(), Failure> {
    let scope = if options.bind { MountFlags::BIND } else { MountFlags::empty() };
    let before = atime::of_mount(dir);
    rustix::mount::mount_remount(dir, options.flags | scope, c"").map_err(|errno| {
        let (exit, why) = match errno {
            Errno::PERM | Errno::ACCESS => (Exit::Usage, "only root may remount".to_owned()),
            Errno::INVAL => (Exit::Mount, "not a mount point".to_owned()),
            Errno::BUSY => (Exit::Mount, "files on it are open for writing; close them first".to_owned()),
            _ => (Exit::Mount, reason(errno)),
        };
        Failure { exit, reason: format!("{}: can't remount: {why}", dir.display()) }
    })?;
    if options.bind {
        return Ok(());
    }
    atime::notify_server(dir, before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_other_flags_are_a_change() {
        let present = MountFlags::NOSUID | MountFlags::RELATIME;
        for (wanted, changes) in [
            (MountFlags::NOSUID, false),
            (MountFlags::NOSUID | MountFlags::RELATIME, false),
            (MountFlags::empty(), true),
            (MountFlags::NOSUID | MountFlags::RDONLY, true),
            (MountFlags::NOSUID | MountFlags::NOATIME, true),
            (MountFlags::NOSUID | MountFlags::STRICTATIME, true),
        ] {
            assert_eq!(changes_flags(wanted, present), changes, "{wanted:?}");
        }
    }
}
