//! `versionctl browse`: a time machine on the terminal.
//!
//! `state` is a state machine without input and output, `draw` draws it. This file reads keys and
//! the directory, and carries out what the state machine asks for.

mod draw;
mod state;

use super::args::{Chosen, Now};
use super::client::Dir;
use super::diff;
use super::history::entries;
use super::links::{State, is_other};
use super::place::{self, Place};
use super::put::{Origin, put};
use crate::exit::Failure;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use rustix::fs::FileType;
use state::{Browser, Content, Effect, Head, Key};
use std::io::IsTerminal as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use versionclient::Kind;

/// Most bytes of a file that are shown.
const LIMIT: u64 = 1 << 20;

/// Runs the command.
///
/// # Errors
/// Not a terminal; names the directory and the reason.
pub(crate) fn run(path: &Path, now: &Now) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err(Failure::system("browse needs a terminal; use versionctl log and restore"));
    }
    let mut session = Session::open(path.to_owned(), now)?;
    let mut terminal = ratatui::try_init().map_err(|error| broken(&error))?;
    let done = session.serve(&mut terminal);
    ratatui::restore();
    done
}

fn broken(error: &std::io::Error) -> Failure {
    Failure::system(format!("the terminal can't be used: {error}"))
}

/// A directory on the terminal.
struct Session<'a> {
    path: PathBuf,
    dir: Dir,
    now: &'a Now,
    browser: Browser,
}

/// Reads the directory: its entries and their histories.
fn read(dir: &Dir, path: &Path, now: &Now) -> Result<Browser, Failure> {
    let mut heads = Vec::new();
    for (name, _) in entries(dir)?.into_iter().filter(|_| !dir.is_old) {
        let Some(stat) = dir.stat(&name)? else { continue };
        let kind = Kind::of(FileType::from_raw_mode(stat.st_mode));
        let (size, born) = (u64::try_from(stat.st_size).unwrap_or(0), dir.born(&name));
        heads.push(Head { name, kind, size, born });
    }
    let mut sets = Vec::new();
    for named in dir.names()? {
        if let Some(list) = dir.list(&named.name)? {
            sets.push((named.name, list));
        }
    }
    Ok(Browser::new(super::text::shown(path), heads, sets, now.0.clone()))
}

impl<'a> Session<'a> {
    fn open(path: PathBuf, now: &'a Now) -> Result<Self, Failure> {
        let dir = place::directory(&path)?;
        let browser = read(&dir, &path, now)?;
        let mut session = Self { path, dir, now, browser };
        session.preview();
        Ok(session)
    }

    fn serve(&mut self, terminal: &mut ratatui::DefaultTerminal) -> Result<(), Failure> {
        loop {
            terminal.draw(|frame| draw::draw(&self.browser, frame)).map_err(|error| broken(&error))?;
            let Event::Key(pressed) = event::read().map_err(|error| broken(&error))? else { continue };
            if pressed.kind == KeyEventKind::Release {
                continue;
            }
            if pressed.modifiers.contains(KeyModifiers::CONTROL) && pressed.code == KeyCode::Char('c') {
                return Ok(());
            }
            let Some(key) = key_of(pressed.code) else { continue };
            if self.carry_out(key) {
                return Ok(());
            }
        }
    }

    /// Handles a key. Returns whether that was the end.
    fn carry_out(&mut self, key: Key) -> bool {
        let effect = self.browser.press(key);
        let done = match effect {
            Effect::Quit => return true,
            Effect::None => Ok(()),
            Effect::Preview => {
                self.preview();
                Ok(())
            }
            Effect::Restore => self.restore(),
            Effect::Enter(name) => self.go(self.path.join(std::ffi::OsStr::from_bytes(&name))),
            Effect::Leave => self.path.canonicalize().map_or(Ok(()), |here| match here.parent() {
                Some(parent) => self.go(parent.to_owned()),
                None => Ok(()),
            }),
        };
        if let Err(failure) = done {
            self.browser.message = failure.reason;
        }
        false
    }

    /// Shows another directory, at the same time.
    fn go(&mut self, path: PathBuf) -> Result<(), Failure> {
        let time = self.browser.time();
        let mut next = Self::open(path, self.now)?;
        next.browser.go_to(time);
        next.preview();
        *self = next;
        Ok(())
    }

    /// Loads the content of the selected entry, then and now.
    fn preview(&mut self) {
        let content = self.load().unwrap_or_else(|failure| Content::Other(failure.reason));
        self.browser.show(content);
    }

    fn load(&self) -> Result<Content, Failure> {
        let Some(entry) = self.browser.selected() else { return Ok(Content::Other(String::new())) };
        if entry.kind != Kind::File {
            return Ok(Content::Other(format!("a {}", entry.kind.word())));
        }
        let dir = Dir::open(&self.path).or_else(|_| place::directory(&self.path))?;
        let place = Place { dir, name: entry.name.clone(), lost: Vec::new() };
        let read = |chosen: &Chosen| {
            let bytes = diff::read_up_to(&diff::open(&place, chosen)?, LIMIT);
            bytes.map_err(|error| Failure::mount(error.to_string()))
        };
        let then = read(&entry.version.clone().map_or(Chosen::Head, |version| Chosen::Version(Box::new(version))))?;
        let now = if entry.exists_now { read(&Chosen::Head)? } else { Some(Vec::new()) };
        Ok(match (then, now) {
            (Some(then), Some(now)) if !diff::is_binary(&then) => Content::Text { then, now },
            (Some(then), Some(now)) if then == now => Content::Other("binary, as it is now".to_owned()),
            (Some(_), Some(_)) => Content::Other("binary, different from now".to_owned()),
            _ => Content::Other("too large to show".to_owned()),
        })
    }

    fn restore(&mut self) -> Result<(), Failure> {
        let Some(entry) = self.browser.selected() else { return Ok(()) };
        let Some(version) = entry.version.clone() else { return Ok(()) };
        let name = entry.name.clone();
        let token = self.dir.token(&name, version.number)?;
        let target = Dir::open(&self.path).map_err(|errno| super::client::at(&self.path, errno))?;
        let origin = Origin { dir: &self.dir, entry: &token, mode: Some(version.mode) };
        let replaces = is_other((State::Version(&version), origin), &target, &name, false)?;
        put(origin, &target, &name, replaces)?;
        let mut browser = read(&self.dir, &self.path, self.now)?;
        browser.select(&name);
        browser.message = format!("{}: restored version {}", super::text::name(&name), version.number);
        self.browser = browser;
        self.preview();
        Ok(())
    }
}

fn key_of(code: KeyCode) -> Option<Key> {
    Some(match code {
        KeyCode::Left | KeyCode::Char('h') => Key::Earlier,
        KeyCode::Right | KeyCode::Char('l') => Key::Later,
        KeyCode::Up | KeyCode::Char('k') => Key::Up,
        KeyCode::Down | KeyCode::Char('j') => Key::Down,
        KeyCode::Enter => Key::Enter,
        KeyCode::Backspace => Key::Leave,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown | KeyCode::Char(' ') => Key::PageDown,
        KeyCode::Char('d') => Key::Pane,
        KeyCode::Char('r') => Key::Restore,
        KeyCode::Char('y') => Key::Yes,
        KeyCode::Char('q') | KeyCode::Esc => Key::Quit,
        _ => return None,
    })
}
