//! The `strata` command.

use crate::channel::{self, INFO, STACK, STATS};
use crate::draw::Picture;
use crate::exit::{Exit, Failure};
use crate::layers::{self, Form};
use crate::new::{self, Language};
use crate::options::Type;
use crate::{check, control, debug, helper, lower, man, stats, sync, usenetctl};
use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use core::time::Duration;
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Stackable file systems: mount them, and look at what is mounted.
#[derive(Debug, Parser)]
#[command(name = "strata", version, after_help = EXAMPLES, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  mount -t unionfs -o dirs=/changes=rw:/image=ro none /mnt
  strata mount 'wrapfs / unionfs,dirs=/changes=rw:/image=ro' /mnt
  strata layers                         what a stack can be made of
  strata new mylayer                    a layer of one's own
  strata stack --watch /mnt             the layers, what they do, and how long it takes
  strata stats /mnt                     which requests the kernel sent to its server
  strata info --json /mnt               which server it is, and what it holds
  strata lower /mnt ls -l               a command that sees what the mount covers
  strata debug /mnt debug               log more, from now on
  strata control --list /mnt            what else the server and the layers can be asked
  strata sync /mnt                      what sync -f does on other file systems
  strata check /srv/data                look for damage in compressed files, while they are not mounted
  umount /mnt

Exit status: 0 success, 1 wrong arguments, 2 a failing system, 32 not a mount of Strata. strata lower exits as its command
does: 127 if there is no such command, 126 if it can't be run.
See mount.strata(8), mount.unionfs(8) and so on for the options of mounts.";

const SYNC_HELP: &str = "\
The kernel does not tell a FUSE server of syncfs(2), so sync -f does nothing on a mount of Strata. \
sync without arguments, fsync(2) and fdatasync(2) work.

Examples:
  strata sync /mnt
  ostree --repo=/mnt/repo pull origin main && strata sync /mnt/repo

Exit status: 0 all is durable, 1 a path that is not there or can't be opened, \
32 not a mount of Strata, or a directory below could not be written.";

const CONTROL_HELP: &str = "\
Commands go to the server by an ioctl on PATH: in every mount namespace that sees the mount, and through bind mounts of a \
part of it. Most commands are for anybody who can open PATH; those that change the mount are for root and the user who mounted.

Examples:
  strata control --list /mnt
  strata control --json /mnt lbfs.replicas
  strata control /mnt/news usenetfs.state

