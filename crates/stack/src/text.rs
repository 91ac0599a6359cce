//! Option text with escapes: which bytes separate, and which are only part of a path.
//!
//! A backslash takes the meaning from the byte after it: `\:` `\=` `\,` `\"` `\\` and `\ ` stand for the byte itself.
//! A backslash and three octal digits stand for the byte of that number, as in fstab(5) (`\040` is a space).
//! Between double quotes, which mount(8) knows too, no byte separates.

/// A byte, and whether it may separate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Char {
    byte: u8,
    plain: bool,
}

/// White space that may stand around a separator.
const BLANKS: &[u8] = b" \t\n";

/// Text whose escapes have been read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(Vec<Char>);

/// Why text can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It ends with a backslash that escapes nothing.
    LoneBackslash,
    /// A double quote is not closed.
    OpenQuote,
    /// An escape stands for the byte 0, which no path holds.
    Nul,
}

impl core::fmt::Display for Wrong {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::LoneBackslash => r"ends with a lone backslash: write \\ for one that is meant",
            Self::OpenQuote => r#"has a double quote that is not closed: write \" for one that is meant"#,
            Self::Nul => "has a NUL byte in it",
        })
    }
}

impl Text {
    /// Reads escapes and quotes.
    ///
    /// # Errors
    /// [`Wrong`]
    pub fn read(bytes: &[u8]) -> Result<Self, Wrong> {
        let mut chars = Vec::with_capacity(bytes.len());
        let mut rest = bytes;
        let mut quoted = false;
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            match byte {
                b'\\' => {
                    let (byte, after) = escaped(rest)?;
                    chars.push(Char { byte, plain: false });
                    rest = after;
                }
                b'"' => quoted = !quoted,
                0 => return Err(Wrong::Nul),
                _ => chars.push(Char { byte, plain: !quoted }),
            }
        }
        if quoted { Err(Wrong::OpenQuote) } else { Ok(Self(chars)) }
    }

    /// The bytes meant.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.0.iter().map(|c| c.byte).collect()
    }

    /// For messages.
    #[must_use]
    pub fn show(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// Nothing at all?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The parts between separators. Empty text has one empty part.
    #[must_use]
    pub fn split(&self, separator: u8) -> Vec<Self> {
        self.0.split(|c| c.plain && c.byte == separator).map(|part| Self(part.to_vec())).collect()
    }

    /// What is before and after the first separator.
    #[must_use]
    pub fn split_first(&self, separator: u8) -> Option<(Self, Self)> {
        self.split_at(self.0.iter().position(|c| c.plain && c.byte == separator)?)
    }

    /// What is before and after the last separator.
    #[must_use]
    pub fn split_last(&self, separator: u8) -> Option<(Self, Self)> {
        self.split_at(self.0.iter().rposition(|c| c.plain && c.byte == separator)?)
    }

    /// The parts between separators that have a blank on both sides, without the blanks around them.
    #[must_use]
    pub fn split_spaced(&self, separator: u8) -> Vec<Self> {
        let is = |at: Option<&Char>, wanted: &[u8]| at.is_some_and(|c| c.plain && wanted.contains(&c.byte));
        let all = self.trim();
        let (mut parts, mut begin) = (Vec::new(), 0);
        for at in 1..all.0.len() {
            if is(all.0.get(at), &[separator]) && is(all.0.get(at - 1), BLANKS) && is(all.0.get(at + 1), BLANKS) {
                parts.push(Self(all.0.get(begin..at).unwrap_or_default().to_vec()).trim());
                begin = at + 1;
            }
        }
        parts.push(Self(all.0.get(begin..).unwrap_or_default().to_vec()).trim());
        parts
    }

    /// Without the blanks at both ends that are not escaped.
    #[must_use]
    pub fn trim(&self) -> Self {
        let blank = |c: &Char| c.plain && BLANKS.contains(&c.byte);
        let begin = self.0.iter().position(|c| !blank(c)).unwrap_or(self.0.len());
        let end = self.0.iter().rposition(|c| !blank(c)).map_or(begin, |last| last + 1);
        Self(self.0.get(begin..end).unwrap_or_default().to_vec())
    }

    fn split_at(&self, at: usize) -> Option<(Self, Self)> {
        let (before, after) = self.0.split_at_checked(at)?;
        Some((Self(before.to_vec()), Self(after.get(1..)?.to_vec())))
    }
}

/// The byte that an escape stands for, and what follows the escape. `rest` begins after the backslash.
fn escaped(rest: &[u8]) -> Result<(u8, &[u8]), Wrong> {
    if let [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] = rest {
        let byte = (a - b'0') << 6 | (b - b'0') << 3 | (c - b'0');
        return if byte == 0 { Err(Wrong::Nul) } else { Ok((byte, after)) };
    }
    match rest.split_first() {
        Some((0, _)) => Err(Wrong::Nul),
        Some((&byte, after)) => Ok((byte, after)),
        None => Err(Wrong::LoneBackslash),
    }
}

/// Writes a path so that [`Text::read`] gives it back, on a command line as well as in fstab(5), where mount(8) turns octal
/// into bytes before a helper sees them: what separates gets a backslash; white space, control characters and what is not
/// UTF-8 octal.
#[must_use]
pub fn escape(path: &[u8]) -> String {
    let mut out = String::with_capacity(path.len());
    let mut after_backslash = false;
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                // fstab(5) would take a backslash that is meant, and three digits after it, for octal.
                '0'..='7' if after_backslash => push_octal(&mut out, c as u32),
                ':' | '=' | ',' | '"' | '\\' => out.extend(['\\', c]),
                ' ' | '\0'..='\x1f' | '\x7f' => push_octal(&mut out, c as u32),
                _ => out.push(c),
            }
            after_backslash = c == '\\';
        }
        for &byte in chunk.invalid() {
            push_octal(&mut out, byte.into());
            after_backslash = false;
        }
    }
    out
}

