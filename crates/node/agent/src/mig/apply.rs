//! Applies planned MIG changes as a whole, or rolls them back.
//!
//! After a crash, the journal tells whether to continue forward or back: forward is tried first, then back. Slices in
//! use are never touched.

use std::collections::BTreeMap;
use std::fmt;

use berth_api::keys::{MIG_STATE, MIG_STATE_LABEL};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::driver::{Activation, DriverError, MigDriver, MigGpu};
use super::journal::{Direction, Journal, Unfinished};
use super::layout::{GpuLayout, Placement, Slice};
use super::plan::MigChanges;
use super::workloads::Workloads;

/// Attempts to roll back.
const ROLLBACK_ATTEMPTS: usize = 3;

/// State of a repartition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum MigState {
    /// No layout is requested.
    #[default]
    Idle,
    Applying {
        wanted: Vec<GpuLayout>,
    },
    Applied {
        present: Vec<GpuLayout>,
    },
    /// Failed; the previous layouts are in place.
    RolledBack {
        reason: String,
        present: Vec<GpuLayout>,
    },
    /// Failed, and the layouts may be neither the requested nor the previous ones.
    Failed {
        reason: String,
        /// `None` if unknown.
        present: Option<Vec<GpuLayout>>,
    },
}

impl MigState {
    /// The value of the state label.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Applying { .. } => "pending",
            Self::Applied { .. } => "success",
            Self::RolledBack { .. } => "rolled-back",
            Self::Failed { .. } => "failed",
        }
    }

    /// The merge patch for the Node: one label, one annotation.
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
            Self::Idle => f.write_str("no layout is requested"),
            Self::Applying { .. } => f.write_str("in progress"),
            Self::Applied { present } => write!(f, "applied: {}", there(present)),
            Self::RolledBack { reason, .. } => {
                write!(f, "{reason}; the previous layout is in place")
            }
            Self::Failed { reason, present: Some(present) } => {
                write!(f, "{reason}; now: {}", there(present))
            }
            Self::Failed { reason, present: None } => {
                write!(f, "{reason}; the current layout is unknown")
            }
        }
    }
}

/// Why a GPU does not have the layout that it should.
#[derive(Debug, thiserror::Error)]
enum TransitionError {
    #[error("cannot query GPUs: {0}")]
    Query(DriverError),
    #[error("GPU {0} disappeared")]
    Gone(String),
    #[error("{gpu}: {step} failed: {error}")]
    Step { gpu: String, step: String, error: DriverError },
    #[error("{gpu}: {what} is in use by {by}")]
    InUse { gpu: String, what: String, by: String },
    #[error("{gpu} has layout {now} instead of {wanted}")]
    Differs { gpu: String, now: Box<GpuLayout>, wanted: Box<GpuLayout> },
}

/// Applies the changes, and returns the final state. `progress` gets the states in between.
pub fn apply(
    driver: &mut dyn MigDriver,
    journal: &mut dyn Journal,
    plan: &MigChanges,
    workloads: &Workloads,
    progress: &mut dyn FnMut(&MigState),
) -> MigState {
    let wanted: Vec<GpuLayout> = plan.gpus.iter().map(|one| one.to.clone()).collect();
    let former: Vec<GpuLayout> = plan.gpus.iter().map(|one| one.from.clone()).collect();
    if plan.is_nothing() {
        return MigState::Applied { present: wanted };
    }
    match present(driver, &former) {
        Ok(now) if now == former => {}
        Ok(now) => {
            let reason = "layouts have changed since this was planned; plan again".to_owned();
            return MigState::RolledBack { reason, present: now };
        }
        Err(error) => {
            let reason = format!("cannot query GPUs: {error}; nothing was changed");
            return MigState::Failed { reason, present: None };
        }
    }
    let unfinished = Unfinished::new(former.clone(), wanted.clone());
    if let Err(error) = journal.write(&unfinished) {
        let reason = format!("cannot write the journal ({error}); nothing was changed");
        return MigState::RolledBack { reason, present: former };
    }
    progress(&MigState::Applying { wanted });
    finish(driver, journal, unfinished, workloads)
}

/// Continues after a crash; `None` if there is nothing to continue.
pub fn recover(
    driver: &mut dyn MigDriver,
    journal: &mut dyn Journal,
    workloads: &Workloads,
) -> Option<MigState> {
    match journal.read() {
        Ok(None) => None,
        Ok(Some(unfinished)) => Some(finish(driver, journal, unfinished, workloads)),
        Err(error) => {
            let reason = format!(
                "cannot read the journal of an interrupted repartition ({error}); check the GPUs with nvidia-smi \
                 mig -lgi, correct them, and remove the journal"
            );
            Some(MigState::Failed { reason, present: None })
        }
    }
}

fn finish(
    driver: &mut dyn MigDriver,
    journal: &mut dyn Journal,
    mut unfinished: Unfinished,
    workloads: &Workloads,
) -> MigState {
    if unfinished.direction == Direction::Forward {
        match transition_all(driver, &unfinished.wanted, workloads) {
            Ok(()) => return done(journal, MigState::Applied { present: unfinished.wanted }),
            Err(error) => {
                unfinished = unfinished.back(&error.to_string());
                // If this fails, a crash from here on tries forward first, which is acceptable.
                let _ = journal.write(&unfinished);
            }
        }
    }
    let reason = unfinished.reason.clone().unwrap_or_else(|| "interrupted".to_owned());
    let mut why = String::new();
    for _ in 0..ROLLBACK_ATTEMPTS {
        match transition_all(driver, &unfinished.former, workloads) {
            Ok(()) => {
                let present = unfinished.former;
                return done(journal, MigState::RolledBack { reason, present });
            }
            Err(error) => why = error.to_string(),
        }
    }
    // The journal stays: the obstacle may be gone when the agent starts again.
    let reason = format!("{reason}; the previous layout cannot be restored: {why}");
    let present = present(driver, &unfinished.former).ok();
    MigState::Failed { reason, present }
}

