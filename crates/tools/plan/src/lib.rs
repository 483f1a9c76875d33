//! Where work would go in a cluster, down to NUMA node, GPU and slice: what would not fit and why,
//! who would be evicted, what it would cost, and what a change of the cluster would make different.
//!
//! Runs the engine on a snapshot until it decides nothing more. Time stands still: bindings and
//! evictions take effect at once, and pods with a controller are replaced. For a what-if, the same
//! engine plans, is rolled back, is changed and plans again. The commands `explain`, `nodes` and
//! `queue` look at the snapshot without placing anything (`look`).

mod account;
mod difference;
mod doubt;
mod edit;
pub mod look;
mod place;
pub mod report;
mod run;
pub mod table;
mod text;

use berth_engine::{Engine, Profile};
use berth_manifest::Problem;
use berth_scenario::cluster::{Cluster, Prices};
use berth_scenario::workloads::WorkloadPods;
use thiserror::Error;

pub use edit::{Edit, EditError};

use report::Plan;
use run::Run;

/// What is to be planned.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// What is to come.
    pub workloads: &'a [WorkloadPods],
    /// What is to be changed before.
    pub what_if: &'a [Edit],
    /// Whose rules are followed.
    pub profile: Profile,
    /// What nodes cost.
    pub prices: &'a Prices,
}

/// Why there is no plan.
#[derive(Debug, Error)]
pub enum PlanError {
    /// A node that cannot be.
    #[error("{0}")]
    Node(String),
    /// A change that cannot be made.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// Something written that cannot be.
    #[error(transparent)]
    Text(#[from] Problem),
}

/// Where everything would go.
///
/// With changes, the plan is the one with them, and says how it differs from the one without. Both are
/// made by one engine, which is rolled back in between.
///
/// # Errors
/// When the cluster, a workload or a change cannot be.
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
    // What was seen is not what would be.
    cluster.nodes.iter_mut().for_each(|node| node.inside.free.clear());
    let mut lost = Vec::new();
    for edit in question.what_if {
        let changed = edit.apply(&mut cluster, &engine)?;
        changed.events.into_iter().for_each(|event| engine.apply(event));
        lost.extend(changed.lost);
    }
    let mut after = Run::new(&mut engine, question, &cluster)?.settle()?;
    after.lost.splice(0..0, lost);
    let known = std::mem::take(&mut after.notes);
    after.notes.clone_from(&before.notes);
    after.notes.extend(known.into_iter().filter(|note| !before.notes.contains(note)));
    after.what_if = question.what_if.iter().map(ToString::to_string).collect();
    after.difference = Some(difference::between(&before, &after));
    Ok(after)
}
