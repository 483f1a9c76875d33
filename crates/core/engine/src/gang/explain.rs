//! Why a gang is pending: missing members, how many fit in each domain by trial, and its
//! reservation.

use super::domain::{Among, Spot};
use super::muster::Roll;
use super::standing::Reserved;
use crate::decision::GangName;
use crate::engine::Engine;
use crate::explain::{self, DomainRoom, Explanation, GangReport, PodName};
use crate::state::FullName;
use crate::table::{Bits, Lookup, PodIx};

/// Limit of domains named, those with most room first.
const DOMAINS_NAMED_MAX: usize = 3;

/// Limit of domains tried, those with the highest upper limit first.
const DOMAINS_TRIED_MAX: usize = 16;

impl Engine {
    /// Explains a pending member of a gang; `None` for other pods.
    pub(crate) fn explain_gang(&mut self, uid: &str, now_ms: i64) -> Option<Explanation> {
        let at = self.state.pod_by_uid(uid).filter(|at| self.state.waits(*at))?;
        let gang = self.gang_minded(at)?;
        let roll = self.roll(&gang);
        let standing = self.gangs.get(&gang).cloned().unwrap_or_default();
        if standing.started || roll.as_ref().is_some_and(|roll| roll.need == 0) {
            return None;
        }
        let row = &self.state.pods[at];
        let class = self.state.class(row.class);
        let pod = PodName {
            namespace: class.spec.namespace.clone(),
            name: row.name.clone(),
            priority: class.spec.priority,
        };
        let is_whole = |roll: &&Roll| roll.waiting.len() >= roll.need;
        let held = roll.as_ref().filter(is_whole).and_then(|_| self.gang_held_by(&gang));
        if let Some(by) = held {
            let team = self.state.tenancy.ledger.name(class.tenant.team).clone();
            return Some(Explanation::Held { pod, team, by });
        }
        let mut report = self.report(&gang, roll.as_ref());
        let mut next = None;
        if let Some(roll) = roll.filter(|roll| is_whole(&roll)) {
            if matches!(standing.reserved, Some(Reserved::Until(_))) {
                report.reserved_max_ms = self.state.reservation.as_ref().map(|one| one.max_ms);
            }
            report.unreserved = standing.refused.map(|(why, _)| why);
            report.evicting = standing.reserved == Some(Reserved::Evicting);
            report.timeouts = standing.timeouts;
            self.try_domains(&roll, &mut report);
            let anywhere = roll.terms.topology.as_ref().is_none_or(|topology| !topology.required);
            if anywhere && !report.evicting {
                next = self.explain_next(&roll, now_ms);
            }
        }
        Some(Explanation::InGang { pod, gang: Box::new(report), next: next.map(Box::new) })
    }

    fn report(&self, gang: &FullName, roll: Option<&Roll>) -> GangReport {
        let state = &self.state;
        let waiting = state.gangs.members(gang).filter(|pod| state.waits(*pod)).count();
        let topology = roll.and_then(|roll| roll.terms.topology.as_ref());
        GangReport {
            name: GangName::of(gang),
            min: roll.map(|roll| roll.terms.min as usize),
            waiting,
            served: roll.map_or(0, |roll| roll.served),
            disagrees: state.gang_disagrees(gang),
            topology_key: topology.map(|topology| topology.key.clone()),
            required: topology.is_some_and(|topology| topology.required),
            domains: 0,
            rooms: Vec::new(),
            evicting: false,
            reserved_max_ms: None,
            unreserved: None,
            timeouts: 0,
        }
    }

    fn try_domains(&mut self, roll: &Roll, report: &mut GangReport) {
        let mut spots = self.spots(roll, Among::All);
        report.domains = spots.iter().filter(|spot| spot.value.is_some()).count();
        spots.sort_by_key(|spot| (std::cmp::Reverse(spot.room), spot.value.clone()));
        spots.truncate(DOMAINS_TRIED_MAX);
        let room = |spot: Spot| {
            let room = self.room_for(roll, spot.nodes.as_ref());
            DomainRoom { value: spot.value, room }
        };
        let mut rooms: Vec<DomainRoom> = spots.into_iter().map(room).collect();
        rooms.sort_by_key(|one| (std::cmp::Reverse(one.room), one.value.clone()));
        rooms.truncate(DOMAINS_NAMED_MAX);
        report.rooms = rooms;
    }

    /// Explains the first member that does not fit beside the others.
    fn explain_next(&mut self, roll: &Roll, now_ms: i64) -> Option<Explanation> {
        let order = self.large_first(roll);
        let mut told = None;
        self.attempt(roll, |engine, _| {
            let anywhere: Option<&Bits> = None;
            let everybody = Roll { need: 0, ..roll.clone() };
            let placed = engine.try_members(&everybody, &order, anywhere, &Lookup::default());
            let has_place = |pod: &PodIx| placed.iter().any(|(one, _)| one == pod);
            let next = order.iter().find(|pod| !has_place(pod))?;
            let uid = engine.state.pods[*next].uid.clone();
            told = explain::explain(&mut engine.state, &engine.config, &uid, now_ms);
            None::<()>
        });
        told
    }
}