fn push_octal(out: &mut String, byte: u32) {
    out.push('\\');
    out.extend([6, 3, 0].map(|shift| char::from_digit(byte >> shift & 7, 8).unwrap_or('0')));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(s: &str) -> Text {
        Text::read(s.as_bytes()).unwrap()
    }

    fn parts(s: &str, separator: u8) -> Vec<String> {
        read(s).split(separator).iter().map(Text::show).collect()
    }

    #[test]
    fn a_backslash_takes_the_meaning_away() {
        assert_eq!(parts(r"/a:/b\:c:/d\\:/e", b':'), ["/a", "/b:c", r"/d\", "/e"]);
        assert_eq!(parts(r"a\,b,c", b','), ["a,b", "c"]);
        assert_eq!(parts(r"\x\ \=", b','), ["x ="]);
    }

    #[test]
    fn octal_is_read_as_in_fstab() {
        assert_eq!(read(r"/a\040b\011\134").bytes(), b"/a b\t\\");
        assert_eq!(parts(r"/a\072b:/c", b':'), ["/a:b", "/c"]);
        // Not three octal digits, or more than a byte: the byte after the backslash.
        assert_eq!(read(r"\04").bytes(), b"04");
        assert_eq!(read(r"\400").bytes(), b"400");
        assert_eq!(read(r"\377").bytes(), b"\xff");
    }

    #[test]
    fn quotes_keep_separators() {
        assert_eq!(parts(r#"dirs="/a,b:c"=rw,x"#, b','), ["dirs=/a,b:c=rw", "x"]);
        assert_eq!(read(r#""/a=b:c"=rw"#).split_last(b'=').unwrap().0.show(), "/a=b:c");
        assert_eq!(read(r#"a\"b"#).bytes(), b"a\"b");
    }

    #[test]
    fn splits_are_at_the_first_and_the_last_separator() {
        let text = read(r"a=b\=c=d");
        let show = |(a, b): (Text, Text)| (a.show(), b.show());
        assert_eq!(text.split_first(b'=').map(show), Some(("a".into(), "b=c=d".into())));
        assert_eq!(text.split_last(b'=').map(show), Some(("a=b=c".into(), "d".into())));
        assert_eq!(read("a").split_first(b'='), None);
    }

    #[test]
    fn a_spaced_separator_needs_blanks() {
        let parts = |s: &str| read(s).split_spaced(b'/').iter().map(Text::show).collect::<Vec<_>>();
        assert_eq!(parts("a / b,c=d  /\t/srv/x y "), ["a", "b,c=d", "/srv/x y"]);
        assert_eq!(parts("a / /"), ["a", "/"]);
        assert_eq!(parts(r"a\ / b"), ["a / b"]);
        assert_eq!(parts("\"a / b\" / c"), ["a / b", "c"]);
        assert_eq!(parts(r"a / b\ "), ["a", "b "]);
        assert_eq!(parts("a/b"), ["a/b"]);
        assert_eq!(parts("a / / b"), ["a", "", "b"]);
        assert_eq!(parts(" "), [""]);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        assert_eq!(Text::read(br"a\"), Err(Wrong::LoneBackslash));
        assert_eq!(Text::read(br#"a"b"#), Err(Wrong::OpenQuote));
        assert_eq!(Text::read(br"a\000"), Err(Wrong::Nul));
        assert_eq!(Text::read(b"a\0"), Err(Wrong::Nul));
        assert_eq!(Text::read(b"a\\\0"), Err(Wrong::Nul));
    }

    /// What mount(8) makes of a field of fstab(5).
    fn fstab(field: &str) -> Vec<u8> {
        let mut out = Vec::new();
        let mut rest = field.as_bytes();
        while let [byte, after @ ..] = rest {
            rest = match rest {
                [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                    out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                    after
                }
                _ => {
                    out.push(*byte);
                    after
                }
            };
        }
        out
    }

    #[test]
    fn escapes_are_readable() {
        assert_eq!(escape(b"/a b/c:d"), r"/a\040b/c\:d");
        assert_eq!(escape(br"/a\040"), r"/a\\\06040");
        assert_eq!(escape("/ä\u{1}".as_bytes()), "/ä\\001");
        assert_eq!(escape(b"/\xff"), r"/\377");
    }

    proptest! {
        #[test]
        fn an_escaped_path_is_read_back(path in proptest::collection::vec(1u8.., 0..40)) {
            let text = Text::read(escape(&path).as_bytes()).unwrap();
            prop_assert_eq!(text.bytes(), path.clone());
            prop_assert_eq!(Text::read(&fstab(&escape(&path))).unwrap().bytes(), path.clone());
            for separator in *b":=,\" " {
                prop_assert_eq!(text.split(separator).len(), 1);
            }
        }

        #[test]
        fn a_list_of_escaped_paths_is_read_back(paths in proptest::collection::vec(proptest::collection::vec(1u8.., 1..12), 1..6)) {
            let line = paths.iter().map(|p| escape(p)).collect::<Vec<_>>().join(":");
            let read: Vec<_> = Text::read(line.as_bytes()).unwrap().split(b':').iter().map(Text::bytes).collect();
            prop_assert_eq!(read, paths);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(text) = Text::read(&bytes) {
                prop_assert!(text.bytes().len() <= bytes.len());
            }
        }
    }
}
