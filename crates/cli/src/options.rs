//! The mount options: one table that is parser, help and manual.

use crate::exit::Failure;
use crate::flags;
use crate::registry;
use core::time::Duration;
use fuse::Transport;
use rustix::mount::MountFlags;
use stack::suggest::nearest;
use stack::value::{one_of, seconds, size};
use stack::{Given, LayerType, OptionSpec, Text, name_and_value};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use tracing::level_filters::LevelFilter;

/// A file system that can be mounted.
#[derive(Clone, Copy, Debug)]
pub enum Type {
    /// `mount -t strata`: any stack, in words.
    Stack,
    /// `mount -t LAYER`: one layer over a directory, or over the branches that its options list.
    Layer(&'static LayerType),
}

/// The options of [`Type::Stack`] alone.
const STACK: &[OptionSpec] = &[OptionSpec {
    name: "stack",
    value: Some("\"STACK\""),
    help: "The stack, where the first argument is none. In double quotes, within which its own escapes are read again.",
}];

impl Type {
    /// The name that mount(8) knows it by.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stack => "strata",
            Self::Layer(layer) => layer.name,
        }
    }

    /// The options of its own.
    #[must_use]
    pub const fn own(self) -> &'static [OptionSpec] {
        match self {
            Self::Stack => STACK,
            Self::Layer(layer) => layer.options,
        }
    }

    /// The layer that is mounted; `None`: a stack, in words.
    #[must_use]
    pub const fn layer(self) -> Option<&'static LayerType> {
        match self {
            Self::Stack => None,
            Self::Layer(layer) => Some(layer),
        }
    }

    /// The type of that name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::all().find(|kind| kind.name() == name)
    }

    /// Every type.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Stack].into_iter().chain(registry::types().map(Self::Layer))
    }

    /// The type that a program's name stands for: `mount.TYPE` or `mount.fuse.TYPE`, in any directory.
    #[must_use]
    pub fn from_program(name: &[u8]) -> Option<Self> {
        let name = name.rsplit(|&b| b == b'/').next()?.strip_prefix(b"mount.")?;
        Self::of(core::str::from_utf8(name.strip_prefix(b"fuse.").unwrap_or(name)).ok()?)
    }
}

