//! Validation of CustomResourceDefinitions: names, versions, and that there is a schema, whose content is not
//! checked.

use serde_json::{Value, json};

use super::report::{Report, flag, list, text};
use super::text;

pub(super) fn check(object: &Value, spec: &Value, report: &mut Report) {
    let names = spec.get("names").unwrap_or(&Value::Null);
    let (plural, group) = (text(names, "plural"), text(spec, "group"));
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    if name != format!("{plural}.{group}") {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        report.invalid("metadata.name", &json!(name), detail);
    }
    if group.is_empty() {
        report.required("spec.group", "");
    } else if !group.contains('.') {
        let detail = "should be a domain with at least one dot";
        report.invalid("spec.group", &json!(group), detail);
    } else {
        report.text("spec.group", group, text::subdomain(group));
    }
    report.one_of("spec.scope", text(spec, "scope"), &["Cluster", "Namespaced"]);
    let versions = list(spec, "versions");
    for (i, version) in versions.iter().enumerate() {
        let name = text(version, "name");
        report.text(&format!("spec.versions[{i}].name"), name, text::letter_label(name));
    }
    let stored = versions.iter().filter(|version| flag(version, "storage")).count();
    if stored != 1 {
        let shown: Vec<String> = versions.iter().map(version_as_go).collect();
        let detail = "must have exactly one version marked as storage version";
        report.invalid_as("spec.versions", format!("[{}]", shown.join(",")), detail);
        let detail = "must have at least one stored version";
        report.invalid("status.storedVersions", &Value::Null, detail);
    }
    check_names(names, report);
    for (i, version) in versions.iter().enumerate() {
        let schema = version.pointer("/schema/openAPIV3Schema");
        if schema.is_none() {
            let path = format!("spec.versions[{i}].schema.openAPIV3Schema");
            report.required(&path, "");
        } else if schema.is_some_and(|schema| text(schema, "type").is_empty()) {
            let path = "spec.validation.openAPIV3Schema.type";
            report.required(path, "must not be empty at the root");
        }
    }
}

/// A version as the real server's own type prints it.
fn version_as_go(version: &Value) -> String {
    let flags = ["served", "storage", "deprecated"].map(|name| flag(version, name));
    let [served, storage, deprecated] = flags;
    format!(
        "{{\"Name\":{},\"Served\":{served},\"Storage\":{storage},\"Deprecated\":{deprecated},\
         \"DeprecationWarning\":null,\"Schema\":null,\"Subresources\":null,\
         \"AdditionalPrinterColumns\":null,\"SelectableFields\":null}}",
        json!(text(version, "name"))
    )
}

fn check_names(names: &Value, report: &mut Report) {
    for name in ["plural", "singular"] {
        let value = text(names, name);
        let path = format!("spec.names.{name}");
        if value.is_empty() {
            report.required(&path, "");
        } else {
            report.text(&path, value, text::letter_label(value));
        }
    }
    for name in ["kind", "listKind"] {
        let value = text(names, name);
        let path = format!("spec.names.{name}");
        if value.is_empty() {
            report.required(&path, "");
        } else {
            report.text(&path, value, text::letter_label(&value.to_lowercase()));
        }
    }
    for list_name in ["shortNames", "categories"] {
        for (i, name) in list(names, list_name).iter().filter_map(Value::as_str).enumerate() {
            let path = format!("spec.names.{list_name}[{i}]");
            report.text(&path, name, text::letter_label(name));
        }
    }
}
