//! Glob patterns over bytes, matched in one pass without back-tracking.
//!
//! A pattern is compiled to a bit-parallel automaton (Shift-And): one bit for each position in the
//! pattern, and for each byte a mask of the positions that accept it. Matching costs one step for
//! each byte and 64 positions, whatever the pattern: users write patterns, and a root process
//! matches them.

use std::collections::BTreeSet;

/// The longest pattern, in bytes. Long enough for any path that is written by hand.
const MAX_PATTERN: usize = 1024;
/// The most alternatives that the braces of one pattern may stand for.
const MAX_ALTERNATIVES: usize = 64;

/// A compiled pattern.
#[derive(Clone, Debug)]
pub(crate) struct Glob {
    alternatives: Vec<Matcher>,
}

/// A pattern for paths, as in the selectors of a policy.
#[derive(Clone, Debug)]
pub struct PathPattern {
    glob: Glob,
    /// Whether only the last name of a path is matched.
    is_name: bool,
}

impl PathPattern {
    /// Compiles a pattern: `*` (not a slash), `**` (anything), `?`, `[a-z]`, `[!a-z]`, `{a,b}`.
    /// With a slash it is matched with the whole path, otherwise with the last name.
    ///
    /// # Errors
    /// What is wrong and what to write instead.
    pub fn new(pattern: &[u8]) -> Result<Self, String> {
        let is_name = !pattern.contains(&b'/');
        Ok(Self { glob: Glob::from_bytes(pattern, if is_name { Kind::Name } else { Kind::Path })?, is_name })
    }

    /// Whether the pattern matches an absolute path.
    #[must_use]
    pub fn matches(&self, path: &[u8]) -> bool {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        self.glob.matches(if self.is_name { name } else { path })
    }
}

/// One alternative of a pattern. The common forms have a matcher that is faster than the automaton.
#[derive(Clone, Debug)]
enum Matcher {
    /// No wildcard.
    Exact(Vec<u8>),
    /// `*SUFFIX` for names, which contain no slash.
    Suffix(Vec<u8>),
    /// `**/MIDDLE/**`: `/MIDDLE/` occurs somewhere.
    Inside(Vec<u8>),
    Automaton(Box<Automaton>),
}

/// What a pattern is matched with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A string without slashes: the name of a file or of a program.
    Name,
    /// A path that begins with a slash.
    Path,
}

impl Glob {
    /// Compiles a pattern: `*` (not a slash), `**` (anything), `?`, `[a-z]`, `[!a-z]`, `{a,b}`,
    /// and a backslash before a character that stands for itself.
    ///
    /// # Errors
    /// What is wrong and what to write instead.
    pub(crate) fn new(pattern: &str, kind: Kind) -> Result<Self, String> {
        Self::from_bytes(pattern.as_bytes(), kind).map_err(|reason| format!("pattern \"{pattern}\": {reason}"))
    }

    fn from_bytes(pattern: &[u8], kind: Kind) -> Result<Self, String> {
        if pattern.is_empty() {
            return Err("it is empty and matches nothing; remove it".to_owned());
        }
        if pattern.len() > MAX_PATTERN {
            return Err(format!("it is longer than {MAX_PATTERN} bytes; shorten it with *"));
        }
        let expanded = expand(pattern)?;
        let alternatives = expanded.iter().map(|pattern| Matcher::new(&tokens(pattern)?, kind));
        Ok(Self { alternatives: alternatives.collect::<Result<_, String>>()? })
    }

    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        self.alternatives.iter().any(|matcher| matcher.matches(text))
    }

    /// The only texts that the pattern matches, if it has no wildcard.
    pub(crate) fn exact(&self) -> Option<Vec<&[u8]>> {
        let exact = |matcher: &'_ Matcher| matches!(matcher, Matcher::Exact(_));
        let texts = self.alternatives.iter().map(|matcher| match matcher {
            Matcher::Exact(text) => text.as_slice(),
            _ => &[],
        });
        self.alternatives.iter().all(exact).then(|| texts.collect())
    }

    /// What the pattern costs in memory: units of 2 KiB, at least one.
    pub(crate) fn cost(&self) -> usize {
        let cost = |matcher: &Matcher| if let Matcher::Automaton(automaton) = matcher { automaton.words } else { 1 };
        self.alternatives.iter().map(cost).sum()
    }

    /// Cuts patterns without wildcard to a length.
    pub(crate) fn truncate_exact(&mut self, length: usize) {
        for matcher in &mut self.alternatives {
            if let Matcher::Exact(text) = matcher {
                text.truncate(length);
            }
        }
    }
}

