//! The report on a repartition. An interrupted one is finished first.

use std::fmt::Write as _;

use berth_text::columns;
use serde::Serialize;

use super::apply::{MigState, apply, recover};
use super::driver::{DriverError, MigDriver};
use super::journal::Journal;
use super::layout::Placement;
use super::plan::{GpuChanges, MigChanges, Reach, Refusal, plan};
use super::request::LayoutRequest;
use super::workloads::Workloads;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MigReport {
    /// Outcome of an interrupted repartition, if there was one.
    pub recovered: Option<MigState>,
    /// Whether changes were only planned.
    pub dry_run: bool,
    /// GPUs that the request applies to.
    pub gpus: Vec<GpuReport>,
    pub state: MigState,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuReport {
    pub index: u32,
    pub uuid: String,
    pub product: String,
    /// Layout before.
    pub from: String,
    /// Requested layout.
    pub to: String,
    pub kept: Vec<Placement>,
    pub destroyed: Vec<Placement>,
    pub created: Vec<Placement>,
}

/// Why nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("cannot query GPUs: {0}")]
    Driver(#[from] DriverError),
    #[error("an interrupted repartition cannot be finished: {0}")]
    Unfinished(MigState),
}

impl MigReport {
    /// Applies a request.
    ///
    /// # Errors
    /// If the request cannot be fulfilled, or an interrupted repartition cannot be finished.
    pub fn apply(
        driver: &mut dyn MigDriver,
        journal: &mut dyn Journal,
        request: &LayoutRequest,
        workloads: &Workloads,
        reach: Reach,
    ) -> Result<Self, MigError> {
        let recovered = recover(driver, journal, workloads);
        if let Some(failed @ MigState::Failed { .. }) = recovered {
            return Err(MigError::Unfinished(failed));
        }
        let plan = plan(&driver.gpus()?, request, workloads, reach)?;
        let state = apply(driver, journal, &plan, workloads, &mut |_| {});
        Ok(Self { recovered, state, ..Self::of(&plan) })
    }

    /// Plans a request without applying it.
    pub fn plan_only(
        driver: &mut dyn MigDriver,
        request: &LayoutRequest,
        workloads: &Workloads,
        reach: Reach,
    ) -> Result<Self, MigError> {
        let plan = plan(&driver.gpus()?, request, workloads, reach)?;
        Ok(Self { dry_run: true, ..Self::of(&plan) })
    }

    fn of(plan: &MigChanges) -> Self {
        let gpu = |one: &GpuChanges| GpuReport {
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

    /// Whether the GPUs have, or in a dry run could have, the requested layout.
    pub fn is_good(&self) -> bool {
        self.dry_run || matches!(self.state, MigState::Applied { .. })
    }

    pub fn table(&self) -> String {
        let mut text = String::new();
        if let Some(recovered) = &self.recovered {
            let _ = writeln!(text, "Interrupted repartition: {recovered}\n");
        }
        let head = ["GPU", "PRODUCT", "BEFORE", "AFTER", "KEPT", "DESTROYED", "CREATED"];
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
            _ if self.dry_run => "Dry run: nothing was changed".to_owned(),
            MigState::Applied { .. } => "Applied".to_owned(),
            other => format!("Not applied: {other}"),
        };
        let _ = writeln!(text, "\n{end}");
        text
    }
}
