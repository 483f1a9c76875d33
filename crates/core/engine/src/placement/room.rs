//! Whether a node by itself has room for a pod, and how good a place it is: resources, ports, GPU
//! offers, the kubelet's admission, and what would be left.

use std::cmp::Reverse;

use berth_kubelet::{Certainty, KubeletVersion, PodDemand, Reason, TopologyPolicy, Verdict};
use berth_model::alignment::Alignment;
use berth_model::numa::NumaMask;
use berth_model::resource::ResourceName;
use berth_model::spec::{GpuNeed, PodSpec};
use berth_packing::request::GpuRequest;
use smallvec::SmallVec;

use super::gpu_values::{self, GpuValues};
use crate::amounts::{self, Amounts, CPU, Resources};
use crate::config::UnknownTopology;
use crate::demand::Demands;
use crate::filter::{Shortage, fit};
use crate::mirror::Mirror;
use crate::overlay::Overlay;
use crate::shares::{Grant, Share, Shares, WHOLE_MILLI};
use crate::state::{NodeState, State};
use crate::table::{PodIx, ResourceIx};

/// The request of a shape, derived once.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) requests: Amounts,
    /// The subset of `requests` that are devices.
    pub(crate) devices: Amounts,
    pub(crate) demands: Demands,
}

impl Ask {
    pub(crate) fn new(requests: &Amounts, resources: &Resources) -> Self {
        let device = |(resource, _): &&(ResourceIx, i64)| resources.name(*resource).is_extended();
        let mut devices: Amounts = requests.iter().filter(device).copied().collect();
        // By name, because numbers depend on the order of events.
        devices.sort_by_key(|(resource, _)| resources.name(*resource).clone());
        Self { requests: requests.clone(), devices, demands: Demands::default() }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) node: &'a NodeState,
    pub(crate) used: &'a [i64],
    pub(crate) pods: i64,
    pub(crate) shares: Option<&'a Shares>,
    pub(crate) mirror: Option<&'a Mirror>,
    pub(crate) removed: &'a [PodIx],
}

impl<'a> View<'a> {
    pub(crate) fn of(node: &'a NodeState) -> Self {
        let (used, pods) = (node.used.as_slice(), node.pods.len() as i64);
        let (shares, mirror) = (node.shares.as_deref(), node.mirror.as_deref());
        Self { node, used, pods, shares, mirror, removed: &[] }
    }

    /// Applies an overlay, except to the kubelet model.
    pub(crate) fn with(self, overlay: &'a Overlay) -> Self {
        let (used, pods) = (overlay.used(self.node), overlay.pod_count(self.node));
        Self { used, pods, shares: overlay.shares(self.node), removed: &overlay.removed, ..self }
    }
}

/// A pod's alignment on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NumaFit {
    pub(crate) alignment: Alignment,
    /// The NUMA nodes of everything pinned, if aligned or misaligned.
    pub(crate) numa: Option<NumaMask>,
}

impl NumaFit {
    pub(crate) const FLOATING: Self = Self { alignment: Alignment::Floating, numa: None };
    pub(crate) const UNKNOWN: Self = Self { alignment: Alignment::Unknown, numa: None };

    /// Everything pinned is on these NUMA nodes, and no fewer would do.
    pub(crate) const fn aligned(numa: NumaMask) -> Self {
        Self { alignment: Alignment::Aligned, numa: Some(numa) }
    }

    /// Spread over more NUMA nodes than needed, or over some that do not match.
    pub(crate) const fn misaligned(numa: NumaMask) -> Self {
        Self { alignment: Alignment::Misaligned, numa: Some(numa) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) key: u64,
    pub(crate) grant: Option<Grant>,
    pub(crate) fit: NumaFit,
    /// Lost value of GPUs to arriving work, in millionths.
    pub(crate) cost_micro: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    Short(Shortage),
    Ports,
    NoOffer,
    Kubelet(Reason),
    Uncertain,
    UnknownTopology,
}

pub(crate) struct Judge<'a> {
    spec: &'a PodSpec,
    resources: &'a Resources,
    gpu_values: &'a GpuValues,
    served: &'a [ResourceIx],
    unknown: UnknownTopology,
}

impl<'a> Judge<'a> {
    pub(crate) fn of(spec: &'a PodSpec, unknown: UnknownTopology, state: &'a State) -> Self {
        let State { resources, gpu_values, served, .. } = state;
        Self { spec, resources, gpu_values, served, unknown }
    }
}

