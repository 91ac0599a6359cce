//! The mount options. One table drives the parser, the help and the manual pages.

use crate::edits::{self, Edit};
use crate::exit::Failure;
use crate::flags;
use crate::registry;
use core::time::Duration;
use fuse::Transport;
use hostfs::Watch;
use rustix::mount::MountFlags;
use stack::suggest::{elsewhere, nearest};
use stack::value::{one_of, seconds, size};
use stack::{Branches, Given, LayerType, OptionSpec, Text, name_and_value};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use tracing::level_filters::LevelFilter;

/// A file system type.
#[derive(Clone, Copy, Debug)]
pub enum Type {
    /// `mount -t strata`: a stack, described by a string.
    Stack,
    /// `mount -t LAYER`: one layer over a directory, or over the branches that its options list.
    Layer(&'static LayerType),
}

/// The options that only [`Type::Stack`] has.
const STACK: &[OptionSpec] = &[OptionSpec {
    name: "stack",
    value: Some("\"STACK\""),
    help: "The stack, if the first argument is none. It is enclosed in double quotes; escapes within them are read twice.",
}];

impl Type {
    /// Returns the name for `mount -t`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stack => "strata",
            Self::Layer(layer) => layer.name,
        }
    }

    /// Returns the options that are specific to this type.
    #[must_use]
    pub const fn own(self) -> &'static [OptionSpec] {
        match self {
            Self::Stack => STACK,
            Self::Layer(layer) => layer.options,
        }
    }

    /// Returns the declaration of the branches that a remount can change, if the type has any.
    #[must_use]
    pub fn live_branches(self) -> Option<&'static Branches> {
        self.layer().and_then(LayerType::branches).filter(|branches| branches.live)
    }

    /// Whether a remount may change branches. A stack may contain any layer.
    fn accepts_edits(self) -> bool {
        self.layer().is_none() || self.live_branches().is_some()
    }

    /// Returns the mounted layer, or `None` for a stack.
    #[must_use]
    pub const fn layer(self) -> Option<&'static LayerType> {
        match self {
            Self::Stack => None,
            Self::Layer(layer) => Some(layer),
        }
    }

    /// Returns the type with this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::all().find(|kind| kind.name() == name)
    }

    /// Iterates over all types.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Stack].into_iter().chain(registry::types().map(Self::Layer))
    }

    /// Returns the type of the helper `mount.TYPE` or `mount.fuse.TYPE`, in any directory. An `@`
    /// before it tells systemd not to end the server of a root file system at shutdown.
    #[must_use]
    pub fn from_program(name: &[u8]) -> Option<Self> {
        let name = name.rsplit(|&b| b == b'/').next()?;
        let name = name.strip_prefix(b"@").unwrap_or(name).strip_prefix(b"mount.")?;
        Self::of(core::str::from_utf8(name.strip_prefix(b"fuse.").unwrap_or(name)).ok()?)
    }
}

