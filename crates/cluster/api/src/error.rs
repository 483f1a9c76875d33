//! Errors about fields of objects.

use std::fmt::Display;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, Resource};
use thiserror::Error;

/// Why an object cannot be lowered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{kind} {object}: {field}: {problem}")]
pub struct LowerError {
    pub kind: &'static str,
    /// `NAME` or `NAMESPACE/NAME`.
    pub object: String,
    pub field: String,
    /// The problem and its remedy.
    pub problem: String,
}

/// A problem with a field, relative to a parent that the caller adds.
#[derive(Debug)]
pub(crate) struct Problem {
    field: String,
    text: String,
}

impl Problem {
    pub(crate) fn new(field: impl Display, text: impl Display) -> Self {
        Self { field: field.to_string(), text: text.to_string() }
    }

    pub(crate) fn unknown(field: impl Display, value: &str, known: &str) -> Self {
        Self::new(field, format!("unknown value {value:?}; use {known}"))
    }

    pub(crate) fn under(self, parent: impl Display) -> Self {
        let dot = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        Self { field: format!("{parent}{dot}{}", self.field), text: self.text }
    }
}

/// Adds the object.
pub(crate) fn of<K, M>(object: &K, lowered: Result<M, Problem>) -> Result<M, LowerError>
where
    K: Resource + Metadata<Ty = ObjectMeta>,
{
    lowered.map_err(|problem| about(object, problem))
}

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

/// Lowers each item of a list. Problems name the position.
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
