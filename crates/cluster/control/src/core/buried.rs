//! UIDs of what is gone.
//!
//! Owns that they do not come back: a watch that repeats itself may tell of them once more. Must not know
//! what they stood for.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// So many are remembered.
const BURIED_MAX: usize = 1 << 16;

/// UIDs that never come back.
#[derive(Debug, Default)]
pub(super) struct Buried {
    uids: HashSet<Arc<str>>,
    order: VecDeque<Arc<str>>,
}

impl Buried {
    pub(super) fn contains(&self, uid: &str) -> bool {
        self.uids.contains(uid)
    }

    pub(super) fn add(&mut self, uid: &Arc<str>) {
        if self.uids.insert(uid.clone()) {
            self.order.push_back(uid.clone());
        }
        if self.order.len() > BURIED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }
}
