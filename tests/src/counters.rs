use std::collections::BTreeMap;
use std::path::Path;

/// The name under which the root of a mount tells how many requests of each kind the kernel has sent.
const ATTRIBUTE: &str = "user.strata.requests";

/// How many requests of each opcode the server has answered since it was mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests(BTreeMap<String, u64>);

impl Requests {
    /// Asks the mount at `root`. The asking itself is a request (`GETXATTR`), which is not in the answer.
    pub fn of(root: &Path) -> Self {
        let mut buffer = vec![0_u8; 65536];
        let len = rustix::fs::getxattr(root, ATTRIBUTE, &mut buffer)
            .unwrap_or_else(|e| panic!("{ATTRIBUTE} of {}: {e}", root.display()));
        let text = std::str::from_utf8(&buffer[..len]).expect("the counters are text");
        Self::parse(text).unwrap_or_else(|| panic!("not a JSON object of numbers: {text}"))
    }

    /// Parses a JSON object whose values are numbers.
    fn parse(text: &str) -> Option<Self> {
        let body = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
        let mut counts = BTreeMap::new();
        if body.is_empty() {
            return Some(Self(counts));
        }
        for pair in body.split(',') {
            let (name, value) = pair.split_once(':')?;
            let name = name.trim().strip_prefix('"')?.strip_suffix('"')?;
            counts.insert(name.to_ascii_uppercase(), value.trim().parse().ok()?);
        }
        Some(Self(counts))
    }

    /// What was counted under that name.
    #[must_use]
    pub fn get(&self, opcode: &str) -> u64 {
        self.0.get(opcode).copied().unwrap_or(0)
    }

    /// What `what` made the kernel send, opcode by opcode (only those that were sent), at the mount `root`.
    pub fn during(root: &Path, what: impl FnOnce()) -> Self {
        let before = Self::of(root);
        what();
        let after = Self::of(root);
        let mut sent: BTreeMap<String, u64> =
            after.0.iter().map(|(name, n)| (name.clone(), n - before.get(name))).collect();
        // The first of the two questions is in the second answer.
        if let Some(n) = sent.get_mut("GETXATTR") {
            *n = n.saturating_sub(1);
        }
        sent.retain(|_, n| *n > 0);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_of_numbers() {
        let r = Requests::parse("{ \"LOOKUP\": 3, \"getattr\":12 }").unwrap();
        assert_eq!((r.get("LOOKUP"), r.get("GETATTR"), r.get("READ"), r.total()), (3, 12, 0, 15));
        assert_eq!(Requests::parse("{}"), Some(Requests::default()));
        assert_eq!(Requests::parse("[]"), None);
        assert_eq!(Requests::parse("{\"a\": \"b\"}"), None);
    }
}
