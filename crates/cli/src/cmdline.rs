//! The command line that mount(8) passes to a helper: `mount.TYPE SPEC DIR [-sfnv] [-N NS] [-o
//! OPTIONS] [-t TYPE]`, with the options in any position.

use crate::exit::Failure;
use lexopt::{Arg, Parser};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

/// The hidden flag of the background server process.
pub const SERVE: &str = "--serve";

/// The requested action of a helper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Mount or remount.
    Mount(Cmdline),
    /// Print the help.
    Help,
    /// Print the version.
    Version,
}

/// A helper's command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cmdline {
    /// The first argument: a stack, a lower directory, or the source name of a union.
    pub spec: OsString,
    /// The mount point.
    pub dir: PathBuf,
    /// The values of all `-o` flags, joined by commas; escapes are not yet read.
    pub options: Vec<u8>,
    /// `-t`: the type as given to mount(8).
    pub kind: Option<OsString>,
    /// `-N`: the mount namespace to mount in, as a namespace file or a process ID.
    pub namespace: Option<PathBuf>,
    /// `-f`: check the arguments and directories, but do not mount.
    pub fake: bool,
    /// `-s`: ignore unknown options.
    pub sloppy: bool,
    /// `-v`: print a line once it is mounted.
    pub verbose: bool,
    /// `--foreground`: serve in this process, until unmounted.
    pub foreground: bool,
    /// `--serve`: this is the background server process.
    pub serve: bool,
}

/// Parses a command line, without the program's name.
///
/// # Errors
/// Names the invalid argument.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Request, Failure> {
    let mut cmdline = Cmdline::default();
    let mut places = Vec::new();
    let mut parser = Parser::from_args(args);
    while let Some(arg) = parser.next().map_err(|error| wrong(&error))? {
        match arg {
            Arg::Short('f') => cmdline.fake = true,
            Arg::Short('s') => cmdline.sloppy = true,
            Arg::Short('v') | Arg::Long("verbose") => cmdline.verbose = true,
            // -n suppresses writing /etc/mtab, which current systems no longer write.
            Arg::Short('n') => {}
            Arg::Short('N') => cmdline.namespace = Some(parser.value().map_err(|error| wrong(&error))?.into()),
            Arg::Short('o') => add_options(&mut cmdline.options, parser.value().map_err(|error| wrong(&error))?),
            Arg::Short('t') => cmdline.kind = Some(parser.value().map_err(|error| wrong(&error))?),
            Arg::Long("foreground") => cmdline.foreground = true,
            Arg::Long("serve") => cmdline.serve = true,
            Arg::Short('h') | Arg::Long("help") => return Ok(Request::Help),
            Arg::Short('V') | Arg::Long("version") => return Ok(Request::Version),
            Arg::Value(place) => places.push(place),
            Arg::Short(_) | Arg::Long(_) => return Err(wrong(&arg.unexpected())),
        }
    }
    let [spec, dir] = <[OsString; 2]>::try_from(places).map_err(|places| wrong_places(&places))?;
    cmdline.spec = spec;
    cmdline.dir = dir.into();
    Ok(Request::Mount(cmdline))
}

fn add_options(options: &mut Vec<u8>, more: OsString) {
    if !options.is_empty() && !more.as_bytes().is_empty() {
        options.push(b',');
    }
    options.append(&mut more.into_vec());
}

fn wrong(error: &lexopt::Error) -> Failure {
    Failure::usage(format!("{error}; see --help"))
}

fn wrong_places(places: &[OsString]) -> Failure {
    Failure::usage(match places {
        [] => "the source and the mount point are missing; see --help".to_owned(),
        [one] => format!("{}: the mount point is missing; see --help", one.string_lossy()),
        [_, _, third, ..] => {
            format!("{}: one argument too many; quote paths that contain a space", third.string_lossy())
        }
        [_, _] => "wrong arguments; see --help".to_owned(),
    })
}

trait Lossy {
    fn string_lossy(&self) -> String;
}

impl Lossy for OsString {
    fn string_lossy(&self) -> String {
        self.to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(args: &[&str]) -> Cmdline {
        match parse(args.iter().map(OsString::from)) {
            Ok(Request::Mount(cmdline)) => cmdline,
            other => panic!("{args:?}: {other:?}"),
        }
    }

    fn reason(args: &[&str]) -> String {
        parse(args.iter().map(OsString::from)).unwrap_err().reason
    }

    #[test]
    fn the_argument_order_of_mount_8_is_accepted() {
        let c = mount(&["none", "/mnt", "-s", "-f", "-n", "-v", "-o", "rw,dirs=/a", "-t", "fuse.unionfs"]);
        assert_eq!((c.spec.to_str(), c.dir.to_str()), (Some("none"), Some("/mnt")));
        assert!(c.sloppy && c.fake && c.verbose && !c.foreground && !c.serve);
        assert_eq!(c.options, b"rw,dirs=/a");
        assert_eq!(c.kind.unwrap(), "fuse.unionfs");
    }

    #[test]
    fn flags_may_be_combined_and_in_any_position() {
        let same = mount(&["none", "/mnt", "-s", "-v", "-o", "a"]);
        for args in [
            &["-sv", "-o", "a", "none", "/mnt"][..],
            &["none", "-oa", "-sv", "/mnt"],
            &["-svo", "a", "--", "none", "/mnt"],
            &["-svoa", "none", "--", "/mnt"],
        ] {
            assert_eq!(mount(args), same, "{args:?}");
        }
    }

    #[test]
    fn repeated_o_flags_are_joined() {
        assert_eq!(mount(&["-o", "a", "x", "-o", "", "y", "-o", "b,c"]).options, b"a,b,c");
    }

    #[test]
    fn paths_may_be_any_bytes() {
        let odd = OsString::from_vec(vec![b'/', 0xff]);
        let Ok(Request::Mount(c)) = parse([odd.clone(), "--".into(), "-dir".into()]) else { panic!() };
        assert_eq!(c.spec, odd);
        assert_eq!(c.dir.to_str(), Some("-dir"));
    }

    #[test]
    fn errors_name_the_invalid_argument() {
        assert!(reason(&[]).contains("missing"));
        assert!(reason(&["none"]).starts_with("none: the mount point is missing"));
        assert!(reason(&["a", "b", "c"]).starts_with("c: one argument too many"));
        assert!(reason(&["-x", "a", "b"]).contains("-x"));
        assert!(reason(&["--nothing", "a", "b"]).contains("--nothing"));
        assert!(reason(&["a", "b", "-o"]).contains("-o"));
    }

    #[test]
    fn help_and_version_need_no_other_arguments() {
        assert_eq!(parse(["-h".into()]), Ok(Request::Help));
        assert_eq!(parse(["a".into(), "--version".into()]), Ok(Request::Version));
    }
}
