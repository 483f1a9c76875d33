//! The value of GPUs to the work that arrives, from the mix of arrivals and the fleet of machines.
//!
//! The rule is rebuilt only when the mix or the fleet has changed considerably, because every node
//! is judged again then.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_packing::fleet::{Capacity, Fleet, KindIx};
use berth_packing::mix::Mix;
use berth_packing::node::FreeNode;
use berth_packing::request::{GpuRequest, Models, Part, Request};
use berth_packing::score::{Choice, Rule};

use super::room::{Ask, View};
use crate::amounts::{self, CPU, MEMORY};
use crate::shares::{Share, Shares};
use crate::table::ResourceIx;

/// Nodes with more GPUs than this (replicas of fewer) are not judged GPU by GPU.
const GPUS_MAX: i64 = 64;

/// The fleet counts as changed when one in this many machines has changed.
const FLEET_CHANGE: u32 = 50;

/// Leading bits by which machines are compared: allocatable memory differs by a few bytes between
/// equal machines.
const KIND_BITS: u32 = 7;

/// The GPUs of a node that are allocated whole, or shared on demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeGpus {
    pub(crate) resource: ResourceIx,
    pub(crate) count: u16,
    pub(crate) model: Arc<str>,
}

/// The capacity of a node, rounded, so that equal machines compare equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Machine {
    /// GPU model; empty without GPUs.
    model: Arc<str>,
    gpus: u16,
    cpu_milli: u64,
    memory_bytes: u64,
}

