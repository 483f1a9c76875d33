//! ResourceQuota: a hard cap on the usage of a namespace.

mod ledger;
mod rules;

pub use ledger::{Arrival, Expiry, PodPlacement, QuotaLedger};
pub use rules::{Life, Refusal, add, check, counts, limited, usage};
