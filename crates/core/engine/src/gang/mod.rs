//! Gangs: pods that start together or not at all.
//!
//! A gang holds nothing while it is not whole: its members are tried out under a checkpoint, and
//! either enough of them have their place or nobody has. So no two gangs can wait for what the other
//! holds. While it waits only one member, the *head*, stands in the queue, for all.
//!
//! - `roster` knows who belongs to which gang, and is part of the state.
//! - `standing` is what must be remembered of gangs beyond that: since when they wait, for whom
//!   something is set aside.
//! - `muster` lets members into the queue, or one for all of them.
//! - `domain` says where a gang may be, and where it could fit by counting.
//! - `place` tries members out; `reserve` finds whom to evict, or which nodes to set aside.
//! - `budget` says what a reservation costs others, and whether the operator allows it;
//!   `reservation` is the one in force, and who may use the nodes all the same.
//! - `decide` is what happens when it is a gang's turn.
//!
//! Must not know the rules that profiles other than Berth's follow: they see single pods.

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
