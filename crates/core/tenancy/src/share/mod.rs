//! Team shares: guarantees, borrowing and lending, and the order of the queue.

mod account;
mod ledger;
mod line;
mod rules;
mod team;

pub use account::{Account, Lender};
pub use ledger::{Charge, DimensionIx, Held, Ledger, News, TeamIx};
pub use line::Line;
pub use rules::{Candidate, Claim, Hold, Turn, WHOLE};
pub use team::{
    AMOUNT_MAX, Dimension, Entitlement, GPU_PARTS, TEAM_LABEL, Team, TeamError, problems,
};