/// The parsed options of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The options that are specific to the type.
    pub own: Given,
    /// `transport=`
    pub transport: Transport,
    /// `passthrough=`; `None` selects the layer's default.
    pub passthrough: Option<bool>,
    /// `readahead=`, in bytes; `None` selects the kernel's default.
    pub readahead: Option<u32>,
    /// `data=cached`: the kernel opens files without a request to the server.
    pub cached_data: bool,
    /// Whether extended attributes are served: false with `noxattr`.
    pub xattrs: bool,
    /// `meter=`: whether operations are counted and timed between the layers. `None`: for a
    /// [`Type::Stack`].
    pub meter: Option<bool>,
    /// `watch=`: which out-of-band changes are reported to the kernel at once.
    pub watch: Watch,
    /// `cache=`: how long the kernel may cache names and attributes; `None` selects the server's
    /// default.
    pub cache: Option<Duration>,
    /// `log=`
    pub log: LevelFilter,
    /// `logfile=`
    pub logfile: Option<PathBuf>,
    /// `fsname=`
    pub fsname: Option<OsString>,
    /// `allow_other`, `noallow_other`; `None`: other users have access if root mounts.
    pub allow_other: Option<bool>,
    /// `fg`
    pub foreground: bool,
    /// `remount`
    pub remount: bool,
    /// `bind` with `remount`: change the flags of this mount, not those of the file system.
    pub bind: bool,
    /// Flags of mount(2).
    pub flags: MountFlags,
    /// The given options that a remount can't change, except for the list of branches: name and
    /// full text.
    pub fixed: Vec<(&'static str, String)>,
    /// With `remount`: changes of the branches.
    pub edits: Vec<Edit>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            own: Given::default(),
            transport: Transport::default(),
            passthrough: None,
            readahead: None,
            cached_data: false,
            xattrs: true,
            meter: None,
            watch: Watch::Names,
            cache: None,
            log: LevelFilter::INFO,
            logfile: None,
            fsname: None,
            allow_other: None,
            foreground: false,
            remount: false,
            bind: false,
            flags: MountFlags::empty(),
            fixed: Vec::new(),
            edits: Vec::new(),
        }
    }
}

impl Options {
    /// Whether the mount is read-only.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.flags.contains(MountFlags::RDONLY)
    }
}

/// How an option is stored in [`Options`]. The error describes the invalid value.
pub enum Read {
    /// The option has no value.
    Flag(fn(&mut Options)),
    /// The option has a value: its placeholder in the help, and the function that parses it.
    Value(&'static str, fn(&mut Options, &Text) -> Result<(), String>),
}

/// An option that every type of Strata has.
pub struct Spec {
    /// Its name.
    pub name: &'static str,
    /// Whether it takes a value, and how it is parsed.
    pub read: Read,
    /// Its description; empty for options that the help omits.
    pub help: &'static str,
}

impl Spec {
    /// Returns the form that the help shows: `name` or `name=VALUE`.
    #[must_use]
    pub fn usage(&self) -> String {
        match self.read {
            Read::Flag(_) => self.name.to_owned(),
            Read::Value(value, _) => format!("{}={value}", self.name),
        }
    }

