//! The declaration of `viewfs` as a layer type: options, help and manual.

use crate::layer::{Setup, ViewFs};
use crate::number::MAX_VIEWS;
use crate::view::View;
use classify::{Condition, Decision, External, Proc, ProcessTable, Rule, Socket, ViewId};
use core::time::Duration;
use stack::{
    Access, BranchMode, Branches, Build, LayerType, Made, Make, Manual, Needs, Opened, OptionSpec, Settings, Situation,
    Traits, value,
};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;

/// The declaration of `viewfs`.
pub const LAYER: LayerType = LayerType {
    name: "viewfs",
    about: "shows different processes different trees at one mount point, by rules or an external classifier",
    options: OPTIONS,
    build: Build::Branches(&Branches {
        option: "dirs",
        first_argument: false,
        joined: false,
        noun: ("view", "views"),
        example: "dirs=[unionfs,dirs=/good=rw:/base=ro]:[unionfs,dirs=/bad=rw:/base=ro]",
        modes: &[RW, RO],
        unmarked: |_index, read_only| if read_only { RO } else { RW },
        first_must_be_writable: false,
        alternatives: true,
        live: false,
        make: Make::Opened(&make),
    }),
    traits: Traits {
        needs: |settings| Words::read(settings).map(|_| Needs::NONE),
        once: true,
        keeps_callers_apart: true,
        manual: Some(&MANUAL),
    },
};

const RW: BranchMode = BranchMode { name: "rw", access: Access::ReadWrite };
const RO: BranchMode = BranchMode { name: "ro", access: Access::ReadOnly };

/// Time limit for a reply of the classifier.
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(200);

const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "dirs",
        value: Some("VIEW[=rw|ro]:VIEW[=rw|ro]..."),
        help: "The trees of the views: directories, or stacks of layers in brackets, usually unions: \
               [unionfs,dirs=/good=rw:/base=ro]. Views can have directories in common if at most one of them writes to each. \
               In a path, escape : = , \" and \\ with a backslash.",
    },
    OptionSpec {
        name: "views",
        value: Some("NAME:NAME..."),
        help: "The names of the views, in the order of dirs=. Default: 1, 2 and so on.",
    },
    OptionSpec {
        name: "rules",
        value: Some("CONDITION=NAME:CONDITION=NAME..."),
        help: "The view of processes that meet a condition: uid=N, gid=N (also a supplementary group), pid=N (the process and its \
               descendants), cgroup=/PATH (and the cgroups below it) or exe=/PATH. The first condition that a process meets \
               decides; pid comes before all others. strata views changes the rules of a mount.",
    },
    OptionSpec {
        name: "classifier",
        value: Some("/PATH"),
        help: "The Unix socket of a program that is asked for the view of processes to which no rule applies.",
    },
    OptionSpec {
        name: "timeout",
        value: Some("SECONDS"),
        help: "Time limit for a reply of the classifier. Fractions are allowed. Default 0.2.",
    },
    OptionSpec {
        name: "default",
        value: Some("NAME"),
        help: "The view of processes to which no rule applies and about which the classifier has no opinion. Default: the first.",
    },
    OptionSpec {
        name: "unknown",
        value: Some("NAME|refuse"),
        help: "The view of processes about which a rule can't be evaluated or the classifier does not reply. With refuse, the \
               default, they get EACCES.",
    },
    OptionSpec {
        name: "trusted",
        value: Some("NAME"),
        help: "The view whose processes may change rules and move processes, if they also run as root or as the mounting user. \
               Default: the first.",
    },
];

const MANUAL: Manual = Manual {
    title: "mount several views of a tree at one mount point",
    argument: None,
    description: &[
        "Different processes see different trees, usually unions that share their read-only branches. A suspected process can \
         be moved to another view while it runs: from then on it neither sees what other processes change, nor changes what \
         they see.",
        "The view of each request is chosen by the process that sent it: processes that were moved come first, then rules, then \
         an external classifier, such as an intrusion detection system.",
    ],
    examples: &[
        (
            "mount -t viewfs -o views=good:bad,rules=uid=1000=bad,dirs=/good=rw:/bad=rw none /mnt",
            "The processes of user 1000 get the second view.",
        ),
        ("strata views /mnt --move 1234 bad", "Move a running process and its descendants."),
    ],
};

/// The options that refer to views by name.
struct Words {
    names: Option<Vec<String>>,
    rules: Vec<(Vec<u8>, String)>,
    timeout: Duration,
}

impl Words {
    fn read(settings: &Settings) -> Result<Self, String> {
        let names = settings.read("views", |value| {
            let names: Vec<_> = value.split(|&byte| byte == b':').map(view_name).collect();
            let names = names.into_iter().collect::<Result<Vec<_>, _>>()?;
            let twice = names.iter().enumerate().find(|(i, name)| names.iter().take(*i).any(|other| other == *name));
            twice.map_or(Ok(names.clone()), |(_, name)| Err(format!("{name}: given twice")))
        })?;
        let rules = settings.read("rules", |value| value.split(|&byte| byte == b':').map(rule).collect())?;
        if let Some(path) = settings.bytes("classifier")
            && !path.starts_with(b"/")
        {
            return Err("option classifier=: not an absolute path".to_owned());
        }
        let timeout = settings.read("timeout", value::seconds)?.unwrap_or(DEFAULT_TIMEOUT);
        if timeout.is_zero() {
            return Err("option timeout=: it must be more than 0".to_owned());
        }
        Ok(Self { names, rules: rules.unwrap_or_default(), timeout })
    }
}

