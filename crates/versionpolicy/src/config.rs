//! The two kinds of configuration files, parsed.

use crate::audit::AuditLimit;
use crate::bounds::Bounds;
use crate::context::{Accounts, Context};
use crate::document::{Node, Table};
use crate::problem::{Problem, Problems, Severity};
use crate::range::NO_LIMIT;
use crate::selector::{KEYS, Needs, Selector};
use crate::settings::{
    Generation, Generations, Keep, Limit, NoSpace, Origin, Set, Settings, Source, Storage, Versions,
};
use crate::users::UserRules;
use crate::volume::VolumeTable;
use std::sync::Arc;
use toml::de::DeTable;

/// The largest configuration file, in bytes.
const MAX_TEXT: usize = 128 * 1024;

/// The keys that set values, at the top of a file and in its rules.
const SETTINGS: [&str; 9] =
    ["versions", "storage", "number", "age", "space", "keep", "landmarks", "nospace", "external"];

/// The result of reading a configuration file.
#[derive(Clone, Debug)]
pub struct Parsed<T> {
    /// The configuration; `None` if a problem is an error.
    pub config: Option<T>,
    /// Every error and warning, in the order of the file.
    pub problems: Vec<Problem>,
}

/// The administrator's configuration: defaults, rules, and limits on what users configure.
#[derive(Clone, Debug)]
pub struct AdminConfig {
    pub(crate) document: Document,
    pub(crate) bounds: Bounds,
    pub(crate) users: UserRules,
    pub(crate) volume: VolumeTable,
    pub(crate) audit: Option<AuditLimit>,
    /// Whether the built-in configuration applies where this one says nothing.
    pub(crate) builtin: bool,
}

/// The configuration of a user. It takes effect within the administrator's bounds.
#[derive(Clone, Debug)]
pub struct UserConfig {
    pub(crate) document: Document,
}

/// What both kinds of files contain.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    pub(crate) file: Arc<str>,
    pub(crate) defaults: Settings,
    pub(crate) rules: Vec<Rule>,
}

/// A rule: what it selects, and what it sets.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) selector: Selector,
    pub(crate) settings: Settings,
    /// Whether rules of users come before it.
    pub(crate) is_default: bool,
}

impl AdminConfig {
    /// Parses the administrator's file. `file` is its name in messages.
    #[must_use]
    pub fn parse(file: &str, text: &[u8], accounts: &dyn Accounts) -> Parsed<Self> {
        Self::parse_as(Origin::Admin, file, text, accounts)
    }

    pub(crate) fn parse_as(origin: Origin, file: &str, text: &[u8], accounts: &dyn Accounts) -> Parsed<Self> {
        let context = Context::new(origin, None, accounts, None);
        let extra = ["builtin", "bounds", "users", "volume", "audit"];
        parse(file, text, context, &extra, |top, document, problems| {
            let bounds = top.get("bounds").and_then(|node| node.table("a table [bounds]", problems));
            let users = top.get("users").and_then(|node| node.table("a table [users]", problems));
            let volume = top.get("volume").and_then(|node| node.table("a table [volume]", problems));
            let audit = top.get("audit").and_then(|node| node.table("a table [audit]", problems));
            Self {
                document,
                bounds: bounds.map_or_else(Bounds::default, |table| Bounds::read(&table, problems)),
                users: users.map_or_else(UserRules::default, |table| UserRules::read(&table, accounts, problems)),
                volume: volume.map(|table| VolumeTable::read(&table, problems)).unwrap_or_default(),
                audit: audit.map(|table| AuditLimit::read(&table, problems)),
                builtin: top.get("builtin").and_then(|node| node.boolean(problems)).unwrap_or(true),
            }
        })
    }
}

impl UserConfig {
    /// Parses the file of the user `uid`. `~/` in patterns stands for `home`.
    #[must_use]
    pub fn parse(file: &str, text: &[u8], uid: u32, home: Option<&str>, accounts: &dyn Accounts) -> Parsed<Self> {
        let context = Context::new(Origin::User, home, accounts, Some(uid));
        parse(file, text, context, &[], |_, document, _| Self { document })
    }
}

