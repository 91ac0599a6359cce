//! The `strata` command.

use crate::channel::{self, INFO, STACK, STATS};
use crate::draw::Snapshot;
use crate::exit::{Exit, Failure};
use crate::layers::{self, Format};
use crate::new::{self, Language};
use crate::options::Type;
use crate::tool::{print, show_again};
use crate::{
    check, commit, control, cryptctl, debug, diff, export, fsck, fsck_versionfs, helper, import, lower, man, sandbox,
    snapmerge, stats, sync, unionctl, uniondbg, usenetctl, versionctl, views,
};
use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use core::time::Duration;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Mount stackable file systems and inspect their mounts.
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
  strata layers                         list the layers and their options
  strata new mylayer                    create the source of a new layer
  strata stack --watch /mnt             show the layers, their operations and latency, every second
  strata stats /mnt                     count the requests that the kernel sent to the server
  strata info --json /mnt               show the server's process, transport and open files
  strata lower /mnt ls -l               run a command that sees the directory under the mount
  strata debug /mnt debug               raise the log level of a running server
  strata control --list /mnt            list the control commands of the server and the layers
  strata views /mnt --move 1234 bad     show a running process another view
  strata run --sandbox -- ./install.sh  run a command, then commit or discard what it wrote
  strata sync /mnt                      write all changes to stable storage, as sync -f does elsewhere
  strata fsck -n /changes=rw:/image=ro  check the branches of a union while they are not mounted
  strata diff /mnt                      list what the first branch of a union changes
  strata check /srv/data                check compressed files for damage while they are not mounted
  umount /mnt

Exit status: 0 success, 1 wrong arguments, 2 a system error, 32 not a Strata mount. strata lower exits with the status of \
its command, with 127 if the command does not exist, and with 126 if it can't be executed.
Mount options are described in mount.strata(8), mount.unionfs(8) and the pages of the other layers.";

const SYNC_HELP: &str = "\
The kernel does not forward syncfs(2) to a FUSE server, so sync -f has no effect on a Strata mount. \
sync without arguments, fsync(2) and fdatasync(2) work as usual.

Examples:
  strata sync /mnt
  ostree --repo=/mnt/repo pull origin main && strata sync /mnt/repo

Exit status: 0 all changes are durable, 1 a path does not exist or can't be opened, \
32 not a Strata mount, or writing to a lower directory failed.";

const CONTROL_HELP: &str = "\
strata control sends the command to the server by an ioctl on PATH. It works in every mount namespace that contains the mount, \
and through a bind mount of part of it. Any user who can open PATH may run most commands; commands that change the mount are \
restricted to root and the mounting user.

Examples:
  strata control --list /mnt
  strata control --json /mnt lbfs.replicas
  strata control /mnt/news usenetfs.state

