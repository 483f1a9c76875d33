//! Where pods go, and why not.
//!
//! The pure decision core: events in, decisions out. No I/O, no clock, no randomness of its own.

mod amounts;
mod berth;
mod census;
mod changes;
mod class;
pub mod config;
pub mod decision;
mod demand;
mod devices;
mod engine;
pub mod event;
pub mod explain;
mod filter;
mod gang;
pub mod headroom;
mod kube;
pub mod line;
mod mirror;
mod offer;
pub mod outline;
mod overlay;
mod partitions;
mod query;
mod queue;
mod rechecks;
pub mod repair;
pub mod repartition;
mod shape;
mod shares;
mod slices;
mod state;
mod table;
mod tenancy;
pub mod verdict;
mod volume;
mod wake;

pub use config::{Config, Profile};
pub use engine::Engine;
pub use state::Checkpoint;
pub use tenancy::TEAM_LABEL;
