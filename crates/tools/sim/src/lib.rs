//! Discrete-event simulation: the engine against virtual kubelets, controllers, load and failures.
//!
//! An [`Experiment`](experiment::Experiment) says what there is and what happens; [`run`] plays it
//! under each of its setups, on the same arrivals, and gives a [`Report`](report::Report). The engine
//! is the real one, kubelets are the real admission model, the rest is modelled by rules that are
//! stated in [`assumptions`]. The same experiment gives the same report on every machine. No clock,
//! no files, no randomness of its own.

pub mod arrivals;
pub mod assumptions;
pub mod experiment;
pub mod latency;
mod meter;
mod node;
pub mod report;
mod run;
pub mod text;
mod world;

pub use node::NodeError;
pub use run::{run, run_all};
