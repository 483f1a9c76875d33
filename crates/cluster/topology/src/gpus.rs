//! A node's GPUs: products, memory, slices and replicas, from the labels of GPU feature discovery and the
//! resources of NVIDIA's device plugin.
//!
//! No object lists device ids, nor which slice is on which GPU. Ids are made up (`gpu-0`, `gpu-1`, …), NUMA
//! node by NUMA node, and slices are put onto the fewest GPUs that can hold them, with equal layouts if
//! possible.

use std::collections::BTreeMap;

use berth_model::device::{Device, DevicePool, PreferredAllocation};
use berth_model::gpu::{Gpu, Health, MigStrategy, Naming, WHOLE_GPU};
use berth_model::label::Labels;
use berth_model::mig::{Board, Layout, Profile};
use berth_model::numa::NumaMask;
use berth_model::resource::ResourceName;

use crate::DeviceCounts;

const DOMAIN: &str = "nvidia.com/";
const MIG: &str = "nvidia.com/mig-";
const SHARED_RESOURCE: &str = ".shared";
const SHARED_PRODUCT: &str = "-SHARED";
const MIG_PRODUCT: &str = "-MIG-";
const MIB: u64 = 1 << 20;

/// The largest number of devices of a resource on a node.
pub(crate) const DEVICES_MAX: u64 = 1024;

/// A node's GPUs and other devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hardware {
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) naming: Naming,
    pub(crate) mps: bool,
    /// Devices other than known GPUs.
    pub(crate) others: Vec<DevicePool>,
}

struct Reading<'a> {
    labels: &'a Labels,
    /// Without the suffixes for sharing and slices.
    product: &'a str,
    board: Option<&'static Board>,
    /// The profile of all slices, if they are offered as GPUs (MIG strategy `single`).
    single: Option<&'static Profile>,
    memory_bytes: u64,
}

impl<'a> Reading<'a> {
    fn new(labels: &'a Labels) -> Self {
        let label = |key: &str| labels.get(&format!("{DOMAIN}{key}")).map(AsRef::as_ref);
        let written: &str = label("gpu.product").unwrap_or_default();
        let shared = written.strip_suffix(SHARED_PRODUCT).unwrap_or(written);
        let (product, slice) = match shared.split_once(MIG_PRODUCT) {
            Some((product, slice)) => (product, Some(slice)),
            None => (shared, None),
        };
        let memory_mib = label("gpu.memory").and_then(|text| text.parse::<u64>().ok());
        // Without known placements, slices are ordinary devices.
        let board = Board::by_product(written, memory_mib).ok();
        let board = board.filter(|board| Layout::empty(board).is_ok());
        let single = slice.and_then(|slice| board?.profile(slice).ok());
        let of_board = board.map_or(0, |board| u64::from(board.gb()) * 1_000_000_000);
        let stated = memory_mib.filter(|_| slice.is_none()).map(|mib| mib.saturating_mul(MIB));
        let memory_bytes = stated.filter(|bytes| *bytes > 0).unwrap_or(of_board);
        Self { labels, product, board, single, memory_bytes }
    }

    /// How many replicas each device of a resource has.
    fn replicas(&self, resource: &str) -> Option<u16> {
        let plain = resource.strip_suffix(SHARED_RESOURCE).unwrap_or(resource);
        let written = self.labels.get(&format!("{DOMAIN}{plain}.replicas"))?;
        written.parse().ok().filter(|replicas| *replicas > 1)
    }

    fn gpu(&self, numa: NumaMask, mig: Option<Layout>, replicas: Option<u16>) -> Gpu {
        Gpu {
            id: String::new(),
            product: self.product.to_owned(),
            memory_bytes: self.memory_bytes,
            numa,
            health: Health::Healthy,
            mig,
            replicas,
        }
    }
}

