//! Which devices a pod's claims are allocated on a node.
//!
//! Dynamic Resource Allocation as kube-scheduler 1.36 does it with its default feature gates:
//! selectors in CEL, pools and their completeness, the search for devices with its order and
//! limits, and the verdicts of the plugin DynamicResources.
//!
//! - [`Inventory`] is kept up to date event by event. [`Inventory::prepare`] looks at a pod once,
//!   [`Inventory::place`] answers for one node and changes nothing, [`Inventory::take`] and
//!   [`Inventory::release`] record the outcome.
//! - Options of `place` restrict the search to NUMA nodes or prefer some devices. A preference
//!   changes which devices are allocated, never whether any can be. Without options the answer is
//!   kube-scheduler's.
//! - A search ends after a fixed number of devices, where kube-scheduler stops after ten seconds,
//!   so the result is the same on every machine.
//!
//! Not included: feature gates that are off by default in 1.36 (device taint rules, list
//! attributes, node allocatable resources, claims of pod groups), deallocation of idle claims, and
//! writing allocations.

mod extended;
mod in_use;
mod inventory;
mod numa;
mod plugin;
mod pools;
mod preference;
mod published;
mod search;
mod selectors;
mod verdict;

pub use extended::{ExtendedClaim, RequestMapping};
pub use inventory::Inventory;
pub use numa::NumaNodes;
pub use plugin::{ClaimRef, Demand, Options, Placement, normalize_scores};
pub use preference::{PoolDevice, Preference};
pub use verdict::{Code, Rejection, RejectionReason};

/// Limit of devices examined in one search, repetitions included. kube-scheduler stops after 10
/// seconds of real time instead; a search that is stopped is an error there and here.
pub const SEARCH_STEPS_MAX: u64 = 4_000_000;

/// A map with a fixed seed, for lookups only: its order is unspecified.
type Lookup<K, V> = hashbrown::HashMap<K, V, foldhash::fast::FixedState>;
