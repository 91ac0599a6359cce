//! `unionfs` as a layer type: its options, and what they mean.

use crate::Unionfs;
use crate::options::{Branch, Copyup, Delete, LowerFiles, Metacopy, Mode, Numbers, Options, Whiteouts};
use core::time::Duration;
use stack::{
    Access, BranchMode, Branches, Build, LayerType, Make, Manual, Needs, Opened, OptionSpec, Settings, Situation,
    Traits, value,
};
use std::sync::Arc;
use vnode::Layer;

/// `unionfs`, for the list of layers.
pub const LAYER: LayerType = LayerType {
    name: "unionfs",
    about: "merges directories, read-only and read-write ones, into one tree that can be written",
    options: OPTIONS,
    build: Build::Branches(&BRANCHES),
    traits: Traits { needs, once: true, manual: Some(&MANUAL) },
};

const BRANCHES: Branches = Branches {
    option: "dirs",
    first_argument: false,
    // Schroot writes a comma between the branches.
    joined: true,
    noun: ("branch", "branches"),
    example: "dirs=/changes=rw:/base=ro",
    modes: &[RW, RO, NFSRO],
    unmarked: |index, read_only| if index == 0 && !read_only { RW } else { RO },
    first_takes_changes: true,
    make: Make::Opened(&make),
};

const RW: BranchMode = BranchMode { name: "rw", access: Access::ReadWrite };
const RO: BranchMode = BranchMode { name: "ro", access: Access::ReadOnly };
const NFSRO: BranchMode = BranchMode { name: "nfsro", access: Access::ReadOnly };

const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "dirs",
        value: Some("PATH[=MODE]:PATH[=MODE]:..."),
        help: "The branches, highest precedence first. MODE is rw (changes go here), ro (never changed) or nfsro (never \
               changed, on an NFS export). Without a mode the first branch is rw and all others are ro. A comma may stand in \
               place of a colon. In a path, : = , \" and \\ need a backslash before them, and so does a [ at its beginning; a space is written \\040 in \
               fstab. In place of a path can stand a stack of layers in brackets: [zstd/[/changes]]=rw (see mount.strata(8)). \
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
    OptionSpec {
        name: "lower",
        value: Some("exact|shared"),
        help: "How files on ro branches are read. With shared, the kernel reads them itself: all unions over one image share \
               its pages in memory, and reading is as fast as natively. A program that has such a file open or mapped when \
               somebody changes it goes on with the file as it was, as on overlayfs. With exact (the default) it sees the \
               change. Shared needs a server that runs as root.",
    },
    OptionSpec {
        name: "metacopy",
        value: Some("on|off"),
        help: "What changing only the attributes of a file on a ro branch (chmod, chown, utimes, setfattr) copies. \
               With on (the default): the attributes, if the file is larger than 4 KiB; its data are copied when \
               they are changed. So chown -R of an image takes little room. With off: the whole file, so that the rw \
               branch can be used without the others, as an image layer is. Where the server may not set trusted.* \
               attributes, or a branch takes none, the whole file is copied, too.",
    },
];

const MANUAL: Manual = Manual {
    title: "mount a union of directories",
    argument: None,
    description: &[
        "A union shows the files of several directories, its branches, as one tree. Where branches have the same name, \
         the branch further left wins; directories of the same name are merged. A branch can be read-write or read-only. \
         What is changed on a read-only branch is copied to a read-write branch to its left first, and what is removed there is \
         hidden by a whiteout, so that no byte of the read-only branch ever changes.",
        "The branches stay ordinary directories, to be looked at at any time. They should not be changed while the union is \
         mounted; what is changed behind its back is noticed after the time that cache= says.",
    ],
    examples: &[
        (
            "mount -t unionfs -o dirs=/ramdisk=rw:/KNOPPIX=ro none /UNIONFS",
            "Use a CD as if it could be written; changes go to the RAM disk.",
        ),
        (
            "mount -t unionfs none /bin -o dirs=/mnt/persist:/mnt/nfsbins=nfsro",
            "Programs from a server's export, with local changes on top, mounted over the local /bin.",
        ),
        ("srv /srv/union unionfs dirs=/srv/changes=rw:/srv/base=ro,nosuid,nofail 0 0", "A line of /etc/fstab."),
        ("mount -o remount,ro /UNIONFS", "Allow no more changes."),
    ],
};

/// What the options say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    delete: Delete,
    whiteouts: Whiteouts,
    numbers: Numbers,
    lower_files: LowerFiles,
    metacopy: Metacopy,
    copyup: Option<Copyup>,
}

