//! Where requests meet what is known of kinds: decoding, defaults, admission, validation, patches.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::Call;
use super::path::Place;
use crate::decode::{self, Document};
use crate::defaults;
use crate::kinds::{Kind, Origin};
use crate::patch::{self, FieldValidation, Patch, PatchType, Write};
use crate::schema;
use crate::server::Server;
use crate::status::Status;

/// What a client wants done about unknown fields.
fn field_validation(call: &Call) -> Result<FieldValidation, Status> {
    match call.query.text("fieldValidation") {
        "" | "Warn" => Ok(FieldValidation::Warn),
        "Ignore" => Ok(FieldValidation::Ignore),
        "Strict" => Ok(FieldValidation::Strict),
        other => {
            let error = crate::status::FieldError::not_supported(
                "fieldValidation",
                &Value::from(other),
                &["Ignore", "Strict", "Warn", ""],
            );
            Err(Status::invalid("meta.k8s.io", "CreateOptions", "", &[error]))
        }
    }
}

/// The body of a request as an object of a kind, with its defaults, and what to warn about.
pub(crate) fn decode(kind: &Kind, call: &Call) -> Result<(Value, Vec<String>), Status> {
    if !matches!(call.content_type(), "" | "application/json") {
        return Err(Status::unsupported_media_type("application/json"));
    }
    let validation = field_validation(call)?;
    let malformed = |why: String| {
        Status::bad_request(format!(
            "{} in version \"{}\" cannot be handled as a {}: {why}",
            kind.kind, kind.version, kind.kind
        ))
    };
    let document = Document::parse(&call.body)
        .map_err(|error| malformed(patch::json_error(&call.body, &error)))?;
    let node = schema::of(kind);
    let findings = decode::inspect(&node, &document);
    let custom = matches!(kind.origin, Origin::Custom(_));
    if let Some(error) = findings.type_error.filter(|_| !custom) {
        return Err(malformed(error));
    }
    if validation == FieldValidation::Strict && !findings.strict.is_empty() {
        return Err(malformed(decode::strict_error(&findings.strict)));
    }
    let mut object = document.into_value();
    if !object.is_object() {
        return Err(malformed("it is not an object".to_owned()));
    }
    schema::normalize(&node, &mut object);
    defaults::apply(kind, &mut object);
    let warnings = if validation == FieldValidation::Warn { findings.strict } else { Vec::new() };
    Ok((object, warnings))
}

/// What admission makes of a new object.
pub(crate) async fn admit_create(
    _server: &Arc<Server>,
    place: &Place,
    call: &Call,
    mut object: Value,
    _dry_run: bool,
) -> Result<Value, Status> {
    let kind = &place.kind;
    defaults::prepare_create(kind, &mut object);
    let applies = call.content_type() == "application/apply-patch+yaml";
    if !applies {
        let manager = call.field_manager();
        patch::record(&write(place, &manager), None, &mut object);
    }
    Ok(object)
}

fn write<'a>(place: &'a Place, field_manager: &'a str) -> Write<'a> {
    Write {
        kind: &place.kind,
        subresource: &place.subresource,
        field_manager,
        now: Timestamp::now(),
    }
}

/// What admission makes of a changed object.
pub(crate) async fn admit_update(
    _server: &Arc<Server>,
    place: &Place,
    call: &Call,
    old: &Value,
    mut new: Value,
) -> Result<Value, Status> {
    defaults::prepare_update(&place.kind, &place.subresource, old, &mut new);
    if call.method == http::Method::PUT {
        let manager = call.field_manager();
        patch::record(&write(place, &manager), Some(old), &mut new);
    }
    Ok(new)
}

/// What a patch makes of an object; only applying makes something of nothing.
pub(crate) fn patch(
    server: &Server,
    place: &Place,
    call: &Call,
    current: Option<&Value>,
) -> Result<(Value, Vec<String>), Status> {
    let patch_type = PatchType::of(call.content_type()).ok_or_else(|| {
        Status::unsupported_media_type(
            "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml",
        )
    })?;
    let manager = call.field_manager();
    let patch = Patch {
        kind: &place.kind,
        subresource: &place.subresource,
        patch_type,
        body: &call.body,
        field_manager: &manager,
        force: call.query.flag("force"),
        field_validation: field_validation(call)?,
        now: Timestamp::now(),
        parse_yaml: server.options.parse_yaml,
    };
    let patched = patch::apply(&patch, current)?;
    Ok((patched.object, patched.warnings))
}
