//! Option text with escapes: tells separators from bytes that are part of a value.
//!
//! A backslash makes the next byte literal: `\:` `\=` `\,` `\"` `\\` and `\ `. A backslash and
//! three octal digits represent the byte with that value, as in fstab(5) (`\040` is a space).
//! Between double quotes, which mount(8) also recognizes, no byte is a separator.
//!
//! Brackets enclose a nested stack where one is allowed. No byte in them is a separator until the
//! brackets are removed, and every bracket without a backslash counts. All escapes are decoded at
//! once, so they are written the same at any nesting depth.

/// A byte, and whether it can be a separator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Char {
    byte: u8,
    how: How,
}

/// How a byte was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Plain,
    Escaped,
    Quoted,
}

impl Char {
    fn is(self, byte: u8) -> bool {
        self.how == How::Plain && self.byte == byte
    }

    fn is_blank(self) -> bool {
        self.how == How::Plain && BLANKS.contains(&self.byte)
    }
}

/// White space allowed around a separator.
const BLANKS: &[u8] = b" \t\n";

/// Text with decoded escapes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(Vec<Char>);

/// Why text cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextError {
    /// It ends with a backslash.
    LoneBackslash,
    /// A double quote is not closed.
    OpenQuote,
    /// An escape represents the byte 0, which no path contains.
    Nul,
    /// A bracket is not closed.
    OpenBracket,
}

impl core::fmt::Display for TextError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::LoneBackslash => r"ends with a lone backslash (write \\ for a literal one)",
            Self::OpenQuote => r#"has a double quote that is not closed (write \" for a literal one)"#,
            Self::Nul => "contains a NUL byte",
            Self::OpenBracket => r"has a [ that is not closed (write \[ for a literal one)",
        })
    }
}