/// The GPU request on this node: a share, or a number of whole GPUs; `None` if it asks for other
/// devices.
pub(crate) fn gpu_ask(spec: &PodSpec, ask: &Ask, view: View<'_>) -> GpuRequest {
    let Some(gpus) = &view.node.gpus else { return GpuRequest::None };
    match (&spec.gpu, view.shares) {
        (Some(need), Some(shares)) => {
            GpuRequest::Share(gpu_values::part(shares, shares.share(need)))
        }
        (Some(_), None) => GpuRequest::Whole(1),
        (None, _) => {
            let asked = ask.devices.iter().find(|(resource, _)| *resource == gpus.resource);
            let count = asked.and_then(|(_, count)| u16::try_from(*count).ok());
            count.map_or(GpuRequest::None, GpuRequest::Whole)
        }
    }
}

impl Judge<'_> {
    pub(crate) fn judge(&self, ask: &mut Ask, view: View<'_>) -> Result<Room, Obstacle> {
        fit(&ask.requests, view.node, view.used, view.pods, self.served)
            .map_err(Obstacle::Short)?;
        self.ports(view)?;
        let Some(need) = &self.spec.gpu else { return self.with_device(ask, view, None) };
        let mut obstacle = Obstacle::NoOffer;
        for offer in view.node.offers.iter().filter(|offer| offer.satisfies(need)) {
            if let Some(shares) = view.shares.filter(|shares| shares.resource == offer.resource) {
                match self.with_share(ask, view, shares, need) {
                    Ok(room) => return Ok(room),
                    Err(found) => obstacle = found,
                }
                continue;
            }
            let capacity = amounts::at(&view.node.capacity, offer.resource);
            if amounts::at(view.used, offer.resource) >= capacity {
                obstacle = Obstacle::Short(Shortage::of(offer.resource));
                continue;
            }
            match self.with_device(ask, view, Some(offer.resource)) {
                Ok(room) => {
                    let excess = offer.memory_bytes.saturating_sub(need.memory_bytes);
                    let key = room.key | Key::excess(excess);
                    return Ok(Room { key, ..room });
                }
                Err(found) => obstacle = found,
            }
        }
        Err(obstacle)
    }

    fn ports(&self, view: View<'_>) -> Result<(), Obstacle> {
        let wanted = &self.spec.host_ports;
        let taken = |wanted: &[_]| {
            let held = view.node.ports.iter().filter(|(_, pod)| !view.removed.contains(pod));
            held.into_iter().any(|(port, _)| {
                wanted.iter().any(|one: &berth_model::spec::HostPort| one.conflicts(port))
            })
        };
        if !wanted.is_empty() && taken(wanted) { Err(Obstacle::Ports) } else { Ok(()) }
    }

    /// Room with one `device` for a part of a GPU, if given.
    fn with_device(
        &self,
        ask: &mut Ask,
        view: View<'_>,
        device: Option<ResourceIx>,
    ) -> Result<Room, Obstacle> {
        let (fit, pinned) = self.numa_fit(ask, view, device)?;
        let key = Key::of(ask, view, device, self.resources, fit, pinned);
        let cost_micro = self.cost(ask, view, device);
        let key = Key::with_cost(key, cost_micro);
        let grant = device.map(|resource| Grant { resource, gpu: None });
        Ok(Room { key, grant, fit, cost_micro })
    }

    /// Room with a share of one of the node's GPUs: near the pod's CPUs, and on the fullest GPU
    /// that fits.
    fn with_share(
        &self,
        ask: &mut Ask,
        view: View<'_>,
        shares: &Shares,
        need: &GpuNeed,
    ) -> Result<Room, Obstacle> {
        let (fit, pinned) = self.numa_fit(ask, view, None)?;
        let gpus = Gpus { view, shares, share: shares.share(need), resources: self.resources };
        let short = Obstacle::Short(Shortage::of(shares.resource));
        let (mut gpu, far) = gpus.best(fit.numa).ok_or(short)?;
        let part = GpuRequest::Share(gpu_values::part(shares, gpus.share));
        let choice =
            self.gpu_values.judge(ask, view, part, |gpu| gpus.is_usable(gpu, fit.numa, far));
        gpu = choice.and_then(|choice| choice.gpu).unwrap_or(gpu);
        // The kubelet aligns devices; it does not know shares.
        let fit = match fit.alignment {
            Alignment::Aligned if far => NumaFit { alignment: Alignment::Misaligned, ..fit },
            _ => fit,
        };
        let key = Key::of(ask, view, None, self.resources, fit, pinned);
        let key = match choice {
            Some(choice) => Key::with_cost(key, Some(choice.cost_micro)),
            None => Key::with_share(key, gpus.left_milli(gpu), gpus.opens(gpu)),
        };
        let key = Key::without_waste(key);
        let grant = Grant { resource: shares.resource, gpu: Some(gpu) };
        let cost_micro = choice.map(|choice| choice.cost_micro);
        Ok(Room { key, grant: Some(grant), fit, cost_micro })
    }

    /// The cost of the place in GPU value; `None` for pods that ask for other devices.
    fn cost(&self, ask: &Ask, view: View<'_>, device: Option<ResourceIx>) -> Option<i64> {
        let gpus = match (device, &view.node.gpus) {
            (Some(device), Some(gpus)) if gpus.resource == device => GpuRequest::Whole(1),
            (Some(_), _) => return None,
            (None, _) => gpu_ask(self.spec, ask, view),
        };
        if gpus == GpuRequest::None && !ask.devices.is_empty() {
            return None;
        }
        let choice = self.gpu_values.judge(ask, view, gpus, |_| true)?;
        Some(choice.cost_micro)
    }

    /// The alignment that the kubelet would give the pod, and whether anything is pinned.
    fn numa_fit(
        &self,
        ask: &mut Ask,
        view: View<'_>,
        grant: Option<ResourceIx>,
    ) -> Result<(NumaFit, bool), Obstacle> {
        let Some(mirror) = view.mirror.filter(|mirror| mirror.is_trusted()) else {
            return self.without_mirror(ask, grant);
        };
        let kubelet = mirror.kubelet();
        let named = grant.map(|grant| (grant, self.resources.name(grant)));
        let version = kubelet.config().version;
        let Some(demand) = ask.demands.get(&self.spec.pod, version, named) else {
            return Err(Obstacle::Kubelet(Reason::UnexpectedAdmissionError));
        };
        let policy = kubelet.config().topology_policy;
        let fit = match mirror.would_admit(demand) {
            Verdict::Reject { reason, .. } => return Err(Obstacle::Kubelet(reason)),
            Verdict::Admit { certain: false, .. } if policy.is_strict() => {
                return Err(Obstacle::Uncertain);
            }
            Verdict::Admit { .. } if policy == TopologyPolicy::None => NumaFit::FLOATING,
            Verdict::Admit { .. } if !is_pinned(demand) => NumaFit::FLOATING,
            Verdict::Admit { numa: None, .. } => NumaFit::FLOATING,
            Verdict::Admit { numa: Some(numa), preferred: true, .. } => NumaFit::aligned(numa),
            Verdict::Admit { numa: Some(numa), .. } => NumaFit::misaligned(numa),
        };
        Ok((fit, is_pinned(demand)))
    }

    fn without_mirror(
        &self,
        ask: &mut Ask,
        grant: Option<ResourceIx>,
    ) -> Result<(NumaFit, bool), Obstacle> {
        let named = grant.map(|grant| (grant, self.resources.name(grant)));
        let demand = ask.demands.get(&self.spec.pod, KubeletVersion::default(), named);
        let pinned = demand.is_some_and(|demand| is_pinned(demand));
        if pinned && self.unknown == UnknownTopology::Refuse {
            return Err(Obstacle::UnknownTopology);
        }
        Ok((if pinned { NumaFit::UNKNOWN } else { NumaFit::FLOATING }, pinned))
    }
}

