//! Objects with their schema: which fields they have, how they differ, how they merge. The parts of server-side
//! apply.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::fieldset::{Element, FieldSet, Plain};
use crate::schema::{ANY, ListKind, Node, Shape};

enum Form<'a> {
    Leaf,
    Map,
    List(&'a ListKind),
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

fn form<'a>(node: &'a Node, values: [Option<&Value>; 2]) -> Form<'a> {
    match &node.shape {
        Shape::Struct(_) | Shape::Map(_) if !node.is_atomic() => Form::Map,
        Shape::List(_) if node.list != ListKind::Atomic => Form::List(&node.list),
        Shape::Any if !node.atomic => {
            let mut given = values.into_iter().flatten().peekable();
            let maps = given.peek().is_some() && given.all(Value::is_object);
            if maps { Form::Map } else { Form::Leaf }
        }
        _ => Form::Leaf,
    }
}

fn element(node: &Node, kind: &ListKind, item: &Value) -> Result<Element, String> {
    let ListKind::Map(keys) = kind else {
        return match item {
            Value::Object(_) | Value::Array(_) => {
                Err("associative list without keys has an element that's a map type".to_owned())
            }
            item => Ok(Element::Value(Plain(item.clone()))),
        };
    };
    let Some(map) = item.as_object() else {
        if item.is_null() {
            return Err("associative list with keys may not have a null element".to_owned());
        }
        return Err("associative list with keys may not have non-map elements".to_owned());
    };
    let mut fields = Vec::with_capacity(keys.len());
    for key in keys {
        let default = node.item().child(key).and_then(|field| field.key_default.as_ref());
        if let Some(value) = map.get(key).or(default) {
            fields.push((key.clone(), Plain(value.clone())));
        }
    }
    if fields.is_empty() {
        let keys: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] (and \
             doesn't have default values for any key fields)",
            keys.join(" ")
        ));
    }
    fields.sort();
    Ok(Element::Key(fields))
}

fn child<'a>(node: &'a Node, key: &str) -> &'a Node {
    node.child(key).unwrap_or(&ANY)
}

fn is_named(node: &Node, key: &str) -> bool {
    node.structure().is_some_and(|structure| structure.fields.contains_key(key))
}

pub(super) fn fields_of(node: &Node, value: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    collect(node, value, &mut Vec::new(), &mut set);
    set
}

fn collect(node: &Node, value: &Value, path: &mut Vec<Element>, set: &mut FieldSet) {
    match (form(node, [Some(value), None]), value) {
        (Form::Leaf, _) => set.insert(path),
        (Form::Map, Value::Object(map)) => {
            for (key, value) in map {
                path.push(Element::Field(key.clone()));
                collect(child(node, key), value, path, set);
                let bare = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                if bare || !is_named(node, key) {
                    set.insert(path);
                }
                path.pop();
            }
        }
        (Form::List(kind), Value::Array(items)) => {
            for item in items {
                let Ok(element) = element(node, kind, item) else { continue };
                path.push(element);
                collect(node.item(), item, path, set);
                set.insert(path);
                path.pop();
            }
        }
        _ => {}
    }
}

#[derive(Default)]
pub(super) struct Comparison {
    pub(super) removed: FieldSet,
    pub(super) modified: FieldSet,
    pub(super) added: FieldSet,
}

impl Comparison {
    pub(super) fn outside(self, ignored: &FieldSet) -> Self {
        Self {
            removed: self.removed.outside(ignored),
            modified: self.modified.outside(ignored),
            added: self.added.outside(ignored),
        }
    }
}

/// Fields that were added, changed and removed.
pub(super) fn compare(node: &Node, old: &Value, new: &Value) -> Comparison {
    let mut out = Comparison::default();
    walk(node, Some(old), Some(new), &mut Vec::new(), &mut out);
    out
}

fn walk(
    node: &Node,
    old: Option<&Value>,
    new: Option<&Value>,
    path: &mut Vec<Element>,
    out: &mut Comparison,
) {
    let empty = is_empty(old) && is_empty(new);
    let leaf = match form(node, [old, new]) {
        Form::Leaf => true,
        _ if empty => true,
        Form::Map => {
            walk_map(node, old, new, path, out);
            false
        }
        Form::List(kind) => {
            walk_list(node, kind, old, new, path, out);
            false
        }
    };
    match (old, new) {
        (None, Some(_)) => out.added.insert(path),
        (Some(_), None) => out.removed.insert(path),
        (Some(old), Some(new)) if leaf && old != new => out.modified.insert(path),
        _ => {}
    }
}

