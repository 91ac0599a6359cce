//! `unionfs` as a layer type: its options and manual page.

use crate::Unionfs;
use crate::change::BranchChange;
use crate::in_use::BranchStatus;
use crate::options::{
    Branch, BuildError, Copyup, Create, Delete, LowerFiles, Metacopy, Mode, Numbers, Options, Order, Positions,
    Whiteouts,
};
use core::time::Duration;
use stack::{
    Access, BranchList, BranchMode, Branches, Build, ChangeError, ChangePolicy, LayerType, ListedBranch, LiveBranches,
    Made, Make, Manual, Needs, Opened, OptionSpec, Settings, Situation, Traits, value,
};
use std::sync::{Arc, Weak};

/// The layer type, for the list of layers.
pub const LAYER: LayerType = LayerType {
    name: "unionfs",
    about: "merges directories, read-only and read-write ones, into one tree that can be written",
    options: OPTIONS,
    build: Build::Branches(&BRANCHES),
    traits: Traits { needs, once: true, manual: Some(&MANUAL), ..Traits::NONE },
};

/// How long a change of the branches waits until the kernel has dropped what it cached.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(5);

const BRANCHES: Branches = Branches {
    option: "dirs",
    first_argument: false,
    // schroot(1) separates branches by commas.
    joined: true,
    noun: ("branch", "branches"),
    example: "dirs=/changes=rw:/base=ro",
    modes: &[RW, RO, NFSRO, RO_SKIP, NFSRO_SKIP],
    unmarked: |index, read_only| if index == 0 && !read_only { RW } else { RO },
    first_must_be_writable: true,
    alternatives: false,
    live: true,
    make: Make::Opened(&make),
};

const RW: BranchMode = BranchMode { name: "rw", access: Access::ReadWrite };
const RO: BranchMode = BranchMode { name: "ro", access: Access::ReadOnly };
const NFSRO: BranchMode = BranchMode { name: "nfsro", access: Access::ReadOnly };
const RO_SKIP: BranchMode = BranchMode { name: "ro+skip", access: Access::ReadOnly };
const NFSRO_SKIP: BranchMode = BranchMode { name: "nfsro+skip", access: Access::ReadOnly };

const POLICIES: [(&str, Create); 10] = [
    ("inherit", policy(Order::Inherit, false)),
    ("ff", policy(Order::First, false)),
    ("mfs", policy(Order::MostFree, false)),
    ("lfs", policy(Order::LeastFree, false)),
    ("rr", policy(Order::RoundRobin, false)),
    ("pfrd", policy(Order::Proportional, false)),
    ("epff", policy(Order::First, true)),
    ("epmfs", policy(Order::MostFree, true)),
    ("eplfs", policy(Order::LeastFree, true)),
    ("eppfrd", policy(Order::Proportional, true)),
];

const fn policy(order: Order, existing_path: bool) -> Create {
    Create { order, existing_path, min_free: 0 }
}

