//! A projected node: its state after some pods have left and others have arrived, including its
//! kubelet model.
//!
//! Used to try preemptions, nominations and headroom without promising the same room twice.

use std::sync::Arc;

use berth_model::spec::PodSpec;

use super::rank::Ranking;
use super::room::{Ask, Judge, Room, View};
use super::victims::Preemptor;
use crate::config::UnknownTopology;
use crate::filter::Inquiry;
use crate::mirror::Mirror;
use crate::overlay::Overlay;
use crate::shares::Grant;
use crate::state::{NodeState, State};
use crate::table::{NodeIx, PodIx};

#[derive(Clone)]
pub(crate) struct Projection<'s> {
    pub(crate) state: &'s State,
    pub(crate) at: NodeIx,
    overlay: Overlay,
    /// A copy of the kubelet model, made at the first change.
    mirror: Option<Box<Mirror>>,
    placeholders: u32,
}

impl<'s> Projection<'s> {
    pub(crate) fn now(state: &'s State, at: NodeIx) -> Self {
        Self { state, at, overlay: Overlay::default(), mirror: None, placeholders: 0 }
    }

    /// The node after the pods leaving for this preemptor are gone and the nominated pods that rank
    /// above it have arrived. `None` if one of those does not fit even then.
    pub(crate) fn for_preemptor(
        state: &'s State,
        ranking: &Ranking,
        at: NodeIx,
        preemptor: &Preemptor,
    ) -> Option<Self> {
        let mut projected = Self::now(state, at);
        state.leaving_for(at, preemptor.priority).for_each(|pod| projected.remove(pod));
        for pod in state.waiting_for(at, |pod| !preemptor.outranks(state, pod)) {
            projected.add(ranking, pod)?;
        }
        Some(projected)
    }

    pub(crate) fn node(&self) -> &'s NodeState {
        &self.state.nodes[self.at]
    }

    pub(crate) fn mirror(&self) -> Option<&Mirror> {
        self.mirror.as_deref().or(self.node().mirror.as_deref())
    }

    /// Whether pods leave, so that waiting makes sense.
    pub(crate) fn has_leaving_pods(&self) -> bool {
        !self.overlay.removed.is_empty()
    }

    pub(crate) fn view(&self) -> View<'_> {
        View { mirror: self.mirror(), ..View::of(self.node()).with(&self.overlay) }
    }

    pub(crate) fn remove(&mut self, pod: PodIx) {
        self.overlay.remove_exactly(self.state, self.node(), pod);
        let uid = &self.state.pods[pod].uid;
        if let Some(mirror) = self.mirror_mut() {
            mirror.remove(pod, uid);
        }
        self.divide();
    }

    /// Adds a pending pod; `None` if it does not fit.
    pub(crate) fn add(&mut self, ranking: &Ranking, pod: PodIx) -> Option<()> {
        let state = self.state;
        let class = state.class_of(pod);
        let mut ask = Ask::new(&class.requests, &state.resources);
        let room = ranking.judge_other(state, &class.spec, &mut ask, self.view()).ok()?;
        self.admit(&class.spec, &mut ask, room, pod, &state.pods[pod].uid);
        let node = self.node();
        self.overlay.add(state, node, pod);
        if let Some(grant) = room.grant {
            self.overlay.give(node, grant, class.spec.gpu.as_ref());
        }
        self.divide();
        Some(())
    }

    /// Adds a placeholder that takes what a pod of this spec would get, invisible to rules about
    /// other pods. `None` if it does not fit.
    pub(crate) fn add_placeholder(
        &mut self,
        unknown: UnknownTopology,
        spec: &PodSpec,
        ask: &mut Ask,
    ) -> Option<()> {
        let state = self.state;
        let judge = Judge::of(spec, unknown, state);
        let room = judge.judge(ask, self.view()).ok()?;
        // Pod numbers count up from 0, and UIDs of pods contain no spaces.
        let number = PodIx(u32::MAX - self.placeholders);
        let uid = format!("like {}", self.placeholders).into();
        self.placeholders += 1;
        self.admit(spec, ask, room, number, &uid);
        let node = self.node();
        self.overlay.add_requests(node, &ask.requests);
        if let Some(grant) = room.grant {
            self.overlay.give(node, grant, spec.gpu.as_ref());
        }
        self.divide();
        Some(())
    }

    /// The same node without the arriving pods; `None` if there are none.
    pub(crate) fn without_arrivals(&self) -> Option<Self> {
        if self.overlay.added.is_empty() {
            return None;
        }
        let mut projected = Self::now(self.state, self.at);
        self.overlay.removed.iter().for_each(|pod| projected.remove(*pod));
        Some(projected)
    }

    fn admit(&mut self, spec: &PodSpec, ask: &mut Ask, room: Room, pod: PodIx, uid: &Arc<str>) {
        let state = self.state;
        if let Some(mirror) = self.mirror_mut() {
            let version = mirror.kubelet().config().version;
            let device = room.grant.and_then(Grant::device);
            let device = device.map(|device| (device, state.resources.name(device)));
            let demand = ask.demands.get(&spec.pod, version, device).cloned();
            mirror.admit_from_event(pod, uid, demand);
        }
    }

    /// Whether rules about other pods allow the pod, with the arriving pods and, like
    /// kube-scheduler, also without them. kube-scheduler does not evaluate them if nothing else
    /// rejects the pod; this does.
    pub(crate) fn neighbours_allow(&self, inquiry: &Inquiry<'_>) -> bool {
        let without = || {
            let mut overlay = Overlay::default();
            let gone = self.overlay.removed.iter();
            gone.for_each(|pod| overlay.remove_exactly(self.state, self.node(), *pod));
            inquiry.filter(self.at, &overlay).is_ok()
        };
        inquiry.filter(self.at, &self.overlay).is_ok()
            && (self.overlay.added.is_empty()
                || !inquiry.is_refused(self.at, &self.overlay) && without())
    }

    fn divide(&mut self) {
        let state = self.state;
        if self.node().shares.is_none() {
            return;
        }
        let Self { overlay, mirror, .. } = self;
        if let (Some(shares), Some(mirror)) = (overlay.shares(&state.nodes[self.at]), mirror) {
            let resource = state.resources.name(shares.resource);
            mirror.divide(resource.as_str(), |gpu| shares.is_divided(gpu));
        }
    }

    fn mirror_mut(&mut self) -> Option<&mut Mirror> {
        if self.mirror.is_none() {
            self.mirror.clone_from(&self.state.nodes[self.at].mirror);
        }
        self.mirror.as_deref_mut()
    }
}
