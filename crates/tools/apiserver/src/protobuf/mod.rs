//! Bodies in protobuf, which Go's typed clients and most commands of kubectl send, become the JSON that the real
//! server would write for the same message. Answers are always JSON.

mod numbers;
mod read;

use berth_protobuf::{Envelope, MAGIC};
use serde_json::Value;

use self::read::Reader;
use crate::schema::{self, Node};
use crate::status::Status;

/// A body as JSON. `expected` is the version and kind of a body that does not name its own.
///
/// # Errors
///
/// A bad request if it is no such body, of a kind that has no message, or damaged.
pub fn to_json(body: &[u8], expected: (&str, &str)) -> Result<Value, Status> {
    let Some(rest) = body.strip_prefix(MAGIC) else {
        return Err(Status::bad_request(
            "the body does not start as protobuf of Kubernetes does, with the bytes 107 56 115 0",
        ));
    };
    let envelope = Envelope::open(rest).map_err(|error| {
        Status::bad_request(format!("the envelope of the protobuf body cannot be read: {error}"))
    })?;
    let or = |given: &str, otherwise: &str| {
        if given.is_empty() { otherwise.to_owned() } else { given.to_owned() }
    };
    let (api_version, kind) = (or(envelope.api_version, expected.0), or(envelope.kind, expected.1));
    let malformed = |why: &str| {
        let version = api_version.rsplit('/').next().unwrap_or_default();
        Status::bad_request(format!(
            "{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"
        ))
    };
    if !envelope.is_plain() {
        return Err(malformed("what is in the envelope is not plain protobuf"));
    }
    let Some(node) = node_of(&api_version, &kind) else {
        return Err(Status::bad_request(format!(
            "no kind \"{kind}\" is registered for version \"{api_version}\" in protobuf; send JSON"
        )));
    };
    let read = Reader::new().structure(&node, envelope.raw);
    let mut value = read.map_err(|error| malformed(&error.to_string()))?;
    value["apiVersion"] = Value::from(api_version.as_str());
    value["kind"] = Value::from(kind.as_str());
    schema::normalize(&node, &mut value);
    Ok(value)
}

fn node_of(api_version: &str, kind: &str) -> Option<Node> {
    // These options are known in every group.
    if kind == "DeleteOptions" {
        return Some(schema::named(kind));
    }
    schema::of_built_in(api_version, kind).cloned()
}