const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "dirs",
        value: Some("PATH[=MODE]:PATH[=MODE]:..."),
        help: "The branches, highest precedence first. MODE is rw (changes go here), ro (never \
               changed) or nfsro (never changed, on an NFS export). With ro+skip and nfsro+skip, a \
               branch that is lost is treated as empty until it is back. Without a mode the first branch \
               is rw and all others are ro. A comma may replace a colon. In a path, : = , \" and \\ \
               need a backslash before them, and so does a [ at its beginning; a space is written \
               \\040 in fstab. A branch can be a stack of layers in brackets in place of a path: \
               [zstd/[/changes]]=rw (see mount.strata(8)). Relative paths start at the working \
               directory. If the option is given more than once, the lists are joined.",
    },
    OptionSpec {
        name: "create",
        value: Some("POLICY"),
        help: "The rw branch of a new file or directory. inherit (the default): the one that has \
               the directory it is created in, the leftmost of several. For pools of peers: ff (the \
               first with enough space), mfs (most free space), lfs (least free space), rr (in \
               turn), pfrd (random, in proportion to the free space). epff, epmfs, eplfs and eppfrd \
               use only branches on which the directory exists; the others create it where it is \
               missing.",
    },
    OptionSpec {
        name: "minfree",
        value: Some("SIZE"),
        help: "With create=: a branch with less free space, such as 4G, gets no new files. The \
               default is 0. If no branch has that much, creating a file fails with ENOSPC.",
    },
    OptionSpec {
        name: "delete",
        value: Some("whiteout|all"),
        help: "How the removal of a name treats files of that name on branches further right: a \
               whiteout hides them (the default), or they are removed too if their branch is rw (the \
               default with create=).",
    },
    OptionSpec {
        name: "copyup",
        value: Some("preserve|currentuser|mounter"),
        help: "Owner and mode of a copied-up file: those of the original (preserve, the default if \
               the server may change owners), of the user who changes it (currentuser, the default \
               otherwise, as in the mount of a user who is not root), or those of the next three \
               options (mounter).",
    },
    OptionSpec {
        name: "copyupuid",
        value: Some("UID"),
        help: "With copyup=mounter: the owner of copies. Default: the mounting user.",
    },
    OptionSpec {
        name: "copyupgid",
        value: Some("GID"),
        help: "With copyup=mounter: the group of copies. Default: the mounting user's group.",
    },
    OptionSpec {
        name: "copyupmode",
        value: Some("OCTAL"),
        help: "With copyup=mounter: the permission bits of copies. Default: 0644.",
    },
    OptionSpec {
        name: "whiteouts",
        value: Some("refuse|write"),
        help: "Whether names that begin with .wh. can be created. The default is to refuse them. \
               With write, root and the user who mounted can create .wh.NAME, which removes and \
               hides NAME, and .wh..wh..opq, which hides the contents of the directory on branches \
               further right. So tar(1) can unpack a layer of a container image into the union. The \
               default of cache= is then 0.",
    },
    OptionSpec {
        name: "ino",
        value: Some("64|32"),
        help: "With 32, inode numbers and directory positions fit in 32 bits where possible, for \
               32-bit programs without large-file support, which get EOVERFLOW otherwise. All inode \
               numbers change when this option changes.",
    },
    OptionSpec {
        name: "positions",
        value: Some("branch|names"),
        help: "Directory positions (telldir(3), NFS). With branch, a directory that lies only on the \
               leftmost branch, or on one of only ro branches, has the positions of that branch. With \
               names, every position is computed from a name, and a position obtained before a branch \
               was added or removed remains valid: for unions that are exported over NFS while \
               branches come and go. A listing is then read completely before its first entry is \
               returned. Default: branch, with ino=32 names.",
    },
    OptionSpec {
        name: "lower",
        value: Some("exact|shared"),
        help: "How files on ro branches are read. With shared, the kernel reads them directly: all \
               unions over one image share its pages in memory, and cached pages are read at native \
               speed. A program that has such a file open or mapped when it is changed continues to \
               read the original. With exact (the default) it sees the change. shared needs a server \
               that runs as root.",
    },
    OptionSpec {
        name: "metacopy",
        value: Some("on|off"),
        help: "How much a change of attributes (chmod, chown, utimes, setfattr) of a file on an ro \
               branch copies. With on (the default): only the attributes, if the file is larger than \
               4 KiB; the data are copied when they are changed. So chown -R of an image takes \
               little space. With off: the whole file, so that the rw branch can be used without the \
               others, as an image layer. The whole file is also copied if the server may not set \
               trusted.* attributes, or the branch can't store them.",
    },
];

const MANUAL: Manual = Manual {
    title: "mount a union of directories",
    argument: None,
    description: &[
        "A union shows several directories, its branches, as one tree. Where several branches have \
         a file of one name, the leftmost has precedence; directories of the same name are merged. A branch \
         can be read-write or read-only. A file of a read-only branch is copied to a read-write \
         branch to its left before it is changed, and a removed one is hidden by a whiteout, so a \
         read-only branch never changes.",
        "The branches remain ordinary directories, and you can look into them at any time. Files \
         that are changed there while the union is mounted show at once if the kernel reports such \
         changes, else after a delay, which depends on cache=. The list of branches itself can be \
         changed at any time with unionctl(1).",
    ],
    examples: &[
        (
            "mount -t unionfs -o dirs=/ramdisk=rw:/KNOPPIX=ro none /UNIONFS",
            "Make a CD writable; changes go to the RAM disk.",
        ),
        (
            "mount -t unionfs none /bin -o dirs=/mnt/persist:/mnt/nfsbins=nfsro",
            "Merge programs of an NFS export with local changes, over the local /bin.",
        ),
        ("union /srv/union unionfs dirs=/srv/changes=rw:/srv/base=ro,nosuid,nofail 0 0", "A line of /etc/fstab."),
        ("mount -o remount,ro /UNIONFS", "Make the union read-only."),
        (
            "mount -o remount,add=/media/module /UNIONFS",
            "Add a read-only branch while the union is in use; see unionctl(1).",
        ),
    ],
};

