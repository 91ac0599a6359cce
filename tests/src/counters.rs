use std::collections::BTreeMap;
use std::path::Path;

/// The command that answers how many requests of each kind the kernel has sent.
const STATS: &str = "server.stats";

/// Requests that the kernel sends when it finds the time: not part of what an operation costs, and not counted at a
/// known moment.
const LATE: [&str; 5] = ["FORGET", "BATCH_FORGET", "RELEASE", "RELEASEDIR", "INTERRUPT"];

/// How many requests of each opcode the server has answered since it was mounted, and other things that it counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests(BTreeMap<String, u64>);

impl Requests {
    /// Asks the mount at `root`. The asking itself is a request (`IOCTL`), or more where the answer is long.
    pub fn of(root: &Path) -> Self {
        let text = text(root, STATS);
        Self::parse(&text).unwrap_or_else(|| panic!("not the counters that were expected: {text}"))
    }

    /// Parses a JSON object of numbers and of objects of numbers; what is in several of those is added up.
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

    /// What was counted under that name.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// What `what` made the kernel send, opcode by opcode (only those that were sent, and not those that it sends later, when
    /// it finds the time), at the mount `root`.
    pub fn during(root: &Path, what: impl FnOnce()) -> Self {
        // Opening a directory costs a request once, where it costs one at all.
        let _opened = Self::of(root);
        let asked = text(root, STATS);
        let before = Self::parse(&asked).expect("counters");
        what();
        let after = Self::of(root);
        let mut sent: BTreeMap<String, u64> =
            after.0.iter().map(|(name, n)| (name.clone(), n - before.get(name))).collect();
        // The first of the two questions is in the second answer.
        if let Some(n) = sent.get_mut("IOCTL") {
            *n = n.saturating_sub(asked.len().div_ceil(fuse::control::PIECE_MAX) as u64);
        }
        sent.retain(|name, n| {
            *n > 0 && !LATE.contains(&name.as_str()) && name.bytes().all(|b| !b.is_ascii_lowercase())
        });
        Self(sent)
    }

    /// How many in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Those that are not of these opcodes.
    #[must_use]
    pub fn except(&self, opcodes: &[&str]) -> Self {
        Self(
            self.0.iter().filter(|(name, _)| !opcodes.contains(&name.as_str())).map(|(n, v)| (n.clone(), *v)).collect(),
        )
    }
}

/// What the server of a mount answers to a command.
pub(crate) fn text(root: &Path, command: &str) -> String {
    let answer = std::fs::File::open(root).map_err(|e| e.to_string());
    let answer = answer.and_then(|dir| fuse::control::call(&dir, command, b"").map_err(|e| e.to_string()));
    let answer = answer.unwrap_or_else(|e| panic!("{command} of {}: {e}", root.display()));
    String::from_utf8(answer).expect("text")
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
