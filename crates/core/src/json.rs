//! A look at JSON text before it is parsed.
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

#[cfg(test)]
mod tests {
    use super::is_deeper_than;

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
}
