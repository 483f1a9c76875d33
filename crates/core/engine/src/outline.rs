//! What can be asked about a pod and a node without an engine: the rules of the engine's own filters
//! and offers, for those who foresee rather than decide.
//!
//! Owns nothing but the way to them. Reads only.

use berth_model::node::Node;
use berth_model::resource::ResourceName;
use berth_model::spec::PodSpec;

use crate::amounts::Resources;
use crate::filter;
use crate::offer::{self, Accelerators};

/// Whether a node would do for a pod by its name, labels and taints, whatever runs there.
pub fn accepts(spec: &PodSpec, node: &Node) -> bool {
    filter::object(spec, node).is_ok()
}

/// Something that a node gives for a part of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuPart {
    /// One of this resource.
    pub resource: ResourceName,
    /// The memory it comes with.
    pub memory_bytes: u64,
    /// Its part of the GPU's compute, in thousandths.
    pub compute_milli: u16,
    /// Whether shares of it can be had, of any size.
    pub divisible: bool,
}

/// The parts of GPUs that a node gives, smallest first, by its own labels.
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
