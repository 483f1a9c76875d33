//! MIG geometry.
