//! Settings of the contract: names of labels, taints, resources and schedulers, and severities.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::keys::{COST_CENTER, TEAM};
use berth_model::workload::{ClassRules, WorkloadClass};
use schemars::{JsonSchema, Schema, schema_for};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::rule::{Rule, Severity};

/// Settings of the contract, for `berth lint --config` and the webhook.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(rename = "ContractSettings")]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settings {
    /// Labels that name the team of a workload; it needs one of them. Default: `berth.dev/team`, `team`.
    pub team_labels: Vec<String>,
    /// Labels that name who pays; a workload needs one of them. Default: `berth.dev/cost-center`,
    /// `cost-center`.
    pub cost_center_labels: Vec<String>,
    /// Keys of the taints of GPU nodes. Default: `nvidia.com/gpu`, `amd.com/gpu`.
    pub gpu_taints: Vec<String>,
    /// Resources that are GPUs or parts of GPUs; a `*` at the end matches anything. Default:
    /// `nvidia.com/gpu`, `nvidia.com/gpu.shared`, `nvidia.com/mig-*`, `amd.com/gpu`.
    pub gpu_resources: Vec<String>,
    /// Workload class (`interactive`, `embedding`, `batch` or `experimentation`) by name of the
    /// PriorityClass, for pods without the label `berth.dev/class`.
    #[schemars(with = "BTreeMap<String, String>")]
    #[serde(deserialize_with = "workload_classes")]
    pub workload_classes: BTreeMap<Arc<str>, WorkloadClass>,
    /// Names of the schedulers in the cluster. Default: Berth, kube-scheduler and other well-known ones.
    pub schedulers: BTreeSet<String>,
    /// Seconds that models take to load, which probes have to allow for. Default: 60.
    pub model_load_seconds: u32,
    /// Severity by code or name of a rule, where it differs from the rule's own.
    pub severity: BTreeMap<String, Severity>,
    /// Codes or names of rules that are not checked.
    pub disabled: BTreeSet<String>,
}

impl Default for Settings {
    fn default() -> Self {
        let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        Self {
            team_labels: all(&[TEAM, "team"]),
            cost_center_labels: all(&[COST_CENTER, "cost-center"]),
            gpu_taints: all(&["nvidia.com/gpu", "amd.com/gpu"]),
            gpu_resources: all(&[
                "nvidia.com/gpu",
                "nvidia.com/gpu.shared",
                "nvidia.com/mig-*",
                "amd.com/gpu",
            ]),
            workload_classes: BTreeMap::new(),
            schedulers: all(&[
                "berth",
                "default-scheduler",
                "hami-scheduler",
                "kai-scheduler",
                "koord-scheduler",
                "volcano",
                "yunikorn",
            ])
            .into_iter()
            .collect(),
            // 99 in 100 base models of Alibaba's GenAI trace were loaded within 52 seconds.
            model_load_seconds: 60,
            severity: BTreeMap::new(),
            disabled: BTreeSet::new(),
        }
    }
}

fn workload_classes<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<BTreeMap<Arc<str>, WorkloadClass>, D::Error> {
    let written = BTreeMap::<String, String>::deserialize(from)?;
    let read = |(name, class): (String, String)| match WorkloadClass::parse(&class) {
        Some(class) => Ok((name.into(), class)),
        None => Err(D::Error::custom(format!(
            "unknown workload class {class:?} of PriorityClass {name:?} (expected {})",
            WorkloadClass::ALL.map(WorkloadClass::as_str).join(", ")
        ))),
    };
    written.into_iter().map(read).collect()
}

impl Settings {
    /// The JSON Schema of a settings file.
    pub fn json_schema() -> Schema {
        schema_for!(Self)
    }

    /// How pods without a class label come by a class.
    pub fn class_rules(&self) -> ClassRules {
        ClassRules { by_priority_class: self.workload_classes.clone(), ..ClassRules::default() }
    }

    /// Whether a resource is a GPU or a part of one.
    pub fn is_gpu(&self, resource: &str) -> bool {
        self.gpu_resources.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => resource.starts_with(prefix),
            None => resource == pattern,
        })
    }

    /// How grave a breach of a rule is; `None` if it is not checked.
    pub fn severity_of(&self, rule: &Rule) -> Option<Severity> {
        let named = |text: &str| text.eq_ignore_ascii_case(rule.code) || text == rule.name;
        if self.disabled.iter().any(|text| named(text)) {
            return None;
        }
        let configured = self.severity.iter().find(|(text, _)| named(text));
        Some(configured.map_or(rule.severity, |(_, severity)| *severity))
    }

    /// Codes in the settings that no rule has.
    pub fn unknown_codes(&self) -> Vec<&str> {
        let codes = self.severity.keys().chain(&self.disabled);
        codes.map(String::as_str).filter(|code| Rule::find(code).is_none()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_known_by_name_or_beginning() {
        let settings = Settings::default();
        for (resource, expected) in [
            ("nvidia.com/gpu", true),
            ("nvidia.com/mig-3g.40gb", true),
            ("nvidia.com/gpu.memory", false),
            ("rdma/ib", false),
        ] {
            assert_eq!(settings.is_gpu(resource), expected, "{resource}");
        }
    }

    #[test]
    fn rules_are_weighed_by_code_or_name_and_unknown_ones_are_named() {
        let settings: Settings = serde_json::from_str(
            r#"{ "severity": { "berth-101": "info" }, "disabled": ["gpu-fraction", "BERTH-999"] }"#,
        )
        .unwrap();
        let of = |code: &str| settings.severity_of(Rule::find(code).unwrap());
        assert_eq!(of("BERTH-101"), Some(Severity::Info));
        assert_eq!(of("BERTH-102"), None);
        assert_eq!(settings.unknown_codes(), ["BERTH-999"]);
    }
}
