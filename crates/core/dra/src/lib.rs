//! Which devices a pod's claims are given on a node.
//!
//! This crate owns Dynamic Resource Allocation as kube-scheduler 1.36 does it with its default
//! feature gates: selectors in CEL, pools and their completeness, the search for devices with its
//! order and its limits, and the verdicts of the plugin DynamicResources. It must not know where
//! objects come from, nor who writes what was decided.
//!
//! [`Inventory`] is kept up to date event by event. [`Inventory::prepare`] looks at a pod once,
//! [`Inventory::place`] answers for one node and changes nothing; [`Inventory::take`] and
//! [`Inventory::release`] say what came of it.

mod extended;
mod inventory;
mod numa;
mod plugin;
mod pools;
mod preference;
mod published;
mod search;
mod selectors;
mod taken;
mod verdict;

pub use extended::{ExtendedClaim, RequestMapping};
pub use inventory::Inventory;
pub use numa::NumaNodes;
pub use plugin::{ClaimRef, Demand, Options, Placement, normalize_scores};
pub use preference::{Offered, Preference};
pub use verdict::{Code, Rejection, Why};

/// The most devices that are looked at in one search, each time counted anew. kube-scheduler stops
/// after 10 seconds of real time instead; a search that is stopped is an error there and here.
pub const SEARCH_STEPS_MAX: u64 = 4_000_000;

/// A map to look things up in, with a fixed seed but no order.
type Lookup<K, V> = hashbrown::HashMap<K, V, foldhash::fast::FixedState>;
