//! Content negotiation: requests become JSON.

use bytes::Bytes;
use http::{HeaderValue, Method, header};

use super::{Call, Place};
use crate::kinds::Origin;
use crate::protobuf;
use crate::status::Status;

/// Converts a protobuf body to JSON. Refuses clients that do not accept JSON, and protobuf of custom resources.
pub(crate) fn as_json(place: &Place, mut call: Call) -> Result<Call, Status> {
    // Logs are always text.
    if place.subresource != "log" && !takes_json(call.header(header::ACCEPT)) {
        return Err(Status::not_acceptable("application/json"));
    }
    let is_protobuf = call.content_type() == berth_protobuf::MEDIA_TYPE;
    if !is_protobuf || call.body.is_empty() || call.method == Method::PATCH {
        return Ok(call);
    }
    let custom = matches!(place.kind.origin, Origin::Custom(_));
    if custom && call.method != Method::DELETE {
        return Err(Status::unsupported_media_type("application/json"));
    }
    let api_version = place.kind.api_version();
    let expected = match (&call.method, place.subresource.as_str()) {
        (&Method::DELETE, _) => ("meta.k8s.io/v1", "DeleteOptions"),
        (_, "binding") => ("v1", "Binding"),
        (_, "eviction") => ("policy/v1", "Eviction"),
        (_, "scale") => ("autoscaling/v1", "Scale"),
        (_, "token") => ("authentication.k8s.io/v1", "TokenRequest"),
        _ => (api_version.as_str(), &*place.kind.kind),
    };
    let object = protobuf::to_json(&call.body, expected)?;
    call.body = Bytes::from(object.to_string());
    call.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(call)
}

/// Whether one of the media types that a client accepts is JSON, or any.
fn takes_json(accept: &str) -> bool {
    let mut types = accept.split(',').filter_map(|one| one.split(';').next()).map(str::trim);
    accept.trim().is_empty()
        || types.any(|one| matches!(one, "application/json" | "application/*" | "*/*"))
}

#[cfg(test)]
mod tests {
    use super::takes_json;

    #[test]
    fn json_is_taken_by_all_but_those_who_want_something_else_only() {
        let both = "application/vnd.kubernetes.protobuf,application/json";
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        for accept in ["", "*/*", "application/*;q=0.8", "application/json", both, table] {
            assert!(takes_json(accept), "{accept}");
        }
        let watch = "application/vnd.kubernetes.protobuf;stream=watch";
        for accept in ["application/vnd.kubernetes.protobuf", watch, "text/html, application/cbor"]
        {
            assert!(!takes_json(accept), "{accept}");
        }
    }
}
