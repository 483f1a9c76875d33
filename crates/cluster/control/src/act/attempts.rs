//! How often, and for how long, a call is repeated whose outcome is unclear.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Attempts before giving up, at least: a process that was paused has not tried all that time.
pub(super) const ATTEMPTS_MIN: u32 = 5;

/// The attempts at one call.
pub(super) struct Attempts {
    until: Instant,
    pause: Duration,
    failures: u32,
}

impl Attempts {
    /// Attempts until then, with a pause between two of them.
    pub(super) fn until(until: Instant, pause: Duration) -> Self {
        Self { until, pause, failures: 0 }
    }

    /// An attempt failed. Whether to try again, after a pause.
    pub(super) async fn again(&mut self) -> bool {
        self.failures += 1;
        if self.failures >= ATTEMPTS_MIN && Instant::now() + self.pause >= self.until {
            return false;
        }
        sleep(self.pause).await;
        true
    }
}
