//! When to read the node and when to write: soon after a change, regularly without one, and with backoff after a
//! failure.

use std::time::{Duration, Instant};

use super::node_reader::Scope;

/// First and maximum pause before failed writes are tried again; it doubles each time.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Between checks of a few small files that tell whether hardware changed.
    pub poll: Duration,
    /// Between readings of all pods' cgroups without a change.
    pub audit: Duration,
    /// Between readings of where a container's memory is.
    pub memory: Duration,
    /// Between checks that the Node still has its metadata.
    pub verify: Duration,
    /// How long after a change to wait for further ones.
    pub settle: Duration,
    /// Minimum between two readings.
    pub gap: Duration,
    /// How long an unknown alignment must persist before it is written.
    pub unknown: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(10),
            audit: Duration::from_secs(60),
            memory: Duration::from_secs(600),
            verify: Duration::from_secs(300),
            settle: Duration::from_millis(50),
            gap: Duration::from_millis(250),
            unknown: Duration::from_secs(15),
        }
    }
}

/// How often to read the node while a pod is starting.
const STARTING_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Schedule {
    settings: Settings,
    /// Whether files must be polled because they cannot be watched.
    polling: bool,
    read: Option<(Instant, Scope)>,
    last_read: Option<Instant>,
    write: Option<Instant>,
    retry: Duration,
    poll: Instant,
    audit: Instant,
    /// Scope of the next audit.
    audit_scope: Scope,
    verify: Instant,
}

impl Schedule {
    /// Everything is due at once.
    pub(super) fn new(settings: Settings, files_watched: bool) -> Self {
        let now = Instant::now();
        Self {
            settings,
            polling: !files_watched,
            read: Some((now, Scope::All)),
            last_read: None,
            write: None,
            retry: RETRY,
            poll: now + settings.poll,
            audit: now + settings.audit,
            audit_scope: Scope::Pods,
            verify: now + settings.verify,
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Requests a reading.
    pub(super) fn request_read(&mut self, scope: Scope) {
        let soon = Instant::now() + self.settings.settle;
        let at = self.last_read.map_or(soon, |last_read| soon.max(last_read + self.settings.gap));
        // The earliest request decides when, the widest one how much.
        self.read = Some(match self.read {
            Some((before, wanted)) => (before.min(at), wanted.max(scope)),
            None => (at, scope),
        });
    }

    /// Requests a write without a reading.
    pub(super) fn request_write(&mut self) {
        let soon = Instant::now() + self.settings.settle;
        self.write = Some(self.write.map_or(soon, |before| before.min(soon)));
    }

    pub(super) fn set_polling(&mut self, polling: bool) {
        self.polling = polling;
    }

    pub(super) fn poll_is_due(&mut self) -> bool {
        let now = Instant::now();
        if now < self.poll {
            return false;
        }
        let often = self.settings.poll.min(2 * self.settings.gap);
        self.poll = now + if self.polling { often } else { self.settings.poll };
        true
    }

    pub(super) fn read_is_due(&mut self) -> Option<Scope> {
        let now = Instant::now();
        if now >= self.audit {
            self.request_read(self.audit_scope);
            (self.audit, self.audit_scope) = (now + self.settings.audit, Scope::Pods);
        }
        let (_, scope) = self.read.filter(|(at, _)| *at <= now)?;
        self.read = None;
        self.last_read = Some(now);
        self.write = Some(now);
        Some(scope)
    }

    pub(super) fn write_is_due(&mut self) -> bool {
        let now = Instant::now();
        if now >= self.verify {
            self.write = Some(now);
        }
        self.write.is_some_and(|at| at <= now)
    }

    pub(super) fn verify_is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = now >= self.verify;
        if due {
            self.verify = now + self.settings.verify;
        }
        due
    }

    /// Records whether everything was written.
    pub(super) fn wrote(&mut self, all: bool) {
        if all {
            (self.write, self.retry) = (None, RETRY);
        } else {
            self.write = Some(Instant::now() + self.retry);
            self.retry = (self.retry * 2).min(RETRY_MAX);
        }
    }

    /// An unknown alignment is being delayed. Usually a container has not started, which no event tells; at the end of
    /// the delay, the driver may know more.
    pub(super) fn read_again(&mut self) {
        let now = Instant::now();
        self.audit = self.audit.min(now + self.settings.unknown);
        self.audit_scope = Scope::All;
        self.read.get_or_insert((now + STARTING_INTERVAL.min(self.settings.unknown), Scope::Pods));
    }

    /// The next deadline.
    pub(super) fn next(&self) -> Instant {
        let known = [self.read.map(|(at, _)| at), self.write].into_iter().flatten();
        known.fold(self.poll.min(self.audit).min(self.verify), Instant::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_soon_once_and_not_too_often() {
        let settings = Settings { settle: Duration::ZERO, ..Settings::default() };
        let mut schedule = Schedule::new(settings, true);
        assert_eq!(schedule.read_is_due(), Some(Scope::All), "at first everything");
        assert_eq!(schedule.read_is_due(), None);
        schedule.request_read(Scope::Pods);
        schedule.request_read(Scope::All);
        schedule.request_read(Scope::Pods);
        assert_eq!(schedule.read_is_due(), None, "just looked");
        assert!(schedule.next() <= Instant::now() + settings.gap);
        schedule.last_read = None;
        schedule.request_read(Scope::Pods);
        assert_eq!(schedule.read_is_due(), Some(Scope::All));
    }

    #[test]
    fn starting_pods_are_read_repeatedly_and_completely_at_the_end() {
        let mut schedule = Schedule::new(Settings::default(), true);
        assert_eq!(schedule.read_is_due(), Some(Scope::All));
        schedule.read_again();
        assert!(schedule.next() <= Instant::now() + STARTING_INTERVAL);
        schedule.read = Some((Instant::now(), Scope::Pods));
        assert_eq!(schedule.read_is_due(), Some(Scope::Pods));
        schedule.read_again();
        // A change is read earlier.
        schedule.last_read = None;
        schedule.request_read(Scope::Pods);
        assert!(schedule.next() < Instant::now() + STARTING_INTERVAL);
        (schedule.audit, schedule.read) = (Instant::now(), None);
        schedule.last_read = None;
        schedule.read_is_due();
        assert_eq!(schedule.read.map(|(_, scope)| scope), Some(Scope::All));
    }

    #[test]
    fn failed_writes_are_retried_with_backoff() {
        let mut schedule = Schedule::new(Settings::default(), true);
        schedule.read = None;
        schedule.wrote(false);
        assert!(schedule.next() <= Instant::now() + RETRY);
        for _ in 0..10 {
            schedule.wrote(false);
        }
        assert!(schedule.write.is_some_and(|at| at > Instant::now() + RETRY_MAX / 2));
        schedule.wrote(true);
        assert_eq!((schedule.write, schedule.retry), (None, RETRY));
    }
}
