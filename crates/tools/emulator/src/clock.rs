//! The time that is written into objects: the machine's clock, or tokio's, which tests can pause and advance.
//! QueueReceiver always uses tokio's clock.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use tokio::time::Instant;

#[derive(Clone, Copy, Debug, Default)]
pub enum Clock {
    #[default]
    Wall,
    /// `then`, plus the time that tokio's clock has advanced since.
    Tokio { since: Instant, then: Timestamp },
}

impl Clock {
    /// A clock that follows tokio's, also when that is paused.
    pub fn tokio(then: Timestamp) -> Self {
        Self::Tokio { since: Instant::now(), then }
    }

    pub fn now(&self) -> Timestamp {
        match self {
            Self::Wall => Timestamp::now(),
            Self::Tokio { since, then } => later(*then, since.elapsed()),
        }
    }

    pub(crate) fn time(&self) -> Time {
        Time(whole_seconds(self.now()))
    }

    pub(crate) fn micro_time(&self) -> MicroTime {
        MicroTime(self.now())
    }
}

/// Truncates to seconds, as the API stores times, so that stored and computed times compare equal.
pub(crate) fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// Saturating addition.
pub(crate) fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// The time from one moment to another; zero if it has passed.
pub(crate) fn until(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or(Duration::ZERO)
}

/// Seconds of the API; negative ones count as zero.
pub(crate) fn seconds(count: i64) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}
