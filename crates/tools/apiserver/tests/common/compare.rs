//! The same requests to two servers, and what differs in their answers.
//!
//! Each server has its own uids, revisions and times; they are masked before answers are compared.

use std::collections::BTreeMap;

use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde_json::{Map, Value, json};

/// One request of a comparison. `${name}` in path and body is what an earlier step has kept.
#[derive(Clone, Debug)]
pub struct Step {
    pub title: &'static str,
    pub method: &'static str,
    pub path: String,
    pub content_type: &'static str,
    pub body: Option<Value>,
    /// A body that is no JSON.
    pub raw: Option<Vec<u8>>,
    /// Names and JSON pointers of what later steps use.
    pub keeps: Vec<(&'static str, &'static str)>,
}

impl Step {
    pub fn new(title: &'static str, method: &'static str, path: &str) -> Self {
        let content_type =
            if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        Self {
            title,
            method,
            path: path.to_owned(),
            content_type,
            body: None,
            raw: None,
            keeps: Vec::new(),
        }
    }

    pub fn body(mut self, body: Value) -> Self {
        self.body = Some(body);
        self
    }

    pub fn raw(mut self, body: &[u8]) -> Self {
        self.raw = Some(body.to_vec());
        self
    }

    pub fn content_type(mut self, content_type: &'static str) -> Self {
        self.content_type = content_type;
        self
    }

    pub fn keep(mut self, name: &'static str, pointer: &'static str) -> Self {
        self.keeps.push((name, pointer));
        self
    }
}

/// A server that is asked, and what it has said that later steps need.
pub struct Asked {
    client: Client,
    kept: BTreeMap<&'static str, String>,
}

/// An answer in which nothing is left that differs by nature.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub code: u16,
    pub body: Value,
}

impl Asked {
    pub fn new(client: Client) -> Self {
        Self { client, kept: BTreeMap::new() }
    }

    fn fill(&self, text: &str) -> String {
        self.kept.iter().fold(text.to_owned(), |text, (name, value)| {
            text.replace(&format!("${{{name}}}"), value)
        })
    }

    pub async fn ask(&mut self, step: &Step) -> Answer {
        if step.method == "WAIT" {
            return self.wait(&step.path).await;
        }
        let body = match (&step.raw, &step.body) {
            (Some(raw), _) => raw.clone(),
            (None, Some(body)) => self.fill(&body.to_string()).into_bytes(),
            (None, None) => Vec::new(),
        };
        let request = http::Request::builder()
            .method(step.method)
            .uri(self.fill(&step.path))
            .header("content-type", step.content_type)
            .header("user-agent", "compare/1")
            .body(Body::from(body))
            .unwrap();
        let response = self.client.send(request).await.unwrap();
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let body: Value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        for (name, pointer) in &step.keeps {
            if let Some(kept) = body.pointer(pointer).and_then(Value::as_str) {
                self.kept.insert(name, kept.to_owned());
            }
        }
        Answer { code, body: self.masked(body) }
    }

    /// Asks for a path until it is there.
    async fn wait(&self, path: &str) -> Answer {
        for _ in 0..100 {
            let request = http::Request::get(path).body(Body::empty()).unwrap();
            let code = self.client.send(request).await.unwrap().status().as_u16();
            if code == 200 {
                return Answer { code, body: Value::Null };
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        Answer { code: 404, body: Value::Null }
    }

    fn masked(&self, mut body: Value) -> Value {
        mask(&mut body);
        // Uids and revisions also stand in messages.
        let mut text = body.to_string();
        for (name, value) in &self.kept {
            if value.len() > 8 {
                text = text.replace(value.as_str(), &format!("<{name}>"));
            }
        }
        let mut body: Value = serde_json::from_str(&text).unwrap_or(body);
        cut_off_diffs(&mut body);
        mask_numbers_in_message(&mut body);
        body
    }
}

/// Fields whose values differ from server to server.
const MASKED: &[&str] = &[
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "time",
    "lastTransitionTime",
    "lastUpdateTime",
    "continue",
    "expirationTimestamp",
    "token",
    "batch.kubernetes.io/controller-uid",
    "controller-uid",
    "clusterIP",
    "clusterIPs",
    "storageVersionHash",
    "hash",
];

fn mask(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map.iter_mut() {
                let masked =
                    MASKED.contains(&key.as_str()) && (inner.is_string() || inner.is_array());
                if masked {
                    *inner = json!("<masked>");
                } else {
                    mask(inner);
                }
            }
            mask_generated_name(map);
        }
        Value::Array(items) => items.iter_mut().for_each(mask),
        _ => {}
    }
}

fn mask_generated_name(map: &mut Map<String, Value>) {
    let prefix = map.get("generateName").and_then(Value::as_str).map(str::to_owned);
    if let (Some(prefix), Some(Value::String(name))) = (prefix, map.get_mut("name"))
        && name.len() == prefix.len() + 5
        && name.starts_with(&prefix)
    {
        *name = format!("{prefix}<generated>");
    }
}

/// Where a field may not change, the real server appends a diff of its Go structures, which has no
/// counterpart elsewhere: messages are compared up to their first line.
fn cut_off_diffs(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map.iter_mut() {
                match inner {
                    Value::String(text) if key == "message" => {
                        *text = text.lines().next().unwrap_or_default().to_owned();
                    }
                    inner => cut_off_diffs(inner),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(cut_off_diffs),
        _ => {}
    }
}

/// Revisions in messages are numbers of any length.
fn mask_numbers_in_message(body: &mut Value) {
    let Some(Value::String(message)) = body.get_mut("message") else { return };
    if !message.contains("esource") && !message.contains("Precondition") {
        return;
    }
    let mut out = String::new();
    let mut in_number = false;
    for c in message.chars() {
        match (c.is_ascii_digit(), in_number) {
            (true, false) => out.push('#'),
            (true, true) => {}
            (false, _) => out.push(c),
        }
        in_number = c.is_ascii_digit();
    }
    *message = out;
}

/// A message without the line of source that Go calls a scheme by, which depends on how the server was built.
fn without_scheme(message: &str) -> (&str, &str) {
    let Some((before, rest)) = message.split_once("in scheme \"") else { return (message, "") };
    (before, rest.split_once('"').map_or("", |(_, after)| after))
}

/// Where two values differ, one line each.
pub fn differences(path: &str, ours: &Value, real: &Value, out: &mut Vec<String>) {
    match (ours, real) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let null = &Value::Null;
                let (x, y) = (a.get(key).unwrap_or(null), b.get(key).unwrap_or(null));
                differences(&format!("{path}.{key}"), x, y, out);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (at, (x, y)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}[{at}]"), x, y, out);
            }
        }
        (Value::String(a), Value::String(b)) if without_scheme(a) == without_scheme(b) => {}
        _ if ours != real => out.push(format!("{path}: ours {ours}, real {real}")),
        _ => {}
    }
}
