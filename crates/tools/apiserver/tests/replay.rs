//! What a real kube-apiserver 1.36.4 answered, asked again of the embedded one's rules.
//!
//! The files under `vectors` are JSON Lines: requests in the order in which they were made, with
//! their answers. Uids and times are masked.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use berth_apiserver::admission::webhook::Webhooks;
use berth_apiserver::admission::{self, Operation, Request, User, View};
use berth_apiserver::decode;
use berth_apiserver::kinds::{Kind, Kinds, Resource};
use berth_apiserver::patch::{self, FieldValidation, Patch, PatchType};
use berth_apiserver::status::Status;
use jiff::Timestamp;
use serde_json::{Value, json};

const NOW: &str = "2026-01-01T00:00:00Z";
const UID: &str = "00000000-0000-0000-0000-000000000001";
const NAMESPACE: &str = "rec";

#[derive(Default)]
struct Objects(BTreeMap<(Resource, String, String), Arc<Value>>);

impl View for Objects {
    fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.0.get(&(resource.clone(), namespace.to_owned(), name.to_owned())).cloned()
    }

    fn list(&self, resource: &Resource, namespace: &str) -> Vec<Arc<Value>> {
        let all = self.0.iter();
        let all = all.filter(|((of, within, _), _)| {
            of == resource && (namespace.is_empty() || within == namespace)
        });
        all.map(|(_, object)| object.clone()).collect()
    }
}

/// Long texts are written as their length between two marks.
fn expanded(body: &str) -> String {
    let mut parts = body.split(['\u{a7}']);
    let mut out = parts.next().unwrap_or_default().to_owned();
    while let (Some(count), Some(rest)) = (parts.next(), parts.next()) {
        out.push_str(&"x".repeat(count.parse().unwrap()));
        out.push_str(rest);
    }
    out
}

struct Answer {
    object: Value,
    warnings: Vec<String>,
}

struct Replay {
    kinds: Kinds,
    objects: Objects,
    now: Timestamp,
    runtime: tokio::runtime::Runtime,
}

fn text<'a>(case: &'a Value, name: &str) -> &'a str {
    case[name].as_str().unwrap_or_default()
}

impl Replay {
    fn new() -> Self {
        Self {
            kinds: Kinds::default(),
            objects: Objects::default(),
            now: NOW.parse().unwrap(),
            runtime: tokio::runtime::Builder::new_current_thread().build().unwrap(),
        }
    }

    fn kind(&self, case: &Value) -> Arc<Kind> {
        let place = |at: usize| case["kind"][at].as_str().unwrap();
        let table = self.kinds.table();
        let found = table.find(place(0), place(1), place(2));
        found.unwrap_or_else(|| panic!("no kind {}", case["kind"])).clone()
    }

    fn ask(&self, case: &Value) -> Result<Answer, Status> {
        let kind = self.kind(case);
        let validation = match text(case, "fv") {
            "Strict" => FieldValidation::Strict,
            "Ignore" => FieldValidation::Ignore,
            _ => FieldValidation::Warn,
        };
        let manager = case["manager"].as_str().unwrap_or("rec");
        let body = expanded(text(case, "body"));
        let body = body.as_bytes();
        match text(case, "op") {
            "create" => {
                let decoded = decode::object(&kind, body, validation)?;
                self.create(case, &kind, decoded.object, Some(manager), decoded.warnings)
            }
            "update" => {
                let decoded = decode::object(&kind, body, validation)?;
                self.update(case, &kind, decoded.object, Some(manager), decoded.warnings)
            }
            "patch" => {
                let patch = Patch {
                    kind: &kind,
                    subresource: text(case, "sub"),
                    patch_type: PatchType::of(text(case, "type")).unwrap(),
                    body,
                    field_manager: manager,
                    force: case["force"].as_bool().unwrap_or(false),
                    field_validation: validation,
                    now: self.now,
                    parse_yaml: None,
                };
                let live = (!case["live"].is_null()).then_some(&case["live"]);
                let patched = patch::apply(&patch, live)?;
                match live {
                    Some(_) => self.update(case, &kind, patched.object, None, patched.warnings),
                    None => self.create(case, &kind, patched.object, None, patched.warnings),
                }
            }
            other => panic!("no operation {other}"),
        }
    }

