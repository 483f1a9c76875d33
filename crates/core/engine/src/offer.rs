//! Parts of GPUs that a node offers, for pods that request GPU memory or compute instead of a
//! resource.
//!
//! Offers are whole GPUs, MIG slices, MPS shares and other vendors' devices, from a node's labels
//! and resources. Time-sliced replicas have no limits, so they satisfy no need.

use std::collections::BTreeMap;

use berth_model::gpu::WHOLE_GPU;
use berth_model::mig::{Board, Profile};
use berth_model::node::Node;
use berth_model::policy::{Accelerator, AcceleratorMemory};
use berth_model::quantity::Quantity;
use berth_model::resource::ResourceName;
use berth_model::spec::GpuNeed;
use smallvec::SmallVec;

use crate::amounts::Resources;
use crate::placement::gpu_values::NodeGpus;
use crate::shares::WHOLE_MILLI;
use crate::table::ResourceIx;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) resource: ResourceIx,
    /// Guaranteed memory.
    pub(crate) memory_bytes: u64,
    /// Share of the GPU's compute, in thousandths.
    pub(crate) compute_milli: u16,
    /// Whether it can also be split into shares of any size.
    pub(crate) divisible: bool,
}

pub(crate) type Accelerators = BTreeMap<ResourceName, Accelerator>;

/// Smallest first.
pub(crate) type Offers = SmallVec<[Offer; 2]>;

impl Offer {
    pub(crate) fn satisfies(&self, need: &GpuNeed) -> bool {
        self.memory_bytes >= need.memory_bytes && self.compute_milli >= need.compute_milli
    }
}

/// The label with which the node agent announces how it splits GPUs on demand.
const DIVISION: &str = "berth.dev/gpu-division";

const BY_SHARES: &str = "shares";

const DOMAIN: &str = "nvidia.com/";
const SHARED_RESOURCE: &str = ".shared";
const SHARED_PRODUCT: &str = "-SHARED";
const MIB: u64 = 1 << 20;

/// A node's offers, from Accelerator objects or the labels of NVIDIA's GPU feature discovery.
pub(crate) fn of_node(
    node: &Node,
    accelerators: &Accelerators,
    resources: &mut Resources,
) -> Offers {
    let divided = node.labels.get(DIVISION).is_some_and(|value| value.as_ref() == BY_SHARES);
    let mut offers: Offers = node
        .allocatable
        .iter()
        .filter(|(_, amount)| amount.sign() > 0)
        .filter_map(|(name, _)| {
            let (memory_bytes, compute_milli) = match accelerators.get(name) {
                Some(known) => (declared_bytes(node, &known.memory)?, known.compute_milli),
                None => unit(node, name.as_str().strip_prefix(DOMAIN)?)?,
            };
            let divisible = divided && compute_milli == WHOLE_MILLI;
            let resource = resources.number(name);
            Some(Offer { resource, memory_bytes, compute_milli, divisible })
        })
        .collect();
    // By name last, because numbers depend on the order of events.
    offers.sort_by_key(|offer| {
        (offer.memory_bytes, offer.compute_milli, resources.name(offer.resource).clone())
    });
    offers
}

/// The GPUs of a node that are allocated whole or split on demand: the resource with most memory,
/// or NVIDIA's if no size is known.
pub(crate) fn gpus_of(node: &Node, offers: &Offers, resources: &mut Resources) -> Option<NodeGpus> {
    let whole = offers.iter().rev().find(|offer| offer.compute_milli == WHOLE_MILLI);
    let resource = match whole {
        Some(offer) => offer.resource,
        None if !offers.is_empty() => return None,
        None => {
            let name = ResourceName::new(WHOLE_GPU);
            node.allocatable.contains_key(&name).then(|| resources.number(&name))?
        }
    };
    let count = node.allocatable.get(resources.name(resource))?.value();
    let model = node.labels.get(&format!("{DOMAIN}gpu.product")).cloned().unwrap_or_default();
    Some(NodeGpus { resource, count: u16::try_from(count).ok().filter(|count| *count > 0)?, model })
}

