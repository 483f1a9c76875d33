//! What the API server refuses, said before it is asked.
//!
//! Owns the rule on objects that cannot be created at all. Must not know what is unwise only.

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
    summary: "An object is one that the API server would store.",
    why: "What the API server refuses never reaches a scheduler: the rollout stops, or a controller \
          tries for ever to create pods that are turned away, and only its events say so.",
    remedy: "Correct the field as the message says.",
    safe_fix: None,
};

pub(crate) fn check_workload(workload: &Workload, scope: &mut Scope<'_>) {
    for template in &workload.templates {
        let Some((field, selector)) = &template.selector else { continue };
        // Kustomize fills in what is left out, and kubectl complains of what stays so.
        if *selector == LabelSelector::default() {
            continue;
        }
        let Some(read) = berth_api::read_selector(selector) else { continue };
        if !read.matches(&labels_of(&template.metadata)) {
            let message = "does not match the labels of the pod template";
            scope.add(
                Breach::new(&INVALID, field.clone(), message)
                    .remedy("Give the pod template the labels that are selected."),
            );
        }
    }
}

pub(crate) fn check_pod(view: &PodView<'_>, scope: &mut Scope<'_>) {
    if let Err(error) = &view.lowered {
        // Berth's own annotations have a rule of their own.
        if !error.field.contains("berth.dev/") && error.field != "metadata.name" {
            let field = view.template.path.clone().join(&FieldPath::parse(&error.field));
            scope.add(Breach::new(&INVALID, field, error.problem.clone()));
        }
    }
    for container in &view.containers {
        for resource in container.resources() {
            // GPUs have rules of their own.
            if scope.settings.is_gpu(resource) {
                continue;
            }
            let of = |text: Option<&Text>| text.and_then(|Text(text)| Quantity::parse(text).ok());
            let (request, limit) = (of(container.request(resource)), of(container.limit(resource)));
            let name = ResourceName::new(resource);
            let strict = name.is_extended() || name.is_hugepages();
            let message = match (request, limit) {
                (Some(request), Some(limit)) if request > limit => {
                    format!("{request} is above the limit of {limit}")
                }
                (Some(request), Some(limit)) if strict && request != limit => {
                    format!("{request} differs from the limit of {limit}")
                }
                (Some(request), None) if strict => format!("{request} has no limit"),
                _ => continue,
            };
            let remedy = if strict {
                format!("Request as much {resource} as the limit says.")
            } else {
                format!("Request at most as much {resource} as the limit allows.")
            };
            let field = container.field("requests", resource);
            scope.add(Breach::new(&INVALID, field, message).remedy(remedy));
        }
    }
}
