//! `lbfs` as a layer type: its options, and what they mean.

use crate::LbFs;
use crate::options::{Isolate, Options, Policy};
use crate::replica::Source;
use core::time::Duration;
use stack::{
    Access, BranchMode, Branches, Build, LayerType, Make, Manual, Needs, OptionSpec, Reopened, Settings, Situation,
    Traits, value,
};
use std::sync::Arc;
use vnode::Layer;

/// `lbfs`, for the list of layers.
pub const LAYER: LayerType = LayerType {
    name: "lbfs",
    about: "shows one read-only tree from several replicas of it, and goes on when some of them fail",
    options: OPTIONS,
    build: Build::Branches(&Branches {
        option: "dirs",
        first_argument: true,
        joined: false,
        noun: ("replica", "replicas"),
        example: "dirs=/net/a:/net/b",
        modes: &[],
        unmarked: |_index, _read_only| BranchMode { name: "ro", access: Access::ReadOnly },
        first_takes_changes: false,
        make: Make::Reopened(&make),
    }),
    traits: Traits { needs: |settings| read(settings).map(|_| Needs::NONE), once: true, manual: Some(&MANUAL) },
};

const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "dirs",
        value: Some("PATH:PATH..."),
        help: "The replicas: directories that hold the same tree. In a path, : = , \" and \\ need a backslash before them. \
               A replica can be a stack of layers in brackets: [zstd/[/net/b]] (see mount.strata(8)). With mount -t lbfs, the first argument \
               names them.",
    },
    OptionSpec {
        name: "policy",
        value: Some("random|roundrobin|lru|fastest|hash"),
        help: "Which replica a file is read from, chosen when it is looked up: any (random, the default), one after the other, the \
               least recently used, the one that has answered fastest of late, or by the file's name, so that the same file always comes \
               from the same replica and each one's cache holds other files.",
    },
    OptionSpec {
        name: "timeout",
        value: Some("SECONDS"),
        help: "How long an operation may take until it is answered or fails, however many replicas it takes. A replica that may hang is \
               waited for half of the time that is left, the last one all of it. Fractions allowed. Default 2.",
    },
    OptionSpec {
        name: "threads",
        value: Some("N"),
        help: "How many calls of a replica that may hang run at a time. When that many hang, it is sent nothing more. Default 16.",
    },
    OptionSpec {
        name: "probe",
        value: Some("SECONDS"),
        help: "The longest time between two attempts to reach a replica that is down. Default 30.",
    },
    OptionSpec {
        name: "ramp",
        value: Some("SECONDS"),
        help: "How long it takes a replica that came back to get its full share of files again; 0: it gets it at once. Default 30.",
    },
    OptionSpec {
        name: "compare",
        value: Some("N"),
        help: "One of N look-ups is compared with another replica, and a file that differs is logged; 0: none is. Default 64.",
    },
    OptionSpec {
        name: "isolate",
        value: Some("auto|always|never"),
        help: "Which replicas are called on threads that can be given up when they hang: those on a network or on FUSE (auto, the \
               default), all, or none.",
    },
];

const MANUAL: Manual = Manual {
    title: "mount one read-only tree from several replicas of it",
    argument: Some((
        "REPLICA:REPLICA...",
        "the directories that hold the same tree; a colon or backslash in a path needs a backslash before it",
    )),
    description: &[
        "Each file is read from one of several directories that hold the same tree, usually mounts of different servers. What can't \
         be read from one replica is read from another, also by programs that have it open: a server that fails, hangs or is \
         restarted is not noticed. The mount is read-only.",
        "A replica that failed is left alone, probed now and then, and used again when it answers. One that is not there at the \
         time of mounting is taken in later; one at least must be. strata control DIR lbfs.replicas tells how they \
         are.",
        "Copies must have the same names, and sizes and times of change of files, as rsync -a makes them: an open file \
         moves only to a file that agrees. Replicas that differ are logged where that is noticed.",
    ],
    examples: &[
        (
            "mount -t lbfs /net/a/export:/net/b/export /mnt",
            "Read from two servers, and from one where the other is away.",
        ),
        (
            "/net/a:/net/b:/net/c /srv/mirror lbfs policy=hash,timeout=1,nofail 0 0",
            "A line of /etc/fstab: three, each with its own part of the files in its cache.",
        ),
        ("strata control /mnt lbfs.replicas", "See how the replicas are."),
    ],
};

fn read(settings: &Settings) -> Result<Options, String> {
    let isolate = [("auto", Isolate::Auto), ("always", Isolate::Always), ("never", Isolate::Never)];
    let or = Options::default();
    Ok(Options {
        policy: settings.read("policy", |v| value::one_of(v, &Policy::ALL))?.unwrap_or(or.policy),
        timeout: settings.read("timeout", positive)?.unwrap_or(or.timeout),
        threads: settings.read("threads", value::number)?.map_or(or.threads, |n| n.clamp(1, 1024) as usize),
        probe: settings.read("probe", positive)?.unwrap_or(or.probe),
        ramp: settings.read("ramp", value::seconds)?.unwrap_or(or.ramp),
        compare: settings.read("compare", value::number)?.unwrap_or(or.compare),
        isolate: settings.read("isolate", |v| value::one_of(v, &isolate))?.unwrap_or(or.isolate),
        passthrough: or.passthrough,
    })
}

fn positive(value: &[u8]) -> Result<Duration, String> {
    let time = value::seconds(value)?;
    if time.is_zero() { Err("it must be more than 0".to_owned()) } else { Ok(time) }
}

fn make(replicas: Vec<Reopened>, settings: &Settings, situation: &Situation) -> Result<Arc<dyn Layer>, String> {
    let source = |replica: Reopened| Source { name: replica.name.display().to_string(), open: replica.lower };
    // A file that the kernel reads itself can't move to another replica.
    let options = Options { passthrough: situation.passthrough == Some(true), ..read(settings)? };
    let layer = LbFs::new(replicas.into_iter().map(source).collect(), options);
    layer.map(|layer| layer as Arc<dyn Layer>).map_err(|error| format!("can't use the replicas: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(options: &[(&str, &str)]) -> Result<Options, String> {
        let mut settings = Settings::new();
        options.iter().for_each(|(name, value)| assert!(settings.insert(name, value.as_bytes())));
        read(&settings)
    }

    #[test]
    fn options_are_read() {
        let read = given(&[
            ("policy", "hash"),
            ("timeout", "0.5"),
            ("threads", "0"),
            ("probe", "3"),
            ("ramp", "0"),
            ("compare", "0"),
            ("isolate", "never"),
        ])
        .unwrap();
        assert_eq!((read.policy, read.timeout), (Policy::Hash, Duration::from_millis(500)));
        assert_eq!((read.threads, read.compare, read.ramp), (1, 0, Duration::ZERO));
        assert_eq!((read.probe, read.isolate), (Duration::from_secs(3), Isolate::Never));
        assert_eq!(given(&[]).unwrap(), Options::default());
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(given(&[("policy", "best")]).unwrap_err().contains("roundrobin, lru"));
        assert!(given(&[("timeout", "0")]).unwrap_err().contains("more than 0"));
        assert!(given(&[("isolate", "x")]).unwrap_err().starts_with("option isolate=: \"x\" is none of auto, always"));
    }
}
