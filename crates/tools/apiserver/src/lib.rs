//! The Kubernetes API, embedded: for laptops and tests.
//!
//! One process, no other parts: a store of objects by revision, the REST interface above it with
//! watches, patches and admission, and discovery and tables enough for kubectl. It knows no
//! scheduler, no controllers and no client; those talk to it as they would to a real cluster.

pub mod admission;
mod clock;
mod crd;
pub mod decode;
pub mod defaults;
pub mod disruption;
pub mod identity;
pub mod kinds;
pub mod origin;
pub mod patch;
pub mod protobuf;
mod random;
mod rbac;
mod rest;
pub mod schema;
mod seed;
pub mod select;
mod server;
pub mod status;
pub mod store;
mod strategy;
mod table;
pub mod validate;

pub use identity::Token;
pub use rest::Body;
pub use server::{ApiServer, Authorization, OpenError, Options, Service};
