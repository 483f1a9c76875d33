//! Free resources by part of a node, where its kubelet requires alignment.
//!
//! Gives the figures for a rejection that the kubelet model has decided.

use berth_kubelet::{
    ContainerDemand, Kubelet, MemoryManagerPolicy, PodDemand, TopologyPolicy, TopologyScope,
};
use berth_model::idset::DeviceSet;
use berth_model::machine::Machine;
use berth_model::numa::NumaMask;
use berth_model::resource::{MemoryKind, ResourceName};
use smallvec::SmallVec;

use super::data::{Cause, Lack, Part, PartKind, quantity};

const PARTS_MAX: usize = 128;

/// Amounts by NUMA nodes; an empty mask: not attached to any.
type Places = SmallVec<[(NumaMask, i64); 4]>;

/// The free resources of a strict kubelet, as far as a pod needs them.
pub(super) struct NodeParts<'k> {
    machine: &'k Machine,
    /// Everything must be within one of these.
    parts: Vec<NumaMask>,
    pinned: Vec<Pinned>,
}

/// A resource allocated by part of the node, in the engine's units.
struct Pinned {
    resource: ResourceName,
    wanted: i64,
    free: Places,
    /// On an empty node.
    all: Places,
}

impl Pinned {
    fn free_on(&self, part: NumaMask) -> i64 {
        on(&self.free, part)
    }

    /// Whether the part would have enough if it were empty.
    fn could_be_on(&self, part: NumaMask) -> bool {
        on(&self.all, part) >= self.wanted
    }
}

fn on(places: &Places, part: NumaMask) -> i64 {
    let near = places.iter().filter(|(place, _)| place.is_empty() || place.intersects(part));
    near.map(|(_, amount)| *amount).sum()
}

impl<'k> NodeParts<'k> {
    /// `None` unless the kubelet requires alignment of the whole pod at once.
    pub(super) fn of(kubelet: &'k Kubelet, demand: &PodDemand) -> Option<Self> {
        let config = kubelet.config();
        let asked = aligned_at_once(demand, config.topology_scope)?;
        let machine = kubelet.machine();
        let pinned = pinned(kubelet, asked);
        let all = machine.all_numa();
        let width = match config.topology_policy {
            TopologyPolicy::None | TopologyPolicy::BestEffort => return None,
            TopologyPolicy::SingleNumaNode => 1,
            TopologyPolicy::Restricted => (1..=all.count())
                .find(|width| {
                    let could = |one: &Pinned| {
                        all.subsets(*width).take(PARTS_MAX).any(|part| one.could_be_on(part))
                    };
                    pinned.iter().all(could)
                })
                .unwrap_or(all.count()),
        };
        let parts = all.subsets(width).take(PARTS_MAX).collect();
        Some(Self { machine, parts, pinned })
    }

    /// The kind of the parts, if each is a single one.
    pub(super) fn single(&self) -> Option<PartKind> {
        let single = self.parts.iter().all(|part| part.count() == 1);
        (single && !self.pinned.is_empty()).then(|| part_kind(self.machine))
    }

    /// Why the pod fits on no part; `None` if the figures do not show it.
    pub(super) fn cause(&self) -> Option<Cause> {
        let parts = part_kind(self.machine);
        let short = |one: &&Pinned| self.parts.iter().all(|part| one.free_on(*part) < one.wanted);
        if let Some(one) = self.pinned.iter().find(short) {
            let most = self.parts.iter().map(|part| one.free_on(*part)).max().unwrap_or(0);
            let (resource, wanted) = (one.resource.clone(), one.wanted);
            if !resource.is_extended() {
                let [wanted, most] = [wanted, most].map(|amount| quantity(&resource, amount));
                return Some(Cause::Crowded { resource, wanted, most, parts });
            }
            let mut free: Vec<u64> =
                one.free.iter().map(|(_, count)| count.unsigned_abs()).collect();
            free.sort_unstable_by(|one, other| other.cmp(one));
            let [wanted, most] = [wanted, most].map(i64::unsigned_abs);
            // With too few devices in total, their location does not matter.
            let split = free.iter().sum::<u64>() >= wanted;
            return split.then_some(Cause::Split { resource, wanted, free, most, parts });
        }
        let fits = |part: &NumaMask| self.pinned.iter().all(|one| one.free_on(*part) >= one.wanted);
        if self.parts.iter().any(fits) {
            return None;
        }
        let wanted = self.pinned.iter();
        let wanted =
            wanted.map(|one| (one.resource.clone(), quantity(&one.resource, one.wanted))).collect();
        Some(Cause::Apart { wanted, parts })
    }

    /// What is missing on the part that lacks least, with its distance; `None` if no part is large
    /// enough.
    pub(super) fn lacks(&self) -> Option<(u64, Vec<Lack>)> {
        let large = |part: &&NumaMask| self.pinned.iter().all(|one| one.could_be_on(**part));
        let parts = self.parts.iter().filter(large);
        let (far, part) = parts.map(|part| (self.far(*part), *part)).min_by_key(|(far, _)| *far)?;
        let missing = self.pinned.iter().filter_map(|one| {
            let amount = one.wanted - one.free_on(part);
            (amount > 0).then(|| Lack {
                resource: one.resource.clone(),
                amount: quantity(&one.resource, amount),
                on: Some(part_of(self.machine, part)),
            })
        });
        Some((far, missing.collect()))
    }

