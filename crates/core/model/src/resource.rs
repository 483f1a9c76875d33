//! Resource names and the spelling rules that Kubernetes gives meaning to (`cpu`, `memory`,
//! `hugepages-2Mi`, extended resources), and lists of quantities by name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::quantity::{Format, Quantity};

/// Such as `cpu` or `nvidia.com/gpu`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceName(Arc<str>);

/// In name order.
pub type ResourceList = BTreeMap<ResourceName, Quantity>;

const HUGEPAGES_PREFIX: &str = "hugepages-";

impl ResourceName {
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    pub fn cpu() -> Self {
        Self::new("cpu")
    }

    pub fn memory() -> Self {
        Self::new("memory")
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is `hugepages-<size>`, valid or not.
    pub fn is_hugepages(&self) -> bool {
        self.0.starts_with(HUGEPAGES_PREFIX)
    }

    /// Whether device plugins may serve it: `domain/name`, outside of Kubernetes' own domain.
    pub fn is_extended(&self) -> bool {
        self.domain().is_some_and(|domain| !domain.ends_with("kubernetes.io"))
    }

    /// Whether a container can request it.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryKind {
    /// Memory in pages of the base size.
    Ordinary,
    Hugepages {
        page_bytes: u64,
    },
}

/// A `hugepages-…` name that no node has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("resource {name:?}: {problem}; write the page size as Kubernetes does, e.g. hugepages-2Mi")]
pub struct MemoryKindError {
    pub name: String,
    pub problem: String,
}

impl MemoryKind {
    /// `None` if the resource is not memory.
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
                    canonical => Err(error(format!("the canonical name is {canonical}"))),
                }
            }
            _ => Err(error("page size must be a positive integer of bytes".to_owned())),
        }
    }

    /// The resource name on nodes.
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
