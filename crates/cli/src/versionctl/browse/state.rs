//! The state machine of the browser: what is shown at which time, and what a key does.

use super::super::diff::unified;
use super::super::history::{Then, then};
use super::super::when::{local, relative};
use crate::change_list::harmless;
use jiff::{Timestamp, Zoned};
use versionclient::{Kind, List, Version};

/// Lines that a page key scrolls.
const PAGE: usize = 10;

/// An entry of the directory as it is now.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) name: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) size: u64,
    /// When it was created, if that is known.
    pub(crate) born: Option<Timestamp>,
}

impl Head {
    /// Returns what it was at a time. Without versions, only its creation is known.
    fn then<'a>(&self, time: Option<Timestamp>, list: Option<&'a List>) -> Then<'a> {
        match (time, list.filter(|list| !list.versions.is_empty())) {
            (None, _) => Then::Present,
            (Some(time), Some(list)) => then(list, time),
            (Some(time), None) if self.born.is_some_and(|born| time < born) => Then::Absent,
            (Some(_), None) => Then::Present,
        }
    }
}

/// An entry at the time that is shown.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) size: u64,
    /// The version; `None` if it is as it is now.
    pub(crate) version: Option<Version>,
    pub(crate) exists_now: bool,
}

/// The content of the selected entry.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Text {
        then: Vec<u8>,
        now: Vec<u8>,
    },
    /// Anything else, in words.
    Other(String),
}

/// What a key asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    Quit,
    /// Load the content of the selected entry.
    Preview,
    /// Restore the selected entry.
    Restore,
    Enter(Vec<u8>),
    Leave,
}

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Earlier,
    Later,
    Up,
    Down,
    Enter,
    Leave,
    PageUp,
    PageDown,
    Pane,
    Restore,
    Yes,
    Quit,
}

/// The browser.
#[derive(Debug)]
pub(crate) struct Browser {
    pub(crate) title: String,
    heads: Vec<Head>,
    sets: Vec<(Vec<u8>, List)>,
    /// The times just before a change, oldest first.
    instants: Vec<Timestamp>,
    /// The position in `instants`; its length is the present.
    at: usize,
    pub(crate) entries: Vec<Entry>,
    pub(crate) cursor: usize,
    pub(crate) shows_diff: bool,
    pub(crate) scroll: usize,
    /// Whether the next key confirms a restore.
    pub(crate) asks: bool,
    pub(crate) message: String,
    content: Content,
    now: Zoned,
}

impl Browser {
    /// Returns the browser, at the present.
    pub(crate) fn new(title: String, heads: Vec<Head>, sets: Vec<(Vec<u8>, List)>, now: Zoned) -> Self {
        let before = |version: &Version| version.died.checked_sub(jiff::SignedDuration::from_nanos(1)).ok();
        let mut instants: Vec<_> = sets.iter().flat_map(|(_, list)| list.versions.iter().filter_map(before)).collect();
        instants.sort_unstable();
        instants.dedup();
        let mut browser = Self {
            title,
            heads,
            sets,
            at: instants.len(),
            instants,
            entries: Vec::new(),
            cursor: 0,
            shows_diff: false,
            scroll: 0,
            asks: false,
            message: String::new(),
            content: Content::Other(String::new()),
            now,
        };
        browser.refresh();
        browser
    }

    /// Returns the time that is shown; `None` for the present.
    pub(crate) fn time(&self) -> Option<Timestamp> {
        self.instants.get(self.at).copied()
    }

    /// Shows the directory at a time.
    pub(crate) fn go_to(&mut self, time: Option<Timestamp>) {
        self.at = time.map_or(self.instants.len(), |time| self.instants.partition_point(|instant| *instant < time));
        self.refresh();
    }

    /// Selects an entry by name.
    pub(crate) fn select(&mut self, name: &[u8]) {
        self.cursor = self.entries.iter().position(|entry| entry.name == name).unwrap_or(0);
    }

    /// Returns the selected entry.
    pub(crate) fn selected(&self) -> Option<&Entry> {
        self.entries.get(self.cursor)
    }

    /// Takes the content of the selected entry.
    pub(crate) fn show(&mut self, content: Content) {
        self.content = content;
        self.scroll = 0;
    }

