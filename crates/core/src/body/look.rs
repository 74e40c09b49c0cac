//! One look at a body that keeps nothing of it: every string and number in it is read, as a client will read them.
//!
//! Deliberately absent: recursion limits. What is nested too deeply has been refused before.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// What a value is, as far as a body's rules ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Object(Text),
    String,
    Other,
}

/// The member `text` of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Text {
    None,
    One(TextSort),
    Several,
}

/// What the member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextSort {
    String,
    Other,
}

impl<'de> Deserialize<'de> for Sort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Look)
    }
}

struct Look;

impl<'de> Visitor<'de> for Look {
    type Value = Sort;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Sort, E> {
        Ok(Sort::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Sort, E> {
        Ok(Sort::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Sort, E> {
        Ok(Sort::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Sort, E> {
        Ok(Sort::Other)
    }

    fn visit_unit<E>(self) -> Result<Sort, E> {
        Ok(Sort::Other)
    }

    fn visit_str<E>(self, _: &str) -> Result<Sort, E> {
        Ok(Sort::String)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Sort, A::Error> {
        while items.next_element::<Sort>()?.is_some() {}
        Ok(Sort::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Sort, A::Error> {
        let mut text = Text::None;
        while let Some((name, value)) = members.next_entry::<Name, Sort>()? {
            text = match (name, text) {
                (Name::Other, text) => text,
                (Name::Text, Text::None) => Text::One(value.into()),
                (Name::Text, _) => Text::Several,
            };
        }
        Ok(Sort::Object(text))
    }
}

impl From<Sort> for TextSort {
    fn from(sort: Sort) -> Self {
        if sort == Sort::String { Self::String } else { Self::Other }
    }
}

/// A member's name.
enum Name {
    Text,
    Other,
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = Name;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a member's name")
            }

            fn visit_str<E>(self, name: &str) -> Result<Name, E> {
                Ok(if name == "text" { Name::Text } else { Name::Other })
            }
        }
        deserializer.deserialize_str(Read)
    }
}