    fn request<'a>(&self, case: &'a Value, kind: &'a Kind, user: &'a User) -> Request<'a> {
        let live = &case["live"];
        Request {
            kind,
            operation: if live.is_null() { Operation::Create } else { Operation::Update },
            namespace: if kind.namespaced { NAMESPACE } else { "" },
            name: "",
            subresource: text(case, "sub"),
            user,
            dry_run: true,
            options: &Value::Null,
            old: (!live.is_null()).then_some(live),
        }
    }

    fn create(
        &self,
        case: &Value,
        kind: &Kind,
        mut object: Value,
        manager: Option<&str>,
        warnings: Vec<String>,
    ) -> Result<Answer, Status> {
        let metadata = object["metadata"].as_object_mut().unwrap();
        for name in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"] {
            metadata.remove(name);
        }
        metadata.remove("resourceVersion");
        metadata.insert("uid".to_owned(), json!(UID));
        metadata.insert("creationTimestamp".to_owned(), json!(NOW));
        if kind.namespaced {
            metadata.insert("namespace".to_owned(), json!(NAMESPACE));
        }
        self.admit(case, kind, object, manager, warnings)
    }

    fn update(
        &self,
        case: &Value,
        kind: &Kind,
        mut object: Value,
        manager: Option<&str>,
        warnings: Vec<String>,
    ) -> Result<Answer, Status> {
        let live = &case["live"]["metadata"];
        let metadata = object["metadata"].as_object_mut().unwrap();
        let kept = ["uid", "creationTimestamp", "resourceVersion", "generation", "namespace"];
        for name in kept {
            match live.get(name) {
                Some(_) if name == "uid" && metadata.contains_key(name) => None,
                Some(value) => metadata.insert(name.to_owned(), value.clone()),
                None => metadata.remove(name),
            };
        }
        self.admit(case, kind, object, manager, warnings)
    }

    fn admit(
        &self,
        case: &Value,
        kind: &Kind,
        object: Value,
        manager: Option<&str>,
        mut warnings: Vec<String>,
    ) -> Result<Answer, Status> {
        let user = User::default();
        let request = self.request(case, kind, &user);
        let webhooks = Webhooks::default();
        let admitted =
            admission::admit(&request, object, manager, &self.objects, &webhooks, self.now);
        let admitted = self.runtime.block_on(admitted)?;
        warnings.extend(admitted.warnings);
        Ok(Answer { object: admitted.object, warnings })
    }
}

/// What cannot be the same twice is made the same: revisions, and the order of managers.
fn comparable(mut object: Value) -> Value {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
        if let Some(entries) = metadata.get_mut("managedFields").and_then(Value::as_array_mut) {
            for entry in entries.iter_mut() {
                entry["time"] = Value::Null;
            }
            entries.sort_by_key(|entry| {
                ["manager", "operation", "subresource"].map(|name| entry[name].to_string())
            });
        }
    }
    object
}

/// The first difference of two values.
fn difference(path: &str, ours: &Value, theirs: &Value) -> Option<String> {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
            keys.into_iter().find_map(|key| match (a.get(key), b.get(key)) {
                (Some(x), Some(y)) => difference(&format!("{path}.{key}"), x, y),
                (Some(x), None) => Some(format!("{path}.{key}: ours {x}, theirs nothing")),
                (None, Some(y)) => Some(format!("{path}.{key}: ours nothing, theirs {y}")),
                (None, None) => None,
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let items = a.iter().zip(b).enumerate();
            items.into_iter().find_map(|(at, (x, y))| difference(&format!("{path}[{at}]"), x, y))
        }
        (a, b) if a == b => None,
        (a, b) => Some(format!("{path}: ours {a}, theirs {b}")),
    }
}

