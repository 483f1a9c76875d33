//! Filters: kube-scheduler's plugins in its order, with what is derived once per pod.

mod neighbours;
mod own;

use std::sync::Arc;

use berth_dra::{Demand, Placement};
use berth_model::dra::pod::PodClaim;
use berth_model::numa::NumaMask;
use berth_model::spec::PodSpec;
use smallvec::SmallVec;

use crate::class::{Class, Rules, SpreadRule};
use crate::devices::Order;
use crate::overlay::Overlay;
use crate::state::{NodeState, State};
use crate::table::{ClassIx, NodeIx, PodIx, TallyIx};
use crate::verdict::{Plugin, Reason, Rejection};
use crate::volume::{Owner, PodVolumes};

pub(crate) use own::{CORDON, Shortage, fit, named_nodes, object, untolerated_soft_taints};

#[derive(Clone, Copy, Debug)]
pub(crate) struct IncomingPod<'a> {
    pub(crate) class: ClassIx,
    pub(crate) uid: &'a str,
    pub(crate) name: &'a str,
    pub(crate) claims: &'a [PodClaim],
}

impl<'a> IncomingPod<'a> {
    pub(crate) fn of(state: &'a State, at: PodIx) -> Self {
        let pod = &state.pods[at];
        Self { class: pod.class, uid: &pod.uid, name: &pod.name, claims: &pod.claims }
    }
}

/// A pod prepared for evaluation on many nodes.
pub(crate) struct Inquiry<'s> {
    pub(crate) state: &'s State,
    pub(crate) class_at: ClassIx,
    pub(crate) class: &'s Class,
    pub(crate) rules: Arc<Rules>,
    pub(crate) uid: &'s str,
    volumes: Option<PodVolumes<'s>>,
    pub(crate) devices: Option<Demand>,
    /// Whether claimed devices must be near what the kubelet allocates.
    pub(crate) near_devices: bool,
    excluded_by: SmallVec<[TallyIx; 2]>,
}

pub(crate) type Narrowed = Option<Vec<Arc<str>>>;

impl<'s> Inquiry<'s> {
    /// `Err` if the pod is rejected for the whole cluster. The rules of the class must exist.
    pub(crate) fn new(
        state: &'s State,
        pod: IncomingPod<'s>,
    ) -> Result<(Self, Narrowed), Rejection> {
        let class = state.class(pod.class);
        let narrowed = own::named_nodes(&class.spec.node_affinity)?;
        let in_use = |namespace: &str, name: &str| state.claim_users(namespace, name) > 0;
        let owner = Owner { name: pod.name, uid: pod.uid };
        let volumes = PodVolumes::new(&state.storage, &class.spec, owner, &in_use)?;
        let devices = state.devices.prepare(&class.spec, &pod)?;
        let excluded_by = state
            .census
            .terms_about(pod.class)
            .filter(|(_, claim)| *claim == crate::census::TermKind::AntiAffinity)
            .map(|(tally, _)| tally)
            .filter(|tally| state.census.tally(*tally).total > 0)
            .collect();
        let rules = class.rules.clone().unwrap_or_default();
        let inquiry = Self {
            state,
            class_at: pod.class,
            class,
            rules,
            uid: pod.uid,
            volumes,
            devices,
            near_devices: false,
            excluded_by,
        };
        Ok((inquiry, narrowed))
    }

    /// Whether the answer depends on more than the node: other pods, volumes or claims.
    pub(crate) fn depends_on_others(&self) -> bool {
        self.has_neighbour_rules() || self.has_volumes() || self.devices.is_some()
    }

    pub(crate) fn has_volumes(&self) -> bool {
        self.volumes.is_some()
    }

    pub(crate) fn spec(&self) -> &PodSpec {
        &self.class.spec
    }

    /// The first plugin that rejects the pod on the node, under an overlay.
    pub(crate) fn filter(&self, at: NodeIx, overlay: &Overlay) -> Result<(), Rejection> {
        let node = &self.state.nodes[at];
        own::object(&self.class.spec, &node.object)?;
        self.ports(node, overlay)?;
        self.fit(node, overlay)?;
        self.volumes(node, overlay)?;
        self.spread(at, overlay)?;
        self.pod_affinity(at, overlay)?;
        self.devices_on(at, None, Order::Listed).map(|_| ())
    }

