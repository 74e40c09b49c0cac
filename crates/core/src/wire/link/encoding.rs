//! The encoding's elements: numbers, texts, options and lists.
//!
//! Invariant: there is one encoding of each value; another one of the same value is refused.

use std::sync::Arc;

use crate::ids::InvalidId;

use super::Version;

/// Most elements of a list for which room is made before they are read.
const ROOM_MAX: usize = 256;

/// Why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The frame ends inside of a field.
    #[error("{0}: the frame ends inside of it")]
    Truncated(&'static str),
    /// The frame says that it is longer than allowed.
    #[error("a frame of {bytes} bytes; at most {limit} are allowed")]
    TooLong {
        /// What it says.
        bytes: usize,
        /// What is allowed.
        limit: usize,
    },
    /// A number that stands for nothing.
    #[error("{what}: {number} is not known")]
    Unknown {
        /// Of what.
        what: &'static str,
        /// The number.
        number: u64,
    },
    /// A field's value is not allowed.
    #[error("{field}: {problem}")]
    Invalid {
        /// Which.
        field: &'static str,
        /// Why.
        problem: String,
    },
    /// The frame goes on after its last field.
    #[error("{0} bytes after the frame's last field")]
    Trailing(usize),
    /// Another protocol, known by its first bytes.
    #[error("it sends {0}, not the link's protocol")]
    Foreign(&'static str),
    /// Another protocol, or nothing of the kind.
    #[error("it does not speak the link's protocol")]
    OtherProtocol,
    /// Another major version.
    #[error("it speaks version {theirs} of the link's protocol, this node {ours}")]
    OtherVersion {
        /// The peer's.
        theirs: Version,
        /// This node's.
        ours: Version,
    },
}

impl DecodeError {
    pub(super) fn invalid(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Invalid { field, problem: problem.into() }
    }
}

impl From<InvalidId> for DecodeError {
    fn from(error: InvalidId) -> Self {
        Self::Invalid { field: error.field, problem: error.problem }
    }
}

/// What is left of a frame.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bytes(&mut self, count: usize, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let (taken, left) = self.0.split_at_checked(count).ok_or(DecodeError::Truncated(field))?;
        self.0 = left;
        Ok(taken)
    }

    pub(super) fn byte(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.bytes(1, field).map(|byte| byte[0])
    }

    pub(super) fn text(&mut self, field: &'static str) -> Result<&'a str, DecodeError> {
        let length = usize::take(self, field)?;
        let bytes = self.bytes(length, field)?;
        std::str::from_utf8(bytes).map_err(|error| DecodeError::invalid(field, format!("is not UTF-8: {error}")))
    }

    /// Checks that nothing is left.
    pub(super) fn end(self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::Trailing(self.0.len())) }
    }
}

/// What has an encoding.
pub(super) trait Wire: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError>;
}

pub(super) fn put_text(text: &str, out: &mut Vec<u8>) {
    text.len().put(out);
    out.extend_from_slice(text.as_bytes());
}

impl Wire for u64 {
    /// Seven bits a byte, the least significant first; all but the last have the high bit.
    fn put(&self, out: &mut Vec<u8>) {
        let mut left = *self;
        while left >= 0x80 {
            out.push((left & 0x7f) as u8 | 0x80);
            left >>= 7;
        }
        out.push(left as u8);
    }

    fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = from.byte(field)?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    return Err(DecodeError::invalid(field, "is a number that could be shorter"));
                }
                return Ok(number);
            }
        }
        Err(DecodeError::invalid(field, "is a number of more than 64 bits"))
    }
}

/// Smaller numbers: encoded as the large one, and checked.
macro_rules! small_numbers {
    ($($number:ty),*) => { $(
        impl Wire for $number {
            fn put(&self, out: &mut Vec<u8>) {
                u64::try_from(*self).expect("no number here has more than 64 bits").put(out);
            }
            fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
                let number = u64::take(from, field)?;
                let large = |_| DecodeError::invalid(field, format!("is {number}; at most {} is allowed", <$number>::MAX));
                number.try_into().map_err(large)
            }
        }
    )* };
}
small_numbers!(u8, u16, u32, usize);

