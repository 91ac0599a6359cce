//! The mount options: one table that is parser, help and manual.

use crate::branches::{self, BranchSpec};
use crate::exit::Failure;
use crate::flags;
use crate::text::Text;
use core::time::Duration;
use fuse::Transport;
use rustix::mount::MountFlags;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use tracing::level_filters::LevelFilter;
use unionfs::Delete;

/// A file system that can be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `mount -t unionfs`
    Union,
    /// `mount -t wrapfs`
    Wrap,
    /// `mount -t lbfs`
    Balance,
}

impl Type {
    /// All.
    pub const ALL: [Self; 3] = [Self::Union, Self::Wrap, Self::Balance];

    /// The name that mount(8) knows it by.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Union => "unionfs",
            Self::Wrap => "wrapfs",
            Self::Balance => "lbfs",
        }
    }

    /// The type that a program's name stands for: `mount.TYPE` or `mount.fuse.TYPE`, in any directory.
    #[must_use]
    pub fn from_program(name: &[u8]) -> Option<Self> {
        let name = name.rsplit(|&b| b == b'/').next()?.strip_prefix(b"mount.")?;
        let name = name.strip_prefix(b"fuse.").unwrap_or(name);
        Self::ALL.into_iter().find(|kind| kind.name().as_bytes() == name)
    }
}

/// Who owns a copied-up file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copyup {
    /// Owner, group and mode of the original.
    #[default]
    Preserve,
    /// Whoever caused it.
    CurrentUser,
    /// What `copyupuid=`, `copyupgid=`, `copyupmode=` say.
    Mounter,
}

/// Everything that the options say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Branches of a union, highest precedence first.
    pub branches: Vec<BranchSpec>,
    /// `delete=`
    pub delete: Delete,
    /// `copyup=`
    pub copyup: Copyup,
    /// `copyupuid=`
    pub copyup_uid: Option<u32>,
    /// `copyupgid=`
    pub copyup_gid: Option<u32>,
    /// `copyupmode=`, permission bits.
    pub copyup_mode: Option<u32>,
    /// `policy=` and the others of replicas.
    pub balance: lbfs::Options,
    /// `transport=`
    pub transport: Transport,
    /// `passthrough=`
    pub passthrough: bool,
    /// `cache=`: how long the kernel may trust what it knows; `None`: the server's default.
    pub cache: Option<Duration>,
    /// `log=`
    pub log: LevelFilter,
    /// `logfile=`
    pub logfile: Option<PathBuf>,
    /// `fsname=`
    pub fsname: Option<OsString>,
    /// `allow_other`, `noallow_other`; `None`: root allows others, a user doesn't.
    pub allow_other: Option<bool>,
    /// `fg`
    pub foreground: bool,
    /// `remount`
    pub remount: bool,
    /// `bind` beside `remount`: only this mount's flags, not the file system's.
    pub bind: bool,
    /// Flags of mount(2).
    pub flags: MountFlags,
    /// The first option that was given and that holds for the life of a mount.
    pub fixed: Option<&'static str>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            branches: Vec::new(),
            delete: Delete::default(),
            copyup: Copyup::default(),
            copyup_uid: None,
            copyup_gid: None,
            copyup_mode: None,
            balance: lbfs::Options::default(),
            transport: Transport::default(),
            passthrough: true,
            cache: None,
            log: LevelFilter::INFO,
            logfile: None,
            fsname: None,
            allow_other: None,
            foreground: false,
            remount: false,
            bind: false,
            flags: MountFlags::empty(),
            fixed: None,
        }
    }
}

impl Options {
    /// Is the mount read-only?
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.flags.contains(MountFlags::RDONLY)
    }
}

/// How an option's value is read into [`Options`]; the error says what is wrong with the value.
pub enum Read {
    /// The option has no value.
    Flag(fn(&mut Options)),
    /// The option has a value: how it is shown in the help, how it is read.
    Value(&'static str, fn(&mut Options, &Text) -> Result<(), String>),
}

/// An option of ours.
pub struct Spec {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub read: Read,
    /// The types that have it.
    pub of: &'static [Type],
    /// What it does, in sentences; empty: not shown.
    pub help: &'static str,
}

impl Spec {
    /// As the help shows it: `name` or `name=VALUE`.
    #[must_use]
    pub fn usage(&self) -> String {
        match self.read {
            Read::Flag(_) => self.name.to_owned(),
            Read::Value(value, _) => format!("{}={value}", self.name),
        }
    }

