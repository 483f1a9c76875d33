//! Kubernetes API objects, lowered to [`berth_model`].
//!
//! Owns how the API spells what the model knows: defaults, annotations, names of enumerations, and
//! which fields kube-scheduler 1.36 looks at. Must not know where objects come from, nor what is
//! decided about them.
//!
//! Objects are taken as the API server stores them. What it lets through is never an error here,
//! even where Kubernetes would not match it with anything; what it would have refused is one, and
//! names the field.

pub mod crd;
mod dra;
mod error;
pub mod gang;
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
pub use node::{MODEL_PREFIX, MODELS};
pub use path::{FieldPath, Step};
pub use selector::read_selector;

/// An object of the Kubernetes API that the model knows.
pub trait Lower {
    /// What it is to the model.
    type Model;

    /// The object as the model has it, or what is wrong with it.
    fn lower(&self) -> Result<Self::Model, LowerError>;
}
