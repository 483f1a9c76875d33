//! Selectors, compiled once for all who write the same.
//!
//! Owns which expressions are known and for how long. Must not know what they are asked about.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Lookup;
use berth_cel::{CompileError, Program};

/// Expressions that nobody uses are kept until there are so many, since claims come and go.
const IDLE_MAX: usize = 1024;

/// A compiled expression.
#[derive(Debug)]
pub(crate) struct Selector {
    /// Tells it from all others there have been.
    pub(crate) number: u64,
    pub(crate) program: Result<Program, CompileError>,
}

/// All expressions in use, and some that were.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selectors {
    known: Lookup<Arc<str>, Arc<Selector>>,
    /// Shared by clones, as answers about devices are: the same number must not come to mean one
    /// expression here and another one there.
    next: Arc<AtomicU64>,
}

impl Selectors {
    /// The expression `text`, compiled now if it is new.
    pub(crate) fn get(&mut self, text: &Arc<str>) -> Arc<Selector> {
        if let Some(known) = self.known.get(text) {
            return known.clone();
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let selector = Arc::new(Selector { number, program: Program::compile(text) });
        self.known.insert(text.clone(), selector.clone());
        selector
    }

    /// Forgets expressions nobody uses, if there are many. Whether it did.
    pub(crate) fn forget_idle(&mut self) -> bool {
        let idle = |selector: &Arc<Selector>| Arc::strong_count(selector) == 1;
        if self.known.len() <= IDLE_MAX
            || self.known.values().filter(|one| idle(one)).count() <= IDLE_MAX
        {
            return false;
        }
        self.known.retain(|_, selector| !idle(selector));
        true
    }

    /// Whether the expression of this number is still known.
    pub(crate) fn numbers(&self) -> hashbrown::HashSet<u64, foldhash::fast::FixedState> {
        self.known.values().map(|selector| selector.number).collect()
    }
}
