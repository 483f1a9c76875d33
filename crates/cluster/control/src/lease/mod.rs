//! Leader election by a Lease, without trusting any clock.
//!
//! Owns who leads, and the list of pods whose bindings may be under way. Must not know what a binding
//! is for, nor how pods are placed.
//!
//! - Whether a holder is dead is judged by when *we* saw its Lease change, on our own monotonic clock.
//!   Times that stand in the Lease are for people.
//! - Every write is a compare-and-swap on the Lease's `resourceVersion`, and one task does all writes of
//!   a holder. So the versions of a Lease are one line, and whoever was deposed cannot write any more.
//! - Before bindings are posted their pods are written into the Lease ([`Leadership::announce`]). Whoever
//!   takes over finds them there ([`Inherited`]) and can make sure that those bindings land no more.
//!
//! A clock that jumps, stands still or runs fast can cost a leader its place. It cannot make two leaders
//! place at once.

mod decide;
mod keep;
mod record;
#[cfg(test)]
mod tests;

pub use decide::{Answer, Observed, Step, Tenure, Turn, evaluate};
pub use keep::{AnnounceError, Elector, Inherited, Leadership, incarnation};
pub use record::{LeaseView, PodRef, Unreadable};

use thiserror::Error;

/// So many pods can be announced at a time. Names can be long, and all annotations of an object together
/// may have 256 KiB: this many fit whatever they are called.
pub const IN_FLIGHT_MAX: usize = 512;

/// Where the Lease is, and how patient everybody is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// So long after the last change that others saw, a holder is taken for dead.
    pub duration_ms: u64,
    /// A holder that could not write for so long stops by itself.
    pub renew_deadline_ms: u64,
    /// A holder writes at least this often, and others look as often.
    pub retry_ms: u64,
    /// So long a single request may take.
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

/// Settings under which nobody could keep a Lease.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("lease: {longer} ({longer_ms} ms) must be longer than {shorter} ({shorter_ms} ms)")]
pub struct SettingsError {
    longer: &'static str,
    longer_ms: u64,
    shorter: &'static str,
    shorter_ms: u64,
}

impl Settings {
    /// Whether a holder can renew in time, and stops before others take it for dead.
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

/// Why somebody leads no more.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Lost {
    /// Somebody else has the Lease.
    #[error("the lease was taken over by {by:?}")]
    Taken {
        /// The new holder; empty if it was released in our name.
        by: String,
    },
    /// The Lease is gone.
    #[error("the lease was deleted")]
    Deleted,
    /// It could not be renewed in time.
    #[error("the lease could not be renewed for {ms} ms")]
    Expired {
        /// How long.
        ms: u64,
    },
    /// It was given back.
    #[error("the lease was released")]
    Released,
}
