//! Shapes: what a kind of pod asks of a node by itself, whoever its neighbours are.
//!
//! Owns the part of a spec that nodes are ranked by. Many classes share one shape: workloads differ
//! in labels and names more than in what they need. Must not know any node.

use std::sync::Arc;

use berth_model::affinity::NodeAffinity;
use berth_model::label::Labels;
use berth_model::pod::Pod;
use berth_model::spec::{GpuNeed, HostPort, PodSpec};
use berth_model::taint::Toleration;
use berth_model::workload::WorkloadClass;

use crate::table::ShapeIx;

/// What a pod asks of a node by itself.
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
    /// Its class of work, where that matters.
    claim: Option<WorkloadClass>,
}

/// A shape by number, and by serial number: numbers are given again, serial numbers are not.
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
