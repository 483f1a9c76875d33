//! Why a gang is pending: missing members, how many fit in each domain by trial, and its
//! reservation.

use super::domain::{Domain, NodeScope};
use super::queueing::GangStatus;
use super::state::Reserved;
use crate::decision::GangName;
use crate::engine::Engine;
use crate::explain::{self, DomainRoom, Explanation, GangReport, PodName};
use crate::state::FullName;
use crate::table::{Bits, Lookup, PodIx};

const DOMAINS_NAMED_MAX: usize = 3;

const DOMAINS_TRIED_MAX: usize = 16;

impl Engine {
    pub(crate) fn explain_gang(&mut self, uid: &str, now_ms: i64) -> Option<Explanation> {
        let at = self.state.pod_by_uid(uid).filter(|at| self.state.is_pending(*at))?;
        let gang = self.scheduled_gang(at)?;
        let status = self.gang_status(&gang);
        let gang_row = self.gangs.get(&gang).cloned().unwrap_or_default();
        if gang_row.started || status.as_ref().is_some_and(|status| status.need == 0) {
            return None;
        }
        let row = &self.state.pods[at];
        let class = self.state.class(row.class);
        let pod = PodName {
            namespace: class.spec.namespace.clone(),
            name: row.name.clone(),
            priority: class.spec.priority,
        };
        let is_whole = |status: &&GangStatus| status.waiting.len() >= status.need;
        let held = status.as_ref().filter(is_whole).and_then(|_| self.gang_held_by(&gang));
        if let Some(by) = held {
            let team = self.state.tenancy.ledger.name(class.team_charge.team).clone();
            return Some(Explanation::Held { pod, team, by });
        }
        let mut report = self.report(&gang, status.as_ref());
        let mut next = None;
        if let Some(status) = status.filter(|status| is_whole(&status)) {
            if matches!(gang_row.reserved, Some(Reserved::Until(_))) {
                report.reserved_max_ms = self.state.reservation.as_ref().map(|one| one.max_ms);
            }
            report.unreserved = gang_row.refused.map(|(why, _)| why);
            report.evicting = gang_row.reserved == Some(Reserved::Evicting);
            report.timeouts = gang_row.timeouts;
            self.try_domains(&status, &mut report);
            let anywhere = status.terms.topology.as_ref().is_none_or(|topology| !topology.required);
            if anywhere && !report.evicting {
                next = self.explain_next(&status, now_ms);
            }
        }
        Some(Explanation::InGang { pod, gang: Box::new(report), next: next.map(Box::new) })
    }

    fn report(&self, gang: &FullName, status: Option<&GangStatus>) -> GangReport {
        let state = &self.state;
        let waiting = state.gangs.members(gang).filter(|pod| state.is_pending(*pod)).count();
        let topology = status.and_then(|status| status.terms.topology.as_ref());
        GangReport {
            name: GangName::of(gang),
            min: status.map(|status| status.terms.min as usize),
            waiting,
            served: status.map_or(0, |status| status.served),
            disagrees: state.gang_disagrees(gang),
            topology_key: topology.map(|topology| topology.key.clone()),
            required: topology.is_some_and(|topology| topology.required),
            ..GangReport::default()
        }
    }

    fn try_domains(&mut self, status: &GangStatus, report: &mut GangReport) {
        let mut domains = self.domains(status, NodeScope::All);
        report.domains = domains.iter().filter(|domain| domain.value.is_some()).count();
        domains.sort_by_key(|domain| (std::cmp::Reverse(domain.room), domain.value.clone()));
        domains.truncate(DOMAINS_TRIED_MAX);
        let room = |domain: Domain| {
            let room = self.room_for(status, domain.nodes.as_ref());
            DomainRoom { value: domain.value, room }
        };
        let mut rooms: Vec<DomainRoom> = domains.into_iter().map(room).collect();
        rooms.sort_by_key(|one| (std::cmp::Reverse(one.room), one.value.clone()));
        rooms.truncate(DOMAINS_NAMED_MAX);
        report.rooms = rooms;
    }

    fn explain_next(&mut self, status: &GangStatus, now_ms: i64) -> Option<Explanation> {
        let order = self.large_first(status);
        let mut explanation = None;
        self.attempt(status, |engine, _| {
            let anywhere: Option<&Bits> = None;
            let everybody = GangStatus { need: 0, ..status.clone() };
            let placed = engine.try_members(&everybody, &order, anywhere, &Lookup::default());
            let has_place = |pod: &PodIx| placed.iter().any(|(one, _)| one == pod);
            let next = order.iter().find(|pod| !has_place(pod))?;
            let uid = engine.state.pods[*next].uid.clone();
            explanation = explain::explain(&mut engine.state, &engine.config, &uid, now_ms);
            None::<()>
        });
        explanation
    }
}
