//! Sets of completion indexes in the notation of Jobs: `0-2,5`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Limit for lists of indexes that are read.
const INDEXES_MAX: u32 = 100_000;

/// Reads the indexes below `count`; invalid parts are skipped.
pub(super) fn read(text: &str, count: u32) -> BTreeSet<u32> {
    let count = count.min(INDEXES_MAX);
    let mut found = BTreeSet::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            found.extend((first..=last.min(count.saturating_sub(1))).take_while(|at| *at < count));
        }
    }
    found
}

/// Writes three or more consecutive indexes as a range.
pub(super) fn write(indexes: &BTreeSet<u32>) -> String {
    let mut text = String::new();
    let mut left = indexes.iter().copied().peekable();
    while let Some(first) = left.next() {
        let mut last = first;
        while let Some(next) = left.next_if(|next| *next == last + 1) {
            last = next;
        }
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = match last - first {
            0 => write!(text, "{comma}{first}"),
            1 => write!(text, "{comma}{first},{last}"),
            _ => write!(text, "{comma}{first}-{last}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_written_as_kubernetes_writes_them() {
        for text in ["", "0", "0,1", "0-2", "0-2,4", "1,3,5-9", "0,1,3-5"] {
            assert_eq!(write(&read(text, 100)), text, "{text:?}");
        }
    }

    #[test]
    fn nonsense_and_indexes_beyond_the_last_are_left_out() {
        assert_eq!(write(&read("x,3-,2-1,7,0-4294967295", 4)), "0-3");
        assert!(read("0-5", 0).is_empty());
        assert!(read("4294967295", u32::MAX).is_empty());
    }
}
