//! The time that is written into objects: the machine's clock, or tokio's, which tests can pause and advance.
//! Waiting always uses tokio's clock.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use tokio::time::Instant;

/// Where times come from.
#[derive(Clone, Copy, Debug, Default)]
pub enum Clock {
    #[default]
    Wall,
    /// So much after a moment as tokio's clock has moved since.
    Tokio {
        /// Where tokio's clock stood.
        since: Instant,
        then: Timestamp,
    },
}

impl Clock {
    /// A clock that goes as tokio's does, and stands when that one is paused.
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

/// The API keeps whole seconds. A time that is compared with what it kept must have no more.
pub(crate) fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// A time so much later; the end of all time if there is none.
pub(crate) fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// How long it is from one time to another; nothing if that has passed.
pub(crate) fn until(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or(Duration::ZERO)
}

/// So many seconds as the API writes them; none if they are negative.
pub(crate) fn seconds(count: i64) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}
