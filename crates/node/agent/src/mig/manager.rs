//! NVIDIA's mig-manager, which repartitions a node's GPUs as a label of the Node says. It also evicts pods that use
//! the GPUs and restarts device plugins, so where it runs, nobody else should repartition.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::request::LayoutRequest;

/// Label with the name of the wanted configuration.
pub const CONFIG: &str = "nvidia.com/mig.config";
/// Label with mig-manager's progress.
pub const STATE: &str = "nvidia.com/mig.config.state";
/// Label by which the GPU operator deploys mig-manager on a node.
pub const DEPLOYED: &str = "nvidia.com/gpu.deploy.mig-manager";

pub type Labels = BTreeMap<String, String>;

/// Who repartitions the GPUs of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigOwner {
    /// NVIDIA's mig-manager, by its label.
    Manager,
    /// Berth's agent, by NVML.
    Agent,
}

/// mig-manager, if the GPU operator deploys it on the node or it has reported progress; otherwise the agent.
pub fn owner(labels: &Labels) -> MigOwner {
    match labels.get(DEPLOYED).map(String::as_str) {
        // Paused for a while, for example during a driver update.
        Some(deployed) if deployed == "true" || deployed.starts_with("paused") => MigOwner::Manager,
        Some(_) => MigOwner::Agent,
        None if labels.contains_key(STATE) => MigOwner::Manager,
        None => MigOwner::Agent,
    }
}

/// A layout without a name that mig-manager knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "mig-manager repartitions this node and knows layouts by name only; add this layout to its configuration and \
     set {CONFIG}, or stop mig-manager with {DEPLOYED}=false"
)]
pub struct NotByName;

/// Progress of mig-manager with a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The label names another configuration.
    NotAsked,
    Pending,
    /// It restarts the node and continues afterwards.
    Rebooting,
    Success,
    /// Its log has the reason.
    Failed,
}

pub fn progress(labels: &Labels, configuration: &str) -> Progress {
    if labels.get(CONFIG).map(String::as_str) != Some(configuration) {
        return Progress::NotAsked;
    }
    match labels.get(STATE).map(String::as_str) {
        Some("success") => Progress::Success,
        Some("failed") => Progress::Failed,
        Some("rebooting") => Progress::Rebooting,
        // The request removed the state, so a missing one means that it has not started.
        _ => Progress::Pending,
    }
}

/// The merge patch of a Node that makes mig-manager apply the request; `None` if it was requested already and has
/// not failed.
///
/// The state label is removed as well, since it belongs to the previous configuration. mig-manager reacts only to
/// changes of its label, so after a failure the label is first removed; call this again afterwards.
pub fn patch(request: &LayoutRequest, labels: &Labels) -> Result<Option<Value>, NotByName> {
    let configuration = request.configuration().ok_or(NotByName)?;
    Ok(match progress(labels, &configuration) {
        Progress::NotAsked => {
            Some(json!({"metadata": {"labels": {CONFIG: configuration, STATE: null}}}))
        }
        Progress::Failed => Some(json!({"metadata": {"labels": {CONFIG: null, STATE: null}}})),
        Progress::Pending | Progress::Rebooting | Progress::Success => None,
    })
}
