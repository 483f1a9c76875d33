//! ResourceQuota: a hard cap on what a namespace may have.
//!
//! Owns Kubernetes' rules and the books by which pods are held to them. Must not know nodes.

mod book;
mod rules;

pub use book::{Arrival, Books, Expiry, Standing};
pub use rules::{Life, Refusal, add, check, counts, limited, usage};
