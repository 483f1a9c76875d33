//! Team shares: guarantees, borrowing and lending, and the order of the queue.

mod account;
mod ledger;
mod rules;
mod team;
mod team_queue;

pub use account::{Account, Lender};
pub use ledger::{Charge, ChargeState, DimensionIx, Ledger, LedgerChanges, TeamIx};
pub use rules::{Candidate, Claim, Hold, Turn, WHOLE};
pub use team::{
    AMOUNT_MAX, Dimension, Entitlement, GPU_PARTS, TEAM_LABEL, Team, TeamError, problems,
};
pub use team_queue::TeamQueue;
