//! Sets of small ids: CPU ids of a machine, device indexes of a pool. Printed in the kernel's list
//! format (`0-3,8`).
//!
//! The size is fixed and the type is `Copy`, so that admission can be tried on a copy on the stack.

use std::fmt;
use std::ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign, Sub, SubAssign};
use std::str::FromStr;

use thiserror::Error;

const WORDS: usize = 16;

/// A set of ids below [`IdSet::CAPACITY`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct IdSet([u64; WORDS]);

/// Logical CPU ids of one machine.
pub type CpuSet = IdSet;

/// Positions of devices in the pool that lists them.
pub type DeviceSet = IdSet;

impl IdSet {
    /// Ids are below this number.
    pub const CAPACITY: usize = WORDS * 64;

    pub const EMPTY: Self = Self([0; WORDS]);

    /// The set `{0, 1, … n-1}`; ids beyond the capacity are left out.
    pub fn first_ids(n: usize) -> Self {
        (0..n.min(Self::CAPACITY)).collect()
    }

    /// Ignores ids from [`Self::CAPACITY`] on; callers check before.
    pub fn insert(&mut self, id: usize) {
        if let Some(word) = self.0.get_mut(id / 64) {
            *word |= 1 << (id % 64);
        }
    }

    pub fn remove(&mut self, id: usize) {
        if let Some(word) = self.0.get_mut(id / 64) {
            *word &= !(1 << (id % 64));
        }
    }

    pub fn contains(&self, id: usize) -> bool {
        self.0.get(id / 64).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    pub fn len(&self) -> usize {
        count(self.0.iter().copied())
    }

    /// Number of common members, without building the intersection.
    pub fn count_in(&self, other: &Self) -> usize {
        count(self.0.iter().zip(&other.0).map(|(a, b)| a & b))
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub fn intersects(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }

    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a & !b == 0)
    }

    pub fn last(&self) -> Option<usize> {
        self.0
            .iter()
            .enumerate()
            .rev()
            .find(|(_, word)| **word != 0)
            .map(|(index, word)| index * 64 + 63 - word.leading_zeros() as usize)
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(index, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros() as usize;
                    rest &= rest - 1;
                    index * 64 + bit
                })
            })
        })
    }
}

/// Skips zero words: most words are zero, and counting bits is slow on the oldest supported
/// processors.
fn count(words: impl Iterator<Item = u64>) -> usize {
    words.filter(|word| *word != 0).map(|word| word.count_ones() as usize).sum()
}

impl Default for IdSet {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// Ids beyond the capacity are left out, as in [`IdSet::insert`].
impl FromIterator<usize> for IdSet {
    fn from_iter<I: IntoIterator<Item = usize>>(ids: I) -> Self {
        let mut set = Self::EMPTY;
        ids.into_iter().for_each(|id| set.insert(id));
        set
    }
}

macro_rules! set_operator {
    ($trait:ident :: $method:ident, $assign_trait:ident :: $assign:ident, $word:expr) => {
        impl $assign_trait for IdSet {
            fn $assign(&mut self, other: Self) {
                let combine: fn(u64, u64) -> u64 = $word;
                for (mine, theirs) in self.0.iter_mut().zip(other.0) {
                    *mine = combine(*mine, theirs);
                }
            }
        }
        impl $trait for IdSet {
            type Output = Self;
            fn $method(mut self, other: Self) -> Self {
                $assign_trait::$assign(&mut self, other);
                self
            }
        }
    };
}

set_operator!(BitOr::bitor, BitOrAssign::bitor_assign, |a, b| a | b);
set_operator!(BitAnd::bitand, BitAndAssign::bitand_assign, |a, b| a & b);
set_operator!(Sub::sub, SubAssign::sub_assign, |a, b| a & !b);

impl fmt::Display for IdSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ids = self.iter().peekable();
        let mut separator = "";
        while let Some(start) = ids.next() {
            let mut end = start;
            while ids.next_if_eq(&(end + 1)).is_some() {
                end += 1;
            }
            match end - start {
                0 => write!(f, "{separator}{start}")?,
                _ => write!(f, "{separator}{start}-{end}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for IdSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("id list {text:?}: {part:?} {problem}; write ids and ranges such as 0-3,8")]
pub struct IdSetError {
    pub text: String,
    pub part: String,
    pub problem: &'static str,
}

impl FromStr for IdSet {
    type Err = IdSetError;

    fn from_str(text: &str) -> Result<Self, IdSetError> {
        let mut set = Self::EMPTY;
        if text.trim().is_empty() {
            return Ok(set);
        }
        for part in text.trim().split(',') {
            let error =
                |problem| IdSetError { text: text.to_owned(), part: part.to_owned(), problem };
            let id = |digits: &str| -> Result<usize, IdSetError> {
                if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err(error("is not a number or a range"));
                }
                match digits.parse() {
                    Ok(id) if id < Self::CAPACITY => Ok(id),
                    _ => Err(error("is beyond the 1,024 ids supported")),
                }
            };
            let (start, end) = match part.trim().split_once('-') {
                Some((start, end)) => (id(start)?, id(end)?),
                None => (id(part.trim())?, id(part.trim())?),
            };
            if start > end {
                return Err(error("ends before it starts"));
            }
            (start..=end).for_each(|id| set.insert(id));
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_format_round_trips() {
        for text in ["", "0", "0-3", "0,2,4-7,1023", "63-64,127-129"] {
            assert_eq!(text.parse::<IdSet>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn bad_lists_name_the_part_that_is_wrong() {
        for (text, part) in
            [("0-3,x", "x"), ("3-1", "3-1"), ("1024", "1024"), ("0,,1", ""), ("-1", "-1")]
        {
            assert_eq!(text.parse::<IdSet>().unwrap_err().part, part, "{text}");
        }
    }

    #[test]
    fn set_algebra_agrees_with_membership() {
        let a: IdSet = "0-10,70-80".parse().unwrap();
        let b: IdSet = "5-75".parse().unwrap();
        for id in 0..100 {
            assert_eq!((a | b).contains(id), a.contains(id) || b.contains(id));
            assert_eq!((a & b).contains(id), a.contains(id) && b.contains(id));
            assert_eq!((a - b).contains(id), a.contains(id) && !b.contains(id));
        }
        assert_eq!(a.count_in(&b), (a & b).len());
        assert_eq!(a.last(), Some(80));
        assert_eq!((a & b).iter().count(), (a & b).len());
    }
}
