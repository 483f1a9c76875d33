//! The Kubernetes API, embedded: for laptops and tests.

pub mod admission;
pub mod decode;
pub mod defaults;
pub mod kinds;
pub mod patch;
pub mod schema;
pub mod status;