/// The GPUs that could provide a share.
struct Gpus<'a> {
    view: View<'a>,
    shares: &'a Shares,
    share: Share,
    resources: &'a Resources,
}

impl Gpus<'_> {
    /// The GPU to take the share from, and whether it is far from the pod's CPUs: the one with
    /// least left, so that whole ones stay whole; the lowest number among equals.
    fn best(&self, numa: Option<NumaMask>) -> Option<(u16, bool)> {
        self.candidates(numa).min().map(|(far, _, gpu)| (gpu, far))
    }

    /// GPUs with room for the share: whether far, how much is allocated, number.
    fn candidates(
        &self,
        numa: Option<NumaMask>,
    ) -> impl Iterator<Item = (bool, Reverse<u32>, u16)> {
        let kubelet = self.view.mirror.filter(|mirror| mirror.is_trusted()).map(Mirror::kubelet);
        let name = self.resources.name(self.shares.resource);
        let pool = kubelet.and_then(|kubelet| Some((kubelet, kubelet.pool_of(name.as_str())?)));
        let whole = amounts::at(&self.view.node.capacity, self.shares.resource)
            > amounts::at(self.view.used, self.shares.resource);
        // Which GPUs are whole is known only if the kubelet allocates deterministically.
        let can_open = move |gpu: u16| {
            whole
                && pool.is_none_or(|(kubelet, pool)| {
                    kubelet.device_certainty(pool) == Certainty::Exact
                        && kubelet.free_devices(pool).contains(usize::from(gpu))
                })
        };
        let is_far = move |gpu: u16| match (numa, pool) {
            (Some(numa), Some((kubelet, pool))) => {
                let devices = kubelet.pools().nth(pool).map(|pool| &pool.devices);
                let device = devices.and_then(|devices| devices.get(usize::from(gpu)));
                device.is_some_and(|one| !one.numa.is_empty() && !one.numa.intersects(numa))
            }
            _ => false,
        };
        self.shares
            .gpus()
            .filter(move |(gpu, divided)| {
                let open = divided.shares > 0 || can_open(*gpu);
                open && self.shares.has_room(divided, self.share)
            })
            .map(move |(gpu, divided)| (is_far(gpu), Reverse(divided.compute_milli), gpu))
    }

    /// Whether the GPU can provide the share, with this distance.
    fn is_usable(&self, gpu: u16, numa: Option<NumaMask>, far: bool) -> bool {
        self.candidates(numa).any(|(is_far, _, one)| one == gpu && is_far == far)
    }

    fn opens(&self, gpu: u16) -> bool {
        !self.shares.is_divided(gpu)
    }

    fn left_milli(&self, gpu: u16) -> i64 {
        let given = self.shares.gpus().find(|(one, _)| *one == gpu);
        let given = given.map_or(0, |(_, divided)| i64::from(divided.compute_milli));
        i64::from(WHOLE_MILLI) - given - i64::from(self.share.compute_milli)
    }
}

