//! Kubernetes' error object, with the codes, reasons and messages of a real API server.

use std::borrow::Cow;
use std::fmt;

use serde_json::{Map, Value, json};

use crate::kinds::Resource;

/// An error.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    pub code: u16,
    /// The machine readable reason, such as `NotFound`.
    pub reason: &'static str,
    pub message: String,
    /// What it was about. Boxed: errors travel through every `Result`.
    pub details: Option<Box<Details>>,
}

/// What a [`Status`] is about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details {
    pub name: String,
    pub group: String,
    /// The plural resource, or the kind for `Invalid`.
    pub kind: String,
    /// The object's uid, where known.
    pub uid: String,
    /// One entry for each thing that is wrong.
    pub causes: Vec<Cause>,
    /// 0: none.
    pub retry_after_seconds: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// Machine readable, such as `FieldValueInvalid`.
    pub reason: Cow<'static, str>,
    pub message: String,
    /// The path of the field, empty where it is about none.
    pub field: String,
}

/// What can be wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldProblem {
    /// It refers to something that is not there.
    NotFound,
    Required,
    Duplicate,
    /// It has a value that it must not have.
    Invalid,
    /// Its value is not one of a known set.
    NotSupported,
    /// It must not be given here.
    Forbidden,
    TooLong,
    TooMany,
    TooFew,
    TooShort,
    /// It has another type than the schema says.
    TypeInvalid,
    Internal,
}

impl FieldProblem {
    fn reason(self) -> &'static str {
        match self {
            Self::NotFound => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::TooFew => "FieldValueTooFew",
            Self::TooShort => "FieldValueTooShort",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::Internal => "InternalError",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::TooFew => "Too few",
            Self::TooShort => "Too short",
            Self::Internal => "Internal error",
        }
    }
}

/// One field that is wrong, as `Invalid` lists them.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    pub problem: FieldProblem,
    /// Its path, such as `spec.containers[0].name`.
    pub field: String,
    /// The value it has, rendered as in Go: strings quoted, all else as JSON. None omits it.
    pub value: Option<String>,
    /// More words; may be empty.
    pub detail: String,
}

impl FieldError {
    /// A field with a value that it must not have.
    pub fn invalid(field: impl Into<String>, value: &Value, detail: impl Into<String>) -> Self {
        Self::new(FieldProblem::Invalid, field, Some(rendered(value)), detail)
    }

    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FieldProblem::Required, field, None, detail)
    }

    /// A field that must not be given, or not be changed.
    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FieldProblem::Forbidden, field, None, detail)
    }

    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self::new(FieldProblem::Duplicate, field, Some(rendered(value)), "")
    }

    /// A field that refers to something that is not there.
    pub fn not_found(field: impl Into<String>, value: &Value) -> Self {
        Self::new(FieldProblem::NotFound, field, Some(rendered(value)), "")
    }

    /// A field whose value is none of `supported`.
    pub fn not_supported(field: impl Into<String>, value: &Value, supported: &[&str]) -> Self {
        let mut names: Vec<String> = supported.iter().map(|name| quoted(name)).collect();
        names.sort();
        let detail = if names.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", names.join(", "))
        };
        Self::new(FieldProblem::NotSupported, field, Some(rendered(value)), detail)
    }

    /// The same, for a field whose values are listed in an order of their own.
    pub fn not_one_of(field: impl Into<String>, value: &Value, supported: &[&str]) -> Self {
        let names: Vec<String> = supported.iter().map(|name| quoted(name)).collect();
        let detail = format!("supported values: {}", names.join(", "));
        Self::new(FieldProblem::NotSupported, field, Some(rendered(value)), detail)
    }

    /// A text of more than `max_bytes`.
    pub fn too_long(field: impl Into<String>, max_bytes: usize) -> Self {
        let detail = format!("may not be more than {max_bytes} bytes");
        Self::new(FieldProblem::TooLong, field, None, detail)
    }

    /// A list of `count` items where `max` are allowed.
    pub fn too_many(field: impl Into<String>, count: usize, max: usize) -> Self {
        let words = if max == 1 { "item" } else { "items" };
        let detail = format!("must have at most {max} {words}");
        Self::new(FieldProblem::TooMany, field, Some(count.to_string()), detail)
    }

    pub fn new(
        problem: FieldProblem,
        field: impl Into<String>,
        value: Option<String>,
        detail: impl Into<String>,
    ) -> Self {
        Self { problem, field: field.into(), value, detail: detail.into() }
    }

    /// What is wrong, without the field.
    pub fn body(&self) -> String {
        let mut body = self.problem.words().to_owned();
        let omits_value = matches!(
            self.problem,
            FieldProblem::Required
                | FieldProblem::Forbidden
                | FieldProblem::TooLong
                | FieldProblem::TooShort
                | FieldProblem::Internal
        );
        if let Some(value) = self.value.as_ref().filter(|_| !omits_value) {
            body.push_str(": ");
            body.push_str(value);
        }
        if !self.detail.is_empty() {
            body.push_str(": ");
            body.push_str(&self.detail);
        }
        body
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// A value as messages show it: strings quoted, everything else as JSON.
pub fn rendered(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        other => other.to_string(),
    }
}