    /// Is it shown in the help of this type?
    #[must_use]
    pub fn is_shown(&self, kind: Type) -> bool {
        !self.help.is_empty() && self.is_of(kind)
    }

    fn is_of(&self, kind: Type) -> bool {
        self.of.contains(&kind)
    }
}

/// Every option of ours, in the order of the help.
pub const TABLE: &[Spec] = &[
    Spec {
        name: "dirs",
        read: Read::Value("PATH[=MODE]:PATH[=MODE]:...", |o, v| {
            o.branches.append(&mut branches::parse(v)?);
            Ok(())
        }),
        of: &[Type::Union],
        help: "The branches, highest precedence first. MODE is rw (changes go here), ro (never changed) or nfsro (never \
               changed, on an NFS export). Without a mode the first branch is rw and all others are ro. A comma may stand in \
               place of a colon. In a path, : = , \" and \\ need a backslash before them; a space is written \\040 in fstab. \
               Relative paths count from the working directory. Given more than once, the lists are joined.",
    },
    Spec {
        name: "delete",
        read: Read::Value("whiteout|all", |o, v| {
            o.delete = one_of(v, &[("whiteout", Delete::Whiteout), ("all", Delete::All)])?;
            Ok(())
        }),
        of: &[Type::Union],
        help: "What removing a name does to files of that name on branches further right: hide them behind a whiteout (the \
               default), or remove them too from every branch that is rw.",
    },
    Spec {
        name: "copyup",
        read: Read::Value("preserve|currentuser|mounter", |o, v| {
            let modes =
                [("preserve", Copyup::Preserve), ("currentuser", Copyup::CurrentUser), ("mounter", Copyup::Mounter)];
            o.copyup = one_of(v, &modes)?;
            Ok(())
        }),
        of: &[Type::Union],
        help: "Owner and mode of a file that is copied to a rw branch because it is changed: those of the original (the \
               default), of the user who changes it, or those that the next three options say.",
    },
    Spec {
        name: "copyupuid",
        read: Read::Value("UID", |o, v| {
            o.copyup_uid = Some(number(v, 10)?);
            Ok(())
        }),
        of: &[Type::Union],
        help: "With copyup=mounter: the owner's number. Without it, the user who mounts.",
    },
    Spec {
        name: "copyupgid",
        read: Read::Value("GID", |o, v| {
            o.copyup_gid = Some(number(v, 10)?);
            Ok(())
        }),
        of: &[Type::Union],
        help: "With copyup=mounter: the group's number. Without it, the group of the user who mounts.",
    },
    Spec {
        name: "copyupmode",
        read: Read::Value("OCTAL", |o, v| {
            let mode = number(v, 8)?;
            if mode > 0o7777 {
                return Err(format!("{} has more than permission bits: 7777 is the most", v.show()));
            }
            o.copyup_mode = Some(mode);
            Ok(())
        }),
        of: &[Type::Union],
        help: "With copyup=mounter: the permission bits. Without it, 0644.",
    },
    Spec {
        name: "policy",
        read: Read::Value("random|roundrobin|lru|fastest|hash", |o, v| {
            o.balance.policy = one_of(v, &lbfs::Policy::ALL)?;
            Ok(())
        }),
        of: &[Type::Balance],
        help: "Which replica a file is read from, chosen when it is looked up: any (random, the default), one after the other, the \
               least recently used, the one that has answered fastest of late, or by the file's name, so that the same file always comes \
               from the same replica and each one's cache holds other files.",
    },
    Spec {
        name: "timeout",
        read: Read::Value("SECONDS", |o, v| {
            o.balance.timeout = positive(seconds(v)?)?;
            Ok(())
        }),
        of: &[Type::Balance],
        help: "How long a replica that may hang is waited for before another is asked; also, how long a program waits when \
               there is none left. Fractions allowed. Default 2.",
    },
    Spec {
        name: "threads",
        read: Read::Value("N", |o, v| {
            o.balance.threads = number(v, 10)?.clamp(1, 1024) as usize;
            Ok(())
        }),
        of: &[Type::Balance],
        help: "How many calls of a replica that may hang run at a time. When that many hang, it is sent nothing more. Default 16.",
    },
    Spec {
        name: "probe",
        read: Read::Value("SECONDS", |o, v| {
            o.balance.probe = positive(seconds(v)?)?;
            Ok(())
        }),
        of: &[Type::Balance],
        help: "The longest time between two attempts to reach a replica that is down. Default 30.",
    },
    Spec {
        name: "ramp",
        read: Read::Value("SECONDS", |o, v| {
            o.balance.ramp = seconds(v)?;
            Ok(())
        }),
        of: &[Type::Balance],
        help: "How long it takes a replica that came back to get its full share of files again; 0: it gets it at once. Default 30.",
    },
    Spec {
        name: "compare",
        read: Read::Value("N", |o, v| {
            o.balance.compare = number(v, 10)?;
            Ok(())
        }),
        of: &[Type::Balance],
        help: "One of N look-ups is compared with another replica, and a file that differs is logged; 0: none is. Default 64.",
    },
    Spec {
        name: "isolate",
        read: Read::Value("auto|always|never", |o, v| {
            let all =
                [("auto", lbfs::Isolate::Auto), ("always", lbfs::Isolate::Always), ("never", lbfs::Isolate::Never)];
            o.balance.isolate = one_of(v, &all)?;
            Ok(())
        }),
        of: &[Type::Balance],
        help: "Which replicas are called on threads that can be given up when they hang: those on a network or on FUSE (auto, the \
               default), all, or none.",
    },
    Spec {
        name: "passthrough",
        read: Read::Value("off|auto", |o, v| {
            o.balance.passthrough = one_of(v, &[("off", false), ("auto", true)])?;
            Ok(())
        }),
        of: &[Type::Balance],
        help: "Whether the kernel may read files of local replicas itself, past the server (auto): faster, but such an open file \
               can't move to another replica. Default off.",
    },
    Spec {
        name: "cache",
        read: Read::Value("SECONDS", |o, v| {
            o.cache = Some(seconds(v)?);
            Ok(())
        }),
        of: &Type::ALL,
        help: "How long the kernel may trust names and attributes without asking again, fractions allowed. What is changed through \
               the mount is seen at once; what is changed on a branch behind its back is seen after this long. \
               Default 10; 0 for branches that others change all the time.",
    },
    Spec {
        name: "transport",
        read: Read::Value("auto|ring|device", |o, v| {
            let all = [("auto", Transport::Auto), ("ring", Transport::Ring), ("device", Transport::Device)];
            o.transport = one_of(v, &all)?;
            Ok(())
        }),
        of: &Type::ALL,
        help: "How requests travel: FUSE over io_uring where the kernel offers it, else /dev/fuse (auto, the default), or \
               one of the two. The ring needs Linux 6.14 and /sys/module/fuse/parameters/enable_uring set to Y.",
    },
    Spec {
        name: "passthrough",
        read: Read::Value("auto|off", |o, v| {
            o.passthrough = one_of(v, &[("auto", true), ("off", false)])?;
            Ok(())
        }),
        of: &[Type::Union, Type::Wrap],
        help: "Whether the kernel may read and write host files itself where that is safe (auto, the default; Linux 6.9 and \
               root), or always asks the server.",
    },
    Spec {
        name: "allow_other",
        read: Read::Flag(|o| o.allow_other = Some(true)),
        of: &Type::ALL,
        help: "Users other than the one who mounts may use the mount. The default for root; for others it needs \
               user_allow_other in /etc/fuse.conf. noallow_other takes it back.",
    },
    Spec { name: "noallow_other", read: Read::Flag(|o| o.allow_other = Some(false)), of: &Type::ALL, help: "" },
    Spec {
        name: "fsname",
        read: Read::Value("NAME", |o, v| {
            o.fsname = Some(OsString::from_vec(v.bytes()));
            Ok(())
        }),
        of: &Type::ALL,
        help: "What df(1) and findmnt(8) show as the source. Default: what is given as the device, or the type's name for none.",
    },
    Spec {
        name: "log",
        read: Read::Value("off|error|warn|info|debug|trace", |o, v| {
            use LevelFilter as L;
            let all = [L::OFF, L::ERROR, L::WARN, L::INFO, L::DEBUG, L::TRACE];
            o.log = one_of(
                v,
                &["off", "error", "warn", "info", "debug", "trace"].into_iter().zip(all).collect::<Vec<_>>(),
            )?;
            Ok(())
        }),
        of: &Type::ALL,
        help: "How much is logged: to stderr in the foreground, else to the journal, or to syslog where there is none. Default info.",
    },
    Spec {
        name: "logfile",
        read: Read::Value("PATH", |o, v| {
            o.logfile = Some(OsString::from_vec(v.bytes()).into());
            Ok(())
        }),
        of: &Type::ALL,
        help: "Log to the end of this file instead.",
    },
    Spec {
        name: "fg",
        read: Read::Flag(|o| o.foreground = true),
        of: &Type::ALL,
        help: "Stay in the foreground until unmounted, as --foreground: for services.",
    },
    Spec {
        name: "remount",
        read: Read::Flag(|o| o.remount = true),
        of: &Type::ALL,
        help: "Change the flags of a mount: ro, rw, nosuid, nodev, noexec, noatime and the like. All else holds for the life of a \
               mount.",
    },
    Spec { name: "bind", read: Read::Flag(|o| o.bind = true), of: &Type::ALL, help: "" },
    Spec { name: "default_permissions", read: Read::Flag(|_| {}), of: &Type::ALL, help: "" },
];

/// Options that the kernel shows in /proc/mounts for every FUSE mount, and that mount(8) gives back at a remount.
const KERNELS: &[&str] = &["fd", "rootmode", "user_id", "group_id", "max_read", "blksize"];

/// Options that may come with a remount: mount(8) reads them back from /proc/mounts, or they say nothing about the mount.
const NOT_FIXED: &[&str] = &["remount", "bind", "default_permissions", "allow_other", "noallow_other"];

/// Reads the options of a mount of `kind`. With `sloppy`, unknown ones are ignored.
///
/// # Errors
/// Names the option and what is wrong with it.
pub fn parse(bytes: &[u8], kind: Type, sloppy: bool) -> Result<Options, Failure> {
    let text = Text::read(bytes)
        .map_err(|wrong| Failure::usage(format!("the list of options {wrong}: {}", String::from_utf8_lossy(bytes))))?;
    let mut options = Options::default();
    let mut kernels = None;
    for item in text.split(b',').iter().filter(|item| !item.is_empty()) {
        let (name, value) = item.split_first(b'=').map_or((item.clone(), None), |(name, value)| (name, Some(value)));
        let name = name.show();
        if let Some(spec) = TABLE.iter().find(|spec| spec.name == name && spec.is_of(kind)) {
            read(&mut options, spec, value.as_ref())?;
        } else if let Some(effect) = flags::effect(&name) {
            options.flags = effect.apply(options.flags);
        } else if KERNELS.contains(&name.as_str()) {
            kernels = kernels.or(Some(name));
        } else if kind == Type::Union && !options.branches.is_empty() && branches::is_branch(item) {
            options.branches.append(&mut branches::parse(item).map_err(|wrong| wrong_value("dirs", &wrong))?);
        } else if !sloppy {
            return Err(unknown(&name, kind));
        }
    }
    if let Some(name) = kernels.filter(|_| !options.remount) {
        return Err(Failure::usage(format!("option {name}= is made by the mount itself; leave it out")));
    }
    check_together(&options)?;
    Ok(options)
}

fn read(options: &mut Options, spec: &Spec, value: Option<&Text>) -> Result<(), Failure> {
    match (&spec.read, value) {
        (Read::Flag(set), None) => set(options),
        (Read::Flag(_), Some(_)) => {
            return Err(Failure::usage(format!("option {} takes no value", spec.name)));
        }
        (Read::Value(shape, _), None) => {
            return Err(Failure::usage(format!("option {} needs a value: {}={shape}", spec.name, spec.name)));
        }
        (Read::Value(_, set), Some(value)) => set(options, value).map_err(|wrong| wrong_value(spec.name, &wrong))?,
    }
    if !NOT_FIXED.contains(&spec.name) && options.fixed.is_none() {
        options.fixed = Some(spec.name);
    }
    Ok(())
}

fn check_together(options: &Options) -> Result<(), Failure> {
    let alone = [
        ("copyupuid", options.copyup_uid.is_some()),
        ("copyupgid", options.copyup_gid.is_some()),
        ("copyupmode", options.copyup_mode.is_some()),
    ];
    match alone.iter().find(|(_, given)| *given) {
        Some((name, _)) if options.copyup != Copyup::Mounter => {
            Err(Failure::usage(format!("option {name}= has a meaning only with copyup=mounter")))
        }
        _ => Ok(()),
    }
}

fn wrong_value(name: &str, wrong: &str) -> Failure {
    Failure::usage(format!("option {name}=: {wrong}"))
}

fn unknown(name: &str, kind: Type) -> Failure {
    let ours = TABLE.iter().filter(|spec| spec.is_shown(kind)).map(|spec| spec.name);
    let near = ours.chain(["ro", "rw", "nosuid", "nodev", "noexec", "noatime"]).find(|known| is_near(name, known));
    let way_out = near.map_or_else(|| "see --help".to_owned(), |near| format!("is {near} meant?"));
    Failure::usage(format!("unknown option {name}: {way_out} (-s ignores unknown options)"))
}

/// Is the one made from the other by changing, adding, removing or swapping one letter?
fn is_near(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let same_start = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let (a, b) = (a.split_at(same_start).1, b.split_at(same_start).1);
    let same_end = a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| x == y).count();
    let (a, b) = (a.split_at(a.len() - same_end).0, b.split_at(b.len() - same_end).0);
    match (a, b) {
        ([x1, x2], [y1, y2]) => x1 == y2 && x2 == y1,
        _ => a.len() <= 1 && b.len() <= 1 && same_start + same_end > 1,
    }
}