fn is_pinned(demand: &PodDemand) -> bool {
    let total = demand.total();
    total.cpus > 0 || total.asks_devices()
}

/// The sort key of nodes, most significant first: distance from aligned, a GPU node used by a pod
/// without GPUs, excess size of a part of a GPU, lost room for larger pods, devices left, CPUs
/// left.
struct Key;

impl Key {
    const CPU_BITS: u32 = 20;
    const FREE_BITS: u32 = 12;
    const LOSS_BITS: u32 = 16;
    const EXCESS_BITS: u32 = 11;
    const COST_BITS: u32 = Self::CPU_BITS + Self::FREE_BITS;
    const COST_ZERO: i64 = 1 << (Self::COST_BITS - 1);
    const EXCESS_SHIFT: u32 = Self::CPU_BITS + Self::FREE_BITS + Self::LOSS_BITS;
    const WASTE_SHIFT: u32 = Self::EXCESS_SHIFT + Self::EXCESS_BITS;
    const ALIGN_SHIFT: u32 = Self::WASTE_SHIFT + 1;

    /// Granularity of the excess of a part of a GPU.
    const EXCESS_STEP_BYTES: u64 = 256 << 20;

    fn of(
        ask: &Ask,
        view: View<'_>,
        grant: Option<ResourceIx>,
        resources: &Resources,
        fit: NumaFit,
        pinned: bool,
    ) -> u64 {
        let free = |resource: ResourceIx| {
            amounts::at(&view.node.capacity, resource)
                .saturating_sub(amounts::at(view.used, resource))
        };
        let far = match fit.alignment {
            Alignment::Aligned => 0,
            Alignment::Floating => u64::from(pinned),
            Alignment::Misaligned => 1 + fit.numa.map_or(0, NumaMask::count).min(13) as u64,
            Alignment::Unknown => 15,
        };
        // Devices allocated by the kubelet, not resources that are only counted.
        let handed_out = |(resource, _): &&(ResourceIx, i64)| {
            view.mirror.is_some_and(|mirror| {
                mirror.kubelet().pool_of(resources.name(*resource).as_str()).is_some()
            })
        };
        let of_pod = ask.devices.iter().find(handed_out).or(ask.devices.first());
        let devices = grant.map(|grant| (grant, 1)).or(of_pod.copied());
        let asks_cpu = ask.requests.iter().find(|(resource, _)| *resource == CPU);
        let millicpu = free(CPU).saturating_sub(asks_cpu.map_or(0, |(_, amount)| *amount));
        let (loss, left) = match devices {
            None => (0, 0),
            Some((resource, count)) => {
                let numa = fit.numa;
                let name = resources.name(resource);
                let by_numa = view.mirror.and_then(|mirror| lost_room(mirror, name, count, numa));
                let by_cost = view.node.gpus.as_ref().is_some_and(|gpus| gpus.resource == resource);
                let loss = by_numa.unwrap_or_else(|| {
                    let left = free(resource).saturating_sub(count);
                    if by_cost { 0 } else { lost(&[free(resource)], &[left]) }
                });
                (loss, free(resource).saturating_sub(count))
            }
        };
        let waste = u64::from(devices.is_none() && view.node.has_devices);
        clamp(millicpu / 100, Self::CPU_BITS)
            | clamp(left, Self::FREE_BITS) << Self::CPU_BITS
            | clamp(loss, Self::LOSS_BITS) << (Self::CPU_BITS + Self::FREE_BITS)
            | waste << Self::WASTE_SHIFT
            | far << Self::ALIGN_SHIFT
    }

