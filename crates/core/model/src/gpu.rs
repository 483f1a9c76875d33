//! GPUs of a node: product, memory, where each is attached, and how it is divided.
//!
//! Owns the way from GPUs to the devices a plugin lists for them: whole GPUs, MIG slices, replicas,
//! with the resource names and ids that NVIDIA's device plugin uses, and what that plugin refuses.
//! Must not know who holds which.

use thiserror::Error;

use crate::device::{Device, DevicePool, PreferredAllocation};
use crate::mig::{Instance, Layout};
use crate::numa::NumaMask;
use crate::resource::ResourceName;

/// The resource that whole GPUs are requested as.
pub const WHOLE_GPU: &str = "nvidia.com/gpu";

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its UUID.
    pub id: String,
    /// Product name, as the driver gives it.
    pub product: String,
    /// All its memory.
    pub memory_bytes: u64,
    /// NUMA nodes it is attached to, by position; empty if the machine does not say.
    pub numa: NumaMask,
    /// Whether it works.
    pub health: Health,
    /// Its MIG slices; `None` if MIG is off.
    pub mig: Option<Layout>,
    /// How many pods share it, or each of its slices, by time-slicing or MPS; `None`: it is not
    /// shared. How many, not how much each gets.
    pub replicas: Option<u16>,
}

/// Whether a GPU works.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Health {
    /// It does.
    Healthy,
    /// It does not.
    Unhealthy {
        /// What is known about it, such as an XID.
        cause: String,
    },
}

/// What a plugin makes of MIG (`MIG_STRATEGY`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MigStrategy {
    /// Nothing: a MIG GPU is offered whole.
    #[default]
    None,
    /// Slices are offered as GPUs; all of the node must be of one profile.
    Single,
    /// Slices of each profile are offered under its own name.
    Mixed,
}

/// Under which names a plugin offers what it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Naming {
    /// How MIG slices are offered.
    pub mig: MigStrategy,
    /// Shared replicas are offered under a name of their own, ending in `.shared`.
    pub shared_suffix: bool,
}

/// The GPUs of a node, and how its plugin lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInventory {
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// Under which names they are offered.
    pub naming: Naming,
    /// Which ones the plugin would rather hand out.
    pub preferred: PreferredAllocation,
}

impl GpuInventory {
    /// The device pools that the plugin lists.
    ///
    /// # Errors
    /// When it lists nothing at all.
    pub fn pools(&self) -> Result<Vec<DevicePool>, DivisionError> {
        device_pools(&self.gpus, self.naming, self.preferred)
    }
}

/// GPUs for which NVIDIA's plugin offers nothing at all.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("GPU {gpu:?}: {problem}")]
pub struct DivisionError {
    /// The GPU.
    pub gpu: String,
    /// Why, and what to do.
    pub problem: &'static str,
}

impl Gpu {
    /// Whether it can be handed out.
    pub fn is_healthy(&self) -> bool {
        self.health == Health::Healthy
    }

    /// The id a plugin gives to a slice. Real plugins use the slice's own UUID, which is not known
    /// before the slice exists; its place on the GPU names it as well.
    pub fn slice_id(&self, slice: &Instance) -> String {
        format!("{}/{slice}", self.id)
    }

    /// The resource and ids of everything this GPU offers.
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
    /// The position of its GPU.
    pub gpu: usize,
    /// The slice, if it is one or a replica of one.
    pub slice: Option<Instance>,
    /// Among how many the GPU or the slice is shared; 1 if it is not.
    pub replicas: u16,
    /// Its part of the GPU, in thousandths.
    pub milli: u32,
}

/// What the device of this id is; `None` if it is of none of these GPUs.
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

/// What makes NVIDIA's plugin fail for the whole node.
fn check(gpus: &[Gpu], strategy: MigStrategy) -> Result<(), DivisionError> {
    let profile = |gpu: &Gpu| gpu.mig.as_ref().and_then(|mig| mig.instances().next());
    let first = gpus.first().and_then(profile).map(|slice| slice.profile);
    for gpu in gpus {
        let error = |problem| Err(DivisionError { gpu: gpu.id.clone(), problem });
        if gpu.replicas == Some(0) {
            return error("has no replicas; share it among one or more, or not at all");
        }
        let Some(layout) = gpu.mig.as_ref().filter(|_| strategy != MigStrategy::None) else {
            if strategy == MigStrategy::Single && first.is_some() {
                return error("is not divided as the others are; strategy single needs all alike");
            }
            continue;
        };
        if layout.is_empty() {
            return error("has MIG on but no slices; create some or switch it off");
        }
        let alike = layout.instances().all(|slice| Some(slice.profile) == first);
        if strategy == MigStrategy::Single && !alike {
            return error("has slices of another profile; strategy single needs all alike");
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
        // Without a strategy a divided GPU is offered whole.
        assert_eq!(offered(&gpus, Naming::default())[0].1, ["a", "b"]);
        let pair = Layout::parse(board, "3g.40gb@0 + 3g.40gb@4").unwrap();
        let single = offered(&[gpu("b", Some(pair), None)], SINGLE);
        let ids = ["b/3g.40gb@0", "b/3g.40gb@4"].map(String::from);
        assert_eq!(single, [("nvidia.com/gpu".to_owned(), ids.into())]);
    }

    #[test]
    fn what_the_plugin_refuses_is_an_error_that_names_the_gpu() {
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
    fn a_device_is_known_by_its_id() {
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
