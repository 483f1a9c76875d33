//! Contests: gangs and single pods that want the same GPUs, for as long as it takes.
//!
//! A contest is a small cluster made from a seed, pods and gangs that come and end in virtual time,
//! and an engine that decides. What it decides is held against books that count GPUs and nothing
//! else, kept apart from the engine's: no gang is bound in part, none waits though there is room, and
//! each starts within a stated time although work keeps arriving.

mod arena;
mod books;
mod plan;

pub use arena::{Outcome, run};
