//! Help texts and manual pages of the mount helpers, made from the tables that the program itself works by.

use crate::exit::Exit;
use crate::options::{TABLE, Type};
use core::fmt::Write as _;
use stack::{LayerType, Manual};
use std::borrow::Cow;

/// What is said about a type, and nowhere else.
struct About {
    title: Cow<'static, str>,
    spec: &'static str,
    spec_help: &'static str,
    description: Cow<'static, [Cow<'static, str>]>,
    /// A line of shell and what it is for.
    examples: Cow<'static, [(Cow<'static, str>, &'static str)]>,
}

/// What the first argument is where it names no directory.
const NAME_HELP: &str = "any name, shown as the source by df and findmnt. By it mount -a knows in fstab that a line is mounted; for none, \
                         the type is shown, and mount -a tries the line again";

const STACK: About = About {
    title: Cow::Borrowed("mount a stack of layers"),
    spec: "STACK",
    spec_help: "the layers, top first, with ` / ` between them, and what they stand on",
    description: Cow::Borrowed(&[
        Cow::Borrowed(
            "A stack is layers over one another in one server, each of which changes what it shows of the one below it. It is written from \
             the top: `rot13 / xor,key=7 / /srv/data`. Each part is a name with its options after commas; the last is a directory, which \
             begins with / or ./ (with the option ro it is never changed), or a layer over branches, such as unionfs. \
             strata layers lists all names and options.",
        ),
        Cow::Borrowed(
            "In place of a name can stand the path of an object file that ends with .so: a layer that is loaded, as strata new begins one. It runs \
             as the server does, so only files are loaded that belong to root or to whoever mounts, and that nobody else may write.",
        ),
        Cow::Borrowed(
            "The parts are separated by a / with a blank on both sides. Before a blank, comma, = or \" that is part of a path or value, and \
             before a backslash itself, stands a backslash; a backslash and three octal digits are the byte of that number; between \
             double quotes nothing separates. In fstab, blanks are written \\040.",
        ),
        Cow::Borrowed(
            "A branch of unionfs or lbfs can be a stack, too, in brackets: unionfs,dirs=[zstd / /changes]=rw:/image=ro. LAYER/[STACK] is the \
             same as LAYER / STACK, without blanks. A [ opens a stack only where a branch or a part begins, and behind the / after a layer if its ] \
             ends the stack; there, one that is part of a path has a backslash before it. Inside brackets all brackets count. mount(8) \
             splits options at commas outside of double quotes: in its lists, all between the brackets can stand in double quotes, \
             and its escapes are read again.",
        ),
        Cow::Borrowed(
            "Options after -o are those of the whole mount; what belongs to one layer stands in the stack. Anyone can read a mount's \
             options: they are no place for secrets.",
        ),
        Cow::Borrowed(
            "The helper is run by mount(8) and returns when the mount can be used. The server that it leaves behind ends when it is \
             unmounted with umount(8), and unmounts it at SIGTERM. strata mount STACK DIR does the same without mount(8).",
        ),
    ]),
    examples: Cow::Borrowed(&[
        (Cow::Borrowed("mount -t strata 'wrapfs / unionfs,dirs=/changes=rw:/image=ro' /mnt"), "A layer over a union."),
        (Cow::Borrowed("wrapfs\\040/\\040/srv/data /mnt strata ro,nosuid 0 0"), "A line of /etc/fstab."),
        (
            Cow::Borrowed("none /mnt strata stack=\"wrapfs\\040/\\040unionfs,dirs=/a=rw:/b=ro\",nosuid 0 0"),
            "The same with the stack among the options: in double quotes, within which its commas don't separate options.",
        ),
        (
            Cow::Borrowed("mount -t strata 'unionfs,dirs=[zstd / /changes]=rw:/image=ro' /mnt"),
            "A union that compresses what is changed: a branch that is a stack.",
        ),
        (Cow::Borrowed("strata stack /mnt"), "Show the layers, what they did, and how long it took."),
    ]),
};

const GENERAL: &str = "Those of mount(8) for every file system: ro, rw, nosuid, nodev, noexec, noatime, relatime, strictatime, \
                       nodiratime, sync, and so on. Those for fstab(5) and systemd (auto, noauto, nofail, _netdev, user, x-...) \
                       are accepted.";

/// A flag of the command line and what it does.
const FLAGS: &[(&str, &str)] = &[
    ("-o OPTIONS", "Options, separated by commas; may be given more than once."),
    ("-f", "Fake: check everything, mount nothing."),
    ("-s", "Sloppy: ignore options that are not known."),
    ("-v, --verbose", "Say what was done."),
    ("-n", "Accepted, without a meaning: /etc/mtab is not written."),
    ("-N NAMESPACE", "Mount in this mount namespace: a file that stands for it, or a process's number."),
    ("-t TYPE", "The type as mount(8) was given it."),
    ("--foreground", "Stay in the foreground until unmounted, and log to stderr: for services."),
    ("-h, --help", "This help."),
    ("-V, --version", "The version."),
];

