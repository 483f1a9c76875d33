//! Discovery: groups, versions, resources, the server's version and health.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{Method, Response, header};
use serde_json::{Value, json};

use super::respond::{self, Body};
use super::{Call, openapi};
use crate::kinds::{Kind, Table};
use crate::server::Server;
use crate::status::Status;

const MINOR: &str = "36";
const GIT_VERSION: &str = "v1.36.4";

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

const ALL_VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const PART_VERBS: &[&str] = &["get", "patch", "update"];

/// A subresource as discovery lists it: name, group and version if they differ, kind, verbs.
type Part<'a> = (&'a str, Option<(&'a str, &'a str)>, &'a str, &'a [&'a str]);

/// Answers paths that name no object.
pub(crate) fn answer(server: &Server, call: &Call) -> Result<Response<Body>, Status> {
    if !matches!(call.method, Method::GET | Method::HEAD) {
        return Ok(not_found());
    }
    let table = server.kinds.table();
    let path = call.path.trim_end_matches('/');
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let response = match segments.as_slice() {
        ["healthz" | "livez" | "readyz", ..] => respond::text(200, "ok"),
        ["version"] => respond::json(200, &version()),
        ["api"] if aggregated(call) => respond::json_as(AGGREGATED, &aggregate(&table, true)),
        ["apis"] if aggregated(call) => respond::json_as(AGGREGATED, &aggregate(&table, false)),
        ["api"] => respond::json(
            200,
            &json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        ),
        ["apis"] => {
            let groups: Vec<Value> = groups(&table).iter().map(group_json).collect();
            let list = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups});
            respond::json(200, &list)
        }
        ["apis", name] => match groups(&table).iter().find(|group| group.name == *name) {
            Some(group) => {
                let mut group = group_json(group);
                group["kind"] = Value::from("APIGroup");
                group["apiVersion"] = Value::from("v1");
                respond::json(200, &group)
            }
            None => not_found(),
        },
        ["api", version] => resources(&table, "", version),
        ["apis", group, version] => resources(&table, group, version),
        ["openapi", "v2"] => openapi::older(call.header(header::ACCEPT)),
        ["openapi", "v3"] => respond::json(200, &openapi::index(&table)),
        ["openapi", "v3", "api", version] => openapi::document(&table, "", version),
        ["openapi", "v3", "apis", group, version] => openapi::document(&table, group, version),
        [""] | [] => respond::json(200, &paths(&table)),
        _ => not_found(),
    };
    Ok(response)
}

pub(super) fn not_found() -> Response<Body> {
    respond::text(404, "404 page not found\n")
}

fn aggregated(call: &Call) -> bool {
    let accept = call.header(header::ACCEPT);
    accept.split(',').any(|one| {
        let parts: Vec<&str> = one.split(';').map(str::trim).collect();
        parts.contains(&"g=apidiscovery.k8s.io")
            && parts.contains(&"v=v2")
            && parts.contains(&"as=APIGroupDiscoveryList")
    })
}

fn version() -> Value {
    json!({
        "major": "1",
        "minor": MINOR,
        "emulationMajor": "1",
        "emulationMinor": MINOR,
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35",
        "gitVersion": format!("{GIT_VERSION}+berth"),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, platform()),
    })
}

fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn paths(table: &Table) -> Value {
    let mut paths: Vec<String> = [
        "/api",
        "/api/v1",
        "/apis",
        "/healthz",
        "/livez",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/version",
    ]
    .map(str::to_owned)
    .to_vec();
    for group in groups(table) {
        paths.push(format!("/apis/{}", group.name));
        paths.extend(group.versions.iter().map(|v| format!("/apis/{}/{v}", group.name)));
    }
    paths.sort();
    json!({"paths": paths})
}

/// A group with its versions, the preferred one first.
struct Group {
    name: String,
    versions: Vec<String>,
}

/// All groups but the core one, in the order of the table.
fn groups(table: &Table) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for row in table.rows().iter().filter(|row| !row.resource.group.is_empty()) {
        let at = groups.iter().position(|group| *group.name == *row.resource.group);
        let at = at.unwrap_or_else(|| {
            let name = row.resource.group.to_string();
            groups.push(Group { name, versions: Vec::new() });
            groups.len() - 1
        });
        let versions = &mut groups[at].versions;
        if !versions.iter().any(|version| *version == *row.version) {
            versions.push(row.version.to_string());
        }
    }
    for group in &mut groups {
        group.versions.sort_by_key(|version| std::cmp::Reverse(priority(version)));
    }
    groups
}

/// Stable versions before beta before alpha, then the newer ones.
fn priority(version: &str) -> (u8, u32, u32) {
    let digits = |text: &str| text.parse::<u32>().ok();
    let Some(rest) = version.strip_prefix('v') else { return (0, 0, 0) };
    for (word, rank) in [("beta", 2), ("alpha", 1)] {
        if let Some((major, minor)) = rest.split_once(word) {
            return match (digits(major), digits(minor)) {
                (Some(major), Some(minor)) => (rank, major, minor),
                _ => (0, 0, 0),
            };
        }
    }
    digits(rest).map_or((0, 0, 0), |major| (3, major, 0))
}

fn group_json(group: &Group) -> Value {
    let version = |version: &String| json!({"groupVersion": format!("{}/{version}", group.name), "version": version});
    let versions: Vec<Value> = group.versions.iter().map(version).collect();
    json!({"name": group.name, "versions": versions, "preferredVersion": versions.first()})
}

