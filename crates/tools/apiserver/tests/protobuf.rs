//! Bodies that Kubernetes' own Go code has written, and damaged ones.
//!
//! `vectors/protobuf.jsonl` of `berth-protobuf` was made with `k8s.io/api` 0.36.4: objects of every kind, empty, with
//! all pointers set to nothing, with everything filled, and by chance; each as protobuf and as the
//! JSON that Go writes after it has read that protobuf back.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails")]

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_apiserver::protobuf::to_json;
use berth_apiserver::{ApiServer, Options, Service};
use berth_protobuf::MEDIA_TYPE;
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tower::ServiceExt as _;

struct Vector {
    protobuf: Vec<u8>,
    json: Value,
}

fn vectors() -> Vec<Vector> {
    let lines = include_str!("../../../cluster/protobuf/tests/vectors/protobuf.jsonl").lines();
    let vector = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let protobuf = STANDARD.decode(line["protobuf"].as_str().unwrap()).unwrap();
        Vector { protobuf, json: line["json"].clone() }
    };
    lines.map(vector).collect()
}

/// Where two values differ first.
fn difference(ours: &Value, theirs: &Value, path: &str) -> Option<String> {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            keys.into_iter().find_map(|key| {
                let path = format!("{path}.{key}");
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => difference(a, b, &path),
                    (Some(a), None) => Some(format!("{path}: only here: {a}")),
                    (None, b) => Some(format!("{path}: only there: {b:?}")),
                }
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => a
            .iter()
            .zip(b)
            .enumerate()
            .find_map(|(at, (a, b))| difference(a, b, &format!("{path}[{at}]"))),
        (a, b) if a == b => None,
        (a, b) => Some(format!("{path}: {a} here, {b} there")),
    }
}

#[test]
fn bodies_become_the_json_that_go_makes_of_them() {
    let mut wrong = Vec::new();
    let mut kinds = BTreeSet::new();
    for vector in vectors() {
        let name = format!("{} {}", vector.json["apiVersion"], vector.json["kind"]);
        let ours = to_json(&vector.protobuf, ("", "")).unwrap();
        if let Some(difference) = difference(&ours, &vector.json, "") {
            wrong.push(format!("{name}{difference}"));
        }
        kinds.insert(name);
    }
    assert!(kinds.len() > 65, "{}", kinds.len());
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn damaged_bodies_are_refused_or_read_but_never_break_anything() {
    let mut refused = 0;
    for vector in vectors().into_iter().step_by(3) {
        let body = &vector.protobuf;
        // Cut off anywhere, and with any byte changed; not every place of the long ones.
        let step = (body.len() / 100).max(1);
        for at in (0..body.len()).step_by(step) {
            refused += usize::from(to_json(&body[..at], ("", "")).is_err());
            for changed in [0x00, 0x7f, 0xff] {
                let mut body = body.clone();
                body[at] = changed;
                refused += usize::from(to_json(&body, ("", "")).is_err());
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}

fn length_prefixed(tag: u8, message: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let mut length = message.len();
    while length > 0x7f {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(message);
    out
}

fn body(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let mut about = length_prefixed(0x0a, api_version.as_bytes());
    about.extend(length_prefixed(0x12, kind.as_bytes()));
    let mut out = b"k8s\0".to_vec();
    out.extend(length_prefixed(0x0a, &about));
    out.extend(length_prefixed(0x12, message));
    out
}

fn refusal(body: &[u8]) -> String {
    let status = to_json(body, ("", "")).unwrap_err();
    assert_eq!(status.code, 400);
    status.to_json()["message"].as_str().unwrap().to_owned()
}

#[test]
fn schemas_in_schemas_without_end_are_refused() {
    // `not` is field 28 of a schema, which stands in field 1 of a version's validation.
    let mut schema = Vec::new();
    for _ in 0..10_000 {
        schema = length_prefixed(0xe2, &schema);
        schema.splice(0..1, [0xe2, 0x01]);
    }
    let validation = length_prefixed(0x0a, &schema);
    let version = length_prefixed(0x22, &validation);
    let spec = length_prefixed(0x3a, &version);
    let object = length_prefixed(0x12, &spec);
    let why = refusal(&body("apiextensions.k8s.io/v1", "CustomResourceDefinition", &object));
    assert!(why.contains("levels deep"), "{why}");
}

#[test]
fn a_body_of_nothing_but_empty_messages_is_bounded() {
    let containers: Vec<u8> = [0x12, 0x00].repeat(1_000_000);
    let why = refusal(&body("v1", "Pod", &length_prefixed(0x12, &containers)));
    assert!(why.contains("more than 400000 values"), "{why}");
}

#[test]
fn an_error_names_the_field_and_what_is_wrong_with_it() {
    let metadata = length_prefixed(0x0a, &[0xff, 0xfe]);
    let why = refusal(&body("v1", "Pod", &length_prefixed(0x0a, &metadata)));
    let told = "Pod in version \"v1\" cannot be handled as a Pod: metadata.name: it is not UTF-8";
    assert_eq!(why, told);
    let why = refusal(&body("v1", "Wrong", &[]));
    assert_eq!(why, "no kind \"Wrong\" is registered for version \"v1\" in protobuf; send JSON");
    assert!(refusal(b"{}").contains("does not start as protobuf"));
    // A name that is written as a number.
    let why = refusal(&body("v1", "Pod", &length_prefixed(0x0a, &[0x08, 0x01])));
    assert!(why.ends_with("metadata.name: it is not written as bytes with a length"), "{why}");
}

#[test]
fn fields_that_nobody_knows_are_passed_over_and_pieces_are_put_together() {
    let mut object = length_prefixed(0x0a, &length_prefixed(0x0a, b"a"));
    object.extend([0xf8, 0x7f, 0x05]);
    object.extend(length_prefixed(0x0a, &length_prefixed(0x1a, b"somewhere")));
    let read = to_json(&body("", "", &object), ("v1", "ConfigMap")).unwrap();
    let wanted = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "namespace": "somewhere"},
    });
    assert_eq!(read, wanted);
}

/// Both, as Go's clients write it.
const EITHER: &str = "application/vnd.kubernetes.protobuf,application/json";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn send(
    service: &Service,
    (method, path): (&str, &str),
    (content_type, accept): (&str, &str),
    body: impl Into<Bytes>,
) -> (u16, Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, content_type)
        .header(header::ACCEPT, accept)
        .body(Full::new(body.into()))
        .unwrap();
    let response = service.clone().oneshot(request).await.unwrap();
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap())
}