    /// Handles a key.
    pub(crate) fn press(&mut self, key: Key) -> Effect {
        self.message.clear();
        if self.asks {
            self.asks = false;
            return if key == Key::Yes { Effect::Restore } else { Effect::None };
        }
        match key {
            Key::Quit => Effect::Quit,
            Key::Earlier => self.travel(self.at.saturating_sub(1)),
            Key::Later => self.travel((self.at + 1).min(self.instants.len())),
            Key::Up => self.choose(self.cursor.saturating_sub(1)),
            Key::Down => self.choose((self.cursor + 1).min(self.entries.len().saturating_sub(1))),
            Key::PageUp => self.scroll_to(self.scroll.saturating_sub(PAGE)),
            Key::PageDown => self.scroll_to((self.scroll + PAGE).min(self.lines().len().saturating_sub(1))),
            Key::Pane => {
                self.shows_diff = !self.shows_diff;
                self.scroll_to(0)
            }
            Key::Leave => Effect::Leave,
            Key::Enter => match self.selected() {
                Some(entry) if entry.kind == Kind::Directory => Effect::Enter(entry.name.clone()),
                _ => Effect::None,
            },
            Key::Restore => {
                self.asks = self.selected().is_some_and(|entry| entry.version.is_some());
                if !self.asks {
                    "it is as it was then; go back with the left arrow".clone_into(&mut self.message);
                }
                Effect::None
            }
            Key::Yes => Effect::None,
        }
    }

    fn travel(&mut self, at: usize) -> Effect {
        let name = self.selected().map(|entry| entry.name.clone());
        self.at = at;
        self.refresh();
        self.select(&name.unwrap_or_default());
        Effect::Preview
    }

    fn choose(&mut self, cursor: usize) -> Effect {
        self.cursor = cursor;
        Effect::Preview
    }

    fn scroll_to(&mut self, scroll: usize) -> Effect {
        self.scroll = scroll;
        Effect::None
    }

    /// Computes the entries at the time that is shown. At present, removed ones are listed as they
    /// were last.
    fn refresh(&mut self) {
        let set_of = |name: &[u8]| self.sets.iter().find(|(other, _)| other == name).map(|(_, list)| list);
        let mut entries = Vec::new();
        for head in &self.heads {
            let was = head.then(self.time(), set_of(&head.name));
            let present = |version| Entry {
                name: head.name.clone(),
                kind: head.kind,
                size: head.size,
                version,
                exists_now: true,
            };
            match was {
                Then::Absent => {}
                Then::Present => entries.push(present(None)),
                Then::Was(version) => {
                    let version = version.clone();
                    entries.push(Entry { kind: version.kind, size: version.size, ..present(Some(version)) });
                }
            }
        }
        for (name, list) in self.sets.iter().filter(|(name, _)| self.heads.iter().all(|head| head.name != *name)) {
            let version = match self.time().map(|time| then(list, time)) {
                Some(Then::Was(version)) => Some(version),
                Some(_) => None,
                None => list.newest_other(),
            };
            entries.extend(version.map(|version| Entry {
                name: name.clone(),
                kind: version.kind,
                size: version.size,
                version: Some(version.clone()),
                exists_now: false,
            }));
        }
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        self.cursor = self.cursor.min(entries.len().saturating_sub(1));
        self.entries = entries;
    }

    /// Returns the lines of the pane with the content.
    pub(crate) fn lines(&self) -> Vec<String> {
        let bytes = match &self.content {
            Content::Other(text) => return vec![harmless(text.as_bytes())],
            Content::Text { then, now } if self.shows_diff => unified(then, now, "then", "now", false),
            Content::Text { then, .. } => then.clone(),
        };
        if bytes.is_empty() {
            return vec![if self.shows_diff { "as it is now" } else { "empty" }.to_owned()];
        }
        harmless(&bytes).lines().map(|line| line.replace('\t', "    ")).collect()
    }

    /// Returns the position in time, in words.
    pub(crate) fn timeline(&self) -> String {
        let place = format!("{} of {}", self.at + 1, self.instants.len() + 1);
        match self.time() {
            None => format!("now ({place})"),
            Some(time) => format!("{}, {} ({place})", local(time, &self.now), relative(time, self.now.timestamp())),
        }
    }

