//! The other way to divide GPUs: NVIDIA's mig-manager, which does what a label of the node says.
//!
//! Owns its labels, what they mean, and when it is the one to ask. It evicts what uses the GPUs, divides
//! them, and brings back device plugins, so where it runs nobody else should. Must not know how to set
//! labels.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::wish::Wish;

/// The label that says which of its configurations a node should have.
pub const CONFIG: &str = "nvidia.com/mig.config";
/// The label by which it says how far it is.
pub const STATE: &str = "nvidia.com/mig.config.state";
/// The label by which the GPU operator has it run on a node.
pub const DEPLOYED: &str = "nvidia.com/gpu.deploy.mig-manager";

/// Labels of a node.
pub type Labels = BTreeMap<String, String>;

/// Who divides the GPUs of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// mig-manager, by its label.
    Manager,
    /// The agent, by NVML.
    Agent,
}

/// Who divides the GPUs of a node with these labels: mig-manager where the GPU operator runs it, or where it
/// has said how far it is; the agent elsewhere.
pub fn who(labels: &Labels) -> Who {
    match labels.get(DEPLOYED).map(String::as_str) {
        // It is stopped for a while, as when a driver is updated, and comes back.
        Some(deployed) if deployed == "true" || deployed.starts_with("paused") => Who::Manager,
        Some(_) => Who::Agent,
        None if labels.contains_key(STATE) => Who::Manager,
        None => Who::Agent,
    }
}

/// What mig-manager cannot be asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "mig-manager divides the GPUs of this node, and knows layouts by name only; add this one to its \
     configuration and set {CONFIG}, or stop it with {DEPLOYED}=false"
)]
pub struct NotByName;

/// How far mig-manager is with a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It was not asked for this.
    NotAsked,
    /// It has not begun, or is at it.
    Pending,
    /// It restarts the node, and goes on then.
    Rebooting,
    /// GPUs are as wanted.
    Success,
    /// It gave up; its log says why.
    Failed,
}

/// How far it is with this configuration, by the node's labels.
pub fn progress(labels: &Labels, configuration: &str) -> Progress {
    if labels.get(CONFIG).map(String::as_str) != Some(configuration) {
        return Progress::NotAsked;
    }
    match labels.get(STATE).map(String::as_str) {
        Some("success") => Progress::Success,
        Some("failed") => Progress::Failed,
        Some("rebooting") => Progress::Rebooting,
        // Asking takes the state away, so none is one that it has not begun with.
        _ => Progress::Pending,
    }
}

/// What to change on a node so that mig-manager does what is wished for, as a merge patch; `None` if it
/// was asked already, and has not failed.
///
/// The state is taken away with it: what it says is of the configuration before. One that failed is not
/// tried again for the same name, because mig-manager sees changes of the label only; then the label is
/// taken away, and this is to be asked again.
///
/// # Errors
/// When the wish has no name that mig-manager knows.
pub fn patch(wish: &Wish, labels: &Labels) -> Result<Option<Value>, NotByName> {
    let configuration = wish.configuration().ok_or(NotByName)?;
    Ok(match progress(labels, &configuration) {
        Progress::NotAsked => {
            Some(json!({"metadata": {"labels": {CONFIG: configuration, STATE: null}}}))
        }
        Progress::Failed => Some(json!({"metadata": {"labels": {CONFIG: null, STATE: null}}})),
        Progress::Pending | Progress::Rebooting | Progress::Success => None,
    })
}
