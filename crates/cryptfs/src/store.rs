use cryptformat::{DIRIV_MODE, DIRIV_NAME, NameFlags, is_dir_iv, new_dir_iv};
use vnode::{Cx, Errno, Result};
use wrapfs::hooks::{LongName, NameStore, Role, StateFile};

/// Attribute of a directory with a copy of its initialization vector. gocryptfs does not show it.
const DIRIV_COPY: &[u8] = b"user.strata.diriv";

/// Names that are not encrypted are stored as they are.
#[derive(Debug)]
pub(crate) struct PlainStore;

impl NameStore for PlainStore {
    fn role(&self, _name: &[u8]) -> Role {
        Role::Name
    }

    fn long_name(&self, _encoded: &[u8]) -> Option<LongName> {
        None
    }

    fn encoded_name(&self, _object: &[u8], _content: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// How encrypted names are stored: `gocryptfs.diriv`, `gocryptfs.longname.*`.
#[derive(Debug)]
pub(crate) struct Store {
    format: cryptformat::NameStore,
    dir_iv: bool,
}

impl Store {
    pub(crate) fn new(flags: NameFlags) -> Self {
        Self { format: cryptformat::NameStore::new(flags), dir_iv: flags.dir_iv }
    }
}

impl NameStore for Store {
    fn role(&self, name: &[u8]) -> Role {
        match self.format.role(name) {
            cryptformat::Role::Name => Role::Name,
            cryptformat::Role::Long { side } => Role::Long { side },
            cryptformat::Role::Side { object } => Role::Side { object },
            cryptformat::Role::Leftover => Role::Leftover,
            cryptformat::Role::Own => Role::Own,
        }
    }

    fn long_name(&self, encoded: &[u8]) -> Option<LongName> {
        let cryptformat::LongName { object, side, content } = self.format.long_name(encoded)?;
        Some(LongName { object, side, content })
    }

    fn encoded_name(&self, object: &[u8], content: &[u8]) -> Option<Vec<u8>> {
        self.format.encrypted_name(object, content)
    }

    fn side_mode(&self) -> u32 {
        // As gocryptfs.
        0o600
    }

    fn state_file(&self) -> Option<StateFile> {
        let (name, copy) = (DIRIV_NAME.to_vec(), Some(DIRIV_COPY));
        self.dir_iv.then_some(StateFile { name, mode: DIRIV_MODE, longest: 16, copy })
    }

    fn new_state(&self, _cx: &Cx<'_>) -> Result<Vec<u8>> {
        new_dir_iv().map(|iv| iv.to_vec()).map_err(|_| Errno::IO)
    }

    fn is_state(&self, state: &[u8]) -> bool {
        is_dir_iv(state)
    }
}
