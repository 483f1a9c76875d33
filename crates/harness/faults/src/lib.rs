//! The live scheduler in arbitrary worlds full of faults, in virtual time.
//!
//! A world is made from a seed: an API server that keeps pods, nodes, budgets and one Lease; kubelets that
//! admit pods as the real model does, some with an inside that nobody was told of; controllers that
//! replace pods; users; and replicas of the scheduler, which are the real [`Core`](berth_control::core::Core)
//! and the real rules of the election with a driver that does what `serve` does, call by call. Calls are
//! delayed, lost, answered with errors, and land long after their sender has died; replicas pause, die and
//! come back; clocks run as they like. What must hold is checked by code that shares nothing with the engine.
//!
//! Must never be a dependency of a product crate. It is a crate of its own, and not a part of testkit,
//! because testkit serves the pure crates' tests, which do not need a client of Kubernetes.

mod calls;
mod checker;
mod election;
mod last;
mod replica;
mod server;
mod term;
mod verdict;
mod workloads;
mod world;

pub use verdict::{Finding, Tally};
pub use world::{Outcome, Plan, run};
