//! Arbitrary worlds for the engine, and the laws that hold in all of them.
//!
//! A world is a small cluster made from a seed and what happens to it. The checker follows the same
//! events and decisions with books of its own, kept as plainly as possible, and shares nothing with
//! the engine but its vocabulary: what it says about a decision is a second opinion.

mod books;
mod checker;
mod division;
mod gangs;
mod happening;
mod hardware;
mod offer;
mod order;
mod parts;
mod policy;
mod rules;
mod run;
mod tenancy;
mod tenants;
mod trial;
mod twin;
mod warm;
mod workload;

pub use checker::{Checker, Law, Violation};
pub use division::proposes_wrongly;
pub use happening::{Act, Round, Size, TENANTS_FROM, World};
pub use parts::gives_parts_wrongly;
pub use run::{Run, Watched, play, record, run};
pub use trial::{breaks_a_law, depends_on_order, remembers_trials};
