//! Patches of all four types, and field management after a write. A patch is a pure function of the current object
//! and a body.

mod fieldset;
mod go;
mod managed;
mod strategic;
mod typed;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::decode::{self, Document};
use crate::defaults;
use crate::kinds::{Kind, Origin};
use crate::schema::{self, Node};
use crate::status::{Details, FieldError, Status};

pub use managed_fields::{Write, record};

const MAX_OPERATIONS: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// `application/json-patch+json`: a list of operations.
    Json,
    /// `application/merge-patch+json`: what is given replaces, null removes.
    Merge,
    /// `application/strategic-merge-patch+json`: as merge, but lists are merged by their keys.
    Strategic,
    /// `application/apply-patch+yaml`: what its manager wants, and nothing else.
    Apply,
}

impl PatchType {
    /// By the content type of a request, without parameters.
    pub fn of(content_type: &str) -> Option<Self> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Some(Self::Json),
            "application/merge-patch+json" => Some(Self::Merge),
            "application/strategic-merge-patch+json" => Some(Self::Strategic),
            "application/apply-patch+yaml" => Some(Self::Apply),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// How bodies that are not JSON are read.
pub type ParseYaml = fn(&[u8]) -> Result<Value, String>;

#[derive(Clone, Copy)]
pub struct Patch<'a> {
    pub kind: &'a Kind,
    /// The subresource that is patched; empty for the object itself.
    pub subresource: &'a str,
    pub patch_type: PatchType,
    pub body: &'a [u8],
    pub field_manager: &'a str,
    /// Takes fields from other managers.
    pub force: bool,
    pub field_validation: FieldValidation,
    pub now: Timestamp,
    /// How to read YAML; without it only JSON is read.
    pub parse_yaml: Option<ParseYaml>,
}

#[derive(Clone, Debug)]
pub struct Patched {
    pub object: Value,
    pub warnings: Vec<String>,
}

/// Applies a patch. Only [`PatchType::Apply`] creates a missing object.
///
/// # Errors
///
/// With the real server's answer if the patch is none, or does not fit.
pub fn apply(patch: &Patch<'_>, current: Option<&Value>) -> Result<Patched, Status> {
    let schema = schema::of(patch.kind);
    match patch.patch_type {
        PatchType::Apply => apply_configuration(patch, &schema, current),
        _ => {
            let empty = Value::Object(Map::new());
            change(patch, &schema, current.unwrap_or(&empty))
        }
    }
}

fn change(patch: &Patch<'_>, node: &Node, current: &Value) -> Result<Patched, Status> {
    let custom = matches!(patch.kind.origin, Origin::Custom(_));
    let checks = patch.field_validation != FieldValidation::Ignore;
    let mut strict = Vec::new();
    let document = Document::parse(patch.body).map_err(|error| malformed(patch, &error))?;
    if checks && patch.patch_type != PatchType::Json {
        strict = decode::repeated(&document);
    }
    let patched = match patch.patch_type {
        PatchType::Strategic if custom => return Err(unsupported(custom)),
        PatchType::Strategic => {
            let given = as_map(document, patch)?;
            let shown = go::plain(&Value::Object(given.clone()));
            (strategic::apply(node, current, given)?, shown)
        }
        PatchType::Json => {
            let operations = document.into_value();
            if checks {
                strict = unknown_operation_fields(&operations);
            }
            let patched = apply_operations(operations, current)?;
            let shown = patched.to_string();
            (patched, shown)
        }
        _ => {
            let mut patched = current.clone();
            json_patch::merge(&mut patched, &Value::Object(as_map(document, patch)?));
            let shown = patched.to_string();
            (patched, shown)
        }
    };
    let (mut object, shown) = patched;
    let findings = decode::inspect(node, &Document::from_value(&object));
    if let Some(error) = findings.type_error.filter(|_| !custom) {
        let error = match patch.patch_type {
            PatchType::Strategic => unstructured_error(error),
            _ => error,
        };
        return Err(not_an_object(shown, error));
    }
    strict.extend(findings.strict);
    if patch.field_validation == FieldValidation::Strict && !strict.is_empty() {
        return Err(not_an_object(shown, decode::strict_error(&strict)));
    }
    finish(patch.kind, node, &mut object);
    record(&Write::of(patch), Some(current), &mut object);
    Ok(Patched { object, warnings: if checks { strict } else { Vec::new() } })
}

/// Normalizes a patched object as decoding would.
fn finish(kind: &Kind, node: &Node, object: &mut Value) {
    schema::normalize(node, object);
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion".to_owned(), Value::from(kind.api_version()));
        map.insert("kind".to_owned(), Value::from(&*kind.kind));
    }
    defaults::apply(kind, object);
}

