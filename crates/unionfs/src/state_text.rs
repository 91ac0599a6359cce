//! Paths and names as JSON, in the replies to commands.

use serde_json::{Value, json};

/// Returns a path or name as JSON.
pub(crate) fn text(bytes: &[u8]) -> Value {
    std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text))
}
