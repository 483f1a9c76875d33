//! `berth serve`: watches a cluster, decides, binds and evicts; leader election; the webhook; what
//! is installed.
//!
//! Everything goes through a `kube::Client`. `core` is the scheduler without the network: events
//! and API answers in, effects out, with time as an argument; faults are tested on it in virtual
//! time. `watch` feeds it, `act` carries its effects out, `serve` is the one task that owns it,
//! term by term.
//!
//! - Two leaders at once cannot place the same thing twice, whatever their clocks say: bindings are
//!   announced in the Lease before they are posted (`lease`), and a new leader fences the announced
//!   pods (`act::fence`) before it lists anything.
//! - No pod can stop the scheduling of others. A fence is a condition of a pod or a label of a
//!   claim and so does not grow with an object that a tenant controls. A pod that cannot be fenced
//!   is excluded and retried with backoff.
//! - No answer is assumed. A binding whose answer was lost stays decided until the pod is seen.
//! - A pod of a template that a kubelet rejected is not sent to that node again before the node has
//!   changed (`core::rejections`), so scheduler and kubelet cannot chase each other.
//! - What a bound pod holds is fixed for the leader's term, although its annotations can change.
//!
//! Followers keep no cache: a term begins with a fresh list.

mod act;
pub mod certificates;
pub mod core;
pub mod front;
pub mod http;
pub mod install;
pub mod kubeconfig;
pub mod lease;
pub mod metrics;
mod node_topologies;
mod object_statuses;
pub mod placement;
pub mod port;
pub mod serve;
pub mod snapshot;
mod tolerant;
mod view;
pub mod watch;
pub mod webhook;
