//! The question at the end, on a terminal.

use rustix::termios::{InputModes, LocalModes, OptionalActions, OutputModes};
use std::io::{BufRead as _, IsTerminal as _, Write as _};

/// What to do with the changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Commit,
    Discard,
    Keep,
    Show,
}

const QUESTION: &str = "Commit to the host (c), discard (d), keep in the sandbox (k), show all (s)? ";

/// Whether somebody can answer.
pub(super) fn is_possible() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Prints a text to the terminal.
pub(super) fn show(text: &[u8]) {
    let _ = std::io::stderr().write_all(text);
}

/// Asks until there is an answer. The end of the input means to keep.
pub(super) fn ask() -> Answer {
    loop {
        discard_input();
        show(QUESTION.as_bytes());
        let mut line = String::new();
        match std::io::stdin().lock().read_line(&mut line) {
            Ok(0) | Err(_) => return Answer::Keep,
            Ok(_) => {}
        }
        if let Some(answer) = parse(&line) {
            return answer;
        }
    }
}

/// Drops what was typed before the question: it was meant for the command, or the terminal wrote it
/// in reply to the command. The command may also have left the terminal in another mode.
fn discard_input() {
    let input = std::io::stdin();
    if let Ok(mut settings) = rustix::termios::tcgetattr(&input) {
        settings.local_modes |= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        settings.input_modes |= InputModes::ICRNL;
        settings.output_modes |= OutputModes::OPOST | OutputModes::ONLCR;
        let _ = rustix::termios::tcsetattr(&input, OptionalActions::Flush, &settings);
    }
}

fn parse(line: &str) -> Option<Answer> {
    match line.trim().to_ascii_lowercase().as_str() {
        "c" | "commit" => Some(Answer::Commit),
        "d" | "discard" => Some(Answer::Discard),
        "k" | "keep" => Some(Answer::Keep),
        "s" | "show" => Some(Answer::Show),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_words_or_letters() {
        assert_eq!(parse(" C\n"), Some(Answer::Commit));
        assert_eq!(parse("discard\n"), Some(Answer::Discard));
        assert_eq!((parse("\n"), parse("yes")), (None, None));
    }
}