fn one_of<T: Copy>(value: &Text, all: &[(&str, T)]) -> Result<T, String> {
    let given = value.bytes();
    all.iter().find(|(name, _)| name.as_bytes() == given).map(|&(_, found)| found).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|&(name, _)| name).collect();
        format!("{:?} is none of {}", value.show(), names.join(", "))
    })
}

fn number(value: &Text, radix: u32) -> Result<u32, String> {
    let shown = value.show();
    let digits = shown.bytes().all(|b| b.is_ascii_digit());
    u32::from_str_radix(&shown, radix).ok().filter(|&n| digits && n != u32::MAX).ok_or_else(|| {
        let what = if radix == 8 { "an octal number such as 0644" } else { "a number" };
        format!("{shown:?} is not {what}")
    })
}

fn positive(time: Duration) -> Result<Duration, String> {
    if time.is_zero() { Err("it must be more than 0".to_owned()) } else { Ok(time) }
}

fn seconds(value: &Text) -> Result<Duration, String> {
    const MOST: Duration = Duration::from_secs(365 * 24 * 3600);
    let shown = value.show();
    let number = shown.parse::<f64>().ok().and_then(|n| Duration::try_from_secs_f64(n).ok());
    number.map(|n| n.min(MOST)).ok_or_else(|| format!("{shown:?} is not a number of seconds such as 1 or 0.5"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;
    use proptest::prelude::*;
    use unionfs::Mode;

    fn union(options: &str) -> Options {
        parse(options.as_bytes(), Type::Union, false).unwrap_or_else(|failure| panic!("{options}: {failure}"))
    }

    fn reason(options: &str) -> String {
        let failure = parse(options.as_bytes(), Type::Union, false).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert!(!failure.reason.contains('\n'));
        failure.reason
    }

    fn branches(options: &str) -> Vec<(String, Option<Mode>)> {
        union(options).branches.into_iter().map(|b| (b.path.to_str().unwrap().to_owned(), b.mode)).collect()
    }

    #[test]
    fn the_lines_of_the_papers() {
        let (rw, ro, nfsro) = (Some(Mode::ReadWrite), Some(Mode::ReadOnly), Some(Mode::NfsReadOnly));
        assert_eq!(branches("dirs=/ramdisk=rw:/KNOPPIX=ro"), [("/ramdisk".into(), rw), ("/KNOPPIX".into(), ro)]);
        assert_eq!(branches("rw,dirs=/memory/changes=rw"), [("/memory/changes".into(), rw)]);
        let nfs = branches("dirs=/mnt/persist:/mnt/nfsbins=nfsro");
        assert_eq!(nfs, [("/mnt/persist".into(), None), ("/mnt/nfsbins".into(), nfsro)]);
    }

    #[test]
    fn schroot_separates_by_a_comma() {
        let (rw, ro) = (Some(Mode::ReadWrite), Some(Mode::ReadOnly));
        let want = [("/var/overlay".to_owned(), rw), ("/srv/chroot".to_owned(), ro)];
        assert_eq!(branches("dirs=/var/overlay=rw,/srv/chroot=ro"), want);
        assert_eq!(branches("rw,dirs=/var/overlay=rw,noatime,/srv/chroot=ro,delete=all"), want);
        assert_eq!(branches("dirs=a=rw,b=ro,./c"), [("a".into(), rw), ("b".into(), ro), ("./c".into(), None)]);
        // Without dirs= before it, it is an option, and an unknown one.
        assert!(reason("/srv/chroot=ro").starts_with("unknown option /srv/chroot"));
    }

    #[test]
    fn lists_are_joined() {
        assert_eq!(branches("dirs=/a,dirs=/b:/c").len(), 3);
    }

    #[test]
    fn escapes_reach_every_level() {
        let options = union(r"dirs=/a\,b\:c\=d\\e\ f\040g=rw,fsname=x\,y,logfile=/l\=og");
        assert_eq!(options.branches[0].path.to_str(), Some(r"/a,b:c=d\e f g"));
        assert_eq!(options.fsname.unwrap(), "x,y");
        assert_eq!(options.logfile.unwrap().to_str(), Some("/l=og"));
        assert!(reason(r"dirs=/a\").contains("lone backslash"));
    }

    #[test]
    fn fstab_lines() {
        let options = union(
            "defaults,_netdev,noauto,nofail,x-systemd.automount,x-systemd.requires-mounts-for=/a,comment=my union,\
             ro,nosuid,nodev,noexec,noatime,dirs=/a",
        );
        let flags =
            MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME;
        assert_eq!(options.flags, flags);
        assert_eq!(union("user=ann,dirs=/a").flags, MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC);
    }

    #[test]
    fn own_options() {
        let options = union(
            "dirs=/a,delete=all,copyup=mounter,copyupuid=7,copyupgid=8,copyupmode=640,transport=device,passthrough=off,\
             cache=0.25,log=debug,logfile=/l,fsname=x,noallow_other,fg",
        );
        assert_eq!(options.delete, Delete::All);
        assert_eq!(options.copyup, Copyup::Mounter);
        assert_eq!((options.copyup_uid, options.copyup_gid, options.copyup_mode), (Some(7), Some(8), Some(0o640)));
        assert_eq!(options.transport, Transport::Device);
        assert!(!options.passthrough && options.foreground && !options.remount);
        assert_eq!(options.cache, Some(Duration::from_millis(250)));
        assert_eq!(options.log, LevelFilter::DEBUG);
        assert_eq!(options.allow_other, Some(false));
    }

    #[test]
    fn wrong_values_are_named() {
        assert!(reason("dirs=/a,delete=some").contains("delete=: \"some\" is none of whiteout, all"));
        assert!(reason("dirs=/a,copyup=x").contains("preserve, currentuser, mounter"));
        assert!(reason("dirs=/a,transport=usb").contains("auto, ring, device"));
        assert!(reason("dirs=/a,log=loud").contains("error, warn"));
        assert!(reason("dirs=/a=rx").starts_with("option dirs=: unknown mode \"rx\""));
        assert!(reason("dirs=/a,/b=rx").starts_with("option dirs=: unknown mode \"rx\""));
        for seconds in ["", "-1", "x", "nan", "1e400"] {
            assert!(reason(&format!("dirs=/a,cache={seconds}")).contains("seconds"), "{seconds}");
        }
        for uid in ["", "-1", "+1", "root", "4294967295", "4294967296"] {
            assert!(reason(&format!("copyup=mounter,copyupuid={uid}")).contains("is not a number"), "{uid}");
        }
        assert!(reason("copyup=mounter,copyupmode=888").contains("octal"));
        assert!(reason("copyup=mounter,copyupmode=10000").contains("7777"));
        assert!(reason("dirs").contains("dirs=PATH"));
        assert!(reason("fg=1").contains("takes no value"));
        assert!(reason("copyupuid=1").contains("only with copyup=mounter"));
    }

    #[test]
    fn unknown_options_are_named_or_ignored() {
        assert_eq!(reason("dirs=/a,bogus=1"), "unknown option bogus: see --help (-s ignores unknown options)");
        assert!(reason("dirs=/a,bogus").contains("bogus"));
        assert!(reason("dir=/a").contains("is dirs meant?"));
        assert!(reason("dirs=/a,nosiud").contains("is nosuid meant?"));
        assert!(reason("dirs=/a,chache=1").contains("is cache meant?"));
        let sloppy = parse(b"bogus,dirs=/a,other=2,ro", Type::Union, true).unwrap();
        assert_eq!(sloppy.branches.len(), 1);
        assert!(sloppy.read_only());
        // Sloppy is for unknown names, not for wrong values.
        assert!(parse(b"dirs=/a=rx", Type::Union, true).is_err());
    }

    #[test]
    fn a_null_layer_has_no_branches() {
        let failure = parse(b"dirs=/a", Type::Wrap, false).unwrap_err();
        assert!(failure.reason.starts_with("unknown option dirs"));
        assert!(parse(b"ro,cache=2,transport=ring", Type::Wrap, false).is_ok());
    }

    #[test]
    fn what_the_kernel_shows_comes_back_at_a_remount() {
        let options =
            union("rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,max_read=4096,remount,ro");
        assert!(options.remount && options.read_only());
        assert_eq!(options.fixed, None);
        assert_eq!(union("remount,dirs=/a").fixed, Some("dirs"));
        assert!(reason("dirs=/a,user_id=0").contains("user_id= is made by the mount itself"));
    }

    #[test]
    fn nothing_is_nothing() {
        assert_eq!(union(""), Options::default());
        assert_eq!(union(",,"), Options::default());
    }

    #[test]
    fn types_by_program_name() {
        for (name, kind) in [
            ("mount.unionfs", Some(Type::Union)),
            ("/sbin/mount.fuse.unionfs", Some(Type::Union)),
            ("./mount.wrapfs", Some(Type::Wrap)),
            ("mount.fuse.wrapfs", Some(Type::Wrap)),
            ("/sbin/mount.lbfs", Some(Type::Balance)),
            ("strata", None),
            ("mount.", None),
            ("unionfs", None),
            ("", None),
        ] {
            assert_eq!(Type::from_program(name.as_bytes()), kind, "{name}");
        }
    }

    #[test]
    fn the_table_has_each_name_once_and_none_of_mount_8() {
        for (i, spec) in TABLE.iter().enumerate() {
            let clashes = |other: &Spec| other.name == spec.name && other.of.iter().any(|kind| spec.is_of(*kind));
            assert!(!TABLE.iter().skip(i + 1).any(clashes), "{}", spec.name);
            assert_eq!(flags::effect(spec.name), None, "{}", spec.name);
        }
    }

    #[test]
    fn options_of_replicas() {
        let read = |text: &str| parse(text.as_bytes(), Type::Balance, false).map_err(|failure| failure.reason);
        let defaults = lbfs::Options::default();
        assert_eq!(read("ro,cache=2").unwrap().balance, defaults);
        let all = "policy=lru,timeout=0.5,threads=3,probe=7,ramp=0,compare=1,isolate=always,passthrough=auto";
        let wanted = lbfs::Options {
            policy: lbfs::Policy::LeastRecentlyUsed,
            timeout: Duration::from_millis(500),
            threads: 3,
            probe: Duration::from_secs(7),
            ramp: Duration::ZERO,
            compare: 1,
            isolate: lbfs::Isolate::Always,
            passthrough: true,
        };
        assert_eq!(read(all).unwrap().balance, wanted);
        assert!(read("policy=best").unwrap_err().contains("none of random, roundrobin"));
        assert!(read("timeout=0").unwrap_err().contains("more than 0"));
        assert!(read("dirs=/a").unwrap_err().starts_with("unknown option dirs"));
        assert!(reason("policy=lru").starts_with("unknown option policy"));
    }

    proptest! {
        #[test]
        fn no_options_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), sloppy in any::<bool>()) {
            let _ = parse(&bytes, Type::Union, sloppy);
        }

        #[test]
        fn no_text_of_option_letters_panics(text in "(dirs|ro|delete|cache|log|copyup|[a-z/.:=,\\\\\" 0-9]){0,20}") {
            let _ = parse(text.as_bytes(), Type::Union, false);
            let _ = parse(text.as_bytes(), Type::Wrap, true);
        }
    }
}
