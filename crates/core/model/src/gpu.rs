//! GPUs of a node, and the devices that NVIDIA's device plugin lists for them: whole GPUs, MIG
//! slices, time-sliced replicas, with that plugin's resource names, ids and refusals.

use thiserror::Error;

use crate::device::{Device, DevicePool, PreferredAllocation};
use crate::mig::{Instance, Layout};
use crate::numa::NumaMask;
use crate::resource::ResourceName;

/// The resource of whole GPUs.
pub const WHOLE_GPU: &str = "nvidia.com/gpu";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its UUID.
    pub id: String,
    /// Product name, as the driver gives it.
    pub product: String,
    pub memory_bytes: u64,
    /// Attached NUMA nodes, by position; empty if unknown.
    pub numa: NumaMask,
    pub health: Health,
    /// `None` if MIG is off.
    pub mig: Option<Layout>,
    /// How many pods share the GPU, or each of its slices, by time-slicing or MPS; `None`: it is
    /// not shared. A count, not a size.
    pub replicas: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Health {
    Healthy,
    Unhealthy {
        /// Such as an XID.
        cause: String,
    },
}

/// `MIG_STRATEGY` of the device plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MigStrategy {
    /// A MIG GPU is listed whole.
    #[default]
    None,
    /// Slices are listed as GPUs; all slices of the node must be of one profile.
    Single,
    /// Slices of each profile are listed under their own resource name.
    Mixed,
}

/// The plugin's resource names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Naming {
    pub mig: MigStrategy,
    /// Replicas are listed under a resource name that ends in `.shared`.
    pub shared_suffix: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInventory {
    pub gpus: Vec<Gpu>,
    pub naming: Naming,
    pub preferred: PreferredAllocation,
}

impl GpuInventory {
    /// The device pools that the plugin lists. It fails if the plugin would list nothing at all.
    pub fn pools(&self) -> Result<Vec<DevicePool>, DivisionError> {
        device_pools(&self.gpus, self.naming, self.preferred)
    }
}

/// A GPU for which NVIDIA's plugin fails on the whole node.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("GPU {gpu:?}: {problem}")]
pub struct DivisionError {
    pub gpu: String,
    pub problem: &'static str,
}

impl Gpu {
    pub fn is_healthy(&self) -> bool {
        self.health == Health::Healthy
    }

    /// The id of a slice. Real plugins use the slice's UUID, which is unknown before the slice
    /// exists; its place on the GPU identifies it as well.
    pub fn slice_id(&self, slice: &Instance) -> String {
        format!("{}/{slice}", self.id)
    }

    /// The resource and ids of everything this GPU provides.
    fn offers(&self, naming: Naming) -> Vec<(ResourceName, String)> {
        let whole = || WHOLE_GPU.to_owned();
        let parts: Vec<(String, String)> = match (&self.mig, naming.mig) {
            (None, _) | (_, MigStrategy::None) => vec![(whole(), self.id.clone())],
            (Some(layout), strategy) => layout
                .instances()
                .map(|slice| {
                    let resource = match strategy {
                        MigStrategy::Mixed => slice.profile.name().resource().to_string(),
                        _ => whole(),
                    };
                    (resource, self.slice_id(&slice))
                })
                .collect(),
        };
        let suffix = if naming.shared_suffix { ".shared" } else { "" };
        let offer = |(resource, id): (String, String)| match self.replicas {
            None => vec![(ResourceName::new(resource), id)],
            Some(replicas) => {
                let resource = ResourceName::new(format!("{resource}{suffix}"));
                (0..replicas).map(|index| (resource.clone(), format!("{id}::{index}"))).collect()
            }
        };
        parts.into_iter().flat_map(offer).collect()
    }
}

/// What one of a plugin's devices is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePart {
    /// Position of its GPU.
    pub gpu: usize,
    /// The slice that it is, or is a replica of.
    pub slice: Option<Instance>,
    /// How many replicas the GPU or slice has; 1 if it is not shared.
    pub replicas: u16,
    /// Its part of the GPU, in thousandths.
    pub milli: u32,
}