fn verbs(kind: &Kind) -> Vec<&'static str> {
    if !kind.stored {
        return vec!["create"];
    }
    // Namespaces have no deletecollection.
    let skips = kind.is("", "namespaces");
    ALL_VERBS.iter().copied().filter(|verb| !(skips && *verb == "deletecollection")).collect()
}

fn parts(kind: &Kind) -> Vec<Part<'_>> {
    let own = &*kind.kind;
    let mut parts: Vec<Part<'_>> = Vec::new();
    if kind.is("", "pods") {
        parts.push(("binding", None, "Binding", &["create"]));
        parts.push(("eviction", Some(("policy", "v1")), "Eviction", &["create"]));
        parts.push(("log", None, "Pod", &["get"]));
    }
    if kind.is("", "namespaces") {
        parts.push(("finalize", None, "Namespace", &["update"]));
    }
    if kind.is("", "serviceaccounts") {
        let group = Some(("authentication.k8s.io", "v1"));
        parts.push(("token", group, "TokenRequest", &["create"]));
    }
    if kind.subresources.scale.is_some() {
        parts.push(("scale", Some(("autoscaling", "v1")), "Scale", PART_VERBS));
    }
    if kind.subresources.status {
        parts.push(("status", None, own, PART_VERBS));
    }
    parts
}

fn resources(table: &Table, group: &str, version: &str) -> Response<Body> {
    if !table.has_version(group, version) {
        return not_found();
    }
    let mut list = Vec::new();
    let rows = |row: &&Arc<Kind>| &*row.resource.group == group && &*row.version == version;
    for row in table.rows().iter().filter(rows) {
        let mut entry = json!({
            "name": &*row.resource.plural,
            "singularName": &*row.singular,
            "namespaced": row.namespaced,
            "kind": &*row.kind,
            "verbs": verbs(row),
        });
        if !row.short_names.is_empty() {
            entry["shortNames"] = texts(&row.short_names);
        }
        if !row.categories.is_empty() {
            entry["categories"] = texts(&row.categories);
        }
        list.push(entry);
        for (name, other, kind, verbs) in parts(row) {
            let mut entry = json!({
                "name": format!("{}/{name}", row.resource.plural),
                "singularName": "",
                "namespaced": row.namespaced,
                "kind": kind,
                "verbs": verbs,
            });
            if let Some((group, version)) = other {
                entry["group"] = Value::from(group);
                entry["version"] = Value::from(version);
            }
            list.push(entry);
        }
    }
    let group_version =
        if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let mut body = json!({
        "kind": "APIResourceList",
        "groupVersion": group_version,
        "resources": list,
    });
    if !group.is_empty() {
        body["apiVersion"] = Value::from("v1");
    }
    respond::json(200, &body)
}

fn texts(list: &[Arc<str>]) -> Value {
    Value::from(list.iter().map(|text| Value::from(&**text)).collect::<Vec<_>>())
}

fn aggregate(table: &Table, core: bool) -> Value {
    let groups = if core {
        vec![Group { name: String::new(), versions: vec!["v1".to_owned()] }]
    } else {
        groups(table)
    };
    let items: Vec<Value> = groups.iter().map(|group| aggregate_group(table, group)).collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    })
}

fn aggregate_group(table: &Table, group: &Group) -> Value {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|version| {
            let resources: Vec<Value> = table
                .rows()
                .iter()
                .filter(|row| *row.resource.group == *group.name && *row.version == **version)
                .map(|row| aggregate_resource(row))
                .collect();
            json!({"version": version, "resources": resources, "freshness": "Current"})
        })
        .collect();
    let metadata = if group.name.is_empty() { json!({}) } else { json!({"name": group.name}) };
    json!({"metadata": metadata, "versions": versions})
}

fn aggregate_resource(row: &Kind) -> Value {
    let kind = |group: &str, version: &str, kind: &str| {
        let all = [("group", group), ("version", version), ("kind", kind)];
        Value::from_iter(all.map(|(key, text)| (key.to_owned(), Value::from(text))))
    };
    let (group, version) = (&*row.resource.group, &*row.version);
    let subresources: Vec<Value> = parts(row)
        .into_iter()
        .map(|(name, other, part_kind, verbs)| {
            let (group, version) = other.unwrap_or((group, version));
            json!({
                "subresource": name,
                "responseKind": kind(group, version, part_kind),
                "verbs": verbs,
            })
        })
        .collect();
    let mut entry: BTreeMap<&str, Value> = BTreeMap::from([
        ("resource", Value::from(&*row.resource.plural)),
        ("responseKind", kind(group, version, &row.kind)),
        ("scope", Value::from(if row.namespaced { "Namespaced" } else { "Cluster" })),
        ("singularResource", Value::from(&*row.singular)),
        ("verbs", Value::from(verbs(row))),
    ]);
    let lists = [
        ("shortNames", texts(&row.short_names)),
        ("categories", texts(&row.categories)),
        ("subresources", Value::from(subresources)),
    ];
    for (name, list) in lists {
        if list.as_array().is_some_and(|list| !list.is_empty()) {
            entry.insert(name, list);
        }
    }
    Value::from_iter(entry.into_iter().map(|(key, value)| (key.to_owned(), value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_and_more_stable_versions_come_first() {
        let mut versions = vec!["v1alpha1", "v2beta1", "v1", "v2", "v1beta2", "foo"];
        versions.sort_by_key(|version| std::cmp::Reverse(priority(version)));
        assert_eq!(versions, ["v2", "v1", "v2beta1", "v1beta2", "v1alpha1", "foo"]);
    }
}
