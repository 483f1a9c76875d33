//! Spellings of times, amounts of memory and fractions: `90d`, `8.2ms`, `40Gi`, `14%`.

use std::borrow::Cow;
use std::fmt;

use berth_model::quantity::Quantity;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A time or duration, to the microsecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time {
    us: u64,
}

/// A century.
const TIME_MAX_US: f64 = 100.0 * 366.0 * 86_400.0 * 1e6;

const TIME_UNITS: [(&str, f64); 7] =
    [("us", 1.0), ("µs", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 6e7), ("h", 3.6e9), ("d", 8.64e10)];

/// Why a text is no time, amount of memory or fraction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnitError {
    #[error("invalid time {0:?}; write numbers with us, ms, s, m, h or d, such as 1h30m")]
    Time(String),
    #[error("{0:?} is longer than 100 years")]
    TooLong(String),
    #[error("{0}")]
    Memory(String),
    #[error("{0} is negative; write 0 or more")]
    Negative(String),
    #[error("invalid fraction {0}; write a percentage such as 14%, or a number such as 0.14")]
    Fraction(String),
}

impl Time {
    pub(crate) fn ms(self) -> i64 {
        i64::try_from(self.us / 1000).unwrap_or(i64::MAX)
    }

    pub(crate) fn us(self) -> u64 {
        self.us
    }

    fn parse(text: &str) -> Result<Self, UnitError> {
        let invalid = || UnitError::Time(text.to_owned());
        let (mut rest, mut us) = (text.trim(), 0.0);
        if rest.is_empty() {
            return Err(invalid());
        }
        while !rest.is_empty() {
            let digits = rest.find(|one: char| !one.is_ascii_digit() && one != '.');
            let (number, after) = rest.split_at(digits.ok_or_else(invalid)?);
            let letters = after.find(|one: char| one.is_ascii_digit()).unwrap_or(after.len());
            let (unit, after) = after.split_at(letters);
            let known = TIME_UNITS.iter().find(|(name, _)| *name == unit.trim());
            let (_, factor) = known.ok_or_else(invalid)?;
            us += number.parse::<f64>().map_err(|_| invalid())? * factor;
            rest = after;
        }
        if !(0.0..=TIME_MAX_US).contains(&us) {
            return Err(UnitError::TooLong(text.to_owned()));
        }
        Ok(Self { us: us.round() as u64 })
    }
}

/// An amount of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl Bytes {
    fn parse(text: &str) -> Result<Self, UnitError> {
        let quantity =
            Quantity::parse(text).map_err(|error| UnitError::Memory(error.to_string()))?;
        let bytes = u64::try_from(quantity.value());
        bytes.map(Self).map_err(|_| UnitError::Negative(format!("{text:?}")))
    }

    fn of_number(bytes: f64) -> Result<Self, UnitError> {
        if bytes < 0.0 {
            Err(UnitError::Negative(bytes.to_string()))
        } else {
            Ok(Self(bytes as u64))
        }
    }
}

/// A fraction; it may exceed 1, as loads on weekends can.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fraction(pub(crate) f64);

impl Fraction {
    /// In thousandths.
    pub(crate) fn milli(self) -> u32 {
        (self.0 * 1000.0).round() as u32
    }

    fn parse(text: &str) -> Result<Self, UnitError> {
        let number = text.trim().strip_suffix('%');
        let percent = number.and_then(|number| number.trim().parse::<f64>().ok());
        let fraction = percent.map(|percent| percent / 100.0);
        Self::checked(fraction.or_else(|| text.parse().ok()).unwrap_or(f64::NAN), text)
    }

    fn checked(fraction: f64, text: &str) -> Result<Self, UnitError> {
        if (0.0..=1000.0).contains(&fraction) {
            Ok(Self(fraction))
        } else {
            Err(UnitError::Fraction(text.to_owned()))
        }
    }
}

/// Reads a value from text or, where the unit is clear, from a number.
struct UnitVisitor<T> {
    expects: &'static str,
    of_text: fn(&str) -> Result<T, UnitError>,
    of_number: Option<fn(f64) -> Result<T, UnitError>>,
}

impl<T> UnitVisitor<T> {
    fn number<E: de::Error>(&self, number: f64) -> Result<T, E> {
        match self.of_number {
            Some(read) => read(number).map_err(E::custom),
            None => Err(E::custom(format!("{number} has no unit; write {}", self.expects))),
        }
    }
}

impl<T> Visitor<'_> for UnitVisitor<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.expects)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.of_text)(text).map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.number(number as f64)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.number(number as f64)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        self.number(number)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(UnitVisitor {
            expects: "a time such as 90d, 1h30m or 8.2ms",
            of_text: Self::parse,
            of_number: None,
        })
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(UnitVisitor {
            expects: "an amount of memory such as 40Gi",
            of_text: Self::parse,
            of_number: Some(Self::of_number),
        })
    }
}

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(UnitVisitor {
            expects: "a fraction such as 14% or 0.14",
            of_text: Self::parse,
            of_number: Some(|number| Self::checked(number, &number.to_string())),
        })
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A time or duration such as 90d, 1h30m or 8.2ms.",
            "pattern": r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)(us|µs|ms|s|m|h|d)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(us|µs|ms|s|m|h|d))*$",
        })
    }
}

impl JsonSchema for Bytes {
    fn schema_name() -> Cow<'static, str> {
        "Bytes".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["string", "number"],
            "description": "An amount of memory such as 40Gi.",
            "minimum": 0,
        })
    }
}

impl JsonSchema for Fraction {
    fn schema_name() -> Cow<'static, str> {
        "Fraction".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["string", "number"],
            "description": "A fraction such as 14% or 0.14.",
            "minimum": 0,
            "maximum": 1000,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, us) in [
            ("90d", 90 * 86_400_000_000_u64),
            ("1h30m", 5_400_000_000),
            ("8.2ms", 8_200),
            ("500us", 500),
            ("0s", 0),
        ] {
            assert_eq!(Time::parse(text).map(Time::us), Ok(us), "{text}");
        }
        for text in ["", "5", "5x", "ms", "-1s", "1.2.3s", "1000000d", "1h 30"] {
            assert!(Time::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn fractions_and_sizes_are_read_with_and_without_units() {
        let fraction = |text: &str| serde_json::from_str::<Fraction>(text).map(Fraction::milli);
        assert_eq!(fraction("\"14%\"").unwrap(), 140);
        assert_eq!(fraction("0.14").unwrap(), 140);
        assert!(fraction("\"much\"").is_err());
        let bytes = |text: &str| serde_json::from_str::<Bytes>(text).map(|bytes| bytes.0);
        assert_eq!(bytes("\"40Gi\"").unwrap(), 40 << 30);
        assert!(bytes("\"1Gib\"").is_err());
        assert!(bytes("-1").is_err());
    }
}
