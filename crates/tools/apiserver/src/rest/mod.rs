//! HTTP requests and responses: a path, a query and a body become reads and writes of the store.

mod create;
mod delete;
mod discovery;
mod meta;
mod namespaces;
mod negotiate;
mod openapi;
mod path;
mod pods;
mod query;
mod read;
mod respond;
mod reviews;
mod rules;
mod scale;
mod shape;
mod update;
mod watching;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Response, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body as HttpBody;
use serde_json::Value;

pub(crate) use path::{Path, Place};
pub(crate) use query::Query;
pub use respond::Body;

use crate::crd;
use crate::identity::{self, User};
use crate::kinds::{Origin, Resource};
use crate::origin;
use crate::server::{Authorization, Server};
use crate::status::Status;
use crate::table::Include;

/// The real server's limit.
const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Paths that need no token.
const PUBLIC: [&str; 4] = ["/healthz", "/livez", "/readyz", "/version"];

/// A request after its body has been read.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) user: User,
}

impl Call {
    pub(crate) fn header(&self, name: header::HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The media type of the body, without its parameters.
    pub(crate) fn content_type(&self) -> &str {
        let whole = self.header(header::CONTENT_TYPE);
        whole.split(';').next().unwrap_or_default().trim()
    }

    /// The field manager: `fieldManager`, else the first part of the user agent.
    pub(crate) fn field_manager(&self) -> String {
        let given = self.query.text("fieldManager");
        if !given.is_empty() {
            return given.to_owned();
        }
        // The part of the user agent before the first slash.
        let agent = self.header(header::USER_AGENT);
        agent.split('/').next().filter(|name| !name.is_empty()).unwrap_or("unknown").to_owned()
    }

    /// Whether the client asks for a table, and what its rows include.
    pub(crate) fn table(&self) -> Result<Option<Include>, Status> {
        let wanted = self.header(header::ACCEPT).split(',').any(|one| {
            let parts: Vec<&str> = one.split(';').map(str::trim).collect();
            parts.contains(&"as=Table")
                && parts.contains(&"v=v1")
                && parts.contains(&"g=meta.k8s.io")
        });
        if !wanted {
            return Ok(None);
        }
        let given = self.query.text("includeObject");
        Include::parse(given).map(Some).ok_or_else(|| {
            Status::bad_request(format!("unrecognized includeObject value: {given}"))
        })
    }

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

/// Answers one request, from `outside` of the process or from inside.
pub(crate) async fn handle<B>(
    server: Arc<Server>,
    request: http::Request<B>,
    outside: Option<IpAddr>,
) -> Response<Body>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if !server.resumed.swap(true, Ordering::Relaxed) {
        namespaces::resume(&server);
    }
    let answered = answer(server.clone(), request, outside).await;
    // Answer only after changes are on disk.
    let settled = server.store.settled().await;
    match settled.and(answered) {
        Ok(response) => response,
        Err(status) => respond::status(&status),
    }
}

async fn answer<B>(
    server: Arc<Server>,
    request: http::Request<B>,
    outside: Option<IpAddr>,
) -> Result<Response<Body>, Status>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (parts, body) = request.into_parts();
    if let Some(local) = outside {
        let foreign = |why| Status::forbidden(&Resource::new("", ""), "", why);
        origin::check(&parts, local).map_err(foreign)?;
    }
    let user = authenticate(&server, &parts, outside.is_some())?;
    let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|error| {
        if error.downcast_ref::<LengthLimitError>().is_some() {
            Status::too_large(format!("limit is {BODY_BYTES_MAX}"))
        } else {
            Status::bad_request(format!("the body could not be read: {error}"))
        }
    })?;
    let body = body.to_bytes();
    // Browsers let pages of any site send a body without a content type.
    if outside.is_some() && !body.is_empty() && !parts.headers.contains_key(header::CONTENT_TYPE) {
        return Err(Status::unsupported_media_type(rules::MEDIA_TYPES));
    }
    let call = Call {
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: Query::parse(parts.uri.query()),
        headers: parts.headers,
        body,
        user,
    };
    reviews::authorize(&server, &call)?;
    match Path::find(&server.kinds.table(), &call.path)? {
        Path::Objects(place) => {
            let call = negotiate::as_json(&place, call)?;
            let answered = objects(&server, &place, &call).await;
            settle_definitions(&server, &place, &call);
            if place.kind.is("", "resourcequotas") && call.method != Method::GET {
                rules::recount(&server, &place.namespace);
            }
            answered
        }
        Path::Other => discovery::answer(&server, &call),
    }
}

