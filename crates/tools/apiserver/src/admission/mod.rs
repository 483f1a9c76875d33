//! Admission plugins of the real server that clusters rely on: limit ranges, priorities, tolerations of pods,
//! quotas and webhooks.
//!
//! Plugins read other objects through a [`View`] and write none: what must be written with an object is returned.

mod chain;
mod limits;
pub(crate) mod node;
mod pod;
mod priority;
pub mod quota;
pub mod webhook;

use std::sync::Arc;

use serde_json::Value;

pub use crate::identity::User;
pub use chain::{Admitted, admit};

use crate::kinds::{Kind, Resource};
use crate::status::Status;

/// Lookups of other objects for admission.
pub trait View {
    /// One object. The namespace is empty for cluster-scoped kinds.
    fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Option<Arc<Value>>;

    /// All objects of a namespace, or of the cluster if the namespace is empty.
    fn list(&self, resource: &Resource, namespace: &str) -> Vec<Arc<Value>>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    /// A connection, as of `exec`.
    Connect,
}

impl Operation {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub kind: &'a Kind,
    pub operation: Operation,
    /// Empty for cluster-scoped kinds.
    pub namespace: &'a str,
    /// Empty if the server generates it.
    pub name: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    pub user: &'a User,
    pub dry_run: bool,
    /// The request's options, such as `CreateOptions`, or null.
    pub options: &'a Value,
    pub old: Option<&'a Value>,
}

impl Request<'_> {
    fn is_about(&self, group: &str, plural: &str) -> bool {
        self.subresource.is_empty() && self.kind.is(group, plural)
    }

    /// A 403 in the form of admission plugins.
    fn forbidden(&self, object: &Value, why: impl std::fmt::Display) -> Status {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let named = [self.name, text("/metadata/name"), text("/metadata/generateName"), "Unknown"];
        let name = named.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
        Status::forbidden(&self.kind.resource, name, why)
    }
}

/// Runs mutating plugins. Webhooks come after these.
///
/// # Errors
///
/// With the real server's refusal.
pub fn mutate(
    request: &Request<'_>,
    object: &mut Value,
    view: &(impl View + ?Sized),
) -> Result<(), Status> {
    limits::mutate(request, object, view)?;
    priority::mutate(request, object, view)?;
    pod::mutate(request, object);
    pod::set_overhead(request, object, view)
}

/// Runs validating plugins. Quotas come after webhooks: see [`quota::charge`].
///
/// # Errors
///
/// With the real server's refusal.
pub fn validate(
    request: &Request<'_>,
    object: &Value,
    view: &(impl View + ?Sized),
) -> Result<(), Status> {
    limits::validate(request, object, view)?;
    priority::validate(request, object, view)
}
