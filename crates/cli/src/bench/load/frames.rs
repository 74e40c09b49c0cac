//! WebSocket frames where they lie in a buffer, and numbers in the text inside them: no copy, no allocation, no JSON.

/// Longest frame that is taken.
const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes of the longest header that a server's frame can have.
const HEADER_BYTES_MAX: usize = 10;

/// What a frame is for whoever only counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Text, binary, or the rest of either.
    Data,
    /// The other side ends it.
    Close,
    /// To be answered.
    Ping,
    /// Nothing to do.
    Pong,
}

/// What the beginning of some bytes is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Cut<'a> {
    /// A frame, and how many bytes it took with its header.
    Whole(Content, &'a [u8], usize),
    /// The bytes end too early.
    Short,
    /// No frame of a server.
    Broken,
}

/// The first frame of `bytes`.
pub(super) fn first_frame(bytes: &[u8]) -> Cut<'_> {
    let [first, second, rest @ ..] = bytes else { return Cut::Short };
    let (header, length) = match (second, rest) {
        (0..=125, _) => (2, usize::from(*second)),
        (126, [high, low, ..]) => (4, usize::from(u16::from_be_bytes([*high, *low]))),
        (127, [a, b, c, d, e, f, g, h, ..]) => {
            let long = u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]);
            (HEADER_BYTES_MAX, usize::try_from(long).unwrap_or(usize::MAX))
        }
        (126 | 127, _) => return Cut::Short,
        _ => return Cut::Broken,
    };
    let content = match first & 0x0f {
        0x0..=0x2 => Content::Data,
        0x8 => Content::Close,
        0x9 => Content::Ping,
        0xa => Content::Pong,
        _ => return Cut::Broken,
    };
    if first & 0x70 != 0 || length > FRAME_BYTES_MAX {
        return Cut::Broken;
    }
    match bytes.get(header..header + length) {
        Some(payload) => Cut::Whole(content, payload, header + length),
        None => Cut::Short,
    }
}

/// A key and where it was found last: messages of one kind have it at the same place, or nearly.
#[derive(Debug)]
pub(super) struct Key {
    name: &'static [u8],
    place: usize,
}

impl Key {
    /// For `name`, with its quotes and its colon.
    pub(super) fn new(name: &'static str) -> Self {
        Self { name: name.as_bytes(), place: 0 }
    }

    /// The number behind its first appearance.
    pub(super) fn number(&mut self, text: &[u8]) -> Option<u64> {
        if !text.get(self.place..).is_some_and(|rest| rest.starts_with(self.name)) {
            self.place = find(text, self.name)?;
        }
        digits(&text[self.place + self.name.len()..])
    }
}

/// The number at the beginning of `text`.
pub(super) fn digits(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(None, |number, digit| Some(number.unwrap_or(0_u64).wrapping_mul(10) + u64::from(digit - b'0')))
}

/// The number behind the first appearance of `key`.
pub(in crate::bench) fn number_after(text: &[u8], key: &[u8]) -> Option<u64> {
    digits(&text[find(text, key)? + key.len()..])
}

/// Where `part` begins first.
pub(super) fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// What is between `key` and the next quote.
pub(super) fn string_after<'a>(text: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let rest = &text[find(text, key)? + key.len()..];
    Some(&rest[..rest.iter().position(|byte| *byte == b'"')?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_in_any_cut() {
        let long = [&[0x81, 126, 1, 0][..], &[b'x'; 256], &[0x89, 1, b'p']].concat();
        for short in 0..260 {
            assert_eq!(first_frame(&long[..short]), Cut::Short, "{short}");
        }
        assert_eq!(first_frame(&long), Cut::Whole(Content::Data, &[b'x'; 256][..], 260));
        assert_eq!(first_frame(&long[260..]), Cut::Whole(Content::Ping, &b"p"[..], 3));
        assert_eq!(first_frame(&[0x88, 2, 3, 244]), Cut::Whole(Content::Close, &[3, 244][..], 4));
        assert_eq!(first_frame(&[0x81, 0x81, 0, 0, 0, 0, 1]), Cut::Broken, "a server does not mask");
        assert_eq!(first_frame(&[0xc1, 0]), Cut::Broken, "no extension was asked for");
        assert_eq!(first_frame(&[0x82, 127, 255, 0, 0, 0, 0, 0, 0, 0]), Cut::Broken, "too long");
    }

    #[test]
    fn numbers_are_found_wherever_their_key_is() {
        let mut key = Key::new("\"seq\":");
        assert_eq!(key.number(br#"{"seq":12,"x":"seq"}"#), Some(12));
        assert_eq!(key.number(br#"{"seq":13}"#), Some(13));
        assert_eq!(key.number(br#"{"a":1,"seq":14}"#), Some(14), "elsewhere than before");
        assert_eq!(key.number(b"{}"), None);
        assert_eq!(key.number(br#"{"seq":null}"#), None);
        assert_eq!(number_after(b"Retry-After: 7\r\n", b"Retry-After: "), Some(7));
        assert_eq!(string_after(br#"{"log":"s.1","a":1}"#, b"\"log\":\""), Some(&b"s.1"[..]));
    }
}
