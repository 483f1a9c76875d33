//! The reservation in force: for which gang, and which other pods may use the nodes.
//!
//! A reservation never keeps out a pod of higher priority, a pod within the guarantee of another
//! team, a pod that ends before the gang can start, or a pod that takes nothing its members lack.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_model::spec::{Deletion, PodSpec};

use crate::amounts;
use crate::filter::Inquiry;
use crate::placement::projection::Projection;
use crate::placement::rank::Ranking;
use crate::state::{FullName, PodState, State};
use crate::table::{ClassIx, NodeIx, PodIx};

/// Time beyond its deadline within which a pod is pulled, bound and ended.
const DEADLINE_SLACK_MS: i64 = 60_000;

/// Controllers whose pods run until they are stopped.
const ENDLESS: [&str; 5] =
    ["ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "Node"];

#[derive(Clone, Debug)]
pub(crate) struct Reservation {
    pub(crate) gang: FullName,
    pub(crate) max_ms: i64,
    /// Latest end of the blocking pods, if all of them have a deadline.
    pub(super) clear_at_ms: Option<i64>,
    pub(super) blockers: BTreeSet<Arc<str>>,
}

impl Reservation {
    fn ends_before_gang(&self, state: &State, pod: PodIx) -> bool {
        let ends_at_ms = || state.ends_by_ms(pod).zip(self.clear_at_ms);
        self.blockers.contains(&state.pods[pod].uid)
            || ends_at_ms().is_some_and(|(ends_ms, clear_ms)| ends_ms <= clear_ms)
    }
}

impl State {
    pub(crate) fn reservation_of(&self, waiting: PodIx) -> Option<&Reservation> {
        let reservation = self.reservation.as_deref()?;
        let gang = self.class_of(waiting).spec.gang.as_ref()?;
        let namespace = &self.class_of(waiting).spec.namespace;
        let is_for = (namespace, &gang.name) == (&reservation.gang.0, &reservation.gang.1);
        is_for.then_some(reservation)
    }

    /// Whether a pod may use nodes reserved for another team's gang, because it is within its own
    /// team's guarantee.
    pub(crate) fn is_entitled_beside(
        &self,
        waiting: PodIx,
        class: ClassIx,
        pod: Option<PodIx>,
    ) -> bool {
        self.tenancy.has_teams()
            && self.reservation_of(waiting).is_some()
            && self.class_of(waiting).team_charge.team != self.class(class).team_charge.team
            && !self.borrows(class, pod)
    }

    /// Whether a pod bound now would end before the gang of `waiting` can start.
    pub(crate) fn ends_before_start(&self, waiting: PodIx, spec: &PodSpec) -> bool {
        let clear_at_ms = self.reservation_of(waiting).and_then(|one| one.clear_at_ms);
        let ends_at_ms =
            spec.deadline_ms.map(|deadline_ms| self.ends_after(self.now_ms, deadline_ms));
        ends_at_ms.zip(clear_at_ms).is_some_and(|(ends_ms, clear_ms)| ends_ms <= clear_ms)
    }

    fn ends_after(&self, started_at_ms: i64, deadline_ms: i64) -> i64 {
        started_at_ms.saturating_add(deadline_ms).saturating_add(DEADLINE_SLACK_MS)
    }

    /// The latest end of a pod on a node, if known.
    pub(super) fn ends_by_ms(&self, pod: PodIx) -> Option<i64> {
        let row = &self.pods[pod];
        if row.is_terminating() {
            return Some(row.deletion.map_or(self.now_ms, Deletion::uncounted_at_ms));
        }
        let deadline_ms = self.class_of(pod).spec.deadline_ms?;
        Some(self.ends_after(row.started_at_ms.unwrap_or(self.now_ms), deadline_ms))
    }

    /// Whether a pod on a node ends by itself, according to its spec.
    pub(super) fn is_finite(&self, pod: PodIx) -> bool {
        let (row, spec) = (&self.pods[pod], &self.class_of(pod).spec);
        let kind = spec.controller.as_ref().map(|controller| &*controller.kind);
        let is_leaving = |row: &PodState| row.evicted_at_ms.is_some() || row.is_terminating();
        let serves = spec.class.is_some_and(|class| class.is_serving());
        let endless = serves || kind.is_some_and(|kind| ENDLESS.contains(&kind));
        // A DaemonSet's pod is replaced on the same node.
        (is_leaving(row) && kind != Some("DaemonSet")) || spec.deadline_ms.is_some() || !endless
    }
}

/// The node after blocking pods have ended and the gang's members have started, for a pod that
/// takes nothing there that the members lack now; `None` if it does.
pub(crate) fn beside_members<'s>(
    inquiry: &Inquiry<'s>,
    ranking: &Ranking,
    at: NodeIx,
    ahead: &[PodIx],
) -> Option<Projection<'s>> {
    let state = inquiry.state;
    let reservation = state.reservation.as_deref()?;
    if inquiry.spec().gpu.is_some() || ahead.iter().any(|pod| state.reservation_of(*pod).is_none())
    {
        return None;
    }
    let node = &state.nodes[at];
    let mut wanted = Vec::new();
    ahead.iter().for_each(|pod| amounts::add(&mut wanted, &state.class_of(*pod).requests, 1));
    let spares = |(resource, amount): &(_, i64)| {
        amounts::at(&wanted, *resource).saturating_add(*amount) <= node.free(*resource)
    };
    let pods = node.pods.len().saturating_add(ahead.len());
    if !inquiry.class.requests.iter().all(spares) || pods as i64 >= node.pods_max {
        return None;
    }
    let mut projected = Projection::now(state, at);
    let gone = node.pods.iter().filter(|pod| reservation.ends_before_gang(state, **pod));
    gone.for_each(|pod| projected.remove(*pod));
    for pod in ahead {
        // If a more important pod took a member's place, that member needs no room.
        let _fits = projected.add(ranking, *pod);
    }
    Some(projected)
}