/// Memory according to an Accelerator; `None` if the node's label is missing or not a number.
fn declared_bytes(node: &Node, memory: &AcceleratorMemory) -> Option<u64> {
    match memory {
        AcceleratorMemory::Bytes(bytes) => Some(*bytes),
        AcceleratorMemory::Label { key, unit_bytes } => {
            let units = Quantity::parse(node.labels.get(key)?).ok()?.value();
            u64::try_from(units).ok()?.checked_mul(*unit_bytes)
        }
    }
}

/// Memory and compute of one unit of a resource, named without its domain. `None` if it is not a
/// part of a GPU or has no limits.
fn unit(node: &Node, resource: &str) -> Option<(u64, u16)> {
    let plain = resource.strip_suffix(SHARED_RESOURCE).unwrap_or(resource);
    let label =
        |of: &str, what: &str| node.labels.get(&format!("{DOMAIN}{of}.{what}")).map(AsRef::as_ref);
    let number = |what: &str| label(plain, what).and_then(|text: &str| text.parse::<u64>().ok());
    let product = label(plain, "product").or_else(|| label("gpu", "product"))?;
    // A shared GPU is marked in its product, or by a renamed resource.
    let shared = resource != plain || product.ends_with(SHARED_PRODUCT);
    let capped = label(plain, "sharing-strategy") == Some("mps");
    let parts = match number("replicas").filter(|_| shared) {
        None if shared => return None,
        None => 1,
        Some(parts) if capped && parts > 0 => parts,
        Some(_) => return None,
    };
    let product = product.strip_suffix(SHARED_PRODUCT).unwrap_or(product);
    let board = Board::by_product(product, None).ok();
    let slice = match (plain, product.split_once("-MIG-")) {
        ("gpu", None) => None,
        ("gpu", Some((_, profile))) => Some(board?.profile(profile).ok()?),
        _ => Some(board?.profile_by_resource(&format!("{DOMAIN}{plain}")).ok()?),
    };
    let known = slice.map(Profile::certain_memory_bytes).or(board.map(whole_bytes));
    let memory_bytes = number("memory").and_then(|mib| mib.checked_mul(MIB)).or(known)?;
    let compute = match (slice, board) {
        (Some(slice), Some(board)) => compute_milli(board, slice),
        _ => 1000,
    };
    Some((memory_bytes / parts, (compute / parts) as u16))
}

/// A slice's share of a GPU's compute, in thousandths.
fn compute_milli(board: &Board, slice: &Profile) -> u64 {
    u64::from(slice.compute_slices()) * 1000 / u64::from(board.compute_slices().max(1))
}

/// The smallest slice of a board that satisfies a need, assuming guaranteed memory.
pub(crate) fn smallest_slice(board: &'static Board, need: &GpuNeed) -> Option<&'static Profile> {
    let enough = |slice: &&'static Profile| {
        slice.certain_memory_bytes() >= need.memory_bytes
            && compute_milli(board, slice) >= u64::from(need.compute_milli)
    };
    let size = |slice: &&'static Profile| {
        (slice.memory_units(), slice.compute_slices(), slice.attribute())
    };
    board.profiles().iter().filter(enough).min_by_key(size)
}

/// Memory of a whole GPU without labels: its nominal size less driver and error correction.
fn whole_bytes(board: &Board) -> u64 {
    u64::from(board.gb()) * 1_000_000_000 / 10 * 9
}

#[cfg(test)]
mod tests {
    use berth_model::label::Labels;

    use super::*;

    fn offers(labels: &[(&str, &str)], resources: &[&str]) -> Vec<(String, u64, u16)> {
        let labels = labels.iter().map(|(key, value)| (format!("{DOMAIN}{key}"), *value));
        offers_of(labels.collect(), resources, &Accelerators::default())
    }

    fn offers_of(
        labels: Labels,
        resources: &[&str],
        accelerators: &Accelerators,
    ) -> Vec<(String, u64, u16)> {
        let one = Quantity::parse("1").unwrap();
        let allocatable = resources.iter().map(|name| (ResourceName::new(*name), one)).collect();
        let node = Node { labels, allocatable, ..Node::default() };
        let mut table = Resources::default();
        let offers = of_node(&node, accelerators, &mut table);
        let tell = |offer: &Offer| {
            (table.name(offer.resource).to_string(), offer.memory_bytes >> 30, offer.compute_milli)
        };
        offers.iter().map(tell).collect()
    }

