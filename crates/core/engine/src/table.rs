//! Tables: rows by number, and numbers by value.
//!
//! Row numbers depend on the order of events, so no decision may depend on them; ties are broken by
//! name.

use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;

use hashbrown::{HashMap, HashTable};

/// A map with a fixed seed but without order: iterate only to count, or sort the result.
pub(crate) type Lookup<K, V> = HashMap<K, V, foldhash::fast::FixedState>;

/// A hash that is the same on every machine and in every run.
pub(crate) fn fingerprint(value: &(impl Hash + ?Sized)) -> u64 {
    foldhash::quality::FixedState::default().hash_one(value)
}

pub(crate) trait Index: Copy + Eq {
    fn new(at: usize) -> Self;
    fn at(self) -> usize;
}

macro_rules! index {
    ($($(#[$docs:meta])* $name:ident;)*) => {$(
        $(#[$docs])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(pub(crate) u32);

        impl Index for $name {
            fn new(at: usize) -> Self {
                Self(u32::try_from(at).unwrap_or(u32::MAX))
            }

            fn at(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

index! {
    NodeIx;
    PodIx;
    ClassIx;
    ShapeIx;
    ResourceIx;
    KeyIx;
    DomainIx;
    QueryIx;
    TallyIx;
    ScopeIx;
}

impl DomainIx {
    /// The domain of nodes without the key.
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) fn exists(self) -> bool {
        self != Self::NONE
    }
}

/// Rows with reused numbers.
#[derive(Clone, Debug)]
pub(crate) struct Slab<I, T> {
    rows: Vec<Option<T>>,
    free: Vec<u32>,
    of: PhantomData<I>,
}

impl<I, T> Default for Slab<I, T> {
    fn default() -> Self {
        Self { rows: Vec::new(), free: Vec::new(), of: PhantomData }
    }
}

impl<I: Index, T> Slab<I, T> {
    pub(crate) fn insert(&mut self, row: T) -> I {
        match self.free.pop() {
            Some(at) => {
                self.rows[at as usize] = Some(row);
                I::new(at as usize)
            }
            None => {
                self.rows.push(Some(row));
                I::new(self.rows.len() - 1)
            }
        }
    }

    pub(crate) fn remove(&mut self, at: I) -> Option<T> {
        let row = self.rows.get_mut(at.at())?.take();
        if row.is_some() {
            self.free.push(at.at() as u32);
        }
        row
    }

    pub(crate) fn get(&self, at: I) -> Option<&T> {
        self.rows.get(at.at())?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, at: I) -> Option<&mut T> {
        self.rows.get_mut(at.at())?.as_mut()
    }

    /// Ordered by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        let rows = self.rows.iter().enumerate();
        rows.filter_map(|(at, row)| row.as_ref().map(|row| (I::new(at), row)))
    }

    pub(crate) fn indexes(&self) -> impl Iterator<Item = I> + use<'_, I, T> {
        self.iter().map(|(at, _)| at)
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len() - self.free.len()
    }

    /// One more than the highest number ever used.
    pub(crate) fn bound(&self) -> usize {
        self.rows.len()
    }
}

impl<I: Index, T> std::ops::Index<I> for Slab<I, T> {
    type Output = T;

    /// Numbers come from the table itself, and rows are removed only when nothing refers to them.
    fn index(&self, at: I) -> &T {
        match &self.rows[at.at()] {
            Some(row) => row,
            None => unreachable!("a row that is gone is still referred to"),
        }
    }
}

impl<I: Index, T> std::ops::IndexMut<I> for Slab<I, T> {
    fn index_mut(&mut self, at: I) -> &mut T {
        match &mut self.rows[at.at()] {
            Some(row) => row,
            None => unreachable!("a row that is gone is still referred to"),
        }
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