fn view_name(name: &[u8]) -> Result<String, String> {
    let shown = String::from_utf8_lossy(name);
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    if name.is_empty() || !name.iter().all(allowed) || name == b"-" || name == b"refuse" {
        return Err(format!("{shown:?}: not a view name; use letters, digits, - _ and ."));
    }
    Ok(shown.into_owned())
}

/// Splits `CONDITION=VIEW` at the last `=`.
fn rule(text: &[u8]) -> Result<(Vec<u8>, String), String> {
    let shown = || String::from_utf8_lossy(text).into_owned();
    let at = text.iter().rposition(|&byte| byte == b'=').ok_or_else(|| format!("{}: no view given", shown()))?;
    let (condition, view) = (text.get(..at).unwrap_or_default(), text.get(at + 1..).unwrap_or_default());
    if !condition.contains(&b'=') {
        return Err(format!("{}: write it as CONDITION=VIEW, such as uid=1000=bad", shown()));
    }
    if !condition.starts_with(b"pid=") {
        Condition::parse(condition)?;
    }
    Ok((condition.to_vec(), view_name(view)?))
}

fn make(opened: Vec<Opened>, settings: &Settings, _situation: &Situation) -> Result<Made, String> {
    let words = Words::read(settings)?;
    let names = words.names.unwrap_or_else(|| (1..=opened.len()).map(|number| number.to_string()).collect());
    if names.len() != opened.len() {
        return Err(format!("views= has {} names, but dirs= has {} views", names.len(), opened.len()));
    }
    if opened.len() > MAX_VIEWS {
        return Err(format!("at most {MAX_VIEWS} views are possible"));
    }
    let find = |name: &str| {
        names.iter().position(|known| known == name).ok_or_else(|| format!("{name}: no such view; views= names them"))
    };
    let named = |option: &str| match settings.text(option)? {
        None => Ok(0),
        Some(name) => find(name).map_err(|wrong| format!("option {option}=: {wrong}")),
    };
    let unknown = match settings.text("unknown")? {
        None | Some("refuse") => Decision::Refuse,
        Some(_) => Decision::View(named("unknown")?),
    };
    let processes: Arc<dyn ProcessTable> = Arc::new(Proc);
    let external = settings.bytes("classifier").map(|path| {
        let socket = Socket::new(OsString::from_vec(path.to_vec()).into(), words.timeout);
        External::new(Box::new(socket), Arc::clone(&processes), names.clone())
    });
    let (mut rules, mut moves) = (Vec::new(), Vec::new());
    for (condition, view) in &words.rules {
        let view: ViewId = find(view).map_err(|wrong| format!("option rules=: {wrong}"))?;
        match condition.strip_prefix(b"pid=") {
            Some(pid) => moves.push((value::number(pid).map_err(|wrong| format!("option rules=: pid={wrong}"))?, view)),
            None => rules.push(Rule { condition: Condition::parse(condition)?, view }),
        }
    }
    let setup = Setup {
        processes,
        classifiers: Vec::new(),
        rules,
        external,
        default: named("default")?,
        unknown,
        trusted: named("trusted")?,
    };
    let views = opened.into_iter().zip(names).map(|(view, name)| View::new(name, view.lower)).collect();
    let layer = ViewFs::new(views, setup);
    for (pid, view) in moves {
        layer.moves().put(pid, view).map_err(|error| format!("option rules=: pid={pid}: {error}"))?;
    }
    Ok(Made::fixed(layer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfs::MemFs;

    fn made(options: &[(&str, &str)]) -> Result<Made, String> {
        let mut settings = Settings::new();
        options.iter().for_each(|(name, value)| assert!(settings.insert(name, value.as_bytes())));
        let view = || Opened { name: "/a".into(), mode: RW, lower: MemFs::new() };
        make(vec![view(), view()], &settings, &Situation { passthrough: None, may_chown: true, cache: None })
    }

    #[test]
    fn options_are_parsed() {
        assert!(made(&[]).is_ok());
        let all = [
            ("views", "good:bad"),
            ("rules", "uid=1000=bad:cgroup=/x/y=bad:exe=/bin/a=b=good"),
            ("classifier", "/run/ids"),
            ("timeout", "0.5"),
            ("default", "good"),
            ("unknown", "bad"),
            ("trusted", "good"),
        ];
        assert!(made(&all).is_ok());
        assert!(made(&[("rules", &format!("pid={}=2", std::process::id()))]).is_ok());
    }

    #[test]
    fn errors_name_the_option() {
        for (name, value, why) in [
            ("views", "a", "has 1 names"),
            ("views", "a:a", "given twice"),
            ("views", "a:", "not a view name"),
            ("views", "a:refuse", "not a view name"),
            ("rules", "uid=1000", "CONDITION=VIEW"),
            ("rules", "uid", "no view given"),
            ("rules", "uid=x=1", "not a number"),
            ("rules", "uid=1=9", "no such view"),
            ("rules", "pid=x=1", "not a number"),
            ("rules", "pid=4294967294=1", "no such process"),
            ("classifier", "x", "absolute"),
            ("timeout", "0", "more than 0"),
            ("default", "x", "option default=: x: no such view"),
            ("unknown", "x", "option unknown=: x: no such view"),
            ("trusted", "x", "option trusted=: x: no such view"),
        ] {
            let wrong = made(&[(name, value)]).unwrap_err();
            assert!(wrong.contains(why), "{name}={value}: {wrong}");
        }
    }
}
