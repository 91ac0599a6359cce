//! The extended attributes of an object.

use super::report::{Kind, Place, Report};
use cryptformat::{Keys, XATTR_PREFIX, is_namespaced};
use rustix::io::Errno;
use std::path::Path;

/// The most that Linux returns.
const MOST: usize = 64 << 10;

/// Decrypts the attributes of the object at `path`. Those that are not encrypted are not the
/// volume's; with `several` keys, those that this one does not decrypt may be of another one.
pub(super) fn check(keys: &Keys, several: bool, path: &Path, place: &Place, report: &mut Report) {
    let names = match list(path) {
        Ok(names) => names,
        Err(Errno::OPNOTSUPP) => return,
        Err(errno) => {
            report.found(Kind::Unreadable, place, &format!("extended attributes: {}", crate::host_dir::reason(errno)));
            return;
        }
    };
    for name in names.split(|&byte| byte == 0).filter(|name| name.starts_with(XATTR_PREFIX)) {
        // One in 256 names of another key decrypts, but not to one that Linux permits.
        if !several || keys.decrypt_xattr_name(name).is_ok_and(|name| is_namespaced(&name)) {
            check_one(keys, path, name, place, report);
        }
    }
}

fn check_one(keys: &Keys, path: &Path, name: &[u8], place: &Place, report: &mut Report) {
    let shown = match keys.decrypt_xattr_name(name) {
        Ok(plain) => plain.escape_ascii().to_string(),
        Err(damage) => {
            report.found(Kind::Attribute, place, &format!("extended attribute {}: {damage}", name.escape_ascii()));
            return;
        }
    };
    let mut value = vec![0; MOST];
    let problem = match rustix::fs::lgetxattr(path, name, &mut value[..]) {
        Ok(length) => keys.open_xattr(value.get(..length).unwrap_or_default()).err().map(|damage| damage.to_string()),
        Err(errno) => {
            let text = format!("extended attribute {shown}: {}", crate::host_dir::reason(errno));
            report.found(Kind::Unreadable, place, &text);
            None
        }
    };
    if let Some(problem) = problem {
        report.found(Kind::Attribute, place, &format!("extended attribute {shown}: {problem}"));
    }
}

fn list(path: &Path) -> Result<Vec<u8>, Errno> {
    let mut names = vec![0; MOST];
    let length = rustix::fs::llistxattr(path, &mut names[..])?;
    names.truncate(length);
    Ok(names)
}
