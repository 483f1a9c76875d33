//! Validation of custom resources against the schema of their definition, with the messages of the real server's
//! validator.
//!
//! It checks types, then alternatives, then values. What an update leaves unchanged is not refused. Formats of
//! strings (`date-time` and others) are not checked.

use std::collections::HashMap;

use regex::RegexBuilder;
use serde_json::{Number, Value, json};

use super::report::{Report, flag, list, text};
use super::rules;
use crate::status::{FieldError, FieldProblem, quoted, rendered};

/// Limit for compiled patterns; larger ones are not checked.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// Nesting limit; anything below is accepted.
const DEPTH_MAX: usize = 64;

/// The path of errors without a field.
pub(super) const NOWHERE: &str = "<nil>";

/// Validates a new object, or a changed one.
pub(super) fn check(schema: &Value, new: &Value, old: Option<&Value>, report: &mut Report) {
    let errors = Checker { depth: 0 }.value(schema, new, old, "").errors;
    finish(schema, new, old, errors, report);
}

/// Validates a status alone, with paths relative to it, as the real server does.
pub(super) fn check_status(schema: &Value, new: &Value, old: &Value, report: &mut Report) {
    let inner = schema.get("properties").and_then(|properties| properties.get("status"));
    let mut errors = Vec::new();
    if let (Some(inner), Some(status)) = (inner, new.get("status")) {
        errors = Checker { depth: 0 }.value(inner, status, old.get("status"), "").errors;
    }
    for error in &mut errors {
        error.field = match error.field.as_str() {
            NOWHERE => "status".to_owned(),
            field => format!("status.{field}"),
        };
    }
    finish(schema, new, Some(old), errors, report);
}

/// Checks duplicates and CEL rules, and reports all errors.
fn finish(
    schema: &Value,
    new: &Value,
    old: Option<&Value>,
    mut errors: Vec<FieldError>,
    report: &mut Report,
) {
    let mut repeated = Vec::new();
    if let Some(old) = old {
        repeats(schema, old, "", &mut repeated);
    }
    if repeated.is_empty() {
        repeats(schema, new, "", &mut repeated);
        errors.append(&mut repeated);
    }
    if rules::has_any(schema) && errors.iter().any(|error| blocks(error.problem)) {
        let unchecked = "some validation rules were not checked because the object was invalid; \
                         correct the existing errors to complete validation";
        errors.push(FieldError::invalid(NOWHERE, &Value::Null, unchecked));
    } else {
        rules::check(schema, new, old, "", &mut errors);
    }
    errors.into_iter().for_each(|error| report.push(error));
}

/// Whether this problem prevents the evaluation of CEL rules.
fn blocks(problem: FieldProblem) -> bool {
    matches!(
        problem,
        FieldProblem::NotSupported
            | FieldProblem::Required
            | FieldProblem::TooLong
            | FieldProblem::TooMany
            | FieldProblem::TypeInvalid
    )
}

/// Errors, and the number of successful checks: of failed alternatives the nearest is reported.
#[derive(Default)]
struct Outcome {
    errors: Vec<FieldError>,
    matched: usize,
}

impl Outcome {
    fn merge(&mut self, mut other: Self) {
        self.errors.append(&mut other.errors);
        self.matched += other.matched;
    }

    /// What a whole step of the validator found.
    fn step(&mut self, other: Self) {
        self.merge(other);
        self.matched += 1;
    }

    fn invalid(&mut self, path: &str, value: &Value, what: &str) {
        self.errors.push(FieldError::invalid(field(path), value, described(path, what)));
    }

    /// Something that the validator says of no field in particular.
    fn nowhere(&mut self, words: String) {
        self.errors.push(FieldError::invalid(NOWHERE, &json!(""), words));
    }
}

fn field(path: &str) -> String {
    match path.trim_start_matches('.') {
        "" => NOWHERE.to_owned(),
        path => path.to_owned(),
    }
}

fn described(path: &str, what: &str) -> String {
    format!("{path} in body {what}")
}

/// The types that a schema allows; none: any.
fn types(schema: &Value) -> Vec<&str> {
    if flag(schema, "x-kubernetes-int-or-string") {
        return vec!["integer", "string"];
    }
    Some(text(schema, "type")).filter(|name| !name.is_empty()).into_iter().collect()
}

