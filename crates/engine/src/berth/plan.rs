//! Whom to evict on one node so that a pod fits there, aligned.
//!
//! Owns the search for the cheapest victims on a node: by counting, for every part of the node that
//! would do (one NUMA node, or all of it), and exactly, by trying. Must not know other nodes, nor
//! carry anything out.

use std::cmp::Reverse;

use berth_model::numa::NumaMask;
use berth_model::spec::PodSpec;
use smallvec::SmallVec;

use super::rank::Ranking;
use super::room::{Ask, View};
use crate::amounts::{self, Amounts};
use crate::filter::Inquiry;
use crate::kube::preempt::{PRIORITY_SHIFT, importance, priority, split_by_budgets};
use crate::overlay::Overlay;
use crate::state::{NodeState, State};
use crate::table::{NodeIx, PodIx, ResourceIx};

/// So many sets of NUMA nodes are looked at, smallest first.
const PARTS_MAX: usize = 32;

/// What evictions cost; less is better. As kube-scheduler ranks them, and then by how much more is
/// freed than needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cost {
    pub(crate) budget_violations: u32,
    highest_priority: i32,
    priority_sum: i64,
    victims: u32,
    excess_devices: i64,
    /// The earliest start among the most important: who ran longest is spared.
    earliest_start: Reverse<i64>,
}

/// Pods to evict on a node.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) node: NodeIx,
    pub(crate) victims: Vec<PodIx>,
    pub(crate) cost: Cost,
}

/// Who may be evicted, and by whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evictor {
    pub(crate) priority: i32,
    pub(crate) now_ms: i64,
    pub(crate) rest_ms: i64,
}

impl Evictor {
    /// Pods of lower priority that are not leaving anyway and need not be left alone for a while; the
    /// least important first, but those that budgets protect last.
    pub(crate) fn evictable(&self, state: &State, node: &NodeState) -> SmallVec<[PodIx; 16]> {
        let may = |pod: &&PodIx| {
            let row = &state.pods[**pod];
            priority(state, **pod) < self.priority
                && !row.is_terminating()
                && !row.leaving
                && self.rests_until(state, **pod).is_none()
        };
        let mut pods: SmallVec<[PodIx; 16]> = node.pods.iter().filter(may).copied().collect();
        pods.sort_by(|one, other| importance(state, *one).cmp(&importance(state, *other)));
        if !state.budgets.is_empty() {
            let (protected, others) = split_by_budgets(state, &pods);
            pods = protected.into_iter().chain(others).collect();
        }
        pods.reverse();
        pods
    }

    /// As `evictable`, but members of gangs that would have to go as a whole only if all of them may.
    pub(crate) fn evictable_now(&self, state: &State, node: &NodeState) -> SmallVec<[PodIx; 16]> {
        let mut pods = self.evictable(state, node);
        if !state.gangs.is_empty() {
            let all: SmallVec<[PodIx; 16]> = pods.clone();
            pods.retain(|pod| {
                state.class_of(*pod).spec.gang.is_none()
                    || state.evicted_too(&of_gang(state, &all, *pod)).iter().all(|mate| {
                        priority(state, *mate) < self.priority
                            && self.rests_until(state, *mate).is_none()
                    })
            });
        }
        pods
    }

    /// Until when a pod is left alone because it replaces one that was evicted; `None` if it is not.
    pub(crate) fn rests_until(&self, state: &State, pod: PodIx) -> Option<i64> {
        let until = state.pods[pod].replaces_evicted_at_ms?.saturating_add(self.rest_ms);
        (until > self.now_ms).then_some(until)
    }
}

/// Those of some pods that are in the gang of one of them.
fn of_gang(state: &State, pods: &[PodIx], one: PodIx) -> Vec<PodIx> {
    let gang = state.gang_of(one);
    pods.iter().copied().filter(|pod| state.gang_of(*pod) == gang).collect()
}

fn priority_sum(priorities: impl Iterator<Item = i32>) -> i64 {
    priorities.map(|one| i64::from(one) + PRIORITY_SHIFT).sum()
}

fn budget_violations(state: &State, victims: &[PodIx]) -> u32 {
    if state.budgets.is_empty() {
        return 0;
    }
    let mut by_importance = victims.to_vec();
    by_importance.sort_by(|one, other| importance(state, *one).cmp(&importance(state, *other)));
    split_by_budgets(state, &by_importance).0.len() as u32
}

