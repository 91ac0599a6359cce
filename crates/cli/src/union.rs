//! A union at the bottom of a stack, or alone: its options, its branches, and whether they can be used together.

use crate::bottom::{self, Bottom, BottomType, Built, Checked};
use crate::branches::{self, BranchSpec};
use crate::exit::Failure;
use crate::options::{Options, number, one_of};
use crate::own::{Continues, Own};
use crate::place::{self, Place, Role};
use crate::text::Text;
use core::time::Duration;
use hostfs::HostFs;
use std::path::Path;
use std::sync::Arc;
use unionfs::{Delete, Mode, Numbers, Whiteouts};
use wrapfs::OptionSpec;

/// `unionfs`
pub static UNION: BottomType = BottomType {
    name: crate::registry::UNION_NAME,
    about: "merges directories, read-only and read-write ones, into one tree that can be written",
    options: OPTIONS,
    // Schroot writes a comma between the branches.
    continues: Some(Continues { option: "dirs", takes: branches::is_branch }),
    example: "dirs=/changes=rw:/base=ro",
    source: None,
    check,
};

const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "dirs",
        value: Some("PATH[=MODE]:PATH[=MODE]:..."),
        help: "The branches, highest precedence first. MODE is rw (changes go here), ro (never changed) or nfsro (never \
               changed, on an NFS export). Without a mode the first branch is rw and all others are ro. A comma may stand in \
               place of a colon. In a path, : = , \" and \\ need a backslash before them; a space is written \\040 in fstab. \
               Relative paths count from the working directory. Given more than once, the lists are joined.",
    },
    OptionSpec {
        name: "delete",
        value: Some("whiteout|all"),
        help: "What removing a name does to files of that name on branches further right: hide them behind a whiteout (the \
               default), or remove them too from every branch that is rw.",
    },
    OptionSpec {
        name: "copyup",
        value: Some("preserve|currentuser|mounter"),
        help: "Owner and mode of a file that is copied to a rw branch because it is changed: those of the original (the \
               default where the server may give files to other users), of the user who changes it (the default where \
               it may not, as in the mount of a user who is not root), or those that the next three options say.",
    },
    OptionSpec {
        name: "copyupuid",
        value: Some("UID"),
        help: "With copyup=mounter: the owner's number. Without it, the user who mounts.",
    },
    OptionSpec {
        name: "copyupgid",
        value: Some("GID"),
        help: "With copyup=mounter: the group's number. Without it, the group of the user who mounts.",
    },
    OptionSpec {
        name: "copyupmode",
        value: Some("OCTAL"),
        help: "With copyup=mounter: the permission bits. Without it, 0644.",
    },
    OptionSpec {
        name: "whiteouts",
        value: Some("refuse|write"),
        help: "What making a name that begins with .wh. does: it is refused (the default), or, for root and the user who \
               mounted, .wh.NAME removes NAME and hides it, and .wh..wh..opq hides what the directory merges. So tar(1) can unpack \
               a layer of a container image into the union. Unless cache= is given, it is 0 then.",
    },
    OptionSpec {
        name: "ino",
        value: Some("64|32"),
        help: "With 32, inode numbers and positions in directories fit 32 bits as long as they can, for 32-bit programs \
               without large-file support: these are answered EOVERFLOW otherwise. All inode numbers change when this \
               option does.",
    },
];

/// So long a server is waited for that writes to a branch.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who owns a copied-up file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copyup {
    /// Owner, group and mode of the original.
    Preserve,
    /// Whoever caused it.
    CurrentUser,
    /// What `copyupuid=`, `copyupgid=`, `copyupmode=` say.
    Mounter,
}

/// What a union's options say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnionOptions {
    /// Branches, highest precedence first.
    pub branches: Vec<BranchSpec>,
    /// `delete=`
    pub delete: Delete,
    /// `copyup=`; without it the server's rights decide.
    pub copyup: Option<Copyup>,
    /// `ino=`
    pub numbers: Numbers,
    /// `copyupuid=`
    pub copyup_uid: Option<u32>,
    /// `copyupgid=`
    pub copyup_gid: Option<u32>,
    /// `copyupmode=`, permission bits.
    pub copyup_mode: Option<u32>,
    /// `whiteouts=`
    pub whiteouts: Whiteouts,
}

