//! The reservation that is in force: which gang nodes are reserved for, and who may use them all the
//! same.
//!
//! Owns the exceptions, because a reservation keeps what its gang lacks and nothing else. It never
//! keeps out a pod that matters more, a pod that is within the guarantee of another team, a pod that
//! has ended before the gang can start, or a pod that takes nothing that the gang's members lack.
//! Must not know why nodes were reserved.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_model::spec::{Deletion, PodSpec};

use crate::amounts;
use crate::berth::foresee::Foresight;
use crate::berth::rank::Ranking;
use crate::filter::Inquiry;
use crate::state::{FullName, PodState, State};
use crate::table::{ClassIx, NodeIx, PodIx};

/// A pod with a deadline is bound, pulled and ended within this time beyond it.
const DEADLINE_SLACK_MS: i64 = 60_000;

/// Controllers whose pods run until somebody stops them.
const ENDLESS: [&str; 5] =
    ["ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "Node"];

/// Nodes are reserved for a gang.
#[derive(Clone, Debug)]
pub(crate) struct Reservation {
    pub(crate) gang: FullName,
    /// The longest that it lasts.
    pub(crate) max_ms: i64,
    /// When the pods in the way have ended at the latest, if all of them have a deadline.
    pub(super) clear_at_ms: Option<i64>,
    /// UIDs of the pods in the way.
    pub(super) blockers: BTreeSet<Arc<str>>,
}

impl Reservation {
    /// Whether a pod on a node has ended when the gang starts.
    fn ends_before_gang(&self, state: &State, pod: PodIx) -> bool {
        let ends_at_ms = || state.ends_by_ms(pod).zip(self.clear_at_ms);
        self.blockers.contains(&state.pods[pod].uid)
            || ends_at_ms().is_some_and(|(ends_ms, clear_ms)| ends_ms <= clear_ms)
    }
}

impl State {
    /// The reservation that a pod waits under, if it is a member of its gang.
    pub(crate) fn reservation_of(&self, waiting: PodIx) -> Option<&Reservation> {
        let reservation = self.reservation.as_deref()?;
        let gang = self.class_of(waiting).spec.gang.as_ref()?;
        let namespace = &self.class_of(waiting).spec.namespace;
        let is_for = (namespace, &gang.name) == (&reservation.gang.0, &reservation.gang.1);
        is_for.then_some(reservation)
    }

    /// Whether a pod need not respect what is reserved for another, because its own team is entitled
    /// to it.
    pub(crate) fn is_entitled_beside(
        &self,
        waiting: PodIx,
        class: ClassIx,
        pod: Option<PodIx>,
    ) -> bool {
        self.tenancy.has_teams()
            && self.reservation_of(waiting).is_some()
            && self.class_of(waiting).tenant.team != self.class(class).tenant.team
            && !self.borrows(class, pod)
    }

    /// Whether a pod that is bound now has ended before the gang can start for which another waits.
    pub(crate) fn ends_before_start(&self, waiting: PodIx, spec: &PodSpec) -> bool {
        let clear_at_ms = self.reservation_of(waiting).and_then(|one| one.clear_at_ms);
        let ends_at_ms =
            spec.deadline_ms.map(|deadline_ms| self.ends_after(self.now_ms, deadline_ms));
        ends_at_ms.zip(clear_at_ms).is_some_and(|(ends_ms, clear_ms)| ends_ms <= clear_ms)
    }

    fn ends_after(&self, started_at_ms: i64, deadline_ms: i64) -> i64 {
        started_at_ms.saturating_add(deadline_ms).saturating_add(DEADLINE_SLACK_MS)
    }

    /// When a pod on a node has ended at the latest, if that is known.
    pub(super) fn ends_by_ms(&self, pod: PodIx) -> Option<i64> {
        let row = &self.pods[pod];
        if row.is_terminating() {
            return Some(row.deletion.map_or(self.now_ms, Deletion::uncounted_at_ms));
        }
        let deadline_ms = self.class_of(pod).spec.deadline_ms?;
        Some(self.ends_after(row.started_at_ms.unwrap_or(self.now_ms), deadline_ms))
    }

    /// Whether a pod on a node ends without anybody stopping it, as far as its spec tells.
    pub(super) fn is_finite(&self, pod: PodIx) -> bool {
        let (row, spec) = (&self.pods[pod], &self.class_of(pod).spec);
        let kind = spec.controller.as_ref().map(|controller| &*controller.kind);
        let is_leaving = |row: &PodState| row.evicted_at_ms.is_some() || row.is_terminating();
        let serves = spec.class.is_some_and(|class| class.is_serving());
        let endless = serves || kind.is_some_and(|kind| ENDLESS.contains(&kind));
        // Another pod takes the place of a DaemonSet's on the same node.
        (is_leaving(row) && kind != Some("DaemonSet")) || spec.deadline_ms.is_some() || !endless
    }
}

/// A node once the pods in the way of a reservation have ended and the gang's members have come, for a
/// pod that takes nothing there that the members lack now; `None` if it does.
pub(crate) fn beside_members<'s>(
    inquiry: &Inquiry<'s>,
    ranking: &Ranking,
    at: NodeIx,
    ahead: &[PodIx],
) -> Option<Foresight<'s>> {
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
    let mut foreseen = Foresight::now(state, at);
    let gone = node.pods.iter().filter(|pod| reservation.ends_before_gang(state, **pod));
    gone.for_each(|pod| foreseen.remove(*pod));
    for pod in ahead {
        // If a more important pod took its place in the meantime, there is nothing to spare for it.
        let _fits = foreseen.add(ranking, *pod);
    }
    Some(foreseen)
}
