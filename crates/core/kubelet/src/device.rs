//! The device manager: device pools, their hints and allocation.
//!
//! Devices attached to the same NUMA nodes form a class and are counted together. Where the kubelet
//! takes "any" device, one is picked here by a fixed rule and the outcome says how much of it is
//! certain.

use berth_model::device::{DevicePool, PreferredAllocation};
use berth_model::idset::DeviceSet;
use berth_model::machine::Machine;
use berth_model::numa::NumaMask;
use smallvec::SmallVec;

use crate::config::{ConfigError, KubeletVersion, check_subsets};
use crate::hint::{HintSource, Hints};
use crate::outcome::{Certainty, ShortageKind};

/// One resource's devices, grouped by the NUMA nodes they are attached to.
#[derive(Clone, Debug)]
pub(crate) struct NumaPool {
    /// Devices in order of id.
    pub(crate) inventory: DevicePool,
    classes: SmallVec<[Class; 8]>,
    domain: NumaMask,
    has_topology: bool,
    /// `most[k]`: the most devices that `k` NUMA nodes have attached.
    most: SmallVec<[usize; 9]>,
}

/// Devices attached to the same NUMA nodes.
#[derive(Clone, Debug)]
struct Class {
    numa: NumaMask,
    /// The plugin reports NUMA nodes, even if the machine does not have all of them.
    has_topology: bool,
    members: DeviceSet,
}

/// The state of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolLedger {
    held: DeviceSet,
    healthy: DeviceSet,
    /// By class: healthy devices that are not held.
    free: SmallVec<[u16; 8]>,
    /// Certainty of `held`.
    pub(crate) certainty: Certainty,
}

impl PoolLedger {
    pub(crate) fn available(&self) -> DeviceSet {
        self.healthy - self.held
    }

    /// Whether one of `devices` is held.
    pub(crate) fn holds_any(&self, devices: DeviceSet) -> bool {
        self.held.intersects(&devices)
    }

    fn available_count(&self) -> usize {
        self.free.iter().map(|free| usize::from(*free)).sum()
    }
}

/// Which device stands for "any".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnyDevice {
    /// The one with the lowest id.
    #[default]
    Lowest,
    /// The one with the highest id.
    Highest,
}

/// Devices picked for a container.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pick {
    pub(crate) devices: DeviceSet,
    /// Picked in every outcome.
    pub(crate) certain: DeviceSet,
    /// The rest is drawn from these.
    pub(crate) candidates: DeviceSet,
    pub(crate) certainty: Certainty,
}

impl NumaPool {
    pub(crate) fn new(
        mut inventory: DevicePool,
        machine: &Machine,
        version: KubeletVersion,
        hints_needed: bool,
    ) -> Result<Self, ConfigError> {
        let field = format!("devices[{}]", inventory.resource);
        if !inventory.resource.is_extended() {
            let problem = "is not a resource that device plugins serve; name an extended resource";
            return Err(ConfigError::new(field, problem));
        }
        if inventory.devices.len() > DeviceSet::CAPACITY {
            let problem = format!("has {} devices; 1,024 are supported", inventory.devices.len());
            return Err(ConfigError::new(field, problem));
        }
        inventory.devices.sort_by(|one, other| one.id.cmp(&other.id));
        for pair in inventory.devices.windows(2) {
            if pair[0].id == pair[1].id {
                let problem = format!("device {:?} is listed twice; ids are unique", pair[0].id);
                return Err(ConfigError::new(field, problem));
            }
        }
        let mut classes = SmallVec::<[Class; 8]>::new();
        for (index, device) in inventory.devices.iter().enumerate() {
            if !device.numa.is_subset(machine.all_numa()) {
                let problem = format!("device {:?} is on an unknown NUMA node", device.id);
                return Err(ConfigError::new(field, problem));
            }
            let (numa, has_topology) = (device.numa, device.misplaced || !device.numa.is_empty());
            let alike =
                |class: &&mut Class| (class.numa, class.has_topology) == (numa, has_topology);
            match classes.iter_mut().find(alike) {
                Some(class) => class.members.insert(index),
                None => {
                    let members = std::iter::once(index).collect();
                    classes.push(Class { numa, has_topology, members });
                }
            }
        }
        let attached = classes.iter().fold(NumaMask::EMPTY, |all, class| all | class.numa);
        let domain = if version.device_hints_skip_empty_nodes() && !attached.is_empty() {
            attached
        } else {
            machine.all_numa()
        };
        let mut pool = Self {
            inventory,
            domain,
            has_topology: classes.iter().any(|class| class.has_topology),
            classes,
            most: SmallVec::new(),
        };
        if hints_needed && pool.has_topology {
            check_subsets(&field, "NUMA nodes to choose from", domain.count())?;
            let most = (0..=domain.count()).map(|size| pool.most_attached(size)).collect();
            pool.most = most;
        }
        Ok(pool)
    }

    fn most_attached(&self, size: usize) -> usize {
        let attached = |mask: NumaMask| -> usize {
            let touching = self.classes.iter().filter(|class| class.numa.intersects(mask));
            touching.map(|class| class.members.len()).sum()
        };
        self.domain.subsets(size).map(attached).max().unwrap_or(0)
    }

