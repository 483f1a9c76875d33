//! Collects field errors, and looks up fields.

use berth_model::quantity::Quantity;
use serde_json::{Map, Value};

use crate::status::{FieldError, FieldProblem, rendered};

/// Limit of reported errors.
const REPORTED_MAX: usize = 256;

#[derive(Default)]
pub(super) struct Report {
    pub(super) errors: Vec<FieldError>,
}

impl Report {
    pub(super) fn push(&mut self, error: FieldError) {
        if self.errors.len() < REPORTED_MAX {
            self.errors.push(error);
        }
    }

    pub(super) fn required(&mut self, path: &str, detail: &str) {
        self.push(FieldError::required(path, detail));
    }

    pub(super) fn forbidden(&mut self, path: &str, detail: &str) {
        self.push(FieldError::forbidden(path, detail));
    }

    pub(super) fn invalid(&mut self, path: &str, value: &Value, detail: &str) {
        self.push(FieldError::invalid(path, value, detail));
    }

    /// An error with the value as Go prints it.
    pub(super) fn invalid_as(&mut self, path: &str, shown: String, detail: &str) {
        self.push(FieldError::new(FieldProblem::Invalid, path, Some(shown), detail));
    }

    pub(super) fn duplicate(&mut self, path: &str, value: &Value) {
        self.push(FieldError::duplicate(path, value));
    }

    pub(super) fn duplicate_as(&mut self, path: &str, shown: String, detail: &str) {
        self.push(FieldError::new(FieldProblem::Duplicate, path, Some(shown), detail));
    }

    pub(super) fn not_found(&mut self, path: &str, value: &Value, detail: &str) {
        let value = Some(rendered(value));
        self.push(FieldError::new(FieldProblem::NotFound, path, value, detail));
    }

    pub(super) fn too_long(&mut self, path: &str, max_bytes: usize) {
        self.push(FieldError::too_long(path, max_bytes));
    }

    /// Names what is supported in the order in which it is given.
    pub(super) fn unsupported(&mut self, path: &str, value: &str, supported: &[&str]) {
        self.unsupported_as(path, rendered(&Value::from(value)), supported);
    }

    pub(super) fn unsupported_as(&mut self, path: &str, shown: String, supported: &[&str]) {
        let names: Vec<String> = supported.iter().map(|name| format!("{name:?}")).collect();
        let detail = format!("supported values: {}", names.join(", "));
        self.push(FieldError::new(FieldProblem::NotSupported, path, Some(shown), detail));
    }

    /// One error for each thing that is wrong with a text.
    pub(super) fn text(&mut self, path: &str, text: &str, wrong: Vec<String>) {
        for what in wrong {
            self.invalid(path, &Value::from(text), &what);
        }
    }

    /// A text that must be one of several.
    pub(super) fn one_of(&mut self, path: &str, value: &str, supported: &[&str]) {
        if !supported.contains(&value) {
            self.unsupported(path, value, supported);
        }
    }

    pub(super) fn not_negative(&mut self, path: &str, value: Option<i64>) {
        if let Some(value) = value.filter(|value| *value < 0) {
            self.invalid(path, &Value::from(value), "must be greater than or equal to 0");
        }
    }

    pub(super) fn port(&mut self, path: &str, value: i64) {
        if !(1..=65535).contains(&value) {
            self.invalid(path, &Value::from(value), "must be between 1 and 65535, inclusive");
        }
    }
}

/// A text field, empty where there is none.
pub(super) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn int(value: &Value, name: &str) -> Option<i64> {
    value.get(name).and_then(Value::as_i64)
}

pub(super) fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn map<'a>(
    value: &'a Value,
    name: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    value.get(name).and_then(Value::as_object).into_iter().flatten()
}

pub(super) fn object<'a>(value: &'a Value, name: &str) -> Option<&'a Map<String, Value>> {
    value.get(name).and_then(Value::as_object)
}

pub(super) fn has(value: &Value, name: &str) -> bool {
    value.get(name).is_some_and(|field| !field.is_null())
}

pub(super) fn flag(value: &Value, name: &str) -> bool {
    value.get(name) == Some(&Value::Bool(true))
}

pub(super) fn quantity(value: &Value) -> Option<Quantity> {
    value.as_str().and_then(|text| Quantity::parse(text).ok())
}