impl Matcher {
    fn new(tokens: &[Token], kind: Kind) -> Result<Self, String> {
        let literal = |tokens: &[Token]| {
            let bytes = tokens.iter().map(|token| if let Token::Byte(byte) = token { Some(*byte) } else { None });
            bytes.collect::<Option<Vec<u8>>>()
        };
        if let Some(exact) = literal(tokens) {
            return Ok(Self::Exact(exact));
        }
        if let (Kind::Name, [Token::Star | Token::DoubleStar, rest @ ..]) = (kind, tokens)
            && let Some(suffix) = literal(rest)
        {
            return Ok(Self::Suffix(suffix));
        }
        if let [Token::Directories, rest @ .., Token::DoubleStar] = tokens
            && let Some(mut middle) = literal(rest)
            && middle.ends_with(b"/")
            && !middle.starts_with(b"/")
        {
            middle.insert(0, b'/');
            return Ok(Self::Inside(middle));
        }
        Ok(Self::Automaton(Box::new(Automaton::new(tokens))))
    }

    fn matches(&self, text: &[u8]) -> bool {
        match self {
            Self::Exact(exact) => exact == text,
            Self::Suffix(suffix) => text.ends_with(suffix),
            Self::Inside(middle) => contains(text, middle),
            Self::Automaton(automaton) => automaton.matches(text),
        }
    }
}

/// Whether `part`, which begins with a slash, occurs in the text.
fn contains(text: &[u8], part: &[u8]) -> bool {
    let mut slashes = text.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    slashes.any(|(at, _)| text.get(at..).is_some_and(|rest| rest.starts_with(part)))
}

/// A part of a pattern without braces.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Byte(u8),
    /// `?`: any byte but a slash.
    Any,
    /// `[...]`: for each byte, whether it matches.
    Set(Box<[bool; 256]>),
    /// `*`
    Star,
    /// `**`
    DoubleStar,
    /// `**/` at the start of a component: any number of directories, also none. At the start of a
    /// pattern it includes the leading slash of the path.
    Directories,
}

/// Replaces braces by the alternatives that they stand for.
fn expand(pattern: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let mut done = BTreeSet::new();
    let mut todo = vec![pattern.to_vec()];
    while let Some(pattern) = todo.pop() {
        let Some(braces) = Braces::find(&pattern)? else {
            done.insert(pattern);
            continue;
        };
        todo.extend(braces.alternatives(&pattern));
        if todo.len() + done.len() > MAX_ALTERNATIVES {
            return Err(format!("its braces stand for more than {MAX_ALTERNATIVES} patterns; use several patterns"));
        }
    }
    Ok(done.into_iter().collect())
}

/// The first outermost braces of a pattern: where they open and close, and the commas between.
struct Braces {
    open: usize,
    commas: Vec<usize>,
    close: usize,
}

impl Braces {
    fn find(pattern: &[u8]) -> Result<Option<Self>, String> {
        let (mut open, mut depth, mut commas, mut set) = (None, 0_usize, Vec::new(), false);
        let mut bytes = pattern.iter().enumerate();
        while let Some((at, byte)) = bytes.next() {
            match byte {
                b'\\' => drop(bytes.next()),
                b'[' if !set => {
                    set = true;
                    skip_set_start(pattern, at, &mut bytes);
                }
                b']' => set = false,
                _ if set => {}
                b'{' => {
                    open.get_or_insert(at);
                    depth += 1;
                }
                b',' if depth == 1 => commas.push(at),
                b'}' if depth == 1 => return Ok(open.map(|open| Self { open, commas, close: at })),
                b'}' if depth == 0 => return Err("} without {; write \\} for the character".to_owned()),
                b'}' => depth -= 1,
                _ => {}
            }
        }
        if open.is_some() { Err("{ without }; write \\{ for the character".to_owned()) } else { Ok(None) }
    }

    fn alternatives(&self, pattern: &[u8]) -> Vec<Vec<u8>> {
        let part = |from: usize, to: usize| pattern.get(from..to).unwrap_or_default();
        let starts = core::iter::once(self.open).chain(self.commas.iter().copied());
        let ends = self.commas.iter().copied().chain(core::iter::once(self.close));
        let middles = starts.zip(ends).map(|(from, to)| part(from + 1, to));
        middles.map(|middle| [part(0, self.open), middle, part(self.close + 1, pattern.len())].concat()).collect()
    }
}

