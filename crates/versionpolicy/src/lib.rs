//! Decides which versions of a file are made, how they are stored, and how long they are kept.
//!
//! The crate is pure: callers pass in the texts of configuration files, the facts about a file and
//! its list of versions. It reads no file, starts no program and asks no clock.
//!
//! | step | item | file |
//! |---|---|---|
//! | read a configuration file, report every mistake | [`AdminConfig`], [`UserConfig`], [`Problem`] | `config`, `document`, `problem` |
//! | values: sizes, durations, ranges, times of day | | `quantity`, `range`, `daytime` |
//! | one rule: what it selects, what it sets | | `selector`, `glob`, `settings`, `context` |
//! | the administrator's limits on users | [`Access`], [`UserAccess`] | `bounds`, `users` |
//! | the policy of one file, and where each value comes from | [`Policies`], [`Effective`], [`Reason`] | `policies`, `subject`, `explain` |
//! | which versions of one file to discard | [`decide`], [`Decision`] | `retention`, `thinning`, `verdict` |
//! | the time of such a decision when the clock jumps | [`SteadyClock`] | `steady` |
//! | which versions of a volume go first | [`ranks`], [`VolumeLimit`] | `volume` |
//! | how much of the audit log to discard | [`AuditLimit`] | `audit` |
//! | a policy that a program of the user decides | [`request_json`], [`apply_answer`] | `external` |
//!
//! `builtin.toml` is the configuration that applies where no file says otherwise.
//!
//! Configuration files of users and answers of their programs are hostile input: their size is
//! limited, patterns match in linear time, and no text makes the crate panic.
#![forbid(unsafe_code)]

mod audit;
mod bounds;
mod builtin;
mod config;
mod context;
mod daytime;
mod document;
mod explain;
mod external;
mod glob;
mod policies;
mod problem;
mod quantity;
mod range;
mod retention;
mod selector;
mod settings;
mod steady;
mod subject;
mod thinning;
mod users;
mod verdict;
mod volume;

pub use audit::{AuditLimit, AuditSegment};
pub use builtin::BUILTIN;
pub use config::{AdminConfig, Parsed, UserConfig};
pub use context::Accounts;
pub use daytime::LocalTime;
pub use explain::Reason;
pub use external::{AnswerError, MAX_ANSWER, apply_answer, request_json};
pub use glob::PathPattern;
pub use policies::{Needs, Policies};
pub use problem::{Problem, Severity};
pub use range::{NO_LIMIT, Range};
pub use retention::{decide, may_exceed};
pub use settings::{Generation, Generations, Keep, NoSpace, Storage, Versions};
pub use steady::SteadyClock;
pub use subject::{Effective, External, Subject};
pub use thinning::is_landmark;
pub use users::{Access, UserAccess};
pub use verdict::{Decision, DiscardReason, KeepReason, Now, Verdict, VersionInfo};
pub use volume::{FREE_FRACTION, Rank, VolumeLimit, VolumeMax, ranks};
