//! Pending pods in scheduling order, members of a gang together.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use berth_tenancy::share;

use crate::decision::HeldBy;
use crate::engine::Engine;
use crate::queue::Turn;
use crate::state::FullName;
use crate::table::PodIx;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingPod {
    pub pod: Arc<str>,
    /// What holds it apart from nodes.
    pub held_by: Option<HeldBy>,
}

/// Between teams by their ledger, then by priority and age.
type Rank = (Option<share::Turn>, Turn);

impl Engine {
    /// All pending pods in their current order. Each placement changes what teams have, and with it
    /// the order of the rest.
    pub fn pending_pods(&self) -> Vec<PendingPod> {
        let state = &self.state;
        let waiting = || state.pods.indexes().filter(|pod| state.is_pending(*pod));
        let mut gangs: BTreeMap<FullName, Rank> = BTreeMap::new();
        for (gang, pod) in waiting().filter_map(|pod| Some((self.scheduled_gang(pod)?, pod))) {
            let rank = self.rank(pod);
            let first = gangs.entry(gang).or_insert_with(|| rank.clone());
            *first = rank.min(first.clone());
        }
        let place = |pod: PodIx| {
            let own = self.rank(pod);
            let of_gang = self.scheduled_gang(pod).and_then(|gang| gangs.get(&gang)).cloned();
            (of_gang.unwrap_or_else(|| own.clone()), own)
        };
        let mut pending_pods: Vec<((Rank, Rank), PodIx)> =
            waiting().map(|pod| (place(pod), pod)).collect();
        pending_pods.sort();
        let pending = |(_, pod): (_, PodIx)| PendingPod {
            pod: state.pods[pod].uid.clone(),
            held_by: self.held_by(self.head_for(pod).unwrap_or(pod)),
        };
        pending_pods.into_iter().map(pending).collect()
    }

    fn rank(&self, pod: PodIx) -> Rank {
        let row = &self.state.pods[pod];
        let priority = self.state.class(row.class).spec.priority;
        let of_team = self.state.tenancy.has_teams().then(|| self.state.turn(pod));
        (of_team, (Reverse(priority), row.created_at_ms, row.uid.clone()))
    }
}
