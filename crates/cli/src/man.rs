//! Help texts, manual pages and completions of the mount helpers, generated from the tables that
//! the parser uses.

use crate::exit::Exit;
use crate::options::{Read, TABLE, Type};
use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, Command, ValueHint};
use core::fmt::Write as _;
use stack::{LayerType, Manual};
use std::borrow::Cow;

/// The texts about a file system type that no other table has.
struct TypeText {
    title: Cow<'static, str>,
    spec: &'static str,
    spec_help: &'static str,
    description: Cow<'static, [Cow<'static, str>]>,
    /// A command or fstab line, and its purpose.
    examples: Cow<'static, [(Cow<'static, str>, &'static str)]>,
}

/// Describes the first argument where it names no directory.
const SOURCE_HELP: &str = "any name that is no path; df and findmnt show it as the source. mount(8) makes /srv of srv if it runs in \
                           /. mount -a recognizes a mounted fstab line by its source. \
                           With none, the type is shown as the source, and mount -a tries the line again";

const STACK: TypeText = TypeText {
    title: Cow::Borrowed("mount a stack of layers"),
    spec: "STACK",
    spec_help: "the layers, top first, separated by ` / `; the last part is a directory or a layer over branches",
    description: Cow::Borrowed(&[
        Cow::Borrowed(
            "A stack is a sequence of layers in one server; each layer transforms the view of the layer below it. It is written \
             from the top: `rot13 / xor,key=7 / /srv/data`. Each part is a layer's name, followed by its options after commas. The \
             last part is a directory or a layer over branches, such as unionfs. A directory begins with / or ./, and with the \
             option ro it is never changed. strata layers lists all names and options.",
        ),
        Cow::Borrowed(
            "A part can also be the path of a plugin, a shared object that ends with .so; strata new creates the source of \
             one. A plugin runs with the server's privileges. The file must therefore belong to root or to the mounting user, \
             and no other user may have write permission.",
        ),
        Cow::Borrowed(
            "Parts are separated by a / with a blank on both sides. In a path or value, put a backslash before each blank, comma, =, \
             \" and backslash. A backslash and three octal digits stand for the byte with that number. Text in double quotes is not \
             split. In fstab, write a blank as \\040.",
        ),
        Cow::Borrowed(
            "A branch of unionfs or lbfs can itself be a stack, in brackets: unionfs,dirs=[zstd / /changes]=rw:/image=ro. \
             LAYER/[STACK] means the same as LAYER / STACK, without blanks. A [ opens a stack at the beginning of a branch or part; \
             after the / that follows a layer it does so if its ] ends the stack. In these places, escape a [ that is part of a \
             path with a backslash. Inside brackets, brackets must balance. mount(8) splits options at commas outside of double \
             quotes. In its option lists, put the text between the brackets in double quotes; escapes within them are then read \
             twice.",
        ),
        Cow::Borrowed(
            "Options after -o apply to the whole mount; options of a single layer are part of the stack. Every user can read the \
             options of a mount, so do not put secrets there.",
        ),
        Cow::Borrowed(
            "mount(8) runs the helper, which returns once the mount is usable. The server keeps running in the background until \
             the file system is unmounted with umount(8); on SIGTERM it unmounts. strata mount STACK DIR does the same without \
             mount(8).",
        ),
    ]),
    examples: Cow::Borrowed(&[
        (Cow::Borrowed("mount -t strata 'wrapfs / unionfs,dirs=/changes=rw:/image=ro' /mnt"), "A layer over a union."),
        (Cow::Borrowed("wrapfs\\040/\\040/srv/data /mnt strata ro,nosuid 0 0"), "A line of /etc/fstab."),
        (
            Cow::Borrowed("none /mnt strata stack=\"wrapfs\\040/\\040unionfs,dirs=/a=rw:/b=ro\",nosuid 0 0"),
            "The same, with the stack as an option. The double quotes keep its commas from separating options.",
        ),
        (
            Cow::Borrowed("mount -t strata 'unionfs,dirs=[zstd / /changes]=rw:/image=ro' /mnt"),
            "A union whose writable branch is compressed: the branch is a stack.",
        ),
        (Cow::Borrowed("strata stack /mnt"), "Show the layers with their operation counts and latency."),
    ]),
};

const GENERAL: &str = "The options that mount(8) defines for every file system: ro, rw, nosuid, nodev, noexec, noatime, relatime, \
                       strictatime, nodiratime, sync and others. Options for fstab(5) and systemd are accepted, too: auto, noauto, \
                       nofail, _netdev, user, x-...";

/// The flags of the command line with their descriptions.
const FLAGS: &[(&str, &str)] = &[
    ("-o OPTIONS", "Mount options, separated by commas. Can be repeated."),
    ("-f", "Fake: check the arguments and directories, but do not mount."),
    ("-s", "Sloppy: ignore unknown options."),
    ("-v, --verbose", "Print a line once it is mounted."),
    ("-n", "Accepted and ignored: /etc/mtab is never written."),
    ("-N NAMESPACE", "Mount in this mount namespace: the path of a namespace file, or a process ID."),
    ("-t TYPE", "The type as given to mount(8)."),
    ("--foreground", "Stay in the foreground until unmounted, and log to stderr: for services."),
    ("-h, --help", "Print this help."),
    ("-V, --version", "Print the version."),
];

