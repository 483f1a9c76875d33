//! Get and list requests.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Response;
use serde_json::{Value, json};

use super::path::Place;
use super::respond::{self, Body, ListMeta};
use super::{Call, Query, shape};
use crate::kinds::Resource;
use crate::select::Selector;
use crate::server::Server;
use crate::status::{FieldError, Status, quoted};
use crate::store::{Listed, Stored, key_of};
use crate::table::Layout;

/// One object, or 404.
pub(crate) fn find(server: &Server, place: &Place) -> Result<Arc<Stored>, Status> {
    let key = key_of(&place.namespace, &place.name);
    server
        .store
        .get(&place.kind.stored_as, &key)
        .ok_or_else(|| Status::not_found(&place.kind.resource, &place.name))
}

pub(crate) fn get(server: &Server, place: &Place, call: &Call) -> Result<Response<Body>, Status> {
    let wanted = revision(&call.query)?;
    not_from_the_future(server, wanted)?;
    let object = find(server, place)?;
    if let Some(include) = call.table()? {
        let value = shape::served(&place.kind, &object.value);
        let metadata = json!({"resourceVersion": object.revision.to_string()});
        let layout = Layout::of(&place.kind);
        let one = std::iter::once(&value);
        return Ok(respond::json(200, &layout.table(&place.kind, metadata, one, include, true)));
    }
    Ok(respond::stored(200, &place.kind, &object))
}

/// `resourceVersion` of a query; 0 for none.
pub(crate) fn revision(query: &Query) -> Result<u64, Status> {
    match query.text("resourceVersion") {
        "" => Ok(0),
        text => text.parse().map_err(|_| {
            let quoted = quoted(text);
            Status::bad_request(format!(
                "invalid resource version: resourceVersion: Invalid value: {quoted}: strconv.ParseUint: parsing {quoted}: invalid syntax"
            ))
        }),
    }
}

fn not_from_the_future(server: &Server, wanted: u64) -> Result<(), Status> {
    let current = server.store.revision();
    if wanted <= current {
        return Ok(());
    }
    let message = format!("Too large resource version: {wanted}, current: {current}");
    Err(Status::timeout(message, 1).with_cause(
        "ResourceVersionTooLarge",
        "Too large resource version",
        "",
    ))
}

/// Checked parameters of a list.
struct ListOptions {
    revision: u64,
    exact: bool,
    limit: usize,
    continues: Option<Continue>,
}

/// Where the next page starts, and at which revision.
struct Continue {
    revision: u64,
    start: String,
}

impl Continue {
    fn decode(token: &str) -> Result<Self, Status> {
        let invalid = |why: &str| {
            Status::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
        };
        let bytes = URL_SAFE_NO_PAD
            .decode(token.trim_end_matches('='))
            .map_err(|error| invalid(&error.to_string()))?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| match bytes.first() {
            Some(first) if !matches!(first, b'{' | b'[' | b'"') => {
                let first = char::from(*first);
                invalid(&format!("invalid character '{first}' looking for beginning of value"))
            }
            _ => invalid(&crate::patch::json_error(&bytes, &error)),
        })?;
        match (value["v"].as_str(), value["rv"].as_u64(), value["start"].as_str()) {
            (Some("meta.k8s.io/v1"), Some(revision), Some(start)) if revision > 0 => {
                Ok(Self { revision, start: start.to_owned() })
            }
            _ => Err(invalid("server does not recognize this encoded version")),
        }
    }

    fn encode(&self) -> String {
        let token = json!({"v": "meta.k8s.io/v1", "rv": self.revision, "start": self.start});
        URL_SAFE_NO_PAD.encode(token.to_string())
    }
}

fn invalid_options(errors: &[FieldError]) -> Status {
    Status::invalid("meta.k8s.io", "ListOptions", "", errors)
}

