//! Objects as Go writes them after decoding: empty lists vanish, some empty fields appear, quantities and times are
//! normalized.

use berth_model::quantity::Quantity;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{Node, Presence, Shape, Struct};

/// Below this, whole numbers are exact in either form.
const WHOLE_BELOW: f64 = 9_007_199_254_740_992.0;

/// Writes a value as Go would. Unknown fields are dropped unless the schema allows them; other values of custom
/// resources stay as they are.
pub fn normalize(node: &Node, value: &mut Value) {
    match &node.shape {
        Shape::Struct(_) => {
            if let (Some(structure), Value::Object(map)) = (node.structure(), &mut *value) {
                normalize_struct(structure, map);
            }
        }
        Shape::Map(inner) => {
            if let Value::Object(map) = value {
                for item in map.values_mut() {
                    normalize_item(inner, item);
                }
            }
        }
        Shape::List(inner) => {
            if let Value::Array(items) = value {
                for item in items {
                    normalize_item(inner, item);
                }
            }
        }
        Shape::Any => shorten(value),
        _ => normalize_scalar(&node.shape, value),
    }
}

/// Replaces null by Go's zero value in an item of a list or map.
fn normalize_item(node: &Node, value: &mut Value) {
    if value.is_null() && !matches!(node.shape, Shape::Any) {
        *value = zero(node);
    }
    normalize(node, value);
}

fn normalize_scalar(shape: &Shape, value: &mut Value) {
    match shape {
        Shape::Quantity => {
            let text = match &*value {
                Value::String(text) => text.trim().to_owned(),
                Value::Number(number) => number.to_string(),
                _ => return,
            };
            if let Ok(quantity) = Quantity::parse(&text) {
                *value = Value::from(quantity.to_string());
            }
        }
        Shape::Time | Shape::MicroTime => {
            let Some(time) = value.as_str().and_then(|text| text.parse::<Timestamp>().ok()) else {
                return;
            };
            let micro = matches!(shape, Shape::MicroTime);
            *value = Value::from(format_time(time, micro));
        }
        Shape::Int32 | Shape::Int64 | Shape::Number => shorten(value),
        _ => {}
    }
}

/// Writes whole numbers without a decimal point.
fn shorten(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let whole = |number: &f64| number.fract() == 0.0 && number.abs() < WHOLE_BELOW;
            if let Some(number) = number.as_f64().filter(whole) {
                *value = Value::from(number as i64);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(shorten),
        Value::Object(map) => map.values_mut().for_each(shorten),
        _ => {}
    }
}

/// A time as the API writes it: UTC, to the second, or with six digits of a second.
pub fn format_time(time: Timestamp, micro: bool) -> String {
    if micro {
        time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
    } else {
        time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
}

fn normalize_struct(structure: &Struct, map: &mut Map<String, Value>) {
    let is_go = !structure.name.is_empty();
    if structure.rest.is_none() {
        map.retain(|key, _| structure.fields.contains_key(key));
    }
    for (name, node) in &structure.fields {
        if is_go && map.get(name).is_some_and(Value::is_null) {
            map.remove(name);
        }
        if let Some(value) = map.get_mut(name) {
            normalize(node, value);
        }
        match node.presence {
            Presence::WhenGiven => {}
            Presence::WhenFilled => {
                if map.get(name).is_some_and(|value| is_zero(node, value)) {
                    map.remove(name);
                }
            }
            Presence::Always | Presence::AlwaysOrNull if !map.contains_key(name) => {
                let value =
                    if node.presence == Presence::Always { zero(node) } else { Value::Null };
                map.insert(name.clone(), value);
            }
            Presence::Always | Presence::AlwaysOrNull => {}
        }
    }
}

fn is_zero(node: &Node, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => match node.structure() {
            Some(structure) => structure
                .fields
                .iter()
                .all(|(name, field)| map.get(name).is_none_or(|value| is_zero(field, value))),
            None => map.is_empty(),
        },
    }
}

/// Go's zero value.
fn zero(node: &Node) -> Value {
    match &node.shape {
        Shape::Text => Value::from(""),
        Shape::Quantity => Value::from("0"),
        Shape::Bool => Value::from(false),
        Shape::Int32 | Shape::Int64 | Shape::Number | Shape::IntOrText => Value::from(0),
        Shape::Time | Shape::MicroTime | Shape::Bytes | Shape::Any => Value::Null,
        Shape::Map(_) | Shape::List(_) => Value::Null,
        Shape::Struct(_) => empty(node),
    }
}

/// An object of a type with nothing in it, as Go writes it.
pub fn empty(node: &Node) -> Value {
    let mut map = Map::new();
    if let Some(structure) = node.structure() {
        normalize_struct(structure, &mut map);
    }
    Value::Object(map)
}
