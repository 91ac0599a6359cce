//! Version sets on disk (Versionfs paper, sections 3.1 and 3.2; docs/formats/version-set.md).
//!
//! | concept | file |
//! |---|---|
//! | names of version files | `names` |
//! | a version and its attributes | `version` |
//! | the index of a set | `index` |
//! | the header of version files | `header` |
//! | the bytes of a version | `content` |
//! | block deltas in sparse files | `sparse` |
//! | whole versions, compressed | `compressed`; `start`, `chunks` |
//! | block deltas, compressed | `sparse_compressed`; `table` |
//! | deltas by content, and of the lines of texts | `delta`, `text`; `edits` |
//! | any of these formats | `encode` |
//! | a version in the middle is discarded | `merge` |
//! | a version through the newer ones | `reconstruct` |
//! | whether the head is what a version was made of | `seal` |
//! | an index from the version files | `rebuild`; `traces` |
//! | files of a set in its directory | `store` |
//! | what a directory lost for lack of room | `lost` |
//! | records of the audit log | `audit` |
#![forbid(unsafe_code)]

mod attributes;
mod audit;
mod chunks;
mod compressed;
mod content;
mod delta;
mod edits;
mod encode;
mod header;
mod index;
mod lost;
mod merge;
mod names;
mod rebuild;
mod reconstruct;
mod seal;
mod sparse;
mod sparse_compressed;
mod start;
mod store;
mod table;
#[cfg(test)]
mod testing;
mod text;
mod traces;
mod version;
mod wire;

pub use attributes::{CONTENT_TIME, ContentTime, ROOT_IDENTITY, RootIdentity, is_own_attribute};
pub use audit::{
    AuditPlace, AuditRecord, Audited, LOG, MAX_AUDIT_RECORD, SEGMENT_START, SegmentPart, SegmentParts, segment_name,
    segment_of, segment_start,
};
pub use compressed::Compressed;
pub use content::{Content, Over, Partial, Piece, Plain, clamp, is_zero, next_data, next_hole, read_full, write_full};
pub use delta::Delta;
pub use edits::Edited;
pub use encode::{Newer, encode};
pub use header::{Header, MAX_HEADER};
pub use index::{Birth, Condition, Departure, Gap, Index, LinkPeriod, MAGIC, MAX_NOTE, Place, Record};
pub use lost::{LOST, Lost, MAX_LOST, Why, lost_to_bytes, parse_lost};
pub use merge::{absorb, is_needed};
pub use names::{
    LINKS, Letter, MAX_NUMBER, STORE, StoreName, index_name, is_hashed, may_follow, new_index_name, new_version_name,
    number_of, parse, stem_of, version_name,
};
pub use rebuild::{Rebuilt, SetFiles, Sets, list, rebuild, write_index};
pub use reconstruct::{Members, Source, Stored, open_version, read_header};
pub use seal::{Seal, Stamp};
pub use sparse::{BLOCK, Sparse, SparseBlocks, SparseWriter};
pub use sparse_compressed::SparseCompressed;
pub use store::{Blocks, Head, StoreFiles, block_id, block_target, give, replace};
pub use text::{MAX_TEXT, Text};
pub use traces::{OF_NEW_NAME, OF_STORE, Traces, lost_birth, may_lack_birth};
pub use version::{Cause, Flags, Version, Who, just_after, nanos};