    pub(crate) fn empty_ledger(&self) -> PoolLedger {
        let devices = self.inventory.devices.iter().enumerate();
        let mut ledger = PoolLedger {
            held: DeviceSet::EMPTY,
            healthy: devices.filter(|(_, device)| device.healthy).map(|(index, _)| index).collect(),
            free: SmallVec::new(),
            certainty: Certainty::Exact,
        };
        self.count(&mut ledger);
        ledger
    }

    fn count(&self, ledger: &mut PoolLedger) {
        let available = ledger.available();
        let free = |class: &Class| class.members.count_in(&available) as u16;
        ledger.free = self.classes.iter().map(free).collect();
    }

    /// Records that a container holds `devices`.
    pub(crate) fn hold(&self, ledger: &mut PoolLedger, devices: DeviceSet, certainty: Certainty) {
        ledger.held |= devices;
        ledger.certainty = ledger.certainty.max(certainty);
        self.count(ledger);
    }

    /// Releases `devices`; `rest` is the certainty of the least certain remaining holder.
    pub(crate) fn release(&self, ledger: &mut PoolLedger, devices: DeviceSet, rest: Certainty) {
        ledger.held -= devices;
        ledger.certainty = rest;
        self.count(ledger);
    }

    /// Returns whether there is such a device.
    pub(crate) fn set_health(&self, ledger: &mut PoolLedger, device: usize, healthy: bool) -> bool {
        if device >= self.inventory.devices.len() {
            return false;
        }
        if healthy {
            ledger.healthy.insert(device)
        } else {
            ledger.healthy.remove(device)
        }
        self.count(ledger);
        true
    }

    /// The hints for `need` devices. For the pod as a whole nothing is reusable.
    pub(crate) fn hint_source<'a>(
        &'a self,
        ledger: &'a PoolLedger,
        reusable: DeviceSet,
        need: u64,
    ) -> HintSource<'a> {
        if !self.has_topology {
            return HintSource::Indifferent;
        }
        // Reusable devices are held, so nothing is counted twice.
        if ((ledger.available_count() + reusable.len()) as u64) < need {
            return HintSource::Impossible;
        }
        let reusable = if reusable.is_empty() {
            SmallVec::new()
        } else {
            self.classes.iter().map(|class| class.members.count_in(&reusable)).collect()
        };
        let most = self.most.iter().skip(1).position(|most| *most as u64 >= need);
        let hints = DeviceHints {
            pool: self,
            free: &ledger.free,
            reusable,
            need,
            narrowest: most.map_or(self.domain.count(), |at| at + 1),
        };
        if hints.feasible(self.domain) { HintSource::Device(hints) } else { HintSource::Impossible }
    }

    /// Whether `need` devices are available.
    pub(crate) fn check(
        &self,
        ledger: &PoolLedger,
        reusable: DeviceSet,
        need: u64,
    ) -> Result<(), ShortageKind> {
        if ledger.healthy.is_empty() {
            return Err(ShortageKind::NoneHealthy);
        }
        let missing = need.saturating_sub(reusable.len() as u64);
        let available = ledger.available_count();
        if missing <= available as u64 {
            Ok(())
        } else {
            Err(ShortageKind::Unavailable { requested: missing, available })
        }
    }

    /// Picks a container's devices: reusable ones of the pod's init containers first, then those on
    /// the hint's NUMA nodes, then the others, then those without topology. The caller has checked
    /// with [`Self::check`] that there are enough.
    pub(crate) fn pick(
        &self,
        ledger: &PoolLedger,
        reusable: DeviceSet,
        need: u64,
        affinity: Option<NumaMask>,
        any: AnyDevice,
    ) -> Pick {
        let mut picking = DeviceSelection::new(self, ledger, need as usize, any);
        picking.draw(reusable);
        let available = ledger.available();
        let (mut aligned, mut elsewhere, mut without) =
            (DeviceSet::EMPTY, DeviceSet::EMPTY, available);
        if let Some(mask) = affinity.filter(|_| self.has_topology) {
            let of = |wanted: &dyn Fn(&Class) -> bool| {
                let classes = self.classes.iter().filter(|class| wanted(class));
                classes.fold(DeviceSet::EMPTY, |all, class| all | (class.members & available))
            };
            aligned = of(&|class| class.numa.intersects(mask));
            elsewhere = of(&|class| class.has_topology && !class.numa.intersects(mask));
            without = of(&|class| !class.has_topology);
        }
        if picking.missing < aligned.len() {
            picking.prefer(aligned);
        } else {
            picking.draw(aligned);
            match self.inventory.preferred {
                PreferredAllocation::NotImplemented => {
                    picking.draw(elsewhere);
                    picking.draw(without);
                }
                _ => picking.prefer(elsewhere | without),
            }
        }
        picking.finish()
    }

    /// Whether all of `devices` are attached to the same NUMA nodes.
    fn alike(&self, devices: DeviceSet) -> bool {
        self.classes.iter().filter(|class| class.members.intersects(&devices)).count() <= 1
    }

    /// All healthy devices attached like one of `devices`.
    fn like(&self, devices: DeviceSet, ledger: &PoolLedger) -> DeviceSet {
        let classes = self.classes.iter().filter(|class| class.members.intersects(&devices));
        classes.fold(DeviceSet::EMPTY, |all, class| all | (class.members & ledger.healthy))
    }

    /// Healthy devices that are not held, by the NUMA nodes they are attached to.
    pub(crate) fn free_by_numa(
        &self,
        ledger: &PoolLedger,
    ) -> impl Iterator<Item = (NumaMask, usize)> {
        let free = ledger.free.iter().map(|free| usize::from(*free));
        self.classes.iter().map(|class| class.numa).zip(free)
    }

    /// How many of `devices` are attached to one of the NUMA nodes, or to none that is known.
    pub(crate) fn count_on(&self, devices: DeviceSet, numa: NumaMask) -> usize {
        let near = self.classes.iter();
        let near = near.filter(|class| class.numa.is_empty() || class.numa.intersects(numa));
        near.map(|class| (class.members & devices).len()).sum()
    }

    /// `devices` counted by NUMA nodes, for every class of the pool.
    pub(crate) fn by_numa(&self, devices: DeviceSet) -> Vec<(NumaMask, usize)> {
        self.classes.iter().map(|class| (class.numa, class.members.count_in(&devices))).collect()
    }
}