/// What is missing for a pod on a part of a node.
struct Missing {
    /// Of each requested resource, on the whole node.
    amounts: SmallVec<[(ResourceIx, i64); 4]>,
    pods: i64,
    /// Devices and CPUs on the part.
    part: Option<PartMissing>,
}

struct PartMissing {
    numa: NumaMask,
    cpus: i64,
    /// By pool of the kubelet.
    devices: SmallVec<[(usize, i64); 2]>,
}

impl Missing {
    fn is_none(&self) -> bool {
        self.pods <= 0
            && self.amounts.iter().all(|(_, missing)| *missing <= 0)
            && self.part.as_ref().is_none_or(|part| {
                part.cpus <= 0 && part.devices.iter().all(|(_, missing)| *missing <= 0)
            })
    }

    /// Counts a pod as gone (`sign` 1), or as staying after all (-1). Whether that helps, or would
    /// be missed.
    fn evict(&mut self, state: &State, node: &NodeState, pod: PodIx, sign: i64) -> bool {
        let mut helps = self.pods > 0;
        self.pods -= sign;
        let grant = state.pods[pod].grant.map(|grant| (grant, 1));
        for (resource, amount) in state.class_of(pod).requests.iter().copied().chain(grant) {
            for (one, missing) in &mut self.amounts {
                if *one == resource {
                    helps |= *missing > 0;
                    *missing = missing.saturating_sub(sign.saturating_mul(amount));
                }
            }
        }
        if let (Some(part), Some(mirror)) = (&mut self.part, &node.mirror)
            && let Some(held) = mirror.kubelet().held_on(&state.pods[pod].uid, part.numa)
        {
            helps |= part.cpus > 0 && held.cpus > 0;
            part.cpus -= sign * held.cpus as i64;
            for (pool, count) in held.devices {
                for (one, missing) in &mut part.devices {
                    if *one == pool && count > 0 {
                        helps |= *missing > 0;
                        *missing -= sign * count as i64;
                    }
                }
            }
        }
        helps
    }
}

/// The cheapest victims by counting. They may turn out not to be enough; that is for `exact`.
pub(crate) fn estimate(
    state: &State,
    ask: &mut Ask,
    spec: &PodSpec,
    at: NodeIx,
    evictable: &[PodIx],
) -> Option<Plan> {
    let node = &state.nodes[at];
    let grants: SmallVec<[Option<ResourceIx>; 2]> = match &spec.gpu {
        None => std::iter::once(None).collect(),
        Some(need) => {
            let offers = node.offers.iter().filter(|offer| offer.satisfies(need));
            offers.map(|offer| Some(offer.resource)).collect()
        }
    };
    let in_the_way = port_holders(node, spec, evictable)?;
    let mut best: Option<Plan> = None;
    for grant in grants {
        let mut requests = ask.requests.clone();
        requests.extend(grant.map(|grant| (grant, 1)));
        for part in parts(state, ask, spec, node, grant) {
            let Some(missing) = missing(&requests, node, part) else { continue };
            let Some(victims) = cover(state, node, missing, &in_the_way, evictable) else {
                continue;
            };
            let cost = cost(state, &victims, &requests, ask);
            if best.as_ref().is_none_or(|plan| cost < plan.cost) {
                best = Some(Plan { node: at, victims, cost });
            }
        }
    }
    best
}

/// The pods that hold ports which are wanted; `None` if one of them cannot be evicted.
fn port_holders(node: &NodeState, spec: &PodSpec, evictable: &[PodIx]) -> Option<Vec<PodIx>> {
    let mut holders = Vec::new();
    for (port, pod) in &node.ports {
        if spec.host_ports.iter().any(|wanted| wanted.conflicts(port)) && !holders.contains(pod) {
            evictable.contains(pod).then(|| holders.push(*pod))?;
        }
    }
    Some(holders)
}

fn missing(requests: &Amounts, node: &NodeState, part: Option<PartMissing>) -> Option<Missing> {
    let amounts = requests
        .iter()
        .map(|(resource, amount)| (*resource, amount.saturating_sub(node.free(*resource))));
    let too_large =
        requests.iter().any(|(resource, amount)| *amount > amounts::at(&node.capacity, *resource));
    let pods = (node.pods.len() as i64 + 1).saturating_sub(node.pods_max);
    (!too_large).then(|| Missing { amounts: amounts.collect(), pods, part })
}