/// Skips `!`, and a `]` that is a member of the set because it comes first.
fn skip_set_start<'b>(pattern: &[u8], open: usize, bytes: &mut impl Iterator<Item = (usize, &'b u8)>) {
    let negated = matches!(pattern.get(open + 1), Some(b'!' | b'^'));
    if negated {
        bytes.next();
    }
    if pattern.get(open + 1 + usize::from(negated)) == Some(&b']') {
        bytes.next();
    }
}

fn tokens(pattern: &[u8]) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = pattern;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let token = match byte {
            b'*' if after.starts_with(b"*") => {
                let at_start = matches!(tokens.last(), None | Some(Token::Byte(b'/') | Token::Directories));
                while let Some(after) = rest.strip_prefix(b"*") {
                    rest = after;
                }
                match rest.strip_prefix(b"/") {
                    Some(after) if at_start => {
                        rest = after;
                        Token::Directories
                    }
                    _ => Token::DoubleStar,
                }
            }
            b'*' => Token::Star,
            b'?' => Token::Any,
            b'[' => {
                let (set, after) = set(after)?;
                rest = after;
                Token::Set(set)
            }
            b'\\' => {
                let (&byte, after) = after.split_first().ok_or("it ends with a backslash; write \\\\ for one")?;
                rest = after;
                Token::Byte(byte)
            }
            byte => Token::Byte(byte),
        };
        if !(token == Token::Directories && tokens.last() == Some(&Token::Directories)) {
            tokens.push(token);
        }
    }
    Ok(tokens)
}

/// Parses a set after its `[`, and returns what follows its `]`.
fn set(text: &[u8]) -> Result<(Box<[bool; 256]>, &[u8]), String> {
    let negated = matches!(text.first(), Some(b'!' | b'^'));
    let mut rest = text.get(usize::from(negated)..).unwrap_or_default();
    let mut members = Box::new([false; 256]);
    let unclosed = "[ without ]; write \\[ for the character";
    let mut first = true;
    loop {
        let (&low, after) = rest.split_first().ok_or(unclosed)?;
        if low == b']' && !first {
            rest = after;
            break;
        }
        first = false;
        let (high, after) = match after {
            [b'-', high, after @ ..] if *high != b']' => (*high, after),
            _ => (low, after),
        };
        rest = after;
        if low > high {
            return Err(format!(
                "the range {}-{} in [ ] is empty; exchange its ends",
                char::from(low),
                char::from(high)
            ));
        }
        for byte in low..=high {
            if let Some(member) = members.get_mut(usize::from(byte)) {
                *member = true;
            }
        }
    }
    for (byte, member) in members.iter_mut().enumerate() {
        // Like *, a set never matches a slash.
        *member = (*member != negated) && byte != usize::from(b'/');
    }
    Ok((members, rest))
}

/// The bit-parallel automaton. Bit `p` of the state: the text so far matches the tokens before
/// position `p`.
#[derive(Clone, Debug)]
struct Automaton {
    /// Words of 64 bits in a state.
    words: usize,
    /// For each byte, `words` words: the positions that accept it and advance.
    accept: Vec<u64>,
    /// Positions that accept any byte, and stay.
    stay: Vec<u64>,
    /// Positions that accept any byte but a slash, and stay.
    stay_in_name: Vec<u64>,
    /// Positions that begin [`Token::Directories`]: they are also at the next two positions.
    directories: Vec<u64>,
    /// The position after the last token.
    end: usize,
}

impl Automaton {
    fn new(tokens: &[Token]) -> Self {
        let advancing = |token: &Token| match token {
            Token::Star | Token::DoubleStar => 0,
            Token::Directories => 2,
            _ => 1,
        };
        let end = tokens.iter().map(advancing).sum();
        let words = end / 64 + 1;
        let empty = || vec![0; words];
        let mut automaton = Self {
            words,
            accept: vec![0; words * 256],
            stay: empty(),
            stay_in_name: empty(),
            directories: empty(),
            end,
        };
        let mut position = 0;
        for token in tokens {
            automaton.add(token, position);
            position += advancing(token);
        }
        automaton
    }

