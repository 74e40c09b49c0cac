//! Text of others, made safe to show: a server, a message or a name may hold what steers a terminal, forges a line or
//! turns the order of characters around.
//!
//! Invariant: nothing that leaves this module holds a control character other than line breaks and tabs, nor a character
//! that changes the direction of text; and no line of it but the first starts at the margin.
//!
//! Deliberately absent: look-alike letters, and lines that a terminal wraps; what is as wide as a terminal is not known
//! here.

/// What every line but the first of a text is moved in by, so that none can pass for a record's beginning.
const CONTINUATION: &str = "    ";

/// Characters that steer instead of being shown: controls (C0, DELETE, C1), directions, and the two Unicode breaks.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061C}' | '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// A text of lines: line breaks and tabs stay, each further line is moved in, all else that steers is spelled out. What
/// comes in pieces may be made safe piece by piece.
pub(crate) fn printable(text: &str) -> String {
    escaped(text, |c, out| match c {
        '\n' => {
            out.push('\n');
            out.push_str(CONTINUATION);
        }
        '\t' => out.push('\t'),
        c => out.extend(c.escape_unicode()),
    })
}

/// A text that stands within a line (a name, an id, a title): line breaks and tabs are spelled out too.
pub(crate) fn one_line(text: &str) -> String {
    escaped(text, |c, out| out.extend(c.escape_unicode()))
}

/// JSON as one line that steers no terminal. `json` must be valid: then raw line breaks are only between its tokens, and
/// everything else that steers is inside strings, where it may be written as `\uXXXX`.
pub(crate) fn json_line(json: &str) -> String {
    escaped(json, |c, out| match c {
        '\n' | '\r' | '\t' => out.push(' '),
        // All of them are in the basic plane: four digits are enough.
        c => out.push_str(&format!("\\u{:04x}", u32::from(c))),
    })
}

fn escaped(text: &str, escape: impl Fn(char, &mut String)) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if steers(c) { escape(c, &mut out) } else { out.push(c) }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTIONS: &str =
        "\u{061C}\u{200E}\u{200F}\u{202A}\u{202B}\u{202C}\u{202D}\u{202E}\u{2066}\u{2067}\u{2068}\u{2069}";

    #[test]
    fn no_line_but_the_first_starts_at_the_margin() {
        assert_eq!(printable("hi\n#8     10:11:12 bob: yes"), "hi\n    #8     10:11:12 bob: yes");
        assert_eq!(printable("a\r\nb\u{2028}c\tü😀"), "a\\u{d}\n    b\\u{2028}c\tü😀");
        assert_eq!(format!("{}{}", printable("a\n"), printable("b")), printable("a\nb"), "pieces join");
        assert_eq!(one_line("a\nb\tc"), "a\\u{a}b\\u{9}c");
    }

    #[test]
    fn what_steers_is_spelled_out() {
        let controls = "\u{0}\u{7}\u{1b}\u{7f}\u{85}\u{9b}\u{9d}";
        for c in controls.chars().chain(DIRECTIONS.chars()) {
            let expected = format!("a\\u{{{:x}}}b", u32::from(c));
            assert_eq!(printable(&format!("a{c}b")), expected);
            assert_eq!(one_line(&format!("a{c}b")), expected);
        }
    }

    #[test]
    fn json_is_one_line_and_means_the_same() {
        let text = format!("ü\u{7f}\u{9b}2J{DIRECTIONS}\u{1b}\n");
        let value = serde_json::json!({ "text": text });
        let line = json_line(&serde_json::to_string_pretty(&value).expect("JSON"));
        assert!(!line.chars().any(steers), "{line:?}");
        assert!(line.contains(r"ü\u007f\u009b2J\u061c"), "{line}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).expect("JSON"), value);
    }
}