impl Machine {
    pub(crate) fn of(gpus: Option<&NodeGpus>, capacity: &[i64]) -> Self {
        let amount =
            |resource| rounded(u64::try_from(amounts::at(capacity, resource)).unwrap_or(0));
        Self {
            model: gpus.map(|gpus| gpus.model.clone()).unwrap_or_default(),
            gpus: gpus.map_or(0, |gpus| gpus.count),
            cpu_milli: amount(CPU),
            memory_bytes: amount(MEMORY),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    model: u8,
    kind: KindIx,
}

/// A kind that is not in the rule yet.
impl Default for Kind {
    fn default() -> Self {
        Self { model: u8::MAX, kind: KindIx(u32::MAX) }
    }
}

/// The mix, the fleet, and the rule derived from both. Cheap to clone for checkpoints.
#[derive(Clone, Debug)]
pub(crate) struct GpuValues {
    mix: Arc<Mix>,
    machines: Arc<BTreeMap<Machine, u32>>,
    rule: Arc<Rule>,
    known: Arc<BTreeMap<Machine, (u32, Kind)>>,
    /// Sorted by name; the index is the model's number.
    models: Arc<Vec<Arc<str>>>,
    fleet_changed: bool,
    pub(crate) generation: u64,
}

impl Default for GpuValues {
    fn default() -> Self {
        let mix = Mix::default();
        let rule = Rule::new(&mix, &Fleet::default());
        Self {
            mix: Arc::new(mix),
            machines: Arc::default(),
            rule: Arc::new(rule),
            known: Arc::default(),
            models: Arc::default(),
            fleet_changed: false,
            generation: 0,
        }
    }
}

impl GpuValues {
    /// Adds a machine, or removes one with a `change` of -1.
    pub(crate) fn count(&mut self, machine: &Machine, change: i32) {
        let machines = Arc::make_mut(&mut self.machines);
        let count = machines.entry(machine.clone()).or_insert(0);
        *count = count.saturating_add_signed(change);
        if *count == 0 {
            machines.remove(machine);
        }
        self.fleet_changed = true;
    }

    pub(crate) fn kind(&self, machine: &Machine) -> Kind {
        self.known.get(machine).map(|(_, kind)| *kind).unwrap_or_default()
    }

    /// Records an arriving pod. True if the mix has changed enough to rebuild the rule.
    pub(crate) fn observe(&mut self, request: &Request) -> bool {
        Arc::make_mut(&mut self.mix).observe(request)
    }

    pub(crate) fn take_fleet_change(&mut self) -> bool {
        if !std::mem::take(&mut self.fleet_changed) {
            return false;
        }
        let total: u32 = self.machines.values().sum();
        let known = |machine| self.known.get(machine).map_or(0, |(count, _)| *count);
        let come = self.machines.iter().map(|(machine, count)| known(machine).abs_diff(*count));
        let gone = self.known.iter().filter(|(machine, _)| !self.machines.contains_key(machine));
        let changed = come.sum::<u32>() + gone.map(|(_, (count, _))| *count).sum::<u32>();
        changed > total / FLEET_CHANGE
    }

    /// Rebuilds the rule. Kinds kept elsewhere are invalid afterwards.
    pub(crate) fn rebuild(&mut self, generation: u64) {
        let mut names: Vec<Arc<str>> =
            self.machines.keys().map(|machine| machine.model.clone()).collect();
        names.extend(self.models.iter().cloned());
        names.sort();
        names.dedup();
        if names != *self.models {
            let moved: Vec<u8> = self.models.iter().map(|name| number(&names, name)).collect();
            Arc::make_mut(&mut self.mix).renumber(&moved);
            self.models = Arc::new(names);
        }
        let mut fleet = Fleet::default();
        let mut known = BTreeMap::new();
        for (machine, count) in self.machines.iter() {
            let model = number(&self.models, &machine.model);
            let capacity = Capacity {
                cpu_milli: machine.cpu_milli,
                memory_bytes: machine.memory_bytes,
                gpus: machine.gpus,
                model,
            };
            let mut kind = KindIx::default();
            (0..*count).for_each(|_| kind = fleet.join(capacity));
            known.insert(machine.clone(), (*count, Kind { model, kind }));
        }
        self.known = Arc::new(known);
        self.rule = Arc::new(Rule::new(&self.mix, &fleet));
        self.generation = generation;
    }

    pub(crate) fn models<'a>(
        &self,
        allowed: impl Iterator<Item = &'a NodeGpus>,
        all_allowed: bool,
    ) -> Models {
        if all_allowed {
            return Models::ANY;
        }
        let bit = |gpus: &NodeGpus| 1_u64.checked_shl(number(&self.models, &gpus.model).into());
        Models(allowed.filter_map(bit).fold(0, |all, bit| all | bit))
    }

    /// The cost of placing a pod on a node, and the best `usable` GPU for a share.
    pub(crate) fn judge(
        &self,
        ask: &Ask,
        view: View<'_>,
        gpus: GpuRequest,
        usable: impl Fn(u16) -> bool,
    ) -> Option<Choice> {
        let node = free_node(view, &usable)?;
        let request = Request { gpus, models: Models::ANY, ..host(ask) };
        self.rule.judge(&node, &request)
    }
}

pub(crate) fn host(ask: &Ask) -> Request {
    let amount = |resource: ResourceIx| {
        let found = ask.requests.iter().find(|(one, _)| *one == resource);
        found.map_or(0, |(_, amount)| u64::try_from(*amount).unwrap_or(0))
    };
    Request { cpu_milli: amount(CPU), memory_bytes: amount(MEMORY), ..Request::default() }
}

pub(crate) fn part(shares: &Shares, share: Share) -> Part {
    Part {
        compute_milli: share.compute_milli,
        memory_milli: shares.memory_milli(share.memory_bytes),
    }
}

/// The free resources of a node; `None` if it has too many GPUs.
fn free_node(view: View<'_>, usable: &impl Fn(u16) -> bool) -> Option<FreeNode> {
    let node = view.node;
    let free = |resource| {
        let capacity = amounts::at(&node.capacity, resource);
        u64::try_from(capacity.saturating_sub(amounts::at(view.used, resource))).unwrap_or(0)
    };
    let Kind { model, kind } = node.kind;
    let mut free_node = FreeNode {
        cpu_milli: free(CPU),
        memory_bytes: free(MEMORY),
        gpus: Default::default(),
        model,
        kind,
    };
    let Some(gpus) = &node.gpus else { return Some(free_node) };
    if i64::from(gpus.count) > GPUS_MAX {
        return None;
    }
    let mut wholes = free(gpus.resource);
    let shares = view.shares.filter(|shares| shares.resource == gpus.resource);
    for gpu in 0..gpus.count {
        let divided = shares.and_then(|shares| shares.left(gpu));
        free_node.gpus.push(match divided {
            Some((compute_milli, memory_milli)) if usable(gpu) => {
                Part { compute_milli, memory_milli }
            }
            None if wholes > 0 && usable(gpu) => {
                wholes -= 1;
                Part::WHOLE
            }
            _ => Part::default(),
        });
    }
    Some(free_node)
}

fn number(models: &[Arc<str>], name: &Arc<str>) -> u8 {
    let at = models.binary_search(name);
    at.ok().and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX)
}

/// Rounds up to the leading bits, so that an empty machine is never smaller than it is.
fn rounded(amount: u64) -> u64 {
    let bits = u64::BITS - amount.leading_zeros();
    let dropped = bits.saturating_sub(KIND_BITS);
    (amount >> dropped).saturating_add(u64::from(amount.trailing_zeros() < dropped)) << dropped
}