fn parse<T>(
    file: &str,
    text: &[u8],
    mut context: Context<'_>,
    extra: &[&str],
    finish: impl FnOnce(&Table<'_>, Document, &mut Problems<'_>) -> T,
) -> Parsed<T> {
    let file: Arc<str> = file.into();
    let cut = text.get(..MAX_TEXT).unwrap_or(text);
    let (valid, bad) = match core::str::from_utf8(cut) {
        Ok(text) => (text, None),
        Err(error) => {
            let at = error.valid_up_to();
            (cut.get(..at).and_then(|text| core::str::from_utf8(text).ok()).unwrap_or_default(), Some(at))
        }
    };
    let mut problems = Problems::new(Arc::clone(&file), valid);
    if text.len() > MAX_TEXT {
        problems.error(&(0..0), format!("the file is larger than {} KiB; shorten it", MAX_TEXT / 1024));
        return Parsed { config: None, problems: problems.into_sorted() };
    }
    if let Some(at) = bad {
        problems.error(&(at..at), "invalid UTF-8; store the file as UTF-8");
        return Parsed { config: None, problems: problems.into_sorted() };
    }
    let (top, errors) = DeTable::parse_recoverable(valid);
    for error in &errors {
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        problems.error(&error.span().unwrap_or(0..0), format!("not valid TOML: {message}"));
    }
    let top = Table::new(top.get_ref(), top.span());
    let known: Vec<&str> = SETTINGS.iter().chain(&["rule"]).chain(extra).copied().collect();
    expect_top_keys(&top, &known, &context, &mut problems);
    let document = read_document(file, &top, &mut context, &mut problems);
    let config = finish(&top, document, &mut problems);
    let problems = problems.into_sorted();
    let usable = problems.iter().all(|problem| problem.severity == Severity::Warning);
    Parsed { config: usable.then_some(config), problems }
}

fn expect_top_keys(top: &Table<'_>, known: &[&str], context: &Context<'_>, problems: &mut Problems<'_>) {
    if context.origin == Origin::User {
        for key in ["bounds", "users", "volume", "builtin"] {
            if let Some(node) = top.get(key) {
                let place = "it belongs in the administrator's file";
                problems.error(&node.key, format!("{key} is not for users; {place}"));
            }
        }
        let known: Vec<&str> = known.iter().chain(&["bounds", "users", "volume", "builtin"]).copied().collect();
        return top.expect_keys(&known, problems);
    }
    top.expect_keys(known, problems);
}

fn read_document(file: Arc<str>, top: &Table<'_>, context: &mut Context<'_>, problems: &mut Problems<'_>) -> Document {
    let defaults = read_settings(top, context.origin, problems);
    let rules = top.get("rule").map_or_else(Vec::new, |node| node.array("tables [[rule]]", problems));
    let rules = rules.iter().filter_map(|node| {
        let table = node.table("a table [[rule]]", problems)?;
        Some(read_rule(&table, context, problems))
    });
    let rules = rules.collect();
    Document { file, defaults, rules }
}

fn read_rule(table: &Table<'_>, context: &mut Context<'_>, problems: &mut Problems<'_>) -> Rule {
    let is_admin = context.origin != Origin::User;
    let extra = if is_admin { &["default"][..] } else { &[] };
    let known: Vec<&str> = KEYS.iter().chain(&SETTINGS).chain(extra).copied().collect();
    table.expect_keys(&known, problems);
    let selector = Selector::read(table, context, problems);
    let settings = read_settings(table, context.origin, problems);
    let is_default = table.get("default").filter(|_| is_admin).and_then(|node| node.boolean(problems)).unwrap_or(false);
    if settings.is_empty() {
        problems.warning(&table.span, format!("the rule sets nothing; add for example {} = ...", SETTINGS.join(", ")));
    }
    if Selector::is_empty(table) {
        problems.warning(&table.span, "the rule selects every file; write its values at the top of the file instead");
    }
    if let Some(uid) = context.uid
        && !selector.users().is_empty()
        && !selector.users().contains(&uid)
    {
        let message = format!("the rule never matches: this file applies to the user {uid} only; remove user");
        problems.warning(&table.get("user").map_or_else(|| table.span.clone(), |node| node.key), message);
    }
    Rule { selector, settings, is_default: is_default || context.origin == Origin::Builtin }
}

