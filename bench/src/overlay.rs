//! Mounting overlayfs over many lower directories.
//!
//! The options of mount(8) have to fit into a page. fsconfig(2) takes the lower directories one by
//! one (`lowerdir+`, Linux 6.7).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
    move_mount,
};

/// Maximum number of lower directories.
pub(crate) const MOST_LOWER: usize = 500;

/// Mounts overlayfs at `point`. The first lower directory is the topmost.
pub(crate) fn mount(point: &Path, upper: &Path, work: &Path, lower: &[PathBuf]) -> Result<()> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).context("open overlayfs")?;
    let set = |key: &str, path: &Path| {
        fsconfig_set_string(&context, key, path).with_context(|| format!("{key}={}", path.display()))
    };
    set("source", Path::new("overlay"))?;
    lower.iter().try_for_each(|dir| set("lowerdir+", dir))?;
    set("upperdir", upper)?;
    set("workdir", work)?;
    fsconfig_create(&context).context("create the overlay")?;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).context("mount it")?;
    move_mount(&mount, "", CWD, point, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).context("attach it")
}
