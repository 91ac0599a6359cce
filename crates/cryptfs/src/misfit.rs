//! Whether the features in the configuration fit what the volume holds. They are authenticated only
//! with key slots: somebody who can write the volume could say that names are not encrypted, and
//! new names would be stored in plain.

use cryptformat::{DIRIV_NAME, Flags, can_be_encrypted};

/// Maximum number of names that are looked at.
const MOST: usize = 1000;

/// What the names in the root directory look like.
#[derive(Debug, Default)]
pub(crate) struct Names {
    has_iv: bool,
    /// The number of other names, and of those that can be encrypted, with and without padding.
    all: usize,
    padded: usize,
    raw: usize,
}

impl Names {
    /// Adds a name. Returns false if there were enough.
    pub(crate) fn add(&mut self, name: &[u8]) -> bool {
        self.has_iv |= name == DIRIV_NAME;
        if !name.starts_with(b"gocryptfs.") && !matches!(name, b"." | b"..") {
            self.all += 1;
            self.padded += usize::from(can_be_encrypted(false, name));
            self.raw += usize::from(can_be_encrypted(true, name));
        }
        self.all < MOST
    }

    /// Returns why a volume with these features would not look like this.
    pub(crate) fn misfit(&self, flags: &Flags) -> Option<&'static str> {
        let Some(names) = flags.names else {
            let are_encrypted = self.all > 0 && (self.padded == self.all || self.raw == self.all);
            return (self.has_iv || are_encrypted).then_some(
                "it says that names are not encrypted, but those of the volume are; new names are stored in plain",
            );
        };
        if self.has_iv && !names.dir_iv {
            return Some("it says that all directories encrypt names alike, but they have a gocryptfs.diriv");
        }
        let fitting = if names.raw64 { self.raw } else { self.padded };
        (self.all > 0 && fitting == 0).then_some("it says that names are encrypted, but no name in the root can be")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cryptformat::NameFlags;

    fn names(all: &[&str]) -> Names {
        let mut names = Names::default();
        all.iter().for_each(|name| assert!(names.add(name.as_bytes())));
        names
    }

    #[test]
    fn features_that_were_changed_are_noticed() {
        let plain = Flags { names: None, ..Flags::default() };
        let of = |change: fn(&mut NameFlags)| {
            let mut flags = Flags::default();
            change(flags.names.as_mut().unwrap());
            flags
        };
        let own = ["gocryptfs.conf", "gocryptfs.diriv", "gocryptfs.strata-journal"];
        let (raw, padded) = ("AAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAA==");
        let encrypted = names(&[&own[..], &[raw, "notes.txt"]].concat());
        assert_eq!(encrypted.misfit(&Flags::default()), None);
        assert!(encrypted.misfit(&plain).is_some());
        assert!(encrypted.misfit(&of(|names| names.dir_iv = false)).is_some());
        assert!(encrypted.misfit(&of(|names| names.raw64 = false)).is_some());
        // Without initialization vectors, the names themselves tell.
        let alike = names(&["gocryptfs.conf", raw, raw]);
        assert_eq!(alike.misfit(&of(|names| names.dir_iv = false)), None);
        assert!(alike.misfit(&plain).is_some());
        assert!(names(&["gocryptfs.conf", padded]).misfit(&plain).is_some());
        let open = names(&["gocryptfs.conf", "notes.txt", raw]);
        assert_eq!(open.misfit(&plain), None);
        assert!(names(&["gocryptfs.conf", "notes.txt"]).misfit(&Flags::default()).is_some());
        for flags in [Flags::default(), plain] {
            assert_eq!(names(&["gocryptfs.conf"]).misfit(&flags), None);
        }
    }
}
