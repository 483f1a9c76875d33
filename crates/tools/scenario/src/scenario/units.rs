//! Times, sizes and parts as people write them: `90d`, `8.2ms`, `40Gi`, `14%`.
//!
//! Owns the spelling only.

use std::fmt;

use berth_model::quantity::Quantity;
use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A time, in microseconds: `90d`, `1h30m`, `45s`, `8.2ms`, `500us`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time {
    us: u64,
}

/// The longest time: a century.
const TIME_MAX_US: f64 = 100.0 * 366.0 * 86_400.0 * 1e6;

const TIME_UNITS: [(&str, f64); 7] =
    [("us", 1.0), ("µs", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 6e7), ("h", 3.6e9), ("d", 8.64e10)];

impl Time {
    /// In milliseconds.
    pub(crate) fn ms(self) -> i64 {
        i64::try_from(self.us / 1000).unwrap_or(i64::MAX)
    }

    /// In microseconds.
    pub(crate) fn us(self) -> u64 {
        self.us
    }

    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{text:?} is no time; write a number with us, ms, s, m, h or d, such as 1h30m")
        };
        let (mut rest, mut us) = (text.trim(), 0.0);
        if rest.is_empty() {
            return Err(wrong());
        }
        while !rest.is_empty() {
            let digits = rest.find(|one: char| !one.is_ascii_digit() && one != '.');
            let (number, after) = rest.split_at(digits.ok_or_else(wrong)?);
            let letters = after.find(|one: char| one.is_ascii_digit()).unwrap_or(after.len());
            let (unit, after) = after.split_at(letters);
            let known = TIME_UNITS.iter().find(|(name, _)| *name == unit.trim());
            let (_, factor) = known.ok_or_else(wrong)?;
            us += number.parse::<f64>().map_err(|_| wrong())? * factor;
            rest = after;
        }
        if !(0.0..=TIME_MAX_US).contains(&us) {
            return Err(format!("{text:?} is longer than a century"));
        }
        Ok(Self { us: us.round() as u64 })
    }
}

/// An amount of memory: `40Gi`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

/// A part of something: `14%` or `0.14`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Part(pub(crate) f64);

impl Part {
    /// In thousandths.
    pub(crate) fn milli(self) -> u32 {
        (self.0 * 1000.0).round() as u32
    }

    fn checked(part: f64, text: &str) -> Result<Self, String> {
        if (0.0..=1000.0).contains(&part) {
            Ok(Self(part))
        } else {
            Err(format!(
                "{text} is no part; write a percentage such as 14%, or a number such as 0.14"
            ))
        }
    }
}

/// Reads a value that is written as text, or as a plain number.
struct Written<T> {
    expects: &'static str,
    of_text: fn(&str) -> Result<T, String>,
    of_number: Option<fn(f64) -> Result<T, String>>,
}

impl<T> Written<T> {
    fn number<E: de::Error>(&self, number: f64) -> Result<T, E> {
        match self.of_number {
            Some(read) => read(number).map_err(E::custom),
            None => Err(E::custom(format!("{number} has no unit; write {}", self.expects))),
        }
    }
}

impl<T> Visitor<'_> for Written<T> {
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
        from.deserialize_any(Written {
            expects: "a time such as 90d, 1h30m or 8.2ms",
            of_text: Self::parse,
            of_number: None,
        })
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let read = |text: &str| {
            let quantity = Quantity::parse(text).map_err(|error| error.to_string())?;
            let bytes = u64::try_from(quantity.value());
            bytes.map(Self).map_err(|_| format!("{text:?} is negative; write 0 or more"))
        };
        from.deserialize_any(Written {
            expects: "an amount of memory such as 40Gi",
            of_text: read,
            of_number: Some(|number| match number {
                bytes if bytes >= 0.0 => Ok(Self(bytes as u64)),
                bytes => Err(format!("{bytes} is negative; write 0 or more")),
            }),
        })
    }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let read = |text: &str| {
            let number = text.trim().strip_suffix('%');
            let percent = number.and_then(|number| number.trim().parse::<f64>().ok());
            let part = percent.map(|percent| percent / 100.0);
            Self::checked(part.or_else(|| text.parse().ok()).unwrap_or(f64::NAN), text)
        };
        from.deserialize_any(Written {
            expects: "a part such as 14% or 0.14",
            of_text: read,
            of_number: Some(|number| Self::checked(number, &number.to_string())),
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
    fn parts_and_sizes_are_read_with_and_without_units() {
        let part = |text: &str| serde_json::from_str::<Part>(text).map(Part::milli);
        assert_eq!(part("\"14%\"").unwrap(), 140);
        assert_eq!(part("0.14").unwrap(), 140);
        assert!(part("\"much\"").is_err());
        let bytes = |text: &str| serde_json::from_str::<Bytes>(text).map(|bytes| bytes.0);
        assert_eq!(bytes("\"40Gi\"").unwrap(), 40 << 30);
        assert!(bytes("\"1Gib\"").is_err());
        assert!(bytes("-1").is_err());
    }
}
