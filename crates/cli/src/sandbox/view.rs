//! The unions that a sandbox sees, built and served in the front process. The front stays in the
//! host's namespaces, so it reads and writes the host as its user always does.

use super::outcome;
use super::owner::Owner;
use super::plan::{Place, Plan, UnionMount};
use super::store::Sandbox;
use super::survey::{self, HostMount, How};
use crate::exit::Failure;
use crate::host_dir::{HostDir, Role, reason};
use crate::stack::is_stacked;
use hostfs::{HostFs, HostOptions};
use rustix::io::Errno;
use server::{Config, Mounted};
use std::fs::{self, DirBuilder};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use unionfs::{Branch, Copyup, Mode, Options, Unionfs};
use vnode::Layer;
use wrapfs::Template;

/// Time limit for the kernel to end the connections after the last process of the sandbox.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// Where the mounts of the host are in the sandbox. A rename takes the mounts in a directory along.
/// What they cover must not become visible, so they return to their places in later runs.
#[derive(Debug, Default)]
struct Places(Vec<Enclosing>);

/// A mount that encloses others.
#[derive(Debug)]
struct Enclosing {
    place: Place,
    /// The number of its branch.
    number: usize,
    /// The directories that were renamed in it, with their present paths. Read when it is needed.
    renamed: Option<Vec<(PathBuf, PathBuf)>>,
}

impl Places {
    /// Adds a mount that is shown through a union.
    fn add(&mut self, sandbox: &mut Sandbox, place: &Place) {
        let number = sandbox.number_of(&place.point);
        self.0.push(Enclosing { place: place.clone(), number, renamed: None });
    }

    /// Returns the place of a mount. Those that enclose it have been added.
    fn of(&mut self, sandbox: &Sandbox, point: &Path, rootless: bool) -> Place {
        let unchanged = Place { point: point.into(), at: point.into() };
        let outer = survey::enclosing(self.0.iter().map(|outer| Path::new(&outer.place.point)), point);
        let Some(outer) = outer.and_then(|outer| self.0.get_mut(outer)) else { return unchanged };
        let Ok(inner) = point.strip_prefix(&outer.place.point) else { return unchanged };
        let renamed = outer.renamed.get_or_insert_with(|| {
            outcome::renamed(&sandbox.branch(outer.number), Path::new(&outer.place.point), rootless)
        });
        let above = renamed.iter().filter_map(|(from, to)| Some((from, to, inner.strip_prefix(from).ok()?)));
        let nearest = above.max_by_key(|(from, ..)| from.components().count());
        let inner = nearest.map_or_else(|| inner.to_owned(), |(_, to, rest)| to.join(rest));
        Place { point: point.into(), at: Path::new(&outer.place.at).join(inner).into_os_string() }
    }
}

/// Unions that are built but not served yet.
#[derive(Debug)]
pub(super) struct View {
    unions: Vec<Union>,
    /// Mounts shown as they are.
    pub(super) shown: Vec<Place>,
    /// Mounts that can't be shown, each with the reason.
    pub(super) refused: Vec<String>,
}

#[derive(Debug)]
struct Union {
    mount: UnionMount,
    layer: Arc<dyn Layer>,
    /// Whether the host's directory is on a file system that is itself stacked.
    stacked: bool,
}

impl View {
    /// Builds a union for each mount of the host, with a branch of the sandbox on top.
    pub(super) fn build(sandbox: &mut Sandbox, mounts: &[HostMount], rootless: bool) -> Result<Self, Failure> {
        let mut view = Self { unions: Vec::new(), shown: Vec::new(), refused: Vec::new() };
        let mut places = Places::default();
        for mount in mounts {
            let place = places.of(sandbox, &mount.point, rootless);
            match mount.how {
                How::Hidden if !mount.answers => {
                    view.refused.push(format!("{}: the mount does not answer", mount.point.display()));
                }
                How::Hidden => {}
                How::Shown => view.shown.push(place),
                How::Union { read_only } => match build(sandbox, mounts, &mount.point, read_only, rootless) {
                    Ok((layer, stacked)) => {
                        places.add(sandbox, &place);
                        let mount = UnionMount { place, read_only, noexec: mount.noexec };
                        view.unions.push(Union { mount, layer, stacked });
                    }
                    Err(failure) if mount.point == Path::new("/") => return Err(failure),
                    Err(failure) => view.refused.push(failure.reason),
                },
            }
        }
        Ok(view)
    }

    /// Returns what is to be mounted.
    pub(super) fn mounts(&self) -> Vec<UnionMount> {
        self.unions.iter().map(|union| union.mount.clone()).collect()
    }

    /// Serves each union on its device.
    pub(super) fn serve(self, devices: Vec<OwnedFd>, plan: &Plan) -> Result<Served, Failure> {
        if devices.len() != self.unions.len() {
            return Err(Failure::system("the sandbox's process sent another number of devices"));
        }
        let serve = |(union, device): (Union, OwnedFd)| {
            let config = config(&union, plan);
            server::serve_device(union.layer, &config, device)
                .map_err(|error| Failure::mount(format!("union over {}: {error}", union.mount.place.point.display())))
        };
        self.unions.into_iter().zip(devices).map(serve).collect::<Result<_, _>>().map(Served)
    }
}