fn type_of(value: &Value) -> (&'static str, &'static str) {
    match value {
        Value::Null => ("null", ""),
        Value::Bool(_) => ("boolean", ""),
        Value::Number(number) if number.is_f64() => ("number", "float64"),
        Value::Number(_) => ("integer", "int64"),
        Value::String(_) => ("string", ""),
        Value::Array(_) => ("array", ""),
        Value::Object(_) => ("object", ""),
    }
}

struct Checker {
    depth: usize,
}

impl Checker {
    fn value(&mut self, schema: &Value, value: &Value, old: Option<&Value>, path: &str) -> Outcome {
        let mut all = Outcome::default();
        if old == Some(value) || self.depth > DEPTH_MAX {
            return all;
        }
        if value.is_null() {
            all.merge(of_type(schema, value, path));
            all.merge(one_of(schema, value, path));
            return all;
        }
        self.depth += 1;
        if !types(schema).is_empty() || !text(schema, "format").is_empty() {
            all.step(of_type(schema, value, path));
        }
        all.step(self.alternatives(schema, value, path));
        match value {
            Value::String(value) => all.step(in_text(schema, value, path)),
            Value::Number(value) => all.step(in_number(schema, value, path)),
            Value::Array(items) => all.step(self.items(schema, items, old, path)),
            _ => {}
        }
        all.step(one_of(schema, value, path));
        if value.is_object() {
            all.step(self.fields(schema, value, old, path));
        }
        all.matched += 1;
        self.depth -= 1;
        all
    }

    fn alternatives(&mut self, schema: &Value, value: &Value, path: &str) -> Outcome {
        let mut found = Outcome::default();
        let path_shown = quoted(path);
        let mut each = |name: &str| -> Vec<Outcome> {
            let schemas = list(schema, name).iter();
            schemas.map(|schema| self.value(schema, value, None, path)).collect()
        };
        let fits = |outcomes: &[Outcome]| {
            outcomes.iter().filter(|outcome| outcome.errors.is_empty()).count()
        };
        let any = each("anyOf");
        if !any.is_empty() {
            if fits(&any) == 0 {
                found.nowhere(format!("{path_shown} must validate at least one schema (anyOf)"));
            }
            found.merge(nearest(any));
        }
        let one = each("oneOf");
        match fits(&one) {
            _ if one.is_empty() => {}
            1 => found.merge(nearest(one)),
            valid => {
                let count = match valid {
                    0 => "Found none valid".to_owned(),
                    _ => format!("Found {valid} valid alternatives"),
                };
                found.nowhere(format!(
                    "{path_shown} must validate one and only one schema (oneOf). {count}"
                ));
                if valid == 0 {
                    found.merge(nearest(one));
                }
            }
        }
        let every = each("allOf");
        let (valid, wanted) = (fits(&every), every.len());
        every.into_iter().for_each(|outcome| found.merge(outcome));
        if valid != wanted {
            let none = if valid == 0 { ". None validated" } else { "" };
            found.nowhere(format!("{path_shown} must validate all the schemas (allOf){none}"));
        }
        if let Some(not) = schema.get("not")
            && self.value(not, value, None, path).errors.is_empty()
        {
            found.nowhere(format!("{path_shown} must not validate the schema (not)"));
        }
        found.matched += 1;
        found
    }

    fn items(
        &mut self,
        schema: &Value,
        items: &[Value],
        old: Option<&Value>,
        path: &str,
    ) -> Outcome {
        let mut found = Outcome::default();
        if let Some(inner) = schema.get("items").filter(|inner| inner.is_object()) {
            for (at, item) in items.iter().enumerate() {
                let old = counterpart(schema, old, item);
                found.merge(self.value(inner, item, old, &format!("{path}[{at}]")));
            }
        }
        let count = items.len() as u64;
        if let Some(min) = limit(schema, "minItems").filter(|min| count < *min) {
            found.invalid(path, &json!(count), &format!("should have at least {min} items"));
        }
        if let Some(max) = limit(schema, "maxItems").filter(|max| count > *max) {
            found.errors.push(too_many(path, count, max));
        }
        found.matched += 1;
        found
    }

