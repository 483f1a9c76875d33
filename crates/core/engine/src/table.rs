//! Tables: rows by number, and numbers by value.
//!
//! Row numbers depend on the order of events, so no decision may depend on them; ties are broken by
//! name.

use std::hash::{BuildHasher, Hash};

pub(crate) use berth_model::table::{Index, Slab};
use hashbrown::{HashMap, HashTable};

/// A map with a fixed seed but without order: iterate only to count, or sort the result.
pub(crate) type Lookup<K, V> = HashMap<K, V, foldhash::fast::FixedState>;

/// A hash that is the same on every machine and in every run.
pub(crate) fn fingerprint(value: &(impl Hash + ?Sized)) -> u64 {
    foldhash::quality::FixedState::default().hash_one(value)
}

berth_model::row_numbers! {
    pub(crate) NodeIx;
    pub(crate) PodIx;
    pub(crate) ClassIx;
    pub(crate) ShapeIx;
    pub(crate) ResourceIx;
    pub(crate) KeyIx;
    pub(crate) DomainIx;
    pub(crate) QueryIx;
    pub(crate) TallyIx;
    pub(crate) ScopeIx;
}

impl DomainIx {
    /// The domain of nodes without the key.
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) fn exists(self) -> bool {
        self != Self::NONE
    }
}

/// Equal values share a row, which is kept while it is referenced.
#[derive(Clone, Debug)]
pub(crate) struct Interner<I, T> {
    rows: Slab<I, (T, u32)>,
    numbers: HashTable<u32>,
}

impl<I, T> Default for Interner<I, T> {
    fn default() -> Self {
        Self { rows: Slab::default(), numbers: HashTable::new() }
    }
}

impl<I: Index, T: Hash + Eq> Interner<I, T> {
    /// The number of `thing`, with one more reference, and whether it is new.
    pub(crate) fn acquire(&mut self, thing: T) -> (I, bool) {
        let hash = fingerprint(&thing);
        let rows = &self.rows;
        let same = |at: &u32| rows.get(I::new(*at as usize)).is_some_and(|(row, _)| *row == thing);
        if let Some(at) = self.numbers.find(hash, same) {
            let at = I::new(*at as usize);
            self.rows[at].1 += 1;
            return (at, false);
        }
        let at = self.rows.insert((thing, 1));
        let rows = &self.rows;
        let rehash =
            |at: &u32| rows.get(I::new(*at as usize)).map_or(0, |(row, _)| fingerprint(row));
        self.numbers.insert_unique(hash, at.at() as u32, rehash);
        (at, true)
    }

    pub(crate) fn retain(&mut self, at: I) {
        self.rows[at].1 += 1;
    }

    pub(crate) fn references(&self, at: I) -> u32 {
        self.rows.get(at).map_or(0, |(_, references)| *references)
    }

    /// Drops a reference; true if it was the last and the row is gone.
    pub(crate) fn release(&mut self, at: I) -> bool {
        let Some((thing, refs)) = self.rows.get_mut(at) else { return false };
        *refs -= 1;
        if *refs > 0 {
            return false;
        }
        let hash = fingerprint(&*thing);
        if let Ok(entry) = self.numbers.find_entry(hash, |number| *number == at.at() as u32) {
            entry.remove();
        }
        self.rows.remove(at);
        true
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        self.rows.iter().map(|(at, (thing, _))| (at, thing))
    }
}

impl<I: Index, T> std::ops::Index<I> for Interner<I, T> {
    type Output = T;

    fn index(&self, at: I) -> &T {
        &self.rows[at].0
    }
}

/// A set of row numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub(crate) fn contains(&self, at: impl Index) -> bool {
        self.0.get(at.at() / 64).is_some_and(|word| word >> (at.at() % 64) & 1 == 1)
    }

    pub(crate) fn set(&mut self, at: impl Index, member: bool) {
        let (word, bit) = (at.at() / 64, 1_u64 << (at.at() % 64));
        if word >= self.0.len() {
            if !member {
                return;
            }
            self.0.resize(word + 1, 0);
        }
        if member {
            self.0[word] |= bit;
        } else {
            self.0[word] &= !bit;
        }
    }
}
