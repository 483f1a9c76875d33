//! The Kubernetes API, embedded: for laptops and tests.

mod decode;
pub mod defaults;
pub mod kinds;
pub mod patch;
pub mod schema;
pub mod status;