    /// Replaces the amounts left by the cost of the place; lost room on NUMA nodes comes before it.
    fn with_cost(key: u64, cost_micro: Option<i64>) -> u64 {
        let Some(cost_micro) = cost_micro else { return key };
        let kept = u64::MAX << (Self::CPU_BITS + Self::FREE_BITS);
        key & kept | clamp(cost_micro.saturating_add(Self::COST_ZERO), Self::COST_BITS)
    }

    /// A pod with a share does use the node's devices.
    fn without_waste(key: u64) -> u64 {
        key & !(1 << Self::WASTE_SHIFT)
    }

    /// For a share: whether a whole GPU is split, and how much of the GPU is left.
    fn with_share(key: u64, left_milli: i64, opens: bool) -> u64 {
        key | u64::from(opens) << (Self::CPU_BITS + Self::FREE_BITS)
            | clamp(left_milli, Self::FREE_BITS) << Self::CPU_BITS
    }

    fn excess(bytes: u64) -> u64 {
        let steps = i64::try_from(bytes / Self::EXCESS_STEP_BYTES).unwrap_or(i64::MAX);
        clamp(steps, Self::EXCESS_BITS) << Self::EXCESS_SHIFT
    }
}

fn clamp(value: i64, bits: u32) -> u64 {
    value.clamp(0, (1 << bits) - 1) as u64
}

/// Lost room for groups of 1, 2, 4, 8 and 16 devices on one NUMA node, in devices, when `count` are
/// taken from `numa`; `None` if the kubelet has no such devices.
fn lost_room(
    mirror: &Mirror,
    resource: &ResourceName,
    count: i64,
    numa: Option<NumaMask>,
) -> Option<i64> {
    let kubelet = mirror.kubelet();
    let pool = kubelet.pool_of(resource.as_str())?;
    let before: SmallVec<[(NumaMask, i64); 8]> =
        kubelet.free_by_numa(pool).map(|(numa, free)| (numa, free as i64)).collect();
    let mut after = before.clone();
    let mut missing = count;
    // From the NUMA nodes of the hint first.
    for near in [true, false] {
        for (place, free) in &mut after {
            let on = numa.is_none_or(|numa| place.intersects(numa));
            let taken = if on == near { missing.min(*free) } else { 0 };
            (*free, missing) = (*free - taken, missing - taken);
        }
    }
    let counts = |of: &[(NumaMask, i64)]| -> SmallVec<[i64; 8]> {
        of.iter().map(|(_, free)| *free).collect()
    };
    Some(lost(&counts(&before), &counts(&after)))
}

/// Groups of up to 4 must be on one NUMA node; larger ones may span where no NUMA node has enough.
fn lost(before: &[i64], after: &[i64]) -> i64 {
    const SPANNING: i64 = 8;
    let room = |of: &[i64], size: i64| {
        let sum = |of: &mut dyn Iterator<Item = i64>| of.fold(0, i64::saturating_add);
        let by_group = sum(&mut of.iter().map(|free| free / size));
        let together = sum(&mut of.iter().copied()) / size;
        let spans = size >= SPANNING && before.iter().all(|free| *free < size);
        if spans { together } else { by_group }
    };
    [1, 2, 4, 8, 16]
        .into_iter()
        .map(|size| {
            let lost = room(before, size).saturating_sub(room(after, size)).max(0);
            size.saturating_mul(lost)
        })
        .fold(0, i64::saturating_add)
}
