//! The live scheduler in random worlds full of faults, in virtual time.
//!
//! A world follows from a seed: an API server of a few hundred lines; kubelets that admit pods as
//! the real model does, some with a topology that was never exported; controllers, users and in
//! half of the worlds a hostile tenant; and replicas of the scheduler, which are the real
//! [`Core`](berth_control::core::Core) and the real election rules with a driver that does what
//! `serve` does, call by call. Calls are delayed, lost, answered with errors, and arrive long after
//! their sender died; replicas pause, die and return; clocks drift and jump. A checker that shares
//! no code with the engine judges. One test turns fencing off and expects the laws to break.
//!
//! Never a dependency of a crate that ships. It is separate from testkit because the pure crates'
//! tests use testkit and need no Kubernetes client. Device claims, volumes and HTTP are not
//! simulated.

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
pub use world::{FaultPlan, Outcome, run};