    fn add(&mut self, token: &Token, position: usize) {
        match token {
            Token::Byte(byte) => self.accept_at(*byte, position),
            Token::Any => (0..=255).filter(|byte| *byte != b'/').for_each(|byte| self.accept_at(byte, position)),
            Token::Set(set) => {
                (0..=255).filter(|byte| set[usize::from(*byte)]).for_each(|byte| self.accept_at(byte, position));
            }
            Token::Star => set_bit(&mut self.stay_in_name, position),
            Token::DoubleStar => set_bit(&mut self.stay, position),
            // Position + 1 is within the directories; the slash at their end leads to position + 2.
            Token::Directories => {
                set_bit(&mut self.directories, position);
                set_bit(&mut self.stay, position + 1);
                self.accept_at(b'/', position + 1);
            }
        }
    }

    fn accept_at(&mut self, byte: u8, position: usize) {
        let start = usize::from(byte) * self.words;
        if let Some(mask) = self.accept.get_mut(start..start + self.words) {
            set_bit(mask, position);
        }
    }

    fn matches(&self, text: &[u8]) -> bool {
        if self.words == 1 {
            return self.matches_one_word(text);
        }
        let mut state = vec![0; self.words];
        set_bit(&mut state, 0);
        self.enter_directories(&mut state);
        for &byte in text {
            let start = usize::from(byte) * self.words;
            let Some(accept) = self.accept.get(start..start + self.words) else { return false };
            let (mut carry, mut alive) = (0, 0);
            for ((word, accept), (stay, in_name)) in
                state.iter_mut().zip(accept).zip(self.stay.iter().zip(&self.stay_in_name))
            {
                let advanced = *word & accept;
                let stay = if byte == b'/' { *stay } else { stay | in_name };
                *word = (advanced << 1) | carry | (*word & stay);
                carry = advanced >> 63;
                alive |= *word;
            }
            if alive == 0 {
                return false;
            }
            self.enter_directories(&mut state);
        }
        state.get(self.end / 64).is_some_and(|word| word >> (self.end % 64) & 1 == 1)
    }

    fn matches_one_word(&self, text: &[u8]) -> bool {
        let word = |words: &[u64]| words.first().copied().unwrap_or(0);
        let (stay, in_name, directories) = (word(&self.stay), word(&self.stay_in_name), word(&self.directories));
        let enter = |state: u64| state | (state & directories) << 1 | (state & directories) << 2;
        let mut state = enter(1);
        for &byte in text {
            let accept = self.accept.get(usize::from(byte)).copied().unwrap_or(0);
            let stay = if byte == b'/' { stay } else { stay | in_name };
            state = enter((state & accept) << 1 | (state & stay));
            if state == 0 {
                return false;
            }
        }
        state >> self.end & 1 == 1
    }

    /// Adds the positions that a state reaches without a byte.
    fn enter_directories(&self, state: &mut [u64]) {
        let mut carry = 0;
        for (word, directories) in state.iter_mut().zip(&self.directories) {
            let entering = *word & directories;
            *word |= entering << 1 | entering << 2 | carry;
            carry = entering >> 63 | entering >> 62;
        }
    }
}