    fn fields(
        &mut self,
        schema: &Value,
        value: &Value,
        old: Option<&Value>,
        path: &str,
    ) -> Outcome {
        let mut found = Outcome::default();
        let Some(fields) = value.as_object() else { return found };
        let count = fields.len() as u64;
        if let Some(min) = limit(schema, "minProperties").filter(|min| count < *min) {
            found.invalid(path, &json!(count), &format!("should have at least {min} properties"));
        }
        if let Some(max) = limit(schema, "maxProperties").filter(|max| count > *max) {
            found.errors.push(too_many(path, count, max));
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        let inner = schema.get("additionalProperties").filter(|inner| inner.is_object());
        let old = |name: &str| old.and_then(|old| old.get(name));
        for (name, value) in fields {
            let property = properties.and_then(|properties| properties.get(name));
            let Some(schema) = property.or(inner) else { continue };
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            found.merge(self.value(schema, value, old(name), &path));
        }
        for name in list(schema, "required").iter().filter_map(Value::as_str) {
            if !fields.contains_key(name) {
                found.errors.push(FieldError::required(field(&format!("{path}.{name}")), ""));
            }
        }
        found
    }
}

/// The valid outcome, else the one with the most successful checks.
fn nearest(outcomes: Vec<Outcome>) -> Outcome {
    let mut nearest: Option<Outcome> = None;
    for outcome in outcomes {
        if outcome.errors.is_empty() {
            return outcome;
        }
        if nearest.as_ref().is_none_or(|nearest| outcome.matched > nearest.matched) {
            nearest = Some(outcome);
        }
    }
    nearest.unwrap_or_default()
}

/// The old item with the same key.
fn counterpart<'o>(schema: &Value, old: Option<&'o Value>, item: &Value) -> Option<&'o Value> {
    if text(schema, "x-kubernetes-list-type") != "map" {
        return None;
    }
    let keys = list(schema, "x-kubernetes-list-map-keys");
    old?.as_array()?.iter().find(|old| {
        let mut keys = keys.iter().filter_map(Value::as_str);
        keys.all(|key| old.get(key) == item.get(key))
    })
}

fn limit(schema: &Value, name: &str) -> Option<u64> {
    schema.get(name).and_then(Value::as_u64)
}

fn too_many(path: &str, count: u64, max: u64) -> FieldError {
    let [count, max] = [count, max].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
    FieldError::too_many(field(path), count, max)
}

fn of_type(schema: &Value, value: &Value, path: &str) -> Outcome {
    let (wanted, format) = (types(schema), text(schema, "format"));
    let (found, found_format) = type_of(value);
    let mut outcome = Outcome::default();
    let refuse = |wanted: &str, found: &str| {
        let words = described(path, &format!("must be of type {wanted}: {}", quoted(found)));
        let shown = Some(rendered(&json!(found)));
        let error = FieldError::new(FieldProblem::TypeInvalid, field(path), shown, words);
        Outcome { errors: vec![error], matched: 0 }
    };
    if value.is_null() {
        if wanted.is_empty() || flag(schema, "nullable") {
            outcome.matched = 1;
            return outcome;
        }
        return refuse(&wanted.join(","), found);
    }
    let is_whole = value.as_f64().is_some_and(|number| number.fract() == 0.0);
    let fits = wanted.contains(&found)
        || found == "number" && is_whole && wanted.contains(&"integer")
        || found == "integer" && wanted.contains(&"number");
    let is_number = wanted.contains(&"number") || wanted.contains(&"integer");
    let is_text = value.is_string() || value.is_array();
    if !format.is_empty() && !is_text && !fits && found_format != format {
        return refuse(format, found_format);
    }
    // Integer formats limit the range.
    if fits || !format.is_empty() && !is_number && is_text {
        outcome.matched = 1;
        return outcome;
    }
    refuse(&wanted.join(","), found)
}

fn one_of(schema: &Value, value: &Value, path: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let allowed = list(schema, "enum");
    if !allowed.is_empty() && !allowed.contains(value) {
        let names: Vec<String> = allowed
            .iter()
            .map(|allowed| allowed.as_str().map_or_else(|| allowed.to_string(), str::to_owned))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        outcome.errors.push(FieldError::not_one_of(field(path), value, &names));
    }
    outcome
}

fn in_text(schema: &Value, value: &str, path: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let chars = value.chars().count() as u64;
    let pattern = text(schema, "pattern");
    if let Some(max) = limit(schema, "maxLength").filter(|max| chars > *max) {
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        outcome.errors.push(FieldError::too_long(field(path), max));
    } else if let Some(min) = limit(schema, "minLength").filter(|min| chars < *min) {
        let what = format!("should be at least {min} chars long");
        outcome.invalid(path, &json!(value), &what);
    } else if !pattern.is_empty() {
        let compiled = RegexBuilder::new(pattern).size_limit(PATTERN_BYTES_MAX).build();
        if compiled.is_ok_and(|compiled| !compiled.is_match(value)) {
            outcome.invalid(path, &json!(value), &format!("should match '{pattern}'"));
        }
    }
    outcome
}