    /// The allocation for its claims on a node, from devices on some NUMA nodes if given.
    pub(crate) fn devices_on(
        &self,
        at: NodeIx,
        numa: Option<NumaMask>,
        order: Order,
    ) -> Result<Option<Placement>, Rejection> {
        let Some(demand) = &self.devices else { return Ok(None) };
        self.state.devices_on(demand, at, numa, order).map(Some)
    }

    /// As `filter`, both with nominated pods of at least this pod's priority and without them.
    pub(crate) fn filter_nominated(&self, at: NodeIx, overlay: &Overlay) -> Result<(), Rejection> {
        let nominated = self.ahead(at);
        if !nominated.is_empty() {
            let mut with = overlay.clone();
            let node = &self.state.nodes[at];
            nominated.iter().for_each(|pod| with.add(self.state, node, *pod));
            self.filter(at, &with)?;
        }
        self.filter(at, overlay)
    }

    pub(crate) fn matching_on_node(&self, rule: &SpreadRule, at: NodeIx) -> i32 {
        if self.state.census.query(rule.query).selects_all() {
            return 0;
        }
        let counts = |pod: &&PodIx| {
            let row = &self.state.pods[**pod];
            !row.is_terminating() && self.state.census.matches(rule.query, row.class)
        };
        self.state.nodes[at].pods.iter().filter(counts).count() as i32
    }

    /// Evaluates rules about other pods and volumes on a node that has room.
    pub(crate) fn others_allow(&self, at: NodeIx, neighbours: bool) -> bool {
        let plain = Overlay::default();
        (!neighbours || self.spread(at, &plain).is_ok() && self.pod_affinity(at, &plain).is_ok())
            && (self.volumes.is_none() || self.volumes(&self.state.nodes[at], &plain).is_ok())
    }

    /// Pods nominated to a node that rank at least as high as this one, the most important first.
    pub(crate) fn ahead(&self, at: NodeIx) -> SmallVec<[PodIx; 2]> {
        let is_other = |pod: PodIx| self.state.pods[pod].uid.as_ref() != self.uid;
        self.state.waiting_for(at, |pod| is_other(pod) && self.yields_to(pod))
    }

    /// Whether a nominated pod ranks at least as high and keeps its room from this one.
    pub(crate) fn yields_to(&self, waiting: PodIx) -> bool {
        let (state, own) = (self.state, self.state.pod_by_uid(self.uid));
        state.goes_before(waiting, self.class_at, own)
            && !(state.reservation.is_some()
                && (state.is_entitled_beside(waiting, self.class_at, own)
                    || state.ends_before_start(waiting, self.spec())))
    }

    fn ports(&self, node: &NodeState, overlay: &Overlay) -> Result<(), Rejection> {
        let wanted = &self.class.spec.host_ports;
        if wanted.is_empty() {
            return Ok(());
        }
        if !overlay.ports_free(node, wanted) {
            let reason = "node(s) didn't have free ports for the requested pod ports";
            return Err(Rejection::resolvable(Plugin::NodePorts, Reason::Text(reason)));
        }
        Ok(())
    }

    fn fit(&self, node: &NodeState, overlay: &Overlay) -> Result<(), Rejection> {
        let (used, pods) = (overlay.used(node), overlay.pod_count(node));
        own::fit(&self.class.requests, node, used, pods, &self.state.served)
            .map_err(|short| short.rejection(&self.state.resources))
    }

    fn volumes(&self, node: &NodeState, overlay: &Overlay) -> Result<(), Rejection> {
        let Some(volumes) = &self.volumes else { return Ok(()) };
        let pods = || overlay.pods(node).map(|pod| &*self.state.class_of(pod).spec);
        let references = overlay.differences().map(|(pod, change)| {
            i64::from(change) * volumes.exclusive_references(&self.state.class_of(pod).spec)
        });
        volumes.restrictions(pods(), references.sum())?;
        volumes.limits(&node.object.name, pods())?;
        volumes.binding(&node.object)?;
        volumes.zone(&node.object)
    }
}
