//! Warns of access to other users' files (Wrapfs paper, section 4.1): of accesses that were refused and of names that were looked for and are not
//! there, by anyone but root and the owner. By option, programs are protected from intruders: named ones can't be overwritten, and no new
//! set-user-id ones can be made.
//!
//! The layer is [`layer`], a file of some dozens of lines: what is watched and what is said. Around it: who it was ([`caller`]), which file
//! ([`paths`]), how often it is said ([`limit`]), what is refused ([`rules`]).
#![forbid(unsafe_code)]

mod asked;
mod caller;
mod layer;
mod limit;
mod paths;
mod rules;

pub use layer::LAYER;

#[cfg(test)]
mod tests;
