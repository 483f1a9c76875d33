//! The order in which DRA devices that are MIG slices are tried.
//!
//! A device is read as a slice from the attributes of NVIDIA's driver: its `profile`, its GPU's
//! `productName`, and the counters `memory-slice-0`, `memory-slice-1` … that it consumes. Other
//! devices are ignored. Which slices leave most for later pods is the packing crate's rule.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_dra::{PoolDevice, Preference};
use berth_model::dra::slice::{Attribute, Device, ResourceSlice};
use berth_model::mig::{self, Board, Instance, Layout};
use berth_packing::slice::{Fleet, Mix, Placement, SliceRequest};

/// Prefix of the counters that slices consume, followed by the number of a memory unit.
const MEMORY_UNIT: &str = "memory-slice-";

/// Known boards and allocated slices. Cheap to clone for checkpoints.
#[derive(Clone, Debug, Default)]
pub(crate) struct Partitions {
    known: Arc<Known>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    boards: Vec<&'static Board>,
    /// Without GPUs, but with the tables of all boards.
    fleet: Fleet,
    /// One of each profile initially, and everything allocated since.
    mix: Mix,
}

struct Part<'a> {
    counters: &'a str,
    board: &'static Board,
    instance: Instance,
}

impl Partitions {
    pub(crate) fn learn(&mut self, slice: &ResourceSlice) {
        for part in slice.devices.iter().filter_map(read) {
            if self.known.boards.contains(&part.board) {
                continue;
            }
            let known = Arc::make_mut(&mut self.known);
            if known.fleet.know(part.board).is_ok() {
                known.boards.push(part.board);
                let plain = part.board.profiles().iter();
                let plain = plain.filter(|one| one.attribute() == mig::Attribute::Plain);
                let wants = plain.filter_map(|one| SliceRequest::profile(part.board, one).ok());
                let wants: Vec<SliceRequest> = wants.collect();
                known.mix = known.mix.with_pending(wants.iter().map(|want| (want, 1)));
            }
        }
    }

    /// Whether no device could be read as a slice.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.boards.is_empty()
    }

    pub(crate) fn record_allocation(&mut self, device: &Device) {
        if let Some(part) = read(device)
            && let Ok(want) = SliceRequest::profile(part.board, part.instance.profile)
        {
            Arc::make_mut(&mut self.known).mix.arrived(&want);
        }
    }
}

impl Preference for Partitions {
    /// Slices first, by what they leave possible on the node's GPUs.
    fn ranks(&self, devices: &[PoolDevice<'_>]) -> Vec<u64> {
        let mut ranks = vec![u64::MAX; devices.len()];
        let parts: Vec<Option<Part<'_>>> = devices.iter().map(|one| read(one.device)).collect();
        let mut layouts: BTreeMap<(&str, &str, &str), Layout> = BTreeMap::new();
        for (offered, part) in devices.iter().zip(&parts) {
            let Some(part) = part else { continue };
            let Ok(empty) = Layout::empty(part.board) else { continue };
            let key = (offered.driver, offered.pool, part.counters);
            let layout = layouts.entry(key).or_insert(empty);
            if offered.held {
                // Overlapping slices do not matter: they are not allocated twice.
                let _ = layout.add(part.instance.profile, part.instance.start);
            }
        }
        let mut fleet = self.known.fleet.clone();
        let mut gpus = BTreeMap::new();
        for (key, layout) in layouts {
            if let Ok(gpu) = fleet.add(layout) {
                gpus.insert(key, gpu);
            }
        }
        let mut places = Vec::new();
        let mut of_device = Vec::new();
        for (at, (offered, part)) in devices.iter().zip(&parts).enumerate() {
            let Some(part) = part.as_ref().filter(|_| !offered.held) else { continue };
            let key = (offered.driver, offered.pool, part.counters);
            let Some(gpu) = gpus.get(&key) else { continue };
            let Instance { profile, start } = part.instance;
            places.push(Placement { gpu: *gpu, profile, start });
            of_device.push(at);
        }
        for (rank, place) in (0..).zip(fleet.order(&places, &self.known.mix)) {
            ranks[of_device[place]] = rank;
        }
        ranks
    }
}

/// Reads a device as a slice. A whole GPU is a slice of all its memory.
fn read(device: &Device) -> Option<Part<'_>> {
    let text = |name: &str| match device.attributes.get(name)? {
        Attribute::Text(text) => Some(text.as_ref()),
        _ => None,
    };
    let [set] = device.consumes.as_slice() else { return None };
    let units = set.counters.iter().filter(|(_, amount)| !amount.is_zero());
    let mut units: Vec<u8> =
        units.filter_map(|(name, _)| name.strip_prefix(MEMORY_UNIT)?.parse().ok()).collect();
    units.sort_unstable();
    let (start, count) = (*units.first()?, u8::try_from(units.len()).ok()?);
    let board = Board::by_product(text("productName")?, None).ok()?;
    let profile = match text("profile") {
        Some(profile) => board.profile(profile).ok()?,
        None if Some(count) == board.memory_units() => {
            let all = board.profiles().iter();
            let all = all.filter(|one| one.attribute() == mig::Attribute::Plain);
            all.max_by_key(|one| (one.memory_units(), one.compute_slices()))?
        }
        None => return None,
    };
    let is_so = profile.memory_units() == Some(count)
        && profile.starts().is_some_and(|starts| starts.contains(start));
    is_so.then_some(Part { counters: &set.name, board, instance: Instance { profile, start } })
}
