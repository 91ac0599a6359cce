//! A branch as an OCI image layer: a tar archive with whiteouts (docs/oci.md).
//!
//! | concept | file |
//! |---|---|
//! | an entry of an archive | `item` |
//! | writing an archive | `write` |
//! | reading an archive | `read` |
//! | what a name in an archive means | `place` |
//! | from a branch to an archive | `export` |
//! | from an archive to a branch | `import` |
//! | errors | `error` |

mod error;
mod export;
mod import;
mod item;
mod place;
mod read;
mod write;

pub use error::LayerError;
pub use export::{Exported, export};
pub use import::{ImportOptions, Imported, import};

/// Maximum depth of a path. Deeper ones are refused, so that recursion is limited.
const MAX_DEPTH: usize = 256;
/// Maximum length of a path, in bytes.
const MAX_PATH: usize = 4096;
