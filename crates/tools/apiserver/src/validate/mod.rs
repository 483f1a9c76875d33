//! Validation of new ([`create`]) and changed ([`update`]) objects, with the real server's messages in its order.
//! What depends on other objects is admission.

mod change;
mod cluster;
mod custom;
mod definition;
mod meta;
mod pod;
mod policy;
mod report;
mod rules;
mod text;
mod webhooks;
mod workload;

use report::Report;
use serde_json::Value;

pub(crate) use meta::selects;

use crate::kinds::{Kind, Origin};
use crate::status::Status;

/// Validates a new object.
///
/// # Errors
///
/// 422 with every field that is wrong.
pub fn create(kind: &Kind, object: &Value) -> Result<(), Status> {
    let mut report = Report::default();
    check(kind, object, &mut report);
    if kind.is("", "pods") {
        pod::check_new(&object["spec"], &mut report);
    }
    if let Origin::Custom(row) = &kind.origin {
        custom::check(&row.schema, object, None, &mut report);
    }
    finish(kind, object, &report)
}

/// Validates a changed object.
///
/// # Errors
///
/// 422 with every field that is wrong, or must not change.
pub fn update(kind: &Kind, subresource: &str, old: &Value, new: &Value) -> Result<(), Status> {
    let mut report = Report::default();
    if !matches!(subresource, "status" | "") {
        return Ok(());
    }
    if subresource.is_empty() {
        change::check(kind, old, new, &mut report);
    }
    match &kind.origin {
        Origin::Custom(row) if subresource == "status" => {
            custom::check_status(&row.schema, new, old, &mut report);
        }
        Origin::Custom(row) => custom::check(&row.schema, new, Some(old), &mut report),
        Origin::BuiltIn => {}
    }
    finish(kind, new, &report)
}

fn finish(kind: &Kind, object: &Value, report: &Report) -> Result<(), Status> {
    if report.errors.is_empty() {
        return Ok(());
    }
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    Err(Status::invalid(&kind.resource.group, &kind.kind, name, &report.errors))
}

/// Validates an object without regard to its previous state.
fn check(kind: &Kind, object: &Value, report: &mut Report) {
    meta::check(kind, object, report);
    if matches!(kind.origin, Origin::Custom(_)) {
        return;
    }
    let spec = object.get("spec").unwrap_or(&Value::Null);
    match (&*kind.resource.group, &*kind.resource.plural) {
        ("", "pods") => pod::check("spec", spec, &[], report),
        ("apps" | "batch", plural) => workload::check(plural, object, spec, report),
        ("", "replicationcontrollers") => {}
        ("", "resourcequotas" | "limitranges")
        | (
            "policy"
            | "scheduling.k8s.io"
            | "coordination.k8s.io"
            | "autoscaling"
            | "storage.k8s.io"
            | "rbac.authorization.k8s.io",
            _,
        ) => policy::check(kind, object, spec, report),
        ("", plural) => cluster::check(plural, object, spec, report),
        ("admissionregistration.k8s.io", plural) => webhooks::check(plural, object, report),
        ("apiextensions.k8s.io", _) => definition::check(object, spec, report),
        _ => {}
    }
}