/// A text in double quotes, escaped as Go's `%q` does.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || c == '\u{7f}' => {
                out.push_str(&format!("\\x{:02x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

impl Status {
    fn about(code: u16, reason: &'static str, resource: &Resource, name: &str) -> Self {
        let details = Details {
            name: name.to_owned(),
            group: resource.group.to_string(),
            kind: resource.plural.to_string(),
            ..Details::default()
        };
        Self { code, reason, message: String::new(), details: Some(Box::new(details)) }
    }

    fn saying(mut self, message: String) -> Self {
        self.message = message;
        self
    }

    fn plain(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None }
    }

    /// 404: no object of that name.
    pub fn not_found(resource: &Resource, name: &str) -> Self {
        Self::about(404, "NotFound", resource, name)
            .saying(format!("{resource} {} not found", quoted(name)))
    }

    /// 404: no such path.
    pub fn no_such_path() -> Self {
        let mut status =
            Self::plain(404, "NotFound", "the server could not find the requested resource");
        status.details = Some(Box::default());
        status
    }

    /// 409: there is an object of that name.
    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        Self::about(409, "AlreadyExists", resource, name)
            .saying(format!("{resource} {} already exists", quoted(name)))
    }

    /// 409.
    pub fn conflict(resource: &Resource, name: &str, why: impl fmt::Display) -> Self {
        Self::about(409, "Conflict", resource, name)
            .saying(format!("Operation cannot be fulfilled on {resource} {}: {why}", quoted(name)))
    }

    /// 409: the object has been modified since it was read.
    pub fn modified(resource: &Resource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version \
                   and try again";
        Self::conflict(resource, name, why)
    }

    /// 409: other field managers own what was applied.
    pub fn apply_conflict(causes: Vec<Cause>, message: impl Into<String>) -> Self {
        let mut status = Self::plain(409, "Conflict", message);
        status.details = Some(Box::new(Details { causes, ..Details::default() }));
        status
    }

    /// 422: fields of the object are wrong. `group` and `kind` are those of the object.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let qualified = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let mut texts: Vec<String> = Vec::new();
        for error in errors {
            let text = error.to_string();
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        let list = match texts.as_slice() {
            [] => String::new(),
            [one] => format!(": {one}"),
            many => format!(": [{}]", many.join(", ")),
        };
        let causes = errors
            .iter()
            .map(|error| Cause {
                reason: Cow::Borrowed(error.problem.reason()),
                message: error.body(),
                field: error.field.clone(),
            })
            .collect();
        let details = Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            causes,
            ..Details::default()
        };
        let mut status =
            Self::plain(422, "Invalid", format!("{qualified} {} is invalid{list}", quoted(name)));
        status.details = Some(Box::new(details));
        status
    }

    /// 400: the request makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::plain(400, "BadRequest", message)
    }

    /// 401.
    pub fn unauthorized() -> Self {
        Self::plain(401, "Unauthorized", "Unauthorized")
    }

    /// 403, by authorization or admission. `name` may be empty.
    pub fn forbidden(resource: &Resource, name: &str, why: impl fmt::Display) -> Self {
        let message = if resource.plural.is_empty() && resource.group.is_empty() {
            format!("forbidden: {why}")
        } else if name.is_empty() {
            format!("{resource} is forbidden: {why}")
        } else {
            format!("{resource} {} is forbidden: {why}", quoted(name))
        };
        Self::about(403, "Forbidden", resource, name).saying(message)
    }

    /// 410: the resource version asked for is no longer in the history.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::plain(410, "Expired", message)
    }

    /// 429, such as an eviction that a budget forbids.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        let mut status = Self::plain(429, "TooManyRequests", message);
        status.details = Some(Box::new(Details { retry_after_seconds, ..Details::default() }));
        status
    }

    /// 405: the resource does not have this verb.
    pub fn method_not_supported(resource: &Resource, action: &str) -> Self {
        Self::about(405, "MethodNotAllowed", resource, "").saying(format!(
            "{action} is not supported on resources of kind {}",
            quoted(&resource.to_string())
        ))
    }

    /// 405: the path does not have this method.
    pub fn method_not_allowed() -> Self {
        let mut status = Self::plain(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        );
        status.details = Some(Box::default());
        status
    }

    /// 501: `what` needs containers or a kubelet, such as `pods/exec`.
    pub fn no_containers(what: &str) -> Self {
        Self::plain(501, "NotImplemented", format!("{what}: virtual nodes run no containers"))
    }

    /// 406: the client takes nothing that can be produced.
    pub fn not_acceptable(accepted: &str) -> Self {
        Self::plain(
            406,
            "NotAcceptable",
            format!("only the following media types are accepted: {accepted}"),
        )
    }

    /// 413: the body is too large.
    pub fn too_large(message: impl fmt::Display) -> Self {
        Self::plain(413, "RequestEntityTooLarge", format!("Request entity too large: {message}"))
    }

    /// 415: the body has a type that is not understood.
    pub fn unsupported_media_type(accepted: &str) -> Self {
        Self::plain(
            415,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {accepted}"
            ),
        )
    }

    /// 500.
    pub fn internal(message: impl fmt::Display) -> Self {
        let cause =
            Cause { reason: Cow::Borrowed(""), message: message.to_string(), field: String::new() };
        let mut status =
            Self::plain(500, "InternalError", format!("Internal error occurred: {message}"));
        status.details = Some(Box::new(Details { causes: vec![cause], ..Details::default() }));
        status
    }

    /// 500 without a reason, as the real server answers some errors.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self::plain(500, "", message)
    }

    /// 503.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::plain(503, "ServiceUnavailable", message)
    }

    /// 504. The request may still take effect.
    pub fn timeout(message: impl fmt::Display, retry_after_seconds: u32) -> Self {
        let mut status = Self::plain(504, "Timeout", format!("Timeout: {message}"));
        status.details = Some(Box::new(Details { retry_after_seconds, ..Details::default() }));
        status
    }

    /// Adds one cause, such as `DisruptionBudget`.
    pub fn with_cause(
        mut self,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
        field: impl Into<String>,
    ) -> Self {
        let cause = Cause { reason: reason.into(), message: message.into(), field: field.into() };
        self.details.get_or_insert_default().causes.push(cause);
        self
    }

    pub fn to_json(&self) -> Value {
        let mut body = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            body["reason"] = Value::from(self.reason);
        }
        if let Some(details) = &self.details {
            body["details"] = details.to_json();
        }
        body
    }
}

