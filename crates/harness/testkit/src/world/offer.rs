//! Which resources of a node satisfy a need for a part of a GPU.
//!
//! Owns the rule, written down once more from what GPU feature discovery's labels mean: whole GPUs,
//! MIG slices, and shares whose memory and compute are capped.

use berth_model::mig::Board;
use berth_model::node::Node;
use berth_model::resource::ResourceName;
use berth_model::spec::GpuNeed;

/// One of a resource, and what it is good for.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    pub(super) resource: ResourceName,
    memory_bytes: u64,
    compute_milli: u64,
}

impl Offer {
    pub(super) fn is_enough(&self, need: &GpuNeed) -> bool {
        self.memory_bytes >= need.memory_bytes && self.compute_milli >= need.compute_milli.into()
    }
}

/// What a node offers, least memory first.
pub(super) fn offers(node: &Node) -> Vec<Offer> {
    let label = |name: &str| node.labels.get(name).map(|value| value.as_ref());
    let Some(product) = label("nvidia.com/gpu.product") else { return Vec::new() };
    let shared = product.ends_with("-SHARED");
    let replicas: u64 =
        label("nvidia.com/gpu.replicas").and_then(|text| text.parse().ok()).unwrap_or(1);
    let capped = label("nvidia.com/gpu.sharing-strategy") == Some("mps");
    let board = Board::by_product(product.trim_end_matches("-SHARED"), None).ok();
    let mib: Option<u64> = label("nvidia.com/gpu.memory").and_then(|text| text.parse().ok());
    let mut offers = Vec::new();
    for (resource, amount) in &node.allocatable {
        let slice = board.and_then(|board| board.profile_by_resource(resource.as_str()).ok());
        let (memory_bytes, compute_milli) = match (resource.as_str(), slice, board) {
            ("nvidia.com/gpu", _, _) => match mib {
                Some(mib) => (mib << 20, 1000),
                None => continue,
            },
            (_, Some(slice), Some(board)) => {
                let part = 1000 * u64::from(slice.compute_slices());
                (slice.certain_memory_bytes(), part / u64::from(board.compute_slices()))
            }
            _ => continue,
        };
        let parts = match shared {
            false => 1,
            true if capped && replicas > 1 => replicas,
            true => continue,
        };
        if amount.sign() > 0 {
            offers.push(Offer {
                resource: resource.clone(),
                memory_bytes: memory_bytes / parts,
                compute_milli: compute_milli / parts,
            });
        }
    }
    offers.sort_by_key(|offer| (offer.memory_bytes, offer.compute_milli));
    offers
}
