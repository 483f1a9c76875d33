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
pub struct Waiting {
    pub pod: Arc<str>,
    /// What holds it apart from nodes.
    pub held_by: Option<HeldBy>,
}

/// Between teams by their ledger, then by priority and age.
type Rank = (Option<share::Turn>, Turn);

impl Engine {
    /// All pending pods in their current order. Each placement changes what teams have, and with it
    /// the order of the rest.
    pub fn line(&self) -> Vec<Waiting> {
        let state = &self.state;
        let waiting = || state.pods.indexes().filter(|pod| state.waits(*pod));
        let mut gangs: BTreeMap<FullName, Rank> = BTreeMap::new();
        for (gang, pod) in waiting().filter_map(|pod| Some((self.gang_minded(pod)?, pod))) {
            let rank = self.rank(pod);
            let first = gangs.entry(gang).or_insert_with(|| rank.clone());
            *first = rank.min(first.clone());
        }
        let place = |pod: PodIx| {
            let own = self.rank(pod);
            let of_gang = self.gang_minded(pod).and_then(|gang| gangs.get(&gang)).cloned();
            (of_gang.unwrap_or_else(|| own.clone()), own)
        };
        let mut line: Vec<((Rank, Rank), PodIx)> = waiting().map(|pod| (place(pod), pod)).collect();
        line.sort();
        let told = |(_, pod): (_, PodIx)| Waiting {
            pod: state.pods[pod].uid.clone(),
            held_by: self.held_by(self.head_for(pod).unwrap_or(pod)),
        };
        line.into_iter().map(told).collect()
    }

    fn rank(&self, pod: PodIx) -> Rank {
        let row = &self.state.pods[pod];
        let priority = self.state.class(row.class).spec.priority;
        let of_team = self.state.tenancy.has_teams().then(|| self.state.turn(pod));
        (of_team, (Reverse(priority), row.created_at_ms, row.uid.clone()))
    }
}
