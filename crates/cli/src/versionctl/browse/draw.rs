//! Draws the browser: the timeline, the directory, the content, the keys.

use super::state::{Browser, Entry};
use crate::progress::amount;
use crate::versionctl::text;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, List, ListItem, ListState, Paragraph};
use versionclient::Kind;

const KEYS: &str =
    "\u{2190} \u{2192} time  \u{2191} \u{2193} select  Enter open  Backspace up  d difference  r restore  q quit";

/// Draws a frame.
pub(crate) fn draw(browser: &Browser, frame: &mut Frame<'_>) {
    let [top, middle, bottom] =
        Layout::vertical([Constraint::Length(3), Constraint::Min(3), Constraint::Length(1)]).areas(frame.area());
    let [left, right] = Layout::horizontal([Constraint::Percentage(40), Constraint::Percentage(60)]).areas(middle);
    let timeline = Gauge::default()
        .block(Block::bordered().title(browser.title.as_str()))
        .gauge_style(Style::new().fg(Color::Blue))
        .label(browser.timeline())
        .ratio(browser.ratio());
    frame.render_widget(timeline, top);
    directory(browser, frame, left);
    content(browser, frame, right);
    frame.render_widget(Paragraph::new(status(browser)), bottom);
}

fn directory(browser: &Browser, frame: &mut Frame<'_>, area: Rect) {
    let items: Vec<_> = browser.entries.iter().map(item).collect();
    let list = List::new(items)
        .block(Block::bordered().title("directory"))
        .highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let selected = (!browser.entries.is_empty()).then_some(browser.cursor);
    frame.render_stateful_widget(list, area, &mut ListState::default().with_selected(selected));
}

fn item(entry: &Entry) -> ListItem<'static> {
    let mark = match (entry.exists_now, &entry.version) {
        (false, _) => '-',
        (true, Some(_)) => '~',
        (true, None) => ' ',
    };
    let name = text::name(&entry.name);
    let line = match entry.kind {
        Kind::Directory => format!("{mark} {name}/"),
        Kind::File => format!("{mark} {name}  {}", amount(entry.size)),
        kind => format!("{mark} {name}  {}", kind.word()),
    };
    let style = match mark {
        '-' => Style::new().fg(Color::Red),
        '~' => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    };
    ListItem::new(line).style(style)
}

fn content(browser: &Browser, frame: &mut Frame<'_>, area: Rect) {
    let title = if browser.shows_diff { "from then to now" } else { "content" };
    let height = usize::from(area.height);
    let lines = browser.lines();
    let lines = lines.into_iter().skip(browser.scroll).take(height).map(|line| {
        let style = match line.as_bytes().first() {
            Some(b'+') if browser.shows_diff => Style::new().fg(Color::Green),
            Some(b'-') if browser.shows_diff => Style::new().fg(Color::Red),
            _ => Style::new(),
        };
        Line::styled(line, style)
    });
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).block(Block::bordered().title(title)), area);
}

fn status(browser: &Browser) -> String {
    match browser.selected().filter(|_| browser.asks) {
        Some(entry) => {
            let number = entry.version.as_ref().map_or(0, |version| version.number);
            format!("Restore {} to version {number}? y: yes, any other key: no", text::name(&entry.name))
        }
        None if !browser.message.is_empty() => browser.message.clone(),
        None => KEYS.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::{Content, Key, tests::example};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(browser: &Browser, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(browser, frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn removed_entries_are_marked() {
        let mut browser = example();
        browser.show(Content::Text { then: b"old text\n".into(), now: Vec::new() });
        let text = drawn(&browser, 80, 12);
        for part in ["/mnt", "now (3 of 3)", "- gone  7 bytes", "  kept  3 bytes", "old text", "q quit"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        browser.press(Key::Pane);
        assert!(drawn(&browser, 80, 12).contains("-old text"));
        browser.press(Key::Restore);
        assert!(drawn(&browser, 80, 12).contains("Restore gone to version 2? y: yes"));
    }

    #[test]
    fn any_size_of_terminal_is_drawn() {
        let mut browser = example();
        browser.show(Content::Text { then: "line\n".repeat(1000).into_bytes(), now: Vec::new() });
        for (width, height) in [(1, 1), (5, 3), (300, 2), (20, 100)] {
            let _ = drawn(&browser, width, height);
        }
    }
}
