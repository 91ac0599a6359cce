//! The declaration of `lbfs` as a layer type: options, help and manual.

use crate::LbFs;
use crate::options::{Isolate, Options, Policy};
use crate::replica::Source;
use core::time::Duration;
use stack::{
    Access, BranchMode, Branches, Build, LayerType, Made, Make, Manual, Needs, OptionSpec, Reopened, Settings,
    Situation, Traits, value,
};

/// The declaration of `lbfs`.
pub const LAYER: LayerType = LayerType {
    name: "lbfs",
    about: "shows one read-only tree from several replicas, and fails over between them",
    options: OPTIONS,
    build: Build::Branches(&Branches {
        option: "dirs",
        first_argument: true,
        joined: false,
        noun: ("replica", "replicas"),
        example: "dirs=/net/a:/net/b",
        modes: &[],
        unmarked: |_index, _read_only| BranchMode { name: "ro", access: Access::ReadOnly },
        first_must_be_writable: false,
        alternatives: false,
        live: false,
        make: Make::Reopened(&make),
    }),
    traits: Traits {
        needs: |settings| read(settings).map(|_| Needs::NONE),
        once: true,
        manual: Some(&MANUAL),
        ..Traits::NONE
    },
};

const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "dirs",
        value: Some("PATH:PATH..."),
        help: "The replicas: directories with the same tree. In a path, escape : = , \" and \\ with a backslash. A replica can be \
               a stack of layers in brackets: [zstd/[/net/b]] (see mount.strata(8)). With mount -t lbfs, the first argument \
               lists the replicas, unless it is none.",
    },
    OptionSpec {
        name: "policy",
        value: Some("random|roundrobin|lru|fastest|hash"),
        help: "How the replica of a file is selected, at its lookup: random (the default), roundrobin (each in turn), lru (the \
               least recently used), fastest (the one with the lowest latency), or hash (by the file's path). With hash, a file \
               is always read from the same replica, so that the caches of the replicas hold different files.",
    },
    OptionSpec {
        name: "timeout",
        value: Some("SECONDS"),
        help: "Time limit for an operation, including its retries on other replicas. The wait for a replica that may hang ends \
               after half of the remaining time, for the last replica after all of it, but not before a quarter of the limit. \
               Fractions are allowed. Default 2.",
    },
    OptionSpec {
        name: "threads",
        value: Some("N"),
        help: "Maximum number of concurrent calls to a replica that may hang. Once that many calls hang, the replica receives no \
               more. Default 16.",
    },
    OptionSpec {
        name: "probe",
        value: Some("SECONDS"),
        help: "Maximum time between two probes of a replica that is down. Default 30.",
    },
    OptionSpec {
        name: "ramp",
        value: Some("SECONDS"),
        help: "Time until a recovered replica gets its full share of files again; 0 means at once. Default 30.",
    },
    OptionSpec {
        name: "compare",
        value: Some("N"),
        help: "Compare one in N lookups with another replica, and log files that differ; 0 disables this. Default 64.",
    },
    OptionSpec {
        name: "isolate",
        value: Some("auto|always|never"),
        help: "Which replicas are called on threads that can be abandoned if they hang: those on network file systems and FUSE \
               (auto, the default), all of them, or none.",
    },
];

const MANUAL: Manual = Manual {
    title: "mount one read-only tree from several replicas of it",
    argument: Some((
        "REPLICA:REPLICA...",
        "the directories with the same tree; escape a colon or backslash in a path with a backslash; none if dirs= lists them",
    )),
    description: &[
        "Each file is read from one of several directories with the same tree, usually mounts of different servers. If a read \
         from one replica fails, it is retried on another one, even for open files. Programs do not notice that a server fails, \
         hangs or restarts. The mount is read-only.",
        "A failed replica receives only occasional probes, and is used again once it replies. A replica that is unreachable at \
         mount time joins later; at least one must be reachable. strata control DIR lbfs.replicas shows the state of the \
         replicas.",
        "The copies must agree in names, and in the sizes and modification times of files, as rsync -a creates them. An open \
         file moves only to a file that agrees. Differences that are detected are logged.",
    ],
    examples: &[
        (
            "mount -t lbfs /net/a/export:/net/b/export /mnt",
            "Read from two servers, or from one while the other is unreachable.",
        ),
        (
            "/net/a:/net/b:/net/c /srv/mirror lbfs policy=hash,timeout=1,nofail 0 0",
            "A line of /etc/fstab: three replicas, each of which caches its part of the files.",
        ),
        ("strata control /mnt lbfs.replicas", "Show the state of the replicas."),
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

fn make(replicas: Vec<Reopened>, settings: &Settings, situation: &Situation) -> Result<Made, String> {
    let source = |replica: Reopened| Source { name: replica.name.display().to_string(), open: replica.lower };
    // A file in passthrough can't move to another replica.
    let options = Options { passthrough: situation.passthrough == Some(true), ..read(settings)? };
    let layer = LbFs::new(replicas.into_iter().map(source).collect(), options);
    layer.map(|layer| Made::fixed(layer)).map_err(|error| format!("can't use the replicas: {error}"))
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
    fn options_are_parsed() {
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
    fn errors_name_the_invalid_value() {
        assert!(given(&[("policy", "best")]).unwrap_err().contains("roundrobin, lru"));
        assert!(given(&[("timeout", "0")]).unwrap_err().contains("more than 0"));
        assert!(given(&[("isolate", "x")]).unwrap_err().starts_with("option isolate=: \"x\" is none of auto, always"));
    }
}
