//! Dividing GPUs as planned: as a whole, or not at all.
//!
//! Owns the order of changes, what becomes of errors on the way, and what is said of it. Whatever fails,
//! what was there is made again; what cannot be made again is told as it is. The journal says where to go
//! on after a crash: forward first, back if that fails. Slices with work are not touched in either
//! direction. Must not choose places.

use std::collections::BTreeMap;
use std::fmt;

use berth_api::keys::{MIG_STATE, MIG_STATE_LABEL};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::busy::Busy;
use super::driver::{Activation, DriverError, MigDriver, MigGpu};
use super::journal::{Direction, Journal, Unfinished};
use super::layout::{GpuLayout, Place, Slice};
use super::plan::MigChanges;

/// How often what was there is tried to be made again.
const BACK_MAX: usize = 3;

/// How far a division is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum MigState {
    /// Nothing was asked for.
    #[default]
    Idle,
    /// It is being done.
    Applying {
        /// What is wanted.
        wanted: Vec<GpuLayout>,
    },
    /// GPUs are as wanted.
    Applied {
        /// What is there.
        present: Vec<GpuLayout>,
    },
    /// It failed, and GPUs are as they were.
    RolledBack {
        /// What failed.
        reason: String,
        /// What is there.
        present: Vec<GpuLayout>,
    },
    /// It failed, and GPUs are neither as wanted nor, perhaps, as they were.
    Failed {
        /// What failed.
        reason: String,
        /// What is there, if it can be told.
        present: Option<Vec<GpuLayout>>,
    },
}

impl MigState {
    /// One word, as labels have it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Applying { .. } => "pending",
            Self::Applied { .. } => "success",
            Self::RolledBack { .. } => "rolled-back",
            Self::Failed { .. } => "failed",
        }
    }

    /// What it would change on a node, as a merge patch: one label, one annotation.
    pub fn patch(&self) -> serde_json::Value {
        let text = serde_json::to_string(self).unwrap_or_else(|_| self.to_string());
        json!({"metadata": {
            "labels": {MIG_STATE_LABEL: self.word()},
            "annotations": {MIG_STATE: text},
        }})
    }
}

impl fmt::Display for MigState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let there = |present: &[GpuLayout]| -> String {
            let all: Vec<String> =
                present.iter().map(|one| format!("{} has {one}", one.gpu)).collect();
            all.join("; ")
        };
        match self {
            Self::Idle => f.write_str("nothing was asked for"),
            Self::Applying { .. } => f.write_str("it is being done"),
            Self::Applied { present } => write!(f, "applied: {}", there(present)),
            Self::RolledBack { reason, .. } => {
                write!(f, "{reason}; everything is as it was before")
            }
            Self::Failed { reason, present: Some(present) } => {
                write!(f, "{reason}; now {}", there(present))
            }
            Self::Failed { reason, present: None } => {
                write!(f, "{reason}; what is there now cannot be told")
            }
        }
    }
}

/// Does what is planned. `said` is told of states on the way; the last one is returned.
pub fn apply(
    driver: &mut dyn MigDriver,
    journal: &mut dyn Journal,
    plan: &MigChanges,
    busy: &Busy,
    said: &mut dyn FnMut(&MigState),
) -> MigState {
    let wanted: Vec<GpuLayout> = plan.gpus.iter().map(|one| one.to.clone()).collect();
    let former: Vec<GpuLayout> = plan.gpus.iter().map(|one| one.from.clone()).collect();
    if plan.is_nothing() {
        return MigState::Applied { present: wanted };
    }
    match present(driver, &former) {
        Ok(now) if now == former => {}
        Ok(now) => {
            let reason =
                "GPUs were divided otherwise since this was planned; plan again".to_owned();
            return MigState::RolledBack { reason, present: now };
        }
        Err(error) => {
            let reason = format!("GPUs cannot be asked: {error}; nothing was changed");
            return MigState::Failed { reason, present: None };
        }
    }
    let unfinished = Unfinished::new(former.clone(), wanted.clone());
    if let Err(error) = journal.write(&unfinished) {
        let reason = format!("the journal cannot be written ({error}), so nothing was changed");
        return MigState::RolledBack { reason, present: former };
    }
    said(&MigState::Applying { wanted });
    finish(driver, journal, unfinished, busy)
}