fn as_map(document: Document, patch: &Patch<'_>) -> Result<Map<String, Value>, Status> {
    let kind = match &document {
        Document::Map(_) => "",
        Document::Null if patch.patch_type == PatchType::Merge => {
            return Err(Status::bad_request("Invalid JSON Patch"));
        }
        Document::Null => return Ok(Map::new()),
        Document::List(_) => "array",
        Document::Text(_) => "string",
        Document::Bool(_) => "bool",
        Document::Number(_) => "number",
    };
    match document.into_value() {
        Value::Object(map) => Ok(map),
        _ => {
            let message = format!(
                "json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"
            );
            Err(match patch.patch_type {
                PatchType::Merge => Status::bad_request(format!("error decoding patch: {message}")),
                _ => Status::bad_request(message),
            })
        }
    }
}

fn malformed(patch: &Patch<'_>, error: &serde_json::Error) -> Status {
    let words = json_error(patch.body, error);
    match (patch.patch_type, patch.field_validation) {
        (PatchType::Strategic, _) => Status::bad_request(words),
        (_, FieldValidation::Ignore) => Status::bad_request("Invalid JSON Patch"),
        _ => Status::bad_request(format!("error decoding patch: {words}")),
    }
}

/// Go's message for invalid JSON.
pub(crate) fn json_error(body: &[u8], error: &serde_json::Error) -> String {
    if error.is_eof() || body.is_empty() {
        return "unexpected end of JSON input".to_owned();
    }
    let line_start = body
        .split_inclusive(|byte| *byte == b'\n')
        .take(error.line().saturating_sub(1))
        .map(<[u8]>::len)
        .sum::<usize>();
    let at = line_start + error.column().saturating_sub(1);
    match std::str::from_utf8(body.get(at..).unwrap_or_default())
        .ok()
        .and_then(|t| t.chars().next())
    {
        Some(c) => format!("invalid character {} looking for beginning of value", go_char(c)),
        None => "unexpected end of JSON input".to_owned(),
    }
}

fn go_char(c: char) -> String {
    match c {
        '\'' => "'\\''".to_owned(),
        '\n' => "'\\n'".to_owned(),
        c => format!("'{c}'"),
    }
}

const OPERATION_FIELDS: [&str; 4] = ["op", "from", "path", "value"];

fn unknown_operation_fields(operations: &Value) -> Vec<String> {
    let all = operations.as_array().into_iter().flatten().enumerate();
    let fields = all.flat_map(|(i, one)| {
        let names = one.as_object().into_iter().flat_map(Map::keys);
        names.filter(|name| !OPERATION_FIELDS.contains(&name.as_str())).map(move |name| (i, name))
    });
    fields.map(|(i, name)| format!("json patch unknown field \"[{i}].{name}\"")).collect()
}

