//! The engine's rules about one pod and one node, for callers without an engine.

use berth_model::node::Node;
use berth_model::resource::ResourceName;
use berth_model::spec::{GpuNeed, PodSpec};

use crate::amounts::Resources;
use crate::filter;
use crate::offer::{self, Accelerators};
use crate::shares::Share;

/// Whether a node's name, labels and taints allow a pod, whatever runs there.
pub fn accepts(spec: &PodSpec, node: &Node) -> bool {
    filter::object(spec, node).is_ok()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuPart {
    pub resource: ResourceName,
    pub memory_bytes: u64,
    /// Share of the GPU's compute, in thousandths.
    pub compute_milli: u16,
    /// Whether it can be split into shares of any size.
    pub divisible: bool,
}

/// By the node's labels, smallest first.
pub fn gpu_parts(node: &Node) -> Vec<GpuPart> {
    let mut resources = Resources::default();
    let offers = offer::of_node(node, &Accelerators::default(), &mut resources);
    let part = |offer: &offer::Offer| GpuPart {
        resource: resources.name(offer.resource).clone(),
        memory_bytes: offer.memory_bytes,
        compute_milli: offer.compute_milli,
        divisible: offer.divisible,
    };
    offers.iter().map(part).collect()
}

/// The compute, in thousandths, and memory of the share of a GPU that satisfies a need.
pub fn share_of(need: &GpuNeed, gpu_memory_bytes: u64) -> (u16, u64) {
    let share = Share::of(need, gpu_memory_bytes);
    (share.compute_milli, share.memory_bytes)
}