impl Wire for i64 {
    /// Zigzag: small numbers of either sign are short.
    fn put(&self, out: &mut Vec<u8>) {
        (((*self << 1) ^ (*self >> 63)) as u64).put(out);
    }

    fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        let number = u64::take(from, field)?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }
}

impl<const N: usize> Wire for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        Ok(from.bytes(N, field)?.try_into().expect("as many as were asked for"))
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_text(self, out);
    }

    fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        from.text(field).map(str::to_owned)
    }
}

impl Wire for Arc<str> {
    fn put(&self, out: &mut Vec<u8>) {
        put_text(self, out);
    }

    fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        from.text(field).map(Into::into)
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            None => out.push(0),
            Some(value) => {
                out.push(1);
                value.put(out);
            }
        }
    }

    fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        match from.byte(field)? {
            0 => Ok(None),
            1 => T::take(from, field).map(Some),
            number => Err(DecodeError::Unknown { what: field, number: number.into() }),
        }
    }
}

impl<T: Wire, E: Wire> Wire for Result<T, E> {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Ok(value) => {
                out.push(0);
                value.put(out);
            }
            Err(error) => {
                out.push(1);
                error.put(out);
            }
        }
    }

    fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        match from.byte(field)? {
            0 => T::take(from, field).map(Ok),
            1 => E::take(from, field).map(Err),
            number => Err(DecodeError::Unknown { what: field, number: number.into() }),
        }
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        for item in self {
            item.put(out);
        }
    }

    /// Every element has at least one byte, so that a count that lies ends with the frame.
    fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        let count = usize::take(from, field)?;
        let mut items = Self::with_capacity(count.min(ROOM_MAX));
        for _ in 0..count {
            items.push(T::take(from, field)?);
        }
        Ok(items)
    }
}

/// What a later minor version may have more kinds of. `None`: of a kind that is not known here, to be skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known<T>(pub Option<T>);

/// The enums that [`Known`] is used with, as their errors name them.
const GROWING: [&str; 5] = ["live event", "report", "shard news", "presence news", "notice"];

impl<T: Wire> Wire for Known<T> {
    fn put(&self, out: &mut Vec<u8>) {
        match &self.0 {
            Some(value) => value.put(out),
            None => out.push(0),
        }
    }

    /// The last field of its frame: where the kind is not known, nor is its length.
    fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        match T::take(from, field) {
            Ok(value) => Ok(Self(Some(value))),
            Err(DecodeError::Unknown { what, .. }) if GROWING.contains(&what) => {
                from.0 = &[];
                Ok(Self(None))
            }
            Err(error) => Err(error),
        }
    }
}

/// The encoding of a struct: its fields in this order.
macro_rules! wire_struct {
    ($name:ty { $($field:tt : $label:ident),* $(,)? }) => {
        impl $crate::wire::link::encoding::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $( self.$field.put(out); )*
            }
            fn take(
                from: &mut $crate::wire::link::encoding::Reader<'_>,
                _: &'static str,
            ) -> Result<Self, $crate::wire::link::DecodeError> {
                Ok(Self { $( $field: $crate::wire::link::encoding::Wire::take(from, stringify!($label))?, )* })
            }
        }
    };
}

/// The encoding of an enum: each variant's number, which never changes its meaning, and its fields in this order.
macro_rules! wire_enum {
    ($name:ty, $what:literal { $($number:literal = $variant:ident { $($field:tt : $label:ident),* $(,)? };)* }) => {
        impl $crate::wire::link::encoding::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $( Self::$variant { $($field: $label),* } => {
                        out.push($number);
                        $( $label.put(out); )*
                    } )*
                }
            }
            fn take(
                from: &mut $crate::wire::link::encoding::Reader<'_>,
                _: &'static str,
            ) -> Result<Self, $crate::wire::link::DecodeError> {
                match from.byte($what)? {
                    $( $number => Ok(Self::$variant {
                        $( $field: $crate::wire::link::encoding::Wire::take(from, stringify!($label))?, )*
                    }), )*
                    number => Err($crate::wire::link::DecodeError::Unknown { what: $what, number: number.into() }),
                }
            }
        }
    };
}

pub(super) use {wire_enum, wire_struct};
