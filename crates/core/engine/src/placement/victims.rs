//! The cheapest victims on one node for a pending pod.
//!
//! `estimate` counts, for each set of NUMA nodes that could hold the pod; `Trial::exact` evaluates
//! the node with its kubelet model.

use std::cmp::Reverse;

use berth_model::numa::NumaMask;
use berth_model::spec::PodSpec;
use berth_tenancy::share::{Candidate, Charge, GPU_PARTS, TeamIx};
use smallvec::SmallVec;

use super::headroom;
use super::projection::Projection;
use super::rank::Ranking;
use super::room::{Ask, View};
use crate::amounts::{self, Amounts};
use crate::filter::Inquiry;
use crate::kube::preempt::{PRIORITY_SHIFT, importance, priority, split_by_budgets};
use crate::offer::Offer;
use crate::repair::is_movable;
use crate::shares::Grant;
use crate::state::{NodeState, State};
use crate::table::{ClassIx, NodeIx, PodIx, ResourceIx};
use crate::tenancy::TeamClaim;

/// Limit of NUMA node sets evaluated, smallest first.
const PARTS_MAX: usize = 32;

/// Cost of a restart besides the lost work, in time of one GPU.
const RESTART_MS: i64 = 10 * 60 * 1000;

/// Cost of evictions; less is better. The order is kube-scheduler's, then the excess that is freed.
/// With teams, the team that borrowed most gives first, and among those the least work is lost,
/// even if that takes several victims instead of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cost {
    pub(crate) budget_violations: u32,
    highest_priority: i32,
    reclaimed: Reclaimed,
    priority_sum: i64,
    victims: u32,
    excess_devices: i64,
    /// Among the most important victims: pods that ran longest are spared.
    earliest_start: Reverse<i64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Reclaimed {
    /// The least share beyond its guarantee among the victims' teams: the team with most gives
    /// first.
    borrowed_share: Reverse<u64>,
    /// Parts of GPUs that are reclaimed. Free ones are used first.
    freed: i64,
    /// Lost work in parts of a GPU times milliseconds, relative to time 0: for equal `freed` the
    /// order does not change as time passes.
    lost: i128,
}

impl Reclaimed {
    fn of(state: &State, victims: &[PodIx]) -> Self {
        let ledger = &state.tenancy.ledger;
        if !ledger.is_active() {
            return Self::default();
        }
        let mut sum = Self::default();
        let mut least: Option<u64> = None;
        for pod in victims {
            // A pod without GPUs counts as one part, so that few are evicted.
            let mut parts = 1;
            if let Some((team, charge)) = state.holding(*pod) {
                let share = ledger.dominant_share(team);
                least = Some(least.map_or(share, |least| least.min(share)));
                parts = ledger.gpus(charge).max(parts);
            }
            sum.freed = sum.freed.saturating_add(parts);
            let started_at_ms = state.pods[*pod].started_at_ms.unwrap_or(i64::MAX);
            let restart = i128::from(GPU_PARTS) * i128::from(RESTART_MS);
            sum.lost += restart - i128::from(parts) * i128::from(started_at_ms);
        }
        sum.borrowed_share = Reverse(least.unwrap_or(0));
        sum
    }
}

#[derive(Clone, Debug)]
pub(crate) struct EvictionPlan {
    pub(crate) node: NodeIx,
    pub(crate) victims: Vec<PodIx>,
    pub(crate) cost: Cost,
}

/// The pod that others are evicted for, and which pods it may evict.
#[derive(Clone, Debug)]
pub(crate) struct Preemptor {
    pub(crate) priority: i32,
    pub(crate) now_ms: i64,
    pub(crate) cooldown_ms: i64,
    /// Evict only pods that can move to another node.
    pub(crate) movable_only: bool,
    class: ClassIx,
    pod: PodIx,
    /// What its team may reclaim; `None` if priority alone decides.
    team_claim: Option<TeamClaim>,
}

/// The preemptor's team, and whether room is being made for the pod already.
pub(crate) type TeamKey = Option<(TeamIx, bool)>;

