//! Durations as people write them: `500ms`, `30s`, `15m`, `1h`, `7d`.

use std::time::Duration;

/// Parses a whole number with a unit.
///
/// # Errors
/// A sentence that says what is allowed.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong(text))?;
    let millis_each = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong(text)),
    };
    number.checked_mul(millis_each).map(Duration::from_millis).ok_or_else(|| wrong(text))
}

fn wrong(text: &str) -> String {
    format!("{text:?} is not a duration; write a whole number and a unit, such as 500ms, 30s, 15m, 1h or 7d")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_or_refused() {
        let good =
            [("0s", 0), ("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("1h", 3_600_000), ("7d", 604_800_000)];
        for (text, millis) in good {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "s", "-1s", "1.5h", "1 h", "1w", "99999999999999999999s", "9999999999999999999d"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