/// Goes on with what a crash interrupted; `None` if nothing was.
pub fn recover(
    driver: &mut dyn MigDriver,
    journal: &mut dyn Journal,
    busy: &Busy,
) -> Option<MigState> {
    match journal.read() {
        Ok(None) => None,
        Ok(Some(unfinished)) => Some(finish(driver, journal, unfinished, busy)),
        Err(error) => {
            let reason = format!(
                "the journal of an unfinished division cannot be read ({error}); look at the GPUs with \
                 nvidia-smi mig -lgi, put them right, and remove it"
            );
            Some(MigState::Failed { reason, present: None })
        }
    }
}

fn finish(
    driver: &mut dyn MigDriver,
    journal: &mut dyn Journal,
    mut unfinished: Unfinished,
    busy: &Busy,
) -> MigState {
    if unfinished.direction == Direction::Forward {
        match reach_all(driver, &unfinished.wanted, busy) {
            Ok(()) => return done(journal, MigState::Applied { present: unfinished.wanted }),
            Err(reason) => {
                unfinished = unfinished.back(&reason);
                // Without it a crash from here on would go forward first, which is as good an end.
                let _ = journal.write(&unfinished);
            }
        }
    }
    let reason = unfinished.reason.clone().unwrap_or_else(|| "it was interrupted".to_owned());
    let mut why = String::new();
    for _ in 0..BACK_MAX {
        match reach_all(driver, &unfinished.former, busy) {
            Ok(()) => {
                let present = unfinished.former;
                return done(journal, MigState::RolledBack { reason, present });
            }
            Err(error) => why = error,
        }
    }
    // The journal stays: what is in the way may be gone when the agent starts again.
    let reason = format!("{reason}; what was there cannot be made again: {why}");
    let present = present(driver, &unfinished.former).ok();
    MigState::Failed { reason, present }
}

/// A journal that cannot be removed would have it done again at the next start, which changes nothing as
/// long as nobody else divides GPUs meanwhile.
fn done(journal: &mut dyn Journal, state: MigState) -> MigState {
    match (journal.clear(), state) {
        (Ok(()), state) => state,
        (Err(error), MigState::Applied { present } | MigState::RolledBack { present, .. }) => {
            let reason =
                format!("it is done, but the journal cannot be removed ({error}); remove it");
            MigState::Failed { reason, present: Some(present) }
        }
        (Err(_), state) => state,
    }
}

/// What the same GPUs are divided into now.
fn present(
    driver: &mut dyn MigDriver,
    layouts: &[GpuLayout],
) -> Result<Vec<GpuLayout>, DriverError> {
    let gpus: BTreeMap<String, MigGpu> =
        driver.gpus()?.into_iter().map(|gpu| (gpu.uuid.clone(), gpu)).collect();
    let found = layouts.iter().map(|one| Ok(gpu_of(&gpus, &one.gpu)?.layout()));
    found.collect()
}

fn gpu_of<'a>(gpus: &'a BTreeMap<String, MigGpu>, uuid: &str) -> Result<&'a MigGpu, DriverError> {
    gpus.get(uuid).ok_or_else(|| DriverError::Other(format!("GPU {uuid} is gone")))
}

/// Gets all GPUs there, and looks whether they are.
fn reach_all(driver: &mut dyn MigDriver, wanted: &[GpuLayout], busy: &Busy) -> Result<(), String> {
    for layout in wanted {
        let mut way = Way { driver: &mut *driver, wanted: layout, busy };
        way.reach()?;
    }
    let now = present(driver, wanted).map_err(|error| format!("GPUs cannot be asked: {error}"))?;
    match now.iter().zip(wanted).find(|(now, wanted)| now != wanted) {
        None => Ok(()),
        Some((now, wanted)) => Err(format!("{} has {now} where {wanted} was made", wanted.gpu)),
    }
}