impl Text {
    /// Decodes escapes and quotes.
    ///
    /// # Errors
    /// [`TextError`]
    pub fn read(bytes: &[u8]) -> Result<Self, TextError> {
        let mut chars = Vec::with_capacity(bytes.len());
        let mut rest = bytes;
        let mut quoted = false;
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            match byte {
                b'\\' => {
                    let (byte, after) = escaped(rest)?;
                    chars.push(Char { byte, how: if quoted { How::Quoted } else { How::Escaped } });
                    rest = after;
                }
                b'"' => quoted = !quoted,
                0 => return Err(TextError::Nul),
                _ => chars.push(Char { byte, how: if quoted { How::Quoted } else { How::Plain } }),
            }
        }
        if quoted { Err(TextError::OpenQuote) } else { Ok(Self(chars)) }
    }

    /// Returns the decoded bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.0.iter().map(|c| c.byte).collect()
    }

    /// Returns the text with escapes, from which [`Self::read`] gets the same text.
    #[must_use]
    pub fn written(&self) -> String {
        let mut out = String::with_capacity(self.0.len());
        for char in &self.0 {
            match char.byte {
                b'\\' | b'"' => out.extend(['\\', char.byte.into()]),
                b'!'..=b'~' if char.how == How::Plain => out.push(char.byte.into()),
                b'!'..=b'~' if !char.byte.is_ascii_digit() => out.extend(['\\', char.byte.into()]),
                b' ' if char.how == How::Plain => out.push(' '),
                byte => push_octal(&mut out, byte.into()),
            }
        }
        out
    }

    /// Returns the text for messages.
    #[must_use]
    pub fn show(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// Whether the text is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Splits at every separator. Empty text has one empty part.
    #[must_use]
    pub fn split(&self, separator: u8) -> Vec<Self> {
        self.0.split(|c| c.is(separator)).map(|part| Self(part.to_vec())).collect()
    }

    /// Splits at the first separator.
    #[must_use]
    pub fn split_first(&self, separator: u8) -> Option<(Self, Self)> {
        self.split_at(self.0.iter().position(|c| c.is(separator))?)
    }

    /// Splits at the last separator.
    #[must_use]
    pub fn split_last(&self, separator: u8) -> Option<(Self, Self)> {
        self.split_at(self.0.iter().rposition(|c| c.is(separator))?)
    }

    /// Returns the length in bytes.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the byte at this position is this separator.
    pub(crate) fn is(&self, at: usize, byte: u8) -> bool {
        self.0.get(at).is_some_and(|c| c.is(byte))
    }

    /// Whether the byte at this position is this separator, with blanks on both sides.
    pub(crate) fn is_spaced(&self, at: usize, byte: u8) -> bool {
        let blank = |at: usize| self.0.get(at).is_some_and(|c| c.is_blank());
        self.is(at, byte) && at.checked_sub(1).is_some_and(blank) && blank(at + 1)
    }

    /// Returns a part of the text.
    pub(crate) fn part(&self, range: core::ops::Range<usize>) -> Self {
        Self(self.0.get(range).unwrap_or_default().to_vec())
    }

    /// Returns the position of the closing bracket. Between the two, every bracket counts.
    pub(crate) fn close(&self, open: usize) -> Result<usize, TextError> {
        let mut depth = 0_usize;
        for (at, c) in self.0.iter().enumerate().skip(open) {
            match c {
                c if c.is(b'[') => depth += 1,
                c if c.is(b']') => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return Ok(at);
            }
        }
        Err(TextError::OpenBracket)
    }

    /// Returns the end of the list of branches that begins at `begin`: the first byte outside of a
    /// branch's brackets for which `ends` holds. A bracket opens only at the start of a branch.
    pub(crate) fn end_of_branches(&self, begin: usize, ends: impl Fn(usize) -> bool) -> Result<usize, TextError> {
        let (mut at, mut is_begin) = (begin, true);
        while at < self.len() && !ends(at) {
            if is_begin && self.is(at, b'[') {
                at = self.close(at)?;
            }
            is_begin = self.is(at, b':');
            at += 1;
        }
        Ok(at.min(self.len()))
    }

    /// Returns the content of brackets. If all of it is in double quotes, its escapes are decoded
    /// again. This allows lists in the options of mount(8), which splits at every comma outside of
    /// quotes.
    pub(crate) fn without_brackets(&self) -> Result<Self, TextError> {
        let inner = self.part(1..self.len().saturating_sub(1)).trim();
        if !inner.is_empty() && inner.0.iter().all(|c| c.how == How::Quoted) {
            return Self::read(&inner.bytes());
        }
        Ok(inner)
    }

    /// Removes unescaped blanks at both ends.
    #[must_use]
    pub fn trim(&self) -> Self {
        self.trim_start().trim_end()
    }

    /// Removes unescaped blanks at the start.
    pub(crate) fn trim_start(&self) -> Self {
        let begin = self.0.iter().position(|c| !c.is_blank()).unwrap_or(self.len());
        self.part(begin..self.len())
    }

    /// Removes unescaped blanks at the end.
    pub(crate) fn trim_end(&self) -> Self {
        let end = self.0.iter().rposition(|c| !c.is_blank()).map_or(0, |last| last + 1);
        self.part(0..end)
    }

    fn split_at(&self, at: usize) -> Option<(Self, Self)> {
        let (before, after) = self.0.split_at_checked(at)?;
        Some((Self(before.to_vec()), Self(after.get(1..)?.to_vec())))
    }
}

/// Decodes an escape and returns the rest. `rest` begins after the backslash.
fn escaped(rest: &[u8]) -> Result<(u8, &[u8]), TextError> {
    if let [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] = rest {
        let byte = (a - b'0') << 6 | (b - b'0') << 3 | (c - b'0');
        return if byte == 0 { Err(TextError::Nul) } else { Ok((byte, after)) };
    }
    match rest.split_first() {
        Some((0, _)) => Err(TextError::Nul),
        Some((&byte, after)) => Ok((byte, after)),
        None => Err(TextError::LoneBackslash),
    }
}