Exit status: 0 success; 1 no such path or command, invalid input, or no permission; \
2 a system error; 32 not a Strata mount, or the command failed.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Count the requests of each type that the kernel sent to a mount's server.
    Stats {
        /// The mount point, or any file or directory in the mount.
        mount: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show the process, transport, open files and inodes of a mount's server.
    Info {
        /// The mount point, or any file or directory in the mount.
        mount: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Mount a stack of layers, as mount -t strata does.
    Mount {
        /// The stack, top first: 'LAYER,OPTION=VALUE / LAYER / DIRECTORY'. See mount.strata(8).
        stack: OsString,
        /// The mount point.
        dir: PathBuf,
        /// Options of the whole mount, separated by commas.
        #[arg(short, value_name = "OPTIONS")]
        options: Vec<OsString>,
        /// Check the arguments and directories, but do not mount.
        #[arg(short, long)]
        fake: bool,
        /// Print a line once it is mounted.
        #[arg(short, long)]
        verbose: bool,
        /// Stay in the foreground until unmounted, and log to stderr.
        #[arg(long)]
        foreground: bool,
    },
    /// List the available layers, or describe one.
    Layers {
        /// The layer to describe: its name, or the path of a plugin (/DIR/NAME.so).
        name: Option<String>,
        /// Print JSON.
        #[arg(long, conflicts_with = "names")]
        json: bool,
        /// Print only the file system types for mount -t, one per line.
        #[arg(long)]
        names: bool,
    },
    /// Draw a mount's layers, with the operation counts and the latency of each.
    Stack {
        /// The mount point, or any file or directory in the mount.
        mount: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Redraw every SECONDS (default 1), with the figures of that interval.
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
        watch: Option<f64>,
    },
    /// Show the paths of the directories under a mount, or run a command that sees one in place of
    /// the mount.
    #[command(after_help = "The paths lead through /proc and work for root alone.\n\n\
                            Exit status: that of the command; 127 if the command does not exist, 126 if it can't be executed. \
                            Without a command, or if the command could not be started: 0 success, 1 wrong arguments or no \
                            permission, 2 a system error, 32 not a Strata mount.")]
    Lower {
        /// The mount point.
        mount: PathBuf,
        /// The number of the directory, if there are several; the first is 1.
        #[arg(long, value_name = "N")]
        branch: Option<usize>,
        /// The command and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Show a mount's log level, or set it (root and the mounting user).
    Debug {
        /// The mount point, or any file or directory in the mount.
        mount: PathBuf,
        /// off, error, warn, info, debug or trace. trace logs every request with its names, caller
        /// and errno, and every operation of a measured layer.
        level: Option<String>,
    },
    /// Send a control command to a mount's server or to one of its layers.
    #[command(after_help = CONTROL_HELP)]
    Control {
        /// Any file or directory in the mount. Some commands of layers act on this object.
        path: PathBuf,
        /// The command: LAYER.WORD, such as lbfs.replicas, or server.WORD.
        #[arg(required_unless_present = "list", conflicts_with = "list")]
        command: Option<String>,
        /// The command's input, if it takes one: at most 8000 bytes.
        #[arg(conflicts_with = "list")]
        input: Option<OsString>,
        /// List the mount's commands and describe each.
        #[arg(long)]
        list: bool,
        /// Print a JSON reply unchanged, not as a table.
        #[arg(long)]
        json: bool,
    },
    /// List and change which processes see which view of a mount.
    #[command(after_help = views::HELP)]
    Views {
        /// The mount and the action.
        #[command(flatten)]
        arguments: views::Arguments,
    },
    /// Write all changes of a mount to stable storage, as sync -f does on other file systems.
    #[command(after_help = SYNC_HELP)]
    Sync {
        /// Any file or directory in the mount that this user can open.
        #[arg(required = true)]
        path: Vec<PathBuf>,
    },
    /// Check the files of a layer that changes the size of data (zstd) for damage, and repair them.
    #[command(after_help = check::HELP)]
    Check {
        /// The directories and the mode.
        #[command(flatten)]
        args: check::CheckArgs,
    },
    /// Run a command on its own, writable view of the host, then commit or discard what it wrote.
    #[command(after_help = sandbox::HELP)]
    Run {
        /// What to run, and how.
        #[command(flatten)]
        args: sandbox::RunArgs,
    },
    /// List what the first branch of a union changes.
    #[command(after_help = diff::HELP)]
    Diff {
        /// The union and the format.
        #[command(flatten)]
        args: diff::DiffArgs,
    },
    /// Move changes of the first branch of a union to the second.
    #[command(after_help = commit::COMMIT_HELP)]
    Commit {
        /// The branches and paths.
        #[command(flatten)]
        args: commit::CommitArgs,
    },
    /// Drop changes of the first branch of a union.
    #[command(after_help = commit::DISCARD_HELP)]
    Discard {
        /// The branches and paths.
        #[command(flatten)]
        args: commit::DiscardArgs,
    },
    /// Merge snapshot branches into the one below them (same as snapmerge).
    #[command(after_help = snapmerge::HELP)]
    Snapmerge {
        /// The snapshots and the target.
        #[command(flatten)]
        args: snapmerge::MergeArgs,
    },
    /// Write a branch of a union to an OCI image layer: a tar archive with whiteouts.
    #[command(after_help = export::HELP)]
    Export {
        /// The branch and the archive.
        #[command(flatten)]
        args: export::ExportArgs,
    },
    /// Make a branch of an OCI image layer: a tar archive with whiteouts.
    #[command(after_help = import::HELP)]
    Import {
        /// The archive and the branch.
        #[command(flatten)]
        args: import::ImportArgs,
    },
    /// Create the source and the tests of a new layer.
    New {
        /// The layer's name: a lower-case letter, then lower-case letters, digits, - and _.
        name: String,
        /// The directory to create. Default: NAME in the working directory.
        dir: Option<PathBuf>,
        /// Write the layer in C instead of Rust.
        #[arg(long)]
        c: bool,
        /// Strata's source tree, which a layer in Rust is built against. Default: the tree around
        /// the working directory, or the tree that this program was built from.
        #[arg(long, value_name = "DIR", conflicts_with = "c")]
        strata: Option<PathBuf>,
    },
    /// List and change the branches of a union while it is in use (same as unionctl).
    #[command(after_help = unionctl::EXAMPLES)]
    Union {
        /// The union and the change.
        #[command(flatten)]
        what: unionctl::What,
    },
    /// Look into the server of a union: log levels, counters, latency, branches (same as uniondbg).
    #[command(after_help = uniondbg::HELP)]
    UnionDebug {
        /// The union and the request.
        #[command(flatten)]
        what: uniondbg::What,
    },
    /// Check the branches of a union that is not mounted, and repair them (same as fsck.unionfs).
    #[command(after_help = fsck::HELP)]
    Fsck {
        /// The branches and the mode.
        #[command(flatten)]
        args: fsck::FsckArgs,
    },
    /// Convert directories to usenetfs, or back to flat directories (same as usenetctl).
    Usenet {
        /// The conversion or query.
        #[command(subcommand)]
        command: usenetctl::Command,
    },
    /// Manage encrypted volumes and the keys of sessions (same as cryptctl).
    #[command(after_help = cryptctl::HELP)]
    Crypt {
        /// What to do.
        #[command(subcommand)]
        command: cryptctl::Command,
    },
    /// See, compare and restore old versions of files on versionfs (same as versionctl).
    #[command(after_help = versionctl::HELP)]
    Versions {
        /// What to do.
        #[command(subcommand)]
        command: versionctl::Command,
    },
    /// Print a shell's completion script.
    Completions {
        /// The shell.
        shell: Shell,
        /// The command to complete: strata, versionctl, unionctl, uniondbg, usenetctl, cryptctl,
        /// snapmerge, fsck.unionfs, fsck.versionfs, or mount.TYPE for any type of file system.
        #[arg(default_value = "strata")]
        command: String,
    },
    /// Write all manual pages into a directory.
    #[command(hide = true)]
    Man {
        /// An existing directory.
        dir: PathBuf,
    },
}

/// Parses `args`, runs the command and returns its exit status.
#[must_use]
pub fn run(args: &[OsString]) -> ExitCode {
    match Cli::try_parse_from(args) {
        Ok(Cli { command: Command::Fsck { args } }) => fsck::execute(&args).into(),
        Ok(Cli { command: Command::Crypt { command } }) => cryptctl::execute(&command, "strata"),
        Ok(Cli { command: Command::Run { args: run } }) => run_sandbox(run, args),
        Ok(Cli { command }) => execute(&command).into(),
        Err(error) => {
            let _ = error.print();
            let is = |at: usize, word: &str| args.get(at).is_some_and(|argument| argument == word);
            let checks = is(1, "check") || is(1, "fsck") || is(1, "crypt") && is(2, "fsck");
            let exit = match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::Success,
                _ if checks => Exit::CheckUsage,
                _ if args.get(1).is_some_and(|command| command == "diff") => Exit::TROUBLE,
                _ => Exit::Usage,
            };
            exit.into()
        }
    }
}

fn execute(command: &Command) -> Exit {
    let done = match command {
        Command::Mount { stack, dir, options, fake, verbose, foreground } => {
            let flags = [("-f", *fake), ("-v", *verbose), ("--foreground", *foreground)];
            return mount(stack, dir, options, &flags);
        }
        Command::Layers { name, json, names } => {
            let form = if *json {
                Format::Json
            } else if *names {
                Format::Names
            } else {
                Format::Text
            };
            layers::list(name.as_deref(), form).and_then(print)
        }
        Command::Stack { mount, json, watch } => stack(mount, *json, *watch),
        Command::Lower { mount, branch, command } => lower(mount, *branch, command),
        Command::Debug { mount, level: Some(level) } => debug::set_level(mount, level),
        Command::Debug { mount, level: None } => {
            debug::level(mount).and_then(|level| print(format!("{level}\n").as_bytes()))
        }
        Command::Views { arguments } => views::execute(arguments).and_then(print),
        Command::Sync { path } => sync::all(path, |failure| {
            let _ = writeln!(std::io::stderr(), "strata: {failure}");
        }),
        Command::Stats { mount, json } => print_reply(mount, STATS, *json),
        Command::Info { mount, json } => print_reply(mount, INFO, *json),
        Command::Control { path, json, list: true, .. } => control::list(path, *json).and_then(print),
        Command::Control { path, command, input, json, .. } => {
            let (command, input) = (command.as_deref().unwrap_or_default(), input.as_deref().unwrap_or_default());
            control::run(path, command, input.as_encoded_bytes(), *json).and_then(print)
        }
        Command::New { name, dir, c, strata } => {
            let language = if *c { Language::C } else { Language::Rust };
            new::write(name, dir.as_deref(), strata.as_deref(), language).and_then(print)
        }
        Command::Check { args } => match check::run(args) {
            Ok(exit) => return exit,
            Err(failure) => Err(failure),
        },
        Command::Diff { args } => match diff::run(args) {
            Ok(exit) => return exit,
            Err(failure) => Err(Failure { exit: Exit::TROUBLE, ..failure }),
        },
        Command::Commit { args } => match commit::commit(args) {
            Ok(exit) => return exit,
            Err(failure) => Err(failure),
        },
        Command::Discard { args } => match commit::discard(args) {
            Ok(exit) => return exit,
            Err(failure) => Err(failure),
        },
        Command::Snapmerge { args } => match snapmerge::execute(args) {
            Ok(exit) => return exit,
            Err(failure) => Err(failure),
        },
        Command::Export { args } => export::run(args),
        Command::Import { args } => import::run(args),
        Command::Union { what } => unionctl::execute(what),
        Command::UnionDebug { what } => uniondbg::execute(what),
        // They have exit statuses of their own: see `run`.
        Command::Fsck { .. } | Command::Crypt { .. } | Command::Run { .. } => Ok(()),
        Command::Usenet { command } => usenetctl::execute(command),
        Command::Versions { command } => return versionctl::run_as_subcommand(command),
        Command::Completions { shell, command } => completions(*shell, command),
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

/// Runs `strata run`. `all` are the arguments of the program.
fn run_sandbox(args: sandbox::RunArgs, all: &[OsString]) -> ExitCode {
    match args.separate(all).and_then(|args| sandbox::run(&args)) {
        Ok(status) => status.into(),
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "strata: {failure}");
            failure.exit.into()
        }
    }
}

fn print_reply(mount: &Path, command: &str, json: bool) -> Result<(), Failure> {
    let text = channel::text(mount, command)?;
    let text = if json { format!("{text}\n") } else { stats::table(&text)? };
    print(text)
}

/// Runs the mount.strata(8) helper with the equivalent arguments.
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
        let text = if json { format!("{text}\n") } else { Snapshot::read(&text)?.draw(mount, None) };
        return print(text);
    };
    let pause = Duration::try_from_secs_f64(seconds).ok().filter(|pause| *pause >= MIN_PAUSE);
    let pause =
        pause.ok_or_else(|| Failure::usage(format!("--watch={seconds}: too short; the minimum is 0.1 seconds")))?;
    let mut before = (Snapshot::read(&channel::text(mount, STACK)?)?, Instant::now());
    loop {
        std::thread::sleep(pause);
        let text = channel::text(mount, STACK)?;
        let now = (Snapshot::read(&text)?, Instant::now());
        let drawn = if json {
            format!("{text}\n")
        } else {
            now.0.since(&before.0).draw(mount, Some(now.1.duration_since(before.1)))
        };
        before = now;
        if !show_again(&drawn, json)? {
            return Ok(());
        }
    }
}

