//! CustomResourceDefinitions: from objects to rows of the table of kinds.
//!
//! After every write of a definition all rows are rebuilt from the store, so the table cannot disagree with the
//! definitions.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::clock;
use crate::kinds::{CustomRow, Kind, Kinds, Origin, Resource, ScalePaths, Subresources};
use crate::store::{Expected, Store, Stored};

/// Finalizer that keeps a definition until its objects are gone.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

pub(crate) fn definitions() -> Resource {
    Resource::new("apiextensions.k8s.io", "customresourcedefinitions")
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn is_deleting(definition: &Value) -> bool {
    definition["metadata"]["deletionTimestamp"].is_string()
}

/// Updates the table of kinds, and the status and deletion of definitions.
pub(crate) fn settle(store: &Store, kinds: &Kinds) {
    let mut stored = store.list(&definitions(), None).items;
    // Of two definitions with the same name, the older keeps it.
    stored.sort_by_key(|definition| {
        let created = text(&definition.value, "/metadata/creationTimestamp").to_owned();
        (created, definition.key.clone())
    });
    let mut taken = Taken::default();
    let mut rows = Vec::new();
    for definition in &stored {
        if is_deleting(&definition.value) {
            // Objects that wait for finalizers must stay accessible.
            if !clean_up(store, definition) {
                rows.extend(rows_of(&definition.value));
            }
        } else {
            let conflict = taken.claim(&definition.value);
            establish(store, definition, conflict.as_deref());
            if conflict.is_none() {
                rows.extend(rows_of(&definition.value));
            }
        }
    }
    kinds.set_custom(rows);
}

#[derive(Default)]
struct Taken {
    names: BTreeSet<(String, String)>,
    kinds: BTreeSet<(String, String)>,
}

impl Taken {
    /// Takes the names of a definition. Returns the first name that is in use.
    fn claim(&mut self, definition: &Value) -> Option<String> {
        let group = text(definition, "/spec/group");
        let names = &definition["spec"]["names"];
        let plain = |name: &str| (group.to_owned(), name.to_owned());
        let kinds = [plain(text(names, "/kind")), plain(&list_kind(names))];
        let mut words = vec![plain(text(names, "/plural")), plain(&singular(names))];
        words.extend(list(names, "/shortNames").iter().filter_map(Value::as_str).map(plain));
        if let Some((_, name)) = kinds.iter().find(|name| self.kinds.contains(name)) {
            return Some(format!("{} is already in use", crate::status::quoted(name)));
        }
        if let Some((_, name)) = words.iter().find(|name| self.names.contains(name)) {
            return Some(format!("{} is already in use", crate::status::quoted(name)));
        }
        self.kinds.extend(kinds);
        self.names.extend(words);
        None
    }
}

fn singular(names: &Value) -> String {
    match text(names, "/singular") {
        "" => text(names, "/kind").to_lowercase(),
        singular => singular.to_owned(),
    }
}

fn list_kind(names: &Value) -> String {
    match text(names, "/listKind") {
        "" => format!("{}List", text(names, "/kind")),
        kind => kind.to_owned(),
    }
}

/// Sets the conditions `NamesAccepted` and `Established`.
fn establish(store: &Store, definition: &Stored, conflict: Option<&str>) {
    let mut new = Value::clone(&definition.value);
    let finalizers = &mut new["metadata"]["finalizers"];
    if !finalizers.is_array() {
        *finalizers = json!([]);
    }
    if let Some(finalizers) = finalizers.as_array_mut()
        && !finalizers.iter().any(|name| name == CLEANUP)
    {
        finalizers.push(json!(CLEANUP));
    }
    let status = &mut new["status"];
    if !status.is_object() {
        *status = json!({});
    }
    let (accepted, established) = match conflict {
        None => (
            ("True", "NoConflicts", "no conflicts found"),
            ("True", "InitialNamesAccepted", "the initial names have been accepted"),
        ),
        Some(conflict) => (
            ("False", "NameConflict", conflict),
            ("False", "NotAccepted", "not all names are accepted"),
        ),
    };
    set_condition(status, "NamesAccepted", accepted);
    // `Established` never becomes false.
    if conflict.is_none() || !has(status, "Established") {
        set_condition(status, "Established", established);
    }
    if conflict.is_none() {
        let mut names = definition.value["spec"]["names"].clone();
        names["singular"] = json!(singular(&names));
        names["listKind"] = json!(list_kind(&names));
        status["acceptedNames"] = names;
    }
    add_stored_version(&definition.value, status);
    if new != *definition.value {
        let expected = Expected::Revision(definition.revision);
        // A concurrent change triggers another pass.
        let _ = store.put(&definitions(), &definition.key, expected, new);
    }
}

fn add_stored_version(definition: &Value, status: &mut Value) {
    let versions = list(definition, "/spec/versions");
    let stored = versions.iter().find(|version| version["storage"] == true);
    let Some(name) = stored.and_then(|version| version["name"].as_str()) else { return };
    if !status["storedVersions"].is_array() {
        status["storedVersions"] = json!([]);
    }
    if let Some(known) = status["storedVersions"].as_array_mut()
        && !known.iter().any(|version| version == name)
    {
        known.push(json!(name));
    }
}

fn has(status: &Value, kind: &str) -> bool {
    list(status, "/conditions").iter().any(|condition| condition["type"] == kind)
}

fn set_condition(status: &mut Value, kind: &str, (value, reason, message): (&str, &str, &str)) {
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(conditions) = status["conditions"].as_array_mut() else { return };
    let condition = json!({
        "type": kind,
        "status": value,
        "lastTransitionTime": clock::now(),
        "reason": reason,
        "message": message,
    });
    match conditions.iter_mut().find(|condition| condition["type"] == kind) {
        Some(present) if present["status"] == value && present["reason"] == reason => {}
        Some(present) => *present = condition,
        None => conditions.push(condition),
    }
}

/// Removes the objects of a deleted definition, then the definition. False while objects wait for finalizers.
fn clean_up(store: &Store, definition: &Stored) -> bool {
    let group = text(&definition.value, "/spec/group");
    let resource = Resource::new(group, text(&definition.value, "/spec/names/plural"));
    let mut left = 0;
    for object in store.list(&resource, None).items {
        let waits = list(&object.value, "/metadata/finalizers").is_empty();
        let expected = Expected::Revision(object.revision);
        if waits {
            let _ = store.remove(&resource, &object.key, expected);
            continue;
        }
        left += 1;
        if !is_deleting(&object.value) {
            let mut marked = Value::clone(&object.value);
            marked["metadata"]["deletionTimestamp"] = json!(clock::now());
            marked["metadata"]["deletionGracePeriodSeconds"] = json!(0);
            let _ = store.put(&resource, &object.key, expected, marked);
        }
    }
    if left > 0 {
        return false;
    }
    let mut new = Value::clone(&definition.value);
    if let Some(finalizers) = new["metadata"]["finalizers"].as_array_mut() {
        finalizers.retain(|name| name != CLEANUP);
    }
    let expected = Expected::Revision(definition.revision);
    if list(&new, "/metadata/finalizers").is_empty() {
        let _ = store.remove_as(&definitions(), &definition.key, expected, new);
    } else if new != *definition.value {
        let _ = store.put(&definitions(), &definition.key, expected, new);
    }
    true
}

/// One row for each version that is served.
fn rows_of(definition: &Value) -> Vec<Arc<Kind>> {
    let versions = list(definition, "/spec/versions").iter();
    versions
        .filter(|version| version["served"] == true)
        .map(|version| Arc::new(row_of(definition, version)))
        .collect()
}

fn row_of(definition: &Value, version: &Value) -> Kind {
    let names = &definition["spec"]["names"];
    let resource = Resource::new(text(definition, "/spec/group"), text(names, "/plural"));
    let texts = |pointer: &str| {
        list(names, pointer).iter().filter_map(Value::as_str).map(Arc::from).collect()
    };
    let schema = &version["schema"]["openAPIV3Schema"];
    let scale = &version["subresources"]["scale"];
    let path =
        |field: &str| scale[field].as_str().map(|path| Arc::from(path.trim_start_matches('.')));
    let scale =
        path("specReplicasPath").zip(path("statusReplicasPath")).map(|(spec, status)| ScalePaths {
            spec_replicas: spec,
            status_replicas: status,
            selector: path("labelSelectorPath"),
        });
    let selectable = list(version, "/selectableFields")
        .iter()
        .filter_map(|field| field["jsonPath"].as_str())
        .map(|path| path.trim_start_matches('.').to_owned())
        .collect();
    Kind {
        stored_as: resource.clone(),
        resource,
        version: Arc::from(text(version, "/name")),
        kind: Arc::from(text(names, "/kind")),
        list_kind: Arc::from(list_kind(names)),
        singular: Arc::from(singular(names)),
        short_names: texts("/shortNames"),
        categories: texts("/categories"),
        namespaced: text(definition, "/spec/scope") == "Namespaced",
        subresources: Subresources { status: version["subresources"]["status"].is_object(), scale },
        stored: true,
        origin: Origin::Custom(Arc::new(CustomRow {
            schema: schema.clone(),
            printer_columns: list(version, "/additionalPrinterColumns").to_vec(),
            selectable_fields: selectable,
            preserve_unknown_fields: definition["spec"]["preserveUnknownFields"] == true
                || schema["x-kubernetes-preserve-unknown-fields"] == true,
        })),
    }
}