/// The unions while they are mounted.
#[derive(Debug)]
pub(super) struct Served(Vec<Mounted>);

impl Served {
    /// Waits until the kernel has ended all connections, and finishes the branches.
    pub(super) fn end(self) {
        let (done, ended) = std::sync::mpsc::channel();
        let wait = move || {
            self.0.iter().for_each(Mounted::wait);
            drop(self.0);
            let _nobody_waits = done.send(());
        };
        let started = Instant::now();
        if std::thread::Builder::new().name("end".to_owned()).spawn(wait).is_ok()
            && ended.recv_timeout(END_TIMEOUT).is_err()
        {
            tracing::warn!("the unions are still mounted {} s after the command ended", started.elapsed().as_secs());
        }
    }
}

/// Returns the options that both the mounting and the serving process need.
pub(super) fn mount_options(union: &UnionMount, plan: &Plan) -> fuse::MountOptions {
    let mut options = fuse::MountOptions::new(&plan.view);
    options.source = b"sandbox".to_vec();
    "unionfs".clone_into(&mut options.subtype);
    options.allow_other = true;
    options.transport = fuse::Transport::Device;
    options.flags.read_only = union.read_only;
    options.flags.noexec = union.noexec;
    options.flags.nodev = true;
    options.flags.nosuid = true;
    if plan.rootless {
        // ACLs name users whom the namespace doesn't know, and the kernel refuses to read those.
        options.refuse = fuse::flags::POSIX_ACL;
    }
    options
}

fn config(union: &Union, plan: &Plan) -> Config {
    let mut config = Config::new(PathBuf::from(&union.mount.place.point), "sandbox", "unionfs");
    config.mount = mount_options(&union.mount, plan);
    config.passthrough = !plan.rootless;
    config.stack_depth = if union.stacked { 2 } else { 1 };
    config.owner = plan.ids.0;
    config
}

fn build(
    sandbox: &mut Sandbox,
    mounts: &[HostMount],
    point: &Path,
    read_only: bool,
    rootless: bool,
) -> Result<(Arc<dyn Layer>, bool), Failure> {
    let number = sandbox.number_of(point.as_os_str());
    let lower_options = HostOptions { read_only: true, hide_mounts: true, ..HostOptions::default() };
    let lower = open(point, lower_options)?;
    let hides_mounts = !lower.is_detached();
    let stacked = is_stacked(&HostDir::open(Role::Branch, point)?);
    let mut branches = Vec::new();
    if !read_only {
        sandbox.prepare_branch(number, point, rootless)?;
        let dir = sandbox.branch(number);
        let upper = open(&dir, HostOptions::default())?;
        branches.push(Branch { layer: upper, path: dir, mode: Mode::ReadWrite });
    }
    branches.push(Branch { layer: lower, path: point.to_owned(), mode: Mode::ReadOnly });
    if hides_mounts {
        let points = sandbox.points(number);
        make_points(&points, point, mounts)?;
        let layer = open(&points, HostOptions { read_only: true, ..HostOptions::default() })?;
        branches.push(Branch { layer, path: points, mode: Mode::ReadOnly });
    }
    let uid = rustix::process::geteuid().as_raw();
    let copyup = if rootless { Copyup::Sole { uid } } else { Copyup::Preserve };
    let union = Unionfs::new(branches, Options { copyup, ..Options::default() })
        .map_err(|error| Failure::mount(format!("union over {}: {error}", point.display())))?;
    if !rootless {
        return Ok((union, stacked));
    }
    let owner = Owner::current();
    let owned = Template::over(union).attributes(owner.clone()).operations(owner).build();
    owned.map(|layer| (layer, stacked)).map_err(Failure::system)
}

fn open(path: &Path, options: HostOptions) -> Result<Arc<HostFs>, Failure> {
    HostFs::open(path, options).map_err(|error| Failure::mount(error.to_string()))
}

/// Creates the mount points inside `point`, for a branch that shows them where the host's
/// directory can't.
fn make_points(points: &Path, point: &Path, mounts: &[HostMount]) -> Result<(), Failure> {
    let own = survey::OWN.map(PathBuf::from);
    let all = || mounts.iter().map(|mount| &*mount.point);
    let outer = all().position(|outer| outer == point);
    let here = |inner: &&Path| survey::enclosing(all(), inner) == outer;
    let inner = mounts.iter().map(|mount| (&*mount.point, mount.is_directory));
    let inner = inner.chain(own.iter().map(|own| (&**own, true))).filter(|(inner, _)| here(inner));
    make_dir(points)?;
    for (inner, is_directory) in inner {
        let Ok(relative) = inner.strip_prefix(point) else { continue };
        let at = points.join(relative);
        if is_directory {
            make_dir(&at)?;
            continue;
        }
        at.parent().map_or(Ok(()), make_dir)?;
        fs::OpenOptions::new().append(true).create(true).open(&at).map_err(|error| cant_create(&at, &error))?;
    }
    Ok(())
}

fn make_dir(path: &Path) -> Result<(), Failure> {
    DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(|error| cant_create(path, &error))
}

fn cant_create(path: &Path, error: &std::io::Error) -> Failure {
    let why = Errno::from_io_error(error).map_or_else(|| error.to_string(), reason);
    Failure::system(format!("{}: can't create it: {why}", path.display()))
}