fn apply_operations(operations: Value, current: &Value) -> Result<Value, Status> {
    let Value::Array(operations) = operations else {
        return Err(Status::bad_request(format!(
            "error decoding patch: json: cannot unmarshal {} into Go value of type \
             []handlers.jsonPatchOp",
            json_kind(&operations)
        )));
    };
    if operations.len() > MAX_OPERATIONS {
        return Err(Status::too_large(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let mut object = current.clone();
    for mut operation in operations {
        let text = |name: &str| operation.get(name).and_then(Value::as_str).unwrap_or_default();
        let missing = object.pointer(text("path")).is_none();
        match text("op") {
            // The real server's library accepts these, against the standard.
            "replace" if missing => operation["op"] = Value::from("add"),
            "test" if missing && operation.get("value").is_none_or(Value::is_null) => continue,
            _ => {}
        }
        let operation: json_patch::PatchOperation =
            serde_json::from_value(operation).map_err(|_| unprocessable())?;
        json_patch::patch(&mut object, &[operation]).map_err(|_| unprocessable())?;
    }
    Ok(object)
}

fn apply_configuration(
    patch: &Patch<'_>,
    node: &Node,
    current: Option<&Value>,
) -> Result<Patched, Status> {
    let (applied, warnings) = read_configuration(patch)?;
    let version = patch.kind.api_version();
    let text = |name: &str| applied.get(name).and_then(Value::as_str).unwrap_or_default();
    let (given_version, given_kind) = (text("apiVersion"), text("kind"));
    if given_version != version || given_kind != &*patch.kind.kind {
        let slash = if given_version.contains('/') { "" } else { "/" };
        let shown = format!("{slash}{given_version}, Kind={given_kind}");
        return Err(Status::bad_request(format!("invalid object type: {shown}")));
    }
    if applied.pointer("/metadata/managedFields").is_some_and(|fields| !fields.is_null()) {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    let write = Write::of(patch);
    let mut object = managed::apply(&write.on(node), current, &applied, patch.force)?;
    finish(patch.kind, node, &mut object);
    if let Some(current) = current {
        managed_fields::settle(current, &mut object);
    }
    Ok(Patched { object, warnings })
}

fn read_configuration(patch: &Patch<'_>) -> Result<(Value, Vec<String>), Status> {
    let bad = |error: String| Status::bad_request(format!("error decoding YAML: {error}"));
    let document = match (Document::parse(patch.body), patch.parse_yaml) {
        (Ok(document), _) => document,
        (Err(_), Some(parse)) => Document::from_value(&parse(patch.body).map_err(bad)?),
        (Err(error), None) => return Err(bad(json_error(patch.body, &error))),
    };
    let mut warnings = Vec::new();
    if patch.field_validation != FieldValidation::Ignore {
        let found = decode::repeated(&document);
        if patch.field_validation == FieldValidation::Strict && !found.is_empty() {
            let lines: Vec<String> = found.iter().map(|one| format!("  {one}")).collect();
            return Err(Status::bad_request(format!(
                "error strict decoding YAML: {}",
                lines.join("\n")
            )));
        }
        warnings = found;
    }
    match document.into_value() {
        object @ Value::Object(_) => Ok((object, warnings)),
        other => Err(bad(format!(
            "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {} into Go value \
             of type map[string]interface {{}}",
            json_kind(&other)
        ))),
    }
}

fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The wording of errors in strategic patches, which are not decoded again.
fn unstructured_error(error: String) -> String {
    let Some(rest) = error.strip_prefix("json: cannot unmarshal ") else {
        return format!("error decoding from json: {error}");
    };
    let found = rest.split(' ').next().unwrap_or_default();
    match rest.rsplit(" of type ").next() {
        Some("string") => {
            let found = if found == "number" { "int64" } else { found };
            format!("cannot convert {found} to string")
        }
        Some(wanted @ ("int32" | "int64" | "bool")) => format!("unrecognized type: {wanted}"),
        _ => error,
    }
}

fn not_an_object(shown: String, error: String) -> Status {
    Status::invalid("", "", "", &[FieldError::invalid("patch", &Value::String(shown), error)])
}

/// 415 for a patch type that a kind does not take.
fn unsupported(custom: bool) -> Status {
    let mut accepted = vec!["application/json-patch+json", "application/merge-patch+json"];
    if !custom {
        accepted.push("application/strategic-merge-patch+json");
    }
    accepted.push("application/apply-patch+yaml");
    Status::unsupported_media_type(&accepted.join(", "))
}

/// 422 without details, as the real server answers.
fn unprocessable() -> Status {
    Status {
        code: 422,
        reason: "Invalid",
        message: "the server rejected our request due to an error in our request".to_owned(),
        details: Some(Box::new(Details::default())),
    }
}

/// 500 without a reason.
fn unknown(message: String) -> Status {
    Status { code: 500, reason: "", message, details: None }
}

mod managed_fields {
    //! The way in for writes that are not patches.

    use super::{Patch, Timestamp, Value, managed, schema};
    use crate::kinds::Kind;
    use crate::schema::Node;

    #[derive(Clone, Copy)]
    pub struct Write<'a> {
        pub kind: &'a Kind,
        /// The subresource that is written; empty for the object itself.
        pub subresource: &'a str,
        /// Who writes: the request's `fieldManager`, else the first part of its user agent.
        pub field_manager: &'a str,
        pub now: Timestamp,
    }

    impl<'a> Write<'a> {
        pub(super) fn of(patch: &Patch<'a>) -> Self {
            let Patch { kind, subresource, field_manager, now, .. } = *patch;
            Self { kind, subresource, field_manager, now }
        }

        pub(super) fn on<'b>(&self, node: &'b Node) -> managed::Write<'b>
        where
            'a: 'b,
        {
            managed::Write {
                kind: self.kind,
                node,
                subresource: self.subresource,
                manager: self.field_manager,
                now: self.now,
            }
        }
    }

    /// Records managers in `new` after a create (`live` is `None`), update or patch.
    pub fn record(write: &Write<'_>, live: Option<&Value>, new: &mut Value) {
        let node = schema::of(write.kind);
        managed::record(&write.on(&node), live, new);
    }

    /// Keeps the times of managers if nothing else changes.
    pub(super) fn settle(live: &Value, new: &mut Value) {
        managed::keep_times(live, new);
    }
}
