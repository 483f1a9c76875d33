//! Names of resources, and lists of quantities by name.
//!
//! Owns the spelling rules that Kubernetes gives meaning to (`cpu`, `memory`, `hugepages-2Mi`,
//! extended resources). Must not know which node has what.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::quantity::{Format, Quantity};

/// The name of a resource, such as `cpu` or `nvidia.com/gpu`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceName(Arc<str>);

/// Quantities by resource, in name order.
pub type ResourceList = BTreeMap<ResourceName, Quantity>;

const HUGEPAGES_PREFIX: &str = "hugepages-";

impl ResourceName {
    /// The name `name`, as written.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The CPU resource.
    pub fn cpu() -> Self {
        Self::new("cpu")
    }

    /// The memory resource.
    pub fn memory() -> Self {
        Self::new("memory")
    }

    /// The name as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `hugepages-<size>` is meant, whatever the size says.
    pub fn is_hugepages(&self) -> bool {
        self.0.starts_with(HUGEPAGES_PREFIX)
    }

    /// Whether device plugins may serve it: `domain/name`, outside of Kubernetes' own domain.
    pub fn is_extended(&self) -> bool {
        self.domain().is_some_and(|domain| !domain.ends_with("kubernetes.io"))
    }

    /// Whether a container can ask for it.
    pub fn is_known(&self) -> bool {
        matches!(self.as_str(), "cpu" | "memory" | "ephemeral-storage")
            || self.is_hugepages()
            || self.domain().is_some()
    }

    fn domain(&self) -> Option<&str> {
        let (domain, name) = self.0.split_once('/')?;
        (!domain.is_empty() && !name.is_empty()).then_some(domain)
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl From<&str> for ResourceName {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl std::borrow::Borrow<str> for ResourceName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// What kind of memory a resource name asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryKind {
    /// Memory in pages of the base size.
    Ordinary,
    /// Hugepages of one size.
    Hugepages {
        /// Size of one page.
        page_bytes: u64,
    },
}

/// A `hugepages-…` name that Kubernetes would not match with any node.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("resource {name:?}: {problem}; write the page size as Kubernetes does, e.g. hugepages-2Mi")]
pub struct MemoryKindError {
    /// The resource name.
    pub name: String,
    /// What is wrong with it.
    pub problem: String,
}

impl MemoryKind {
    /// The kind that `name` asks for; `None` if it is no memory at all.
    pub fn of(name: &ResourceName) -> Result<Option<Self>, MemoryKindError> {
        if name.as_str() == "memory" {
            return Ok(Some(Self::Ordinary));
        }
        let Some(size) = name.as_str().strip_prefix(HUGEPAGES_PREFIX) else { return Ok(None) };
        let error = |problem: String| MemoryKindError { name: name.to_string(), problem };
        let page = Quantity::parse(size).map_err(|cause| error(cause.to_string()))?;
        match page.as_i64() {
            Some(page_bytes) if page_bytes > 0 => {
                let kind = Self::Hugepages { page_bytes: page_bytes.unsigned_abs() };
                match kind.resource_name() {
                    canonical if canonical == *name => Ok(Some(kind)),
                    canonical => Err(error(format!("nodes list this page size as {canonical}"))),
                }
            }
            _ => Err(error("the page size is not a whole number of bytes above 0".to_owned())),
        }
    }

    /// The resource name that nodes list for this kind.
    pub fn resource_name(self) -> ResourceName {
        match self {
            Self::Ordinary => ResourceName::memory(),
            Self::Hugepages { page_bytes } => {
                let page_bytes = i64::try_from(page_bytes).unwrap_or(i64::MAX);
                let size = Quantity::from_units(page_bytes, Format::BinarySi);
                ResourceName::new(format!("{HUGEPAGES_PREFIX}{size}"))
            }
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.resource_name().fmt(f)
    }
}