/// `None` if the id belongs to none of these GPUs.
pub fn part_of(gpus: &[Gpu], id: &str) -> Option<DevicePart> {
    let (thing, is_replica) = match id.rsplit_once("::") {
        Some((thing, _)) => (thing, true),
        None => (id, false),
    };
    let of = thing.split_once('/').map_or(thing, |(gpu, _)| gpu);
    let at = gpus.iter().position(|gpu| gpu.id == of)?;
    let gpu = gpus.get(at)?;
    let replicas = gpu.replicas.filter(|_| is_replica).unwrap_or(1).max(1);
    let (slice, milli) = if thing == of {
        (None, 1000)
    } else {
        let mut slices = gpu.mig.as_ref()?.shares().slices();
        let (slice, share) = slices.find(|(slice, _)| gpu.slice_id(slice) == thing)?;
        (Some(slice), u32::from(share.parts) * 1000 / u32::from(share.of.max(1)))
    };
    Some(DevicePart { gpu: at, slice, replicas, milli: milli / u32::from(replicas) })
}

/// The device pools a plugin lists for `gpus`, in order of resource name.
pub fn device_pools(
    gpus: &[Gpu],
    naming: Naming,
    preferred: PreferredAllocation,
) -> Result<Vec<DevicePool>, DivisionError> {
    check(gpus, naming.mig)?;
    let mut pools: Vec<DevicePool> = Vec::new();
    for gpu in gpus {
        for (resource, id) in gpu.offers(naming) {
            let at = pools.partition_point(|pool| pool.resource < resource);
            if pools.get(at).is_none_or(|pool| pool.resource != resource) {
                pools.insert(at, DevicePool { resource, preferred, devices: Vec::new() });
            }
            if let Some(pool) = pools.get_mut(at) {
                pool.devices.push(Device {
                    id,
                    numa: gpu.numa,
                    misplaced: false,
                    healthy: gpu.is_healthy(),
                });
            }
        }
    }
    Ok(pools)
}

