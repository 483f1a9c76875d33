//! Bodies in protobuf, as Go's typed clients and most of kubectl's own commands send them.
//!
//! Owns how such a body becomes the JSON that the server works with: the envelope that names the
//! kind, and the message in it. The JSON is what the real server would write of the same message.
//! Answers are never written in protobuf: clients that send it read JSON as well. Knows no request.

mod numbers;
mod read;
mod wire;

use serde_json::Value;

use self::read::Reader;
use self::wire::Fields;
use crate::schema::{self, Node};
use crate::status::Status;

/// The media type of such a body.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// How every body starts.
const MAGIC: &[u8] = b"k8s\0";

/// What a body is outside of its message.
#[derive(Default)]
struct Envelope<'a> {
    api_version: &'a str,
    kind: &'a str,
    raw: &'a [u8],
    encoding: &'a str,
    content_type: &'a str,
}

/// Why a message cannot be read, and in which field.
#[derive(Debug)]
struct Malformed {
    /// From the innermost to the outermost.
    path: Vec<String>,
    why: String,
}

impl Malformed {
    fn new(why: impl Into<String>) -> Self {
        Self { path: Vec::new(), why: why.into() }
    }

    fn within(mut self, field: &str) -> Self {
        self.path.push(field.to_owned());
        self
    }
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, field) in self.path.iter().rev().enumerate() {
            write!(f, "{}{field}", if at == 0 { "" } else { "." })?;
        }
        write!(f, "{}{}", if self.path.is_empty() { "" } else { ": " }, self.why)
    }
}

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
    let envelope = open(rest).map_err(|error| {
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
    if !envelope.encoding.is_empty() || !matches!(envelope.content_type, "" | MEDIA_TYPE) {
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

fn open(bytes: &[u8]) -> Result<Envelope<'_>, Malformed> {
    let mut envelope = Envelope::default();
    let mut fields = Fields::of(bytes);
    while let Some((number, wire)) = fields.next()? {
        match number {
            1 => {
                let mut fields = Fields::of(wire.bytes()?);
                while let Some((number, wire)) = fields.next()? {
                    match number {
                        1 => envelope.api_version = wire.text()?,
                        2 => envelope.kind = wire.text()?,
                        _ => {}
                    }
                }
            }
            2 => envelope.raw = wire.bytes()?,
            3 => envelope.encoding = wire.text()?,
            4 => envelope.content_type = wire.text()?,
            _ => {}
        }
    }
    Ok(envelope)
}