Exit status: 0 success; 1 no such path or command, input that is not understood, or no permission; \
2 a failing system; 32 not a mount of Strata, or the command failed.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Show how many requests of each kind the kernel sent to a mount's server.
    Stats {
        /// Where it is mounted, or any file or directory of it.
        mount: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show a mount's server: its process, transport, open files and inodes.
    Info {
        /// Where it is mounted, or any file or directory of it.
        mount: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Mount a stack of layers, as mount -t strata does.
    Mount {
        /// The stack, top first: 'LAYER,OPTION=VALUE / LAYER / DIRECTORY'. See mount.strata(8).
        stack: OsString,
        /// Where to mount it.
        dir: PathBuf,
        /// Options of the whole mount.
        #[arg(short, value_name = "OPTIONS")]
        options: Vec<OsString>,
        /// Check everything, mount nothing.
        #[arg(short, long)]
        fake: bool,
        /// Say what was done.
        #[arg(short, long)]
        verbose: bool,
        /// Stay in the foreground until unmounted, and log to stderr.
        #[arg(long)]
        foreground: bool,
    },
    /// List the layers that a stack can be made of, or explain one.
    Layers {
        /// The one to explain: its name, or the path of an object (/DIR/NAME.so).
        name: Option<String>,
        /// Print JSON.
        #[arg(long, conflicts_with = "names")]
        json: bool,
        /// Print only the types that mount(8) can be given, one a line.
        #[arg(long)]
        names: bool,
    },
    /// Draw a mount's layers, with the operations and the time of each.
    Stack {
        /// Where it is mounted, or any file or directory of it.
        mount: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Draw it again every so many seconds, with what was done in between.
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
        watch: Option<f64>,
    },
    /// Show where the directories under a mount can be reached (root), or run a command that sees one in place of the mount.
    #[command(after_help = "Exit status: the command's own; 127 if there is no such command, 126 if it can't be run. \
                            Without a command, or before it is run: 0 success, 1 wrong arguments or no permission, \
                            2 a failing system, 32 not a mount of Strata.")]
    Lower {
        /// Where it is mounted.
        mount: PathBuf,
        /// Which directory, if there are several: 1 is the first.
        #[arg(long, value_name = "N")]
        branch: Option<usize>,
        /// The command and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Show the level of a mount's log, or set it (root and whoever mounted it).
    Debug {
        /// Where it is mounted, or any file or directory of it.
        mount: PathBuf,
        /// off, error, warn, info, debug or trace: with trace, every request is logged with its names, caller and errno, and every
        /// operation of a measured layer.
        level: Option<String>,
    },
    /// Give a command to a mount's server or to one of its layers.
    #[command(after_help = CONTROL_HELP)]
    Control {
        /// Any file or directory of the mount. A command of a layer may act on this one.
        path: PathBuf,
        /// The command: LAYER.WORD, such as lbfs.replicas, or server.WORD.
        #[arg(required_unless_present = "list", conflicts_with = "list")]
        command: Option<String>,
        /// Its input, if it takes one: at most 8000 bytes.
        #[arg(conflicts_with = "list")]
        input: Option<OsString>,
        /// List the commands of the mount, and what each does.
        #[arg(long)]
        list: bool,
        /// Print an answer that is JSON as it is, and not as a table.
        #[arg(long)]
        json: bool,
    },
    /// Make everything durable that was done on a mount: what syncfs(2) and sync -f do elsewhere. Anybody may who can open a path in it.
    #[command(after_help = SYNC_HELP)]
    Sync {
        /// Any file or directory of the mount.
        #[arg(required = true)]
        path: Vec<PathBuf>,
    },
    /// Look for damage in the files of a layer that changes the size of data (zstd), and repair it.
    #[command(after_help = check::HELP)]
    Check {
        /// Which directories, and how.
        #[command(flatten)]
        what: check::What,
    },
    /// Write a new layer to begin with, and its tests.
    New {
        /// What it is to be called: a letter, then lower-case letters, digits, - and _.
        name: String,
        /// Where; by default a directory of that name, here.
        dir: Option<PathBuf>,
        /// In C, not in Rust.
        #[arg(long)]
        c: bool,
        /// Strata's source, which a layer in Rust is built with. Default: the one around this directory, or the one that this program was built from.
        #[arg(long, value_name = "DIR", conflicts_with = "c")]
        strata: Option<PathBuf>,
    },
    /// Let usenetfs manage directories, or make them flat again: usenetctl.
    Usenet {
        /// What is to be done.
        #[command(subcommand)]
        command: usenetctl::Command,
    },
    /// Print the completions of a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write all manual pages into a directory.
    #[command(hide = true)]
    Man {
        /// The directory.
        dir: PathBuf,
    },
}

/// Runs the command.
#[must_use]
pub fn run(args: &[OsString]) -> Exit {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::Success,
                _ if args.get(1).is_some_and(|command| command == "check") => Exit::CheckUsage,
                _ => Exit::Usage,
            };
        }
    };
    let done = match &cli.command {
        Command::Mount { stack, dir, options, fake, verbose, foreground } => {
            let flags = [("-f", *fake), ("-v", *verbose), ("--foreground", *foreground)];
            return mount(stack, dir, options, &flags);
        }
        Command::Layers { name, json, names } => {
            let form = if *json {
                Form::Json
            } else if *names {
                Form::Names
            } else {
                Form::Text
            };
            layers::list(name.as_deref(), form).and_then(|text| print(text.as_bytes()))
        }
        Command::Stack { mount, json, watch } => stack(mount, *json, *watch),
        Command::Lower { mount, branch, command } => lower(mount, *branch, command),
        Command::Debug { mount, level: Some(level) } => debug::set_level(mount, level),
        Command::Debug { mount, level: None } => {
            debug::level(mount).and_then(|level| print(format!("{level}\n").as_bytes()))
        }
        Command::Sync { path } => sync::all(path, |failure| {
            let _ = writeln!(std::io::stderr(), "strata: {failure}");
        }),
        Command::Stats { mount, json } => answer(mount, STATS, *json),
        Command::Info { mount, json } => answer(mount, INFO, *json),
        Command::Control { path, json, list: true, .. } => control::list(path, *json).and_then(|text| print(&text)),
        Command::Control { path, command, input, json, .. } => {
            let (command, input) = (command.as_deref().unwrap_or_default(), input.as_deref().unwrap_or_default());
            control::give(path, command, input.as_encoded_bytes(), *json).and_then(|text| print(&text))
        }
        Command::New { name, dir, c, strata } => {
            let language = if *c { Language::C } else { Language::Rust };
            new::write(name, dir.as_deref(), strata.as_deref(), language).and_then(|text| print(text.as_bytes()))
        }
        Command::Check { what } => match check::run(what) {
            Ok(exit) => return exit,
            Err(failure) => Err(failure),
        },
        Command::Usenet { command } => usenetctl::execute(command),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "strata", &mut script);
            print(&script)
        }
        Command::Man { dir } => write_pages(dir),
    };
    match done {
        Ok(()) => Exit::Success,
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "strata: {failure}");
            failure.exit
        }
    }
}

fn answer(mount: &Path, command: &str, json: bool) -> Result<(), Failure> {
    let text = channel::text(mount, command)?;
    let text = if json { format!("{text}\n") } else { stats::table(&text)? };
    print(text.as_bytes())
}

