//! Discrete-event simulation: the engine with virtual kubelets, controllers, load and failures in
//! virtual time.
//!
//! An [`Experiment`](experiment::Experiment) is the complete input; [`run`] simulates each
//! setup and returns a [`Report`](report::Report). The engine is the real one and kubelets are the
//! real admission model; the rest follows rules whose numbers and sources are in
//! [`assumptions`].
//!
//! All setups see the same arrivals, lifetimes and failures; only decisions differ. Requests are
//! counted by kind, not one by one. The same experiment gives the same report on every machine: no
//! clock, no files, no randomness, and mathematical functions from a library. Single requests, the
//! network, image pulls and device claims are not simulated.

pub mod arrivals;
pub mod assumptions;
pub mod experiment;
pub mod latency;
mod meter;
mod node;
mod parallel;
pub mod report;
mod run;
mod sizing;
pub mod text;
mod world;

pub use node::NodeError;
pub use run::{run, run_all};
