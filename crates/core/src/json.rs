//! A look at JSON text before it is parsed, and at a text before it is written as JSON.
//!
//! Deliberately absent: validity. A parser says that afterwards; this only keeps it from what is nested too deeply.

/// Whether a text that may be JSON is nested deeper than `limit` objects and arrays: one pass, no recursion, stops at the
/// first level too many. Brackets within strings do not count.
#[must_use]
pub fn is_deeper_than(text: &str, limit: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// The longest beginning of a text that takes at most so many bytes within a JSON string, its quotes not counted.
#[must_use]
pub fn within_bytes(text: &str, bytes: usize) -> &str {
    let mut left = bytes;
    for (at, character) in text.char_indices() {
        let written = match character {
            '"' | '\\' | '\u{8}' | '\u{c}' | '\n' | '\r' | '\t' => 2,
            '\0'..'\u{20}' => 6,
            _ => character.len_utf8(),
        };
        match left.checked_sub(written) {
            Some(less) => left = less,
            None => return &text[..at],
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{is_deeper_than, within_bytes};

    #[test]
    fn the_limit_is_the_last_level_that_is_allowed() {
        for (text, depth) in [
            ("1", 0),
            ("[]", 1),
            ("[][]", 1),
            (r#"{"a":[1,{"b":"[[[\"[["}]}"#, 3),
            ("\"[[[\"", 0),
            // Not JSON, and judged all the same.
            ("]]][", 1),
            ("\\\"[\"[", 1),
        ] {
            assert!(!is_deeper_than(text, depth), "{text}");
            assert!(depth == 0 || is_deeper_than(text, depth - 1), "{text}");
        }
        assert!(is_deeper_than(&"[".repeat(1_000_000), 999_999));
    }

    #[test]
    fn a_text_is_cut_between_characters_where_its_json_is_too_long() {
        let written = |text: &str| serde_json::to_string(text).expect("a text is JSON").len() - 2;
        for character in (0..0x300).chain([0x2028, 0xffff, 0x1_f600]).filter_map(char::from_u32) {
            let text: String = [character; 3].iter().collect();
            let bytes = written(&text);
            assert_eq!(within_bytes(&text, bytes), text, "{character:?}");
            assert_eq!(within_bytes(&text, bytes - 1).chars().count(), 2, "{character:?}");
        }
        assert_eq!((within_bytes("", 0), within_bytes("a", 0)), ("", ""));
    }
}