/// The parts of a node that would do: sets of NUMA nodes, where the kubelet insists on alignment;
/// otherwise the node as a whole.
fn parts(
    state: &State,
    ask: &mut Ask,
    spec: &PodSpec,
    node: &NodeState,
    grant: Option<ResourceIx>,
) -> SmallVec<[Option<PartMissing>; 4]> {
    let whole = || std::iter::once(None).collect();
    let Some(mirror) = node.mirror.as_ref().filter(|mirror| mirror.is_believed()) else {
        return whole();
    };
    let kubelet = mirror.kubelet();
    let config = kubelet.config();
    let strict = config.topology_policy.is_strict();
    let named = grant.map(|grant| (grant, state.resources.name(grant)));
    let Some(demand) = ask.demands.get(&spec.pod, config.version, named).filter(|_| strict) else {
        return whole();
    };
    let cpus = demand.total().cpus as i64;
    let devices: SmallVec<[(usize, i64); 2]> = ask
        .devices
        .iter()
        .copied()
        .chain(grant.map(|grant| (grant, 1)))
        .filter_map(|(resource, count)| {
            kubelet.pool_of(state.resources.name(resource).as_str()).map(|pool| (pool, count))
        })
        .collect();
    let on = |numa: NumaMask| {
        let free_cpus = kubelet.free_cpus_by_numa().map(|free| {
            numa.iter().filter_map(|node| free.get(node)).map(|free| i64::from(*free)).sum::<i64>()
        });
        let free_devices = |pool: usize| {
            let free = kubelet.free_by_numa(pool);
            let near = free.filter(|(place, _)| place.is_empty() || place.intersects(numa));
            near.map(|(_, free)| free as i64).sum::<i64>()
        };
        PartMissing {
            numa,
            cpus: free_cpus.map_or(0, |free| cpus - free),
            devices: devices
                .iter()
                .map(|(pool, want)| (*pool, want - free_devices(*pool)))
                .collect(),
        }
    };
    let all = kubelet.machine().all_numa();
    let fewer = (1..all.count()).flat_map(|size| all.subsets(size)).take(PARTS_MAX);
    fewer.chain(std::iter::once(all)).map(|numa| Some(on(numa))).collect()
}

/// Those in the way, and the least important pods that together make up for what is still missing,
/// none of them in vain.
fn cover(
    state: &State,
    node: &NodeState,
    mut missing: Missing,
    in_the_way: &[PodIx],
    evictable: &[PodIx],
) -> Option<Vec<PodIx>> {
    let mut victims = in_the_way.to_vec();
    for pod in in_the_way {
        missing.evict(state, node, *pod, 1);
    }
    for pod in evictable.iter().filter(|pod| !in_the_way.contains(pod)) {
        if missing.is_none() {
            break;
        }
        if missing.evict(state, node, *pod, 1) {
            victims.push(*pod);
        } else {
            missing.evict(state, node, *pod, -1);
        }
    }
    if !missing.is_none() || victims.is_empty() {
        return None;
    }
    // What came later may have made what came before superfluous; the most important first.
    let mut at = victims.len();
    while at > in_the_way.len() {
        at -= 1;
        missing.evict(state, node, victims[at], -1);
        if missing.is_none() && victims.len() > 1 {
            victims.remove(at);
        } else {
            missing.evict(state, node, victims[at], 1);
        }
    }
    Some(victims)
}

fn cost(state: &State, victims: &[PodIx], requests: &Amounts, ask: &Ask) -> Cost {
    let priorities = || victims.iter().map(|pod| priority(state, *pod));
    let top = priorities().max().unwrap_or(i32::MIN);
    let of_top = victims.iter().filter(|pod| priority(state, **pod) == top);
    let started = |pod: &PodIx| state.pods[*pod].started_at_ms.unwrap_or(i64::MAX);
    let earliest = of_top.map(started).min().unwrap_or(i64::MAX);
    let device = requests.iter().find(|(resource, _)| {
        ask.devices.first().map_or(ask.requests.len() < requests.len(), |one| one.0 == *resource)
    });
    let excess_devices = device.map_or(0, |(resource, amount)| {
        let freed = victims.iter().map(|pod| {
            let requests = &state.class_of(*pod).requests;
            let of_class = requests.iter().find(|(one, _)| one == resource);
            let granted = i64::from(state.pods[*pod].grant == Some(*resource));
            of_class.map_or(0, |(_, amount)| *amount).saturating_add(granted)
        });
        freed.fold(0, i64::saturating_add).saturating_sub(*amount)
    });
    Cost {
        budget_violations: budget_violations(state, victims),
        highest_priority: top,
        priority_sum: priority_sum(priorities()),
        victims: victims.len() as u32,
        excess_devices,
        earliest_start: Reverse(earliest),
    }
}

