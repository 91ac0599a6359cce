//! How many requests the kernel has sent to a server, by opcode, as Strata's servers count them.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

/// The virtual attribute of a mount's root that answers the counts as a JSON object.
const ATTRIBUTE: &str = "user.strata.requests";

/// Requests by opcode.
pub(crate) type Requests = BTreeMap<String, u64>;

/// The counts of the mount at `root`; `None` if it is not a mount of ours.
pub(crate) fn read(root: &Path) -> Option<Requests> {
    let mut buffer = vec![0_u8; 64 << 10];
    let len = rustix::fs::getxattr(root, ATTRIBUTE, &mut buffer[..]).ok()?;
    parse(buffer.get(..len)?)
}

/// Reads a JSON object of counts, or an object whose only object holds them.
fn parse(json: &[u8]) -> Option<Requests> {
    let Value::Object(outer) = serde_json::from_slice(json).ok()? else { return None };
    let inner = outer.values().find_map(Value::as_object).unwrap_or(&outer);
    let counts = inner.iter().filter_map(|(name, count)| Some((name.to_ascii_uppercase(), count.as_u64()?)));
    Some(counts.filter(|(name, _)| name != "TOTAL").collect())
}

/// What was sent between two readings, without the second reading itself and without what needs no answer.
pub(crate) fn between(before: &Requests, after: &Requests) -> Requests {
    let mut sent: Requests = after
        .iter()
        .map(|(name, count)| (name.clone(), count.saturating_sub(before.get(name).copied().unwrap_or(0))))
        .filter(|(name, _)| !matches!(name.as_str(), "FORGET" | "BATCH_FORGET" | "INTERRUPT"))
        .collect();
    if let Some(own) = sent.get_mut("GETXATTR") {
        *own = own.saturating_sub(1);
    }
    sent.retain(|_, count| *count > 0);
    sent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reading_and_unanswered_requests_are_not_counted() {
        let before = parse(br#"{"LOOKUP": 5, "GETXATTR": 1, "FORGET": 0}"#).unwrap();
        let after = parse(br#"{"LOOKUP": 9, "GETXATTR": 2, "FORGET": 7, "CREATE": 3, "total": 21}"#).unwrap();
        let sent = between(&before, &after);
        assert_eq!(sent, Requests::from([("LOOKUP".to_owned(), 4), ("CREATE".to_owned(), 3)]));
    }

    #[test]
    fn counts_may_lie_one_level_down() {
        let counts = parse(br#"{"transport": "ring", "requests": {"lookup": 5}}"#).unwrap();
        assert_eq!(counts, Requests::from([("LOOKUP".to_owned(), 5)]));
    }

    #[test]
    fn what_is_not_an_object_is_no_count() {
        assert_eq!(parse(b"[1]"), None);
        assert_eq!(parse(b"{"), None);
    }
}
