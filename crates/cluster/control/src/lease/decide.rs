//! The rules of the election: who may write the Lease next, and what follows from each answer. Pure: times of
//! the process's monotonic clock and answers are arguments.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

use super::record::{LeaseView, PodRef};
use super::{Lost, Settings};

/// The last version of the Lease that was read, and when it was first seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    version: String,
    since_ms: u64,
}

impl Observed {
    pub fn see(&mut self, lease: Option<&LeaseView>, now_monotonic_ms: u64) {
        let version = lease.map_or("", LeaseView::resource_version);
        if self.version != version {
            version.clone_into(&mut self.version);
            self.since_ms = now_monotonic_ms;
        }
    }
}

/// What a replica that does not lead does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is no Lease.
    Create,
    /// Replace the holder, by compare-and-swap.
    TakeOver,
    /// Read the Lease again after `ms`, or when it changes.
    Wait { ms: u64 },
}

/// What to do about a Lease that was just read. `me` is unique to a process, so a Lease with this holder was
/// written by us without an answer.
pub fn evaluate(
    lease: Option<&LeaseView>,
    observed: &Observed,
    me: &str,
    now_monotonic_ms: u64,
    settings: &Settings,
) -> Step {
    let Some(lease) = lease else { return Step::Create };
    if lease.holder().is_empty() || lease.holder() == me {
        return Step::TakeOver;
    }
    let is_same = observed.version == lease.resource_version();
    let since_ms = if is_same { observed.since_ms } else { now_monotonic_ms };
    let patience_ms = lease.duration_ms().max(settings.duration_ms);
    match since_ms.saturating_add(patience_ms).saturating_sub(now_monotonic_ms) {
        0 => Step::TakeOver,
        left => Step::Wait { ms: left.min(settings.retry_ms) },
    }
}

/// The outcome of a write.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Done(Box<Lease>),
    /// The Lease has another version. One of our own earlier writes can be the reason.
    Conflict,
    Missing,
    /// No answer in time, or an unclear one. The write can still take effect later.
    Unknown,
}

/// What a holder does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    Written,
    /// Read the Lease, because the outcome of the write is unclear.
    Read,
    Write,
    Lost(Lost),
}

/// A term: the version of the Lease and the announced pods.
#[derive(Clone, Debug)]
pub struct Tenure {
    me: Arc<str>,
    renew_deadline_ms: u64,
    retry_ms: u64,
    lease: LeaseView,
    binding: BTreeSet<PodRef>,
    renewed_ms: u64,
}

impl Tenure {
    /// `lease` is the answer to the write that began at `written_ms`. Inherited pods stay in `binding` until
    /// [`settle`](Self::settle).
    pub fn new(
        lease: LeaseView,
        binding: BTreeSet<PodRef>,
        me: Arc<str>,
        settings: &Settings,
        written_ms: u64,
    ) -> Self {
        Self {
            me,
            renew_deadline_ms: settings.renew_deadline_ms,
            retry_ms: settings.retry_ms,
            lease,
            binding,
            renewed_ms: written_ms,
        }
    }

    /// Adds pods to the list, with effect from the next write.
    pub fn add(&mut self, pods: impl IntoIterator<Item = PodRef>) {
        self.binding.extend(pods);
    }

    pub fn settle(&mut self, pods: impl IntoIterator<Item = PodRef>) {
        for pod in pods {
            self.binding.remove(&pod);
        }
    }

    pub fn renew_at_ms(&self) -> u64 {
        self.renewed_ms.saturating_add(self.retry_ms)
    }

    pub fn expired(&self, now_monotonic_ms: u64) -> Option<Lost> {
        let ms = now_monotonic_ms.saturating_sub(self.renewed_ms);
        (ms >= self.renew_deadline_ms).then_some(Lost::Expired { ms })
    }

    pub fn renewal(&self, now: Timestamp) -> Lease {
        self.lease.renewed(&self.binding, now)
    }

    /// Pods whose bindings may be in flight stay on the list.
    pub fn release(&self, now: Timestamp) -> Lease {
        self.lease.released(&self.binding, now)
    }

    pub fn answered(&mut self, answer: Answer, written_ms: u64) -> Turn {
        match answer {
            Answer::Done(lease) => {
                self.lease = LeaseView::new(*lease);
                self.renewed_ms = written_ms;
                Turn::Written
            }
            Answer::Missing => Turn::Lost(Lost::Deleted),
            Answer::Conflict | Answer::Unknown => Turn::Read,
        }
    }

    /// What follows from reading the Lease after an unclear answer; `Err` if it could not be read either.
    ///
    /// A Lease that still names us was last written by us, so we go on from that version. If another replica
    /// takes it meanwhile, the next write is a conflict.
    pub fn read(&mut self, lease: Result<Option<Lease>, ()>) -> Turn {
        match lease.map(|lease| lease.map(LeaseView::new)) {
            Err(()) => Turn::Write,
            Ok(None) => Turn::Lost(Lost::Deleted),
            Ok(Some(lease)) if lease.holder() == &*self.me => {
                self.lease = lease;
                Turn::Write
            }
            Ok(Some(lease)) => Turn::Lost(Lost::Taken { by: lease.holder().to_owned() }),
        }
    }
}
