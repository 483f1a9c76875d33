//! Charges of pods and capacity of nodes in the dimensions that teams share.
//!
//! On a node, labels of GPU feature discovery say whether a resource is a whole GPU, a slice or a
//! share. SavedPod placement only the spec can tell: a slice by its name, a model by the node
//! selector; otherwise a GPU counts as a whole one, and a part as a part of [`REFERENCE_BYTES`]
//! unless a model is named.

use std::sync::Arc;

use berth_model::label::Labels;
use berth_model::mig::{Board, Profile};
use berth_model::node::Node;
use berth_model::pod::PodLevelResources;
use berth_model::resource::{ResourceList, ResourceName};
use berth_model::spec::{GpuGrant, GpuNeed, PodSpec};
use berth_tenancy::share::{AMOUNT_MAX, Charge, Dimension, GPU_PARTS, Ledger};

const REFERENCE_BYTES: i64 = 80_000_000_000;

const PRODUCT: &str = "nvidia.com/gpu.product";
const NVIDIA: &str = "nvidia.com/";
const WHOLE_GPU: &str = "/gpu";
const SHARED_RESOURCE: &str = ".shared";
const SHARED_PRODUCT: &str = "-SHARED";
const MIG_PRODUCT: &str = "-MIG-";
const MIB: i64 = 1 << 20;

struct Unit {
    parts: i64,
    memory_bytes: i64,
    model: Option<Arc<str>>,
}

pub(super) fn of_spec(ledger: &mut Ledger, spec: &PodSpec) -> Charge {
    let mut sums = requested(spec, &spec.node_selector);
    if let Some(need) = &spec.gpu {
        let product = spec.node_selector.get(PRODUCT);
        let model = product.map(|product| model(product));
        let board = model.as_ref().and_then(|model| Board::by_product(model, None).ok());
        let whole = board.map_or(REFERENCE_BYTES, |board| i64::from(board.gb()) * 1_000_000_000);
        sums.add_unit(&of_need(need, whole, model), 1);
    }
    sums.charge(ledger)
}

/// The charge of a pod on a node, with its grant.
pub(super) fn of_pod(
    ledger: &mut Ledger,
    spec: &PodSpec,
    grant: Option<&GpuGrant>,
    node: &Node,
) -> Charge {
    let mut sums = requested(spec, &node.labels);
    if let Some(grant) = grant
        && let Some(unit) = unit(&node.labels, &grant.resource)
    {
        let share = spec.gpu.as_ref().filter(|_| grant.gpu.is_some());
        let unit = match share {
            Some(need) => of_need(need, unit.memory_bytes, unit.model),
            None => unit,
        };
        sums.add_unit(&unit, 1);
    }
    sums.charge(ledger)
}

pub(super) fn of_node(ledger: &mut Ledger, node: &Node) -> Charge {
    let mut sums = Sums::default();
    sums.add_list(&node.allocatable, &node.labels);
    sums.charge(ledger)
}

fn requested(spec: &PodSpec, labels: &Labels) -> Sums {
    let mut sums = Sums::default();
    sums.add_list(&spec.pod.total_requests(PodLevelResources::HonouredIfEmptyToo), labels);
    sums
}

#[derive(Default)]
struct Sums {
    cpu_milli: i64,
    memory_bytes: i64,
    parts: i64,
    gpu_memory_bytes: i64,
    by_model: Vec<(Arc<str>, i64)>,
}

impl Sums {
    fn add_list(&mut self, list: &ResourceList, labels: &Labels) {
        for (name, amount) in list {
            match name.as_str() {
                "cpu" => self.cpu_milli = amount.milli_value(),
                "memory" => self.memory_bytes = amount.value(),
                _ => {
                    if let Some(unit) = unit(labels, name) {
                        self.add_unit(&unit, amount.value());
                    }
                }
            }
        }
    }

    fn add_unit(&mut self, unit: &Unit, count: i64) {
        let parts = unit.parts.saturating_mul(count);
        self.parts = self.parts.saturating_add(parts);
        let memory_bytes = unit.memory_bytes.saturating_mul(count);
        self.gpu_memory_bytes = self.gpu_memory_bytes.saturating_add(memory_bytes);
        self.by_model.extend(unit.model.iter().map(|model| (model.clone(), parts)));
    }

