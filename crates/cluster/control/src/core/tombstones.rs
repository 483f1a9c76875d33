//! UIDs of objects that are gone. A watch that is repeated may report them once more; they never come back.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// Beyond this, the oldest are forgotten.
const REMEMBERED_MAX: usize = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct Tombstones {
    uids: HashSet<Arc<str>>,
    order: VecDeque<Arc<str>>,
}

impl Tombstones {
    pub(super) fn contains(&self, uid: &str) -> bool {
        self.uids.contains(uid)
    }

    pub(super) fn add(&mut self, uid: &Arc<str>) {
        if self.uids.insert(uid.clone()) {
            self.order.push_back(uid.clone());
        }
        if self.order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }
}
