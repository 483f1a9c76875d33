//! Resources as numbers, in kube-scheduler's units: CPU in thousandths, everything else in whole
//! units, rounded up.

use berth_model::resource::{ResourceList, ResourceName};
use smallvec::SmallVec;

use crate::table::{Index, Lookup, ResourceIx};

/// Amounts by resource, sorted by resource number, each resource once.
pub(crate) type Amounts = SmallVec<[(ResourceIx, i64); 4]>;

pub(crate) const CPU: ResourceIx = ResourceIx(0);
pub(crate) const MEMORY: ResourceIx = ResourceIx(1);

/// Upper limit of one amount, so that adding up any number of pods cannot overflow.
const AMOUNT_MAX: i64 = 1 << 52;

/// The number of pods is a limit of its own, not an amount.
const PODS: &str = "pods";

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

    /// The amounts requested in `list`, without zeros.
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

    pub(crate) fn capacity(&mut self, list: &ResourceList) -> (Vec<i64>, i64) {
        let mut by_number = Vec::new();
        for (resource, amount) in self.amounts(list) {
            *at_mut(&mut by_number, resource) = amount;
        }
        (by_number, list.get(PODS).map_or(0, |pods| pods.value()))
    }
}

/// The amount of one resource, 0 if it is not listed.
pub(crate) fn at(by_number: &[i64], resource: ResourceIx) -> i64 {
    by_number.get(resource.at()).copied().unwrap_or(0)
}

pub(crate) fn at_mut(by_number: &mut Vec<i64>, resource: ResourceIx) -> &mut i64 {
    if resource.at() >= by_number.len() {
        by_number.resize(resource.at() + 1, 0);
    }
    &mut by_number[resource.at()]
}

/// Adds `amounts`, or subtracts them with a `sign` of -1.
pub(crate) fn add(by_number: &mut Vec<i64>, amounts: &Amounts, sign: i64) {
    for (resource, amount) in amounts {
        let place = at_mut(by_number, *resource);
        *place = place.saturating_add(sign * amount);
    }
}