    fn charge(self, ledger: &mut Ledger) -> Charge {
        let plain = [
            (Dimension::Gpus, self.parts),
            (Dimension::GpuMemory, self.gpu_memory_bytes),
            (Dimension::Cpu, self.cpu_milli),
            (Dimension::Memory, self.memory_bytes),
        ];
        let models = self.by_model.into_iter();
        let models = models.map(|(model, parts)| (Dimension::GpusOf(model), parts));
        let mut charge = Charge::new();
        for (dimension, amount) in plain.into_iter().chain(models).filter(|(_, one)| *one > 0) {
            let (at, amount) = (ledger.dimension(&dimension), amount.min(AMOUNT_MAX));
            match charge.iter_mut().find(|(one, _)| *one == at) {
                Some((_, sum)) => *sum = sum.saturating_add(amount).min(AMOUNT_MAX),
                None => charge.push((at, amount)),
            }
        }
        charge
    }
}

/// The model without suffixes for sharing and MIG.
fn model(product: &str) -> Arc<str> {
    let product = product.strip_suffix(SHARED_PRODUCT).unwrap_or(product);
    product.split_once(MIG_PRODUCT).map_or(product, |(model, _)| model).into()
}

/// One unit of a resource, given labels; `None` if it is not a GPU.
fn unit(labels: &Labels, resource: &ResourceName) -> Option<Unit> {
    let name = resource.as_str();
    let plain = name.strip_suffix(SHARED_RESOURCE).unwrap_or(name);
    let Some(own) = plain.strip_prefix(NVIDIA) else {
        let whole = plain.ends_with(WHOLE_GPU) && resource.is_extended();
        return whole.then_some(Unit { parts: GPU_PARTS, memory_bytes: 0, model: None });
    };
    let label = |what: &str| labels.get(&format!("{plain}.{what}")).map(AsRef::as_ref);
    let number = |what: &str| label(what).and_then(|text: &str| text.parse::<i64>().ok());
    let product = label("product").or_else(|| labels.get(PRODUCT).map(AsRef::as_ref));
    let board = product.and_then(|product| Board::by_product(&model(product), None).ok());
    let as_gpu = product.and_then(|product| product.split_once(MIG_PRODUCT));
    let slice = match (own, as_gpu) {
        ("gpu", None) => None,
        ("gpu", Some((_, profile))) => {
            let profile = profile.strip_suffix(SHARED_PRODUCT).unwrap_or(profile);
            Some((board?, board?.profile(profile).ok()?))
        }
        _ if own.starts_with("mig-") => Some(slice(board, plain)?),
        _ => return None,
    };
    let shared = name != plain || product.is_some_and(|one| one.ends_with(SHARED_PRODUCT));
    let replicas = number("replicas").filter(|count| shared && *count > 0).unwrap_or(1);
    let parts = slice.map_or(GPU_PARTS, |(board, profile)| parts_of(board, profile));
    let of_slice = slice.map(|(_, profile)| profile.memory_bytes() as i64);
    let of_board = board.map(|board| i64::from(board.gb()) * 1_000_000_000);
    let told = number("memory").and_then(|mib| mib.checked_mul(MIB)).filter(|bytes| *bytes > 0);
    let memory_bytes = told.or(of_slice).or(of_board).unwrap_or(0);
    Some(Unit {
        parts: parts / replicas,
        memory_bytes: memory_bytes / replicas,
        model: product.map(model),
    })
}

/// The slice that a resource names. Without a board, the one that is the smallest part of its
/// board.
fn slice(
    board: Option<&'static Board>,
    resource: &str,
) -> Option<(&'static Board, &'static Profile)> {
    let of = |board: &'static Board| Some((board, board.profile_by_resource(resource).ok()?));
    match board {
        Some(board) => of(board),
        None => {
            let known = Board::all().iter().filter_map(of);
            known.min_by_key(|(board, profile)| parts_of(board, profile))
        }
    }
}

/// The exact share of a slice; by compute alone if the board's placements are unknown.
fn parts_of(board: &Board, profile: &Profile) -> i64 {
    match board.share(profile) {
        Some(share) => GPU_PARTS / i64::from(share.of.max(1)) * i64::from(share.parts),
        None => {
            let slices = i64::from(board.compute_slices().max(1));
            GPU_PARTS * i64::from(profile.compute_slices()) / slices
        }
    }
}

