//! What annotations on a pod say that it holds on its node.

use std::collections::BTreeMap;

use berth_api::keys::{PLACEMENT, VIRTUAL_DEVICES};
use berth_api::placement::Placement;
use berth_topology::assignment::Assignment;
use serde::Serialize;

/// A statement about what a pod holds, the most reliable one there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// By the kubelet that admitted the pod.
    Kubelet(Assignment),
    /// By the scheduler, when it bound the pod. CPUs are not in it.
    Placement(Placement),
}

/// Where it is known from what a pod holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// Nothing says it. It follows from the kubelet's rules and the order in which pods started.
    #[default]
    Inferred,
    /// The scheduler's annotation says which NUMA nodes and devices. CPUs are inferred.
    Placement,
    /// The kubelet itself says it.
    Kubelet,
}

impl Evidence {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inferred => "inferred",
            Self::Placement => "placement",
            Self::Kubelet => "kubelet",
        }
    }
}

impl Record {
    /// `None` if no annotation says anything about pinned CPUs, memory or devices.
    pub fn read(annotations: &BTreeMap<String, String>) -> Option<Self> {
        let of_kubelet = annotations.get(VIRTUAL_DEVICES).and_then(|text| Assignment::read(text));
        of_kubelet.map(Self::Kubelet).or_else(|| Self::of_placement(annotations.get(PLACEMENT)?))
    }

    /// What the text of the annotation `berth.dev/placement` says.
    pub fn of_placement(text: &str) -> Option<Self> {
        let placement = Placement::read(text).ok()?;
        let says = !placement.numa_nodes.is_empty() || !placement.devices.is_empty();
        says.then_some(Self::Placement(placement))
    }
}
