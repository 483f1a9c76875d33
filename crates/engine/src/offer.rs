//! Parts of GPUs that a node offers, for pods that say how much they need rather than what of.
//!
//! Owns the reading of a node's labels and resources as offers: whole GPUs, MIG slices, and shares
//! whose memory and compute are capped (MPS). Time-sliced replicas cap nothing, so they satisfy no
//! need. Must not know who holds what.

use berth_model::gpu::WHOLE_GPU;
use berth_model::mig::Board;
use berth_model::node::Node;
use berth_model::spec::GpuNeed;
use smallvec::SmallVec;

use crate::amounts::Resources;
use crate::table::ResourceIx;

/// Something that can be given for a part of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// One of this resource.
    pub(crate) resource: ResourceIx,
    /// The memory it certainly comes with.
    pub(crate) memory_bytes: u64,
    /// Its part of the GPU's compute, in thousandths.
    pub(crate) compute_milli: u16,
}

/// A node's offers, smallest first.
pub(crate) type Offers = SmallVec<[Offer; 2]>;

impl Offer {
    /// Whether it is enough.
    pub(crate) fn satisfies(&self, need: &GpuNeed) -> bool {
        self.memory_bytes >= need.memory_bytes && self.compute_milli >= need.compute_milli
    }
}

const SHARED: &str = ".shared";
const MIB: u64 = 1 << 20;

/// What the node offers, by its labels (as GPU feature discovery writes them) and resources.
pub(crate) fn of_node(node: &Node, resources: &mut Resources) -> Offers {
    let label = |name: &str| node.labels.get(&format!("nvidia.com/{name}")).map(AsRef::as_ref);
    let Some(product) = label("gpu.product") else { return Offers::new() };
    let memory_mib = label("gpu.memory").and_then(|text: &str| text.parse::<u64>().ok());
    let replicas = label("gpu.replicas").and_then(|text: &str| text.parse::<u64>().ok());
    let replicas = replicas.filter(|count| *count > 1);
    let capped = label("gpu.sharing-strategy") == Some("mps");
    // The product of a shared GPU ends in -SHARED unless its resource is renamed.
    let product = product.strip_suffix("-SHARED").unwrap_or(product);
    let mut offers = Offers::new();
    for (name, quantity) in &node.allocatable {
        let plain = name.as_str().strip_suffix(SHARED).unwrap_or(name.as_str());
        if quantity.sign() <= 0 || !plain.starts_with("nvidia.com/") {
            continue;
        }
        let Some((memory_bytes, compute_milli)) = unit(plain, product, memory_mib) else {
            continue;
        };
        // A resource of its own name is shared for certain; otherwise the label tells.
        let shared =
            name.as_str() != plain || product.len() < label("gpu.product").map_or(0, str::len);
        let parts = match replicas.filter(|_| shared) {
            None if shared => continue,
            None => 1,
            Some(_) if !capped => continue,
            Some(count) => count,
        };
        offers.push(Offer {
            resource: resources.number(name),
            memory_bytes: memory_bytes / parts,
            compute_milli: (u64::from(compute_milli) / parts) as u16,
        });
    }
    offers.sort_unstable_by_key(|offer| (offer.memory_bytes, offer.compute_milli, offer.resource));
    offers
}

/// Memory and compute of one of a resource, unshared.
fn unit(resource: &str, product: &str, memory_mib: Option<u64>) -> Option<(u64, u16)> {
    let board = Board::by_product(product, None).ok();
    let slice = match (resource, product.split_once("-MIG-")) {
        (WHOLE_GPU, None) => {
            let known = board.map(|board| u64::from(board.gb()) * 1000 * 1000 * 1000 / 100 * 99);
            return memory_mib.map(|mib| mib * MIB).or(known).map(|bytes| (bytes, 1000));
        }
        (WHOLE_GPU, Some((_, profile))) => board?.profile(profile).ok()?,
        _ => board?.profile_by_resource(resource).ok()?,
    };
    let compute = u32::from(slice.compute_slices()) * 1000 / u32::from(board?.compute_slices());
    Some((slice.certain_memory_bytes(), compute as u16))
}
