//! `strata import`: makes a branch of an OCI image layer.

use crate::archive::{Digesting, failure, reason};
use crate::exit::Failure;
use crate::offline::{self, Access};
use crate::progress::Transfer;
use crate::tool::print;
use changes::oci::{ImportOptions, LayerError, import};
use clap::Args;
use serde_json::json;
use std::fs::{File, Metadata};
use std::io::{BufReader, Read, Write as _};
use std::path::{Path, PathBuf};

/// The part of the help after the options.
pub const HELP: &str = "\
Whiteouts (.wh.NAME) and opaque marks (.wh..wh..opq) become those of a union. Nothing outside of the directory is written, \
whatever the archive contains. After an error, the directory is empty again. \
If this user can't change owners, all files belong to the user, and an archive with device nodes is refused.

Examples:
  mkdir /srv/layer1 && strata import layer1.tar /srv/layer1
  gzip -dc layer2.tar.gz | strata import - /srv/layer2
  mount -t unionfs -o dirs=/srv/changes=rw:/srv/layer2=ro:/srv/layer1=ro none /mnt

Exit status: 0 success, 1 wrong arguments, or the archive is malformed or was refused, 2 a system error, \
32 the directory is in use or unusable.";

/// The arguments of `strata import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The archive, not compressed; - is standard input.
    file: PathBuf,
    /// An empty directory, or a stack in brackets over one.
    dir: PathBuf,
    /// The DiffID that the archive must have: sha256: and 64 hexadecimal digits.
    #[arg(long, value_name = "DIGEST")]
    diff_id: Option<String>,
    /// Print the number of entries, the digest of the archive and the warnings as JSON.
    #[arg(long)]
    json: bool,
}

/// Imports the archive.
///
/// # Errors
/// Names the archive or path and the reason.
pub fn run(args: &ImportArgs) -> Result<(), Failure> {
    let (name, dir) = (args.file.display().to_string(), args.dir.display().to_string());
    let (name, size, stream): (_, _, Box<dyn Read>) = if args.file == Path::new("-") {
        ("standard input".to_owned(), None, Box::new(std::io::stdin().lock()))
    } else {
        let file = File::open(&args.file);
        let file = file.map_err(|error| Failure::usage(format!("{name}: can't open it: {}", reason(&error))))?;
        let size = file.metadata().ok().filter(Metadata::is_file).map(|metadata| metadata.len());
        (name, size, Box::new(file))
    };
    let branch = offline::open_one(&args.dir, Access::Write)?;
    let mut input = Checked {
        stream: Some(Digesting::new(BufReader::with_capacity(1 << 18, stream), Transfer::on_terminal("read", size))),
        wanted: args.diff_id.clone(),
        found: String::new(),
    };
    let options = ImportOptions { privileged: crate::process::may_chown() };
    let done = import(&mut input, &*branch.layer, options).map_err(|error| match error {
        LayerError::Refused { path, reason } => Failure::usage(format!("{name}: {}: {reason}", path.escape_ascii())),
        error => failure(error, &name, &dir),
    })?;
    if args.json {
        let report = json!({ "entries": done.entries, "digest": input.found, "warnings": done.warnings });
        return print(format!("{report}\n"));
    }
    for warning in &done.warnings {
        let _ = writeln!(std::io::stderr(), "strata: {name}: {warning}");
    }
    Ok(())
}

/// The archive. Its end is an error if the digest is another one than wanted.
struct Checked<S> {
    /// `None` after the end.
    stream: Option<Digesting<S>>,
    wanted: Option<String>,
    found: String,
}

impl<S: Read> Read for Checked<S> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let Some(stream) = &mut self.stream else { return Ok(0) };
        let read = stream.read(out)?;
        if read == 0 && !out.is_empty() {
            self.found = self.stream.take().map(Digesting::digest).unwrap_or_default();
            if let Some(wanted) = self.wanted.as_ref().filter(|wanted| **wanted != self.found) {
                return Err(std::io::Error::other(format!("its digest is {}, not {wanted}", self.found)));
            }
        }
        Ok(read)
    }
}
