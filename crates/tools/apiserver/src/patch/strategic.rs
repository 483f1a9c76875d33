//! Strategic merge patches with their directives (`$patch`, `$retainKeys`, `$setElementOrder`,
//! `$deleteFromPrimitiveList`).

use serde_json::{Map, Value};

use super::go::plain as go_plain;
use crate::schema::{ANY, Node};
use crate::status::Status;

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder";
const DELETE_LIST: &str = "$deleteFromPrimitiveList";

/// Why a patch cannot be applied.
#[derive(Debug)]
enum Refusal {
    /// It is not a patch: 400.
    BadFormat(&'static str),
    /// It refers to something missing: 422.
    Unprocessable,
    /// Anything else: 500, as the real server answers.
    Other(String),
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::BadFormat(message) => Status::bad_request(message),
            Refusal::Unprocessable => super::unprocessable(),
            Refusal::Other(message) => super::unknown(message),
        }
    }
}

fn no_merge_key(map: &Map<String, Value>, key: &str) -> Refusal {
    let map = go_plain(&Value::Object(map.clone()));
    Refusal::Other(format!("map: {map} does not contain declared merge key: {key}"))
}

fn bad_type(directive: &Value, map: &Map<String, Value>) -> Refusal {
    let map = go_plain(&Value::Object(map.clone()));
    Refusal::Other(format!("unknown patch type: {} in map: {map}", go_plain(directive)))
}

fn bad_argument(value: &Value) -> Refusal {
    let found = super::go::type_name(value);
    Refusal::Other(format!("expected a []interface {{}}, but received a {found}"))
}

pub(super) fn apply(
    node: &Node,
    current: &Value,
    patch: Map<String, Value>,
) -> Result<Value, Status> {
    let current = current.as_object().cloned().unwrap_or_default();
    Ok(Value::Object(merge_map(node, current, patch)?))
}