/// The shortest interval of `--watch`. Each reply costs the server work, which must not dominate
/// the figures.
const MIN_PAUSE: Duration = Duration::from_millis(100);

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

/// Returns the command lines of all programs but the mount helpers and checkers.
fn commands() -> [clap::Command; 7] {
    [
        Cli::command(),
        unionctl::command(),
        uniondbg::command(),
        usenetctl::command(),
        cryptctl::command(),
        versionctl::command(),
        snapmerge::command(),
    ]
}

/// Prints a completion script.
fn completions(shell: Shell, name: &str) -> Result<(), Failure> {
    let unknown = || Failure::usage(format!("{name}: no completions for it; see strata completions --help"));
    let checkers = [fsck::command(), fsck_versionfs::command()];
    let program = commands().into_iter().chain(checkers).find(|command| command.get_name() == name);
    let helper = || name.strip_prefix("mount.").and_then(Type::of).map(man::command);
    let mut command = program.or_else(helper).ok_or_else(unknown)?;
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    print(script)
}

fn write_pages(dir: &Path) -> Result<(), Failure> {
    let refuse = |error| Failure::system(format!("{}: {error}", dir.display()));
    for command in commands() {
        clap_mangen::generate_to(command, dir).map_err(refuse)?;
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(fsck::command()).section("8").render(&mut page).map_err(refuse)?;
    std::fs::write(dir.join("fsck.unionfs.8"), page).map_err(refuse)?;
    let mut page = Vec::new();
    clap_mangen::Man::new(fsck_versionfs::command()).section("8").render(&mut page).map_err(refuse)?;
    std::fs::write(dir.join("fsck.versionfs.8"), page).map_err(refuse)?;
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

    #[test]
    fn command_lines_of_helpers_are_well_formed() {
        for kind in Type::all() {
            let command = man::command(kind);
            command.clone().debug_assert();
            let options = command.get_arguments().find(|arg| arg.get_short() == Some('o')).unwrap();
            let values = options.get_possible_values();
            let has = |name: &str| values.iter().any(|value| value.get_name() == name);
            assert!(has("cache=") && has("noxattr"), "{values:?}");
            assert!(command.get_arguments().any(|arg| arg.get_long() == Some("foreground")));
        }
    }

    /// Every page in a cross-reference is either generated here or part of Debian.
    #[test]
    fn pages_refer_to_pages_that_exist() {
        const DEBIAN_PAGES: [&str; 16] = [
            "chmod(1)",
            "df(1)",
            "findmnt(8)",
            "fstab(5)",
            "fuse(4)",
            "mount(8)",
            "umount(8)",
            "dpkg-divert(1)",
            "journalctl(1)",
            "keyrings(7)",
            "fdatasync(2)",
            "fsck(8)",
            "fsync(2)",
            "syncfs(2)",
            "tar(1)",
            "telldir(3)",
        ];
        let dir = testkit::TempDir::new();
        write_pages(&dir).unwrap();
        let (mut found, mut missing) = (0, Vec::new());
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            // Strip troff's font changes and escaped dashes.
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
                if !DEBIAN_PAGES.contains(&page.as_str()) && !file.exists() {
                    missing.push(format!("{}: {page}", path.display()));
                }
                found += 1;
            }
        }
        assert!(missing.is_empty(), "{missing:#?}");
        assert!(found > 100);
    }
}
