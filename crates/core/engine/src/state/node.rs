//! The state of one node: capacity, usage, pods.

use std::sync::Arc;

use berth_model::node::Node;
use berth_model::spec::HostPort;
use smallvec::SmallVec;

use crate::amounts;
use crate::class::{Class, Scored};
use crate::mirror::Mirror;
use crate::offer::Offers;
use crate::placement::gpu_values::{Kind, Machine, NodeGpus};
use crate::shares::{self, Grant, Shares};
use crate::table::{PodIx, ResourceIx};

#[derive(Clone, Debug)]
pub(crate) struct NodeState {
    pub(crate) object: Arc<Node>,
    /// Breaks ties, independent of the order of events.
    pub(crate) tie: u64,
    /// By resource.
    pub(crate) capacity: Vec<i64>,
    pub(crate) pods_max: i64,
    /// Requests of its pods, by resource.
    pub(crate) used: Vec<i64>,
    /// Requests as scores count them.
    pub(crate) scored: Scored,
    pub(crate) pods: Vec<PodIx>,
    pub(crate) ports: SmallVec<[(HostPort, PodIx); 0]>,
    pub(crate) nominated: SmallVec<[PodIx; 1]>,
    pub(crate) has_devices: bool,
    pub(crate) offers: Offers,
    pub(crate) gpus: Option<NodeGpus>,
    pub(crate) kind: Kind,
    pub(crate) shares: Option<Box<Shares>>,
    /// `None` if its topology is unknown.
    pub(crate) mirror: Option<Box<Mirror>>,
}

impl NodeState {
    pub(crate) fn machine(&self) -> Machine {
        Machine::of(self.gpus.as_ref(), &self.capacity)
    }

    /// Capacity not requested; negative if the node shrank below its usage.
    pub(crate) fn free(&self, resource: ResourceIx) -> i64 {
        amounts::at(&self.capacity, resource).saturating_sub(amounts::at(&self.used, resource))
    }

    pub(super) fn count(&mut self, at: PodIx, class: &Class, grant: Option<Grant>, sign: i64) {
        amounts::add(&mut self.used, &class.requests, sign);
        if let Some(grant) = grant {
            let (need, shares) = (class.spec.gpu.as_ref(), self.shares.as_deref_mut());
            shares::count(grant, need, &mut self.used, shares, sign);
        }
        let scored = class.scored_held;
        let add = |sum: i64, more: i64| sum.saturating_add(sign.saturating_mul(more));
        self.scored.millicpu = add(self.scored.millicpu, scored.millicpu);
        self.scored.memory_bytes = add(self.scored.memory_bytes, scored.memory_bytes);
        if sign > 0 {
            self.pods.push(at);
            let ports = class.spec.host_ports.iter();
            self.ports.extend(ports.map(|port| (port.clone(), at)));
        } else {
            if let Some(place) = self.pods.iter().position(|pod| *pod == at) {
                self.pods.swap_remove(place);
            }
            self.ports.retain(|(_, pod)| *pod != at);
        }
    }
}
