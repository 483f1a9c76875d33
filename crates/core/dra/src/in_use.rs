//! Devices in use, wholly or in part.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::dra::Amounts;
use berth_model::dra::claim::{AllocatedDevice, Share};
use berth_model::quantity::Quantity;

use crate::Lookup;
use crate::pools::PoolKey;

/// The use of one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hold {
    /// How many claims have all of it; more than one only after an error elsewhere.
    whole: usize,
    /// How many claims have a part of it.
    parts: usize,
    /// The sum of all parts' capacities; `None` if no part states any.
    consumed: Option<Amounts>,
}

impl Hold {
    pub(crate) fn is_whole(&self) -> bool {
        self.whole > 0
    }

    /// `None` if no part states any.
    pub(crate) fn consumed(&self) -> Option<&Amounts> {
        self.consumed.as_ref()
    }

    fn is_empty(&self) -> bool {
        self.whole == 0 && self.parts == 0 && self.consumed.is_none()
    }
}

/// The devices of one pool, by name.
pub(crate) type PoolHolds = BTreeMap<Arc<str>, Hold>;

#[derive(Clone, Debug, Default)]
pub(crate) struct DevicesInUse {
    pools: Lookup<PoolKey, PoolHolds>,
}

impl DevicesInUse {
    pub(crate) fn of(&self, pool: &PoolKey) -> Option<&PoolHolds> {
        self.pools.get(pool)
    }

    /// Adds allocated devices. Those with admin access are not in use.
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
                    // Kubernetes removes an entry that reached zero.
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

/// By name.
pub(crate) fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let all = to.entry(name.clone()).or_insert(Quantity::ZERO);
        *all = all.saturating_add(*amount);
    }
}

/// By name; ignores names that are absent.
pub(crate) fn subtract(from: &mut Amounts, less: &Amounts) {
    for (name, amount) in less {
        if let Some(all) = from.get_mut(name) {
            *all = all.saturating_sub(*amount);
        }
    }
}
