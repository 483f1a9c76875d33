//! Evaluates one pod on one node after the other with the code that decides, giving one reason per
//! rejected node.

use berth_model::alignment::Alignment;
use berth_model::workload::WorkloadClass;

use crate::config::{Config, Profile};
use crate::filter::{IncomingPod, Inquiry};
use crate::overlay::Overlay;
use crate::placement::headroom::blocked_reservation;
use crate::placement::projection::Projection;
use crate::placement::rank::Ranking;
use crate::placement::room::{Obstacle, View};
use crate::placement::select::allows;
use crate::state::State;
use crate::state::headroom::Turn;
use crate::table::NodeIx;
use crate::verdict::Rejection;

pub(super) struct Probe<'s> {
    pub(super) state: &'s State,
    pub(super) inquiry: Inquiry<'s>,
    pub(super) ranking: Ranking,
    /// Whether kubelets are modelled; kube-scheduler does not.
    pub(super) kubelets: bool,
}

/// The first reason why a node is rejected.
pub(super) enum RejectedBy {
    Filter(Rejection),
    Room(Obstacle),
    Pool(WorkloadClass),
    Headroom(Turn),
    Nominated,
}

impl<'s> Probe<'s> {
    /// `Err` if the pod is rejected for the whole cluster. The rules of the class must exist.
    pub(super) fn new(
        state: &'s State,
        pod: IncomingPod<'s>,
        config: &Config,
    ) -> Result<Self, Rejection> {
        let class = pod.class;
        let (inquiry, _) = Inquiry::new(state, pod)?;
        let ranking = Ranking::detached(state, class, config.unknown_topology);
        Ok(Self { state, inquiry, ranking, kubelets: config.profile == Profile::Berth })
    }

    /// The pod's alignment on a node; floating if kubelets are not modelled.
    pub(super) fn verdict(&mut self, at: NodeIx) -> Result<Alignment, RejectedBy> {
        let plain = Overlay::default();
        self.inquiry.filter(at, &plain).map_err(RejectedBy::Filter)?;
        if !self.kubelets {
            let beside = self.inquiry.filter_nominated(at, &plain);
            return beside.map(|()| Alignment::Floating).map_err(|_| RejectedBy::Nominated);
        }
        let node = &self.state.nodes[at];
        let claim = self.ranking.claim;
        if let (Some(class), None) = (claim, self.state.pool_fit(claim, &node.object)) {
            return Err(RejectedBy::Pool(class));
        }
        let room = self.ranking.judge(self.state, View::of(node)).map_err(RejectedBy::Room)?;
        if let Some(kept) = blocked_reservation(&self.ranking, &Projection::now(self.state, at)) {
            return Err(RejectedBy::Headroom(kept.turn()));
        }
        let has_rules = self.inquiry.has_neighbour_rules();
        let free = allows(&self.inquiry, &self.ranking, at, has_rules);
        if free { Ok(room.fit.alignment) } else { Err(RejectedBy::Nominated) }
    }
}
