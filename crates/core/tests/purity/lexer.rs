//! As much of Rust's lexical structure as the rules need: no comments, no literals' contents, tokens with their line,
//! paths with `use` trees taken apart.
//!
//! Deliberately absent: everything that a macro may do to tokens.

/// A word or a mark, and its line (from 1). `::` is one mark; every other is one character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// The tokens of a source without its comments. A literal of text becomes `"`.
pub(crate) fn tokens(source: &str) -> Vec<Token> {
    let mut lexer = Lexer { rest: source, line: 1 };
    let mut found = Vec::new();
    while let Some(first) = lexer.rest.chars().next() {
        let line = lexer.line;
        let mut add = |text: &str| found.push(Token { text: text.to_owned(), line });
        if lexer.rest.starts_with("//") {
            lexer.skip(lexer.rest.find('\n').unwrap_or(lexer.rest.len()));
        } else if lexer.rest.starts_with("/*") {
            lexer.skip_comment();
        } else if let Some(bytes) = lexer.literal_bytes() {
            add("\"");
            lexer.skip(bytes);
        } else if is_word(first) {
            let bytes = lexer.rest.find(|character| !is_word(character)).unwrap_or(lexer.rest.len());
            add(&lexer.rest[..bytes]);
            lexer.skip(bytes);
        } else if lexer.rest.starts_with("::") {
            add("::");
            lexer.skip(2);
        } else {
            if !first.is_whitespace() {
                add(first.encode_utf8(&mut [0; 4]));
            }
            lexer.skip(first.len_utf8());
        }
    }
    found
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
}

impl Lexer<'_> {
    fn skip(&mut self, bytes: usize) {
        self.line += self.rest[..bytes].matches('\n').count();
        self.rest = &self.rest[bytes..];
    }

    /// A block comment, which may hold others.
    fn skip_comment(&mut self) {
        let mut depth = 0_usize;
        while !self.rest.is_empty() {
            if self.rest.starts_with("/*") {
                depth += 1;
                self.skip(2);
            } else if self.rest.starts_with("*/") {
                depth -= 1;
                self.skip(2);
                if depth == 0 {
                    return;
                }
            } else {
                self.skip(self.rest.chars().next().map_or(0, char::len_utf8));
            }
        }
    }

    /// The length of the string or character that starts here, if one does.
    fn literal_bytes(&self) -> Option<usize> {
        let prefix = self.rest.find(|character| !matches!(character, 'b' | 'c' | 'r')).unwrap_or(self.rest.len());
        let body = &self.rest[prefix..];
        if prefix <= 2 && self.rest[..prefix].contains('r') {
            let hashes = body.len() - body.trim_start_matches('#').len();
            if body[hashes..].starts_with('"') {
                let end = format!("\"{}", "#".repeat(hashes));
                let inner = &body[hashes + 1..];
                let length = inner.find(&end).map_or(inner.len(), |at| at + end.len());
                return Some(prefix + hashes + 1 + length);
            }
        }
        if prefix <= 1 && body.starts_with('"') {
            return Some(prefix + quoted_bytes(body, b'"'));
        }
        // 'a' and '\n' are characters, 'a without a closing quote is a lifetime.
        let mut after = body.strip_prefix('\'')?.chars();
        let is_character = match after.next()? {
            '\\' => true,
            _ => after.next() == Some('\''),
        };
        (prefix <= 1 && is_character).then(|| prefix + quoted_bytes(body, b'\''))
    }
}

/// From an opening quote to its closing one, both included.
fn quoted_bytes(body: &str, quote: u8) -> usize {
    let mut escaped = false;
    for (at, byte) in body.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            _ if byte == quote => return at + 1,
            _ => {}
        }
    }
    body.len()
}

/// A path as it is written, or as a `use` spells it out; the last part may be `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) parts: Vec<String>,
    pub(crate) line: usize,
    pub(crate) is_use: bool,
}

