//! AdmissionReviews (`admission.k8s.io/v1`): requests and responses.

use berth_contract::{Object, ObjectError};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Review {
    api_version: String,
    kind: String,
    request: Option<Request>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request {
    pub(super) uid: String,
    #[serde(rename = "kind", deserialize_with = "kind_of")]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) sub_resource: String,
    #[serde(default)]
    pub(super) namespace: String,
    #[serde(default)]
    pub(super) operation: String,
    #[serde(default)]
    pub(super) object: Value,
    /// Unparsed: it is as large as the object, and needed only if the object violates a rule.
    #[serde(default)]
    old_object: Option<Box<RawValue>>,
}

fn kind_of<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    struct Kind {
        kind: String,
    }
    Kind::deserialize(from).map(|kind| kind.kind)
}

impl Review {
    pub(super) fn read(body: &[u8]) -> Result<Request, String> {
        let review: Self = serde_json::from_slice(body)
            .map_err(|error| format!("the body is not an AdmissionReview: {error}"))?;
        let header = (review.api_version.as_str(), review.kind.as_str());
        if header != ("admission.k8s.io/v1", "AdmissionReview") {
            return Err(format!(
                "the body is {:?} {:?}; send an AdmissionReview of admission.k8s.io/v1",
                review.api_version, review.kind
            ));
        }
        let request = review.request.ok_or("the review has no request")?;
        if request.uid.is_empty() {
            return Err("the request has no uid".to_owned());
        }
        Ok(request)
    }
}

impl Request {
    pub(super) fn object(&mut self) -> Result<Object, ObjectError> {
        let object = self.object.take();
        self.read(object)
    }

    /// The stored object, if it is known and readable.
    pub(super) fn old_object(&self) -> Option<Object> {
        let object = serde_json::from_str(self.old_object.as_deref()?.get()).ok()?;
        self.read(object).ok()
    }

    /// Sets the namespace of the request, and removes the UID of objects that are being created: rules treat an object
    /// with a UID as existing.
    fn read(&self, mut object: Value) -> Result<Object, ObjectError> {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            if !self.namespace.is_empty() {
                metadata.entry("namespace").or_insert_with(|| json!(self.namespace));
            }
            if self.operation == "CREATE" {
                metadata.remove("uid");
            }
        }
        Object::new(object)
    }
}

pub(super) struct Answer {
    pub(super) verdict: &'static str,
    denied: Option<String>,
    warnings: Vec<String>,
    patch: Option<String>,
}

impl Answer {
    pub(super) fn allowed(verdict: &'static str) -> Self {
        Self { verdict, denied: None, warnings: Vec::new(), patch: None }
    }

    pub(super) fn denied(reason: String) -> Self {
        Self { denied: Some(reason), ..Self::allowed("denied") }
    }

    /// For objects that cannot be read: the API server validates them itself.
    pub(super) fn unreadable(problem: &str) -> Self {
        let mut problem = format!("berth cannot read this object: {problem}");
        if let Some((end, _)) = problem.char_indices().nth(super::WARNING_CHARS_MAX) {
            problem.truncate(end);
        }
        Self { warnings: vec![problem], ..Self::allowed("unreadable") }
    }

    pub(super) fn warn(self, warnings: Vec<String>) -> Self {
        Self { warnings, ..self }
    }

    pub(super) fn patch(self, operations: &Value) -> Self {
        Self { patch: Some(base64(operations.to_string().as_bytes())), ..self }
    }

    pub(super) fn json(self, uid: &str) -> Value {
        let mut response = json!({ "uid": uid, "allowed": self.denied.is_none() });
        if let Some(message) = self.denied {
            response["status"] = json!({
                "status": "Failure", "reason": "Forbidden", "code": 403, "message": message,
            });
        }
        if !self.warnings.is_empty() {
            response["warnings"] = json!(self.warnings);
        }
        if let Some(patch) = self.patch {
            response["patchType"] = json!("JSONPatch");
            response["patch"] = json!(patch);
        }
        json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response,
        })
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
