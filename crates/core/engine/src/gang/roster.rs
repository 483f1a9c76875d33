//! The members of each gang, and the terms of PodGroups.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::gang::{Disruption, GangTerms};
use berth_model::spec::{Phase, PodSpec};

use crate::queue::Turn;
use crate::state::{FullName, Place, State};
use crate::table::PodIx;

#[derive(Clone, Debug, Default)]
pub(crate) struct Roster {
    members: BTreeMap<FullName, BTreeSet<PodIx>>,
    objects: BTreeMap<FullName, GangTerms>,
}

impl Roster {
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &FullName> {
        self.members.keys()
    }

    /// In no meaningful order.
    pub(crate) fn members(&self, gang: &FullName) -> impl Iterator<Item = PodIx> {
        self.members.get(gang).into_iter().flatten().copied()
    }

    /// Sets or removes the terms of a PodGroup; returns the previous ones.
    pub(crate) fn set_object(
        &mut self,
        gang: FullName,
        terms: Option<GangTerms>,
    ) -> Option<GangTerms> {
        match terms {
            Some(terms) => self.objects.insert(gang, terms),
            None => self.objects.remove(&gang),
        }
    }

    pub(crate) fn object(&self, gang: &FullName) -> Option<&GangTerms> {
        self.objects.get(gang)
    }

    pub(crate) fn join(&mut self, pod: PodIx, spec: &PodSpec) {
        if let Some(gang) = gang_name(spec) {
            self.members.entry(gang).or_default().insert(pod);
        }
    }

    pub(crate) fn leave(&mut self, pod: PodIx, spec: &PodSpec) {
        if let Some(gang) = gang_name(spec)
            && let Some(members) = self.members.get_mut(&gang)
        {
            members.remove(&pod);
            if members.is_empty() {
                self.members.remove(&gang);
            }
        }
    }
}

pub(crate) fn gang_name(spec: &PodSpec) -> Option<FullName> {
    let gang = spec.gang.as_ref()?;
    Some((spec.namespace.clone(), gang.name.clone()))
}

impl State {
    pub(crate) fn gang_of(&self, pod: PodIx) -> Option<FullName> {
        gang_name(&self.class_of(pod).spec)
    }

    /// A pod's position within its team: highest priority, then oldest, then by UID.
    pub(crate) fn queue_turn(&self, pod: PodIx) -> Turn {
        let row = &self.pods[pod];
        (Reverse(self.class(row.class).spec.priority), row.created_at_ms, row.uid.clone())
    }

    /// A gang's terms: from its PodGroup, else from its oldest member, whatever the order of
    /// events. `None` if there are none.
    pub(crate) fn gang_terms(&self, gang: &FullName) -> Option<GangTerms> {
        if let Some(terms) = self.gangs.object(gang) {
            return Some(terms.clone());
        }
        let terms_of = |pod: PodIx| {
            let terms = self.class_of(pod).spec.gang.as_ref()?.terms.as_ref()?;
            let row = &self.pods[pod];
            Some(((row.created_at_ms, row.uid.clone()), terms))
        };
        let oldest =
            self.gangs.members(gang).filter_map(terms_of).min_by_key(|(age, _)| age.clone());
        oldest.map(|(_, terms)| terms.clone())
    }

    /// Whether members of a gang without a PodGroup have different terms.
    pub(crate) fn gang_disagrees(&self, gang: &FullName) -> bool {
        let terms_of = |pod: PodIx| self.class_of(pod).spec.gang.as_ref()?.terms.as_ref();
        let mut all = self.gangs.members(gang).filter_map(terms_of);
        let first = all.next();
        self.gangs.object(gang).is_none() && all.any(|terms| Some(terms) != first)
    }

    /// Whether a pod is placed and not to be evicted.
    pub(crate) fn is_placed(&self, pod: PodIx) -> bool {
        let row = &self.pods[pod];
        matches!(row.place, Place::Bound(..))
            && row.phase == Phase::Alive
            && row.evicted_at_ms.is_none()
    }

    pub(crate) fn is_pending(&self, pod: PodIx) -> bool {
        let row = &self.pods[pod];
        !matches!(row.place, Place::Bound(..))
            && row.phase == Phase::Alive
            && self.class(row.class).spec.gates.is_empty()
    }

    /// Further members of gangs that must be evicted as a whole with `victims`.
    pub(crate) fn gang_victims(&self, victims: &[PodIx]) -> Vec<PodIx> {
        if self.gangs.is_empty() {
            return Vec::new();
        }
        let gangs: BTreeSet<FullName> =
            victims.iter().filter_map(|pod| self.gang_of(*pod)).collect();
        let mut too = Vec::new();
        for gang in gangs {
            let Some(terms) = self.gang_terms(&gang) else { continue };
            let others = self.gangs.members(&gang);
            let mut others: Vec<PodIx> =
                others.filter(|pod| self.is_placed(*pod) && !victims.contains(pod)).collect();
            let enough = others.len() >= terms.min as usize;
            if !enough && terms.disruption == Disruption::Whole {
                others.sort_by_key(|pod| self.pods[*pod].uid.clone());
                too.append(&mut others);
            }
        }
        too
    }

    /// The label value of most placed members; the first by name among equals.
    pub(crate) fn gang_domain(&self, gang: &FullName, key: &str) -> Option<Arc<str>> {
        let mut counts: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
        for pod in self.gangs.members(gang).filter(|pod| self.is_placed(*pod)) {
            let node = self.pods[pod].place.node();
            let value = node.and_then(|node| self.nodes[node].object.labels.get(key));
            value.into_iter().for_each(|value| *counts.entry(value).or_insert(0) += 1);
        }
        let most = counts.into_iter().max_by_key(|(value, count)| (*count, Reverse(*value)));
        most.map(|(value, _)| value.clone())
    }
}
