//! The scheduling engine: where pods go, and why not.
//!
//! A pure state machine: events in, decisions out. No I/O, no clock, no randomness.
//!
//! - A decision counts from the moment it is made: the pod's resources are taken and the node's
//!   kubelet model has admitted it. The caller carries it out and reports the result; `undo` takes
//!   it back. An event from before the decision (a pod without a node) does not undo it.
//! - No decision depends on row numbers, hash map order or the order of events, with one exception:
//!   kubelets allocate in order, so bindings to and departures from one node, and changes of its
//!   slices, must keep their order. Ties go to a stable hash of the node's name.
//! - Work follows what changed. A *class* is all that matters of a pod's spec, a *shape* the part
//!   that a node can judge alone; nodes are ranked once per shape and again only when they change.
//!   There is no polling and no backoff.
//! - Moves and repartitions are proposed, never carried out.

mod amounts;
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
mod label_index;
mod mirror;
pub mod node_rules;
mod offer;
mod overlay;
mod partitions;
pub mod pending;
mod placement;
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

pub use berth_tenancy::share::TEAM_LABEL;
pub use config::{Config, Profile};
pub use engine::Engine;
pub use state::Checkpoint;