impl Preemptor {
    pub(crate) fn new(state: &State, pod: PodIx, now_ms: i64, cooldown_ms: i64) -> Self {
        let class = state.pods[pod].class;
        let team_claim = state.team_claim(class, Some(pod));
        let priority = state.class(class).spec.priority;
        Self { priority, now_ms, cooldown_ms, movable_only: false, class, pod, team_claim }
    }

    /// The same pod with another priority, ignoring cooldowns.
    pub(crate) fn with_priority(&self, priority: i32) -> Self {
        let team_claim = self.team_claim.clone().map(|one| one.with_priority(priority));
        Self { priority, cooldown_ms: 0, team_claim, ..self.clone() }
    }

    /// The same pod, evicting any movable pod of any priority.
    pub(crate) fn moving(self) -> Self {
        Self { priority: i32::MAX, cooldown_ms: 0, movable_only: true, team_claim: None, ..self }
    }

    pub(crate) fn has_victims(&self, state: &State) -> bool {
        let equals = i32::from(self.team_claim.is_some());
        state.has_pods_below(self.priority.saturating_add(equals))
    }

    pub(crate) fn team_key(&self) -> TeamKey {
        self.team_claim.as_ref().map(|one| (one.team, one.has_arriving_charge()))
    }

    pub(crate) fn outranks(&self, state: &State, waiting: PodIx) -> bool {
        match &self.team_claim {
            None => priority(state, waiting) < self.priority,
            Some(_) => {
                !state.goes_before(waiting, self.class, Some(self.pod))
                    || state.is_entitled_beside(waiting, self.class, Some(self.pod))
            }
        }
    }

    /// Pods it may evict on a node, least important first, those protected by budgets last.
    pub(crate) fn evictable(&self, state: &State, node: &NodeState) -> SmallVec<[PodIx; 16]> {
        let pods = node.pods.iter().copied().filter(|pod| self.may_evict(state, *pod)).collect();
        protected_last(state, self.by_shares(state, pods))
    }

    /// As `evictable`, but members of gangs that must go as a whole only if all of them may be
    /// evicted, wherever they are.
    pub(crate) fn evictable_now(&self, state: &State, node: &NodeState) -> SmallVec<[PodIx; 16]> {
        if !has_members(state, node) {
            return self.evictable(state, node);
        }
        let may = node.pods.iter().copied().filter(|pod| self.may_evict(state, *pod));
        let mut here: SmallVec<[PodIx; 16]> = may.collect();
        loop {
            let mates = state.gang_victims(&here);
            let mates = mates.into_iter().filter(|mate| self.may_evict(state, *mate));
            let may_go = self.by_shares(state, here.iter().copied().chain(mates).collect());
            let left: SmallVec<[PodIx; 16]> =
                may_go.iter().copied().filter(|pod| here.contains(pod)).collect();
            let stays = |mate: &PodIx| self.movable_only || !may_go.contains(mate);
            // If one member must stay, the whole gang stays.
            let whole = state.gang_victims(&left).into_iter().filter(stays);
            let whole: SmallVec<[_; 2]> = whole.filter_map(|mate| state.gang_of(mate)).collect();
            if whole.is_empty() {
                return protected_last(state, left);
            }
            here.retain(|pod| state.gang_of(*pod).is_none_or(|gang| !whole.contains(&gang)));
        }
    }

    /// Whether a pod has lower priority, or the same where teams decide.
    pub(crate) fn may_outrank(&self, state: &State, pod: PodIx) -> bool {
        let priority = priority(state, pod);
        priority < self.priority || self.team_claim.is_some() && priority == self.priority
    }

    /// Whether a pod may be evicted by itself, ignoring gangs and shares.
    fn may_evict(&self, state: &State, pod: PodIx) -> bool {
        let row = &state.pods[pod];
        self.may_outrank(state, pod)
            && !row.is_terminating()
            && row.evicted_at_ms.is_none()
            && self.protected_until(state, pod).is_none()
            && (!self.movable_only || is_movable(state, pod))
    }

