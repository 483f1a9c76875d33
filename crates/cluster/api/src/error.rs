//! What is wrong with an object.
//!
//! Owns how errors name objects and fields. Must not know any kind in particular.

use std::fmt::Display;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, Resource};
use thiserror::Error;

/// Why an object cannot be lowered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{kind} {object}: {field}: {problem}")]
pub struct LowerError {
    /// Its kind.
    pub kind: &'static str,
    /// Its name, after its namespace and a slash if it has one.
    pub object: String,
    /// The field that is wrong.
    pub field: String,
    /// What is wrong with it, and what to do.
    pub problem: String,
}

/// What is wrong with a field. Whoever knows the field's parent adds it.
#[derive(Debug)]
pub(crate) struct Problem {
    field: String,
    text: String,
}

impl Problem {
    pub(crate) fn new(field: impl Display, text: impl Display) -> Self {
        Self { field: field.to_string(), text: text.to_string() }
    }

    /// A value that is none of those the API knows.
    pub(crate) fn unknown(field: impl Display, value: &str, known: &str) -> Self {
        Self::new(field, format!("{value:?} is unknown; write {known}"))
    }

    pub(crate) fn under(self, parent: impl Display) -> Self {
        let dot = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        Self { field: format!("{parent}{dot}{}", self.field), text: self.text }
    }
}

/// Adds which object it was.
pub(crate) fn of<K, M>(object: &K, lowered: Result<M, Problem>) -> Result<M, LowerError>
where
    K: Resource + Metadata<Ty = ObjectMeta>,
{
    lowered.map_err(|problem| about(object, problem))
}

/// The same for a single problem.
pub(crate) fn about<K>(object: &K, Problem { field, text }: Problem) -> LowerError
where
    K: Resource + Metadata<Ty = ObjectMeta>,
{
    let meta = object.metadata();
    let name = meta.name.as_deref().unwrap_or("?");
    let object = match meta.namespace.as_deref() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    };
    LowerError { kind: K::KIND, object, field, problem: text }
}

/// Lowers each of a list; problems say at which position.
pub(crate) fn each<T, M>(
    field: &str,
    list: Option<&Vec<T>>,
    lower: impl Fn(&T) -> Result<M, Problem>,
) -> Result<Vec<M>, Problem> {
    let lower_at = |(index, item): (usize, &T)| {
        lower(item).map_err(|problem| problem.under(format!("{field}[{index}]")))
    };
    list.into_iter().flatten().enumerate().map(lower_at).collect()
}
