//! The table of kinds: names, URLs and subresources. Built-in kinds are constant; custom resource definitions add
//! rows at run time.

mod built_in;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

/// A group and a plural: what is stored together for all versions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resource {
    /// The API group; empty for the core group.
    pub group: Arc<str>,
    /// The plural, such as `pods`.
    pub plural: Arc<str>,
}

impl Resource {
    pub fn new(group: &str, plural: &str) -> Self {
        Self { group: Arc::from(group), plural: Arc::from(plural) }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(&self.plural)
        } else {
            write!(f, "{}.{}", self.plural, self.group)
        }
    }
}

/// One kind in one version: a row of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// Group and plural as in the URL.
    pub resource: Resource,
    /// The version, such as `v1`.
    pub version: Arc<str>,
    /// The kind, such as `Pod`.
    pub kind: Arc<str>,
    /// The kind of its lists, such as `PodList`.
    pub list_kind: Arc<str>,
    /// The singular name, such as `pod`.
    pub singular: Arc<str>,
    /// Short names that kubectl takes.
    pub short_names: Vec<Arc<str>>,
    /// Categories such as `all`.
    pub categories: Vec<Arc<str>>,
    pub namespaced: bool,
    pub subresources: Subresources,
    /// Where its objects are stored. Differs from `resource` only for events, which two groups serve.
    pub stored_as: Resource,
    /// False for reviews and bindings, which are only posted.
    pub stored: bool,
    pub origin: Origin,
}

/// Where a row comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    BuiltIn,
    Custom(Arc<CustomRow>),
}

#[derive(Clone, Debug, PartialEq, Default)]
pub struct CustomRow {
    /// The OpenAPI schema of this version, `null` where there is none.
    pub schema: serde_json::Value,
    /// `additionalPrinterColumns` of this version.
    pub printer_columns: Vec<serde_json::Value>,
    /// `selectableFields` of this version, without the leading dot.
    pub selectable_fields: Vec<String>,
    /// `spec.preserveUnknownFields`, or the schema's own at the root.
    pub preserve_unknown_fields: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Subresources {
    pub status: bool,
    /// Whether there is `scale`, and where its fields are.
    pub scale: Option<ScalePaths>,
}

/// Where `scale` finds its fields; dotted paths without a leading dot.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalePaths {
    pub spec_replicas: Arc<str>,
    pub status_replicas: Arc<str>,
    /// The label selector as text, where the kind keeps one.
    pub selector: Option<Arc<str>>,
}

impl Kind {
    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.resource.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.resource.group, self.version)
        }
    }

    /// Whether it is Kubernetes' own kind of this group and plural.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        matches!(self.origin, Origin::BuiltIn)
            && &*self.resource.group == group
            && &*self.resource.plural == plural
    }
}

#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Arc<Kind>>,
    by_place: HashMap<String, Arc<Kind>>,
}

impl Table {
    fn place(group: &str, version: &str, plural: &str) -> String {
        format!("{group}/{version}/{plural}")
    }

    fn with_rows(rows: Vec<Arc<Kind>>) -> Self {
        let by_place = rows
            .iter()
            .map(|row| {
                let place = Self::place(&row.resource.group, &row.version, &row.resource.plural);
                (place, row.clone())
            })
            .collect();
        Self { rows, by_place }
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Kind>> {
        self.by_place.get(&Self::place(group, version, plural))
    }

    /// All rows, built-in ones first, in the order of groups in discovery.
    pub fn rows(&self) -> &[Arc<Kind>] {
        &self.rows
    }

    /// Whether there is anything in a version of a group.
    pub fn has_version(&self, group: &str, version: &str) -> bool {
        self.rows.iter().any(|row| &*row.resource.group == group && &*row.version == version)
    }
}

static BUILT_IN: LazyLock<Table> = LazyLock::new(|| Table::with_rows(built_in::rows()));

/// Kubernetes' own kind of a group and plural, in its first version.
pub fn built_in(group: &str, plural: &str) -> Option<Arc<Kind>> {
    BUILT_IN.rows.iter().find(|row| row.is(group, plural)).cloned()
}

#[derive(Debug)]
pub struct Kinds {
    table: RwLock<Arc<Table>>,
}

impl Default for Kinds {
    fn default() -> Self {
        Self { table: RwLock::new(Arc::new(BUILT_IN.clone())) }
    }
}

impl Kinds {
    pub fn table(&self) -> Arc<Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces all rows of custom resources.
    pub fn set_custom(&self, custom: Vec<Arc<Kind>>) {
        let mut rows = BUILT_IN.rows.clone();
        rows.extend(custom);
        let table = Arc::new(Table::with_rows(rows));
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = table;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_their_place() {
        let kinds = Kinds::default();
        let table = kinds.table();
        let row = table.find("apps", "v1", "deployments").unwrap();
        assert_eq!((&*row.kind, row.api_version().as_str()), ("Deployment", "apps/v1"));
        assert!(row.subresources.scale.is_some());
        assert!(table.find("apps", "v2", "deployments").is_none());
        let events = table.find("events.k8s.io", "v1", "events").unwrap();
        assert_eq!(events.stored_as, Resource::new("", "events"));
    }
}
