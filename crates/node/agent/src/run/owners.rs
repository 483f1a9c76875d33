//! Field ownership, from `managedFields`. An object without them counts as another client's.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};

/// Field manager of the agent.
pub(super) const MANAGER: &str = "berth-agent";

const UNKNOWN_MANAGER: &str = "an unknown client";

fn owns(entry: &ManagedFieldsEntry, path: &[&str]) -> bool {
    let mut at = match &entry.fields_v1 {
        Some(fields) => &fields.0,
        None => return false,
    };
    for field in path {
        match at.get(format!("f:{field}")) {
            Some(inner) => at = inner,
            None => return false,
        }
    }
    true
}

/// Other clients that own a field.
pub(super) fn others(meta: &ObjectMeta, path: &[&str]) -> Vec<String> {
    let entries = meta.managed_fields.as_deref().unwrap_or_default();
    if entries.is_empty() {
        return vec![UNKNOWN_MANAGER.to_owned()];
    }
    let mut names: Vec<String> = entries
        .iter()
        .filter(|entry| owns(entry, path))
        .map(|entry| entry.manager.clone().unwrap_or_else(|| UNKNOWN_MANAGER.to_owned()))
        .filter(|manager| manager != MANAGER)
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Keys below a field that the agent owns.
pub(super) fn ours(meta: &ObjectMeta, path: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let entries = meta.managed_fields.iter().flatten();
    for entry in entries.filter(|entry| entry.manager.as_deref() == Some(MANAGER)) {
        let mut at = entry.fields_v1.as_ref().map(|fields| &fields.0);
        for field in path {
            at = at.and_then(|at| at.get(format!("f:{field}")));
        }
        let names = at.and_then(|at| at.as_object()).into_iter().flatten();
        found.extend(names.filter_map(|(name, _)| name.strip_prefix("f:").map(str::to_owned)));
    }
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn written_by(all: &[(&str, Value)]) -> ObjectMeta {
        let entry = |(manager, fields): &(&str, Value)| json!({ "manager": manager, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields });
        let entries: Vec<Value> = all.iter().map(entry).collect();
        serde_json::from_value(json!({ "managedFields": entries })).unwrap_or_default()
    }

    #[test]
    fn owners_of_a_field_are_listed_without_the_agent() {
        let labels =
            |key: &str| json!({ "f:metadata": { "f:labels": { format!("f:{key}"): {} } } });
        let meta = written_by(&[
            ("nfd-master", labels("nvidia.com/gpu.product")),
            (MANAGER, labels("berth.dev/sockets")),
            ("nfd-topology-updater", json!({ "f:zones": {} })),
        ]);
        assert_eq!(others(&meta, &["zones"]), ["nfd-topology-updater"]);
        assert_eq!(others(&meta, &["attributes"]), [""; 0]);
        let of = |key: &str| others(&meta, &["metadata", "labels", key]);
        assert_eq!(of("nvidia.com/gpu.product"), ["nfd-master"]);
        assert_eq!(of("berth.dev/sockets"), [""; 0]);
        assert_eq!(ours(&meta, &["metadata", "labels"]), ["berth.dev/sockets"]);
    }

    #[test]
    fn an_object_without_managed_fields_is_not_owned_by_the_agent() {
        assert_eq!(others(&ObjectMeta::default(), &["zones"]).len(), 1);
    }
}
