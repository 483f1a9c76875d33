//! Fake GPUs and a fake journal, which can fail at chosen calls. GPUs follow NVML's rules for MIG, written without the
//! planner's geometry.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;

use berth_agent::mig::journal::Unfinished;
use berth_agent::mig::{
    Activation, DriverError, GpuLayout, Journal, MigDriver, MigGpu, Placement, Slice,
    SupportedProfile,
};
use berth_model::mig::{Attribute, Board};

/// When calls fail.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// These calls fail.
    pub(crate) at: BTreeSet<usize>,
    /// All calls from this one on fail.
    pub(crate) from: Option<usize>,
    /// The machine crashes at this call, before or after it takes effect.
    pub(crate) crash: Option<(usize, When)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Before,
    After,
}

/// Counts calls and makes them fail.
#[derive(Debug, Default)]
struct Fate {
    calls: usize,
    faults: Faults,
    is_down: bool,
}

impl Fate {
    /// Whether the call takes effect, and its result.
    fn next(&mut self) -> (bool, Result<(), ()>) {
        let number = self.calls;
        self.calls += 1;
        if self.is_down {
            return (false, Err(()));
        }
        if let Some((at, when)) = self.faults.crash
            && at == number
        {
            self.is_down = true;
            return (when == When::After, Err(()));
        }
        let fails =
            self.faults.at.contains(&number) || self.faults.from.is_some_and(|from| number >= from);
        (!fails, if fails { Err(()) } else { Ok(()) })
    }
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FakeGpu {
    pub(crate) uuid: String,
    pub(crate) board: &'static Board,
    pub(crate) enabled: bool,
    pub(crate) pending: bool,
    /// Whether changes of its mode wait for a reset, as on Ampere.
    pub(crate) resets: bool,
    pub(crate) slices: Vec<Slice>,
    /// Starts of slices in use.
    pub(crate) workloads: BTreeSet<u8>,
}

impl FakeGpu {
    pub(crate) fn new(number: usize, board: &'static Board) -> Self {
        Self {
            uuid: format!("GPU-{number}"),
            board,
            enabled: false,
            pending: false,
            resets: false,
            slices: Vec::new(),
            workloads: BTreeSet::new(),
        }
    }

    pub(crate) fn layout(&self) -> GpuLayout {
        let mut slices = self.slices.clone();
        for slice in &mut slices {
            slice.compute.sort_unstable();
        }
        slices.sort();
        GpuLayout { gpu: self.uuid.clone(), enabled: self.enabled, slices }
    }

    /// NVML's rules, from the placements it lists.
    pub(crate) fn accepts(&self, place: Placement) -> Result<(), DriverError> {
        if !self.enabled {
            return Err(DriverError::NotSupported);
        }
        let profile =
            |place: Placement| self.board.profiles().iter().find(|one| one.name() == place.profile);
        let wanted = profile(place).ok_or(DriverError::NotSupported)?;
        let size =
            |place: Placement| profile(place).and_then(|one| one.memory_units()).unwrap_or(0);
        if !wanted.starts().is_some_and(|starts| starts.contains(place.start)) {
            return Err(DriverError::Other("a supplied argument was invalid".to_owned()));
        }
        let others = || self.slices.iter().map(|slice| slice.place);
        let overlaps = |other: Placement| {
            other.start < place.start + size(place) && place.start < other.start + size(other)
        };
        let compute: u8 = others().map(|one| one.profile.compute).sum();
        let alike = others().filter(|one| one.profile == place.profile).count();
        let media = |one: Placement| matches!(one.profile.attribute, Attribute::Media);
        let all_media = |one: Placement| matches!(one.profile.attribute, Attribute::MediaAll);
        let has_media = |one: Placement| !matches!(one.profile.attribute, Attribute::NoMedia);
        if others().any(overlaps)
            || compute + place.profile.compute > self.board.compute_slices()
            || alike >= usize::from(wanted.max_instances())
            || (media(place) && others().any(media))
            || (all_media(place) && others().any(has_media))
            || (has_media(place) && others().any(all_media))
        {
            return Err(DriverError::NoRoom);
        }
        Ok(())
    }
}

/// Shared GPUs and journal.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) gpus: Rc<RefCell<Vec<FakeGpu>>>,
    pub(crate) kept: Rc<RefCell<Option<Unfinished>>>,
    fate: Rc<RefCell<Fate>>,
}

impl World {
    pub(crate) fn new(gpus: Vec<FakeGpu>) -> Self {
        Self { gpus: Rc::new(RefCell::new(gpus)), kept: Rc::default(), fate: Rc::default() }
    }

    /// Restarts the count with these faults, and the machine if it is down.
    pub(crate) fn begin(&self, faults: Faults) {
        *self.fate.borrow_mut() = Fate { faults, ..Fate::default() };
    }

    pub(crate) fn calls(&self) -> usize {
        self.fate.borrow().calls
    }

    pub(crate) fn is_down(&self) -> bool {
        self.fate.borrow().is_down
    }

    pub(crate) fn layouts(&self) -> Vec<GpuLayout> {
        self.gpus.borrow().iter().map(FakeGpu::layout).collect()
    }