    fn far(&self, part: NumaMask) -> u64 {
        self.pinned.iter().map(|one| distance(one.wanted, one.free_on(part))).sum()
    }
}

/// The missing fraction of what is requested, in thousandths.
pub(super) fn distance(wanted: i64, free: i64) -> u64 {
    let wanted = wanted.max(1).unsigned_abs();
    let missing = wanted.saturating_sub(free.max(0).unsigned_abs());
    missing.saturating_mul(1000).div_ceil(wanted)
}

/// The demand that must be aligned together. If several containers are aligned separately, no
/// single figure shows why one is not.
fn aligned_at_once(demand: &PodDemand, scope: TopologyScope) -> Option<&ContainerDemand> {
    if scope == TopologyScope::Pod {
        return Some(demand.total());
    }
    let is_pinned = |one: &&ContainerDemand| {
        one.cpus > 0 || one.asks_devices() || !one.memory_bytes().is_empty()
    };
    let mut pinned = demand.containers().iter().filter(is_pinned);
    pinned.next().filter(|_| pinned.next().is_none())
}

/// Devices first.
fn pinned(kubelet: &Kubelet, asked: &ContainerDemand) -> Vec<Pinned> {
    let machine = kubelet.machine();
    let signed = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
    let mut all: Vec<Pinned> = asked
        .devices()
        .iter()
        .filter(|(_, count)| *count > 0)
        .filter_map(|(resource, count)| {
            let pool = kubelet.pool_of(resource.as_str())?;
            let (free, all) = devices(kubelet, pool);
            Some(Pinned { resource: resource.clone(), wanted: signed(*count), free, all })
        })
        .collect();
    let single = |at: usize| NumaMask::single(at);
    if let Some(free) = kubelet.free_cpus_by_numa().filter(|_| asked.cpus > 0) {
        let reserved = kubelet.reserved_cpus().unwrap_or_default();
        let free = free.iter().enumerate().map(|(at, cpus)| (single(at), i64::from(*cpus) * 1000));
        let whole = machine.numa().iter().enumerate();
        let whole =
            whole.map(|(at, numa)| (single(at), (numa.cpus - reserved).len() as i64 * 1000));
        let wanted = signed(asked.cpus as u64).saturating_mul(1000);
        let (free, whole) = (free.collect(), whole.collect());
        all.push(Pinned { resource: ResourceName::cpu(), wanted, free, all: whole });
    }
    if !matches!(kubelet.config().memory_manager, MemoryManagerPolicy::None) {
        let free = kubelet.free_memory();
        for (kind, bytes) in asked.memory_bytes().iter().filter(|(_, bytes)| *bytes > 0) {
            let Some(free) = free.iter().find(|free| free.kind == *kind) else { continue };
            let free = free.bytes.iter().enumerate();
            let free = free.map(|(at, bytes)| (single(at), signed(bytes.unwrap_or(0)))).collect();
            let whole = machine.numa().iter().enumerate().map(|(at, numa)| {
                let bytes = match kind {
                    MemoryKind::Ordinary => numa.memory_bytes,
                    MemoryKind::Hugepages { page_bytes } => numa
                        .hugepages
                        .get(page_bytes)
                        .map_or(0, |pages| pages.saturating_mul(*page_bytes)),
                };
                (single(at), signed(bytes))
            });
            let (resource, wanted) = (kind.resource_name(), signed(*bytes));
            all.push(Pinned { resource, wanted, free, all: whole.collect() });
        }
    }
    all
}

/// Free and all devices of a pool by NUMA nodes.
pub(super) fn devices(kubelet: &Kubelet, pool: usize) -> (Places, Places) {
    let count = kubelet.pools().nth(pool).map_or(0, |pool| pool.devices.len());
    let free = kubelet.free_by_numa(pool).map(|(numa, free)| (numa, free as i64)).collect();
    let all = kubelet.devices_by_numa(pool, DeviceSet::first_ids(count));
    (free, all.into_iter().map(|(numa, all)| (numa, all as i64)).collect())
}

fn part_kind(machine: &Machine) -> PartKind {
    let sockets = machine.sockets();
    let alike = sockets.len() == machine.numa().len()
        && sockets.iter().all(|socket| socket.numa.count() == 1);
    if alike { PartKind::Socket } else { PartKind::NumaNode }
}

/// By the ids that users know.
pub(super) fn part_of(machine: &Machine, mask: NumaMask) -> Part {
    let kind = part_kind(machine);
    let ids = match kind {
        PartKind::NumaNode => machine.numa_ids(mask),
        PartKind::Socket => {
            let sockets = machine.sockets().iter().filter(|socket| socket.numa.intersects(mask));
            sockets.map(|socket| socket.id).collect()
        }
    };
    Part { kind, ids }
}