fn walk_map(
    node: &Node,
    old: Option<&Value>,
    new: Option<&Value>,
    path: &mut Vec<Element>,
    out: &mut Comparison,
) {
    let [old, new] = [old, new].map(|value| value.and_then(Value::as_object));
    let new_keys = new.into_iter().flat_map(Map::keys);
    let old_keys = old.into_iter().flat_map(Map::keys);
    let only_old = old_keys.filter(|key| new.is_none_or(|map| !map.contains_key(*key)));
    for key in new_keys.chain(only_old) {
        path.push(Element::Field(key.clone()));
        let [old, new] = [old, new].map(|map| map.and_then(|map| map.get(key)));
        walk(child(node, key), old, new, path, out);
        path.pop();
    }
}

fn walk_list(
    node: &Node,
    kind: &ListKind,
    old: Option<&Value>,
    new: Option<&Value>,
    path: &mut Vec<Element>,
    out: &mut Comparison,
) {
    let [old, new] = [old, new].map(|value| Items::of(node, kind, value));
    for (element, item) in &new.list {
        path.push(element.clone());
        walk(node.item(), old.get(element), Some(item), path, out);
        path.pop();
    }
    for (element, item) in &old.list {
        if new.get(element).is_none() {
            path.push(element.clone());
            walk(node.item(), Some(item), None, path, out);
            path.pop();
        }
    }
}

/// Items of a list by key; of duplicates the first.
struct Items<'v> {
    list: Vec<(Element, &'v Value)>,
    by_name: BTreeMap<Element, &'v Value>,
}

impl<'v> Items<'v> {
    fn of(node: &Node, kind: &ListKind, value: Option<&'v Value>) -> Self {
        let mut items = Self { list: Vec::new(), by_name: BTreeMap::new() };
        for item in value.and_then(Value::as_array).into_iter().flatten() {
            if let Ok(element) = element(node, kind, item)
                && !items.by_name.contains_key(&element)
            {
                items.by_name.insert(element.clone(), item);
                items.list.push((element, item));
            }
        }
        items
    }

    fn get(&self, element: &Element) -> Option<&'v Value> {
        self.by_name.get(element).copied()
    }
}

pub(super) fn merge(node: &Node, live: Option<&Value>, applied: Option<&Value>) -> Option<Value> {
    let either = || applied.or(live).cloned();
    if is_empty(live) && is_empty(applied) {
        return either();
    }
    match form(node, [live, applied]) {
        Form::Leaf => either(),
        Form::Map => {
            let [live, applied] = [live, applied].map(|value| value.and_then(Value::as_object));
            let mut merged = Map::new();
            let live_keys = live.into_iter().flat_map(Map::keys);
            let applied_keys = applied.into_iter().flat_map(Map::keys);
            for key in live_keys.chain(applied_keys) {
                if merged.contains_key(key) {
                    continue;
                }
                let [live, applied] = [live, applied].map(|map| map.and_then(|map| map.get(key)));
                if let Some(value) = merge(child(node, key), live, applied) {
                    merged.insert(key.clone(), value);
                }
            }
            (!merged.is_empty()).then_some(Value::Object(merged))
        }
        Form::List(kind) => merge_list(node, kind, live, applied),
    }
}

fn merge_list(
    node: &Node,
    kind: &ListKind,
    live: Option<&Value>,
    applied: Option<&Value>,
) -> Option<Value> {
    let [live, applied] = [live, applied].map(|value| Items::of(node, kind, value));
    let in_applied = |element: &Element| applied.get(element).is_some();
    // Items that both have keep the order in which they are applied.
    let shared = applied.list.iter().map(|(element, _)| element);
    let mut shared = shared.filter(|element| live.get(element).is_some());
    let mut wanted = shared.next();
    let mut done: BTreeSet<&Element> = BTreeSet::new();
    let mut out = Vec::new();
    let item = node.item();
    let (mut at, mut applied_at) = (0, 0);
    while at < live.list.len() || applied_at < applied.list.len() {
        if let (Some((ours, value)), Some((theirs, given))) =
            (live.list.get(at), applied.list.get(applied_at))
        {
            if ours == theirs {
                out.extend(merge(item, Some(value), Some(given)));
                done.insert(ours);
                (at, applied_at) = (at + 1, applied_at + 1);
                wanted = shared.next();
                continue;
            }
            if in_applied(ours) && wanted.is_some_and(|wanted| wanted != ours) {
                at += 1;
                continue;
            }
        }
        if let Some((ours, value)) = live.list.get(at) {
            if !in_applied(ours) {
                out.extend(merge(item, Some(value), None));
                at += 1;
                continue;
            }
            if done.contains(ours) {
                at += 1;
            }
        }
        if let Some((theirs, given)) = applied.list.get(applied_at) {
            out.extend(merge(item, live.get(theirs), Some(given)));
            done.insert(theirs);
            applied_at += 1;
            if wanted == Some(theirs) {
                wanted = shared.next();
            }
        }
    }
    (!out.is_empty()).then_some(Value::Array(out))
}

