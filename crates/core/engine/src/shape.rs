//! Shapes: the part of a pod's spec that nodes are ranked by, ignoring other pods.
//!
//! Many classes share a shape: workloads differ in labels and names more than in what they need.

use std::sync::Arc;

use berth_model::affinity::NodeAffinity;
use berth_model::label::Labels;
use berth_model::pod::Pod;
use berth_model::spec::{GpuNeed, HostPort, PodSpec};
use berth_model::taint::Toleration;
use berth_model::workload::WorkloadClass;

use crate::table::ShapeIx;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) pod: Pod,
    node_name: Option<Arc<str>>,
    node_selector: Labels,
    node_affinity: NodeAffinity,
    tolerations: Vec<Toleration>,
    host_ports: Vec<HostPort>,
    images: Vec<Arc<str>>,
    gpu: Option<GpuNeed>,
    model: Option<Arc<str>>,
    /// Class of work, if headroom or pools depend on it.
    claim: Option<WorkloadClass>,
}

/// A shape with its serial number: row numbers are reused, serial numbers are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShapeRef {
    pub(crate) at: ShapeIx,
    pub(crate) serial: u64,
}

impl Shape {
    pub(crate) fn of(spec: &PodSpec, claim: Option<WorkloadClass>) -> Self {
        Self {
            pod: spec.pod.clone(),
            node_name: spec.node_name.clone(),
            node_selector: spec.node_selector.clone(),
            node_affinity: spec.node_affinity.clone(),
            tolerations: spec.tolerations.clone(),
            host_ports: spec.host_ports.clone(),
            images: spec.images.clone(),
            gpu: spec.gpu,
            model: spec.model.clone(),
            claim,
        }
    }
}
