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
mod engine;
pub mod event;
pub mod explain;
mod filter;
mod gang;
mod kube;
mod mirror;
mod offer;
mod overlay;
mod query;
mod queue;
mod shape;
mod state;
mod table;
pub mod verdict;
mod volume;

pub use config::{Config, Profile};
pub use engine::Engine;
pub use state::Checkpoint;