    /// The pods that teams must give back, the most important first.
    fn by_shares(&self, state: &State, mut pods: SmallVec<[PodIx; 16]>) -> SmallVec<[PodIx; 16]> {
        pods.sort_by(|one, other| importance(state, *one).cmp(&importance(state, *other)));
        match &self.team_claim {
            Some(team_claim) => by_shares(state, team_claim, &pods),
            None => pods,
        }
    }

    /// End of the cooldown of a pod that replaces an evicted one; `None` if it has ended.
    pub(crate) fn protected_until(&self, state: &State, pod: PodIx) -> Option<i64> {
        let until = state.pods[pod].replaces_evicted_at_ms?.saturating_add(self.cooldown_ms);
        (until > self.now_ms).then_some(until)
    }
}

pub(super) fn has_members(state: &State, node: &NodeState) -> bool {
    !state.gangs.is_empty() && node.pods.iter().any(|pod| state.class_of(*pod).spec.gang.is_some())
}

/// Reverses pods sorted by importance, with those protected by budgets last.
fn protected_last(state: &State, mut pods: SmallVec<[PodIx; 16]>) -> SmallVec<[PodIx; 16]> {
    if !state.budgets.is_empty() {
        let (protected, others) = split_by_budgets(state, &pods);
        pods = protected.into_iter().chain(others).collect();
    }
    pods.reverse();
    pods
}

