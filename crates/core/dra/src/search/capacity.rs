//! Consumption: parts of shared devices, and counters of pools.

use std::sync::Arc;

use berth_model::dra::Amounts;
use berth_model::dra::claim::DeviceRequest;
use berth_model::dra::slice::{Capacity, Device, ValidRequests};
use berth_model::quantity::{Format, Quantity};

use super::{Counters, Search, SearchPosition, Undo};
use crate::in_use::{Hold, PoolHolds, add, subtract};
use crate::pools::PoolView;
use crate::published::PublishedSlice;

/// What a request would consume of a device.
pub(super) enum Consumption {
    /// Never satisfiable on this device.
    Impossible,
    /// Amounts of its capacities.
    Amounts(Amounts),
}

impl Consumption {
    pub(super) fn of(ask: &DeviceRequest, device: &Device) -> Self {
        if ask.capacity.keys().any(|name| !device.capacity.contains_key(name)) {
            return Self::Impossible;
        }
        let mut amounts = Amounts::new();
        for (name, capacity) in &device.capacity {
            let Some(amount) = consumed(ask.capacity.get(name).copied(), capacity) else {
                return Self::Impossible;
            };
            if amount > capacity.value {
                return Self::Impossible;
            }
            amounts.insert(name.clone(), amount);
        }
        Self::Amounts(amounts)
    }
}

/// What a request (or none) consumes of a capacity; `None` if the policy does not allow it.
fn consumed(asked: Option<Quantity>, capacity: &Capacity) -> Option<Quantity> {
    let Some(policy) = &capacity.policy else { return Some(asked.unwrap_or(capacity.value)) };
    let Some(asked) = asked else {
        let amount = policy.default.unwrap_or(capacity.value);
        return (policy.default.is_some() || is_valid(amount, &policy.valid)).then_some(amount);
    };
    let amount = match &policy.valid {
        ValidRequests::Any => asked,
        ValidRequests::Values(values) => {
            values.iter().copied().find(|value| asked <= *value).unwrap_or(asked)
        }
        ValidRequests::Range { min, .. } if asked < *min => *min,
        ValidRequests::Range { step: None, .. } => asked,
        ValidRequests::Range { min, step: Some(step), .. } => {
            let (least, step) = (i128::from(min.value()), i128::from(step.value()));
            let above = i128::from(asked.value()) - least;
            let steps = above.checked_div(step)? + i128::from(above % step != 0);
            let units = least + steps * step;
            Quantity::from_units(i64::try_from(units).ok()?, Format::BinarySi)
        }
    };
    let allowed = policy.default == Some(amount) || is_valid(amount, &policy.valid);
    allowed.then_some(amount)
}

fn is_valid(amount: Quantity, valid: &ValidRequests) -> bool {
    match valid {
        ValidRequests::Any => true,
        ValidRequests::Values(values) => values.contains(&amount),
        ValidRequests::Range { min, max, step } => {
            let above = i128::from(amount.value()) - i128::from(min.value());
            max.is_none_or(|max| amount <= max)
                && step.is_none_or(|step| above.checked_rem(i128::from(step.value())) == Some(0))
        }
    }
}

impl Search<'_> {
    /// Whether a device has enough left for the request.
    pub(super) fn has_room(&mut self, spot: SearchPosition, candidate: usize) -> bool {
        let ask = &mut self.requests[spot.claim][spot.request][spot.alternative];
        let one = &self.candidates[candidate];
        if one.device.capacity.is_empty() {
            return ask.ask.capacity.is_empty();
        }
        let take = ask
            .consumptions
            .entry(candidate)
            .or_insert_with(|| Consumption::of(ask.ask, one.device));
        let Consumption::Amounts(amounts) = take else { return false };
        let (held, attempt) =
            (one.hold.and_then(Hold::consumed), self.states[candidate].shared.as_ref());
        if held.is_none() && attempt.is_none() {
            return true;
        }
        amounts.iter().all(|(name, amount)| {
            let of = |all: Option<&Amounts>| {
                all.and_then(|all| all.get(name)).copied().unwrap_or(Quantity::ZERO)
            };
            let all = amount.saturating_add(of(held)).saturating_add(of(attempt));
            one.device.capacity.get(name).is_some_and(|capacity| all <= capacity.value)
        })
    }

    /// Allocates a part of a device.
    pub(super) fn share(
        &mut self,
        spot: SearchPosition,
        candidate: usize,
        undo: &mut Undo,
    ) -> Amounts {
        let ask = &self.requests[spot.claim][spot.request][spot.alternative];
        let amounts = match ask.consumptions.get(&candidate) {
            Some(Consumption::Amounts(amounts)) => amounts.clone(),
            _ => Amounts::new(),
        };
        let shared = &mut self.states[candidate].shared;
        undo.shared = Some((amounts.clone(), shared.is_some()));
        add(shared.get_or_insert_default(), &amounts);
        amounts
    }

    pub(super) fn unshare(&mut self, candidate: usize, consumed: &Amounts, shared_before: bool) {
        let shared = &mut self.states[candidate].shared;
        if let Some(all) = shared {
            subtract(all, consumed);
        }
        if !shared_before {
            *shared = None;
        }
    }

    /// Consumes the counters of a device, if they suffice.
    pub(super) fn count_up(&mut self, candidate: usize) -> bool {
        self.counters_of(candidate);
        self.adjust(candidate, Quantity::saturating_add);
        let counters = &self.counters[self.candidates[candidate].pool];
        let enough = counters.as_ref().is_some_and(|counters| {
            counters.available.iter().zip(&counters.consumed).all(|(all, used)| used <= all)
        });
        if !enough {
            self.count_down(candidate);
        }
        enough
    }

    pub(super) fn count_down(&mut self, candidate: usize) {
        self.adjust(candidate, Quantity::saturating_sub);
    }

    fn adjust(&mut self, candidate: usize, by: fn(Quantity, Quantity) -> Quantity) {
        let one = &self.candidates[candidate];
        let table = &self.pools[one.pool].counters;
        let Some(counters) = &mut self.counters[one.pool] else { return };
        for set in &one.device.consumes {
            for (name, amount) in &set.counters {
                if let Some(number) = table.number(&set.name, name) {
                    counters.consumed[number] = by(counters.consumed[number], *amount);
                }
            }
        }
    }

    fn counters_of(&mut self, candidate: usize) {
        let at = self.candidates[candidate].pool;
        if self.counters[at].is_none() {
            let pool = &self.pools[at];
            let available = available(pool, self.inventory.in_use.of(&pool.key));
            let consumed = vec![Quantity::ZERO; available.len()];
            self.counters[at] = Some(Counters { available, consumed });
        }
    }
}

/// What allocated devices leave of a pool's counters. It may be negative; then no device that
/// consumes any counter of the pool can be allocated.
fn available(pool: &PoolView, holds: Option<&PoolHolds>) -> Vec<Quantity> {
    let mut left = pool.counters.values.clone();
    let Some(holds) = holds else { return left };
    let slices = pool.here.iter().chain(&pool.elsewhere);
    let devices = slices.flat_map(|published: &Arc<PublishedSlice>| &published.slice.devices);
    for device in devices.filter(|device| holds.contains_key(&device.name)) {
        for set in &device.consumes {
            for (name, amount) in &set.counters {
                if let Some(number) = pool.counters.number(&set.name, name) {
                    left[number] = left[number].saturating_sub(*amount);
                }
            }
        }
    }
    left
}
