//! Gangs: pods that start together or not at all.
//!
//! A gang holds nothing before all of it fits: its members are placed under a checkpoint, and
//! either enough of them fit or everything is rolled back. So no two gangs wait for each other.
//! While a gang is pending, one member, the *head*, is in the queue for all of them.
//!
//! - The gang's terms come from its PodGroup, else from its oldest member. A pod that joins a
//!   started gang later, or replaces a member, is scheduled alone, near the others.
//! - A gang with too few members that may start within quotas and shares is held as a whole and
//!   reserves nothing.
//! - If a binding fails, the other members keep their places until the gang's timeout; then the
//!   gang is disbanded.
//! - Nodes are reserved for one gang at a time, the most important and then the longest pending.
//!   For what is free, no pod waits longer at a stretch than one reservation. Without limits, if
//!   every pod ends within D, a gang with k gangs before it starts within `gang_patience_ms` + (k +
//!   1) · D.
//!
//! Profiles other than Berth's see single pods only.

mod budget;
mod decide;
mod domain;
mod explain;
mod place;
mod queueing;
mod reservation;
mod reserve;
mod roster;
mod state;

pub(crate) use reservation::{Reservation, beside_members};
pub(crate) use roster::Roster;
pub(crate) use state::Gangs;
