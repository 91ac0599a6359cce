//! `strata views`: the rules of a mount with several views, and the processes that were moved.

use crate::channel;
use crate::exit::Failure;
use clap::Args;
use classify::{Condition, Proc, Process, ProcessTable as _};
use core::fmt::Write as _;
use fuse::control::Error;
use rustix::io::Errno;
use serde_json::Value;
use std::collections::HashSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The help after the options.
pub(crate) const HELP: &str = "\
CONDITION is uid=N, gid=N, pid=N (the process and its descendants), cgroup=/PATH (and the cgroups below it) or exe=/PATH. A \
rule that is added comes before all others. Processes that were moved come before all rules.

Only processes of the trusted view, the first one unless trusted= names another, may use this command, as root or as the \
mounting user.

Examples:
  strata views /mnt                               list the views, the rules and the moved processes
  strata views /mnt --move 1234 bad               move a process and its descendants to a view
  strata views /mnt --which 1234                  print the view of a process
  strata views /mnt --release 1234                let the rules decide about it again
  strata views /mnt --add uid=1000 bad            all processes of a user get a view
  strata views /mnt --add cgroup=/quarantine bad  all processes of a cgroup, which they can't leave
  strata views /mnt --remove uid=1000

Exit status: 0 success; 1 no such view, rule or process, or no permission; 2 a system error; 32 not a mount with views.";

/// The arguments of the command.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The mount point, or any file or directory in the mount.
    mount: PathBuf,
    /// What to do; without an option, list everything.
    #[command(flatten)]
    action: Action,
    /// Print the list as JSON.
    #[arg(long, conflicts_with = "action")]
    json: bool,
}

#[derive(Debug, Args)]
#[group(id = "action", multiple = false)]
struct Action {
    /// List the views, the rules and the moved processes (the default).
    #[arg(long)]
    list: bool,
    /// Add a rule before all others.
    #[arg(long, num_args = 2, value_names = ["CONDITION", "VIEW"])]
    add: Option<Vec<String>>,
    /// Remove the rule with this condition.
    #[arg(long, value_name = "CONDITION")]
    remove: Option<String>,
    /// Move a process and its descendants to a view.
    #[arg(long = "move", num_args = 2, value_names = ["PID", "VIEW"])]
    put: Option<Vec<String>>,
    /// End the move of a process and of those that were moved with it.
    #[arg(long, value_name = "PID")]
    release: Option<u32>,
    /// Print the view of a process.
    #[arg(long, value_name = "PID")]
    which: Option<u32>,
    /// Drop the cached replies of the classifier.
    #[arg(long)]
    forget: bool,
}

/// Runs the command and returns what it prints.
///
/// # Errors
/// The mount has no views, or it refuses the command.
pub(crate) fn execute(arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { mount, action, json } = arguments;
    if let Some([condition, view]) = action.add.as_deref() {
        match condition.strip_prefix("pid=") {
            Some(pid) => put(mount, pid, view),
            None => add(mount, condition, view),
        }
    } else if let Some(condition) = &action.remove {
        match condition.strip_prefix("pid=") {
            Some(pid) => send(mount, "release", number(pid)?.to_string().as_bytes(), &no_process(pid)),
            None => {
                let condition = parse(condition)?.to_string();
                send(
                    mount,
                    "remove",
                    condition.as_bytes(),
                    &format!("{condition}: no such rule; strata views lists the rules"),
                )
            }
        }
        .map(|_| String::new())
    } else if let Some([pid, view]) = action.put.as_deref() {
        put(mount, pid, view)
    } else if let Some(pid) = action.release {
        send(mount, "release", pid.to_string().as_bytes(), &format!("process {pid}: not moved")).map(|_| String::new())
    } else if let Some(pid) = action.which {
        let view = send(mount, "which", pid.to_string().as_bytes(), &no_process(&pid.to_string()))?;
        Ok(format!("{}\n", String::from_utf8_lossy(&view)))
    } else if action.forget {
        send(mount, "forget", b"", "").map(|_| String::new())
    } else if *json {
        let text = send(mount, "list", b"", "")?;
        Ok(format!("{}\n", String::from_utf8_lossy(&text)))
    } else {
        table(&list(mount)?).ok_or_else(|| garbled(mount))
    }
}

fn garbled(mount: &Path) -> Failure {
    Failure::system(format!("{}: the server's reply can't be parsed; --json prints it", mount.display()))
}

fn no_process(pid: &str) -> String {
    format!("process {pid}: no such process")
}

fn parse(condition: &str) -> Result<Condition, Failure> {
    Condition::parse(condition.as_bytes()).map_err(Failure::usage)
}

fn number(pid: &str) -> Result<u32, Failure> {
    pid.parse().map_err(|_| Failure::usage(format!("{pid}: not a process ID")))
}

fn list(mount: &Path) -> Result<Value, Failure> {
    serde_json::from_slice(&send(mount, "list", b"", "")?).map_err(|_| garbled(mount))
}

/// Sends a command. `missing`: the message if the object of the command does not exist.
fn send(mount: &Path, command: &str, input: &[u8], missing: &str) -> Result<Vec<u8>, Failure> {
    let (name, shown) = (format!("viewfs.{command}"), mount.display());
    channel::call(mount, &name, input).map_err(|error| match error {
        Error::Refused(Errno::PERM) => Failure::usage(format!(
            "{shown}: not permitted; run it as root or the mounting user, from a process of the trusted view"
        )),
        Error::Refused(Errno::NOENT | Errno::SRCH) => Failure::usage(missing.to_owned()),
        Error::Refused(Errno::ACCESS) => {
            Failure::usage("the process has no view: a rule can't be evaluated, or the classifier does not reply")
        }
        Error::Refused(Errno::NOTTY) => {
            Failure::mount(format!("{shown}: the mount has no views; strata stack shows its layers"))
        }
        error => channel::failure(mount, &name, error),
    })
}