/// How long name indexes and stamps are trusted before they are verified, if `cache=` is not
/// shorter.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The parsed options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    create: Create,
    delete: Delete,
    whiteouts: Whiteouts,
    numbers: Numbers,
    positions: Positions,
    lower_files: LowerFiles,
    metacopy: Metacopy,
    copyup: Option<Copyup>,
}

impl Wanted {
    fn read(settings: &Settings) -> Result<Self, String> {
        let delete = [("whiteout", Delete::Whiteout), ("all", Delete::All)];
        let whiteouts = [("refuse", Whiteouts::Refuse), ("write", Whiteouts::Write)];
        let numbers = [("64", Numbers::Wide), ("32", Numbers::Narrow)];
        let positions = [("branch", Positions::Branch), ("names", Positions::Names)];
        let lower_files = [("exact", LowerFiles::Exact), ("shared", LowerFiles::Shared)];
        let metacopy = [("on", Metacopy::default()), ("off", Metacopy::Off)];
        let create = create(settings)?;
        // In a pool, hidden originals would only take space.
        let usual = if create.order == Order::Inherit { Delete::Whiteout } else { Delete::All };
        Ok(Self {
            create,
            delete: settings.read("delete", |v| value::one_of(v, &delete))?.unwrap_or(usual),
            whiteouts: settings.read("whiteouts", |v| value::one_of(v, &whiteouts))?.unwrap_or_default(),
            numbers: settings.read("ino", |v| value::one_of(v, &numbers))?.unwrap_or_default(),
            positions: settings.read("positions", |v| value::one_of(v, &positions))?.unwrap_or_default(),
            lower_files: settings.read("lower", |v| value::one_of(v, &lower_files))?.unwrap_or_default(),
            metacopy: settings.read("metacopy", |v| value::one_of(v, &metacopy))?.unwrap_or_default(),
            copyup: copyup(settings)?,
        })
    }

    fn options(self, situation: &Situation) -> Options {
        let copyup = self.copyup.unwrap_or_else(|| default_copyup(situation));
        let Self { create, delete, whiteouts, numbers, positions, lower_files, metacopy, .. } = self;
        let no_passthrough = situation.passthrough == Some(false);
        let check_interval = situation.cache.map_or(CHECK_INTERVAL, |cache| cache.min(CHECK_INTERVAL));
        Options {
            create,
            delete,
            whiteouts,
            numbers,
            positions,
            lower_files,
            metacopy,
            copyup,
            no_passthrough,
            check_interval,
        }
    }
}

/// Parses `create=` and `minfree=`.
fn create(settings: &Settings) -> Result<Create, String> {
    let policy = settings.read("create", |v| value::one_of(v, &POLICIES))?.unwrap_or_default();
    let min_free = settings.read("minfree", value::space)?;
    match min_free {
        Some(_) if policy.order == Order::Inherit => {
            Err("option minfree= needs a policy that chooses between branches, such as create=mfs".to_owned())
        }
        _ => Ok(Create { min_free: min_free.unwrap_or(0), ..policy }),
    }
}

/// Parses `copyup=` and its companions. `None` if the default applies.
fn copyup(settings: &Settings) -> Result<Option<Copyup>, String> {
    let mounter = Copyup::Mounter {
        uid: settings.read("copyupuid", value::number)?.unwrap_or_else(|| rustix::process::geteuid().as_raw()),
        gid: settings.read("copyupgid", value::number)?.unwrap_or_else(|| rustix::process::getegid().as_raw()),
        mode: settings.read("copyupmode", value::permissions)?.unwrap_or(0o644),
    };
    let modes = [("preserve", Copyup::Preserve), ("currentuser", Copyup::CurrentUser), ("mounter", mounter)];
    let chosen = settings.read("copyup", |v| value::one_of(v, &modes))?;
    let alone = ["copyupuid", "copyupgid", "copyupmode"].into_iter().find(|name| settings.has(name));
    match alone {
        Some(name) if chosen != Some(mounter) => Err(format!("option {name}= is valid only with copyup=mounter")),
        _ => Ok(chosen),
    }
}

