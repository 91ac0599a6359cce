use crate::{Answer, Classifier, Condition, Rule};
use parking_lot::RwLock;
use vnode::{Cx, Result};

/// A list of rules, of which the first that a caller meets decides. It can be changed at any time.
#[derive(Debug, Default)]
pub struct Rules {
    rules: RwLock<Vec<Rule>>,
}

impl Rules {
    /// Returns these rules, in this order.
    #[must_use]
    pub const fn new(rules: Vec<Rule>) -> Self {
        Self { rules: RwLock::new(rules) }
    }

    /// Puts a rule before all others. An earlier one with the same condition is dropped.
    pub fn add(&self, rule: Rule) {
        let mut rules = self.rules.write();
        rules.retain(|other| other.condition != rule.condition);
        rules.insert(0, rule);
    }

    /// Removes the rule with this condition. Returns false if there is none.
    pub fn remove(&self, condition: &Condition) -> bool {
        let mut rules = self.rules.write();
        let before = rules.len();
        rules.retain(|rule| rule.condition != *condition);
        rules.len() < before
    }

    /// Returns the rules in order.
    #[must_use]
    pub fn list(&self) -> Vec<Rule> {
        self.rules.read().clone()
    }
}

impl Classifier for Rules {
    fn classify(&self, cx: &Cx<'_>) -> Result<Answer> {
        if crate::is_servers_own(cx) {
            return Ok(Answer::Pass);
        }
        for rule in &*self.rules.read() {
            match rule.condition.holds(cx) {
                Some(true) => return Ok(Answer::View(rule.view)),
                Some(false) => {}
                None => return Ok(Answer::Unknown),
            }
        }
        Ok(Answer::Pass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;
    use std::path::PathBuf;
    use vnode::{Call, Processes};

    /// Knows one process.
    #[derive(Debug)]
    struct One;

    impl Processes for One {
        fn groups(&self, pid: u32) -> Option<Vec<u32>> {
            (pid == 20).then(|| vec![50])
        }

        fn umask(&self, _pid: u32) -> Option<u32> {
            None
        }

        fn session(&self, _pid: u32) -> Option<(u32, u64)> {
            None
        }

        fn executable(&self, pid: u32) -> Option<PathBuf> {
            (pid == 20).then(|| "/bin/x (deleted)".into())
        }

        fn cgroup(&self, pid: u32) -> Option<Vec<u8>> {
            (pid == 20).then(|| b"/bad/inner".to_vec())
        }
    }

    fn of_pid(condition: &str, pid: u32) -> Answer {
        let condition = Condition::parse(condition.as_bytes()).unwrap();
        let rules = Rules::new(vec![Rule { condition, view: 1 }]);
        let (never, call) = (AtomicBool::new(false), Call::new(&One));
        rules.classify(&Cx::new(100, 40, pid, 0, true, &never).with_call(&call)).unwrap()
    }

    #[test]
    fn a_caller_meets_the_conditions_of_its_process() {
        let met = ["uid=100", "gid=40", "gid=50", "cgroup=/bad", "cgroup=/bad/inner/", "cgroup=/"];
        for condition in met.into_iter().chain(["exe=/bin/x"]) {
            assert_eq!(of_pid(condition, 20), Answer::View(1), "{condition}");
        }
        for condition in ["uid=0", "gid=60", "cgroup=/ba", "cgroup=/bad/inner/x", "exe=/bin/y"] {
            assert_eq!(of_pid(condition, 20), Answer::Pass, "{condition}");
        }
    }

    #[test]
    fn a_caller_whose_process_is_invisible_is_unknown() {
        for condition in ["gid=60", "cgroup=/bad", "exe=/bin/x"] {
            assert_eq!(of_pid(condition, 77), Answer::Unknown, "{condition}");
        }
        assert_eq!((of_pid("uid=100", 77), of_pid("gid=40", 77)), (Answer::View(1), Answer::View(1)));
    }

    #[test]
    fn rules_do_not_apply_to_the_servers_own_work() {
        let rules = Rules::new(vec![Rule { condition: Condition::User(0), view: 1 }]);
        assert_eq!(rules.classify(&Cx::internal(0, 0)), Ok(Answer::Pass));
    }

    #[test]
    fn wrong_conditions_are_refused() {
        for (text, why) in [
            ("uid", "not a condition"),
            ("uid=", "not a number"),
            ("uid=-1", "not a number"),
            ("uid=root", "not a number"),
            ("gid=4294967296", "not a number"),
            ("pid=7", "unknown condition"),
            ("cgroup=bad", "not an absolute path"),
            ("exe=", "not an absolute path"),
            ("host=x", "unknown condition"),
        ] {
            assert!(Condition::parse(text.as_bytes()).unwrap_err().contains(why), "{text}");
        }
        let shown = Condition::parse(b"cgroup=/a/b/").unwrap().to_string();
        assert_eq!(shown, "cgroup=/a/b");
    }

    #[test]
    fn the_rule_added_last_comes_first() {
        let rule = |uid, view| Rule { condition: Condition::User(uid), view };
        let rules = Rules::new(vec![rule(1, 0), rule(2, 0)]);
        rules.add(rule(3, 1));
        rules.add(rule(2, 1));
        assert_eq!(rules.list(), [rule(2, 1), rule(3, 1), rule(1, 0)]);
        assert!(rules.remove(&Condition::User(3)) && !rules.remove(&Condition::User(3)));
        assert_eq!(rules.list().len(), 2);
    }
}