/// Returns the texts about a type. For a layer without a manual, they are generated from its
/// declaration.
fn about(kind: Type) -> TypeText {
    match kind.layer() {
        None => STACK,
        Some(layer) => layer.traits.manual.map_or_else(|| declared(layer), |manual| written(layer, manual)),
    }
}

const SERVER: &str = "mount(8) runs the helper, which returns once the mount is usable. The server keeps running in the background \
                      until the file system is unmounted with umount(8); on SIGTERM it unmounts.";

/// Returns the placeholder of the first argument and its description.
fn argument(layer: &LayerType) -> (&'static str, &'static str) {
    match layer.branches() {
        None => ("DIRECTORY", "the directory to show through the layer"),
        Some(branches) if branches.first_argument => {
            ("DIRECTORY:DIRECTORY...", "the directories; write a : in a path as \\:")
        }
        Some(_) => ("NAME", SOURCE_HELP),
    }
}

fn written(layer: &LayerType, manual: &'static Manual) -> TypeText {
    let (spec, spec_help) = manual.argument.unwrap_or_else(|| argument(layer));
    TypeText {
        title: manual.title.into(),
        spec,
        spec_help,
        description: manual.description.iter().copied().chain([SERVER]).map(Cow::Borrowed).collect(),
        examples: manual.examples.iter().map(|(line, help)| (Cow::Borrowed(*line), *help)).collect(),
    }
}

fn declared(layer: &LayerType) -> TypeText {
    let (spec, spec_help) = argument(layer);
    let LayerType { name, about, .. } = layer;
    let (stands, examples) = match layer.branches() {
        None => (
            "It is mounted over one directory, or used anywhere in a stack",
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
            (
                "It is mounted over several directories, and other layers can be stacked on it",
                vec![(line.into(), "Mount it.")],
            )
        }
    };
    TypeText {
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

/// Returns the usage and help of every option of a type, its own options first.
fn options(kind: Type) -> impl Iterator<Item = (String, &'static str)> {
    let general = TABLE.iter().filter(|spec| spec.is_shown()).map(|spec| (spec.usage(), spec.help));
    kind.own().iter().map(|spec| (spec.usage(), spec.help)).chain(general)
}

/// Returns the text that `--help` prints.
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

/// Appends a term and its wrapped, indented description.
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

/// Returns the command line of a helper as shells complete it. The helper itself parses it in
/// [`crate::cmdline`].
#[must_use]
pub fn command(kind: Type) -> Command {
    let own = kind.own().iter().map(|spec| (spec.name, spec.value.is_some(), spec.help));
    let general = TABLE.iter().filter(|spec| spec.is_shown());
    let general = general.map(|spec| (spec.name, matches!(spec.read, Read::Value(..)), spec.help));
    let value = |(name, has_value, help): (&'static str, bool, &'static str)| {
        let name = if has_value { format!("{name}=").leak() } else { name };
        PossibleValue::new(name).help(first_sentence(help))
    };
    let values: Vec<_> = own.chain(general).map(value).collect();
    let is_directory = kind.layer().is_some_and(|layer| layer.branches().is_none());
    let hint = if is_directory { ValueHint::DirPath } else { ValueHint::Other };
    let name: &'static str = format!("mount.{}", kind.name()).leak();
    let command = Command::new(name).disable_help_flag(true).disable_version_flag(true);
    let command = FLAGS.iter().fold(command, |command, (flag, help)| command.arg(flag_of(flag, help, &values)));
    command
        .arg(Arg::new("source").value_hint(hint).help(about(kind).spec_help))
        .arg(Arg::new("dir").value_hint(ValueHint::DirPath).help("where to mount"))
}

/// Returns a flag of [`FLAGS`] for completions. `options` are the values of `-o`.
fn flag_of(flag: &'static str, help: &'static str, options: &[PossibleValue]) -> Arg {
    let mut arg = Arg::new(flag).help(first_sentence(help)).action(ArgAction::SetTrue);
    for form in flag.split(", ") {
        let (name, value) = form.split_once(' ').map_or((form, None), |(name, value)| (name, Some(value)));
        arg = match name.strip_prefix("--") {
            Some(long) => arg.long(long),
            None => name.chars().nth(1).map_or(arg.clone(), |short| arg.short(short)),
        };
        arg = match value {
            Some("OPTIONS") => arg.action(ArgAction::Append).value_parser(options.to_vec()),
            Some(_) => arg.action(ArgAction::Set),
            None => arg,
        };
    }
    arg
}

fn first_sentence(text: &'static str) -> &'static str {
    text.split_once(". ").map_or_else(|| text.trim_end_matches('.'), |(first, _)| first)
}

/// Returns the manual page in man(7) format.
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
    out.push_str(
        ".TP\n.I /sys/module/fuse/parameters/enable_uring\nY permits the io_uring transport, which is faster than /dev/fuse\n",
    );
    out.push_str(".SH SEE ALSO\n.BR strata (1),\n");

    if !matches!(kind, Type::Stack) {
        out.push_str(".BR mount.strata (8),\n");
    }
    out.push_str(".BR mount (8),\n.BR umount (8),\n.BR fstab (5),\n.BR fuse (4)\n");
    out
}

/// Escapes text so that troff prints it literally. A leading `.` or `'` would be a troff request.
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
