//! Sets of ids as the kernel writes them: lists (`0-3,8`), masks (`f,00000000`), and sets in what is
//! printed.
//!
//! Owns the notations. Must not know what the ids mean.

use berth_model::idset::IdSet;

/// A list such as `0-3,8`; nothing is the empty set.
pub(crate) fn list(text: &str) -> Result<IdSet, String> {
    // The error repeats the text, which may be long and odd.
    text.parse::<IdSet>().map_err(|error| format!("{:?} {}", shortened(&error.part), error.problem))
}

/// A mask in groups of 32 bits, the highest first: `ff,00000000` is the ids 32 to 39.
pub(crate) fn mask(text: &str) -> Result<IdSet, String> {
    let mut set = IdSet::EMPTY;
    for (group, digits) in text.trim().rsplit(',').enumerate() {
        let valid = !digits.is_empty()
            && digits.len() <= 8
            && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bits = u32::from_str_radix(digits, 16).ok().filter(|_| valid);
        let Some(bits) = bits else {
            return Err(format!("{:?} is no group of a mask", shortened(digits)));
        };
        for bit in (0..32).filter(|bit| bits >> bit & 1 == 1) {
            let id = group.saturating_mul(32).saturating_add(bit);
            if id >= IdSet::CAPACITY {
                return Err(format!("{id} is beyond the {} ids supported", IdSet::CAPACITY));
            }
            set.insert(id);
        }
    }
    Ok(set)
}

/// A number that is all of the text.
pub(crate) fn number(text: &str) -> Result<u64, String> {
    let all_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|_| all_digits)
        .ok_or_else(|| format!("{:?} is no number", shortened(text)))
}

/// The start of a text that may be long.
pub(crate) fn shortened(text: &str) -> &str {
    const CHARACTERS_MAX: usize = 40;
    text.char_indices().nth(CHARACTERS_MAX).map_or(text, |(end, _)| text.get(..end).unwrap_or(""))
}

/// Sets are printed as lists.
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

/// Sets that may be unknown.
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

    /// As the kernel's `%*pb` writes a mask of so many bits.
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
        fn lists_and_masks_say_the_same(ids in proptest::collection::btree_set(0usize..1024, 0..200)) {
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
        fn no_text_is_too_odd(text in "\\PC*") {
            let _ = (list(&text), mask(&text), number(&text), shortened(&text));
        }

        #[test]
        fn what_is_read_is_what_was_written(text in "[0-9,-]{0,12}") {
            if let Ok(set) = list(&text) {
                prop_assert_eq!(list(&set.to_string()).unwrap(), set);
            }
        }
    }

    #[test]
    fn what_is_no_list_is_said() {
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
            assert_eq!(list(text).unwrap_err(), why);
        }
        assert!(mask("+f").is_err());
        assert!(mask("").is_err());
        assert!(mask(&format!("1{}", ",00000000".repeat(40))).is_err());
        assert_eq!(mask("1,00000000,00000003").unwrap().to_string(), "0-1,64");
    }
}
