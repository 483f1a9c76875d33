//! Who may write the Lease next, and what a holder learns from each answer.
//!
//! Owns the rules of the election. Must not know any clock, network or task: times come in as numbers
//! of our own monotonic clock, answers as values.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

use super::record::{LeaseView, PodRef};
use super::{Lost, Settings};

/// Which version of the Lease we saw last, and since when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    version: String,
    since_ms: u64,
}

impl Observed {
    /// Takes note of what was read.
    pub fn see(&mut self, lease: Option<&LeaseView>, now_monotonic_ms: u64) {
        let version = lease.map_or("", LeaseView::resource_version);
        if self.version != version {
            version.clone_into(&mut self.version);
            self.since_ms = now_monotonic_ms;
        }
    }
}

/// What somebody who does not lead is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is no Lease: make one.
    Create,
    /// Write ourselves into it, if it is still the same then.
    TakeOver,
    /// Look again after so long, or when it changes.
    Wait {
        /// How long, at most.
        ms: u64,
    },
}

/// What to do about a Lease that was just read. `me` is of one process only, so a Lease that names us is
/// one that we wrote without learning that it worked.
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

/// What became of a write.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// It was done; this is the Lease now.
    Done(Box<Lease>),
    /// The Lease is not of that version any more. One of our own earlier writes can be the reason.
    Conflict,
    /// There is no such Lease.
    Missing,
    /// Nobody knows: no answer in time, or none that says. It can still be done later.
    Unknown,
}

/// What a holder does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// All that was to be written is.
    Written,
    /// Read the Lease, as what became of the write is not clear.
    Read,
    /// Write again.
    Write,
    /// Nothing: it holds no more.
    Lost(Lost),
}

/// The time that somebody holds the Lease: its version, and who is on the list.
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
    /// Begins with the Lease that our write led to; the write began at `written_ms`. Who is on the list
    /// already stays on it until [`settle`](Self::settle).
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

    /// Puts pods on the list. That is worth nothing before the next write.
    pub fn add(&mut self, pods: impl IntoIterator<Item = PodRef>) {
        self.binding.extend(pods);
    }

    /// Takes pods off the list.
    pub fn settle(&mut self, pods: impl IntoIterator<Item = PodRef>) {
        for pod in pods {
            self.binding.remove(&pod);
        }
    }

    /// When it is to be renewed.
    pub fn renew_at_ms(&self) -> u64 {
        self.renewed_ms.saturating_add(self.retry_ms)
    }

    /// Whether it went without a write for too long.
    pub fn expired(&self, now_monotonic_ms: u64) -> Option<Lost> {
        let ms = now_monotonic_ms.saturating_sub(self.renewed_ms);
        (ms >= self.renew_deadline_ms).then_some(Lost::Expired { ms })
    }

    /// What to write: the Lease renewed, with the list as it is.
    pub fn renewal(&self, now: Timestamp) -> Lease {
        self.lease.renewed(&self.binding, now)
    }

    /// What to write to give it back. Bindings that may be under way stay on the list.
    pub fn release(&self, now: Timestamp) -> Lease {
        self.lease.released(&self.binding, now)
    }

    /// What follows from the answer to a write that began at `written_ms`.
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

    /// What follows from what was read after an unclear answer; `Err` if that could not be read either.
    ///
    /// A Lease that still names us was last written by ourselves, so we go on from that version. Should
    /// somebody have taken it meanwhile, the next write says so.
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