/// A GPU need as a part: the mean of memory and compute, as for slices; only one of them if the
/// other is not requested.
fn of_need(need: &GpuNeed, whole_bytes: i64, model: Option<Arc<str>>) -> Unit {
    let bytes = i64::try_from(need.memory_bytes).unwrap_or(i64::MAX).min(whole_bytes);
    let by_memory = i128::from(GPU_PARTS) * i128::from(bytes) / i128::from(whole_bytes.max(1));
    let by_memory = i64::try_from(by_memory).unwrap_or(GPU_PARTS);
    let by_compute = GPU_PARTS / 1000 * i64::from(need.compute_milli);
    let parts = match (by_memory, by_compute) {
        (0, one) | (one, 0) => one,
        (memory, compute) => (memory + compute) / 2,
    };
    Unit { parts, memory_bytes: bytes, model }
}

#[cfg(test)]
mod tests {
    use berth_model::quantity::Quantity;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| (format!("{NVIDIA}{key}"), *value)).collect()
    }

    fn part(pairs: &[(&str, &str)], resource: &str) -> Option<(i64, i64)> {
        let unit = unit(&labels(pairs), &ResourceName::new(resource))?;
        let gcd = |mut one: i64, mut other: i64| {
            while other != 0 {
                (one, other) = (other, one % other);
            }
            one
        };
        let common = gcd(unit.parts, GPU_PARTS);
        Some((unit.parts / common, GPU_PARTS / common))
    }

    #[test]
    fn slices_and_shares_are_exact_parts_of_a_gpu() {
        let h100 = ("gpu.product", "NVIDIA-H100-80GB-HBM3");
        assert_eq!(part(&[h100], "nvidia.com/gpu"), Some((1, 1)));
        // (1/8 + 1/7) / 2 and (4/8 + 3/7) / 2.
        assert_eq!(part(&[h100], "nvidia.com/mig-1g.10gb"), Some((15, 112)));
        assert_eq!(part(&[h100], "nvidia.com/mig-3g.40gb"), Some((13, 28)));
        assert_eq!(part(&[], "nvidia.com/mig-3g.40gb"), Some((13, 28)), "by its name alone");
        // On a board with 40 GB it is a slice with double memory.
        let small = ("gpu.product", "NVIDIA-A100-SXM4-40GB");
        assert_eq!(part(&[small], "nvidia.com/mig-1g.10gb"), Some((11, 56)));
        assert_eq!(part(&[], "nvidia.com/mig-1g.10gb"), Some((15, 112)));
        let single = ("gpu.product", "NVIDIA-A100-SXM4-80GB-MIG-2g.20gb");
        assert_eq!(part(&[single], "nvidia.com/gpu"), Some((15, 56)));
        let shared = [("gpu.product", "NVIDIA-H200-SHARED"), ("gpu.replicas", "3")];
        assert_eq!(part(&shared, "nvidia.com/gpu"), Some((1, 3)));
        assert_eq!(part(&[], "amd.com/gpu"), Some((1, 1)));
        assert_eq!(part(&[], "nvidia.com/nic"), None);
    }

    #[test]
    fn a_spec_is_charged_for_what_it_names() {
        let mut ledger = Ledger::default();
        let mut spec = PodSpec::default();
        spec.node_selector.insert(PRODUCT, "NVIDIA-H100-80GB-HBM3");
        spec.gpu = Some(GpuNeed { memory_bytes: 20_000_000_000, compute_milli: 500 });
        spec.pod.overhead.insert(ResourceName::cpu(), Quantity::parse("1500m").unwrap());
        let charge = of_spec(&mut ledger, &spec);
        let mut of = |dimension: Dimension| {
            let at = ledger.dimension(&dimension);
            charge.iter().find(|(one, _)| *one == at).map(|(_, amount)| *amount)
        };
        assert_eq!(of(Dimension::Gpus), Some(GPU_PARTS * 3 / 8));
        assert_eq!(of(Dimension::GpusOf("NVIDIA-H100-80GB-HBM3".into())), Some(GPU_PARTS * 3 / 8));
        assert_eq!(of(Dimension::GpuMemory), Some(20_000_000_000));
        assert_eq!((of(Dimension::Cpu), of(Dimension::Memory)), (Some(1_500), None));
    }
}
