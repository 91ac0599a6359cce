//! What the processes of a sandbox may not do, besides what its mounts and namespaces prevent.

use super::filter;
use crate::exit::Failure;
use crate::host_dir::reason;
use landlock::{BitFlags, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _, Scope};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The capabilities that programs of root keep: those that installers need, on files and processes
/// of the sandbox. None lets a process mount, load modules, use devices or configure the host.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::AUDIT_WRITE);

/// Restricts this process and all that it starts. Returns a warning if the kernel is too old for
/// one of the restrictions.
///
/// # Errors
/// Names the restriction that the kernel refused. The command must not run then.
pub(super) fn apply(network: bool) -> Result<Option<String>, Failure> {
    let at = |step: &'static str| move |errno: Errno| Failure::system(format!("can't {step}: {}", reason(errno)));
    rustix::thread::set_no_new_privs(true).map_err(at("forbid set-user-ID programs"))?;
    drop_capabilities().map_err(at("drop capabilities"))?;
    let warning = scope(network);
    let program = filter::program().map_err(Failure::system)?;
    seccompiler::apply_filter(&program)
        .map_err(|error| Failure::system(format!("can't filter system calls: {error}")))?;
    // No process of the sandbox may trace this one.
    let hidden = rustix::process::DumpableBehavior::NotDumpable;
    rustix::process::set_dumpable_behavior(hidden).map_err(at("protect the init process"))?;
    Ok(warning)
}

fn drop_capabilities() -> Result<(), Errno> {
    rustix::thread::clear_ambient_capability_set()?;
    for capability in CapabilitySet::from_bits_retain(u64::MAX).difference(KEPT).iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // A number that this kernel doesn't know.
            Err(Errno::INVAL) => {}
            removed => removed?,
        }
    }
    let sets = rustix::thread::capabilities(None)?;
    let kept = sets.permitted & KEPT;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: none })
}

/// Prevents what neither mounts nor namespaces do: signals to the host's processes in the process
/// group, which the command shares with the front (`kill 0` in a shell), and connections to sockets
/// with abstract names, which belong to the network namespace.
fn scope(network: bool) -> Option<String> {
    let mut scopes = BitFlags::from(Scope::Signal);
    if network {
        scopes |= Scope::AbstractUnixSocket;
    }
    let restrict =
        || Ruleset::default().set_compatibility(CompatLevel::HardRequirement).scope(scopes)?.create()?.restrict_self();
    match restrict() {
        Ok(_) => None,
        Err(error) => {
            let sockets = if network { "abstract sockets of the host (X11, some D-Bus services) and " } else { "" };
            let alternative = if network { ", or --no-network for the sockets" } else { "" };
            Some(format!(
                "{sockets}processes in this process group (kill 0) are reachable from the sandbox: {error}; use Linux 6.12 \
                 or newer with Landlock{alternative}"
            ))
        }
    }
}
