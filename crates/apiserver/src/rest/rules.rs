//! Where requests meet what is known of kinds: decoding, defaults, admission, validation, patches.

use std::sync::Arc;

use serde_json::Value;

use super::Call;
use super::path::Place;
use crate::kinds::Kind;
use crate::server::Server;
use crate::status::Status;

/// The body of a request as an object of a kind, and what to warn about.
pub(crate) fn decode(_kind: &Kind, call: &Call) -> Result<(Value, Vec<String>), Status> {
    Ok((call.object()?, Vec::new()))
}

/// What admission makes of a new object.
pub(crate) async fn admit_create(
    _server: &Arc<Server>,
    _place: &Place,
    _call: &Call,
    object: Value,
    _dry_run: bool,
) -> Result<Value, Status> {
    Ok(object)
}

/// What admission makes of a changed object.
pub(crate) async fn admit_update(
    _server: &Arc<Server>,
    _place: &Place,
    _call: &Call,
    _old: &Value,
    new: Value,
) -> Result<Value, Status> {
    Ok(new)
}

/// What a patch makes of an object; only applying makes something of nothing.
pub(crate) fn patch(_place: &Place, call: &Call, current: Option<&Value>) -> Result<Value, Status> {
    let malformed =
        |error: serde_json::Error| Status::bad_request(format!("error decoding patch: {error}"));
    let mut object = current.cloned().unwrap_or_default();
    match call.content_type() {
        "application/json-patch+json" => {
            let operations: json_patch::Patch =
                serde_json::from_slice(&call.body).map_err(malformed)?;
            json_patch::patch(&mut object, &operations)
                .map_err(|error| Status::bad_request(error.to_string()))?;
        }
        "application/merge-patch+json" | "application/strategic-merge-patch+json" => {
            let patch: Value = serde_json::from_slice(&call.body).map_err(malformed)?;
            json_patch::merge(&mut object, &patch);
        }
        _ => {
            return Err(Status::unsupported_media_type(
                "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml, application/apply-patch+cbor",
            ));
        }
    }
    Ok(object)
}
