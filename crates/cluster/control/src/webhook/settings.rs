//! How strict the webhook is, for whom, and what it changes.
//!
//! Owns the settings as operators write them. Must not know any rule by more than its code.

use std::collections::{BTreeMap, BTreeSet};

use berth_contract::Severity;
use berth_model::workload::WorkloadClass;
use serde::Deserialize;
use thiserror::Error;

/// Namespaces of the cluster itself. A mistake here must not keep a cluster from coming up.
const SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// What the webhook does with what it finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Denies, warns and changes.
    Enforce,
    /// Warns and changes.
    #[default]
    Warn,
    /// Counts and logs only.
    DryRun,
}

/// The settings of the webhook.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settings {
    /// What it does with what it finds.
    pub mode: Mode,
    /// Breaches at least as grave as this are denied.
    pub deny: Severity,
    /// Breaches at least as grave as this are warned of.
    pub warn: Severity,
    /// Namespaces whose objects are let through as they are, besides those of the cluster itself.
    pub exempt_namespaces: BTreeSet<String>,
    /// The settings of the rules.
    pub contract: berth_contract::Settings,
    /// What is changed.
    pub mutations: Mutations,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            deny: Severity::Error,
            warn: Severity::Warning,
            exempt_namespaces: BTreeSet::from(["berth-system".to_owned()]),
            contract: berth_contract::Settings::default(),
            mutations: Mutations::default(),
        }
    }
}

/// What is changed in pods that ask for GPUs. Nothing is unless somebody has turned it on, and nothing
/// that a pod says itself is changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Mutations {
    /// They tolerate the taints of GPU nodes.
    pub toleration: bool,
    /// They are placed by this scheduler; empty: by whichever they name.
    pub scheduler_name: String,
    /// They get a priority class, by the class of work that their label `berth.dev/class` names.
    pub priority_classes: BTreeMap<String, String>,
    /// Labels that they get from their namespace.
    pub copy_labels: Vec<String>,
    /// Pods that ask for memory of a GPU and not for compute ask for this share of it, by the class of
    /// work that their label names; `""` is for pods without one.
    pub default_shares: BTreeMap<String, String>,
}

/// Settings that mean nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("webhook settings: {field}: {problem}")]
pub struct SettingsError {
    /// The field that is wrong.
    pub field: String,
    /// What is wrong with it, and what to do.
    pub problem: String,
}

impl Settings {
    /// Whether objects of a namespace are let through as they are.
    pub fn is_exempt(&self, namespace: &str) -> bool {
        SYSTEM.contains(&namespace) || self.exempt_namespaces.contains(namespace)
    }

    /// Whether every name in it is known.
    pub fn check(&self) -> Result<(), SettingsError> {
        let wrong =
            |field: &str, problem: String| Err(SettingsError { field: field.to_owned(), problem });
        if let Some(code) = self.contract.unknown_codes().first() {
            return wrong(
                "contract",
                format!("there is no rule {code:?}; see `berth lint --rules`"),
            );
        }
        let classes = [
            ("mutations.priorityClasses", &self.mutations.priority_classes),
            ("mutations.defaultShares", &self.mutations.default_shares),
        ];
        for (field, map) in classes {
            let known = |class: &str| class.is_empty() || WorkloadClass::parse(class).is_some();
            if let Some(class) = map.keys().find(|class| !known(class)) {
                let names = WorkloadClass::ALL.map(WorkloadClass::as_str).join(", ");
                return wrong(field, format!("{class:?} is no class; write one of {names}"));
            }
        }
        Ok(())
    }
}