    fn offer(name: &str, gib: u64, compute_milli: u16) -> (String, u64, u16) {
        (format!("{DOMAIN}{name}"), gib, compute_milli)
    }

    #[test]
    fn whole_gpus_and_slices_are_offered_smallest_first() {
        let labels = [("gpu.product", "NVIDIA-H100-80GB-HBM3"), ("gpu.memory", "81559")];
        let resources =
            ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb", "cpu"];
        let expected =
            [offer("mig-1g.10gb", 8, 142), offer("mig-3g.40gb", 33, 428), offer("gpu", 79, 1000)];
        assert_eq!(offers(&labels, &resources), expected);
    }

    #[test]
    fn slices_offered_as_gpus_are_known_by_their_product() {
        let labels = [("gpu.product", "NVIDIA-A100-SXM4-80GB-MIG-2g.20gb")];
        let offered = offers(&labels, &["nvidia.com/gpu"]);
        assert_eq!(offered, [offer("gpu", 19, 285)]);
    }

    #[test]
    fn only_capped_shares_satisfy_a_need() {
        let shared = |strategy: &'static str| {
            [
                ("gpu.product", "NVIDIA-H200-SHARED"),
                ("gpu.memory", "143771"),
                ("gpu.replicas", "4"),
                ("gpu.sharing-strategy", strategy),
            ]
        };
        assert_eq!(offers(&shared("mps"), &["nvidia.com/gpu"]), [offer("gpu", 35, 250)]);
        assert_eq!(offers(&shared("time-slicing"), &["nvidia.com/gpu"]), []);
        let mut renamed = shared("mps");
        renamed[0].1 = "NVIDIA-H200";
        let expected = [offer("gpu.shared", 35, 250)];
        assert_eq!(offers(&renamed, &["nvidia.com/gpu.shared"]), expected);
    }

    #[test]
    fn other_vendors_devices_are_what_is_said_about_them() {
        let said = |resource: &str, memory: AcceleratorMemory| {
            let resource = ResourceName::new(resource);
            (resource.clone(), Accelerator { resource, memory, compute_milli: 1000 })
        };
        let label =
            |key: &str, unit_bytes| AcceleratorMemory::Label { key: key.into(), unit_bytes };
        let accelerators = Accelerators::from([
            said("amd.com/gpu", label("amd.com/gpu.vram", 1)),
            said("gpu.intel.com/xe", label("gpu.intel.com/memory.max", 1 << 20)),
            said("habana.ai/gaudi", AcceleratorMemory::Bytes(96 << 30)),
        ]);
        let labels = [("amd.com/gpu.vram", "192Gi"), ("gpu.intel.com/memory.max", "49152")];
        let labels: Labels = labels.into_iter().collect();
        let resources = ["amd.com/gpu", "gpu.intel.com/xe", "habana.ai/gaudi", "nvidia.com/gpu"];
        let expected = [("gpu.intel.com/xe", 48), ("habana.ai/gaudi", 96), ("amd.com/gpu", 192)];
        let expected = expected.map(|(name, gib)| (name.to_owned(), gib, 1000));
        assert_eq!(offers_of(labels, &resources, &accelerators), expected);
        // Without the label its memory is unknown, so it satisfies nothing.
        let unlabelled = offers_of(Labels::default(), &["amd.com/gpu"], &accelerators);
        assert_eq!(unlabelled, []);
    }

    #[test]
    fn slices_have_sharing_labels_of_their_own() {
        let labels = [
            ("gpu.product", "NVIDIA-H100-80GB-HBM3"),
            ("mig-3g.40gb.product", "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb-SHARED"),
            ("mig-3g.40gb.memory", "40448"),
            ("mig-3g.40gb.replicas", "2"),
            ("mig-3g.40gb.sharing-strategy", "mps"),
        ];
        let expected = [offer("mig-3g.40gb", 19, 214)];
        assert_eq!(offers(&labels, &["nvidia.com/mig-3g.40gb"]), expected);
    }
}
