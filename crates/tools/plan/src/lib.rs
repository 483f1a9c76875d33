//! What-if: where work would go in a cluster, what would not fit and why, which pods would be evicted, what
//! it would cost, and what a change of the cluster would make different.
//!
//! Runs the engine on a snapshot until it decides nothing more. Time stands still: bindings and
//! evictions take effect at once, and pods with a controller are replaced. With changes, the same
//! engine plans, is rolled back, is changed and plans again. [`Snapshot`] reports on the cluster as it is.

mod account;
mod difference;
mod edit;
pub mod report;
mod run;
pub mod snapshot;
pub mod table;

use berth_engine::{Engine, Profile};
use berth_manifest::Problem;
use berth_scenario::cluster::{Cluster, Prices};
use berth_scenario::workloads::WorkloadPods;
use thiserror::Error;

pub use edit::{Edit, EditError};
pub use snapshot::Snapshot;

use report::Plan;
use run::Run;

#[derive(Clone, Debug)]
pub struct Question<'a> {
    pub cluster: &'a Cluster,
    pub workloads: &'a [WorkloadPods],
    /// Changes to make before planning, in order.
    pub what_if: &'a [Edit],
    pub profile: Profile,
    pub prices: &'a Prices,
}

#[derive(Debug, Error)]
pub enum PlanError {
    #[error("{0}")]
    Node(String),
    #[error(transparent)]
    Edit(#[from] EditError),
    #[error(transparent)]
    Manifest(#[from] Problem),
}

/// Plans with the changes, if there are any, and compares with the plan without them.
pub fn plan(question: &Question<'_>) -> Result<Plan, PlanError> {
    let mut engine = Engine::new(question.profile);
    for event in question.cluster.events().map_err(PlanError::Node)? {
        engine.apply(event);
    }
    if question.what_if.is_empty() {
        return Run::new(&mut engine, question, question.cluster)?.settle();
    }
    let checkpoint = engine.checkpoint();
    let before = Run::new(&mut engine, question, question.cluster)?.settle();
    engine.rollback(checkpoint);
    let before = before?;
    let mut cluster = question.cluster.clone();
    // Exporters have not seen the changes.
    cluster.nodes.iter_mut().for_each(|node| node.inside.free.clear());
    let mut lost = Vec::new();
    for edit in question.what_if {
        let changed = edit.apply(&mut cluster, &engine)?;
        changed.events.into_iter().for_each(|event| engine.apply(event));
        lost.extend(changed.lost);
    }
    let mut after = Run::new(&mut engine, question, &cluster)?.settle()?;
    after.lost.splice(0..0, lost);
    let new = std::mem::take(&mut after.notes);
    after.notes.clone_from(&before.notes);
    after.notes.extend(new.into_iter().filter(|note| !before.notes.contains(note)));
    after.what_if = question.what_if.iter().map(ToString::to_string).collect();
    after.difference = Some(difference::between(&before, &after));
    Ok(after)
}