/// Removes the journal. If it stays, the next start repeats the transition, which changes nothing unless another
/// program repartitions GPUs in between.
fn done(journal: &mut dyn Journal, state: MigState) -> MigState {
    match (journal.clear(), state) {
        (Ok(()), state) => state,
        (Err(error), MigState::Applied { present } | MigState::RolledBack { present, .. }) => {
            let reason = format!("done, but the journal cannot be removed ({error}); remove it");
            MigState::Failed { reason, present: Some(present) }
        }
        (Err(_), state) => state,
    }
}

/// Current layouts of the same GPUs.
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
    gpus.get(uuid).ok_or_else(|| DriverError::Other(format!("GPU {uuid} disappeared")))
}

/// Brings all GPUs to their layouts, and verifies them.
fn transition_all(
    driver: &mut dyn MigDriver,
    wanted: &[GpuLayout],
    workloads: &Workloads,
) -> Result<(), TransitionError> {
    for layout in wanted {
        Transition { driver: &mut *driver, wanted: layout, workloads }.run()?;
    }
    let now = present(driver, wanted).map_err(TransitionError::Query)?;
    match now.into_iter().zip(wanted).find(|(now, wanted)| now != *wanted) {
        None => Ok(()),
        Some((now, wanted)) => {
            let (gpu, wanted) = (wanted.gpu.clone(), wanted.clone());
            Err(TransitionError::Differs { gpu, now: Box::new(now), wanted: Box::new(wanted) })
        }
    }
}

/// The transition of one GPU to its layout.
struct Transition<'a> {
    driver: &'a mut dyn MigDriver,
    wanted: &'a GpuLayout,
    workloads: &'a Workloads,
}

impl Transition<'_> {
    fn failed(&self, step: impl fmt::Display, error: DriverError) -> TransitionError {
        TransitionError::Step { gpu: self.wanted.gpu.clone(), step: step.to_string(), error }
    }

    fn in_use(&self, what: impl fmt::Display, by: &str) -> TransitionError {
        let (gpu, what) = (self.wanted.gpu.clone(), what.to_string());
        TransitionError::InUse { gpu, what, by: by.to_owned() }
    }

    fn now(&mut self) -> Result<MigGpu, TransitionError> {
        let gpus = self.driver.gpus().map_err(|error| self.failed("query", error))?;
        let own = gpus.into_iter().find(|gpu| gpu.uuid == self.wanted.gpu);
        own.ok_or_else(|| TransitionError::Gone(self.wanted.gpu.clone()))
    }

    fn run(&mut self) -> Result<(), TransitionError> {
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
                created.map_err(|error| self.failed(format!("creating {}", slice.place), error))?;
            }
            let none = Slice { place: slice.place, compute: Vec::new() };
            let missing = there.unwrap_or(&none).missing(slice).unwrap_or_default();
            for slices in missing {
                let added = self.driver.add_compute(&self.wanted.gpu, slice.place, slices);
                added.map_err(|error| {
                    self.failed(format!("creating compute instances of {}", slice.place), error)
                })?;
            }
        }
        Ok(())
    }

    /// Destroys slices that are not wanted, except those in use.
    fn destroy(&mut self, now: &MigGpu) -> Result<(), TransitionError> {
        let stays = |slice: &Slice| {
            self.wanted.enabled && self.wanted.slices.iter().any(|one| slice.can_become(one))
        };
        let going: Vec<&Slice> = now.slices.iter().filter(|slice| !stays(slice)).collect();
        for slice in &going {
            self.check_unused(slice.place)?;
        }
        for slice in going {
            let failed = |transition: &Self, error: DriverError| {
                transition.failed(format!("destroying {}", slice.place), error)
            };
            for _ in &slice.compute {
                let removed = self.driver.remove_compute(&self.wanted.gpu, slice.place);
                removed.map_err(|error| failed(self, error))?;
            }
            let destroyed = self.driver.destroy(&self.wanted.gpu, slice.place);
            destroyed.map_err(|error| failed(self, error))?;
        }
        Ok(())
    }

    fn check_unused(&self, place: Placement) -> Result<(), TransitionError> {
        match self.workloads.slice_user(&self.wanted.gpu, place) {
            None => Ok(()),
            Some(by) => Err(self.in_use(place, by)),
        }
    }

    /// Also reverts a change that waits for a reset.
    fn set_mode(&mut self, now: &MigGpu) -> Result<(), TransitionError> {
        let wanted = self.wanted.enabled;
        if now.enabled == Some(wanted) && now.pending == wanted {
            return Ok(());
        }
        if let Some(by) = self.workloads.gpu_user(&self.wanted.gpu) {
            return Err(self.in_use("it", by));
        }
        let what = if wanted { "turning MIG on" } else { "turning MIG off" };
        let answer = self.driver.set_mode(&self.wanted.gpu, wanted);
        let activation = answer.map_err(|error| self.failed(what, error))?;
        let error = match activation {
            Activation::Active => return Ok(()),
            Activation::ResetNeeded => DriverError::ResetNeeded,
            Activation::InUse => DriverError::InUse,
            Activation::Other(number) => DriverError::Other(format!("driver error {number}")),
        };
        // Reverting a pending change needs no reset.
        let after = self.now()?;
        if after.enabled == Some(wanted) && after.pending == wanted {
            return Ok(());
        }
        Err(self.failed(what, error))
    }
}
