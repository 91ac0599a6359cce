//! Checks a union with fsck.unionfs, and repairs it as an administrator would.

use super::test_union::TestUnion;
use std::collections::BTreeSet;
use std::path::Path;
use unionfs::fsck::{Consent, Finding, Inspector, Problem, Severity, check};
use vnode::Errno;

/// Which repairs are made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Consents {
    None,
    Safe,
    All,
}

/// An administrator, and what was reported.
pub struct Admin {
    consents: Consents,
    pub found: Vec<Finding>,
    failed: Vec<(Finding, Errno)>,
    pub repaired: usize,
    not_checked: Vec<(Vec<u8>, Errno)>,
}

impl Admin {
    /// Returns an administrator who agrees to these repairs.
    pub fn new(consents: Consents) -> Self {
        Self { consents, found: Vec::new(), failed: Vec::new(), repaired: 0, not_checked: Vec::new() }
    }

    /// Returns the kinds of findings.
    pub fn problems(&self) -> BTreeSet<Problem> {
        self.found.iter().map(|finding| finding.problem).collect()
    }

    /// Returns the findings that are errors.
    pub fn errors(&self) -> Vec<&Finding> {
        self.found.iter().filter(|finding| finding.severity() != Severity::Note).collect()
    }

    /// Fails if a repair failed, or a part was not checked.
    pub fn expect_no_failures(&self) -> Result<(), String> {
        match (self.failed.first(), self.not_checked.first()) {
            (None, None) => Ok(()),
            failures => Err(format!("{failures:?}")),
        }
    }
}

impl Inspector for Admin {
    fn found(&mut self, finding: &Finding) -> bool {
        self.found.push(finding.clone());
        match (self.consents, finding.repair()) {
            (Consents::None, _) | (_, None) => false,
            (Consents::Safe, Some(repair)) => repair.consent == Consent::Safe,
            (Consents::All, Some(_)) => true,
        }
    }

    fn repaired(&mut self, finding: &Finding, result: vnode::Result<()>) {
        match result {
            Ok(()) => self.repaired += 1,
            Err(errno) => self.failed.push((finding.clone(), errno)),
        }
    }

    fn not_checked(&mut self, _branch: &Path, path: &[u8], errno: Errno) {
        self.not_checked.push((path.to_vec(), errno));
    }

    fn restarts(&mut self) {}

    fn progress(&mut self, checked: u64, known: u64) -> bool {
        assert!(checked <= known, "{checked} of {known}");
        true
    }
}

/// Checks the branches of a union that is not mounted.
pub fn fsck(union: &TestUnion, consents: Consents) -> Result<Admin, String> {
    let mut admin = Admin::new(consents);
    check(&union.own_branches(), &mut admin).map_err(|error| error.to_string())?;
    Ok(admin)
}