/// Returns the default of `copyup=`: the original's owner, if the server may change owners.
fn default_copyup(situation: &Situation) -> Copyup {
    if situation.may_chown {
        return Copyup::Preserve;
    }
    tracing::info!(
        "copied-up files will belong to the user who changes them (copyup=currentuser), because this \
         server may not change the owner of files"
    );
    Copyup::CurrentUser
}

fn needs(settings: &Settings) -> Result<Needs, String> {
    let wanted = Wanted::read(settings)?;
    Ok(Needs {
        // The kernel does not learn that creating a whiteout hides another name.
        cache: (wanted.whiteouts == Whiteouts::Write).then_some(Duration::ZERO),
        narrow_positions: wanted.numbers == Numbers::Narrow,
        ..Needs::NONE
    })
}

fn mode(mode: BranchMode) -> Mode {
    match mode.access {
        Access::ReadWrite => Mode::ReadWrite,
        Access::ReadOnly if mode == NFSRO => Mode::NfsReadOnly,
        Access::ReadOnly if mode == RO_SKIP => Mode::ReadOnlySkip,
        Access::ReadOnly if mode == NFSRO_SKIP => Mode::NfsReadOnlySkip,
        Access::ReadOnly => Mode::ReadOnly,
    }
}

fn make(branches: Vec<Opened>, settings: &Settings, situation: &Situation) -> Result<Made, String> {
    let branches = branches.into_iter().map(branch).collect();
    let union = Unionfs::new(branches, Wanted::read(settings)?.options(situation));
    let union = union.map_err(|error| format!("can't build the union: {error}"))?;
    Ok(Made { layer: union.clone(), branches: Some(Arc::new(Live(Arc::downgrade(&union)))) })
}

fn declared(mode: Mode) -> BranchMode {
    match mode {
        Mode::ReadWrite => RW,
        Mode::ReadOnly => RO,
        Mode::NfsReadOnly => NFSRO,
        Mode::ReadOnlySkip => RO_SKIP,
        Mode::NfsReadOnlySkip => NFSRO_SKIP,
    }
}

fn branch(branch: Opened) -> Branch {
    Branch { layer: branch.lower, path: branch.name, mode: mode(branch.mode) }
}

/// The branches of a union in use. It does not keep the union in use.
#[derive(Debug)]
struct Live(Weak<Unionfs>);

impl LiveBranches for Live {
    fn list(&self) -> BranchList {
        let Some(union) = self.0.upgrade() else { return BranchList::default() };
        let crate::BranchList { generation, branches } = union.branches();
        let listed = |BranchStatus { path, mode, turned_read_only, trouble, open_files }| ListedBranch {
            name: path,
            mode: declared(mode),
            turned_read_only,
            trouble,
            open_files,
        };
        BranchList { generation, branches: branches.into_iter().map(listed).collect() }
    }

