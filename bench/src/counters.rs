//! How many requests the kernel has sent to a server, by opcode, as Strata's servers count them.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

/// The command that answers the counts as a JSON object.
const STATS: &str = "server.stats";

/// Requests by opcode.
pub(crate) type Requests = BTreeMap<String, u64>;

/// The counts of the mount at `root`; `None` if it is not a mount of ours.
pub(crate) fn read(root: &Path) -> Option<Requests> {
    let dir = std::fs::File::open(root).ok()?;
    parse(&fuse::control::call(&dir, STATS, b"").ok()?)
}

/// Reads an object that holds an object of counts for each transport; other members are not requests.
fn parse(json: &[u8]) -> Option<Requests> {
    let Value::Object(members) = serde_json::from_slice(json).ok()? else { return None };
    let mut counts = Requests::new();
    for (opcode, count) in members.values().filter_map(Value::as_object).flatten() {
        *counts.entry(opcode.clone()).or_default() += count.as_u64()?;
    }
    Some(counts)
}

/// What was sent between two readings, without the second reading itself and without what needs no answer.
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
    fn the_reading_and_unanswered_requests_are_not_counted() {
        let before = parse(br#"{"ring": {"LOOKUP": 5, "IOCTL": 1}, "device": {"INIT": 1}}"#).unwrap();
        let after =
            parse(br#"{"ring": {"LOOKUP": 9, "IOCTL": 2, "FORGET": 7, "CREATE": 3}, "device": {"INIT": 1}}"#).unwrap();
        let sent = between(&before, &after);
        assert_eq!(sent, Requests::from([("LOOKUP".to_owned(), 4), ("CREATE".to_owned(), 3)]));
    }

    #[test]
    fn both_transports_are_counted_and_nothing_else_is() {
        let counts = parse(br#"{"ring": {"LOOKUP": 5}, "device": {"LOOKUP": 2}, "offloads": 9}"#).unwrap();
        assert_eq!(counts, Requests::from([("LOOKUP".to_owned(), 7)]));
    }

    #[test]
    fn what_is_not_an_object_is_no_count() {
        assert_eq!(parse(b"[1]"), None);
        assert_eq!(parse(b"{"), None);
    }
}
