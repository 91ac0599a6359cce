//! Reads the administrator's policies for versionfs, which itself may not read the host's files.

use std::io::ErrorKind;
use std::path::Path;
use versionfs::PolicyHost;
use versionpolicy::{Accounts, AdminConfig, External, Severity, UserConfig};

/// Reads configuration files.
#[derive(Debug)]
pub struct Files;

/// The accounts of /etc/passwd and /etc/group.
struct Local;

fn id_of(file: &str, name: &str) -> Option<u32> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

impl Accounts for Local {
    fn user(&self, name: &str) -> Option<u32> {
        id_of("/etc/passwd", name)
    }

    fn group(&self, name: &str) -> Option<u32> {
        id_of("/etc/group", name)
    }
}

impl PolicyHost for Files {
    fn admin(&self, path: &Path) -> Result<Option<AdminConfig>, String> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound && path == Path::new(versionfs::CONFIG) => {
                return Ok(None);
            }
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        let parsed = AdminConfig::parse(&path.display().to_string(), &text, &Local);
        let (errors, warnings): (Vec<_>, Vec<_>) =
            parsed.problems.iter().partition(|problem| problem.severity == Severity::Error);
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        match errors.first() {
            Some(error) => Err(error.to_string()),
            None => Ok(parsed.config),
        }
    }

    fn user(&self, _uid: u32) -> Option<UserConfig> {
        None
    }

    fn groups(&self, _uid: u32) -> Vec<u32> {
        Vec::new()
    }

    fn utc_offset(&self) -> i32 {
        0
    }

    fn decide(&self, _external: &External, _request: &str) -> Option<Vec<u8>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_an_error_only_if_it_was_named() {
        assert!(Files.admin(Path::new("/nonexistent/versionfs.conf")).is_err());
        assert_eq!((Local.user("root"), Local.group("root")), (Some(0), Some(0)));
        assert_eq!(Local.user("no such user"), None);
    }
}
