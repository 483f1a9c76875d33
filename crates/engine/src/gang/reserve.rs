//! Making room for a gang: whom to evict for all of its members together, or which nodes to keep for
//! it until what runs there has ended.
//!
//! Owns these plans. All of them are tried out under a checkpoint, for the whole gang: nobody is
//! evicted, and no node is kept, unless enough members then fit. Must not know when a plan is wanted.

use berth_model::spec::PreemptionPolicy;

use super::muster::Roll;
use super::place::Kept;
use super::standing::Reserved;
use crate::decision::{Decision, GangName, Reserving};
use crate::engine::{Engine, Evictions, Found};
use crate::kube::preempt::{importance, priority, split_by_budgets};
use crate::table::{Bits, ClassIx, NodeIx, PodIx};

/// So many nodes are cleared in thought for one plan.
const CLEARED_MAX: usize = 512;

/// Where members are to go, and who has to go before.
pub(super) struct Plan {
    places: Vec<(PodIx, NodeIx)>,
    victims: Vec<PodIx>,
    budget_violations: usize,
}

impl Engine {
    /// The evictions after which a gang fits that violate the fewest budgets and concern the fewest
    /// pods.
    pub(super) fn gang_evictions(&mut self, roll: &Roll, now_ms: i64) -> Option<Plan> {
        let may = |pod: &PodIx| {
            let spec = &self.state.class_of(*pod).spec;
            spec.preemption == PreemptionPolicy::LowerPriority
                && self.state.has_pods_below(spec.priority)
        };
        if !roll.waiting.iter().any(may) {
            return None;
        }
        let mut best: Option<Plan> = None;
        for spot in self.spots_to_clear(roll) {
            if spot.nodes.is_none() && best.is_some() {
                break;
            }
            let mut found = None;
            self.attempt(roll, |engine, kept| {
                found = engine.try_evictions(roll, spot.nodes.as_ref(), now_ms, kept);
                None::<()>
            });
            let Some(mut plan) = found.filter(|plan: &Plan| !plan.victims.is_empty()) else {
                continue;
            };
            plan.budget_violations = self.budget_violations(&plan.victims);
            let cost = |plan: &Plan| (plan.budget_violations, plan.victims.len());
            if best.as_ref().is_none_or(|best| cost(&plan) < cost(best)) {
                best = Some(plan);
            }
        }
        best
    }

    fn budget_violations(&self, victims: &[PodIx]) -> usize {
        let mut victims = victims.to_vec();
        let state = &self.state;
        victims.sort_by(|one, other| importance(state, *one).cmp(&importance(state, *other)));
        split_by_budgets(state, &victims).0.len()
    }

    /// Places members, with others evicted where they do not fit, until there are enough. What budgets
    /// are violated can only be said once all is as it was.
    fn try_evictions(
        &mut self,
        roll: &Roll,
        within: Option<&Bits>,
        now_ms: i64,
        kept: &mut Kept,
    ) -> Option<Plan> {
        let (mut places, mut victims) = (Vec::new(), Vec::new());
        for pod in self.large_first(roll) {
            if places.len() >= roll.need {
                break;
            }
            let class = self.state.pods[pod].class;
            let mut found = self.place_ranked(pod, class, within, None);
            if found.is_none()
                && let Some(Evictions { node, victims: more, .. }) =
                    self.evictions(pod, now_ms, within)
            {
                // Members of one gang may differ in priority, but do not make room for each other.
                let is_mate = |pod: &PodIx| self.state.gang_of(*pod).as_ref() == Some(&roll.gang);
                if more.iter().any(is_mate) {
                    return None;
                }
                for victim in &more {
                    self.take_away(*victim, kept);
                }
                victims.extend(more);
                found = Some(self.place_ranked(pod, class, within, Some(node))?);
            }
            if let Some(Found { node, grant, .. }) = found {
                self.state.bind(pod, node, grant);
                places.push((pod, node));
            }
        }
        let enough = places.len() >= roll.need;
        enough.then_some(Plan { places, victims, budget_violations: 0 })
    }

    /// In thought, a pod is gone.
    fn take_away(&mut self, pod: PodIx, kept: &mut Kept) {
        self.keep_class(pod, kept);
        let uid = self.state.pods[pod].uid.clone();
        self.state.remove_pod(&uid);
    }

    /// Nodes on which a gang fits once what runs there has ended: those with the fewest pods.
    pub(super) fn nodes_to_keep(&mut self, roll: &Roll) -> Option<Plan> {
        for spot in self.spots_to_clear(roll) {
            let mut found = None;
            self.attempt(roll, |engine, kept| {
                found = engine.try_clearing(roll, spot.nodes.as_ref(), kept);
                None::<()>
            });
            if let Some(places) = found {
                return Some(Plan { places, victims: Vec::new(), budget_violations: 0 });
            }
        }
        None
    }

