//! Kinds of pods: what is computed once for all replicas of a template.
//!
//! Owns the lowering of a pod's spec to numbers and to counts in the census. Must not know any node.

use std::sync::Arc;

use berth_model::affinity::{Inclusion, PodTerm, SpreadConstraint, Unsatisfiable};
use berth_model::pod::PodLevelResources;
use berth_model::quantity::Quantity;
use berth_model::resource::{ResourceList, ResourceName};
use berth_model::spec::PodSpec;

use crate::amounts::{Amounts, Resources};
use crate::census::{Claim, ScopeRule};
use crate::demand::Demands;
use crate::shape::ShapeRef;
use crate::table::{KeyIx, QueryIx, TallyIx};
use crate::tenancy::Tenant;

/// Label that tells nodes apart.
pub(crate) const HOSTNAME: &str = "kubernetes.io/hostname";

/// What kube-scheduler takes containers for that ask for no CPU or memory, when it scores.
const UNSAID_MILLICPU: i64 = 100;
const UNSAID_MEMORY_BYTES: i64 = 200 * 1024 * 1024;

/// CPU and memory as the scores see them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scored {
    pub(crate) millicpu: i64,
    pub(crate) memory_bytes: i64,
}

/// A kind of pod.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) spec: Arc<PodSpec>,
    /// What is set aside for it, without zeros.
    pub(crate) requests: Amounts,
    /// What a newcomer counts in scores.
    pub(crate) scored: Scored,
    /// What a resident counts in scores; differs where there are pod-level resources.
    pub(crate) scored_held: Scored,
    /// What the newcomer asks of the census; made when the first such pod looks for its place.
    pub(crate) rules: Option<Arc<Rules>>,
    /// What kubelets see of it.
    pub(crate) demands: Demands,
    /// What teams know of it.
    pub(crate) tenant: Tenant,
    /// Its ranking of nodes, if that is still kept.
    pub(crate) shape: Option<ShapeRef>,
}

/// What a newcomer asks of the census.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    pub(crate) hard_spread: Vec<SpreadRule>,
    pub(crate) soft_spread: Vec<SpreadRule>,
    pub(crate) affinity: Option<AffinityRule>,
    /// Counts of pods that must not be near.
    pub(crate) anti: Vec<TallyIx>,
    /// Counts of pods that are welcome or, with a negative weight, unwelcome.
    pub(crate) preferred: Vec<(i32, TallyIx)>,
}

impl Rules {
    /// Whether nothing of the newcomer's own depends on where others are.
    pub(crate) fn is_empty(&self) -> bool {
        self.hard_spread.is_empty()
            && self.soft_spread.is_empty()
            && self.affinity.is_none()
            && self.anti.is_empty()
            && self.preferred.is_empty()
    }

    /// All counts that it holds on to.
    pub(crate) fn tallies(&self) -> impl Iterator<Item = TallyIx> {
        let spread = self.hard_spread.iter().chain(&self.soft_spread).map(|rule| rule.tally);
        let affinity = self.affinity.iter().flat_map(|rule| rule.tallies.iter().copied());
        let preferred = self.preferred.iter().map(|(_, tally)| *tally);
        spread.chain(affinity).chain(self.anti.iter().copied()).chain(preferred)
    }
}

/// One spread constraint.
#[derive(Clone, Debug)]
pub(crate) struct SpreadRule {
    pub(crate) tally: TallyIx,
    pub(crate) query: QueryIx,
    pub(crate) key: KeyIx,
    /// Whether the key tells nodes apart.
    pub(crate) by_host: bool,
    pub(crate) max_skew: i32,
    pub(crate) min_domains: i32,
    /// Whether the pod itself is one of those counted.
    pub(crate) counts_self: bool,
}

/// Pods that must be near.
#[derive(Clone, Debug)]
pub(crate) struct AffinityRule {
    pub(crate) query: QueryIx,
    /// Counts of the pods that all terms mean, one for each term's key, each key once.
    pub(crate) tallies: Vec<TallyIx>,
    /// Whether the pod itself is one of those meant, so that the first of its kind may go anywhere.
    pub(crate) means_self: bool,
}

impl Class {
    pub(crate) fn new(spec: Arc<PodSpec>, resources: &mut Resources) -> Self {
        const LEVEL: PodLevelResources = PodLevelResources::HonouredIfEmptyToo;
        let requests = spec.pod.total_requests(LEVEL);
        let unsaid = |name: ResourceName| {
            let amount = if name.as_str() == "cpu" {
                Quantity::from_milli(UNSAID_MILLICPU)
            } else {
                Quantity::from_bytes(UNSAID_MEMORY_BYTES)
            };
            (name, amount)
        };
        let both = [ResourceName::cpu(), ResourceName::memory()].map(unsaid);
        let newcomer: ResourceList = both.iter().cloned().collect();
        let resident = if spec.pod.has_pod_level_resources() {
            both.into_iter().filter(|(name, _)| !requests.contains_key(name)).collect()
        } else {
            newcomer.clone()
        };
        let scored = |unsaid: &ResourceList, level: PodLevelResources| {
            let total = spec.pod.with_unsaid_requests(unsaid).total_requests(level);
            let of = |name: &str| total.get(name).copied().unwrap_or(Quantity::ZERO);
            Scored { millicpu: of("cpu").milli_value(), memory_bytes: of("memory").value() }
        };
        // kube-scheduler forgets a newcomer's pod-level resources when it scores how full nodes are.
        let scored_held = scored(&resident, LEVEL);
        let scored = scored(&newcomer, PodLevelResources::Ignored);
        let requests = resources.amounts(&requests);
        Self {
            spec,
            requests,
            scored,
            scored_held,
            rules: None,
            demands: Demands::default(),
            tenant: Tenant::default(),
            shape: None,
        }
    }

    /// What pods of this kind ask about newcomers once they have their place.
    pub(crate) fn resident_terms(&self) -> impl Iterator<Item = (Claim, &PodTerm)> {
        let affinity = &self.spec.pod_affinity;
        let refuse = affinity.anti_required.iter().map(|term| (Claim::Refuse, term));
        let need = affinity.required.iter().map(|term| (Claim::Need, term));
        let welcome = affinity.preferred.iter();
        let welcome = welcome.map(|(weight, term)| (Claim::Prefer(*weight), term));
        let avoid = affinity.anti_preferred.iter();
        let avoid = avoid.map(|(weight, term)| (Claim::Prefer(weight.saturating_neg()), term));
        refuse.chain(need).chain(welcome).chain(avoid)
    }

    /// The constraints that are hard, or those that are not.
    pub(crate) fn spread(&self, hard: bool) -> impl Iterator<Item = &SpreadConstraint> {
        let wanted =
            if hard { Unsatisfiable::DoNotSchedule } else { Unsatisfiable::ScheduleAnyway };
        self.spec.spread.iter().filter(move |constraint| constraint.unsatisfiable == wanted)
    }

    /// The part of the spec that decides which nodes count for a constraint.
    pub(crate) fn scope(&self, constraint: &SpreadConstraint, keys: Vec<KeyIx>) -> ScopeRule {
        let spec = &self.spec;
        let honours = |inclusion: Inclusion| inclusion == Inclusion::Honor;
        let selective = !spec.node_selector.is_empty() || spec.node_affinity.required.is_some();
        ScopeRule {
            affinity: (honours(constraint.node_affinity) && selective)
                .then(|| (spec.node_selector.clone(), spec.node_affinity.required.clone())),
            tolerations: honours(constraint.node_taints).then(|| spec.tolerations.clone()),
            keys,
        }
    }
}