/// The devices of a node with these labels.
pub(crate) fn hardware(labels: &Labels, counts: &DeviceCounts) -> Hardware {
    let reading = Reading::new(labels);
    let mut found = Hardware::default();
    let strategy = labels.get("nvidia.com/gpu.sharing-strategy");
    if strategy.is_some_and(|strategy| strategy.as_ref() == "mps") {
        found.mps = true;
    }
    for (numa, resources) in counts {
        let mut slices: BTreeMap<Option<u16>, Vec<(&'static Profile, u64)>> = BTreeMap::new();
        for (name, count) in resources {
            let count = (*count).min(DEVICES_MAX);
            let Some(resource) = name.as_str().strip_prefix(DOMAIN) else {
                found.add_others(name, *numa, count);
                continue;
            };
            found.naming.shared_suffix |= resource.ends_with(SHARED_RESOURCE);
            let replicas = reading.replicas(resource);
            let count = count / replicas.map_or(1, u64::from);
            let plain = name.as_str().strip_suffix(SHARED_RESOURCE).unwrap_or(name.as_str());
            let profile = reading.board.and_then(|board| board.profile_by_resource(plain).ok());
            match (plain, profile.or(reading.single)) {
                (WHOLE_GPU, None) => {
                    let gpu = || reading.gpu(*numa, None, replicas);
                    found.gpus.extend((0..count).map(|_| gpu()));
                }
                (_, Some(profile)) if plain == WHOLE_GPU || plain.starts_with(MIG) => {
                    slices.entry(replicas).or_default().push((profile, count));
                }
                _ => found.add_others(name, *numa, count),
            }
        }
        for (replicas, wanted) in slices {
            let Some(board) = reading.board else { continue };
            found.naming.mig =
                if reading.single.is_some() { MigStrategy::Single } else { MigStrategy::Mixed };
            let layouts = layouts(board, &wanted);
            found.gpus.extend(
                layouts.into_iter().map(|layout| reading.gpu(*numa, Some(layout), replicas)),
            );
        }
    }
    found.number();
    found
}

impl Hardware {
    fn add_others(&mut self, resource: &ResourceName, numa: NumaMask, count: u64) {
        let at = self.others.partition_point(|pool| pool.resource < *resource);
        if self.others.get(at).is_none_or(|pool| pool.resource != *resource) {
            let preferred = PreferredAllocation::NotImplemented;
            let devices = Vec::new();
            self.others.insert(at, DevicePool { resource: resource.clone(), preferred, devices });
        }
        let Some(pool) = self.others.get_mut(at) else { return };
        let kind = resource.as_str().rsplit('/').next().unwrap_or_default();
        for _ in 0..count {
            let id = format!("{kind}-{:04}", pool.devices.len());
            pool.devices.push(Device { id, numa, misplaced: false, healthy: true });
        }
    }

    /// Sets ids, whose order is that of their numbers.
    pub(crate) fn number(&mut self) {
        let width = self.gpus.len().saturating_sub(1).to_string().len();
        for (number, gpu) in self.gpus.iter_mut().enumerate() {
            gpu.id = format!("gpu-{number:0width$}");
        }
    }
}

/// Layouts that together hold the slices: equal ones if that takes no more GPUs.
fn layouts(board: &'static Board, wanted: &[(&'static Profile, u64)]) -> Vec<Layout> {
    let Ok(empty) = Layout::empty(board) else { return Vec::new() };
    let mixed = mixed(empty, wanted);
    let all: u64 = wanted.iter().map(|(_, count)| count).sum();
    let alike = (1..=all).find_map(|gpus| {
        let divides = wanted.iter().all(|(_, count)| count % gpus == 0);
        let each = wanted
            .iter()
            .flat_map(|(profile, count)| std::iter::repeat_n(*profile, (count / gpus) as usize));
        // No GPU holds more than eight slices.
        let each: Vec<&'static Profile> = each.take(9).collect();
        let layout = Some(()).filter(|()| divides).and_then(|()| empty.with_all(&each))?;
        Some(vec![layout; usize::try_from(gpus).unwrap_or(0)])
    });
    match alike {
        Some(alike) if alike.len() <= mixed.len() => alike,
        _ => mixed,
    }
}

