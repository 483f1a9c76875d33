//! CEL rules in schemas of custom resources.
//!
//! Rules about changes (`oldSelf`), computed messages (`messageExpression`) and rules that use functions missing
//! from [`berth_cel`] are skipped.

use std::collections::BTreeMap;

use berth_cel::{Data, Rule, field_name};
use serde_json::Value;

use super::custom::{NOWHERE, parts};
use super::report::{list, text};
use crate::status::{FieldError, FieldProblem};

pub(super) fn has_any(schema: &Value) -> bool {
    let inner = ["items", "additionalProperties"].map(|name| schema.get(name));
    let properties = schema.get("properties").and_then(Value::as_object);
    !list(schema, "x-kubernetes-validations").is_empty()
        || inner.into_iter().flatten().any(has_any)
        || properties.into_iter().flatten().any(|(_, schema)| has_any(schema))
}

/// Evaluates all rules of a value and its parts.
pub(super) fn check(
    schema: &Value,
    value: &Value,
    old: Option<&Value>,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    if value.is_null() || old == Some(value) {
        return;
    }
    let rules = list(schema, "x-kubernetes-validations");
    if !rules.is_empty() {
        let data = data(Some(schema), value);
        errors.extend(rules.iter().filter_map(|rule| ask(rule, &data, schema, value, path)));
    }
    for part in parts(schema, value, path) {
        let old = part.name.and_then(|name| old?.get(name));
        check(part.schema, part.value, old, &part.path, errors);
    }
}

/// What is wrong, if the rule does not hold.
fn ask(rule: &Value, data: &Data, schema: &Value, value: &Value, path: &str) -> Option<FieldError> {
    let (expression, message) = (text(rule, "rule").trim(), text(rule, "message").trim());
    if expression.contains("oldSelf") {
        return None;
    }
    let words = if message.is_empty() { expression } else { message };
    let path = match (path, text(rule, "fieldPath").trim_start_matches('.')) {
        ("", "") => NOWHERE.to_owned(),
        ("", inner) => inner.to_owned(),
        (path, "") => path.to_owned(),
        (path, inner) => format!("{path}.{inner}"),
    };
    match Rule::compile(expression).ok()?.holds(data) {
        Ok(true) => None,
        Ok(false) => {
            let failed = format!("failed rule: {expression}");
            let detail = if message.is_empty() { failed.as_str() } else { message };
            let is_plain = !value.is_object() && !value.is_array();
            Some(match text(rule, "reason") {
                "FieldValueForbidden" => FieldError::forbidden(path, detail),
                "FieldValueRequired" => FieldError::required(path, detail),
                "FieldValueDuplicate" => FieldError::duplicate(path, value),
                _ if is_plain => FieldError::invalid(path, value, detail),
                _ => FieldError::new(FieldProblem::Invalid, path, None, detail),
            })
        }
        Err(failure) => {
            let detail = format!("{} evaluating rule: {words}", failure.message);
            Some(FieldError::invalid(path, &Value::from(text(schema, "type")), detail))
        }
    }
}

/// A value for CEL; a `number` is a double even if it is whole.
fn data(schema: Option<&Value>, value: &Value) -> Data {
    match value {
        Value::Null => Data::Null,
        Value::Bool(flag) => Data::Bool(*flag),
        Value::String(text) => Data::Text(text.clone()),
        Value::Number(number) => {
            let is_number = schema.is_some_and(|schema| text(schema, "type") == "number");
            match number.as_i64().filter(|_| !is_number) {
                Some(whole) => Data::Int(whole),
                None => Data::Double(number.as_f64().unwrap_or_default()),
            }
        }
        Value::Array(items) => {
            let inner = schema.and_then(|schema| schema.get("items"));
            Data::List(items.iter().map(|item| data(inner, item)).collect())
        }
        Value::Object(fields) => {
            let properties = schema.and_then(|schema| schema.get("properties"));
            let inner = schema.and_then(|schema| schema.get("additionalProperties"));
            let entry = |(name, value): (&String, &Value)| match properties
                .and_then(|properties| properties.get(name))
            {
                Some(property) => (field_name(name), data(Some(property), value)),
                None => (name.clone(), data(inner, value)),
            };
            Data::Map(fields.iter().map(entry).collect::<BTreeMap<_, _>>())
        }
    }
}
