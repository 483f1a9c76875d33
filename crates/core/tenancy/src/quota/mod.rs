//! ResourceQuota: a hard cap on the usage of a namespace.

mod book;
mod rules;

pub use book::{Arrival, Books, Expiry, Standing};
pub use rules::{Life, Refusal, add, check, counts, limited, usage};