    fn call<T>(
        &self,
        does: impl FnOnce(&mut Vec<FakeGpu>) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let (takes_effect, result) = self.fate.borrow_mut().next();
        let answer = takes_effect.then(|| does(&mut self.gpus.borrow_mut()));
        match (result, answer) {
            (Ok(()), Some(answer)) => answer,
            _ => Err(DriverError::Other("an internal driver error occurred".to_owned())),
        }
    }

    fn keeps<T>(&self, does: impl FnOnce(&mut Option<Unfinished>) -> T) -> io::Result<T> {
        let (takes_effect, result) = self.fate.borrow_mut().next();
        let answer = takes_effect.then(|| does(&mut self.kept.borrow_mut()));
        match (result, answer) {
            (Ok(()), Some(answer)) => Ok(answer),
            _ => Err(io::Error::other("the disk is gone")),
        }
    }
}

fn gpu_of<'a>(gpus: &'a mut [FakeGpu], uuid: &str) -> Result<&'a mut FakeGpu, DriverError> {
    gpus.iter_mut().find(|gpu| gpu.uuid == uuid).ok_or(DriverError::NotThere)
}

fn at<'a>(
    gpus: &'a mut [FakeGpu],
    uuid: &str,
    place: Placement,
) -> Result<&'a mut Slice, DriverError> {
    let slices = &mut gpu_of(gpus, uuid)?.slices;
    slices.iter_mut().find(|one| one.place == place).ok_or(DriverError::NotThere)
}

fn idle(gpus: &mut [FakeGpu], uuid: &str, place: Placement) -> Result<(), DriverError> {
    let at_work = gpu_of(gpus, uuid)?.workloads.contains(&place.start);
    if at_work { Err(DriverError::InUse) } else { Ok(()) }
}

impl MigDriver for World {
    fn gpus(&mut self) -> Result<Vec<MigGpu>, DriverError> {
        self.call(|gpus| {
            let result = gpus.iter().enumerate().map(|(index, gpu)| {
                let layout = gpu.layout();
                let offers = gpu.board.profiles().iter().map(|one| SupportedProfile {
                    profile: one.name(),
                    starts: one.starts().map(|all| all.iter().collect()).unwrap_or_default(),
                });
                MigGpu {
                    index: index as u32,
                    uuid: gpu.uuid.clone(),
                    product: gpu.board.product().to_owned(),
                    pci_id: Some("0x233510DE".to_owned()),
                    board: Some(gpu.board),
                    enabled: Some(gpu.enabled),
                    pending: gpu.pending,
                    profiles: offers.collect(),
                    slices: layout.slices,
                }
            });
            Ok(result.collect())
        })
    }

    fn set_mode(&mut self, gpu: &str, enabled: bool) -> Result<Activation, DriverError> {
        self.call(|gpus| {
            let gpu = gpu_of(gpus, gpu)?;
            if !enabled && !gpu.slices.is_empty() {
                return Err(DriverError::InUse);
            }
            gpu.pending = enabled;
            if gpu.resets && gpu.enabled != enabled {
                return Ok(Activation::ResetNeeded);
            }
            gpu.enabled = enabled;
            Ok(Activation::Active)
        })
    }

    fn create(&mut self, gpu: &str, place: Placement) -> Result<(), DriverError> {
        self.call(|gpus| {
            let gpu = gpu_of(gpus, gpu)?;
            gpu.accepts(place)?;
            gpu.slices.push(Slice { place, compute: Vec::new() });
            Ok(())
        })
    }

    fn add_compute(&mut self, gpu: &str, place: Placement, slices: u8) -> Result<(), DriverError> {
        self.call(|gpus| {
            let slice = at(gpus, gpu, place)?;
            let used: u8 = slice.compute.iter().sum();
            if used + slices > place.profile.compute {
                return Err(DriverError::NoRoom);
            }
            slice.compute.push(slices);
            Ok(())
        })
    }

    fn remove_compute(&mut self, gpu: &str, place: Placement) -> Result<(), DriverError> {
        self.call(|gpus| {
            idle(gpus, gpu, place)?;
            at(gpus, gpu, place)?.compute.pop().map(|_| ()).ok_or(DriverError::NotThere)
        })
    }

    fn destroy(&mut self, gpu: &str, place: Placement) -> Result<(), DriverError> {
        self.call(|gpus| {
            idle(gpus, gpu, place)?;
            if !at(gpus, gpu, place)?.compute.is_empty() {
                return Err(DriverError::InUse);
            }
            gpu_of(gpus, gpu)?.slices.retain(|one| one.place != place);
            Ok(())
        })
    }
}

impl Journal for World {
    fn read(&mut self) -> io::Result<Option<Unfinished>> {
        self.keeps(|kept| kept.clone())
    }

    fn write(&mut self, unfinished: &Unfinished) -> io::Result<()> {
        self.keeps(|kept| *kept = Some(unfinished.clone()))
    }

    fn clear(&mut self) -> io::Result<()> {
        self.keeps(|kept| *kept = None)
    }
}
