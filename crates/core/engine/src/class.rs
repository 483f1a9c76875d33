//! Classes of pods: what is derived once for all replicas of a template.

use std::sync::Arc;

use berth_model::affinity::{NodeInclusionPolicy, PodTerm, SpreadConstraint, WhenUnsatisfiable};
use berth_model::pod::PodLevelResources;
use berth_model::quantity::Quantity;
use berth_model::resource::{ResourceList, ResourceName};
use berth_model::spec::PodSpec;

use crate::amounts::{Amounts, Resources};
use crate::census::{ScopeRule, TermKind};
use crate::demand::Demands;
use crate::shape::ShapeRef;
use crate::table::{KeyIx, QueryIx, TallyIx};
use crate::tenancy::ClassCharge;

pub(crate) const HOSTNAME: &str = "kubernetes.io/hostname";

/// kube-scheduler's assumption when scoring containers without CPU or memory requests.
const DEFAULT_SCORED_MILLICPU: i64 = 100;
const DEFAULT_SCORED_MEMORY_BYTES: i64 = 200 * 1024 * 1024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scored {
    pub(crate) millicpu: i64,
    pub(crate) memory_bytes: i64,
}

#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) spec: Arc<PodSpec>,
    /// Without zeros.
    pub(crate) requests: Amounts,
    /// What an incoming pod counts in scores.
    pub(crate) scored: Scored,
    /// What an existing pod counts in scores; differs for pod-level resources.
    pub(crate) scored_held: Scored,
    pub(crate) rules: Option<Arc<Rules>>,
    pub(crate) demands: Demands,
    pub(crate) team_charge: ClassCharge,
    /// Its ranking, if still kept.
    pub(crate) shape: Option<ShapeRef>,
}

/// The tallies that decide where an incoming pod may go.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    pub(crate) hard_spread: Vec<SpreadRule>,
    pub(crate) soft_spread: Vec<SpreadRule>,
    pub(crate) affinity: Option<AffinityRule>,
    pub(crate) anti: Vec<TallyIx>,
    /// Pods to prefer or, with a negative weight, avoid.
    pub(crate) preferred: Vec<(i32, TallyIx)>,
}

impl Rules {
    pub(crate) fn is_empty(&self) -> bool {
        self.hard_spread.is_empty()
            && self.soft_spread.is_empty()
            && self.affinity.is_none()
            && self.anti.is_empty()
            && self.preferred.is_empty()
    }

    pub(crate) fn tallies(&self) -> impl Iterator<Item = TallyIx> {
        let spread = self.hard_spread.iter().chain(&self.soft_spread).map(|rule| rule.tally);
        let affinity = self.affinity.iter().flat_map(|rule| rule.tallies.iter().copied());
        let preferred = self.preferred.iter().map(|(_, tally)| *tally);
        spread.chain(affinity).chain(self.anti.iter().copied()).chain(preferred)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SpreadRule {
    pub(crate) tally: TallyIx,
    pub(crate) query: QueryIx,
    pub(crate) key: KeyIx,
    pub(crate) by_host: bool,
    pub(crate) max_skew: i32,
    pub(crate) min_domains: i32,
    pub(crate) counts_self: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct AffinityRule {
    pub(crate) query: QueryIx,
    /// One tally per distinct key, of the pods that all terms match.
    pub(crate) tallies: Vec<TallyIx>,
    /// Whether the pod matches itself, so that the first of a group may go anywhere.
    pub(crate) matches_self: bool,
}

impl Class {
    pub(crate) fn new(spec: Arc<PodSpec>, resources: &mut Resources) -> Self {
        const LEVEL: PodLevelResources = PodLevelResources::HonouredIfEmptyToo;
        let requests = spec.pod.total_requests(LEVEL);
        let defaults = |name: ResourceName| {
            let amount = if name.as_str() == "cpu" {
                Quantity::from_milli(DEFAULT_SCORED_MILLICPU)
            } else {
                Quantity::from_bytes(DEFAULT_SCORED_MEMORY_BYTES)
            };
            (name, amount)
        };
        let both = [ResourceName::cpu(), ResourceName::memory()].map(defaults);
        let incoming: ResourceList = both.iter().cloned().collect();
        let resident = if spec.pod.has_pod_level_resources() {
            both.into_iter().filter(|(name, _)| !requests.contains_key(name)).collect()
        } else {
            incoming.clone()
        };
        let scored = |defaults: &ResourceList, level: PodLevelResources| {
            let total = spec.pod.with_default_requests(defaults).total_requests(level);
            let of = |name: &str| total.get(name).copied().unwrap_or(Quantity::ZERO);
            Scored { millicpu: of("cpu").milli_value(), memory_bytes: of("memory").value() }
        };
        // kube-scheduler ignores an incoming pod's pod-level resources when it scores utilisation.
        let scored_held = scored(&resident, LEVEL);
        let scored = scored(&incoming, PodLevelResources::Ignored);
        let requests = resources.amounts(&requests);
        Self {
            spec,
            requests,
            scored,
            scored_held,
            rules: None,
            demands: Demands::default(),
            team_charge: ClassCharge::default(),
            shape: None,
        }
    }

    /// Terms about incoming pods that apply once such a pod is on a node.
    pub(crate) fn resident_terms(&self) -> impl Iterator<Item = (TermKind, &PodTerm)> {
        let affinity = &self.spec.pod_affinity;
        let refuse = affinity.anti_required.iter().map(|term| (TermKind::AntiAffinity, term));
        let need = affinity.required.iter().map(|term| (TermKind::Affinity, term));
        let welcome = affinity.preferred.iter();
        let welcome = welcome.map(|(weight, term)| (TermKind::Prefer(*weight), term));
        let avoid = affinity.anti_preferred.iter();
        let avoid = avoid.map(|(weight, term)| (TermKind::Prefer(weight.saturating_neg()), term));
        refuse.chain(need).chain(welcome).chain(avoid)
    }

    /// Hard constraints, or soft ones.
    pub(crate) fn spread(&self, hard: bool) -> impl Iterator<Item = &SpreadConstraint> {
        let wanted =
            if hard { WhenUnsatisfiable::DoNotSchedule } else { WhenUnsatisfiable::ScheduleAnyway };
        self.spec.spread.iter().filter(move |constraint| constraint.unsatisfiable == wanted)
    }

    /// The part of the spec that decides which nodes count for a constraint.
    pub(crate) fn scope(&self, constraint: &SpreadConstraint, keys: Vec<KeyIx>) -> ScopeRule {
        let spec = &self.spec;
        let honours = |inclusion: NodeInclusionPolicy| inclusion == NodeInclusionPolicy::Honor;
        let selective = !spec.node_selector.is_empty() || spec.node_affinity.required.is_some();
        ScopeRule {
            affinity: (honours(constraint.node_affinity) && selective)
                .then(|| (spec.node_selector.clone(), spec.node_affinity.required.clone())),
            tolerations: honours(constraint.node_taints).then(|| spec.tolerations.clone()),
            keys,
        }
    }
}