/// What is said about a type. Of a layer that has no text of its own: what it declares.
fn about(kind: Type) -> About {
    match kind.layer() {
        None => STACK,
        Some(layer) => layer.traits.manual.map_or_else(|| declared(layer), |manual| written(layer, manual)),
    }
}

const SERVER: &str = "The helper is run by mount(8) and returns when the mount can be used. The server that it leaves behind ends when it is \
                      unmounted with umount(8), and unmounts it at SIGTERM.";

/// The first argument and what it is.
fn argument(layer: &LayerType) -> (&'static str, &'static str) {
    match layer.branches() {
        None => ("DIRECTORY", "the directory to show through the layer"),
        Some(branches) if branches.first_argument => {
            ("DIRECTORY:DIRECTORY...", "the directories; a : in a path is written \\:")
        }
        Some(_) => ("NAME", NAME_HELP),
    }
}

fn written(layer: &LayerType, manual: &'static Manual) -> About {
    let (spec, spec_help) = manual.argument.unwrap_or_else(|| argument(layer));
    About {
        title: manual.title.into(),
        spec,
        spec_help,
        description: manual.description.iter().copied().chain([SERVER]).map(Cow::Borrowed).collect(),
        examples: manual.examples.iter().map(|(line, help)| (Cow::Borrowed(*line), *help)).collect(),
    }
}

fn declared(layer: &LayerType) -> About {
    let (spec, spec_help) = argument(layer);
    let LayerType { name, about, .. } = layer;
    let (stands, examples) = match layer.branches() {
        None => (
            "It stands on one directory, or anywhere in a stack",
            vec![
                (format!("mount -t {name} /srv/data /mnt").into(), "Show a directory through the layer."),
                (format!("/srv/data /mnt {name} nosuid,nodev 0 0").into(), "A line of /etc/fstab."),
                (
                    format!("mount -t strata '{name} / unionfs,dirs=/a=rw:/b=ro' /mnt").into(),
                    "The layer over a union, in one server.",
                ),
            ],
        ),
        Some(branches) => {
            let line = if branches.first_argument {
                format!("mount -t {name} /srv/a:/srv/b /mnt")
            } else {
                format!("mount -t {name} -o {} none /mnt", branches.example)
            };
            ("It stands on directories, and other layers can stand on it", vec![(line.into(), "Mount it.")])
        }
    };
    About {
        title: (*about).into(),
        spec,
        spec_help,
        description: vec![
            format!("The layer {name} of Strata {about}. {stands}: see mount.strata(8).").into(),
            SERVER.into(),
        ]
        .into(),
        examples: examples.into(),
    }
}

/// Every option of a type, with its help: its own first.
fn options(kind: Type) -> impl Iterator<Item = (String, &'static str)> {
    let general = TABLE.iter().filter(|spec| spec.is_shown()).map(|spec| (spec.usage(), spec.help));
    kind.own().iter().map(|spec| (spec.usage(), spec.help)).chain(general)
}

/// What `--help` prints.
#[must_use]
pub fn help(kind: Type) -> String {
    let about = about(kind);
    let name = format!("mount.{}", kind.name());
    let mut out = format!("{name}: {}\n\n", about.title);
    let _ = writeln!(out, "Usage: mount -t {} -o OPTIONS {} DIR", kind.name(), about.spec);
    let _ = writeln!(out, "       {name} {} DIR [-fsnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]\n", about.spec);
    item(&mut out, about.spec, about.spec_help);
    item(&mut out, "DIR", "where to mount");
    out.push_str("\nOptions after -o:\n");
    for (usage, help) in options(kind) {
        item(&mut out, &usage, help);
    }
    item(&mut out, "general options", GENERAL);
    out.push_str("\nFlags:\n");
    for (flag, help) in FLAGS {
        item(&mut out, flag, help);
    }
    out.push_str("\nExamples:\n");
    for (line, help) in about.examples.iter() {
        let _ = writeln!(out, "  {line}\n      {help}");
    }
    out.push_str("\nExit status:\n");
    for (exit, meaning) in Exit::TABLE {
        item(&mut out, &exit.code().to_string(), meaning);
    }
    out
}