fn authenticate(server: &Server, request: &Parts, outside: bool) -> Result<User, Status> {
    let shown = request.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if let Some(token) = shown.and_then(|value| value.strip_prefix("Bearer ")) {
        let recognised = server.tokens.recognise(&server.store, token.trim());
        let user = recognised.map(|recognised| recognised.user).ok_or_else(Status::unauthorized)?;
        return impersonated(user, &request.headers);
    }
    match server.options.authorization {
        Authorization::Rbac if outside => Ok(identity::anonymous()),
        Authorization::RbacWithToken if outside => {
            let is_public = PUBLIC.contains(&request.uri.path()) && request.method == Method::GET;
            is_public.then(identity::anonymous).ok_or_else(Status::unauthorized)
        }
        _ => Ok(identity::trusted()),
    }
}

/// The user that a request with `Impersonate-User` is for (`kubectl --as`). Only administrators may do that.
fn impersonated(user: User, headers: &HeaderMap) -> Result<User, Status> {
    let text = |value: &http::HeaderValue| value.to_str().unwrap_or_default().to_owned();
    let Some(name) = headers.get("impersonate-user").map(text) else { return Ok(user) };
    if !user.groups.iter().any(|group| group == identity::MASTERS) {
        let why = format!(
            "User \"{}\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope",
            user.name
        );
        return Err(Status::forbidden(&Resource::new("", "users"), &name, why));
    }
    let groups = headers.get_all("impersonate-group").iter().map(text).collect();
    Ok(identity::impersonated(name, groups))
}

/// Updates the table of kinds after writes of definitions, and after the last object of a deleted one.
fn settle_definitions(server: &Server, place: &Place, call: &Call) {
    if call.method == Method::GET {
        return;
    }
    let definition = place.kind.is("apiextensions.k8s.io", "customresourcedefinitions");
    let last_of_its_kind = || {
        let name = place.kind.resource.to_string();
        let definition = server.store.get(&crd::definitions(), &name);
        definition.is_some_and(|definition| meta::is_deleting(&definition.value))
    };
    let custom = matches!(place.kind.origin, Origin::Custom(_));
    if definition || (custom && last_of_its_kind()) {
        crd::settle(&server.store, &server.kinds);
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
        (&Method::DELETE, false) => delete::delete(server, place, call).await,
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
        "eviction" if kind.is("", "pods") && call.method == Method::POST => {
            pods::evict(server, place, call)
        }
        "log" if kind.is("", "pods") && call.method == Method::GET => {
            pods::log(server, place, call)
        }
        "token" if kind.is("", "serviceaccounts") && call.method == Method::POST => {
            reviews::token(server, place, call)
        }
        "finalize" if kind.is("", "namespaces") && call.method == Method::PUT => {
            namespaces::finalize(server, place, call).await
        }
        "scale" if kind.subresources.scale.is_some() => scale::answer(server, place, call).await,
        "exec" | "attach" | "portforward" | "ephemeralcontainers" if kind.is("", "pods") => {
            read::find(server, place)?;
            Err(Status::no_containers(&format!("pods/{}", place.subresource)))
        }
        _ => Err(Status::no_such_path()),
    }
}

/// Kinds that are not stored.
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
    reviews::review(server, place, call)
}