/// Does what mount.strata(8) does.
fn mount(stack: &OsStr, dir: &Path, options: &[OsString], flags: &[(&str, bool)]) -> Exit {
    let mut args: Vec<OsString> = vec!["mount.strata".into()];
    args.extend(flags.iter().filter(|(_, given)| *given).map(|(flag, _)| flag.into()));
    args.extend(options.iter().flat_map(|list| ["-o".into(), list.clone()]));
    args.extend(["--".into(), stack.to_owned(), dir.into()]);
    helper::run(Type::Stack, &args)
}

fn stack(mount: &Path, json: bool, watch: Option<f64>) -> Result<(), Failure> {
    let Some(seconds) = watch else {
        let text = channel::text(mount, STACK)?;
        let text = if json { format!("{text}\n") } else { Picture::read(&text)?.draw(mount, None) };
        return print(text.as_bytes());
    };
    let pause = Duration::try_from_secs_f64(seconds).ok().filter(|pause| *pause >= MIN_PAUSE);
    let pause = pause.ok_or_else(|| Failure::usage(format!("--watch={seconds}: at least 0.1 seconds")))?;
    let mut before = (Picture::read(&channel::text(mount, STACK)?)?, Instant::now());
    loop {
        std::thread::sleep(pause);
        let text = channel::text(mount, STACK)?;
        let now = (Picture::read(&text)?, Instant::now());
        let drawn = if json {
            format!("{text}\n")
        } else {
            now.0.since(&before.0).draw(mount, Some(now.1.duration_since(before.1)))
        };
        before = now;
        if !show(&drawn, json)? {
            return Ok(());
        }
    }
}

/// The server answers each time with work of its own, which must not be what is seen.
const MIN_PAUSE: Duration = Duration::from_millis(100);

/// Shows the next of several drawings: on a terminal in place of the one before. Answers false when nobody reads any more.
fn show(drawn: &str, json: bool) -> Result<bool, Failure> {
    const HOME_AND_CLEAR: &str = "\x1b[H\x1b[2J";
    let mut out = std::io::stdout();
    let (before, after) = match (out.is_terminal(), json) {
        (true, false) => (HOME_AND_CLEAR, ""),
        (false, false) => ("", "\n"),
        (_, true) => ("", ""),
    };
    match write!(out, "{before}{drawn}{after}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::system(format!("can't write to standard output: {error}"))),
    }
}

fn lower(mount: &Path, branch: Option<usize>, command: &[OsString]) -> Result<(), Failure> {
    let lowers = lower::find(mount)?;
    if !command.is_empty() {
        return Err(lower::run(mount, lower::choose(&lowers, branch.unwrap_or(1))?, command));
    }
    if let Some(branch) = branch {
        return print(format!("{}\n", lower::choose(&lowers, branch)?.by.display()).as_bytes());
    }
    let lines =
        lowers.iter().map(|lower| format!("{}  {:<5}  {}\n", lower.by.display(), lower.mode, lower.path.display()));
    print(lines.collect::<String>().as_bytes())
}

fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        // Whoever reads has read enough.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::system(format!("can't write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

fn write_pages(dir: &Path) -> Result<(), Failure> {
    let refuse = |error| Failure::system(format!("{}: {error}", dir.display()));
    clap_mangen::generate_to(Cli::command(), dir).map_err(refuse)?;
    clap_mangen::generate_to(usenetctl::command(), dir).map_err(refuse)?;
    for kind in Type::all() {
        std::fs::write(dir.join(format!("mount.{}.8", kind.name())), man::page(kind)).map_err(refuse)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }

    /// Every page that a page refers to is written with it, or Debian has it.
    #[test]
    fn pages_refer_to_pages_that_exist() {
        const DEBIANS: [&str; 13] = [
            "chmod(1)",
            "df(1)",
            "findmnt(8)",
            "fstab(5)",
            "fuse(4)",
            "mount(8)",
            "umount(8)",
            "dpkg-divert(1)",
            "journalctl(1)",
            "fdatasync(2)",
            "fsync(2)",
            "syncfs(2)",
            "tar(1)",
        ];
        let dir = std::env::temp_dir().join(format!("strata-pages-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        write_pages(&dir).unwrap();
        let mut found = 0;
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            // The fonts and dashes of troff taken away.
            let text =
                std::fs::read_to_string(&path).unwrap().replace("\\fR", "").replace("\\fB", "").replace("\\-", "-");
            let text = text.replace(" (", "(");
            for (at, _) in text.match_indices('(') {
                let section = &text.as_bytes()[at..];
                if !section.get(1).is_some_and(u8::is_ascii_digit) || section.get(2) != Some(&b')') {
                    continue;
                }
                let is_part = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
                let name = &text[text[..at].rfind(|c| !is_part(c)).map_or(0, |before| before + 1)..at];
                let page = format!("{name}{}", &text[at..at + 3]);
                let file = dir.join(format!("{name}.{}", &text[at + 1..at + 2]));
                assert!(DEBIANS.contains(&page.as_str()) || file.exists(), "{}: {page}", path.display());
                found += 1;
            }
        }
        assert!(found > 100);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
