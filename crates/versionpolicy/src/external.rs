//! The policy that a program of a user or of the administrator decides.

use crate::range::Range;
use crate::retention::{decide_with, monotonic, protections};
use crate::subject::Effective;
use crate::thinning::Thinning;
use crate::verdict::{Decision, NANOS, Now, VersionInfo};
use core::fmt;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// The longest answer, in bytes. Callers stop reading after one byte more.
pub const MAX_ANSWER: usize = 16 << 20;

/// Why the answer of an external policy is not used. The caller then applies
/// [`crate::decide`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerError {
    /// It is longer than [`MAX_ANSWER`].
    TooLong,
    /// It is not the JSON that is expected; the reason.
    Malformed(String),
    /// It names a version that does not exist.
    UnknownVersion(u64),
}

impl fmt::Display for AnswerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "the answer is longer than {} MiB", MAX_ANSWER >> 20),
            Self::Malformed(reason) => write!(f, "the answer is not {{\"discard\": [NUMBER, ...]}}: {reason}"),
            Self::UnknownVersion(number) => write!(f, "the answer discards version {number}, which does not exist"),
        }
    }
}

impl core::error::Error for AnswerError {}

#[derive(Serialize)]
struct Request<'r> {
    request: u32,
    path: std::borrow::Cow<'r, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<&'r [u8]>,
    now: String,
    number: Limits,
    age: Limits,
    space: Limits,
    versions: Vec<Version>,
}

/// A maximum of `null` is no limit.
#[derive(Serialize)]
struct Limits {
    min: u64,
    max: Option<u64>,
}

#[derive(Serialize)]
struct Version {
    number: u64,
    born: String,
    died: String,
    stored: u64,
    pinned: bool,
    tagged: bool,
    landmark: bool,
    protected: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    discard: Vec<u64>,
}

/// Returns what the program reads on its standard input: one JSON object that ends with a newline.
#[must_use]
pub fn request_json(policy: &Effective, path: &[u8], versions: &[VersionInfo], now: Now) -> String {
    let protected = protections(policy, versions, &monotonic(versions), now);
    let version = |(version, protected): (&VersionInfo, Option<_>)| Version {
        number: version.number,
        born: time(version.born),
        died: time(version.died),
        stored: version.stored,
        pinned: version.pinned,
        tagged: version.tagged,
        landmark: version.landmark,
        protected: protected.is_some(),
    };
    let limits = |range: Range| Limits { min: range.min, max: (range.max != crate::NO_LIMIT).then_some(range.max) };
    let request = Request {
        request: 1,
        path: String::from_utf8_lossy(path),
        path_bytes: core::str::from_utf8(path).is_err().then_some(path),
        now: time(now.at),
        number: limits(policy.number),
        age: limits(policy.age),
        space: limits(policy.space),
        versions: versions.iter().zip(protected).map(version).collect(),
    };
    // Serializing strings and numbers to memory can't fail.
    let mut json = serde_json::to_string(&request).unwrap_or_default();
    json.push('\n');
    json
}

/// `SEC.NNNNNNNNN`, with the fraction counted forward from the second also before the epoch.
fn time(at: i128) -> String {
    format!("{}.{:09}", at.div_euclid(NANOS), at.rem_euclid(NANOS))
}

/// Decides by the answer of the program, which replaces `keep` and `landmarks`. Minimums and
/// maximums apply as in [`crate::decide`]: a protected version stays even if the program discards
/// it.
///
/// # Errors
/// Why the answer is not used.
pub fn apply_answer(
    policy: &Effective,
    versions: &[VersionInfo],
    now: Now,
    answer: &[u8],
) -> Result<Decision, AnswerError> {
    if answer.len() > MAX_ANSWER {
        return Err(AnswerError::TooLong);
    }
    let Answer { discard } =
        serde_json::from_slice(answer).map_err(|error| AnswerError::Malformed(error.to_string()))?;
    let known: HashSet<u64> = versions.iter().map(|version| version.number).collect();
    if let Some(unknown) = discard.iter().find(|number| !known.contains(number)) {
        return Err(AnswerError::UnknownVersion(*unknown));
    }
    Ok(decide_with(policy, versions, now, &Thinning::External(discard.into_iter().collect())))
}
