//! Requests and answers.
//!
//! Turns a path, a query and a body into reads and writes of the store. What a kind means beyond
//! its metadata (defaults, validation, admission) is asked of the modules that know it.

mod create;
mod delete;
mod meta;
mod path;
mod pods;
mod query;
mod read;
mod respond;
mod rules;
mod shape;
mod update;
mod watching;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Response, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body as HttpBody;
use serde_json::Value;

pub(crate) use path::{Path, Place};
pub(crate) use query::Query;
pub use respond::Body;

use crate::server::Server;
use crate::status::Status;

/// A body may have this many bytes, as with a real API server.
const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;

/// A request after its body has been read.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Call {
    fn header(&self, name: header::HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The media type of the body, without its parameters.
    pub(crate) fn content_type(&self) -> &str {
        let whole = self.header(header::CONTENT_TYPE);
        whole.split(';').next().unwrap_or_default().trim()
    }

    /// Who writes, for the record of who manages which field.
    pub(crate) fn field_manager(&self) -> String {
        let given = self.query.text("fieldManager");
        if !given.is_empty() {
            return given.to_owned();
        }
        // What stands before the first slash of the user agent.
        let agent = self.header(header::USER_AGENT);
        agent.split('/').next().filter(|name| !name.is_empty()).unwrap_or("unknown").to_owned()
    }

    /// The body as a JSON object.
    pub(crate) fn object(&self) -> Result<Value, Status> {
        if !matches!(self.content_type(), "" | "application/json") {
            return Err(Status::unsupported_media_type("application/json"));
        }
        let value: Value = serde_json::from_slice(&self.body)
            .map_err(|error| Status::bad_request(format!("the body is not JSON: {error}")))?;
        if !value.is_object() {
            return Err(Status::bad_request("the body is not a JSON object"));
        }
        Ok(value)
    }
}

/// Answers one request.
pub(crate) async fn handle<B>(server: Arc<Server>, request: http::Request<B>) -> Response<Body>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match answer(server, request).await {
        Ok(response) => response,
        Err(status) => respond::status(&status),
    }
}

async fn answer<B>(server: Arc<Server>, request: http::Request<B>) -> Result<Response<Body>, Status>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (parts, body) = request.into_parts();
    let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|error| {
        if error.downcast_ref::<LengthLimitError>().is_some() {
            Status::too_large(format!("limit is {BODY_BYTES_MAX}"))
        } else {
            Status::bad_request(format!("the body could not be read: {error}"))
        }
    })?;
    let call = Call {
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: Query::parse(parts.uri.query()),
        headers: parts.headers,
        body: body.to_bytes(),
    };
    match Path::find(&server.kinds.table(), &call.path)? {
        Path::Objects(place) => objects(&server, &place, &call).await,
        Path::Other => Ok(respond::text(404, "404 page not found\n")),
    }
}

async fn objects(
    server: &Arc<Server>,
    place: &Place,
    call: &Call,
) -> Result<Response<Body>, Status> {
    if !place.subresource.is_empty() {
        return subresource(server, place, call).await;
    }
    if !place.kind.stored {
        return posted(server, place, call).await;
    }
    let whole_collection = place.name.is_empty();
    match (&call.method, whole_collection) {
        (&Method::GET, true) if call.query.flag("watch") => watching::watch(server, place, call),
        (&Method::GET, true) => read::list(server, place, call),
        (&Method::POST, true) => create::create(server, place, call).await,
        (&Method::DELETE, true) => delete::delete_all(server, place, call),
        (&Method::GET | &Method::HEAD, false) => read::get(server, place, call),
        (&Method::PUT, false) => update::replace(server, place, call).await,
        (&Method::PATCH, false) => update::patch(server, place, call).await,
        (&Method::DELETE, false) => delete::delete(server, place, call),
        _ => Err(Status::method_not_allowed()),
    }
}

async fn subresource(
    server: &Arc<Server>,
    place: &Place,
    call: &Call,
) -> Result<Response<Body>, Status> {
    let kind = &place.kind;
    match place.subresource.as_str() {
        "status" if kind.subresources.status => match call.method {
            Method::GET => read::get(server, place, call),
            Method::PUT => update::replace(server, place, call).await,
            Method::PATCH => update::patch(server, place, call).await,
            _ => Err(Status::method_not_allowed()),
        },
        "binding" if kind.is("", "pods") && call.method == Method::POST => {
            pods::bind(server, place, call)
        }
        _ => Err(Status::no_such_path()),
    }
}

/// Kinds that are never kept.
async fn posted(
    server: &Arc<Server>,
    place: &Place,
    call: &Call,
) -> Result<Response<Body>, Status> {
    if call.method != Method::POST || !place.name.is_empty() {
        return Err(Status::method_not_allowed());
    }
    if place.kind.is("", "bindings") {
        return pods::bind(server, place, call);
    }
    Err(Status::no_such_path())
}
