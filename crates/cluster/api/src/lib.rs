//! Kubernetes API objects, lowered to [`berth_model`].
//!
//! How the API spells what the model knows: defaults, labels and annotations, names of
//! enumerations, and which fields kube-scheduler 1.36 reads.
//!
//! Objects are taken as the API server stores them. What it accepts is never an error here, even if
//! Kubernetes would match it with nothing; what it would reject is an error that names the field.
//! Nothing here watches, reads or writes.

pub mod crd;
mod dra;
mod error;
pub mod gang;
pub mod keys;
mod meta;
mod node;
mod path;
pub mod placement;
pub mod pod;
mod policy;
mod resource;
mod selector;
mod storage;
pub mod topology;
pub mod workload;

pub use dra::raise;
pub use error::LowerError;
pub use path::{FieldPath, Step};
pub use selector::read_selector;

/// A Kubernetes object with a counterpart in the model.
pub trait Lower {
    type Model;

    fn lower(&self) -> Result<Self::Model, LowerError>;
}
