//! OpenAPI documents as kubectl reads them: parameters of requests and schemas of kinds.
//!
//! kubectl looks here whether the server checks unknown fields (`fieldValidation`) and takes a dry run, what
//! `kubectl explain` shows, and how lists merge in the patches of `kubectl apply`.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use http::Response;
use serde_json::{Map, Value, json};

use super::discovery;
use super::respond::{self, Body};
use crate::kinds::{Kind, Origin, Table};
use crate::schema;

/// The media type in which kubectl wants the older document.
const OLDER_ASKED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// The media type of the answer: Go rejects the `@`, so the real server leaves it out.
const OLDER_ANSWERED: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// OpenAPI v2 without content. kubectl asks for it about kinds that v3 lacks, and reports an unknown kind only if
/// it gets an answer.
pub(crate) fn older(accept: &str) -> Response<Body> {
    if accept.contains(OLDER_ASKED) || accept.contains(OLDER_ANSWERED) {
        // Field 1 is the version of the format.
        return respond::bytes_as(OLDER_ANSWERED, b"\x0a\x032.0".to_vec());
    }
    let info = json!({"title": "Kubernetes", "version": "v1.36"});
    respond::json(200, &json!({"swagger": "2.0", "info": info, "paths": {}}))
}

/// Where the document of each version is.
pub(crate) fn index(table: &Table) -> Value {
    let mut paths = Map::new();
    for row in table.rows() {
        let place = place(row);
        if !paths.contains_key(&place) {
            let hash = hash(table, &row.resource.group, &row.version);
            let url = format!("/openapi/v3/{place}?hash={hash:016X}");
            paths.insert(place, json!({"serverRelativeURL": url}));
        }
    }
    json!({"paths": paths})
}

fn place(row: &Kind) -> String {
    if row.resource.group.is_empty() {
        format!("api/{}", row.version)
    } else {
        format!("apis/{}/{}", row.resource.group, row.version)
    }
}

fn rows<'a>(table: &'a Table, group: &str, version: &str) -> impl Iterator<Item = &'a Arc<Kind>> {
    table.rows().iter().filter(move |row| &*row.resource.group == group && &*row.version == version)
}

/// Changes with the document, so that clients can cache it.
fn hash(table: &Table, group: &str, version: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    for row in rows(table, group, version) {
        row.kind.hash(&mut hasher);
        row.subresources.status.hash(&mut hasher);
        if let Origin::Custom(custom) = &row.origin {
            custom.schema.to_string().hash(&mut hasher);
        }
    }
    hasher.finish()
}

pub(crate) fn document(table: &Table, group: &str, version: &str) -> Response<Body> {
    if !table.has_version(group, version) {
        return discovery::not_found();
    }
    let mut paths = Map::new();
    let mut schemas = Map::new();
    for row in rows(table, group, version) {
        add_paths(&mut paths, row);
        let schema = schema(row, &mut schemas);
        schemas.insert(schema_name(row), schema);
    }
    let document = json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36.4"},
        "paths": paths,
        "components": {"schemas": schemas},
    });
    respond::json(200, &document)
}

fn type_of(row: &Kind) -> Value {
    json!({
        "group": &*row.resource.group,
        "version": &*row.version,
        "kind": &*row.kind,
    })
}

fn schema_name(row: &Kind) -> String {
    let reversed: Vec<&str> = row.resource.group.split('.').rev().collect();
    let group = if row.resource.group.is_empty() { "core".to_owned() } else { reversed.join(".") };
    match row.origin {
        Origin::BuiltIn => format!("io.k8s.api.{group}.{}.{}", row.version, row.kind),
        Origin::Custom(_) => format!("{group}.{}.{}", row.version, row.kind),
    }
}

fn schema(row: &Kind, components: &mut Map<String, Value>) -> Value {
    let mut schema = match (&row.origin, schema::of(row).structure()) {
        (Origin::Custom(custom), _) if custom.schema.is_object() => {
            let mut schema = custom.schema.clone();
            // Schemas of definitions omit these fields.
            for field in ["apiVersion", "kind"] {
                schema["properties"][field] = json!({"type": "string"});
            }
            let meta = schema::openapi::of_node(&schema::named("ObjectMeta"), components);
            schema["properties"]["metadata"] = meta;
            schema
        }
        (_, Some(structure)) => schema::openapi::of_struct(structure, components),
        _ => json!({"type": "object"}),
    };
    schema["x-kubernetes-group-version-kind"] = json!([type_of(row)]);
    schema
}

fn parameter(name: &str, kind: &str) -> Value {
    json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}})
}

fn add_paths(paths: &mut Map<String, Value>, row: &Kind) {
    let namespace = if row.namespaced { "namespaces/{namespace}/" } else { "" };
    let all = format!("/{}/{namespace}{}", place(row), row.resource.plural);
    let parameters = json!([
        parameter("dryRun", "string"),
        parameter("fieldManager", "string"),
        parameter("fieldValidation", "string"),
    ]);
    let reference = json!({"$ref": format!("#/components/schemas/{}", schema_name(row))});
    let body = json!({"content": {"application/json": {"schema": reference}}});
    let operation = |action: &str, body: Option<&Value>| {
        let mut operation = json!({
            "parameters": parameters,
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": type_of(row),
        });
        if let Some(body) = body {
            operation["requestBody"] = body.clone();
        }
        operation
    };
    let mut whole = json!({"post": operation("post", Some(&body))});
    if row.stored {
        whole["get"] = operation("list", None);
        let object = json!({"schema": {"type": "object"}});
        let patch = json!({"content": {
            "application/apply-patch+yaml": object,
            "application/json-patch+json": object,
            "application/merge-patch+json": object,
        }});
        let mut patching = operation("patch", Some(&patch));
        if let Some(list) = patching["parameters"].as_array_mut() {
            list.push(parameter("force", "boolean"));
        }
        let one = json!({
            "get": operation("get", None),
            "put": operation("put", Some(&body)),
            "patch": patching,
            "delete": operation("delete", None),
        });
        paths.insert(format!("{all}/{{name}}"), one);
    }
    paths.insert(all, whole);
}
