//! The demo agent's calculator: `+ - * /`, brackets and decimals, in exact fractions.
//!
//! Invariant: what it calls exact is exact; a result that has no short decimal form says that it is rounded.

use std::iter::Peekable;
use std::str::Chars;

/// Longest text that is read as a calculation, in bytes.
const TEXT_MAX_BYTES: usize = 200;
/// Deepest nesting of brackets and signs.
const DEPTH_MAX: usize = 32;
/// Most decimals of an exact result.
const EXACT_DECIMALS: usize = 12;
/// Decimals of a rounded result.
const ROUNDED_DECIMALS: usize = 6;

/// How a calculation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Calculated {
    Exact(String),
    Rounded(String),
    DividesByZero,
    TooLarge,
}

/// A calculation found in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Calculation {
    /// The part of the text that was calculated.
    pub(super) expression: String,
    pub(super) result: Calculated,
}

/// Reads the whole text as one calculation, with or without a "what is" before it. `None`: it is something else.
pub(super) fn calculate(text: &str) -> Option<Calculation> {
    if text.len() > TEXT_MAX_BYTES {
        return None;
    }
    let expression = strip_question(text);
    let mut parser = Parser { rest: expression.chars().peekable(), depth: 0, operators: 0 };
    let value = parser.sum();
    let result = match value {
        Err(Stop::NotArithmetic) => return None,
        _ if parser.next_symbol().is_some() || parser.operators == 0 => return None,
        Ok(value) => value.to_decimal(),
        Err(Stop::DividesByZero) => Calculated::DividesByZero,
        Err(Stop::TooLarge) => Calculated::TooLarge,
    };
    Some(Calculation { expression: expression.split_whitespace().collect::<Vec<_>>().join(" "), result })
}

fn strip_question(text: &str) -> &str {
    let mut rest = text.trim();
    for opening in ["what is", "what's", "how much is", "calculate", "compute"] {
        if let Some(head) = rest.get(..opening.len())
            && head.eq_ignore_ascii_case(opening)
        {
            rest = &rest[opening.len()..];
            break;
        }
    }
    rest.trim_end_matches(|c: char| c.is_whitespace() || matches!(c, '?' | '=' | '!')).trim_start()
}

enum Stop {
    NotArithmetic,
    DividesByZero,
    TooLarge,
}

type Operator = fn(Fraction, Fraction) -> Result<Fraction, Stop>;

struct Parser<'a> {
    rest: Peekable<Chars<'a>>,
    depth: usize,
    operators: usize,
}

