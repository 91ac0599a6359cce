use crate::config::AdminConfig;
use crate::context::Accounts;
use crate::settings::Origin;
use std::sync::{Arc, LazyLock};

/// The text of the built-in configuration, in the language of the administrator's file.
pub const BUILTIN: &str = include_str!("builtin.toml");

/// What messages call it.
const NAME: &str = "built-in";

/// The built-in configuration names no accounts.
struct NoAccounts;

impl Accounts for NoAccounts {
    fn user(&self, _: &str) -> Option<u32> {
        None
    }

    fn group(&self, _: &str) -> Option<u32> {
        None
    }
}

/// The built-in configuration. A test checks that it has no problem, so it is never `None`.
pub(crate) static CONFIG: LazyLock<Option<Arc<AdminConfig>>> = LazyLock::new(|| {
    AdminConfig::parse_as(Origin::Builtin, NAME, BUILTIN.as_bytes(), &NoAccounts).config.map(Arc::new)
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_no_problem() {
        let parsed = AdminConfig::parse_as(Origin::Builtin, NAME, BUILTIN.as_bytes(), &NoAccounts);
        assert_eq!(parsed.problems, []);
        assert!(CONFIG.is_some());
    }
}
