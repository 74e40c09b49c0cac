//! One declaration per setting: its struct field, default, allowed values and documentation come from the same line, so
//! that the loader, the range check and docs/CONFIG.md cannot disagree.
//!
//! Invariant: every key that a `Config` reads has exactly one [`Field`].

use toml::Value;

/// What a setting may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// A whole number, both ends included.
    Range(u64, u64),
    /// Anything that its type accepts; the text says what that is.
    Text(&'static str),
}

impl Allowed {
    /// For people: `1 to 100`, or the text.
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::Range(least, most) => format!("{least} to {most}"),
            Self::Text(text) => text.to_owned(),
        }
    }
}

/// How a setting is written where everything is text (environment, flags).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A decimal whole number.
    Integer,
    /// As it stands.
    Text,
    /// Separated by commas.
    List,
}

/// One setting.
pub struct Field {
    /// Its dotted key, such as `limits.message_bytes`. `NAME` as a part stands for any name.
    pub key: &'static str,
    /// What it means, with its unit.
    pub doc: &'static str,
    /// What it may be.
    pub allowed: Allowed,
    /// How text becomes a value.
    pub shape: Shape,
    /// Whether the value has the field's type; the error says why not.
    pub accepts: fn(&Value) -> Result<(), String>,
}

impl Field {
    /// The environment variable that sets it.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("CONCH_{}", self.key.replace('.', "_").to_uppercase())
    }

    /// True for a key that stands for many, such as `agents.NAME.kind`.
    #[must_use]
    pub fn is_pattern(&self) -> bool {
        self.key.contains("NAME")
    }

    /// Whether this field declares `key`.
    #[must_use]
    pub fn matches(&self, key: &str) -> bool {
        let mut parts = key.split('.');
        let all = self.key.split('.').all(|mine| parts.next().is_some_and(|part| mine == "NAME" || mine == part));
        all && parts.next().is_none()
    }
}

/// A type that a setting may have.
pub trait Setting {
    /// How it is written as text.
    const SHAPE: Shape = Shape::Text;
    /// Its value, if it is a number.
    fn number(&self) -> Option<u64> {
        None
    }
}

impl Setting for u16 {
    const SHAPE: Shape = Shape::Integer;
    fn number(&self) -> Option<u64> {
        Some((*self).into())
    }
}

impl Setting for u32 {
    const SHAPE: Shape = Shape::Integer;
    fn number(&self) -> Option<u64> {
        Some((*self).into())
    }
}

impl Setting for u64 {
    const SHAPE: Shape = Shape::Integer;
    fn number(&self) -> Option<u64> {
        Some(*self)
    }
}

impl Setting for usize {
    const SHAPE: Shape = Shape::Integer;
    fn number(&self) -> Option<u64> {
        Some(u64::try_from(*self).unwrap_or(u64::MAX))
    }
}

impl<T> Setting for Vec<T> {
    const SHAPE: Shape = Shape::List;
}

impl<T: Setting> Setting for Option<T> {
    const SHAPE: Shape = T::SHAPE;
    fn number(&self) -> Option<u64> {
        self.as_ref().and_then(T::number)
    }
}

/// Whether `value` has type `T`.
pub(crate) fn accepts<T: serde::de::DeserializeOwned>(value: &Value) -> Result<(), String> {
    value.clone().try_into::<T>().map(drop).map_err(|error| error.message().trim().to_owned())
}

/// Declares a section of the configuration: the struct, its defaults and its [`Field`]s. `nested` names the sections
/// inside it, which declare their own.
macro_rules! section {
    (
        $(#[$meta:meta])*
        $name:ident, $prefix:literal {
            $( $(#[doc = $doc:literal])+ $field:ident : $type:ty = $default:expr, $allowed:expr; )*
        }
        $( nested { $( $(#[doc = $nested_doc:literal])+ $nested:ident : $nested_type:ty; )* } )?
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $( $(#[doc = $doc])+ pub $field: $type, )*
            $( $( $(#[doc = $nested_doc])+ pub $nested: $nested_type, )* )?
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $( $field: $default, )*
                    $( $( $nested: Default::default(), )* )?
                }
            }
        }

        impl $name {
            /// The settings of this section.
            pub const FIELDS: &'static [crate::config::field::Field] = &[
                $( crate::config::field::Field {
                    key: concat!($prefix, stringify!($field)),
                    doc: concat!($($doc),+),
                    allowed: $allowed,
                    shape: <$type as crate::config::field::Setting>::SHAPE,
                    accepts: crate::config::field::accepts::<$type>,
                }, )*
            ];

            /// The numbers of this section, beside the fields they belong to.
            #[allow(unused, reason = "a section without numbers has none to list")]
            pub(crate) fn numbers(&self) -> Vec<(&'static crate::config::field::Field, u64)> {
                let values = [ $( crate::config::field::Setting::number(&self.$field) ),* ];
                let pairs = Self::FIELDS.iter().zip(values);
                pairs.filter_map(|(field, value)| value.map(|value| (field, value))).collect()
            }
        }
    };
}
pub(crate) use section;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_one_part_per_name() {
        let field = Field {
            key: "agents.NAME.kind",
            doc: "",
            allowed: Allowed::Text(""),
            shape: Shape::Text,
            accepts: accepts::<String>,
        };
        assert!(field.matches("agents.demo.kind"));
        for other in ["agents.kind", "agents.a.b.kind", "agents.demo.pace_ms", "agents.demo", "x.demo.kind"] {
            assert!(!field.matches(other), "{other}");
        }
    }
}