/// A message with a name only.
fn named(name: &str) -> Vec<u8> {
    length_prefixed(0x0a, &length_prefixed(0x0a, name.as_bytes()))
}

#[tokio::test]
async fn objects_are_created_replaced_and_deleted_in_protobuf_and_answered_in_json() {
    let service = ApiServer::new(Options::default()).unwrap().service();
    let go = (MEDIA_TYPE, EITHER);
    let mut object = named("a");
    // An entry of `data`.
    let entry = [length_prefixed(0x0a, b"key"), length_prefixed(0x12, b"value")].concat();
    object.extend(length_prefixed(0x12, &entry));
    let object = body("v1", "ConfigMap", &object);
    let (code, created) = send(&service, ("POST", MAPS), go, object.clone()).await;
    assert_eq!((code, &created["data"]), (201, &json!({"key": "value"})), "{created}");
    let one = format!("{MAPS}/a");
    let (code, replaced) = send(&service, ("PUT", &one), go, object).await;
    assert_eq!((code, &replaced["metadata"]["uid"]), (200, &created["metadata"]["uid"]));
    // A precondition that does not hold, and options that say nothing.
    let options = length_prefixed(0x12, &length_prefixed(0x0a, b"another-uid"));
    let options = body("v1", "DeleteOptions", &options);
    assert_eq!(send(&service, ("DELETE", &one), go, options).await.0, 409);
    let options = body("", "", &[]);
    assert_eq!(send(&service, ("DELETE", &one), go, options).await.0, 200);
    assert_eq!(send(&service, ("GET", &one), go, "").await.0, 404);
}

#[tokio::test]
async fn what_cannot_be_said_in_the_language_of_the_client_is_refused() {
    let service = ApiServer::new(Options::default()).unwrap().service();
    let (code, status) = send(&service, ("GET", MAPS), ("", MEDIA_TYPE), "").await;
    assert_eq!((code, &status["reason"]), (406, &json!("NotAcceptable")));
    let object = body("v1", "ConfigMap", &named("a"));
    let maps = ("POST", MAPS);
    assert_eq!(send(&service, maps, (MEDIA_TYPE, MEDIA_TYPE), object.clone()).await.0, 406);
    // Patches are never protobuf.
    let patch = ("PATCH", "/api/v1/namespaces/default");
    assert_eq!(send(&service, patch, (MEDIA_TYPE, EITHER), object.clone()).await.0, 415);
    // The kind must be that of the path, as with JSON.
    let secrets = ("POST", "/api/v1/namespaces/default/secrets");
    assert_eq!(send(&service, secrets, (MEDIA_TYPE, EITHER), object).await.0, 400);
}
