//! Findings: which rule an object violates, in which field, and the remedy. Independent of source text, so that
//! the linter and the webhook share them.

use std::fmt;

use berth_api::FieldPath;
use serde_json::Value;

use crate::rule::{Rule, Severity};

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// Empty if missing.
    pub api_version: String,
    /// Empty if missing.
    pub kind: String,
    pub namespace: Option<String>,
    /// Empty if missing.
    pub name: String,
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.kind.is_empty() { "document" } else { &self.kind };
        match (&self.namespace, self.name.as_str()) {
            (_, "") => formatter.write_str(kind),
            (Some(namespace), name) => write!(formatter, "{kind} {namespace}/{name}"),
            (None, name) => write!(formatter, "{kind} {name}"),
        }
    }
}

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub rule: &'static Rule,
    /// The rule's, unless settings change it.
    pub severity: Severity,
    pub object: ObjectRef,
    /// The wrong or missing field.
    pub field: FieldPath,
    /// The relevant part of a long text.
    pub excerpt: Option<String>,
    pub message: String,
    pub remedy: String,
    /// Safe changes; empty if there are none.
    pub fix: Vec<Fix>,
}

impl Finding {
    pub fn is_fixable(&self) -> bool {
        !self.fix.is_empty()
    }
}

/// A change of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Fix {
    /// Sets a field, and creates missing maps on its path.
    Set { path: FieldPath, value: Value },
    /// Appends to a list, and creates a missing one.
    Append { path: FieldPath, value: Value },
    /// Removes a field.
    Remove { path: FieldPath },
}