/// The way of one GPU to what it should be.
struct Way<'a> {
    driver: &'a mut dyn MigDriver,
    wanted: &'a GpuLayout,
    busy: &'a Busy,
}

impl Way<'_> {
    fn failed(&self, what: impl fmt::Display, error: &DriverError) -> String {
        format!("{}: {what} failed: {error}", self.wanted.gpu)
    }

    fn now(&mut self) -> Result<MigGpu, String> {
        let gpus = self.driver.gpus().map_err(|error| self.failed("asking", &error))?;
        let own = gpus.into_iter().find(|gpu| gpu.uuid == self.wanted.gpu);
        own.ok_or_else(|| format!("GPU {} is gone", self.wanted.gpu))
    }

    fn reach(&mut self) -> Result<(), String> {
        let now = self.now()?;
        self.destroy(&now)?;
        self.set_mode(&now)?;
        if !self.wanted.enabled {
            return Ok(());
        }
        for slice in &self.wanted.slices {
            let there = now.slices.iter().find(|one| one.can_become(slice));
            if there.is_none() {
                let created = self.driver.create(&self.wanted.gpu, slice.place);
                created
                    .map_err(|error| self.failed(format!("creating {}", slice.place), &error))?;
            }
            let none = Slice { place: slice.place, compute: Vec::new() };
            let missing = there.unwrap_or(&none).missing(slice).unwrap_or_default();
            for slices in missing {
                let added = self.driver.add_compute(&self.wanted.gpu, slice.place, slices);
                added.map_err(|error| {
                    self.failed(format!("giving compute to {}", slice.place), &error)
                })?;
            }
        }
        Ok(())
    }

    /// Destroys what is not wanted, but nothing that has work.
    fn destroy(&mut self, now: &MigGpu) -> Result<(), String> {
        let stays = |slice: &Slice| {
            self.wanted.enabled && self.wanted.slices.iter().any(|one| slice.can_become(one))
        };
        let going: Vec<&Slice> = now.slices.iter().filter(|slice| !stays(slice)).collect();
        for slice in &going {
            self.spare(slice.place)?;
        }
        for slice in going {
            let failed = |way: &Self, error: &DriverError| {
                way.failed(format!("destroying {}", slice.place), error)
            };
            for _ in &slice.compute {
                let removed = self.driver.remove_compute(&self.wanted.gpu, slice.place);
                removed.map_err(|error| failed(self, &error))?;
            }
            let destroyed = self.driver.destroy(&self.wanted.gpu, slice.place);
            destroyed.map_err(|error| failed(self, &error))?;
        }
        Ok(())
    }

    fn spare(&self, place: Place) -> Result<(), String> {
        match self.busy.of_slice(&self.wanted.gpu, place) {
            None => Ok(()),
            Some(who) => Err(format!("{}: {place} is in use by {who}", self.wanted.gpu)),
        }
    }

    /// Also takes back a change that would come with the next reset.
    fn set_mode(&mut self, now: &MigGpu) -> Result<(), String> {
        let wanted = self.wanted.enabled;
        if now.enabled == Some(wanted) && now.pending == wanted {
            return Ok(());
        }
        if let Some(who) = self.busy.of_gpu(&self.wanted.gpu) {
            return Err(format!("{}: it is in use by {who}", self.wanted.gpu));
        }
        let what = if wanted { "turning MIG on" } else { "turning MIG off" };
        let answer = self.driver.set_mode(&self.wanted.gpu, wanted);
        let activation = answer.map_err(|error| self.failed(what, &error))?;
        let error = match activation {
            Activation::Active => return Ok(()),
            Activation::ResetNeeded => DriverError::ResetNeeded,
            Activation::InUse => DriverError::InUse,
            Activation::Other(number) => {
                DriverError::Other(format!("error {number} of the driver"))
            }
        };
        // What is on and stays on until a reset needs no reset when its change is taken back.
        let after = self.now()?;
        if after.enabled == Some(wanted) && after.pending == wanted {
            return Ok(());
        }
        Err(self.failed(what, &error))
    }
}