/// Checks `resourceVersionMatch` as the real server does.
pub(crate) fn check_match(query: &Query, watch: bool) -> Result<(), Status> {
    let field = "resourceVersionMatch";
    let matching = query.text(field);
    let initial_events = query.has("sendInitialEvents");
    let forbidden = |detail: &str| Err(invalid_options(&[FieldError::forbidden(field, detail)]));
    if watch {
        if initial_events && matching != "NotOlderThan" {
            return forbidden(
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            );
        }
        if !initial_events && !matching.is_empty() {
            return forbidden(
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            );
        }
        return Ok(());
    }
    if initial_events {
        let error =
            FieldError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list");
        return Err(invalid_options(&[error]));
    }
    match matching {
        "" => Ok(()),
        _ if query.text("resourceVersion").is_empty() => {
            forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided")
        }
        _ if !query.text("continue").is_empty() => {
            forbidden("resourceVersionMatch is forbidden when continue is provided")
        }
        "Exact" if query.text("resourceVersion") == "0" => {
            forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"")
        }
        "Exact" | "NotOlderThan" => Ok(()),
        other => Err(invalid_options(&[FieldError::not_one_of(
            field,
            &Value::from(other),
            &["Exact", "NotOlderThan", ""],
        )])),
    }
}

fn list_options(query: &Query) -> Result<ListOptions, Status> {
    check_match(query, false)?;
    let limit = query.number("limit")?.unwrap_or(0);
    let continues = match query.text("continue") {
        "" => None,
        token => Some(Continue::decode(token)?),
    };
    let revision = revision(query)?;
    if continues.is_some() && revision > 0 {
        return Err(Status::bad_request(
            "specifying resource version is not allowed when using continue",
        ));
    }
    Ok(ListOptions {
        revision,
        exact: query.text("resourceVersionMatch") == "Exact",
        limit: usize::try_from(limit).unwrap_or(0),
        continues,
    })
}

const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

/// The objects that a list is taken from, before selection and paging.
fn snapshot(
    server: &Server,
    resource: &Resource,
    namespace: Option<&str>,
    options: &ListOptions,
) -> Result<Listed, Status> {
    not_from_the_future(server, options.revision)?;
    if let Some(continues) = &options.continues {
        return server
            .store
            .list_at(resource, namespace, continues.revision)
            .map_err(|_| Status::expired(CONTINUE_EXPIRED));
    }
    if options.exact {
        return server
            .store
            .list_at(resource, namespace, options.revision)
            .map_err(|_| Status::expired("The resourceVersion for the provided list is too old."));
    }
    Ok(server.store.list(resource, namespace))
}

pub(crate) fn page(
    server: &Server,
    place: &Place,
    call: &Call,
) -> Result<(ListMeta, Vec<Arc<Stored>>), Status> {
    let query = &call.query;
    let selector =
        Selector::parse(&place.kind, query.text("labelSelector"), query.text("fieldSelector"))?;
    let options = list_options(query)?;
    let namespace = Some(place.namespace.as_str()).filter(|namespace| !namespace.is_empty());
    let listed = snapshot(server, &place.kind.stored_as, namespace, &options)?;
    let revision = listed.revision;
    let mut items = listed.items;
    if let Some(continues) = &options.continues {
        let first = items.partition_point(|item| *item.key < *continues.start);
        items.drain(..first);
    }
    let everything = selector.is_everything();
    if !everything {
        items.retain(|item| selector.matches(&item.value));
    }
    let mut meta = ListMeta { revision, ..ListMeta::default() };
    if options.limit > 0 && items.len() > options.limit {
        let rest = items.split_off(options.limit);
        if let Some(next) = rest.first() {
            let continues = Continue { revision, start: next.key.to_string() };
            meta.continues = Some(continues.encode());
        }
        // With a selector the real server omits the remaining count.
        meta.remaining = everything.then_some(rest.len());
    }
    Ok((meta, items))
}

pub(crate) fn list(server: &Server, place: &Place, call: &Call) -> Result<Response<Body>, Status> {
    let (meta, items) = page(server, place, call)?;
    if let Some(include) = call.table()? {
        let objects = items.iter().map(|item| &*item.value);
        let layout = Layout::of(&place.kind);
        let table = layout.table(&place.kind, meta.to_json(), objects, include, true);
        return Ok(respond::json(200, &table));
    }
    Ok(respond::list(place.kind.clone(), &meta, items))
}