/// Every path among the tokens, single words included.
pub(crate) fn paths(tokens: &[Token]) -> Vec<Path> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let next = tokens.get(at + 1).map(|token| token.text.as_str());
        if token.text == "use" && next != Some("<") {
            at = use_tree(tokens, at + 1, &[], &mut found);
        } else if token.text.starts_with(is_word) {
            let mut parts = vec![token.text.clone()];
            while let [separator, part, ..] = &tokens[at + 1..]
                && separator.text == "::"
                && part.text.starts_with(is_word)
            {
                parts.push(part.text.clone());
                at += 2;
            }
            found.push(Path { parts, line: token.line, is_use: false });
            at += 1;
        } else {
            at += 1;
        }
    }
    found
}

/// Reads one branch of a `use` tree and returns where it ends: at `,`, `}` or behind `;`.
fn use_tree(tokens: &[Token], start: usize, stem: &[String], found: &mut Vec<Path>) -> usize {
    let mut parts = stem.to_vec();
    let mut at = start;
    let mut is_group = false;
    let line = tokens.get(start).map_or(0, |token| token.line);
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            "," | "}" | ";" => break,
            "{" => {
                is_group = true;
                at = use_tree(tokens, at + 1, &parts, found);
                while tokens.get(at).is_some_and(|token| token.text == ",") {
                    at = use_tree(tokens, at + 1, &parts, found);
                }
            }
            "as" => at += 1, // the new name says nothing
            "self" if !parts.is_empty() => {}
            "::" => {}
            part => parts.push(part.to_owned()),
        }
        at += 1;
    }
    if !is_group && (parts.len() > stem.len() || at > start) {
        found.push(Path { parts, line, is_use: true });
    }
    at
}

/// The tokens less every item under `#[cfg(test)]`.
pub(crate) fn without_tests(tokens: &[Token]) -> Vec<Token> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_mark =
            tokens.len() >= at + MARK.len() && tokens[at..].iter().zip(MARK).all(|(token, mark)| token.text == mark);
        if is_mark {
            at = end_of_item(tokens, at + MARK.len());
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// Behind the first `;`, or the first block, from here.
fn end_of_item(tokens: &[Token], start: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(start) {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" if depth <= 1 => return at + 1,
            "}" => depth -= 1,
            ";" if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

#[test]
fn comments_and_literals_hide_their_contents() {
    let words = |source: &str| tokens(source).into_iter().map(|token| token.text).collect::<Vec<_>>().join(" ");
    for (source, expected) in [
        ("a // b\nc", "a c"),
        ("a /* b /* c */ d */ e", "a e"),
        (r#"f("x \" y") z"#, "f ( \" ) z"),
        (r##"r#"x " y"# z"##, "\" z"),
        ("b\"x\" br\"y\" c\"z\" end", "\" \" \" end"),
        (r"'a' '\'' b'\\' 'static x", "\" \" \" ' static x"),
        ("brave crab r b", "brave crab r b"),
        ("std :: fs", "std :: fs"),
        ("\"open", "\""),
    ] {
        assert_eq!(words(source), expected, "{source}");
    }
    let lines: Vec<usize> = tokens("a\n/*\n*/ b \"\n\" c").into_iter().map(|token| token.line).collect();
    assert_eq!(lines, [1, 3, 3, 4]);
}

#[test]
fn use_trees_are_taken_apart() {
    let found = |source: &str| {
        let all = paths(&tokens(source)).into_iter();
        all.map(|path| path.parts.join("::")).collect::<Vec<_>>().join(" ")
    };
    for (source, expected) in [
        ("use std::{fs, io::{self, Read}, sync::Arc as Shared}; x", "std::fs std::io std::io::Read std::sync::Arc x"),
        ("pub use a::*; b::c::<D>::e()", "pub a::* b::c D e"),
        ("use ::std::fs; fn f() -> impl X + use<'a> {}", "std::fs fn f impl X use a"),
        ("use a::{b,}; c", "a::b c"),
        ("use std as s;", "std"),
    ] {
        assert_eq!(found(source), expected, "{source}");
    }
}

#[test]
fn tests_are_left_out() {
    let kept = |source: &str| {
        let all = without_tests(&tokens(source)).into_iter();
        all.map(|token| token.text).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(kept("a #[cfg(test)] mod tests { fn f() { {} } } b"), "a b");
    assert_eq!(kept("a #[cfg(test)] mod tests; b"), "a b");
    assert_eq!(kept("#[cfg(feature = \"x\")] a"), "# [ cfg ( feature = \" ) ] a");
}
