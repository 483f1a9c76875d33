//! The Kubernetes API, embedded: for laptops and tests.
