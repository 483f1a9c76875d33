//! What a node's kubelet has handed out, as far as we know.
//!
//! Owns one kubelet model per node with known topology, fed with the pods bound there. A pod that is
//! bound although the model would have rejected it shows that the mirror is wrong; it is not
//! believed then until that pod is gone or the topology is told anew. Must not know why pods are
//! bound.

use berth_kubelet::{Kubelet, PodDemand, Verdict};

use crate::event::NodeTopology;
use crate::table::PodIx;

/// A node's kubelet as we see it.
#[derive(Clone, Debug)]
pub(crate) struct Mirror {
    kubelet: Kubelet,
    /// Bound pods that it would have rejected.
    refused: Vec<PodIx>,
}

impl Mirror {
    /// Of a node with no pods.
    pub(crate) fn new(topology: &NodeTopology) -> Self {
        Self { kubelet: topology.empty_kubelet().clone(), refused: Vec::new() }
    }

    pub(crate) fn kubelet(&self) -> &Kubelet {
        &self.kubelet
    }

    /// Whether everything bound to the node is in it.
    pub(crate) fn is_believed(&self) -> bool {
        self.refused.is_empty()
    }

    pub(crate) fn would_admit(&self, demand: &PodDemand) -> Verdict {
        self.kubelet.would_admit(demand)
    }

    /// A pod is on the node. `None`: it cannot be counted at all.
    pub(crate) fn admit(&mut self, pod: PodIx, uid: &str, demand: Option<&PodDemand>) {
        let admitted = demand.is_some_and(|demand| self.kubelet.admit(uid, demand).is_ok());
        if !admitted {
            self.refused.push(pod);
        }
    }

    /// A pod has left. Whether it had been refused, so that the mirror should be made anew.
    pub(crate) fn remove(&mut self, pod: PodIx, uid: &str) -> bool {
        let refused = self.refused.len();
        self.refused.retain(|one| *one != pod);
        !self.kubelet.remove(uid) || self.refused.len() < refused
    }
}
