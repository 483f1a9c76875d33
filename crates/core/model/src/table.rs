//! Rows by number, with typed numbers.

use std::marker::PhantomData;

/// A row number.
pub trait Index: Copy + Eq {
    fn new(at: usize) -> Self;
    fn at(self) -> usize;
}

/// Defines types of row numbers.
#[macro_export]
macro_rules! row_numbers {
    ($($(#[$docs:meta])* $vis:vis $name:ident;)*) => {$(
        $(#[$docs])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis struct $name($vis u32);

        impl $crate::table::Index for $name {
            fn new(at: usize) -> Self {
                Self(u32::try_from(at).unwrap_or(u32::MAX))
            }

            fn at(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

/// Rows with reused numbers.
#[derive(Clone, Debug)]
pub struct Slab<I, T> {
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
    pub fn insert(&mut self, row: T) -> I {
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

    pub fn remove(&mut self, at: I) -> Option<T> {
        let row = self.rows.get_mut(at.at())?.take();
        if row.is_some() {
            self.free.push(at.at() as u32);
        }
        row
    }

    pub fn get(&self, at: I) -> Option<&T> {
        self.rows.get(at.at())?.as_ref()
    }

    pub fn get_mut(&mut self, at: I) -> Option<&mut T> {
        self.rows.get_mut(at.at())?.as_mut()
    }

    /// Ordered by number.
    pub fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        let rows = self.rows.iter().enumerate();
        rows.filter_map(|(at, row)| row.as_ref().map(|row| (I::new(at), row)))
    }

    pub fn indexes(&self) -> impl Iterator<Item = I> + use<'_, I, T> {
        self.iter().map(|(at, _)| at)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn len(&self) -> usize {
        self.rows.len() - self.free.len()
    }

    /// One more than the highest number ever used.
    pub fn bound(&self) -> usize {
        self.rows.len()
    }
}

impl<I: Index, T> std::ops::Index<I> for Slab<I, T> {
    type Output = T;

    /// Numbers come from the table itself, and rows are removed only when nothing refers to them.
    fn index(&self, at: I) -> &T {
        match &self.rows[at.at()] {
            Some(row) => row,
            None => unreachable!("a removed row is still referenced"),
        }
    }
}

impl<I: Index, T> std::ops::IndexMut<I> for Slab<I, T> {
    fn index_mut(&mut self, at: I) -> &mut T {
        match &mut self.rows[at.at()] {
            Some(row) => row,
            None => unreachable!("a removed row is still referenced"),
        }
    }
}