/// First fit, the largest first.
fn mixed(empty: Layout, wanted: &[(&'static Profile, u64)]) -> Vec<Layout> {
    let mut order = wanted.to_vec();
    order.sort_by_key(|(profile, _)| {
        std::cmp::Reverse((profile.memory_units(), profile.compute_slices()))
    });
    let mut gpus: Vec<(Vec<&'static Profile>, Layout)> = Vec::new();
    for (profile, count) in order {
        for _ in 0..count {
            let room = gpus.iter_mut().find_map(|(held, layout)| {
                held.push(profile);
                let with = empty.with_all(held);
                if with.is_none() {
                    held.pop();
                }
                with.map(|with| *layout = with)
            });
            if room.is_none()
                && let Some(layout) = empty.with_all(&[profile])
            {
                gpus.push((vec![profile], layout));
            }
        }
    }
    gpus.into_iter().map(|(_, layout)| layout).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(labels: &[(&str, &str)], counts: &[(usize, &[(&str, u64)])]) -> Hardware {
        let labels: Labels =
            labels.iter().map(|(key, value)| (format!("{DOMAIN}{key}"), *value)).collect();
        let counts = counts.iter().map(|(numa, counts)| {
            let counts = counts.iter().map(|(name, count)| (ResourceName::new(*name), *count));
            (NumaMask::single(*numa), counts.collect())
        });
        hardware(&labels, &counts.collect())
    }

    const H100: (&str, &str) = ("gpu.product", "NVIDIA-H100-80GB-HBM3");

    fn shown(hardware: &Hardware) -> Vec<String> {
        let layout = |gpu: &Gpu| gpu.mig.map_or_else(String::new, |mig| format!(" {mig}"));
        hardware.gpus.iter().map(|gpu| format!("{}{}", gpu.id, layout(gpu))).collect()
    }

    #[test]
    fn gpus_are_numbered_numa_node_by_numa_node() {
        let four: &[(&str, u64)] = &[("nvidia.com/gpu", 4)];
        let found = node(&[H100, ("gpu.memory", "81559")], &[(0, four), (1, four)]);
        assert_eq!(found.gpus.len(), 8);
        assert_eq!((found.gpus[4].id.as_str(), found.gpus[4].numa), ("gpu-4", NumaMask::single(1)));
        assert_eq!(found.gpus[0].memory_bytes, 81_559 * MIB);
        assert_eq!(found.gpus[0].product, "NVIDIA-H100-80GB-HBM3");
    }

    #[test]
    fn slices_go_onto_the_fewest_gpus_with_equal_layouts_if_possible() {
        let slices: &[(&str, u64)] =
            &[("nvidia.com/mig-3g.40gb", 2), ("nvidia.com/mig-1g.10gb", 6)];
        let found = node(&[H100], &[(0, slices)]);
        let each = found.gpus[0].mig.unwrap();
        assert_eq!(found.gpus.len(), 2, "{:?}", shown(&found));
        assert!(found.gpus.iter().all(|gpu| gpu.mig == Some(each)), "{:?}", shown(&found));
        let odd: &[(&str, u64)] = &[("nvidia.com/mig-3g.40gb", 3), ("nvidia.com/gpu", 1)];
        let found = node(&[H100], &[(0, odd)]);
        assert_eq!(shown(&found), ["gpu-0", "gpu-1 3g.40gb@0 + 3g.40gb@4", "gpu-2 3g.40gb@4"]);
        assert_eq!(found.naming.mig, MigStrategy::Mixed);
    }

    #[test]
    fn the_product_tells_that_slices_are_offered_as_gpus() {
        let seven: &[(&str, u64)] = &[("nvidia.com/gpu", 14)];
        let product = ("gpu.product", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb");
        let found = node(&[product, ("gpu.memory", "9856")], &[(0, seven)]);
        assert_eq!(found.gpus.len(), 2);
        assert_eq!(found.naming.mig, MigStrategy::Single);
        assert_eq!(found.gpus[0].mig.unwrap().len(), 7);
        assert_eq!(found.gpus[0].memory_bytes, 80_000_000_000);
    }

    #[test]
    fn replicas_are_not_gpus() {
        let shared: &[(&str, u64)] = &[("nvidia.com/gpu", 8)];
        let labels = [
            ("gpu.product", "Tesla-T4-SHARED"),
            ("gpu.replicas", "4"),
            ("gpu.sharing-strategy", "mps"),
        ];
        let found = node(&labels, &[(0, shared)]);
        assert_eq!((found.gpus.len(), found.gpus[0].replicas), (2, Some(4)));
        assert_eq!((found.gpus[0].product.as_str(), found.mps), ("Tesla-T4", true));
        let renamed: &[(&str, u64)] = &[("nvidia.com/gpu.shared", 8)];
        let found = node(&labels, &[(0, renamed)]);
        assert!(found.naming.shared_suffix && found.gpus.len() == 2);
    }

    #[test]
    fn other_devices_are_kept() {
        let devices: &[(&str, u64)] =
            &[("amd.com/gpu", 2), ("nvidia.com/mig-9g.99gb", 1), ("nvidia.com/gpu", 1)];
        let found = node(&[], &[(1, devices)]);
        let others: Vec<(&str, usize)> =
            found.others.iter().map(|pool| (pool.resource.as_str(), pool.devices.len())).collect();
        assert_eq!(others, [("amd.com/gpu", 2), ("nvidia.com/mig-9g.99gb", 1)]);
        assert_eq!(shown(&found), ["gpu-0"]);
    }
}