/// Escapes a path so that [`Text::read`] decodes it, both on the command line and in fstab(5),
/// where mount(8) decodes octal escapes before a helper sees them. Separators get a backslash;
/// white space, control characters and invalid UTF-8 become octal.
#[must_use]
pub fn escape(path: &[u8]) -> String {
    let mut out = String::with_capacity(path.len());
    let mut after_backslash = false;
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                // In fstab(5), a literal backslash followed by three digits would be decoded as
                // octal.
                '0'..='7' if after_backslash => push_octal(&mut out, c as u32),
                ':' | '=' | ',' | '"' | '\\' | '[' | ']' => out.extend(['\\', c]),
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

    proptest! {
        #[test]
        fn written_text_is_read_back(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(text) = Text::read(&bytes) {
                prop_assert_eq!(Text::read(text.written().as_bytes()).map(|again| again.bytes()), Ok(text.bytes()));
            }
            let literal = escape(&bytes);
            if let Ok(text) = Text::read(literal.as_bytes()) {
                let again = Text::read(text.written().as_bytes()).unwrap();
                for separator in [b':', b'=', b','] {
                    prop_assert_eq!(text.split(separator).len(), again.split(separator).len());
                }
            }
        }
    }

    fn read(s: &str) -> Text {
        Text::read(s.as_bytes()).unwrap()
    }

    fn parts(s: &str, separator: u8) -> Vec<String> {
        read(s).split(separator).iter().map(Text::show).collect()
    }

    #[test]
    fn a_backslash_makes_a_separator_literal() {
        assert_eq!(parts(r"/a:/b\:c:/d\\:/e", b':'), ["/a", "/b:c", r"/d\", "/e"]);
        assert_eq!(parts(r"a\,b,c", b','), ["a,b", "c"]);
        assert_eq!(parts(r"\x\ \=", b','), ["x ="]);
    }

    #[test]
    fn octal_is_read_as_in_fstab() {
        assert_eq!(read(r"/a\040b\011\134").bytes(), b"/a b\t\\");
        assert_eq!(parts(r"/a\072b:/c", b':'), ["/a:b", "/c"]);
        // Not three octal digits, or more than a byte: a literal byte.
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
    fn brackets_are_closed() {
        let close = |s: &str| read(s).close(0);
        assert_eq!((close("[a]b"), close("[a[b]c]d]"), close(r"[\]\[\134]")), (Ok(2), Ok(6), Ok(4)));
        assert_eq!(close(r#"["]"]"#), Ok(2));
        for open in ["[", "[a", "[[a]", r"[a\]"] {
            assert_eq!(close(open), Err(TextError::OpenBracket), "{open}");
        }
    }

    #[test]
    fn a_list_of_branches_ends_outside_of_brackets() {
        let end = |s: &str| {
            let text = read(s);
            text.end_of_branches(0, |at| text.is(at, b','))
        };
        assert_eq!((end("[a,b]=ro,c"), end("/a:[b,c],d"), end("/a")), (Ok(8), Ok(8), Ok(2)));
        // Elsewhere, a bracket is part of a path.
        assert_eq!((end("/a[b,c]"), end("/a]:b[,"), end(r"\[a,b]")), (Ok(4), Ok(6), Ok(2)));
        assert_eq!((end("[a"), end("/a:[b,c")), (Err(TextError::OpenBracket), Err(TextError::OpenBracket)));
    }

    #[test]
    fn quotes_in_brackets_are_read_again() {
        let inner = |s: &str| read(s).without_brackets().unwrap();
        assert_eq!(inner("[a,b]").split(b',').len(), 2);
        assert_eq!(inner(r#"["a,b"]"#).split(b',').len(), 2);
        assert_eq!(inner(r#"["a,"b]"#).split(b',').len(), 1);
        assert_eq!(inner(r#"[\a\,\b]"#).split(b',').len(), 1);
        assert_eq!(inner(r#"["a\\,\"b\""]"#).bytes(), b"a,b");
        assert!(inner("[]").is_empty() && inner(r#"[""]"#).is_empty());
        assert_eq!(read(r#"["a\\"]"#).without_brackets(), Err(TextError::LoneBackslash));
    }

    #[test]
    fn invalid_text_is_refused() {
        assert_eq!(Text::read(br"a\"), Err(TextError::LoneBackslash));
        assert_eq!(Text::read(br#"a"b"#), Err(TextError::OpenQuote));
        assert_eq!(Text::read(br"a\000"), Err(TextError::Nul));
        assert_eq!(Text::read(b"a\0"), Err(TextError::Nul));
        assert_eq!(Text::read(b"a\\\0"), Err(TextError::Nul));
    }

    /// Decodes a field of fstab(5) like mount(8).
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
        assert_eq!(escape(b"/a b/c:d[1]"), r"/a\040b/c\:d\[1\]");
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