/// The conditions under which NVIDIA's plugin fails for the whole node.
fn check(gpus: &[Gpu], strategy: MigStrategy) -> Result<(), DivisionError> {
    let profile = |gpu: &Gpu| gpu.mig.as_ref().and_then(|mig| mig.instances().next());
    let first = gpus.first().and_then(profile).map(|slice| slice.profile);
    for gpu in gpus {
        let error = |problem| Err(DivisionError { gpu: gpu.id.clone(), problem });
        if gpu.replicas == Some(0) {
            return error("has 0 replicas; set at least 1, or none");
        }
        let Some(layout) = gpu.mig.as_ref().filter(|_| strategy != MigStrategy::None) else {
            if strategy == MigStrategy::Single && first.is_some() {
                return error(
                    "has MIG off, unlike the first GPU; strategy single requires one profile",
                );
            }
            continue;
        };
        if layout.is_empty() {
            return error("has MIG on but no slices; create slices or turn MIG off");
        }
        let alike = layout.instances().all(|slice| Some(slice.profile) == first);
        if strategy == MigStrategy::Single && !alike {
            return error("has slices of another profile; strategy single requires one profile");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mig::Board;

    fn gpu(id: &str, mig: Option<Layout>, replicas: Option<u16>) -> Gpu {
        Gpu {
            id: id.to_owned(),
            product: "NVIDIA H100 80GB HBM3".to_owned(),
            memory_bytes: 80 << 30,
            numa: NumaMask::single(0),
            health: Health::Healthy,
            mig,
            replicas,
        }
    }

    fn offered(gpus: &[Gpu], naming: Naming) -> Vec<(String, Vec<String>)> {
        device_pools(gpus, naming, PreferredAllocation::LowestId)
            .unwrap()
            .into_iter()
            .map(|pool| {
                let ids = pool.devices.into_iter().map(|device| device.id).collect();
                (pool.resource.to_string(), ids)
            })
            .collect()
    }

    const MIXED: Naming = Naming { mig: MigStrategy::Mixed, shared_suffix: false };
    const SINGLE: Naming = Naming { mig: MigStrategy::Single, shared_suffix: false };

    #[test]
    fn slices_are_offered_by_profile_or_as_gpus() {
        let board = Board::by_id("h100-80gb").unwrap();
        let layout = Layout::parse(board, "3g.40gb@0 + 1g.10gb+me@4").unwrap();
        let gpus = [gpu("a", None, None), gpu("b", Some(layout), None)];
        let mixed = offered(&gpus, MIXED);
        let names: Vec<&str> = mixed.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb.me", "nvidia.com/mig-3g.40gb"]
        );
        assert_eq!(mixed[2].1, ["b/3g.40gb@0"]);
        // Without a strategy a MIG GPU is listed whole.
        assert_eq!(offered(&gpus, Naming::default())[0].1, ["a", "b"]);
        let pair = Layout::parse(board, "3g.40gb@0 + 3g.40gb@4").unwrap();
        let single = offered(&[gpu("b", Some(pair), None)], SINGLE);
        let ids = ["b/3g.40gb@0", "b/3g.40gb@4"].map(String::from);
        assert_eq!(single, [("nvidia.com/gpu".to_owned(), ids.into())]);
    }

    #[test]
    fn plugin_failures_name_the_gpu() {
        let board = Board::by_id("h100-80gb").unwrap();
        let layout = |text| Some(Layout::parse(board, text).unwrap());
        let empty = Some(Layout::empty(board).unwrap());
        let cases = [
            (vec![gpu("a", layout("3g.40gb@0"), None), gpu("b", None, None)], SINGLE, "b"),
            (vec![gpu("a", layout("3g.40gb@0 + 1g.10gb@4"), None)], SINGLE, "a"),
            (vec![gpu("a", None, None), gpu("b", empty, None)], MIXED, "b"),
            (vec![gpu("a", None, Some(0))], Naming::default(), "a"),
        ];
        for (gpus, naming, culprit) in cases {
            let error = device_pools(&gpus, naming, PreferredAllocation::LowestId).unwrap_err();
            assert_eq!(error.gpu, culprit, "{error}");
        }
    }

    #[test]
    fn replicas_are_offered_under_either_name() {
        let gpus = [gpu("a", None, Some(3))];
        let plain = offered(&gpus, Naming::default());
        assert_eq!(
            plain,
            [("nvidia.com/gpu".to_owned(), ["a::0", "a::1", "a::2"].map(String::from).into())]
        );
        let renamed = offered(&gpus, Naming { shared_suffix: true, ..Naming::default() });
        assert_eq!(renamed[0].0, "nvidia.com/gpu.shared");
    }

    #[test]
    fn slices_can_be_shared_too() {
        let board = Board::by_id("h100-80gb").unwrap();
        let layout = Layout::parse(board, "3g.40gb@0").unwrap();
        let naming = Naming { shared_suffix: true, ..MIXED };
        let shared = offered(&[gpu("a", Some(layout), Some(2))], naming);
        let ids = ["a/3g.40gb@0::0", "a/3g.40gb@0::1"].map(String::from);
        assert_eq!(shared, [("nvidia.com/mig-3g.40gb.shared".to_owned(), ids.into())]);
    }

    #[test]
    fn devices_are_found_by_id() {
        let board = Board::by_id("h100-80gb").unwrap();
        let layout = Layout::parse(board, "3g.40gb@0 + 1g.10gb@4").unwrap();
        let gpus = [gpu("a", None, Some(2)), gpu("b", Some(layout), None)];
        let whole = part_of(&gpus, "a::1").unwrap();
        assert_eq!((whole.gpu, whole.slice, whole.replicas, whole.milli), (0, None, 2, 500));
        let slice = part_of(&gpus, "b/3g.40gb@0").unwrap();
        assert_eq!((slice.gpu, slice.slice.map(|slice| slice.start)), (1, Some(0)));
        assert_eq!(slice.milli, 464, "the mean of 4 of 8 units and 3 of 7 slices");
        assert_eq!(part_of(&gpus, "b/3g.40gb@4"), None);
        assert_eq!(part_of(&gpus, "c"), None);
    }

    #[test]
    fn unhealthy_gpus_are_listed_as_such() {
        let mut broken = gpu("a", None, None);
        broken.health = Health::Unhealthy { cause: "XID 79".to_owned() };
        let pools =
            device_pools(&[broken], Naming::default(), PreferredAllocation::LowestId).unwrap();
        assert!(!pools[0].devices[0].healthy);
    }
}
