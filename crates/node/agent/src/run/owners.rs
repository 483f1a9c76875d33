//! Who else has written a field.
//!
//! Owns reading `managedFields`, in which the API keeps who set what. An object without any has no owner that
//! could be told, which is not us. Must not know what is done about it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};

/// Who writes, as field managers are called.
pub(super) const MANAGER: &str = "berth-agent";

/// Somebody who is not told.
const NOBODY_KNOWN: &str = "somebody who is not told";

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

/// The others that own a field, by name.
pub(super) fn others(meta: &ObjectMeta, path: &[&str]) -> Vec<String> {
    let entries = meta.managed_fields.as_deref().unwrap_or_default();
    if entries.is_empty() {
        return vec![NOBODY_KNOWN.to_owned()];
    }
    let mut names: Vec<String> = entries
        .iter()
        .filter(|entry| owns(entry, path))
        .map(|entry| entry.manager.clone().unwrap_or_else(|| NOBODY_KNOWN.to_owned()))
        .filter(|manager| manager != MANAGER)
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Names of what we own below a field.
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
    fn who_else_wrote_a_field_is_told_and_we_are_not() {
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
    fn an_object_of_which_nobody_says_who_wrote_it_is_not_ours() {
        assert_eq!(others(&ObjectMeta::default(), &["zones"]).len(), 1);
    }
}
