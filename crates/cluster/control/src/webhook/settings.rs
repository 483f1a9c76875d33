//! Settings of the webhook.

use std::collections::{BTreeMap, BTreeSet};

use berth_contract::Severity;
use berth_model::workload::WorkloadClass;
use schemars::{JsonSchema, Schema, schema_for};
use serde::Deserialize;
use thiserror::Error;

/// Namespaces of the cluster itself. A mistake here must not keep a cluster from coming up.
const SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// Mode of the webhook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Also deny objects with errors.
    Enforce,
    /// Warn about findings, and apply the mutations that are turned on.
    #[default]
    Warn,
    /// Count and log findings.
    DryRun,
}

/// Settings of the admission webhook, for `--webhook-settings`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(rename = "WebhookSettings")]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settings {
    /// Set by `--webhook`, which takes precedence.
    pub mode: Mode,
    /// Minimum severity of findings that are denied, in mode `enforce`. Default: `error`.
    pub deny: Severity,
    /// Minimum severity of findings that are reported as warnings. Default: `warning`.
    pub warn: Severity,
    /// Namespaces that the webhook skips, besides those of the cluster and Berth's own.
    pub exempt_namespaces: BTreeSet<String>,
    pub contract: berth_contract::Settings,
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

/// Changes to pods that request GPUs. All are off unless listed, and none replaces what a pod sets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Mutations {
    /// Tolerate the taints of GPU nodes.
    pub toleration: bool,
    /// Scheduler name to set, such as `berth`.
    pub scheduler_name: String,
    /// PriorityClass to set, by the class in the label `berth.dev/class`.
    pub priority_classes: BTreeMap<String, String>,
    /// Labels to copy from the namespace.
    pub copy_labels: Vec<String>,
    /// `berth.dev/gpu-compute` to set on pods that set only `berth.dev/gpu-memory`, by the class in the
    /// label `berth.dev/class`; `""` is for pods without the label.
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
    /// The JSON Schema of a settings file.
    pub fn json_schema() -> Schema {
        schema_for!(Self)
    }

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
