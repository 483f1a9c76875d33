//! Makes room for a gang: victims for all its members together, or nodes to reserve until pods
//! there have ended.
//!
//! Everything is tried under a checkpoint for the whole gang: nothing is evicted or reserved unless
//! enough members fit then.

use std::sync::Arc;

use berth_model::spec::PreemptionPolicy;

use super::place::KeptClasses;
use super::queueing::GangStatus;
use super::reservation::Reservation;
use crate::decision::{Decision, GangName, GangReservation};
use crate::engine::{Engine, FoundPlace};
use crate::kube::preempt::{Evictions, importance, priority, split_by_budgets};
use crate::placement::victims::Preemptor;
use crate::state::{FullName, Place};
use crate::table::{Bits, ClassIx, NodeIx, PodIx};

const CLEARED_MAX: usize = 512;

/// Places for members, and the pods that must leave before.
pub(super) struct GangPlan {
    pub(super) places: Vec<(PodIx, NodeIx)>,
    victims: Vec<PodIx>,
    /// Pods that must end by themselves.
    pub(super) blockers: Vec<PodIx>,
    /// Whether part of the room is that of pods already leaving.
    awaits_leavers: bool,
    budget_violations: usize,
}

impl Engine {
    /// The evictions after which a gang fits, with the fewest budget violations and then the fewest
    /// victims.
    pub(super) fn gang_evictions(&mut self, status: &GangStatus, now_ms: i64) -> Option<GangPlan> {
        let cooldown_ms = self.config.eviction_cooldown_ms;
        let may = |pod: &PodIx| {
            let spec = &self.state.class_of(*pod).spec;
            spec.preemption == PreemptionPolicy::LowerPriority
                && Preemptor::new(&self.state, *pod, now_ms, cooldown_ms).has_victims(&self.state)
        };
        if !status.waiting.iter().any(may) {
            return None;
        }
        let mut best: Option<GangPlan> = None;
        for domain in self.domains_to_clear(status) {
            if domain.nodes.is_none() && best.is_some() {
                break;
            }
            let mut found = None;
            self.attempt(status, |engine, kept| {
                found = engine.try_evictions(status, domain.nodes.as_ref(), now_ms, kept);
                None::<()>
            });
            let awaits = |plan: &GangPlan| plan.awaits_leavers || !plan.victims.is_empty();
            let Some(mut plan) = found.filter(awaits) else { continue };
            plan.budget_violations = self.budget_violations(&plan.victims);
            let cost = |plan: &GangPlan| (plan.budget_violations, plan.victims.len());
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

    /// Places members, evicting others where they do not fit, until there are enough. Budget
    /// violations can be counted only after the rollback.
    fn try_evictions(
        &mut self,
        status: &GangStatus,
        within: Option<&Bits>,
        now_ms: i64,
        kept: &mut KeptClasses,
    ) -> Option<GangPlan> {
        let (mut places, mut victims) = (Vec::new(), Vec::new());
        let mut awaits_leavers = false;
        for pod in self.large_first(status) {
            if places.len() >= status.need {
                break;
            }
            if self.state.held_by(pod).is_some() {
                continue;
            }
            let class = self.state.pods[pod].class;
            let mut found = self.place_ranked(pod, class, within, None);
            if found.is_none()
                && let Some(Evictions { node, victims: more, .. }) =
                    self.evictions(pod, now_ms, within)
            {
                // Members of one gang may differ in priority, but do not evict each other.
                let is_mate = |pod: &PodIx| self.state.gang_of(*pod).as_ref() == Some(&status.gang);
                if more.iter().any(is_mate) {
                    return None;
                }
                // Victims of earlier evictions count as gone.
                let leaving: Vec<PodIx> =
                    self.state.leaving_for(node, priority(&self.state, pod)).collect();
                awaits_leavers |= !leaving.is_empty();
                for gone in more.iter().chain(&leaving) {
                    self.take_away(*gone, kept);
                }
                victims.extend(more);
                found = Some(self.place_ranked(pod, class, within, Some(node))?);
            }
            if let Some(FoundPlace { node, grant, .. }) = found {
                self.state.bind(pod, node, grant);
                places.push((pod, node));
            }
        }
        let enough = places.len() >= status.need;
        let blockers = Vec::new();
        enough.then_some(GangPlan {
            places,
            victims,
            blockers,
            awaits_leavers,
            budget_violations: 0,
        })
    }

    fn take_away(&mut self, pod: PodIx, kept: &mut KeptClasses) {
        self.keep_class(pod, kept);
        let uid = self.state.pods[pod].uid.clone();
        self.state.remove_pod(&uid);
    }

    /// Nodes on which a gang fits after pods there have ended by themselves, those with the fewest
    /// pods first.
    pub(super) fn nodes_to_keep(&mut self, status: &GangStatus) -> Option<GangPlan> {
        for domain in self.domains_to_clear(status) {
            let mut found = None;
            self.attempt(status, |engine, kept| {
                found = engine.try_clearing(status, domain.nodes.as_ref(), kept);
                None::<()>
            });
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn try_clearing(
        &mut self,
        status: &GangStatus,
        within: Option<&Bits>,
        kept: &mut KeptClasses,
    ) -> Option<GangPlan> {
        let (mut places, mut blockers) = (Vec::new(), Vec::new());
        let mut left = self.large_first(status);
        self.try_each(&mut left, &mut places, status.need, within);
        for (node, finite) in self.clearable(status, within) {
            if places.len() >= status.need {
                break;
            }
            finite.iter().for_each(|pod| self.take_away(*pod, kept));
            let mut alone = Bits::default();
            alone.set(node, true);
            let before = places.len();
            self.try_each(&mut left, &mut places, status.need, Some(&alone));
            if places.len() > before {
                blockers.extend(finite);
            }
        }
        // A gang that fits without waiting is placed, not reserved for.
        let enough = places.len() >= status.need && !blockers.is_empty();
        let (victims, awaits_leavers) = (Vec::new(), false);
        enough.then_some(GangPlan {
            places,
            victims,
            blockers,
            awaits_leavers,
            budget_violations: 0,
        })
    }

    pub(super) fn reservation(
        &self,
        gang: &FullName,
        blockers: &[PodIx],
        max_ms: i64,
    ) -> Reservation {
        let ends = blockers.iter().map(|pod| self.state.ends_by_ms(*pod));
        let clear_at_ms =
            ends.collect::<Option<Vec<i64>>>().and_then(|ends| ends.into_iter().max());
        let blockers = blockers.iter().map(|pod| self.state.pods[*pod].uid.clone()).collect();
        Reservation { gang: gang.clone(), max_ms, clear_at_ms, blockers }
    }

    /// Places pods of `left` where they fit, up to the number needed.
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
            let is_candidate = places.len() < need
                && !failed.contains(&class)
                && self.state.held_by(pod).is_none();
            if !is_candidate {
                left.push(pod);
                continue;
            }
            match self.place_ranked(pod, class, within, None) {
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

    /// Nodes with pods that end by themselves and without nominations of other pods, the fewest
    /// pods first; and those pods.
    fn clearable(&self, status: &GangStatus, within: Option<&Bits>) -> Vec<(NodeIx, Vec<PodIx>)> {
        let state = &self.state;
        let open = |node: &NodeIx| {
            within.is_none_or(|nodes| nodes.contains(*node))
                && state.nodes[*node].nominated.iter().all(|pod| status.waiting.contains(pod))
        };
        let ends = |pod: &PodIx| {
            state.is_finite(*pod) && state.gang_of(*pod).as_ref() != Some(&status.gang)
        };
        let finite = |node: NodeIx| {
            let pods = state.nodes[node].pods.iter().copied();
            let mut pods: Vec<PodIx> = pods.filter(ends).collect();
            pods.sort_by_key(|pod| state.pods[*pod].uid.clone());
            (!pods.is_empty()).then_some((node, pods))
        };
        let nodes = state.nodes.indexes().filter(open);
        let mut nodes: Vec<(NodeIx, Vec<PodIx>)> = nodes.filter_map(finite).collect();
        nodes.sort_by_key(|(node, _)| {
            let row = &state.nodes[*node];
            (row.pods.len(), row.tie, row.object.name.clone())
        });
        nodes.truncate(CLEARED_MAX);
        nodes
    }

    /// Ends nominations, and with them those of a gang with reserved nodes, which cannot start on
    /// what is left. Returns all UIDs.
    pub(crate) fn displace(&mut self, mut pods: Vec<PodIx>, now_ms: i64) -> Vec<Arc<str>> {
        let mut pods_of = pods.iter().filter_map(|pod| self.state.reservation_of(*pod));
        if let Some(gang) = pods_of.next().map(|reservation| reservation.gang.clone()) {
            let waits = |pod: &PodIx| matches!(self.state.pods[*pod].place, Place::Nominated(..));
            pods.extend(self.state.gangs.members(&gang).filter(waits));
            self.release(&gang, now_ms);
            self.gangs.note(gang);
        }
        pods.sort_by_key(|pod| self.state.pods[*pod].uid.clone());
        pods.dedup();
        pods.iter().for_each(|pod| self.state.nominate(*pod, None));
        pods.into_iter().map(|pod| self.state.pods[pod].uid.clone()).collect()
    }

    /// Nominates members to the nodes of a plan and evicts its victims.
    pub(super) fn carry_out(
        &mut self,
        status: &GangStatus,
        plan: GangPlan,
        until_ms: Option<i64>,
        now_ms: i64,
    ) -> Decision {
        self.give_up_reserved(&status.gang);
        for victim in &plan.victims {
            self.evict(*victim, now_ms);
        }
        // Pods nominated to the nodes that rank below every member must look elsewhere.
        let state = &self.state;
        let matters_less = |pod: &PodIx| {
            let members = || plan.places.iter().map(|(member, _)| *member);
            members().all(|member| {
                *pod != member && !state.goes_before(*pod, state.pods[member].class, Some(member))
            })
        };
        let awaited = plan.places.iter().flat_map(|(_, node)| &state.nodes[*node].nominated);
        let displaced: Vec<PodIx> = awaited.copied().filter(matters_less).collect();
        let displaced = self.displace(displaced, now_ms);
        for (pod, node) in &plan.places {
            let name = self.state.nodes[*node].object.name.clone();
            self.state.nominate(*pod, Some(name));
        }
        self.gangs.row(&status.gang).reported = true;
        let uid = |pod: &PodIx| self.state.pods[*pod].uid.clone();
        let name = |node: NodeIx| self.state.nodes[node].object.name.clone();
        Decision::Reserve(GangReservation {
            gang: GangName::of(&status.gang),
            places: plan.places.iter().map(|(pod, node)| (uid(pod), name(*node))).collect(),
            victims: plan.victims.iter().map(uid).collect(),
            budget_violations: plan.budget_violations,
            displaced,
            until_ms,
        })
    }
}
