//! One tree from several replicas at the bottom of a stack, or alone: its options.

use crate::bottom::{Bottom, BottomType, Built, Checked, Directory};
use crate::exit::Failure;
use crate::options::{Options, number, one_of, seconds};
use crate::own::Own;
use crate::place::Place;
use crate::replicas;
use crate::text::Text;
use core::time::Duration;
use std::path::{Path, PathBuf};
use wrapfs::OptionSpec;

/// `lbfs`
pub static BALANCE: BottomType = BottomType {
    name: crate::registry::BALANCE_NAME,
    about: "shows one read-only tree from several replicas of it, and goes on when some of them fail",
    options: OPTIONS,
    continues: None,
    example: "dirs=/net/a:/net/b",
    source: Some("dirs"),
    check,
};

const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "dirs",
        value: Some("PATH:PATH..."),
        help: "The replicas: directories that hold the same tree. In a path, : = , \" and \\ need a backslash before them. \
               With mount -t lbfs, the first argument names them.",
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
               waited for a third of the time that is left, the last one all of it. Fractions allowed. Default 2.",
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

/// Replicas, which may be away, or hang when they are touched.
#[derive(Debug)]
struct Balance {
    options: lbfs::Options,
    replicas: Vec<PathBuf>,
}

fn check(own: &Own, general: &Options) -> Checked {
    let mut replicas = None;
    let mut options = lbfs::Options { passthrough: general.passthrough == Some(true), ..lbfs::Options::default() };
    for (name, value) in own.iter() {
        let Some(value) = value else { continue };
        if name == "dirs" {
            replicas = Some(replicas::parse(value)?);
        } else {
            take(&mut options, name, value).map_err(|wrong| Failure::usage(format!("option {name}=: {wrong}")))?;
        }
    }
    let replicas = replicas.ok_or_else(|| Failure::usage("no replicas: name them with dirs=PATH:PATH; see --help"))?;
    Ok(Box::new(Balance { options, replicas }))
}

fn take(options: &mut lbfs::Options, name: &str, value: &Text) -> Result<(), String> {
    match name {
        "policy" => options.policy = one_of(value, &lbfs::Policy::ALL)?,
        "timeout" => options.timeout = positive(seconds(value)?)?,
        "threads" => options.threads = number(value, 10)?.clamp(1, 1024) as usize,
        "probe" => options.probe = positive(seconds(value)?)?,
        "ramp" => options.ramp = seconds(value)?,
        "compare" => options.compare = number(value, 10)?,
        "isolate" => {
            let all =
                [("auto", lbfs::Isolate::Auto), ("always", lbfs::Isolate::Always), ("never", lbfs::Isolate::Never)];
            options.isolate = one_of(value, &all)?;
        }
        _ => return Err("not an option of replicas".to_owned()),
    }
    Ok(())
}

fn positive(time: Duration) -> Result<Duration, String> {
    if time.is_zero() { Err("it must be more than 0".to_owned()) } else { Ok(time) }
}

impl Bottom for Balance {
    fn is_read_only(&self) -> bool {
        true
    }

    fn places(&self) -> Vec<&Place> {
        Vec::new()
    }

    fn branches(&self) -> Option<Vec<(&Path, &'static str)>> {
        Some(self.replicas.iter().map(|path| (&**path, "ro")).collect())
    }

    fn cache(&self) -> Option<core::time::Duration> {
        None
    }

    fn narrow_positions(&self) -> bool {
        false
    }

    fn build(&self, options: &Options) -> Result<Built, Failure> {
        let sources = self.replicas.iter().map(|path| replicas::source(path, options.cache)).collect();
        let layer = lbfs::LbFs::new(sources, self.options)
            .map_err(|error| Failure::mount(format!("can't use the replicas: {error}")))?;
        // Replicas come and go: there is no one descriptor of each.
        let directory = |path: &PathBuf| Directory { path: path.clone(), mode: "ro", fd: None };
        Ok(Built { layer, directories: self.replicas.iter().map(directory).collect(), written: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Type, parse};

    fn read(text: &str) -> Result<lbfs::Options, String> {
        let options = parse(text.as_bytes(), Type::of("lbfs").unwrap(), false).map_err(|failure| failure.reason)?;
        let mut read = lbfs::Options::default();
        for (name, value) in options.own.iter() {
            take(&mut read, name, value.unwrap()).map_err(|wrong| format!("{name}: {wrong}"))?;
        }
        Ok(read)
    }

    #[test]
    fn options_are_read() {
        let read = read("policy=hash,timeout=0.5,threads=0,probe=3,ramp=0,compare=0,isolate=never").unwrap();
        assert_eq!((read.policy, read.timeout), (lbfs::Policy::Hash, Duration::from_millis(500)));
        assert_eq!((read.threads, read.compare, read.ramp), (1, 0, Duration::ZERO));
        assert_eq!((read.probe, read.isolate), (Duration::from_secs(3), lbfs::Isolate::Never));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(read("policy=best").unwrap_err().contains("roundrobin, lru"));
        assert!(read("timeout=0").unwrap_err().contains("more than 0"));
        assert!(read("polciy=hash").unwrap_err().contains("is policy meant?"));
    }
}
