use std::collections::BTreeMap;
use std::path::Path;

/// Command that returns the number of requests per opcode.
const STATS: &str = "server.stats";

/// Opcodes that the kernel sends asynchronously. They are excluded from an operation's cost,
/// because they arrive at no predictable time.
const ASYNCHRONOUS: [&str; 5] = ["FORGET", "BATCH_FORGET", "RELEASE", "RELEASEDIR", "INTERRUPT"];

/// The server's counters: requests per opcode since the mount, and other counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests(BTreeMap<String, u64>);

impl Requests {
    /// Reads the counters of the mount at `root`. Reading them costs an `IOCTL` request, or several
    /// if the reply is long.
    pub fn of(root: &Path) -> Self {
        let text = text(root, STATS);
        Self::parse(&text).unwrap_or_else(|| panic!("unexpected format of the counters: {text}"))
    }

    /// Parses a JSON object of numbers and of objects of numbers. Adds up numbers of the same name.
    fn parse(text: &str) -> Option<Self> {
        let body = text.trim().strip_prefix('{')?.strip_suffix('}')?;
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for pair in body.split([',', '{', '}']).map(str::trim).filter(|p| !p.is_empty()) {
            let (name, value) = pair.split_once(':')?;
            let name = name.trim().strip_prefix('"')?.strip_suffix('"')?;
            if !value.trim().is_empty() {
                *counts.entry(name.to_owned()).or_default() += value.trim().parse::<u64>().ok()?;
            }
        }
        Some(Self(counts))
    }

    /// Returns the count of that name, 0 if there is none.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Returns the requests that `what` causes at the mount `root`, by opcode. Omits zero counts
    /// and the opcodes in [`ASYNCHRONOUS`].
    pub fn during(root: &Path, what: impl FnOnce()) -> Self {
        // Opens the directory once beforehand: on some mounts the first open costs a request.
        let _opened = Self::of(root);
        let first = text(root, STATS);
        let before = Self::parse(&first).expect("counters");
        what();
        let after = Self::of(root);
        let mut sent: BTreeMap<String, u64> =
            after.0.iter().map(|(name, n)| (name.clone(), n - before.get(name))).collect();
        // The second reading includes the requests of the first.
        if let Some(n) = sent.get_mut("IOCTL") {
            *n = n.saturating_sub(first.len().div_ceil(fuse::control::PIECE_MAX) as u64);
        }
        sent.retain(|name, n| {
            *n > 0 && !ASYNCHRONOUS.contains(&name.as_str()) && name.bytes().all(|b| !b.is_ascii_lowercase())
        });
        Self(sent)
    }

    /// Returns the sum of all counts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns the counts without those of `opcodes`.
    #[must_use]
    pub fn except(&self, opcodes: &[&str]) -> Self {
        Self(
            self.0.iter().filter(|(name, _)| !opcodes.contains(&name.as_str())).map(|(n, v)| (n.clone(), *v)).collect(),
        )
    }
}

/// Returns the server's reply to a control command.
pub(crate) fn text(root: &Path, command: &str) -> String {
    let reply = std::fs::File::open(root).map_err(|e| e.to_string());
    let reply = reply.and_then(|dir| fuse::control::call(&dir, command, b"").map_err(|e| e.to_string()));
    let reply = reply.unwrap_or_else(|e| panic!("{command} of {}: {e}", root.display()));
    String::from_utf8(reply).expect("text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_of_numbers() {
        let r =
            Requests::parse("{\"ring\":{\"LOOKUP\":2,\"READ\":1},\"device\":{\"LOOKUP\":1},\"passthrough_opens\":7}")
                .unwrap();
        assert_eq!((r.get("LOOKUP"), r.get("READ"), r.get("WRITE"), r.get("passthrough_opens")), (3, 1, 0, 7));
        assert_eq!(r.except(&["passthrough_opens", "READ"]).total(), 3);
        assert_eq!(Requests::parse("{}"), Some(Requests::default()));
        assert_eq!(Requests::parse("[]"), None);
        assert_eq!(Requests::parse("{\"a\": \"b\"}"), None);
    }
}
