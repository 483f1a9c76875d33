//! Responses: objects, lists and errors.

use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt as _};
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use serde_json::Value;
use std::convert::Infallible;
use std::sync::Arc;

use crate::kinds::{Kind, Origin};
use crate::status::Status;
use crate::store::{Stored, body_of, write_typed};

pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Bytes of a list per frame.
const CHUNK_BYTES: usize = 128 * 1024;

fn with_type(code: u16, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

pub(crate) fn bytes(code: u16, body: Vec<u8>) -> Response<Body> {
    with_type(code, "application/json", Full::new(Bytes::from(body)).boxed_unsync())
}

pub(crate) fn text(code: u16, body: impl Into<Bytes>) -> Response<Body> {
    with_type(code, "text/plain; charset=utf-8", Full::new(body.into()).boxed_unsync())
}

pub(crate) fn json(code: u16, value: &Value) -> Response<Body> {
    bytes(code, value.to_string().into_bytes())
}

/// JSON with a content type of its own.
pub(crate) fn json_as(content_type: &'static str, value: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(value.to_string())).boxed_unsync();
    with_type(200, content_type, body)
}

/// Bytes with a content type of their own.
pub(crate) fn bytes_as(content_type: &'static str, body: Vec<u8>) -> Response<Body> {
    with_type(200, content_type, Full::new(Bytes::from(body)).boxed_unsync())
}

pub(crate) fn status(status: &Status) -> Response<Body> {
    let mut response = json(status.code, &status.to_json());
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if seconds > 0 && matches!(status.code, 429 | 503 | 504) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// An object that may not be stored, as the kind it was asked for as.
pub(crate) fn value(code: u16, kind: &Kind, value: &Value) -> Response<Body> {
    let mut out = Vec::with_capacity(1024);
    write_typed(&mut out, &kind.api_version(), &kind.kind, &body_of(value));
    bytes(code, out)
}

pub(crate) fn stored(code: u16, kind: &Kind, object: &Stored) -> Response<Body> {
    let mut out = Vec::with_capacity(object.body.len() + 64);
    super::shape::write_object(&mut out, kind, object);
    bytes(code, out)
}

pub(crate) fn with_warnings(mut response: Response<Body>, warnings: &[String]) -> Response<Body> {
    for warning in warnings {
        let escaped: String = warning
            .chars()
            .filter(|c| !c.is_control())
            .flat_map(|c| if matches!(c, '"' | '\\') { vec!['\\', c] } else { vec![c] })
            .collect();
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{escaped}\"").as_bytes()) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    response
}

#[derive(Debug, Default)]
pub(crate) struct ListMeta {
    pub(crate) revision: u64,
    pub(crate) continues: Option<String>,
    pub(crate) remaining: Option<usize>,
}

impl ListMeta {
    /// The `metadata` of the list.
    pub(crate) fn to_json(&self) -> Value {
        let mut metadata = serde_json::json!({"resourceVersion": self.revision.to_string()});
        if let Some(token) = &self.continues {
            metadata["continue"] = Value::from(token.as_str());
        }
        if let Some(remaining) = self.remaining {
            metadata["remainingItemCount"] = Value::from(remaining);
        }
        metadata
    }
}

/// A list, streamed from the stored bytes of its objects.
pub(crate) fn list(kind: Arc<Kind>, meta: &ListMeta, items: Vec<Arc<Stored>>) -> Response<Body> {
    let head = format!(
        "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",\"metadata\":{},\"items\":[",
        kind.list_kind,
        kind.api_version(),
        meta_of(&kind, meta)
    );
    let chunks = ListChunks { kind, items, at: 0, head: Some(head.into_bytes()), done: false };
    let frames = stream::unfold(chunks, |mut chunks| async move {
        chunks.next().map(|chunk| (Ok(Frame::data(chunk)), chunks))
    });
    with_type(200, "application/json", StreamBody::new(frames.boxed()).boxed_unsync())
}

/// Lists of custom resources always have `continue`, even if empty.
fn meta_of(kind: &Kind, meta: &ListMeta) -> Value {
    let mut metadata = meta.to_json();
    if matches!(kind.origin, Origin::Custom(_)) && meta.continues.is_none() {
        metadata["continue"] = Value::from("");
    }
    metadata
}

struct ListChunks {
    kind: Arc<Kind>,
    items: Vec<Arc<Stored>>,
    at: usize,
    head: Option<Vec<u8>>,
    done: bool,
}

impl ListChunks {
    fn next(&mut self) -> Option<Bytes> {
        if self.done {
            return None;
        }
        let mut out = self.head.take().unwrap_or_default();
        // Items of built-in lists carry no type; custom ones do.
        let typed = matches!(self.kind.origin, Origin::Custom(_));
        while let Some(item) = self.items.get(self.at) {
            if self.at > 0 {
                out.push(b',');
            }
            if typed {
                super::shape::write_object(&mut out, &self.kind, item);
            } else {
                super::shape::write_body(&mut out, &self.kind, item);
            }
            self.at += 1;
            if out.len() >= CHUNK_BYTES {
                return Some(Bytes::from(out));
            }
        }
        out.extend_from_slice(b"]}");
        self.done = true;
        Some(Bytes::from(out))
    }
}

/// A streamed body.
pub(crate) fn streaming<S>(pieces: S) -> Response<Body>
where
    S: Stream<Item = Bytes> + Send + 'static,
{
    let frames = pieces.map(|piece| Ok(Frame::data(piece)));
    with_type(200, "application/json", StreamBody::new(frames.boxed()).boxed_unsync())
}
