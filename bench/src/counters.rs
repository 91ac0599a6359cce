//! Numbers of requests, by opcode, that Strata's servers received.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

/// Command that returns the counts as a JSON object.
const STATS: &str = "server.stats";

/// Requests by opcode.
pub(crate) type Requests = BTreeMap<String, u64>;

/// Returns the counts of the mount at `root`, or `None` if it is not a Strata mount.
pub(crate) fn read(root: &Path) -> Option<Requests> {
    let dir = std::fs::File::open(root).ok()?;
    parse(&fuse::control::call(&dir, STATS, b"").ok()?)
}

/// Parses an object that contains an object of counts per transport. Ignores other members.
fn parse(json: &[u8]) -> Option<Requests> {
    let Value::Object(members) = serde_json::from_slice(json).ok()? else { return None };
    let mut counts = Requests::new();
    for (opcode, count) in members.values().filter_map(Value::as_object).flatten() {
        *counts.entry(opcode.clone()).or_default() += count.as_u64()?;
    }
    Some(counts)
}

/// Returns the requests between two readings, without the second reading itself and without
/// requests that need no reply.
pub(crate) fn between(before: &Requests, after: &Requests) -> Requests {
    let mut sent: Requests = after
        .iter()
        .map(|(name, count)| (name.clone(), count.saturating_sub(before.get(name).copied().unwrap_or(0))))
        .filter(|(name, _)| !matches!(name.as_str(), "FORGET" | "BATCH_FORGET" | "INTERRUPT"))
        .collect();
    if let Some(own) = sent.get_mut("IOCTL") {
        *own = own.saturating_sub(1);
    }
    sent.retain(|_, count| *count > 0);
    sent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reading_and_requests_without_reply_are_not_counted() {
        let before = parse(br#"{"ring": {"LOOKUP": 5, "IOCTL": 1}, "device": {"INIT": 1}}"#).unwrap();
        let after =
            parse(br#"{"ring": {"LOOKUP": 9, "IOCTL": 2, "FORGET": 7, "CREATE": 3}, "device": {"INIT": 1}}"#).unwrap();
        let sent = between(&before, &after);
        assert_eq!(sent, Requests::from([("LOOKUP".to_owned(), 4), ("CREATE".to_owned(), 3)]));
    }

    #[test]
    fn only_requests_of_both_transports_are_counted() {
        let counts = parse(br#"{"ring": {"LOOKUP": 5}, "device": {"LOOKUP": 2}, "offloads": 9}"#).unwrap();
        assert_eq!(counts, Requests::from([("LOOKUP".to_owned(), 7)]));
    }

    #[test]
    fn a_reply_that_is_not_an_object_has_no_counts() {
        assert_eq!(parse(b"[1]"), None);
        assert_eq!(parse(b"{"), None);
    }
}