fn set_bit(words: &mut [u64], position: usize) {
    if let Some(word) = words.get_mut(position / 64) {
        *word |= 1 << (position % 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(pattern: &str, text: &str) -> bool {
        Glob::new(pattern, Kind::Name).unwrap().matches(text.as_bytes())
    }

    fn path(pattern: &str, text: &str) -> bool {
        Glob::new(pattern, Kind::Path).unwrap().matches(text.as_bytes())
    }

    #[test]
    fn names() {
        assert!(name("*.o", "main.o") && name("*.o", ".o") && !name("*.o", "main.oo"));
        assert!(name("foo?.[ch]", "foo1.c") && !name("foo?.[ch]", "foo.c") && !name("foo?.[ch]", "foo1.o"));
        assert!(name("[!a-c]*", "d") && !name("[!a-c]*", "abc") && name("[]]", "]") && name("[a-]", "-"));
        assert!(name("{a,b{c,d},}x", "ax") && name("{a,b{c,d},}x", "bdx") && name("{a,b{c,d},}x", "x"));
        assert!(name("\\*", "*") && !name("\\*", "a") && name("[{]", "{") && name("a\\{b", "a{b"));
        assert!(name("*a*b*", "xxaxxbxx") && !name("*a*b*", "xxbxxaxx"));
    }

    #[test]
    fn paths() {
        assert!(path("/home/*/tmp", "/home/ann/tmp") && !path("/home/*/tmp", "/home/ann/x/tmp"));
        assert!(path("/home/**/tmp", "/home/tmp") && path("/home/**/tmp", "/home/a/b/tmp"));
        assert!(!path("/home/**/tmp", "/home/atmp") && !path("/home/**/tmp", "/hometmp"));
        assert!(path("**/.cache/**", "/home/ann/.cache/x/y") && !path("**/.cache/**", "/home/ann/my.cache/x"));
        assert!(!path("**/.cache/**", "/home/.cache"));
        assert!(path("/a/**", "/a/b/c") && !path("/a/**", "/ab"));
        assert!(path("/a/**/**/b", "/a/b") && path("/**/b", "/b") && path("/**/b", "/c/b"));
        assert!(!path("/a?b", "/a/b") && !path("/a[!x]b", "/a/b"));
        let long = format!("/{}/**/{}*", "d".repeat(61), "e".repeat(70));
        assert!(path(&long, &format!("/{}/{}x", "d".repeat(61), "e".repeat(70))));
        assert!(path(&long, &format!("/{}/1/2/{}", "d".repeat(61), "e".repeat(70))));
        assert!(!path(&long, &format!("/{}/1/2/{}", "d".repeat(61), "e".repeat(69))));
    }

    #[test]
    fn mistakes() {
        let wrong = |pattern: &str| Glob::new(pattern, Kind::Name).unwrap_err();
        assert_eq!(wrong("[a"), "pattern \"[a\": [ without ]; write \\[ for the character");
        assert_eq!(wrong("{a"), "pattern \"{a\": { without }; write \\{ for the character");
        assert_eq!(wrong("a}"), "pattern \"a}\": } without {; write \\} for the character");
        assert_eq!(wrong("[z-a]"), "pattern \"[z-a]\": the range z-a in [ ] is empty; exchange its ends");
        assert_eq!(wrong(""), "pattern \"\": it is empty and matches nothing; remove it");
        assert!(wrong(&"{a,b}".repeat(7)).contains("more than 64 patterns"));
        assert!(wrong("a\\").contains("ends with a backslash"));
    }

    /// The definition, by recursion.
    fn oracle(tokens: &[Token], text: &[u8]) -> bool {
        let Some((token, rest)) = tokens.split_first() else { return text.is_empty() };
        let step = |holds: bool| holds && oracle(rest, &text[1..]);
        match token {
            Token::Byte(byte) => step(text.first() == Some(byte)),
            Token::Any => step(text.first().is_some_and(|byte| *byte != b'/')),
            Token::Set(set) => step(text.first().is_some_and(|byte| set[usize::from(*byte)])),
            Token::Star => {
                let name = text.iter().take_while(|byte| **byte != b'/').count();
                (0..=name).any(|skip| oracle(rest, &text[skip..]))
            }
            Token::DoubleStar => (0..=text.len()).any(|skip| oracle(rest, &text[skip..])),
            Token::Directories => {
                let after_slash = (1..=text.len()).filter(|at| text[at - 1] == b'/');
                core::iter::once(0).chain(after_slash).any(|skip| oracle(rest, &text[skip..]))
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn equals_the_definition(pattern in "(/|a|b|\\?|\\*|\\*\\*|\\*\\*/|\\[a!\\]|\\[!a\\]){1,8}", text in "[ab/]{0,10}") {
            for kind in [Kind::Name, Kind::Path] {
                // Names contain no slash.
                if kind == Kind::Name && text.contains('/') { continue }
                let glob = Glob::new(&pattern, kind).unwrap();
                // The fast form of **/x/** is for paths, which begin with a slash.
                let text = if kind == Kind::Path { format!("/{text}") } else { text.clone() };
                prop_assert_eq!(glob.matches(text.as_bytes()), oracle(&tokens(pattern.as_bytes()).unwrap(), text.as_bytes()));
            }
        }

        #[test]
        fn more_than_one_word_equals_the_definition(
            start in "a{55,64}", pattern in "(/|a|b|\\*|\\*\\*/){1,8}", text in "[ab/]{0,10}"
        ) {
            let pattern = format!("/{start}{pattern}{}", "b".repeat(70));
            let text = format!("/{start}{text}{}", "b".repeat(70));
            let glob = Glob::new(&pattern, Kind::Path).unwrap();
            prop_assert_eq!(glob.matches(text.as_bytes()), oracle(&tokens(pattern.as_bytes()).unwrap(), text.as_bytes()));
        }

        #[test]
        fn never_panics(pattern in ".{0,40}", text in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(glob) = Glob::new(&pattern, Kind::Path) {
                glob.matches(&text);
            }
        }
    }
}