fn in_number(schema: &Value, value: &Number, path: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let shown = Value::Number(value.clone());
    let (wanted, format) = (text(schema, "type"), text(schema, "format"));
    let is_int32 = value.as_i64().is_some_and(|number| i32::try_from(number).is_ok());
    if wanted == "integer" && format == "int32" && !is_int32 {
        let words = "Checked value must be of type integer with format int32 in";
        outcome.nowhere(format!("{words} {path}"));
    }
    let number = value.as_f64().unwrap_or_default();
    // Integers are compared with integer limits.
    let limit = |name: &str| {
        let limit = schema.get(name).and_then(Value::as_f64)?;
        Some(if value.is_f64() { limit } else { limit.trunc() })
    };
    if let Some(factor) = limit("multipleOf").filter(|factor| *factor > 0.0) {
        let times = if factor < 1.0 { 1.0 / factor * number } else { number / factor };
        if (times - times.round()).abs() > f64::EPSILON * times.abs().max(1.0) {
            let what = format!("should be a multiple of {factor}");
            outcome.invalid(path, &shown, &what);
        }
    }
    if let Some(min) = limit("minimum") {
        let exclusive = flag(schema, "exclusiveMinimum");
        let words = if exclusive { "greater than" } else { "greater than or equal to" };
        if number < min || exclusive && number <= min {
            outcome.invalid(path, &shown, &format!("should be {words} {min}"));
        }
    }
    if let Some(max) = limit("maximum") {
        let exclusive = flag(schema, "exclusiveMaximum");
        let words = if exclusive { "less than" } else { "less than or equal to" };
        if number > max || exclusive && number >= max {
            outcome.invalid(path, &shown, &format!("should be {words} {max}"));
        }
    }
    outcome.matched += 1;
    outcome
}

/// Reports duplicate items of sets and maps.
fn repeats(schema: &Value, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let keys: Vec<Value> = match text(schema, "x-kubernetes-list-type") {
        "set" => items.to_vec(),
        "map" => items.iter().map(|item| key_of(schema, item)).collect(),
        _ => Vec::new(),
    };
    let mut times: HashMap<String, usize> = HashMap::new();
    for (at, key) in keys.iter().enumerate() {
        let times = times.entry(key.to_string()).or_default();
        *times += 1;
        if *times == 2 {
            errors.push(FieldError::duplicate(format!("{path}[{at}]"), key));
        }
    }
    for part in parts(schema, value, path) {
        repeats(part.schema, part.value, &part.path, errors);
    }
}

/// A part of a value with its schema.
pub(super) struct Part<'v> {
    pub(super) schema: &'v Value,
    pub(super) value: &'v Value,
    pub(super) path: String,
    /// The name of the field, if it is one.
    pub(super) name: Option<&'v str>,
}

pub(super) fn parts<'v>(schema: &'v Value, value: &'v Value, path: &str) -> Vec<Part<'v>> {
    let field = |(name, value): (&'v String, &'v Value)| {
        let property = schema.get("properties").and_then(|all| all.get(name));
        let (schema, path) = match (property, schema.get("additionalProperties")) {
            (Some(property), _) if path.is_empty() => (property, name.clone()),
            (Some(property), _) => (property, format!("{path}.{name}")),
            (None, inner) => (inner?, format!("{path}[{name}]")),
        };
        Some(Part { schema, value, path, name: Some(name) })
    };
    let item = |(at, value): (usize, &'v Value)| {
        Some(Part {
            schema: schema.get("items")?,
            value,
            path: format!("{path}[{at}]"),
            name: None,
        })
    };
    match value {
        Value::Object(fields) => fields.iter().filter_map(field).collect(),
        Value::Array(items) => items.iter().enumerate().filter_map(item).collect(),
        _ => Vec::new(),
    }
}

/// What names an item of a list that is a map.
fn key_of(schema: &Value, item: &Value) -> Value {
    let keys = list(schema, "x-kubernetes-list-map-keys").iter().filter_map(Value::as_str);
    let keys = keys.filter_map(|key| Some((key.to_owned(), item.get(key)?.clone())));
    Value::Object(keys.collect())
}