impl Wanted {
    fn read(settings: &Settings) -> Result<Self, String> {
        let delete = [("whiteout", Delete::Whiteout), ("all", Delete::All)];
        let whiteouts = [("refuse", Whiteouts::Refuse), ("write", Whiteouts::Write)];
        let numbers = [("64", Numbers::Wide), ("32", Numbers::Narrow)];
        let lower_files = [("exact", LowerFiles::Exact), ("shared", LowerFiles::Shared)];
        let metacopy = [("on", Metacopy::default()), ("off", Metacopy::Off)];
        Ok(Self {
            delete: settings.read("delete", |v| value::one_of(v, &delete))?.unwrap_or_default(),
            whiteouts: settings.read("whiteouts", |v| value::one_of(v, &whiteouts))?.unwrap_or_default(),
            numbers: settings.read("ino", |v| value::one_of(v, &numbers))?.unwrap_or_default(),
            lower_files: settings.read("lower", |v| value::one_of(v, &lower_files))?.unwrap_or_default(),
            metacopy: settings.read("metacopy", |v| value::one_of(v, &metacopy))?.unwrap_or_default(),
            copyup: copyup(settings)?,
        })
    }

    fn options(self, situation: &Situation) -> Options {
        let copyup = self.copyup.unwrap_or_else(|| default_copyup(situation));
        let Self { delete, whiteouts, numbers, lower_files, metacopy, .. } = self;
        Options { delete, whiteouts, numbers, lower_files, metacopy, copyup }
    }
}

/// Who is to own copies; `None`: the server's rights decide.
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
        Some(name) if chosen != Some(mounter) => Err(format!("option {name}= has a meaning only with copyup=mounter")),
        _ => Ok(chosen),
    }
}

/// The owner of copies where the user names none: the original's, if the server may give files to
/// other users.
fn default_copyup(situation: &Situation) -> Copyup {
    if situation.may_give_away {
        return Copyup::Preserve;
    }
    tracing::info!(
        "copied-up files will belong to the user who changes them (copyup=currentuser): this server may not give \
         files to other users"
    );
    Copyup::CurrentUser
}

fn needs(settings: &Settings) -> Result<Needs, String> {
    let wanted = Wanted::read(settings)?;
    Ok(Needs {
        // A whiteout that is written changes what another name is, of which the kernel is not told.
        cache: (wanted.whiteouts == Whiteouts::Write).then_some(Duration::ZERO),
        narrow_positions: wanted.numbers == Numbers::Narrow,
        ..Needs::NONE
    })
}

fn mode(mode: BranchMode) -> Mode {
    match mode.access {
        Access::ReadWrite => Mode::ReadWrite,
        Access::ReadOnly if mode == NFSRO => Mode::NfsReadOnly,
        Access::ReadOnly => Mode::ReadOnly,
    }
}

fn make(branches: Vec<Opened>, settings: &Settings, situation: &Situation) -> Result<Arc<dyn Layer>, String> {
    let branch = |branch: Opened| Branch { layer: branch.lower, path: branch.name, mode: mode(branch.mode) };
    let branches = branches.into_iter().map(branch).collect();
    let union = Unionfs::new(branches, Wanted::read(settings)?.options(situation));
    union.map(|union| union as Arc<dyn Layer>).map_err(|error| format!("can't make the union: {error}"))
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
        assert_eq!((wanted.delete, wanted.numbers, wanted.whiteouts), (Delete::All, Numbers::Narrow, Whiteouts::Write));
        assert_eq!(wanted.copyup, Some(Copyup::Mounter { uid: 7, gid: 8, mode: 0o640 }));
        assert_eq!(read(&[]).unwrap().copyup, None);
        for may_give_away in [true, false] {
            let situation = Situation { passthrough: None, may_give_away };
            let want = if may_give_away { Copyup::Preserve } else { Copyup::CurrentUser };
            assert_eq!(read(&[]).unwrap().options(&situation).copyup, want);
            assert_eq!(read(&[("copyup", "preserve")]).unwrap().options(&situation).copyup, Copyup::Preserve);
        }
    }

    #[test]
    fn wrong_values_are_named() {
        let reason = |options: &[(&str, &str)]| read(options).unwrap_err();
        assert_eq!(reason(&[("delete", "some")]), "option delete=: \"some\" is none of whiteout, all");
        assert!(reason(&[("copyup", "x")]).contains("preserve, currentuser, mounter"));
        for uid in ["", "-1", "root", "4294967295"] {
            let wrong = reason(&[("copyup", "mounter"), ("copyupuid", uid)]);
            assert!(wrong.starts_with("option copyupuid=: ") && wrong.contains("is not a number"), "{wrong}");
        }
        assert!(reason(&[("copyup", "mounter"), ("copyupmode", "888")]).contains("octal"));
        assert_eq!(reason(&[("copyupuid", "1")]), "option copyupuid= has a meaning only with copyup=mounter");
        assert!(reason(&[("copyup", "preserve"), ("copyupmode", "600")]).contains("only with copyup=mounter"));
    }

    #[test]
    fn what_a_mount_needs_follows_from_the_options() {
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
    fn only_the_first_branch_is_written_unasked() {
        assert_eq!([RW, RO, NFSRO].map(mode), [Mode::ReadWrite, Mode::ReadOnly, Mode::NfsReadOnly]);
        assert_eq!([(0, false), (0, true), (1, false)].map(|(i, ro)| (BRANCHES.unmarked)(i, ro)), [RW, RO, RO]);
    }
}
