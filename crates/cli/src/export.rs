//! `strata export`: writes a branch to an OCI image layer.

use crate::archive::{Digesting, failure, reason};
use crate::change_list::shown;
use crate::exit::Failure;
use crate::offline::{self, Access};
use crate::progress::Transfer;
use crate::tool::print;
use changes::oci::{Exported, export};
use clap::Args;
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

/// The part of the help after the options.
pub const HELP: &str = "\
The archive contains the branch's files and, as OCI layers do, its whiteouts (.wh.NAME) and opaque marks (.wh..wh..opq). \
The same branch results in the same bytes. Nothing may write to the branch meanwhile. \
A branch with renamed directories, or with files of which only attributes or some names were changed, depends on the branches \
below it: commit the changes to an empty branch first, and export that (see the last example).

Examples:
  strata export /srv/changes -o layer.tar
  strata export /srv/changes -o layer.tar --diff-id
  strata export /srv/changes | gzip -n > layer.tar.gz
  strata export '[zstd / /srv/packed]' -o layer.tar
  mkdir /srv/whole && strata commit --branches /srv/changes:/srv/whole:/srv/image && strata export /srv/whole -o layer.tar

Exit status: 0 success, 1 wrong arguments, or something in the branch can't be part of a layer, 2 a system error, \
32 the branch is unusable.";

/// The arguments of `strata export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The branch: a directory, or a stack in brackets.
    branch: PathBuf,
    /// The archive to write. It is replaced when it is complete. Default, or -: standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the archive's SHA-256 digest: the DiffID of the layer.
    #[arg(long, requires = "output", conflicts_with = "json")]
    diff_id: bool,
    /// Print path, size and digest of the archive as JSON.
    #[arg(long, requires = "output")]
    json: bool,
}

/// Writes the archive.
///
/// # Errors
/// Names the path and the reason.
pub fn run(args: &ExportArgs) -> Result<(), Failure> {
    let path = args.output.as_deref().filter(|path| *path != Path::new("-"));
    let branch = args.branch.display().to_string();
    let source = offline::open_one(&args.branch, Access::Read)?;
    let Some(path) = path else {
        if args.diff_id || args.json {
            let wrong = "the archive and its digest can't both go to standard output; name a file with -o";
            return Err(Failure::usage(wrong));
        }
        let out = std::io::stdout();
        if out.is_terminal() {
            return Err(Failure::usage("an archive is not written to a terminal; name a file with -o"));
        }
        let mut out = BufWriter::with_capacity(1 << 18, out);
        let done = export(&*source.layer, &mut out).map_err(|error| failure(error, "standard output", &branch))?;
        report_sockets(&done);
        return Ok(());
    };
    let (done, digest) = to_file(&*source.layer, path, &branch)?;
    report_sockets(&done);
    let shown = path.display().to_string();
    if args.json {
        print(format!("{}\n", json!({ "path": shown, "size": done.size, "entries": done.entries, "digest": digest })))?;
    } else if args.diff_id {
        print(format!("{digest}\n"))?;
    }
    Ok(())
}

/// Writes the archive under another name, and renames it when it is durable.
fn to_file(layer: &dyn vnode::Layer, path: &Path, branch: &str) -> Result<(Exported, String), Failure> {
    let shown = path.display().to_string();
    let failed =
        |step: &str, error: &std::io::Error| Failure::system(format!("{shown}: can't {step}: {}", reason(error)));
    let Some(name) = path.file_name() else { return Err(Failure::usage(format!("{shown}: not the name of a file"))) };
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let file = File::create_new(&temporary).map_err(|error| failed("create it", &error))?;
    let written = write(layer, &file, &shown, branch).and_then(|done| {
        file.sync_all().map_err(|error| failed("write it to the disk", &error))?;
        std::fs::rename(&temporary, path).map_err(|error| failed("rename it", &error))?;
        Ok(done)
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

fn write(layer: &dyn vnode::Layer, file: &File, shown: &str, branch: &str) -> Result<(Exported, String), Failure> {
    let digesting = Digesting::new(file, Transfer::on_terminal("written", None));
    let mut out = BufWriter::with_capacity(1 << 18, digesting);
    let done = export(layer, &mut out).map_err(|error| failure(error, shown, branch))?;
    let out = out.into_inner().map_err(|error| failure(error.into_error().into(), shown, branch))?;
    Ok((done, out.digest()))
}

fn report_sockets(done: &Exported) {
    for socket in &done.sockets {
        let _ = writeln!(std::io::stderr(), "strata: {}: a socket, left out", shown(socket));
    }
}
