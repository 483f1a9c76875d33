//! Shares of teams: what they are guaranteed, borrow and lend, and whose turn it is.
//!
//! Owns the ledger of teams and the rules that read it. Must not know nodes, nor pods but by what
//! they take.

mod account;
mod ledger;
mod line;
mod rules;
mod team;

pub use account::{Account, Lender};
pub use ledger::{Charge, DimensionIx, Held, Ledger, News, TeamIx};
pub use line::Line;
pub use rules::{Candidate, Claim, Hold, Turn, WHOLE};
pub use team::{AMOUNT_MAX, Dimension, Entitlement, GPU_PARTS, Team, TeamError, problems};