/// Those of `pods` (most important first) that teams must give back, in the ledger's order.
fn by_shares(state: &State, team_claim: &TeamClaim, pods: &[PodIx]) -> SmallVec<[PodIx; 16]> {
    let nothing = Charge::new();
    let candidates = pods.iter().rev().map(|pod| {
        let (team, charge) = state.holding(*pod).unwrap_or((TeamIx::NONE, &nothing));
        Candidate {
            pod: *pod,
            team,
            priority: priority(state, *pod),
            charge,
            started_at_ms: state.pods[*pod].started_at_ms.unwrap_or(i64::MAX),
        }
    });
    let least_first = state.tenancy.ledger.evictable(&team_claim.claim(), candidates);
    least_first.into_iter().rev().collect()
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

struct Missing {
    amounts: SmallVec<[(ResourceIx, i64); 4]>,
    pods: i64,
    part: Option<PartMissing>,
}

struct PartMissing {
    numa: NumaMask,
    cpus: i64,
    /// By device pool of the kubelet.
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

    /// Counts a pod as evicted (`sign` 1) or as staying (-1). Whether that changes anything that is
    /// missing.
    fn evict(&mut self, state: &State, view: View<'_>, pod: PodIx, sign: i64) -> bool {
        let mut helps = self.pods > 0;
        self.pods -= sign;
        let device = state.pods[pod].grant.and_then(Grant::device);
        let grant = device.map(|device| (device, 1));
        for (resource, amount) in state.class_of(pod).requests.iter().copied().chain(grant) {
            for (one, missing) in &mut self.amounts {
                if *one == resource {
                    helps |= *missing > 0;
                    *missing = missing.saturating_sub(sign.saturating_mul(amount));
                }
            }
        }
        if let (Some(part), Some(mirror)) = (&mut self.part, view.mirror)
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

/// The cheapest victims by counting. They may turn out insufficient; `Trial::exact` decides.
pub(crate) fn estimate(
    state: &State,
    ask: &mut Ask,
    spec: &PodSpec,
    projected: &Projection<'_>,
    evictable: &[PodIx],
) -> Option<EvictionPlan> {
    let (node, view) = (projected.node(), projected.view());
    let grants: SmallVec<[Option<ResourceIx>; 2]> = match &spec.gpu {
        None => std::iter::once(None).collect(),
        Some(need) => {
            // Victims for shares are found by trial only.
            let satisfies = |offer: &&Offer| offer.satisfies(need) && !offer.divisible;
            let offers = node.offers.iter().filter(satisfies);
            offers.map(|offer| Some(offer.resource)).collect()
        }
    };
    let port_holders = port_holders(view, spec, evictable)?;
    let mut best: Option<EvictionPlan> = None;
    for grant in grants {
        let mut requests = ask.requests.clone();
        requests.extend(grant.map(|grant| (grant, 1)));
        for part in parts(state, ask, spec, view, grant) {
            let Some(missing) = missing(&requests, view, part) else { continue };
            let Some(victims) = cover(state, view, missing, &port_holders, evictable) else {
                continue;
            };
            // Leaving pods are enough; without any, waiting would not help.
            if victims.is_empty() && !projected.has_leaving_pods() {
                continue;
            }
            let cost = cost(state, &victims, &requests, ask);
            if best.as_ref().is_none_or(|plan| cost < plan.cost) {
                best = Some(EvictionPlan { node: projected.at, victims, cost });
            }
        }
    }
    best
}

/// The pods that hold wanted host ports; `None` if one of them cannot be evicted.
fn port_holders(view: View<'_>, spec: &PodSpec, evictable: &[PodIx]) -> Option<Vec<PodIx>> {
    let mut holders = Vec::new();
    for (port, pod) in view.node.ports.iter().filter(|(_, pod)| !view.removed.contains(pod)) {
        if spec.host_ports.iter().any(|wanted| wanted.conflicts(port)) && !holders.contains(pod) {
            evictable.contains(pod).then(|| holders.push(*pod))?;
        }
    }
    // By importance; ports are listed in arrival order.
    Some(evictable.iter().filter(|pod| holders.contains(pod)).copied().collect())
}

fn missing(requests: &Amounts, view: View<'_>, part: Option<PartMissing>) -> Option<Missing> {
    let capacity = |resource: ResourceIx| amounts::at(&view.node.capacity, resource);
    let free =
        |resource: ResourceIx| capacity(resource).saturating_sub(amounts::at(view.used, resource));
    let amounts = requests
        .iter()
        .map(|(resource, amount)| (*resource, amount.saturating_sub(free(*resource))));
    let too_large = requests.iter().any(|(resource, amount)| *amount > capacity(*resource));
    let pods = view.pods.saturating_add(1).saturating_sub(view.node.pods_max);
    (!too_large).then(|| Missing { amounts: amounts.collect(), pods, part })
}

/// The parts of a node that could hold the pod: sets of NUMA nodes if the kubelet is strict about
/// alignment, else the whole node.
fn parts(
    state: &State,
    ask: &mut Ask,
    spec: &PodSpec,
    view: View<'_>,
    grant: Option<ResourceIx>,
) -> SmallVec<[Option<PartMissing>; 4]> {
    let whole = || std::iter::once(None).collect();
    let Some(mirror) = view.mirror.filter(|mirror| mirror.is_trusted()) else {
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

/// The blocking pods and the least important others that together free what is missing, none of
/// them superfluous.
fn cover(
    state: &State,
    view: View<'_>,
    mut missing: Missing,
    port_holders: &[PodIx],
    evictable: &[PodIx],
) -> Option<Vec<PodIx>> {
    let mut victims = port_holders.to_vec();
    for pod in port_holders {
        missing.evict(state, view, *pod, 1);
    }
    for pod in evictable.iter().filter(|pod| !port_holders.contains(pod)) {
        if missing.is_none() {
            break;
        }
        if missing.evict(state, view, *pod, 1) {
            victims.push(*pod);
        } else {
            missing.evict(state, view, *pod, -1);
        }
    }
    if !missing.is_none() {
        return None;
    }
    // Later victims may have made earlier ones superfluous; spare the most important first.
    let mut at = victims.len();
    while at > port_holders.len() {
        at -= 1;
        missing.evict(state, view, victims[at], -1);
        if missing.is_none() && victims.len() > 1 {
            victims.remove(at);
        } else {
            missing.evict(state, view, victims[at], 1);
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
            let device = state.pods[*pod].grant.and_then(Grant::device);
            let granted = i64::from(device == Some(*resource));
            of_class.map_or(0, |(_, amount)| *amount).saturating_add(granted)
        });
        freed.fold(0, i64::saturating_add).saturating_sub(*amount)
    });
    Cost {
        budget_violations: budget_violations(state, victims),
        highest_priority: top,
        reclaimed: Reclaimed::of(state, victims),
        priority_sum: priority_sum(priorities()),
        victims: victims.len() as u32,
        excess_devices,
        earliest_start: Reverse(earliest),
    }
}

pub(crate) struct Trial<'a, 's> {
    pub(crate) inquiry: &'a Inquiry<'s>,
    pub(crate) ranking: &'a mut Ranking,
}

impl<'s> Trial<'_, 's> {
    /// The node when the pod's turn comes, if known.
    pub(crate) fn project(&self, at: NodeIx, preemptor: &Preemptor) -> Option<Projection<'s>> {
        Projection::for_preemptor(self.inquiry.state, self.ranking, at, preemptor)
    }

    pub(crate) fn fits_without(&mut self, projected: &Projection<'s>, victims: &[PodIx]) -> bool {
        let mut projected = projected.clone();
        victims.iter().for_each(|pod| projected.remove(*pod));
        projected.neighbours_allow(self.inquiry)
            && self.ranking.judge(self.inquiry.state, projected.view()).is_ok()
            && headroom::spares(self.ranking, &projected)
    }

    /// The plan with all members of gangs that must go as a whole, and whether there are any.
    pub(crate) fn with_gangs(
        &mut self,
        mut plan: EvictionPlan,
        preemptor: &Preemptor,
    ) -> (EvictionPlan, bool) {
        let state = self.inquiry.state;
        let too = state.gang_victims(&plan.victims);
        if too.is_empty() {
            return (plan, false);
        }
        let on_node = |pod: &PodIx| state.pods[*pod].place.node() == Some(plan.node);
        let here: Vec<PodIx> = too.iter().copied().filter(on_node).collect();
        if !here.is_empty() {
            plan.victims.extend(here);
            self.drop_superfluous(&mut plan, preemptor);
        }
        plan.victims.extend(state.gang_victims(&plan.victims));
        let priorities = || plan.victims.iter().map(|pod| priority(state, *pod));
        plan.cost.highest_priority = priorities().max().unwrap_or(i32::MIN);
        plan.cost.priority_sum = priority_sum(priorities());
        plan.cost.victims = plan.victims.len() as u32;
        plan.cost.reclaimed = Reclaimed::of(state, &plan.victims);
        plan.cost.budget_violations = budget_violations(state, &plan.victims);
        (plan, true)
    }

    /// Victims added with their gangs may make others superfluous; spare the most important first.
    fn drop_superfluous(&mut self, plan: &mut EvictionPlan, preemptor: &Preemptor) {
        let state = self.inquiry.state;
        let Some(projected) = self.project(plan.node, preemptor) else { return };
        let mut singles = plan.victims.clone();
        singles.retain(|pod| state.class_of(*pod).spec.gang.is_none());
        singles.sort_by(|one, other| importance(state, *one).cmp(&importance(state, *other)));
        for pod in singles {
            let others: Vec<PodIx> =
                plan.victims.iter().copied().filter(|one| *one != pod).collect();
            if self.fits_without(&projected, &others) {
                plan.victims = others;
            }
        }
    }

    /// Victims found by sparing one pod after the other, the most important first, while the pod
    /// still fits.
    pub(crate) fn exact(&mut self, at: NodeIx, preemptor: &Preemptor) -> Option<EvictionPlan> {
        let state = self.inquiry.state;
        let projected = self.project(at, preemptor)?;
        let mut victims: Vec<PodIx> = preemptor.evictable_now(state, &state.nodes[at]).to_vec();
        let enough = usize::from(!projected.has_leaving_pods());
        if victims.len() < enough || !self.fits_without(&projected, &victims) {
            return None;
        }
        let mut spare = victims.len();
        while spare > 0 {
            spare -= 1;
            let pod = victims.remove(spare);
            if victims.len() < enough || !self.fits_without(&projected, &victims) {
                victims.insert(spare, pod);
            }
        }
        let ask = &self.ranking.ask;
        let cost = cost(state, &victims, &ask.requests, ask);
        Some(EvictionPlan { node: at, victims, cost })
    }
}