/// An object without some of its fields; null if nothing is left.
pub(super) fn without(node: &Node, value: &Value, gone: &FieldSet) -> Value {
    match (form(node, [Some(value), None]), value) {
        (Form::Map, Value::Object(map)) => {
            let mut kept = Map::new();
            for (key, value) in map {
                let element = Element::Field(key.clone());
                if gone.has(&element) {
                    continue;
                }
                let value = match gone.under(&element) {
                    Some(below) => without(child(node, key), value, below),
                    None => value.clone(),
                };
                kept.insert(key.clone(), value);
            }
            if kept.is_empty() { Value::Null } else { Value::Object(kept) }
        }
        (Form::List(kind), Value::Array(items)) => {
            let mut kept = Vec::with_capacity(items.len());
            for item in items {
                let named = element(node, kind, item);
                if named.as_ref().is_ok_and(|element| gone.has(element)) {
                    continue;
                }
                let below = named.as_ref().ok().and_then(|element| gone.under(element));
                kept.push(match below {
                    Some(below) => without(node.item(), item, below),
                    None => item.clone(),
                });
            }
            if kept.is_empty() { Value::Null } else { Value::Array(kept) }
        }
        (Form::Leaf, Value::Object(_) | Value::Array(_)) => Value::Null,
        _ => value.clone(),
    }
}

/// Type errors of an object by path.
pub(super) fn problems(node: &Node, value: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    check(node, value, &mut Vec::new(), &mut problems);
    problems
}

fn check(node: &Node, value: &Value, path: &mut Vec<Element>, problems: &mut Vec<String>) {
    let mut say = |what: String| {
        problems.push(format!("{}: {what}", super::fieldset::shown(path)));
    };
    if value.is_null() {
        return;
    }
    match (&node.shape, value) {
        (Shape::Struct(_) | Shape::Map(_), Value::Object(map)) => {
            for (key, value) in map {
                path.push(Element::Field(key.clone()));
                match node.child(key) {
                    Some(child) => check(child, value, path, problems),
                    None => problems.push(format!(
                        "{}: field not declared in schema",
                        super::fieldset::shown(path)
                    )),
                }
                path.pop();
            }
        }
        (Shape::Struct(_) | Shape::Map(_), other) => {
            say(format!("expected map, got {}", wrapped(other)));
        }
        (Shape::List(_), Value::Array(items)) => check_items(node, items, path, problems),
        (Shape::List(_), other) => say(format!("expected list, got {}", wrapped(other))),
        (Shape::Text | Shape::Time | Shape::MicroTime | Shape::Bytes, other)
            if !other.is_string() =>
        {
            say(format!(
                "expected string, got &value.valueUnstructured{{Value:{}}}",
                literal(other)
            ));
        }
        (Shape::Int32 | Shape::Int64 | Shape::Number, other) if !other.is_number() => {
            say(format!("expected numeric (int or float), got {}", super::go::type_name(other)));
        }
        (Shape::Bool, other) if !other.is_boolean() => {
            say(format!("expected boolean, got {}", wrapped(other)));
        }
        _ => {}
    }
}

/// A value as Go's `%v` prints it where it is wrapped in a structure.
fn wrapped(value: &Value) -> String {
    format!("&{{{}}}", super::go::plain(value))
}

/// A value as Go's `%#v` prints it.
fn literal(value: &Value) -> String {
    match value {
        Value::String(text) => crate::status::quoted(text),
        other => super::go::plain(other),
    }
}

fn check_items(node: &Node, items: &[Value], path: &mut Vec<Element>, problems: &mut Vec<String>) {
    let mut seen: BTreeSet<Element> = BTreeSet::new();
    for (at, item) in items.iter().enumerate() {
        let named = match &node.list {
            ListKind::Atomic => Ok(Element::Index(i64::try_from(at).unwrap_or(i64::MAX))),
            kind => element(node, kind, item),
        };
        let shown = super::fieldset::shown(path);
        match named {
            Err(what) => problems.push(format!("{shown}: element {at}: {what}")),
            Ok(named) if seen.contains(&named) => {
                problems.push(format!("{shown}: duplicate entries for key {named}"));
            }
            Ok(named) => {
                path.push(named.clone());
                check(node.item(), item, path, problems);
                path.pop();
                seen.insert(named);
            }
        }
    }
}
