//! Rows by number: numbers are freed and used again.
//!
//! Owns the numbering. Nothing that is foretold depends on numbers but through draws of chance.

use std::marker::PhantomData;

/// Rows of one sort.
#[derive(Clone, Debug)]
pub(crate) struct Table<I, T> {
    rows: Vec<Option<T>>,
    free: Vec<u32>,
    index: PhantomData<I>,
}

/// A number of a row.
pub(crate) trait Index: Copy {
    fn new(at: usize) -> Self;
    fn at(self) -> usize;
}

impl<I, T> Default for Table<I, T> {
    fn default() -> Self {
        Self { rows: Vec::new(), free: Vec::new(), index: PhantomData }
    }
}

impl<I: Index, T> Table<I, T> {
    pub(crate) fn add(&mut self, row: T) -> I {
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

    pub(crate) fn remove(&mut self, index: I) -> Option<T> {
        let row = self.rows.get_mut(index.at())?.take()?;
        self.free.push(index.at() as u32);
        Some(row)
    }

    pub(crate) fn get(&self, index: I) -> Option<&T> {
        self.rows.get(index.at())?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: I) -> Option<&mut T> {
        self.rows.get_mut(index.at())?.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        self.rows
            .iter()
            .enumerate()
            .filter_map(move |(at, one)| one.as_ref().map(|one| (I::new(at), one)))
    }

    /// No row has this number or a higher one.
    pub(crate) fn end(&self) -> usize {
        self.rows.len()
    }
}