struct DeviceSelection<'a> {
    pool: &'a NumaPool,
    ledger: &'a PoolLedger,
    any: AnyDevice,
    missing: usize,
    pick: Pick,
}

impl<'a> DeviceSelection<'a> {
    fn new(pool: &'a NumaPool, ledger: &'a PoolLedger, need: usize, any: AnyDevice) -> Self {
        let pick = Pick {
            devices: DeviceSet::EMPTY,
            certain: DeviceSet::EMPTY,
            candidates: DeviceSet::EMPTY,
            certainty: Certainty::Exact,
        };
        Self { pool, ledger, any, missing: need, pick }
    }

    /// Takes any of `devices`, all of them if that many are missing.
    fn draw(&mut self, devices: DeviceSet) {
        if self.missing >= devices.len() {
            self.pick.devices |= devices;
            self.pick.certain |= devices;
            self.missing -= devices.len();
        } else if self.missing > 0 {
            self.pick.candidates |= devices;
            self.uncertain(devices);
            self.take(devices, self.any == AnyDevice::Lowest);
        }
    }

    /// Takes those of `devices` that the plugin prefers.
    fn prefer(&mut self, devices: DeviceSet) {
        let lowest = match self.pool.inventory.preferred {
            PreferredAllocation::NotImplemented | PreferredAllocation::Unpredictable => {
                return self.draw(devices);
            }
            preferred => preferred == PreferredAllocation::LowestId,
        };
        if self.missing == 0 {
            return;
        }
        if self.missing < devices.len() && self.ledger.certainty != Certainty::Exact {
            // The plugin's choice depends on which ids are free, which is not known.
            self.uncertain(devices);
        }
        let before = self.pick.devices;
        self.take(devices, lowest);
        self.pick.certain |= self.pick.devices - before;
    }

    fn uncertain(&mut self, devices: DeviceSet) {
        let known =
            if self.pool.alike(devices) { Certainty::PerNuma } else { Certainty::CountOnly };
        self.pick.certainty = self.pick.certainty.max(known);
    }

    fn take(&mut self, devices: DeviceSet, lowest: bool) {
        let skipped = if lowest { 0 } else { devices.len().saturating_sub(self.missing) };
        let chosen: DeviceSet = devices.iter().skip(skipped).take(self.missing).collect();
        self.pick.devices |= chosen;
        self.missing -= chosen.len();
    }

    /// If the pool was uncertain before, so is this pick.
    fn finish(mut self) -> Pick {
        let inherited = self.ledger.certainty;
        self.pick.certainty = self.pick.certainty.max(inherited);
        if inherited != Certainty::Exact {
            self.pick.certain = DeviceSet::EMPTY;
            self.pick.candidates = match self.pick.certainty {
                Certainty::CountOnly => self.ledger.healthy,
                _ => self.pool.like(self.pick.devices, self.ledger),
            };
        }
        self.pick
    }
}

pub(crate) struct DeviceHints<'a> {
    pool: &'a NumaPool,
    /// By class.
    free: &'a [u16],
    /// By class; empty if nothing is reusable.
    reusable: SmallVec<[usize; 8]>,
    need: u64,
    narrowest: usize,
}

impl Hints for DeviceHints<'_> {
    fn domain(&self) -> NumaMask {
        self.pool.domain
    }

    fn narrowest(&self) -> usize {
        self.narrowest
    }

    fn feasible(&self, mask: NumaMask) -> bool {
        let mut found = 0;
        for (at, (class, free)) in self.pool.classes.iter().zip(self.free).enumerate() {
            let reusable = self.reusable.get(at).copied().unwrap_or(0);
            if class.numa.intersects(mask) {
                found += usize::from(*free) + reusable;
            } else if reusable > 0 && class.has_topology {
                return false;
            }
        }
        found as u64 >= self.need
    }
}