impl Parser<'_> {
    fn next_symbol(&mut self) -> Option<char> {
        while self.rest.next_if(|c| c.is_whitespace()).is_some() {}
        self.rest.peek().copied()
    }

    fn sum(&mut self) -> Result<Fraction, Stop> {
        self.chain(Self::product, |symbol| match symbol {
            '+' => Some(Fraction::plus),
            '-' | '−' => Some(Fraction::minus),
            _ => None,
        })
    }

    fn product(&mut self) -> Result<Fraction, Stop> {
        self.chain(Self::factor, |symbol| match symbol {
            '*' | '×' => Some(Fraction::times),
            '/' | '÷' => Some(Fraction::over),
            _ => None,
        })
    }

    /// Operands joined by operators of one rank, from left to right. A calculation that fails is still parsed to its
    /// end, so that a text that is no calculation is never called one.
    fn chain(
        &mut self,
        operand: fn(&mut Self) -> Result<Fraction, Stop>,
        operator: fn(char) -> Option<Operator>,
    ) -> Result<Fraction, Stop> {
        let mut value = operand(self);
        while let Some(apply) = self.next_symbol().and_then(operator) {
            self.rest.next();
            self.operators += 1;
            let right = operand(self);
            value = match (value, right) {
                (Err(Stop::NotArithmetic), _) | (_, Err(Stop::NotArithmetic)) => return Err(Stop::NotArithmetic),
                (Err(stop), _) | (_, Err(stop)) => Err(stop),
                (Ok(left), Ok(right)) => apply(left, right),
            };
        }
        value
    }

    fn factor(&mut self) -> Result<Fraction, Stop> {
        match self.next_symbol() {
            Some('-' | '−') => self.nested(|parser| parser.factor().and_then(Fraction::negated)),
            Some('(') => self.nested(|parser| {
                let value = parser.sum();
                match (value, parser.next_symbol()) {
                    (Err(Stop::NotArithmetic), _) | (_, None) => Err(Stop::NotArithmetic),
                    (value, Some(')')) => {
                        parser.rest.next();
                        value
                    }
                    _ => Err(Stop::NotArithmetic),
                }
            }),
            Some('0'..='9' | '.') => self.number(),
            _ => Err(Stop::NotArithmetic),
        }
    }

    fn nested(&mut self, inner: fn(&mut Self) -> Result<Fraction, Stop>) -> Result<Fraction, Stop> {
        self.rest.next();
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Stop::NotArithmetic);
        }
        let value = inner(self);
        self.depth -= 1;
        value
    }

    fn number(&mut self) -> Result<Fraction, Stop> {
        let (mut digits, mut decimals, mut seen_point) = (String::new(), 0_u32, false);
        while let Some(c) = self.rest.next_if(|c| c.is_ascii_digit() || *c == '.') {
            match c {
                '.' if seen_point => return Err(Stop::NotArithmetic),
                '.' => seen_point = true,
                digit => {
                    digits.push(digit);
                    decimals += u32::from(seen_point);
                }
            }
        }
        if digits.is_empty() {
            return Err(Stop::NotArithmetic);
        }
        let numerator = digits.parse().map_err(|_| Stop::TooLarge)?;
        let denominator = 10_i128.checked_pow(decimals).ok_or(Stop::TooLarge)?;
        Fraction::new(numerator, denominator)
    }
}

/// In lowest terms, the denominator above 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fraction {
    numerator: i128,
    denominator: i128,
}

impl Fraction {
    fn new(numerator: i128, denominator: i128) -> Result<Self, Stop> {
        // The magnitude of i128::MIN has no i128; leaving it out lets every sign change succeed.
        if numerator == i128::MIN || denominator == i128::MIN {
            return Err(Stop::TooLarge);
        }
        let divisor = greatest_common_divisor(numerator.abs(), denominator.abs()) * denominator.signum();
        match divisor {
            0 => Err(Stop::DividesByZero),
            _ => Ok(Self { numerator: numerator / divisor, denominator: denominator / divisor }),
        }
    }

    fn plus(self, other: Self) -> Result<Self, Stop> {
        let left = self.numerator.checked_mul(other.denominator).ok_or(Stop::TooLarge)?;
        let right = other.numerator.checked_mul(self.denominator).ok_or(Stop::TooLarge)?;
        let denominator = self.denominator.checked_mul(other.denominator).ok_or(Stop::TooLarge)?;
        Self::new(left.checked_add(right).ok_or(Stop::TooLarge)?, denominator)
    }

    fn minus(self, other: Self) -> Result<Self, Stop> {
        self.plus(other.negated()?)
    }

    fn negated(self) -> Result<Self, Stop> {
        Self::new(-self.numerator, self.denominator)
    }

    fn times(self, other: Self) -> Result<Self, Stop> {
        let numerator = self.numerator.checked_mul(other.numerator).ok_or(Stop::TooLarge)?;
        let denominator = self.denominator.checked_mul(other.denominator).ok_or(Stop::TooLarge)?;
        Self::new(numerator, denominator)
    }

    fn over(self, other: Self) -> Result<Self, Stop> {
        let numerator = self.numerator.checked_mul(other.denominator).ok_or(Stop::TooLarge)?;
        let denominator = self.denominator.checked_mul(other.numerator).ok_or(Stop::TooLarge)?;
        Self::new(numerator, denominator)
    }

