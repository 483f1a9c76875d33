//! When what is done.
//!
//! Owns intervals and deadlines: how soon after a change the node is looked at, how often without one, and how
//! long after a failure it is tried again. Must not know what is looked at or written.

use std::time::{Duration, Instant};

use super::sight::Scope;

/// After a failure writes are tried again after so long, twice as long each time.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// How often what is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A few small files, which tell whether hardware changed.
    pub pulse: Duration,
    /// All pods' cgroups, though nothing told of a change.
    pub audit: Duration,
    /// Where a container's memory is.
    pub memory: Duration,
    /// What stands on the Node.
    pub verify: Duration,
    /// So long after a change is waited for more.
    pub settle: Duration,
    /// So long at least is between two looks.
    pub gap: Duration,
    /// So long nothing may be known of a pod before that is told.
    pub unknown: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pulse: Duration::from_secs(10),
            audit: Duration::from_secs(60),
            memory: Duration::from_secs(600),
            verify: Duration::from_secs(300),
            settle: Duration::from_millis(50),
            gap: Duration::from_millis(250),
            unknown: Duration::from_secs(15),
        }
    }
}

/// How often it is looked whether more is known of a pod that is starting.
const AGAIN: Duration = Duration::from_millis(500);

/// Deadlines.
#[derive(Debug)]
pub(super) struct Times {
    settings: Settings,
    /// Whether files are looked at, because nobody tells when they change.
    blind: bool,
    look: Option<(Instant, Scope)>,
    looked: Option<Instant>,
    write: Option<Instant>,
    retry: Duration,
    pulse: Instant,
    audit: Instant,
    /// How much is looked at then.
    audit_scope: Scope,
    verify: Instant,
}

impl Times {
    /// Everything is due.
    pub(super) fn new(settings: Settings, sees: bool) -> Self {
        let now = Instant::now();
        Self {
            settings,
            blind: !sees,
            look: Some((now, Scope::All)),
            looked: None,
            write: None,
            retry: RETRY,
            pulse: now + settings.pulse,
            audit: now + settings.audit,
            audit_scope: Scope::Pods,
            verify: now + settings.verify,
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A look is wanted, soon.
    pub(super) fn ask(&mut self, scope: Scope) {
        let soon = Instant::now() + self.settings.settle;
        let at = self.looked.map_or(soon, |looked| soon.max(looked + self.settings.gap));
        // The first to ask says when, the one that wants most says how much.
        self.look = Some(match self.look {
            Some((before, wanted)) => (before.min(at), wanted.max(scope)),
            None => (at, scope),
        });
    }

    /// Something is to be written, though nothing was looked at.
    pub(super) fn write_soon(&mut self) {
        let soon = Instant::now() + self.settings.settle;
        self.write = Some(self.write.map_or(soon, |before| before.min(soon)));
    }

    pub(super) fn blind(&mut self, blind: bool) {
        self.blind = blind;
    }

    pub(super) fn pulse_is_due(&mut self) -> bool {
        let now = Instant::now();
        if now < self.pulse {
            return false;
        }
        let often = self.settings.pulse.min(2 * self.settings.gap);
        self.pulse = now + if self.blind { often } else { self.settings.pulse };
        true
    }

    pub(super) fn look_is_due(&mut self) -> Option<Scope> {
        let now = Instant::now();
        if now >= self.audit {
            self.ask(self.audit_scope);
            (self.audit, self.audit_scope) = (now + self.settings.audit, Scope::Pods);
        }
        let (_, scope) = self.look.filter(|(at, _)| *at <= now)?;
        self.look = None;
        self.looked = Some(now);
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

    /// Everything was written, or not.
    pub(super) fn wrote(&mut self, all: bool) {
        if all {
            (self.write, self.retry) = (None, RETRY);
        } else {
            self.write = Some(Instant::now() + self.retry);
            self.retry = (self.retry * 2).min(RETRY_MAX);
        }
    }

    /// A verdict waits to be told. Mostly a container has not been started yet, of which nobody tells; and when the
    /// time is over, the driver may know more.
    pub(super) fn look_again(&mut self) {
        let now = Instant::now();
        self.audit = self.audit.min(now + self.settings.unknown);
        self.audit_scope = Scope::All;
        self.look.get_or_insert((now + AGAIN.min(self.settings.unknown), Scope::Pods));
    }

    /// When there is something to do though nothing happens.
    pub(super) fn next(&self) -> Instant {
        let known = [self.look.map(|(at, _)| at), self.write].into_iter().flatten();
        known.fold(self.pulse.min(self.audit).min(self.verify), Instant::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_looked_at_soon_once_and_not_too_often() {
        let settings = Settings { settle: Duration::ZERO, ..Settings::default() };
        let mut times = Times::new(settings, true);
        assert_eq!(times.look_is_due(), Some(Scope::All), "at first everything");
        assert_eq!(times.look_is_due(), None);
        times.ask(Scope::Pods);
        times.ask(Scope::All);
        times.ask(Scope::Pods);
        assert_eq!(times.look_is_due(), None, "just looked");
        assert!(times.next() <= Instant::now() + settings.gap);
        times.looked = None;
        times.ask(Scope::Pods);
        assert_eq!(times.look_is_due(), Some(Scope::All));
    }

    #[test]
    fn what_is_not_known_yet_is_looked_at_again_and_again_and_at_the_end_closely() {
        let mut times = Times::new(Settings::default(), true);
        assert_eq!(times.look_is_due(), Some(Scope::All));
        times.look_again();
        assert!(times.next() <= Instant::now() + AGAIN);
        times.look = Some((Instant::now(), Scope::Pods));
        assert_eq!(times.look_is_due(), Some(Scope::Pods));
        times.look_again();
        // Nobody has to wait for it who has news.
        times.looked = None;
        times.ask(Scope::Pods);
        assert!(times.next() < Instant::now() + AGAIN);
        (times.audit, times.look) = (Instant::now(), None);
        times.looked = None;
        times.look_is_due();
        assert_eq!(times.look.map(|(_, scope)| scope), Some(Scope::All));
    }

    #[test]
    fn what_failed_is_tried_again_later_and_later() {
        let mut times = Times::new(Settings::default(), true);
        times.look = None;
        times.wrote(false);
        assert!(times.next() <= Instant::now() + RETRY);
        for _ in 0..10 {
            times.wrote(false);
        }
        assert!(times.write.is_some_and(|at| at > Instant::now() + RETRY_MAX / 2));
        times.wrote(true);
        assert_eq!((times.write, times.retry), (None, RETRY));
    }
}
