//! Gangs: pods that start together or not at all.
//!
//! A gang holds nothing before all of it fits: its members are placed under a checkpoint, and either
//! enough of them have a place or everything is rolled back. So no two gangs wait for each other.
//! While a gang waits, one member, the *head*, stands in the queue for all of them.
//!
//! - What the oldest member says about the gang counts, or its PodGroup. A gang that has started is
//!   history: a pod that joins later or replaces a member is scheduled alone, near the others.
//! - A gang with too few members that may start within quotas and shares is held as a whole and
//!   reserves nothing.
//! - If a binding fails, the other members keep their places until the gang's timeout; then the gang
//!   is disbanded.
//! - Nodes are reserved for one gang at a time, the most important and then the longest waiting. For
//!   what is free, no pod waits longer at a stretch than one reservation. Without limits, if every
//!   pod ends within D, a gang with k gangs before it starts within `gang_patience_ms` + (k + 1) · D.
//!
//! Modules:
//!
//! - `roster` knows who belongs to which gang, and is part of the state.
//! - `standing` remembers since when gangs wait and what is reserved for them.
//! - `muster` lets members into the queue, or one for all of them.
//! - `domain` orders the topology domains a gang may use and counts how many members fit there.
//! - `place` tries members out; `reserve` finds whom to evict, or which nodes to reserve.
//! - `budget` computes what a reservation costs others and whether the operator allows it;
//!   `reservation` is the one in force, and who may use the nodes all the same.
//! - `decide` is what happens when it is a gang's turn.
//!
//! Profiles other than Berth's see single pods only.

mod budget;
mod decide;
mod domain;
mod explain;
mod muster;
mod place;
mod reservation;
mod reserve;
mod roster;
mod standing;

pub(crate) use reservation::{Reservation, beside_members};
pub(crate) use roster::Roster;
pub(crate) use standing::Gangs;