/// Tries plans out.
pub(crate) struct Trial<'a, 's> {
    pub(crate) inquiry: &'a Inquiry<'s>,
    pub(crate) ranking: &'a mut Ranking,
}

impl Trial<'_, '_> {
    /// Whether the pod fits once the victims are gone, aligned if the kubelet insists on it.
    pub(crate) fn fits_without(&mut self, at: NodeIx, victims: &[PodIx]) -> bool {
        let state = self.inquiry.state;
        let node = &state.nodes[at];
        let mut overlay = Overlay::default();
        victims.iter().for_each(|pod| overlay.remove(state, node, *pod));
        if self.inquiry.filter_nominated(at, &overlay).is_err() {
            return false;
        }
        let mut mirror = node.mirror.clone();
        if let Some(mirror) = &mut mirror {
            for pod in victims {
                mirror.remove(*pod, &state.pods[*pod].uid);
            }
        }
        let view = View { mirror: mirror.as_deref(), ..View::of(node).with(&overlay) };
        self.ranking.judge(state, view).is_ok()
    }

    /// The plan with the members of gangs that have to go as a whole, wherever they are; whether there
    /// are any.
    pub(crate) fn with_gangs(&mut self, mut plan: Plan) -> (Plan, bool) {
        let state = self.inquiry.state;
        let too = state.evicted_too(&plan.victims);
        if too.is_empty() {
            return (plan, false);
        }
        let on_node = |pod: &PodIx| state.pods[*pod].place.node() == Some(plan.node);
        let here: Vec<PodIx> = too.iter().copied().filter(on_node).collect();
        if !here.is_empty() {
            plan.victims.extend(here);
            self.spare_singles(&mut plan);
        }
        plan.victims.extend(state.evicted_too(&plan.victims));
        let priorities = || plan.victims.iter().map(|pod| priority(state, *pod));
        plan.cost.highest_priority = priorities().max().unwrap_or(i32::MIN);
        plan.cost.priority_sum = priority_sum(priorities());
        plan.cost.victims = plan.victims.len() as u32;
        plan.cost.budget_violations = budget_violations(state, &plan.victims);
        (plan, true)
    }

    /// Those who go with their gang may make others superfluous; the most important first.
    fn spare_singles(&mut self, plan: &mut Plan) {
        let state = self.inquiry.state;
        let mut singles = plan.victims.clone();
        singles.retain(|pod| state.class_of(*pod).spec.gang.is_none());
        singles.sort_by(|one, other| importance(state, *one).cmp(&importance(state, *other)));
        for pod in singles {
            let others: Vec<PodIx> =
                plan.victims.iter().copied().filter(|one| *one != pod).collect();
            if self.fits_without(plan.node, &others) {
                plan.victims = others;
            }
        }
    }

    /// The victims found by sparing one after the other, the most important first, as long as the
    /// pod still fits: no part of them is superfluous.
    pub(crate) fn exact(&mut self, at: NodeIx, evictor: &Evictor) -> Option<Plan> {
        let state = self.inquiry.state;
        let mut victims: Vec<PodIx> = evictor.evictable_now(state, &state.nodes[at]).to_vec();
        if victims.is_empty() || !self.fits_without(at, &victims) {
            return None;
        }
        let mut spare = victims.len();
        while spare > 0 {
            spare -= 1;
            let pod = victims.remove(spare);
            if victims.is_empty() || !self.fits_without(at, &victims) {
                victims.insert(spare, pod);
            }
        }
        let ask = self.ranking.ask();
        let cost = cost(state, &victims, &ask.requests, ask);
        Some(Plan { node: at, victims, cost })
    }
}
