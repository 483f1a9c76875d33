//! Sets of ids in the kernel's notations: lists (`0-3,8`) and masks (`f,00000000`).

use berth_model::idset::IdSet;

/// Why a text is not a list, a mask or a number. Quotes at most 40 characters of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParseError {
    #[error("{part:?} {problem}")]
    List { part: String, problem: String },
    #[error("{0:?} is not a group of a hexadecimal mask")]
    Mask(String),
    #[error("{0} is beyond the {max} ids supported", max = IdSet::CAPACITY)]
    Range(usize),
    #[error("{0:?} is not a number")]
    Number(String),
}

/// Parses a list such as `0-3,8`; the empty text is the empty set.
pub(crate) fn list(text: &str) -> Result<IdSet, ParseError> {
    text.parse::<IdSet>().map_err(|error| ParseError::List {
        part: shortened(&error.part).to_owned(),
        problem: error.problem.to_string(),
    })
}

/// Parses a mask in groups of 32 bits, highest first: `ff,00000000` is the ids 32 to 39.
pub(crate) fn mask(text: &str) -> Result<IdSet, ParseError> {
    let mut set = IdSet::EMPTY;
    for (group, digits) in text.trim().rsplit(',').enumerate() {
        let valid = !digits.is_empty()
            && digits.len() <= 8
            && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bits = u32::from_str_radix(digits, 16).ok().filter(|_| valid);
        let Some(bits) = bits else {
            return Err(ParseError::Mask(shortened(digits).to_owned()));
        };
        for bit in (0..32).filter(|bit| bits >> bit & 1 == 1) {
            let id = group.saturating_mul(32).saturating_add(bit);
            if id >= IdSet::CAPACITY {
                return Err(ParseError::Range(id));
            }
            set.insert(id);
        }
    }
    Ok(set)
}

/// Parses a text that consists of digits only.
pub(crate) fn number(text: &str) -> Result<u64, ParseError> {
    let all_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|_| all_digits)
        .ok_or_else(|| ParseError::Number(shortened(text).to_owned()))
}

/// At most the first 40 characters.
pub(crate) fn shortened(text: &str) -> &str {
    const CHARACTERS_MAX: usize = 40;
    text.char_indices().nth(CHARACTERS_MAX).map_or(text, |(end, _)| text.get(..end).unwrap_or(""))
}

/// Serde: a set as a list.
pub(crate) mod as_list {
    use berth_model::idset::IdSet;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(set: &IdSet, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(set)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<IdSet, D::Error> {
        let text = String::deserialize(from)?;
        super::list(&text).map_err(serde::de::Error::custom)
    }
}

/// Serde: an optional set as a list.
pub(crate) mod as_list_if_known {
    use berth_model::idset::IdSet;
    use serde::{Deserialize as _, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "serde calls it with a reference to the field")]
    pub(crate) fn serialize<S: Serializer>(set: &Option<IdSet>, to: S) -> Result<S::Ok, S::Error> {
        match set {
            Some(set) => to.collect_str(set),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<IdSet>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| super::list(&text).map_err(serde::de::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Formats as the kernel's `%*pb` does with this number of bits.
    fn kernel_mask(set: &IdSet, bits: usize) -> String {
        let groups = (0..bits.div_ceil(32)).rev().map(|group| {
            let bits = (0..32)
                .filter(|bit| set.contains(group * 32 + bit))
                .fold(0u32, |all, bit| all | 1 << bit);
            format!("{bits:08x}")
        });
        groups.collect::<Vec<_>>().join(",")
    }

    proptest! {
        #[test]
        fn lists_and_masks_agree(ids in proptest::collection::btree_set(0usize..1024, 0..200)) {
            let set: IdSet = ids.iter().copied().collect();
            prop_assert_eq!(list(&format!("{set}\n")).unwrap(), set);
            prop_assert_eq!(mask(&kernel_mask(&set, 1024)).unwrap(), set);
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), ids.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn ranges_in_any_order_and_overlapping_are_their_union(
            ranges in proptest::collection::vec((0usize..1000, 0usize..24), 0..20),
        ) {
            let text: Vec<String> =
                ranges.iter().map(|(start, more)| format!("{start}-{}", start + more)).collect();
            let union: IdSet = ranges.iter().flat_map(|(start, more)| *start..=start + more).collect();
            prop_assert_eq!(list(&text.join(",")).unwrap(), union);
        }

        #[test]
        fn arbitrary_text_does_not_panic(text in "\\PC*") {
            let _ = (list(&text), mask(&text), number(&text), shortened(&text));
        }

        #[test]
        fn a_list_survives_formatting(text in "[0-9,-]{0,12}") {
            if let Ok(set) = list(&text) {
                prop_assert_eq!(list(&set.to_string()).unwrap(), set);
            }
        }
    }

    #[test]
    fn errors_quote_the_invalid_part() {
        for (text, why) in [
            ("1-", "\"1-\" is not a number or a range"),
            ("3-1", "\"3-1\" ends before it starts"),
            ("0,2048", "\"2048\" is beyond the 1,024 ids supported"),
            (
                "0-99999999999999999999",
                "\"0-99999999999999999999\" is beyond the 1,024 ids supported",
            ),
            ("+1", "\"+1\" is not a number or a range"),
        ] {
            assert_eq!(list(text).unwrap_err().to_string(), why);
        }
        assert!(mask("+f").is_err());
        assert!(mask("").is_err());
        assert!(mask(&format!("1{}", ",00000000".repeat(40))).is_err());
        assert_eq!(mask("1,00000000,00000003").unwrap().to_string(), "0-1,64");
    }
}