fn check_view(mount: &Path, view: &str) -> Result<(), Failure> {
    let list = list(mount)?;
    let names: Vec<_> =
        list.get("views").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    if names.contains(&view) {
        return Ok(());
    }
    Err(Failure::usage(format!("{view}: no such view; use {}", names.join(", "))))
}

fn add(mount: &Path, condition: &str, view: &str) -> Result<String, Failure> {
    let condition = parse(condition)?;
    check_view(mount, view)?;
    send(mount, "add", format!("{condition} {view}").as_bytes(), "").map(|_| String::new())
}

fn put(mount: &Path, pid: &str, view: &str) -> Result<String, Failure> {
    let pid = number(pid)?;
    check_view(mount, view)?;
    send(mount, "move", format!("{pid} {view}").as_bytes(), &no_process(&pid.to_string()))?;
    for process in family(pid) {
        warn_of_mappings(mount, process);
    }
    Ok(String::new())
}

/// Returns a process and its descendants.
fn family(pid: u32) -> Vec<u32> {
    let all: Vec<Process> = Proc.all();
    let mut family = HashSet::from([pid]);
    let mut before = 0;
    while before < family.len() {
        before = family.len();
        let children: Vec<_> =
            all.iter().filter(|process| family.contains(&process.parent)).map(|one| one.id).collect();
        family.extend(children);
    }
    let mut family: Vec<_> = family.into_iter().collect();
    family.sort_unstable();
    family
}

/// Warns of files of the mount that the process has mapped for shared writing: the kernel writes
/// such pages without the process.
fn warn_of_mappings(mount: &Path, pid: u32) {
    let Ok(stat) = rustix::fs::stat(mount) else { return };
    let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mapped = shared_writable(&maps, device);
    if !mapped.is_empty() {
        let _ = writeln!(
            std::io::stderr(),
            "strata: process {pid}: has files mapped for writing, which it still changes in its former view: {}; restart the \
             process",
            mapped.join(", ")
        );
    }
}

/// Returns the files on a device that are mapped writable and shared, from proc_pid_maps(5).
fn shared_writable(maps: &[u8], (major, minor): (u32, u32)) -> Vec<String> {
    let mut files = Vec::new();
    for line in maps.split(|&byte| byte == b'\n') {
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let (Some(_range), Some(mode), Some(_offset), Some(device), Some(_inode), Some(path)) =
            (fields.next(), fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let path = std::ffi::OsStr::from_bytes(path.trim_ascii_start()).display().to_string();
        let is_writable = mode.get(1) == Some(&b'w') && mode.get(3) == Some(&b's');
        if is_writable && device == format!("{major:02x}:{minor:02x}").as_bytes() && !files.contains(&path) {
            files.push(path);
        }
    }
    files
}

/// Returns the list as text.
fn table(list: &Value) -> Option<String> {
    let mut out = String::new();
    let trusted = list.get("trusted")?.as_str()?;
    for view in list.get("views")?.as_array()? {
        let view = view.as_str()?;
        let _ = writeln!(out, "view  {view}{}", if view == trusted { "  trusted" } else { "" });
    }
    for moved in list.get("moved")?.as_array()? {
        let (pid, processes) = (moved.get("pid")?.as_u64()?, moved.get("processes")?.as_u64()?);
        let _ = writeln!(out, "pid={pid}  {}  processes: {processes}", moved.get("view")?.as_str()?);
    }
    for rule in list.get("rules")?.as_array()? {
        let _ = writeln!(out, "{}  {}", rule.get("condition")?.as_str()?, rule.get("view")?.as_str()?);
    }
    if list.get("classifier")?.as_bool()? {
        let _ = writeln!(out, "classifier");
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_writable_mappings_are_found() {
        let maps = b"7f00-7f01 rw-s 00000000 00:2a 12   /mnt/a b\n\
            7f01-7f02 r--s 00000000 00:2a 13   /mnt/c\n\
            7f02-7f03 rw-p 00000000 00:2a 14   /mnt/d\n\
            7f03-7f04 rw-s 00000000 00:2b 15   /else\n\
            7f05-7f06 rw-s 00001000 00:2a 12   /mnt/a b\n\
            7f07-7f08 rw-p 00000000 00:00 0 \n";
        assert_eq!(shared_writable(maps, (0, 0x2a)), ["/mnt/a b"]);
        assert!(shared_writable(b"", (0, 1)).is_empty());
    }

    #[test]
    fn the_list_is_printed_in_the_order_of_precedence() {
        let list = serde_json::json!({
            "views": ["good", "bad"], "trusted": "good", "classifier": true,
            "rules": [{"condition": "uid=1", "view": "bad"}],
            "moved": [{"pid": 7, "view": "bad", "processes": 2}],
        });
        let text = "view  good  trusted\nview  bad\npid=7  bad  processes: 2\nuid=1  bad\nclassifier\n";
        assert_eq!(table(&list).as_deref(), Some(text));
        assert_eq!(table(&serde_json::json!({})), None);
    }

    #[test]
    fn a_family_contains_its_head() {
        assert!(family(std::process::id()).contains(&std::process::id()));
    }
}