/// A term at the margin, and its text below or beside it.
pub(crate) fn item(out: &mut String, term: &str, text: &str) {
    const INDENT: usize = 22;
    const WIDTH: usize = 96;
    let mut line = format!("  {term}");
    if line.len() + 2 > INDENT {
        let _ = writeln!(out, "{line}");
        line.clear();
    }
    let mut line = format!("{line:INDENT$}");
    for word in text.split_ascii_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(out, "{}", line.trim_end());
            line = " ".repeat(INDENT);
        }
        if line.len() > INDENT {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(out, "{}", line.trim_end());
}

/// The manual page, in the language of man(7).
#[must_use]
pub fn page(kind: Type) -> String {
    let about = about(kind);
    let name = format!("mount.{}", kind.name());
    let mut out = format!(
        ".TH {} 8 \"\" \"Strata {}\" \"System administration\"\n",
        name.to_uppercase(),
        env!("CARGO_PKG_VERSION")
    );
    let _ = writeln!(out, ".SH NAME\n{name} \\- {}", troff(&about.title));
    let _ = writeln!(out, ".SH SYNOPSIS\n.B mount \\-t {} \\-o\n.I OPTIONS {} DIR\n.PP", kind.name(), about.spec);
    let _ = writeln!(
        out,
        ".B {}\n.I {} DIR\n.RB [ \\-fsnv ]\n.RB [ \\-N\n.IR NAMESPACE ]\n.RB [ \\-o\n.IR OPTIONS ]\n.RB [ \\-t\n.IR TYPE ]",
        name, about.spec
    );
    out.push_str(".SH DESCRIPTION\n");
    for paragraph in about.description.iter() {
        let _ = writeln!(out, ".PP\n{}", troff(paragraph));
    }
    let _ = writeln!(out, ".SH ARGUMENTS\n.TP\n.I {}\n{}", about.spec, troff(about.spec_help));
    out.push_str(".TP\n.I DIR\nwhere to mount\n.SH MOUNT OPTIONS\n");
    for (usage, help) in options(kind) {
        let _ = writeln!(out, ".TP\n.B {}\n{}", troff(&usage), troff(help));
    }
    let _ = writeln!(out, ".TP\n.B general options\n{}", troff(GENERAL));
    out.push_str(".SH FLAGS\n");
    for (flag, help) in FLAGS {
        let _ = writeln!(out, ".TP\n.B {}\n{}", troff(flag), troff(help));
    }
    out.push_str(".SH EXIT STATUS\n");
    for (exit, meaning) in Exit::TABLE {
        let _ = writeln!(out, ".TP\n.B {}\n{}", exit.code(), troff(meaning));
    }
    out.push_str(".SH EXAMPLES\n");
    for (line, help) in about.examples.iter() {
        let _ = writeln!(out, ".TP\n.B {}\n{}", troff(line), troff(help));
    }
    out.push_str(".SH FILES\n.TP\n.I /dev/fuse\nthe device that every FUSE mount needs\n");
    out.push_str(".TP\n.I /sys/module/fuse/parameters/enable_uring\nY lets servers talk to the kernel through io_uring, which is faster\n");
    out.push_str(".SH SEE ALSO\n.BR strata (1),\n");
    // A page does not refer to itself.
    if !matches!(kind, Type::Stack) {
        out.push_str(".BR mount.strata (8),\n");
    }
    out.push_str(".BR mount (8),\n.BR umount (8),\n.BR fstab (5),\n.BR fuse (4)\n");
    out
}

/// Text as troff takes it literally. A line may begin with what would be a request.
fn troff(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '.' | '\'' if out.is_empty() => out.extend(["\\&", c.encode_utf8(&mut [0; 4])]),
            '"' => out.push_str("\\(dq"),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_option_of_the_type() {
        for kind in Type::all() {
            let help = help(kind);
            for (usage, _) in options(kind) {
                assert!(help.contains(&usage), "{usage}");
            }
            assert!(help.lines().all(|line| line.chars().count() <= 120), "{help}");
        }
        assert!(!help(Type::of("wrapfs").unwrap()).contains("dirs=PATH"));
        assert!(help(Type::of("unionfs").unwrap()).contains("dirs=PATH"));
    }

    #[test]
    fn every_page_has_its_sections_and_no_stray_request() {
        for kind in Type::all() {
            let page = page(kind);
            for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "MOUNT OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"] {
                assert!(page.contains(&format!("\n.SH {section}\n")), "{section}");
            }
            for line in page.lines().filter(|line| line.starts_with('.')) {
                let request = line.split([' ', '\\']).next().unwrap();
                assert!([".TH", ".SH", ".TP", ".B", ".I", ".BR", ".RB", ".IR", ".PP"].contains(&request), "{line}");
            }
        }
    }

    #[test]
    fn troff_is_literal() {
        assert_eq!(troff(r#"a\b-c "d""#), r"a\eb\-c \(dqd\(dq");
        assert_eq!(troff(".x"), r"\&.x");
    }
}