    fn change(&self, changes: Vec<stack::BranchChange>, policy: &ChangePolicy) -> Result<(), ChangeError> {
        let changes = changes.into_iter().map(|change| match change {
            stack::BranchChange::Insert { at, branch: new } => BranchChange::Insert { at, branch: branch(new) },
            stack::BranchChange::Snapshot(new) => BranchChange::Snapshot(branch(new)),
            stack::BranchChange::Remove(name) => BranchChange::Remove(name),
            stack::BranchChange::Mode(name, wanted) => BranchChange::Mode(name, mode(wanted)),
            stack::BranchChange::Move(name, at) => BranchChange::Move(name, at),
        });
        let union = self.0.upgrade().ok_or_else(|| ChangeError::Refused("the union is being unmounted".to_owned()))?;
        let changes: Vec<_> = changes.collect();
        let mut changed = union.change_branches(changes.clone(), policy);
        if matches!(changed, Err(BuildError::InUse(_))) {
            // Files that the server keeps open for the kernel (`data=cached`) are not in use.
            union.forget_kept();
            changed = union.change_branches(changes, policy);
        }
        changed.map_err(|error| match error {
            BuildError::InUse(files) => ChangeError::InUse(files),
            BuildError::Changed => ChangeError::Outdated,
            BuildError::Incomplete(..) => ChangeError::Incomplete(error.to_string()),
            error => ChangeError::Refused(error.to_string()),
        })?;
        // Programs that start after the command must not see cached names of the old branches.
        if !union.settle(SETTLE_TIMEOUT) {
            tracing::warn!("the kernel has not dropped all cached names of the previous branches yet");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: &[(&str, &str)]) -> Result<Wanted, String> {
        let mut settings = Settings::new();
        options.iter().for_each(|(name, value)| assert!(settings.insert(name, value.as_bytes())));
        Wanted::read(&settings)
    }

    #[test]
    fn options_are_read() {
        let mounter = [("copyup", "mounter"), ("copyupuid", "7"), ("copyupgid", "8"), ("copyupmode", "640")];
        let wanted =
            read(&[&mounter[..], &[("delete", "all"), ("ino", "32"), ("whiteouts", "write")]].concat()).unwrap();
        assert_eq!(wanted.positions, Positions::Branch);
        assert_eq!(read(&[("positions", "names")]).unwrap().positions, Positions::Names);
        assert_eq!((wanted.delete, wanted.numbers, wanted.whiteouts), (Delete::All, Numbers::Narrow, Whiteouts::Write));
        assert_eq!(wanted.copyup, Some(Copyup::Mounter { uid: 7, gid: 8, mode: 0o640 }));
        assert_eq!(read(&[]).unwrap().copyup, None);
        for may_chown in [true, false] {
            let situation = Situation { passthrough: None, may_chown, cache: None };
            let want = if may_chown { Copyup::Preserve } else { Copyup::CurrentUser };
            assert_eq!(read(&[]).unwrap().options(&situation).copyup, want);
            assert_eq!(read(&[("copyup", "preserve")]).unwrap().options(&situation).copyup, Copyup::Preserve);
        }
    }

    #[test]
    fn errors_name_the_invalid_option() {
        let reason = |options: &[(&str, &str)]| read(options).unwrap_err();
        assert_eq!(reason(&[("delete", "some")]), "option delete=: \"some\" is none of whiteout, all");
        assert!(reason(&[("copyup", "x")]).contains("preserve, currentuser, mounter"));
        for uid in ["", "-1", "root", "4294967295"] {
            let wrong = reason(&[("copyup", "mounter"), ("copyupuid", uid)]);
            assert!(wrong.starts_with("option copyupuid=: ") && wrong.contains("is not a number"), "{wrong}");
        }
        assert!(reason(&[("copyup", "mounter"), ("copyupmode", "888")]).contains("octal"));
        assert_eq!(reason(&[("copyupuid", "1")]), "option copyupuid= is valid only with copyup=mounter");
        assert!(reason(&[("copyup", "preserve"), ("copyupmode", "600")]).contains("only with copyup=mounter"));
    }

    #[test]
    fn mount_needs_follow_from_options() {
        let needs = |name: &str, value: &str| {
            let mut settings = Settings::new();
            settings.insert(name, value.as_bytes());
            needs(&settings).unwrap()
        };
        assert_eq!(needs("delete", "all"), Needs::NONE);
        assert_eq!(needs("whiteouts", "write").cache, Some(Duration::ZERO));
        assert!(needs("ino", "32").narrow_positions);
    }

    #[test]
    fn only_the_first_branch_is_rw_by_default() {
        assert_eq!([RW, RO, NFSRO].map(mode), [Mode::ReadWrite, Mode::ReadOnly, Mode::NfsReadOnly]);
        assert_eq!([RO_SKIP, NFSRO_SKIP].map(mode), [Mode::ReadOnlySkip, Mode::NfsReadOnlySkip]);
        assert!(BRANCHES.modes.iter().all(|&known| declared(mode(known)) == known));
        assert_eq!([(0, false), (0, true), (1, false)].map(|(i, ro)| (BRANCHES.unmarked)(i, ro)), [RW, RO, RO]);
    }
}
