//! The Kubernetes API, embedded: for laptops and tests.

pub mod kinds;
pub mod status;