impl Details {
    fn to_json(&self) -> Value {
        let mut map = Map::new();
        let texts = [
            ("name", &self.name),
            ("group", &self.group),
            ("kind", &self.kind),
            ("uid", &self.uid),
        ];
        for (key, text) in texts {
            if !text.is_empty() {
                map.insert(key.to_owned(), Value::from(text.as_str()));
            }
        }
        if !self.causes.is_empty() {
            let causes = self.causes.iter().map(Cause::to_json).collect();
            map.insert("causes".to_owned(), Value::Array(causes));
        }
        if self.retry_after_seconds > 0 {
            map.insert("retryAfterSeconds".to_owned(), Value::from(self.retry_after_seconds));
        }
        Value::Object(map)
    }
}

impl Cause {
    fn to_json(&self) -> Value {
        let mut map = Map::new();
        let texts =
            [("reason", &*self.reason), ("message", &*self.message), ("field", &*self.field)];
        for (key, text) in texts {
            if !text.is_empty() {
                map.insert(key.to_owned(), Value::from(text));
            }
        }
        Value::Object(map)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_object_is_named_with_its_group() {
        let status = Status::not_found(&Resource::new("apps", "deployments"), "web");
        assert_eq!(status.message, "deployments.apps \"web\" not found");
        assert_eq!(
            status.to_json()["details"],
            json!({"name": "web", "group": "apps", "kind": "deployments"})
        );
    }

    #[test]
    fn several_invalid_fields_stand_in_brackets_and_once_each() {
        let errors = [
            FieldError::required("spec.a", ""),
            FieldError::invalid("spec.b", &json!("x\"y"), "must be good"),
            FieldError::required("spec.a", ""),
        ];
        let status = Status::invalid("", "Pod", "p", &errors);
        assert_eq!(
            status.message,
            "Pod \"p\" is invalid: [spec.a: Required value, spec.b: Invalid value: \"x\\\"y\": must be good]"
        );
        assert_eq!(status.to_json()["details"]["causes"].as_array().map(Vec::len), Some(3));
    }
}