fn merge_map(
    node: &Node,
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
) -> Result<Map<String, Value>, Refusal> {
    if let Some(directive) = patch.get(PATCH) {
        return match directive.as_str() {
            Some("replace") => {
                patch.remove(PATCH);
                Ok(patch)
            }
            Some("delete") => Ok(Map::new()),
            _ => Err(bad_type(directive, &patch)),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    order_lists(node, &mut original, &mut patch)?;
    for (key, value) in patch {
        merge_field(node, &mut original, key, value)?;
    }
    Ok(original)
}

fn retain_keys(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
) -> Result<(), Refusal> {
    let Some(kept) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let bad = Refusal::BadFormat("invalid patch format of retainKeys");
    let Value::Array(kept) = kept else { return Err(bad) };
    let keeps = |key: &str| kept.iter().any(|kept| kept.as_str() == Some(key));
    let unlisted = patch.iter().any(|(key, value)| {
        let directive = key.starts_with(DELETE_LIST) || key.starts_with(SET_ORDER);
        !value.is_null() && !directive && !keeps(key)
    });
    if unlisted {
        return Err(bad);
    }
    original.retain(|key, _| keeps(key));
    Ok(())
}

fn merge_field(
    node: &Node,
    original: &mut Map<String, Value>,
    key: String,
    mut value: Value,
) -> Result<(), Refusal> {
    let deletes = key.strip_prefix(DELETE_LIST).map(|rest| rest.strip_prefix('/'));
    let (key, deletes) = match deletes {
        None => (key, false),
        Some(Some(name)) if !name.contains('/') => (name.to_owned(), true),
        Some(_) => {
            return Err(Refusal::BadFormat("invalid patch format of primitive list"));
        }
    };
    if value.is_null() {
        original.remove(&key);
        return Ok(());
    }
    let child = node.child(&key).unwrap_or(&ANY);
    let before = original.remove(&key);
    let merged = match (before, value) {
        (Some(Value::Object(before)), Value::Object(patch)) => {
            Some(Value::Object(merge_map(child, before, patch)?))
        }
        (Some(Value::Array(before)), Value::Array(patch)) => {
            Some(Value::Array(merge_list_field(child, before, patch, deletes)?))
        }
        (before, other) => {
            value = other;
            if deletes {
                before
            } else {
                drop_nulls(&mut value);
                without_directives(value)
            }
        }
    };
    if let Some(merged) = merged {
        original.insert(key, merged);
    }
    Ok(())
}

fn merge_list_field(
    node: &Node,
    original: Vec<Value>,
    patch: Vec<Value>,
    deletes: bool,
) -> Result<Vec<Value>, Refusal> {
    if node.strategy.merge || deletes {
        merge_list(node, original, patch, deletes)
    } else {
        Ok(patch)
    }
}

/// Whether the items are objects; an error if they are lists, or not all alike.
fn items_are_objects(lists: [&[Value]; 2]) -> Result<bool, Refusal> {
    let mut objects = None;
    for item in lists.into_iter().flatten() {
        let object = match item {
            Value::Array(_) => return Err(Refusal::Unprocessable),
            Value::Object(_) => true,
            _ => false,
        };
        if *objects.get_or_insert(object) != object {
            let message = "list element types are not identical";
            return Err(Refusal::Other(message.to_owned()));
        }
    }
    Ok(objects.unwrap_or(false))
}

fn merge_list(
    node: &Node,
    original: Vec<Value>,
    patch: Vec<Value>,
    deletes: bool,
) -> Result<Vec<Value>, Refusal> {
    if original.is_empty() && patch.is_empty() {
        return Ok(original);
    }
    if !items_are_objects([&original, &patch])? {
        if deletes {
            return Ok(original.into_iter().filter(|item| !patch.contains(item)).collect());
        }
        let mut merged: Vec<Value> = Vec::with_capacity(original.len());
        for item in original.iter().chain(&patch) {
            if !merged.contains(item) {
                merged.push(item.clone());
            }
        }
        return Ok(in_order(merged, &patch, &original, ""));
    }
    let key = node.strategy.merge_key.as_str();
    if key.is_empty() {
        return Err(no_merge_key(&Map::new(), key));
    }
    let server_order = original.clone();
    let (kept, patch) = apply_item_directives(original, patch, key)?;
    let mut merged = kept;
    for item in &patch {
        let Value::Object(item) = item else { continue };
        let value = item.get(key).ok_or_else(|| no_merge_key(item, key))?;
        let found = merged.iter_mut().find(|other| other.get(key) == Some(value));
        match found {
            Some(slot) => {
                let before = match slot.take() {
                    Value::Object(before) => before,
                    _ => Map::new(),
                };
                *slot = Value::Object(merge_map(node.item(), before, item.clone())?);
            }
            None => merged.push(Value::Object(item.clone())),
        }
    }
    Ok(in_order(merged, &patch, &server_order, key))
}

/// Applies `$patch: delete` and `replace` to items. Returns what is left of both lists.
fn apply_item_directives(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), Refusal> {
    let mut plain = Vec::with_capacity(patch.len());
    let mut replaces = false;
    for item in patch {
        let Value::Object(map) = &item else { continue };
        match map.get(PATCH) {
            None => plain.push(item),
            Some(directive) => match directive.as_str() {
                Some("delete") => {
                    let value = map.get(key).ok_or_else(|| no_merge_key(map, key))?;
                    original.retain(|other| other.get(key) != Some(value));
                }
                Some("replace") => replaces = true,
                Some("merge") => {
                    let message = "merging lists cannot yet be specified in the patch";
                    return Err(Refusal::Other(message.to_owned()));
                }
                _ => return Err(bad_type(directive, map)),
            },
        }
    }
    if replaces { Ok((plain, Vec::new())) } else { Ok((original, plain)) }
}

/// Two items are the same to an order if they are equal, or have the same key.
fn same(left: &Value, right: &Value, key: &str) -> bool {
    if key.is_empty() { left == right } else { left.get(key) == right.get(key) }
}

fn place(list: &[Value], item: &Value, key: &str) -> Option<usize> {
    list.iter().position(|other| same(other, item, key))
}

/// Merges the order of the patch with that of the server.
fn in_order(merged: Vec<Value>, patch: &[Value], server: &[Value], key: &str) -> Vec<Value> {
    let (mut ours, mut theirs): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|item| place(patch, item, key).is_some());
    ours.sort_by_key(|item| place(patch, item, key));
    theirs.sort_by_key(|item| place(server, item, key).unwrap_or(usize::MAX));
    let mut out = Vec::with_capacity(ours.len() + theirs.len());
    let mut ours = ours.into_iter().peekable();
    for item in theirs {
        let at = place(server, &item, key);
        while let Some(next) = ours.peek() {
            match (at, place(server, next, key)) {
                (Some(theirs), Some(ours)) if theirs < ours => break,
                _ => out.extend(ours.next()),
            }
        }
        out.push(item);
    }
    out.extend(ours);
    out
}

/// Merges lists with `$setElementOrder`, and removes them from the patch.
fn order_lists(
    node: &Node,
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
) -> Result<(), Refusal> {
    let directives: Vec<String> =
        patch.keys().filter(|key| key.starts_with(SET_ORDER)).cloned().collect();
    for directive in directives {
        let Some(order) = patch.remove(&directive) else { continue };
        let Value::Array(order) = order else { return Err(bad_argument(&order)) };
        let name = directive.strip_prefix(SET_ORDER).and_then(|rest| rest.strip_prefix('/'));
        let Some(name) = name.filter(|name| !name.contains('/')) else {
            let message = "invalid patch format of setElementOrder list";
            return Err(Refusal::BadFormat(message));
        };
        order_list(node.child(name).unwrap_or(&ANY), original, patch, name, &order)?;
    }
    Ok(())
}

fn order_list(
    node: &Node,
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    name: &str,
    order: &[Value],
) -> Result<(), Refusal> {
    for value in [original.get(name), patch.get(name)].into_iter().flatten() {
        if !value.is_array() {
            return Err(bad_argument(value));
        }
    }
    let key = node.strategy.merge_key.as_str();
    let items = |value: Value| match value {
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    let before = original.get(name).cloned().map(items);
    let ours = patch.get(name).cloned().map(items);
    check_order(ours.as_deref().unwrap_or_default(), order, key)?;
    let server = before.clone().unwrap_or_default();
    let merged = match (before, ours) {
        (None, None) => return Ok(()),
        (Some(before), None) => before,
        (None, Some(ours)) => without_directives(Value::Array(ours)).map(items).unwrap_or_default(),
        (Some(before), Some(ours)) => merge_list_field(node, before, ours, false)?,
    };
    patch.remove(name);
    original.insert(name.to_owned(), Value::Array(in_order(merged, order, &server, key)));
    Ok(())
}

/// Checks that the items of a patch follow its `$setElementOrder`.
fn check_order(patch: &[Value], order: &[Value], key: &str) -> Result<(), Refusal> {
    let deletes = |item: &Value| item.get(PATCH).is_some();
    if order.is_empty() || patch.is_empty() {
        return Ok(());
    }
    let mut left = order.iter();
    for item in patch.iter().filter(|item| key.is_empty() || !deletes(item)) {
        if !left.any(|other| same(other, item, key)) {
            let list = |items: &[Value]| go_plain(&Value::Array(items.to_vec()));
            return Err(Refusal::Other(format!(
                "The order in patch list:\n{}\n doesn't match {SET_ORDER} list:\n{}\n",
                list(patch),
                list(order)
            )));
        }
    }
    Ok(())
}

/// Drops nulls of new objects, where there is nothing to delete.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// A new value without directives; `None` if it is one itself.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Array(items) => {
            Some(Value::Array(items.into_iter().filter_map(without_directives).collect()))
        }
        Value::Object(map) if map.contains_key(PATCH) => None,
        Value::Object(map) => {
            let kept = map.into_iter();
            let kept = kept.filter_map(|(key, value)| Some((key, without_directives(value)?)));
            Some(Value::Object(kept.collect()))
        }
        other => Some(other),
    }
}
