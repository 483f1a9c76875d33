//! Who holds what: devices that are given out, wholly or in part.
//!
//! Owns the counting. Must not know which devices exist.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::dra::Amounts;
use berth_model::dra::claim::{AllocatedDevice, Share};
use berth_model::quantity::Quantity;

use crate::Lookup;
use crate::pools::PoolKey;

/// What is held of one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hold {
    /// How many claims hold all of it; more than one only if someone else erred.
    whole: usize,
    /// How many claims hold a part of it.
    parts: usize,
    /// How much of its capacities all parts have, and in how many of them any was said.
    consumed: Option<Amounts>,
}

impl Hold {
    /// Whether somebody holds all of it.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole > 0
    }

    /// How much of its capacities is used; `None` if nobody said.
    pub(crate) fn consumed(&self) -> Option<&Amounts> {
        self.consumed.as_ref()
    }

    fn is_empty(&self) -> bool {
        self.whole == 0 && self.parts == 0 && self.consumed.is_none()
    }
}

/// What is held of the devices of one pool, by name.
pub(crate) type PoolHolds = BTreeMap<Arc<str>, Hold>;

/// What is held of all devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken {
    pools: Lookup<PoolKey, PoolHolds>,
}

impl Taken {
    pub(crate) fn of(&self, pool: &PoolKey) -> Option<&PoolHolds> {
        self.pools.get(pool)
    }

    /// Counts devices that were given. Those with admin access are not held.
    pub(crate) fn add(&mut self, devices: &[AllocatedDevice]) {
        for device in devices.iter().filter(|device| !device.admin_access) {
            let pool = self.pools.entry(PoolKey::of(&device.id)).or_default();
            let hold = pool.entry(device.id.device.clone()).or_default();
            match &device.share {
                Share::Whole => hold.whole += 1,
                Share::Part { consumed, .. } => {
                    hold.parts += 1;
                    if !consumed.is_empty() {
                        add(hold.consumed.get_or_insert_default(), consumed);
                    }
                }
            }
        }
    }

    /// Takes back what was counted.
    pub(crate) fn remove(&mut self, devices: &[AllocatedDevice]) {
        for device in devices.iter().filter(|device| !device.admin_access) {
            let key = PoolKey::of(&device.id);
            let Some(pool) = self.pools.get_mut(&key) else { continue };
            let Some(hold) = pool.get_mut(&device.id.device) else { continue };
            match &device.share {
                Share::Whole => hold.whole = hold.whole.saturating_sub(1),
                Share::Part { consumed, .. } => {
                    hold.parts = hold.parts.saturating_sub(1);
                    if let Some(all) = &mut hold.consumed {
                        subtract(all, consumed);
                    }
                    // Kubernetes forgets an entry that came to nothing.
                    let nothing = |all: &mut Amounts| all.values().all(|amount| amount.is_zero());
                    hold.consumed.take_if(nothing);
                }
            }
            if hold.is_empty() {
                pool.remove(&device.id.device);
                if pool.is_empty() {
                    self.pools.remove(&key);
                }
            }
        }
    }
}

/// Adds to amounts, by name.
pub(crate) fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let all = to.entry(name.clone()).or_insert(Quantity::ZERO);
        *all = all.saturating_add(*amount);
    }
}

/// Takes from amounts, by name; what is not there stays so.
pub(crate) fn subtract(from: &mut Amounts, less: &Amounts) {
    for (name, amount) in less {
        if let Some(all) = from.get_mut(name) {
            *all = all.saturating_sub(*amount);
        }
    }
}
