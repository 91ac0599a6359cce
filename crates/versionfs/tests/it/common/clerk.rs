//! `fsck` over memory, and what it finds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code, reason = "tests")]

use super::policies::cx;
use memfs::MemFs;
use std::sync::Arc;
use versionfs::fsck::{Finding, Inspector, Problem, check};
use vnode::{Layer, Result};

/// What a check found.
#[derive(Debug, Default)]
pub(crate) struct Clerk {
    repairs: bool,
    pub(crate) found: Vec<Problem>,
    /// The same in words.
    pub(crate) texts: Vec<String>,
    /// How many were not repaired.
    pub(crate) left: usize,
    pub(crate) versions: u64,
}

impl Inspector for Clerk {
    fn consents(&mut self, _: &Finding) -> bool {
        self.repairs
    }
    fn ended(&mut self, finding: &Finding, repaired: Option<Result<()>>) {
        self.found.push(finding.problem);
        self.texts.push(finding.to_string());
        self.left += usize::from(repaired != Some(Ok(())));
        assert!(!finding.to_string().is_empty());
    }
    fn checked(&mut self, versions: u64) -> bool {
        self.versions += versions;
        true
    }
}

/// Checks a tree, and repairs what can be if `repairs`.
pub(crate) fn inspect(lower: &Arc<MemFs>, repairs: bool) -> Clerk {
    let mut clerk = Clerk { repairs, ..Clerk::default() };
    let layer: Arc<dyn Layer> = lower.clone();
    assert_eq!(check(&cx(), &layer, &mut clerk), Ok(true));
    clerk
}
