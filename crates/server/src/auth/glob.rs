//! Patterns over conversation ids: `*` stands for any run of characters, `?` for exactly one, the rest for itself.
//!
//! Invariant: matching visits each character of the text at most once per character of the pattern, in constant memory;
//! there is no backtracking to attack. Deliberately not a regular expression.

use std::fmt;
use std::str::FromStr;

use conch_core::ids::CONVERSATION_ID_MAX_BYTES;

/// A pattern of at most [`CONVERSATION_ID_MAX_BYTES`] bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Glob(Box<str>);

impl Glob {
    /// The pattern that matches everything.
    #[must_use]
    pub fn any() -> Self {
        Self("*".into())
    }

    /// True for the pattern that is exactly `*`.
    #[must_use]
    pub fn is_any(&self) -> bool {
        &*self.0 == "*"
    }

    /// The pattern.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the whole of `text` fits. Both are ASCII, so bytes are characters.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text) = (self.0.as_bytes(), text.as_bytes());
        let (mut at, mut from) = (0, 0);
        // Where to go on after the last `*` when what follows it does not fit: one character further in the text. An
        // earlier `*` never needs to be tried again, because a later one can take up whatever it would have.
        let mut after_star = None;
        while from < text.len() {
            match pattern.get(at) {
                Some(b'*') => {
                    at += 1;
                    after_star = Some((at, from));
                }
                Some(b'?') => (at, from) = (at + 1, from + 1),
                Some(byte) if *byte == text[from] => (at, from) = (at + 1, from + 1),
                _ => match after_star {
                    Some((star_at, star_from)) => {
                        (at, from) = (star_at, star_from + 1);
                        after_star = Some((star_at, star_from + 1));
                    }
                    None => return false,
                },
            }
        }
        pattern[at..].iter().all(|byte| *byte == b'*')
    }
}

impl FromStr for Glob {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > CONVERSATION_ID_MAX_BYTES {
            return Err(format!("must be 1 to {CONVERSATION_ID_MAX_BYTES} bytes long, is {}", text.len()));
        }
        let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b':' | b'-' | b'*' | b'?');
        if !text.bytes().all(allowed) {
            return Err("may hold only A-Z a-z 0-9 . _ : - and the wildcards * and ?".to_owned());
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn glob(text: &str) -> Glob {
        text.parse().expect("a valid pattern")
    }

    #[test]
    fn what_matches_and_what_must_not() {
        let cases = [
            ("*", "anything:at-all", true),
            ("team:*", "team:general", true),
            ("team:*", "team:", true),
            ("team:*", "team", false),
            ("team:*", "xteam:general", false),
            ("team:*", "Team:general", false),
            ("team", "team", true),
            ("team", "teams", false),
            ("team", "tea", false),
            ("t?am", "team", true),
            ("t?am", "tam", false),
            ("?", "ab", false),
            ("*:public", "a:public", true),
            ("*:public", "a:public:x", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("**a", "bba", true),
            ("a.c", "abc", false),
            ("*ab?", "aabab", false),
            ("*ab?", "aababc", true),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(glob(pattern).matches(text), expected, "{pattern} on {text}");
        }
    }

    #[test]
    fn bad_patterns_are_refused() {
        for pattern in ["", "a b", "a/b", "[ab]", "é", "a\0", &"x".repeat(129)] {
            assert!(pattern.parse::<Glob>().is_err(), "{pattern:?}");
        }
    }

    /// The definition, without regard to time.
    fn defined(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|skip| defined(rest, &text[skip..])),
            Some((first, rest)) => {
                !text.is_empty() && (*first == b'?' || *first == text[0]) && defined(rest, &text[1..])
            }
        }
    }

    proptest! {
        #[test]
        fn it_matches_what_the_definition_matches(pattern in "[ab*?]{1,8}", text in "[ab]{0,10}") {
            prop_assert_eq!(glob(&pattern).matches(&text), defined(pattern.as_bytes(), text.as_bytes()));
        }
    }
}
