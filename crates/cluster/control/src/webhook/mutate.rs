//! Changes to pods that request GPUs, according to the settings. Nothing that a pod sets itself is changed.

use berth_api::FieldPath;
use berth_api::keys::{CLASS, GPU_COMPUTE, GPU_MEMORY};
use berth_api::workload::{PodTemplate, Workload, WorkloadKind};
use berth_contract::{Fix, Object, check};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::feed::Known;
use super::settings::Settings;

/// The rule whose fix adds the toleration.
const NO_TOLERATION: &str = "BERTH-201";
/// The API server's default for schedulerName.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// JSON patch of an object.
pub(super) fn changes(
    object: &Object,
    namespace: &str,
    known: &Known,
    settings: &Settings,
) -> Vec<Fix> {
    let header = &object.reference;
    let Some(kind) = WorkloadKind::of(&header.api_version, &header.kind) else {
        return Vec::new();
    };
    let Ok(workload) = Workload::read(kind, &object.json) else { return Vec::new() };
    let mut fixes = Vec::new();
    let with_gpus: Vec<&PodTemplate> =
        workload.templates.iter().filter(|template| asks_for_gpus(template, settings)).collect();
    for template in &with_gpus {
        let mut change = Change { template, fixes: &mut fixes };
        let is_placed = template.spec.node_name.as_deref().is_some_and(|node| !node.is_empty());
        if !is_placed {
            change.scheduler(&settings.mutations.scheduler_name);
        }
        change.priority(settings, known);
        change.labels(settings, namespace, known);
        change.share(settings);
    }
    if settings.mutations.toleration && !with_gpus.is_empty() {
        let findings = check(object, &known.context, &settings.contract);
        let missing = findings.into_iter().filter(|finding| finding.rule.code == NO_TOLERATION);
        fixes.extend(missing.flat_map(|finding| finding.fix));
    }
    fixes
}

fn asks_for_gpus(template: &PodTemplate, settings: &Settings) -> bool {
    let spec = &template.spec;
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut asked = containers.filter_map(|one| one.resources.as_ref()).flat_map(|resources| {
        let lists = [&resources.limits, &resources.requests];
        lists.into_iter().flatten().flatten()
    });
    let by_resource =
        asked.any(|(name, amount)| settings.contract.is_gpu(name) && amount.0.trim() != "0");
    by_resource
        || has(annotation(&template.metadata, GPU_MEMORY))
        || has(annotation(&template.metadata, GPU_COMPUTE))
}

fn has(text: Option<&str>) -> bool {
    text.is_some_and(|text| !text.is_empty())
}

fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn label<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.labels.as_ref()?.get(key).map(String::as_str)
}

struct Change<'a> {
    template: &'a PodTemplate,
    fixes: &'a mut Vec<Fix>,
}

impl Change<'_> {
    fn spec(&self, field: &str) -> FieldPath {
        self.template.path.clone().key("spec").key(field)
    }

    fn metadata(&self, list: &str, key: &str) -> FieldPath {
        self.template.path.clone().key("metadata").key(list).key(key)
    }

    fn set(&mut self, path: FieldPath, value: Value) {
        self.fixes.push(Fix::Set { path, value });
    }

    fn scheduler(&mut self, name: &str) {
        let named = self.template.spec.scheduler_name.as_deref().unwrap_or_default();
        let is_free = named.is_empty() || named == DEFAULT_SCHEDULER;
        if is_free && !name.is_empty() && named != name {
            self.set(self.spec("schedulerName"), json!(name));
        }
    }

    /// The API server resolves the PriorityClass before webhooks run, and again afterwards. The resolved fields are
    /// removed, because they would contradict the new class.
    fn priority(&mut self, settings: &Settings, known: &Known) {
        let class = label(&self.template.metadata, CLASS).unwrap_or_default();
        let Some(wanted) = settings.mutations.priority_classes.get(class) else { return };
        let spec = &self.template.spec;
        let named = spec.priority_class_name.as_deref().unwrap_or_default();
        let is_free = named.is_empty() || Some(named) == known.default_priority_class.as_deref();
        if !is_free || named == wanted {
            return;
        }
        self.set(self.spec("priorityClassName"), json!(wanted));
        if spec.priority.is_some() {
            self.fixes.push(Fix::Remove { path: self.spec("priority") });
        }
        if spec.preemption_policy.is_some() {
            self.fixes.push(Fix::Remove { path: self.spec("preemptionPolicy") });
        }
    }

    fn labels(&mut self, settings: &Settings, namespace: &str, known: &Known) {
        let Some(of_namespace) = known.namespace_labels.get(namespace) else { return };
        for key in &settings.mutations.copy_labels {
            let Some(value) = of_namespace.get(key) else { continue };
            if label(&self.template.metadata, key).is_none() {
                self.set(self.metadata("labels", key), json!(value));
            }
        }
    }

    fn share(&mut self, settings: &Settings) {
        let metadata = &self.template.metadata;
        let asks_memory = has(annotation(metadata, GPU_MEMORY));
        if !asks_memory || has(annotation(metadata, GPU_COMPUTE)) {
            return;
        }
        let class = label(metadata, CLASS).unwrap_or_default();
        if let Some(share) = settings.mutations.default_shares.get(class) {
            self.set(self.metadata("annotations", GPU_COMPUTE), json!(share));
        }
    }
}