/// Objects that are shown in whole hold what cannot be the same twice.
fn tidied(message: &str) -> String {
    match (message.find("Invalid value: \"{\\\""), message.rfind("}\": ")) {
        (Some(from), Some(to)) if from < to => {
            format!("{}Invalid value: \"{{{}", &message[..from], &message[to..])
        }
        _ => message.to_owned(),
    }
}

fn causes(status: &Status) -> Value {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut causes: Vec<Value> =
        causes.map(|cause| json!([cause.reason, tidied(&cause.message), cause.field])).collect();
    causes.sort_by_key(Value::to_string);
    Value::Array(causes)
}

fn mismatch(case: &Value, answer: Result<Answer, Status>) -> Option<String> {
    let expected = case["code"].as_u64().unwrap();
    match answer {
        Ok(answer) if expected < 400 => {
            let warnings = json!(answer.warnings);
            let told = match &case["warnings"] {
                Value::Null => json!([]),
                told => told.clone(),
            };
            let theirs = match case["result"].as_str() {
                Some("same") => case["live"].clone(),
                _ => case["result"].clone(),
            };
            let (mut ours, theirs) = (comparable(answer.object), comparable(theirs));
            if theirs["metadata"].get("managedFields").is_none() && case["untracked"] == true {
                ours["metadata"].as_object_mut().unwrap().remove("managedFields");
            }
            let differs = difference("", &ours, &theirs);
            differs.or_else(|| difference("warnings", &warnings, &told))
        }
        Ok(_) => Some(format!("accepted, theirs {expected} {}", case["message"])),
        Err(status) if expected < 400 => {
            Some(format!("refused: {} {}", status.code, status.message))
        }
        Err(status) => {
            let ours = json!([status.code, status.reason, tidied(&status.message)]);
            let theirs = json!([case["code"], case["reason"], case["message"]]);
            let mut told = case["causes"].as_array().cloned().unwrap_or_default();
            told.sort_by_key(Value::to_string);
            difference("", &ours, &theirs)
                .or_else(|| difference("causes", &causes(&status), &Value::Array(told)))
        }
    }
}

fn replay(file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let mut replay = Replay::new();
    let mut named: BTreeMap<String, Value> = BTreeMap::new();
    let (mut cases, mut failures) = (0, Vec::new());
    for (line, case) in text.lines().enumerate() {
        let mut case: Value = serde_json::from_str(case).unwrap();
        if let Some(name) = case["object"].as_str() {
            named.insert(name.to_owned(), case["value"].clone());
            continue;
        }
        if let Some(objects) = case["world"].as_array() {
            replay.objects = Objects::default();
            for object in objects {
                let kind = replay.kind(object);
                let of =
                    |name: &str| object["value"]["metadata"][name].as_str().unwrap_or_default();
                let key =
                    (kind.resource.clone(), of("namespace").to_owned(), of("name").to_owned());
                replay.objects.0.insert(key, Arc::new(object["value"].clone()));
            }
            continue;
        }
        if let Some(name) = case["live"].as_str() {
            case["live"] = named[name].clone();
        }
        cases += 1;
        if let Some(why) = mismatch(&case, replay.ask(&case)) {
            let about = [&case["op"], &case["kind"][3], &case["type"], &case["body"]];
            let about: Vec<String> = about.iter().map(|part| part.to_string()).collect();
            failures.push(format!("{}: {}\n    {why}", line + 1, about.join(" ")));
        }
    }
    assert!(cases > 20, "{file} holds {cases} cases");
    let shown: Vec<&str> = failures.iter().map(String::as_str).collect();
    assert!(failures.is_empty(), "{} of {cases} differ:\n{}", failures.len(), shown.join("\n"));
}

#[test]
fn new_objects_get_the_defaults_of_a_real_server() {
    replay("create.jsonl");
}

#[test]
fn what_is_wrong_is_refused_in_the_same_words() {
    replay("invalid.jsonl");
}

#[test]
fn patches_do_the_same() {
    replay("patch.jsonl");
}

#[test]
fn applying_knows_who_manages_what() {
    replay("apply.jsonl");
}

#[test]
fn quotas_limits_and_priorities_hold_alike() {
    replay("policy.jsonl");
}
