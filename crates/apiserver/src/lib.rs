//! The Kubernetes API, embedded: for laptops and tests.

pub mod kinds;
mod random;
pub mod status;
pub mod store;
