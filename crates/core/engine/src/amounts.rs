//! Resources as numbers: what pods ask for and nodes have, by resource.
//!
//! Owns the numbering of resources and kube-scheduler's units: CPU in thousandths, everything else
//! in whole units, rounded up. Must not know who has what.

use berth_model::resource::{ResourceList, ResourceName};
use smallvec::SmallVec;

use crate::table::{Index, Lookup, ResourceIx};

/// Amounts by resource, each once, in the order of the numbers.
pub(crate) type Amounts = SmallVec<[(ResourceIx, i64); 4]>;

pub(crate) const CPU: ResourceIx = ResourceIx(0);
pub(crate) const MEMORY: ResourceIx = ResourceIx(1);

/// No amount counts for more: so many of them can be added up that no node holds as many pods.
const AMOUNT_MAX: i64 = 1 << 52;

/// The resource that counts pods; it is a limit of its own, not an amount.
const PODS: &str = "pods";

/// Names of resources by number.
#[derive(Clone, Debug)]
pub(crate) struct Resources {
    names: Vec<ResourceName>,
    numbers: Lookup<ResourceName, ResourceIx>,
}

impl Default for Resources {
    fn default() -> Self {
        let mut resources = Self { names: Vec::new(), numbers: Lookup::default() };
        resources.number(&ResourceName::cpu());
        resources.number(&ResourceName::memory());
        resources
    }
}

impl Resources {
    pub(crate) fn number(&mut self, name: &ResourceName) -> ResourceIx {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = ResourceIx::new(self.names.len());
        self.names.push(name.clone());
        self.numbers.insert(name.clone(), number);
        number
    }

    pub(crate) fn name(&self, number: ResourceIx) -> &ResourceName {
        &self.names[number.at()]
    }

    /// What `list` asks for; nothing for amounts of 0.
    pub(crate) fn amounts(&mut self, list: &ResourceList) -> Amounts {
        let mut amounts: Amounts = list
            .iter()
            .filter(|(name, _)| name.as_str() != PODS)
            .map(|(name, quantity)| {
                let milli = name.as_str() == "cpu";
                let amount = if milli { quantity.milli_value() } else { quantity.value() };
                (self.number(name), amount.clamp(-AMOUNT_MAX, AMOUNT_MAX))
            })
            .filter(|(_, amount)| *amount != 0)
            .collect();
        amounts.sort_unstable();
        amounts
    }

    /// What a node has: amounts by number, and how many pods it may hold.
    pub(crate) fn capacity(&mut self, list: &ResourceList) -> (Vec<i64>, i64) {
        let mut by_number = Vec::new();
        for (resource, amount) in self.amounts(list) {
            *at_mut(&mut by_number, resource) = amount;
        }
        (by_number, list.get(PODS).map_or(0, |pods| pods.value()))
    }
}

/// The amount of one resource, 0 where none is listed.
pub(crate) fn at(by_number: &[i64], resource: ResourceIx) -> i64 {
    by_number.get(resource.at()).copied().unwrap_or(0)
}

/// The place of one resource, made if it is not listed yet.
pub(crate) fn at_mut(by_number: &mut Vec<i64>, resource: ResourceIx) -> &mut i64 {
    if resource.at() >= by_number.len() {
        by_number.resize(resource.at() + 1, 0);
    }
    &mut by_number[resource.at()]
}

/// Adds `amounts`, or takes them away with a `sign` of -1.
pub(crate) fn add(by_number: &mut Vec<i64>, amounts: &Amounts, sign: i64) {
    for (resource, amount) in amounts {
        let place = at_mut(by_number, *resource);
        *place = place.saturating_add(sign * amount);
    }
}