    fn to_decimal(self) -> Calculated {
        let sign = if self.numerator < 0 { "-" } else { "" };
        let magnitude = self.numerator.abs();
        let (whole, mut remainder) = (magnitude / self.denominator, magnitude % self.denominator);
        let mut decimals = String::new();
        while remainder != 0 && decimals.len() < EXACT_DECIMALS {
            let Some(shifted) = remainder.checked_mul(10) else { return Calculated::TooLarge };
            decimals.push_str(&(shifted / self.denominator).to_string());
            remainder = shifted % self.denominator;
        }
        match (remainder, decimals.as_str()) {
            (0, "") => Calculated::Exact(format!("{sign}{whole}")),
            (0, decimals) => Calculated::Exact(format!("{sign}{whole}.{decimals}")),
            (_, decimals) => rounded(sign, whole, decimals),
        }
    }
}

fn rounded(sign: &str, whole: i128, decimals: &str) -> Calculated {
    let (kept, dropped) = decimals.split_at(ROUNDED_DECIMALS);
    let up = i128::from(dropped.starts_with(|c: char| c >= '5'));
    let scale = 10_i128.pow(u32::try_from(ROUNDED_DECIMALS).expect("six fits"));
    let fraction = kept.parse::<i128>().expect("six digits") + up;
    let Some(whole) = whole.checked_add(fraction / scale) else { return Calculated::TooLarge };
    Calculated::Rounded(format!("{sign}{whole}.{:0width$}", fraction % scale, width = ROUNDED_DECIMALS))
}

fn greatest_common_divisor(mut a: i128, mut b: i128) -> i128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn calculations_are_right() {
        let exact = |text: &str| Calculated::Exact(text.to_owned());
        let rounded = |text: &str| Calculated::Rounded(text.to_owned());
        let cases = [
            ("12 * (3 + 4)", exact("84")),
            ("What is 0.1 + 0.2?", exact("0.3")),
            ("2 + 3 * 4 - 5", exact("9")),
            ("8 / 4 / 2", exact("1")),
            ("1 - 2 - 3 =", exact("-4")),
            ("7 × 6 ÷ 4", exact("10.5")),
            ("-(2 - 5) * -1", exact("-3")),
            ("1/3", rounded("0.333333")),
            ("2/3", rounded("0.666667")),
            ("-2/3", rounded("-0.666667")),
            ("2 - 1/30000000", rounded("2.000000")),
            ("1 / (2 - 2)", Calculated::DividesByZero),
            ("0 / 0", Calculated::DividesByZero),
            ("99999999999999999999 * 99999999999999999999", Calculated::TooLarge),
            ("1 / 0 + 2 * (3 - 1)", Calculated::DividesByZero),
        ];
        for (text, result) in cases {
            assert_eq!(calculate(text).map(|found| found.result), Some(result), "{text}");
        }
        assert_eq!(calculate("  What's  2 +  2 ? ").map(|found| found.expression), Some("2 + 2".to_owned()));
    }

    #[test]
    fn what_is_no_calculation_is_left_alone() {
        let nested = format!("{}1+1{}", "(".repeat(33), ")".repeat(33));
        let long = format!("1{}", " + 1".repeat(60));
        let texts =
            ["", "hello", "42", "what is 42?", "1 +", "(1 + 2", "1 + 2)", "1.2.3 + 1", "1 + apples", "1/0 apples"];
        for text in texts.into_iter().chain([nested.as_str(), long.as_str(), "what is é", "é"]) {
            assert_eq!(calculate(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn whole_numbers_agree_with_the_machine(a in -9999_i64..9999, b in -9999_i64..9999, c in 1_i64..99) {
            let text = format!("{a} + {b} * {c} - ({a} - {c})");
            let result = calculate(&text).map(|found| found.result);
            prop_assert_eq!(result, Some(Calculated::Exact((a + b * c - (a - c)).to_string())));
        }

        #[test]
        fn no_text_makes_it_panic(text in "[0-9 .()+*/×÷−=?a-]{0,60}") {
            calculate(&text);
        }
    }
}
