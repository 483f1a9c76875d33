//! Label and field selectors of list and watch requests.

mod labels;

use serde_json::Value;

use crate::kinds::{Kind, Origin};
use crate::status::Status;
pub use labels::Labels;

#[derive(Clone, Debug, Default)]
pub struct Selector {
    labels: Labels,
    fields: Vec<FieldTerm>,
}

#[derive(Clone, Debug)]
struct FieldTerm {
    path: String,
    value: String,
    equal: bool,
}

/// Limit of terms in a selector.
const TERMS_MAX: usize = 4096;

impl Selector {
    /// From the two query parameters, either of which may be empty.
    pub fn parse(kind: &Kind, labels: &str, fields: &str) -> Result<Self, Status> {
        Ok(Self { labels: Labels::parse(labels)?, fields: parse_fields(kind, fields)? })
    }

    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_empty()
    }

    pub fn matches(&self, object: &Value) -> bool {
        self.fields.iter().all(|term| (field(object, &term.path) == term.value) == term.equal)
            && self.labels.matches(&object["metadata"]["labels"])
    }

    /// The name, if the selector fixes it.
    pub fn only_name(&self) -> Option<&str> {
        self.fields
            .iter()
            .find(|term| term.equal && term.path == "metadata.name")
            .map(|term| term.value.as_str())
    }
}

fn parse_fields(kind: &Kind, text: &str) -> Result<Vec<FieldTerm>, Status> {
    let mut terms = Vec::new();
    for part in split_unescaped(text) {
        if part.is_empty() {
            continue;
        }
        let (path, value, equal) = split_term(part).ok_or_else(|| {
            Status::bad_request(format!("invalid selector: '{text}'; can't understand '{part}'"))
        })?;
        let value = unescape(value)?;
        // `metadata.name=` with nothing after it selects nothing in particular.
        if !is_selectable(kind, path) {
            return Err(not_selectable(kind, path));
        }
        terms.push(FieldTerm { path: stored_path(kind, path), value, equal });
        if terms.len() > TERMS_MAX {
            return Err(Status::bad_request("the field selector has too many terms"));
        }
    }
    Ok(terms)
}

fn split_term(part: &str) -> Option<(&str, &str, bool)> {
    let bytes = part.as_bytes();
    let mut escaped = false;
    for (at, byte) in bytes.iter().enumerate() {
        if escaped {
            escaped = false;
            continue;
        }
        match byte {
            b'\\' => escaped = true,
            b'!' if bytes.get(at + 1) == Some(&b'=') => {
                return Some((part.get(..at)?, part.get(at + 2..)?, false));
            }
            b'=' => {
                let skip = if bytes.get(at + 1) == Some(&b'=') { 2 } else { 1 };
                return Some((part.get(..at)?, part.get(at + skip..)?, true));
            }
            _ => {}
        }
    }
    None
}

fn split_unescaped(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                parts.push(text.get(start..at).unwrap_or_default());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text.get(start..).unwrap_or_default());
    parts
}

fn unescape(text: &str) -> Result<String, Status> {
    if !text.contains(['\\', '=', ',']) {
        return Ok(text.to_owned());
    }
    let invalid = || Status::bad_request(format!("invalid field selector: invalid value '{text}'"));
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => match characters.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                _ => return Err(invalid()),
            },
            ',' | '=' => return Err(invalid()),
            c => out.push(c),
        }
    }
    Ok(out)
}

const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

const NEW_EVENT_FIELDS: &[&str] = &[
    "regarding.kind",
    "regarding.namespace",
    "regarding.name",
    "regarding.uid",
    "regarding.apiVersion",
    "regarding.resourceVersion",
    "regarding.fieldPath",
    "reason",
    "reportingController",
    "type",
];

/// What can be selected beside name and namespace.
fn selectable(kind: &Kind) -> &'static [&'static str] {
    match (&*kind.resource.group, &*kind.resource.plural) {
        ("", "pods") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "namespaces") => &["status.phase"],
        ("", "secrets") => &["type"],
        ("", "services") => &["spec.clusterIP", "spec.type"],
        ("", "events") => EVENT_FIELDS,
        ("events.k8s.io", "events") => NEW_EVENT_FIELDS,
        ("", "replicationcontrollers") | ("apps", "replicasets") => &["status.replicas"],
        ("batch", "jobs") => &["status.successful"],
        ("resource.k8s.io", "resourceslices") => &["spec.nodeName", "spec.driver"],
        _ => &[],
    }
}

