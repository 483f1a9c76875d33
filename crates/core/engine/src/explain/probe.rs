//! One pod asked about on one node after the other, by the code that decides.
//!
//! Owns the order in which a node can be turned down, so that there is one reason for each. Must
//! not know how reasons are told.

use berth_model::workload::WorkloadClass;

use crate::berth::foresee::Foresight;
use crate::berth::headroom::in_the_way;
use crate::berth::rank::Ranking;
use crate::berth::room::{Alignment, Obstacle, View};
use crate::berth::select::allows;
use crate::config::{Config, Profile};
use crate::filter::{Inquiry, Newcomer};
use crate::overlay::Overlay;
use crate::state::State;
use crate::state::headroom::Turn;
use crate::table::NodeIx;
use crate::verdict::Rejection;

/// A pod, ready to be asked about.
pub(super) struct Probe<'s> {
    pub(super) state: &'s State,
    pub(super) inquiry: Inquiry<'s>,
    pub(super) ranking: Ranking,
    /// Whether kubelets are asked; kube-scheduler does not.
    pub(super) kubelets: bool,
}

/// What turns a node down first.
pub(super) enum Bar {
    /// What kube-scheduler looks at too.
    Filter(Rejection),
    /// What is inside of the node.
    Inside(Obstacle),
    /// Its pool, which is not for this class of work.
    Pool(WorkloadClass),
    /// What is kept warm there, under this turn.
    Warm(Turn),
    /// Pods that wait for the node.
    Reserved,
}

impl<'s> Probe<'s> {
    /// `Err` if the pod is turned down for the whole cluster. The rules of the class must have been
    /// made before.
    pub(super) fn new(
        state: &'s State,
        pod: Newcomer<'s>,
        config: &Config,
    ) -> Result<Self, Rejection> {
        let class = pod.class;
        let (inquiry, _) = Inquiry::new(state, pod)?;
        let ranking = Ranking::detached(state, class, config.unknown_topology);
        Ok(Self { state, inquiry, ranking, kubelets: config.profile == Profile::Berth })
    }

    /// Whether the pod fits on a node, and how it would lie there. Who does not ask kubelets does
    /// not manage that.
    pub(super) fn verdict(&mut self, at: NodeIx) -> Result<Alignment, Bar> {
        let plain = Overlay::default();
        self.inquiry.filter(at, &plain).map_err(Bar::Filter)?;
        if !self.kubelets {
            let beside = self.inquiry.filter_nominated(at, &plain);
            return beside.map(|()| Alignment::Unmanaged).map_err(|_| Bar::Reserved);
        }
        let node = &self.state.nodes[at];
        let claim = self.ranking.claim();
        if let (Some(class), None) = (claim, self.state.pool_fit(claim, &node.object)) {
            return Err(Bar::Pool(class));
        }
        let room = self.ranking.judge(self.state, View::of(node)).map_err(Bar::Inside)?;
        if let Some(kept) = in_the_way(&self.ranking, &Foresight::now(self.state, at)) {
            return Err(Bar::Warm(kept.turn()));
        }
        let cares = self.inquiry.has_neighbour_rules();
        let free = allows(&self.inquiry, &self.ranking, at, cares);
        if free { Ok(room.alignment) } else { Err(Bar::Reserved) }
    }
}