    /// Whether the help shows it.
    #[must_use]
    pub const fn is_shown(&self) -> bool {
        !self.help.is_empty()
    }
}

/// Every option that all types have, in the order of the help.
pub const TABLE: &[Spec] = &[
    Spec {
        name: "cache",
        read: Read::Value("SECONDS", |o, v| {
            o.cache = Some(seconds(&v.bytes())?);
            Ok(())
        }),
        help: "How long the kernel may cache names and attributes, in seconds; fractions are allowed. Changes through the mount are \
               visible at once; out-of-band changes on a branch become visible after this time. Default 10; use 0 for branches \
               that change out of band all the time. Names are never cached where several names mean one entry (casefold).",
    },
    Spec {
        name: "watch",
        read: Read::Value("auto|writes|off", |o, v| {
            let all = [("auto", Watch::Names), ("writes", Watch::Writes), ("off", Watch::Off)];
            o.watch = one_of(&v.bytes(), &all)?;
            Ok(())
        }),
        help: "Whether out-of-band changes become visible at once. auto, the default: changes of names and attributes, and of data \
               when the writer closes the file. writes: also each write, which makes every write to the branches' file systems \
               slower by about 0.5 µs. off: after cache= seconds. Needs CAP_SYS_ADMIN and a local file system; elsewhere, and with \
               off, names and attributes are cached for 0.5 seconds unless cache= is given.",
    },
    Spec {
        name: "transport",
        read: Read::Value("auto|ring|device", |o, v| {
            let all = [("auto", Transport::Auto), ("ring", Transport::Ring), ("device", Transport::Device)];
            o.transport = one_of(&v.bytes(), &all)?;
            Ok(())
        }),
        help: "The transport for requests: ring is FUSE over io_uring, device is /dev/fuse. auto, the default, uses the ring where \
               the kernel supports it. The ring needs Linux 6.14 and /sys/module/fuse/parameters/enable_uring set to Y.",
    },
    Spec {
        name: "passthrough",
        read: Read::Value("auto|off", |o, v| {
            o.passthrough = Some(one_of(&v.bytes(), &[("auto", true), ("off", false)])?);
            Ok(())
        }),
        help: "Whether the kernel may read and write host files directly, without requests to the server. auto, the default, permits \
               it where it is safe; it needs Linux 6.9 and root. off sends every read and write to the server. The default of lbfs \
               is off: a file that the kernel reads directly can't move to another replica.",
    },
    Spec {
        name: "readahead",
        read: Read::Value("SIZE", |o, v| {
            o.readahead = Some(readahead(&v.bytes())?);
            Ok(())
        }),
        help: "Readahead size for files whose data come from the server, such as 256K or 1M; 0 to 16M. Larger sizes speed up the \
               first sequential read of large files. Memory-mapped files, including programs, then start more slowly and occupy \
               more memory. More than 128K needs root. Files in passthrough use the readahead of the lower file system. Default: \
               the kernel's, 128K.",
    },
    Spec {
        name: "data",
        read: Read::Value("auto|cached", |o, v| {
            o.cached_data = one_of(&v.bytes(), &[("auto", false), ("cached", true)])?;
            Ok(())
        }),
        help: "How programs get file data. auto, the default: every open is a request to the server, and the kernel reads host \
               files directly where passthrough= permits it. cached, only for read-only mounts: the kernel opens files without a \
               request and keeps their data in the page cache. Rereading many small files is then as fast as on the lower file \
               system; the first read of a large file is slower. Changes on the lower file system become visible after cache= \
               seconds. It can't be combined with snoopfs, which needs a request for each open.",
    },
    Spec {
        name: "noxattr",
        read: Read::Flag(|o| o.xattrs = false),
        help: "Disable extended attributes, which saves requests for each write and each permission check. POSIX ACLs, file \
               capabilities and user attributes are not available; those on the branches stay there, hidden. Only permission bits \
               control access, as on ext4 with noacl.",
    },
    Spec {
        name: "meter",
        read: Read::Value("on|off", |o, v| {
            o.meter = Some(one_of(&v.bytes(), &[("on", true), ("off", false)])?);
            Ok(())
        }),
        help: "Whether operations are counted and timed between the layers, for strata stack. The cost is about 0.1 microseconds per \
               operation and layer, and 48 bytes per inode. Default: on for mount -t strata, off for all other types.",
    },
    Spec {
        name: "allow_other",
        read: Read::Flag(|o| o.allow_other = Some(true)),
        help: "Give access to users other than the mounting user. The default for root; other users need user_allow_other in \
               /etc/fuse.conf. noallow_other is the opposite.",
    },
    Spec { name: "noallow_other", read: Read::Flag(|o| o.allow_other = Some(false)), help: "" },
    Spec {
        name: "fsname",
        read: Read::Value("NAME", |o, v| {
            o.fsname = Some(OsString::from_vec(v.bytes()));
            Ok(())
        }),
        help: "The source that df(1) and findmnt(8) show. Default: the first argument, or the name of the type if that is none.",
    },
    Spec {
        name: "log",
        read: Read::Value("off|error|warn|info|debug|trace", |o, v| {
            use LevelFilter as L;
            let all = [L::OFF, L::ERROR, L::WARN, L::INFO, L::DEBUG, L::TRACE];
            o.log = one_of(
                &v.bytes(),
                &["off", "error", "warn", "info", "debug", "trace"].into_iter().zip(all).collect::<Vec<_>>(),
            )?;
            Ok(())
        }),
        help: "The log level. The log is written to stderr in the foreground, otherwise to the journal, or to syslog on systems \
               without a journal. Default info.",
    },
    Spec {
        name: "logfile",
        read: Read::Value("PATH", |o, v| {
            o.logfile = Some(OsString::from_vec(v.bytes()).into());
            Ok(())
        }),
        help: "Append the log to this file instead.",
    },
    Spec {
        name: "fg",
        read: Read::Flag(|o| o.foreground = true),
        help: "Stay in the foreground until unmounted, like --foreground: for services.",
    },
    Spec {
        name: "remount",
        read: Read::Flag(|o| o.remount = true),
        help: "Change the flags of a mount: ro, rw, nosuid, nodev, noexec, noatime and so on. The branches of a union can be \
               changed too. Other options can't be changed while it is mounted.",
    },
    Spec { name: "bind", read: Read::Flag(|o| o.bind = true), help: "" },
    Spec { name: "default_permissions", read: Read::Flag(|_| {}), help: "" },
];

/// Options that the kernel shows in /proc/mounts for every FUSE mount. mount(8) passes them back on
/// a remount.
const KERNELS: &[&str] = &["fd", "rootmode", "user_id", "group_id", "max_read", "blksize"];

/// Options that a remount may repeat: mount(8) reads them back from /proc/mounts, or they don't
/// describe the mount.
const NOT_FIXED: &[&str] = &["remount", "bind", "default_permissions", "allow_other", "noallow_other"];

/// Parses the options of a mount of type `kind`. With `sloppy`, unknown options are ignored.
///
/// # Errors
/// Names the invalid option and the reason.
pub fn parse(bytes: &[u8], kind: Type, sloppy: bool) -> Result<Options, Failure> {
    let wrong = |wrong| Failure::usage(format!("the option list {wrong}: {}", String::from_utf8_lossy(bytes)));
    let text = Text::read(bytes).map_err(wrong)?;
    let mut options = Options::default();
    let mut kernels = None;
    let branches = kind.layer().and_then(LayerType::branches);
    for item in text.split_options(branches).map_err(wrong)?.iter().filter(|item| !item.is_empty()) {
        let (name, value) = name_and_value(item);
        if kind.accepts_edits()
            && let Some(edit) = edits::read(item).map_err(Failure::usage)?
        {
            options.edits.push(edit);
        } else if let Some(spec) = kind.own().iter().find(|spec| spec.name == name) {
            options.own.take(spec, value).map_err(Failure::usage)?;
            options.fixed.push((spec.name, item.show()));
        } else if let Some(spec) = TABLE.iter().find(|spec| spec.name == name) {
            read(&mut options, spec, value.as_ref())?;
            if !NOT_FIXED.contains(&spec.name) {
                options.fixed.push((spec.name, item.show()));
            }
        } else if let Some(effect) = flags::effect(&name) {
            options.flags = effect.apply(options.flags);
        } else if KERNELS.contains(&name.as_str()) {
            kernels = kernels.or(Some(name));
        } else if options.own.continue_list(item, branches) {
            let another = |branches: &Branches| (branches.option, format!("{}={}", branches.option, item.show()));
            options.fixed.extend(branches.map(another));
        } else if !sloppy {
            return Err(unknown(&name, kind));
        }
    }
    if !options.edits.is_empty() && !options.remount {
        return Err(Failure::usage(
            "options that change branches are valid only with remount; list the branches in dirs=",
        ));
    }
    if let Some(name) = kernels.filter(|_| !options.remount) {
        return Err(Failure::usage(format!("option {name}=: set by the mount itself; remove it")));
    }
    Ok(options)
}

fn read(options: &mut Options, spec: &Spec, value: Option<&Text>) -> Result<(), Failure> {
    match (&spec.read, value) {
        (Read::Flag(set), None) => set(options),
        (Read::Flag(_), Some(_)) => {
            return Err(Failure::usage(format!("option {}: takes no value", spec.name)));
        }
        (Read::Value(shape, _), None) => {
            return Err(Failure::usage(format!("option {}: needs a value: {}={shape}", spec.name, spec.name)));
        }
        (Read::Value(_, set), Some(value)) => set(options, value).map_err(|wrong| wrong_value(spec.name, &wrong))?,
    }
    Ok(())
}

/// The maximum of `readahead=` in bytes: sixteen requests of the maximum size.
const MAX_READAHEAD: usize = 16 << 20;

fn readahead(value: &[u8]) -> Result<u32, String> {
    let bytes = size(value)?;
    let fits = u32::try_from(bytes).ok().filter(|_| bytes <= MAX_READAHEAD);
    fits.ok_or_else(|| format!("{} is more than 16M", String::from_utf8_lossy(value)))
}

fn wrong_value(name: &str, wrong: &str) -> Failure {
    Failure::usage(format!("option {name}=: {wrong}"))
}

fn unknown(name: &str, kind: Type) -> Failure {
    let own = || kind.own().iter().map(|spec| spec.name);
    let general = || TABLE.iter().filter(|spec| spec.is_shown()).map(|spec| spec.name);
    let flags = ["ro", "rw", "nosuid", "nodev", "noexec", "noatime"];
    let near = nearest(name, own().chain(general()).chain(flags)).map(|near| format!("did you mean {near}?"));
    let remedy = near.or_else(|| elsewhere(name, own().chain(general()))).unwrap_or_else(|| "see --help".to_owned());
    Failure::usage(format!("unknown option {name}: {remedy} (-s ignores unknown options)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;
    use crate::registry::Registry;
    use proptest::prelude::*;
    use stack::spec::{self, BottomSpec, BranchSpec, LowerSpec};

    fn union_type() -> Type {
        Type::of("unionfs").unwrap()
    }

    fn lists(options: &Options) -> Result<Vec<BranchSpec>, String> {
        let union = union_type().layer().unwrap();
        match spec::over_branches(union, options.own.clone(), &Registry)? {
            BottomSpec::Branches(_, branches) => Ok(branches),
            BottomSpec::Directory { .. } => panic!("a directory"),
        }
    }

    fn union(options: &str) -> Options {
        parse(options.as_bytes(), union_type(), false).unwrap_or_else(|failure| panic!("{options}: {failure}"))
    }

    fn reason(options: &str) -> String {
        let failure = parse(options.as_bytes(), union_type(), false).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert!(!failure.reason.contains('\n'));
        failure.reason
    }

    fn branches(options: &str) -> Vec<(String, Option<&'static str>)> {
        let branches = lists(&union(options)).unwrap().into_iter();
        branches.map(|b| (b.lower.to_string(), b.mode.map(|mode| mode.name))).collect()
    }

    #[test]
    fn option_lists_of_the_unionfs_papers_are_parsed() {
        let (rw, ro, nfsro) = (Some("rw"), Some("ro"), Some("nfsro"));
        assert_eq!(branches("dirs=/ramdisk=rw:/KNOPPIX=ro"), [("/ramdisk".into(), rw), ("/KNOPPIX".into(), ro)]);
        assert_eq!(branches("rw,dirs=/memory/changes=rw"), [("/memory/changes".into(), rw)]);
        let nfs = branches("dirs=/mnt/persist:/mnt/nfsbins=nfsro");
        assert_eq!(nfs, [("/mnt/persist".into(), None), ("/mnt/nfsbins".into(), nfsro)]);
    }

    #[test]
    fn branches_may_be_separated_by_commas_as_schroot_does() {
        let (rw, ro) = (Some("rw"), Some("ro"));
        let want = [("/var/overlay".to_owned(), rw), ("/srv/chroot".to_owned(), ro)];
        assert_eq!(branches("dirs=/var/overlay=rw,/srv/chroot=ro"), want);
        assert_eq!(branches("rw,dirs=/var/overlay=rw,noatime,/srv/chroot=ro,delete=all"), want);
        assert_eq!(branches("dirs=a=rw,b=ro,./c"), [("a".into(), rw), ("b".into(), ro), ("./c".into(), None)]);
        // Without a preceding dirs=, a path is an unknown option.
        assert!(reason("/srv/chroot=ro").starts_with("unknown option /srv/chroot"));
    }

    #[test]
    fn branches_may_be_stacks() {
        let want = [
            ("[zstd,level=3 / /a]".to_owned(), Some("rw")),
            ("[xor,key=7 / /b]".to_owned(), None),
            ("/c".to_owned(), Some("ro")),
        ];
        for list in [
            "dirs=[zstd,level=3/[/a]]=rw:[xor,key=7/[/b]]:/c=ro,nosuid",
            "dirs=[zstd,level=3 / /a]=rw,nosuid,[xor,key=7 / /b],/c=ro",
            r#"dirs=["zstd,level=3 / /a"]=rw:["xor,key=7 / /b"]:/c=ro,nosuid"#,
        ] {
            assert_eq!(branches(list), want, "{list}");
            assert_eq!(union(list).flags, MountFlags::NOSUID, "{list}");
        }
        assert!(reason("dirs=[/a").contains("has a [ that is not closed"));
        assert!(
            lists(&union("dirs=/x:[zsdt / /a]"))
                .unwrap_err()
                .starts_with("part 1 of the stack in branch 2: no such layer")
        );
        assert_eq!(union("fsname=[x,dirs=/a[1,cache=0").cache, Some(Duration::ZERO));
    }

    #[test]
    fn repeated_branch_lists_are_joined() {
        assert_eq!(branches("dirs=/a,dirs=/b:/c").len(), 3);
    }

    #[test]
    fn escapes_are_read_at_every_level() {
        let options = union(r"dirs=/a\,b\:c\=d\\e\ f\040g=rw,fsname=x\,y,logfile=/l\=og");
        let branches = lists(&options).unwrap();
        assert_eq!(branches[0].lower, LowerSpec::Directory(r"/a,b:c=d\e f g".into()));
        assert_eq!(options.fsname.unwrap(), "x,y");
        assert_eq!(options.logfile.unwrap().to_str(), Some("/l=og"));
        assert!(reason(r"dirs=/a\").contains("lone backslash"));
    }

    #[test]
    fn fstab_options_are_accepted() {
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
    fn type_specific_and_common_options_are_parsed() {
        let options = union(
            "dirs=/a,delete=all,ino=32,copyup=mounter,copyupuid=7,copyupgid=8,copyupmode=640,transport=device,passthrough=off,\
             readahead=512k,cache=0.25,meter=on,log=debug,logfile=/l,fsname=x,noallow_other,fg",
        );
        let own = "dirs=/a,delete=all,ino=32,copyup=mounter,copyupuid=7,copyupgid=8,copyupmode=640";
        assert_eq!(options.own.show(), own);
        assert_eq!(options.transport, Transport::Device);
        assert_eq!(options.readahead, Some(512 << 10));
        assert!(options.passthrough == Some(false) && options.foreground && !options.remount);
        assert_eq!(options.cache, Some(Duration::from_millis(250)));
        assert_eq!((options.log, options.meter), (LevelFilter::DEBUG, Some(true)));
        assert_eq!(options.allow_other, Some(false));
    }

    #[test]
    fn errors_name_the_invalid_value() {
        assert!(reason("dirs=/a,transport=usb").contains("auto, ring, device"));
        assert!(reason("dirs=/a,log=loud").contains("error, warn"));
        for seconds in ["", "-1", "x", "nan", "1e400"] {
            assert!(reason(&format!("dirs=/a,cache={seconds}")).contains("seconds"), "{seconds}");
        }
        for (size, wrong) in [
            ("", "4096, 4k or 1M"),
            ("-1", "4096, 4k or 1M"),
            ("16385k", "16385k is more than 16M"),
            ("1G", "1G is more than 16M"),
        ] {
            assert!(reason(&format!("dirs=/a,readahead={size}")).contains(wrong), "{size}");
        }
        assert_eq!(union("readahead=0").readahead, Some(0));
        assert!(reason("dirs").contains("dirs=PATH"));
        assert!(reason("fg=1").contains("takes no value"));
    }

    #[test]
    fn unknown_options_are_named_or_ignored() {
        assert_eq!(reason("dirs=/a,bogus=1"), "unknown option bogus: see --help (-s ignores unknown options)");
        assert!(reason("dirs=/a,bogus").contains("bogus"));
        assert!(reason("dir=/a").contains("did you mean dirs?"));
        assert!(reason("lowerdir=/a:/b,upperdir=/c,workdir=/d").starts_with(
            "unknown option lowerdir: an option of overlayfs: list all directories in dirs=, the writable one first"
        ));
        assert!(reason("dirs=/a,attr_timeout=1").contains("an option of libfuse: use cache="));
        assert!(reason("dirs=/a,nosiud").contains("did you mean nosuid?"));
        assert!(reason("dirs=/a,chache=1").contains("did you mean cache?"));
        let sloppy = parse(b"bogus,dirs=/a,other=2,ro", union_type(), true).unwrap();
        assert_eq!(lists(&sloppy).unwrap().len(), 1);
        assert!(sloppy.read_only());
        // Sloppy mode ignores unknown names, not invalid values.
        let sloppy = parse(b"dirs=/a=rx", union_type(), true).unwrap();
        assert!(lists(&sloppy).is_err());
    }

    #[test]
    fn a_layer_over_one_directory_has_no_branch_option() {
        let failure = parse(b"dirs=/a", Type::of("wrapfs").unwrap(), false).unwrap_err();
        assert!(failure.reason.starts_with("unknown option dirs"));
        assert!(parse(b"ro,cache=2,transport=ring", Type::of("wrapfs").unwrap(), false).is_ok());
    }

    #[test]
    fn a_remount_accepts_the_options_that_the_kernel_shows() {
        let options =
            union("rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,max_read=4096,remount,ro");
        assert!(options.remount && options.read_only());
        assert_eq!(options.fixed, []);
        assert_eq!(union("remount,dirs=/a").fixed, [("dirs", "dirs=/a".to_owned())]);
        assert!(reason("dirs=/a,user_id=0").contains("user_id=: set by the mount itself"));
    }

    #[test]
    fn an_empty_list_yields_the_defaults() {
        assert_eq!(union(""), Options::default());
        assert_eq!(union(",,"), Options::default());
    }

    #[test]
    fn the_program_name_selects_the_type() {
        for (name, kind) in [
            ("mount.unionfs", Some("unionfs")),
            ("/sbin/mount.fuse.unionfs", Some("unionfs")),
            ("./mount.wrapfs", Some("wrapfs")),
            ("mount.fuse.wrapfs", Some("wrapfs")),
            ("mount.strata", Some("strata")),
            ("@mount.unionfs", Some("unionfs")),
            ("strata", None),
            ("mount.", None),
            ("mount.\u{e4}", None),
            ("unionfs", None),
            ("", None),
        ] {
            assert_eq!(Type::from_program(name.as_bytes()).map(Type::name), kind, "{name}");
        }
    }

    #[test]
    fn option_names_are_unique_and_not_options_of_mount_8() {
        for (i, spec) in TABLE.iter().enumerate() {
            assert!(TABLE.iter().skip(i + 1).all(|other| other.name != spec.name), "{}", spec.name);
            assert_eq!(flags::effect(spec.name), None, "{}", spec.name);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), sloppy in any::<bool>()) {
            let _ = parse(&bytes, union_type(), sloppy);
        }

        #[test]
        fn arbitrary_option_syntax_does_not_panic(text in "(dirs|ro|delete|cache|log|copyup|[a-z/.:=,\\\\\" 0-9\\[\\]]){0,20}") {
            let _ = parse(text.as_bytes(), union_type(), false);
            let _ = parse(text.as_bytes(), Type::of("wrapfs").unwrap(), true);
        }
    }
}
