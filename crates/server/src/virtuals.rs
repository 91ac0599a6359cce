//! Extended attributes of the mount's root that no file has: a mount's own words about itself, readable with getfattr(1)
//! and by `strata stats`, without a channel beside the mount.
//!
//! * `user.strata.requests`: counters per opcode and transport, as JSON.
//! * `user.strata.info`: the server: process, transport, open files, inodes, as JSON.
//! * what whoever mounts has to tell ([`crate::Report`]): `user.strata.stack` is the stack of layers.

use crate::Report;
use crate::held::Held;
use crate::ops::Server;
use fuse::{Reply, Session};
use vnode::Errno;

const REQUESTS: &[u8] = b"user.strata.requests";
const INFO: &[u8] = b"user.strata.info";

/// Does the attribute belong to the server?
pub(crate) fn is_virtual(server: &Server, key: &[u8]) -> bool {
    key == REQUESTS || key == INFO || report(server, key).is_some()
}

/// Fills `out`, or answers the size if it is empty.
pub(crate) fn get(server: &Server, key: &[u8], out: &mut [u8]) -> Reply<usize> {
    let session = server.session.get().ok_or(Errno::NODATA)?;
    let text = match report(server, key) {
        Some(report) => (report.text)(),
        None if key == REQUESTS => session.counters().to_json(),
        None => info(server, session),
    };
    if out.is_empty() {
        // The counters grow between the question for the size and the question for the text.
        return Ok(text.len() + text.len() / 4 + 64);
    }
    vnode::give(text.as_bytes(), out)
}

fn report<'a>(server: &'a Server, key: &[u8]) -> Option<&'a Report> {
    server.reports.iter().find(|report| report.name.as_bytes() == key)
}

fn info(server: &Server, session: &Session) -> String {
    let (open, passthrough) = server.files.count();
    let open = open + server.files.held.as_ref().map_or(0, Held::len);
    format!(
        concat!(
            "{{\"version\":\"{}\",\"pid\":{},\"transport\":\"{}\",\"inodes\":{},",
            "\"open_files\":{},\"passthrough_inodes\":{},\"cache_seconds\":{},\"names_cached\":{}}}"
        ),
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        if session.ring_is_up() { "ring" } else { "device" },
        server.nodes.len(),
        open,
        passthrough,
        server.cache.as_secs_f64(),
        !server.layer.properties().merges_names,
    )
}