fn is_selectable(kind: &Kind, path: &str) -> bool {
    if path == "metadata.name" || path == "metadata.namespace" {
        return true;
    }
    match &kind.origin {
        Origin::BuiltIn => selectable(kind).contains(&path),
        Origin::Custom(row) => row.selectable_fields.iter().any(|field| field == path),
    }
}

fn not_selectable(kind: &Kind, path: &str) -> Status {
    // The two wordings are the real one's: kinds with fields of their own have a function that
    // says the first.
    if matches!(kind.origin, Origin::BuiltIn) && !selectable(kind).is_empty() {
        return Status::bad_request(format!("field label not supported: {path}"));
    }
    if matches!(kind.origin, Origin::Custom(_)) {
        return Status::bad_request(format!("field label not supported: {path}"));
    }
    Status::bad_request(format!(
        "\"{path}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
    ))
}

/// Events are stored in their core shape; the newer names are translated.
fn stored_path(kind: &Kind, path: &str) -> String {
    if &*kind.resource.group == "events.k8s.io" {
        if let Some(rest) = path.strip_prefix("regarding.") {
            return format!("involvedObject.{rest}");
        }
        if path == "reportingController" {
            return "reportingComponent".to_owned();
        }
    }
    path.to_owned()
}

/// The value of a selectable field as text; absent ones are empty.
fn field(object: &Value, path: &str) -> String {
    let mut at = object;
    for part in path.split('.') {
        at = &at[part];
    }
    match (path, at) {
        ("source", source) => {
            let component = source["component"].as_str().unwrap_or_default();
            match component {
                "" => object["reportingComponent"].as_str().unwrap_or_default().to_owned(),
                component => component.to_owned(),
            }
        }
        ("status.successful", _) => number(&object["status"]["succeeded"]),
        ("status.replicas", replicas) => number(replicas),
        ("spec.unschedulable" | "spec.hostNetwork", flag) => {
            flag.as_bool().unwrap_or(false).to_string()
        }
        ("status.podIPs", ips) => ips
            .as_array()
            .map(|ips| ips.iter().filter_map(|ip| ip["ip"].as_str()).collect::<Vec<_>>().join(","))
            .unwrap_or_default(),
        (_, Value::String(text)) => text.clone(),
        (_, Value::Null) => String::new(),
        (_, other) => other.to_string(),
    }
}

fn number(value: &Value) -> String {
    value.as_i64().unwrap_or(0).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::built_in;
    use serde_json::json;

    #[test]
    fn fields_of_pods_are_compared_as_text() {
        let pods = built_in("", "pods").unwrap();
        let pod = json!({"metadata": {"name": "a"}, "spec": {"nodeName": "n"}, "status": {}});
        let matches = |text: &str| Selector::parse(&pods, "", text).unwrap().matches(&pod);
        assert!(matches("spec.nodeName=n"));
        assert!(matches("spec.nodeName==n,metadata.name=a"));
        assert!(!matches("spec.nodeName!=n"));
        assert!(matches("status.phase!=Running"));
        assert!(matches("spec.hostNetwork=false"));
        assert!(matches("spec.nodeName!=x\\,y"));
    }

    #[test]
    fn unknown_fields_are_refused_in_the_real_words() {
        let deployments = built_in("apps", "deployments").unwrap();
        let status = Selector::parse(&deployments, "", "spec.foo=b").unwrap_err();
        assert_eq!(
            status.message,
            "\"spec.foo\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        );
        let pods = built_in("", "pods").unwrap();
        let status = Selector::parse(&pods, "", "a=b").unwrap_err();
        assert_eq!(status.message, "field label not supported: a");
        let status = Selector::parse(&pods, "", "ab").unwrap_err();
        assert_eq!(status.message, "invalid selector: 'ab'; can't understand 'ab'");
    }
}
