//! Findings: which rule an object breaks, where, and what to do.
//!
//! Owns the shape of a finding. Must not know how objects are written down, so that the same finding
//! becomes a line of a linter and an answer of a webhook.

use std::fmt;

use berth_api::FieldPath;
use serde_json::Value;

use crate::rule::{Rule, Severity};

/// Which object is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// `apiVersion` as written; empty if none is.
    pub api_version: String,
    /// `kind` as written; empty if none is.
    pub kind: String,
    /// Its namespace, if it says one.
    pub namespace: Option<String>,
    /// Its name; empty if it has none.
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

/// A breach of a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The rule.
    pub rule: &'static Rule,
    /// How grave it is, by the rule or by the settings.
    pub severity: Severity,
    /// The object that breaks it.
    pub object: ObjectRef,
    /// The field that is wrong; where one is missing, the field that is missing.
    pub field: FieldPath,
    /// A part of the field's text that is meant, where the field is a long text.
    pub excerpt: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub remedy: String,
    /// Changes that mend it without risk; empty if there are none.
    pub fix: Vec<Fix>,
}

impl Finding {
    /// Whether it can be mended without risk.
    pub fn is_fixable(&self) -> bool {
        !self.fix.is_empty()
    }
}

/// A change of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Fix {
    /// The field gets this value; maps on the way to it are made where they are missing.
    Set {
        /// Which field.
        path: FieldPath,
        /// Its value.
        value: Value,
    },
    /// The list gets one more item, at its end; it is made if it is missing.
    Append {
        /// Which list.
        path: FieldPath,
        /// The item.
        value: Value,
    },
    /// The field goes.
    Remove {
        /// Which field.
        path: FieldPath,
    },
}
