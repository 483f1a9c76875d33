//! Parses URL paths.

use std::sync::Arc;

use super::query::decode;
use crate::kinds::{Kind, Table};
use crate::status::Status;

/// A resource, an object or a part of one.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) kind: Arc<Kind>,
    /// Empty for all namespaces, or for kinds outside of them.
    pub(crate) namespace: String,
    /// Empty for all objects.
    pub(crate) name: String,
    /// `status`, `scale`, `binding` and so on, or empty.
    pub(crate) subresource: String,
}

#[derive(Clone, Debug)]
pub(crate) enum Path {
    Objects(Place),
    /// Anything else, such as discovery.
    Other,
}

/// A place whose kind is not looked up yet: authorisation needs only these names.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Names {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) namespace: String,
    pub(crate) plural: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
}

impl Names {
    /// Splits a path below `/api/v1` or `/apis/GROUP/VERSION`; none if it is not one.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let mut segments = path.trim_matches('/').split('/').map(|part| decode(part, false));
        let mut names = Self::default();
        match segments.next()?.as_str() {
            "api" => names.version = segments.next()?,
            "apis" => {
                names.group = segments.next()?;
                names.version = segments.next()?;
            }
            _ => return None,
        }
        let rest: Vec<String> = segments.collect();
        let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
        let (namespace, rest) = match rest.as_slice() {
            // `/namespaces/NAME/status` is a part of the namespace, not something in it.
            ["namespaces", _, "status" | "finalize"] => ("", rest.as_slice()),
            ["namespaces", namespace, inside @ ..] if !inside.is_empty() => (*namespace, inside),
            all => ("", all),
        };
        let (plural, rest) = rest.split_first()?;
        names.namespace = namespace.to_owned();
        names.plural = (*plural).to_owned();
        if let Some((name, subresource)) = rest.split_first() {
            names.name = (*name).to_owned();
            names.subresource = subresource.join("/");
        }
        Some(names)
    }
}

impl Path {
    pub(crate) fn find(table: &Table, path: &str) -> Result<Self, Status> {
        let Some(names) = Names::parse(path) else { return Ok(Self::Other) };
        if !table.has_version(&names.group, &names.version) {
            return Ok(Self::Other);
        }
        let kind = table
            .find(&names.group, &names.version, &names.plural)
            .ok_or_else(Status::no_such_path)?;
        // Namespaced objects need a namespace in the path, others must have none.
        let namespaced_path = !names.namespace.is_empty();
        let misplaced = if kind.namespaced {
            !namespaced_path && !names.name.is_empty()
        } else {
            namespaced_path
        };
        if misplaced {
            return Err(Status::no_such_path());
        }
        Ok(Self::Objects(Place {
            kind: kind.clone(),
            namespace: names.namespace,
            name: names.name,
            subresource: names.subresource,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &str) -> [String; 6] {
        let n = Names::parse(path).unwrap();
        [n.group, n.version, n.namespace, n.plural, n.name, n.subresource]
    }

    #[test]
    fn paths_are_split_into_names() {
        assert_eq!(names("/api/v1/pods"), ["", "v1", "", "pods", "", ""]);
        assert_eq!(
            names("/api/v1/namespaces/n/pods/p/binding"),
            ["", "v1", "n", "pods", "p", "binding"]
        );
        assert_eq!(names("/api/v1/namespaces/n"), ["", "v1", "", "namespaces", "n", ""]);
        assert_eq!(
            names("/api/v1/namespaces/n/finalize"),
            ["", "v1", "", "namespaces", "n", "finalize"]
        );
        assert_eq!(
            names("/apis/apps/v1/namespaces/n/deployments/d/scale"),
            ["apps", "v1", "n", "deployments", "d", "scale"]
        );
        assert!(Names::parse("/healthz").is_none());
        assert!(Names::parse("/apis/apps/v1").is_none());
    }
}