impl UnionOptions {
    /// Reads the values.
    ///
    /// # Errors
    /// Names the option and what is wrong with it.
    pub fn read(own: &Own) -> Result<Self, Failure> {
        let mut options = Self::default();
        for (name, value) in own.iter() {
            let Some(value) = value else { continue };
            options.take(name, value).map_err(|wrong| Failure::usage(format!("option {name}=: {wrong}")))?;
        }
        options.check_together()?;
        Ok(options)
    }

    fn take(&mut self, name: &str, value: &Text) -> Result<(), String> {
        match name {
            "dirs" => self.branches.append(&mut branches::parse(value)?),
            "delete" => self.delete = one_of(value, &[("whiteout", Delete::Whiteout), ("all", Delete::All)])?,
            "copyup" => {
                let modes = [
                    ("preserve", Copyup::Preserve),
                    ("currentuser", Copyup::CurrentUser),
                    ("mounter", Copyup::Mounter),
                ];
                self.copyup = Some(one_of(value, &modes)?);
            }
            "ino" => self.numbers = one_of(value, &[("64", Numbers::Wide), ("32", Numbers::Narrow)])?,
            "copyupuid" => self.copyup_uid = Some(number(value, 10)?),
            "copyupgid" => self.copyup_gid = Some(number(value, 10)?),
            "copyupmode" => {
                let mode = number(value, 8)?;
                if mode > 0o7777 {
                    return Err(format!("{} has more than permission bits: 7777 is the most", value.show()));
                }
                self.copyup_mode = Some(mode);
            }
            "whiteouts" => {
                self.whiteouts = one_of(value, &[("refuse", Whiteouts::Refuse), ("write", Whiteouts::Write)])?;
            }
            _ => return Err("not an option of a union".to_owned()),
        }
        Ok(())
    }

    fn check_together(&self) -> Result<(), Failure> {
        let alone = [
            ("copyupuid", self.copyup_uid.is_some()),
            ("copyupgid", self.copyup_gid.is_some()),
            ("copyupmode", self.copyup_mode.is_some()),
        ];
        match alone.iter().find(|(_, given)| *given) {
            Some((name, _)) if self.copyup != Some(Copyup::Mounter) => {
                Err(Failure::usage(format!("option {name}= has a meaning only with copyup=mounter")))
            }
            _ => Ok(()),
        }
    }

    /// What the layer is told.
    fn of_layer(&self) -> unionfs::Options {
        unionfs::Options {
            delete: self.delete,
            whiteouts: self.whiteouts,
            numbers: self.numbers,
            copyup: match self.copyup.unwrap_or_else(default_copyup) {
                Copyup::Preserve => unionfs::Copyup::Preserve,
                Copyup::CurrentUser => unionfs::Copyup::CurrentUser,
                Copyup::Mounter => unionfs::Copyup::Mounter {
                    uid: self.copyup_uid.unwrap_or_else(|| rustix::process::geteuid().as_raw()),
                    gid: self.copyup_gid.unwrap_or_else(|| rustix::process::getegid().as_raw()),
                    mode: self.copyup_mode.unwrap_or(0o644),
                },
            },
        }
    }
}

/// The owner of copies where the user names none: the original's, if this process may give files to other users.
fn default_copyup() -> Copyup {
    if may_give_away() {
        return Copyup::Preserve;
    }
    tracing::info!(
        "copied-up files will belong to the user who changes them (copyup=currentuser): this server may not give \
         files to other users"
    );
    Copyup::CurrentUser
}

/// May this process change the owner of a file to another user? Root may, and root of a user namespace that has others.
fn may_give_away() -> bool {
    let capable = rustix::thread::capabilities(None).map_or_else(
        |_| rustix::process::geteuid().is_root(),
        |sets| sets.effective.contains(rustix::thread::CapabilitySet::CHOWN),
    );
    capable
        && ["/proc/self/uid_map", "/proc/self/gid_map"].iter().all(|map| {
            // Where /proc is missing nothing speaks against it.
            std::fs::read_to_string(map).map_or(true, |map| mapped_ids(&map) > 1)
        })
}