fn read_settings(table: &Table<'_>, origin: Origin, problems: &mut Problems<'_>) -> Settings {
    let source =
        |node: &Node<'_>, problems: &Problems<'_>| Source { origin, line: node.place(problems).line, bound: None };
    let mut settings = Settings::default();
    for (key, min, max) in [
        ("number", Limit::NumberMin, Limit::NumberMax),
        ("age", Limit::AgeMin, Limit::AgeMax),
        ("space", Limit::SpaceMin, Limit::SpaceMax),
    ] {
        let Some(node) = table.get(key) else { continue };
        let source = source(&node, problems);
        let Some(ends) = node.ends(min.quantity(), problems) else { continue };
        for (limit, value) in [(min, ends.min), (max, ends.max)] {
            if let Some(set) = settings.limit_mut(limit) {
                *set = value.map(|value| Set { value, source });
            }
        }
    }
    settings.landmarks = table.get("landmarks").and_then(|node| {
        let value = node.boolean(problems)?;
        Some(Set { value, source: source(&node, problems) })
    });
    settings.versions = table.get("versions").and_then(|node| {
        let value = node.word(&Versions::ALL, &Versions::NAMES, problems)?;
        Some(Set { value, source: source(&node, problems) })
    });
    settings.storage = table.get("storage").and_then(|node| {
        let value = node.word(&Storage::ALL, &Storage::NAMES, problems)?;
        Some(Set { value, source: source(&node, problems) })
    });
    settings.nospace = table.get("nospace").and_then(|node| {
        let value = node.word(&NoSpace::ALL, &NoSpace::NAMES, problems)?;
        Some(Set { value, source: source(&node, problems) })
    });
    settings.keep = table.get("keep").and_then(|node| {
        let value = read_keep(&node, problems)?;
        Some(Set { value, source: source(&node, problems) })
    });
    settings.external = table.get("external").and_then(|node| {
        let value = node.parse("the path of a program", problems, program)?;
        Some(Set { value, source: source(&node, problems) })
    });
    settings
}

fn program(text: &str) -> Result<Arc<str>, String> {
    match text {
        "none" => Ok("".into()),
        path if path.starts_with('/') && !path.contains('\0') => Ok(path.into()),
        path => {
            Err(format!("\"{path}\" is not an absolute path; write for example \"/usr/local/bin/policy\", or none"))
        }
    }
}

fn read_keep(node: &Node<'_>, problems: &mut Problems<'_>) -> Option<Keep> {
    let none = Keep::Generations(Generations::default());
    if node.value.is_str() {
        return node.word(&[Keep::All, none], &["all", "none"], problems);
    }
    let table = node.table("a table such as { hourly = 24, daily = 7 }, \"all\" or \"none\"", problems)?;
    table.expect_keys(&Generation::NAMES, problems);
    let mut counts = [0; 5];
    let mut any = false;
    for (name, count) in Generation::NAMES.iter().zip(&mut counts) {
        let Some(node) = table.get(name) else { continue };
        any = true;
        let value = match node.value.as_str() {
            Some("none") => Some(NO_LIMIT),
            _ => node.integer(),
        };
        match value {
            Some(value) => *count = u32::try_from(value).unwrap_or(u32::MAX),
            None => problems.error(&node.span, "expected a whole number, or \"none\" for no limit"),
        }
    }
    if !any {
        problems.error(&node.span, "no generation is named; write for example { daily = 7 }, or \"none\"");
    }
    Some(Keep::Generations(Generations(counts)))
}

impl Document {
    pub(crate) fn needs(&self) -> Needs {
        self.rules.iter().fold(Needs::default(), |needs, rule| needs.or(rule.selector.needs()))
    }

    /// All values of the file: of its top, then of its rules.
    pub(crate) fn settings_mut(&mut self) -> impl Iterator<Item = &mut Settings> {
        core::iter::once(&mut self.defaults).chain(self.rules.iter_mut().map(|rule| &mut rule.settings))
    }
}