/// Everything that the options say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The options of the file system's own.
    pub own: Given,
    /// `transport=`
    pub transport: Transport,
    /// `passthrough=`; `None`: as the file system wants it.
    pub passthrough: Option<bool>,
    /// `readahead=`, in bytes; `None`: the kernel's default.
    pub readahead: Option<u32>,
    /// `data=cached`: the kernel opens files without asking.
    pub cached_data: bool,
    /// Not `noxattr`: are there extended attributes?
    pub xattrs: bool,
    /// `meter=`: are operations counted and timed between the layers? `None`: where there are several.
    pub meter: Option<bool>,
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
    /// The options that were given and that hold for the life of a mount: name, and the whole as it was given.
    pub fixed: Vec<(&'static str, String)>,
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

/// An option that every file system of ours has.
pub struct Spec {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub read: Read,
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

    /// Is it shown in the help?
    #[must_use]
    pub const fn is_shown(&self) -> bool {
        !self.help.is_empty()
    }
}

/// Every option that all file systems of ours have, in the order of the help.
pub const TABLE: &[Spec] = &[
    Spec {
        name: "cache",
        read: Read::Value("SECONDS", |o, v| {
            o.cache = Some(seconds(&v.bytes())?);
            Ok(())
        }),
        help: "How long the kernel may trust names and attributes without asking again, fractions allowed. What is changed through \
               the mount is seen at once; what is changed on a branch behind its back is seen after this long. \
               Default 10; 0 for branches that others change all the time. Names are not cached where several mean one entry \
               (casefold).",
    },
    Spec {
        name: "transport",
        read: Read::Value("auto|ring|device", |o, v| {
            let all = [("auto", Transport::Auto), ("ring", Transport::Ring), ("device", Transport::Device)];
            o.transport = one_of(&v.bytes(), &all)?;
            Ok(())
        }),
        help: "How requests travel: FUSE over io_uring where the kernel offers it, else /dev/fuse (auto, the default), or \
               one of the two. The ring needs Linux 6.14 and /sys/module/fuse/parameters/enable_uring set to Y.",
    },
    Spec {
        name: "passthrough",
        read: Read::Value("auto|off", |o, v| {
            o.passthrough = Some(one_of(&v.bytes(), &[("auto", true), ("off", false)])?);
            Ok(())
        }),
        help: "Whether the kernel may read and write host files itself where that is safe (auto, the default; Linux 6.9 and \
               root), or always asks the server. lbfs has off as the default: a file that the kernel reads itself can't move to \
               another replica.",
    },
    Spec {
        name: "readahead",
        read: Read::Value("SIZE", |o, v| {
            o.readahead = Some(readahead(&v.bytes())?);
            Ok(())
        }),
        help: "How much the kernel reads ahead in files whose data come from the server: 256K, 1M; 0 to 16M. Larger sizes make the \
               first sequential read of large files faster, and mapped files, programs among them, slower to start and larger in \
               memory. More than 128K needs root. Files that the kernel reads by passthrough are not concerned: the file system \
               below decides. Default: the kernel's, 128K.",
    },
    Spec {
        name: "data",
        read: Read::Value("auto|cached", |o, v| {
            o.cached_data = one_of(&v.bytes(), &[("auto", false), ("cached", true)])?;
            Ok(())
        }),
        help: "How programs get the data of files. auto, the default: the server is asked at each opening of a file, and lets the kernel read \
               host files itself where passthrough= allows it. cached, for read-only mounts alone: the kernel opens files without \
               asking and keeps their data in its page cache, so that reading many small files again is as fast as on the file \
               system below. What is changed below is seen after cache= seconds. Large files are read more slowly the first time. \
               No layer sees who opens a file; not with snoopfs.",
    },
    Spec {
        name: "noxattr",
        read: Read::Flag(|o| o.xattrs = false),
        help: "No extended attributes: fewer requests for each write and each check of permissions. There are no POSIX ACLs, file \
               capabilities and user attributes; what the branches have of them stays, unseen. Permission bits alone decide who may \
               do what, as on ext4 with noacl.",
    },
    Spec {
        name: "meter",
        read: Read::Value("on|off", |o, v| {
            o.meter = Some(one_of(&v.bytes(), &[("on", true), ("off", false)])?);
            Ok(())
        }),
        help: "Whether operations are counted and timed between the layers, for strata stack. Costs about 0.1 microseconds for each \
               operation of each layer, and 48 bytes for each inode. Default: on for mount -t strata, off for all else.",
    },
    Spec {
        name: "allow_other",
        read: Read::Flag(|o| o.allow_other = Some(true)),
        help: "Users other than the one who mounts may use the mount. The default for root; for others it needs \
               user_allow_other in /etc/fuse.conf. noallow_other takes it back.",
    },
    Spec { name: "noallow_other", read: Read::Flag(|o| o.allow_other = Some(false)), help: "" },
    Spec {
        name: "fsname",
        read: Read::Value("NAME", |o, v| {
            o.fsname = Some(OsString::from_vec(v.bytes()));
            Ok(())
        }),
        help: "What df(1) and findmnt(8) show as the source. Default: what is given as the device, or the type's name for none.",
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
        help: "How much is logged: to stderr in the foreground, else to the journal, or to syslog where there is none. Default info.",
    },
    Spec {
        name: "logfile",
        read: Read::Value("PATH", |o, v| {
            o.logfile = Some(OsString::from_vec(v.bytes()).into());
            Ok(())
        }),
        help: "Log to the end of this file instead.",
    },
    Spec {
        name: "fg",
        read: Read::Flag(|o| o.foreground = true),
        help: "Stay in the foreground until unmounted, as --foreground: for services.",
    },
    Spec {
        name: "remount",
        read: Read::Flag(|o| o.remount = true),
        help: "Change the flags of a mount: ro, rw, nosuid, nodev, noexec, noatime and the like. All else holds for the life of a \
               mount.",
    },
    Spec { name: "bind", read: Read::Flag(|o| o.bind = true), help: "" },
    Spec { name: "default_permissions", read: Read::Flag(|_| {}), help: "" },
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
    let wrong = |wrong| Failure::usage(format!("the list of options {wrong}: {}", String::from_utf8_lossy(bytes)));
    let text = Text::read(bytes).map_err(wrong)?;
    let mut options = Options::default();
    let mut kernels = None;
    let branches = kind.layer().and_then(LayerType::branches);
    for item in text.split_options(branches).map_err(wrong)?.iter().filter(|item| !item.is_empty()) {
        let (name, value) = name_and_value(item);
        if let Some(spec) = kind.own().iter().find(|spec| spec.name == name) {
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
        } else if !options.own.continue_list(item, branches) && !sloppy {
            return Err(unknown(&name, kind));
        }
    }
    if let Some(name) = kernels.filter(|_| !options.remount) {
        return Err(Failure::usage(format!("option {name}= is made by the mount itself; leave it out")));
    }
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
    Ok(())
}

/// The most that can be read ahead, in bytes: sixteen of the largest requests.
const READAHEAD_MOST: usize = 16 << 20;

fn readahead(value: &[u8]) -> Result<u32, String> {
    let bytes = size(value)?;
    let fits = u32::try_from(bytes).ok().filter(|_| bytes <= READAHEAD_MOST);
    fits.ok_or_else(|| format!("{} is more than 16M", String::from_utf8_lossy(value)))
}

fn wrong_value(name: &str, wrong: &str) -> Failure {
    Failure::usage(format!("option {name}=: {wrong}"))
}

fn unknown(name: &str, kind: Type) -> Failure {
    let own = kind.own().iter().map(|spec| spec.name);
    let general = TABLE.iter().filter(|spec| spec.is_shown()).map(|spec| spec.name);
    let flags = ["ro", "rw", "nosuid", "nodev", "noexec", "noatime"];
    let near = nearest(name, own.chain(general).chain(flags));
    let way_out = near.map_or_else(|| "see --help".to_owned(), |near| format!("did you mean {near}?"));
    Failure::usage(format!("unknown option {name}: {way_out} (-s ignores unknown options)"))
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
    fn the_lines_of_the_papers() {
        let (rw, ro, nfsro) = (Some("rw"), Some("ro"), Some("nfsro"));
        assert_eq!(branches("dirs=/ramdisk=rw:/KNOPPIX=ro"), [("/ramdisk".into(), rw), ("/KNOPPIX".into(), ro)]);
        assert_eq!(branches("rw,dirs=/memory/changes=rw"), [("/memory/changes".into(), rw)]);
        let nfs = branches("dirs=/mnt/persist:/mnt/nfsbins=nfsro");
        assert_eq!(nfs, [("/mnt/persist".into(), None), ("/mnt/nfsbins".into(), nfsro)]);
    }

    #[test]
    fn schroot_separates_by_a_comma() {
        let (rw, ro) = (Some("rw"), Some("ro"));
        let want = [("/var/overlay".to_owned(), rw), ("/srv/chroot".to_owned(), ro)];
        assert_eq!(branches("dirs=/var/overlay=rw,/srv/chroot=ro"), want);
        assert_eq!(branches("rw,dirs=/var/overlay=rw,noatime,/srv/chroot=ro,delete=all"), want);
        assert_eq!(branches("dirs=a=rw,b=ro,./c"), [("a".into(), rw), ("b".into(), ro), ("./c".into(), None)]);
        // Without dirs= before it, it is an option, and an unknown one.
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
                .starts_with("part 1 of the stack in branch 2: there is no layer")
        );
        assert_eq!(union("fsname=[x,dirs=/a[1,cache=0").cache, Some(Duration::ZERO));
    }

    #[test]
    fn lists_are_joined() {
        assert_eq!(branches("dirs=/a,dirs=/b:/c").len(), 3);
    }

    #[test]
    fn escapes_reach_every_level() {
        let options = union(r"dirs=/a\,b\:c\=d\\e\ f\040g=rw,fsname=x\,y,logfile=/l\=og");
        let branches = lists(&options).unwrap();
        assert_eq!(branches[0].lower, LowerSpec::Directory(r"/a,b:c=d\e f g".into()));
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
    fn wrong_values_are_named() {
        assert!(reason("dirs=/a,transport=usb").contains("auto, ring, device"));
        assert!(reason("dirs=/a,log=loud").contains("error, warn"));
        for seconds in ["", "-1", "x", "nan", "1e400"] {
            assert!(reason(&format!("dirs=/a,cache={seconds}")).contains("seconds"), "{seconds}");
        }
        for (size, wrong) in [("", "4096, 4k or 1M"), ("-1", "4096, 4k or 1M"), ("16385k", "16385k is more than 16M")] {
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
        assert!(reason("dirs=/a,nosiud").contains("did you mean nosuid?"));
        assert!(reason("dirs=/a,chache=1").contains("did you mean cache?"));
        let sloppy = parse(b"bogus,dirs=/a,other=2,ro", union_type(), true).unwrap();
        assert_eq!(lists(&sloppy).unwrap().len(), 1);
        assert!(sloppy.read_only());
        // Sloppy is for unknown names, not for wrong values.
        let sloppy = parse(b"dirs=/a=rx", union_type(), true).unwrap();
        assert!(lists(&sloppy).is_err());
    }

    #[test]
    fn a_null_layer_has_no_branches() {
        let failure = parse(b"dirs=/a", Type::of("wrapfs").unwrap(), false).unwrap_err();
        assert!(failure.reason.starts_with("unknown option dirs"));
        assert!(parse(b"ro,cache=2,transport=ring", Type::of("wrapfs").unwrap(), false).is_ok());
    }

    #[test]
    fn what_the_kernel_shows_comes_back_at_a_remount() {
        let options =
            union("rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,max_read=4096,remount,ro");
        assert!(options.remount && options.read_only());
        assert_eq!(options.fixed, []);
        assert_eq!(union("remount,dirs=/a").fixed, [("dirs", "dirs=/a".to_owned())]);
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
            ("mount.unionfs", Some("unionfs")),
            ("/sbin/mount.fuse.unionfs", Some("unionfs")),
            ("./mount.wrapfs", Some("wrapfs")),
            ("mount.fuse.wrapfs", Some("wrapfs")),
            ("mount.strata", Some("strata")),
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
    fn the_table_has_each_name_once_and_none_of_mount_8() {
        for (i, spec) in TABLE.iter().enumerate() {
            assert!(TABLE.iter().skip(i + 1).all(|other| other.name != spec.name), "{}", spec.name);
            assert_eq!(flags::effect(spec.name), None, "{}", spec.name);
        }
    }

    proptest! {
        #[test]
        fn no_options_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), sloppy in any::<bool>()) {
            let _ = parse(&bytes, union_type(), sloppy);
        }

        #[test]
        fn no_text_of_option_letters_panics(text in "(dirs|ro|delete|cache|log|copyup|[a-z/.:=,\\\\\" 0-9\\[\\]]){0,20}") {
            let _ = parse(text.as_bytes(), union_type(), false);
            let _ = parse(text.as_bytes(), Type::of("wrapfs").unwrap(), true);
        }
    }
}
