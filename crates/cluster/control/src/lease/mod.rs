//! Leader election by a Lease, without trusting any clock.
//!
//! - Whether a holder is dead is judged by when this process saw its Lease change, on its own monotonic
//!   clock. Times in the Lease are for people.
//! - Every write is a compare-and-swap on the Lease's `resourceVersion`, and one task does all writes of a
//!   holder. So the versions of a Lease form one sequence, and a deposed holder cannot write any more.
//! - Pods are written into the Lease before their bindings are posted ([`Leadership::announce`]). The next
//!   leader finds them there ([`Inherited`]) and fences those bindings.
//!
//! A clock that jumps, stops or runs fast can end a term early. It cannot make two leaders schedule at once.

mod decide;
mod elector;
mod record;
#[cfg(test)]
mod tests;

pub use decide::{Answer, Observed, Step, Tenure, Turn, evaluate};
pub use elector::{
    AnnounceError, ElectionProblem, Elector, Inherited, Leadership, LeaseError, incarnation,
};
pub use record::{LeaseView, PodRef, Unreadable};

use thiserror::Error;

/// How many pods can be announced at a time. All annotations of an object together may have 256 KiB: this
/// many fit even with the longest names.
pub const IN_FLIGHT_MAX: usize = 512;

/// Where the Lease is, and its time limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub namespace: String,
    pub name: String,
    /// How long a leader may go without renewing before another replica takes over.
    pub duration_ms: u64,
    /// How long a leader that cannot renew goes on before it steps down.
    pub renew_deadline_ms: u64,
    /// How often a leader renews, and how often others read the Lease.
    pub retry_ms: u64,
    /// Timeout of a single request.
    pub request_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            namespace: "berth-system".to_owned(),
            name: "berth".to_owned(),
            duration_ms: 15_000,
            renew_deadline_ms: 10_000,
            retry_ms: 2_000,
            request_ms: 4_000,
        }
    }
}

/// Settings with which no replica could keep a Lease.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("lease: {longer} ({longer_ms} ms) must be longer than {shorter} ({shorter_ms} ms)")]
pub struct SettingsError {
    longer: &'static str,
    longer_ms: u64,
    shorter: &'static str,
    shorter_ms: u64,
}

impl Settings {
    /// Checks that a leader can renew in time, and steps down before others take over.
    pub fn check(&self) -> Result<(), SettingsError> {
        let duration = ("the lease duration", self.duration_ms);
        let deadline = ("the renew deadline", self.renew_deadline_ms);
        let request = ("a request's time limit", self.request_ms);
        let retry = ("the retry period", self.retry_ms);
        let order =
            [(duration, deadline), (deadline, request), (deadline, retry), (retry, ("0", 0))];
        match order.into_iter().find(|((_, longer), (_, shorter))| longer <= shorter) {
            Some(((longer, longer_ms), (shorter, shorter_ms))) => {
                Err(SettingsError { longer, longer_ms, shorter, shorter_ms })
            }
            None => Ok(()),
        }
    }
}

/// Why a term ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Lost {
    /// The new holder is empty if the Lease was released in our name.
    #[error("another replica took over the Lease: {by:?}")]
    Taken { by: String },
    #[error("the Lease was deleted")]
    Deleted,
    #[error("the Lease could not be renewed for {ms} ms")]
    Expired { ms: u64 },
    #[error("the Lease was released")]
    Released,
}
