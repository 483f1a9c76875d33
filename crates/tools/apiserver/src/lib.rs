//! The Kubernetes API, embedded: for laptops and tests.
//!
//! One process: a store of objects by revision, the REST interface above it with watches, patches,
//! validation and admission, and discovery and tables for kubectl. It is compared with the real
//! kube-apiserver: by recorded answers, and by the same requests to both where the real one is
//! installed. Acknowledged writes survive a restart.
//!
//! No scheduler, controllers, kubelets or cluster network. Of custom resources, string formats,
//! transition rules (`oldSelf`), `messageExpression` and conversion webhooks are missing.

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