    /// Returns the part of the timeline before the time that is shown, from 0 to 1.
    pub(crate) fn ratio(&self) -> f64 {
        let (at, all) =
            (u32::try_from(self.at).unwrap_or(u32::MAX), u32::try_from(self.instants.len()).unwrap_or(u32::MAX));
        if all == 0 { 1.0 } else { (f64::from(at) / f64::from(all)).min(1.0) }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::versionctl::when::tests::noon;

    /// A directory with a file that never changed, and a removed one with two versions.
    pub(crate) fn example() -> Browser {
        let list = versionclient::list(crate::versionctl::tests::LIST).unwrap();
        let head = Head { name: b"kept".into(), kind: Kind::File, size: 3, born: None };
        Browser::new("/mnt".into(), vec![head], vec![(b"gone".into(), list)], noon())
    }

    fn names(browser: &Browser) -> Vec<(String, Option<u64>)> {
        let number = |entry: &Entry| entry.version.as_ref().map(|version| version.number);
        browser.entries.iter().map(|e| (String::from_utf8(e.name.clone()).unwrap(), number(e))).collect()
    }

    #[test]
    fn one_walks_back_and_forth() {
        let mut browser = example();
        let (gone, kept) = ("gone".to_owned(), "kept".to_owned());
        assert_eq!(names(&browser), [(gone.clone(), Some(2)), (kept.clone(), None)]);
        assert!(browser.timeline().starts_with("now (3 of 3)"));
        assert_eq!(browser.press(Key::Earlier), Effect::Preview);
        assert_eq!(names(&browser)[0], (gone.clone(), Some(2)));
        assert_eq!(browser.press(Key::Earlier), Effect::Preview);
        assert_eq!(names(&browser)[0], (gone, Some(1)));
        browser.press(Key::Earlier);
        assert!(browser.timeline().contains("(1 of 3)") && browser.ratio() == 0.0, "{}", browser.timeline());
        for _ in 0..9 {
            browser.press(Key::Later);
        }
        assert!(browser.time().is_none() && browser.ratio() == 1.0);
        browser.go_to(Some(Timestamp::from_second(2500).unwrap()));
        assert_eq!(names(&browser)[0].1, Some(2));
        assert_eq!(names(&browser)[1], (kept, None));
    }

    #[test]
    fn a_file_without_versions_appears_when_it_was_created() {
        let mut browser = example();
        browser.heads[0].born = Some(Timestamp::from_second(2400).unwrap());
        browser.go_to(Some(Timestamp::from_second(2500).unwrap()));
        assert_eq!(names(&browser).len(), 2);
        browser.go_to(Some(Timestamp::from_second(1500).unwrap()));
        assert_eq!(names(&browser), [("gone".to_owned(), Some(1))]);
    }

    #[test]
    fn a_restore_is_confirmed() {
        let mut browser = example();
        assert_eq!((browser.press(Key::Restore), browser.asks), (Effect::None, true));
        assert_eq!((browser.press(Key::Quit), browser.asks), (Effect::None, false));
        browser.press(Key::Restore);
        assert_eq!(browser.press(Key::Yes), Effect::Restore);
        assert_eq!(browser.press(Key::Yes), Effect::None);
        browser.press(Key::Down);
        assert_eq!((browser.press(Key::Restore), browser.asks), (Effect::None, false));
        assert!(browser.message.contains("as it was"));
        assert_eq!(browser.press(Key::Quit), Effect::Quit);
    }

    #[test]
    fn contents_are_shown_and_compared() {
        let mut browser = example();
        browser.show(Content::Text { then: b"a\n\x1b[2Jb\n".into(), now: b"a\n".into() });
        assert_eq!(browser.lines(), ["a", "\\u{1b}[2Jb"]);
        browser.press(Key::Pane);
        assert!(browser.lines().contains(&"-\\u{1b}[2Jb".to_owned()));
        browser.press(Key::PageDown);
        assert!(browser.scroll > 0 && browser.scroll < browser.lines().len());
        browser.press(Key::PageUp);
        assert_eq!(browser.scroll, 0);
        browser.show(Content::Text { then: Vec::new(), now: Vec::new() });
        assert_eq!(browser.lines(), ["as it is now"]);
    }

    #[test]
    fn an_empty_directory_has_no_selection() {
        let mut browser = Browser::new("/".into(), Vec::new(), Vec::new(), noon());
        for key in [Key::Down, Key::Up, Key::Earlier, Key::Later, Key::Enter, Key::PageDown, Key::Restore, Key::Pane] {
            assert_ne!(browser.press(key), Effect::Quit);
            assert!(browser.selected().is_none() && !browser.asks);
        }
    }
}
