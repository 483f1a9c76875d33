//! Compiled selectors, one per distinct expression.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Lookup;
use berth_cel::{CompileError, EvalError, Program};
use thiserror::Error;

/// Unused expressions are kept up to this number, since claims come and go.
const IDLE_MAX: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(transparent)]
pub(crate) enum SelectorError {
    Compile(#[from] CompileError),
    Evaluation(#[from] EvalError),
}

#[derive(Debug)]
pub(crate) struct Selector {
    /// Unique over the lifetime of the inventory and its clones.
    pub(crate) number: u64,
    pub(crate) program: Result<Program, CompileError>,
}

/// All expressions in use, and some that were.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selectors {
    known: Lookup<Arc<str>, Arc<Selector>>,
    /// Shared by clones, like the cached results: a number must not mean different expressions.
    next: Arc<AtomicU64>,
}

impl Selectors {
    /// Compiles `text` if it is new.
    pub(crate) fn get(&mut self, text: &Arc<str>) -> Arc<Selector> {
        if let Some(known) = self.known.get(text) {
            return known.clone();
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let selector = Arc::new(Selector { number, program: Program::compile(text) });
        self.known.insert(text.clone(), selector.clone());
        selector
    }

    /// Drops unused expressions if there are many. Returns whether it did.
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

    /// The numbers of all known expressions.
    pub(crate) fn numbers(&self) -> hashbrown::HashSet<u64, foldhash::fast::FixedState> {
        self.known.values().map(|selector| selector.number).collect()
    }
}
