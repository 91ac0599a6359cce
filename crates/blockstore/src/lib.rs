//! Versions of files as content-addressed blocks, each stored once for a whole volume.
//!
//! A [`BlockStore`] is a directory of append-only files, the *packs*. A version's content is split
//! into *blocks* at places that its bytes determine (FastCDC), and a block is named by the BLAKE3
//! hash of its bytes: a block that many versions have is stored once. A new block is stored as a
//! Zstandard frame with a similar block as prefix, so it takes about as much space as its
//! difference to the version before. A *recipe* lists the blocks of one version.
//! docs/formats/block-store.md describes the format.
//!
//! * **Nothing is overwritten.** A version exists when its recipe, its last entry, is in a pack.
//! * **A power failure leaves a beginning of the history**: everything up to the last
//!   [`BlockStore::sync`], and of what came later a first part.
//! * **Packs are all that counts.** Other files are caches. The tables in memory are read from the
//!   packs, and take 19 to 37 bytes for a block.
//! * **The packs are untrusted input.** Every entry has a checksum, every block that is returned
//!   matches its name, and every length is checked before memory is allocated.
//!
//! | module | contents |
//! |---|---|
//! | `store` | an open store |
//! | `put`, `read` | storing and reading versions |
//! | `chunk`, `codec`, `name`, `recipe` | splitting, compressing, naming and listing blocks |
//! | `format`, `pack`, `writer` | entries, files of entries, appending |
//! | `load`, `table`, `cache` | what is in memory |
//! | `gc`, `check` | garbage collection; check and repair |
#![forbid(unsafe_code)]

mod cache;
mod check;
mod chunk;
mod codec;
mod format;
mod gc;
mod load;
mod name;
mod pack;
mod put;
mod read;
mod recipe;
mod store;
mod table;
mod writer;

pub use check::Report;
pub use chunk::BlockSizes;
pub use gc::Progress;
pub use read::Version;
pub use recipe::RecipeId;
pub use store::{BlockStore, Content, Options, Usage};
