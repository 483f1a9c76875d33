//! An embedded Kubernetes API for `berth up` and tests: a store of objects by revision, and the REST interface
//! above it with watches, patches, validation, admission, discovery and tables.
//!
//! Tests compare it with the real kube-apiserver: with recorded answers, and by the same requests to both.
//! Acknowledged writes survive a restart.
//!
//! There is no scheduler, controller, kubelet or cluster network. Custom resources lack string formats, transition
//! rules (`oldSelf`), `messageExpression` and conversion webhooks.

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
