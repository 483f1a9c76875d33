//! How often, and for how long, to repeat a call whose outcome is unclear.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The minimum number of attempts: a process may have been paused meanwhile.
pub(super) const ATTEMPTS_MIN: u32 = 5;

pub(super) struct Attempts {
    until: Instant,
    pause: Duration,
    failures: u32,
}

impl Attempts {
    pub(super) fn until(until: Instant, pause: Duration) -> Self {
        Self { until, pause, failures: 0 }
    }

    /// After a failed attempt: pauses, and returns whether to try again.
    pub(super) async fn again(&mut self) -> bool {
        self.failures += 1;
        if self.failures >= ATTEMPTS_MIN && Instant::now() + self.pause >= self.until {
            return false;
        }
        sleep(self.pause).await;
        true
    }
}