    fn try_clearing(
        &mut self,
        roll: &Roll,
        within: Option<&Bits>,
        kept: &mut Kept,
    ) -> Option<Vec<(PodIx, NodeIx)>> {
        let mut places = Vec::new();
        let mut left = self.large_first(roll);
        self.try_each(&mut left, &mut places, roll.need, within);
        for node in self.clearable(roll, within) {
            if places.len() >= roll.need {
                break;
            }
            for pod in self.mortal(roll, node) {
                self.take_away(pod, kept);
            }
            let mut alone = Bits::default();
            alone.set(node, true);
            self.try_each(&mut left, &mut places, roll.need, Some(&alone));
        }
        (places.len() >= roll.need).then_some(places)
    }

    /// Places those left where they fit, up to the number needed.
    fn try_each(
        &mut self,
        left: &mut Vec<PodIx>,
        places: &mut Vec<(PodIx, NodeIx)>,
        need: usize,
        within: Option<&Bits>,
    ) {
        let mut failed: Vec<ClassIx> = Vec::new();
        for pod in std::mem::take(left) {
            let class = self.state.pods[pod].class;
            let hopeful = places.len() < need && !failed.contains(&class);
            match hopeful.then(|| self.place_ranked(pod, class, within, None)).flatten() {
                Some(found) => {
                    self.state.bind(pod, found.node, found.grant);
                    places.push((pod, found.node));
                }
                None => {
                    failed.push(class);
                    left.push(pod);
                }
            }
        }
    }

    /// Nodes on which something runs and for which nobody else waits, those with the fewest pods
    /// first.
    fn clearable(&self, roll: &Roll, within: Option<&Bits>) -> Vec<NodeIx> {
        let state = &self.state;
        let open = |node: &NodeIx| {
            within.is_none_or(|nodes| nodes.contains(*node))
                && !state.nodes[*node].pods.is_empty()
                && state.nodes[*node].nominated.iter().all(|pod| roll.waiting.contains(pod))
        };
        let mut nodes: Vec<NodeIx> = state.nodes.indexes().filter(open).collect();
        nodes.sort_by_key(|node| {
            let row = &state.nodes[*node];
            (row.pods.len(), row.tie, row.object.name.clone())
        });
        nodes.truncate(CLEARED_MAX);
        nodes
    }

    /// The pods of others on a node that may end one day, in name order.
    fn mortal(&self, roll: &Roll, node: NodeIx) -> Vec<PodIx> {
        let state = &self.state;
        let ends = |pod: &PodIx| {
            let controller = state.class_of(*pod).spec.controller.as_ref();
            controller.is_none_or(|controller| controller.kind.as_ref() != "DaemonSet")
                && state.gang_of(*pod).as_ref() != Some(&roll.gang)
        };
        let mut pods: Vec<PodIx> = state.nodes[node].pods.iter().copied().filter(ends).collect();
        pods.sort_by_key(|pod| state.pods[*pod].uid.clone());
        pods
    }

    /// Members wait for the nodes of a plan, and victims are to be evicted.
    pub(super) fn carry_out(
        &mut self,
        roll: &Roll,
        plan: Plan,
        reserved: Reserved,
        now_ms: i64,
    ) -> Decision {
        self.give_up_reserved(&roll.gang);
        for victim in &plan.victims {
            self.evict(*victim, now_ms);
        }
        let least = plan.places.iter().map(|(pod, _)| priority(&self.state, *pod)).min();
        let lower = |pod: &PodIx| least.is_some_and(|least| priority(&self.state, *pod) < least);
        let awaited = plan.places.iter().flat_map(|(_, node)| &self.state.nodes[*node].nominated);
        let mut displaced: Vec<PodIx> = awaited.copied().filter(lower).collect();
        displaced.sort_by_key(|pod| self.state.pods[*pod].uid.clone());
        displaced.dedup();
        displaced.iter().for_each(|pod| self.state.nominate(*pod, None));
        for (pod, node) in &plan.places {
            let name = self.state.nodes[*node].object.name.clone();
            self.state.nominate(*pod, Some(name));
        }
        self.gangs.reserve(&roll.gang, reserved);
        self.gangs.row(&roll.gang).told = true;
        let uid = |pod: &PodIx| self.state.pods[*pod].uid.clone();
        let name = |node: NodeIx| self.state.nodes[node].object.name.clone();
        Decision::Reserve(Reserving {
            gang: GangName::of(&roll.gang),
            places: plan.places.iter().map(|(pod, node)| (uid(pod), name(*node))).collect(),
            victims: plan.victims.iter().map(uid).collect(),
            budget_violations: plan.budget_violations,
            displaced: displaced.iter().map(uid).collect(),
            until_ms: match reserved {
                Reserved::Evicting => None,
                Reserved::Until(until_ms) => Some(until_ms),
            },
        })
    }
}