/// How many users or groups a user namespace has (user_namespaces(7)).
fn mapped_ids(map: &str) -> u64 {
    let counts = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    counts.fold(0, u64::saturating_add)
}

/// Branches that can be used together, highest precedence first.
#[derive(Debug)]
struct Union {
    options: UnionOptions,
    branches: Vec<(Place, Mode)>,
}

fn check(own: &Own, general: &Options) -> Checked {
    let options = UnionOptions::read(own)?;
    let branches = check_branches(&options, general)?;
    Ok(Box::new(Union { options, branches }))
}

fn check_branches(options: &UnionOptions, general: &Options) -> Result<Vec<(Place, Mode)>, Failure> {
    if options.branches.is_empty() {
        return Err(Failure::usage("no branches: name them with -o dirs=PATH=rw:PATH=ro; see --help"));
    }
    let mut branches = Vec::with_capacity(options.branches.len());
    for (i, branch) in options.branches.iter().enumerate() {
        branches.push((Place::open(Role::Branch, &branch.path)?, branch.mode(i == 0, general.read_only())));
    }
    place::check_apart(&branches)?;
    let Some(((first, first_mode), others)) = branches.split_first() else { return Ok(branches) };
    match first_mode {
        Mode::ReadWrite => first.check_writable()?,
        _ if others.iter().any(|(_, mode)| *mode == Mode::ReadWrite) => {
            return Err(Failure::mount(format!(
                "branch {} is the first but not rw, while another is: changes could not go to the left; mark it =rw, \
                 or all others =ro",
                first.given.display()
            )));
        }
        _ => {}
    }
    Ok(branches)
}

impl Bottom for Union {
    fn is_read_only(&self) -> bool {
        self.branches.iter().all(|(_, mode)| *mode != Mode::ReadWrite)
    }

    fn places(&self) -> Vec<&Place> {
        self.branches.iter().map(|(place, _)| place).collect()
    }

    fn branches(&self) -> Option<Vec<(&Path, &'static str)>> {
        Some(self.branches.iter().map(|(place, mode)| (&*place.real, branches::name_of(*mode))).collect())
    }

    fn cache(&self) -> Option<Duration> {
        // A whiteout that is written changes what another name is, of which the kernel is not told.
        (self.options.whiteouts == Whiteouts::Write).then_some(Duration::ZERO)
    }

    fn narrow_positions(&self) -> bool {
        self.options.numbers == Numbers::Narrow
    }

    fn build(&self, options: &Options) -> Result<Built, Failure> {
        let mut directories = Vec::with_capacity(self.branches.len());
        let mut branches = Vec::with_capacity(self.branches.len());
        let mut written = Vec::new();
        for (place, mode) in &self.branches {
            let layer = bottom::open(place, *mode != Mode::ReadWrite, options)?;
            if *mode == Mode::ReadWrite {
                claim(place, &layer);
            }
            directories.push(bottom::directory(place, branches::name_of(*mode), &layer));
            if *mode == Mode::ReadWrite {
                written.push(Arc::clone(&layer));
            }
            branches.push(unionfs::Branch { layer, path: place.real.clone(), mode: *mode });
        }
        let layer = unionfs::Unionfs::new(branches, self.options.of_layer())
            .map_err(|error| Failure::mount(format!("can't make the union: {error}")))?;
        Ok(Built { layer, directories, written })
    }
}

/// Waits until no other server writes to a branch. One that was killed, or whose union was just unmounted, ends soon; two unions
/// over one branch were always up to their user.
fn claim(place: &Place, layer: &HostFs) {
    match layer.claim(PATIENCE) {
        Ok(true) => {}
        Ok(false) => tracing::warn!("branch {}: another union still writes to it", place.given.display()),
        Err(errno) => tracing::debug!(%errno, "branch {} can't be claimed", place.given.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_a_namespace_are_counted() {
        assert_eq!(mapped_ids("         0          0 4294967295\n"), 4_294_967_295);
        assert_eq!(mapped_ids("         0       1000          1\n"), 1);
        assert_eq!(mapped_ids("         0       1000          1\n         1     100000      65536\n"), 65_537);
        assert_eq!(mapped_ids(""), 0);
    }
}
