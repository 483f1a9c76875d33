//! What was planned and done, for people and programs.
//!
//! Owns the words and columns, and the order: what a crash left unfinished is finished first, then it is
//! planned, then done. Must not know where it is shown.

use std::fmt::Write as _;

use berth_text::columns;
use serde::Serialize;

use super::apply::{MigState, apply, recover};
use super::busy::Busy;
use super::driver::{DriverError, MigDriver};
use super::journal::Journal;
use super::layout::Place;
use super::plan::{GpuPlan, MigChanges, Reach, Refusal, plan};
use super::wish::Wish;

/// What was planned and done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MigReport {
    /// How what was left unfinished ended, if something was.
    pub recovered: Option<MigState>,
    /// Whether nothing was to be done.
    pub dry_run: bool,
    /// GPUs that something is wanted of.
    pub gpus: Vec<GpuReport>,
    /// How it ended.
    pub state: MigState,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuReport {
    /// Its number.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// What it is called.
    pub product: String,
    /// What it was divided into.
    pub from: String,
    /// What is wanted.
    pub to: String,
    /// Slices that stay.
    pub kept: Vec<Place>,
    /// Slices that go.
    pub destroyed: Vec<Place>,
    /// Slices that come.
    pub created: Vec<Place>,
}

/// Why nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigError {
    /// It cannot be had.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// GPUs cannot be asked.
    #[error("GPUs cannot be asked: {0}")]
    Driver(#[from] DriverError),
    /// What was left unfinished still is.
    #[error("an earlier division is not finished: {0}")]
    Unfinished(MigState),
}

impl MigReport {
    /// Gives GPUs what is wished for.
    ///
    /// # Errors
    /// When it cannot be had, or something earlier is unfinished and stays so.
    pub fn make(
        driver: &mut dyn MigDriver,
        journal: &mut dyn Journal,
        wish: &Wish,
        busy: &Busy,
        reach: Reach,
    ) -> Result<Self, MigError> {
        let recovered = recover(driver, journal, busy);
        if let Some(failed @ MigState::Failed { .. }) = recovered {
            return Err(MigError::Unfinished(failed));
        }
        let plan = plan(&driver.gpus()?, wish, busy, reach)?;
        let state = apply(driver, journal, &plan, busy, &mut |_| {});
        Ok(Self { recovered, state, ..Self::of(&plan) })
    }

    /// Says what would be done, and does nothing.
    ///
    /// # Errors
    /// When it cannot be had.
    pub fn plan_only(
        driver: &mut dyn MigDriver,
        wish: &Wish,
        busy: &Busy,
        reach: Reach,
    ) -> Result<Self, MigError> {
        let plan = plan(&driver.gpus()?, wish, busy, reach)?;
        Ok(Self { dry_run: true, ..Self::of(&plan) })
    }

    fn of(plan: &MigChanges) -> Self {
        let gpu = |one: &GpuPlan| GpuReport {
            index: one.index,
            uuid: one.from.gpu.clone(),
            product: one.product.clone(),
            from: one.from.to_string(),
            to: one.to.to_string(),
            kept: one.kept().collect(),
            destroyed: one.destroyed().collect(),
            created: one.created().collect(),
        };
        Self { gpus: plan.gpus.iter().map(gpu).collect(), ..Self::default() }
    }

    /// Whether GPUs are as wanted, or would be.
    pub fn is_good(&self) -> bool {
        self.dry_run || matches!(self.state, MigState::Applied { .. })
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        if let Some(recovered) = &self.recovered {
            let _ = writeln!(text, "What was left unfinished: {recovered}.\n");
        }
        let head = ["GPU", "PRODUCT", "BEFORE", "WANTED", "KEPT", "DESTROYED", "CREATED"];
        let mut rows = vec![head.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>()];
        for gpu in &self.gpus {
            rows.push(vec![
                gpu.index.to_string(),
                gpu.product.clone(),
                gpu.from.clone(),
                gpu.to.clone(),
                gpu.kept.len().to_string(),
                gpu.destroyed.len().to_string(),
                gpu.created.len().to_string(),
            ]);
        }
        text += &columns(&rows);
        let end = match &self.state {
            _ if self.dry_run => "Nothing was changed.".to_owned(),
            MigState::Applied { .. } => "Applied.".to_owned(),
            other => format!("Not applied: {other}."),
        };
        let _ = writeln!(text, "\n{end}");
        text
    }
}
