//! The rule on objects that the API server rejects.

use berth_api::FieldPath;
use berth_api::workload::Workload;
use berth_model::quantity::Quantity;
use berth_model::resource::ResourceName;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::{Breach, Scope};
use crate::context::labels_of;
use crate::rule::{Rule, Severity, Topic};
use crate::view::PodView;

pub(crate) static INVALID: Rule = Rule {
    code: "BERTH-100",
    name: "invalid",
    topic: Topic::Requests,
    severity: Severity::Error,
    summary: "The API server accepts the object.",
    why: "A rejected object never reaches a scheduler: the rollout stops, or a controller retries to \
          create pods that are rejected, and only its events show it.",
    remedy: "Correct the field as the message says.",
    safe_fix: None,
};

/// A document with an object's fields but without the two that say what it is.
pub(crate) fn check_document(scope: &mut Scope<'_>) {
    let has = |key: &str| scope.object.json.get(key).is_some();
    let reference = &scope.object.reference;
    let missing = match (reference.api_version.is_empty(), reference.kind.is_empty()) {
        // Charts of Helm have an apiVersion and a name.
        (false, true) if !has("name") => "kind",
        (true, false) if has("metadata") => "apiVersion",
        (true, true) if has("metadata") && has("spec") => "kind",
        _ => return,
    };
    let field = FieldPath::root().key(missing);
    let remedy = "Add apiVersion and kind, such as v1 and Pod.";
    scope.add(Breach::new(&INVALID, field, format!("{missing} is required")).remedy(remedy));
}

pub(crate) fn check_workload(workload: &Workload, scope: &mut Scope<'_>) {
    for template in &workload.templates {
        let Some((field, selector)) = &template.selector else { continue };
        // Kustomize may fill it in; kubectl reports it otherwise.
        if *selector == LabelSelector::default() {
            continue;
        }
        let Some(read) = berth_api::read_selector(selector) else { continue };
        if !read.matches(&labels_of(&template.metadata)) {
            let message = "selector does not match the labels of the pod template";
            scope.add(
                Breach::new(&INVALID, field.clone(), message)
                    .remedy("Add the selected labels to the pod template."),
            );
        }
    }
}

pub(crate) fn check_pod(view: &PodView<'_>, scope: &mut Scope<'_>) {
    if let Err(error) = &view.lowered {
        // BERTH-801 reports Berth's own annotations.
        if !error.field.contains("berth.dev/") && error.field != "metadata.name" {
            let field = view.template.path.clone().join(&FieldPath::parse(&error.field));
            scope.add(Breach::new(&INVALID, field, error.problem.clone()));
        }
    }
    for container in &view.containers {
        for resource in container.resources() {
            // BERTH-101 and BERTH-102 report GPUs.
            if scope.settings.is_gpu(resource) {
                continue;
            }
            let of = |text: Option<&Text>| text.and_then(|Text(text)| Quantity::parse(text).ok());
            let (request, limit) = (of(container.request(resource)), of(container.limit(resource)));
            let name = ResourceName::new(resource);
            let strict = name.is_extended() || name.is_hugepages();
            let message = match (request, limit) {
                (Some(request), Some(limit)) if request > limit => {
                    format!("request of {request} exceeds the limit of {limit}")
                }
                (Some(request), Some(limit)) if strict && request != limit => {
                    format!("request of {request} differs from the limit of {limit}")
                }
                (Some(request), None) if strict => format!("request of {request} without a limit"),
                _ => continue,
            };
            let remedy = if strict {
                format!("Set equal requests and limits of {resource}.")
            } else {
                format!("Request at most the limit of {resource}.")
            };
            let field = container.field("requests", resource);
            scope.add(Breach::new(&INVALID, field, message).remedy(remedy));
        }
    }
}
