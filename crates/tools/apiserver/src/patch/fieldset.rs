//! Sets of fields as `managedFields` keeps them: set algebra, the form `FieldsV1`, and paths in messages.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Value};

use crate::schema::Node;

/// A plain value, in the order that the real server gives them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plain(pub(super) Value);

impl Eq for Plain {}

impl PartialOrd for Plain {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Plain {
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = |value: &Value| match value {
            Value::Number(_) => 0,
            Value::String(_) => 1,
            Value::Bool(_) => 2,
            Value::Array(_) => 3,
            Value::Object(_) => 4,
            Value::Null => 5,
        };
        match (&self.0, &other.0) {
            (Value::Number(a), Value::Number(b)) => {
                let (a, b) = (a.as_f64().unwrap_or(0.0), b.as_f64().unwrap_or(0.0));
                a.total_cmp(&b)
            }
            (Value::String(a), Value::String(b)) => a.cmp(b),
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (a, b) => rank(a).cmp(&rank(b)).then_with(|| a.to_string().cmp(&b.to_string())),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Element {
    Field(String),
    Key(Vec<(String, Plain)>),
    Value(Plain),
    Index(i64),
}

impl Element {
    fn to_text(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(fields) => {
                let map: Map<String, Value> =
                    fields.iter().map(|(name, value)| (name.clone(), value.0.clone())).collect();
                format!("k:{}", Value::Object(map))
            }
            Self::Value(value) => format!("v:{}", value.0),
            Self::Index(at) => format!("i:{at}"),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        match kind {
            "f" => Some(Self::Field(rest.to_owned())),
            "k" => {
                let map: BTreeMap<String, Value> = serde_json::from_str(rest).ok()?;
                Some(Self::Key(map.into_iter().map(|(key, value)| (key, Plain(value))).collect()))
            }
            "v" => Some(Self::Value(Plain(serde_json::from_str(rest).ok()?))),
            "i" => Some(Self::Index(rest.parse().ok()?)),
            _ => None,
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                let fields: Vec<String> =
                    fields.iter().map(|(name, value)| format!("{name}={}", value.0)).collect();
                write!(f, "[{}]", fields.join(","))
            }
            Self::Value(value) => write!(f, "[={}]", value.0),
            Self::Index(at) => write!(f, "[{at}]"),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FieldSet {
    members: BTreeSet<Element>,
    children: BTreeMap<Element, FieldSet>,
}

/// Nesting limit of `FieldsV1`.
const MAX_DEPTH: usize = 128;

impl FieldSet {
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.values().all(FieldSet::is_empty)
    }

    pub(super) fn insert(&mut self, path: &[Element]) {
        match path {
            [] => {}
            [last] => {
                self.members.insert(last.clone());
            }
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    /// Whether a path of one step is in it.
    pub(super) fn has(&self, element: &Element) -> bool {
        self.members.contains(element)
    }

    pub(super) fn has_path(&self, path: &[Element]) -> bool {
        match path {
            [] => false,
            [last] => self.members.contains(last),
            [first, rest @ ..] => self.under(first).is_some_and(|child| child.has_path(rest)),
        }
    }

    pub(super) fn under(&self, element: &Element) -> Option<&FieldSet> {
        self.children.get(element).filter(|child| !child.is_empty())
    }

    pub(super) fn union(&self, other: &Self) -> Self {
        let mut all = self.clone();
        all.members.extend(other.members.iter().cloned());
        for (element, child) in &other.children {
            let merged = match all.children.get(element) {
                Some(own) => own.union(child),
                None => child.clone(),
            };
            all.children.insert(element.clone(), merged);
        }
        all
    }

    fn with_children(
        members: BTreeSet<Element>,
        children: impl Iterator<Item = (Element, FieldSet)>,
    ) -> Self {
        Self { members, children: children.filter(|(_, child)| !child.is_empty()).collect() }
    }

    pub(super) fn intersection(&self, other: &Self) -> Self {
        let members = self.members.intersection(&other.members).cloned().collect();
        let children = self.children.iter().filter_map(|(element, child)| {
            Some((element.clone(), child.intersection(other.children.get(element)?)))
        });
        Self::with_children(members, children)
    }

    /// Difference of paths.
    pub(super) fn difference(&self, other: &Self) -> Self {
        let members = self.members.difference(&other.members).cloned().collect();
        let children = self.children.iter().map(|(element, child)| {
            let left = match other.children.get(element) {
                Some(minus) => child.difference(minus),
                None => child.clone(),
            };
            (element.clone(), left)
        });
        Self::with_children(members, children)
    }

    /// Difference that also drops paths below those of the other.
    pub(super) fn outside(&self, other: &Self) -> Self {
        let members = self.members.difference(&other.members).cloned().collect();
        let children = self.children.iter().filter(|(element, _)| !other.has(element));
        let children = children.map(|(element, child)| {
            let left = match other.children.get(element) {
                Some(minus) => child.outside(minus),
                None => child.clone(),
            };
            (element.clone(), left)
        });
        Self::with_children(members, children)
    }

    /// With every field of a structure that has something below it.
    pub(super) fn with_named_fields(&self, node: &Node) -> Self {
        let mut all = Self { members: self.members.clone(), children: BTreeMap::new() };
        for (element, child) in &self.children {
            let below = match element {
                Element::Field(name) => {
                    let named = node.structure().is_some_and(|s| s.fields.contains_key(name));
                    if named {
                        all.members.insert(element.clone());
                    }
                    node.child(name)
                }
                _ => Some(node.item()),
            };
            let child = match below {
                Some(below) => child.with_named_fields(below),
                None => child.clone(),
            };
            all.children.insert(element.clone(), child);
        }
        all
    }

    /// Every path, in order.
    pub(super) fn paths(&self) -> Vec<Vec<Element>> {
        let mut paths = Vec::new();
        self.walk(&mut Vec::new(), &mut paths);
        paths
    }

    fn walk(&self, prefix: &mut Vec<Element>, paths: &mut Vec<Vec<Element>>) {
        for element in &self.members {
            let mut path = prefix.clone();
            path.push(element.clone());
            paths.push(path);
        }
        for (element, child) in &self.children {
            prefix.push(element.clone());
            child.walk(prefix, paths);
            prefix.pop();
        }
    }

    /// As `fieldsV1`.
    pub(super) fn to_json(&self) -> Value {
        let mut map = Map::new();
        for element in &self.members {
            map.insert(element.to_text(), Value::Object(Map::new()));
        }
        for (element, child) in self.children.iter().filter(|(_, child)| !child.is_empty()) {
            let mut inner = match child.to_json() {
                Value::Object(inner) => inner,
                _ => Map::new(),
            };
            if self.members.contains(element) {
                inner.insert(".".to_owned(), Value::Object(Map::new()));
            }
            map.insert(element.to_text(), Value::Object(inner));
        }
        Value::Object(map)
    }

    /// From `fieldsV1`; `None` if it is none.
    pub(super) fn from_json(value: &Value) -> Option<Self> {
        Self::read(value, 0)
    }

    fn read(value: &Value, depth: usize) -> Option<Self> {
        if depth > MAX_DEPTH {
            return None;
        }
        let mut set = Self::default();
        for (text, inner) in value.as_object()? {
            if text == "." {
                continue;
            }
            let element = Element::parse(text)?;
            let map = inner.as_object()?;
            if map.is_empty() || map.contains_key(".") {
                set.members.insert(element.clone());
            }
            let child = Self::read(inner, depth + 1)?;
            if !child.is_empty() {
                set.children.insert(element, child);
            }
        }
        Some(set)
    }
}

pub(super) fn shown(path: &[Element]) -> String {
    path.iter().map(Element::to_string).collect()
}

/// A set of fields of structures, each given as a path such as `metadata.labels`.
pub(super) fn of_fields(paths: &[&str]) -> FieldSet {
    let mut set = FieldSet::default();
    for path in paths {
        let steps: Vec<Element> =
            path.split('.').map(|name| Element::Field(name.to_owned())).collect();
        set.insert(&steps);
    }
    set
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sets_survive_their_json_form() {
        let json = json!({
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {
                "f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:image": {}}},
                "f:finalizers": {"v:\"x\"": {}}
            }
        });
        let set = FieldSet::from_json(&json).unwrap();
        assert_eq!(set.to_json(), json);
        let shown: Vec<String> = set.paths().iter().map(|path| super::shown(path)).collect();
        assert_eq!(
            shown,
            [
                ".metadata.labels",
                ".metadata.labels.app",
                ".spec.containers[name=\"c\"]",
                ".spec.containers[name=\"c\"].image",
                ".spec.finalizers[=\"x\"]"
            ]
        );
    }

    #[test]
    fn a_difference_keeps_what_is_below() {
        let set = of_fields(&["a", "a.b", "c"]);
        assert_eq!(set.difference(&of_fields(&["a"])), of_fields(&["a.b", "c"]));
        assert_eq!(set.outside(&of_fields(&["a"])), of_fields(&["c"]));
    }
}
